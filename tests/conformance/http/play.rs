//! Plays a case through this crate's stack, on real sockets, and tells what happened in the form of a recording.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Service, ServiceExt};
use tower_outbound::{
    breaker::Breaker as Circuit,
    call::{AttemptOutcome, Event, FallbackFailed, Fault, FaultKind, Rejection, StatusError, Trail, Verdict},
};

use super::{
    backend::Backends,
    recorder::{self, Log, Outcome, Sending},
    script::{Calls, calls, servers},
    settings::{Decoder, Fallback, ReturnType, Settings},
    stack::{Built, build},
    told::{Attempt, Call, Execution, Told},
};
use crate::case::Case;

/// A played case.
pub(super) struct Played {
    pub(super) told: Told,
    /// Where the stack's own trail and what went through its client are apart.
    pub(super) contradictions: Vec<String>,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
}

/// Plays a case. The calls begin at these times, if the one before has ended.
pub(super) async fn play(case: &Case, schedule: &[u64]) -> Result<Played, BoxError> {
    let backends = Backends::start(&servers(case)).await?;
    let log = Log::default();
    let settings = Settings::of(case);
    let built = build(case, backends.addresses(), log.clone())?;
    let calls = calls(case);
    let begun = Instant::now();
    let mut player = Player {
        level: case.level().to_owned(),
        settings,
        calls,
        built,
        log,
        begun,
        outcomes: Vec::new(),
        told: Told::default(),
        contradictions: Vec::new(),
    };
    let authority = match (player.level.as_str(), backends.addresses()) {
        ("feign", [address, ..]) => address.to_string(),
        _ => "client".to_owned(),
    };
    let uri: Uri = format!("http://{authority}{}", player.calls.path).parse()?;
    for n in 0..player.calls.repeat {
        let start = schedule.get(n).copied().unwrap_or_default();
        sleep_until(begun + Duration::from_millis(start)).await;
        player.call(&uri).await?;
    }
    let total = player.now();
    player.told.total = total;
    sleep_until(begun + Duration::from_millis(total + player.calls.observe)).await;
    player.close(&backends).await;
    Ok(Played {
        told: player.told,
        contradictions: player.contradictions,
        begun,
        ended: Instant::now(),
    })
}

struct Player {
    level: String,
    settings: Settings,
    calls: Calls,
    built: Built,
    log: Log,
    begun: Instant,
    /// How each sending ended, by the trails of the calls.
    outcomes: Vec<Option<String>>,
    told: Told,
    contradictions: Vec<String>,
}

/// What the caller has in hand.
enum Got {
    Value(String),
    Fallback(String),
    Failed {
        fault: Fault,
        in_body: bool,
        bad_request: bool,
    },
}

impl Player {
    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> u64 {
        instant
            .saturating_duration_since(self.begun)
            .as_millis()
            .try_into()
            .unwrap()
    }

    async fn call(&mut self, uri: &Uri) -> Result<(), BoxError> {
        let before = self.log.len();
        let caused = self.built.causes.lock().unwrap().len();
        let body = self.calls.body.clone().map(Bytes::from).unwrap_or_default();
        let request = Request::builder()
            .method(self.calls.method.as_str())
            .uri(uri.clone())
            .body(Full::new(body))?;
        let started = self.now();
        let outcome = self.built.stack.ready().await?.call(request).await;
        let (got, trail, broken) = match outcome {
            Ok(response) => {
                // A fallback that was asked has answered.
                let cause = self.built.causes.lock().unwrap().get(caused).cloned();
                let fallback = cause.is_some();
                let trail = cause.map_or_else(|| Trail::on(&response).cloned(), |cause| cause.trail);
                let (head, body) = response.into_parts();
                let body = body.collect().await;
                let got = self.value(head.status.as_u16(), fallback, body.map(|body| body.to_bytes()));
                (got, trail, false)
            }
            Err(error) => {
                let trail = Trail::of(&*error).cloned();
                // An answer that was classified as the caller's own fault.
                let status = StatusError::of(&*error);
                let got = Got::Failed {
                    fault: Fault::of(&*error),
                    in_body: super::stack::failed_in_body(&*error),
                    bad_request: status.is_some_and(|status| status.verdict() == Verdict::Ignored),
                };
                (got, trail, FallbackFailed::of(&*error).is_some())
            }
        };
        let returned = self.now();
        self.compare_with_trail(before, trail.as_ref());
        for event in trail.iter().flat_map(|trail| trail.events()) {
            if let Event::Retry(retry) = event {
                if retry.layer() == "BackoffRetry" {
                    self.told.sleeps.push(retry.pause().as_millis().try_into()?);
                }
            }
        }
        self.tell(got, broken, caused, started, returned, before);
        Ok(())
    }

