//! The outcomes of the last while, in buckets of time.

use super::sync::{AtomicU64, Relaxed, SeqCst};

/// The window is the running bucket and the nine before it; for those who try every order, each bucket is one more place
/// to meet at.
pub(super) const BUCKETS: usize = if cfg!(all(test, outbound_loom)) { 2 } else { 10 };

/// One bucket is `generation: 16 | round: 24 | count: 24`, from the top; the round says which of the times that
/// share the bucket it is about. A bucket with another stamp than the asker's is empty to them, so time and a new
/// generation empty the window without a write.
pub(super) const COUNT: u32 = 24;
pub(super) const ROUND: u32 = 24;
pub(super) const COUNT_MASK: u64 = (1 << COUNT) - 1;
pub(super) const ROUND_MASK: u64 = (1 << ROUND) - 1;
/// How far a bucket may be ahead of a thread that was held up between reading the clock and counting.
const AHEAD: u64 = 64;

/// The bucket of an outcome, or the last bucket of the window that is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    generation: u16,
    tick: u64,
    round: u64,
    position: usize,
}

impl Moment {
    #[inline]
    fn stamp(&self, round: u64) -> u64 {
        stamp(self.generation, round)
    }
}

#[inline]
pub(super) fn stamp(generation: u16, round: u64) -> u64 {
    u64::from(generation) << (ROUND + COUNT) | (round & ROUND_MASK) << COUNT
}

#[derive(Debug)]
struct Buckets([AtomicU64; BUCKETS]);

