//! The handle on one circuit: made first, shared by all layers and services that are given it.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::Instant,
};

use super::{
    BreakerSettings,
    config::BreakerBuilder,
    engine::{Change, Gate, Settings, UNTIMED, nanos},
    event::Events,
    figures::{Counts, Health},
    hystrix::{self, Asker},
    machine::Machine,
    permit::Permit,
    sync::{AtomicU64, Relaxed},
    transitions::Transitions,
    word::{FORCED_CLOSED, FORCED_OPEN, Word},
};
use crate::call::{CircuitOpen, CircuitState, ConfigError, Verdict};

/// A circuit breaker: one state, with a handle that is cheap to clone.
///
/// Make it first and give it to the [layer](super::CircuitBreakerLayer): all clones of the handle, all layers and
/// all services made from it share its state, so it can be watched and steered from outside of the stack. It can
/// also be used without any service, by [`admit`](Breaker::admit) and [`Permit::settle`].
///
/// ```
/// use tower_outbound::{breaker::Breaker, call::{CircuitState, Verdict}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let breaker = Breaker::builder("orders").volume(2).build()?;
/// for _ in 0..2 {
///     let permit = breaker.admit()?;
///     permit.settle(Verdict::Failure);
/// }
/// assert_eq!(breaker.state(), CircuitState::Open);
/// let rejection = breaker.admit().unwrap_err();
/// assert_eq!(rejection.name(), "orders");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Breaker {
    shards: Arc<[Arc<Shard>]>,
}

/// What [`Breaker::force`] makes a breaker do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Force {
    /// Reject all calls.
    Open,
    /// Let all calls pass. They are counted, and the state below goes on by them.
    Closed,
    /// Nothing by hand: the circuit decides.
    #[default]
    None,
}

