//! The level `hystrix`: a command around a scripted function, on a virtual clock or with threads.
//!
//! Each case is told three times: by the recording, by a plain [`model`] of Hystrix, and by the layers. The model as
//! Hystrix is has to give what was recorded, so that nothing passes for a deviation that is only a recording which
//! nobody understands. Where it gives something else by our rules, the rules that make the difference are the deviations
//! of the case, and what the model says by them is asserted of the layers, step by step. Otherwise the layers have to give
//! what was recorded. The model is also asked about [`random`] cases that nobody recorded.
//!
//! # What it notices
//!
//! The layers were broken on purpose, one thing at a time. Cases named `random` are counted, others listed where they are
//! few, by their names without `hystrix-` and the release.
//!
//! | broken | cases that fail |
//! | --- | --- |
//! | volume `>=` made `>` | 112, among them `volume-4-4-failures`, `volume-default-19-failures`, `percent-50-10_of_20` and most of `halfopen-` and `inflight-`; 26 random |
//! | sleep window inclusive | `sleep-0`, `sleep-boundary`, `sleep-default_5000`, `lag-opened_at`, `lag-opens_only_at_tick`, `halfopen-bad_request`, `halfopen-failure`, `halfopen-failure-slow_trial`, `halfopen-timeout`; 20 random |
//! | half-open guard: a trial that is given up keeps its place | `threads-halfopen-unsubscribed_trial` of 1.5.12 and 1.5.13 |
//! | half-open guard: any outcome decides (1.5.12) | `inflight-older_success_ends_during_trial` |
//! | any success closes (1.5.18) | `inflight-older_success_ends_during_trial`, `inflight-success_while_open`, `inflight-two_older_one_success_one_failure`, `halfopen-semaphore_rejected`, `threads-halfopen-pool_rejected_trial`, `threads-pool_rejected-counts` |
//! | a bad request in the trial leaves it half-open | `halfopen-bad_request`; 5 random |
//! | percent `>=` made `>` | all of `percent-` whose share is the threshold, `volume-0-no_requests`, `volume-1-one_failure`, `counts-semaphore_rejected-2`; 7 random |
//! | rejections by the bulkhead not counted | `counts-semaphore_rejected` and `halfopen-semaphore_rejected` in all their forms, all of `threads-` with a call that is turned away by a pool or semaphore; 12 random |
//! | a window of one bucket more | `window-bucket_edge`, `window-odd_division`, `window-old_failures_diluted`, `window-expiry-default`, `window-straddle-expired`; 40 random |
//! | at a tie with the limit the result wins | `counts-timeout-exact`; 34 random |
//! | a slot of the bulkhead is not given back | 94, among them `semaphore-max_2`, `threads-orphan_interrupted_frees_slot`; 52 random |

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

pub(crate) use self::script::{only, only_parts};
use self::{
    compare::{Times, differences},
    departures::Expected,
};
use crate::{case::Case, report::Outcome};

/// How many differences of a case are shown.
const SHOWN: usize = 8;

/// Replays one case.
pub(crate) fn replay(case: &Case) -> Outcome {
    caught(|| judge(case)).unwrap_or_else(|panicked| panicked)
}

/// A panic is what became of the one case that it met.
pub(crate) fn caught<T>(judge: impl FnOnce() -> T) -> Result<T, Outcome> {
    catch_unwind(AssertUnwindSafe(judge)).map_err(|panic| Outcome::Differs(vec![words(&*panic)]))
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
