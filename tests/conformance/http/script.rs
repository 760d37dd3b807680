//! What the servers of a case do.

use serde_json::Value;

use crate::{case::Case, hystrix::only};

#[derive(Debug, Clone)]
pub(super) enum Server {
    /// A closed port.
    Refuses,
    /// Connections are never established.
    Blackhole,
    /// The n-th accepted connection plays step n; the last step repeats.
    Listens(Vec<Step>),
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Answers after this many milliseconds, and closes.
    Respond { answer: Answer, delay: u64 },
    /// Reads the request and never answers.
    Hang,
    /// Resets at once.
    CloseBeforeRead,
    /// Reads all, then resets.
    ResetAfterRead,
    /// Reads all, then closes in an orderly way.
    CloseAfterRead,
    /// Announces more than it sends, and ends in this way.
    ShortBody {
        answer: Answer,
        announced: usize,
        end: ShortEnd,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShortEnd {
    Closes,
    Stalls,
    /// After 60 ms.
    Resets,
}

/// After this many milliseconds a body that is reset is.
pub(super) const RESET_AFTER: u64 = 60;

#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Step {
    fn of(value: &Value) -> Step {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let answer = || Answer {
            status: value["status"]
                .as_u64()
                .and_then(|status| status.try_into().ok())
                .expect("a status"),
            headers: value["headers"]
                .as_object()
                .into_iter()
                .flatten()
                .flat_map(|(name, values)| {
                    match values {
                        Value::Array(values) => values.clone(),
                        one => vec![one.clone()],
                    }
                    .into_iter()
                    .map(|value| (name.clone(), value.as_str().expect("a header's text").to_owned()))
                })
                .collect(),
            body: text("body"),
        };
        let short = |end| Step::ShortBody {
            answer: answer(),
            announced: value["content_length"]
                .as_u64()
                .and_then(|length| length.try_into().ok())
                .expect("a length"),
            end,
        };
        let what = value["do"].as_str().expect("a step does something");
        match what {
            "respond" => only(value, &["do", "status", "headers", "body", "delay_ms"]),
            "truncate_body" | "stall_body" | "reset_body" => {
                only(value, &["do", "status", "headers", "body", "content_length"]);
            }
            _ => only(value, &["do"]),
        }
        match what {
            "respond" => Step::Respond {
                answer: answer(),
                delay: value["delay_ms"].as_u64().unwrap_or(0),
            },
            "hang" => Step::Hang,
            "close_before_read" => Step::CloseBeforeRead,
            "reset_after_read" => Step::ResetAfterRead,
            "close_after_read" => Step::CloseAfterRead,
            "truncate_body" => short(ShortEnd::Closes),
            "stall_body" => short(ShortEnd::Stalls),
            "reset_body" => short(ShortEnd::Resets),
            other => panic!("step {other}"),
        }
    }
}

/// The servers of a case, in their order.
pub(super) fn servers(case: &Case) -> Vec<Server> {
    case.part("servers")
        .as_array()
        .into_iter()
        .flatten()
        .map(|server| {
            let kind = server["kind"].as_str().expect("a server has a kind");
            only(
                server,
                if kind == "listen" {
                    &["kind", "script"]
                } else {
                    &["kind"]
                },
            );
            match kind {
                "refuse" => Server::Refuses,
                "blackhole" => Server::Blackhole,
                "listen" => Server::Listens(
                    server["script"]
                        .as_array()
                        .expect("a script")
                        .iter()
                        .map(Step::of)
                        .collect(),
                ),
                other => panic!("server {other}"),
            }
        })
        .collect()
}

/// The step of the n-th accepted connection, from 0 on.
pub(super) fn step(script: &[Step], accepted: usize) -> &Step {
    &script[accepted.min(script.len() - 1)]
}

/// What the caller asks for.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) body: Option<String>,
    pub(super) repeat: usize,
    pub(super) gap: u64,
    /// How long it is watched after the last return.
    pub(super) observe: u64,
}

pub(super) fn calls(case: &Case) -> Calls {
    let request = case.part("request");
    only(
        request,
        &[
            "method",
            "path",
            "body",
            "return_type",
            "repeat",
            "gap_ms",
            "observe_after_ms",
        ],
    );
    let at_most = |key: &str, default: u64| request[key].as_u64().unwrap_or(default);
    Calls {
        method: request["method"].as_str().expect("a method").to_owned(),
        path: request["path"].as_str().expect("a path").to_owned(),
        body: request["body"].as_str().map(str::to_owned),
        repeat: at_most("repeat", 1).try_into().unwrap(),
        gap: at_most("gap_ms", 0),
        observe: at_most("observe_after_ms", if case.level() == "nest" { 900 } else { 0 }),
    }
}