impl Breaker {
    /// A breaker with Hystrix's numbers: see the [defaults](super#defaults).
    ///
    /// The name stands in errors and events; it need not be unique, and no registry knows it.
    ///
    /// # Errors
    ///
    /// The name is empty.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, ConfigError> {
        Breaker::builder(name).build()
    }

    /// A breaker with other numbers.
    pub fn builder(name: impl Into<Arc<str>>) -> BreakerBuilder {
        BreakerBuilder::new(name.into())
    }

    pub(super) fn with(built_by: BreakerBuilder, settings: Settings) -> Self {
        let core = Arc::new(Core {
            machine: Machine::new(settings),
            live: Live::new(&settings),
            name: built_by.breaker_name().clone(),
            base: Instant::now(),
            events: Events::new(built_by.hook().cloned()),
            changed: Arc::new(Notify::new()),
            built_by: Mutex::new(built_by),
        });
        let shards = (0..settings.lanes.next_power_of_two())
            .map(|lane| {
                let core = core.clone();
                Arc::new(Shard { core, lane })
            })
            .collect();
        Breaker { shards }
    }

    #[inline]
    pub(super) fn shard(&self) -> &Arc<Shard> {
        // Their number is a power of two.
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }

    /// What a call would be told. Nothing is written, so any shard will do.
    #[inline]
    pub(super) fn look(&self) -> Gate {
        self.shards[0].look()
    }

    /// That of a thread with this number.
    #[cfg(all(test, outbound_loom))]
    pub(super) fn lane(&self, lane: usize) -> &Arc<Shard> {
        &self.shards[lane]
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.shard().core.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        self.shard().core.name.clone()
    }

    /// The state as it stands, in shadow mode as well.
    #[cfg(feature = "endpoints")]
    pub(super) fn judged_state(&self) -> CircuitState {
        self.shard().core.judged_state()
    }

    /// Is it plainly closed, is no call on its way, and does nobody else hold it?
    pub(super) fn can_be_dropped(&self) -> bool {
        let core = &self.shard().core;
        let is_due_to_open = || match &core.machine {
            Machine::Ours(_) => false,
            // By a tick that nobody has noticed yet.
            Machine::Hystrix(engine) => engine.due(Asker::Call, core.now()).is_some(),
        };
        core.machine.word().is_plainly_closed()
            && !is_due_to_open()
            && Arc::strong_count(&self.shards) == 1
            && self.shards.iter().all(|shard| Arc::strong_count(shard) == 1)
    }

    /// What it goes by now.
    pub fn settings(&self) -> BreakerSettings {
        self.shard().core.built_by(|builder| builder.settings())
    }

    /// Changes settings while calls go on.
    ///
    /// The closure is given the settings as they are, in a builder, and says what is to be otherwise. Window, state,
    /// figures and permits stay: the next outcome is judged by the new rules, with all that the window holds. A sleep or
    /// a lease that has begun ends by the new length. A builder made anew gives up what it does not name, such as a rule;
    /// seed and hook stay all the same. Calls that began before [`slow_calls`](BreakerBuilder::slow_calls)
    /// or [`cancelled_after`](BreakerBuilder::cancelled_after) were switched on were not timed, and count as before.
    ///
    /// If two threads change settings at once, the later one wins for all settings.
    ///
    /// ```
    /// use tower_outbound::{breaker::Breaker, call::CircuitState, call::Verdict};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let breaker = Breaker::new("orders")?;
    /// for _ in 0..9 {
    ///     breaker.admit()?.settle(Verdict::Failure);
    /// }
    /// breaker.change(|settings| settings.volume(10))?;
    /// assert_eq!(breaker.state(), CircuitState::Closed);
    /// breaker.admit()?.settle(Verdict::Failure);
    /// assert_eq!(breaker.state(), CircuitState::Open);
    ///
    /// let error = breaker.change(|settings| settings.probes(3)).unwrap_err();
    /// assert_eq!(error.field(), "probes"); // they have places, made when the breaker is built
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What [`build`](BreakerBuilder::build) finds wrong, and what cannot change while calls go on: the rolling
    /// [`window`](BreakerBuilder::window), the number of [`last_outcomes`](BreakerBuilder::last_outcomes) and of
    /// [`probes`](BreakerBuilder::probes), [`hystrix`](BreakerBuilder::hystrix) with its
    /// [`health_snapshot`](BreakerBuilder::health_snapshot), the [`seed`](BreakerBuilder::seed) and the
    /// [hook](BreakerBuilder::on_transition). A breaker is switched off by [`set_enabled`](Breaker::set_enabled). Nothing
    /// has changed then.
    pub fn change(&self, change: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> Result<(), ConfigError> {
        let core = &self.shard().core;
        // The closure may do anything, so it runs without the lock.
        let before = core.built_by(|builder| builder.clone());
        let after = change(before.clone()).or_seed_and_hook_of(&before);
        let settings = before.checked_change(&after)?;
        core.built_by(|builder| {
            core.machine.set(&settings);
            core.live.set(&settings);
            *builder = after;
        });
        // What rejected calls may let them through now, or the other way round.
        core.changed.notify_waiters();
        Ok(())
    }

    /// Is it in [shadow mode](BreakerBuilder::shadow), in which nothing is rejected?
    pub fn is_shadow(&self) -> bool {
        self.shard().core.live.shadow()
    }

    /// How long it is until a call may go out as a probe: zero if one may go out now. `None`: the circuit is closed,
    /// forced or switched off, or the probe is out, which may end at any time.
    pub fn probe_in(&self) -> Option<Duration> {
        let core = &self.shard().core;
        match core.judged_look(|| core.now()) {
            Gate::Pass(_) | Gate::Shadowed(_) => None,
            Gate::Probe => Some(Duration::ZERO),
            Gate::Reject { retry_in, .. } => retry_in,
        }
    }

    /// How long a probe may take before another one takes its place.
    pub fn probe_lease(&self) -> Duration {
        self.shard().core.machine.probe_lease()
    }

    /// Asks to make one call. Once its outcome is known, [settle](Permit::settle) the permit with the verdict on it.
    ///
    /// # Errors
    ///
    /// The circuit is open, or half-open with the probe out. This counts as one rejected call.
    pub fn admit(&self) -> Result<Permit, CircuitOpen> {
        self.shard().admit(true)
    }

    /// The state now.
    ///
    /// An open circuit whose sleep window has ended is told as half-open, as the next call would be a probe. No
    /// event is made until that call comes.
    ///
    /// With [`hystrix`](BreakerBuilder::hystrix) it is told as open until that call comes. There the question may open
    /// the circuit: by the health ticks that have passed since somebody looked (1.5.12), or by being asked at all
    /// (1.5.18, whose `isOpen` does so too, whatever is forced). To look and touch nothing there is
    /// [`unforced_state`](Breaker::unforced_state).
    ///
    /// In [shadow mode](BreakerBuilder::shadow) it is [`Shadow`](CircuitState::Shadow), whatever the circuit would do,
    /// which [`unforced_state`](Breaker::unforced_state) tells.
    pub fn state(&self) -> CircuitState {
        let core = &self.shard().core;
        let state = match &core.machine {
            Machine::Ours(engine) => engine.state(|| core.now()),
            Machine::Hystrix(engine) => {
                core.catch_up(engine, Asker::Reader, core.now());
                engine.state()
            }
        };
        core.told(state)
    }

    /// The state that the circuit would have, were nothing forced: of the machine that goes on below.
    ///
    /// Otherwise as [`state`](Breaker::state), but for Hystrix 1.5.18, where it says whether the circuit is open
    /// without judging. A breaker that is switched off says so.
    pub fn unforced_state(&self) -> CircuitState {
        let core = &self.shard().core;
        match &core.machine {
            Machine::Ours(engine) => engine.unforced_state(|| core.now()),
            Machine::Hystrix(engine) => {
                core.catch_up(engine, Asker::Nobody, core.now());
                engine.unforced_state()
            }
        }
    }

    /// The figures that the circuit is judged by.
    ///
    /// Those of the rolling window as it is now; with [`hystrix`](BreakerBuilder::hystrix) those of the latest health
    /// snapshot, which goes up to the latest tick.
    pub fn health(&self) -> Health {
        let core = &self.shard().core;
        core.machine.health(core.now())
    }

    /// The outcomes in the window, and totals since the breaker was built.
    pub fn counts(&self) -> Counts {
        let core = &self.shard().core;
        Counts {
            would_reject: core.live.would_reject.load(Relaxed),
            ..core.machine.counts(core.now())
        }
    }

    /// Follows the transitions from now on.
    ///
    /// The same events in the same order as those of [`on_transition`](BreakerBuilder::on_transition), for as many
    /// subscribers as there are. They read at their own pace: calls never wait for them.
    ///
    /// ```
    /// use tower_outbound::{breaker::{Breaker, Force}, call::CircuitState};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_outbound::call::ConfigError> {
    /// let breaker = Breaker::new("orders")?;
    /// let mut transitions = breaker.transitions();
    /// breaker.force(Force::Open);
    /// drop(breaker);
    /// while let Some(told) = transitions.next().await {
    ///     match told {
    ///         Ok(transition) => assert_eq!(transition.to(), CircuitState::ForcedOpen),
    ///         Err(missed) => eprintln!("{missed}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn transitions(&self) -> Transitions {
        self.shard().core.events.subscribe()
    }

    /// Back to the beginning: closed, with an empty window and nothing forced.
    ///
    /// Calls that were admitted before do not count any more. Totals go on. A breaker that is switched off stays so.
    pub fn reset(&self) {
        let core = &self.shard().core;
        core.by_hand(|machine, now| machine.reset(now));
    }

    /// Holds the circuit open or closed by hand, or lets it go.
    ///
    /// The state below the force is left as it is, goes on by the calls that still end, and is in charge again once
    /// the force is lifted. A later force replaces an earlier one.
    pub fn force(&self, force: Force) {
        let mode = match force {
            Force::Open => FORCED_OPEN,
            Force::Closed => FORCED_CLOSED,
            Force::None => 0,
        };
        self.shard().core.by_hand(|machine, _| machine.force(mode));
    }

    /// Switches the breaker off or on.
    ///
    /// While it is off, no call is rejected or counted, even if it is forced open; with
    /// [`hystrix`](BreakerBuilder::hystrix) its figures go on, as Hystrix's do. Once switched on again it starts
    /// closed, with an empty window; a force still holds, and calls that were admitted before do not count.
    pub fn set_enabled(&self, enabled: bool) {
        let core = &self.shard().core;
        core.by_hand(|machine, now| machine.set_enabled(enabled, now));
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("name", &self.name())
            .field("state", &self.shard().core.glance())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// What permits hold. A permit that held the whole by one reference count would make all threads write to the same
/// cache line twice a call; each thread has the count of its shard instead, on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    core: Arc<Core>,
    lane: usize,
}

