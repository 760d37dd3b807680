//! What a circuit breaker can do beyond Hystrix, over its public API: other rules, growing sleep windows, several probes,
//! shadow mode, changes of settings while calls go on, and following its transitions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    future::pending,
    io,
    sync::{Arc, Mutex},
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
