//! A circuit with its threads in every order, by `scripts/loom`: three of them.

#![allow(clippy::disallowed_types, reason = "a lock in a test holds nobody up")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    Breaker, Cause, Permit,
    engine::{Change, Engine, Gate, More, Settings},
    hystrix::HystrixRelease,
    judge::Judge,
    window::{BUCKETS, Window},
    word::{DISABLED, FORCED_OPEN, State, Word},
};
use crate::{
    call::{
        CircuitState::{self, Closed, HalfOpen, Open},
        Verdict::{Failure, Success},
    },
    sync::{self, explore, threads},
};

pub(super) const MILLI: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MILLI;
pub(super) const SLEEP: u64 = 500 * MILLI;
pub(super) const LEASE: u64 = 800 * MILLI;

/// Trips at 50 %.
pub(super) fn settings(volume: u32, hystrix: Option<HystrixRelease>) -> Settings {
    Settings {
        judge: Judge::new(volume, 50),
        window: Duration::from_nanos(SECOND),
        sleep_window: Duration::from_nanos(SLEEP),
        probe_lease: Duration::from_nanos(LEASE),
        enabled: true,
        hystrix: hystrix.map(|release| (release, Duration::from_nanos(SECOND / 2))),
        lanes: 2,
        more: More::default(),
    }
}

/// What was told, in a lock that is among the steps that are put into every order.
type Told = sync::Mutex<Vec<(CircuitState, CircuitState, Cause)>>;

/// A breaker, and what it has told.
pub(super) struct Watched {
    pub(super) breaker: Breaker,
    told: Arc<Told>,
}

impl Watched {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let told = Arc::<Told>::default();
        let log = told.clone();
        let hook = move |transition: &super::Transition| {
            let told = (transition.from(), transition.to(), transition.cause());
            log.lock().unwrap().push(told);
        };
        let breaker = Breaker::with(Breaker::builder("x").on_transition(hook), settings);
        Arc::new(Watched { breaker, told })
    }

    pub(super) fn admit(&self, lane: usize, now: u64) -> Option<Permit> {
        self.breaker.lane(lane).admit_at(true, || now).ok()
    }

    pub(super) fn fail(&self, calls: usize, now: u64) {
        for _ in 0..calls {
            self.admit(0, now).unwrap().settle_at(Failure, || now);
        }
    }

    /// Each change was told once, after the one before it.
    pub(super) fn told(&self) -> Vec<(CircuitState, CircuitState)> {
        let told = self.told.lock().unwrap();
        let told: Vec<_> = told.iter().map(|(from, to, _)| (*from, *to)).collect();
        assert!(told.first().is_none_or(|(from, _)| *from == Closed));
        assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0), "{told:?}");
        told
    }

    pub(super) fn causes(&self) -> Vec<Cause> {
        self.told.lock().unwrap().iter().map(|told| told.2).collect()
    }

    fn stale(&self) -> u64 {
        self.breaker.counts().stale()
    }
}

/// How many are past at a time, which is among the steps that are put into every order, and how many ever were.
#[derive(Default)]
pub(super) struct Past {
    now: sync::AtomicU64,
    pub(super) ever: AtomicU64,
}

impl Past {
    /// One goes past, alone, and gives up.
    pub(super) fn alone(&self, permit: Option<Permit>) {
        if let Some(permit) = permit {
            assert!(permit.is_probe());
            assert_eq!(self.now.fetch_add(1, Relaxed), 0, "two probes are out");
            self.ever.fetch_add(1, Relaxed);
            self.now.fetch_sub(1, Relaxed);
            drop(permit);
        }
    }
}

fn open() -> Arc<Watched> {
    let watched = Watched::new(settings(2, None));
    watched.fail(2, 0);
    watched
}

#[test]
fn loom_probes_go_out_one_at_a_time_and_one_that_is_given_up_is_not_lost() {
    explore(2, || {
        let shared = Arc::new((open(), Past::default()));
        let ask = |lane| move |(watched, past): &(Arc<Watched>, Past)| past.alone(watched.admit(lane, SLEEP));
        threads(&shared, ask(0), ask(1), ask(0));
        let (watched, past) = &*shared;
        assert!(past.ever.load(Relaxed) >= 1);
        assert!(watched.admit(0, SLEEP).unwrap().is_probe());
        assert_eq!(watched.told(), [(Closed, Open), (Open, HalfOpen)]);
    });
}

#[test]
fn loom_of_three_that_ask_as_the_sleep_ends_one_is_the_probe() {
    explore(2, || {
        let shared = Arc::new((open(), Mutex::new(Vec::new())));
        let ask = |lane| {
            move |(watched, out): &(Arc<Watched>, Mutex<Vec<Permit>>)| {
                let permit = watched.admit(lane, SLEEP);
                out.lock().unwrap().extend(permit);
            }
        };
        threads(&shared, ask(0), ask(1), ask(1));
        let (watched, out) = &*shared;
        let mut out = std::mem::take(&mut *out.lock().unwrap());
        assert_eq!(out.len(), 1);
        out.remove(0).settle_at(Success, || SLEEP);
        assert_eq!(
            watched.told(),
            [(Closed, Open), (Open, HalfOpen), (HalfOpen, Closed)]
        );
    });
}

