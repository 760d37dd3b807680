//! Telling of transitions: each once, in order, and with no lock held.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, OnceLock, PoisonError},
    thread,
};

use tokio::sync::broadcast;

use super::{
    engine::Change,
    sync::Mutex,
    transitions::{KEPT, Transitions},
};
use crate::call::CircuitState;

/// Why the state of a breaker changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The window held these outcomes, and that is too many failures.
    Tripped {
        /// Successes in the window.
        successes: u64,
        /// Failures in the window.
        failures: u64,
    },
    /// The window held so many outcomes, and too many of them were slow:
    /// [`slow_calls`](super::BreakerBuilder::slow_calls).
    TooSlow {
        /// Successes that took longer than the limit.
        slow: u64,
        /// All outcomes in the window.
        total: u64,
    },
    /// So many calls failed with no success in between:
    /// [`consecutive_failures`](super::BreakerBuilder::consecutive_failures).
    FailuresInARow {
        /// Failures since the latest success.
        failures: u64,
    },
    /// Of the last outcomes too many were failures: [`last_outcomes`](super::BreakerBuilder::last_outcomes).
    LastFailed {
        /// Failures among them.
        failures: u64,
        /// How many outcomes there were.
        total: u64,
    },
    /// Of the last outcomes too many were slow: [`last_outcomes`](super::BreakerBuilder::last_outcomes) with
    /// [`slow_calls`](super::BreakerBuilder::slow_calls).
    LastTooSlow {
        /// Successes among them that took longer than the limit.
        slow: u64,
        /// How many outcomes there were.
        total: u64,
    },
    /// The sleep window had ended, and a call went out as the probe.
    SleepWindowEnded,
    /// The probe succeeded.
    ProbeSucceeded,
    /// The probe failed; with Hystrix 1.5.12 also: it was [ignored](crate::call::Verdict::Ignored).
    ProbeFailed,
    /// Of several [probes](super::BreakerBuilder::probes) enough succeeded.
    ProbesSucceeded {
        /// Probes that have succeeded so far.
        successes: u64,
        /// Probes that have failed so far.
        failures: u64,
    },
    /// Of several [probes](super::BreakerBuilder::probes) too many failed.
    ProbesFailed {
        /// Probes that have succeeded so far.
        successes: u64,
        /// Probes that have failed so far.
        failures: u64,
    },
    /// [`Breaker::force`](super::Breaker::force) set or lifted a force.
    Forced,
    /// [`Breaker::reset`](super::Breaker::reset) was called.
    Reset,
    /// The breaker was switched on.
    Enabled,
    /// The breaker was switched off.
    Disabled,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Tripped { successes, failures } => {
                write!(f, "tripped by {failures} failures beside {successes} successes")
            }
            Cause::TooSlow { slow, total } => write!(f, "{slow} of {total} outcomes were slow"),
            Cause::FailuresInARow { failures } => write!(f, "{failures} failures in a row"),
            Cause::LastFailed { failures, total } => {
                write!(f, "{failures} of the last {total} outcomes were failures")
            }
            Cause::LastTooSlow { slow, total } => write!(f, "{slow} of the last {total} outcomes were slow"),
            Cause::SleepWindowEnded => f.write_str("the sleep window ended, a probe is out"),
            Cause::ProbeSucceeded => f.write_str("the probe succeeded"),
            Cause::ProbeFailed => f.write_str("the probe failed"),
            Cause::ProbesSucceeded { successes, failures } => {
                write!(
                    f,
                    "{successes} probes succeeded, {failures} failed, which is good enough"
                )
            }
            Cause::ProbesFailed { successes, failures } => {
                write!(
                    f,
                    "{failures} probes failed, {successes} succeeded, which is too few"
                )
            }
            Cause::Forced => f.write_str("forced by hand, or the force was lifted"),
            Cause::Reset => f.write_str("reset by hand"),
            Cause::Enabled => f.write_str("switched on"),
            Cause::Disabled => f.write_str("switched off"),
        }
    }
}

