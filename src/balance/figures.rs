//! What is counted about an endpoint.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;

use crate::call::{Attempt, AttemptOutcome, Endpoint, Verdict, scope};

/// The live counters of one endpoint. What has started and has not ended is in flight: there is no counter for that
/// which could drift, and an attempt costs two increments.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    started: AtomicU64,
    successes: AtomicU64,
    failures: AtomicU64,
    ignored: AtomicU64,
    abandoned: AtomicU64,
}

impl Counters {
    pub(super) fn in_flight(&self) -> u64 {
        self.read().in_flight
    }

    pub(super) fn read(&self) -> Figures {
        let (successes, failures) = (self.successes.load(Relaxed), self.failures.load(Relaxed));
        let (ignored, abandoned) = (self.ignored.load(Relaxed), self.abandoned.load(Relaxed));
        let ended = successes + failures + ignored + abandoned;
        Figures {
            // Other threads count on between the loads.
            in_flight: self.started.load(Relaxed).saturating_sub(ended),
            successes,
            failures,
            ignored,
            abandoned,
        }
    }

    fn end(&self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Success => &self.successes,
            Verdict::Failure => &self.failures,
            Verdict::Ignored => &self.ignored,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// What has been counted about one endpoint, or about several.
///
/// While calls are made, the numbers are read one after the other: they may be apart by the attempts that start or
/// end in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    in_flight: u64,
    successes: u64,
    failures: u64,
    ignored: u64,
    abandoned: u64,
}

impl Figures {
    /// Attempts that have been sent and have neither an answer, nor an error, nor been given up. A body that is still
    /// being read is not in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// All attempts, those in flight included: how often the endpoint was picked.
    pub fn attempts(&self) -> u64 {
        self.in_flight + self.successes + self.failures + self.ignored + self.abandoned
    }

    /// Attempts that ended in a success.
    pub fn successes(&self) -> u64 {
        self.successes
    }

    /// Attempts that ended in a failure.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Attempts that ended in what counts as neither.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Attempts that were given up before they ended, by a limit or by the caller, or that panicked.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    pub(super) fn plus(self, other: Figures) -> Figures {
        Figures {
            in_flight: self.in_flight + other.in_flight,
            successes: self.successes + other.successes,
            failures: self.failures + other.failures,
            ignored: self.ignored + other.ignored,
            abandoned: self.abandoned + other.abandoned,
        }
    }
}

/// An attempt that counts as in flight while this lives. A verdict ends it; so does dropping it, as abandoned.
#[derive(Debug)]
pub(super) struct InFlight(Option<Underway>);

#[derive(Debug)]
struct Underway {
    endpoint: Endpoint,
    counters: Arc<Counters>,
    started: Instant,
    /// Is it a part of a call that keeps a trail?
    recorded: bool,
}

impl InFlight {
    pub(super) fn begin(endpoint: Endpoint, counters: Arc<Counters>, started: Instant) -> Self {
        counters.started.fetch_add(1, Relaxed);
        InFlight(Some(Underway {
            endpoint,
            counters,
            started,
            recorded: scope::current(|scope| scope.keeps_trail()),
        }))
    }

    /// Ends it. What comes back is the endpoint, and when the attempt started; always, since it ends but once.
    pub(super) fn end(mut self, verdict: Verdict) -> Option<(Endpoint, Instant)> {
        let underway = self.0.take()?;
        underway.counters.end(verdict);
        Some((underway.endpoint, underway.started))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(underway) = self.0.take() {
            underway.counters.abandoned.fetch_add(1, Relaxed);
            if !underway.recorded {
                // Should it be dropped within another call, that one has no part in it.
                return;
            }
            scope::current(|scope| {
                if scope.keeps_trail() {
                    scope.record(Attempt::new(
                        Some(underway.endpoint.clone()),
                        underway.started,
                        Instant::now(),
                        AttemptOutcome::Abandoned,
                    ));
                }
                scope.set_picked(underway.endpoint);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_ending_is_counted_once_and_leaves_nothing_in_flight() {
        let endpoint = Endpoint::new("http://a").unwrap();
        let counters = Arc::new(Counters::default());
        let begin = || InFlight::begin(endpoint.clone(), counters.clone(), Instant::now());
        let open = [begin(), begin()];
        assert_eq!(counters.in_flight(), 2);
        for verdict in [Verdict::Success, Verdict::Failure, Verdict::Ignored] {
            let (ended, _) = begin().end(verdict).unwrap();
            assert_eq!(ended, endpoint);
        }
        drop(open);
        let figures = counters.read();
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

    #[test]
    fn a_sum_adds_each_figure_to_its_like() {
        let figures = |n| Figures {
            in_flight: n,
            successes: 10 * n,
            failures: 100 * n,
            ignored: 1_000 * n,
            abandoned: 10_000 * n,
        };
        let sum = figures(2).plus(figures(3));
        assert_eq!(sum, figures(5));
        assert_eq!((sum.ignored(), sum.abandoned()), (5_000, 50_000));
    }
}
