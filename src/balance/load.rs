//! How loaded an endpoint seems: what is under way to it, and how fast it has answered of late.
//!
//! Each fact that must be read as a whole is one word, so that a look at an endpoint is a few loads and no lock. What is
//! worked out of them takes no branch: a processor cannot guess how loaded the next endpoint is, and to guess wrong costs
//! more than all the rest. Times are nanoseconds from a beginning that the owner keeps.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// A failure counts as an answer that took this many times the estimate, ...
const FAILURE_FACTOR: f32 = 4.0;
/// ... and as no faster than this, in seconds. Without that a server which fails at once looks like the best.
const FAILURE_LEAST: f32 = 0.25;
/// A minute: what failures make of an estimate is no more, however many come at once. Hundreds in a row would keep a server
/// away for minutes after it is well.
const FAILURE_MOST: f32 = 60.0;
/// The least weight of one answer: many that come at once count as more than the time between them.
const LEAST_WEIGHT: f32 = 0.1;

/// The attempts that are under way: how many in the lower bits, the sum of their starts in the upper ones. What is
/// too much for those is dropped, and taking a start away again is exact all the same.
const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Starts are kept in units of 2^14 ns, which is 16 us: the sum is good for four years of waiting, of all together.
const UNIT_BITS: u32 = 14;
const UNIT_SECS: f32 = (1_u64 << UNIT_BITS) as f32 / 1e9;

/// Times of samples are kept in units of 2^20 ns, which is about a millisecond; they come round in 52 days. What seems to
/// have been so many of them before that is yet to come.
const TICK_BITS: u32 = 20;
const TICK_SECS: f32 = (1_u64 << TICK_BITS) as f32 / 1e9;
const AHEAD: u32 = 1 << 16;

/// As newness: it has neither joined others, nor an estimate.
const UNASKED: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Load {
    open: AtomicU64,
    /// The estimate in seconds, as `f32`, in the upper half; the tick of the last sample in the lower one. Zero: none.
    estimate: AtomicU64,
    /// When it joined others that had been asked before, plus one. Zero: it did not, or long ago, and has an estimate; so it
    /// is mostly, and whoever looks need not look at both.
    newness: AtomicU64,
    /// How many have their answer, and go on until the verdict comes. They say no more of how fast it answers.
    answered: AtomicU64,
}

/// How an attempt shows in the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    /// It took that long.
    Took,
    /// It took at least that long.
    AtLeast,
    /// It failed.
    Failed,
    /// It says nothing about the server.
    Nothing,
}

/// What is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) count: u32,
    /// How many of them have no answer yet.
    pub(super) waiting: u32,
    /// For how long those have waited on average, in seconds.
    pub(super) age: f32,
}

/// What is seen of it at one time, for whoever looks at several: kept in numbers that a processor works out side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// The time that those without an answer have waited, of all together, in units.
    ages: f32,
    waiting: i32,
    count: i32,
    /// In seconds. Zero: none.
    estimate: f32,
    /// Since the last sample, and so many more as may be ahead, by two.
    ticks: i32,
    /// One by the weight of the endpoint.
    per_weight: f32,
}

/// Four of them, each number of the one beside that of the others: so a processor takes them up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    ages: [f32; 4],
    waiting: [i32; 4],
    counts: [i32; 4],
    estimates: [f32; 4],
    ticks: [i32; 4],
    per_weight: [f32; 4],
}

impl Looks {
    #[inline(always)]
    pub(super) fn of([a, b, c, d]: [Look; 4]) -> Self {
        Looks {
            ages: [a.ages, b.ages, c.ages, d.ages],
            waiting: [a.waiting, b.waiting, c.waiting, d.waiting],
            counts: [a.count, b.count, c.count, d.count],
            estimates: [a.estimate, b.estimate, c.estimate, d.estimate],
            ticks: [a.ticks, b.ticks, c.ticks, d.ticks],
            per_weight: [a.per_weight, b.per_weight, c.per_weight, d.per_weight],
        }
    }

    #[inline(always)]
    pub(super) fn each(&self) -> [Look; 4] {
        let [a, b, c, d] = self.ages;
        let [e, f, g, h] = self.waiting;
        let [i, j, k, l] = self.counts;
        let [m, n, o, p] = self.estimates;
        let [q, r, s, t] = self.ticks;
        let [u, v, w, x] = self.per_weight;
        let look = |ages, waiting, count, estimate, ticks, per_weight| Look {
            ages,
            waiting,
            count,
            estimate,
            ticks,
            per_weight,
        };
        [
            look(a, e, i, m, q, u),
            look(b, f, j, n, r, v),
            look(c, g, k, o, s, w),
            look(d, h, l, p, t, x),
        ]
    }
}

