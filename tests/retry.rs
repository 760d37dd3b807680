//! What the retry layers do, over their public API.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn, ready},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::time::{Duration, Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    call::{
        AttemptOutcome, CallScope, Earned, Endpoint, Event, Fault, FaultError, FaultKind, NoTimeLeft,
        NotReady, NotRetried, OnceBody, ReadPhase, Rejection, RetryBudget, RetryTo, Sent, StatusError,
        StatusSet, Trail, Verdict, scope,
    },
    retry::{
        Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter, RetryLayer, RetryPolicy,
        RetryService,
    },
};

type Answer = Response<Full<Bytes>>;

const READ_TIMEOUT: FaultKind = FaultKind::ReadTimeout(ReadPhase::Head);

fn error(kind: FaultKind, sent: Sent) -> BoxError {
    FaultError::new(Fault::new(kind, sent), "scripted").into()
}

fn refused() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionRefused).into()
}

fn request(method: Method) -> Request<String> {
    let mut request = Request::new(String::from("body"));
    *request.method_mut() = method;
    request
}

fn get() -> Request<String> {
    request(Method::GET)
}

fn post() -> Request<String> {
    request(Method::POST)
}

fn answer(status: u16) -> Answer {
    Response::builder().status(status).body(Full::default()).unwrap()
}

fn unavailable(retry_after: &str) -> Answer {
    let mut answer = answer(503);
    answer
        .headers_mut()
        .insert("retry-after", retry_after.parse().unwrap());
    answer
}

/// A service that counts its calls and does as a script says with each, by its number from 0 on.
fn scripted<Req, Res>(
    script: impl Fn(usize, Req) -> Result<Res, BoxError> + Clone,
) -> (
    impl Service<Req, Response = Res, Error = BoxError, Future = impl Future<Output = Result<Res, BoxError>>>
    + Clone,
    Arc<AtomicUsize>,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let service = service_fn(move |request| {
        let outcome = script(seen.fetch_add(1, SeqCst), request);
        ready(outcome)
    });
    (service, calls)
}

/// Calls an instance as a tower service must be called.
async fn call<S: Service<Req>, Req>(service: &mut S, request: Req) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}

/// Polls a future within a call that has this deadline.
async fn before<F: Future>(deadline: Duration, future: F) -> F::Output {
    let mut scope = CallScope::join();
    scope.narrow(Instant::now() + deadline);
    let mut future = pin!(future);
    poll_fn(|cx| scope.enter(|| future.as_mut().poll(cx))).await
}

fn stops(error: &BoxError) -> Vec<NotRetried> {
    let trail = Trail::of(&**error).expect("a trail");
    trail.stops().map(|stop| stop.reason()).collect()
}

fn attempts(error: &BoxError) -> usize {
    Trail::of(&**error).expect("a trail").len()
}

fn steady(attempts: u32) -> Backoff {
    Backoff::builder()
        .attempts(attempts)
        .jitter(Jitter::None)
        .build()
        .unwrap()
}

fn feign() -> Backoff {
    Backoff::feign(Duration::from_millis(100), Duration::from_secs(1), 5).unwrap()
}

/// A balancer as far as retries see one: takes the wish, prefers what was not tried if that is asked for, and says
/// what it picked.
#[derive(Clone)]
struct Balancer<F> {
    endpoints: Arc<[Endpoint]>,
    turn: Arc<AtomicUsize>,
    picks: Arc<Mutex<Vec<usize>>>,
    outcome: F,
}

impl<F> Balancer<F> {
    fn new(endpoints: usize, outcome: F) -> Self {
        Balancer {
            endpoints: (0..endpoints)
                .map(|n| Endpoint::new(format!("http://host-{n}")).unwrap())
                .collect(),
            turn: Arc::default(),
            picks: Arc::default(),
            outcome,
        }
    }

    fn picks(&self) -> Vec<usize> {
        std::mem::take(&mut *self.picks.lock().unwrap())
    }

    fn next(&self) -> usize {
        self.turn.fetch_add(1, SeqCst) % self.endpoints.len()
    }
}

impl<F, Res> Service<Request<String>> for Balancer<F>
where
    F: Fn(usize) -> Result<Res, BoxError>,
{
    type Response = Res;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Res, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let number = |endpoint: &Endpoint| self.endpoints.iter().position(|one| one == endpoint).unwrap();
        let picked = scope::current(|scope| match scope.take_wish() {
            Some(wished) => number(&wished),
            None if scope.prefers_untried() => {
                let tried: Vec<_> = scope.tried().map(number).collect();
                (0..self.endpoints.len())
                    .map(|_| self.next())
                    .find(|n| !tried.contains(n))
                    .unwrap_or_else(|| self.next())
            }
            None => self.next(),
        });
        scope::current(|scope| {
            scope.set_picked(&self.endpoints[picked]);
            scope.set_had_a_choice(self.endpoints.len() > 1);
        });
        self.picks.lock().unwrap().push(picked);
        ready((self.outcome)(picked))
    }
}

// ---- what is retried ----

