//! When has a circuit to open?

use super::{
    event::Cause,
    sync::{AtomicU64, Relaxed},
};

/// A percentage that no share reaches.
const NEVER: u64 = 101;

/// The rules of a circuit. Those on shares are Hystrix's test (`HystrixCircuitBreaker`): enough outcomes, and a share
/// that is too high. Both bounds are inclusive, and the share is cut to a whole percentage first, so 100 of 201 are 49 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Judge {
    volume: u64,
    percent: u64,
    slow_percent: u64,
    /// So many failures in a row; 0: however many.
    run: u64,
    /// Are the shares of the window of time looked at?
    by_time: bool,
    /// And those of the last outcomes?
    by_count: bool,
}

/// What is judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) successes: u64,
    pub(super) failures: u64,
    /// Successes that were slow.
    pub(super) slow: u64,
}

impl Figures {
    fn total(&self) -> u64 {
        self.successes + self.failures
    }
}

impl Judge {
    pub(super) fn new(volume: u32, percent: u32) -> Self {
        Judge {
            volume: volume.into(),
            percent: u64::from(percent).min(NEVER),
            slow_percent: NEVER,
            run: 0,
            by_time: true,
            by_count: false,
        }
    }

    /// Not by the share of failures.
    pub(super) fn without_error_percent(mut self) -> Self {
        self.percent = NEVER;
        self
    }

    /// By the share of slow successes as well; at least 1.
    pub(super) fn with_slow_percent(mut self, percent: u32) -> Self {
        self.slow_percent = u64::from(percent).clamp(1, NEVER);
        self
    }

    /// By failures in a row as well.
    pub(super) fn with_run(mut self, failures: u32) -> Self {
        self.run = failures.into();
        self
    }

    /// By the shares of which windows.
    pub(super) fn with_windows(mut self, by_time: bool, by_count: bool) -> Self {
        self.by_time = by_time;
        self.by_count = by_count;
        self
    }

    /// Is the share of failures in the window of time all there is, and is that above 0 %?
    fn is_plain(&self) -> bool {
        let others = self.run > 0 || self.slow_percent < NEVER || self.by_count;
        self.by_time && self.percent > 0 && !others
    }

    pub(super) fn trips(&self, successes: u64, failures: u64) -> bool {
        let total = successes + failures;
        total >= self.volume && error_percent(successes, failures) >= self.percent
    }

    /// Can a window without any failure trip? Only at 0 %.
    #[inline]
    pub(super) fn trips_without_failures(&self) -> bool {
        self.percent == 0
    }

    /// Has the circuit to open by what the window of time holds?
    pub(super) fn of_window(&self, figures: Figures) -> Option<Cause> {
        let Figures {
            successes,
            failures,
            slow,
        } = figures;
        if !self.by_time || figures.total() < self.volume {
            return None;
        }
        if self.trips(successes, failures) {
            return Some(Cause::Tripped { successes, failures });
        }
        self.is_slow(figures).then_some(Cause::TooSlow {
            slow,
            total: figures.total(),
        })
    }

    /// Has it to open by the last outcomes, of which there are at most `length`?
    pub(super) fn of_last(&self, figures: Figures, length: u64) -> Option<Cause> {
        let Figures { failures, slow, .. } = figures;
        let total = figures.total();
        if !self.by_count || total < self.volume.min(length) {
            return None;
        }
        if error_percent(figures.successes, failures) >= self.percent {
            return Some(Cause::LastFailed { failures, total });
        }
        self.is_slow(figures)
            .then_some(Cause::LastTooSlow { slow, total })
    }

    /// Has it to open by so many failures in a row?
    pub(super) fn of_run(&self, failures: u64) -> Option<Cause> {
        (self.run > 0 && failures >= self.run).then_some(Cause::FailuresInARow { failures })
    }

    fn is_slow(&self, figures: Figures) -> bool {
        error_percent(figures.total() - figures.slow.min(figures.total()), figures.slow) >= self.slow_percent
    }

    /// With more successes than these beside them, so many failures and so many slow successes do not trip.
    pub(super) fn most_successes(&self, failures: u64, slow: u64) -> u64 {
        // A whole percentage is reached by the cut share if and only if it is by the exact one.
        let most = |bad: u64, percent: u64| match (bad * 100).checked_div(percent) {
            Some(total) => total.saturating_sub(failures),
            None => u64::MAX,
        };
        most(failures, self.percent).max(most(slow, self.slow_percent))
    }
}

/// The share of failures in whole percent, cut; 0 where there is no outcome at all.
pub(super) fn error_percent(successes: u64, failures: u64) -> u64 {
    (failures * 100).checked_div(successes + failures).unwrap_or(0)
}

/// The rules in one word, so that they change as one while calls go on: `is plain: 1 | nothing: 3 | by count: 1 |
/// by time: 1 | run: 20 | slow percent: 7 | percent: 7 | volume: 24`, from the top.
#[derive(Debug)]
pub(super) struct Rules(AtomicU64);

