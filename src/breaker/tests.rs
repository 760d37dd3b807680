//! The engine against a model that keeps every outcome and recomputes everything, and under threads, both with the
//! time as an argument.

#![allow(clippy::disallowed_types, reason = "a lock in a test holds nobody up")]

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::{
    Breaker, Cause, Counts, Force, HystrixRelease, Transition,
    engine::{Change, Engine, Gate, More, Settings, Step},
    judge::Judge,
    window::BUCKETS,
    word::{DISABLED, FORCED_CLOSED, FORCED_OPEN, State, Word},
};
use crate::call::{CircuitState, Verdict};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const WINDOW: u64 = SECOND;
const SLEEP: u64 = 500 * MILLI;
const LEASE: u64 = 800 * MILLI;

fn settings(volume: u32, percent: u32, lanes: usize) -> Settings {
    Settings {
        judge: Judge::new(volume, percent),
        window: Duration::from_nanos(WINDOW),
        sleep_window: Duration::from_nanos(SLEEP),
        probe_lease: Duration::from_nanos(LEASE),
        enabled: true,
        hystrix: None,
        lanes,
        more: More::default(),
    }
}

/// An engine that takes each step at once.
struct Driven(Engine);

impl Driven {
    fn admit(&self, now: u64) -> Result<(Word, Option<Change>), Gate> {
        match self.0.look(|| now) {
            Gate::Pass(word) => Ok((word, None)),
            Gate::Probe => self.0.take_probe(|| now).map(|change| (change.to, Some(change))),
            reject => Err(reject),
        }
    }

