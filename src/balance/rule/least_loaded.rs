//! The least loaded of a few.

use super::{Candidates, Rule, dice::Dice};
use crate::call::ConfigError;

const NAME: &str = "LeastLoaded";
const MOST_CHOICES: usize = 16;

/// Draws two different candidates and takes the one with fewer attempts in flight; either, if they have as many.
///
/// Two choices come close to the least loaded of all, at the cost of two looks instead of one at each endpoint, and
/// without all callers storming the one that was idle a moment ago (Mitzenmacher, "The Power of Two Choices in
/// Randomized Load Balancing", 2001). [More](LeastLoaded::choices) come closer, on both counts.
#[derive(Debug)]
pub struct LeastLoaded {
    choices: usize,
    dice: Dice,
}

impl Default for LeastLoaded {
    fn default() -> Self {
        LeastLoaded::new()
    }
}

impl LeastLoaded {
    /// With the random numbers of the thread that picks.
    pub fn new() -> Self {
        LeastLoaded {
            choices: 2,
            dice: Dice::default(),
        }
    }

    /// With a sequence that this seed determines, for tests: it is shared by all threads.
    pub fn seeded(seed: u64) -> Self {
        LeastLoaded {
            dice: Dice::seeded(seed),
            ..LeastLoaded::new()
        }
    }

    /// How many are drawn, 1 to 16. Default: 2. Of several with as few attempts in flight the first that was drawn is
    /// taken.
    ///
    /// # Errors
    ///
    /// If it is another number.
    pub fn choices(mut self, choices: usize) -> Result<Self, ConfigError> {
        if !(1..=MOST_CHOICES).contains(&choices) {
            let fix = "give a number from 1 to 16";
            return Err(ConfigError::new(NAME, "choices", choices, fix));
        }
        self.choices = choices;
        Ok(self)
    }

    fn least_of_two(&self, candidates: &Candidates<'_>, n: usize) -> usize {
        let one = self.dice.below(n);
        let other = {
            let among_the_rest = self.dice.below(n - 1);
            among_the_rest + usize::from(among_the_rest >= one)
        };
        let load = |index| candidates.get(index).map(|candidate| candidate.in_flight());
        if load(other) < load(one) { other } else { one }
    }

    fn least_of_more(&self, candidates: &Candidates<'_>, n: usize) -> Option<usize> {
        let load = |index| Some((candidates.get(index)?.in_flight(), index));
        let less = |best: (u64, usize), next: (u64, usize)| if next.0 < best.0 { next } else { best };
        if n <= self.choices {
            let first = self.dice.below(n);
            let all = (first..n).chain(0..first);
            let (_, index) = all.filter_map(load).reduce(less)?;
            return Some(index);
        }
        let mut seen = [usize::MAX; MOST_CHOICES];
        let (mut found, mut best) = (0, None);
        for _ in 0..4 * self.choices {
            let index = self.dice.below(n);
            let (drawn, rest) = seen.split_at_mut(found);
            if drawn.contains(&index) {
                continue;
            }
            let next = load(index)?;
            best = Some(best.map_or(next, |best| less(best, next)));
            if let Some(place) = rest.first_mut() {
                *place = index;
            }
            found += 1;
            if found == self.choices {
                break;
            }
        }
        let (_, index) = best?;
        Some(index)
    }
}

impl Rule for LeastLoaded {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        match (candidates.len(), self.choices) {
            (0 | 1, _) => Some(0),
            (n, 1) => Some(self.dice.below(n)),
            (n, 2) => Some(self.least_of_two(candidates, n)),
            (n, _) => self.least_of_more(candidates, n),
        }
    }
}
