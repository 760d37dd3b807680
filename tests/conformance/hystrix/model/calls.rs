//! The model with threads, were no machine ever slow.

use serde_json::{Map, Value, json};

use super::{
    Id, Outcome, Refusal, Rules, Told,
    breaker::Breaker,
    settings::{Fallback, Isolation, Settings},
    slots::{Slot, Slots},
};
use crate::{case::Case, hystrix::script::Script};

pub(super) fn tell(case: &Case, rules: Rules, until: u64) -> Told {
    let scripts = Script::all(case);
    let settings = Settings::of(case);
    let snapshot = settings.snapshot;
    let mut world = World {
        rules,
        now: 0,
        breaker: Breaker::new(settings, rules),
        slots: Slots::default(),
        fallbacks: 0,
        timers: Vec::new(),
        tied: false,
        calls: scripts.iter().map(|script| Call::new(script.clone())).collect(),
    };
    for (index, script) in scripts.iter().enumerate() {
        world.set(script.at, Due::Start(index));
    }
    while world.fire() {}
    // A snapshot is taken after the last call.
    let until = until.max(world.now + snapshot + snapshot / 2);
    world.tick_until(until);
    let calls: Vec<_> = world.calls.iter().map(Call::told).collect();
    Told {
        observed: json!({ "calls": calls, "breaker": world.told_of_breaker() }),
        ended_ms: until,
        tied: world.tied,
    }
}

#[derive(Debug)]
struct Call {
    script: Script,
    id: Option<Id>,
    started: u64,
    run_started: Option<u64>,
    run_interrupted: Option<u64>,
    run_ended: Option<u64>,
    fallback_started: Option<u64>,
    /// Decided: no longer under the timer.
    decided: bool,
    answer: Option<(&'static str, Vec<&'static str>)>,
    returned: Option<u64>,
    state_after: Option<&'static str>,
}

impl Call {
    fn new(script: Script) -> Call {
        Call {
            script,
            id: None,
            started: 0,
            run_started: None,
            run_interrupted: None,
            run_ended: None,
            fallback_started: None,
            decided: false,
            answer: None,
            returned: None,
            state_after: None,
        }
    }

    fn runs(&self) -> bool {
        self.run_started.is_some() && self.run_ended.is_none()
    }

    fn told(&self) -> Value {
        let (kind, events) = self.answer.as_ref().expect("each call ends");
        let mut told = Map::new();
        let mut tell = |name: &str, value: Value| {
            if !value.is_null() {
                told.insert(name.to_owned(), value);
            }
        };
        tell("name", json!(self.script.name));
        tell("started_ms", json!(self.started));
        tell("kind", json!(kind));
        tell("events", json!(events));
        tell("executed", json!(self.run_started.is_some()));
        tell("returned_ms", json!(self.returned));
        tell("state_after", json!(self.state_after));
        tell("run_started_ms", json!(self.run_started));
        tell("run_interrupted_ms", json!(self.run_interrupted));
        tell("run_ended_ms", json!(self.run_ended));
        tell("fallback_started_ms", json!(self.fallback_started));
        Value::Object(told)
    }
}

#[derive(Debug, Clone)]
enum Due {
    Start(usize),
    RunEnd(usize),
    Deadline(usize),
    GivenUp(usize, &'static str),
    FallbackEnd(usize, &'static str, Vec<&'static str>),
}

impl Due {
    /// At the same instant. A limit that is reached just as the function ends is not open to question.
    fn may_be_before(&self, other: &Due) -> bool {
        let gone = |due: &Due| matches!(due, Due::GivenUp(..));
        self.whose() != other.whose() || gone(self) || gone(other)
    }

    fn whose(&self) -> usize {
        match self {
            Due::Start(call)
            | Due::RunEnd(call)
            | Due::Deadline(call)
            | Due::GivenUp(call, _)
            | Due::FallbackEnd(call, ..) => *call,
        }
    }
}

struct World {
    rules: Rules,
    now: u64,
    breaker: Breaker,
    slots: Slots,
    fallbacks: usize,
    timers: Vec<(u64, Due)>,
    tied: bool,
    calls: Vec<Call>,
}

impl World {
    fn set(&mut self, at: u64, due: Due) {
        self.timers.push((at, due));
    }

