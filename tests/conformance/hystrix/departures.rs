//! Which deviations cover a case: those without which this crate would do otherwise in it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::model::{Rules, tell};
use crate::{case::Case, deviations::Deviation};

/// Those of this level.
pub(super) const DEVIATIONS: [Deviation; 6] = [
    Deviation::WorkStopsWithItsCaller,
    Deviation::CallerLeavesAtTheDeadline,
    Deviation::ProbeSlotIsFreed,
    Deviation::LateResultsDecideNothing,
    Deviation::BystandersDoNotReopen,
    Deviation::JavaOnly,
];

impl Rules {
    fn set(mut self, deviation: Deviation, holds: bool) -> Rules {
        let rule = match deviation {
            Deviation::WorkStopsWithItsCaller => &mut self.work_stops,
            Deviation::CallerLeavesAtTheDeadline => &mut self.caller_leaves,
            Deviation::ProbeSlotIsFreed => &mut self.probe_is_freed,
            Deviation::LateResultsDecideNothing => &mut self.late_is_ignored,
            Deviation::BystandersDoNotReopen => &mut self.bystanders_change_nothing,
            Deviation::JavaOnly => &mut self.java_only,
            other => unreachable!("{} is not of this level", other.name()),
        };
        *rule = holds;
        self
    }
}

/// What the model says of a case.
#[derive(Debug)]
pub(super) struct Expected {
    /// Of Hystrix: what was recorded.
    pub(super) theirs: Value,
    /// Of this crate.
    pub(super) ours: Value,
    /// When to look at the breaker for the last time, in a case with threads: both are over then.
    pub(super) until: u64,
    /// Empty: both are the same.
    pub(super) deviations: BTreeSet<Deviation>,
}

impl Expected {
    pub(super) fn of(case: &Case) -> Expected {
        let theirs = tell(case, Rules::HYSTRIX, 0);
        let until = theirs.ended_ms.max(tell(case, Rules::OURS, 0).ended_ms);
        let told = |rules| tell(case, rules, until).observed;
        let ours = told(Rules::OURS);
        let hystrix = told(Rules::HYSTRIX);
        let mut deviations = BTreeSet::new();
        if ours != hystrix {
            deviations = those(|deviation| told(Rules::OURS.set(deviation, false)) != ours);
            if deviations.is_empty() {
                // Any of several would do.
                deviations = those(|deviation| told(Rules::HYSTRIX.set(deviation, true)) != hystrix);
            }
            assert!(!deviations.is_empty(), "{} deviates without a name", case.id());
        }
        Expected {
            theirs: theirs.observed,
            ours,
            until,
            deviations,
        }
    }
}

fn those(counts: impl Fn(Deviation) -> bool) -> BTreeSet<Deviation> {
    DEVIATIONS.into_iter().filter(|deviation| counts(*deviation)).collect()
}
