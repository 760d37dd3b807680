//! Scenarios that are known to go wrong in clients of this kind, where one check over every layer does not say it
//! all. The numbers are those of the catalog of such scenarios that this crate keeps to.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    buffer::{Buffer, error::ServiceError},
    limit::ConcurrencyLimit,
    util::BoxCloneSyncService,
};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::{Candidates, LoadBalanceLayer, RoundRobin, Rule, WhenEmpty},
    breaker::{Breaker, Force},
    call::{
        CircuitOpen, CircuitState, Endpoints, ExecutionTimedOut, Fault, FaultKind, NotReady, RetryBudget,
        Verdict, chain,
    },
    classify::StatusPolicy,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter, RetryLayer, RetryPolicy},
};

use super::{
    checks::paused,
    probe::{Act, Gate, Inner, Says, Script, Wait, Watch, said},
    subjects::{Get, Upload, endpoints},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn steady(attempts: u32) -> Backoff {
    let backoff = Backoff::builder().attempts(attempts).base(100 * MS);
    backoff.max(100 * MS).jitter(Jitter::None).build().unwrap()
}

fn breaker() -> Breaker {
    Breaker::builder("orders")
        .volume(5)
        .sleep_window(MS)
        .build()
        .unwrap()
}

fn trip(breaker: &Breaker) {
    for _ in 0..5 {
        breaker.admit().unwrap().settle(Verdict::Failure);
    }
    assert_eq!(breaker.state(), CircuitState::Open);
}

/// In real time, in which a millisecond is soon over.
fn until_half_open(breaker: &Breaker) {
    while breaker.state() == CircuitState::Open {
        std::hint::spin_loop();
    }
}

/// RDY-02.
#[test]
fn each_of_five_attempts_asks_for_readiness_and_has_the_one_slot_for_itself() {
    async fn check<P: RetryPolicy + Send + Sync + 'static>(layer: RetryLayer<P>) {
        let watch = Watch::new(Script::slow(
            1,
            |n| if n < 4 { Act::Break } else { Act::Answer(200) },
        ));
        let limit = ConcurrencyLimit::new(watch.probe(), 1);
        let call = layer.layer(limit.clone()).oneshot(watch.ask::<Get>());
        timeout(10 * SECOND, call)
            .await
            .expect("it waits for itself")
            .unwrap();
        assert_eq!(watch.calls(), 5);
        // Once it finds nothing, once it is ready.
        assert_eq!(watch.ready_polls(), 2 * 5);
        watch.found_no_fault();

        // A readiness error ends the loop with that error.
        watch.plays(Script {
            ready: Box::new(|n| if n < 7 { Wait::None } else { Wait::Error }),
            ..Script::at_once(|_| Act::Break)
        });
        let error = layer
            .layer(limit.clone())
            .oneshot(watch.ask::<Get>())
            .await
            .unwrap_err();
        assert_eq!((watch.calls(), said(&*error)), (7, Some(Says::Dead)));
        assert!(chain(&*error).any(|error| error.is::<NotReady>()));

        // Readiness that does not come is waited for up to the limit above.
        let gate = Gate::default();
        let shut = gate.clone();
        watch.plays(Script {
            ready: Box::new(move |n| {
                if n < 8 {
                    Wait::None
                } else {
                    Wait::Gate(shut.clone())
                }
            }),
            ..Script::at_once(|_| Act::Break)
        });
        let began = Instant::now();
        let stack = ServiceBuilder::new()
            .execution_timeout(SECOND)
            .unwrap()
            .layer(layer);
        let call = stack.service(limit).oneshot(watch.ask::<Get>());
        let error = timeout(10 * SECOND, call).await.expect("no limit").unwrap_err();
        assert!(
            chain(&*error).any(|error| error.is::<ExecutionTimedOut>()),
            "{error}"
        );
        assert_eq!((began.elapsed(), watch.calls(), gate.waiting()), (SECOND, 8, 1));
    }
    paused(async {
        check(BackoffRetryLayer::new(steady(5))).await;
        check(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(4))).await;
    });
}

fn nest(watch: &Watch) -> Nest<Inner<Upload>> {
    let builder = Nest::builder("orders", endpoints()).breaker(breaker());
    builder.build(watch.inner()).unwrap()
}