    /// The next timer, with the ticks before it.
    fn fire(&mut self) -> bool {
        let Some(at) = self.timers.iter().map(|(at, _)| *at).min() else {
            return false;
        };
        self.tick_until(at);
        let first = self
            .timers
            .iter()
            .position(|(other, _)| *other == at)
            .expect("it is there");
        let due = self.timers.remove(first).1;
        self.tied |= self
            .timers
            .iter()
            .any(|(other, later)| *other == at && later.may_be_before(&due));
        match due {
            Due::Start(call) => self.start(call),
            Due::RunEnd(call) => self.run_end(call),
            Due::Deadline(call) => self.deadline(call),
            Due::GivenUp(call, kind) => self.given_up(call, kind),
            Due::FallbackEnd(call, kind, events) => {
                self.fallbacks -= 1;
                if self.calls[call].answer.is_none() {
                    self.answer(call, kind, events);
                }
            }
        }
        true
    }

    fn tick_until(&mut self, until: u64) {
        while self.breaker.next_tick() <= until {
            let tick = self.breaker.next_tick();
            self.breaker.tick(tick);
        }
        self.now = until;
    }

    fn is_semaphore(&self) -> bool {
        matches!(self.breaker.settings.isolation, Isolation::Semaphore { .. })
    }

    fn start(&mut self, index: usize) {
        self.calls[index].started = self.now;
        if let Some((after, kind)) = self.calls[index].script.given_up {
            self.set(self.now + after, Due::GivenUp(index, kind));
        }
        let id = match self.breaker.admit(self.now) {
            Ok(id) => id,
            Err(_) => return self.fall_back(index, "circuit_open", "SHORT_CIRCUITED"),
        };
        self.calls[index].id = Some(id);
        let slot = self.slots.ask(id, self.breaker.settings.isolation);
        match slot {
            Slot::None(Refusal::Pool) => {
                self.breaker.failed(id, self.now);
                return self.fall_back(index, "thread_pool_rejected", "THREAD_POOL_REJECTED");
            }
            Slot::None(_) => {
                self.breaker.turned_away(id, self.now);
                return self.fall_back(index, "semaphore_rejected", "SEMAPHORE_REJECTED");
            }
            Slot::Taken | Slot::Queued => {}
        }
        if let Some(limit) = self.breaker.settings.timeout {
            self.set(self.now + limit, Due::Deadline(index));
        }
        if slot == Slot::Taken {
            self.run(index);
        }
    }

    fn run(&mut self, index: usize) {
        if self.calls[index].decided {
            // It timed out in the queue.
            return self.give_back(index);
        }
        self.calls[index].run_started = Some(self.now);
        self.set(self.now + self.calls[index].script.run, Due::RunEnd(index));
    }

    fn give_back(&mut self, index: usize) {
        let id = self.calls[index].id.expect("it was let through");
        if let Some(next) = self.slots.give_back(id) {
            let next = self.calls.iter().position(|call| call.id == Some(next));
            self.run(next.expect("it was let through"));
        }
    }

    fn run_end(&mut self, index: usize) {
        if !self.calls[index].runs() {
            return;
        }
        let id = self.calls[index].id.expect("it was let through");
        self.calls[index].run_ended = Some(self.now);
        if self.calls[index].decided {
            if !self.is_semaphore() {
                self.give_back(index);
            }
            return self.caller_returns(index);
        }
        self.calls[index].decided = true;
        self.give_back(index);
        match Outcome::read(&self.calls[index].script.outcome) {
            Outcome::Success => {
                self.breaker.succeeded(id, self.now);
                self.answer(index, "success", vec!["SUCCESS"]);
            }
            Outcome::BadRequest => {
                self.breaker.bad_request(id, self.now);
                self.answer(index, "bad_request", vec!["BAD_REQUEST"]);
            }
            Outcome::Panic if self.rules.java_only => {
                self.breaker.given_up(id, self.now);
                self.answer(index, "panic", vec![]);
            }
            Outcome::Panic => {
                self.breaker.failed(id, self.now);
                self.answer(index, "failure", vec!["FAILURE"]);
            }
            Outcome::Failure => {
                self.breaker.failed(id, self.now);
                self.fall_back(index, "failure", "FAILURE");
            }
        }
    }

