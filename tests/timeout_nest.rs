//! Limits, deadlines and overrides in whole stacks: what they do to the layers around them.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    future::{Future, pending, ready},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, channel::Channel};
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::LoadBalanceLayer,
    breaker::Breaker,
    call::{
        AttemptOutcome, DeadlineHeader, Endpoints, Fault, FaultKind, NotRetried, Overrides, ReadPhase, Sent,
        Trail, UploadBody,
    },
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter},
    timeout::{ExecutionTimedOut, ExecutionTimeoutLayer, ReadTimeoutLayer, SendDeadlineLayer},
};

type Get = Request<Empty<Bytes>>;
type Upload = Request<UploadBody<Empty<Bytes>>>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn get() -> Get {
    Request::get("/orders").body(Empty::new()).unwrap()
}

fn with(overrides: Overrides) -> Get {
    let mut request = get();
    request.extensions_mut().insert(overrides);
    request
}

fn endpoints() -> Endpoints {
    Endpoints::from_list(["http://a:1", "http://b:1"]).unwrap()
}

fn execution(limit: u64) -> ExecutionTimeoutLayer {
    ExecutionTimeoutLayer::new(ms(limit)).unwrap()
}

fn read(limit: u64) -> ReadTimeoutLayer {
    ReadTimeoutLayer::new(ms(limit)).unwrap()
}

/// Counts itself as long as it lives.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        Alive(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A service that fails at once, and counts its calls.
#[allow(clippy::type_complexity, reason = "the name of a service that has none")]
fn refusing<Req>(
    calls: &Arc<AtomicUsize>,
) -> impl Service<
    Req,
    Response = Response<Full<Bytes>>,
    Error = BoxError,
    Future = std::future::Ready<Result<Response<Full<Bytes>>, BoxError>>,
> + Clone
+ use<Req> {
    let calls = calls.clone();
    service_fn(move |_: Req| {
        calls.fetch_add(1, SeqCst);
        ready(Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()))
    })
}

/// TMO-01.
#[tokio::test(start_paused = true)]
async fn the_limit_of_a_call_ends_its_retries_its_attempt_and_its_counts() {
    let start = Instant::now();
    let (calls, alive) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (counted, living) = (calls.clone(), alive.clone());
    let silent = service_fn(move |_: Upload| {
        counted.fetch_add(1, SeqCst);
        let guard = Alive::new(&living);
        async move {
            let _guard = guard;
            pending::<Result<Response<Full<Bytes>>, BoxError>>().await
        }
    });
    let breaker = Breaker::new("orders").unwrap();
    let balance = LoadBalanceLayer::new(endpoints());
    let figures = balance.handle();
    let mut stack = ServiceBuilder::new()
        .circuit_breaker(breaker.clone())
        .layer(execution(1000))
        .layer(IdempotentRetryLayer::new(
            Idempotent::default().same_endpoint(0).next_endpoint(1),
        ))
        .layer(balance)
        .layer(read(5000))
        .service(silent);
    let mut call = Box::pin(stack.call(get()));
    let error = call.as_mut().await.unwrap_err();
    assert_eq!(start.elapsed(), ms(1000));
    assert!(
        error.is::<ExecutionTimedOut>() || Trail::of(&*error).is_some(),
        "{error}"
    );
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    // At once, although the future is still held.
    assert_eq!(alive.load(SeqCst), 0);
    assert_eq!(figures.total().in_flight(), 0);
    assert_eq!((breaker.counts().total(), breaker.counts().failures()), (1, 1));
    sleep(ms(19_000)).await;
    assert_eq!(calls.load(SeqCst), 1);
}