/// RDY-06.
#[test]
fn a_stream_of_calls_that_has_ended_holds_no_slot() {
    paused(async {
        let watch = Watch::default();
        let limit = ConcurrencyLimit::new(watch.probe(), 1);
        let nest = Nest::builder("orders", endpoints())
            .build(BoxCloneSyncService::new(limit))
            .unwrap();
        let requests = stream::iter((0..3).map(|_| watch.ask::<Get>()));
        let all = nest.clone().call_all(requests);
        assert_eq!(timeout(SECOND, all.collect::<Vec<_>>()).await.unwrap().len(), 3);
        timeout(SECOND, nest.send(watch.ask())).await.unwrap().unwrap();
        // Nor does a call that sleeps before its next attempt.
        watch.plays(Script::at_once(|_| Act::Break));
        let mut sleeping = std::pin::pin!(nest.send(watch.ask()));
        while (&mut sleeping).now_or_never().is_none() && watch.calls() < 4 + 2 {}
        watch.plays(Script::default());
        timeout(MS, nest.send(watch.ask()))
            .await
            .expect("a slot is held")
            .unwrap();
        assert_eq!((watch.running(), watch.held()), (0, 0));
    });
}

/// RDY-08: all guards end with the head.
#[test]
fn the_head_of_the_probe_closes_the_circuit_though_its_body_is_never_read() {
    paused(async {
        let watch = Watch::default();
        let nest = nest(&watch);
        trip(nest.handle().breaker());
        tokio::time::advance(MS).await;
        let unread = nest.send(watch.ask()).await.unwrap();
        assert_eq!(nest.handle().breaker().state(), CircuitState::Closed);
        assert_eq!(nest.handle().balance().total().in_flight(), 0);
        assert_eq!(watch.work(), 1, "the body");
        drop(unread);
        assert_eq!(watch.work(), 0);
    });
}

/// RDY-10: nobody waits for a circuit, so nobody has to be woken by it.
#[test]
fn ten_calls_beside_a_probe_end_at_once_and_the_ten_after_it_go_through() {
    paused(async {
        let gate = Gate::default();
        let shut = gate.clone();
        let watch = Watch::new(Script {
            answer: Box::new(move |_| (Wait::Gate(shut.clone()), Act::Answer(200))),
            ..Script::default()
        });
        let nest = nest(&watch);
        trip(nest.handle().breaker());
        tokio::time::advance(MS).await;
        let began = Instant::now();
        let probe = tokio::spawn(nest.send(watch.ask()));
        tokio::task::yield_now().await;
        assert_eq!(watch.running(), 1);
        let beside: Vec<_> = (0..10).map(|_| tokio::spawn(nest.send(watch.ask()))).collect();
        for call in beside {
            let error = call.await.unwrap().unwrap_err();
            assert!(error.is::<CircuitOpen>(), "{error}");
        }
        gate.open();
        probe.await.unwrap().unwrap();
        let after: Vec<_> = (0..10).map(|_| tokio::spawn(nest.send(watch.ask()))).collect();
        for call in after {
            call.await.unwrap().unwrap();
        }
        assert_eq!((watch.calls(), began.elapsed()), (11, Duration::ZERO));
    });
}

/// RDY-10, for those who do wait.
#[test]
fn ten_calls_that_wait_for_an_endpoint_all_go_when_one_comes() {
    paused(async {
        let watch = Watch::default();
        let set = Endpoints::new();
        let balance = LoadBalanceLayer::new(set.clone());
        let stack = balance
            .when_empty(WhenEmpty::Wait(1_000 * SECOND))
            .unwrap()
            .layer(watch.inner::<Get>());
        let calls: Vec<_> = (0..10)
            .map(|_| tokio::spawn(stack.clone().oneshot(watch.ask())))
            .collect();
        tokio::task::yield_now().await;
        let began = Instant::now();
        set.replace(endpoints().snapshot().endpoints().to_vec());
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!((watch.calls(), began.elapsed()), (10, Duration::ZERO));
    });
}