    fn settle(&self, admitted: Word, lane: usize, verdict: Verdict, now: u64) -> Option<Change> {
        let step = self.0.settle(admitted, lane, verdict, || now)?;
        self.0.take(step, admitted, lane, now)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Natural {
    Closed,
    Open { until: u64 },
    Probing { until: u64 },
    Vacant,
}

/// What the engine has to equal. A call belongs to a stretch, numbered anew with each change of the state.
struct Model {
    volume: u64,
    percent: u64,
    natural: Natural,
    stretch: u64,
    outcomes: Vec<(u64, bool)>,
    force: u64,
    enabled: bool,
    rejected: u64,
    ignored: u64,
    cancelled: u64,
    stale: u64,
}

#[derive(Debug, Clone, Copy)]
struct ModelPermit {
    stretch: u64,
    probe: bool,
    counted: bool,
}

fn up(now: u64) -> u64 {
    now.div_ceil(MILLI) * MILLI
}

impl Model {
    fn go(&mut self, natural: Natural) {
        self.natural = natural;
        self.stretch += 1;
    }

    fn visible(&self) -> CircuitState {
        if !self.enabled {
            return CircuitState::Disabled;
        }
        match (self.force, self.natural) {
            (FORCED_OPEN, _) => CircuitState::ForcedOpen,
            (FORCED_CLOSED, _) => CircuitState::ForcedClosed,
            (_, Natural::Closed) => CircuitState::Closed,
            (_, Natural::Open { .. }) => CircuitState::Open,
            (_, Natural::Probing { .. } | Natural::Vacant) => CircuitState::HalfOpen,
        }
    }

    fn state(&self, now: u64) -> CircuitState {
        match (self.visible(), self.natural) {
            (CircuitState::Open, Natural::Open { until }) if now >= until => CircuitState::HalfOpen,
            (visible, _) => visible,
        }
    }

    fn admit(&mut self, now: u64) -> Option<ModelPermit> {
        let permit = |model: &Model, probe| ModelPermit {
            stretch: model.stretch,
            probe,
            counted: model.enabled,
        };
        match (self.visible(), self.natural) {
            (CircuitState::Disabled | CircuitState::ForcedClosed | CircuitState::Closed, _) => {
                return Some(permit(self, false));
            }
            (CircuitState::ForcedOpen, _) => {}
            (_, Natural::Vacant) => {
                self.go(Natural::Probing {
                    until: up(now) + LEASE,
                });
                return Some(permit(self, true));
            }
            (_, Natural::Open { until } | Natural::Probing { until }) if now >= until => {
                self.go(Natural::Probing {
                    until: up(now) + LEASE,
                });
                return Some(permit(self, true));
            }
            _ => {}
        }
        self.rejected += 1;
        None
    }

    fn window(&self, now: u64) -> (u64, u64) {
        let tick = |time: u64| time / (WINDOW / BUCKETS as u64);
        let within = |good| {
            self.outcomes
                .iter()
                .filter(|(at, was)| *was == good && tick(*at) + BUCKETS as u64 > tick(now))
                .count() as u64
        };
        (within(true), within(false))
    }

    fn settle(&mut self, permit: ModelPermit, verdict: Option<Verdict>, now: u64) {
        if !permit.counted {
            return;
        }
        let current = permit.stretch == self.stretch;
        let verdict = match verdict {
            None => {
                self.cancelled += 1;
                if current && permit.probe {
                    self.go(Natural::Vacant);
                }
                return;
            }
            Some(_) if !current => {
                self.stale += 1;
                return;
            }
            Some(verdict) => verdict,
        };
        match (verdict, permit.probe) {
            (Verdict::Ignored, probe) => {
                self.ignored += 1;
                if probe {
                    self.go(Natural::Vacant);
                }
            }
            (Verdict::Success, true) => self.start_afresh(),
            (Verdict::Failure, true) => self.go(Natural::Open {
                until: up(now) + SLEEP,
            }),
            (verdict, false) => {
                self.outcomes.push((now, verdict == Verdict::Success));
                let (good, bad) = self.window(now);
                let total = good + bad;
                if self.natural == Natural::Closed
                    && total >= self.volume
                    && bad * 100 / total >= self.percent
                {
                    self.go(Natural::Open {
                        until: up(now) + SLEEP,
                    });
                }
            }
        }
    }

    fn start_afresh(&mut self) {
        self.outcomes.clear();
        self.go(Natural::Closed);
    }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Wait(u64),
    Admit,
    Settle(usize, usize, Verdict),
    Drop(usize),
    Reset,
    Force(u64),
    Enable(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let verdict = prop_oneof![
        6 => Just(Verdict::Failure),
        4 => Just(Verdict::Success),
        1 => Just(Verdict::Ignored),
    ];
    let wait = prop_oneof![
        Just(1),
        Just(300_000),
        Just(MILLI),
        Just(99 * MILLI),
        Just(100 * MILLI),
        Just(SLEEP),
        Just(LEASE),
        Just(WINDOW),
        0..3 * SECOND,
    ];
    let op = prop_oneof![
        12 => Just(Op::Admit),
        12 => (any::<usize>(), 0..3usize, verdict).prop_map(|(n, lane, verdict)| Op::Settle(n, lane, verdict)),
        2 => any::<usize>().prop_map(Op::Drop),
        6 => wait.prop_map(Op::Wait),
        1 => prop_oneof![
            2 => Just(Op::Reset),
            1 => prop_oneof![Just(0), Just(FORCED_OPEN), Just(FORCED_CLOSED)].prop_map(Op::Force),
            1 => any::<bool>().prop_map(Op::Enable),
        ],
    ];
    proptest::collection::vec(op, 1..400)
}

/// Of about 200 steps each. `BREAKER_TRACES` asks for more.
pub(super) fn traces() -> u32 {
    let asked = std::env::var("BREAKER_TRACES").ok();
    asked.map_or(400, |traces| traces.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: traces(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_equals_a_model_that_recomputes_everything_from_all_outcomes(
        volume in 1..6u32,
        percent in prop_oneof![Just(50), Just(0), Just(100), 0..=100u32],
        ops in ops(),
    ) {
        let engine = Driven(Engine::new(settings(volume, percent, 2)));
        let mut model = Model {
            volume: volume.into(),
            percent: percent.into(),
            natural: Natural::Closed,
            stretch: 0,
            outcomes: Vec::new(),
            force: 0,
            enabled: true,
            rejected: 0,
            ignored: 0,
            cancelled: 0,
            stale: 0,
        };
        let mut permits: Vec<(Word, ModelPermit)> = Vec::new();
        let mut now = 0;
        for op in ops {
            let before = model.visible();
            let change = match op {
                Op::Wait(nanos) => {
                    now += nanos;
                    None
                }
                Op::Admit => match (engine.admit(now), model.admit(now)) {
                    (Ok((word, change)), Some(permit)) => {
                        prop_assert_eq!(word.is_probe(), permit.probe);
                        permits.push((word, permit));
                        change
                    }
                    (Err(Gate::Reject { state, retry_in }), None) => {
                        engine.0.note_rejected(0);
                        prop_assert_eq!(state, model.state(now));
                        let left = match (state, model.natural) {
                            (CircuitState::Open, Natural::Open { until }) => Some(until - now),
                            _ => None,
                        };
                        prop_assert_eq!(retry_in, left.map(Duration::from_nanos));
                        None
                    }
                    (got, expected) => {
                        return Err(TestCaseError::fail(format!("{got:?} instead of {expected:?}")));
                    }
                },
                Op::Settle(n, lane, verdict) if !permits.is_empty() => {
                    let (word, permit) = permits.swap_remove(n % permits.len());
                    model.settle(permit, Some(verdict), now);
                    // The third lane does not exist: it must do no harm, and only failures count from there.
                    let lane = if lane == 2 { n % 2 } else { lane };
                    engine.settle(word, lane, verdict, now)
                }
                Op::Drop(n) if !permits.is_empty() => {
                    let (word, permit) = permits.swap_remove(n % permits.len());
                    model.settle(permit, None, now);
                    engine.0.cancel(word, 0);
                    None
                }
                Op::Settle(..) | Op::Drop(_) => None,
                Op::Reset => {
                    model.force = 0;
                    model.start_afresh();
                    engine.0.reset(now)
                }
                Op::Force(force) => {
                    model.force = force;
                    engine.0.force(force)
                }
                Op::Enable(enabled) => {
                    if enabled && !model.enabled {
                        model.start_afresh();
                    }
                    model.enabled = enabled;
                    engine.0.set_enabled(enabled, now)
                }
            };
            let after = model.visible();
            let told = change.map_or((before, before), |change| (change.from.visible(), change.to.visible()));
            prop_assert_eq!(told, (before, after), "{:?}", op);
            prop_assert_eq!(engine.0.state(|| now), model.state(now));
            let counts = engine.0.counts(now);
            prop_assert_eq!((counts.successes(), counts.failures()), model.window(now));
            prop_assert_eq!(
                (counts.rejected(), counts.ignored(), counts.cancelled(), counts.stale()),
                (model.rejected, model.ignored, model.cancelled, model.stale)
            );
        }
    }
}

#[test]
fn a_disabled_breaker_is_the_only_one_that_counts_nothing() {
    let engine = Driven(Engine::new(Settings {
        enabled: false,
        ..settings(1, 50, 1)
    }));
    let (word, _) = engine.admit(0).unwrap();
    assert!(word.is(DISABLED));
    assert_eq!(engine.settle(word, 0, Verdict::Failure, 0), None);
    engine.0.cancel(word, 0);
    assert_eq!(engine.0.counts(0), Counts::default());
}

#[test]
fn the_probe_may_go_out_at_the_end_of_the_sleep_window_to_the_instant() {
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let opened = 7 * MILLI;
    let (word, _) = engine.admit(opened).unwrap();
    assert!(engine.settle(word, 0, Verdict::Failure, opened).is_some());
    assert_eq!(
        engine.admit(opened + SLEEP - 1),
        Err(Gate::Reject {
            state: CircuitState::Open,
            retry_in: Some(Duration::from_nanos(1))
        })
    );
    assert!(engine.admit(opened + SLEEP).is_ok());
}

#[test]
fn a_circuit_that_opened_within_a_millisecond_never_sleeps_too_short() {
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let opened = 7 * MILLI + 1;
    let (word, _) = engine.admit(opened).unwrap();
    engine.settle(word, 0, Verdict::Failure, opened);
    assert!(engine.admit(opened + SLEEP).is_err());
    assert!(engine.admit(opened + SLEEP + MILLI).is_ok());
}

/// RAC-03.
#[test]
fn thirty_two_threads_that_ask_as_the_sleep_window_ends_get_one_probe() {
    const THREADS: usize = 32;
    const ROUNDS: u64 = 1_000;
    let breaker = Breaker::builder("x")
        .volume(1)
        .sleep_window(Duration::from_nanos(SLEEP))
        .build()
        .unwrap();
    // The clock of a round is the end of its sleep window, so nothing depends on how fast the threads are. No thread
    // may panic, or the others would wait for it for good; what they find is looked at afterwards.
    let now = AtomicU64::new(0);
    let barrier = Barrier::new(THREADS);
    let admitted = Mutex::new(Vec::new());
    let rounds = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (breaker, now, barrier) = (&breaker, &now, &barrier);
            let (admitted, rounds) = (&admitted, &rounds);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let time = round * SLEEP;
                    if thread == 0 {
                        // Closed in the first round, half-open with the probe out in the others: a failure opens.
                        let out: Vec<super::Permit> = admitted.lock().unwrap().drain(..).collect();
                        let first = breaker.shard().admit_at(true, || time);
                        for permit in out.into_iter().chain(first) {
                            permit.settle_at(Verdict::Failure, || time);
                        }
                        now.store(time + SLEEP, Ordering::Relaxed);
                    }
                    barrier.wait();
                    let time = now.load(Ordering::Relaxed);
                    if let Ok(permit) = breaker.shard().admit_at(true, || time) {
                        admitted.lock().unwrap().push(permit);
                    }
                    barrier.wait();
                    if thread == 0 {
                        rounds.lock().unwrap().push(admitted.lock().unwrap().len());
                    }
                }
            });
        }
    });
    assert_eq!(*rounds.lock().unwrap(), [1; ROUNDS as usize]);
}