    /// What the method of the client gives back.
    fn value(&self, status: u16, fallback: bool, body: Result<Bytes, BoxError>) -> Got {
        let text = |body: Bytes| String::from_utf8_lossy(&body).into_owned();
        if fallback {
            return Got::Fallback(body.map(text).unwrap_or_default());
        }
        let response = self.level == "ribbon" || self.settings.return_type == ReturnType::Response;
        Got::Value(match body {
            Err(error) if response => {
                let name = recorder::name(Fault::of(&*error), true);
                format!("response status={status} body=(body read failed: {name})")
            }
            Ok(body) if response => format!("response status={status} body={}", text(body)),
            _ if self.settings.return_type == ReturnType::Void => "(void)".to_owned(),
            // What the default decoder makes of an answer that has nothing.
            Ok(_) if matches!(status, 204 | 404) => "(null)".to_owned(),
            Ok(body) => text(body),
            Err(error) => {
                return Got::Failed {
                    fault: Fault::of(&*error),
                    in_body: true,
                    bad_request: false,
                };
            }
        })
    }

    /// The trail of a call tells of each attempt that went through the client, and how it ended.
    fn compare_with_trail(&mut self, before: usize, trail: Option<&Trail>) {
        let all = self.log.all();
        self.outcomes.resize(all.len(), None);
        let Some(trail) = trail.filter(|trail| trail.omitted() == 0) else {
            return;
        };
        let attempts: Vec<_> = trail.attempts().collect();
        if attempts.is_empty() && self.level == "feign" {
            // With a retryer that never retries there is no layer that writes attempts down.
            return;
        }
        if attempts.len() != all.len() - before {
            self.contradictions.push(format!(
                "the trail has {} attempts, and {} went through the client: {trail}",
                attempts.len(),
                all.len() - before
            ));
            return;
        }
        for (n, attempt) in attempts.into_iter().enumerate() {
            let told = match attempt.outcome() {
                AttemptOutcome::Failed(fault) => recorder::name(fault, false),
                AttemptOutcome::Abandoned => "abandoned".to_owned(),
                _ => continue,
            };
            match &all[before + n].outcome {
                // Its answer may have been counted as a failure further up.
                Outcome::Ended(name) if name.starts_with("status(") => {}
                Outcome::Ended(name) if *name != told => {
                    self.contradictions
                        .push(format!("attempt {n}: {name} in the client, {told} in the trail"));
                }
                Outcome::Ended(_) => {}
                Outcome::Dropped => self.outcomes[before + n] = Some(told),
            }
        }
    }

    fn tell(
        &mut self,
        got: Got,
        fallback_failed: bool,
        caused: usize,
        started: u64,
        returned: u64,
        before: usize,
    ) {
        let nest = self.level == "nest";
        let (kind, hystrix, value) = match got {
            Got::Value(value) => ("success".to_owned(), None, Some(value)),
            Got::Fallback(value) => ("fallback".to_owned(), None, Some(value)),
            Got::Failed {
                bad_request: true, ..
            } => ("bad_request".to_owned(), None, None),
            Got::Failed { fault, in_body, .. } => {
                let (kind, hystrix) = self.failure(fault, in_body);
                (kind, nest.then_some(hystrix), None)
            }
        };
        if nest {
            let first = match (kind.as_str(), self.built.causes.lock().unwrap().get(caused)) {
                ("success", _) => "SUCCESS",
                ("bad_request", _) => "BAD_REQUEST",
                ("circuit_open", _) => "SHORT_CIRCUITED",
                ("hystrix_timeout", _) => "TIMEOUT",
                ("thread_pool_rejected", _) => "THREAD_POOL_REJECTED",
                ("semaphore_rejected", _) => "SEMAPHORE_REJECTED",
                ("fallback", Some(cause)) => match cause.kind.as_str() {
                    "circuit_open" => "SHORT_CIRCUITED",
                    "hystrix_timeout" => "TIMEOUT",
                    _ => "FAILURE",
                },
                _ => "FAILURE",
            };
            let second = match kind.as_str() {
                "success" | "bad_request" => None,
                "fallback" => Some("FALLBACK_SUCCESS"),
                _ if fallback_failed => Some("FALLBACK_FAILURE"),
                _ => Some("FALLBACK_MISSING"),
            };
            let mut events: Vec<_> = [Some(first), second]
                .into_iter()
                .flatten()
                .map(str::to_owned)
                .collect();
            events.sort();
            self.told.executions.push(Execution { at: returned, events });
        }
        let repeated = self.calls.repeat > 1;
        let open = self.built.breaker.as_ref().is_some_and(is_open);
        self.told.calls.push(Call {
            kind,
            chain: hystrix
                .map(|name| format!("hystrix_runtime({name})"))
                .into_iter()
                .collect(),
            value,
            started,
            returned,
            attempts_during: repeated.then(|| self.log.len() - before),
            open_after: (repeated && nest).then_some(open),
        });
    }