impl Look {
    /// One by the weight of the endpoint.
    #[inline(always)]
    pub(super) fn per_weight(&self) -> f32 {
        self.per_weight
    }

    /// The time in which it answers, in seconds. Zero: it has not been asked.
    #[inline(always)]
    pub(super) fn estimate(&self) -> f32 {
        self.estimate
    }

    /// How many are in flight.
    #[inline(always)]
    pub(super) fn count(&self) -> f32 {
        self.count as f32
    }

    /// For how long those without an answer have waited on average, in seconds.
    #[inline(always)]
    pub(super) fn age(&self) -> f32 {
        // Where nobody waits nothing is divided by next to nothing.
        not_below_zero(self.ages) * UNIT_SECS / (self.waiting as f32 + 1e-20)
    }

    /// Since when the estimate has not been looked at, in seconds. Zero, if somebody waits for an answer now.
    #[inline(always)]
    pub(super) fn idle_unless_waiting(&self) -> f32 {
        let ticks = not_below_zero(self.ticks as f32 * 2.0 - AHEAD as f32);
        let is_alone = not_below_zero(1.0 - self.waiting as f32);
        ticks * TICK_SECS * is_alone
    }
}

impl Default for Load {
    fn default() -> Self {
        Load {
            open: AtomicU64::new(0),
            estimate: AtomicU64::new(0),
            newness: AtomicU64::new(UNASKED),
            answered: AtomicU64::new(0),
        }
    }
}

impl Load {
    #[inline(always)]
    pub(super) fn look(&self, nanos: u64, per_weight: f32) -> Look {
        let open = self.open.load(Relaxed);
        let word = self.estimate.load(Relaxed);
        let waiting = (open & COUNT) as i32;
        let ticks = ((nanos >> TICK_BITS) as u32).wrapping_sub(word as u32);
        Look {
            ages: ages(open, nanos) as f32,
            waiting,
            count: waiting + self.answered.load(Relaxed) as i32,
            estimate: seconds(word),
            // Somebody may have read the clock before us and written after.
            ticks: (ticks.wrapping_add(AHEAD) >> 1) as i32,
            per_weight,
        }
    }

    /// Zero: it has an estimate, and has not just joined others.
    #[inline(always)]
    pub(super) fn newness(&self) -> u64 {
        self.newness.load(Relaxed)
    }

    #[inline]
    pub(super) fn begin(&self, nanos: u64) {
        self.open.fetch_add(start(nanos), Relaxed);
    }

    #[inline]
    pub(super) fn end(&self, started: u64) {
        // In one order with what it says to those who wait for the last one: see `Counters::await_last`.
        self.open.fetch_sub(start(started), SeqCst);
    }

    /// One of them has its answer, and goes on.
    pub(super) fn answered(&self, started: u64) {
        // Whoever looks meanwhile sees it twice rather than not at all.
        self.answered.fetch_add(1, SeqCst);
        self.end(started);
    }

