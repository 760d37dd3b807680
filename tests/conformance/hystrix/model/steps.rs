//! The model on the virtual clock, under semaphore isolation.

use serde_json::{Map, Value, json};

use super::{
    Id, Outcome, Refusal, Rules, Told,
    breaker::Breaker,
    settings::{Fallback, Settings},
    slots::{Slot, Slots},
};
use crate::case::Case;

pub(super) fn tell(case: &Case, rules: Rules) -> Told {
    let settings = Settings::of(case);
    let mut world = World {
        rules,
        now: 0,
        slots: Slots::default(),
        fallbacks: 0,
        running: Vec::new(),
        waiting: Vec::new(),
        breaker: Breaker::new(settings, rules),
    };
    Told {
        observed: json!({ "steps": world.all(case.part("steps")) }),
        ended_ms: world.now,
        tied: false,
    }
}

/// A call that was let through, from its beginning to its answer.
struct Running {
    id: Id,
    deadline: Option<u64>,
    /// Steps while its fallback runs, should it time out.
    during_fallback: Value,
    answer: Option<Answer>,
}

#[derive(Debug, Clone)]
struct Answer {
    kind: &'static str,
    events: Vec<&'static str>,
    at: u64,
    executed: bool,
    inner: Vec<Value>,
}

struct World {
    rules: Rules,
    now: u64,
    breaker: Breaker,
    slots: Slots,
    fallbacks: usize,
    running: Vec<Running>,
    /// Calls that were begun and not ended, by their names.
    waiting: Vec<(String, Begun)>,
}

enum Begun {
    Runs(Id, Outcome),
    TurnedAway(Answer),
}

impl World {
    fn all(&mut self, steps: &Value) -> Vec<Value> {
        match steps {
            Value::Null => Vec::new(),
            steps => steps
                .as_array()
                .unwrap()
                .iter()
                .map(|step| self.step(step))
                .collect(),
        }
    }

    fn step(&mut self, step: &Value) -> Value {
        let began = self.now;
        let mut told = Map::new();
        told.insert("t_ms".into(), json!(began));
        let fields = step.as_object().unwrap();
        let known = |names: &[&str]| assert!(fields.keys().all(|name| names.contains(&&**name)), "{step}");
        if let Some(time) = fields.get("advance_ms") {
            known(&["advance_ms"]);
            self.advance(began + time.as_u64().unwrap());
            told.insert("t_ms".into(), json!(self.now));
        } else if fields.contains_key("probe") {
            known(&["probe"]);
            assert_eq!(step["probe"], "is_open");
            told.insert("is_open".into(), json!(self.breaker.is_open(self.now)));
        } else if let Some(key) = fields.get("set_property") {
            known(&["set_property", "value"]);
            let value = step["value"].as_bool().unwrap();
            match key.as_str().unwrap() {
                "hystrix.command.default.circuitBreaker.forceOpen" => {
                    self.breaker.settings.force_open = value
                }
                "hystrix.command.default.circuitBreaker.forceClosed" => {
                    self.breaker.settings.force_closed = value
                }
                other => panic!("the model does not know how {other} changes"),
            }
        } else if let Some(name) = fields.get("begin") {
            known(&["begin", "outcome"]);
            let outcome = Outcome::read(step["outcome"].as_str().unwrap());
            let begun = match self.begin(&Value::Null) {
                Ok(id) => Begun::Runs(id, outcome),
                Err(answer) => {
                    told.insert("kind".into(), json!(answer.kind));
                    Begun::TurnedAway(answer)
                }
            };
            told.insert("executed".into(), json!(matches!(begun, Begun::Runs(..))));
            self.waiting.push((name.as_str().unwrap().to_owned(), begun));
        } else if let Some(name) = fields.get("end") {
            known(&["end"]);
            let position = self
                .waiting
                .iter()
                .position(|(other, _)| Some(&**other) == name.as_str());
            let answer = match self.waiting.remove(position.expect("it was begun")).1 {
                Begun::Runs(id, outcome) => self.end(id, outcome, &Value::Null),
                Begun::TurnedAway(answer) => {
                    told.insert("was_not_running".into(), json!(true));
                    answer
                }
            };
            told.insert("kind".into(), json!(answer.kind));
            told.insert("events".into(), json!(answer.events));
        } else {
            known(&["call", "duration_ms", "during", "during_fallback", "repeat"]);
            self.calls(step, &mut told);
        }
        if self.breaker.settings.enabled {
            told.insert("tripped".into(), json!(self.breaker.tripped()));
            if let Some(state) = self.breaker.state() {
                told.insert("state".into(), json!(state));
            }
            let health = self.breaker.health();
            told.insert(
                "health".into(),
                json!([health.total, health.errors, health.percent()]),
            );
        }
        Value::Object(told)
    }