/// A change of a breaker's state, as its hook is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    name: Arc<str>,
    from: CircuitState,
    to: CircuitState,
    cause: Cause,
    shadow: bool,
}

impl Transition {
    /// The name of the breaker.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state before: that of the transition before this one.
    pub fn from(&self) -> CircuitState {
        self.from
    }

    /// The state after it. It is never the state before.
    pub fn to(&self) -> CircuitState {
        self.to
    }

    /// Why.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Was the breaker in [shadow mode](super::BreakerBuilder::shadow)? Then this is what it would have done, and no call
    /// is rejected.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CircuitBreaker {:?}: {} -> {}, {}{}",
            self.name,
            self.from,
            self.to,
            self.cause,
            if self.shadow { " (in shadow mode)" } else { "" }
        )
    }
}

pub(super) type Hook = Arc<dyn Fn(&Transition) + Send + Sync>;

/// Brings changes into an order and tells of them in that order.
///
/// The lock is taken only when the state changes, never on the way of a call through a closed or an open circuit. It
/// is held while the word changes and while the queue does, never while a hook or a subscriber runs. Only
/// one thread tells at a time; what others, or the hook itself, change meanwhile is told by that thread afterwards.
pub(super) struct Events {
    hook: Option<Hook>,
    /// Made for the first subscriber. Without one there is no room kept for transitions.
    subscribers: OnceLock<broadcast::Sender<Transition>>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    untold: VecDeque<Transition>,
    telling: bool,
}

impl Events {
    pub(super) fn new(hook: Option<Hook>) -> Self {
        Events {
            hook,
            subscribers: OnceLock::new(),
            queue: Mutex::default(),
        }
    }

    pub(super) fn subscribe(&self) -> Transitions {
        let subscribers = self.subscribers.get_or_init(|| broadcast::Sender::new(KEPT));
        Transitions::new(subscribers.subscribe())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        // No code that could panic runs under the lock, and the queue is whole at every moment.
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a change, if `make` does, in an order with all others. [`tell`](Events::tell) must follow.
    pub(super) fn order<T>(
        &self,
        name: &Arc<str>,
        shadow: bool,
        make: impl FnOnce() -> T,
        change: impl FnOnce(&T) -> Option<Change>,
    ) -> T {
        self.with(|queue| {
            let made = make();
            if let Some(change) = change(&made) {
                let (from, to) = (change.from.visible(), change.to.visible());
                if from != to {
                    queue.untold.push_back(Transition {
                        name: name.clone(),
                        from,
                        to,
                        cause: change.cause,
                        shadow,
                    });
                }
            }
            made
        })
    }

    /// Tells of all that is not told yet, unless another call of this is about to. Should the hook panic, it is told of
    /// the others first: those that made them may have left it to this thread.
    pub(super) fn tell(&self) {
        let mut panicked = None;
        while let Some(transition) = self.with(|queue| {
            if queue.telling {
                return None;
            }
            let transition = queue.untold.pop_front()?;
            queue.telling = true;
            Some(transition)
        }) {
            let told = catch_unwind(AssertUnwindSafe(|| self.tell_of(&transition)));
            self.with(|queue| queue.telling = false);
            if let Err(panic) = told {
                panicked.get_or_insert(panic);
            }
        }
        match panicked {
            // A second one while this thread unwinds would end the process.
            Some(panic) if !thread::panicking() => resume_unwind(panic),
            _ => {}
        }
    }

    fn tell_of(&self, transition: &Transition) {
        tracing::info!(
            target: "tower_outbound::breaker",
            breaker = transition.name(),
            from = %transition.from,
            to = %transition.to,
            cause = %transition.cause,
            shadow = transition.shadow,
            "circuit breaker changed its state"
        );
        // Before the hook, which may panic. An error says that there is no subscriber.
        if let Some(subscribers) = self.subscribers.get() {
            let _ = subscribers.send(transition.clone());
        }
        if let Some(hook) = &self.hook {
            hook(transition);
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("hook", &self.hook.is_some())
            .finish_non_exhaustive()
    }
}
