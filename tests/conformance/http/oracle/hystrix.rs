//! Hystrix 1.5.12 around a call: circuit, limit and fallback.

use std::{pin::Pin, rc::Rc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Interrupt, World, feign};
use crate::http::{
    settings::{Fallback, Hystrix},
    told::Breaker,
};

/// The circuit, as its health ticks find it.
pub(super) struct Circuit {
    settings: Hystrix,
    /// When its ticks began.
    ticks_from: u64,
    last_tick: u64,
    /// What is in the figures: when, and whether it was an error.
    events: Vec<(u64, bool)>,
    opened_at: Option<u64>,
    half_open: bool,
}

impl Circuit {
    pub(super) fn new(settings: &Hystrix) -> Circuit {
        Circuit {
            settings: settings.clone(),
            ticks_from: 0,
            last_tick: 0,
            events: Vec::new(),
            opened_at: None,
            half_open: false,
        }
    }

    /// Total and errors of the completed intervals that a tick at this time sees.
    fn health(&self, tick: u64) -> (u64, u64) {
        let seen = self.events.iter().filter(|(at, _)| {
            // Counted with the interval that it fell into.
            let interval = (at - self.ticks_from) / self.settings.snapshot;
            let ends = self.ticks_from + (interval + 1) * self.settings.snapshot;
            ends <= tick && tick < ends + self.settings.window
        });
        seen.fold((0, 0), |(total, errors), (_, error)| {
            (total + 1, errors + u64::from(*error))
        })
    }

    fn ticks_until(&mut self, now: u64) {
        while self.last_tick + self.settings.snapshot <= now {
            self.last_tick += self.settings.snapshot;
            let (total, errors) = self.health(self.last_tick);
            let enough = total >= self.settings.volume;
            if self.opened_at.is_none() && enough && percent(total, errors) >= self.settings.percent {
                self.opened_at = Some(self.last_tick);
            }
        }
    }

    pub(super) fn is_open(&mut self, now: u64) -> bool {
        self.ticks_until(now);
        self.settings.breaker && self.opened_at.is_some()
    }

    fn admits(&mut self, now: u64) -> bool {
        self.ticks_until(now);
        if !self.settings.breaker {
            return true;
        }
        match self.opened_at {
            None => true,
            Some(at) if !self.half_open && now > at + self.settings.sleep_window => {
                self.half_open = true;
                true
            }
            Some(_) => false,
        }
    }

    /// An execution ends. `None`: a bad request, which is not in the figures.
    fn end(&mut self, now: u64, error: Option<bool>) {
        self.ticks_until(now);
        if self.half_open {
            self.half_open = false;
            if error == Some(false) {
                self.opened_at = None;
                self.events.clear();
                self.ticks_from = now;
                self.last_tick = now;
            } else {
                self.opened_at = Some(now);
            }
        }
        if let Some(error) = error {
            self.events.push((now, error));
        }
    }

    /// After at least one more tick.
    pub(super) fn at_the_end(&mut self, now: u64) -> Breaker {
        self.ticks_until(now + self.settings.snapshot);
        let (total, errors) = self.health(self.last_tick);
        let state = match (self.opened_at, self.half_open) {
            (None, _) => "CLOSED",
            (Some(_), false) => "OPEN",
            (Some(_), true) => "HALF_OPEN",
        };
        Breaker {
            circuit: self
                .settings
                .breaker
                .then(|| (self.opened_at.is_some(), state.to_owned())),
            total,
            errors,
            percent: percent(total, errors),
        }
    }
}

fn percent(total: u64, errors: u64) -> u64 {
    (errors * 100).checked_div(total).unwrap_or(0)
}

/// What the function of an execution came to.
enum Ended {
    By(feign::Outcome),
    Timeout,
}

/// One call through the nest: kind, chain and value.
pub(super) async fn call(world: &Rc<World>) -> (String, Vec<String>, Option<String>) {
    let settings = &world.settings.hystrix;
    if !world.circuit.borrow_mut().admits(world.now()) {
        return fail(
            world,
            "SHORT_CIRCUITED",
            "SHORTCIRCUIT",
            "circuit_open",
            vec!["runtime".to_owned()],
            "runtime",
        );
    }
    let interrupt = Rc::new(Interrupt::default());
    let mut work: Pin<Box<dyn Future<Output = feign::Outcome>>> = {
        let (world, interrupt) = (Rc::clone(world), Rc::clone(&interrupt));
        Box::pin(async move { feign::call(&world, &interrupt).await })
    };
    let ended = match settings.timeout {
        None => Ended::By(work.as_mut().await),
        Some(timeout) => {
            let deadline = Instant::now() + Duration::from_millis(timeout);
            // At a tie the timer wins.
            tokio::select! {
                biased;
                () = sleep_until(deadline) => Ended::Timeout,
                outcome = work.as_mut() => Ended::By(outcome),
            }
        }
    };
    if let Ended::By(_) = ended {
        world.be_as_slow().await;
    }
    match ended {
        Ended::By(feign::Outcome::Value(value)) => {
            world.circuit.borrow_mut().end(world.now(), Some(false));
            world.book(&["SUCCESS"], world.now());
            ("success".to_owned(), Vec::new(), Some(value))
        }
        Ended::By(feign::Outcome::Failed(feign::Error::BadRequest)) => {
            world.circuit.borrow_mut().end(world.now(), None);
            world.book(&["BAD_REQUEST"], world.now());
            ("bad_request".to_owned(), vec!["bad_request".to_owned()], None)
        }
        Ended::By(feign::Outcome::Failed(error)) => {
            world.circuit.borrow_mut().end(world.now(), Some(true));
            let chain = error.chain();
            let cause = chain[0].clone();
            fail(
                world,
                "FAILURE",
                "COMMAND_EXCEPTION",
                &error.kind(),
                chain,
                &cause,
            )
        }
        Ended::Timeout => {
            world.circuit.borrow_mut().end(world.now(), Some(true));
            let told = fail(
                world,
                "TIMEOUT",
                "TIMEOUT",
                "hystrix_timeout",
                vec!["timeout".to_owned()],
                "hystrix_timeout_marker",
            );
            let stays = settings.semaphore && !world.ways.caller_leaves;
            if stays {
                // The caller's own thread does the work.
                let _ = work.as_mut().await;
            } else if world.ways.work_stops {
                drop(work);
            } else {
                if settings.interrupt && !settings.semaphore {
                    interrupt.set();
                }
                tokio::task::spawn_local(work);
            }
            told
        }
    }
}

/// What the caller gets for a failure, with or without a fallback.
fn fail(
    world: &World,
    event: &str,
    runtime: &str,
    kind: &str,
    chain: Vec<String>,
    cause: &str,
) -> (String, Vec<String>, Option<String>) {
    let fallback = world.settings.hystrix.fallback;
    let second = match fallback {
        Fallback::None => "FALLBACK_MISSING",
        Fallback::Present => "FALLBACK_SUCCESS",
        Fallback::Throws => "FALLBACK_FAILURE",
    };
    world.book(&[event, second], world.now());
    if fallback != Fallback::None {
        world.told.borrow_mut().causes.push(cause.to_owned());
    }
    if fallback == Fallback::Present {
        return ("fallback".to_owned(), Vec::new(), Some("fallback".to_owned()));
    }
    let mut whole = vec![format!("hystrix_runtime({runtime})")];
    whole.extend(chain);
    (kind.to_owned(), whole, None)
}
