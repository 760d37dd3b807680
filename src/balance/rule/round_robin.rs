//! One after the other.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Candidates, Rule};

/// One candidate after the other, from the first on. [`RibbonRoundRobin`](super::RibbonRoundRobin) is Ribbon's own, which begins
/// with the second.
///
/// All clones of all services of a layer advance one rotation: a service that is cloned for each request goes round
/// as well. Where one is skipped because of a veto, the calls divide evenly among the others.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// Begins with the first candidate.
    pub fn new() -> Self {
        RoundRobin::default()
    }

    /// Begins with the candidate at this place, counted round. A number that differs from process to process keeps
    /// many that start together from going to one server first.
    pub fn starting_at(place: usize) -> Self {
        RoundRobin {
            next: AtomicUsize::new(place),
        }
    }
}

impl Rule for RoundRobin {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        // Wraps to zero after usize::MAX, which is one irregular step.
        let turn = self.next.fetch_add(1, Relaxed);
        turn.checked_rem(candidates.len())
    }
}
