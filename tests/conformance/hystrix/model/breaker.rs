//! The circuit and its figures.

use super::{
    Id, Refusal, Rules,
    settings::{Release, Settings},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Circuit {
    Closed,
    /// Since then; in 1.5.18 since the latest test began.
    Open {
        since: u64,
    },
    /// Not in 1.5.18. Nobody: the trial was given up.
    HalfOpen {
        trial: Option<Id>,
    },
}

/// What is known of a call at its beginning.
#[derive(Debug, Clone, Copy)]
struct Admitted {
    set: u64,
    wipes: u64,
    /// The opening that it was let through in, if the circuit was open.
    opening: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    /// How many ticks there were before it.
    ticks: u64,
    error: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Health {
    pub(super) total: u64,
    pub(super) errors: u64,
}

impl Health {
    pub(super) fn percent(self) -> u64 {
        (self.errors * 100).checked_div(self.total).unwrap_or(0)
    }
}

/// The circuit, its figures, and the calls that were let through.
#[derive(Debug)]
pub(super) struct Breaker {
    pub(super) settings: Settings,
    rules: Rules,
    circuit: Circuit,
    calls: Vec<Admitted>,
    openings: u64,
    wipes: u64,
    events: Vec<Event>,
    /// When the ticks began, and how many there were since.
    began: u64,
    ticks: u64,
    health: Health,
    /// The order in which timers were set: those of calls, and the next tick's.
    timers: u64,
    tick_set: u64,
}

impl Breaker {
    pub(super) fn new(settings: Settings, rules: Rules) -> Breaker {
        let mut breaker = Breaker {
            settings,
            rules,
            circuit: Circuit::Closed,
            calls: Vec::new(),
            openings: 0,
            wipes: 0,
            events: Vec::new(),
            began: 0,
            ticks: 0,
            health: Health::default(),
            timers: 0,
            tick_set: 0,
        };
        breaker.judge_at_tick(0);
        breaker
    }

    pub(super) fn health(&self) -> Health {
        self.health
    }

    /// Tripped, whatever is forced.
    pub(super) fn tripped(&self) -> bool {
        self.circuit != Circuit::Closed
    }

    /// 1.5.18 has no states.
    pub(super) fn state(&self) -> Option<&'static str> {
        match (self.settings.release, self.circuit) {
            (Release::V18, _) => None,
            (_, Circuit::Closed) => Some("CLOSED"),
            (_, Circuit::Open { .. }) => Some("OPEN"),
            (_, Circuit::HalfOpen { .. }) => Some("HALF_OPEN"),
        }
    }

    /// Asking may trip it in 1.5.18, which does not look at what is forced.
    pub(super) fn is_open(&mut self, now: u64) -> bool {
        match self.settings.release {
            _ if !self.settings.enabled => false,
            Release::V18 => {
                self.judge_on_demand(now);
                self.tripped()
            }
            _ if self.settings.force_open => true,
            _ if self.settings.force_closed => false,
            _ => self.tripped(),
        }
    }

    /// The next health tick.
    pub(super) fn next_tick(&self) -> u64 {
        self.began + (self.ticks + 1) * self.settings.snapshot
    }

    /// At one instant, what was set first comes first.
    pub(super) fn tick_rank(&self) -> u64 {
        if self.rules.ticks_come_first {
            0
        } else {
            self.tick_set
        }
    }

    pub(super) fn rank(&self, id: Id) -> u64 {
        self.calls[id].set
    }

    fn next_timer(&mut self) -> u64 {
        self.timers += 1;
        self.timers
    }

    pub(super) fn tick(&mut self, now: u64) {
        self.ticks += 1;
        self.tick_set = self.next_timer();
        let buckets = self.settings.window / self.settings.snapshot;
        let oldest = self.ticks.saturating_sub(buckets);
        let seen: Vec<_> = self.events.iter().filter(|event| event.ticks >= oldest).collect();
        self.health = Health {
            total: seen.len() as u64,
            errors: seen.iter().filter(|event| event.error).count() as u64,
        };
        self.judge_at_tick(now);
    }

    fn judge_at_tick(&mut self, now: u64) {
        if self.settings.release != Release::V18 && self.circuit == Circuit::Closed && self.unhealthy() {
            self.open(now);
        }
    }

    fn unhealthy(&self) -> bool {
        self.settings.enabled
            && self.health.total >= self.settings.volume
            && self.health.percent() >= self.settings.percent
    }

    fn judge_on_demand(&mut self, now: u64) {
        if self.circuit == Circuit::Closed && self.unhealthy() {
            self.open(now);
        }
    }

    fn open(&mut self, now: u64) {
        self.openings += 1;
        self.circuit = Circuit::Open { since: now };
    }

    fn close(&mut self, now: u64) {
        self.circuit = Circuit::Closed;
        self.wipes += 1;
        self.events.clear();
        self.began = now;
        self.ticks = 0;
        self.tick_set = self.next_timer();
        self.health = Health::default();
        self.judge_at_tick(now);
    }

    /// Is the next call let through?
    pub(super) fn admit(&mut self, now: u64) -> Result<Id, Refusal> {
        let id = self.calls.len();
        if !self.lets_through(id, now) {
            if self.settings.release == Release::V13 && !self.rules.bystanders_change_nothing {
                self.reopen(now);
            }
            return Err(Refusal::Circuit);
        }
        let set = self.next_timer();
        self.calls.push(Admitted {
            set,
            wipes: self.wipes,
            opening: self.tripped().then_some(self.openings),
        });
        Ok(id)
    }

    fn lets_through(&mut self, id: Id, now: u64) -> bool {
        let settings = &self.settings;
        if !settings.enabled {
            return true;
        }
        if settings.force_open {
            return false;
        }
        let forced = settings.force_closed;
        let sleep_window = settings.sleep_window;
        let old = settings.release == Release::V18;
        if old {
            self.judge_on_demand(now);
        }
        if forced {
            return true;
        }
        let trial = Circuit::HalfOpen { trial: Some(id) };
        match self.circuit {
            Circuit::Closed => true,
            Circuit::Open { since } if now > since + sleep_window => {
                self.circuit = if old { Circuit::Open { since: now } } else { trial };
                true
            }
            Circuit::HalfOpen { trial: None } => {
                self.circuit = trial;
                true
            }
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => false,
        }
    }

    fn is_trial(&self, id: Id) -> bool {
        self.circuit == Circuit::HalfOpen { trial: Some(id) }
    }

    /// While half-open only.
    fn reopen(&mut self, now: u64) {
        if matches!(self.circuit, Circuit::HalfOpen { .. }) {
            self.open(now);
        }
    }

    /// May this call decide about a circuit that is not closed?
    fn decides(&self, id: Id) -> bool {
        match self.circuit {
            Circuit::Closed => false,
            _ if !self.rules.late_is_ignored => true,
            Circuit::Open { .. } => self.calls[id].opening == Some(self.openings),
            Circuit::HalfOpen { .. } => self.is_trial(id),
        }
    }

    pub(super) fn succeeded(&mut self, id: Id, now: u64) {
        let belongs = self.belongs(id);
        let closes = match self.circuit {
            Circuit::Open { .. } => self.settings.release == Release::V18,
            _ => true,
        };
        if closes && self.decides(id) {
            self.close(now);
        }
        self.book(belongs, false);
    }

    pub(super) fn failed(&mut self, id: Id, now: u64) {
        self.book(self.belongs(id), true);
        self.bad_request(id, now);
    }

    /// Not booked, and yet no success.
    pub(super) fn bad_request(&mut self, id: Id, now: u64) {
        if self.decides(id) {
            self.reopen(now);
        }
    }

    /// By the semaphore; a pool's is a failure as any other.
    pub(super) fn turned_away(&mut self, id: Id, now: u64) {
        self.book(self.belongs(id), true);
        let as_failure = match self.settings.release {
            Release::V12 | Release::V18 => self.rules.probe_is_freed && self.is_trial(id),
            Release::V13 => self.is_trial(id) || !self.rules.bystanders_change_nothing,
        };
        if as_failure {
            self.reopen(now);
        }
    }

    /// Its caller is gone.
    pub(super) fn given_up(&mut self, id: Id, now: u64) {
        if self.is_trial(id) && self.rules.probe_is_freed {
            self.circuit = Circuit::HalfOpen { trial: None };
        } else if self.settings.release == Release::V13 && (self.is_trial(id) || !self.rules.late_is_ignored)
        {
            self.reopen(now);
        }
    }

    /// Are the figures still those that it was let through under?
    fn belongs(&self, id: Id) -> bool {
        self.calls[id].wipes == self.wipes || !self.rules.late_is_ignored
    }

    fn book(&mut self, belongs: bool, error: bool) {
        if belongs {
            self.events.push(Event {
                ticks: self.ticks,
                error,
            });
        }
    }
}