/// TMO-06: the response was handed over, so nobody sends the request again, whatever becomes of its body.
#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_is_no_reason_for_another_attempt() {
    let start = Instant::now();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let client = service_fn(move |_: Upload| {
        counted.fetch_add(1, SeqCst);
        async {
            sleep(ms(10)).await;
            let (sender, body) = Channel::<Bytes, io::Error>::new(1);
            tokio::spawn(async move {
                let _sender = sender;
                pending::<()>().await;
            });
            Ok::<_, BoxError>(Response::new(body))
        }
    });
    let nest = Nest::builder("orders", endpoints())
        .read_limit(ms(3000))
        .build(client)
        .unwrap();
    let response = nest.oneshot(get()).await.unwrap();
    assert_eq!(start.elapsed(), ms(10));
    let error = response.into_body().collect().await.unwrap_err();
    assert_eq!(start.elapsed(), ms(3010));
    assert_eq!(
        Fault::of(&*error),
        Fault::new(FaultKind::ReadTimeout(ReadPhase::Body), Sent::Maybe)
    );
    sleep(ms(60_000)).await;
    assert_eq!(calls.load(SeqCst), 1);
}

/// TMO-10, below retries.
#[tokio::test(start_paused = true)]
async fn a_limit_on_each_attempt_does_not_cut_the_body_of_an_answer() {
    let start = Instant::now();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let client = service_fn(move |_: Get| {
        counted.fetch_add(1, SeqCst);
        async {
            sleep(ms(40)).await;
            let (mut sender, body) = Channel::<Bytes, io::Error>::new(1);
            tokio::spawn(async move {
                sleep(ms(40)).await;
                sender.send_data(Bytes::from("whole")).await.unwrap();
            });
            Ok::<_, BoxError>(Response::new(body))
        }
    });
    let stack = ServiceBuilder::new()
        .layer(execution(100))
        .idempotent_retry(Idempotent::default())
        .load_balance(endpoints())
        .layer(execution(50))
        .service(client);
    let response = stack.oneshot(get()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "whole");
    assert_eq!((start.elapsed(), calls.load(SeqCst)), (ms(80), 1));
}

fn pausing_five_seconds() -> BackoffRetryLayer {
    BackoffRetryLayer::new(Backoff::feign(ms(5000), ms(5000), 5).unwrap())
}

/// TMO-11: the pause could not end in time, so it does not begin, and the error that is known returns at once.
#[tokio::test(start_paused = true)]
async fn a_retry_that_the_deadline_forbids_returns_the_known_error_at_once() {
    let start = Instant::now();
    let calls = Arc::new(AtomicUsize::new(0));
    let stack = execution(1000).layer(pausing_five_seconds().layer(refusing::<Get>(&calls)));
    let error = stack.oneshot(get()).await.unwrap_err();
    assert_eq!((start.elapsed(), calls.load(SeqCst)), (ms(0), 1));
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
    let stops: Vec<_> = Trail::of(&*error)
        .unwrap()
        .stops()
        .map(|stop| stop.reason())
        .collect();
    assert_eq!(
        stops,
        [NotRetried::DeadlineTooClose {
            pause: ms(5000),
            left: ms(1000)
        }],
        "{error}"
    );
}

/// TMO-11, under limits that tell nobody of a deadline: the call ends at exactly that, and the pause with it.
#[tokio::test(start_paused = true)]
async fn a_pause_ends_at_the_limit_of_somebody_who_sets_no_deadline() {
    let calls = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let inner = pausing_five_seconds().layer(refusing::<Get>(&calls));
    let foreign = tower::timeout::TimeoutLayer::new(ms(1000)).layer(inner.clone());
    let error = foreign.oneshot(get()).await.unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    assert_eq!((start.elapsed(), calls.load(SeqCst)), (ms(1000), 1));

    let start = Instant::now();
    let as_hystrix = ExecutionTimeoutLayer::hystrix(ms(1000)).unwrap();
    let error = RecordTrailLayer::new()
        .layer(as_hystrix.layer(inner))
        .oneshot(get())
        .await
        .unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    assert_eq!((start.elapsed(), calls.load(SeqCst)), (ms(1000), 2));
    let trail = Trail::of(&*error).unwrap();
    let AttemptOutcome::Failed(fault) = trail.attempts().next().unwrap().outcome() else {
        unreachable!("{trail}");
    };
    assert_eq!(
        fault.kind(),
        FaultKind::ConnectRefused,
        "the error before the pause is kept"
    );
    sleep(ms(60_000)).await;
    assert_eq!(calls.load(SeqCst), 2, "nothing goes on");
}

