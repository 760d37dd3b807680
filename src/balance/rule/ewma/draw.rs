//! Which ones are looked at.

use crate::balance::rule::dice::Dice;

pub(super) const MOST_CHOICES: usize = 16;

/// Those that are drawn.
#[derive(Debug)]
pub(super) enum Draw {
    /// The one at this index, and those after it; after the last comes the first. Of most of them it matters little
    /// which are left out together.
    InARow(usize),
    /// Those at these.
    OneOfEachPart([u32; MOST_CHOICES]),
}

impl Draw {
    /// Where the one is that was drawn in this turn, of so many.
    #[inline(always)]
    pub(super) fn index(&self, turn: usize, n: usize) -> usize {
        match self {
            Draw::InARow(first) if turn < n - first => first + turn,
            Draw::InARow(first) => first + turn - n,
            Draw::OneOfEachPart(drawn) => drawn.get(turn).map_or(0, |&index| index as usize),
        }
    }
}

/// So many choices, of `n`, none of them twice, and each of them as often as any other.
#[inline(always)]
pub(super) fn draw(dice: &Dice, n: usize, choices: usize) -> Draw {
    if n < 2 * choices {
        Draw::InARow(dice.about(n) as usize)
    } else {
        Draw::OneOfEachPart(one_of_each_part(dice, n as u64, choices))
    }
}

/// One of each part, of as many parts as there are choices. Where the parts begin is drawn as well.
#[inline]
fn one_of_each_part(dice: &Dice, n: u64, choices: usize) -> [u32; MOST_CHOICES] {
    let mut rng = dice.several();
    let share = |whole: u64, chance: u32| (whole * u64::from(chance)) >> 32;
    let first = share(n, rng.u32(..));
    let part = (n << 32).checked_div(choices as u64).unwrap_or_default();
    let mut drawn = [0; MOST_CHOICES];
    let mut start = 0;
    for drawn in drawn.iter_mut().take(choices) {
        let (from, to) = (start >> 32, (start + part) >> 32);
        let index = first + from + share(to - from, rng.u32(..));
        *drawn = if index < n { index } else { index - n } as u32;
        start += part;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// There are no more endpoints than that.
    const INDEX_BITS: u32 = 27;

    fn drawn(seed: u64, n: usize, choices: usize) -> Vec<usize> {
        let draw = draw(&Dice::seeded(seed), n, choices);
        (0..choices).map(|turn| draw.index(turn, n)).collect()
    }

    proptest! {
        #[test]
        fn each_is_one_of_them_and_none_is_drawn_twice(
            seed in any::<u64>(),
            n in prop_oneof![2..40_usize, 2..70_000_usize, 32_765..32_772_usize, 100_000..1_usize << INDEX_BITS],
            choices in 1..=MOST_CHOICES,
        ) {
            let choices = choices.min(n);
            let chosen = drawn(seed, n, choices);
            prop_assert!(chosen.iter().all(|&one| one < n), "{chosen:?}");
            let different: HashSet<_> = chosen.iter().collect();
            prop_assert_eq!(different.len(), choices, "{:?}", chosen);
            let next = chosen.iter().cycle().skip(1);
            let far = chosen.iter().zip(next).map(|(&one, &next)| (next + n - one) % n);
            let part = n / choices + 1;
            let are_apart = n < 2 * choices || far.max() <= Some(2 * part);
            prop_assert!(are_apart, "they are from all parts of {}: {:?}", n, chosen);
        }
    }

    #[test]
    fn of_a_set_of_any_size_each_part_is_drawn_as_often_as_any_other() {
        const ROUNDS: u64 = 20_000;
        const PARTS: usize = 16;
        for n in [
            160, 32_752, 32_767, 32_768, 40_000, 65_535, 65_536, 70_000, 10_000_000,
        ] {
            for choices in [1, 2, 12] {
                let mut parts = [0_u32; PARTS];
                for seed in 0..ROUNDS {
                    let chosen = drawn(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, choices);
                    for one in chosen {
                        parts[one * PARTS / n] += 1;
                    }
                }
                let mean = ROUNDS as f64 * choices as f64 / PARTS as f64;
                // Five standard deviations.
                let most = 5.0 * mean.sqrt();
                let is_even = |&count: &u32| (f64::from(count) - mean).abs() <= most;
                assert!(parts.iter().all(is_even), "{n}, {choices}: {parts:?}");
            }
        }
    }

    #[test]
    fn each_is_drawn_as_often_as_any_other_and_with_any_other() {
        const ROUNDS: u64 = 40_000;
        for (n, choices) in [(3, 3), (7, 2), (18, 12), (20, 10), (23, 12), (33, 12)] {
            let mut alone = vec![0_u32; n];
            let mut together = HashSet::new();
            for seed in 0..ROUNDS {
                let chosen = drawn(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, choices);
                for (index, &one) in chosen.iter().enumerate() {
                    alone[one] += 1;
                    together.extend(
                        chosen[..index]
                            .iter()
                            .map(|&other| (one.min(other), one.max(other))),
                    );
                }
            }
            let mean = ROUNDS as f64 * choices as f64 / n as f64;
            // Five standard deviations.
            let most = 5.0 * mean.sqrt();
            let is_even = |&count: &u32| (f64::from(count) - mean).abs() <= most;
            assert!(alone.iter().all(is_even), "{n}, {choices}: {alone:?}");
            assert_eq!(together.len(), n * (n - 1) / 2, "{n}, {choices}");
        }
    }
}
