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
    judge::{Figures, Judge, Rules},
    last::Last,
    probes::Tally,
    run::Run,
    sleep::Growth,
    sync::{AtomicU64, Relaxed},
    window::{Moment, Window},
    word::{DISABLED, FORCED_CLOSED, State, Word},
};
use crate::call::{CircuitState, Verdict};

pub(super) const NANOS_PER_MILLI: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Engine {
    circuit: Circuit,
    window: Window,
    rules: Rules,
    /// A success that took longer than this was slow; in nanoseconds.
    slow_limit: AtomicU64,
    run: Run,
    last: Option<Last>,
    /// How long the circuit must have been closed for its sleep windows to begin anew, in milliseconds.
    settled_after: u64,
}

/// The beginning of a call whose time nobody wants to know.
pub(super) const UNTIMED: u64 = u64::MAX;

/// What a call that asks now would be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Go, and count under this word.
    Pass(Word),
    /// Go, and count under this word, although it should be no: the breaker is in shadow mode.
    Shadowed(Word),
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
    /// Another rule than the share of failures in the window says so.
    TripBy(Cause),
    /// The probe succeeded.
    Close,
    /// The probe failed.
    Reopen,
    /// Enough of the probes of this round succeeded, or too many failed.
    Decide {
        round: Word,
        succeeded: bool,
        tally: Tally,
    },
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
    pub(super) more: More,
}

/// What a breaker can have beyond what Hystrix has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct More {
    /// A success that took longer is slow.
    pub(super) slow_limit: Option<Duration>,
    /// A window of so many last outcomes; 0: none.
    pub(super) last: u32,
    pub(super) growth: Growth,
    /// How many probes go out at once, and how many percent of them must succeed.
    pub(super) probes: u32,
    pub(super) success_percent: u32,
    /// A call that is given up after this long has failed.
    pub(super) cancelled_after: Option<Duration>,
    /// Rejects nothing.
    pub(super) shadow: bool,
}

impl Default for More {
    fn default() -> Self {
        More {
            slow_limit: None,
            last: 0,
            growth: Growth::default(),
            probes: 1,
            success_percent: 100,
            cancelled_after: None,
            shadow: false,
        }
    }
}

impl Engine {
    pub(super) fn new(settings: Settings) -> Self {
        Engine {
            circuit: Circuit::new(&settings, 0),
            window: Window::new(nanos(settings.window), settings.lanes.next_power_of_two()),
            rules: Rules::new(settings.judge),
            slow_limit: AtomicU64::new(slow_limit(&settings)),
            run: Run::new(),
            last: (settings.more.last > 0).then(|| Last::new(settings.more.last)),
            settled_after: millis_up(nanos(settings.window)),
        }
    }

    /// Takes over what can change while calls go on. The windows are kept.
    pub(super) fn set(&self, settings: &Settings) {
        self.circuit.set(settings);
        self.slow_limit.store(slow_limit(settings), Relaxed);
        if self.rules.read().is_plain() {
            // By the plain rules no success was heard of that would have ended the row.
            self.run.begin_anew();
        }
        self.rules.set(settings.judge);
    }