#[test]
fn loom_a_probe_whose_lease_has_ended_closes_or_is_replaced_and_never_both() {
    explore(3, || {
        let watched = open();
        let probe = watched.admit(0, SLEEP).unwrap();
        let late = SLEEP + LEASE;
        let shared = Arc::new((watched, Mutex::new(Vec::new())));
        let ask = |lane| {
            move |(watched, out): &(Arc<Watched>, Mutex<Vec<Permit>>)| {
                let permit = watched.admit(lane, late);
                out.lock().unwrap().extend(permit);
            }
        };
        threads(
            &shared,
            move |_| probe.settle_at(Success, || late),
            ask(0),
            ask(1),
        );
        let (watched, out) = &*shared;
        let out = std::mem::take(&mut *out.lock().unwrap());
        let probes = out.iter().filter(|permit| permit.is_probe()).count();
        let mut told = vec![(Closed, Open), (Open, HalfOpen)];
        match probes {
            0 => told.push((HalfOpen, Closed)),
            1 => assert_eq!(out.len(), 1, "others wait for it"),
            _ => panic!("{out:?}"),
        }
        assert_eq!((watched.told(), watched.stale()), (told, probes as u64));
    });
}

#[test]
fn loom_outcomes_that_end_at_once_are_all_judged() {
    explore(2, || {
        let watched = Watched::new(settings(3, None));
        let [one, two, three] = [0, 1, 1].map(|lane| watched.admit(lane, 0).unwrap());
        threads(
            &watched,
            |_| one.settle_at(Failure, || 0),
            |_| two.settle_at(Success, || 0),
            |_| three.settle_at(Failure, || 0),
        );
        let tripped = Cause::Tripped {
            successes: 1,
            failures: 2,
        };
        assert_eq!(watched.causes(), [tripped]);
        assert_eq!(watched.told(), [(Closed, Open)]);
    });
}

#[test]
fn loom_a_window_that_was_reset_knows_nothing_of_outcomes_before() {
    explore(3, || {
        let watched = Watched::new(settings(2, None));
        let [one, two] = [0, 1].map(|lane| watched.admit(lane, 0).unwrap());
        threads(
            &watched,
            |_| one.settle_at(Failure, || 0),
            |_| two.settle_at(Failure, || 0),
            |watched| watched.breaker.reset(),
        );
        assert_eq!(watched.breaker.state(), Closed);
        assert_eq!(watched.breaker.health().total(), 0);
        let told = watched.told();
        assert!(told.is_empty() || told == [(Closed, Open), (Open, Closed)]);
        // One failure more is one, and trips nothing.
        watched.fail(1, 0);
        assert_eq!(watched.breaker.state(), Closed);
    });
}

#[test]
fn loom_a_late_outcome_changes_nothing_while_the_circuit_closes() {
    explore(3, || {
        let watched = Watched::new(settings(2, None));
        let late = watched.admit(1, 0).unwrap();
        watched.fail(2, 0);
        let probe = watched.admit(0, SLEEP).unwrap();
        threads(
            &watched,
            |_| late.settle_at(Failure, || SLEEP),
            |_| probe.settle_at(Success, || SLEEP),
            |watched| {
                if let Some(permit) = watched.admit(1, SLEEP) {
                    permit.settle_at(Failure, || SLEEP);
                }
            },
        );
        assert!(watched.admit(0, SLEEP).is_some_and(|permit| !permit.is_probe()));
        assert_eq!(watched.stale(), 1);
        assert_eq!(
            watched.told(),
            [(Closed, Open), (Open, HalfOpen), (HalfOpen, Closed)]
        );
    });
}

/// Nobody orders the steps but the engine itself.
mod engine {
    use super::*;

    fn admit(engine: &Engine, now: u64) -> Option<(Word, Option<Change>)> {
        match engine.look(|| now) {
            Gate::Pass(word) => Some((word, None)),
            Gate::Probe => engine
                .take_probe(|| now)
                .ok()
                .map(|change| (change.to, Some(change))),
            Gate::Shadowed(_) | Gate::Reject { .. } => None,
        }
    }

    fn fail(engine: &Engine, admitted: Word, lane: usize, now: u64) -> Option<Change> {
        let step = engine.settle(admitted, lane, Failure, || now)?;
        engine.take(step, admitted, lane, now)
    }

    /// Each word is left once, and by the word that follows it.
    fn is_a_chain(engine: &Engine, changes: &[Change]) {
        // A probe that was handed back is told by nobody; it takes the place of the one that was out.
        let out = |word: Word| match word.state() {
            State::Vacant => Word::new(State::Probing, word.generation(), word.time(), word.mode()).0,
            _ => word.0,
        };
        let mut left: Vec<u64> = changes.iter().map(|change| out(change.from)).collect();
        let mut reached: Vec<u64> = changes.iter().map(|change| out(change.to)).collect();
        left.sort_unstable();
        assert!(left.windows(2).all(|pair| pair[0] != pair[1]), "{changes:?}");
        reached.retain(|word| left.binary_search(word).is_err());
        assert_eq!(reached, [out(engine.word())], "{changes:?}");
    }

