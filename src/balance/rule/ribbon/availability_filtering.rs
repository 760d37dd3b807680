//! Round robin past those that are tripped or full.

use super::{
    super::{Candidates, Rule},
    RibbonRoundRobin, is_allowed, is_available,
    position::Position,
};

/// Round robin that passes over endpoints which are tripped, or at the limit of attempts in flight
/// (Ribbon's `AvailabilityFilteringRule`, its default outside of Spring).
///
/// It asks a [`RibbonRoundRobin`] up to eleven times. If all of its picks are tripped or full, it goes round those that
/// are not, by a position of its own, and if there are none round all of them. If the inner one chooses none, because of
/// vetoes, this one does not either.
///
/// When an endpoint is tripped or full: [`RibbonStats`](super::super::super::RibbonStats).
#[derive(Debug, Default)]
pub struct AvailabilityFiltering {
    inner: RibbonRoundRobin,
    position: Position,
}

const TESTS: usize = 11;

impl AvailabilityFiltering {
    /// Begins with the second endpoint.
    pub fn new() -> Self {
        AvailabilityFiltering::default()
    }
}

impl Rule for AvailabilityFiltering {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        for _ in 0..TESTS {
            let index = self.inner.pick(candidates)?;
            if candidates.get(index).is_some_and(is_available) {
                return Some(index);
            }
        }
        // Ribbon chooses once more before it gives up.
        self.inner.pick(candidates);
        self.position
            .among(candidates, is_available)
            .or_else(|| self.position.among(candidates, is_allowed))
            .or_else(|| self.position.among(candidates, |_| true))
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}
