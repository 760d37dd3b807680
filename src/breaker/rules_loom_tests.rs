//! Several probes, failures in a row and the last outcomes, with threads in every order, by `scripts/loom`.

#![allow(clippy::disallowed_types, reason = "a lock in a test holds nobody up")]

use std::sync::{Arc, Mutex};

use super::{
    Cause, Permit,
    engine::More,
    last::Last,
    loom_tests::{SLEEP, Watched, settings},
    run::Run,
};
use crate::{
    call::{
        CircuitState::{Closed, HalfOpen, Open},
        Verdict::{Failure, Success},
    },
    sync::{explore, threads},
};

type Asked = (Arc<Watched>, Mutex<Vec<Permit>>);

/// Open, with two probes of which one has to succeed.
fn open() -> Arc<Watched> {
    let mut settings = settings(2, None);
    settings.more = More {
        probes: 2,
        success_percent: 50,
        ..More::default()
    };
    let watched = Watched::new(settings);
    watched.fail(2, 0);
    watched
}

fn ask(lane: usize) -> impl Fn(&Asked) + Send + 'static {
    move |(watched, out)| {
        let permit = watched.admit(lane, SLEEP);
        out.lock().unwrap().extend(permit);
    }
}

#[test]
fn loom_of_three_that_ask_as_the_sleep_ends_as_many_are_probes_as_there_are() {
    explore(2, || {
        let shared = Arc::new((open(), Mutex::default()));
        threads(&shared, ask(0), ask(1), ask(1));
        let (watched, out) = &*shared;
        let out = std::mem::take(&mut *out.lock().unwrap());
        assert_eq!(out.len(), 2);
        assert!(out.iter().all(Permit::is_probe));
        assert_eq!(watched.told(), [(Closed, Open), (Open, HalfOpen)]);
    });
}

#[test]
fn loom_a_place_that_is_given_back_is_given_to_one() {
    explore(3, || {
        let watched = open();
        let [one, _other] = [0, 1].map(|lane| watched.admit(lane, SLEEP).unwrap());
        let shared = Arc::new((watched, Mutex::default()));
        threads(&shared, move |_| drop(one), ask(0), ask(1));
        let (watched, out) = &*shared;
        let held = std::mem::take(&mut *out.lock().unwrap());
        assert!(held.len() <= 1, "two for one place");
        let another = watched.admit(0, SLEEP);
        assert_eq!(
            held.len() + usize::from(another.is_some()),
            1,
            "the place is lost"
        );
    });
}

#[test]
fn loom_two_probes_that_end_at_once_decide_once() {
    for (other, state, stale) in [(Failure, Closed, None), (Success, Closed, Some(1))] {
        explore(3, move || {
            let watched = open();
            let [one, two] = [0, 1].map(|lane| watched.admit(lane, SLEEP).unwrap());
            threads(
                &watched,
                |_| one.settle_at(Success, || SLEEP),
                move |_| two.settle_at(other, || SLEEP),
                |_| {},
            );
            let told = watched.told();
            assert_eq!(told, [(Closed, Open), (Open, HalfOpen), (HalfOpen, state)]);
            if stale.is_some() {
                let successes = match watched.causes().last() {
                    Some(Cause::ProbesSucceeded { successes, .. }) => *successes,
                    other => panic!("{other:?}"),
                };
                assert!((1..=2).contains(&successes));
            }
        });
    }
}

#[test]
fn loom_two_probes_that_fail_at_once_open_it_once() {
    explore(3, || {
        let watched = open();
        let [one, two] = [0, 1].map(|lane| watched.admit(lane, SLEEP).unwrap());
        threads(
            &watched,
            |_| one.settle_at(Failure, || SLEEP),
            |_| two.settle_at(Failure, || SLEEP),
            |watched| assert!(watched.admit(0, SLEEP).is_none()),
        );
        assert_eq!(
            watched.told(),
            [(Closed, Open), (Open, HalfOpen), (HalfOpen, Open)]
        );
        let failed = Cause::ProbesFailed {
            successes: 0,
            failures: 2,
        };
        assert_eq!(watched.causes().last(), Some(&failed));
    });
}

#[test]
fn loom_the_last_of_three_outcomes_to_be_counted_sees_all_of_them() {
    explore(3, || {
        let last = Arc::new((Last::new(3), Mutex::new(Vec::new())));
        let add = |failed| {
            move |(last, seen): &(Last, Mutex<Vec<(u64, u64)>>)| {
                let figures = last.add(0, failed, false).unwrap();
                seen.lock().unwrap().push((figures.successes, figures.failures));
            }
        };
        threads(&last, add(true), add(false), add(true));
        assert!(last.1.lock().unwrap().contains(&(1, 2)));
    });
}

#[test]
fn loom_the_sums_of_the_last_outcomes_are_theirs_though_they_overtake_each_other_and_a_generation() {
    explore(3, || {
        let last = Arc::new(Last::new(1));
        last.add(0, true, true);
        let add = |generation, failed| {
            move |last: &Last| {
                let _ = last.add(generation, failed, false);
            }
        };
        threads(&last, add(1, true), add(1, true), add(0, true));
        let figures = last.figures(1).unwrap();
        assert_eq!((figures.successes, figures.failures, figures.slow), (0, 1, 0));
        last.add(1, false, false);
        let figures = last.figures(1).unwrap();
        assert_eq!((figures.successes, figures.failures), (1, 0));
    });
}

#[test]
fn loom_failures_in_a_row_are_all_counted_and_a_success_ends_the_row() {
    explore(3, || {
        let run = Arc::new(Run::new());
        threads(
            &run,
            |run| {
                let _ = run.failure(0);
            },
            |run| run.success(0),
            |run| {
                let _ = run.failure(0);
            },
        );
        let next = run.failure(0);
        assert!((1..=3).contains(&next), "{next}");
        run.success(0);
        assert_eq!(run.failure(0), 1);
    });
}