/// RDY-11.
#[test]
fn a_buffer_outlives_open_circuits_empty_sets_and_waits_in_vain() {
    async fn five<S>(buffer: &S, watch: &Watch) -> Vec<Option<FaultKind>>
    where
        S: Service<Get, Error = tower_outbound::call::BoxError> + Clone,
    {
        let mut ends = Vec::new();
        for _ in 0..5 {
            let call = buffer.clone().oneshot(watch.ask());
            let outcome = timeout(SECOND, call).await.expect("it hangs");
            ends.push(outcome.err().map(|error| {
                assert!(!error.is::<ServiceError>(), "the buffer is dead: {error}");
                Fault::of(&*error).kind()
            }));
        }
        ends
    }
    paused(async {
        for when_empty in [WhenEmpty::FailAtOnce, WhenEmpty::Wait(100 * MS)] {
            let watch = Watch::default();
            let nest = Nest::builder("orders", endpoints())
                .when_empty(when_empty)
                .build(watch.inner())
                .unwrap();
            let parts = nest.handle().clone();
            let buffer = Buffer::new(nest, 1);
            parts.breaker().force(Force::Open);
            let open = FaultKind::Rejected(tower_outbound::call::Rejection::Breaker);
            assert_eq!(five(&buffer, &watch).await, [Some(open); 5]);
            parts.breaker().force(Force::None);
            assert_eq!(five(&buffer, &watch).await, [None; 5]);
            let members = parts.endpoints().snapshot().endpoints().to_vec();
            parts.endpoints().replace([]);
            assert_eq!(five(&buffer, &watch).await, [Some(FaultKind::NoEndpoint); 5]);
            parts.endpoints().replace(members);
            assert_eq!(five(&buffer, &watch).await, [None; 5]);
            assert_eq!(watch.calls(), 10);
        }
    });
}

/// RDY-12.
#[test]
fn ten_thousand_calls_that_are_dropped_before_their_first_poll_leave_nothing_behind() {
    const THREADS: usize = 4;
    let watch = Watch::default();
    let budget = RetryBudget::builder().percent(0.0).floor(0).build().unwrap();
    let nest = Nest::builder("orders", endpoints())
        .breaker(breaker())
        .budget(budget.clone())
        .build(watch.inner::<Upload>())
        .unwrap();
    let instances = watch.instances();
    for half_open in [false, true] {
        if half_open {
            trip(nest.handle().breaker());
            until_half_open(nest.handle().breaker());
        }
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..10_000 / THREADS {
                        let mut nest = nest.clone();
                        let mut cx = Context::from_waker(Waker::noop());
                        assert!(nest.poll_ready(&mut cx).is_ready());
                        drop(nest.call(watch.ask::<Get>()));
                    }
                });
            }
        });
        assert_eq!(nest.handle().balance().total().in_flight(), 0);
        assert_eq!((watch.work(), watch.running(), watch.held()), (0, 0, 0));
        assert_eq!((watch.instances(), budget.available()), (instances, 10));
        let counts = nest.handle().breaker().counts();
        assert_eq!(counts.successes(), 0);
        paused(async { nest.send(watch.ask()).await.unwrap() });
        assert_eq!(nest.handle().breaker().state(), CircuitState::Closed);
        nest.handle().breaker().reset();
    }
    watch.found_no_fault();
}

/// RDY-13, through the whole nest.
#[test]
fn twenty_thousand_calls_leave_neither_task_nor_timer_behind() {
    const LIMIT: Duration = Duration::from_secs(1_000_000);
    paused(async {
        let watch = Watch::new(Script {
            answer: Box::new(|_| (Wait::Polls(1), Act::Answer(200))),
            body: Box::new(|_| Wait::Polls(1)),
            ..Script::default()
        });
        let nest = Nest::builder("orders", endpoints())
            .read_limit(LIMIT)
            .execution_limit(10 * LIMIT)
            .build(watch.inner::<Upload>())
            .unwrap();
        for _ in 0..20_000 {
            let response = nest.send(watch.ask::<Get>()).await.unwrap();
            response.into_body().collect().await.unwrap();
        }
        assert_eq!((watch.calls(), watch.work()), (20_000, 0));
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
        // A timer that was left behind would be the next thing to happen, and a paused clock would stop there.
        let began = Instant::now();
        tokio::time::sleep(20 * LIMIT).await;
        assert_eq!(began.elapsed(), 20 * LIMIT);
    });
}

/// Panics once, when it is told to.
#[derive(Clone, Default)]
struct Bomb(Arc<AtomicBool>);

impl Bomb {
    fn may_go_off(&self) {
        assert!(!self.0.swap(false, SeqCst), "as planned");
    }
}

struct BombRule(Bomb, RoundRobin);

impl Rule for BombRule {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        self.0.may_go_off();
        self.1.pick(candidates)
    }
}