impl Buckets {
    fn new() -> Self {
        Buckets(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    fn add(&self, moment: Moment) {
        let Some(bucket) = self.0.get(moment.position) else {
            return;
        };
        count(bucket, moment.stamp(moment.round), is_ahead);
    }

    fn sum(&self, moment: Moment) -> u64 {
        let current = moment.stamp(moment.round);
        let former = moment.round.checked_sub(1).map(|round| moment.stamp(round));
        let mut sum = 0;
        for (position, bucket) in self.0.iter().enumerate() {
            let value = bucket.load(SeqCst);
            let stamp = if position <= moment.position {
                Some(current)
            } else {
                former
            };
            if Some(value & !COUNT_MASK) == stamp {
                sum += value & COUNT_MASK;
            }
        }
        sum
    }
}

/// Counts one outcome in a bucket with this stamp, unless the bucket's own is ahead of it.
#[inline]
pub(super) fn count(bucket: &AtomicU64, stamp: u64, is_ahead: impl Fn(u64, u64) -> bool) {
    let seen = bucket.load(Relaxed);
    // Compared and swapped, not added: an outcome must not end up in a bucket that was stamped anew meanwhile.
    if seen & !COUNT_MASK != stamp
        || seen & COUNT_MASK == COUNT_MASK
        || bucket.compare_exchange(seen, seen + 1, SeqCst, Relaxed).is_err()
    {
        count_slowly(bucket, stamp, is_ahead);
    }
}

#[cold]
fn count_slowly(bucket: &AtomicU64, stamp: u64, is_ahead: impl Fn(u64, u64) -> bool) {
    let mut seen = bucket.load(Relaxed);
    loop {
        let next = if seen & !COUNT_MASK == stamp {
            if seen & COUNT_MASK == COUNT_MASK {
                // 16 million outcomes in one bucket of one thread: counting stops.
                return;
            }
            seen + 1
        } else if is_ahead(seen, stamp) {
            return;
        } else {
            stamp | 1
        };
        match bucket.compare_exchange_weak(seen, next, SeqCst, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Is the bucket's stamp of a later time or generation? Both wrap, and a bucket can lie untouched for long, so only
/// a little ahead is ahead.
fn is_ahead(seen: u64, stamp: u64) -> bool {
    let round = (seen >> COUNT).wrapping_sub(stamp >> COUNT) & ROUND_MASK;
    let generation = (seen >> (ROUND + COUNT)).wrapping_sub(stamp >> (ROUND + COUNT)) & 0xffff;
    (1..=AHEAD).contains(&round) || round == 0 && (1..=AHEAD).contains(&generation)
}

/// What one thread writes alone, as long as there are no more threads than lanes. Aligned so that two lanes share
/// no cache line, nor the pair of lines that is fetched at once.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    successes: Buckets,
    totals: Totals,
}

/// Totals since the breaker was built.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) rejected: AtomicU64,
    pub(super) ignored: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) stale: AtomicU64,
}

/// Failures, and successes that were slow. They are rare, or else it does not matter that threads wait for each other:
/// one place for all of them allows a success to see at a glance that there is nothing to judge.
#[derive(Debug)]
#[repr(align(128))]
struct Trouble {
    /// One more than the tick of the latest one; 0 where there was none.
    latest: AtomicU64,
    buckets: Buckets,
}

impl Trouble {
    fn new() -> Self {
        Trouble {
            latest: AtomicU64::new(0),
            buckets: Buckets::new(),
        }
    }

    fn add(&self, moment: Moment) {
        // First, so that a success that is counted meanwhile either sees it, or is seen by it.
        self.latest.fetch_max(moment.tick + 1, SeqCst);
        self.buckets.add(moment);
    }

    /// Is there none in the window for certain?
    #[inline]
    fn is_far(&self, moment: Moment) -> bool {
        let latest = self.latest.load(SeqCst);
        latest == 0 || latest + BUCKETS as u64 <= moment.tick + 1
    }
}

/// A rolling window over time, counted without locks.
///
/// Writes and the reads that follow them are sequentially consistent: of outcomes that end at the same moment, the
/// last one to be counted sees all.
#[derive(Debug)]
pub(super) struct Window {
    bucket: u64,
    failures: Trouble,
    /// These are among the successes as well.
    slow: Trouble,
    lanes: Box<[Lane]>,
}

impl Window {
    /// A window over `length` nanoseconds.
    pub(super) fn new(length: u64, lanes: usize) -> Self {
        Window {
            bucket: (length / BUCKETS as u64).max(1),
            failures: Trouble::new(),
            slow: Trouble::new(),
            lanes: (0..lanes)
                .map(|_| Lane {
                    successes: Buckets::new(),
                    totals: Totals::default(),
                })
                .collect(),
        }
    }

    #[inline]
    pub(super) fn moment(&self, generation: u16, now: u64) -> Moment {
        let tick = now / self.bucket;
        Moment {
            generation,
            tick,
            round: tick / BUCKETS as u64,
            position: (tick % BUCKETS as u64) as usize,
        }
    }

    #[inline]
    fn lane(&self, lane: usize) -> Option<&Lane> {
        self.lanes.get(lane)
    }

    #[inline]
    pub(super) fn success(&self, lane: usize, moment: Moment) {
        if let Some(lane) = self.lane(lane) {
            lane.successes.add(moment);
        }
    }

    #[cold]
    pub(super) fn failure(&self, moment: Moment) {
        self.failures.add(moment);
    }

    /// A success was slow, which is counted besides.
    #[cold]
    pub(super) fn slow_success(&self, moment: Moment) {
        self.slow.add(moment);
    }

    /// Is there no failure in the window for certain?
    #[inline]
    pub(super) fn is_spotless(&self, moment: Moment) -> bool {
        self.failures.is_far(moment)
    }

    /// Is there neither a failure nor a slow success in the window for certain?
    pub(super) fn is_swift_and_spotless(&self, moment: Moment) -> bool {
        self.failures.is_far(moment) && self.slow.is_far(moment)
    }

    pub(super) fn failures(&self, moment: Moment) -> u64 {
        self.failures.buckets.sum(moment)
    }

    pub(super) fn slow(&self, moment: Moment) -> u64 {
        self.slow.buckets.sum(moment)
    }

    /// The successes in the window, or `None` as soon as there are more than `limit`. The own lane comes first: where
    /// a few failures stand among many successes, no other thread's cache lines are touched.
    pub(super) fn successes(&self, own: usize, moment: Moment, limit: u64) -> Option<u64> {
        let mut sum = 0;
        let (before, from_own) = self.lanes.split_at(own.min(self.lanes.len()));
        for lane in from_own.iter().chain(before) {
            sum += lane.successes.sum(moment);
            if sum > limit {
                return None;
            }
        }
        Some(sum)
    }

    #[inline]
    pub(super) fn note(&self, lane: usize, which: impl FnOnce(&Totals) -> &AtomicU64) {
        if let Some(lane) = self.lane(lane) {
            which(&lane.totals).fetch_add(1, Relaxed);
        }
    }

    pub(super) fn noted(&self, which: impl Fn(&Totals) -> &AtomicU64) -> u64 {
        self.lanes
            .iter()
            .map(|lane| which(&lane.totals).load(Relaxed))
            .sum()
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn window() -> Window {
        Window::new(10 * SECOND, 2)
    }

    fn successes(window: &Window, generation: u16, now: u64) -> u64 {
        window
            .successes(0, window.moment(generation, now), u64::MAX)
            .unwrap()
    }

    #[test]
    fn an_outcome_leaves_with_its_bucket_after_nine_to_ten_tenths_of_the_window() {
        for (at, last) in [
            (0, 10 * SECOND - 1),
            (SECOND - 1, 10 * SECOND - 1),
            (SECOND, 11 * SECOND - 1),
        ] {
            let window = window();
            window.success(1, window.moment(0, at));
            assert_eq!(successes(&window, 0, at), 1);
            assert_eq!(successes(&window, 0, last), 1);
            assert_eq!(successes(&window, 0, last + 1), 0);
        }
    }

    #[test]
    fn another_generation_sees_an_empty_window_and_takes_its_buckets_over() {
        let window = window();
        for _ in 0..5 {
            window.success(0, window.moment(0, 0));
        }
        assert_eq!(successes(&window, 1, 0), 0);
        window.success(0, window.moment(1, 0));
        assert_eq!((successes(&window, 1, 0), successes(&window, 0, 0)), (1, 0));
    }

    #[test]
    fn a_thread_that_was_held_up_does_not_wipe_what_came_later() {
        let window = window();
        window.success(0, window.moment(0, 10 * SECOND));
        window.success(0, window.moment(0, 0));
        assert_eq!(successes(&window, 0, 10 * SECOND), 1);
        window.success(0, window.moment(1, 10 * SECOND));
        window.success(0, window.moment(0, 10 * SECOND));
        assert_eq!(successes(&window, 1, 10 * SECOND), 1);
    }

    #[test]
    fn generations_and_rounds_wrap() {
        let window = window();
        window.success(0, window.moment(u16::MAX, 0));
        window.success(0, window.moment(0, 0));
        assert_eq!(successes(&window, 0, 0), 1);
        // A bucket that lay untouched for years is not taken for one of the future.
        let late = (1 << (ROUND - 1)) * 10 * SECOND;
        window.success(0, window.moment(0, late));
        assert_eq!(successes(&window, 0, late), 1);
    }

    #[test]
    fn a_full_bucket_counts_no_further() {
        let window = window();
        let bucket = &window.lanes[0].successes.0[0];
        bucket.store(COUNT_MASK - 1, SeqCst);
        for _ in 0..3 {
            window.success(0, window.moment(0, 0));
        }
        assert_eq!(successes(&window, 0, 0), COUNT_MASK);
        assert_eq!(successes(&window, 1, 0), 0, "nothing was carried into the stamp");
    }

    #[test]
    fn a_window_is_spotless_until_a_failure_and_again_when_the_last_has_left() {
        let window = window();
        assert!(window.is_spotless(window.moment(0, 0)));
        window.failure(window.moment(0, 3 * SECOND));
        assert!(!window.is_spotless(window.moment(0, 3 * SECOND)));
        assert!(!window.is_spotless(window.moment(0, 13 * SECOND - 1)));
        assert_eq!(window.failures(window.moment(0, 13 * SECOND - 1)), 1);
        assert!(window.is_spotless(window.moment(0, 13 * SECOND)));
        assert_eq!(window.failures(window.moment(0, 13 * SECOND)), 0);
    }

    #[test]
    fn the_sum_of_successes_stops_at_its_limit() {
        let window = window();
        for lane in [0, 0, 1] {
            window.success(lane, window.moment(0, 0));
        }
        let moment = window.moment(0, 0);
        assert_eq!(window.successes(1, moment, 3), Some(3));
        assert_eq!(window.successes(1, moment, 2), None);
        assert_eq!(window.successes(0, moment, 1), None);
    }
}