/// Answers 503 at once, and wants to be asked again at once.
fn again_at_once(
    calls: Arc<AtomicUsize>,
) -> impl Service<
    Get,
    Response = Response<Full<Bytes>>,
    Error = BoxError,
    Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
> + Clone {
    let client = service_fn(move |_: Get| {
        calls.fetch_add(1, SeqCst);
        let response = Response::builder().status(503).header("retry-after", "0");
        ready(Ok::<_, BoxError>(
            response.body(Full::<Bytes>::default()).unwrap(),
        ))
    });
    let backoff = Backoff::feign(ms(100), ms(1000), u32::MAX).unwrap();
    ServiceBuilder::new()
        .backoff_retry(backoff)
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(client)
        .map_response(|_| Response::new(Full::default()))
}

/// TMO-12. On the real clock, since a paused one stands still as long as there is something to do.
#[tokio::test(flavor = "current_thread")]
async fn a_limit_ends_retries_that_fail_at_once_without_a_pause() {
    for (limit, is_told) in [
        (execution(100), true),
        (ExecutionTimeoutLayer::hystrix(ms(100)).unwrap(), false),
    ] {
        let calls = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let error = limit
            .layer(again_at_once(calls.clone()))
            .oneshot(get())
            .await
            .unwrap_err();
        let took = start.elapsed();
        assert!(took >= ms(99) && took < ms(10_000), "{took:?}");
        assert!(calls.load(SeqCst) > 1, "it did retry");
        let timed_out = Fault::of(&*error).kind() == FaultKind::ExecutionTimeout;
        // Who knows of the deadline may be the first to see that it has come.
        let stopped = Trail::of(&*error).is_some_and(|trail| {
            let reason = trail.stops().last().map(|stop| stop.reason());
            matches!(reason, Some(NotRetried::DeadlineTooClose { .. }))
        });
        assert!(timed_out || is_told && stopped, "{error}");
    }
}

/// TMO-12: or the limits above would never have their turn.
#[tokio::test(start_paused = true)]
async fn one_poll_makes_one_attempt() {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut call = task::spawn(again_at_once(calls.clone()).oneshot(get()));
    for polls in 1..50 {
        assert_pending!(call.poll());
        assert!(call.is_woken());
        assert!(
            calls.load(SeqCst) <= polls,
            "{} in {polls} polls",
            calls.load(SeqCst)
        );
    }
    assert!(calls.load(SeqCst) > 5);
}

/// How often a nest of this kind makes an attempt that is refused.
async fn attempts(idempotent: Idempotent, backoff: Backoff, request: Get) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let nest = Nest::builder("orders", endpoints())
        .idempotent(idempotent)
        .backoff(backoff)
        .no_budget()
        .accept_cut_short()
        .build(refusing::<Upload>(&calls))
        .unwrap();
    nest.oneshot(request).await.unwrap_err();
    calls.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_request_says_how_often_it_is_sent() {
    let backoff = || {
        Backoff::builder()
            .attempts(2)
            .jitter(Jitter::None)
            .build()
            .unwrap()
    };
    let idempotent = Idempotent::default;
    let new = Overrides::new;
    assert_eq!(attempts(idempotent(), backoff(), get()).await, 4);
    assert_eq!(attempts(idempotent(), backoff(), with(new())).await, 4);
    let once = new().with_attempts(1).unwrap();
    assert_eq!(attempts(idempotent(), backoff(), with(once)).await, 2);
    let once = once.with_next_endpoint(0).unwrap();
    assert_eq!(attempts(idempotent(), backoff(), with(once)).await, 1);
    let more = new()
        .with_attempts(3)
        .unwrap()
        .with_same_endpoint(1)
        .unwrap()
        .with_next_endpoint(2)
        .unwrap();
    assert_eq!(attempts(idempotent(), backoff(), with(more)).await, 3 * 2 * 3);
    // Where the stack retries nothing as well, and by the rules that it has then.
    let never = idempotent().next_endpoint(0);
    assert_eq!(attempts(never, Backoff::never(), get()).await, 1);
    assert_eq!(attempts(never, Backoff::never(), with(more)).await, 3 * 2 * 3);
}