/// RDY-16: in user code that a layer calls. (Panics of the service below are a check over every layer.)
#[test]
fn a_panic_in_a_rule_a_classifier_a_reader_or_a_hook_leaves_a_stack_that_works() {
    paused(async {
        let (rule, classifier, reader, hook) =
            (Bomb::default(), Bomb::default(), Bomb::default(), Bomb::default());
        let watch = Watch::default();
        let breaker = {
            let hook = hook.clone();
            Breaker::builder("orders")
                .on_transition(move |_| hook.may_go_off())
                .volume(5)
                .sleep_window(MS)
                .build()
                .unwrap()
        };
        let balance = {
            let bomb = classifier.clone();
            LoadBalanceLayer::new(endpoints())
                .rule(BombRule(rule.clone(), RoundRobin::new()))
                .classify(move |outcome: Result<&_, tower_outbound::call::ErrorRef<'_>>| {
                    bomb.may_go_off();
                    let _: Result<&http::Response<_>, _> = outcome;
                    Verdict::Success
                })
        };
        let figures = balance.handle();
        let budget = RetryBudget::builder().percent(0.0).floor(0).build().unwrap();
        let reading = {
            let bomb = reader.clone();
            move |_: &http::Response<super::probe::ScriptedBody>| -> Option<Fault> {
                bomb.may_go_off();
                None
            }
        };
        let stack = ServiceBuilder::new()
            .circuit_breaker(breaker.clone())
            .layer(
                BackoffRetryLayer::new(steady(2))
                    .budget(budget.clone())
                    .read_answers(reading),
            )
            .status_errors(StatusPolicy::default())
            .layer(balance)
            .service(watch.inner::<Get>());
        let instances = watch.instances();
        for bomb in [rule, classifier, reader, hook] {
            breaker.reset();
            trip(&breaker);
            tokio::time::advance(2 * MS).await;
            bomb.0.store(true, SeqCst);
            let call = stack.clone().oneshot(watch.ask());
            AssertUnwindSafe(call).catch_unwind().await.expect_err("a panic");
            assert_eq!(figures.total().in_flight(), 0);
            assert_eq!((watch.work(), watch.running(), watch.held()), (0, 0, 0));
            assert_eq!((watch.instances(), budget.available()), (instances, 10));
            for _ in 0..10 {
                stack.clone().oneshot(watch.ask()).await.unwrap();
            }
            assert_eq!(breaker.state(), CircuitState::Closed);
        }
        watch.found_no_fault();
    });
}

/// RAC-01: state, time of opening and generation are one value, whatever threads do to it at once.
#[test]
fn a_circuit_that_threads_trip_close_force_and_reset_at_once_is_never_stuck() {
    const ROUNDS: usize = 20_000;
    let log = Arc::new(Mutex::new(Vec::new()));
    let told = log.clone();
    let breaker = Breaker::builder("orders")
        .volume(2)
        .sleep_window(MS)
        .on_transition(move |change| told.lock().unwrap().push((change.from(), change.to())))
        .build()
        .unwrap();
    let settle = |verdict: Verdict| {
        for _ in 0..ROUNDS {
            match breaker.admit() {
                Ok(permit) => permit.settle(verdict),
                Err(rejection) if rejection.state() == CircuitState::Open => {
                    let left = rejection.retry_in().expect("open, and nobody knows since when");
                    // The engine counts whole milliseconds, and never sleeps too short.
                    assert!(left <= 2 * MS, "open until later than it can be: {left:?}");
                }
                Err(_) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for verdict in [
            Verdict::Failure,
            Verdict::Failure,
            Verdict::Success,
            Verdict::Ignored,
        ] {
            scope.spawn(move || settle(verdict));
        }
        scope.spawn(|| (0..ROUNDS).for_each(|_| drop(breaker.admit())));
        scope.spawn(|| {
            for n in 0..ROUNDS / 10 {
                match n % 4 {
                    0 => breaker.force(Force::Open),
                    1 => breaker.force(Force::Closed),
                    2 => breaker.force(Force::None),
                    _ => breaker.reset(),
                }
            }
        });
    });
    breaker.force(Force::None);
    {
        let log = log.lock().unwrap();
        assert!(log.len() > 10, "nothing has happened");
        assert!(
            log.windows(2).all(|pair| pair[0].1 == pair[1].0),
            "a gap in the chain"
        );
    }
    // From wherever it is it can be closed and tripped.
    for _ in 0..3 {
        until_half_open(&breaker);
        if breaker.state() == CircuitState::HalfOpen {
            breaker.admit().unwrap().settle(Verdict::Success);
        }
        assert_eq!(breaker.state(), CircuitState::Closed);
        breaker.reset();
        for _ in 0..2 {
            breaker.admit().unwrap().settle(Verdict::Failure);
        }
        // The sleep may be over by now, but then it is a probe that gets through.
        let through = breaker.admit().map(|permit| permit.is_probe());
        assert_ne!(through.ok(), Some(false), "tripped, and it lets calls through");
    }
}

/// RAC-03, through services: 32 callers as the sleep window ends.
#[test]
fn of_thirty_two_callers_one_gets_the_probe_a_thousand_times() {
    const CALLERS: usize = 32;
    const ROUNDS: usize = 1_000;
    let breaker = Breaker::builder("orders")
        .volume(5)
        .sleep_window(MS)
        .build()
        .unwrap();
    let watch = Watch::default();
    let stack = ServiceBuilder::new()
        .circuit_breaker(breaker.clone())
        .service(watch.inner::<Get>());
    // No thread may panic, or the others would wait for it for good; what they find is looked at afterwards.
    let (admitted, rounds) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let (start, end) = (Barrier::new(CALLERS), Barrier::new(CALLERS));
    trip(&breaker);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (stack, breaker, watch, start, end) = (&stack, &breaker, &watch, &start, &end);
            let (admitted, rounds) = (&admitted, &rounds);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    until_half_open(breaker);
                    start.wait();
                    let mut cx = Context::from_waker(Waker::noop());
                    let mut stack = stack.clone();
                    let _ = stack.poll_ready(&mut cx);
                    let mut call = Box::pin(stack.call(watch.ask()));
                    // The one that is admitted is not polled before all have asked.
                    end.wait();
                    if let Poll::Ready(Ok(_)) = call.as_mut().poll(&mut cx) {
                        admitted.fetch_add(1, SeqCst);
                    }
                    drop(call);
                    end.wait();
                    if caller == 0 {
                        rounds.lock().unwrap().push(admitted.swap(0, SeqCst));
                        breaker.reset();
                        for permit in (0..5).filter_map(|_| breaker.admit().ok()) {
                            permit.settle(Verdict::Failure);
                        }
                    }
                    start.wait();
                }
            });
        }
    });
    assert_eq!(*rounds.lock().unwrap(), [1; ROUNDS]);
    assert_eq!(watch.calls(), ROUNDS);
    watch.found_no_fault();
}

