//! How loaded an endpoint seems: what is under way to it, and how fast it has answered of late.
//!
//! Each fact that must be read as a whole is one word, so that a look at an endpoint is a few loads and no lock. Times are
//! nanoseconds from a beginning that the owner keeps.
//!
//! What one more attempt costs changes with each attempt that begins or ends, and slowly with time. It is looked at much
//! more often than that: so whoever changes it works it out, and leaves it here for those who look.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
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

/// As cost: nobody looks at it. It is old nearly always, and then it does not hold; and it is the most of all.
const UNWATCHED: u64 = u64::MAX;
/// For so many ticks a cost is good. Waiting calls are two milliseconds older by then, and what is forgiven to one that is left
/// alone takes seconds. Bits of several ages are looked at together, so that it is a power of two.
const KEPT_TICKS: u32 = 1 << 1;

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
    /// What one attempt more costs, by its weight, as `f32`, in the upper half; the tick in which that was worked out in the
    /// lower one.
    cost: AtomicU64,
    /// One by the weight, as `f32`.
    per_weight: AtomicU32,
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

impl Open {
    /// When the last is answered, if one more is sent, and each takes so long and comes after another: in seconds.
    #[inline]
    pub(super) fn cost(&self, answers: f32) -> f32 {
        longer(answers, self.age) * (self.count as i32 as f32 + 1.0)
    }
}

/// What one attempt more costs, by the weight, and when that was worked out. Of equal ones the one that was worked out
/// before the other is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost(u64);

impl Cost {
    pub(super) const MOST: Cost = Cost(u64::MAX);

    #[inline]
    pub(super) fn new(cost: f32, nanos: u64) -> Self {
        // Numbers that are not negative are in the order of their bits.
        Cost(pack(cost, tick(nanos)))
    }

    /// Is it still what it was, but for next to nothing?
    #[inline]
    pub(super) fn holds(self, nanos: u64) -> bool {
        Ages::OF_NONE.and(self, nanos).all_hold()
    }
}

/// How long ago costs were worked out: all bits that are in the number of ticks of any of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages(u32);

impl Ages {
    pub(super) const OF_NONE: Ages = Ages(0);

    #[inline(always)]
    pub(super) fn and(self, cost: Cost, nanos: u64) -> Self {
        Ages(self.0 | tick(nanos).wrapping_sub(cost.0 as u32))
    }

    /// Are all of those costs still what they were, but for next to nothing?
    #[inline(always)]
    pub(super) fn all_hold(self) -> bool {
        self.0 < KEPT_TICKS
    }
}

impl Default for Load {
    fn default() -> Self {
        Load {
            open: AtomicU64::new(0),
            estimate: AtomicU64::new(0),
            newness: AtomicU64::new(UNASKED),
            answered: AtomicU64::new(0),
            cost: AtomicU64::new(UNWATCHED),
            per_weight: AtomicU32::new(1_f32.to_bits()),
        }
    }
}

impl Load {
    /// From now on it has this weight.
    pub(super) fn weigh(&self, weight: u32) {
        let per_weight = 1.0 / f64::from(weight);
        self.per_weight.store((per_weight as f32).to_bits(), Relaxed);
    }

    /// One by its weight.
    #[inline]
    pub(super) fn per_weight(&self) -> f32 {
        f32::from_bits(self.per_weight.load(Relaxed))
    }

    /// What one attempt more costs, as it was worked out last.
    #[inline(always)]
    pub(super) fn cost(&self) -> Cost {
        Cost(self.cost.load(Relaxed))
    }

    /// Somebody looks at what it costs, and has just worked it out. From now on it is kept up to date, but for what time
    /// makes of it. If it joins others at this very time that shows after two ticks.
    #[inline]
    pub(super) fn keep(&self, cost: Cost) {
        self.cost.store(cost.0, Relaxed);
    }

