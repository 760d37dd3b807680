//! Step by step.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tokio::{
    select,
    sync::oneshot,
    task::JoinHandle,
    time::{Duration, sleep_until},
};

use super::{
    Command, Nested,
    call::{Call, Fallback, Held, Work},
    ending::{Ending, panicked},
    settle,
};
use crate::{case::Case, hystrix::script::only};

pub(super) async fn replay(command: Command, case: &Case) -> Value {
    let mut script = Script {
        fallback: case.setting("fallback").as_str().unwrap_or("none").to_owned(),
        command,
        begun: HashMap::new(),
    };
    let steps = script.all(case.part("steps")).await;
    json!({ "steps": steps })
}

struct Script {
    command: Command,
    fallback: String,
    begun: HashMap<String, Begun>,
}

/// A call that the script has begun and not ended.
enum Begun {
    Runs(Running, oneshot::Sender<String>, String),
    TurnedAway(Ending),
}

/// A call on its way through the stack.
struct Running {
    call: Call,
    task: JoinHandle<Ending>,
}

/// One that is over.
struct Over {
    ending: Ending,
    executed: bool,
    inner: Vec<Value>,
}

impl Script {
    fn all<'a>(&'a mut self, steps: &'a Value) -> Nested<'a, Vec<Value>> {
        Box::pin(async move {
            let mut told = Vec::new();
            for step in steps.as_array().into_iter().flatten() {
                told.push(self.step(step).await);
            }
            told
        })
    }

    async fn step(&mut self, step: &Value) -> Value {
        let mut told = Map::new();
        told.insert("t_ms".into(), json!(self.command.now()));
        if let Some(time) = step["advance_ms"].as_u64() {
            only(step, &["advance_ms"]);
            self.command.advance(self.command.now() + time).await;
            told.insert("t_ms".into(), json!(self.command.now()));
        } else if let Some(what) = step["probe"].as_str() {
            only(step, &["probe"]);
            assert_eq!(what, "is_open");
            told.insert("is_open".into(), json!(self.command.is_open()));
        } else if let Some(key) = step["set_property"].as_str() {
            only(step, &["set_property", "value"]);
            self.command.set_property(key, &step["value"]);
        } else if let Some(name) = step["begin"].as_str() {
            only(step, &["begin", "outcome"]);
            let (end, ends) = oneshot::channel();
            let running = self.start(Work::Until(ends), &Value::Null).await;
            let executed = running.executed();
            told.insert("executed".into(), json!(executed));
            let begun = if executed {
                Begun::Runs(running, end, step["outcome"].as_str().unwrap().to_owned())
            } else {
                let ending = ending(running.task).await;
                told.insert("kind".into(), json!(ending.kind));
                Begun::TurnedAway(ending)
            };
            self.begun.insert(name.to_owned(), begun);
        } else if let Some(name) = step["end"].as_str() {
            only(step, &["end"]);
            let ending = match self.begun.remove(name).expect("it was begun") {
                Begun::Runs(running, end, outcome) => {
                    release(end, &outcome).await;
                    ending(running.task).await
                }
                Begun::TurnedAway(ending) => {
                    told.insert("was_not_running".into(), json!(true));
                    ending
                }
            };
            told.insert("kind".into(), json!(ending.kind));
            told.insert("events".into(), json!(ending.events));
        } else {
            only(
                step,
                &["call", "duration_ms", "during", "during_fallback", "repeat"],
            );
            self.calls(step, &mut told).await;
        }
        if self.command.switched_on {
            told.insert("tripped".into(), json!(self.command.is_tripped()));
            told.insert("health".into(), self.command.health());
            if !self.command.state().is_null() {
                told.insert("state".into(), self.command.state());
            }
        }
        Value::Object(told)
    }