/// RET-01.
#[tokio::test(start_paused = true)]
async fn a_call_was_not_unsent_because_its_last_attempt_was() {
    for first in [Sent::Maybe, Sent::No] {
        for method in [Method::GET, Method::POST] {
            let (service, calls) = scripted(move |n, _: Request<String>| match n {
                0 => Err::<Answer, _>(error(FaultKind::Reset, first)),
                _ => Err(refused()),
            });
            let mut service = BackoffRetryLayer::new(feign()).layer(service);
            let error = call(&mut service, request(method)).await.unwrap_err();
            assert!(calls.load(SeqCst) > 1);
            let fault = Fault::new(FaultKind::ConnectRefused, first);
            assert_eq!(Fault::of(&*error), fault);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_that_may_have_been_sent_goes_out_once_through_both_layers_and_a_get_as_often_as_they_multiply()
 {
    for (request, expected) in [(post(), 1), (get(), 20)] {
        let (service, calls) =
            scripted(|_, _: Request<String>| Err::<(), _>(error(READ_TIMEOUT, Sent::Maybe)));
        let inner = IdempotentRetryLayer::new(Idempotent::default().next_endpoint(3)).layer(service);
        let stack = BackoffRetryLayer::new(steady(5)).layer(inner);
        let error = stack.oneshot(request).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), expected);
        assert_eq!(Fault::of(&*error).kind(), READ_TIMEOUT);
        assert_eq!(attempts(&error), expected, "each attempt is in one trail, once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_is_retried_where_it_is_proved_that_nothing_was_sent_and_only_there() {
    for (sent, expected) in [(Sent::Maybe, 1), (Sent::No, 2)] {
        let (service, calls) =
            scripted(move |_, _: Request<String>| Err::<(), _>(error(FaultKind::Closed, sent)));
        let stack = IdempotentRetryLayer::new(Idempotent::default()).layer(service.clone());
        let by_idempotent = stack.oneshot(post()).await.unwrap_err();
        assert_eq!(calls.swap(0, SeqCst), expected, "{sent:?}");
        let stack = BackoffRetryLayer::new(Backoff::default()).layer(service);
        let by_backoff = stack.oneshot(post()).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), expected, "{sent:?}");
        let reason = match sent {
            Sent::Maybe => NotRetried::MayHaveBeenSent,
            Sent::No => NotRetried::AttemptsUsedUp { limit: 2 },
        };
        assert_eq!(
            (stops(&by_idempotent), stops(&by_backoff)),
            (vec![reason], vec![reason])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn safe_methods_are_retried_and_idempotent_ones_are_not() {
    for (method, expected) in [
        (Method::GET, 2),
        (Method::HEAD, 2),
        (Method::OPTIONS, 2),
        (Method::TRACE, 2),
        (Method::PUT, 1),
        (Method::DELETE, 1),
        (Method::POST, 1),
        (Method::PATCH, 1),
        (Method::CONNECT, 1),
    ] {
        let (service, calls) =
            scripted(|_, _: Request<String>| Err::<(), _>(error(FaultKind::Reset, Sent::Maybe)));
        let _ = BackoffRetryLayer::new(Backoff::default())
            .layer(service.clone())
            .oneshot(request(method.clone()))
            .await;
        assert_eq!(calls.swap(0, SeqCst), expected, "{method}");
        let _ = IdempotentRetryLayer::new(Idempotent::default())
            .layer(service)
            .oneshot(request(method.clone()))
            .await;
        assert_eq!(calls.load(SeqCst), expected, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn idempotent_methods_are_retried_on_any_fault_where_that_was_chosen() {
    let backoff = Backoff::builder().idempotent_methods().build().unwrap();
    let spring = Idempotent::ribbon_spring_retry().idempotent_methods();
    for (method, expected) in [
        (Method::GET, 2),
        (Method::HEAD, 2),
        (Method::OPTIONS, 2),
        (Method::TRACE, 2),
        (Method::PUT, 2),
        (Method::DELETE, 2),
        (Method::POST, 1),
        (Method::PATCH, 1),
        (Method::CONNECT, 1),
    ] {
        let (service, calls) =
            scripted(|_, _: Request<String>| Err::<(), _>(error(READ_TIMEOUT, Sent::Maybe)));
        let stack = BackoffRetryLayer::new(backoff.clone()).layer(service.clone());
        let error = stack.oneshot(request(method.clone())).await.unwrap_err();
        assert_eq!(calls.swap(0, SeqCst), expected, "{method}");
        if expected == 1 {
            assert_eq!(stops(&error), [NotRetried::MayHaveBeenSent]);
        }
        for policy in [Idempotent::default().idempotent_methods(), spring] {
            let stack = IdempotentRetryLayer::new(policy).layer(service.clone());
            let _ = stack.oneshot(request(method.clone())).await;
            assert_eq!(calls.swap(0, SeqCst), expected, "{method} {policy:?}");
        }
    }
    // The word for all is not taken back by the one for some.
    let all = Idempotent::default()
        .ok_to_retry_on_all_operations()
        .idempotent_methods();
    assert_eq!(all, Idempotent::default().ok_to_retry_on_all_operations());
}

/// RET-15.
#[tokio::test(start_paused = true)]
async fn a_post_with_a_key_is_retried_with_the_same_key_and_body() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (service, calls) = scripted(move |n, request: Request<String>| {
        log.lock()
            .unwrap()
            .push((request.headers()["idempotency-key"].clone(), request.into_body()));
        if n == 0 {
            Err(error(READ_TIMEOUT, Sent::Maybe))
        } else {
            Ok(())
        }
    });
    let mut keyed = post();
    keyed
        .headers_mut()
        .insert("idempotency-key", "k1".parse().unwrap());
    let stack = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    stack.oneshot(keyed).await.unwrap();
    assert_eq!(calls.load(SeqCst), 2);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], ("k1".parse().unwrap(), "body".to_owned()));
    assert_eq!(seen[0], seen[1]);
}

/// RET-21.
#[tokio::test(start_paused = true)]
async fn rejections_and_a_missing_endpoint_are_returned_at_once_by_every_policy() {
    let start = Instant::now();
    for (kind, reason) in [
        (FaultKind::Rejected(Rejection::Breaker), NotRetried::Rejected),
        (FaultKind::Rejected(Rejection::Bulkhead), NotRetried::Rejected),
        (FaultKind::Rejected(Rejection::Limit), NotRetried::Rejected),
        (FaultKind::NoEndpoint, NotRetried::NoEndpoint),
    ] {
        let (service, calls) = scripted(move |_, _: Request<String>| {
            let fault = Fault::new(kind, Sent::No).with_retry_after(Some(Duration::from_secs(1)));
            Err::<(), _>(FaultError::new(fault, "rejected").into())
        });
        let risky = Backoff::builder()
            .attempts(5)
            .retry_unsafe_that_may_have_been_sent();
        for backoff in [steady(5), feign(), risky.build().unwrap()] {
            let stack = BackoffRetryLayer::new(backoff).layer(service.clone());
            assert_eq!(stops(&stack.oneshot(get()).await.unwrap_err()), [reason]);
        }
        let all = Idempotent::ribbon()
            .ok_to_retry_on_all_operations()
            .same_endpoint(3);
        for policy in [Idempotent::default(), all] {
            let stack = IdempotentRetryLayer::new(policy).layer(service.clone());
            assert_eq!(stops(&stack.oneshot(get()).await.unwrap_err()), [reason]);
        }
        assert_eq!(calls.load(SeqCst), 5, "{kind:?}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ribbon_retries_socket_faults_of_all_methods_and_every_fault_of_a_get() {
    let policies = [
        Idempotent::ribbon(),
        Idempotent::ribbon_spring_retry(),
        Idempotent::ribbon().ok_to_retry_on_all_operations(),
        Idempotent::ribbon_spring_retry().ok_to_retry_on_all_operations(),
    ];
    let wrapped = |kind: io::ErrorKind, fault| {
        let fault = Fault::new(fault, Sent::No);
        FaultError::new(fault, io::Error::from(kind)).into()
    };
    type Case = (fn() -> BoxError, [bool; 4]);
    let cases: [Case; 5] = [
        (refused, [true, false, true, true]),
        (|| error(FaultKind::Reset, Sent::Maybe), [true, false, true, true]),
        (
            || error(FaultKind::Closed, Sent::Maybe),
            [true, false, true, true],
        ),
        (
            || error(FaultKind::ConnectTimeout, Sent::No),
            [false, false, true, true],
        ),
        (|| error(READ_TIMEOUT, Sent::Maybe), [false, false, true, true]),
    ];
    for (fails, others) in cases {
        for (policy, other) in policies.into_iter().zip(others) {
            for (method, again) in [
                (Method::GET, true),
                (Method::HEAD, other),
                (Method::POST, other),
                (Method::PUT, other),
                (Method::DELETE, other),
            ] {
                let (service, calls) = scripted(move |_, _: Request<String>| Err::<(), _>(fails()));
                let stack = IdempotentRetryLayer::new(policy).layer(service);
                let error = stack.oneshot(request(method.clone())).await.unwrap_err();
                assert_eq!(
                    calls.load(SeqCst),
                    1 + usize::from(again),
                    "{method} {policy:?} {error}"
                );
            }
        }
    }
    // No route is a socket fault, a name that is not found is none.
    for (kind, expected) in [(io::ErrorKind::HostUnreachable, 2), (io::ErrorKind::Other, 1)] {
        let (service, calls) =
            scripted(move |_, _: Request<String>| Err::<(), _>(wrapped(kind, FaultKind::Connect)));
        let stack = IdempotentRetryLayer::new(Idempotent::ribbon()).layer(service);
        let error = stack.oneshot(post()).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), expected);
        if expected == 1 {
            assert_eq!(stops(&error), [NotRetried::NotByRule]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_under_a_rule_for_gets_alone_is_not_copied_and_its_trail_says_why() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let stack = IdempotentRetryLayer::new(Idempotent::ribbon_spring_retry()).layer(service);
    let error = stack.oneshot(post()).await.unwrap_err();
    assert_eq!(
        (calls.load(SeqCst), stops(&error)),
        (1, vec![NotRetried::NotByRule])
    );
}

// ---- how often, and where ----

/// RET-02.
#[tokio::test(start_paused = true)]
async fn the_counts_for_same_and_next_endpoint_multiply() {
    let policy = Idempotent::default().same_endpoint(2).next_endpoint(3);
    assert_eq!(policy.total_attempts(), 12);
    let balancer = Balancer::new(4, |_| Err::<(), _>(refused()));
    let stack = IdempotentRetryLayer::new(policy).layer(balancer.clone());
    let error = stack.oneshot(get()).await.unwrap_err();
    assert_eq!(balancer.picks(), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    let trail = Trail::of(&*error).unwrap();
    let went: Vec<_> = trail
        .attempts()
        .map(|attempt| attempt.endpoint().unwrap().to_string())
        .collect();
    assert_eq!((went.len(), &*went[0], &*went[11]), (12, "host-0", "host-3"));
    let to: Vec<_> = trail
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Retry(retry) => Some(retry.to()),
            _ => None,
        })
        .collect();
    assert_eq!(
        to[..3],
        [
            RetryTo::SameEndpoint,
            RetryTo::SameEndpoint,
            RetryTo::NextEndpoint
        ]
    );
    assert_eq!(stops(&error), [NotRetried::AttemptsUsedUp { limit: 12 }]);
}

/// RET-07.
#[tokio::test(start_paused = true)]
async fn the_count_for_the_same_endpoint_starts_anew_on_the_next() {
    let balancer = Balancer::new(2, |_| Err::<(), _>(refused()));
    let policy = Idempotent::default().same_endpoint(3).next_endpoint(1);
    let stack = IdempotentRetryLayer::new(policy).layer(balancer.clone());
    let _ = stack.oneshot(get()).await;
    assert_eq!(balancer.picks(), [0, 0, 0, 0, 1, 1, 1, 1]);
}

/// RET-05.
#[tokio::test(start_paused = true)]
async fn a_retry_on_the_same_endpoint_takes_no_turn_of_the_rotation() {
    let balancer = Balancer::new(2, |_| Ok(answer(500)));
    let statuses = StatusSet::EMPTY.with(StatusCode::INTERNAL_SERVER_ERROR);
    let policy = Idempotent::default().same_endpoint(1).next_endpoint(0);
    let stack = IdempotentRetryLayer::new(policy)
        .retry_statuses(statuses)
        .layer(balancer.clone());
    for n in 0..10 {
        assert_eq!(stack.clone().oneshot(get()).await.unwrap().status(), 500);
        assert_eq!(balancer.picks(), [n % 2, n % 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_where_the_call_has_not_been_unless_the_preset_leaves_it_to_the_rule() {
    for (policy, expected) in [
        (Idempotent::default(), [0, 1, 0, 1]),
        (Idempotent::ribbon(), [0, 0, 0, 0]),
    ] {
        let balancer = Balancer::new(2, |_| Err::<(), _>(refused()));
        let stack = IdempotentRetryLayer::new(policy).layer(balancer.clone());
        for _ in 0..2 {
            // Somebody else's calls have moved the rotation in between.
            let turns = &balancer.turn;
            let mut call = task::spawn(stack.clone().oneshot(get()));
            turns.store(0, SeqCst);
            assert_pending!(call.poll());
            turns.store(2, SeqCst);
            let _ = assert_ready!(call.poll());
        }
        assert_eq!(balancer.picks(), expected, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_asks_to_be_left_alone_is_and_the_next_one_gets_its_turn() {
    let balancer = Balancer::new(3, |n| Ok(if n == 0 { unavailable("5") } else { answer(503) }));
    let policy = Idempotent::default().same_endpoint(2).next_endpoint(1);
    let stack = IdempotentRetryLayer::new(policy)
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(balancer.clone());
    assert_eq!(stack.oneshot(get()).await.unwrap().status(), 503);
    assert_eq!(balancer.picks(), [0, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_the_attempts_of_a_call_holds_over_all_layers_and_the_narrowest_does() {
    let limited = |most: Option<u32>, layer: BackoffRetryLayer| match most {
        Some(most) => layer.attempts_in_call(most).unwrap(),
        None => layer,
    };
    for (outer, inner, expected) in [
        (None, None, 15),
        (Some(7), None, 7),
        (None, Some(7), 7),
        (Some(7), Some(4), 4),
        (Some(2), Some(4), 2),
        (Some(1), None, 1),
        (Some(15), Some(15), 15),
    ] {
        let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
        let at_once = IdempotentRetryLayer::new(Idempotent::default().next_endpoint(2));
        let at_once = match inner {
            Some(most) => at_once.attempts_in_call(most).unwrap(),
            None => at_once,
        };
        let stack = limited(outer, BackoffRetryLayer::new(steady(5))).layer(at_once.layer(service));
        let error = stack.oneshot(get()).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), expected, "{outer:?}, {inner:?}");
        assert_eq!(attempts(&error), expected);
        let stops = stops(&error);
        let limit = expected as u32;
        if expected < 15 {
            assert_eq!(
                stops.last(),
                Some(&NotRetried::CallAttemptsUsedUp { limit }),
                "{error}"
            );
        } else {
            assert_eq!(stops.last(), Some(&NotRetried::AttemptsUsedUp { limit: 5 }));
        }
    }
    let error = BackoffRetryLayer::new(steady(5)).attempts_in_call(0).unwrap_err();
    assert_eq!(error.field(), "attempts_in_call");
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_turned_away_and_answers_that_are_failures_above_are_counted_as_what_they_are() {
    // An answer is one attempt, though only the outer layer finds it wanting.
    let (service, calls) = scripted(|_, _: Request<String>| Ok(answer(503)));
    let inner = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    let outer = BackoffRetryLayer::new(steady(5)).retry_statuses(StatusSet::TRANSIENT);
    let stack = outer.attempts_in_call(3).unwrap().layer(inner);
    assert_eq!(stack.oneshot(get()).await.unwrap().status(), 503);
    assert_eq!(calls.load(SeqCst), 3);
    // No token is spent on a retry that the limit forbids.
    let budget = fixed_budget(5);
    let (service, _) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let layer = BackoffRetryLayer::new(steady(5)).budget(budget.clone());
    let stack = layer.attempts_in_call(2).unwrap().layer(service);
    let _ = stack.oneshot(get()).await;
    assert_eq!((budget.available(), budget.refused()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_first_move_to_another_endpoint_has_no_pause_and_the_ones_after_have() {
    let times_of = |endpoints: usize, others: bool, backoff: Backoff, sent: Sent| async move {
        let start = Instant::now();
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&log);
        let balancer = Balancer::new(endpoints, move |_| {
            scope::current(|scope| scope.set_had_a_choice(others));
            seen.lock().unwrap().push(start.elapsed().as_millis());
            Err::<(), _>(error(FaultKind::Closed, sent))
        });
        let _ = BackoffRetryLayer::new(backoff)
            .layer(balancer.clone())
            .oneshot(get())
            .await;
        assert_eq!(balancer.picks()[..2], [0, 1 % endpoints]);
        std::mem::take(&mut *log.lock().unwrap())
    };
    assert_eq!(times_of(3, true, steady(4), Sent::No).await, [0, 0, 200, 600]);
    assert_eq!(
        times_of(3, true, steady(4), Sent::Maybe).await,
        [0, 100, 300, 700]
    );
    assert_eq!(times_of(1, false, steady(4), Sent::No).await, [0, 100, 300, 700]);
    assert_eq!(
        times_of(3, true, feign(), Sent::No).await,
        [0, 150, 375, 712, 1218]
    );
}

/// RET-10.
#[tokio::test(start_paused = true)]
async fn no_state_of_a_call_is_left_for_the_next() {
    // Request 1 fails for ever, all others four times.
    let failures = Arc::new(Mutex::new(std::collections::HashMap::<String, usize>::new()));
    let (service, calls) = scripted(move |_, request: Request<String>| {
        let id = request.uri().path().to_owned();
        let mut failures = failures.lock().unwrap();
        let failed = failures.entry(id.clone()).or_default();
        *failed += 1;
        if id == "/1" || *failed <= 4 {
            Err(refused())
        } else {
            Ok(())
        }
    });
    let stack = BackoffRetryLayer::new(feign()).layer(service);
    let call = |n: usize| {
        let mut request = get();
        *request.uri_mut() = format!("/{n}").parse().unwrap();
        stack.clone().oneshot(request)
    };
    assert_eq!(
        stops(&call(1).await.unwrap_err()),
        [NotRetried::AttemptsUsedUp { limit: 5 }]
    );
    assert_eq!(calls.load(SeqCst), 5);
    call(2).await.unwrap();
    assert_eq!(calls.load(SeqCst), 10);
    for done in futures_util::future::join_all((3..23).map(call)).await {
        done.unwrap();
    }
    assert_eq!(calls.load(SeqCst), 110);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_never_retries_adds_neither_an_attempt_nor_a_trail() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let backoff = BackoffRetryLayer::new(Backoff::never()).layer(service.clone());
    let error = backoff.oneshot(get()).await.unwrap_err();
    assert!(error.is::<io::Error>() && Trail::of(&*error).is_none());
    let once = IdempotentRetryLayer::new(Idempotent::default().next_endpoint(0)).layer(service);
    assert!(once.oneshot(get()).await.unwrap_err().is::<io::Error>());
    assert_eq!(calls.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_succeeds_is_in_the_trail_of_the_call_around_it() {
    let (service, _) = scripted(|n, _: Request<String>| if n == 0 { Err(refused()) } else { Ok(()) });
    let stack = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    let mut scope = CallScope::begin();
    let mut call = pin!(stack.oneshot(get()));
    poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx)))
        .await
        .unwrap();
    let trail = scope.take_trail().unwrap();
    let outcomes: Vec<_> = trail.attempts().map(|attempt| attempt.outcome()).collect();
    assert_eq!(outcomes.len(), 2);
    assert!(
        matches!(outcomes[0], AttemptOutcome::Failed(fault) if fault.kind() == FaultKind::ConnectRefused)
    );
    assert_eq!(outcomes[1], AttemptOutcome::Answered);
    assert!(trail.to_string().contains("IdempotentRetry: again;"), "{trail}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_reached_no_endpoint_is_not_held_to_have_gone_where_the_one_before_went() {
    let endpoint = Endpoint::new("http://host-0").unwrap();
    let (service, _) = scripted(move |n, _: Request<String>| {
        if n == 0 {
            scope::current(|scope| scope.set_picked(&endpoint));
        }
        Err::<(), _>(refused())
    });
    let stack = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    let error = stack.oneshot(get()).await.unwrap_err();
    let trail = Trail::of(&*error).unwrap();
    let went: Vec<_> = trail
        .attempts()
        .map(|attempt| attempt.endpoint().is_some())
        .collect();
    assert_eq!(went, [true, false]);
}

// ---- when ----

/// Calls until the end, and says when each attempt was made.
async fn times<A: Clone + tower_outbound::call::ReadAnswer<Answer>>(
    layer: BackoffRetryLayer<A>,
    script: impl Fn(usize) -> Result<Answer, BoxError> + Clone,
) -> (Vec<u64>, Result<Answer, BoxError>) {
    let start = Instant::now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (service, _) = scripted(move |n, _: Request<String>| {
        log.lock().unwrap().push(start.elapsed().as_millis() as u64);
        script(n)
    });
    let outcome = layer.layer(service).oneshot(get()).await;
    (std::mem::take(&mut *seen.lock().unwrap()), outcome)
}

#[tokio::test(start_paused = true)]
async fn feign_pauses_150_225_337_and_506_ms() {
    let (times, _) = times(BackoffRetryLayer::new(feign()), |_| Err(refused())).await;
    assert_eq!(times, [0, 150, 375, 712, 1218]);
}

#[tokio::test(start_paused = true)]
async fn feign_retries_what_it_retries_and_nothing_else() {
    let after = |wait| {
        move || {
            let fault = Fault::new(FaultKind::Status(StatusCode::NOT_FOUND), Sent::Maybe);
            let wait: Option<u64> = wait;
            FaultError::new(fault.with_retry_after(wait.map(Duration::from_secs)), "status").into()
        }
    };
    let cases: [(Box<dyn Fn() -> BoxError>, usize); 5] = [
        (Box::new(|| error(READ_TIMEOUT, Sent::Maybe)), 5),
        (Box::new(|| error(FaultKind::Protocol, Sent::Maybe)), 5),
        (
            Box::new(|| error(FaultKind::ReadTimeout(ReadPhase::Body), Sent::Maybe)),
            1,
        ),
        (Box::new(after(Some(0))), 5),
        (Box::new(after(None)), 1),
    ];
    for (fails, expected) in &cases {
        let (service, calls) = scripted(move |_, _: Request<String>| Err::<(), _>(fails()));
        let stack = BackoffRetryLayer::new(feign()).layer(service);
        let error = stack.oneshot(post()).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), *expected, "{error}");
    }
}

/// BKO-01, BKO-04, BKO-07.
#[tokio::test(start_paused = true)]
async fn retry_after_takes_the_place_of_feigns_pause_up_to_the_longest() {
    for (max, asked, expected) in [
        (10, "3", 3000),
        (1, "3", 1000),
        (1, "0", 0),
        (1, "Sun, 06 Nov 1994 08:49:37 GMT", 0),
        (1, "99999999999999999999", 1000),
        (1, "18446744073709551615", 1000),
    ] {
        let feign = Backoff::feign(Duration::from_millis(100), Duration::from_secs(max), 2).unwrap();
        let layer = BackoffRetryLayer::new(feign).retry_statuses(StatusSet::TRANSIENT);
        let (times, outcome) = times(layer, |_| Ok(unavailable(asked))).await;
        assert_eq!(times, [0, expected], "{asked}");
        assert_eq!(outcome.unwrap().status(), 503);
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_never_comes_sooner_than_asked_and_does_not_wait_for_ever() {
    let layer = || BackoffRetryLayer::new(steady(2)).retry_statuses(StatusSet::TRANSIENT);
    assert_eq!(times(layer(), |_| Ok(unavailable("3"))).await.0, [0, 3000]);
    assert_eq!(times(layer(), |_| Ok(unavailable("0"))).await.0, [0, 100]);
    for asked in ["11", "99999999999999999999"] {
        let mut scope = CallScope::begin();
        let mut call = Box::pin(times(layer(), move |_| Ok(unavailable(asked))));
        let (times, outcome) = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
        assert_eq!(
            (times, outcome.unwrap().status().as_u16()),
            (vec![0], 503),
            "returned at once"
        );
        let trail = scope.take_trail().unwrap();
        assert!(
            matches!(
                trail.stops().next().unwrap().reason(),
                NotRetried::RetryAfterTooLong { limit, .. } if limit == Duration::from_secs(10)
            ),
            "{trail}"
        );
    }
    for seed in 0..50 {
        let backoff = Backoff::builder().seed(seed).build().unwrap();
        let layer = BackoffRetryLayer::new(backoff).retry_statuses(StatusSet::TRANSIENT);
        let second = times(layer, |_| Ok(unavailable("3"))).await.0[1];
        assert!((3000..=3101).contains(&second), "{second}");
    }
}

#[tokio::test(start_paused = true)]
async fn decorrelated_jitter_goes_from_the_pause_that_the_call_made_before() {
    let ms = Duration::from_millis;
    let mut far = false;
    for seed in 0..100 {
        let builder = Backoff::builder().attempts(4).max(ms(10_000)).seed(seed);
        let backoff = builder.jitter(Jitter::Decorrelated).build().unwrap();
        let (times, _) = times(BackoffRetryLayer::new(backoff), |_| Err(refused())).await;
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // A sleep ends on the millisecond after.
        assert!((100..=301).contains(&pauses[0]), "{pauses:?}");
        for pair in pauses.windows(2) {
            assert!(pair[1] >= 100 && pair[1] <= 3 * pair[0] + 1, "{pauses:?}");
        }
        far |= pauses[2] > 901;
    }
    assert!(far, "the third may be up to 27 times the base");
}

#[tokio::test(start_paused = true)]
async fn a_function_of_the_users_says_how_long_each_pause_is() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let backoff = Backoff::builder()
        .attempts(4)
        .max(Duration::from_millis(500))
        .delay(move |failed| {
            log.lock()
                .unwrap()
                .push((failed.attempts(), failed.paused().as_millis()));
            match failed.fault().kind() {
                FaultKind::ConnectRefused => Duration::from_millis(7),
                FaultKind::Reset => Duration::ZERO,
                _ => Duration::MAX,
            }
        })
        .build()
        .unwrap();
    let (times, _) = times(BackoffRetryLayer::new(backoff), |n| {
        Err(match n {
            0 => refused(),
            1 => error(FaultKind::Reset, Sent::Maybe),
            _ => error(FaultKind::Closed, Sent::Maybe),
        })
    })
    .await;
    assert_eq!(times, [0, 7, 7, 507]);
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (2, 7), (3, 0)]);
}

#[tokio::test(start_paused = true)]
async fn full_jitter_draws_from_zero_to_the_pause_and_a_seed_repeats_it() {
    let run = |seed| {
        let backoff = Backoff::builder().attempts(2).seed(seed).build().unwrap();
        times(BackoffRetryLayer::new(backoff), |_| Err(refused()))
    };
    let mut seen = Vec::new();
    for seed in 0..200 {
        seen.push(run(seed).await.0[1]);
    }
    assert_eq!(seen[7], run(7).await.0[1]);
    // Sleeps end on the millisecond after.
    assert!(seen.iter().all(|pause| *pause <= 101), "{seen:?}");
    assert!(
        seen.iter().any(|pause| *pause < 20) && seen.iter().any(|pause| *pause > 80),
        "{seen:?}"
    );
}

/// BKO-11.
#[tokio::test(start_paused = true)]
async fn a_wait_that_would_end_after_the_deadline_is_not_begun() {
    let start = Instant::now();
    let slow = |_: Request<String>| async {
        sleep(Duration::from_millis(200)).await;
        Ok::<_, BoxError>(unavailable("60"))
    };
    let feign = Backoff::feign(Duration::from_millis(100), Duration::from_secs(300), 5).unwrap();
    let stack = BackoffRetryLayer::new(feign)
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service_fn(slow));
    let answer = before(Duration::from_secs(10), stack.oneshot(get()))
        .await
        .unwrap();
    assert_eq!(
        (answer.status().as_u16(), start.elapsed().as_millis()),
        (503, 200)
    );

    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let feign = Backoff::feign(Duration::from_secs(5), Duration::from_secs(5), 5).unwrap();
    let stack = BackoffRetryLayer::new(feign).layer(service);
    let error = before(Duration::from_secs(1), stack.oneshot(get()))
        .await
        .unwrap_err();
    assert_eq!((calls.load(SeqCst), start.elapsed().as_millis()), (1, 200));
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
    let [NotRetried::DeadlineTooClose { pause, left }] = stops(&error)[..] else {
        panic!("{error}");
    };
    assert_eq!((pause, left), (Duration::from_secs(5), Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_retried_at_the_deadline_even_without_a_pause() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let stack = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    let error = before(Duration::ZERO, stack.oneshot(get())).await.unwrap_err();
    assert_eq!(calls.load(SeqCst), 1);
    assert!(
        matches!(stops(&error)[..], [NotRetried::DeadlineTooClose { .. }]),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_foreign_timeout_ends_a_pause_and_all_work_with_it() {
    let start = Instant::now();
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let feign = Backoff::feign(Duration::from_secs(5), Duration::from_secs(5), 5).unwrap();
    let stack = BackoffRetryLayer::new(feign).layer(service);
    assert!(
        timeout(Duration::from_secs(1), stack.oneshot(get()))
            .await
            .is_err()
    );
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn one_poll_makes_one_attempt() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let stack = IdempotentRetryLayer::new(Idempotent::default().same_endpoint(u32::MAX)).layer(service);
    let mut call = task::spawn(stack.oneshot(get()));
    for n in 1..100 {
        assert_pending!(call.poll());
        assert!(call.is_woken());
        assert_eq!(calls.load(SeqCst), n);
    }
}

/// BKO-07: the limit above fires.
#[tokio::test]
async fn an_endless_retry_without_pauses_lets_the_limit_above_it_fire() {
    let zero = |_, _: Request<String>| Ok(unavailable("0"));
    let (service, calls) = scripted(zero);
    let feign = Backoff::feign(Duration::ZERO, Duration::ZERO, u32::MAX).unwrap();
    let stack = BackoffRetryLayer::new(feign)
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service);
    let outcome = timeout(Duration::from_millis(100), stack.oneshot(get())).await;
    assert!(outcome.is_err() && calls.load(SeqCst) > 1);
}

// ---- the budget ----

fn fixed_budget(tokens: u32) -> RetryBudget {
    RetryBudget::builder()
        .percent(0.0)
        .floor(0)
        .burst(tokens)
        .initial(tokens)
        .build()
        .unwrap()
}

/// RET-16.
#[tokio::test(start_paused = true)]
async fn all_clones_of_a_layer_and_its_services_spend_one_budget() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let budget = fixed_budget(10);
    let layer = BackoffRetryLayer::new(steady(5)).budget(budget.clone());
    let mut boxed = tower::util::BoxService::new(layer.clone().layer(service.clone()));
    for n in 0..20 {
        let error = if n % 2 == 0 {
            call(&mut boxed, get()).await.unwrap_err()
        } else {
            layer.layer(service.clone()).oneshot(get()).await.unwrap_err()
        };
        if n > 3 {
            assert_eq!(stops(&error), [NotRetried::BudgetSpent]);
        }
    }
    assert_eq!(calls.load(SeqCst), 30);
    assert_eq!((budget.granted(), budget.refused()), (10, 18));
}

/// RET-17.
#[tokio::test(start_paused = true)]
async fn a_drained_budget_is_filled_by_successes() {
    let works = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&works);
    let (service, calls) = scripted(move |_, _: Request<String>| {
        if switch.load(SeqCst) {
            Ok(())
        } else {
            Err(refused())
        }
    });
    let budget = RetryBudget::builder()
        .percent(100.0)
        .floor(0)
        .burst(10)
        .earned_by(Earned::Successes)
        .build()
        .unwrap();
    let stack = BackoffRetryLayer::new(steady(3))
        .budget(budget.clone())
        .layer(service);
    for _ in 0..20 {
        let _ = stack.clone().oneshot(get()).await;
    }
    assert_eq!((calls.swap(0, SeqCst), budget.available()), (30, 0));
    works.store(true, SeqCst);
    for _ in 0..15 {
        stack.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(budget.available(), 10, "and no more than the burst");
    works.store(false, SeqCst);
    calls.store(0, SeqCst);
    let _ = stack.oneshot(get()).await;
    assert_eq!(calls.load(SeqCst), 3);
}

/// RET-19.
#[tokio::test(start_paused = true)]
async fn a_retry_that_waits_holds_its_token_and_a_dropped_one_gives_it_back() {
    let (service, calls) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let ten = Duration::from_secs(10);
    let budget = fixed_budget(1);
    let feign = Backoff::feign(ten, ten, 2).unwrap();
    let stack = BackoffRetryLayer::new(feign)
        .budget(budget.clone())
        .layer(service);
    let mut calls_made: Vec<_> = (0..10)
        .map(|_| task::spawn(stack.clone().oneshot(get())))
        .collect();
    assert_pending!(calls_made[0].poll(), "it waits");
    for call in &mut calls_made[1..] {
        let error = assert_ready!(call.poll()).unwrap_err();
        assert_eq!(stops(&error), [NotRetried::BudgetSpent]);
    }
    assert_eq!((budget.available(), calls.load(SeqCst)), (0, 10));
    drop(calls_made);
    assert_eq!((budget.available(), budget.granted()), (1, 0));
    let _ = stack.oneshot(get()).await;
    assert_eq!(
        (budget.available(), budget.granted()),
        (0, 1),
        "a retry that starts spends it"
    );
}

/// RET-20.
#[tokio::test(start_paused = true)]
async fn an_empty_budget_returns_the_error_of_the_attempt_at_once() {
    let start = Instant::now();
    let budget = fixed_budget(1);
    budget.withdraw().unwrap().spend();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let slow = service_fn(move |_: Request<String>| {
        seen.fetch_add(1, SeqCst);
        async {
            sleep(Duration::from_millis(4)).await;
            Err::<(), _>(refused())
        }
    });
    let stack = BackoffRetryLayer::new(steady(5)).budget(budget).layer(slow);
    let error = before(Duration::from_secs(15), stack.oneshot(get()))
        .await
        .unwrap_err();
    assert_eq!((start.elapsed().as_millis(), calls.load(SeqCst)), (4, 1));
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
    assert_eq!(stops(&error), [NotRetried::BudgetSpent]);
}

#[tokio::test(start_paused = true)]
async fn no_token_is_wasted_on_a_retry_that_is_not_made_for_another_reason() {
    let (service, _) = scripted(|_, _: Request<OnceBody<String>>| Err::<(), _>(refused()));
    let budget = fixed_budget(5);
    let stack = BackoffRetryLayer::new(steady(5))
        .budget(budget.clone())
        .layer(service);
    let error = stack.oneshot(get().map(OnceBody::new)).await.unwrap_err();
    assert_eq!(stops(&error), [NotRetried::BodyNotRepeatable]);
    let (service, _) = scripted(|_, _: Request<String>| Err::<(), _>(refused()));
    let stack = BackoffRetryLayer::new(steady(5))
        .budget(budget.clone())
        .layer(service);
    before(Duration::from_millis(100), stack.oneshot(get()))
        .await
        .unwrap_err();
    assert_eq!(
        (budget.available(), budget.granted(), budget.refused()),
        (5, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn layers_that_share_a_budget_count_a_call_once() {
    let budget = RetryBudget::builder()
        .percent(10.0)
        .floor(0)
        .initial(0)
        .build()
        .unwrap();
    let (service, _) = scripted(|_, _: Request<String>| Ok(()));
    let inner = IdempotentRetryLayer::new(Idempotent::default())
        .budget(budget.clone())
        .layer(service.clone());
    let stack = BackoffRetryLayer::new(steady(2))
        .budget(budget.clone())
        .layer(inner.clone());
    for _ in 0..20 {
        stack.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(budget.available(), 2);
    for _ in 0..20 {
        inner.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(budget.available(), 4, "and each alone counts it as well");
}

// ---- bodies ----

#[tokio::test(start_paused = true)]
async fn a_retried_body_is_the_same_to_the_byte() {
    for size in [0, 1, 65_536] {
        let body = "x".repeat(size);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let (service, _) = scripted(move |n, request: Request<Full<Bytes>>| {
            // An attempt may read all of it.
            let body = request.into_body();
            log.lock().unwrap().push(body.size_hint().exact());
            let read = futures_util::FutureExt::now_or_never(body.collect())
                .unwrap()
                .unwrap()
                .to_bytes();
            log.lock().unwrap().push(Some(read.len() as u64));
            if n == 0 {
                Ok(answer(503))
            } else {
                Ok(Response::new(Full::new(read)))
            }
        });
        let policy = Idempotent::default().ok_to_retry_on_all_operations();
        let stack = IdempotentRetryLayer::new(policy)
            .retry_statuses(StatusSet::TRANSIENT)
            .layer(service);
        let echo = stack
            .oneshot(post().map(|_| Full::from(body.clone())))
            .await
            .unwrap();
        assert_eq!(echo.into_body().collect().await.unwrap().to_bytes(), body);
        assert_eq!(*seen.lock().unwrap(), [Some(size as u64); 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_can_be_sent_once_goes_through_once_and_its_answer_comes_back_as_it_is() {
    for status in [200, 503] {
        let (service, calls) = scripted(move |_, request: Request<OnceBody<String>>| {
            assert_eq!(request.into_body().into_inner(), "body");
            Ok(answer(status))
        });
        let stack = BackoffRetryLayer::new(steady(3))
            .retry_statuses(StatusSet::TRANSIENT)
            .layer(service);
        let mut scope = CallScope::begin();
        let mut call = pin!(stack.oneshot(get().map(OnceBody::new)));
        let answer = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx)))
            .await
            .unwrap();
        assert_eq!((answer.status().as_u16(), calls.load(SeqCst)), (status, 1));
        let reason = scope
            .take_trail()
            .and_then(|trail| trail.stops().next().map(|stop| stop.reason()));
        assert_eq!(reason, (status == 503).then_some(NotRetried::BodyNotRepeatable));
    }
}

/// The body of an answer, which says when it is dropped and may never end.
#[derive(Debug)]
struct Watched {
    data: Option<Bytes>,
    ends: bool,
    alive: Arc<AtomicUsize>,
}

impl Watched {
    fn new(data: impl Into<Bytes>, ends: bool, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Watched {
            data: Some(data.into()),
            ends,
            alive: Arc::clone(alive),
        }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.data.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_whole_and_the_ones_before_are_gone_when_the_next_attempt_starts() {
    let alive = Arc::new(AtomicUsize::new(0));
    let bodies = Arc::clone(&alive);
    let (service, calls) = scripted(move |n, _: Request<String>| {
        assert_eq!(bodies.load(SeqCst), 0, "attempt {n}");
        let mut answer = Response::new(Watched::new(vec![n as u8; 1024], true, &bodies));
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        Ok(answer)
    });
    let stack = IdempotentRetryLayer::new(Idempotent::default())
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service);
    let answer = stack.oneshot(get()).await.unwrap();
    assert_eq!(
        (calls.load(SeqCst), answer.status().as_u16(), alive.load(SeqCst)),
        (2, 503, 1)
    );
    assert_eq!(
        answer.into_body().collect().await.unwrap().to_bytes(),
        vec![1; 1024]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_end_is_drained_for_a_short_time_only() {
    for (deadline, expected) in [(60_000, 100), (30, 30)] {
        let alive = Arc::new(AtomicUsize::new(0));
        let bodies = Arc::clone(&alive);
        let start = Instant::now();
        let times = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&times);
        let (service, _) = scripted(move |n, _: Request<String>| {
            assert_eq!(bodies.load(SeqCst), 0, "attempt {n}");
            log.lock().unwrap().push(start.elapsed().as_millis());
            let mut answer = Response::new(Watched::new("x", false, &bodies));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(answer)
        });
        let stack = IdempotentRetryLayer::new(Idempotent::default())
            .retry_statuses(StatusSet::TRANSIENT)
            .layer(service);
        let outcome = before(Duration::from_millis(deadline), stack.oneshot(get())).await;
        assert_eq!(start.elapsed().as_millis(), expected);
        if expected == 100 {
            assert_eq!(*times.lock().unwrap(), [0, 100]);
            assert_eq!(outcome.unwrap().status(), 503);
        } else {
            let error = outcome.unwrap_err();
            assert!(
                tower_outbound::call::chain(&*error).any(|error| error.is::<NoTimeLeft>()),
                "{error}"
            );
            assert!(
                matches!(stops(&error)[..], [NotRetried::DeadlineTooClose { .. }]),
                "{error}"
            );
            assert_eq!(*times.lock().unwrap(), [0], "none starts with nothing left");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_thrown_away_is_gone_before_the_pause_and_holds_nothing_through_it() {
    for (ends, gone_after) in [(true, 0), (false, 100)] {
        let alive = Arc::new(AtomicUsize::new(0));
        let bodies = Arc::clone(&alive);
        let (service, calls) = scripted(move |_, _: Request<String>| {
            let mut answer = Response::new(Watched::new("x", ends, &bodies));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(answer)
        });
        let backoff = Backoff::builder()
            .base(Duration::from_millis(300))
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let stack = BackoffRetryLayer::new(backoff)
            .retry_statuses(StatusSet::TRANSIENT)
            .layer(service);
        let mut call = task::spawn(stack.oneshot(get()));
        assert_pending!(call.poll());
        assert_eq!(alive.load(SeqCst), usize::from(!ends));
        advance(Duration::from_millis(gone_after + 1)).await;
        assert_pending!(call.poll());
        assert_eq!(
            (alive.load(SeqCst), calls.load(SeqCst)),
            (0, 1),
            "it pauses, and holds no body"
        );
        advance(Duration::from_millis(300)).await;
        let last = assert_ready!(call.poll()).unwrap();
        assert_eq!((alive.load(SeqCst), calls.load(SeqCst)), (1, 2));
        if ends {
            assert_eq!(
                last.into_body().collect().await.unwrap().to_bytes(),
                "x",
                "the last is whole"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn draining_is_part_of_the_pause() {
    let start = Instant::now();
    let (service, _) = scripted(move |n, _: Request<String>| {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut answer = Response::new(Watched::new("x", false, &alive));
        if n == 0 {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        Ok(answer)
    });
    let backoff = Backoff::builder()
        .base(Duration::from_millis(300))
        .jitter(Jitter::None)
        .build()
        .unwrap();
    let stack = BackoffRetryLayer::new(backoff)
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service);
    stack.oneshot(get()).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 300);
}

// ---- readiness ----

/// A service whose clones are not ready, and which must be ready when it is called. `reserved` counts instances that
/// have been polled ready and not been called yet.
#[derive(Debug)]
struct Probe {
    ready: bool,
    reserved: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    clones: Arc<AtomicUsize>,
    /// From this call on readiness fails.
    dead_after: usize,
    fails: bool,
}

impl Probe {
    fn new(fails: bool, dead_after: usize) -> Self {
        Probe {
            ready: false,
            reserved: Arc::default(),
            asked: Arc::default(),
            calls: Arc::default(),
            clones: Arc::default(),
            dead_after,
            fails,
        }
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, SeqCst);
        Probe {
            ready: false,
            reserved: Arc::clone(&self.reserved),
            asked: Arc::clone(&self.asked),
            calls: Arc::clone(&self.calls),
            clones: Arc::clone(&self.clones),
            ..*self
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.reserved.fetch_sub(usize::from(self.ready), SeqCst);
    }
}

impl<B> Service<Request<B>> for Probe {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.calls.load(SeqCst) >= self.dead_after {
            return Poll::Ready(Err("dead".into()));
        }
        self.asked.fetch_add(1, SeqCst);
        if !std::mem::replace(&mut self.ready, true) {
            self.reserved.fetch_add(1, SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(
            std::mem::replace(&mut self.ready, false),
            "called without being ready"
        );
        self.reserved.fetch_sub(1, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        ready(if self.fails { Err(refused()) } else { Ok(()) })
    }
}

/// RDY-01, RDY-02.
#[tokio::test(start_paused = true)]
async fn the_instance_that_was_polled_ready_is_called_at_each_attempt() {
    async fn check<P: RetryPolicy>(layer: RetryLayer<P>) {
        let probe = Probe::new(true, usize::MAX);
        let mut stack = layer.layer(probe.clone());
        for n in 1..=200 {
            let error = call(&mut stack, get()).await.unwrap_err();
            assert_eq!(attempts(&error), 5);
            assert_eq!(probe.calls.load(SeqCst), 5 * n);
            assert_eq!(probe.asked.load(SeqCst), 5 * n, "asked once for each attempt");
            assert_eq!(probe.reserved.load(SeqCst), 0);
            stack = stack.clone();
        }
    }
    check(BackoffRetryLayer::new(steady(5))).await;
    check(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(4))).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_is_cloned_only_where_a_retry_is_possible() {
    let probe = Probe::new(false, usize::MAX);
    let clones = Arc::clone(&probe.clones);
    let mut never = BackoffRetryLayer::new(Backoff::never()).layer(probe);
    call(&mut never, get()).await.unwrap();
    let mut stack = BackoffRetryLayer::new(Backoff::default()).layer(never.into_inner());
    call(&mut stack, get().map(OnceBody::new)).await.unwrap();
    let mut gets = IdempotentRetryLayer::new(Idempotent::ribbon_spring_retry()).layer(stack.into_inner());
    call(&mut gets, post()).await.unwrap();
    assert_eq!(clones.load(SeqCst), 0);
    call(&mut gets, get()).await.unwrap();
    assert_eq!(clones.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_become_ready_ends_the_call_with_its_error() {
    let probe = Probe::new(true, 2);
    let mut stack = BackoffRetryLayer::new(steady(5)).layer(probe.clone());
    let error = call(&mut stack, get()).await.unwrap_err();
    assert_eq!(probe.calls.load(SeqCst), 2);
    let not_ready = tower_outbound::call::chain(&*error)
        .find_map(|error| error.downcast_ref::<NotReady>())
        .expect("it is NotReady");
    assert_eq!(not_ready.layer(), "BackoffRetry");
    assert_eq!(stops(&error), [NotRetried::NotReady]);
    assert!(error.to_string().contains("dead"), "{error}");
    assert_eq!(Fault::of(&*error), Fault::new(FaultKind::NotReady, Sent::No));
}

/// RDY-06.
#[tokio::test(start_paused = true)]
async fn readiness_is_not_held_through_a_pause_and_is_waited_for_after_it() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_layer::<Ping, (), _>(BackoffRetryLayer::new(steady(3)));
    handle.allow(1);
    assert_ready!(service.poll_ready()).unwrap();
    let mut call = task::spawn(service.call(Ping));
    let (_, reply) = handle.next_request().await.unwrap();
    reply.send_error(refused());
    assert_pending!(call.poll());
    // In the pause another instance can have the only slot.
    handle.allow(1);
    assert_ready!(service.poll_ready()).unwrap();
    let mut other = task::spawn(service.call(Ping));
    handle.next_request().await.unwrap().1.send_response(());
    assert_ready!(other.poll()).unwrap();
    // After the pause it waits for one.
    advance(Duration::from_millis(101)).await;
    assert_pending!(call.poll());
    handle.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    handle.next_request().await.unwrap().1.send_response(());
    assert_ready!(call.poll()).unwrap();
}

#[derive(Clone, Debug, PartialEq)]
struct Ping;

impl tower_outbound::call::OutboundRequest for Ping {
    type Kept = Ping;

    fn semantics(&self) -> tower_outbound::call::Semantics {
        tower_outbound::call::Semantics::READ
    }

    fn keep(&self) -> Option<Ping> {
        Some(Ping)
    }

    fn restore(_: &Ping) -> Option<Ping> {
        Some(Ping)
    }
}

// ---- dropped calls ----

/// A service that holds something for as long as an attempt, or its request, lives.
#[derive(Clone)]
struct Holding {
    held: Arc<()>,
    fails_first: Arc<AtomicBool>,
}

impl Service<Request<Arc<()>>> for Holding {
    type Response = Response<Watched>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Watched>, BoxError>> + Send + Sync>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Arc<()>>) -> Self::Future {
        let held = Arc::clone(&self.held);
        let fails = self.fails_first.swap(false, SeqCst);
        Box::pin(async move {
            let _held = (held, request);
            if !fails {
                pending::<()>().await;
            }
            let mut answer = Response::new(Watched::new("x", false, &Arc::default()));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(answer)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_in_any_state_gives_everything_back() {
    // Dropped after this long: in the first attempt, in draining, in the pause, in the second attempt.
    for (fails, after, spent) in [
        (false, 0, 0),
        (true, 0, 0),
        (true, 50, 0),
        (true, 150, 0),
        (true, 350, 1),
    ] {
        let budget = fixed_budget(3);
        let backoff = Backoff::builder()
            .base(Duration::from_millis(300))
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let holding = Holding {
            held: Arc::default(),
            fails_first: Arc::new(AtomicBool::new(fails)),
        };
        let body = Arc::new(());
        let stack = BackoffRetryLayer::new(backoff)
            .retry_statuses(StatusSet::TRANSIENT)
            .budget(budget.clone())
            .layer(holding.clone());
        let mut call = task::spawn(stack.oneshot(get().map(|_| Arc::clone(&body))));
        assert_pending!(call.poll());
        for _ in 0..after / 10 {
            advance(Duration::from_millis(10)).await;
            assert_pending!(call.poll());
        }
        let waits = u64::from(fails && spent == 0);
        assert_eq!(
            (budget.available(), budget.granted()),
            (3 - waits - spent, spent),
            "after {after}"
        );
        drop(call);
        assert_eq!(budget.available(), 3 - spent);
        assert_eq!(
            (Arc::strong_count(&holding.held), Arc::strong_count(&body)),
            (1, 1),
            "after {after}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_given_up_is_in_the_trail_of_the_call_around_it_once() {
    let service = service_fn(|_: Request<String>| pending::<Result<(), BoxError>>());
    let inner = IdempotentRetryLayer::new(Idempotent::default()).layer(service);
    let stack = BackoffRetryLayer::new(steady(2)).layer(inner);
    let mut scope = CallScope::begin();
    let mut call = Box::pin(stack.oneshot(get()));
    let waited = timeout(
        Duration::from_millis(7),
        poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))),
    )
    .await;
    assert!(waited.is_err());
    scope.enter(|| drop(call));
    let trail = scope.take_trail().unwrap();
    assert_eq!(trail.len(), 1);
    let attempt = trail.attempts().next().unwrap();
    assert_eq!(
        (attempt.outcome(), attempt.took()),
        (AttemptOutcome::Abandoned, Duration::from_millis(7))
    );
}

// ---- configuration and types ----

/// BKO-09.
#[test]
fn mistakes_are_found_when_a_policy_is_built() {
    let field = |outcome: Result<Backoff, tower_outbound::call::ConfigError>| outcome.unwrap_err().field();
    let ms = Duration::from_millis;
    assert_eq!(field(Backoff::feign(ms(1), ms(1), 0)), "max_attempts");
    assert_eq!(field(Backoff::feign(Duration::MAX, ms(1), 1)), "period");
    assert_eq!(field(Backoff::feign(ms(1), Duration::MAX, 1)), "max_period");
    assert_eq!(field(Backoff::builder().attempts(0).build()), "attempts");
    assert_eq!(field(Backoff::builder().base(Duration::ZERO).build()), "base");
    assert_eq!(field(Backoff::builder().base(ms(1001)).build()), "base");
    assert_eq!(field(Backoff::builder().max(Duration::MAX).build()), "max");
    assert_eq!(
        field(Backoff::builder().max_retry_after(Duration::MAX).build()),
        "max_retry_after"
    );
    for factor in [0.0, 0.99, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(
            field(Backoff::builder().factor(factor).build()),
            "factor",
            "{factor}"
        );
    }
}

#[test]
fn services_and_futures_are_send_and_sync_when_the_inner_ones_are() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn future<T: Send + Sync + 'static>(_: &T) {}
    let holding = Holding {
        held: Arc::default(),
        fails_first: Arc::default(),
    };
    let layer = BackoffRetryLayer::new(Backoff::default()).retry_statuses(StatusSet::TRANSIENT);
    shared(&layer);
    let mut service = layer.budget(RetryBudget::default()).layer(holding.clone());
    shared(&service);
    future(&service.call(get().map(|_| Arc::new(()))));
    let mut service: RetryService<_, Idempotent> =
        IdempotentRetryLayer::new(Idempotent::default()).layer(holding);
    shared(&service);
    future(&service.call(get().map(|_| Arc::new(()))));
}

#[tokio::test(start_paused = true)]
async fn where_the_clock_has_jumped_over_the_deadline_in_a_pause_the_error_that_is_known_is_returned() {
    let (service, calls) =
        scripted(|_, _: Request<String>| Err::<(), _>(error(FaultKind::Reset, Sent::Maybe)));
    let stack = BackoffRetryLayer::new(steady(5)).layer(service);
    let mut call = task::spawn(before(Duration::from_millis(150), stack.oneshot(get())));
    assert_pending!(call.poll());
    advance(Duration::from_millis(200)).await;
    let error = assert_ready!(call.poll()).unwrap_err();
    assert_eq!(
        (calls.load(SeqCst), Fault::of(&*error).kind()),
        (1, FaultKind::Reset)
    );
    let reason = NotRetried::DeadlineTooClose {
        pause: Duration::from_millis(200),
        left: Duration::from_millis(150),
    };
    assert_eq!(stops(&error), [reason]);
}

/// How many attempts this policy makes when every one ends in an error with this status.
async fn attempts_at(policy: Backoff, status: u16) -> usize {
    let (service, calls) = scripted(move |_, _: Request<String>| {
        let (head, ()) = Response::builder().status(status).body(()).unwrap().into_parts();
        Err::<Answer, _>(StatusError::new(head, Verdict::Failure, Bytes::new(), true, None).into())
    });
    let mut retried = BackoffRetryLayer::new(policy).layer(service);
    call(&mut retried, get()).await.unwrap_err();
    calls.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn errors_with_a_status_are_retried_if_it_is_one_of_the_policys() {
    let of_its_own = || {
        let statuses = StatusSet::EMPTY.with(StatusCode::CONFLICT);
        Backoff::builder().statuses(statuses).build().unwrap()
    };
    let none = || Backoff::builder().statuses(StatusSet::EMPTY).build().unwrap();
    for (status, by_default, by_its_own) in [
        (408, 2, 1),
        (409, 1, 2),
        (429, 2, 1),
        (500, 1, 1),
        (502, 2, 1),
        (503, 2, 1),
        (504, 2, 1),
    ] {
        let seen = (
            attempts_at(Backoff::default(), status).await,
            attempts_at(of_its_own(), status).await,
            attempts_at(none(), status).await,
        );
        assert_eq!(seen, (by_default, by_its_own, 1), "{status}");
    }
}

#[test]
fn a_policy_tells_how_many_attempts_it_makes() {
    assert_eq!(Backoff::never().max_attempts(), 1);
    assert_eq!(Backoff::default().max_attempts(), 2);
    assert_eq!(feign().max_attempts(), 5);
}
