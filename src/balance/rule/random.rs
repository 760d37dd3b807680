//! Any one.

use super::{Candidates, Rule, dice::Dice};

/// Any candidate, each as likely as another (Ribbon's `RandomRule`).
#[derive(Debug, Default)]
pub struct Random {
    dice: Dice,
}

impl Random {
    /// With the random numbers of the thread that picks.
    pub fn new() -> Self {
        Random::default()
    }

    /// With a sequence that this seed determines, for tests: it is shared by all threads.
    pub fn seeded(seed: u64) -> Self {
        Random {
            dice: Dice::seeded(seed),
        }
    }
}

impl Rule for Random {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        match candidates.len() {
            0 | 1 => Some(0),
            n => Some(self.dice.below(n)),
        }
    }
}
