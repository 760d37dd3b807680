//! A small, plain model of Feign's retryer, Ribbon's retries and books, and Hystrix around them, with one switch for
//! each way in which this crate departs from them on purpose.
//!
//! With all switches as in Java it must tell what was recorded, in everything but the last milliseconds: a recording
//! that it does not understand is a failure. The deviations of a case are the switches that change what it tells.
//!
//! It is written as straight code on a paused clock, so each of its times is exact. What hangs on real time is given
//! to it: when the caller began each call, and how long a pause up to a date was.

mod feign;
mod hystrix;
mod ribbon;
mod rules;
mod wire;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use self::{hystrix::Circuit, ribbon::Books, rules::Choice};
use super::{
    script::{Calls, Server, calls, servers},
    settings::Settings,
    told::{Attempt, Call, Execution, Stats, Told},
};
use crate::{case::Case, deviations::Deviation};

/// Which of the two ways each thing goes. False: as in Java.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ways {
    /// Attempts and pauses end with the call.
    pub(super) work_stops: bool,
    /// The caller of a call under semaphore isolation leaves at the deadline.
    pub(super) caller_leaves: bool,
    /// A transport sends once.
    pub(super) no_resends: bool,
    /// A short body is an error.
    pub(super) short_bodies: bool,
    /// Dates are in GMT.
    pub(super) gmt: bool,
    /// What only Java has is not there.
    pub(super) not_java: bool,
    /// Each attempt is booked on its own server.
    pub(super) booked_there: bool,
}

impl Ways {
    pub(super) const JAVA: Ways = Ways {
        work_stops: false,
        caller_leaves: false,
        no_resends: false,
        short_bodies: false,
        gmt: false,
        not_java: false,
        booked_there: false,
    };

    pub(super) const OURS: Ways = Ways {
        work_stops: true,
        caller_leaves: true,
        no_resends: true,
        short_bodies: true,
        gmt: true,
        not_java: true,
        booked_there: true,
    };

    /// The switches by the names of the deviations.
    pub(super) const SWITCHES: [Deviation; 7] = [
        Deviation::WorkStopsWithItsCaller,
        Deviation::CallerLeavesAtTheDeadline,
        Deviation::NoHiddenResends,
        Deviation::ShortBodiesAreErrors,
        Deviation::HttpDatesAreGmt,
        Deviation::JavaOnly,
        Deviation::AttemptsAreBookedWhereTheyWent,
    ];

    pub(super) fn with(mut self, switch: Deviation, ours: bool) -> Ways {
        match switch {
            Deviation::WorkStopsWithItsCaller => self.work_stops = ours,
            Deviation::CallerLeavesAtTheDeadline => self.caller_leaves = ours,
            Deviation::NoHiddenResends => self.no_resends = ours,
            Deviation::ShortBodiesAreErrors => self.short_bodies = ours,
            Deviation::HttpDatesAreGmt => self.gmt = ours,
            Deviation::JavaOnly => self.not_java = ours,
            Deviation::AttemptsAreBookedWhereTheyWent => self.booked_there = ours,
            other => unreachable!("{} is no switch of this oracle", other.name()),
        }
        self
    }
}

/// What hangs on real time.
#[derive(Debug, Clone, Default)]
pub(super) struct Given {
    /// When the caller began each call.
    pub(super) started: Vec<u64>,
    /// How long each pause of the retryer was; asked for only where it was up to a date.
    pub(super) sleeps: Vec<u64>,
    /// When each call was booked by Hystrix: some milliseconds after all that it had to wait for.
    pub(super) booked: Vec<u64>,
}

impl Given {
    /// As it was recorded. What the first call took to come to its first attempt, with classes to load and a circuit to
    /// make, is no part of it: the ticks of the circuit begin after that.
    pub(super) fn recorded(told: &Told) -> Given {
        let first = told.attempts.first().map_or(0, |attempt| attempt.start);
        let lag = told.calls.first().map_or(0, |call| first.min(call.returned));
        Given::after(lag, told)
    }

    /// As it was played. There the circuit is made before the first call.
    pub(super) fn played(told: &Told) -> Given {
        Given::after(0, told)
    }

    fn after(lag: u64, told: &Told) -> Given {
        let after = |time: u64| time.saturating_sub(lag);
        Given {
            started: told.calls.iter().map(|call| after(call.started)).collect(),
            sleeps: told.sleeps.clone(),
            booked: told.executions.iter().map(|one| after(one.at)).collect(),
        }
    }
}

/// What the oracle tells of a case.
pub(super) fn tell(case: &Case, ways: Ways, given: &Given) -> Told {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    let case = case.clone();
    let given = given.clone();
    local.block_on(
        &runtime,
        async move { World::new(&case, ways, given).play().await },
    )
}

/// By how much real work may be slower than its waits, in milliseconds, besides 2 % of the time that has passed.
const SLOW: u64 = 60;

