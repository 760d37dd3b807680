//! The record of one call: each attempt, and why another one followed or did not.

use std::{error::Error, fmt};

use tokio::time::{Duration, Instant};
use tower::BoxError;

use super::{
    endpoint::Endpoint,
    fault::{Fault, Sent, chain},
    millis::Millis,
};

/// How many events are kept from the beginning of a call, and as many from its end.
const KEPT: usize = 64;

/// What happened in one call.
///
/// It is on the final error of a call, and, where the stack has a `RecordTrailLayer`, on a response that took more than
/// one attempt. It is begun at the first failure, so a call without one pays nothing for it. It never holds query
/// strings, user names or header values.
///
/// Attempts that were under way when the call was given up are in it as [`AttemptOutcome::Abandoned`].
#[derive(Debug, Clone, Default)]
pub struct Trail {
    events: Vec<Event>,
    attempts: usize,
    omitted: usize,
    /// Attempts that are left out count.
    may_have_been_sent: bool,
}

/// One line of a [`Trail`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The request was sent, or was to be.
    Attempt(Attempt),
    /// A layer decided to send it again.
    Retry(Retry),
    /// A layer that may retry did not.
    Stop(Stop),
}

/// One sending of a request.
#[derive(Debug, Clone)]
pub struct Attempt {
    ordinal: usize,
    endpoint: Option<Endpoint>,
    started: Instant,
    ended: Instant,
    outcome: AttemptOutcome,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// With an answer.
    Answered,
    /// With a fault.
    Failed(Fault),
    /// Given up from outside before it had ended, by a limit or by its caller.
    Abandoned,
}

/// A layer sends the request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    layer: &'static str,
    to: RetryTo,
    pause: Duration,
}

/// Where a retry goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryTo {
    /// To the endpoint of the attempt before.
    SameEndpoint,
    /// To the next endpoint.
    NextEndpoint,
    /// Wherever the layers below send it.
    Anywhere,
}

/// A layer that may retry did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    layer: &'static str,
    reason: NotRetried,
}

/// Why a retry was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRetried {
    /// The request may have reached a server, and is neither safe nor keyed.
    MayHaveBeenSent,
    /// The fault is of a kind that another attempt does not mend.
    NotTransient,
    /// The policy does not retry such a request on such a fault, though another attempt might mend it.
    NotByRule,
    /// A layer on this side turned the call away.
    Rejected,
    /// No endpoint is left to send it to.
    NoEndpoint,
    /// All attempts that the layer may make were made.
    AttemptsUsedUp {
        /// How many that is.
        limit: u32,
    },
    /// All attempts that the whole call may take were made, counted over all layers that retry.
    CallAttemptsUsedUp {
        /// How many that is.
        limit: u32,
    },
    /// The retry budget is spent.
    BudgetSpent,
    /// The pause before the retry would not end before the deadline.
    DeadlineTooClose {
        /// The pause.
        pause: Duration,
        /// The time left.
        left: Duration,
    },
    /// The server asked for a longer wait than the layer grants.
    RetryAfterTooLong {
        /// The wait that the server asked for.
        asked: Duration,
        /// The longest that is granted.
        limit: Duration,
    },
    /// The service below did not become ready for another attempt.
    NotReady,
    /// The body of the request cannot be sent a second time.
    BodyNotRepeatable,
    /// More of the body was read than is kept of it for a retry.
    BodyBeyondCap {
        /// How many bytes are kept at most.
        cap: usize,
    },
}

impl Trail {
    /// Finds the trail on an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Trail> {
        chain(error)
            .find_map(|error| error.downcast_ref::<CallFailed>())
            .map(CallFailed::trail)
    }

    /// Finds the trail that a `RecordTrail` layer has put on a response.
    pub fn on<B>(response: &http::Response<B>) -> Option<&Trail> {
        response.extensions().get()
    }

    /// All events in order. Of a call with a great many the ones in the middle are left out.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The attempts in order.
    pub fn attempts(&self) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.events.iter().filter_map(|event| match event {
            Event::Attempt(attempt) => Some(attempt),
            _ => None,
        })
    }

    /// How many attempts there were, those left out included.
    pub fn len(&self) -> usize {
        self.attempts
    }

    /// Was there no attempt?
    pub fn is_empty(&self) -> bool {
        self.attempts == 0
    }

    /// How many events were left out.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// The reasons for retries not made, with the layers that did not make them.
    pub fn stops(&self) -> impl DoubleEndedIterator<Item = Stop> + '_ {
        self.events.iter().filter_map(|event| match event {
            Event::Stop(stop) => Some(*stop),
            _ => None,
        })
    }

    /// When the first attempt that was written down started.
    pub fn started(&self) -> Option<Instant> {
        self.attempts().next().map(Attempt::started)
    }

    /// May an attempt have reached a server? Not if each is proved not to have.
    pub fn may_have_been_sent(&self) -> bool {
        self.may_have_been_sent
    }

    /// Adds an event. An attempt gets its number, and that comes back.
    pub(super) fn push(&mut self, mut event: Event) -> Option<usize> {
        let mut number = None;
        if let Event::Attempt(attempt) = &mut event {
            self.attempts += 1;
            self.may_have_been_sent |= attempt.outcome.may_have_been_sent();
            attempt.ordinal = self.attempts;
            number = Some(self.attempts);
        }
        if self.events.len() >= 2 * KEPT {
            // The beginning tells how it started and the end how it ended.
            self.events.remove(KEPT);
            self.omitted += 1;
        }
        self.events.push(event);
        number
    }

    /// A layer further up counts the answer of this attempt as a failure.
    pub(super) fn blame(&mut self, ordinal: usize, fault: Fault) {
        for event in self.events.iter_mut().rev() {
            if let Event::Attempt(attempt) = event {
                if attempt.ordinal == ordinal {
                    if attempt.outcome == AttemptOutcome::Answered {
                        attempt.outcome = AttemptOutcome::Failed(fault);
                    }
                    return;
                }
            }
        }
    }
}