    /// One that had its answer has ended.
    pub(super) fn end_answered(&self) {
        self.answered.fetch_sub(1, SeqCst);
    }

    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        (self.open.load(Relaxed) & COUNT) + self.answered.load(Relaxed)
    }

    /// The same, after what this thread has done before.
    pub(super) fn in_flight_now(&self) -> u64 {
        (self.open.load(SeqCst) & COUNT) + self.answered.load(SeqCst)
    }

    #[inline]
    pub(super) fn open(&self, nanos: u64) -> Open {
        let open = self.open.load(Relaxed);
        let count = open & COUNT;
        let ages = not_below_zero(ages(open, nanos) as f32);
        Open {
            count: count as u32 + self.answered.load(Relaxed) as u32,
            waiting: count as u32,
            age: ages * UNIT_SECS / count.max(1) as i64 as f32,
        }
    }

    /// The time in which it answers, in seconds, and since when that has not been looked at. None: it has not been
    /// asked.
    #[inline]
    pub(super) fn estimate(&self, nanos: u64) -> Option<(f32, f32)> {
        let (estimate, idle) = self.estimate_or_zero(nanos);
        (estimate > 0.0).then_some((estimate, idle))
    }

    /// The same; none is zero.
    #[inline]
    pub(super) fn estimate_or_zero(&self, nanos: u64) -> (f32, f32) {
        let word = self.estimate.load(Relaxed);
        (seconds(word), idle(word, nanos))
    }

    /// Supposes an estimate where there is none.
    pub(super) fn suppose(&self, estimate: f32, nanos: u64) {
        let word = pack(estimate, nanos);
        let _ = self.estimate.compare_exchange(0, word, Relaxed, Relaxed);
        self.becomes_known();
    }

    #[cold]
    fn becomes_known(&self) {
        let _ = self.newness.compare_exchange(UNASKED, 0, Relaxed, Relaxed);
    }

    /// It has joined others now.
    pub(super) fn join(&self, nanos: u64) {
        let newly = |newness| matches!(newness, 0 | UNASKED).then_some(nanos + 1);
        let _ = self.newness.fetch_update(Relaxed, Relaxed, newly);
    }

    /// Has it an estimate, and not just joined others?
    pub(super) fn is_known(&self) -> bool {
        self.newness() == 0
    }

    /// For how long it has been with the others, in seconds. None: always.
    #[inline]
    pub(super) fn since_joined(&self, nanos: u64) -> Option<f32> {
        match self.newness() {
            0 | UNASKED => None,
            joined => Some(nanos.saturating_sub(joined - 1) as f32 / 1e9),
        }
    }

    /// It will not be looked at any more as one that has joined.
    pub(super) fn settle(&self) {
        let has_estimate = self.estimate.load(Relaxed) != 0;
        self.newness
            .store(if has_estimate { 0 } else { UNASKED }, Relaxed);
    }

    /// An attempt has ended that took so many nanoseconds. An estimate is forgotten within `decay` seconds.
    #[inline]
    pub(super) fn sample(&self, sample: Sample, took: u64, nanos: u64, decay: f32) {
        if sample == Sample::Nothing {
            return;
        }
        let took = (took as i64 as f32 / 1e9).max(f32::MIN_POSITIVE);
        let word = self.estimate.load(Relaxed);
        if word == 0 {
            let first = if sample == Sample::Failed {
                took.max(FAILURE_LEAST)
            } else {
                took
            };
            self.estimate.store(pack(first, nanos), Relaxed);
            self.becomes_known();
            return;
        }
        let before = seconds(word);
        let took = match sample {
            Sample::AtLeast if took <= before => return,
            Sample::Failed => {
                let longer = (before * FAILURE_FACTOR).min(before.max(FAILURE_MOST));
                took.max(longer).max(FAILURE_LEAST)
            }
            _ => took,
        };
        let weight = match idle(word, nanos) {
            0.0 => LEAST_WEIGHT,
            idle => (1.0 - (-idle / decay).exp()).max(LEAST_WEIGHT),
        };
        // Of two that end at the very same time one is enough: a mean need not count, and this is done at each end.
        self.estimate
            .store(pack(before + weight * (took - before), nanos), Relaxed);
    }
}

/// For how long those that are under way have waited, of all together, in units. Somebody may have read the clock after us
/// and started before: that is below zero, and no age.
#[inline(always)]
fn ages(open: u64, nanos: u64) -> i64 {
    let now = (open & COUNT).wrapping_mul(nanos >> UNIT_BITS);
    // What is dropped at the top comes back as the sign.
    (now << COUNT_BITS).wrapping_sub(open & !COUNT) as i64 >> COUNT_BITS
}

#[inline]
fn start(nanos: u64) -> u64 {
    ((nanos >> UNIT_BITS) << COUNT_BITS) + 1
}

#[inline]
fn pack(estimate: f32, nanos: u64) -> u64 {
    let tick = (nanos >> TICK_BITS) as u32;
    u64::from(estimate.max(f32::MIN_POSITIVE).to_bits()) << 32 | u64::from(tick)
}

#[inline]
fn seconds(word: u64) -> f32 {
    f32::from_bits((word >> 32) as u32)
}

/// One step of the processor, unlike [`f32::max`], which minds what is no number.
#[inline]
fn not_below_zero(number: f32) -> f32 {
    if number > 0.0 { number } else { 0.0 }
}