/// Everything that a case happens in.
struct World {
    level: String,
    settings: Settings,
    servers: Vec<Server>,
    calls: Calls,
    ways: Ways,
    given: Given,
    begun: Instant,
    told: RefCell<Told>,
    /// Connections that each server has accepted.
    accepted: RefCell<Vec<usize>>,
    books: RefCell<Vec<Books>>,
    choice: RefCell<Choice>,
    circuit: RefCell<Circuit>,
}

/// The interrupt of the thread that a call runs on.
#[derive(Default)]
struct Interrupt {
    on: Cell<bool>,
    notify: tokio::sync::Notify,
}

impl Interrupt {
    fn set(&self) {
        self.on.set(true);
        self.notify.notify_one();
    }
}

impl World {
    fn new(case: &Case, ways: Ways, given: Given) -> Rc<World> {
        let settings = Settings::of(case);
        let servers = servers(case);
        Rc::new(World {
            level: case.level().to_owned(),
            calls: calls(case),
            ways,
            given,
            begun: Instant::now(),
            told: RefCell::default(),
            accepted: RefCell::new(vec![0; servers.len()]),
            books: RefCell::new(vec![Books::default(); servers.len()]),
            choice: RefCell::new(Choice::new(settings.rule)),
            circuit: RefCell::new(Circuit::new(&settings.hystrix)),
            settings,
            servers,
        })
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis().try_into().unwrap()
    }

    async fn play(self: Rc<World>) -> Told {
        for n in 0..self.calls.repeat {
            let gap = if n == 0 { 0 } else { self.now() + self.calls.gap };
            let start = self.given.started.get(n).copied().unwrap_or(gap);
            sleep_until(self.begun + Duration::from_millis(start)).await;
            let started = self.now();
            let before = self.told.borrow().attempts.len();
            let (kind, chain, value) = match self.level.as_str() {
                "feign" => feign::call(&self, &Interrupt::default()).await.told(),
                "ribbon" => ribbon::call(&self).await,
                "nest" => hystrix::call(&self).await,
                other => unreachable!("level {other}"),
            };
            let returned = self.now();
            let repeated = self.calls.repeat > 1;
            let during = self.told.borrow().attempts.len() - before;
            let open = self.circuit.borrow_mut().is_open(returned);
            let mut told = self.told.borrow_mut();
            told.calls.push(Call {
                kind,
                chain,
                value,
                started,
                returned,
                attempts_during: repeated.then_some(during),
                open_after: (repeated && self.level == "nest").then_some(open),
            });
            told.total = returned;
        }
        let total = self.now();
        sleep_until(self.begun + Duration::from_millis(total + self.calls.observe)).await;
        // The order of the tasks at this very instant does not matter.
        tokio::task::yield_now().await;
        self.close(total)
    }

    /// What is seen at the end.
    fn close(&self, total: u64) -> Told {
        let now = self.now();
        let mut told = self.told.borrow().clone();
        for attempt in &mut told.attempts {
            attempt.after_return = attempt.start > total + 5;
        }
        for arrival in &mut told.arrivals {
            arrival.after_return = arrival.at > total + 5;
        }
        if self.level != "feign" {
            told.stats = self
                .books
                .borrow()
                .iter()
                .enumerate()
                .map(|(server, books)| Stats {
                    server,
                    failures: books.failures,
                    active: books.active,
                    total: books.total,
                    tripped: books.tripped(now),
                })
                .collect();
        }
        if self.level == "nest" {
            told.breaker = Some(self.circuit.borrow_mut().at_the_end(now));
        }
        told
    }

    fn begin_attempt(self: &Rc<World>, server: usize) -> Running {
        let mut told = self.told.borrow_mut();
        told.attempts.push(Attempt {
            server,
            method: self.calls.method.clone(),
            start: self.now(),
            end: None,
            outcome: String::new(),
            connect: self.settings.connect,
            read: self.settings.read,
            after_return: false,
        });
        Running {
            world: Rc::clone(self),
            number: told.attempts.len() - 1,
            ended: false,
        }
    }

    /// Waits as long as the work of this call took beyond all that it had to wait for.
    async fn be_as_slow(&self) {
        let call = self.told.borrow().executions.len();
        let now = self.now();
        if let Some(booked) = self
            .given
            .booked
            .get(call)
            .filter(|booked| **booked < now + SLOW + now / 50)
        {
            sleep_until(self.begun + Duration::from_millis(*booked)).await;
        }
    }

    fn book(&self, events: &[&str], at: u64) {
        let mut events: Vec<_> = events.iter().map(|event| (*event).to_owned()).collect();
        events.sort();
        self.told.borrow_mut().executions.push(Execution { at, events });
    }
}

/// An attempt that is under way. Dropped before its end it is abandoned.
struct Running {
    world: Rc<World>,
    number: usize,
    ended: bool,
}

impl Running {
    fn end(mut self, outcome: String) {
        self.note(outcome);
    }

    fn note(&mut self, outcome: String) {
        self.ended = true;
        let now = self.world.now();
        let attempt = &mut self.world.told.borrow_mut().attempts[self.number];
        attempt.end = Some(now);
        attempt.outcome = outcome;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.note("abandoned".to_owned());
        }
    }
}