#[tokio::test(start_paused = true)]
async fn a_request_cannot_make_a_retry_safe_that_is_not() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let client = service_fn(move |_: Upload| {
        counted.fetch_add(1, SeqCst);
        ready(Err::<Response<Full<Bytes>>, BoxError>(
            io::Error::from(io::ErrorKind::ConnectionReset).into(),
        ))
    });
    let nest = Nest::builder("orders", endpoints())
        .no_budget()
        .build(client)
        .unwrap();
    let mut post = with(
        Overrides::new()
            .with_attempts(9)
            .unwrap()
            .with_next_endpoint(9)
            .unwrap(),
    );
    *post.method_mut() = http::Method::POST;
    nest.oneshot(post).await.unwrap_err();
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_nest_heeds_the_limits_of_a_request() {
    let silent = service_fn(|_: Upload| pending::<Result<Response<Full<Bytes>>, BoxError>>());
    let nest = Nest::builder("orders", endpoints()).build(silent).unwrap();
    let cases = [
        (
            Overrides::new().with_execution_limit(ms(200)).unwrap(),
            200,
            FaultKind::ExecutionTimeout,
        ),
        (
            Overrides::new().with_deadline(Instant::now() + ms(300)),
            300,
            FaultKind::ExecutionTimeout,
        ),
        (
            Overrides::new()
                .with_read_limit(ms(50))
                .and_then(|overrides| overrides.with_attempts(1))
                .and_then(|overrides| overrides.with_next_endpoint(1))
                .unwrap(),
            100,
            FaultKind::ReadTimeout(ReadPhase::Head),
        ),
    ];
    for (mut overrides, takes, kind) in cases {
        let start = Instant::now();
        if overrides.deadline().is_some() {
            overrides = overrides.with_deadline(start + ms(takes));
        }
        let error = nest.clone().oneshot(with(overrides)).await.unwrap_err();
        assert_eq!((Fault::of(&*error).kind(), start.elapsed()), (kind, ms(takes)));
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_of_a_nest_tells_of_the_time_that_is_left_by_then() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let client = service_fn(move |request: Upload| {
        let _ = tell.send(request.headers()["x-time-left"].to_str().unwrap().to_owned());
        async {
            sleep(ms(100)).await;
            Err::<Response<Full<Bytes>>, BoxError>(io::Error::from(io::ErrorKind::ConnectionReset).into())
        }
    });
    let header = DeadlineHeader::millis(http::HeaderName::from_static("x-time-left"));
    let client = SendDeadlineLayer::new(header)
        .margin(ms(10))
        .unwrap()
        .layer(client);
    let backoff = Backoff::builder()
        .attempts(2)
        .base(ms(300))
        .jitter(Jitter::None)
        .build()
        .unwrap();
    let nest = Nest::builder("orders", endpoints())
        .backoff(backoff)
        .no_budget()
        .build(client)
        .unwrap();
    nest.oneshot(get()).await.unwrap_err();
    let mut values = Vec::new();
    while let Ok(value) = told.try_recv() {
        values.push(value);
    }
    assert_eq!(values, ["29990", "29890", "29490", "29390"]);
}