    /// A failure by its name, and by Hystrix' type.
    fn failure(&self, fault: Fault, in_body: bool) -> (String, &'static str) {
        match fault.kind() {
            FaultKind::Rejected(Rejection::Breaker) => ("circuit_open".to_owned(), "SHORTCIRCUIT"),
            FaultKind::Rejected(Rejection::Bulkhead) if self.settings.hystrix.semaphore => {
                ("semaphore_rejected".to_owned(), "REJECTED_SEMAPHORE_EXECUTION")
            }
            FaultKind::Rejected(Rejection::Bulkhead) => {
                ("thread_pool_rejected".to_owned(), "REJECTED_THREAD_EXECUTION")
            }
            FaultKind::ExecutionTimeout => ("hystrix_timeout".to_owned(), "TIMEOUT"),
            // What that decoder makes of it has nothing of the status.
            FaultKind::Status(status)
                if self.settings.decoder == Decoder::RetryableOn5xx && status.is_server_error() =>
            {
                ("feign_retryable".to_owned(), "COMMAND_EXCEPTION")
            }
            _ => (recorder::name(fault, in_body), "COMMAND_EXCEPTION"),
        }
    }

    async fn close(&mut self, backends: &Backends) {
        self.told.arrivals = backends.arrivals(self.begun, self.told.total);
        self.told.attempts = self.attempts();
        self.told.causes = self.causes();
        if let Some(balance) = &self.built.balance {
            self.told.stats = super::stack::stats(balance);
        }
        if let Some(breaker) = self.built.breaker.clone() {
            // After one more snapshot.
            tokio::time::sleep(Duration::from_millis(self.settings.hystrix.snapshot)).await;
            self.told.breaker = Some(super::stack::breaker(&breaker, self.settings.hystrix.breaker));
        }
    }

    fn attempts(&self) -> Vec<Attempt> {
        let outcome = |n: usize, sending: &Sending| match &sending.outcome {
            Outcome::Ended(name) => name.clone(),
            Outcome::Dropped => match self.outcomes.get(n).cloned().flatten() {
                Some(told) => told,
                None => {
                    let took = sending.end.map(|end| end.duration_since(sending.start));
                    let limit = Duration::from_millis(self.settings.read);
                    let read_limit = took.is_some_and(|took| took >= limit);
                    if read_limit { "read_timeout" } else { "abandoned" }.to_owned()
                }
            },
        };
        let all = self.log.all();
        all.iter()
            .enumerate()
            .map(|(n, sending)| Attempt {
                server: sending.server,
                method: sending.method.clone(),
                start: self.at(sending.start),
                end: sending.end.map(|end| self.at(end)),
                outcome: outcome(n, sending),
                connect: self.settings.connect,
                read: self.settings.read,
                after_return: self.at(sending.start) > self.told.total + 5,
            })
            .collect()
    }

    fn causes(&self) -> Vec<String> {
        if self.settings.hystrix.fallback == Fallback::None {
            return Vec::new();
        }
        let causes = self.built.causes.lock().unwrap();
        causes.iter().map(|cause| cause.java.clone()).collect()
    }
}

fn is_open(breaker: &Circuit) -> bool {
    breaker.state() != tower_outbound::call::CircuitState::Closed
}
