//! The word of a circuit as its threads share it: what it tells a call, and how it is changed.

use std::time::Duration;

use super::{
    engine::{Change, Gate, NANOS_PER_MILLI, Settings, millis_up, nanos},
    event::Cause,
    probes::{Probes, Tally},
    sleep::Sleep,
    sync::{AcqRel, Acquire, AtomicU64, Relaxed},
    word::{DISABLED, FORCED_CLOSED, FORCED_OPEN, State, Word},
};

#[derive(Debug)]
pub(super) struct Circuit {
    word: AtomicU64,
    sleep: Sleep,
    probes: Probes,
    /// In milliseconds, as in the word.
    probe_lease: AtomicU64,
    /// What must have passed besides, where a wait is over only strictly after its end.
    beyond: u64,
}

impl Circuit {
    pub(super) fn new(settings: &Settings, beyond: u64) -> Self {
        let mode = if settings.enabled { 0 } else { DISABLED };
        Circuit {
            word: AtomicU64::new(Word::new(State::Closed, 0, 0, mode).0),
            sleep: Sleep::new(settings.sleep_window, settings.more.growth),
            probes: Probes::new(settings.more.probes, settings.more.success_percent),
            probe_lease: AtomicU64::new(millis_up(nanos(settings.probe_lease))),
            beyond,
        }
    }

    /// Takes over what can change while calls go on.
    pub(super) fn set(&self, settings: &Settings) {
        self.sleep.set(settings.sleep_window, settings.more.growth);
        self.probes.set(settings.more.success_percent);
        self.probe_lease
            .store(millis_up(nanos(settings.probe_lease)), Relaxed);
    }

    #[inline]
    pub(super) fn probe_lease(&self) -> Duration {
        Duration::from_millis(self.probe_lease.load(Relaxed))
    }

    /// Several probes, if they decide together.
    pub(super) fn many_probes(&self) -> Option<&Probes> {
        self.probes.are_many().then_some(&self.probes)
    }

    /// The circuit is about to leave this stretch and to open, again if it has not been closed for long.
    pub(super) fn opens(&self, stretch: Word, again: bool) {
        if self.word().is_same_stretch(stretch) {
            self.sleep.opens(again);
        }
    }

