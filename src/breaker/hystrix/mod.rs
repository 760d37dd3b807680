//! Hystrix's own machine, in the two forms that its releases have: judged on health ticks, not by each outcome.
//!
//! The ticks follow each other in a fixed interval from the beginning of a window, which is the building of the
//! breaker, the latest closing of the circuit or the latest reset. There is no task that makes them: whoever comes
//! next works out what the ticks since then have seen. Times are whole milliseconds since the breaker was built, cut
//! off as by the clock that Hystrix reads.

mod ticks;
mod verdicts;

#[cfg(all(test, outbound_loom))]
mod loom_tests;
#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests;

use std::time::Duration;

use self::ticks::Ticks;
pub use self::verdicts::HystrixVerdicts;
use super::{
    circuit::Circuit,
    engine::{Change, Gate, NANOS_PER_MILLI, Settings, millis_up, nanos},
    event::Cause,
    figures::{Counts, Health},
    judge::Rules,
    sync::{AtomicU64, SeqCst},
    word::{DISABLED, FORCED_CLOSED, FORCED_OPEN, State, Word},
};
use crate::call::{CircuitState, Verdict};

/// A release of Hystrix whose circuit a breaker reproduces. See the [states](super#states-of-hystrix).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HystrixRelease {
    /// 1.5.12, which Spring Cloud Edgware ships: a half-open machine, judged on health ticks.
    V1_5_12,
    /// 1.5.18, the last one, and 1.5.14 to 1.5.17: a single test in each sleep window, judged when a call asks.
    V1_5_18,
}

/// Who wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A call that wants to be let through.
    Call,
    /// Whoever reads the state.
    Reader,
    /// Whoever must have the past in order and asks nothing: an outcome, or a change by hand.
    Nobody,
}

#[derive(Debug)]
pub(super) struct Engine {
    circuit: Circuit,
    /// When the window began whose circuit is not closed; as long as it is closed, the word tells.
    origin: Mark,
    /// The first tick of the window that is not known to be good.
    unjudged: Mark,
    ticks: Ticks,
    rules: Rules,
    release: HystrixRelease,
    /// In milliseconds, as all times here.
    interval: u64,
}

/// The circuit has to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trip {
    closed: Word,
    at: u64,
    health: Health,
}

/// A change of state that an outcome has made due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Close,
    Reopen,
}

impl Engine {
    pub(super) fn new(settings: Settings, release: HystrixRelease, interval: Duration) -> Self {
        let interval = millis_up(nanos(interval)).max(1);
        let length = millis(nanos(settings.window)) / interval;
        Engine {
            // A trial goes out strictly after the sleep window, by a clock of whole milliseconds.
            circuit: Circuit::new(&settings, 1),
            origin: Mark::default(),
            unjudged: Mark::default(),
            ticks: Ticks::new(length, settings.lanes.next_power_of_two()),
            rules: Rules::new(settings.judge),
            release,
            interval,
        }
    }

    /// Takes over what can change while calls go on. The window is kept.
    pub(super) fn set(&self, settings: &Settings) {
        self.circuit.set(settings);
        self.rules.set(settings.judge);
    }

    /// A call that is let through by the word of a call that would be rejected: it decides nothing, in either release.
    pub(super) fn bystander(&self) -> Word {
        let word = self.word();
        Word::new(State::Closed, word.generation(), word.time(), FORCED_CLOSED)
    }

    pub(super) fn probe_lease(&self) -> Duration {
        self.circuit.probe_lease()
    }

    pub(super) fn word(&self) -> Word {
        self.circuit.word()
    }

    /// The latest tick at this time, of a window that began at `origin`.
    fn tick(&self, origin: u64, now: u64) -> u64 {
        now.saturating_sub(origin) / self.interval
    }

    /// When the window of this word began. A word that is out of date may not know.
    fn origin(&self, word: Word) -> Option<u64> {
        match word.state() {
            State::Closed => Some(word.time()),
            _ => self.origin.of(word.generation()),
        }
    }

