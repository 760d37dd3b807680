//! The loop, as a future without boxes.
//!
//! ```text
//! Calling ──▶ Draining ──▶ Pausing ──▶ Readying ──▶ Calling ... ──▶ Done
//! ```
//!
//! An answer that is thrown away is drained, so that its connection can be used again. The pause runs from the end
//! of the attempt. Readiness is asked for after the pause, never held through it. A retry without a pause begins
//! in the next poll: one poll starts one attempt, or a server that fails at once would keep the limits above from
//! being looked at.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;
use tower_service::Service;

use super::{
    FailedAttempt,
    drive::{Drive, Plan},
};
use crate::call::{
    Attempt, AttemptOutcome, BudgetSlot, CallScope, Event, Fault, FaultKind, NoTimeLeft, NotReady,
    NotRetried, ReadAnswer, Retry, RetryBudget, RetryTo, Semantics, Sent, Stop, scope, timer::poll_timer,
};

/// How long an answer that is thrown away may take to drain. It has come already, or it is about to; waiting longer
/// costs more than the new connection that it may save.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_millis(100);

pin_project! {
    /// The future of [`RetryService`](super::RetryService).
    pub struct RetryFuture<S, P, A, Req>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error>,
        A: ReadAnswer<S::Response>,
    {
        #[pin]
        state: State<S::Future, A::Drain, Req, P::Wait, P::Pause>,
        // None: the call goes straight through.
        retries: Option<Loop<S, P, A, P::Kept>>,
    }

    impl<S, P, A, Req> PinnedDrop for RetryFuture<S, P, A, Req>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error>,
        A: ReadAnswer<S::Response>,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let Some(retries) = this.retries else {
                return;
            };
            match &*this.state {
                // Layers below write down what they know of the attempt that is given up.
                State::Calling { .. } => retries.abandon(|| this.state.set(State::Done)),
                State::Draining { .. } | State::Pausing { .. } | State::Readying { .. } => retries.is_given_up(),
                State::Done => {}
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, D, Req, W, Z> {
        Calling {
            #[pin]
            attempt: F,
        },
        Draining {
            #[pin]
            drain: D,
            #[pin]
            limit: Option<Sleep>,
            next: Option<Next<Req>>,
            wait: Option<W>,
        },
        Pausing {
            #[pin]
            pause: Option<Z>,
            waited: bool,
            next: Option<Next<Req>>,
        },
        Readying {
            next: Option<Next<Req>>,
        },
        Done,
    }
}

/// The attempt to come.
struct Next<Req> {
    request: Req,
    slot: Option<BudgetSlot>,
    stay: bool,
    /// What the attempt before ended with, if that was an error.
    known: Option<BoxError>,
    /// When it was decided on.
    decided: Instant,
}

/// An attempt that has ended: how, what was wrong with that, and what the policy made of it.
struct Ended<Response, Wish> {
    outcome: Result<Response, BoxError>,
    fault: Option<Fault>,
    wish: Option<Wish>,
}

/// What was wrong with an answer in which only the policy finds fault: the server gave it, and nobody says why it
/// will not do.
const UNWANTED: Fault = Fault::new(FaultKind::Other, Sent::Maybe);

/// What the loop keeps of a call.
pub(super) struct Loop<S, P, A, Kept> {
    policy: P,
    reader: A,
    budget: Option<RetryBudget>,
    /// Is it this layer that counts the call for the budget?
    counts: bool,
    semantics: Semantics,
    /// The copy and the service for further attempts. None: the request cannot be sent again.
    spare: Option<(Kept, S)>,
    scope: CallScope,
    /// Attempts made, those of them in a row that were meant for one endpoint, and how often it was changed.
    attempts: u64,
    here: u32,
    moves: u32,
    /// The pause before the attempt, in nanoseconds.
    paused: u64,
    /// When the attempt started.
    started: Instant,
}

impl<S, P, A, Kept> Loop<S, P, A, Kept> {
    #[inline]
    pub(super) fn new(
        policy: P,
        reader: A,
        budget: Option<RetryBudget>,
        semantics: Semantics,
        prefers_untried: bool,
    ) -> Self {
        let mut scope = CallScope::join_or_begin();
        scope.prefer_untried(prefers_untried);
        let started = Instant::now();
        let mut counts = false;
        if let Some(budget) = &budget {
            counts = scope.first_counted_by(budget.id());
            if counts {
                budget.call_starts(started);
            }
        }
        Loop {
            policy,
            reader,
            budget,
            counts,
            semantics,
            spare: None,
            scope,
            attempts: 0,
            here: 0,
            moves: 0,
            paused: 0,
            started,
        }
    }

    #[inline]
    pub(super) fn keep(&mut self, kept: Kept, service: S) {
        self.spare = Some((kept, service));
    }

    #[inline]
    pub(super) fn limit_attempts(&mut self, most: u32) {
        self.scope.limit_attempts(most);
    }

    /// Starts an attempt.
    #[inline]
    pub(super) fn start<F>(&mut self, call: impl FnOnce() -> F) -> F {
        self.attempts += 1;
        self.here = self.here.saturating_add(1);
        self.scope.attempt_starts();
        self.scope.enter(call)
    }

    /// Polls an attempt. At its end: what became of it, and what was wrong with that.
    #[inline]
    fn poll_attempt<Req>(
        &mut self,
        attempt: Pin<&mut S::Future>,
        cx: &mut Context<'_>,
    ) -> Poll<Ended<S::Response, P::Wish>>
    where
        S: Service<Req>,
        S::Error: Into<BoxError>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
        A: ReadAnswer<S::Response>,
    {
        let Loop {
            scope,
            policy,
            spare,
            reader,
            started,
            ..
        } = self;
        scope.enter(|| {
            let mut outcome = ready!(attempt.poll(cx));
            let wish = spare
                .as_mut()
                .and_then(|(kept, _)| policy.ask(kept, &mut outcome));
            let outcome = outcome.map_err(Into::into);
            let fault = match &outcome {
                Ok(answer) => reader.fault(answer).or_else(|| wish.as_ref().map(|_| UNWANTED)),
                Err(error) => Some(Fault::of(&**error)),
            };
            scope::current(|scope| match fault {
                Some(fault) => scope.record_failure(*started, fault),
                None if scope.trail().is_some() && !scope.is_written() => {
                    scope.record_answer(Attempt::new(
                        scope.picked().cloned(),
                        *started,
                        Instant::now(),
                        AttemptOutcome::Answered,
                    ));
                }
                None => {}
            });
            Poll::Ready(Ended { outcome, fault, wish })
        })
    }

    /// The attempt failed: is the request sent again, and after which pause?
    ///
    /// What costs something is asked last: the token, then the copy of the body.
    fn decide<Req>(
        &mut self,
        error: Option<&BoxError>,
        fault: Fault,
        wish: Option<P::Wish>,
    ) -> Result<(Next<Req>, P::Wait), NotRetried>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        let (can_move_on, used_up) = self.within(|scope| (scope.can_move_on(), scope.attempts_used_up()));
        let had_a_choice = self.scope.had_a_choice();
        let kept = self.spare.as_ref().map(|(kept, _)| kept);
        let failed = FailedAttempt {
            semantics: self.semantics,
            fault,
            may_have_been_sent: self.scope.may_have_been_sent(),
            error: error.map(|error| &**error),
            attempts: self.attempts,
            here: self.here,
            moves: self.moves,
            paused: Duration::from_nanos(self.paused),
            can_move_on,
            had_a_choice,
        };
        let Plan { to, pause, wait } = self.policy.decide(kept, wish, &failed)?;
        if let Some(limit) = used_up {
            return Err(NotRetried::CallAttemptsUsedUp { limit });
        }
        if let Some(left) = self.scope.remaining().filter(|left| pause >= *left) {
            return Err(NotRetried::DeadlineTooClose { pause, left });
        }
        let (kept, _) = self.spare.as_mut().ok_or(NotRetried::BodyNotRepeatable)?;
        P::check(kept)?;
        let slot = match &self.budget {
            Some(budget) => Some(budget.withdraw().ok_or(NotRetried::BudgetSpent)?),
            None => None,
        };
        let request = P::request(kept).ok_or(NotRetried::BodyNotRepeatable)?;
        if error.is_none() {
            // An answer that is thrown away cannot be returned any more, so from here on nothing must come between.
            P::take_over(kept)?;
        }
        if to != RetryTo::SameEndpoint {
            self.moves = self.moves.saturating_add(u32::from(to == RetryTo::NextEndpoint));
            self.here = 0;
        }
        // Where nothing below says where it went, there is no same or next endpoint.
        let to = if self.scope.picked().is_some() {
            to
        } else {
            RetryTo::Anywhere
        };
        self.paused = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.record(Retry::new(self.policy.name(), to, pause));
        tracing::debug!(layer = self.policy.name(), %fault, %to, ?pause, "retry");
        let next = Next {
            request,
            slot,
            stay: to == RetryTo::SameEndpoint,
            known: None,
            decided: Instant::now(),
        };
        Ok((next, wait))
    }

    /// Starts the attempt that was decided on. Its service is ready.
    fn start_next<Req>(&mut self, next: Next<Req>) -> Option<S::Future>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        if let Some(slot) = next.slot {
            slot.spend();
        }
        // What an attempt does not reach must not be held to be where it failed.
        let picked = self.scope.take_picked();
        self.scope.wish_to_stay(picked.filter(|_| next.stay));
        self.started = Instant::now();
        let (mut kept, mut service) = self.spare.take()?;
        self.policy.keep_again(&mut kept, &next.request);
        let attempt = self.start(|| service.call(next.request));
        self.spare = Some((kept, service));
        Some(attempt)
    }

    /// Waits until the service is ready for the next attempt, and for that alone: what comes out as an error ends
    /// the call.
    fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>
    where
        S: Service<Req>,
        S::Error: Into<BoxError>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        let Loop { scope, spare, .. } = self;
        let ready = match spare {
            Some((_, service)) => ready!(scope.enter(|| service.poll_ready(cx))),
            None => Ok(()),
        };
        if let Err(error) = ready {
            let error = NotReady::new(self.policy.name(), error.into());
            return self.not_started(self.policy.name(), error, NotRetried::NotReady);
        }
        if self.is_too_late() {
            let (pause, left) = (Duration::ZERO, Duration::ZERO);
            let layer = self.policy.name();
            let reason = NotRetried::DeadlineTooClose { pause, left };
            return self.not_started(layer, NoTimeLeft::new(layer), reason);
        }
        Poll::Ready(Ok(()))
    }

    /// The attempt that was decided on is not started after all, and the call ends.
    fn not_started<T>(
        &mut self,
        layer: &'static str,
        error: impl Into<BoxError>,
        reason: NotRetried,
    ) -> Poll<Result<T, BoxError>> {
        let error = error.into();
        let fault = Fault::of(&*error);
        self.scope.take_picked();
        self.scope.attempt_starts();
        self.within(|scope| scope.record_failure(Instant::now(), fault));
        self.record(Stop::new(layer, reason));
        self.finish(Err(error))
    }

    /// The pause took all the time there was. What is known is returned: that is the error of the attempt before,
    /// unless it ended with an answer, which is gone.
    fn out_of_time<T>(
        &mut self,
        layer: &'static str,
        known: Option<BoxError>,
        decided: Instant,
    ) -> Poll<Result<T, BoxError>> {
        let pause = decided.elapsed();
        let deadline = self.scope.deadline();
        let left = deadline.map_or(pause, |deadline| deadline.saturating_duration_since(decided));
        let reason = NotRetried::DeadlineTooClose { pause, left };
        let Some(error) = known else {
            return self.not_started(layer, NoTimeLeft::new(layer), reason);
        };
        self.record(Stop::new(layer, reason));
        self.finish(Err(error))
    }

    /// Has the body that the next attempt is to send been lost meanwhile? Then that attempt is not started, and what
    /// is known is returned. Where that was an answer, the body was taken over at once and cannot be lost.
    fn poll_lost<Req, T>(
        &mut self,
        next: &mut Option<Next<Req>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, BoxError>>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        match (&self.spare, next.as_ref().map(|next| next.known.is_some())) {
            (Some((kept, _)), Some(true)) => match P::poll_lost(kept, cx) {
                Poll::Ready(reason) => self.lost(next, reason),
                Poll::Pending => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    /// The next attempt is about to start. Ready: not after all, as for [`poll_lost`](Loop::poll_lost).
    fn take_over<Req, T>(&mut self, next: &mut Option<Next<Req>>) -> Poll<Result<T, BoxError>>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        match self.spare.as_ref().map(|(kept, _)| P::take_over(kept)) {
            Some(Err(reason)) => self.lost(next, reason),
            _ => Poll::Pending,
        }
    }

    fn lost<Req, T>(&mut self, next: &mut Option<Next<Req>>, reason: NotRetried) -> Poll<Result<T, BoxError>>
    where
        S: Service<Req>,
        P: Drive<Req, S::Response, S::Error, Kept = Kept>,
    {
        let Some(known) = next.as_mut().and_then(|next| next.known.take()) else {
            return Poll::Pending;
        };
        *next = None;
        self.record(Stop::new(self.policy.name(), reason));
        self.finish(Err(known))
    }

    fn is_too_late(&self) -> bool {
        self.scope.remaining().is_some_and(|left| left.is_zero())
    }

    /// When an answer that is thrown away has had its time to drain.
    fn drain_until(&self) -> Instant {
        let end = Instant::now() + DRAIN_LIMIT;
        self.scope.deadline().map_or(end, |deadline| end.min(deadline))
    }

    fn record(&mut self, event: impl Into<Event>) {
        self.within(|scope| scope.record(event));
    }

    /// A scope has its trail only while it is on the thread.
    fn within<R>(&mut self, f: impl FnOnce(&mut CallScope) -> R) -> R {
        self.scope.enter(|| scope::current(f))
    }

    fn succeeded(&self) {
        if let Some(budget) = self.budget.as_ref().filter(|_| self.counts) {
            budget.call_succeeded();
        }
    }

    #[inline]
    fn finish<T>(&mut self, outcome: Result<T, BoxError>) -> Poll<Result<T, BoxError>> {
        // Nothing follows: what was kept of the body is of no use any more.
        self.spare = None;
        Poll::Ready(self.scope.finish(outcome))
    }
}

impl<S, P, A, Kept> Loop<S, P, A, Kept> {
    /// The attempt is given up from outside.
    fn abandon(&mut self, give_up: impl FnOnce()) {
        let started = self.started;
        self.scope.enter(|| {
            give_up();
            scope::current(|scope| {
                if !scope.is_written() {
                    let picked = scope.picked().cloned();
                    let outcome = AttemptOutcome::Abandoned;
                    scope.record(Attempt::new(picked, started, Instant::now(), outcome));
                }
            });
        });
        self.is_given_up();
    }

    /// What is known of the call is told to a loop around this one, which need not write down the last attempt again.
    fn is_given_up(&mut self) {
        let _ = self.scope.finish(Ok(()));
    }
}

impl<S, P, A, Req> RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    P: Drive<Req, S::Response, S::Error>,
    A: ReadAnswer<S::Response>,
{
    #[inline]
    pub(super) fn straight(attempt: S::Future) -> Self {
        RetryFuture {
            state: State::Calling { attempt },
            retries: None,
        }
    }

    #[inline]
    pub(super) fn new(attempt: S::Future, retries: Loop<S, P, A, P::Kept>) -> Self {
        RetryFuture {
            state: State::Calling { attempt },
            retries: Some(retries),
        }
    }
}

impl<S, P, A, Req> Future for RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    P: Drive<Req, S::Response, S::Error>,
    A: ReadAnswer<S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(retries) = this.retries else {
            let outcome = match this.state.as_mut().project() {
                StateProj::Calling { attempt } => ready!(attempt.poll(cx)),
                _ => return polled_again(),
            };
            this.state.set(State::Done);
            return Poll::Ready(outcome.map_err(Into::into));
        };
        loop {
            let (next, wait) = match this.state.as_mut().project() {
                StateProj::Calling { attempt } => {
                    let Ended { outcome, fault, wish } = ready!(retries.poll_attempt(attempt, cx));
                    this.state.set(State::Done);
                    let Some(fault) = fault else {
                        retries.succeeded();
                        return retries.finish(outcome);
                    };
                    let (mut next, wait) = match retries.decide(outcome.as_ref().err(), fault, wish) {
                        Ok(decided) => decided,
                        Err(reason) => {
                            retries.record(Stop::new(retries.policy.name(), reason));
                            return retries.finish(outcome);
                        }
                    };
                    // What is thrown away is gone before the next attempt starts.
                    let drain = match outcome {
                        Ok(answer) => retries.reader.drain(answer),
                        Err(error) => {
                            next.known = Some(error);
                            None
                        }
                    };
                    if let Some(drain) = drain {
                        this.state.set(State::Draining {
                            drain,
                            limit: None,
                            next: Some(next),
                            wait: Some(wait),
                        });
                        continue;
                    }
                    (Some(next), Some(wait))
                }
                StateProj::Draining {
                    drain,
                    mut limit,
                    next,
                    wait,
                } => {
                    if drain.poll(cx).is_pending() {
                        if limit.is_none() {
                            limit.set(Some(sleep_until(retries.drain_until())));
                        }
                        if let Some(limit) = limit.as_pin_mut() {
                            ready!(poll_timer(limit, cx));
                        }
                    }
                    (next.take(), wait.take())
                }
                StateProj::Pausing { pause, waited, next } => {
                    if pause
                        .as_pin_mut()
                        .is_some_and(|pause| pause.poll(cx).is_pending())
                    {
                        *waited = true;
                        let lost = retries.poll_lost(next, cx);
                        if lost.is_ready() {
                            this.state.set(State::Done);
                        }
                        return lost;
                    }
                    let (waited, Some(next)) = (*waited, next.take()) else {
                        return polled_again();
                    };
                    if retries.is_too_late() {
                        this.state.set(State::Done);
                        return retries.out_of_time(retries.policy.name(), next.known, next.decided);
                    }
                    this.state.set(State::Readying { next: Some(next) });
                    if waited {
                        continue;
                    }
                    // No pause, or it went by while draining: let others, and the limits above, have their turn.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                StateProj::Readying { next } => {
                    if let Err(error) = ready!(retries.poll_ready(cx)) {
                        // Whoever keeps this future does not keep the request and the token.
                        this.state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                    if let Poll::Ready(lost) = retries.take_over(next) {
                        this.state.set(State::Done);
                        return Poll::Ready(lost);
                    }
                    let attempt = next.take().and_then(|next| retries.start_next(next));
                    let Some(attempt) = attempt else {
                        return polled_again();
                    };
                    this.state.set(State::Calling { attempt });
                    continue;
                }
                StateProj::Done => return polled_again(),
            };
            let Some(wait) = wait else {
                return polled_again();
            };
            this.state.set(State::Pausing {
                pause: P::pause(wait, retries.scope.deadline()),
                waited: false,
                next,
            });
        }
    }
}

/// A future must not be polled again after its end; there is nothing that could become ready.
fn polled_again<T>() -> Poll<T> {
    Poll::Pending
}

impl<S, P, A, Req> fmt::Debug for RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    P: Drive<Req, S::Response, S::Error>,
    A: ReadAnswer<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("state", &self.state.name())
            .field(
                "attempts",
                &self.retries.as_ref().map_or(1, |retries| retries.attempts),
            )
            .finish_non_exhaustive()
    }
}

impl<F, D, Req, W, Z> State<F, D, Req, W, Z> {
    fn name(&self) -> &'static str {
        match self {
            State::Calling { .. } => "Calling",
            State::Draining { .. } => "Draining",
            State::Pausing { .. } => "Pausing",
            State::Readying { .. } => "Readying",
            State::Done => "Done",
        }
    }
}
