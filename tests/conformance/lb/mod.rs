//! The levels `lb` and `retryer`: which server a rule chooses, when a server is tripped, what each retry handler
//! allows, and the pauses of the retryer.
//!
//! Figures about servers are planted by real attempts under the paused clock, and choices are read off real calls.

mod choices;
mod circuit;
mod handlers;
mod recorded_attempts;
mod retryer;
mod servers;

use std::collections::BTreeSet;

use serde_json::Value;
use tower_outbound::balance::RibbonRule;

use crate::{case::Case, hystrix::caught, report::Outcome};

/// Replays one case.
pub(crate) fn replay(case: &Case) -> Outcome {
    let judge = async {
        if case.level() == "retryer" {
            plain(retryer::differences(case).await)
        } else if case.id().starts_with("lb-server_circuit-") {
            plain(circuit::differences(case).await)
        } else if case.id().starts_with("lb-retry_handler-") {
            handlers::replay(case).await
        } else {
            plain(choices::differences(case).await)
        }
    };
    caught(|| paused().block_on(judge)).unwrap_or_else(|panicked| panicked)
}

/// Replays the choices of a case of the level `ribbon`. None: it is about something else as well.
pub(crate) fn replay_choices(case: &Case) -> Option<Outcome> {
    let differences = caught(|| paused().block_on(recorded_attempts::differences(case)));
    differences.map_or_else(Some, |differences| differences.map(plain))
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

fn plain(differences: Vec<String>) -> Outcome {
    Outcome::of(BTreeSet::new(), differences)
}

/// Notes what differs from the recording.
fn compare<T: PartialEq + std::fmt::Debug>(differences: &mut Vec<String>, what: &str, recorded: T, seen: T) {
    if recorded != seen {
        differences.push(format!("{what}: recorded {recorded:?}, seen {seen:?}"));
    }
}

/// The rule that a class of Ribbon's names.
fn rule_of(class: &Value) -> RibbonRule {
    let class = match class {
        Value::Null => "com.netflix.loadbalancer.ZoneAvoidanceRule",
        class => class
            .as_str()
            .unwrap_or_else(|| panic!("no rule is named {class}")),
    };
    let bare = class
        .strip_prefix("com.netflix.loadbalancer.")
        .unwrap_or_else(|| panic!("no rule is named {class}"));
    RibbonRule::ALL
        .into_iter()
        .find(|rule| rule.to_string() == bare)
        .unwrap_or_else(|| panic!("no rule is named {class}"))
}