    /// An attempt has begun or ended. Of two at the same time the one may miss the other, until the next, or until it is
    /// worked out anew.
    #[inline]
    fn reckon(&self, nanos: u64) {
        if self.cost.load(Relaxed) == UNWATCHED || !self.is_known() {
            return;
        }
        let (open, word) = (self.open(nanos), self.estimate.load(Relaxed));
        // Where nobody waits something is forgiven with time, which is not in it: so it is no younger than the last sample.
        let since = if open.waiting > 0 {
            tick(nanos)
        } else {
            word as u32
        };
        let cost = open.cost(seconds(word)) * self.per_weight();
        self.keep(Cost(pack(cost, since)));
    }

    #[inline]
    fn newness(&self) -> u64 {
        self.newness.load(Relaxed)
    }

    #[inline]
    pub(super) fn begin(&self, nanos: u64) {
        self.open.fetch_add(start(nanos), Relaxed);
        self.reckon(nanos);
    }

    #[inline]
    pub(super) fn end(&self, started: u64) {
        // In one order with what it says to those who wait for the last one: see `Counters::await_last`.
        self.open.fetch_sub(start(started), SeqCst);
    }

    /// One of them has its answer, and goes on.
    pub(super) fn answered(&self, started: u64, nanos: u64) {
        // Whoever looks meanwhile sees it twice rather than not at all.
        self.answered.fetch_add(1, SeqCst);
        self.end(started);
        self.reckon(nanos);
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
        let word = pack(estimate, tick(nanos));
        let _ = self.estimate.compare_exchange(0, word, Relaxed, Relaxed);
        self.becomes_known();
    }

    #[cold]
    fn becomes_known(&self) {
        let _ = self.newness.compare_exchange(UNASKED, 0, Release, Relaxed);
    }

    /// It has joined others now.
    pub(super) fn join(&self, nanos: u64) {
        let newly = |newness| matches!(newness, 0 | UNASKED).then_some(nanos + 1);
        let _ = self.newness.fetch_update(Relaxed, Relaxed, newly);
        self.cost.store(UNWATCHED, Relaxed);
    }

    /// Has it an estimate, and not just joined others?
    #[inline]
    pub(super) fn is_known(&self) -> bool {
        // What is known is there then.
        self.newness.load(Acquire) == 0
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
            .store(if has_estimate { 0 } else { UNASKED }, Release);
    }

    /// An attempt has ended that took so many nanoseconds. An estimate is forgotten within `decay` seconds.
    #[inline]
    pub(super) fn sample(&self, sample: Sample, took: u64, nanos: u64, decay: f32) {
        self.learn(sample, took, nanos, decay);
        self.reckon(nanos);
    }

