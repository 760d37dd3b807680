//! What a circuit breaker can do beyond Hystrix, over its public API: other rules, growing sleep windows, several probes,
//! shadow mode, changes of settings while calls go on, and following its transitions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    future::{Future, pending},
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Waker},
    thread,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    breaker::{
        Breaker, BreakerBuilder, Cause, CircuitBreakerLayer, Force, HystrixRelease, Permit, Transitions,
    },
    call::{BoxError, CircuitOpen, CircuitState, Verdict},
};
use tower_test::mock::Spawn;

const SLEEP: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn builder() -> BreakerBuilder {
    Breaker::builder("orders").sleep_window(SLEEP)
}

fn settle(breaker: &Breaker, n: usize, verdict: Verdict) {
    for _ in 0..n {
        breaker.admit().unwrap().settle(verdict);
    }
}

async fn call(breaker: &Breaker, took: Duration, verdict: Verdict) {
    let permit = breaker.admit().unwrap();
    advance(took).await;
    permit.settle(verdict);
}

/// The causes that are told from now on.
fn causes(transitions: &mut Transitions) -> Vec<Cause> {
    std::iter::from_fn(|| transitions.next().now_or_never().flatten())
        .map(|told| told.unwrap().cause())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_open_it_however_few_and_however_far_apart() {
    let breaker = builder().consecutive_failures(3).build().unwrap();
    let mut told = breaker.transitions();
    settle(&breaker, 2, Verdict::Failure);
    settle(&breaker, 1, Verdict::Success);
    for _ in 0..2 {
        settle(&breaker, 1, Verdict::Failure);
        settle(&breaker, 5, Verdict::Ignored);
        drop(breaker.admit().unwrap());
        advance(secs(60)).await;
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(causes(&mut told), [Cause::FailuresInARow { failures: 3 }]);
}

#[tokio::test(start_paused = true)]
async fn a_row_of_failures_does_not_go_on_over_a_probe_that_succeeded() {
    let breaker = builder().consecutive_failures(2).build().unwrap();
    settle(&breaker, 2, Verdict::Failure);
    advance(SLEEP).await;
    settle(&breaker, 1, Verdict::Success);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn too_many_slow_calls_open_it_although_they_succeed() {
    let breaker = builder().volume(4).slow_calls(millis(100), 50).build().unwrap();
    let mut told = breaker.transitions();
    for took in [50, 100, 101, 0] {
        call(&breaker, millis(took), Verdict::Success).await;
    }
    assert_eq!(
        (breaker.state(), breaker.counts().slow()),
        (CircuitState::Closed, 1)
    );
    // A slow failure is a failure.
    call(&breaker, secs(1), Verdict::Failure).await;
    assert_eq!(breaker.counts().slow(), 1);
    for _ in 0..3 {
        call(&breaker, millis(101), Verdict::Success).await;
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(causes(&mut told), [Cause::TooSlow { slow: 4, total: 8 }]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_slow_is_timed_from_the_call_to_its_answer() {
    let breaker = builder().volume(2).slow_calls(millis(100), 100).build().unwrap();
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|took| async move {
        sleep(took).await;
        Ok::<_, io::Error>(())
    }));
    for _ in 0..2 {
        service.ready().await.unwrap();
        // What passes between readiness and the call is not the service's.
        advance(secs(1)).await;
        service.call(millis(101)).await.unwrap();
    }
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn the_last_outcomes_are_judged_however_old_they_are() {
    let breaker = builder().last_outcomes(10).without_window().build().unwrap();
    let mut told = breaker.transitions();
    for n in 0..30 {
        let verdict = if n % 5 == 0 {
            Verdict::Failure
        } else {
            Verdict::Success
        };
        settle(&breaker, 1, verdict);
        advance(secs(60)).await;
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
    for _ in 0..4 {
        assert_eq!(breaker.state(), CircuitState::Closed);
        advance(secs(60)).await;
        settle(&breaker, 1, Verdict::Failure);
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    let failed = Cause::LastFailed {
        failures: 5,
        total: 10,
    };
    assert_eq!(causes(&mut told), [failed]);
}

#[tokio::test(start_paused = true)]
async fn of_several_rules_each_opens_it_alone_and_is_named() {
    let new = || {
        builder()
            .volume(4)
            .consecutive_failures(3)
            .slow_calls(millis(100), 75)
            .last_outcomes(8)
    };
    let (good, bad) = (Verdict::Success, Verdict::Failure);
    let swift = Duration::ZERO;
    let long = millis(200);
    let row = Cause::FailuresInARow { failures: 3 };
    let share = Cause::Tripped {
        successes: 2,
        failures: 2,
    };
    let slow = Cause::TooSlow { slow: 3, total: 4 };
    let cases: [(&[(Duration, Verdict)], Cause); 3] = [
        (&[(swift, bad), (swift, bad), (swift, bad)], row),
        (&[(swift, good), (swift, bad), (swift, good), (swift, bad)], share),
        (&[(long, good), (long, good), (swift, good), (long, good)], slow),
    ];
    for (calls, cause) in cases {
        let breaker = new().build().unwrap();
        let mut told = breaker.transitions();
        for (took, verdict) in calls {
            call(&breaker, *took, *verdict).await;
        }
        assert_eq!(causes(&mut told), [cause]);
    }
    // Too far apart for the window of time.
    let breaker = new().build().unwrap();
    let mut told = breaker.transitions();
    for verdict in [bad, good, bad, good] {
        call(&breaker, secs(9), verdict).await;
    }
    assert_eq!(
        causes(&mut told),
        [Cause::LastFailed {
            failures: 2,
            total: 4
        }]
    );
}

#[test]
fn mistakes_in_the_settings_are_found_and_named() {
    let field = |builder: BreakerBuilder| builder.build().unwrap_err().field();
    let new = || Breaker::builder("orders");
    assert_eq!(field(new().consecutive_failures(0)), "consecutive_failures");
    assert_eq!(field(new().last_outcomes(0)), "last_outcomes");
    assert_eq!(field(new().last_outcomes(100_001)), "last_outcomes");
    assert_eq!(field(new().slow_calls(Duration::ZERO, 50)), "slow_calls");
    assert_eq!(field(new().slow_calls(secs(1), 0)), "slow_calls");
    assert_eq!(field(new().slow_calls(secs(1), 101)), "slow_calls");
    assert_eq!(field(new().without_error_percent()), "error_percent");
    assert_eq!(field(new().without_window()), "error_percent");
    assert_eq!(field(new().probes(0)), "probes");
    assert_eq!(field(new().probes(1_001)), "probes");
    assert_eq!(field(new().probe_success_percent(0)), "probe_success_percent");
    assert_eq!(field(new().probe_success_percent(101)), "probe_success_percent");
    assert_eq!(field(new().sleep_growth(0.9, secs(60))), "sleep_growth");
    assert_eq!(field(new().sleep_growth(f64::NAN, secs(60))), "sleep_growth");
    assert_eq!(field(new().sleep_growth(2.0, secs(4))), "sleep_growth");
    assert_eq!(field(new().sleep_jitter(101)), "sleep_jitter");
    assert_eq!(field(new().cancelled_after(Duration::ZERO)), "cancelled_after");
    // What Hystrix does not have.
    let theirs = || new().hystrix(HystrixRelease::V1_5_12);
    assert_eq!(field(theirs().probes(2)), "probes");
    assert_eq!(field(theirs().consecutive_failures(2)), "consecutive_failures");
    assert_eq!(field(theirs().sleep_growth(2.0, secs(60))), "sleep_growth");
    theirs().shadow(true).cancelled_after(secs(1)).build().unwrap();
}

/// How long it rejects, from now on.
async fn asleep(breaker: &Breaker) -> Duration {
    let left = breaker.probe_in().unwrap();
    if !left.is_zero() {
        assert_eq!(breaker.admit().unwrap_err().retry_in(), Some(left));
        advance(left - Duration::from_nanos(1)).await;
        assert!(breaker.admit().is_err());
        advance(Duration::from_nanos(1)).await;
    }
    left
}

#[tokio::test(start_paused = true)]
async fn sleep_windows_grow_until_it_has_stayed_closed_for_a_window() {
    let breaker = builder()
        .consecutive_failures(1)
        .sleep_growth(2.0, secs(5))
        .build()
        .unwrap();
    settle(&breaker, 1, Verdict::Failure);
    for expected in [1, 2, 4, 5, 5] {
        assert_eq!(asleep(&breaker).await, secs(expected));
        settle(&breaker, 1, Verdict::Failure);
    }
    // Closed, but not for long.
    asleep(&breaker).await;
    settle(&breaker, 1, Verdict::Success);
    advance(secs(10) - millis(1)).await;
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(asleep(&breaker).await, secs(5));
    // For long.
    settle(&breaker, 1, Verdict::Success);
    advance(secs(10)).await;
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(asleep(&breaker).await, secs(1));
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(asleep(&breaker).await, secs(2));
    // By hand.
    breaker.reset();
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(asleep(&breaker).await, secs(1));
}

#[tokio::test(start_paused = true)]
async fn jitter_shortens_each_sleep_window_differently_and_the_same_for_the_same_seed() {
    async fn sleeps(seed: Option<u64>) -> Vec<Duration> {
        let mut builder = builder().consecutive_failures(1).sleep_jitter(40);
        if let Some(seed) = seed {
            builder = builder.seed(seed);
        }
        let breaker = builder.build().unwrap();
        let mut sleeps = Vec::new();
        for _ in 0..20 {
            settle(&breaker, 1, Verdict::Failure);
            sleeps.push(asleep(&breaker).await);
        }
        sleeps
    }
    let one = sleeps(Some(1)).await;
    assert!(one.iter().all(|sleep| (millis(600)..=SLEEP).contains(sleep)));
    assert!(one.windows(2).any(|pair| pair[0] != pair[1]));
    assert_eq!(one, sleeps(Some(1)).await);
    assert_ne!(one, sleeps(Some(2)).await);
    assert_ne!(sleeps(None).await, sleeps(None).await);
}

async fn half_open(builder: BreakerBuilder) -> Breaker {
    let breaker = builder.consecutive_failures(1).build().unwrap();
    settle(&breaker, 1, Verdict::Failure);
    advance(SLEEP).await;
    assert_eq!(breaker.probe_in(), Some(Duration::ZERO));
    breaker
}

fn probes(breaker: &Breaker) -> Vec<Permit> {
    let permits: Vec<Permit> = std::iter::from_fn(|| breaker.admit().ok()).take(100).collect();
    assert!(permits.iter().all(Permit::is_probe));
    permits
}

#[tokio::test(start_paused = true)]
async fn several_probes_go_out_at_once_and_close_it_when_enough_have_succeeded() {
    let breaker = half_open(builder().probes(5).probe_success_percent(60)).await;
    let mut told = breaker.transitions();
    let mut out = probes(&breaker);
    assert_eq!((out.len(), breaker.probe_in()), (5, None));
    out.remove(0).settle(Verdict::Success);
    out.remove(0).settle(Verdict::Failure);
    out.remove(0).settle(Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    assert!(breaker.admit().is_err(), "a probe that has ended is not replaced");
    out.remove(0).settle(Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Closed);
    // The last one decides nothing any more.
    out.remove(0).settle(Verdict::Failure);
    assert_eq!(
        (breaker.state(), breaker.counts().stale()),
        (CircuitState::Closed, 1)
    );
    let cause = Cause::ProbesSucceeded {
        successes: 3,
        failures: 1,
    };
    assert_eq!(causes(&mut told), [Cause::SleepWindowEnded, cause]);
}

#[tokio::test(start_paused = true)]
async fn several_probes_open_it_again_as_soon_as_too_many_have_failed() {
    let breaker = half_open(builder().probes(4).probe_success_percent(50)).await;
    let mut told = breaker.transitions();
    let mut out = probes(&breaker);
    for _ in 0..2 {
        out.remove(0).settle(Verdict::Failure);
        assert_eq!(breaker.state(), CircuitState::HalfOpen);
    }
    out.remove(0).settle(Verdict::Failure);
    assert_eq!(
        (breaker.state(), breaker.probe_in()),
        (CircuitState::Open, Some(SLEEP))
    );
    let cause = Cause::ProbesFailed {
        successes: 0,
        failures: 3,
    };
    assert_eq!(causes(&mut told), [Cause::SleepWindowEnded, cause]);
    // The one that is still out neither takes a place of the next round nor counts in it.
    advance(SLEEP).await;
    let next = probes(&breaker);
    assert_eq!(next.len(), 4);
    out.remove(0).settle(Verdict::Success);
    assert_eq!(
        (breaker.state(), breaker.counts().stale()),
        (CircuitState::HalfOpen, 1)
    );
    for probe in next.into_iter().take(2) {
        probe.settle(Verdict::Success);
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_several_that_is_dropped_or_ignored_or_never_ends_is_replaced_by_one() {
    let breaker = half_open(builder().probes(3).probe_lease(secs(10))).await;
    let mut out = probes(&breaker);
    drop(out.pop());
    out.pop().unwrap().settle(Verdict::Ignored);
    let mut next = probes(&breaker);
    assert_eq!(next.len(), 2);
    next.pop().unwrap().settle(Verdict::Success);
    advance(secs(10)).await;
    let last = probes(&breaker);
    assert_eq!(last.len(), 2, "one has ended, two have leaked");
    std::mem::forget(out);
    for probe in last {
        probe.settle(Verdict::Success);
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_reset_while_probes_are_out_forgets_them() {
    let breaker = half_open(builder().probes(2)).await;
    let out = probes(&breaker);
    breaker.reset();
    for probe in out {
        probe.settle(Verdict::Failure);
    }
    assert_eq!(
        (breaker.state(), breaker.counts().stale()),
        (CircuitState::Closed, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn in_shadow_mode_it_rejects_nothing_and_tells_what_it_would_have_done() {
    for hystrix in [None, Some(HystrixRelease::V1_5_12), Some(HystrixRelease::V1_5_18)] {
        let mut settings = builder().volume(4).shadow(true);
        if let Some(release) = hystrix {
            settings = settings.hystrix(release);
        }
        let breaker = settings.build().unwrap();
        let mut told = breaker.transitions();
        settle(&breaker, 4, Verdict::Failure);
        if hystrix.is_some() {
            advance(millis(500)).await;
        }
        // Their outcomes decide nothing.
        settle(&breaker, 10, Verdict::Success);
        assert_eq!(
            (breaker.state(), breaker.unforced_state()),
            (CircuitState::Shadow, CircuitState::Open)
        );
        assert_eq!(
            (breaker.counts().rejected(), breaker.counts().would_reject()),
            (0, 10)
        );
        breaker.force(Force::Open);
        settle(&breaker, 1, Verdict::Success);
        breaker.force(Force::None);
        assert_eq!(breaker.counts().would_reject(), 11);
        advance(SLEEP + millis(1)).await;
        let probe = breaker.admit().unwrap();
        assert!(probe.is_probe());
        settle(&breaker, 1, Verdict::Failure);
        probe.settle(Verdict::Success);
        assert_eq!(breaker.unforced_state(), CircuitState::Closed);
        drop(breaker);
        let told: Vec<_> = told.by_ref().map(Result::unwrap).collect().await;
        assert!(told.iter().all(|transition| transition.is_shadow()));
        assert!(told.windows(2).all(|pair| pair[0].to() == pair[1].from()));
        assert_eq!(
            (told[0].to(), told[told.len() - 1].to()),
            (CircuitState::Open, CircuitState::Closed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_in_shadow_mode_is_called_as_if_there_were_no_breaker() {
    let breaker = builder().volume(2).shadow(true).build().unwrap();
    let mut service = CircuitBreakerLayer::new(breaker.clone())
        .layer(service_fn(|()| async { Err::<(), _>(io::Error::other("down")) }));
    for n in 0..20 {
        if n == 10 {
            advance(SLEEP).await;
        }
        let error = service.ready().await.unwrap().call(()).await.unwrap_err();
        assert!(error.is::<io::Error>());
        // Without having been asked either.
        let error = service.call(()).await.unwrap_err();
        assert!(error.is::<io::Error>());
    }
    assert_eq!(breaker.unforced_state(), CircuitState::Open);
    // Now in earnest.
    breaker.change(|settings| settings.shadow(false)).unwrap();
    let error = service.ready().await.unwrap().call(()).await.unwrap_err();
    assert!(error.is::<CircuitOpen>());
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_below_a_breaker_in_shadow_mode_is_woken_when_it_comes_to_reject() {
    let breaker = builder().consecutive_failures(1).shadow(true).build().unwrap();
    settle(&breaker, 1, Verdict::Failure);
    let (mock, mut handle) = tower_test::mock::pair::<(), ()>();
    handle.allow(0);
    let mut service = Spawn::new(CircuitBreakerLayer::new(breaker.clone()).layer(mock));
    assert_pending!(service.poll_ready::<()>());
    breaker.change(|settings| settings.shadow(false)).unwrap();
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready::<()>());
    let error = assert_ready_err!(task::spawn(service.call(())).poll());
    assert!(error.is::<CircuitOpen>());
}

#[tokio::test(start_paused = true)]
async fn settings_change_while_calls_go_on_and_the_window_stays() {
    let breaker = builder().build().unwrap();
    let out = breaker.admit().unwrap();
    settle(&breaker, 6, Verdict::Failure);
    breaker
        .change(|settings| settings.volume(8).sleep_window(secs(9)))
        .unwrap();
    assert_eq!(breaker.settings().volume(), 8);
    assert_eq!(
        (breaker.state(), breaker.counts().failures()),
        (CircuitState::Closed, 6)
    );
    settle(&breaker, 1, Verdict::Failure);
    out.settle(Verdict::Failure);
    assert_eq!(
        (breaker.state(), breaker.probe_in()),
        (CircuitState::Open, Some(secs(9)))
    );
    // The sleep that has begun ends by the new length.
    advance(secs(2)).await;
    breaker.change(|settings| settings.sleep_window(secs(3))).unwrap();
    assert_eq!(breaker.probe_in(), Some(secs(1)));
    advance(secs(1)).await;
    settle(&breaker, 1, Verdict::Success);
    breaker
        .change(|settings| settings.without_error_percent().consecutive_failures(2))
        .unwrap();
    settle(&breaker, 2, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn settings_of_a_breaker_that_judges_as_hystrix_change_as_well() {
    let breaker = builder().hystrix(HystrixRelease::V1_5_12).build().unwrap();
    settle(&breaker, 6, Verdict::Failure);
    advance(millis(500)).await;
    assert_eq!(breaker.state(), CircuitState::Closed);
    breaker.change(|settings| settings.volume(6)).unwrap();
    advance(millis(500)).await;
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[test]
fn a_change_that_cannot_be_is_an_error_that_names_it_and_changes_nothing() {
    let breaker = builder().build().unwrap();
    let before = breaker.settings();
    let field = |change: fn(BreakerBuilder) -> BreakerBuilder| {
        let error = breaker.change(|settings| change(settings.volume(7))).unwrap_err();
        (error.field(), error.fix().contains("while calls go on"))
    };
    assert_eq!(field(|settings| settings.window(secs(20))), ("window", true));
    assert_eq!(
        field(|settings| settings.last_outcomes(20)),
        ("last_outcomes", true)
    );
    assert_eq!(field(|settings| settings.probes(2)), ("probes", true));
    assert_eq!(field(|settings| settings.seed(2)), ("seed", true));
    assert_eq!(
        field(|settings| settings.hystrix(HystrixRelease::V1_5_18)),
        ("hystrix", true)
    );
    assert_eq!(
        field(|settings| settings.health_snapshot(secs(1))),
        ("health_snapshot", true)
    );
    assert_eq!(
        field(|settings| settings.on_transition(|_| ())),
        ("on_transition", true)
    );
    assert_eq!(field(BreakerBuilder::disabled), ("disabled", false));
    assert_eq!(field(|settings| settings.volume(0)), ("volume", false));
    assert_eq!(breaker.settings(), before);
    // The closure may use the handle.
    breaker
        .change(|settings| settings.volume(breaker.settings().volume() + 1))
        .unwrap();
    assert_eq!(breaker.settings().volume(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_counts_as_failed_only_after_the_time_that_was_chosen() {
    let breaker = builder().volume(3).cancelled_after(secs(1)).build().unwrap();
    let mut service =
        CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|()| pending::<Result<(), io::Error>>()));
    for _ in 0..5 {
        let call = service.ready().await.unwrap().call(());
        timeout(secs(1) - millis(1), call).await.unwrap_err();
    }
    assert_eq!(
        (breaker.counts().cancelled(), breaker.counts().failures()),
        (5, 0)
    );
    for _ in 0..3 {
        let call = service.ready().await.unwrap().call(());
        timeout(secs(1), call).await.unwrap_err();
    }
    assert_eq!(
        (breaker.counts().cancelled(), breaker.counts().failures()),
        (5, 3)
    );
    assert_eq!(breaker.state(), CircuitState::Open);
    // A probe as well.
    advance(SLEEP).await;
    let call = service.ready().await.unwrap().call(());
    timeout(millis(1), call).await.unwrap_err();
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    let call = service.ready().await.unwrap().call(());
    timeout(secs(1), call).await.unwrap_err();
    assert_eq!(breaker.state(), CircuitState::Open);
}

/// OBS-01.
#[tokio::test(start_paused = true)]
async fn each_subscriber_is_told_each_transition_once_and_in_order_from_its_beginning_on() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = log.clone();
    let breaker = builder()
        .on_transition(move |transition| writer.lock().unwrap().push(transition.clone()))
        .build()
        .unwrap();
    let first = breaker.transitions();
    settle(&breaker, 20, Verdict::Failure);
    advance(SLEEP).await;
    drop(breaker.admit().unwrap());
    let second = breaker.transitions();
    settle(&breaker, 1, Verdict::Failure);
    breaker.force(Force::Open);
    breaker.force(Force::Open);
    breaker.reset();
    breaker.reset();
    drop(breaker);
    let log = log.lock().unwrap().clone();
    let told = |transitions: Transitions| async { transitions.map(Result::unwrap).collect::<Vec<_>>().await };
    assert_eq!(told(first).await, log);
    assert_eq!(told(second).await, log[2..]);
    assert_eq!(log.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_read_is_told_how_many_it_missed_and_holds_nobody_up() {
    let breaker = builder().build().unwrap();
    let mut told = breaker.transitions();
    for _ in 0..100 {
        breaker.force(Force::Open);
        breaker.force(Force::None);
    }
    let missed = told.next().await.unwrap().unwrap_err();
    assert_eq!(missed.count(), 200 - 64);
    let kept = std::iter::from_fn(|| told.next().now_or_never().flatten());
    assert_eq!(kept.filter(Result::is_ok).count(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_is_woken_by_a_transition_and_by_the_end_of_the_breaker() {
    let breaker = builder().build().unwrap();
    let mut told = task::spawn(breaker.transitions());
    assert_pending!(told.poll_next());
    breaker.force(Force::Open);
    assert!(told.is_woken());
    assert!(told.poll_next().is_ready());
    assert_pending!(told.poll_next());
    drop(breaker);
    assert!(told.is_woken());
    assert_eq!(told.poll_next(), std::task::Poll::Ready(None));
}

#[test]
fn a_transition_allocates_nothing_and_a_subscriber_that_is_gone_changes_nothing() {
    let breaker = builder().build().unwrap();
    let allocations = || {
        let flip = || {
            breaker.force(Force::Open);
            breaker.force(Force::None);
        };
        flip();
        allocation_counter::measure(|| (0..100).for_each(|_| flip())).count_total
    };
    assert_eq!(allocations(), 0);
    let told = breaker.transitions();
    assert_eq!(allocations(), 0);
    drop(told);
    assert_eq!(allocations(), 0);
}

/// Calls at 300 a second, for two seconds, to a dependency that is up or down. How long it is `until` something is the case.
async fn calls_at_300_a_second<S: Service<bool, Error = BoxError>>(
    service: &mut S,
    up: bool,
    until: impl Fn() -> bool,
) -> Option<Duration> {
    let start = Instant::now();
    for _ in 0..600 {
        let _ = service.ready().await.ok()?.call(up).await;
        if until() {
            return Some(start.elapsed());
        }
        sleep(Duration::from_micros(3_333)).await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_dies_is_left_alone_within_250_ms_and_one_that_recovers_has_its_calls_within_1500_ms()
 {
    let breaker = builder().build().unwrap();
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|up| async move {
        if up { Ok(()) } else { Err(io::Error::other("down")) }
    }));
    let state = || breaker.state();
    let never = calls_at_300_a_second(&mut service, true, || state() == CircuitState::Open).await;
    assert_eq!(never, None);
    advance(secs(10)).await;
    let dead = calls_at_300_a_second(&mut service, false, || state() == CircuitState::Open).await;
    assert!(dead.unwrap() <= millis(250), "{dead:?}");
    // It is down for a while, and comes back at the worst moment: as a probe has just failed.
    for _ in 0..3 {
        advance(SLEEP).await;
        let _ = service.ready().await.unwrap().call(false).await;
        assert_eq!(state(), CircuitState::Open);
    }
    let back = calls_at_300_a_second(&mut service, true, || state() == CircuitState::Closed).await;
    assert!(back.unwrap() <= millis(1_500), "{back:?}");
}

#[tokio::test(start_paused = true)]
async fn switching_on_a_breaker_that_is_on_leaves_its_sleep_as_it_is() {
    let breaker = builder()
        .consecutive_failures(1)
        .sleep_growth(2.0, secs(60))
        .build()
        .unwrap();
    for _ in 0..3 {
        settle(&breaker, 1, Verdict::Failure);
        advance(breaker.probe_in().unwrap()).await;
    }
    settle(&breaker, 1, Verdict::Failure);
    breaker.set_enabled(true);
    assert_eq!(asleep(&breaker).await, secs(8));
    breaker.set_enabled(false);
    breaker.set_enabled(true);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(asleep(&breaker).await, secs(1));
}

#[test]
fn a_rule_that_heard_of_no_outcome_for_half_of_all_generations_still_opens_the_circuit() {
    for resets in [1, 32_767, 32_768, 40_000, 65_400] {
        let in_a_row = builder().consecutive_failures(2).build().unwrap();
        let last = builder().last_outcomes(2).without_window().build().unwrap();
        for breaker in [in_a_row, last] {
            settle(&breaker, 1, Verdict::Failure);
            (0..resets).for_each(|_| breaker.reset());
            settle(&breaker, 2, Verdict::Failure);
            assert_eq!(breaker.state(), CircuitState::Open, "{resets}");
        }
    }
}

#[test]
fn a_row_that_began_before_its_rule_was_given_up_does_not_go_on_when_that_is_back() {
    let breaker = builder().consecutive_failures(3).build().unwrap();
    settle(&breaker, 2, Verdict::Failure);
    breaker.change(|_| builder()).unwrap();
    settle(&breaker, 5, Verdict::Success);
    breaker
        .change(|settings| settings.consecutive_failures(3))
        .unwrap();
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 2, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[test]
fn a_builder_made_anew_gives_a_rule_up_and_keeps_the_seed_and_the_hook() {
    let told = Arc::new(Mutex::new(0));
    let log = told.clone();
    let breaker = builder()
        .consecutive_failures(1)
        .on_transition(move |_| *log.lock().unwrap() += 1)
        .build()
        .unwrap();
    breaker.change(|_| builder().volume(3)).unwrap();
    assert_eq!(breaker.settings().consecutive_failures(), None);
    settle(&breaker, 2, Verdict::Failure);
    assert_eq!(
        (breaker.state(), *told.lock().unwrap()),
        (CircuitState::Closed, 0)
    );
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!((breaker.state(), *told.lock().unwrap()), (CircuitState::Open, 1));
    let error = breaker.change(|_| builder().seed(1)).unwrap_err();
    assert_eq!(error.field(), "seed");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_panic_was_caught_has_ended_though_its_future_is_kept() {
    let breaker = builder()
        .consecutive_failures(1)
        .cancelled_after(millis(10))
        .build()
        .unwrap();
    settle(&breaker, 1, Verdict::Failure);
    advance(SLEEP).await;
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|()| async {
        sleep(millis(10)).await;
        if Instant::now().elapsed().is_zero() {
            panic!("planned");
        }
        Ok::<_, io::Error>(())
    }));
    let mut call = Box::pin(service.ready().await.unwrap().call(()));
    assert!((&mut call).now_or_never().is_none());
    assert!(breaker.admit().is_err(), "the probe is out");
    advance(millis(20)).await;
    let mut cx = Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))).unwrap_err();
    let probe = breaker.admit().unwrap();
    assert!(probe.is_probe(), "at once");
    drop(call);
    probe.settle(Verdict::Success);
    assert_eq!(
        (breaker.state(), breaker.counts().cancelled()),
        (CircuitState::Closed, 1)
    );
}

#[test]
fn a_hook_that_panics_leaves_none_untold() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (log, handle) = (told.clone(), Arc::new(OnceLock::<Breaker>::new()));
    let own = handle.clone();
    let breaker = builder()
        .on_transition(move |transition| {
            log.lock().unwrap().push(transition.to());
            if transition.to() == CircuitState::ForcedOpen {
                // As another thread might at this moment.
                own.get().unwrap().force(Force::None);
                panic!("planned");
            }
        })
        .build()
        .unwrap();
    handle.set(breaker.clone()).unwrap();
    let mut transitions = breaker.transitions();
    catch_unwind(AssertUnwindSafe(|| breaker.force(Force::Open))).unwrap_err();
    let both = [CircuitState::ForcedOpen, CircuitState::Closed];
    assert_eq!(*told.lock().unwrap(), both);
    assert_eq!(causes(&mut transitions), [Cause::Forced, Cause::Forced]);
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.throw(of.len() as u64) as usize]
    }

    /// The least, the most and some between of what can change while calls go on.
    fn settings(&mut self, from: BreakerBuilder) -> BreakerBuilder {
        let longest = Duration::from_millis(3);
        let mut to = from
            .volume(self.one_of(&[1, 2, 20, 16_777_215]))
            .error_percent(self.one_of(&[0, 1, 50, 100]))
            .consecutive_failures(self.one_of(&[1, 3, 1_048_575]))
            .sleep_window(self.one_of(&[Duration::from_nanos(1), millis(1), millis(2)]))
            .sleep_jitter(self.one_of(&[0, 50, 100]))
            .probe_success_percent(self.one_of(&[1, 50, 100]))
            .probe_lease(self.one_of(&[Duration::from_nanos(1), millis(1), millis(5)]))
            .cancelled_after(self.one_of(&[Duration::from_nanos(1), millis(1), secs(60)]))
            .shadow(self.throw(4) == 0);
        if self.throw(2) == 0 {
            to = to.sleep_growth(self.one_of(&[1.0, 2.0, f64::MAX]), longest);
        }
        if self.throw(2) == 0 {
            to = to.slow_calls(
                self.one_of(&[Duration::from_nanos(1), millis(1)]),
                self.one_of(&[1, 50, 100]),
            );
        }
        to
    }
}

/// Threads that do anything with a breaker of extreme settings, which they change as well, with permits that are leaked, a
/// hook that uses the handle, and another that panics: each transition follows the one before it, subscribers are told
/// the same, and a dependency that is well again gets its calls within the leases and sleeps that are left.
/// `BREAKER_SEEDS` asks for more.
#[test]
fn whatever_was_done_to_it_a_breaker_of_any_settings_closes_again() {
    const THREADS: u64 = 3;
    let asked = std::env::var("BREAKER_SEEDS").ok();
    let seeds: u64 = asked.map_or(24, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let mut dice = Dice(seed);
        let told = Arc::new(Mutex::new(Vec::new()));
        let (log, handle) = (told.clone(), Arc::new(OnceLock::<Breaker>::new()));
        let own = handle.clone();
        let mut builder = Breaker::builder("orders")
            .window(millis(10))
            .probes(dice.one_of(&[1, 2, 3, 1_000]))
            .on_transition(move |transition| {
                let count = {
                    let mut log = log.lock().unwrap();
                    log.push((transition.from(), transition.to()));
                    log.len()
                };
                if let Some(own) = own.get() {
                    let _ = (own.state(), own.counts(), own.admit().map(drop));
                }
                assert!(count % 7 != 0, "planned");
            });
        if dice.throw(2) == 0 {
            builder = builder.last_outcomes(dice.one_of(&[1, 2, 100]));
        }
        let breaker = dice.settings(builder).build().unwrap();
        handle.set(breaker.clone()).unwrap();
        let mut transitions = breaker.transitions();
        let seen = thread::scope(|scope| {
            let threads = [(); THREADS as usize].map(|()| {
                let breaker = &breaker;
                let mut dice = Dice(dice.throw(u64::MAX));
                scope.spawn(move || {
                    let mut held: Vec<Permit> = Vec::new();
                    for _ in 0..3_000 {
                        let what = dice.throw(96);
                        let _ = catch_unwind(AssertUnwindSafe(|| match what {
                            0 => breaker.reset(),
                            1 => breaker.force(Force::Open),
                            2 => breaker.force(Force::Closed),
                            3..8 => breaker.force(Force::None),
                            8 => breaker.set_enabled(false),
                            9..13 => breaker.set_enabled(true),
                            13..16 => breaker.change(|settings| dice.settings(settings)).unwrap(),
                            16..60 => held.extend(breaker.admit()),
                            _ => {
                                if let Some(permit) = held.pop() {
                                    match what {
                                        60..75 => permit.settle(Verdict::Failure),
                                        75..86 => permit.settle(Verdict::Success),
                                        86..90 => permit.settle(Verdict::Ignored),
                                        90..92 => mem::forget(permit),
                                        _ => drop(permit),
                                    }
                                }
                            }
                        }));
                    }
                    // What is still held is given up, in any order and with the hook that panics.
                    for permit in held {
                        let _ = catch_unwind(AssertUnwindSafe(|| drop(permit)));
                    }
                })
            });
            // Until some were missed.
            let mut seen = Vec::new();
            loop {
                match transitions.next().now_or_never() {
                    Some(Some(Ok(transition))) => seen.push((transition.from(), transition.to())),
                    None if threads.iter().any(|thread| !thread.is_finished()) => thread::yield_now(),
                    _ => break,
                }
            }
            seen
        });
        let by_hand = |what: &dyn Fn()| {
            let _ = catch_unwind(AssertUnwindSafe(what));
        };
        by_hand(&|| breaker.set_enabled(true));
        by_hand(&|| breaker.force(Force::None));
        breaker
            .change(|settings| {
                let settings = settings.sleep_window(millis(1)).sleep_growth(2.0, millis(8));
                let settings = settings.shadow(false).volume(1).error_percent(100);
                // The hook gives its probes up at once, which is no failure then.
                settings.slow_calls(secs(60), 100).cancelled_after(secs(60))
            })
            .unwrap();
        let begun = Instant::now();
        while breaker.state() != CircuitState::Closed {
            by_hand(&|| {
                if let Ok(permit) = breaker.admit() {
                    permit.settle(Verdict::Success);
                }
            });
            assert!(begun.elapsed() < secs(5), "seed {seed}: {breaker:?}");
        }
        let told = told.lock().unwrap().clone();
        assert!(told.len() > 10, "seed {seed}: {told:?}");
        assert!(
            told.windows(2).all(|pair| pair[0].1 == pair[1].0),
            "seed {seed}: {told:?}"
        );
        assert_eq!(told[..seen.len()], seen, "seed {seed}");
    }
}
