//! How long an open circuit sleeps.

use std::time::Duration;

use super::{
    engine::{millis_up, nanos},
    sync::{AtomicU64, Relaxed},
    word::Word,
};

/// How sleep windows grow and vary. Default: neither.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    /// Each is as many times as long as the one before; at least 1.
    pub(super) factor: f64,
    /// The longest there is.
    pub(super) most: Duration,
    /// By up to how many percent it is shortened at random.
    pub(super) jitter: u32,
    pub(super) seed: u64,
}

impl Default for Growth {
    fn default() -> Self {
        Growth {
            factor: 1.0,
            most: Duration::MAX,
            jitter: 0,
            seed: 0,
        }
    }
}

/// The length of the sleep of each opening.
///
/// What is random of it is drawn from the word of the opening and the seed, so it needs no place of its own, all threads
/// see the same, and a test can foretell it.
#[derive(Debug)]
pub(super) struct Sleep {
    /// In milliseconds, as all times here.
    first: AtomicU64,
    most: AtomicU64,
    /// The bits of the number.
    factor: AtomicU64,
    jitter: AtomicU64,
    seed: u64,
    /// How many times the circuit has opened in a row.
    row: AtomicU64,
}

impl Sleep {
    pub(super) fn new(first: Duration, growth: Growth) -> Self {
        let sleep = Sleep {
            first: AtomicU64::new(0),
            most: AtomicU64::new(0),
            factor: AtomicU64::new(0),
            jitter: AtomicU64::new(0),
            seed: growth.seed,
            row: AtomicU64::new(0),
        };
        sleep.set(first, growth);
        sleep
    }

    /// From now on, that of a sleep which has begun included.
    pub(super) fn set(&self, first: Duration, growth: Growth) {
        self.first.store(millis_up(nanos(first)), Relaxed);
        self.most.store(millis_up(nanos(growth.most)), Relaxed);
        self.factor.store(growth.factor.to_bits(), Relaxed);
        self.jitter.store(growth.jitter.into(), Relaxed);
    }

    /// The circuit is about to open, again if it has not been closed for long.
    pub(super) fn opens(&self, again: bool) {
        let row = if again {
            self.row.load(Relaxed).saturating_add(1)
        } else {
            1
        };
        self.row.store(row, Relaxed);
    }

    /// The next opening is the first of a row.
    pub(super) fn begin_anew(&self) {
        self.row.store(0, Relaxed);
    }

    /// How long a circuit sleeps that opened with this word.
    pub(super) fn length(&self, opened: Word) -> u64 {
        let first = self.first.load(Relaxed);
        let factor = f64::from_bits(self.factor.load(Relaxed));
        let length = if factor > 1.0 {
            self.grown(first, factor)
        } else {
            first
        };
        match self.jitter.load(Relaxed) {
            0 => length,
            jitter => self.shortened(length, jitter, opened),
        }
    }

    fn grown(&self, first: u64, factor: f64) -> u64 {
        let before = self.row.load(Relaxed).saturating_sub(1);
        let most = self.most.load(Relaxed).max(first);
        let times = factor.powi(i32::try_from(before).unwrap_or(i32::MAX));
        // A number beyond the range becomes the largest of it.
        ((first as f64 * times).ceil() as u64).clamp(first, most)
    }

    fn shortened(&self, length: u64, jitter: u64, opened: Word) -> u64 {
        let drawn = mixed(self.seed ^ opened.with_mode(0).0) >> 32;
        let part = u128::from(jitter) * u128::from(drawn);
        let cut = u128::from(length) * part / (100 << 32);
        length - u64::try_from(cut).unwrap_or(0).min(length.saturating_sub(1))
    }
}

/// The last step of SplitMix64 (Steele, Lea and Flood, 2014): each bit of the result hangs on all of the number.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;
    use crate::breaker::word::State;

    fn sleep(factor: f64, most: u64, jitter: u32) -> Sleep {
        let growth = Growth {
            factor,
            most: Duration::from_millis(most),
            jitter,
            seed: 7,
        };
        Sleep::new(Duration::from_millis(1_000), growth)
    }

    fn opened(time: u64) -> Word {
        Word::new(State::Open, 0, time, 0)
    }

    #[test]
    fn each_opening_of_a_row_sleeps_longer_up_to_the_longest() {
        let sleep = sleep(2.0, 5_000, 0);
        let lengths = [(); 6].map(|()| {
            sleep.opens(true);
            sleep.length(opened(9))
        });
        assert_eq!(lengths, [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
        sleep.opens(false);
        assert_eq!(sleep.length(opened(9)), 1_000);
        for _ in 0..10_000 {
            sleep.opens(true);
        }
        assert_eq!(sleep.length(opened(9)), 5_000, "no overflow");
    }

    #[test]
    fn jitter_shortens_by_its_share_at_most_and_is_drawn_anew_for_each_opening() {
        let sleep = sleep(1.0, 5_000, 30);
        let lengths: Vec<u64> = (0..2_000).map(|time| sleep.length(opened(time))).collect();
        assert!(lengths.iter().all(|length| (700..=1_000).contains(length)));
        assert!(lengths.iter().any(|length| *length < 710));
        assert!(lengths.iter().any(|length| *length > 990));
        let mean = lengths.iter().sum::<u64>() / 2_000;
        assert!((845..=855).contains(&mean), "{mean}");
        assert_eq!(sleep.length(opened(5)), lengths[5], "the same for all who ask");
    }

    #[test]
    fn a_sleep_is_never_shortened_to_nothing() {
        let growth = Growth {
            jitter: 100,
            ..Growth::default()
        };
        let sleep = Sleep::new(Duration::from_millis(1), growth);
        assert!((0..1_000).all(|time| sleep.length(opened(time)) == 1));
    }
}