    fn calls(&mut self, step: &Value, told: &mut Map<String, Value>) {
        let times = step["repeat"].as_u64().unwrap_or(1);
        let answers: Vec<Answer> = (0..times).map(|_| self.call(step)).collect();
        let last = answers.last().expect("at least one call");
        if last.at != told["t_ms"] {
            told.insert("returned_t_ms".into(), json!(last.at));
        }
        if let [only] = &answers[..] {
            told.insert("kind".into(), json!(only.kind));
            told.insert("executed".into(), json!(only.executed));
            told.insert("events".into(), json!(only.events));
        } else {
            let mut kinds: Vec<(&str, u64)> = Vec::new();
            for answer in &answers {
                match kinds.iter_mut().find(|(kind, _)| *kind == answer.kind) {
                    Some((_, count)) => *count += 1,
                    None => kinds.push((answer.kind, 1)),
                }
            }
            told.insert("kinds".into(), json!(kinds));
            let executed = answers.iter().filter(|answer| answer.executed).count();
            told.insert("executed".into(), json!(executed));
            told.insert("events_of_last".into(), json!(last.events));
        }
        let inner: Vec<Value> = answers.into_iter().flat_map(|answer| answer.inner).collect();
        if !inner.is_empty() {
            told.insert("inner".into(), json!(inner));
        }
    }

    /// One call on the thread of the script.
    fn call(&mut self, step: &Value) -> Answer {
        let outcome = Outcome::read(step["call"].as_str().unwrap());
        let id = match self.begin(&step["during_fallback"]) {
            Ok(id) => id,
            Err(answer) => return answer,
        };
        if let Some(time) = step["duration_ms"].as_u64() {
            self.advance(self.now + time);
        }
        let mut inner = self.all(&step["during"]);
        let mut answer = self.end(id, outcome, &step["during_fallback"]);
        if !self.rules.caller_leaves {
            answer.at = self.now;
        }
        inner.append(&mut answer.inner);
        answer.inner = inner;
        answer
    }

    fn begin(&mut self, during_fallback: &Value) -> Result<Id, Answer> {
        let id = match self.breaker.admit(self.now) {
            Ok(id) => id,
            Err(refusal) => return Err(self.refused(refusal, during_fallback)),
        };
        match self.slots.ask(id, self.breaker.settings.isolation) {
            Slot::Taken => {}
            Slot::None(refusal) => {
                self.breaker.turned_away(id, self.now);
                return Err(self.refused(refusal, during_fallback));
            }
            Slot::Queued => unreachable!("a semaphore has no queue"),
        }
        self.running.push(Running {
            id,
            deadline: self.breaker.settings.timeout.map(|limit| self.now + limit),
            during_fallback: during_fallback.clone(),
            answer: None,
        });
        Ok(id)
    }