/// A word of [`Rules`] as one call reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ruling(u64);

const COUNT_BITS: u32 = 24;
const RUN_BITS: u32 = 20;
const PERCENT_BITS: u32 = 7;
const PERCENT_AT: u32 = COUNT_BITS;
const SLOW_AT: u32 = PERCENT_AT + PERCENT_BITS;
const RUN_AT: u32 = SLOW_AT + PERCENT_BITS;
const BY_TIME_AT: u32 = RUN_AT + RUN_BITS;
const BY_COUNT_AT: u32 = BY_TIME_AT + 1;
const IS_PLAIN: u64 = 1 << 63;

/// The longest row of failures that a rule can ask for.
pub(super) const LONGEST_RUN: u32 = (1 << RUN_BITS) - 1;

fn field(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

impl Rules {
    pub(super) fn new(judge: Judge) -> Self {
        Rules(AtomicU64::new(packed(judge)))
    }

    pub(super) fn set(&self, judge: Judge) {
        self.0.store(packed(judge), Relaxed);
    }

    #[inline]
    pub(super) fn read(&self) -> Ruling {
        Ruling(self.0.load(Relaxed))
    }

    pub(super) fn judge(&self) -> Judge {
        self.read().judge()
    }
}

fn packed(judge: Judge) -> u64 {
    let most = (1 << COUNT_BITS) - 1;
    // A share of slow calls that no window reaches is no rule on them, and is 0 here.
    let slow = if judge.slow_percent >= NEVER {
        0
    } else {
        judge.slow_percent
    };
    judge.volume.min(most)
        | judge.percent.min(NEVER) << PERCENT_AT
        | slow << SLOW_AT
        | judge.run.min(LONGEST_RUN.into()) << RUN_AT
        | u64::from(judge.by_time) << BY_TIME_AT
        | u64::from(judge.by_count) << BY_COUNT_AT
        | if judge.is_plain() { IS_PLAIN } else { 0 }
}

impl Ruling {
    /// Does a success in a window without a failure need no look at anything else?
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 & IS_PLAIN != 0
    }

    #[inline]
    pub(super) fn judge(self) -> Judge {
        let slow_percent = match field(self.0, SLOW_AT, PERCENT_BITS) {
            0 => NEVER,
            percent => percent,
        };
        Judge {
            volume: field(self.0, 0, COUNT_BITS),
            percent: field(self.0, PERCENT_AT, PERCENT_BITS),
            slow_percent,
            run: field(self.0, RUN_AT, RUN_BITS),
            by_time: field(self.0, BY_TIME_AT, 1) == 1,
            by_count: field(self.0, BY_COUNT_AT, 1) == 1,
        }
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_are_inclusive_and_the_share_is_cut_to_whole_percents() {
        let judge = Judge::new(20, 50);
        assert!(judge.trips(10, 10));
        assert!(!judge.trips(9, 10), "19 are below the volume");
        assert!(!judge.trips(11, 10), "47 %");
        assert!(!judge.trips(101, 100), "100 of 201 are 49 %");
        assert!(Judge::new(1, 0).trips(1, 0), "0 % opens without a failure");
        assert!(Judge::new(1, 100).trips(0, 1));
        assert!(!Judge::new(1, 100).trips(1, 1_000_000));
    }

    #[test]
    fn the_bound_on_successes_is_exact() {
        for percent in 0..=100 {
            let judge = Judge::new(1, percent);
            for failures in 1..50 {
                for successes in 0..200 {
                    assert_eq!(
                        judge.trips(successes, failures),
                        successes <= judge.most_successes(failures, 0),
                        "{percent} % of {successes} + {failures}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_bound_on_successes_lets_no_share_of_slow_ones_slip_through() {
        for percent in 1..=100 {
            let judge = Judge::new(1, 70).with_slow_percent(percent);
            for (failures, slow) in [(0, 1), (3, 2), (7, 7), (1, 30)] {
                let most = judge.most_successes(failures, slow);
                for successes in slow..200 {
                    let figures = Figures {
                        successes,
                        failures,
                        slow,
                    };
                    assert!(judge.of_window(figures).is_none() || successes <= most);
                }
            }
        }
    }

    #[test]
    fn rules_survive_being_packed() {
        let plain = Judge::new(20, 50);
        for judge in [
            plain,
            plain.without_error_percent(),
            plain.with_slow_percent(100),
            Judge::new((1 << 24) - 1, 0).with_run(LONGEST_RUN),
            Judge::new(0, 101).with_slow_percent(1).with_windows(false, true),
        ] {
            assert_eq!(Rules::new(judge).judge(), judge);
        }
        let is_plain = |judge| Rules::new(judge).read().is_plain();
        assert!(is_plain(plain));
        for judge in [
            Judge::new(20, 0),
            plain.with_slow_percent(100),
            plain.with_run(1),
            plain.with_windows(true, true),
            plain.with_windows(false, true),
        ] {
            assert!(!is_plain(judge), "{judge:?}");
        }
    }
}