    #[inline]
    fn learn(&self, sample: Sample, took: u64, nanos: u64, decay: f32) {
        if sample == Sample::Nothing {
            return;
        }
        let took = longer(took as i64 as f32 * 1e-9, f32::MIN_POSITIVE);
        let word = self.estimate.load(Relaxed);
        if word == 0 {
            let first = if sample == Sample::Failed {
                took.max(FAILURE_LEAST)
            } else {
                took
            };
            self.estimate.store(pack(first, tick(nanos)), Relaxed);
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
        let estimate = before + weight * (took - before);
        self.estimate.store(pack(estimate, tick(nanos)), Relaxed);
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
fn pack(seconds: f32, tick: u32) -> u64 {
    u64::from(seconds.max(f32::MIN_POSITIVE).to_bits()) << 32 | u64::from(tick)
}

#[inline]
fn tick(nanos: u64) -> u32 {
    (nanos >> TICK_BITS) as u32
}

#[inline]
fn seconds(word: u64) -> f32 {
    f32::from_bits((word >> 32) as u32)
}

/// One step of the processor, unlike [`f32::max`], which minds what is no number.
#[inline]
fn longer(one: f32, other: f32) -> f32 {
    if one > other { one } else { other }
}

#[inline]
fn not_below_zero(number: f32) -> f32 {
    longer(number, 0.0)
}

#[inline]
fn idle(word: u64, nanos: u64) -> f32 {
    let ticks = tick(nanos).wrapping_sub(word as u32);
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
        load.answered(100 * MS, 900 * MS);
        let open = load.open(1_000 * MS);
        assert_eq!((open.count, open.waiting, load.in_flight()), (2, 1, 2));
        assert!(near(open.age, 0.2), "{open:?}");
        load.end(800 * MS);
        let open = load.open(1_000 * MS);
        assert_eq!((open.count, open.waiting, open.age), (1, 0, 0.0));
        load.end_answered();
        assert_eq!((load.in_flight(), load.in_flight_now()), (0, 0));
    }

    /// What is kept, in seconds, and whether it holds.
    fn kept(load: &Load, nanos: u64) -> (f32, bool) {
        let cost = load.cost();
        (seconds(cost.0), cost.holds(nanos))
    }

    #[test]
    fn what_one_more_attempt_costs_is_kept_from_the_first_look_on_and_follows_the_attempts() {
        let load = Load::default();
        let now = 100_000 * MS;
        load.sample(Sample::Took, 10 * MS, now, 1.0);
        assert!(!kept(&load, now).1, "nobody has looked");
        load.keep(Cost::new(0.01, now));
        load.begin(now);
        load.begin(now);
        assert!(near(kept(&load, now).0, 0.03));
        load.answered(now, now);
        assert!(near(kept(&load, now).0, 0.03), "an open stream is as much load");
        load.end(now);
        load.sample(Sample::Took, 110 * MS, now, 1.0);
        assert!(near(kept(&load, now).0, 2.0 * 0.02));
        load.end_answered();
        load.weigh(4);
        load.sample(Sample::Nothing, 0, now, 1.0);
        let (cost, holds) = kept(&load, now);
        assert!(near(cost, 0.02 / 4.0) && holds, "{cost}");
        load.begin(now - 1_000 * MS);
        load.begin(now);
        assert!(
            near(kept(&load, now).0, 0.5 * 3.0 / 4.0),
            "they have waited for longer"
        );
    }

    #[test]
    fn a_cost_holds_for_two_ticks_at_most_and_not_before_it_was_worked_out() {
        let load = Load::default();
        for ticks in [100_u64, u64::from(u32::MAX), 1 << 32, 3 << 32] {
            let now = (ticks << TICK_BITS) + 5;
            load.keep(Cost::new(0.01, now));
            let holds = |at: u64| kept(&load, at).1;
            assert!(holds(now) && holds(now + (1 << TICK_BITS)));
            assert!(!holds(now + (2 << TICK_BITS)) && !holds(now + 1_000 * MS));
            assert!(!holds(now - (1 << TICK_BITS)));
        }
    }

    #[test]
    fn a_cost_does_not_hold_where_something_has_been_forgiven_that_is_not_in_it() {
        let load = Load::default();
        let now = 100_000 * MS;
        load.sample(Sample::Took, 10 * MS, now, 1.0);
        let later = now + 5_000 * MS;
        load.keep(Cost::new(0.001, later));
        load.begin(later);
        assert!(kept(&load, later).1, "nothing is, while one waits");
        load.answered(later, later);
        assert!(!kept(&load, later).1, "no sample was taken yet");
        load.begin(later);
        assert!(kept(&load, later).1);
        load.end(later);
        load.sample(Sample::AtLeast, 1, later, 1.0);
        assert!(
            !kept(&load, later).1,
            "one that was given up at once says nothing"
        );
        load.end_answered();
        load.sample(Sample::Took, 10 * MS, later, 1.0);
        assert!(kept(&load, later).1);
    }

    #[test]
    fn what_a_newcomer_costs_is_not_kept() {
        let load = Load::default();
        let now = 100_000 * MS;
        load.begin(now);
        load.suppose(0.01, now);
        load.keep(Cost::new(0.01, now));
        assert!(kept(&load, now).1);
        load.join(now);
        load.begin(now);
        load.answered(now, now);
        assert!(!kept(&load, now).1);
        load.settle();
        load.keep(Cost::new(0.01, now));
        load.begin(now);
        assert!(kept(&load, now).1 && near(kept(&load, now).0, 0.04));
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
