//! The handle on one circuit: made first, shared by all layers and services that are given it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    BreakerSettings,
    config::BreakerBuilder,
    engine::{Gate, Settings},
    figures::{Counts, Health},
    hystrix::Asker,
    machine::Machine,
    permit::Permit,
    shard::{Shard, thread_number},
    sync::Relaxed,
    transitions::Transitions,
    word::{FORCED_CLOSED, FORCED_OPEN},
};
use crate::call::{CircuitOpen, CircuitState, ConfigError};

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
        let shards = Shard::all(built_by, settings);
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
