//! What is told of a case: by its recording, by its oracle, and by this crate's stack. All three in one form.
//!
//! Times are milliseconds from the start of the first call.

use serde_json::Value;

use crate::{
    case::Case,
    hystrix::{only, only_parts},
};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Told {
    pub(super) attempts: Vec<Attempt>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) calls: Vec<Call>,
    /// Pauses that Feign's retryer computed.
    pub(super) sleeps: Vec<u64>,
    pub(super) stats: Vec<Stats>,
    /// The last error of Ribbon's client, before the glue unwrapped it.
    pub(super) ribbon_error: Option<Vec<String>>,
    pub(super) breaker: Option<Breaker>,
    pub(super) executions: Vec<Execution>,
    /// What fallbacks were handed.
    pub(super) causes: Vec<String>,
    pub(super) total: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attempt {
    pub(super) server: usize,
    pub(super) method: String,
    pub(super) start: u64,
    pub(super) end: Option<u64>,
    pub(super) outcome: String,
    pub(super) connect: u64,
    pub(super) read: u64,
    pub(super) after_return: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arrival {
    pub(super) server: usize,
    /// `?` if nothing was read.
    pub(super) method: String,
    pub(super) at: u64,
    pub(super) after_return: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) kind: String,
    pub(super) chain: Vec<String>,
    pub(super) value: Option<String>,
    pub(super) started: u64,
    pub(super) returned: u64,
    pub(super) attempts_during: Option<usize>,
    pub(super) open_after: Option<bool>,
}

impl Call {
    /// Hystrix' own type of the failure, if the caller got one.
    pub(super) fn hystrix_type(&self) -> Option<&str> {
        self.chain
            .first()?
            .strip_prefix("hystrix_runtime(")?
            .strip_suffix(')')
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stats {
    pub(super) server: usize,
    pub(super) failures: u64,
    pub(super) active: u64,
    pub(super) total: u64,
    pub(super) tripped: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Breaker {
    /// Is it open, and its state; none where the breaker is switched off.
    pub(super) circuit: Option<(bool, String)>,
    pub(super) total: u64,
    pub(super) errors: u64,
    pub(super) percent: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Execution {
    pub(super) at: u64,
    /// In the order of their names.
    pub(super) events: Vec<String>,
}

impl Told {
    /// What was recorded.
    pub(super) fn recorded(case: &Case) -> Told {
        let observed = case.observed();
        only_parts(case, &["request", "servers"]);
        only(
            observed,
            &[
                "attempts",
                "server_arrivals",
                "total_ms",
                "outcome",
                "calls",
                "retry_sleeps_ms",
                "ribbon_error",
                "server_stats",
                "executions",
                "fallback_causes",
                "breaker",
            ],
        );
        only_fields(observed);
        assert!(
            observed["calls"].is_null() || observed["outcome"].is_null(),
            "both calls and an outcome"
        );
        let calls = match &observed["calls"] {
            Value::Array(calls) => calls.iter().collect(),
            _ => vec![&observed["outcome"]],
        };
        Told {
            attempts: each(&observed["attempts"], |attempt| Attempt {
                server: index(&attempt["server"]),
                method: text(&attempt["method"]),
                start: number(&attempt["t_ms"]),
                end: attempt["end_ms"].as_u64(),
                outcome: text(&attempt["outcome"]),
                connect: number(&attempt["connect_timeout_ms"]),
                read: number(&attempt["read_timeout_ms"]),
                after_return: attempt["after_return"].as_bool().unwrap_or(false),
            }),
            arrivals: each(&observed["server_arrivals"], |arrival| Arrival {
                server: index(&arrival["server"]),
                method: text(&arrival["method"]),
                at: number(&arrival["t_ms"]),
                after_return: arrival["after_return"].as_bool().unwrap_or(false),
            }),
            calls: calls
                .into_iter()
                .map(|call| Call {
                    kind: text(&call["kind"]),
                    chain: chain(&call["chain"]),
                    value: call["value"].as_str().map(str::to_owned),
                    started: number(&call["started_ms"]),
                    returned: number(&call["returned_ms"]),
                    attempts_during: call["attempts_during_call"]
                        .as_u64()
                        .map(|count| count.try_into().unwrap()),
                    open_after: call["breaker_open_after"].as_bool(),
                })
                .collect(),
            sleeps: each(&observed["retry_sleeps_ms"], number),
            stats: each(&observed["server_stats"], |stats| Stats {
                server: index(&stats["server"]),
                failures: number(&stats["successive_connection_failures"]),
                active: number(&stats["active_requests"]),
                total: number(&stats["total_requests"]),
                tripped: stats["circuit_tripped"].as_bool().expect("a flag"),
            }),
            ribbon_error: observed["ribbon_error"]
                .is_array()
                .then(|| chain(&observed["ribbon_error"])),
            breaker: observed["breaker"].is_object().then(|| {
                let breaker = &observed["breaker"];
                Breaker {
                    circuit: breaker["open"]
                        .as_bool()
                        .map(|open| (open, text(&breaker["state"]))),
                    total: number(&breaker["health_total"]),
                    errors: number(&breaker["health_errors"]),
                    percent: number(&breaker["health_error_percent"]),
                }
            }),
            executions: each(&observed["executions"], |execution| {
                let mut events = each(&execution["events"], text);
                events.sort();
                Execution {
                    at: number(&execution["t_ms"]),
                    events,
                }
            }),
            causes: each(&observed["fallback_causes"], text),
            total: number(&observed["total_ms"]),
        }
    }
}

/// Nothing is observed of an attempt or a call that is passed over.
fn only_fields(observed: &Value) {
    let call = [
        "kind",
        "chain",
        "value",
        "started_ms",
        "returned_ms",
        "attempts_during_call",
        "breaker_open_after",
    ];
    let stats = [
        "server",
        "successive_connection_failures",
        "active_requests",
        "total_requests",
        "circuit_tripped",
    ];
    let attempt = [
        "server",
        "method",
        "t_ms",
        "end_ms",
        "outcome",
        "connect_timeout_ms",
        "read_timeout_ms",
        "after_return",
    ];
    let known: [(&str, &[&str]); 8] = [
        ("attempts", &attempt),
        ("server_arrivals", &["server", "method", "t_ms", "after_return"]),
        ("outcome", &call),
        ("calls", &call),
        ("ribbon_error", &["type", "message"]),
        ("server_stats", &stats),
        ("executions", &["t_ms", "events"]),
        (
            "breaker",
            &[
                "open",
                "state",
                "health_total",
                "health_errors",
                "health_error_percent",
            ],
        ),
    ];
    for (name, fields) in known {
        let all = match &observed[name] {
            Value::Null => &[],
            Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        for one in all {
            only(one, fields);
            for link in one["chain"].as_array().into_iter().flatten() {
                only(link, &["type", "message"]);
            }
        }
    }
}

fn each<T>(array: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    array.as_array().into_iter().flatten().map(read).collect()
}

fn chain(links: &Value) -> Vec<String> {
    each(links, |link| text(&link["type"]))
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("a text in place of {value}"))
        .to_owned()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("a number in place of {value}"))
}

fn index(value: &Value) -> usize {
    number(value).try_into().unwrap()
}
