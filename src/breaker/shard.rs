//! A circuit as its calls find it: each thread by a shard of its own, all of them the one core.

use std::{
    cell::Cell,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    config::BreakerBuilder,
    engine::{Change, Gate, Settings, UNTIMED, nanos},
    event::Events,
    hystrix::{self, Asker},
    machine::Machine,
    permit::Permit,
    sync::{AtomicU64, Relaxed},
    word::Word,
};
use crate::call::{CircuitOpen, CircuitState, Verdict};

/// What permits hold. A permit that held the whole by one reference count would make all threads write to the same
/// cache line twice a call; each thread has the count of its shard instead, on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) core: Arc<Core>,
    lane: usize,
}

/// The circuit itself: one, whichever shard is asked.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) live: Live,
    /// What it was built by, with all changes since.
    pub(super) built_by: Mutex<BreakerBuilder>,
    pub(super) name: Arc<str>,
    pub(super) base: Instant,
    pub(super) events: Events,
    /// Wakes the tasks that wait for the service below when the circuit has come to reject them.
    pub(super) changed: Arc<Notify>,
}

#[expect(
    clippy::disallowed_types,
    reason = "taken where settings are read as a whole or changed, never on the way of a call"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// What can change while calls go on and is no business of the machine.
#[derive(Debug)]
pub(super) struct Live {
    shadow: AtomicU64,
    /// Does anybody want to know how long a call took?
    timed: AtomicU64,
    /// In nanoseconds.
    cancelled_after: AtomicU64,
    pub(super) would_reject: AtomicU64,
}

impl Live {
    fn new(settings: &Settings) -> Self {
        let live = Live {
            shadow: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            cancelled_after: AtomicU64::new(0),
            would_reject: AtomicU64::new(0),
        };
        live.set(settings);
        live
    }

    pub(super) fn set(&self, settings: &Settings) {
        let more = &settings.more;
        self.shadow.store(more.shadow.into(), Relaxed);
        self.cancelled_after
            .store(more.cancelled_after.map_or(u64::MAX, nanos), Relaxed);
        let timed = more.slow_limit.is_some() || more.cancelled_after.is_some();
        self.timed.store(timed.into(), Relaxed);
    }

    pub(super) fn shadow(&self) -> bool {
        self.shadow.load(Relaxed) != 0
    }
}

impl Core {
    fn new(built_by: BreakerBuilder, settings: Settings) -> Self {
        Core {
            machine: Machine::new(settings),
            live: Live::new(&settings),
            name: built_by.breaker_name().clone(),
            base: Instant::now(),
            events: Events::new(built_by.hook().cloned()),
            changed: Arc::new(Notify::new()),
            built_by: Mutex::new(built_by),
        }
    }