#[test]
fn outcomes_of_many_threads_are_all_counted_and_the_last_one_trips() {
    const THREADS: u64 = 8;
    const EACH: u64 = 500;
    for round in 0..20 {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let breaker = Breaker::builder("x")
            .volume((THREADS * EACH) as u32)
            .on_transition(move |transition| log.lock().unwrap().push(transition.cause()))
            .build()
            .unwrap();
        let start = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (breaker, start) = (&breaker, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..EACH {
                        let permit = breaker.shard().admit_at(true, || 0).unwrap();
                        // Half of them fail, whichever comes last.
                        let verdict = if (n + thread) % 2 == 0 {
                            Verdict::Success
                        } else {
                            Verdict::Failure
                        };
                        permit.settle_at(verdict, || 0);
                    }
                });
            }
        });
        let half = THREADS * EACH / 2;
        assert_eq!(
            *told.lock().unwrap(),
            [Cause::Tripped {
                successes: half,
                failures: half
            }],
            "round {round}"
        );
    }
}

#[test]
fn a_step_that_another_thread_overtook_is_not_taken() {
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let (word, _) = engine.admit(0).unwrap();
    let step = engine.0.settle(word, 0, Verdict::Failure, || 0).unwrap();
    assert_eq!(
        step,
        Step::Trip {
            successes: 0,
            failures: 1
        }
    );
    engine.0.reset(0);
    assert_eq!(engine.0.take(step, word, 0, 0), None);
    assert_eq!(engine.0.state(|| 0), CircuitState::Closed);
    assert_eq!(
        engine.0.counts(0).stale(),
        0,
        "it was counted, and wiped by the reset"
    );
}