impl AttemptOutcome {
    fn may_have_been_sent(&self) -> bool {
        match self {
            AttemptOutcome::Failed(fault) => fault.sent() == Sent::Maybe,
            AttemptOutcome::Answered | AttemptOutcome::Abandoned => true,
        }
    }
}

impl Attempt {
    /// An attempt, as a layer saw it.
    pub fn new(
        endpoint: Option<Endpoint>,
        started: Instant,
        ended: Instant,
        outcome: AttemptOutcome,
    ) -> Self {
        Attempt {
            ordinal: 0,
            endpoint,
            started,
            ended,
            outcome,
        }
    }

    /// Which attempt of its call it is, from 1 on. 0: it is in no trail yet.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Where it went. `None`: no layer that picks endpoints was in the stack.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// When it started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When it ended.
    pub fn ended(&self) -> Instant {
        self.ended
    }

    /// How long it took.
    pub fn took(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }

    /// How it ended.
    pub fn outcome(&self) -> AttemptOutcome {
        self.outcome
    }
}

impl Retry {
    /// This layer sends it again, there, after this pause.
    pub fn new(layer: &'static str, to: RetryTo, pause: Duration) -> Self {
        Retry { layer, to, pause }
    }

    /// The layer that sends it again.
    pub fn layer(&self) -> &'static str {
        self.layer
    }

    /// Where it goes.
    pub fn to(&self) -> RetryTo {
        self.to
    }

    /// The pause before it.
    pub fn pause(&self) -> Duration {
        self.pause
    }
}

impl Stop {
    /// This layer does not retry, for this reason.
    pub fn new(layer: &'static str, reason: NotRetried) -> Self {
        Stop { layer, reason }
    }

    /// The layer that did not retry.
    pub fn layer(&self) -> &'static str {
        self.layer
    }

    /// Why it did not.
    pub fn reason(&self) -> NotRetried {
        self.reason
    }
}

impl From<Attempt> for Event {
    fn from(attempt: Attempt) -> Self {
        Event::Attempt(attempt)
    }
}

impl From<Retry> for Event {
    fn from(retry: Retry) -> Self {
        Event::Retry(retry)
    }
}

impl From<Stop> for Event {
    fn from(stop: Stop) -> Self {
        Event::Stop(stop)
    }
}

impl fmt::Display for NotRetried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotRetried::MayHaveBeenSent => {
                f.write_str("a server may have seen it, and it is neither safe nor has an Idempotency-Key")
            }
            NotRetried::NotTransient => f.write_str("another attempt would not mend it"),
            NotRetried::NotByRule => f.write_str("the policy does not retry such a request on such a fault"),
            NotRetried::Rejected => f.write_str("it was rejected on this side"),
            NotRetried::NoEndpoint => f.write_str("no endpoint is left"),
            NotRetried::AttemptsUsedUp { limit } => write!(f, "its {limit} attempts were made"),
            NotRetried::CallAttemptsUsedUp { limit } => {
                write!(f, "the {limit} attempts of the whole call were made")
            }
            NotRetried::NotReady => f.write_str("the service below did not become ready"),
            NotRetried::BudgetSpent => f.write_str("the retry budget is spent"),
            NotRetried::DeadlineTooClose { pause, left } => {
                write!(
                    f,
                    "a pause of {} does not fit into the {} left",
                    Millis(*pause),
                    Millis(*left)
                )
            }
            NotRetried::RetryAfterTooLong { asked, limit } => {
                write!(
                    f,
                    "the server asks for {asked:?}, more than the {limit:?} granted"
                )
            }
            NotRetried::BodyNotRepeatable => f.write_str("the body cannot be sent twice"),
            NotRetried::BodyBeyondCap { cap } => {
                write!(
                    f,
                    "more of the body was read than the {cap} bytes that are kept of it"
                )
            }
        }
    }
}