    pub(super) fn built_by<T>(&self, work: impl FnOnce(&mut BreakerBuilder) -> T) -> T {
        // Nothing that can panic runs under the lock.
        work(&mut self.built_by.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When a call begins, if anybody wants to know.
    #[inline]
    fn began(&self, now: impl Fn() -> u64) -> u64 {
        if self.live.timed.load(Relaxed) == 0 {
            UNTIMED
        } else {
            now()
        }
    }

    /// A state as it is told, for one that would reject calls or not.
    pub(super) fn told(&self, state: CircuitState) -> CircuitState {
        if self.live.shadow() && state != CircuitState::Disabled {
            CircuitState::Shadow
        } else {
            state
        }
    }

    /// Nanoseconds since the breaker was built. A breaker may meet a clock that is behind its own, as when it comes
    /// from another runtime whose time was paused and advanced; its time stands still until that clock catches up.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let age = Instant::now().saturating_duration_since(self.base);
        age.as_secs()
            .saturating_mul(1_000_000_000)
            .saturating_add(age.subsec_nanos().into())
    }

    #[cold]
    fn step(&self, make: impl FnOnce() -> Option<Change>) {
        let change = self
            .events
            .order(&self.name, self.live.shadow(), make, |change| *change);
        if change.is_some() {
            self.changed.notify_waiters();
        }
        self.events.tell();
    }

    pub(super) fn by_hand(&self, make: impl FnOnce(&Machine, u64) -> Option<Change>) {
        if let Machine::Hystrix(engine) = &self.machine {
            // What has happened before is told before.
            self.catch_up(engine, Asker::Nobody, self.now());
        }
        self.step(|| make(&self.machine, self.now()));
    }

    /// Opens the circuit, if it has to be open by now.
    #[inline]
    pub(super) fn catch_up(&self, engine: &hystrix::Engine, asker: Asker, now: u64) {
        if let Some(trip) = engine.due(asker, now) {
            self.step(|| engine.trip(trip));
        }
    }

    /// What a call would be told.
    #[inline]
    fn look(&self, now: impl Fn() -> u64) -> Gate {
        if let Machine::Ours(engine) = &self.machine {
            let word = engine.word();
            if word.is_plainly_closed() {
                return Gate::Pass(word);
            }
        }
        self.look_closer(now)
    }

    #[inline]
    fn look_closer(&self, now: impl Fn() -> u64) -> Gate {
        match self.judged_look(now) {
            Gate::Reject { .. } if self.live.shadow() => Gate::Shadowed(self.machine.bystander()),
            gate => gate,
        }
    }

    /// What a call would be told if the breaker rejected calls.
    #[inline]
    pub(super) fn judged_look(&self, now: impl Fn() -> u64) -> Gate {
        match &self.machine {
            Machine::Ours(engine) => engine.look(now),
            Machine::Hystrix(engine) => self.look_by_ticks(engine, now),
        }
    }

    /// Out of the way of those that are judged by our own rules.
    #[inline(never)]
    fn look_by_ticks(&self, engine: &hystrix::Engine, now: impl Fn() -> u64) -> Gate {
        let now = now();
        self.catch_up(engine, Asker::Call, now);
        engine.look(now)
    }

    /// The state as it stands, with no step taken.
    pub(super) fn glance(&self) -> CircuitState {
        self.told(self.judged_state())
    }

    /// The same, whether it rejects calls by it or not.
    pub(super) fn judged_state(&self) -> CircuitState {
        match &self.machine {
            Machine::Ours(engine) => engine.state(|| self.now()),
            Machine::Hystrix(engine) => engine.state(),
        }
    }

    #[inline]
    fn settle(&self, admitted: Word, began: u64, lane: usize, verdict: Verdict, now: impl Fn() -> u64) {
        match &self.machine {
            Machine::Ours(engine) => {
                if let Some(step) = engine.settle_since(began, admitted, lane, verdict, &now) {
                    // The time when its turn has come: the sleep window begins as the circuit opens.
                    self.step(|| engine.take(step, admitted, lane, now()));
                }
            }
            Machine::Hystrix(engine) => self.settle_by_ticks(engine, admitted, lane, verdict, now),
        }
    }

    #[inline(never)]
    fn settle_by_ticks(
        &self,
        engine: &hystrix::Engine,
        admitted: Word,
        lane: usize,
        verdict: Verdict,
        now: impl Fn() -> u64,
    ) {
        let at = now();
        self.catch_up(engine, Asker::Nobody, at);
        if let Some(step) = engine.settle(admitted, lane, verdict, at) {
            self.step(|| engine.take(step, admitted, lane, now()));
        }
    }

    fn rejection(&self, state: CircuitState, retry_in: Option<Duration>) -> CircuitOpen {
        CircuitOpen::new(self.name.clone(), state, retry_in)
    }
}

impl Shard {
    /// As many as the settings have lanes, rounded up to a power of two.
    pub(super) fn all(built_by: BreakerBuilder, settings: Settings) -> Arc<[Arc<Shard>]> {
        let core = Arc::new(Core::new(built_by, settings));
        (0..settings.lanes.next_power_of_two())
            .map(|lane| {
                let core = core.clone();
                Arc::new(Shard { core, lane })
            })
            .collect()
    }

    #[inline]
    pub(super) fn look(&self) -> Gate {
        self.core.look(|| self.core.now())
    }

    /// Admits a call or rejects it; as the probe only if the service below is ready for it.
    #[inline]
    pub(super) fn admit(self: &Arc<Self>, may_probe: bool) -> Result<Permit, CircuitOpen> {
        self.admit_at(may_probe, || self.core.now())
    }

