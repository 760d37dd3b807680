//! Each call by a caller of its own.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::{
    Command,
    call::{Call, Fallback, Work},
    ending::{Ending, panicked},
    fields,
};
use crate::{case::Case, hystrix::script::Script};

pub(super) async fn replay(command: Command, case: &Case, until: u64) -> Value {
    let callers: Vec<_> = Script::all(case)
        .into_iter()
        .map(|script| tokio::spawn(call(command.clone(), script)))
        .collect();
    command.advance(until).await;
    let mut calls = Vec::new();
    for caller in callers {
        assert!(caller.is_finished(), "a call does not end");
        calls.push(caller.await.expect("it minds panics"));
    }
    let breaker = if command.switched_on {
        fields([
            ("open", json!(command.is_open())),
            ("health", command.health()),
            ("state", command.state()),
        ])
    } else {
        Value::Null
    };
    json!({ "calls": calls, "breaker": breaker })
}

async fn call(command: Command, script: Script) -> Value {
    sleep_until(command.at(script.at)).await;
    let fallback = (script.fallback != "none").then(|| Fallback {
        answers: script.fallback == "ok",
        takes: Duration::from_millis(script.fallback_takes),
        held: None,
    });
    let call = Call::new(
        Work::For(Duration::from_millis(script.run), script.outcome),
        fallback,
    );
    let started = Instant::now();
    let answer = AssertUnwindSafe(command.stack.call(call.clone())).catch_unwind();
    let answer = match script.given_up {
        None => Ok(answer.await),
        // It is dropped there and then.
        Some((after, kind)) => timeout(Duration::from_millis(after), answer)
            .await
            .map_err(|_| kind),
    };
    let ending = match &answer {
        Ok(Ok(answer)) => command.stack.words.ending(answer, call.seen()),
        Ok(Err(_)) => panicked(),
        Err(kind) => Ending {
            kind,
            events: vec!["CANCELLED"],
            at: Instant::now(),
        },
    };
    let seen = call.seen();
    let millis = |at: Option<Instant>| json!(at.map(|at| command.millis(at)));
    fields([
        ("name", json!(script.name)),
        ("kind", json!(ending.kind)),
        ("events", json!(ending.events)),
        ("executed", json!(seen.run_started.is_some())),
        ("state_after", command.state()),
        ("started_ms", millis(Some(started))),
        ("returned_ms", millis(Some(ending.at))),
        ("run_started_ms", millis(seen.run_started)),
        ("run_interrupted_ms", millis(seen.run_interrupted)),
        ("run_ended_ms", millis(seen.run_ended)),
        ("fallback_started_ms", millis(seen.fallback_started)),
    ])
}