    #[test]
    fn loom_each_word_is_left_once() {
        explore(2, || {
            let engine = Engine::new(settings(1, None));
            let (word, _) = admit(&engine, 0).unwrap();
            let tripped = fail(&engine, word, 0, 0).unwrap();
            let (probe, taken) = admit(&engine, SLEEP).unwrap();
            let shared = Arc::new((engine, Mutex::new(vec![tripped, taken.unwrap()])));
            let late = SLEEP + LEASE;
            let note = |changes: &Mutex<Vec<Change>>, change| changes.lock().unwrap().extend(change);
            threads(
                &shared,
                move |(engine, changes)| note(changes, fail(engine, probe, 0, late)),
                move |(engine, changes)| {
                    if let Some((word, taken)) = admit(engine, late) {
                        note(changes, taken);
                        engine.cancel(word, 1);
                    }
                },
                |(engine, changes)| note(changes, engine.reset(late)),
            );
            is_a_chain(&shared.0, &shared.1.lock().unwrap());
        });
    }

    #[test]
    fn loom_a_force_and_a_trip_and_a_switch_do_not_undo_each_other() {
        explore(3, || {
            let engine = Engine::new(settings(1, None));
            let (word, _) = admit(&engine, 0).unwrap();
            let engine = Arc::new(engine);
            threads(
                &engine,
                move |engine| assert!(fail(engine, word, 0, 0).is_some()),
                |engine| assert!(engine.force(FORCED_OPEN).is_some()),
                |engine| assert!(engine.set_enabled(false, 0).is_some()),
            );
            let word = engine.word();
            assert_eq!((word.state(), word.mode()), (State::Open, FORCED_OPEN | DISABLED));
        });
    }

    #[test]
    fn loom_a_probe_is_handed_back_to_whoever_comes_next_unless_it_was_replaced() {
        explore(3, || {
            let engine = Engine::new(settings(1, None));
            let (word, _) = admit(&engine, 0).unwrap();
            fail(&engine, word, 0, 0);
            let (probe, _) = admit(&engine, SLEEP).unwrap();
            let late = SLEEP + LEASE;
            let shared = Arc::new((engine, AtomicU64::new(0)));
            let ask = move |(engine, out): &(Engine, AtomicU64)| {
                if let Some((word, _)) = admit(engine, late) {
                    assert!(word.is_probe());
                    out.fetch_add(1, Relaxed);
                }
            };
            threads(&shared, move |(engine, _)| engine.cancel(probe, 0), ask, ask);
            let (engine, out) = &*shared;
            assert_eq!(out.load(Relaxed), 1);
            assert_eq!(engine.word().state(), State::Probing);
        });
    }
}

mod window {
    use super::*;

    const BUCKET: u64 = SECOND / BUCKETS as u64;

    /// One thread is a whole window late.
    #[test]
    fn loom_a_bucket_that_comes_round_loses_no_outcome_and_keeps_no_old_one() {
        explore(3, || {
            let window = Arc::new(Window::new(SECOND, 1));
            window.success(0, window.moment(0, 0));
            let now = SECOND;
            let count = move |window: &Window| window.success(0, window.moment(0, now));
            threads(
                &window,
                count,
                |window| window.success(0, window.moment(0, 1)),
                count,
            );
            let seen = |now| window.successes(0, window.moment(0, now), u64::MAX);
            assert_eq!((seen(now), seen(now + BUCKET)), (Some(2), Some(2)));
        });
    }

    #[test]
    fn loom_a_new_generation_takes_a_bucket_over_once() {
        explore(2, || {
            let window = Arc::new(Window::new(SECOND, 1));
            window.failure(window.moment(0, 0));
            let count = |window: &Window| window.failure(window.moment(1, 0));
            threads(
                &window,
                count,
                |window| window.failure(window.moment(0, 0)),
                count,
            );
            assert_eq!(window.failures(window.moment(1, 0)), 2);
            assert_eq!(window.failures(window.moment(0, 0)), 0);
        });
    }

    /// Of a success and a failure that end at once, the later one sees both.
    #[test]
    fn loom_the_last_of_two_outcomes_to_be_counted_sees_both() {
        explore(3, || {
            let window = Arc::new((Window::new(SECOND, 2), AtomicU64::new(0)));
            threads(
                &window,
                |(window, seen)| {
                    let moment = window.moment(0, 0);
                    window.success(0, moment);
                    let both = !window.is_spotless(moment) && window.failures(moment) == 1;
                    seen.fetch_add(both.into(), Relaxed);
                },
                |(window, seen)| {
                    let moment = window.moment(0, 0);
                    window.failure(moment);
                    let both = window.successes(1, moment, u64::MAX) == Some(1);
                    seen.fetch_add(both.into(), Relaxed);
                },
                |_| {},
            );
            assert!(window.1.load(Relaxed) >= 1);
        });
    }
}