#[test]
fn a_probe_that_was_overtaken_while_it_was_settled_is_stale() {
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let (word, _) = engine.admit(0).unwrap();
    engine.settle(word, 0, Verdict::Failure, 0);
    let (probe, _) = engine.admit(SLEEP).unwrap();
    let step = engine.0.settle(probe, 0, Verdict::Success, || SLEEP).unwrap();
    assert_eq!(step, Step::Close);
    let (other, _) = engine.admit(SLEEP + LEASE).unwrap();
    assert_eq!(engine.0.take(step, probe, 0, SLEEP + LEASE), None);
    assert_eq!(engine.0.counts(0).stale(), 1);
    assert!(engine.settle(other, 0, Verdict::Success, SLEEP + LEASE).is_some());
}

#[test]
fn a_thread_that_was_held_up_on_its_way_to_the_probe_is_told_no_wait_longer_than_the_sleep_window() {
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let (word, _) = engine.admit(0).unwrap();
    engine.settle(word, 0, Verdict::Failure, 0);
    // As the sleep ends it reads the clock; before it goes on, another thread's probe goes out and fails, later.
    let held_up = std::cell::Cell::new(false);
    let clock = || {
        if held_up.replace(true) {
            return 3 * SLEEP;
        }
        let (probe, _) = engine.admit(SLEEP).unwrap();
        engine.settle(probe, 0, Verdict::Failure, 3 * SLEEP);
        SLEEP
    };
    assert_eq!(
        engine.0.take_probe(clock),
        Err(Gate::Reject {
            state: CircuitState::Open,
            retry_in: Some(Duration::from_nanos(SLEEP))
        })
    );
}

