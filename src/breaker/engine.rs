//! The state machine: pure, without a lock, with the time as an argument.
//!
//! Times are nanoseconds since the breaker was built. What changes the state for all to see is a [`Step`], found
//! without being taken, so that whoever drives the engine can bring steps into an order and report each of them once.

use std::time::Duration;

use super::{
    event::Cause,
    figures::{Counts, Health},
    hystrix::HystrixRelease,
    judge::Judge,
    sync::{AcqRel, Acquire, AtomicU64},
    window::{Moment, Window},
    word::{DISABLED, FORCED_CLOSED, FORCED_OPEN, State, Word},
};
use crate::call::{CircuitState, Verdict};

pub(super) const NANOS_PER_MILLI: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Engine {
    word: AtomicU64,
    window: Window,
    judge: Judge,
    /// In milliseconds, as in the word.
    sleep_window: u64,
    probe_lease: u64,
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
        let mode = if settings.enabled { 0 } else { DISABLED };
        Engine {
            word: AtomicU64::new(Word::new(State::Closed, 0, 0, mode).0),
            window: Window::new(nanos(settings.window), settings.lanes.next_power_of_two()),
            judge: settings.judge,
            sleep_window: millis_up(nanos(settings.sleep_window)),
            probe_lease: millis_up(nanos(settings.probe_lease)),
        }
    }

    #[inline]
    pub(super) fn probe_lease(&self) -> Duration {
        Duration::from_millis(self.probe_lease)
    }

    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    /// What a call would be told. Reads the clock only if the circuit is neither closed nor forced.
    #[inline]
    pub(super) fn look(&self, now: impl FnOnce() -> u64) -> Gate {
        let word = self.word();
        if word.is_plainly_closed() {
            Gate::Pass(word)
        } else {
            self.look_closer(word, now)
        }
    }

    #[cold]
    fn look_closer(&self, word: Word, now: impl FnOnce() -> u64) -> Gate {
        if word.is(DISABLED) {
            return Gate::Pass(word);
        }
        let reject = |retry_in| Gate::Reject {
            state: word.visible(),
            retry_in,
        };
        if word.is(FORCED_OPEN) {
            return reject(None);
        }
        if word.is(FORCED_CLOSED) {
            return Gate::Pass(word);
        }
        let wait = match word.state() {
            State::Closed => return Gate::Pass(word),
            State::Vacant => return Gate::Probe,
            State::Open => self.sleep_window,
            State::Probing => self.probe_lease,
        };
        let left = (word.time() + wait)
            .saturating_mul(NANOS_PER_MILLI)
            .saturating_sub(now());
        match word.state() {
            _ if left == 0 => Gate::Probe,
            State::Open => reject(Some(Duration::from_nanos(left))),
            // It may be handed back, or end, at any time.
            _ => reject(None),
        }
    }

    /// The state with the sleep window taken into account.
    pub(super) fn state(&self, now: impl FnOnce() -> u64) -> CircuitState {
        told(self.look(now))
    }

    /// The same of the machine below any force.
    pub(super) fn unforced_state(&self, now: impl FnOnce() -> u64) -> CircuitState {
        let word = self.word();
        told(self.look_closer(word.with_mode(word.mode() & DISABLED), now))
    }

    /// Takes the probe, if one may go out; else says what is the case by now. The clock is read after the word: a
    /// thread that was held up in between must not measure a sleep by a time before it.
    pub(super) fn take_probe(&self, now: impl Fn() -> u64) -> Result<Change, Gate> {
        loop {
            let word = self.word();
            match self.look_closer(word, &now) {
                Gate::Probe => {}
                other => return Err(other),
            }
            let probing = Word::new(State::Probing, word.generation(), millis_up(now()), 0);
            if self
                .word
                .compare_exchange(word.0, probing.0, AcqRel, Acquire)
                .is_ok()
            {
                return Ok(Change {
                    from: word,
                    to: probing,
                    cause: Cause::SleepWindowEnded,
                });
            }
        }
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
                self.hand_back(admitted);
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
        let change = self.leave(admitted, state, generation, millis_up(now), cause);
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
            self.hand_back(admitted);
        }
    }

    /// The next call is a probe again. The circuit is half-open before and after, so this is no step.
    fn hand_back(&self, admitted: Word) {
        if admitted.is_probe() {
            let (generation, time) = (admitted.generation(), admitted.time());
            // The cause is told to nobody.
            let _ = self.leave(admitted, State::Vacant, generation, time, Cause::ProbeFailed);
        }
    }

    /// Goes from this stretch to another state, whatever the mode is by now, if the stretch has not ended.
    fn leave(&self, stretch: Word, state: State, generation: u16, time: u64, cause: Cause) -> Option<Change> {
        self.change(cause, |word| {
            word.is_same_stretch(stretch)
                .then(|| Word::new(state, generation, time, word.mode()))
        })
    }

    fn change(&self, cause: Cause, next: impl Fn(Word) -> Option<Word>) -> Option<Change> {
        let mut from = self.word();
        loop {
            let to = next(from)?;
            match self.word.compare_exchange_weak(from.0, to.0, AcqRel, Acquire) {
                Ok(_) => return Some(Change { from, to, cause }),
                Err(now) => from = Word(now),
            }
        }
    }

    /// Closed, with an empty window and no force. A breaker that is switched off stays so.
    pub(super) fn reset(&self, now: u64) -> Option<Change> {
        self.change(Cause::Reset, |word| {
            Some(afresh(word, now).with_mode(word.mode() & DISABLED))
        })
    }

    /// Sets the force, one of the modes or none, and leaves the machine below alone.
    pub(super) fn force(&self, force: u64) -> Option<Change> {
        self.change(Cause::Forced, |word| {
            let forced = word.with_mode(word.mode() & DISABLED | force);
            (forced != word).then_some(forced)
        })
    }

    /// Switches the breaker on or off. One that is switched on starts afresh.
    pub(super) fn set_enabled(&self, enabled: bool, now: u64) -> Option<Change> {
        let cause = if enabled { Cause::Enabled } else { Cause::Disabled };
        self.change(cause, |word| {
            if word.is(DISABLED) != enabled {
                None
            } else if enabled {
                Some(afresh(word, now).with_mode(word.mode() & !DISABLED))
            } else {
                Some(word.with_mode(word.mode() | DISABLED))
            }
        })
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

fn afresh(word: Word, now: u64) -> Word {
    Word::new(
        State::Closed,
        word.generation().wrapping_add(1),
        millis_up(now),
        word.mode(),
    )
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn millis_up(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_MILLI)
}
