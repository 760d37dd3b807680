//! The circuit breaker over its public API.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    sync::oneshot,
    time::{Instant, advance, sleep, timeout},
};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, service_fn,
    util::{BoxCloneSyncService, ServiceFn},
};
use tower_outbound::{
    breaker::{
        Breaker, BreakerBuilder, Cause, CircuitBreaker, CircuitBreakerFuture, CircuitBreakerLayer, Counts,
        Force, HystrixRelease, HystrixVerdicts, Permit, Transition,
    },
    call::{
        BoxError, ByFault, CircuitOpen, CircuitState, ErrorRef, Fault, FaultKind, Rejection, Sent, Verdict,
    },
};
use tower_test::mock::Spawn;

const SLEEP: Duration = Duration::from_secs(5);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn breaker() -> Breaker {
    Breaker::new("orders").unwrap()
}

fn settle(breaker: &Breaker, n: usize, verdict: Verdict) {
    for _ in 0..n {
        breaker.admit().unwrap().settle(verdict);
    }
}

fn trip(breaker: &Breaker) {
    settle(breaker, 20, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
}

/// In window, as (successes, failures).
fn window(breaker: &Breaker) -> (u64, u64) {
    let counts = breaker.counts();
    (counts.successes(), counts.failures())
}

/// The error of a call that was turned away.
fn rejection(error: &BoxError) -> &CircuitOpen {
    error.downcast_ref().expect("a rejection")
}

type Log = Arc<Mutex<Vec<Transition>>>;

/// A breaker that writes its transitions down.
fn recorded(builder: BreakerBuilder) -> (Breaker, Log) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = log.clone();
    let breaker = builder
        .on_transition(move |transition| writer.lock().unwrap().push(transition.clone()))
        .build()
        .unwrap();
    (breaker, log)
}

fn told(log: &Log) -> Vec<(CircuitState, CircuitState, Cause)> {
    log.lock()
        .unwrap()
        .iter()
        .map(|transition| (transition.from(), transition.to(), transition.cause()))
        .collect()
}

type Answer = Result<(), io::Error>;
type Calls = Arc<Mutex<Vec<oneshot::Sender<Answer>>>>;
type Received = Result<Answer, oneshot::error::RecvError>;

/// A service whose calls the test ends one by one, and which counts what it is asked.
#[derive(Clone, Default)]
struct Scripted {
    not_ready: Arc<AtomicBool>,
    polls: Arc<AtomicUsize>,
    calls: Calls,
    /// Of this instance alone.
    asked: bool,
}

impl Scripted {
    fn answer(&self, n: usize, answer: Answer) {
        let _ = self.calls.lock().unwrap().remove(n).send(answer);
    }

    fn polls(&self) -> usize {
        self.polls.load(SeqCst)
    }