    fn deadline(&mut self, index: usize) {
        if std::mem::replace(&mut self.calls[index].decided, true) {
            return;
        }
        let id = self.calls[index].id.expect("it was let through");
        self.breaker.failed(id, self.now);
        let (settings, call) = (&self.breaker.settings, &mut self.calls[index]);
        let semaphore = matches!(settings.isolation, Isolation::Semaphore { .. });
        let interrupted = !semaphore && settings.interrupt_on_timeout;
        if interrupted && call.runs() {
            call.run_interrupted = Some(self.now);
        }
        let dies_of_it = interrupted && !call.script.ignores_interrupt && call.runs();
        if dies_of_it || (self.rules.work_stops && (!semaphore || self.rules.caller_leaves)) {
            self.stop(index);
        } else if semaphore {
            // The permit is free, though the function goes on.
            self.give_back(index);
        }
        self.fall_back(index, "hystrix_timeout", "TIMEOUT");
    }

    /// The work ends here and now, and so does its place in the queue.
    fn stop(&mut self, index: usize) {
        if self.calls[index].runs() {
            self.calls[index].run_interrupted = Some(self.now);
            self.calls[index].run_ended = Some(self.now);
        }
        self.give_back(index);
    }

    fn given_up(&mut self, index: usize, kind: &'static str) {
        if self.calls[index].answer.is_some() {
            return;
        }
        if !std::mem::replace(&mut self.calls[index].decided, true) {
            self.breaker
                .given_up(self.calls[index].id.expect("it is in its function"), self.now);
            if self.rules.work_stops {
                self.stop(index);
            }
        }
        self.calls[index].answer = Some((kind, vec!["CANCELLED"]));
        self.returns(index);
    }

    fn fall_back(&mut self, index: usize, kind: &'static str, event: &'static str) {
        self.calls[index].decided = true;
        let settings = &self.breaker.settings;
        let mut events = vec![event];
        if !settings.fallback_enabled {
            return self.answer(index, kind, events);
        }
        if self.fallbacks >= settings.fallback_permits {
            events.push("FALLBACK_REJECTION");
            return self.answer(index, "fallback_rejected", events);
        }
        let kind = match Fallback::read(&self.calls[index].script.fallback) {
            Fallback::Missing => {
                events.push("FALLBACK_MISSING");
                return self.answer(index, kind, events);
            }
            Fallback::Throws => {
                events.push("FALLBACK_FAILURE");
                kind
            }
            Fallback::Answers => {
                events.push("FALLBACK_SUCCESS");
                "fallback"
            }
        };
        self.calls[index].fallback_started = Some(self.now);
        let ends = self.now + self.calls[index].script.fallback_takes;
        if ends == self.now {
            return self.answer(index, kind, events);
        }
        self.fallbacks += 1;
        self.set(ends, Due::FallbackEnd(index, kind, events));
    }

    fn answer(&mut self, index: usize, kind: &'static str, events: Vec<&'static str>) {
        self.calls[index].answer = Some((kind, events));
        self.caller_returns(index);
    }

    /// Under semaphore isolation the caller has to wait for its function.
    fn caller_returns(&mut self, index: usize) {
        let call = &self.calls[index];
        let waits = self.is_semaphore() && !self.rules.caller_leaves && call.runs();
        if call.answer.is_some() && call.returned.is_none() && !waits {
            self.returns(index);
        }
    }

    fn returns(&mut self, index: usize) {
        let state = self.breaker.state().filter(|_| self.breaker.settings.enabled);
        self.calls[index].returned = Some(self.now);
        self.calls[index].state_after = state;
    }

    fn told_of_breaker(&mut self) -> Value {
        if !self.breaker.settings.enabled {
            return Value::Null;
        }
        let health = self.breaker.health();
        let mut told = json!({
            "open": self.breaker.is_open(self.now),
            "health": [health.total, health.errors, health.percent()],
        });
        if let Some(state) = self.breaker.state() {
            told["state"] = json!(state);
        }
        told
    }
}