    /// The current word and the beginning of its window.
    fn word_and_origin(&self) -> (Word, Option<u64>) {
        let mut word = self.word();
        loop {
            let origin = self.origin(word);
            if origin.is_some() {
                return (word, origin);
            }
            // The mark is set before the word that needs it, so it is the word that has been left meanwhile.
            let now = self.word();
            if now == word {
                return (word, None);
            }
            word = now;
        }
    }

    /// Has the circuit to open, by what the ticks until now show?
    ///
    /// 1.5.12 judges at each tick, so the first bad one since the last look counts. 1.5.18 judges when it is asked,
    /// by the latest tick alone.
    pub(super) fn due(&self, asker: Asker, now: u64) -> Option<Trip> {
        let word = self.word();
        if word.state() != State::Closed || word.is(DISABLED) || !self.answers(asker, word) {
            return None;
        }
        let now = millis(now);
        let tick = self.tick(word.time(), now);
        let first = self.unjudged.of(word.generation()).unwrap_or(0);
        if tick < first {
            return None;
        }
        self.judge(word, first, tick, now)
    }

    fn answers(&self, asker: Asker, word: Word) -> bool {
        match (self.release, asker) {
            (HystrixRelease::V1_5_12, _) | (HystrixRelease::V1_5_18, Asker::Reader) => true,
            (HystrixRelease::V1_5_18, Asker::Nobody) => false,
            // Such a call is turned away before the figures are looked at.
            (HystrixRelease::V1_5_18, Asker::Call) => !word.is(FORCED_OPEN),
        }
    }

    #[cold]
    fn judge(&self, closed: Word, first: u64, tick: u64, now: u64) -> Option<Trip> {
        let bad = match self.release {
            HystrixRelease::V1_5_18 => self.bad(closed.generation(), tick).map(|health| (now, health)),
            HystrixRelease::V1_5_12 => self
                .first_bad(closed.generation(), first, tick)
                .map(|(tick, health)| (closed.time() + tick * self.interval, health)),
        };
        if let Some((at, health)) = bad {
            return Some(Trip { closed, at, health });
        }
        self.unjudged.advance(closed.generation(), tick + 1);
        None
    }

    /// Does this tick show a window that has to open the circuit?
    fn bad(&self, generation: u16, tick: u64) -> Option<Health> {
        let shown = self.ticks.shown_at(tick);
        if !self.rules.judge().trips_without_failures()
            && self.ticks.failures(generation, shown.clone()).0 == 0
        {
            return None;
        }
        let figures = self.ticks.figures(generation, shown);
        self.trips(figures.health, figures.whole)
    }

    fn trips(&self, health: Health, whole: bool) -> Option<Health> {
        // Where a bucket has made place for a later one, a later tick is judged by somebody else.
        (whole && self.rules.judge().trips(health.successes, health.failures)).then_some(health)
    }

    /// The first bad tick among these. An outcome of the running interval is counted only after all ticks before it
    /// were judged, so no outcome can be later than the bucket before the first tick.
    fn first_bad(&self, generation: u16, first: u64, last: u64) -> Option<(u64, Health)> {
        if first == last {
            return self.bad(generation, first).map(|health| (first, health));
        }
        // Ticks after these show an empty window, as the very first one did.
        let last = last.min(first + self.ticks.length());
        let buckets = self.ticks.shown_at(first).start..last;
        if !self.rules.judge().trips_without_failures()
            && self.ticks.failures(generation, buckets.clone()).0 == 0
        {
            return None;
        }
        // Each bucket is read once, for all ticks that show it.
        let figures: Vec<_> = buckets
            .clone()
            .map(|bucket| self.ticks.figures(generation, bucket..bucket + 1))
            .collect();
        (first..=last).find_map(|tick| {
            let shown = self.ticks.shown_at(tick);
            let (from, to) = (shown.start - buckets.start, shown.end - buckets.start);
            let shown = figures.get(from as usize..to as usize)?;
            let mut health = Health::default();
            for bucket in shown {
                health.successes += bucket.health.successes;
                health.failures += bucket.health.failures;
            }
            let whole = shown.iter().all(|bucket| bucket.whole);
            self.trips(health, whole).map(|health| (tick, health))
        })
    }

