//! Both of Hystrix's machines with their threads in every order, by `scripts/loom`.

#![allow(clippy::disallowed_types, reason = "a lock in a test holds nobody up")]

use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};

use super::{
    HystrixRelease::{self, V1_5_12, V1_5_18},
    Mark,
    ticks::Ticks,
};
use crate::{
    breaker::{
        Cause, Permit,
        loom_tests::{LEASE, MILLI, Past, SECOND, SLEEP, Watched, settings},
    },
    call::{
        CircuitState::{Closed, HalfOpen, Open},
        Verdict::{Failure, Success},
    },
    sync::{explore, threads},
};

/// The first tick.
const TICK: u64 = SECOND / 2;
/// When the first call can be let through after that.
const TRIAL: u64 = TICK + SLEEP + MILLI;

/// Two failures are enough.
fn closed(release: HystrixRelease) -> Arc<Watched> {
    Watched::new(settings(2, Some(release)))
}

fn open(release: HystrixRelease) -> Arc<Watched> {
    let watched = closed(release);
    watched.fail(2, 0);
    assert!(watched.admit(0, TICK).is_none());
    watched
}

type Asked = (Arc<Watched>, Mutex<Vec<Permit>>);

fn ask(lane: usize, now: u64) -> impl Fn(&Asked) {
    move |(watched, out)| {
        let permit = watched.admit(lane, now);
        out.lock().unwrap().extend(permit);
    }
}

fn let_past((_, out): &Asked) -> Vec<Permit> {
    std::mem::take(&mut *out.lock().unwrap())
}

fn loom_of_three_that_come_after_a_bad_tick_none_is_let_past(release: HystrixRelease) {
    explore(2, move || {
        let watched = closed(release);
        watched.fail(2, 0);
        let shared = Arc::new((watched, Mutex::default()));
        threads(&shared, ask(0, TICK), ask(1, TICK), ask(1, TICK));
        assert!(let_past(&shared).is_empty());
        let tripped = Cause::Tripped {
            successes: 0,
            failures: 2,
        };
        assert_eq!(shared.0.causes(), [tripped]);
    });
}

fn loom_of_three_that_come_after_the_sleep_one_is_the_trial(release: HystrixRelease) {
    explore(2, move || {
        let shared = Arc::new((open(release), Mutex::default()));
        threads(&shared, ask(0, TRIAL), ask(1, TRIAL), ask(1, TRIAL));
        let out = let_past(&shared);
        assert!(out.len() == 1 && out[0].is_probe(), "{out:?}");
    });
}

fn loom_the_success_of_the_trial_closes_once_and_late_outcomes_stay_in_their_window(release: HystrixRelease) {
    explore(3, move || {
        let watched = closed(release);
        let late = watched.admit(1, 0).unwrap();
        watched.fail(2, 0);
        assert!(watched.admit(0, TICK).is_none());
        let trial = watched.admit(0, TRIAL).unwrap();
        let shared = Arc::new((watched, Mutex::default()));
        threads(
            &shared,
            |_| trial.settle_at(Success, || TRIAL),
            |_| late.settle_at(Failure, || TRIAL),
            ask(1, TRIAL),
        );
        let (watched, _) = &*shared;
        let machine = watched.breaker.lane(0).machine();
        let counts = machine.counts(TRIAL);
        assert_eq!((counts.successes(), counts.failures()), (1, 0), "the trial alone");
        assert!(counts.stale() <= 1);
        assert!(let_past(&shared).iter().all(|permit| !permit.is_probe()));
        assert!(watched.admit(0, TRIAL).is_some_and(|permit| !permit.is_probe()));
        assert_eq!(watched.told().last().map(|told| told.1), Some(Closed));
    });
}

/// At once: the trial ends, a call asks, and somebody resets.
fn loom_each_change_is_told_once_in_its_order(release: HystrixRelease) {
    explore(2, move || {
        let watched = open(release);
        let trial = watched.admit(0, TRIAL).unwrap();
        let shared = Arc::new((watched, Mutex::default()));
        threads(
            &shared,
            |_| trial.settle_at(Failure, || TRIAL),
            ask(1, TRIAL + LEASE + MILLI),
            |(watched, _)| watched.breaker.reset(),
        );
        let told = shared.0.told();
        assert_eq!(told[0], (Closed, Open));
        // Whatever comes before it, the reset has the last word, but for a call that came after it.
        assert_eq!(told.iter().filter(|told| told.1 == Closed).count(), 1, "{told:?}");
        assert_eq!(told.last().map(|told| told.1), Some(Closed), "{told:?}");
    });
}