    async fn calls(&mut self, step: &Value, told: &mut Map<String, Value>) {
        let mut all = Vec::new();
        for _ in 0..step["repeat"].as_u64().unwrap_or(1) {
            all.push(self.call(step).await);
        }
        let last = &all.last().expect("at least one call").ending;
        let returned = self.command.millis(last.at);
        if told["t_ms"] != returned {
            told.insert("returned_t_ms".into(), json!(returned));
        }
        if let [only] = &all[..] {
            told.insert("kind".into(), json!(only.ending.kind));
            told.insert("events".into(), json!(only.ending.events));
            told.insert("executed".into(), json!(only.executed));
        } else {
            let mut kinds: Vec<(&str, u64)> = Vec::new();
            for over in &all {
                match kinds.iter_mut().find(|(kind, _)| *kind == over.ending.kind) {
                    Some((_, count)) => *count += 1,
                    None => kinds.push((over.ending.kind, 1)),
                }
            }
            told.insert("kinds".into(), json!(kinds));
            told.insert("events_of_last".into(), json!(last.events));
            told.insert(
                "executed".into(),
                json!(all.iter().filter(|over| over.executed).count()),
            );
        }
        let inner: Vec<Value> = all.into_iter().flat_map(|over| over.inner).collect();
        if !inner.is_empty() {
            told.insert("inner".into(), json!(inner));
        }
    }

    /// A call that the script waits for. A function with steps in it is in the hands of the script all the same; any
    /// other one takes its time by itself.
    async fn call(&mut self, step: &Value) -> Over {
        let outcome = step["call"].as_str().unwrap();
        let during_fallback = &step["during_fallback"];
        let time = step["duration_ms"].as_u64();
        let (end, work) = match time.filter(|_| step["during"].is_null()) {
            Some(time) => (None, Work::For(Duration::from_millis(time), outcome.to_owned())),
            None => {
                let (end, ends) = oneshot::channel();
                (Some(end), Work::Until(ends))
            }
        };
        let running = self.start(work, during_fallback).await;
        let (mut inner, mut in_fallback) = (Vec::new(), Vec::new());
        if running.executed() {
            if let Some(time) = time {
                let to = self.command.now() + time;
                if let Some(held) = running.call.held() {
                    // Should it time out, its fallback comes in between.
                    select! {
                        () = held.entered.notified() => {
                            in_fallback = self.during_fallback(held, during_fallback).await;
                        }
                        () = sleep_until(self.command.at(to)) => {}
                    }
                }
                self.command.advance(to).await;
            }
            inner = self.all(&step["during"]).await;
        }
        let executed = running.executed();
        let Running { call, task } = running;
        if let Some(end) = end {
            release(end, outcome).await;
        }
        if let Some(held) = call.held().filter(|_| !task.is_finished()) {
            held.entered.notified().await;
            in_fallback = self.during_fallback(held, during_fallback).await;
        }
        inner.append(&mut in_fallback);
        Over {
            ending: ending(task).await,
            executed,
            inner,
        }
    }

    async fn during_fallback(&mut self, held: &Held, steps: &Value) -> Vec<Value> {
        let told = self.all(steps).await;
        held.leave.notify_one();
        settle().await;
        told
    }

    async fn start(&mut self, work: Work, during_fallback: &Value) -> Running {
        let fallback = (self.fallback != "none").then(|| Fallback {
            answers: self.fallback == "ok",
            takes: Duration::ZERO,
            held: during_fallback.is_array().then(Held::default),
        });
        let call = Call::new(work, fallback);
        let (stack, request) = (self.command.stack.clone(), call.clone());
        let task = tokio::spawn(async move {
            let answer = stack.call(request.clone()).await;
            stack.words.ending(&answer, request.seen())
        });
        settle().await;
        Running { call, task }
    }
}

impl Running {
    fn executed(&self) -> bool {
        self.call.seen().run_started.is_some()
    }
}

async fn release(end: oneshot::Sender<String>, outcome: &str) {
    // A function that has timed out is gone.
    let _ = end.send(outcome.to_owned());
    settle().await;
}

/// Of a call that has all that it waits for.
async fn ending(task: JoinHandle<Ending>) -> Ending {
    assert!(task.is_finished(), "the call does not end");
    match task.await {
        Ok(ending) => ending,
        Err(error) if error.is_panic() => panicked(),
        Err(error) => panic!("{error}"),
    }
}