    /// A call that is let through by the word of a call that would be rejected: it decides nothing.
    pub(super) fn bystander(&self) -> Word {
        self.word().with_mode(FORCED_CLOSED)
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

    /// Counts the outcome of a call that nobody has timed.
    #[cfg(test)]
    pub(super) fn settle(
        &self,
        admitted: Word,
        lane: usize,
        verdict: Verdict,
        now: impl FnOnce() -> u64,
    ) -> Option<Step> {
        self.settle_since(UNTIMED, admitted, lane, verdict, now)
    }

    /// Counts the outcome of a call that was admitted under this word and began then. Reads the clock only if it counts.
    #[inline]
    pub(super) fn settle_since(
        &self,
        began: u64,
        admitted: Word,
        lane: usize,
        verdict: Verdict,
        now: impl FnOnce() -> u64,
    ) -> Option<Step> {
        if admitted.is(DISABLED) {
            return None;
        }
        if admitted.is_probe() {
            return self.settle_probe(admitted, lane, verdict);
        }
        if !self.word().is_same_stretch(admitted) {
            self.note_stale(lane);
            return None;
        }
        match verdict {
            Verdict::Ignored => {
                self.window.note(lane, |totals| &totals.ignored);
                None
            }
            Verdict::Success => {
                let now = now();
                let moment = self.window.moment(admitted.generation(), now);
                self.window.success(lane, moment);
                if !self.rules.read().is_plain() {
                    return self.by_all_rules(admitted, lane, moment, true, now.saturating_sub(began));
                }
                if self.window.is_spotless(moment) {
                    return None;
                }
                self.judge(admitted, lane, moment)
            }
            Verdict::Failure => {
                let now = now();
                let moment = self.window.moment(admitted.generation(), now);
                self.window.failure(moment);
                if !self.rules.read().is_plain() {
                    return self.by_all_rules(admitted, lane, moment, false, now.saturating_sub(began));
                }
                self.judge(admitted, lane, moment)
            }
        }
    }

    #[cold]
    fn judge(&self, admitted: Word, lane: usize, moment: Moment) -> Option<Step> {
        if admitted.state() != State::Closed {
            return None;
        }
        let judge = self.rules.judge();
        let failures = self.window.failures(moment);
        let limit = judge.most_successes(failures, 0);
        let successes = self.window.successes(lane, moment, limit)?;
        judge
            .trips(successes, failures)
            .then_some(Step::Trip { successes, failures })
    }

    /// Books what the rules beyond the share of failures need, and judges by all of them.
    #[inline(never)]
    fn by_all_rules(
        &self,
        admitted: Word,
        lane: usize,
        moment: Moment,
        success: bool,
        took: u64,
    ) -> Option<Step> {
        let generation = admitted.generation();
        let judge = self.rules.judge();
        let slow = success && took > self.slow_limit.load(Relaxed);
        if slow {
            self.window.slow_success(moment);
        }
        let run = if success {
            self.run.success(generation);
            0
        } else {
            self.run.failure(generation)
        };
        let last = self
            .last
            .as_ref()
            .and_then(|last| Some((last.add(generation, !success, slow)?, last.length())));
        if admitted.state() != State::Closed {
            return None;
        }
        let by_window = || {
            if self.window.is_swift_and_spotless(moment) && !judge.trips_without_failures() {
                return None;
            }
            let (failures, slow) = (self.window.failures(moment), self.window.slow(moment));
            let limit = judge.most_successes(failures, slow);
            let successes = self.window.successes(lane, moment, limit)?;
            judge.of_window(Figures {
                successes,
                failures,
                slow,
            })
        };
        by_window()
            .or_else(|| judge.of_run(run))
            .or_else(|| last.and_then(|(figures, length)| judge.of_last(figures, length)))
            .map(Step::TripBy)
    }

    #[cold]
    fn settle_probe(&self, admitted: Word, lane: usize, verdict: Verdict) -> Option<Step> {
        if let Some(probes) = self.circuit.many_probes() {
            let was_out = |verdict| match verdict {
                Verdict::Ignored => probes.give_back(admitted),
                Verdict::Success | Verdict::Failure => probes.note(admitted, verdict == Verdict::Success),
            };
            // Once its round is over a probe decides nothing, whether its place is another's by now or not.
            if self.circuit.round_of(admitted).is_none() || !was_out(verdict) {
                self.note_stale(lane);
                return None;
            }
            if verdict == Verdict::Ignored {
                self.window.note(lane, |totals| &totals.ignored);
                return None;
            }
            let (round, tally) = self.circuit.round_of(admitted)?;
            let succeeded = probes.decision(tally)?;
            return Some(Step::Decide {
                round,
                succeeded,
                tally,
            });
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
            Verdict::Success => Some(Step::Close),
            Verdict::Failure => Some(Step::Reopen),
        }
    }

    /// Takes a step that an outcome has made due, unless the stretch that it was admitted in is over.
    pub(super) fn take(&self, step: Step, admitted: Word, lane: usize, now: u64) -> Option<Change> {
        let now = millis_up(now);
        let (stretch, cause) = match step {
            Step::Trip { successes, failures } => (admitted, Cause::Tripped { successes, failures }),
            Step::TripBy(cause) => (admitted, cause),
            Step::Reopen => (admitted, Cause::ProbeFailed),
            Step::Close => (admitted, Cause::ProbeSucceeded),
            Step::Decide {
                round,
                succeeded,
                tally,
            } => (round, decided(succeeded, tally)),
        };
        let closes = matches!(step, Step::Close | Step::Decide { succeeded: true, .. });
        let (state, generation) = if closes {
            (State::Closed, stretch.generation().wrapping_add(1))
        } else {
            let again =
                stretch.state() != State::Closed || now.saturating_sub(stretch.time()) < self.settled_after;
            self.circuit.opens(stretch, again);
            (State::Open, stretch.generation())
        };
        let change = self.circuit.leave(stretch, state, generation, now, cause);
        // The outcome of a call that was not the only probe has been counted.
        if change.is_none() && matches!(step, Step::Close | Step::Reopen) {
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
            slow: self
                .window
                .slow(self.window.moment(self.word().generation(), now)),
            rejected: self.window.noted(|totals| &totals.rejected),
            ignored: self.window.noted(|totals| &totals.ignored),
            cancelled: self.window.noted(|totals| &totals.cancelled),
            stale: self.window.noted(|totals| &totals.stale),
            would_reject: 0,
        }
    }
}

fn decided(succeeded: bool, tally: Tally) -> Cause {
    let Tally { successes, failures } = tally;
    if succeeded {
        Cause::ProbesSucceeded { successes, failures }
    } else {
        Cause::ProbesFailed { successes, failures }
    }
}

fn slow_limit(settings: &Settings) -> u64 {
    settings.more.slow_limit.map_or(u64::MAX, nanos)
}

fn told(gate: Gate) -> CircuitState {
    match gate {
        Gate::Pass(word) | Gate::Shadowed(word) => word.visible(),
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
