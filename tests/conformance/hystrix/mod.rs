//! The level `hystrix`: a command around a scripted function, on a virtual clock or with threads.
//!
//! Each case is told three times: by the recording, by a plain [`model`] of Hystrix, and by the layers. The model as
//! Hystrix is has to give what was recorded, so nothing is compared with a recording that nobody understands. Where it
//! gives something else by our rules, the rules that make the difference are the deviations of the case, and what the
//! model says by them is asserted of the layers, step by step. Otherwise the layers have to give what was recorded.

mod compare;
mod departures;
mod model;
mod random;
mod replay;
mod script;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use self::{
    compare::{Times, differences},
    departures::Expected,
};
use crate::{case::Case, report::Outcome};

/// How many differences of a case are shown.
const SHOWN: usize = 8;

/// Replays one case.
pub(crate) fn replay(case: &Case) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| judge(case)));
    outcome.unwrap_or_else(|panic| Outcome::Differs(vec![words(&*panic)]))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
    words.unwrap_or("a panic").to_owned()
}

fn judge(case: &Case) -> Outcome {
    let expected = Expected::of(case);
    let times = match case.setting("clock").as_str() {
        Some("virtual") => Times::Exact,
        Some("real") => Times::Measured,
        other => panic!("no clock is {other:?}"),
    };
    let mut found = by(
        "the model of Hystrix",
        differences(case.observed(), &expected.theirs, times),
    );
    let got = replay::replay(case, expected.until);
    if expected.deviations.is_empty() {
        found.extend(by("this crate", differences(case.observed(), &got, times)));
    }
    found.extend(by(
        "by our rules",
        differences(&expected.ours, &got, Times::Exact),
    ));
    Outcome::of(expected.deviations, found)
}

fn by(whom: &str, differences: Vec<String>) -> Vec<String> {
    let left_out = differences.len().saturating_sub(SHOWN);
    let mut lines: Vec<_> = differences
        .iter()
        .take(SHOWN)
        .map(|line| format!("{whom}: {line}"))
        .collect();
    if left_out > 0 {
        lines.push(format!("{whom}: and {left_out} more"));
    }
    lines
}
