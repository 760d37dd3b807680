//! Which deviations cover a case: those without which this crate would do otherwise in it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::model::{Rules, tell};
use crate::{case::Case, deviations::Deviation};

/// Those of this level.
pub(super) const DEVIATIONS: [Deviation; 7] = [
    Deviation::WorkStopsWithItsCaller,
    Deviation::CallerLeavesAtTheDeadline,
    Deviation::ProbeSlotIsFreed,
    Deviation::LateResultsDecideNothing,
    Deviation::BystandersDoNotReopen,
    Deviation::TicksComeFirst,
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
            Deviation::TicksComeFirst => &mut self.ticks_come_first,
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
    /// With other threads it might be otherwise.
    pub(super) tied: bool,
    /// Empty: both are the same.
    pub(super) deviations: BTreeSet<Deviation>,
}

impl Expected {
    pub(super) fn of(case: &Case) -> Expected {
        let theirs = tell(case, Rules::HYSTRIX, 0);
        let ours = tell(case, Rules::OURS, 0);
        let tied = ours.tied;
        let until = theirs.ended_ms.max(ours.ended_ms);
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
            tied,
            deviations,
        }
    }
}

fn those(counts: impl Fn(Deviation) -> bool) -> BTreeSet<Deviation> {
    DEVIATIONS
        .into_iter()
        .filter(|deviation| counts(*deviation))
        .collect()
}