/// RAC-08: with a watchdog, as what it looks for would hang.
#[test]
fn a_hook_that_steers_every_part_and_drops_another_call_meets_no_lock() {
    let (done, watchdog) = mpsc::channel();
    std::thread::spawn(move || {
        paused(async {
            type Held = Option<(Nest<Inner<Upload>>, Box<dyn std::any::Any + Send>)>;
            let held: Arc<Mutex<Held>> = Arc::default();
            let inside = held.clone();
            let watch = Watch::new(Script::at_once(|_| Act::Break));
            let breaker = Breaker::builder("orders")
                .volume(5)
                .on_transition(move |_| {
                    let taken = inside.lock().unwrap().take();
                    if let Some((nest, other_call)) = taken {
                        let parts = nest.handle();
                        drop(other_call);
                        parts.balance().total();
                        parts.endpoints().remove("http://a:1");
                        parts.breaker().reset();
                        assert_eq!(parts.breaker().state(), CircuitState::Closed);
                        drop(nest.clone().oneshot(Get::default()).now_or_never());
                    }
                })
                .build()
                .unwrap();
            let nest = Nest::builder("orders", endpoints())
                .breaker(breaker.clone())
                .build(watch.inner::<Upload>())
                .unwrap();
            let other_call = Box::new(nest.send(watch.ask::<Get>()));
            *held.lock().unwrap() = Some((nest.clone(), other_call));
            for _ in 0..5 {
                nest.send(watch.ask::<Get>()).await.unwrap_err();
            }
            assert!(held.lock().unwrap().is_none(), "the hook has run");
            assert_eq!(breaker.state(), CircuitState::Closed);
        });
        done.send(()).unwrap();
    });
    watchdog
        .recv_timeout(Duration::from_secs(30))
        .expect("it hangs, or a panic is above");
}

/// A panic that is caught on this thread leaves the next call of the thread its own scope.
#[test]
fn a_panic_that_is_caught_leaves_no_scope_on_the_thread() {
    let watch = Watch::new(Script::at_once(|_| Act::PanicInCall));
    let mut nest = nest(&watch);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(nest.poll_ready(&mut cx).is_ready());
    catch_unwind(AssertUnwindSafe(|| drop(nest.call(watch.ask::<Get>())))).unwrap_err();
    assert_eq!(tower_outbound::call::scope::deadline(), None);
}
