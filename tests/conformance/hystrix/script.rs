//! What the callers of a case with threads do.

use serde_json::Value;

use crate::case::Case;

/// One call. All times are in milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) name: String,
    /// When it begins.
    pub(super) at: u64,
    /// How long its function runs, and how that ends.
    pub(super) run: u64,
    pub(super) outcome: String,
    pub(super) ignores_interrupt: bool,
    /// After how long its caller gives it up, and what is told of it then.
    pub(super) given_up: Option<(u64, &'static str)>,
    pub(super) fallback: String,
    pub(super) fallback_takes: u64,
}

impl Script {
    pub(super) fn all(case: &Case) -> Vec<Script> {
        case.part("calls")
            .as_array()
            .unwrap()
            .iter()
            .map(Script::read)
            .collect()
    }

    fn read(call: &Value) -> Script {
        only(
            call,
            &[
                "name",
                "at_ms",
                "run_ms",
                "outcome",
                "ignore_interrupt",
                "mode",
                "cancel_after_ms",
                "fallback",
                "fallback_ms",
            ],
        );
        let text = |name: &str, default: &str| call[name].as_str().unwrap_or(default).to_owned();
        let kind = match call["mode"].as_str() {
            None => None,
            Some("unsubscribe") => Some("unsubscribed"),
            Some("queue_cancel") => Some("cancelled"),
            Some(other) => panic!("no caller leaves by {other}"),
        };
        Script {
            name: call["name"].as_str().unwrap().to_owned(),
            at: call["at_ms"].as_u64().unwrap(),
            run: call["run_ms"].as_u64().unwrap(),
            outcome: call["outcome"].as_str().unwrap().to_owned(),
            ignores_interrupt: call["ignore_interrupt"].as_bool().unwrap_or(false),
            given_up: kind.map(|kind| (call["cancel_after_ms"].as_u64().unwrap(), kind)),
            fallback: text("fallback", "none"),
            fallback_takes: call["fallback_ms"].as_u64().unwrap_or(0),
        }
    }
}

/// No part of a case as a whole is passed over.
pub(crate) fn only_parts(case: &Case, names: &[&str]) {
    for name in case.parts() {
        let known = ["id", "level", "config", "observed", "notes"].contains(&name);
        assert!(
            known || names.contains(&name),
            "no part of a case is named {name}"
        );
    }
}

/// No field is passed over.
pub(crate) fn only(part: &Value, names: &[&str]) {
    let Some(fields) = part.as_object() else {
        panic!("no object with fields: {part}");
    };
    for name in fields.keys() {
        assert!(names.contains(&&**name), "{name} is not known: {part}");
    }
}