    pub(super) fn trip(&self, trip: Trip) -> Option<Change> {
        let Trip { closed, at, health } = trip;
        self.origin.advance(closed.generation(), closed.time());
        let cause = Cause::Tripped {
            successes: health.successes,
            failures: health.failures,
        };
        self.leave(closed, State::Open, at, cause)
    }

    /// What a call would be told by the state as it is; `due` comes first.
    pub(super) fn look(&self, now: u64) -> Gate {
        self.circuit.look(|| now)
    }

    pub(super) fn state(&self) -> CircuitState {
        self.word().visible()
    }

    pub(super) fn unforced_state(&self) -> CircuitState {
        let word = self.word();
        word.with_mode(word.mode() & DISABLED).visible()
    }

    /// Takes the probe, if one may go out; else says what is the case by now. In 1.5.18 the circuit stays open, and
    /// its next sleep window begins with the test.
    pub(super) fn take_probe(&self, now: impl Fn() -> u64) -> Result<Change, Gate> {
        let state = match self.release {
            HystrixRelease::V1_5_12 => State::Probing,
            HystrixRelease::V1_5_18 => State::Open,
        };
        self.circuit.take_probe(state, millis, now)
    }

    /// Does the outcome of this call decide, as the word is now?
    ///
    /// In 1.5.12 that of the trial which is out. In 1.5.18 that of each call that came through while the circuit was
    /// open, as a test or by force, as long as it still is.
    fn decides(&self, admitted: Word, word: Word) -> bool {
        match self.release {
            HystrixRelease::V1_5_12 => admitted.is_probe() && word.is_same_stretch(admitted),
            HystrixRelease::V1_5_18 => {
                admitted.state() == State::Open
                    && word.state() == State::Open
                    && word.generation() == admitted.generation()
            }
        }
    }

    /// Books the outcome of a call that was admitted under this word.
    pub(super) fn settle(&self, admitted: Word, lane: usize, verdict: Verdict, now: u64) -> Option<Step> {
        let word = self.word();
        if word.generation() != admitted.generation() {
            self.ticks.note(lane, |totals| &totals.stale);
            return None;
        }
        // Hystrix's figures go on without a circuit.
        let decides = !admitted.is(DISABLED) && self.decides(admitted, word);
        match verdict {
            // It is booked once the circuit has closed, in the window that begins with it.
            Verdict::Success if decides => return Some(Step::Close),
            Verdict::Success | Verdict::Failure => {
                self.book(admitted.generation(), lane, verdict == Verdict::Success, now);
            }
            Verdict::Ignored => self.ticks.note(lane, |totals| &totals.ignored),
        }
        let reopens = decides && verdict != Verdict::Success && self.release == HystrixRelease::V1_5_12;
        reopens.then_some(Step::Reopen)
    }

    fn book(&self, generation: u16, lane: usize, success: bool, now: u64) {
        match self.word_and_origin() {
            (word, Some(origin)) if word.generation() == generation => {
                let bucket = self.tick(origin, millis(now));
                if success {
                    self.ticks.success(lane, generation, bucket);
                } else {
                    self.ticks.failure(generation, bucket);
                }
            }
            _ => self.ticks.note(lane, |totals| &totals.stale),
        }
    }

    /// Takes a step that an outcome has made due, unless something else has happened to the circuit meanwhile.
    pub(super) fn take(&self, step: Step, admitted: Word, lane: usize, now: u64) -> Option<Change> {
        match step {
            Step::Reopen => self.leave(admitted, State::Open, millis(now), Cause::ProbeFailed),
            Step::Close => {
                let closed = self.circuit.begin(millis(now), Cause::ProbeSucceeded, |word| {
                    self.decides(admitted, word).then_some(word)
                });
                let change = self.marked(closed);
                let generation = change.map_or(admitted, |change| change.to).generation();
                self.book(generation, lane, true, now);
                change
            }
        }
    }