    #[inline]
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
            self.gate(word, now)
        }
    }

    /// What a call would be told under this word.
    #[cold]
    pub(super) fn gate(&self, word: Word, now: impl FnOnce() -> u64) -> Gate {
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
        match word.state() {
            State::Closed => Gate::Pass(word),
            State::Vacant => Gate::Probe,
            State::Open => match self.left(word, self.sleep.length(word), now()) {
                0 => Gate::Probe,
                left => reject(Some(Duration::from_nanos(left))),
            },
            State::Probing => {
                let now = now();
                let is_free = if self.probes.are_many() {
                    self.probes.have_room(word, |probe| self.lease_left(probe, now))
                } else {
                    self.lease_left(word, now) == 0
                };
                // A probe may be handed back, or end, at any time.
                if is_free { Gate::Probe } else { reject(None) }
            }
        }
    }

    /// What is left of a wait that began with this word, in nanoseconds.
    fn left(&self, since: Word, wait: u64, now: u64) -> u64 {
        (since.time() + wait + self.beyond)
            .saturating_mul(NANOS_PER_MILLI)
            .saturating_sub(now)
    }

    fn lease_left(&self, probe: Word, now: u64) -> u64 {
        self.left(probe, self.probe_lease.load(Relaxed), now)
    }

    /// Takes the probe, if one may go out, and leaves the circuit in this state; else says what is the case by now. The
    /// clock is read after the word: a thread that was held up in between must not measure a sleep by a time before it.
    pub(super) fn take_probe(
        &self,
        state: State,
        millis: impl Fn(u64) -> u64,
        now: impl Fn() -> u64,
    ) -> Result<Change, Gate> {
        loop {
            let word = self.word();
            match self.gate(word, &now) {
                Gate::Probe => {}
                other => return Err(other),
            }
            if self.probes.are_many() {
                match self.take_one_of_many(word, now()) {
                    Some(change) => return Ok(change),
                    None => continue,
                }
            }
            let probing = Word::new(state, word.generation(), millis(now()), 0);
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

    /// Takes one of several probes, unless the word has changed or others were faster. The place is taken first, so
    /// that whoever begins a round is in it.
    fn take_one_of_many(&self, word: Word, now: u64) -> Option<Change> {
        // A clock may be behind the one that the round began by.
        let time = millis_up(now).max(word.time());
        let probe = Word::new(State::Probing, word.generation(), time, 0);
        let begins = word.state() != State::Probing;
        let round = if begins { probe } else { word };
        if !self
            .probes
            .take(probe, round, |probe| self.lease_left(probe, now))
        {
            return None;
        }
        let is_in = if begins {
            self.word
                .compare_exchange(word.0, round.0, AcqRel, Acquire)
                .is_ok()
        } else {
            self.word() == word
        };
        if !is_in {
            self.probes.give_back(probe);
            return None;
        }
        Some(Change {
            from: word,
            to: probe,
            cause: Cause::SleepWindowEnded,
        })
    }

    /// The round that this probe belongs to, and how it stands, if it is not over.
    pub(super) fn round_of(&self, probe: Word) -> Option<(Word, Tally)> {
        let word = self.word();
        let is_its_own = word.state() == State::Probing
            && word.generation() == probe.generation()
            && word.time() <= probe.time();
        is_its_own.then(|| (word, self.probes.tally(word)))
    }

    /// Goes from this stretch to another state, whatever the mode is by now, if the stretch has not ended.
    pub(super) fn leave(
        &self,
        stretch: Word,
        state: State,
        generation: u16,
        time: u64,
        cause: Cause,
    ) -> Option<Change> {
        self.change(cause, |word| {
            word.is_same_stretch(stretch)
                .then(|| Word::new(state, generation, time, word.mode()))
        })
    }

    /// The next call is a probe again. The circuit is half-open before and after, so this is no step.
    pub(super) fn hand_back(&self, admitted: Word) {
        if !admitted.is_probe() {
        } else if self.probes.are_many() {
            self.probes.give_back(admitted);
        } else {
            let (generation, time) = (admitted.generation(), admitted.time());
            // The cause is told to nobody.
            let _ = self.leave(admitted, State::Vacant, generation, time, Cause::ProbeFailed);
        }
    }

    /// Closed, with a new window that begins at this time, in the mode of the word that `next` gives.
    pub(super) fn begin(
        &self,
        time: u64,
        cause: Cause,
        next: impl Fn(Word) -> Option<Word>,
    ) -> Option<Change> {
        self.change(cause, |word| {
            let mode = next(word)?.mode();
            let generation = word.generation().wrapping_add(1);
            Some(Word::new(State::Closed, generation, time, mode))
        })
    }

    /// Closed, with an empty window and no force. A breaker that is switched off stays so.
    pub(super) fn reset(&self, time: u64) -> Option<Change> {
        self.sleep.begin_anew();
        self.begin(time, Cause::Reset, |word| {
            Some(word.with_mode(word.mode() & DISABLED))
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
    pub(super) fn set_enabled(&self, enabled: bool, time: u64) -> Option<Change> {
        if enabled {
            let begun = self.begin(time, Cause::Enabled, |word| {
                word.is(DISABLED).then(|| word.with_mode(word.mode() & !DISABLED))
            });
            // One that was on goes on, its sleep included.
            if begun.is_some() {
                self.sleep.begin_anew();
            }
            begun
        } else {
            self.change(Cause::Disabled, |word| {
                (!word.is(DISABLED)).then(|| word.with_mode(word.mode() | DISABLED))
            })
        }
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
}
