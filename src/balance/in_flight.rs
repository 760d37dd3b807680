//! An attempt that is under way.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{
    figures::{Counters, End, Moment},
    outlier::{Outcome, Ticket},
};
use crate::call::{Attempt, AttemptOutcome, Endpoint, Verdict, scope};

/// An endpoint, as it is described now, and what is counted about it: together, so that an attempt holds one thing.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) endpoint: Endpoint,
    pub(super) counters: Arc<Counters>,
}

impl Counted {
    pub(super) fn new(endpoint: Endpoint, counters: Arc<Counters>) -> Self {
        counters.load().weigh(endpoint.weight());
        Counted { endpoint, counters }
    }

    #[inline]
    pub(super) fn unwatch(&self, ticket: Ticket, outcome: Outcome, now: Instant) {
        self.counters.unwatch(ticket, &self.endpoint, outcome, now);
    }
}

/// As [`Duration::as_secs_f32`], but for the last digit, and without dividing.
#[inline]
fn seconds(duration: Duration) -> f32 {
    duration.as_secs() as f32 + duration.subsec_nanos() as f32 * 1e-9
}

/// An attempt that counts as in flight while this lives. A verdict ends it; so does dropping it, as abandoned.
///
/// It is changed where it is: it comes into being and ends with each call, and moving it takes as long as either.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Where it goes. `None`: it has ended.
    to: Option<Arc<Counted>>,
    /// As the counters have it.
    started: u64,
    /// Within how many seconds the rule forgets response times.
    decay: f32,
    /// Is it a part of a call that keeps a trail?
    recorded: bool,
    /// Where outliers are ejected.
    ticket: Ticket,
}

impl InFlight {
    /// `decay`: within what time the rule forgets response times. `had_a_choice`: there were other endpoints
    /// than this one, without a veto.
    #[inline(always)]
    pub(super) fn begin(to: &Arc<Counted>, now: &Moment, decay: Duration, had_a_choice: bool) -> Self {
        to.counters.begin(now);
        let recorded = scope::current(|scope| {
            scope.set_had_a_choice(had_a_choice);
            scope.keeps_trail()
        });
        InFlight {
            to: Some(to.clone()),
            started: now.nanos,
            decay: seconds(decay),
            recorded,
            ticket: Ticket::default(),
        }
    }

    /// With what it was admitted as.
    #[inline(always)]
    pub(super) fn watched(mut self, ticket: Ticket) -> Self {
        self.ticket = ticket;
        self
    }

    /// Ends it. What comes back is where it went. `None`: it has ended before.
    #[inline]
    pub(super) fn end(&mut self, verdict: Verdict, end: End, now: Instant) -> Option<Arc<Counted>> {
        let to = self.to.take()?;
        let nanos = to.counters.nanos(now);
        let took = nanos.saturating_sub(self.started);
        to.counters
            .end(verdict, end, self.started, took, nanos, self.decay);
        to.unwatch(self.ticket, Outcome::Verdict(verdict), now);
        Some(to)
    }

    /// Given up.
    pub(super) fn abandon(&mut self, now: Instant) -> Option<Arc<Counted>> {
        let to = self.to.take()?;
        to.counters.abandon(self.started, now, self.decay);
        let waited = to.counters.nanos(now).saturating_sub(self.started);
        to.unwatch(self.ticket, Outcome::GivenUp(waited), now);
        Some(to)
    }

    /// Its answer is here, and the verdict will come later. It stays in flight until then, as what comes back, and is no
    /// part of the call any more, which may have ended long before. Where it went comes back too.
    pub(super) fn answered(&mut self, now: Instant) -> Option<(Answered, Arc<Counted>)> {
        let to = self.to.take()?;
        let nanos = to.counters.nanos(now);
        to.counters.answered(self.started, nanos);
        let answered = Answered {
            to: Some(to.clone()),
            took: nanos.saturating_sub(self.started),
            decay: self.decay,
            ticket: self.ticket,
        };
        Some((answered, to))
    }

    /// For the trail.
    pub(super) fn attempt(&self, to: &Counted, now: Instant, outcome: AttemptOutcome) -> Attempt {
        let took = to.counters.nanos(now).saturating_sub(self.started);
        let started = now.checked_sub(Duration::from_nanos(took)).unwrap_or(now);
        Attempt::new(Some(to.endpoint.clone()), started, now, outcome)
    }
}

/// An attempt that has its answer, and counts as in flight until its verdict comes. Dropped, it was given up: by the
/// caller, and not because it had to wait.
#[derive(Debug)]
pub(super) struct Answered {
    /// `None`: it has ended.
    to: Option<Arc<Counted>>,
    /// To its answer.
    took: u64,
    decay: f32,
    ticket: Ticket,
}

impl Answered {
    /// Ends it.
    pub(super) fn end(mut self, verdict: Verdict, now: Instant) {
        if let Some(to) = self.to.take() {
            to.counters.end_answered(verdict, self.took, now, self.decay);
            to.unwatch(self.ticket, Outcome::Verdict(verdict), now);
        }
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            let now = Instant::now();
            to.counters.abandon_answered(self.took, now, self.decay);
            to.unwatch(self.ticket, Outcome::Verdict(Verdict::Ignored), now);
        }
    }
}

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        if self.to.is_some() {
            self.give_up();
        }
    }
}

impl InFlight {
    #[cold]
    fn give_up(&mut self) {
        let now = Instant::now();
        let Some(to) = self.abandon(now).filter(|_| self.recorded) else {
            // Should it be dropped within another call, that one has no part in it.
            return;
        };
        scope::current(|scope| {
            if scope.keeps_trail() {
                scope.record(self.attempt(&to, now, AttemptOutcome::Abandoned));
            }
            scope.set_picked(&to.endpoint);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{super::figures::Epoch, *};

    fn counted() -> Arc<Counted> {
        Arc::new(Counted::new(Endpoint::new("http://a").unwrap(), Arc::default()))
    }

    fn begin(to: &Arc<Counted>, epoch: &Epoch) -> InFlight {
        let now = epoch.moment(Instant::now());
        to.counters.count_from(epoch, &now);
        InFlight::begin(to, &now, Duration::from_secs(1), false)
    }

    #[test]
    fn each_way_of_ending_is_counted_once_and_leaves_nothing_in_flight() {
        let (to, epoch) = (counted(), Epoch::default());
        let begin = || begin(&to, &epoch);
        let open = [begin(), begin()];
        assert_eq!(to.counters.in_flight(), 2);
        for verdict in [Verdict::Success, Verdict::Failure, Verdict::Ignored] {
            let ended = begin().end(verdict, End::Met, Instant::now()).unwrap();
            assert_eq!(ended.endpoint, to.endpoint);
        }
        drop(open);
        let figures = to.counters.read();
        assert_eq!(figures.in_flight(), 0);
        assert_eq!(figures.attempts(), 5);
        let ended = (
            figures.successes(),
            figures.failures(),
            figures.ignored(),
            figures.abandoned(),
        );
        assert_eq!(ended, (1, 1, 1, 2));
    }
}
