//! Which ones are looked at.

use crate::balance::rule::dice::Dice;

/// They are looked at by fours: a processor works out four in one step.
pub(super) const FOUR: usize = 4;
pub(super) const MOST_CHOICES: usize = FOUR * FOUR;

/// Something of each that is drawn, by turn.
pub(super) type Fours<T> = [[T; FOUR]; FOUR];

/// There are no more endpoints than that.
const INDEX_BITS: u32 = 27;

/// So many choices, of `n`: one of each twelfth, if there are twelve, so that none is drawn twice. Where the twelfths begin is
/// drawn as well. What is beyond the choices is any of the `n`.
#[inline(always)]
pub(super) fn draw(dice: &Dice, n: usize, choices: usize) -> Fours<u32> {
    let (n, choices) = (n as u32, choices as u32);
    if n < 1 << 15 {
        draw_of_few(dice, n, choices)
    } else {
        draw_of_many(dice, n, choices)
    }
}

/// In numbers so small that a processor works out eight of them in one step.
#[inline(always)]
fn draw_of_few(dice: &Dice, n: u32, choices: u32) -> Fours<u32> {
    let mut rng = dice.several();
    let first = ((u64::from(rng.u32(..)) * u64::from(n)) >> 32) as u16;
    let step = (n << 16).checked_div(choices).unwrap_or_default();
    let (whole, part, last, n) = (
        (step >> 16) as u16,
        step as u16,
        choices.saturating_sub(1) as i16,
        n as u16,
    );
    let mut chances = [0; MOST_CHOICES];
    for chances in chances.chunks_exact_mut(FOUR) {
        let word = rng.u64(..);
        chances.copy_from_slice(&[
            word as u16,
            (word >> 16) as u16,
            (word >> 32) as u16,
            (word >> 48) as u16,
        ]);
    }
    let mut drawn = Fours::default();
    for ((turn, drawn), chance) in (0_i16..).zip(drawn.as_flattened_mut()).zip(chances) {
        let start = |turn: u16| turn.wrapping_mul(whole).wrapping_add(share(turn, part));
        let turn = turn.min(last) as u16;
        let (from, to) = (start(turn), start(turn + 1));
        let index = first
            .wrapping_add(from)
            .wrapping_add(share(to.wrapping_sub(from), chance));
        // Less n, if it is not below it.
        let beyond = index.wrapping_sub(n) as i16;
        *drawn = u32::from(beyond.wrapping_add(n as i16 & (beyond >> 15)) as u16);
    }
    drawn
}

/// So many of 2^16 parts of it.
#[inline(always)]
fn share(whole: u16, parts: u16) -> u16 {
    ((u32::from(whole) * u32::from(parts)) >> 16) as u16
}

/// Of a very large set a twelfth is large itself, and few bits are left to say where in it.
#[cold]
fn draw_of_many(dice: &Dice, n: u32, choices: u32) -> Fours<u32> {
    const BITS: u32 = 32 - INDEX_BITS;
    let mut rng = dice.several();
    let step = (n << BITS).checked_div(choices).unwrap_or_default();
    let first = ((u64::from(rng.u32(..)) * u64::from(n)) >> 32) as u32;
    let mut drawn = [[first; FOUR]; FOUR];
    let mut start = 0;
    for drawn in drawn.as_flattened_mut().iter_mut().take(choices as usize) {
        let (from, to) = (start >> BITS, (start + step) >> BITS);
        let index = first + from + (((to - from) * rng.u32(..1 << BITS)) >> BITS);
        *drawn = if index < n { index } else { index - n };
        start += step;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Those that were drawn in their turns, and all.
    fn drawn(seed: u64, n: usize, choices: usize) -> (Vec<u32>, Vec<u32>) {
        let drawn = draw(&Dice::seeded(seed), n, choices);
        let all = drawn.as_flattened().to_vec();
        (all[..choices].to_vec(), all)
    }

    proptest! {
        #[test]
        fn each_is_one_of_them_and_none_is_drawn_twice(
            seed in any::<u64>(),
            n in prop_oneof![2..40_usize, 2..70_000_usize, 32_765..32_772_usize, 100_000..1_usize << INDEX_BITS],
            choices in 1..=MOST_CHOICES,
        ) {
            let choices = choices.min(n);
            let (chosen, all) = drawn(seed, n, choices);
            prop_assert!(all.iter().all(|&one| (one as usize) < n), "{all:?}");
            let different: HashSet<_> = chosen.iter().collect();
            prop_assert_eq!(different.len(), choices, "{:?}", chosen);
            let next = chosen.iter().cycle().skip(1);
            let far = chosen.iter().zip(next).map(|(&one, &next)| (next as usize + n - one as usize) % n);
            let part = n / choices + 1;
            prop_assert!(far.max() <= Some(2 * part), "they are from all parts of {}: {:?}", n, chosen);
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
                    let (chosen, _) = drawn(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, choices);
                    for one in chosen {
                        parts[one as usize * PARTS / n] += 1;
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
        for (n, choices) in [(3, 3), (7, 2), (20, 10), (23, 10), (33, 12)] {
            let mut alone = vec![0_u32; n];
            let mut together = HashSet::new();
            for seed in 0..ROUNDS {
                let (chosen, _) = drawn(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), n, choices);
                for (index, &one) in chosen.iter().enumerate() {
                    alone[one as usize] += 1;
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
