//! The settings of a nest as a table, for whoever wants to print or compare them.

use std::time::Duration;

use super::Plan;
use crate::{
    balance::WhenEmpty,
    breaker::{BreakerSettings, HystrixRelease},
    call::{LONGEST, RetryBudget, StatusSet},
    classify::StatusPolicy,
    retry::{Backoff, Idempotent, Jitter},
};

/// What a nest is made of.
pub(super) struct Parts<'a> {
    pub(super) connect: Duration,
    pub(super) read: Duration,
    pub(super) execution: Option<Duration>,
    pub(super) deadline_is_told: bool,
    pub(super) idempotent: Idempotent,
    pub(super) retried_answers: StatusSet,
    pub(super) backoff: &'a Backoff,
    pub(super) budget: Option<&'a RetryBudget>,
    pub(super) attempts_in_call: Option<u32>,
    pub(super) statuses: &'a StatusPolicy,
    pub(super) breaker: Option<BreakerSettings>,
    pub(super) breaker_counts: &'static str,
    /// At once, and waiting.
    pub(super) bulkhead: Option<(u32, u32)>,
    pub(super) fallbacks: Option<u32>,
    pub(super) rule: String,
    pub(super) tripped: String,
    pub(super) outliers: bool,
    pub(super) when_empty: WhenEmpty,
    pub(super) plan: Plan,
}

const NONE: &str = "none";

impl Parts<'_> {
    /// A name and a value each, in the order of the layers from the inside out.
    pub(super) fn rows(self) -> std::vec::IntoIter<(&'static str, String)> {
        let breaker = |value: &dyn Fn(BreakerSettings) -> String| or_none(self.breaker.map(value));
        let statuses = match self.retried_answers {
            statuses if statuses.is_empty() => NONE.to_owned(),
            statuses => statuses.to_string(),
        };
        let empty = match self.when_empty {
            WhenEmpty::FailAtOnce => "fails at once".to_owned(),
            WhenEmpty::Wait(wait) => format!("waits {wait:?}"),
        };
        vec![
            ("connect limit", limit(self.connect)),
            ("read limit", limit(self.read)),
            ("rule", self.rule),
            ("tripped endpoint", self.tripped),
            ("outliers are ejected", yes(self.outliers)),
            ("no endpoint", empty),
            (
                "same endpoint again",
                self.idempotent.same_endpoint_retries().to_string(),
            ),
            (
                "next endpoints",
                self.idempotent.next_endpoint_retries().to_string(),
            ),
            ("sent again at once", self.idempotent.to_string()),
            ("statuses sent again at once", statuses),
            ("error statuses", self.statuses.to_string()),
            ("attempts with pauses", self.backoff.max_attempts().to_string()),
            ("pauses", pauses(self.backoff)),
            ("sent again after a pause", self.backoff.to_string()),
            ("retry budget", or_none(self.budget.map(RetryBudget::to_string))),
            (
                "limit on attempts",
                or_none(self.attempts_in_call.map(|most| most.to_string())),
            ),
            (
                "calls at once",
                or_none(self.bulkhead.map(|(at_once, _)| at_once.to_string())),
            ),
            (
                "calls that wait",
                or_none(self.bulkhead.map(|(_, waiting)| waiting.to_string())),
            ),
            ("execution limit", self.execution.map_or(NONE.to_owned(), limit)),
            (
                "deadline is told below",
                yes(self.deadline_is_told && self.execution.is_some()),
            ),
            ("breaker judges", breaker(&|breaker| judges(breaker))),
            ("breaker counts", breaker(&|_| self.breaker_counts.to_owned())),
            ("breaker volume", breaker(&|breaker| breaker.volume().to_string())),
            (
                "breaker error percent",
                breaker(&|breaker| or_none(breaker.error_percent().map(|percent| percent.to_string()))),
            ),
            (
                "breaker sleep window",
                breaker(&|breaker| format!("{:?}", breaker.sleep_window())),
            ),
            (
                "breaker window",
                breaker(&|breaker| format!("{:?}", breaker.window())),
            ),
            (
                "fallbacks at once",
                or_none(self.fallbacks.map(|most| most.to_string())),
            ),
            ("attempts at most", self.plan.attempts().to_string()),
            ("longest plan", format!("{:?}", self.plan.longest())),
        ]
        .into_iter()
    }
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| NONE.to_owned())
}

fn yes(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

/// The longest there can be is how "none" is said to a layer.
fn limit(limit: Duration) -> String {
    if limit == LONGEST {
        NONE.to_owned()
    } else {
        format!("{limit:?}")
    }
}

fn judges(breaker: BreakerSettings) -> String {
    match (breaker.hystrix(), breaker.health_snapshot()) {
        (Some(release), Some(interval)) => {
            let release = match release {
                HystrixRelease::V1_5_12 => "Hystrix 1.5.12",
                HystrixRelease::V1_5_18 => "Hystrix 1.5.18",
            };
            format!("as {release}, every {interval:?}")
        }
        _ => "each outcome".to_owned(),
    }
}

/// How many are written out.
const MANY: u32 = 8;

fn pauses(backoff: &Backoff) -> String {
    let retries = backoff.max_attempts().saturating_sub(1);
    if retries == 0 {
        return NONE.to_owned();
    }
    if backoff.pauses_by_a_function() {
        return format!("as a function says, at most {:?}", backoff.pause(1));
    }
    let written = |pause: &dyn Fn(u32) -> Duration| {
        let pauses = (1..=retries.min(MANY)).map(|retry| format!("{:?}", pause(retry)));
        let pauses = pauses.collect::<Vec<_>>().join(", ");
        let more = if retries > MANY { ", ..." } else { "" };
        match backoff.jitter() {
            Jitter::None => format!("{pauses}{more}"),
            Jitter::Full => format!("up to {pauses}{more}"),
            Jitter::Equal => format!("half of to all of {pauses}{more}"),
            Jitter::Decorrelated => format!("from {:?} up to {pauses}{more}", backoff.base()),
        }
    };
    let usual = written(&|retry| backoff.pause(retry));
    if backoff.throttled_pause(1).is_none() {
        return usual;
    }
    let throttled = written(&|retry| backoff.throttled_pause(retry).unwrap_or_default());
    format!("{usual}; throttled: {throttled}")
}