/// The beginning of its window must be known by then, though whoever began it may be held up.
fn loom_a_circuit_that_opens_while_it_is_reset_books_what_ends(release: HystrixRelease) {
    explore(2, move || {
        let watched = closed(release);
        threads(
            &watched,
            |watched| watched.breaker.reset(),
            |watched| {
                let [one, two, late] = [(); 3].map(|()| watched.admit(1, 0).unwrap());
                one.settle_at(Failure, || 0);
                two.settle_at(Failure, || 0);
                drop(watched.admit(1, TICK));
                late.settle_at(Failure, || TICK);
            },
            |_| {},
        );
        if watched.told().last().is_some_and(|told| told.1 == Open) {
            let counts = watched.breaker.lane(0).machine().counts(TICK);
            assert_eq!((counts.failures(), counts.stale()), (3, 0));
        }
    });
}

macro_rules! of_both {
    ($($test:ident)*) => {
        mod v1_5_12 {
            $( #[test] fn $test() { super::$test(super::V1_5_12); } )*
        }
        mod v1_5_18 {
            $( #[test] fn $test() { super::$test(super::V1_5_18); } )*
        }
    };
}

of_both! {
    loom_of_three_that_come_after_a_bad_tick_none_is_let_past
    loom_of_three_that_come_after_the_sleep_one_is_the_trial
    loom_the_success_of_the_trial_closes_once_and_late_outcomes_stay_in_their_window
    loom_each_change_is_told_once_in_its_order
    loom_a_circuit_that_opens_while_it_is_reset_books_what_ends
}

#[test]
fn loom_trials_of_1_5_12_go_out_one_at_a_time_and_one_that_is_given_up_is_not_lost() {
    explore(2, || {
        let shared = Arc::new((open(V1_5_12), Past::default()));
        let ask = |lane| move |(watched, past): &(Arc<Watched>, Past)| past.alone(watched.admit(lane, TRIAL));
        threads(&shared, ask(0), ask(1), ask(1));
        let (watched, past) = &*shared;
        assert!(past.ever.load(Relaxed) >= 1);
        assert!(watched.admit(0, TRIAL).unwrap().is_probe());
        assert_eq!(watched.told(), [(Closed, Open), (Open, HalfOpen)]);
    });
}

/// There a trial that is given up is none, and the next sleep window brings another.
#[test]
fn loom_of_1_5_18_each_sleep_window_lets_one_past_though_those_before_are_out() {
    explore(2, || {
        let shared = Arc::new((open(V1_5_18), Mutex::default()));
        let next = TRIAL + SLEEP + MILLI;
        threads(&shared, ask(0, TRIAL), ask(1, next), ask(1, next));
        let out = let_past(&shared);
        // The one that asks earlier may come later.
        assert!((1..=2).contains(&out.len()), "{out:?}");
        assert!(shared.0.admit(0, next).is_none());
        assert!(shared.0.admit(0, next + SLEEP + MILLI).is_some());
    });
}

#[test]
fn loom_the_trial_of_1_5_12_closes_or_is_replaced_and_never_both() {
    explore(2, || {
        let watched = open(V1_5_12);
        let trial = watched.admit(0, TRIAL).unwrap();
        let late = TRIAL + LEASE + MILLI;
        let shared = Arc::new((watched, Mutex::default()));
        threads(
            &shared,
            move |_| trial.settle_at(Success, || late),
            ask(0, late),
            ask(1, late),
        );
        let out = let_past(&shared);
        let probes = out.iter().filter(|permit| permit.is_probe()).count();
        let mut told = vec![(Closed, Open), (Open, HalfOpen)];
        match probes {
            0 => told.push((HalfOpen, Closed)),
            1 => assert_eq!(out.len(), 1, "others wait for it"),
            _ => panic!("{out:?}"),
        }
        assert_eq!(shared.0.told(), told);
    });
}

/// One thread is a whole round late.
#[test]
fn loom_a_bucket_that_comes_round_loses_no_outcome_and_keeps_no_old_one() {
    explore(3, || {
        let ticks = Arc::new(Ticks::new(2, 1));
        ticks.failure(0, 0);
        threads(
            &ticks,
            |ticks| ticks.failure(0, 3),
            |ticks| ticks.failure(0, 0),
            |ticks| ticks.failure(0, 3),
        );
        assert_eq!(ticks.failures(0, ticks.shown_at(4)), (2, true));
        assert_eq!(ticks.failures(0, 0..1), (0, false));
    });
}

#[test]
fn loom_a_mark_only_moves_forward() {
    explore(3, || {
        let mark = Arc::new(Mark::default());
        threads(
            &mark,
            |mark| mark.advance(1, 7),
            |mark| mark.advance(0, 9),
            |mark| mark.advance(1, 5),
        );
        assert_eq!((mark.of(1), mark.of(0)), (Some(7), None));
    });
}