#[inline]
fn idle(word: u64, nanos: u64) -> f32 {
    let ticks = ((nanos >> TICK_BITS) as u32).wrapping_sub(word as u32);
    // Somebody may have read the clock before us and written after.
    let ticks = i64::from(ticks.wrapping_add(AHEAD)) - i64::from(AHEAD);
    not_below_zero(ticks as f32) * TICK_SECS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn near(left: f32, right: f32) -> bool {
        (left - right).abs() < 0.001
    }

    #[test]
    fn the_mean_age_is_that_of_what_is_under_way() {
        let load = Load::default();
        assert_eq!(load.in_flight(), 0);
        load.begin(100 * MS);
        load.begin(200 * MS);
        load.begin(600 * MS);
        let open = load.open(1_000 * MS);
        assert_eq!(open.count, 3);
        assert!(near(open.age, 0.7), "{open:?}");
        load.end(100 * MS);
        assert!(near(load.open(1_000 * MS).age, 0.6));
        load.end(200 * MS);
        load.end(600 * MS);
        assert_eq!(load.open(1_000 * MS).count, 0);
        assert_eq!(load.open.load(Relaxed), 0, "nothing is left over");
    }

    #[test]
    fn a_clock_that_was_read_before_makes_no_age() {
        let load = Load::default();
        load.begin(500 * MS);
        assert_eq!(load.open(499 * MS).age, 0.0);
    }

    #[test]
    fn what_has_its_answer_is_in_flight_and_has_no_age() {
        let load = Load::default();
        load.begin(100 * MS);
        load.begin(800 * MS);
        load.answered(100 * MS);
        let open = load.open(1_000 * MS);
        assert_eq!((open.count, open.waiting, load.in_flight()), (2, 1, 2));
        assert!(near(open.age, 0.2), "{open:?}");
        load.end(800 * MS);
        let open = load.open(1_000 * MS);
        assert_eq!((open.count, open.waiting, open.age), (1, 0, 0.0));
        load.end_answered();
        assert_eq!((load.in_flight(), load.in_flight_now()), (0, 0));
    }

    #[test]
    fn times_are_right_after_months() {
        let day = 24 * 3_600 * 1_000 * MS;
        for begun in [1, 25, 27, 51, 53, 60, 100, 3_000] {
            let load = Load::default();
            let then = begun * day;
            load.sample(Sample::Took, 100 * MS, then, 1.0);
            let idle = |since: u64| load.estimate(then + since).unwrap().1;
            assert!(
                (idle(500 * MS) - 0.5).abs() < 0.002,
                "{begun}: {}",
                idle(500 * MS)
            );
            for days in [1, 25, 27, 30, 51] {
                let apart = idle(days * day) - (days * 24 * 3_600) as f32;
                assert!(apart.abs() < 1.0, "{begun} and {days}: {apart}");
            }
            assert!(idle(60 * day) > 3_600.0, "{begun}");
            let (_, before) = load.estimate(then - 1_000 * MS).unwrap();
            assert_eq!(before, 0.0, "read before it was written");
            load.begin(then);
            assert!(near(load.open(then + 250 * MS).age, 0.25));
            load.join(then);
            assert!(near(load.since_joined(then + 250 * MS).unwrap(), 0.25));
        }
    }

    #[test]
    fn ages_are_right_after_the_sum_has_overflowed() {
        let load = Load::default();
        let year = 365 * 24 * 3_600 * 1_000 * MS;
        for _ in 0..30 {
            load.begin(year);
        }
        let open = load.open(year + 2_000 * MS);
        assert_eq!(open.count, 30);
        assert!(near(open.age, 2.0), "{open:?}");
    }

    #[test]
    fn an_estimate_follows_answers_and_forgets_within_the_decay() {
        let load = Load::default();
        assert!(load.estimate(0).is_none());
        load.sample(Sample::Took, 100 * MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, 0.1));
        load.sample(Sample::Took, 200 * MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, 0.11), "a tenth, if at once");
        load.sample(Sample::Took, 10 * MS, 20_000 * MS, 1.0);
        let (estimate, idle) = load.estimate(23_000 * MS).unwrap();
        assert!(near(estimate, 0.01) && near(idle, 3.0), "{estimate} {idle}");
    }

    #[test]
    fn a_failure_counts_as_a_slow_answer_and_what_was_given_up_as_no_faster_than_it_was() {
        let load = Load::default();
        load.sample(Sample::Failed, MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, FAILURE_LEAST));
        load.sample(Sample::AtLeast, MS, 0, 1.0);
        load.sample(Sample::Nothing, MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, FAILURE_LEAST));
        load.sample(Sample::AtLeast, 1_250 * MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, 0.35));
        load.sample(Sample::Failed, MS, 0, 1.0);
        assert!(near(load.estimate(0).unwrap().0, 0.35 + 0.1 * 3.0 * 0.35));
    }

    #[test]
    fn however_many_fail_at_once_a_server_is_taken_for_no_slower_than_a_minute() {
        let load = Load::default();
        for _ in 0..1_000 {
            load.sample(Sample::Failed, MS, 0, 1.0);
        }
        let (estimate, _) = load.estimate(0).unwrap();
        assert!((59.0..=FAILURE_MOST).contains(&estimate), "{estimate}");
        load.sample(Sample::Failed, 100_000 * MS, 20_000 * MS, 1.0);
        let (estimate, _) = load.estimate(20_000 * MS).unwrap();
        assert!(near(estimate, 100.0), "one that took longer did: {estimate}");
    }

    #[test]
    fn a_supposed_estimate_does_not_replace_a_known_one() {
        let load = Load::default();
        load.suppose(0.02, 0);
        load.suppose(0.03, 0);
        assert!(near(load.estimate(0).unwrap().0, 0.02));
        load.join(5 * MS);
        load.join(6 * MS);
        assert!(near(load.since_joined(1_005 * MS).unwrap(), 1.0));
        load.settle();
        assert!(load.since_joined(1_005 * MS).is_none());
    }
}
