//! Where the rules have their chance from.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use fastrand::Rng;

/// The random numbers of a thread, or a sequence that a seed determines.
#[derive(Debug, Default)]
pub(super) struct Dice(Option<AtomicU64>);

/// By how much fastrand's generator (wyrand) advances with each number, so that one step of a generator which starts
/// here, further on each time, gives its sequence.
const STEP: u64 = 0x2d35_8dcc_aa6c_78a5;

thread_local! {
    /// Where the sequence of this thread stands. None: it has not begun.
    static OF_THREAD: Cell<Option<u64>> = const { Cell::new(None) };
}

impl Dice {
    pub(super) fn seeded(seed: u64) -> Self {
        Dice(Some(AtomicU64::new(seed)))
    }

    /// A generator for one number.
    #[inline]
    fn once(&self) -> Rng {
        let state = match &self.0 {
            Some(state) => state.fetch_add(STEP, Relaxed),
            None => OF_THREAD.with(|of_thread| {
                let state = of_thread.get().unwrap_or_else(|| fastrand::u64(..));
                of_thread.set(Some(state.wrapping_add(STEP)));
                state
            }),
        };
        Rng::with_seed(state)
    }

    /// A number from zero on, below one.
    pub(super) fn fraction(&self) -> f64 {
        self.once().f64()
    }

    /// A generator of its own, for several numbers at once.
    #[inline]
    pub(super) fn several(&self) -> Rng {
        Rng::with_seed(self.once().u64(..))
    }

    /// A number below `n`, which is above zero and below 2^32. Some are likelier than others, by `n` in 2^32.
    #[inline]
    pub(super) fn about(&self, n: usize) -> u32 {
        ((u64::from(self.once().u32(..)) * n as u64) >> 32) as u32
    }

    /// A number below `n`, which is above zero.
    #[inline]
    pub(super) fn below(&self, n: usize) -> usize {
        self.once().usize(..n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence_and_it_is_even() {
        let (one, two) = (Dice::seeded(7), Dice::seeded(7));
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            let number = one.below(10);
            assert_eq!(number, two.below(10));
            seen[number] += 1;
        }
        // 1,000 each, within five standard deviations of 30.
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
