//! The state machine: pure, without a lock, with the time as an argument.
//!
//! Times are nanoseconds since the breaker was built. What changes the state for all to see is a [`Step`], found
//! without being taken, so that whoever drives the engine can bring steps into an order and report each of them once.

use std::time::Duration;

use super::{
    circuit::Circuit,
    event::Cause,
    figures::{Counts, Health},
    hystrix::HystrixRelease,
    judge::Judge,
    window::{Moment, Window},
    word::{DISABLED, State, Word},
};
use crate::call::{CircuitState, Verdict};

pub(super) const NANOS_PER_MILLI: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Engine {
    circuit: Circuit,
    window: Window,
    judge: Judge,
}

/// What a call that asks now would be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Go, and count under this word.
    Pass(Word),
    /// A probe may go out.
    Probe,
    /// No.
    Reject {
        state: CircuitState,
        retry_in: Option<Duration>,
    },
}

/// A change of state that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The window is bad enough.
    Trip { successes: u64, failures: u64 },
    /// The probe succeeded.
    Close,
    /// The probe failed.
    Reopen,
}

/// A change of the word, made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: Word,
    pub(super) to: Word,
    pub(super) cause: Cause,
}

/// How the engine is set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) judge: Judge,
    pub(super) window: Duration,
    pub(super) sleep_window: Duration,
    pub(super) probe_lease: Duration,
    pub(super) enabled: bool,
    /// Hystrix's machine in the place of this one, with a health tick once in this while.
    pub(super) hystrix: Option<(HystrixRelease, Duration)>,
    /// How many threads can count successes without waiting for each other; rounded up to a power of two.
    pub(super) lanes: usize,
}

impl Engine {
    pub(super) fn new(settings: Settings) -> Self {
        Engine {
            circuit: Circuit::new(&settings, 0),
            window: Window::new(nanos(settings.window), settings.lanes.next_power_of_two()),
            judge: settings.judge,
        }
    }

    #[inline]
    pub(super) fn probe_lease(&self) -> Duration {
        self.circuit.probe_lease()
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        self.circuit.word()
    }

    /// What a call would be told. Reads the clock only if the circuit is neither closed nor forced.
    #[inline]
    pub(super) fn look(&self, now: impl FnOnce() -> u64) -> Gate {
        self.circuit.look(now)
    }

    /// The state with the sleep window taken into account.
    pub(super) fn state(&self, now: impl FnOnce() -> u64) -> CircuitState {
        told(self.look(now))
    }

    /// The same of the machine below any force.
    pub(super) fn unforced_state(&self, now: impl FnOnce() -> u64) -> CircuitState {
        let word = self.word();
        told(self.circuit.gate(word.with_mode(word.mode() & DISABLED), now))
    }

    /// Takes the probe, if one may go out; else says what is the case by now.
    pub(super) fn take_probe(&self, now: impl Fn() -> u64) -> Result<Change, Gate> {
        self.circuit.take_probe(State::Probing, millis_up, now)
    }

    /// Counts the outcome of a call that was admitted under this word. Reads the clock only if it counts.
    #[inline]
    pub(super) fn settle(
        &self,
        admitted: Word,
        lane: usize,
        verdict: Verdict,
        now: impl FnOnce() -> u64,
    ) -> Option<Step> {
        if admitted.is(DISABLED) {
            return None;
        }
        if !self.word().is_same_stretch(admitted) {
            self.note_stale(lane);
            return None;
        }
        match verdict {
            Verdict::Ignored => {
                self.window.note(lane, |totals| &totals.ignored);
                self.circuit.hand_back(admitted);
                None
            }
            Verdict::Success if admitted.is_probe() => Some(Step::Close),
            Verdict::Failure if admitted.is_probe() => Some(Step::Reopen),
            Verdict::Success => {
                let moment = self.window.moment(admitted.generation(), now());
                self.window.success(lane, moment);
                if self.window.is_spotless(moment) && !self.judge.trips_without_failures() {
                    return None;
                }
                self.judge(admitted, lane, moment)
            }
            Verdict::Failure => {
                let moment = self.window.moment(admitted.generation(), now());
                self.window.failure(moment);
                self.judge(admitted, lane, moment)
            }
        }
    }

    #[cold]
    fn judge(&self, admitted: Word, lane: usize, moment: Moment) -> Option<Step> {
        if admitted.state() != State::Closed {
            return None;
        }
        let failures = self.window.failures(moment);
        let limit = self.judge.most_successes(failures);
        let successes = self.window.successes(lane, moment, limit)?;
        self.judge
            .trips(successes, failures)
            .then_some(Step::Trip { successes, failures })
    }

    /// Takes a step that an outcome has made due, unless the stretch that it was admitted in is over.
    pub(super) fn take(&self, step: Step, admitted: Word, lane: usize, now: u64) -> Option<Change> {
        let generation = admitted.generation();
        let (state, generation, cause) = match step {
            Step::Trip { successes, failures } => {
                (State::Open, generation, Cause::Tripped { successes, failures })
            }
            Step::Reopen => (State::Open, generation, Cause::ProbeFailed),
            Step::Close => (State::Closed, generation.wrapping_add(1), Cause::ProbeSucceeded),
        };
        let change = self
            .circuit
            .leave(admitted, state, generation, millis_up(now), cause);
        // The outcome of a call that was not the probe has been counted.
        if change.is_none() && admitted.is_probe() {
            self.note_stale(lane);
        }
        change
    }

    /// The call was given up, by its caller or by a panic: it counts nothing, and a probe is handed back.
    #[cold]
    pub(super) fn cancel(&self, admitted: Word, lane: usize) {
        if !admitted.is(DISABLED) {
            self.window.note(lane, |totals| &totals.cancelled);
            self.circuit.hand_back(admitted);
        }
    }

    pub(super) fn reset(&self, now: u64) -> Option<Change> {
        self.circuit.reset(millis_up(now))
    }

    pub(super) fn force(&self, force: u64) -> Option<Change> {
        self.circuit.force(force)
    }

    pub(super) fn set_enabled(&self, enabled: bool, now: u64) -> Option<Change> {
        self.circuit.set_enabled(enabled, millis_up(now))
    }

    pub(super) fn note_rejected(&self, lane: usize) {
        self.window.note(lane, |totals| &totals.rejected);
    }

    #[cold]
    fn note_stale(&self, lane: usize) {
        self.window.note(lane, |totals| &totals.stale);
    }

    /// The window as it is now.
    pub(super) fn health(&self, now: u64) -> Health {
        let moment = self.window.moment(self.word().generation(), now);
        Health {
            successes: self.window.successes(0, moment, u64::MAX).unwrap_or_default(),
            failures: self.window.failures(moment),
        }
    }

    pub(super) fn counts(&self, now: u64) -> Counts {
        let health = self.health(now);
        Counts {
            successes: health.successes(),
            failures: health.errors(),
            rejected: self.window.noted(|totals| &totals.rejected),
            ignored: self.window.noted(|totals| &totals.ignored),
            cancelled: self.window.noted(|totals| &totals.cancelled),
            stale: self.window.noted(|totals| &totals.stale),
        }
    }
}

fn told(gate: Gate) -> CircuitState {
    match gate {
        Gate::Pass(word) => word.visible(),
        Gate::Probe => CircuitState::HalfOpen,
        Gate::Reject { state, .. } => state,
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn millis_up(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_MILLI)
}