impl fmt::Display for RetryTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RetryTo::SameEndpoint => "same endpoint",
            RetryTo::NextEndpoint => "next endpoint",
            RetryTo::Anywhere => "again",
        })
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttemptOutcome::Answered => f.write_str("answered"),
            AttemptOutcome::Failed(fault) => fault.fmt(f),
            AttemptOutcome::Abandoned => f.write_str("abandoned"),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(endpoint) = &self.endpoint {
            write!(f, "{endpoint} ")?;
        }
        write!(f, "{} after {}", self.outcome, Millis(self.took()))
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.layer, self.to)?;
        if self.pause.is_zero() {
            Ok(())
        } else {
            write!(f, " after a pause of {}", Millis(self.pause))
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: not retried, {}", self.layer, self.reason)
    }
}

/// One line: the events, parted by semicolons.
impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, event) in self.events.iter().enumerate() {
            if n > 0 {
                f.write_str("; ")?;
            }
            if n == KEPT && self.omitted > 0 {
                write!(f, "({} more); ", self.omitted)?;
            }
            match event {
                Event::Attempt(attempt) => attempt.fmt(f)?,
                Event::Retry(retry) => retry.fmt(f)?,
                Event::Stop(stop) => stop.fmt(f)?,
            }
        }
        Ok(())
    }
}

/// The final error of a call, with the [`Trail`] that led to it.
///
/// It reads as the kind of the fault and what is at the bottom of it, and then the trail. Its source is the error of
/// the last attempt, or of the layer that ended the call: [`Fault::of`] and a walk over
/// the sources find it. It is [`Sent::No`] only if none of its attempts may have reached a server.
#[derive(Debug)]
pub struct CallFailed {
    trail: Box<Trail>,
    source: BoxError,
}

impl CallFailed {
    pub(super) fn new(trail: Box<Trail>, source: BoxError) -> Self {
        CallFailed { trail, source }
    }

    /// What happened.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// What went wrong last.
    pub(super) fn last_fault(&self) -> Fault {
        Fault::of(&*self.source)
    }

    /// The error without the trail.
    pub fn into_inner(self) -> BoxError {
        self.source
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.last_fault().kind();
        // Of a chain of wrappers the innermost tells what happened.
        match chain(&*self.source).last() {
            Some(cause) => write!(f, "{kind}: {cause}")?,
            None => write!(f, "{kind}: {}", self.source)?,
        }
        write!(f, " (attempts: {}; {})", self.trail.len(), self.trail)
    }
}

impl Error for CallFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::FaultKind;

    fn failed(kind: FaultKind, sent: Sent) -> Attempt {
        let start = Instant::now();
        let outcome = AttemptOutcome::Failed(Fault::new(kind, sent));
        Attempt::new(
            Some(Endpoint::new("http://a:1").unwrap()),
            start,
            start + Duration::from_millis(3),
            outcome,
        )
    }

    #[test]
    fn it_reads_as_a_sentence() {
        let mut trail = Trail::default();
        trail.push(failed(FaultKind::ConnectRefused, Sent::No).into());
        trail.push(Retry::new("IdempotentRetry", RetryTo::NextEndpoint, Duration::ZERO).into());
        trail.push(failed(FaultKind::Closed, Sent::Maybe).into());
        trail.push(Stop::new("IdempotentRetry", NotRetried::MayHaveBeenSent).into());
        assert_eq!(
            trail.to_string(),
            "a:1 connect refused (not sent) after 3ms; IdempotentRetry: next endpoint; \
             a:1 closed before the answer was complete (may have been sent) after 3ms; \
             IdempotentRetry: not retried, a server may have seen it, and it is neither safe nor has an Idempotency-Key"
        );
    }

    #[test]
    fn a_call_with_endless_attempts_keeps_the_beginning_and_the_end_and_counts_all() {
        let mut trail = Trail::default();
        for _ in 0..1000 {
            trail.push(failed(FaultKind::Reset, Sent::Maybe).into());
        }
        trail.push(Stop::new("BackoffRetry", NotRetried::BudgetSpent).into());
        assert_eq!(
            (trail.len(), trail.events().len(), trail.omitted()),
            (1000, 2 * KEPT, 1001 - 2 * KEPT)
        );
        assert!(trail.stops().next().is_some());
        assert!(trail.to_string().contains("(873 more)"));
    }

    #[test]
    fn an_attempt_that_may_have_been_sent_is_not_forgotten_when_it_is_left_out() {
        let now = Instant::now();
        for outcome in [
            AttemptOutcome::Answered,
            AttemptOutcome::Abandoned,
            AttemptOutcome::Failed(Fault::new(FaultKind::Reset, Sent::Maybe)),
        ] {
            let mut trail = Trail::default();
            for n in 0..300 {
                assert_eq!(trail.may_have_been_sent(), n > 100);
                trail.push(match n {
                    100 => Attempt::new(None, now, now, outcome).into(),
                    _ => failed(FaultKind::ConnectRefused, Sent::No).into(),
                });
            }
        }
    }
}
