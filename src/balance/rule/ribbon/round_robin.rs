//! Ribbon's round robin.

use super::{
    super::{Candidates, Rule},
    is_alive,
    position::Position,
};

/// One endpoint after the other, from the second on; one with a veto is passed over, but not more than nine in a row
/// (Ribbon's `RoundRobinRule`).
///
/// After ten that may not be picked it chooses none, though there may be others left. Tripped endpoints get their turn.
/// [`RoundRobin`](super::super::RoundRobin) is without these limits.
#[derive(Debug, Default)]
pub struct RibbonRoundRobin {
    position: Position,
}

const TRIES: usize = 10;

impl RibbonRoundRobin {
    /// Begins with the second endpoint.
    pub fn new() -> Self {
        RibbonRoundRobin::default()
    }
}

impl Rule for RibbonRoundRobin {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let n = candidates.len();
        (0..TRIES)
            .map(|_| self.position.step(n))
            .find(|&index| candidates.get(index).is_some_and(is_alive))
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}
