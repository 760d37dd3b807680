//! How many attempts an endpoint may have in flight, compared with the others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Candidate, Candidates, part::Due};

/// After picks for one of so many endpoints the sum is taken anew.
const ONE_OF: u64 = 8;

/// What is in flight to the endpoints of a set that have no veto, and what they weigh.
#[derive(Debug)]
pub(super) struct Loads {
    in_flight: AtomicU64,
    weight: AtomicU64,
    /// Since the sum was taken.
    picks: AtomicU64,
    look: Due,
}

impl Loads {
    pub(super) fn of(candidates: &Candidates<'_>) -> Self {
        let loads = Loads {
            in_flight: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            picks: AtomicU64::new(0),
            look: Due::new(candidates.now()),
        };
        loads.sum_up(candidates);
        loads
    }

    #[cold]
    fn sum_up(&self, candidates: &Candidates<'_>) {
        let eligible = candidates
            .iter()
            .filter(|candidate| candidate.endpoint().eligibility().is_eligible());
        let (in_flight, weight) = eligible.fold((0, 0), |(in_flight, weight), candidate| {
            (
                in_flight + candidate.in_flight(),
                weight + u64::from(candidate.endpoint().weight()),
            )
        });
        self.in_flight.store(in_flight, Relaxed);
        self.weight.store(weight, Relaxed);
    }

    /// How many attempts each unit of weight bears on average, with the one that is about to start.
    pub(super) fn mean(&self, candidates: &Candidates<'_>) -> f64 {
        let picks = self.picks.fetch_add(1, Relaxed);
        let mut since = picks;
        if picks * ONE_OF >= candidates.len() as u64 || self.look.is_due(candidates.now()) {
            // Of several that come here at once each takes the sum.
            self.picks.store(1, Relaxed);
            self.sum_up(candidates);
            since = 0;
        }
        let in_flight = self.in_flight.load(Relaxed) + since + 1;
        in_flight as f64 / self.weight.load(Relaxed).max(1) as f64
    }
}

/// Does it have less in flight than so many times its part?
pub(super) fn is_below(candidate: &Candidate<'_>, factor: f64, mean: f64) -> bool {
    let part = f64::from(candidate.endpoint().weight()) * mean;
    (candidate.in_flight() as f64) < (factor * part).ceil()
}