    fn out(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Service<()> for Scripted {
    type Response = ();
    type Error = io::Error;
    type Future = futures_util::future::Map<oneshot::Receiver<Answer>, fn(Received) -> Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.polls.fetch_add(1, SeqCst);
        if self.not_ready.load(SeqCst) {
            return Poll::Pending;
        }
        self.asked = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(
            std::mem::take(&mut self.asked),
            "called without having been asked"
        );
        let (send, receive) = oneshot::channel();
        self.calls.lock().unwrap().push(send);
        receive.map(|answer| answer.unwrap_or_else(|_| Err(io::Error::other("gone"))))
    }
}

fn scripted(breaker: &Breaker) -> (CircuitBreaker<Scripted>, Scripted) {
    let inner = Scripted::default();
    (
        CircuitBreakerLayer::new(breaker.clone()).layer(inner.clone()),
        inner,
    )
}

type Echoed = Ready<Result<Verdict, io::Error>>;

/// Makes the answer itself from what the request says.
fn echo() -> ServiceFn<fn(Verdict) -> Echoed> {
    service_fn(|verdict| {
        ready(match verdict {
            Verdict::Failure => Err(io::Error::other("down")),
            answer => Ok(answer),
        })
    })
}

fn by_answer(outcome: Result<&Verdict, ErrorRef<'_>>) -> Verdict {
    outcome.copied().unwrap_or(Verdict::Failure)
}

async fn send<S>(service: &mut S, request: Verdict) -> Result<S::Response, BoxError>
where
    S: Service<Verdict, Error = BoxError>,
{
    service.ready().await?.call(request).await
}

/// RDY-04.
#[test]
fn all_types_can_be_shared_and_sent() {
    fn shared<T: Send + Sync>() {}
    fn cloned<T: Clone + Send + Sync>() {}
    cloned::<Breaker>();
    cloned::<BreakerBuilder>();
    cloned::<Counts>();
    cloned::<Transition>();
    cloned::<CircuitBreakerLayer>();
    cloned::<CircuitBreaker<Scripted, ByFault>>();
    shared::<Permit>();
    shared::<CircuitBreakerFuture<Ready<Result<(), io::Error>>, ByFault>>();
}

#[test]
fn mistakes_in_the_settings_are_found_and_named() {
    let new = || Breaker::builder("orders");
    let field = |builder: BreakerBuilder| {
        let error = builder.build().unwrap_err();
        assert_eq!(error.layer(), "CircuitBreaker");
        (error.field(), error.value().to_owned())
    };
    let named = |field: &'static str, value: &str| (field, value.to_owned());
    assert_eq!(field(Breaker::builder(" ")), named("name", "empty"));
    assert_eq!(field(new().volume(0)), named("volume", "0"));
    assert_eq!(field(new().error_percent(101)), named("error_percent", "101"));
    assert_eq!(field(new().window(Duration::ZERO)), named("window", "0 s"));
    assert_eq!(
        field(new().sleep_window(Duration::ZERO)),
        named("sleep_window", "0 s")
    );
    assert_eq!(
        field(new().probe_lease(Duration::ZERO)),
        named("probe_lease", "0 s")
    );
    assert_eq!(field(new().window(Duration::MAX)).0, "window");
    assert_eq!(field(new().window(Duration::from_micros(9_999))).0, "window");
    assert_eq!(field(new().volume(1 << 24)).0, "volume");
    assert_eq!(field(new().sleep_window(Duration::MAX)).0, "sleep_window");
    assert_eq!(field(new().probe_lease(Duration::MAX)).0, "probe_lease");
    let edges = new()
        .volume((1 << 24) - 1)
        .error_percent(100)
        .window(Duration::from_millis(10))
        .sleep_window(tower_outbound::call::LONGEST)
        .probe_lease(tower_outbound::call::LONGEST);
    settle(&edges.build().unwrap(), 3, Verdict::Failure);
}

#[tokio::test(start_paused = true)]
async fn it_opens_at_twenty_outcomes_half_of_them_failures_and_not_before() {
    let breaker = breaker();
    settle(&breaker, 10, Verdict::Success);
    settle(&breaker, 9, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(breaker.counts().error_percent(), 50);
    assert_eq!(breaker.counts().total(), 20);
}

#[tokio::test(start_paused = true)]
async fn forty_nine_and_a_half_percent_are_forty_nine() {
    let breaker = Breaker::builder("orders").volume(201).build().unwrap();
    settle(&breaker, 101, Verdict::Success);
    settle(&breaker, 100, Verdict::Failure);
    assert_eq!(
        (breaker.state(), breaker.counts().error_percent()),
        (CircuitState::Closed, 49)
    );
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_have_left_the_window_do_not_count() {
    let breaker = breaker();
    settle(&breaker, 19, Verdict::Failure);
    advance(secs(10) - Duration::from_millis(1)).await;
    assert_eq!(window(&breaker), (0, 19));
    advance(Duration::from_millis(1)).await;
    assert_eq!(window(&breaker), (0, 0));
    settle(&breaker, 19, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
}

/// CBR-18.
#[tokio::test(start_paused = true)]
async fn a_success_that_completes_the_volume_opens_a_circuit_that_fails_too_much() {
    let breaker = breaker();
    settle(&breaker, 15, Verdict::Failure);
    settle(&breaker, 4, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_success_opens_it_when_older_successes_have_left_the_window() {
    let breaker = breaker();
    settle(&breaker, 100, Verdict::Success);
    advance(secs(5)).await;
    settle(&breaker, 40, Verdict::Failure);
    advance(secs(5)).await;
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn at_zero_percent_it_opens_by_volume_alone() {
    let breaker = Breaker::builder("orders")
        .volume(3)
        .error_percent(0)
        .build()
        .unwrap();
    settle(&breaker, 2, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Closed);
    settle(&breaker, 1, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn ignored_outcomes_are_not_counted_at_all() {
    let breaker = breaker();
    settle(&breaker, 100, Verdict::Ignored);
    settle(&breaker, 19, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    assert_eq!((window(&breaker), breaker.counts().ignored()), ((0, 19), 100));
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_rejects_with_the_time_left_and_a_fault_that_nobody_is_blamed_for() {
    let breaker = breaker();
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(echo());
    trip(&breaker);
    advance(secs(2)).await;
    let error = send(&mut service, Verdict::Success).await.unwrap_err();
    let open = rejection(&error);
    assert_eq!(
        (open.name(), open.state(), open.retry_in()),
        ("orders", CircuitState::Open, Some(secs(3)))
    );
    let fault = Fault::of(&*error);
    assert_eq!(
        (fault.kind(), fault.sent()),
        (FaultKind::Rejected(Rejection::Breaker), Sent::No)
    );
    assert_eq!(Verdict::of(&*error), Verdict::Ignored);
}

#[tokio::test(start_paused = true)]
async fn rejections_of_a_breaker_below_do_not_open_the_one_above() {
    let (above, below) = (breaker(), breaker());
    let mut service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(above.clone()))
        .layer(CircuitBreakerLayer::new(below.clone()))
        .service(echo());
    below.force(Force::Open);
    for _ in 0..50 {
        send(&mut service, Verdict::Success).await.unwrap_err();
    }
    assert_eq!(
        (above.state(), above.counts().ignored()),
        (CircuitState::Closed, 50)
    );
}

/// CBR-01: the freed probe is given out at once, and is still there after another sleep window.
#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_is_handed_back_at_once() {
    let breaker = breaker();
    let (mut service, inner) = scripted(&breaker);
    trip(&breaker);
    advance(SLEEP).await;

    // Before its first poll.
    let probe = service.ready().await.unwrap().call(());
    assert!(breaker.admit().is_err());
    drop(probe);
    // Midway.
    let mut probe = task::spawn(service.ready().await.unwrap().call(()));
    assert_pending!(probe.poll());
    drop(probe);
    // By a timeout around it.
    let probe = service.ready().await.unwrap().call(());
    timeout(secs(1), probe).await.unwrap_err();
    assert_eq!(breaker.state(), CircuitState::HalfOpen);

    drop(breaker.admit().unwrap());
    advance(SLEEP).await;
    let mut probe = task::spawn(service.ready().await.unwrap().call(()));
    assert_pending!(probe.poll());
    assert_eq!(inner.out(), 4);
    inner.answer(3, Ok(()));
    assert_ready_ok!(probe.poll());
    assert_eq!(breaker.state(), CircuitState::Closed);
    assert_eq!(breaker.counts().cancelled(), 4);
}

/// CBR-02: the probe is handed back, so the next call is one at once, and at any later time.
#[tokio::test(start_paused = true)]
async fn an_ignored_probe_is_handed_back_and_never_makes_the_circuit_stay_open_longer() {
    let breaker = breaker();
    let layer = CircuitBreakerLayer::new(breaker.clone()).classify(by_answer);
    let mut service = layer.layer(echo());
    trip(&breaker);
    advance(SLEEP).await;
    for pause in [Duration::ZERO, SLEEP] {
        for _ in 0..5 {
            advance(pause).await;
            send(&mut service, Verdict::Ignored).await.unwrap();
            assert_eq!(breaker.state(), CircuitState::HalfOpen);
        }
    }
    send(&mut service, Verdict::Success).await.unwrap();
    assert_eq!(breaker.state(), CircuitState::Closed);
    assert_eq!(breaker.counts().rejected(), 0);
}

/// CBR-03.
#[tokio::test(start_paused = true)]
async fn after_closing_neither_rejections_nor_old_outcomes_count() {
    let breaker = breaker();
    trip(&breaker);
    for _ in 0..500 {
        assert!(breaker.admit().is_err());
    }
    advance(SLEEP).await;
    settle(&breaker, 1, Verdict::Success);
    assert_eq!(
        (breaker.state(), window(&breaker)),
        (CircuitState::Closed, (0, 0))
    );
    settle(&breaker, 19, Verdict::Success);
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(
        (breaker.state(), window(&breaker)),
        (CircuitState::Closed, (19, 1))
    );
    assert_eq!(breaker.counts().rejected(), 500);
}

/// CBR-07, RAC-06: a late outcome is seen among the stale ones. That a permit is told but once is a test of `Permit`'s docs.
#[tokio::test(start_paused = true)]
async fn calls_from_before_the_trip_do_not_decide_a_half_open_circuit() {
    for verdict in [Verdict::Failure, Verdict::Success] {
        let breaker = breaker();
        let slow: Vec<_> = (0..20).map(|_| breaker.admit().unwrap()).collect();
        advance(secs(1)).await;
        trip(&breaker);
        advance(secs(6)).await;
        let probe = breaker.admit().unwrap();
        assert!(probe.is_probe());
        advance(secs(1)).await;
        for permit in slow {
            permit.settle(verdict);
        }
        assert_eq!(breaker.state(), CircuitState::HalfOpen);
        advance(secs(1)).await;
        probe.settle(Verdict::Success);
        assert_eq!(breaker.state(), CircuitState::Closed);
        assert_eq!((window(&breaker), breaker.counts().stale()), ((0, 0), 20));
    }
}

/// CBR-08.
#[tokio::test(start_paused = true)]
async fn failures_that_arrive_late_neither_open_it_again_nor_move_the_probe() {
    let (breaker, log) = recorded(Breaker::builder("orders"));
    let mut permits: Vec<_> = (0..100).map(|_| breaker.admit().unwrap()).collect();
    for permit in permits.drain(..20) {
        permit.settle(Verdict::Failure);
    }
    for permit in permits {
        advance(Duration::from_millis(10)).await;
        permit.settle(Verdict::Failure);
    }
    assert_eq!(log.lock().unwrap().len(), 1);
    assert_eq!((window(&breaker), breaker.counts().stale()), ((0, 20), 80));
    advance(SLEEP - Duration::from_millis(801)).await;
    assert!(breaker.admit().is_err());
    advance(Duration::from_millis(1)).await;
    assert!(breaker.admit().unwrap().is_probe());
}

/// CBR-12.
#[tokio::test(start_paused = true)]
async fn a_calm_service_closes_its_circuit_with_the_first_call_whatever_the_volume() {
    let breaker = Breaker::builder("orders")
        .volume(60)
        .sleep_window(secs(60))
        .build()
        .unwrap();
    settle(&breaker, 60, Verdict::Failure);
    for _ in 0..10 {
        advance(secs(90)).await;
        settle(&breaker, 1, Verdict::Success);
        assert_eq!(breaker.state(), CircuitState::Closed);
    }
}

/// CBR-13. There is one force at a time, so none wins over another; that a word with both is open is a test of its own.
#[tokio::test(start_paused = true)]
async fn force_holds_in_every_state_and_lifting_it_gives_the_state_below_back() {
    let closed = breaker;
    let open = || {
        let breaker = breaker();
        trip(&breaker);
        breaker
    };
    let half_open = || {
        let breaker = breaker();
        trip(&breaker);
        let age = breaker.admit().unwrap_err().retry_in().unwrap();
        (breaker, age)
    };
    let check = |breaker: &Breaker, natural: CircuitState| {
        assert_eq!(breaker.state(), natural);
        breaker.force(Force::Open);
        assert_eq!(breaker.state(), CircuitState::ForcedOpen);
        let rejection = breaker.admit().unwrap_err();
        assert_eq!(
            (rejection.state(), rejection.retry_in()),
            (CircuitState::ForcedOpen, None)
        );
        breaker.force(Force::Closed);
        assert_eq!(breaker.state(), CircuitState::ForcedClosed);
        let (before, _) = window(breaker);
        settle(breaker, 1, Verdict::Success);
        assert_eq!(
            window(breaker).0,
            before + 1,
            "it counts while it is forced closed"
        );
        breaker.force(Force::None);
        assert_eq!(breaker.state(), natural);
    };
    check(&closed(), CircuitState::Closed);
    check(&open(), CircuitState::Open);
    let (breaker, left) = half_open();
    advance(left).await;
    let probe = breaker.admit().unwrap();
    check(&breaker, CircuitState::HalfOpen);
    assert!(breaker.admit().is_err(), "the probe is still out");
    breaker.force(Force::Closed);
    probe.settle(Verdict::Success);
    breaker.force(Force::None);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_trips_below_a_force_is_open_once_the_force_is_lifted() {
    let (breaker, log) = recorded(Breaker::builder("orders"));
    breaker.force(Force::Closed);
    settle(&breaker, 30, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::ForcedClosed);
    breaker.force(Force::None);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(
        told(&log),
        [
            (CircuitState::Closed, CircuitState::ForcedClosed, Cause::Forced),
            (CircuitState::ForcedClosed, CircuitState::Open, Cause::Forced),
        ]
    );
}

/// CBR-14.
#[tokio::test(start_paused = true)]
async fn switched_off_it_lets_everything_through_and_switched_on_it_starts_with_an_empty_window() {
    let breaker = Breaker::builder("orders").disabled().build().unwrap();
    breaker.force(Force::Open);
    settle(&breaker, 1_000, Verdict::Failure);
    let old = breaker.admit().unwrap();
    assert_eq!(
        (breaker.state(), breaker.counts()),
        (CircuitState::Disabled, Counts::default())
    );
    breaker.force(Force::None);
    breaker.set_enabled(true);
    old.settle(Verdict::Failure);
    settle(&breaker, 19, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    breaker.set_enabled(true);
    assert_eq!(window(&breaker), (0, 19), "switched on it was already");
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
    breaker.set_enabled(false);
    settle(&breaker, 1, Verdict::Failure);
    breaker.set_enabled(true);
    assert_eq!(
        (breaker.state(), window(&breaker)),
        (CircuitState::Closed, (0, 0))
    );
}

/// CBR-17.
#[tokio::test(start_paused = true)]
async fn a_reset_empties_the_window_and_forgets_the_calls_that_are_out() {
    let breaker = breaker();
    let old: Vec<_> = (0..20).map(|_| breaker.admit().unwrap()).collect();
    trip(&breaker);
    breaker.reset();
    settle(&breaker, 1, Verdict::Failure);
    advance(secs(1)).await;
    assert_eq!(
        (breaker.state(), window(&breaker)),
        (CircuitState::Closed, (0, 1))
    );
    for permit in old {
        permit.settle(Verdict::Failure);
    }
    settle(&breaker, 18, Verdict::Failure);
    assert_eq!(
        (breaker.state(), window(&breaker)),
        (CircuitState::Closed, (0, 19))
    );
    settle(&breaker, 1, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
}

/// CBR-19.
#[tokio::test(start_paused = true)]
async fn calls_that_were_admitted_before_the_trip_run_to_their_end() {
    let (breaker, log) = recorded(Breaker::builder("orders"));
    let service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|()| async {
        sleep(secs(1)).await;
        Err::<(), _>(io::Error::other("down"))
    }));
    let calls = (0..200).map(|_| service.clone().oneshot(()));
    let errors = futures_util::future::join_all(calls).await;
    assert!(
        errors
            .iter()
            .all(|end| end.as_ref().unwrap_err().is::<io::Error>())
    );
    assert_eq!(log.lock().unwrap().len(), 1);
    let error = service.oneshot(()).await.unwrap_err();
    assert_eq!(rejection(&error).state(), CircuitState::Open);
}

/// CBR-20.
#[tokio::test(start_paused = true)]
async fn one_failed_probe_opens_it_for_a_full_sleep_window() {
    let breaker = breaker();
    trip(&breaker);
    advance(secs(7)).await;
    let probe = breaker.admit().unwrap();
    advance(secs(2)).await;
    probe.settle(Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(breaker.admit().unwrap_err().retry_in(), Some(SLEEP));
    advance(SLEEP).await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    settle(&breaker, 1, Verdict::Success);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_outlives_its_lease_is_replaced_and_cannot_touch_its_successor() {
    for end in [
        None,
        Some(Verdict::Success),
        Some(Verdict::Failure),
        Some(Verdict::Ignored),
    ] {
        let breaker = breaker();
        trip(&breaker);
        advance(SLEEP).await;
        let first = breaker.admit().unwrap();
        advance(secs(30) - Duration::from_millis(1)).await;
        assert!(breaker.admit().is_err());
        advance(Duration::from_millis(1)).await;
        let second = breaker.admit().unwrap();
        match end {
            None => drop(first),
            Some(verdict) => first.settle(verdict),
        }
        assert_eq!(breaker.state(), CircuitState::HalfOpen);
        assert!(breaker.admit().is_err(), "the second probe is out");
        second.settle(Verdict::Success);
        assert_eq!(breaker.state(), CircuitState::Closed);
        assert_eq!(breaker.counts().stale(), u64::from(end.is_some()));
    }
}

/// RAC-10.
#[tokio::test(start_paused = true)]
async fn a_dropped_probe_of_an_earlier_period_does_not_free_the_one_that_is_out() {
    let breaker = breaker();
    trip(&breaker);
    advance(SLEEP).await;
    let first = breaker.admit().unwrap();
    breaker.reset();
    trip(&breaker);
    advance(SLEEP).await;
    let second = breaker.admit().unwrap();
    drop(first);
    assert!(breaker.admit().is_err());
    drop(second);
    assert!(breaker.admit().unwrap().is_probe());
}

/// RAC-03.
#[test]
fn of_many_threads_that_ask_for_the_probe_one_gets_it() {
    const THREADS: usize = 8;
    let breaker = Breaker::builder("orders")
        .sleep_window(Duration::from_millis(1))
        .build()
        .unwrap();
    trip(&breaker);
    while breaker.state() == CircuitState::Open {
        std::hint::spin_loop();
    }
    let barrier = Barrier::new(THREADS);
    for _ in 0..300 {
        let permits: Vec<_> = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                breaker.admit()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(permits.iter().filter(|permit| permit.is_ok()).count(), 1);
    }
}

/// OBS-01.
#[tokio::test(start_paused = true)]
async fn each_transition_is_told_once_in_order_with_its_cause() {
    use CircuitState::{Closed, ForcedOpen, HalfOpen, Open};
    let (breaker, log) = recorded(Breaker::builder("orders"));
    let late: Vec<_> = (0..5).map(|_| breaker.admit().unwrap()).collect();
    trip(&breaker);
    advance(SLEEP).await;
    drop(breaker.admit().unwrap());
    settle(&breaker, 1, Verdict::Ignored);
    settle(&breaker, 1, Verdict::Failure);
    advance(SLEEP).await;
    settle(&breaker, 1, Verdict::Success);
    breaker.force(Force::Open);
    breaker.force(Force::Open);
    breaker.reset();
    breaker.reset();
    for permit in late {
        permit.settle(Verdict::Failure);
    }
    breaker.set_enabled(true);
    breaker.set_enabled(false);
    breaker.set_enabled(false);
    breaker.set_enabled(true);
    let tripped = Cause::Tripped {
        successes: 0,
        failures: 20,
    };
    assert_eq!(
        told(&log),
        [
            (Closed, Open, tripped),
            (Open, HalfOpen, Cause::SleepWindowEnded),
            (HalfOpen, Open, Cause::ProbeFailed),
            (Open, HalfOpen, Cause::SleepWindowEnded),
            (HalfOpen, Closed, Cause::ProbeSucceeded),
            (Closed, ForcedOpen, Cause::Forced),
            (ForcedOpen, Closed, Cause::Reset),
            (Closed, CircuitState::Disabled, Cause::Disabled),
            (CircuitState::Disabled, Closed, Cause::Enabled),
        ]
    );
    assert!(
        log.lock()
            .unwrap()
            .iter()
            .all(|transition| transition.name() == "orders")
    );
}

/// RAC-08.
#[tokio::test(start_paused = true)]
async fn a_hook_may_use_the_handle_and_end_other_calls() {
    let handle: Arc<Mutex<Option<(Breaker, Permit)>>> = Arc::default();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (inside, writer) = (handle.clone(), log.clone());
    let breaker = Breaker::builder("orders")
        .on_transition(move |transition| {
            writer.lock().unwrap().push((transition.from(), transition.to()));
            let taken = inside.lock().unwrap().take();
            if let Some((breaker, permit)) = taken {
                assert_eq!(breaker.state(), CircuitState::Open);
                assert!(breaker.admit().is_err());
                drop(permit);
                breaker.reset();
                assert_eq!(breaker.state(), CircuitState::Closed);
            }
        })
        .build()
        .unwrap();
    *handle.lock().unwrap() = Some((breaker.clone(), breaker.admit().unwrap()));
    settle(&breaker, 20, Verdict::Failure);
    assert_eq!(breaker.state(), CircuitState::Closed);
    assert_eq!(
        *log.lock().unwrap(),
        [
            (CircuitState::Closed, CircuitState::Open),
            (CircuitState::Open, CircuitState::Closed),
        ]
    );
}

#[test]
fn transitions_of_racing_threads_are_told_as_one_chain() {
    let (breaker, log) = recorded(Breaker::builder("orders"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    breaker.force(Force::Open);
                    breaker.force(Force::Closed);
                    breaker.force(Force::None);
                }
            });
        }
    });
    let log = told(&log);
    assert_eq!(
        (log[0].0, log[log.len() - 1].1),
        (CircuitState::Closed, breaker.state())
    );
    assert!(log.windows(2).all(|pair| pair[0].1 == pair[1].0));
    assert!(log.iter().all(|(from, to, _)| from != to));
}

/// CBR-16.
#[tokio::test(start_paused = true)]
async fn an_open_circuit_rejects_without_asking_the_service_below() {
    let breaker = breaker();
    let (service, inner) = scripted(&breaker);
    inner.not_ready.store(true, SeqCst);
    let mut service = Spawn::new(service);
    assert_pending!(service.poll_ready::<()>());

    // A task that waits in a closed circuit is woken.
    breaker.force(Force::Open);
    assert!(service.is_woken());
    let polls = inner.polls();
    for _ in 0..3 {
        assert_ready_ok!(service.poll_ready::<()>());
        let error = assert_ready_err!(task::spawn(service.call(())).poll());
        assert_eq!(rejection(&error).state(), CircuitState::ForcedOpen);
    }
    assert_eq!(inner.polls(), polls);

    // Half-open with the probe out.
    breaker.reset();
    trip(&breaker);
    advance(SLEEP).await;
    let probe = breaker.admit().unwrap();
    assert_ready_ok!(service.poll_ready::<()>());
    let error = assert_ready_err!(task::spawn(service.call(())).poll());
    assert_eq!(rejection(&error).state(), CircuitState::HalfOpen);
    assert_eq!(inner.polls(), polls);

    // The probe is to be had, so the service below is asked, until another call takes it.
    drop(probe);
    assert_pending!(service.poll_ready::<()>());
    assert_eq!(inner.polls(), polls + 1);
    let probe = breaker.admit().unwrap();
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready::<()>());
    assert_eq!(inner.polls(), polls + 1);

    // The service below becomes ready by itself, and the very instance that was asked is called.
    probe.settle(Verdict::Success);
    inner.not_ready.store(false, SeqCst);
    assert_ready_ok!(service.poll_ready::<()>());
    let _call = service.call(());
    assert_eq!(inner.out(), 1);
}

/// RDY-10.
#[tokio::test(start_paused = true)]
async fn tasks_that_wait_below_a_trip_all_end_without_another_call_or_timer() {
    let breaker = breaker();
    let (service, inner) = scripted(&breaker);
    inner.not_ready.store(true, SeqCst);
    let waiting: Vec<_> = (0..10)
        .map(|_| tokio::spawn(service.clone().oneshot(())))
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(inner.polls(), 10);
    let before = Instant::now();
    trip(&breaker);
    for task in waiting {
        let end = timeout(secs(1), task).await.expect("woken");
        assert_eq!(rejection(&end.unwrap().unwrap_err()).state(), CircuitState::Open);
    }
    assert_eq!((inner.polls(), before.elapsed()), (10, Duration::ZERO));
}

/// RDY-10.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_probe_to_end() {
    let breaker = breaker();
    let (service, _inner) = scripted(&breaker);
    trip(&breaker);
    advance(SLEEP).await;
    let probe = breaker.admit().unwrap();
    for _ in 0..10 {
        let error = service.clone().oneshot(()).now_or_never().unwrap().unwrap_err();
        assert_eq!(rejection(&error).state(), CircuitState::HalfOpen);
    }
    probe.settle(Verdict::Success);
    assert!(
        service.oneshot(()).now_or_never().is_none(),
        "it is with the service below"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_inner_service_was_not_asked_is_rejected_even_if_the_way_is_free_by_now() {
    let breaker = breaker();
    let (service, inner) = scripted(&breaker);
    let mut service = Spawn::new(service);
    for free in [true, false] {
        trip(&breaker);
        assert_ready_ok!(service.poll_ready::<()>());
        if free {
            advance(SLEEP).await;
        } else {
            breaker.reset();
        }
        let error = assert_ready_err!(task::spawn(service.call(())).poll());
        assert_eq!(rejection(&error).retry_in(), Some(Duration::ZERO));
        breaker.reset();
    }
    assert_eq!(
        (inner.polls(), inner.out(), breaker.counts().rejected()),
        (0, 0, 2)
    );

    // Asked again, it goes through.
    assert_ready_ok!(service.poll_ready::<()>());
    let _call = service.call(());
    assert_eq!(inner.out(), 1);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_not_inherited_by_a_clone_and_not_kept_from_an_earlier_answer() {
    let breaker = breaker();
    let (service, inner) = scripted(&breaker);
    let mut service = Spawn::new(service);
    assert_ready_ok!(service.poll_ready::<()>());
    trip(&breaker);
    assert_ready_ok!(service.poll_ready::<()>());
    advance(SLEEP).await;
    // The inner service was ready once, but the latest answer was not its own.
    assert_ready_err!(task::spawn(service.call(())).poll());
    // A clone that was never asked does not get the probe.
    let mut clone = service.get_ref().clone();
    assert!(clone.call(()).now_or_never().unwrap().is_err());
    assert_eq!(inner.out(), 0);
    assert!(breaker.admit().unwrap().is_probe());
}

/// RDY-11.
#[tokio::test(start_paused = true)]
async fn a_buffer_above_survives_rejections() {
    let breaker = breaker();
    let inner = CircuitBreakerLayer::new(breaker.clone()).layer(echo());
    let mut service = tower::buffer::Buffer::new(inner, 1);
    breaker.force(Force::Open);
    for _ in 0..5 {
        let error = send(&mut service, Verdict::Success).await.unwrap_err();
        assert_eq!(rejection(&error).state(), CircuitState::ForcedOpen);
    }
    breaker.reset();
    for _ in 0..5 {
        send(&mut service, Verdict::Success).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_from_the_readiness_of_the_service_below_is_passed_on_and_not_counted() {
    let breaker = breaker();
    let (mock, mut handle) = tower_test::mock::pair::<(), ()>();
    let mut service = Spawn::new(CircuitBreakerLayer::new(breaker.clone()).layer(mock));
    handle.send_error(io::Error::other("dead"));
    let error = assert_ready_err!(service.poll_ready::<()>());
    assert!(error.is::<io::Error>() || error.to_string().contains("dead"));
    assert_eq!(breaker.counts(), Counts::default());
}

/// RDY-16.
#[test]
fn a_panic_in_the_service_the_classifier_or_the_hook_leaves_a_breaker_that_works() {
    let panics = Arc::new(AtomicU32::new(0));
    let panic_at = |place: u32, panics: &AtomicU32| {
        if panics.compare_exchange(place, 0, SeqCst, SeqCst).is_ok() {
            panic!("planned");
        }
    };
    for place in 1..=4 {
        let (in_hook, in_service, in_classifier) = (panics.clone(), panics.clone(), panics.clone());
        let last_told = Arc::new(Mutex::new(None));
        let writer = last_told.clone();
        let breaker = Breaker::builder("orders")
            .sleep_window(Duration::from_millis(1))
            .on_transition(move |transition| {
                panic_at(4, &in_hook);
                *writer.lock().unwrap() = Some(transition.to());
            })
            .build()
            .unwrap();
        trip(&breaker);
        while breaker.state() == CircuitState::Open {
            std::hint::spin_loop();
        }
        let mut service = CircuitBreakerLayer::new(breaker.clone())
            .classify(move |outcome: Result<&(), ErrorRef<'_>>| {
                panic_at(3, &in_classifier);
                if outcome.is_ok() {
                    Verdict::Success
                } else {
                    Verdict::Failure
                }
            })
            .layer(service_fn(move |()| {
                panic_at(1, &in_service);
                let in_future = in_service.clone();
                async move {
                    panic_at(2, &in_future);
                    Ok::<_, Infallible>(())
                }
            }));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut call = |service: &mut CircuitBreaker<_, _>| {
            assert!(Service::<()>::poll_ready(service, &mut cx).is_ready());
            pin!(service.call(())).poll(&mut cx)
        };
        panics.store(place, SeqCst);
        catch_unwind(AssertUnwindSafe(|| call(&mut service))).unwrap_err();
        assert_eq!(
            (breaker.state(), breaker.counts().cancelled()),
            (CircuitState::HalfOpen, 1),
            "{place}"
        );
        for _ in 0..10 {
            assert!(matches!(call(&mut service), Poll::Ready(Ok(()))), "{place}");
        }
        // The first of them was the probe.
        assert_eq!(
            (breaker.state(), window(&breaker)),
            (CircuitState::Closed, (9, 0))
        );
        assert_eq!(*last_told.lock().unwrap(), Some(CircuitState::Closed), "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_clones_layers_and_boxes_share_one_state() {
    let breaker = breaker();
    let layer = CircuitBreakerLayer::new(breaker.clone());
    let mut one = layer.layer(echo());
    let mut other = CircuitBreakerLayer::new(breaker.clone()).layer(echo());
    let mut boxed = BoxCloneSyncService::new(layer.layer(echo()));
    let mut clone = one.clone();
    for _ in 0..5 {
        send(&mut one, Verdict::Failure).await.unwrap_err();
        send(&mut other, Verdict::Failure).await.unwrap_err();
        send(&mut boxed, Verdict::Failure).await.unwrap_err();
        send(&mut clone, Verdict::Failure).await.unwrap_err();
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    for service in [&mut one, &mut other, &mut clone] {
        rejection(&send(service, Verdict::Success).await.unwrap_err());
    }
    rejection(&send(&mut boxed.clone(), Verdict::Success).await.unwrap_err());
    assert_eq!(breaker.counts().rejected(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_counts_is_for_the_classifier_to_say() {
    let breaker = breaker();
    let layer = CircuitBreakerLayer::new(breaker.clone())
        .classify(|_: Result<&Verdict, ErrorRef<'_>>| Verdict::Failure);
    let mut service = layer.layer(echo());
    for _ in 0..20 {
        send(&mut service, Verdict::Success).await.unwrap();
    }
    assert_eq!(breaker.state(), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_given_up_count_nothing() {
    let breaker = breaker();
    let (mut service, inner) = scripted(&breaker);
    for _ in 0..100 {
        drop(service.ready().await.unwrap().call(()));
    }
    assert_eq!((inner.out(), window(&breaker)), (100, (0, 0)));
    assert_eq!(
        (breaker.state(), breaker.counts().cancelled()),
        (CircuitState::Closed, 100)
    );
}

#[test]
fn a_clock_that_is_behind_the_breakers_own_does_no_harm() {
    let paused = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let breaker = paused.block_on(async {
        advance(secs(1_000_000)).await;
        breaker()
    });
    drop(paused);
    settle(&breaker, 20, Verdict::Failure);
    assert_eq!((breaker.state(), window(&breaker)), (CircuitState::Open, (0, 20)));
    assert_eq!(breaker.admit().unwrap_err().retry_in(), Some(SLEEP));
}

fn of_hystrix(release: HystrixRelease) -> Breaker {
    Breaker::builder("orders")
        .hystrix(release)
        .volume(4)
        .build()
        .unwrap()
}

const RELEASES: [HystrixRelease; 2] = [HystrixRelease::V1_5_12, HystrixRelease::V1_5_18];

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_after_a_bad_tick_is_rejected_without_asking_the_service_below() {
    for release in RELEASES {
        let breaker = of_hystrix(release);
        let (service, inner) = scripted(&breaker);
        settle(&breaker, 4, Verdict::Failure);
        inner.not_ready.store(true, SeqCst);
        let mut early = task::spawn(service.clone().oneshot(()));
        assert_pending!(early.poll());
        advance(Duration::from_millis(500)).await;
        let polls = inner.polls();
        let error = service.clone().oneshot(()).await.unwrap_err();
        assert_eq!(rejection(&error).state(), CircuitState::Open);
        assert_eq!(inner.polls(), polls);
        // Whoever waited is woken by whoever noticed.
        assert!(early.is_woken());
        assert_eq!(
            rejection(&assert_ready_err!(early.poll())).state(),
            CircuitState::Open
        );
    }
}

#[tokio::test(start_paused = true)]
async fn as_hystrix_counts_rejections_by_a_limit_open_the_circuit_and_by_our_rule_they_do_not() {
    for release in RELEASES {
        let (ours, theirs, below) = (of_hystrix(release), of_hystrix(release), breaker());
        below.force(Force::Open);
        let inner = CircuitBreakerLayer::new(below).layer(echo());
        let mut by_fault = CircuitBreakerLayer::new(ours.clone()).layer(inner.clone());
        let mut as_theirs = CircuitBreakerLayer::new(theirs.clone())
            .classify(HystrixVerdicts)
            .layer(inner);
        for _ in 0..4 {
            send(&mut by_fault, Verdict::Success).await.unwrap_err();
            send(&mut as_theirs, Verdict::Success).await.unwrap_err();
        }
        advance(Duration::from_millis(500)).await;
        assert_eq!(
            (ours.state(), theirs.state()),
            (CircuitState::Closed, CircuitState::Open)
        );
        // Turned away once more as the trial: a failure, and the circuit is stuck in no state.
        advance(SLEEP).await;
        advance(Duration::from_millis(1)).await;
        send(&mut as_theirs, Verdict::Success).await.unwrap_err();
        assert_eq!(theirs.state(), CircuitState::Open);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_asked_nobody_is_let_through_but_not_as_the_trial() {
    for release in RELEASES {
        let breaker = of_hystrix(release);
        let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(echo());
        service.call(Verdict::Success).await.unwrap();
        settle(&breaker, 4, Verdict::Failure);
        advance(Duration::from_millis(500)).await;
        service.call(Verdict::Success).await.unwrap_err();
        advance(SLEEP + Duration::from_millis(1)).await;
        service.call(Verdict::Success).await.unwrap_err();
        send(&mut service, Verdict::Success).await.unwrap();
        assert_eq!(breaker.state(), CircuitState::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn below_a_force_the_state_of_the_machine_can_be_asked_for() {
    let breaker = breaker();
    trip(&breaker);
    breaker.force(Force::Closed);
    assert_eq!(breaker.unforced_state(), CircuitState::Open);
    advance(SLEEP).await;
    assert_eq!(breaker.unforced_state(), CircuitState::HalfOpen);
    assert_eq!(breaker.state(), CircuitState::ForcedClosed);
    let health = breaker.health();
    assert_eq!(
        (health.total(), health.errors(), health.error_percent()),
        (20, 20, 100)
    );
    breaker.set_enabled(false);
    assert_eq!(breaker.unforced_state(), CircuitState::Disabled);
}