    fn refused(&mut self, refusal: Refusal, during_fallback: &Value) -> Answer {
        let (kind, event) = match refusal {
            Refusal::Circuit => ("circuit_open", "SHORT_CIRCUITED"),
            Refusal::Semaphore => ("semaphore_rejected", "SEMAPHORE_REJECTED"),
            Refusal::Pool => unreachable!("there is no pool"),
        };
        self.fall_back(kind, event, false, during_fallback)
    }

    /// The function ends; the call may have timed out before.
    fn end(&mut self, id: Id, outcome: Outcome, during_fallback: &Value) -> Answer {
        let position = self
            .running
            .iter()
            .position(|call| call.id == id)
            .expect("it runs");
        if let Some(answer) = self.running.remove(position).answer {
            return answer;
        }
        self.slots.give_back(id);
        let plain = |kind, events: &[&'static str], at| Answer {
            kind,
            events: events.to_vec(),
            at,
            executed: true,
            inner: Vec::new(),
        };
        match outcome {
            Outcome::Success => {
                self.breaker.succeeded(id, self.now);
                plain("success", &["SUCCESS"], self.now)
            }
            Outcome::BadRequest => {
                self.breaker.bad_request(id, self.now);
                plain("bad_request", &["BAD_REQUEST"], self.now)
            }
            Outcome::Panic if self.rules.java_only => {
                self.breaker.given_up(id, self.now);
                plain("panic", &[], self.now)
            }
            Outcome::Panic => {
                self.breaker.failed(id, self.now);
                plain("failure", &["FAILURE"], self.now)
            }
            Outcome::Failure => {
                self.breaker.failed(id, self.now);
                self.fall_back("failure", "FAILURE", true, during_fallback)
            }
        }
    }

    fn timed_out(&mut self, id: Id) {
        self.slots.give_back(id);
        self.breaker.failed(id, self.now);
        let call = self
            .running
            .iter_mut()
            .find(|call| call.id == id)
            .expect("it runs");
        call.deadline = None;
        let during_fallback = call.during_fallback.clone();
        let answer = self.fall_back("hystrix_timeout", "TIMEOUT", true, &during_fallback);
        self.running
            .iter_mut()
            .find(|call| call.id == id)
            .expect("it runs")
            .answer = Some(answer);
    }

    fn fall_back(
        &mut self,
        kind: &'static str,
        event: &'static str,
        executed: bool,
        during: &Value,
    ) -> Answer {
        let settings = &self.breaker.settings;
        let mut events = vec![event];
        let mut inner = Vec::new();
        let mut told = kind;
        if settings.fallback_enabled {
            if self.fallbacks >= settings.fallback_permits {
                events.push("FALLBACK_REJECTION");
                told = "fallback_rejected";
            } else {
                let fallback = settings.fallback;
                if fallback != Fallback::Missing {
                    self.fallbacks += 1;
                    inner = self.all(during);
                    self.fallbacks -= 1;
                }
                match fallback {
                    Fallback::Missing => events.push("FALLBACK_MISSING"),
                    Fallback::Throws => events.push("FALLBACK_FAILURE"),
                    Fallback::Answers => {
                        events.push("FALLBACK_SUCCESS");
                        told = "fallback";
                    }
                }
            }
        }
        Answer {
            kind: told,
            events,
            at: self.now,
            executed,
            inner,
        }
    }

    /// Each timer fires at its own instant.
    fn advance(&mut self, to: u64) {
        loop {
            let deadlines = self.running.iter().filter_map(|call| {
                let rank = self.breaker.rank(call.id);
                Some((call.deadline?, rank, Some(call.id)))
            });
            let tick = (self.breaker.next_tick(), self.breaker.tick_rank(), None);
            let (at, _, whose) = deadlines.chain([tick]).min().expect("there is always a tick");
            if at > to {
                break;
            }
            self.now = self.now.max(at);
            match whose {
                None => self.breaker.tick(self.now),
                Some(id) => self.timed_out(id),
            }
        }
        self.now = self.now.max(to);
    }
}
