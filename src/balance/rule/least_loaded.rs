//! The less loaded of two.

use super::{Candidates, Rule, dice::Dice};

/// Draws two different candidates and takes the one with fewer attempts in flight; either, if they have as many.
///
/// Two choices come close to the least loaded of all, at the cost of two looks instead of one at each endpoint, and
/// without all callers storming the one that was idle a moment ago (Mitzenmacher, "The Power of Two Choices in
/// Randomized Load Balancing", 2001).
#[derive(Debug, Default)]
pub struct LeastLoaded {
    dice: Dice,
}

impl LeastLoaded {
    /// With the random numbers of the thread that picks.
    pub fn new() -> Self {
        LeastLoaded::default()
    }

    /// With a sequence that this seed determines, for tests: it is shared by all threads.
    pub fn seeded(seed: u64) -> Self {
        LeastLoaded {
            dice: Dice::seeded(seed),
        }
    }
}

impl Rule for LeastLoaded {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let n = candidates.len();
        if n < 2 {
            return Some(0);
        }
        let one = self.dice.below(n);
        let other = {
            let among_the_rest = self.dice.below(n - 1);
            among_the_rest + usize::from(among_the_rest >= one)
        };
        let load = |index| candidates.get(index).map(|candidate| candidate.in_flight());
        Some(if load(other) < load(one) { other } else { one })
    }
}