/// RAC-01: state, time of opening and generation are one value. Each word that the circuit has had is left once, and
/// by the word that follows it; a change that was made of what another had changed already would leave one twice.
#[test]
fn threads_that_trip_close_give_up_and_reset_at_once_leave_each_word_once() {
    // A generation has 16 bits, so each round is short of that.
    (0..10).for_each(|_| race());
}

fn race() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 20_000;
    // Nobody orders the steps but the engine itself.
    let engine = Driven(Engine::new(settings(1, 50, 1)));
    let clock = AtomicU64::new(SECOND);
    let tick = || clock.fetch_add(SLEEP / 4, Ordering::Relaxed);
    let barrier = Barrier::new(THREADS as usize);
    let changes: Vec<Change> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, tick, barrier) = (&engine, &tick, &barrier);
                scope.spawn(move || {
                    let mut changes = Vec::new();
                    barrier.wait();
                    for call in 0..CALLS {
                        if let Ok((word, taken)) = engine.admit(tick()) {
                            changes.extend(taken);
                            match (call + thread) % 4 {
                                0 => changes.extend(engine.settle(word, 0, Verdict::Success, tick())),
                                1 => changes.extend(engine.settle(word, 0, Verdict::Failure, tick())),
                                _ => engine.0.cancel(word, 0),
                            }
                        }
                        if call % 8 == thread {
                            changes.extend(engine.0.reset(tick()));
                        }
                    }
                    changes
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    // A probe that was handed back is told by nobody; it takes the place of the one that was out.
    let out = |word: Word| match word.state() {
        State::Vacant => Word::new(State::Probing, word.generation(), word.time(), word.mode()).0,
        _ => word.0,
    };
    let mut left: Vec<u64> = changes.iter().map(|change| out(change.from)).collect();
    let mut reached: Vec<u64> = changes.iter().map(|change| out(change.to)).collect();
    left.sort_unstable();
    reached.sort_unstable();
    assert!(changes.len() > 1_000, "{}", changes.len());
    assert!(
        left.windows(2).all(|pair| pair[0] != pair[1]),
        "a word was left twice"
    );
    reached.retain(|word| left.binary_search(word).is_err());
    assert_eq!(reached.len(), 1, "one word is the last");
    assert_eq!(reached, [out(engine.0.word())]);
}

/// Threads that do anything in any order, each by its own seed, on a clock that each moves on: whatever they did, each
/// transition follows the one before it, each rejection is counted, and afterwards the circuit can be closed by one
/// call. `BREAKER_SEEDS` asks for more.
#[test]
fn threads_that_do_anything_leave_a_circuit_that_closes() {
    let asked = std::env::var("BREAKER_SEEDS").ok();
    let seeds: u64 = asked.map_or(20, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        for machine in [None, Some(HystrixRelease::V1_5_12), Some(HystrixRelease::V1_5_18)] {
            do_anything(seed, machine);
        }
    }
}

fn do_anything(seed: u64, machine: Option<HystrixRelease>) {
    const THREADS: u64 = 3;
    const STEPS: u64 = 2_000;
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let settings = Settings {
        hystrix: machine.map(|release| (release, Duration::from_nanos(WINDOW / 4))),
        ..settings(2, 50, 2)
    };
    let hook = move |transition: &Transition| {
        log.lock().unwrap().push((transition.from(), transition.to()));
    };
    let breaker = Breaker::with(Breaker::builder("x").on_transition(hook), settings);
    let clock = AtomicU64::new(0);
    let now = || clock.load(Ordering::Relaxed);
    let rejected: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (breaker, clock, now) = (&breaker, &clock, &now);
                scope.spawn(move || {
                    let mut dice = seed * THREADS + thread;
                    let mut throw = |sides: u64| {
                        // SplitMix64.
                        dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
                        let mut mixed = dice;
                        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                        (mixed ^ mixed >> 31) % sides
                    };
                    let mut held: Vec<super::Permit> = Vec::new();
                    let mut rejected = 0;
                    for _ in 0..STEPS {
                        clock.fetch_add(throw(SLEEP / 20), Ordering::Relaxed);
                        match throw(64) {
                            0 => breaker.reset(),
                            1 => breaker.force(Force::Open),
                            2 => breaker.force(Force::Closed),
                            3..8 => breaker.force(Force::None),
                            8 => breaker.set_enabled(false),
                            9..12 => breaker.set_enabled(true),
                            12..38 => match breaker.shard().admit_at(true, now) {
                                Ok(permit) => held.push(permit),
                                Err(_) => rejected += 1,
                            },
                            _ if held.is_empty() => {}
                            what => {
                                let permit = held.swap_remove(throw(held.len() as u64) as usize);
                                match what {
                                    38..50 => permit.settle_at(Verdict::Failure, now),
                                    50..58 => permit.settle_at(Verdict::Success, now),
                                    58..61 => permit.settle_at(Verdict::Ignored, now),
                                    _ => drop(permit),
                                }
                            }
                        }
                    }
                    rejected
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    breaker.set_enabled(true);
    breaker.force(Force::None);
    let told = told.lock().unwrap().clone();
    assert!(told.len() > 10, "{told:?}");
    assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0), "{told:?}");
    assert_eq!(breaker.counts().rejected(), rejected, "seed {seed}, {machine:?}");
    // Whatever is out has lost its lease by then; one that is let past closes, at the latest after what it tells trips.
    let late = now() + 2 * (SLEEP + LEASE + MILLI);
    let permit = breaker.shard().admit_at(true, || late);
    let permit = permit.or_else(|_| breaker.shard().admit_at(true, || late + SLEEP + MILLI));
    permit
        .unwrap()
        .settle_at(Verdict::Success, || late + SLEEP + MILLI);
    assert_eq!(
        breaker.unforced_state(),
        CircuitState::Closed,
        "seed {seed}, {machine:?}"
    );
}