/// For each deviation a case that it covers, and one like it that it does not.
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        deviations::Deviation::{
            BystandersDoNotReopen, CallerLeavesAtTheDeadline, JavaOnly, LateResultsDecideNothing,
            ProbeSlotIsFreed, TicksComeFirst, WorkStopsWithItsCaller,
        },
        hystrix::{
            compare::{Times, differences},
            replay::replay,
        },
    };

    /// Of a case with this release and this script.
    #[track_caller]
    fn deviations(release: &str, more: &Value, part: &str, script: &Value, wanted: &[Deviation]) {
        let command = "hystrix.command.default";
        let mut config = json!({
            "clock": if part == "steps" { "virtual" } else { "real" },
            "hystrix_version": release,
            (format!("{command}.circuitBreaker.requestVolumeThreshold")): 2,
            (format!("{command}.circuitBreaker.sleepWindowInMilliseconds")): 300,
            (format!("{command}.metrics.healthSnapshot.intervalInMilliseconds")): 100,
        });
        if part == "steps" {
            config[format!("{command}.execution.isolation.strategy")] = json!("SEMAPHORE");
        }
        for (name, value) in more.as_object().unwrap() {
            config[format!("{command}.{name}")] = value.clone();
        }
        let case =
            Case::new(json!({ "id": "by hand", "level": "hystrix", "config": config, (part): script }));
        let expected = Expected::of(&case);
        assert_eq!(
            expected.deviations,
            wanted.iter().copied().collect(),
            "{:#?}",
            expected.ours
        );
        let got = replay(&case, expected.until);
        assert_eq!(
            differences(&expected.ours, &got, Times::Exact),
            Vec::<String>::new()
        );
    }

    const LIMIT: &str = "execution.isolation.thread.timeoutInMilliseconds";
    const PERMITS: &str = "execution.isolation.semaphore.maxConcurrentRequests";
    const INTERRUPT: &str = "execution.isolation.thread.interruptOnTimeout";

    #[test]
    fn work_that_would_outlive_its_caller_stops_with_it() {
        let calls = |run: u64| json!([{ "name": "a", "at_ms": 0, "run_ms": run, "outcome": "success" }]);
        let uninterrupted = json!({ (LIMIT): 150, (INTERRUPT): false });
        deviations(
            "1.5.12",
            &uninterrupted,
            "calls",
            &calls(400),
            &[WorkStopsWithItsCaller],
        );
        deviations("1.5.12", &uninterrupted, "calls", &calls(149), &[]);
        deviations("1.5.12", &json!({ (LIMIT): 150 }), "calls", &calls(400), &[]);
    }

    #[test]
    fn a_caller_under_semaphore_isolation_leaves_at_the_deadline() {
        let steps = |time: u64| json!([{ "call": "success", "duration_ms": time }]);
        let limit = json!({ (LIMIT): 150 });
        deviations(
            "1.5.12",
            &limit,
            "steps",
            &steps(151),
            &[CallerLeavesAtTheDeadline],
        );
        // It is over at the deadline either way.
        deviations("1.5.12", &limit, "steps", &steps(150), &[]);
        deviations("1.5.12", &limit, "steps", &steps(149), &[]);
        // With threads it leaves anyway.
        let call = json!([{ "name": "a", "at_ms": 0, "run_ms": 400, "outcome": "success" }]);
        deviations("1.5.12", &limit, "calls", &call, &[]);
        let both = [CallerLeavesAtTheDeadline, WorkStopsWithItsCaller];
        let semaphore = json!({ (LIMIT): 150, "execution.isolation.strategy": "SEMAPHORE" });
        deviations("1.5.12", &semaphore, "calls", &call, &both);
    }

    #[test]
    fn a_trial_that_the_semaphore_turns_away_frees_its_place() {
        let none = json!({ (PERMITS): 0 });
        let trial = |then: u64| {
            json!([
                { "call": "success", "repeat": 2 }, { "advance_ms": 401 }, { "call": "success" }, { "advance_ms": then },
                { "call": "success" },
            ])
        };
        deviations("1.5.12", &none, "steps", &trial(301), &[ProbeSlotIsFreed]);
        deviations("1.5.13", &none, "steps", &trial(301), &[]);
        deviations("1.5.18", &none, "steps", &trial(301), &[]);
        // One that is turned away while the circuit is closed is no trial.
        let closed = json!([{ "call": "success" }, { "advance_ms": 401 }, { "call": "success" }]);
        deviations("1.5.12", &none, "steps", &closed, &[]);
    }

    #[test]
    fn a_trial_that_is_given_up_frees_its_place() {
        let calls = |at: u64| {
            json!([
                { "name": "a", "at_ms": 0, "run_ms": 10, "outcome": "failure" },
                { "name": "b", "at_ms": 30, "run_ms": 10, "outcome": "failure" },
                { "name": "c", "at_ms": at, "run_ms": 20, "outcome": "success", "mode": "unsubscribe",
                  "cancel_after_ms": 10 },
                { "name": "d", "at_ms": 900, "run_ms": 10, "outcome": "success" },
            ])
        };
        let both = [ProbeSlotIsFreed, WorkStopsWithItsCaller];
        deviations("1.5.12", &json!({}), "calls", &calls(500), &both);
        deviations("1.5.13", &json!({}), "calls", &calls(500), &both);
        // The circuit is closed.
        deviations(
            "1.5.12",
            &json!({}),
            "calls",
            &calls(50),
            &[WorkStopsWithItsCaller],
        );
    }

    #[test]
    fn results_of_older_calls_decide_nothing() {
        let older = |ends: &str, trial: &str| {
            json!([
                { "begin": "old", "outcome": ends }, { "call": "failure", "repeat": 2 }, { "advance_ms": 401 },
                { "probe": "is_open" }, { "begin": "trial", "outcome": trial }, { "end": "old" },
                { "probe": "is_open" }, { "end": "trial" }, { "advance_ms": 100 },
            ])
        };
        let late = [LateResultsDecideNothing];
        deviations("1.5.12", &json!({}), "steps", &older("success", "success"), &late);
        deviations("1.5.12", &json!({}), "steps", &older("failure", "success"), &late);
        deviations(
            "1.5.12",
            &json!({}),
            "steps",
            &older("bad_request", "success"),
            &late,
        );
        deviations("1.5.18", &json!({}), "steps", &older("success", "success"), &late);
        // There the trial would still decide.
        deviations("1.5.18", &json!({}), "steps", &older("failure", "success"), &[]);
        deviations(
            "1.5.18",
            &json!({}),
            "steps",
            &older("bad_request", "success"),
            &[],
        );
    }

    #[test]
    fn results_from_before_the_circuit_closed_are_not_booked() {
        let older = |closes: bool| {
            json!([
                { "begin": "old", "outcome": "failure" }, { "call": "failure", "repeat": 2 }, { "advance_ms": 100 },
                { "probe": "is_open" }, { "advance_ms": 301 }, { "call": if closes { "success" } else { "failure" } },
                { "end": "old" }, { "advance_ms": 100 },
            ])
        };
        for release in ["1.5.12", "1.5.18"] {
            deviations(
                release,
                &json!({}),
                "steps",
                &older(true),
                &[LateResultsDecideNothing],
            );
            deviations(release, &json!({}), "steps", &older(false), &[]);
        }
    }

    #[test]
    fn a_call_that_is_turned_away_during_a_trial_changes_nothing() {
        let bystander = |during: Value| {
            json!([
                { "call": "failure", "repeat": 2 }, { "advance_ms": 401 },
                { "call": "success", "during": [during] }, { "call": "success" },
            ])
        };
        let call = json!({ "call": "success" });
        deviations(
            "1.5.13",
            &json!({}),
            "steps",
            &bystander(call.clone()),
            &[BystandersDoNotReopen],
        );
        deviations("1.5.12", &json!({}), "steps", &bystander(call.clone()), &[]);
        deviations("1.5.18", &json!({}), "steps", &bystander(call), &[]);
        deviations(
            "1.5.13",
            &json!({}),
            "steps",
            &bystander(json!({ "advance_ms": 100 })),
            &[],
        );
    }

    #[test]
    fn a_panic_passes_through_and_is_no_outcome() {
        let ends = |outcome: &str| json!([{ "call": outcome }, { "advance_ms": 100 }]);
        deviations(
            "1.5.12",
            &json!({}),
            "steps",
            &ends("unrecoverable_error"),
            &[JavaOnly],
        );
        deviations("1.5.12", &json!({}), "steps", &ends("error"), &[]);
    }

    #[test]
    fn a_tick_comes_before_the_deadline_that_is_due_with_it() {
        let steps = json!([{ "begin": "a", "outcome": "success" }, { "advance_ms": 300 }, { "end": "a" }]);
        // Of the two timers at 300 ms the deadline was set at 0 and the tick at 200 ms.
        deviations(
            "1.5.12",
            &json!({ (LIMIT): 300 }),
            "steps",
            &steps,
            &[TicksComeFirst],
        );
        // There both were set at 0, the tick first.
        deviations("1.5.12", &json!({ (LIMIT): 100 }), "steps", &steps, &[]);
        deviations("1.5.12", &json!({ (LIMIT): 299 }), "steps", &steps, &[]);
    }
}