    /// The call was given up: it counts nothing, and a trial is handed back, so that the next call is one.
    pub(super) fn cancel(&self, admitted: Word, lane: usize) {
        if admitted.is(DISABLED) {
            return;
        }
        self.ticks.note(lane, |totals| &totals.cancelled);
        self.circuit.hand_back(admitted);
    }

    /// Goes from this stretch to another state of the same window, whatever the mode is by now.
    fn leave(&self, stretch: Word, state: State, time: u64, cause: Cause) -> Option<Change> {
        self.circuit
            .leave(stretch, state, stretch.generation(), time, cause)
    }

    /// The ticks of a window that begins by this change begin with it.
    fn marked(&self, change: Option<Change>) -> Option<Change> {
        if let Some(Change { from, to, .. }) = change {
            if from.generation() != to.generation() {
                // So that the marks are never far behind, as generations wrap.
                self.origin.advance(to.generation(), to.time());
                self.unjudged.advance(to.generation(), 0);
            }
        }
        change
    }

    pub(super) fn reset(&self, now: u64) -> Option<Change> {
        self.marked(self.circuit.reset(millis(now)))
    }

    pub(super) fn force(&self, force: u64) -> Option<Change> {
        self.circuit.force(force)
    }

    pub(super) fn set_enabled(&self, enabled: bool, now: u64) -> Option<Change> {
        self.marked(self.circuit.set_enabled(enabled, millis(now)))
    }

    pub(super) fn note_rejected(&self, lane: usize) {
        self.ticks.note(lane, |totals| &totals.rejected);
    }

    /// What the latest tick shows.
    pub(super) fn health(&self, now: u64) -> Health {
        self.figures(now, |tick| self.ticks.shown_at(tick))
    }

    fn figures(&self, now: u64, buckets: impl Fn(u64) -> std::ops::Range<u64>) -> Health {
        let (word, origin) = self.word_and_origin();
        origin.map_or_else(Health::default, |origin| {
            let tick = self.tick(origin, millis(now));
            self.ticks.figures(word.generation(), buckets(tick)).health
        })
    }

    /// What the latest tick shows, and the running interval.
    pub(super) fn counts(&self, now: u64) -> Counts {
        let window = self.figures(now, |tick| self.ticks.shown_at(tick).start..tick + 1);
        Counts {
            successes: window.successes,
            failures: window.failures,
            slow: 0,
            rejected: self.ticks.noted(|totals| &totals.rejected),
            ignored: self.ticks.noted(|totals| &totals.ignored),
            cancelled: self.ticks.noted(|totals| &totals.cancelled),
            stale: self.ticks.noted(|totals| &totals.stale),
            would_reject: 0,
        }
    }
}

fn millis(nanos: u64) -> u64 {
    nanos / NANOS_PER_MILLI
}

/// A number that belongs to a generation, and only moves forward: `generation: 16 | number: 48`, from the top.
#[derive(Debug)]
struct Mark(AtomicU64);

const NUMBER: u32 = 48;

impl Default for Mark {
    fn default() -> Self {
        Mark(AtomicU64::new(0))
    }
}

impl Mark {
    #[inline]
    fn of(&self, generation: u16) -> Option<u64> {
        let seen = self.0.load(SeqCst);
        (seen >> NUMBER == u64::from(generation)).then_some(seen & ((1 << NUMBER) - 1))
    }

    #[cold]
    fn advance(&self, generation: u16, number: u64) {
        let new = u64::from(generation) << NUMBER | number.min((1 << NUMBER) - 1);
        let mut seen = self.0.load(SeqCst);
        loop {
            let generations = generation.wrapping_sub((seen >> NUMBER) as u16);
            let is_later = match generations {
                0 => new > seen,
                _ => generations < 1 << 15,
            };
            if !is_later {
                return;
            }
            match self.0.compare_exchange_weak(seen, new, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
