//! The one with the fewest attempts in flight.

use super::{
    super::{Candidates, Rule},
    RibbonRoundRobin, is_allowed,
};

/// The endpoint with the fewest attempts in flight, the first of several, passing over tripped ones
/// (Ribbon's `BestAvailableRule`).
///
/// As long as nothing is in flight that is the first endpoint, always: many clients that share an order of the set storm
/// one server. [`LeastLoaded`](super::super::LeastLoaded) does not, and does not look at all of them. If all are tripped
/// it goes round as [`RibbonRoundRobin`] does. A veto by a [probe](crate::call::Veto::Probe) is not looked at.
#[derive(Debug, Default)]
pub struct BestAvailable {
    inner: RibbonRoundRobin,
}

impl BestAvailable {
    /// For a new layer.
    pub fn new() -> Self {
        BestAvailable::default()
    }
}

impl Rule for BestAvailable {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        candidates
            .iter()
            .enumerate()
            .filter(|&(_, candidate)| is_allowed(candidate) && !candidate.is_tripped())
            .min_by_key(|(_, candidate)| candidate.active())
            .map(|(index, _)| index)
            .or_else(|| self.inner.pick(candidates))
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}