    #[inline]
    pub(super) fn admit_at(
        self: &Arc<Self>,
        may_probe: bool,
        now: impl Fn() -> u64,
    ) -> Result<Permit, CircuitOpen> {
        match self.core.look(&now) {
            Gate::Pass(word) => Ok(Permit::new(self.clone(), word, self.core.began(now))),
            Gate::Shadowed(word) => Ok(self.let_through(word, now)),
            Gate::Probe if may_probe => self.take_probe(now),
            Gate::Probe if self.core.live.shadow() => {
                Ok(self.let_through(self.core.machine.bystander(), now))
            }
            Gate::Probe => Err(self.refuse(CircuitState::Open)),
            Gate::Reject { state, retry_in } => Err(self.reject(state, retry_in)),
        }
    }

    /// In shadow mode: counted, and not rejected.
    #[cold]
    fn let_through(self: &Arc<Self>, word: Word, now: impl Fn() -> u64) -> Permit {
        self.core.live.would_reject.fetch_add(1, Relaxed);
        Permit::new(self.clone(), word, self.core.began(now))
    }

    #[cold]
    fn take_probe(self: &Arc<Self>, now: impl Fn() -> u64) -> Result<Permit, CircuitOpen> {
        let core = &self.core;
        let taken = core.events.order(
            &core.name,
            core.live.shadow(),
            || core.machine.take_probe(&now),
            |taken| taken.as_ref().ok().copied(),
        );
        match taken {
            Ok(change) => {
                // Before anybody is told: should the hook panic, the probe is handed back.
                let permit = Permit::new(self.clone(), change.to, core.began(&now));
                core.changed.notify_waiters();
                core.events.tell();
                Ok(permit)
            }
            Err(Gate::Pass(word) | Gate::Shadowed(word)) => {
                Ok(Permit::new(self.clone(), word, core.began(&now)))
            }
            Err(Gate::Reject { .. }) if core.live.shadow() => {
                Ok(self.let_through(core.machine.bystander(), now))
            }
            Err(Gate::Reject { state, retry_in }) => Err(self.reject(state, retry_in)),
            // `take_probe` took it.
            Err(Gate::Probe) => Err(self.refuse(CircuitState::HalfOpen)),
        }
    }

    #[cold]
    fn reject(&self, state: CircuitState, retry_in: Option<Duration>) -> CircuitOpen {
        self.core.machine.note_rejected(self.lane);
        self.core.rejection(state, retry_in)
    }

    /// Rejects a call whose inner service was not asked whether it is ready, as the circuit was in this state then.
    #[cold]
    pub(super) fn refuse(&self, state: CircuitState) -> CircuitOpen {
        match self.look() {
            Gate::Reject { state, retry_in } => self.reject(state, retry_in),
            Gate::Pass(_) | Gate::Shadowed(_) | Gate::Probe => self.reject(state, Some(Duration::ZERO)),
        }
    }

    #[cfg(all(test, outbound_loom))]
    pub(super) fn machine(&self) -> &Machine {
        &self.core.machine
    }

    #[inline]
    pub(super) fn settle(&self, admitted: Word, began: u64, verdict: Verdict) {
        self.settle_at(admitted, began, verdict, || self.core.now());
    }

    #[inline]
    pub(super) fn settle_at(&self, admitted: Word, began: u64, verdict: Verdict, now: impl Fn() -> u64) {
        self.core.settle(admitted, began, self.lane, verdict, now);
    }

    #[cold]
    pub(super) fn cancel(&self, admitted: Word, began: u64) {
        // While a panic unwinds, a hook that panicked as well would abort the process.
        let has_failed = began != UNTIMED
            && !thread::panicking()
            && self.core.now().saturating_sub(began) >= self.core.live.cancelled_after.load(Relaxed);
        if has_failed {
            return self.settle(admitted, began, Verdict::Failure);
        }
        self.core.machine.cancel(admitted, self.lane);
    }
}

/// A number for the thread, so that threads spread over the shards.
#[inline]
pub(super) fn thread_number() -> usize {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    #[cold]
    fn next() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
    // A thread that is ending, whose locals are gone, counts with the first.
    NUMBER
        .try_with(|number| {
            if number.get() == usize::MAX {
                number.set(next());
            }
            number.get()
        })
        .unwrap_or(0)
}

/// As many lanes as give each core's thread one of its own in most cases; at most 16.
pub(super) fn lanes() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).next_power_of_two().clamp(2, 16)
}