#[derive(Debug)]
struct Core {
    machine: Machine,
    live: Live,
    /// What it was built by, with all changes since.
    built_by: Mutex<BreakerBuilder>,
    name: Arc<str>,
    base: Instant,
    events: Events,
    /// Wakes the tasks that wait for the service below when the circuit has come to reject them.
    changed: Arc<Notify>,
}

#[expect(
    clippy::disallowed_types,
    reason = "taken where settings are read as a whole or changed, never on the way of a call"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// What can change while calls go on and is no business of the machine.
#[derive(Debug)]
struct Live {
    shadow: AtomicU64,
    /// Does anybody want to know how long a call took?
    timed: AtomicU64,
    /// In nanoseconds.
    cancelled_after: AtomicU64,
    would_reject: AtomicU64,
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

    fn set(&self, settings: &Settings) {
        let more = &settings.more;
        self.shadow.store(more.shadow.into(), Relaxed);
        self.cancelled_after
            .store(more.cancelled_after.map_or(u64::MAX, nanos), Relaxed);
        let timed = more.slow_limit.is_some() || more.cancelled_after.is_some();
        self.timed.store(timed.into(), Relaxed);
    }

    fn shadow(&self) -> bool {
        self.shadow.load(Relaxed) != 0
    }
}

impl Core {
    fn built_by<T>(&self, work: impl FnOnce(&mut BreakerBuilder) -> T) -> T {
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
    fn told(&self, state: CircuitState) -> CircuitState {
        if self.live.shadow() && state != CircuitState::Disabled {
            CircuitState::Shadow
        } else {
            state
        }
    }

    /// Nanoseconds since the breaker was built. A breaker may meet a clock that is behind its own, as when it comes
    /// from another runtime whose time was paused and advanced; its time stands still until that clock catches up.
    #[inline]
    fn now(&self) -> u64 {
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

    fn by_hand(&self, make: impl FnOnce(&Machine, u64) -> Option<Change>) {
        if let Machine::Hystrix(engine) = &self.machine {
            // What has happened before is told before.
            self.catch_up(engine, Asker::Nobody, self.now());
        }
        self.step(|| make(&self.machine, self.now()));
    }

    /// Opens the circuit, if it has to be open by now.
    #[inline]
    fn catch_up(&self, engine: &hystrix::Engine, asker: Asker, now: u64) {
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
    fn judged_look(&self, now: impl Fn() -> u64) -> Gate {
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
    fn glance(&self) -> CircuitState {
        self.told(self.judged_state())
    }

    /// The same, whether it rejects calls by it or not.
    fn judged_state(&self) -> CircuitState {
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

/// A wait for the next change of the circuit; begun only where the service below is not ready.
#[derive(Debug, Default)]
pub(super) struct Waiting(Option<Pin<Box<OwnedNotified>>>);

impl Waiting {
    #[inline]
    pub(super) fn stop(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }

    /// Registers for the next change. Ready: there was one since the wait began, look again.
    pub(super) fn poll_changed(
        &mut self,
        shard: &Shard,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        let waiting = self
            .0
            .get_or_insert_with(|| Box::pin(shard.core.changed.clone().notified_owned()));
        let changed = waiting.as_mut().poll(cx);
        if changed.is_ready() {
            self.0 = None;
        }
        changed
    }
}

/// A number for the thread, so that threads spread over the shards.
#[inline]
fn thread_number() -> usize {
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
