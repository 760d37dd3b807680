//! Bugs that users of other libraries reported of their retries, as scenarios: each test bears the number of its
//! report, and expects what should have happened. Others of them are in `retry.rs` and beside the code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    collections::HashSet,
    future::{Future, poll_fn, ready},
    io::{self, Read, Write},
    net::TcpListener,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::SystemTime,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::{Duration, Instant, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    balance::{LoadBalance, LoadBalanceLayer, RoundRobin},
    breaker::{Breaker, CircuitBreakerLayer, Force},
    call::{
        AttemptOutcome, CallScope, Endpoint, Endpoints, Fault, FaultError, FaultKind, NotRetried, ReadPhase,
        Rejection, RetryBudget, Sent, StatusSet, Trail,
    },
    nest::client::{Client, HttpClient},
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetry, IdempotentRetryLayer, Jitter},
};

type Answer = Response<Full<Bytes>>;

const READ_TIMEOUT: FaultKind = FaultKind::ReadTimeout(ReadPhase::Head);

fn request(method: Method) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri("/orders")
        .body(Full::from("an order"))
        .unwrap()
}

fn refused() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionRefused).into()
}

fn fault(kind: FaultKind, sent: Sent) -> BoxError {
    FaultError::new(Fault::new(kind, sent), "scripted").into()
}

fn answer(status: u16) -> Answer {
    Response::builder().status(status).body(Full::default()).unwrap()
}

fn unavailable(retry_after: &str) -> Answer {
    let mut answer = answer(503);
    let value = http::HeaderValue::from_str(retry_after).unwrap();
    answer.headers_mut().append("retry-after", value);
    answer
}

/// Servers that do as the script says by their names, below a balancer; and the names in the order of the attempts.
#[derive(Clone)]
struct Servers<F> {
    went: Arc<Mutex<Vec<String>>>,
    script: F,
}

impl<F> Servers<F> {
    fn new(script: F) -> Self {
        let went = Arc::default();
        Servers { went, script }
    }

    fn went(&self) -> String {
        std::mem::take(&mut *self.went.lock().unwrap()).concat()
    }
}

impl<F> Service<Request<Full<Bytes>>> for Servers<F>
where
    F: Fn(&str) -> Result<Answer, BoxError>,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let host = request.uri().host().unwrap().to_owned();
        let outcome = (self.script)(&host);
        self.went.lock().unwrap().push(host);
        ready(outcome)
    }
}

/// Ribbon's place in the stack: retries at once over a balancer that goes round.
fn stack<F, A>(
    layer: IdempotentRetryLayer<A>,
    endpoints: &[&str],
    servers: &Servers<F>,
) -> IdempotentRetry<LoadBalance<Servers<F>, RoundRobin>, A>
where
    F: Clone + Fn(&str) -> Result<Answer, BoxError>,
    A: Clone,
{
    let endpoints: Endpoints = endpoints
        .iter()
        .map(|name| Endpoint::new(*name).unwrap())
        .collect();
    layer.layer(
        LoadBalanceLayer::new(endpoints)
            .rule(RoundRobin::new())
            .layer(servers.clone()),
    )
}

fn at_once(same: u32, next: u32) -> Idempotent {
    Idempotent::default().same_endpoint(same).next_endpoint(next)
}

/// Polls a future within a call of this test, with a deadline. The trail of the call comes back too.
async fn within<F: Future>(deadline: Duration, future: F) -> (F::Output, Option<Box<Trail>>) {
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now() + deadline);
    let mut future = pin!(future);
    let output = poll_fn(|cx| scope.enter(|| future.as_mut().poll(cx))).await;
    (output, scope.take_trail())
}

fn stops(trail: &Trail) -> Vec<NotRetried> {
    trail.stops().map(|stop| stop.reason()).collect()
}

fn stops_of(error: &BoxError) -> Vec<NotRetried> {
    stops(Trail::of(&**error).expect("a trail"))
}

/// When each attempt was made, in milliseconds, of servers that answer so, and the last outcome.
async fn times<A>(
    layer: BackoffRetryLayer<A>,
    script: impl Fn() -> Result<Answer, BoxError> + Clone,
) -> (Vec<u128>, Result<Answer, BoxError>)
where
    A: tower_outbound::call::ReadAnswer<Answer> + Clone,
{
    let start = Instant::now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let server = service_fn(move |_: Request<Full<Bytes>>| {
        log.lock().unwrap().push(start.elapsed().as_millis());
        ready(script())
    });
    let outcome = layer.layer(server).oneshot(request(Method::GET)).await;
    let times = std::mem::take(&mut *seen.lock().unwrap());
    (times, outcome)
}

fn feign(max: Duration, attempts: u32) -> BackoffRetryLayer<StatusSet> {
    let backoff = Backoff::feign(Duration::from_millis(100), max, attempts).unwrap();
    BackoffRetryLayer::new(backoff).retry_statuses(StatusSet::TRANSIENT)
}

fn steady(attempts: u32) -> Backoff {
    Backoff::builder()
        .attempts(attempts)
        .jitter(Jitter::None)
        .build()
        .unwrap()
}

// ---- how often, and where

/// RET-01.
#[tokio::test(start_paused = true)]
async fn ret_01_a_second_retry_layer_does_not_repeat_a_post_whose_answer_did_not_come() {
    for (method, expected) in [(Method::POST, 1), (Method::GET, 20)] {
        let servers = Servers::new(|_: &str| Err(fault(READ_TIMEOUT, Sent::Maybe)));
        let inner = stack(
            IdempotentRetryLayer::new(at_once(0, 3)),
            &["a", "b", "c", "d"],
            &servers,
        );
        let outer = BackoffRetryLayer::new(steady(5)).layer(inner);
        let error = outer.oneshot(request(method)).await.unwrap_err();
        assert_eq!(servers.went().len(), expected);
        assert_eq!(Fault::of(&*error).kind(), READ_TIMEOUT);
    }
}

/// RET-02.
#[tokio::test(start_paused = true)]
async fn ret_02_two_more_on_each_of_four_endpoints_are_twelve_attempts_and_a_helper_says_so() {
    let servers = Servers::new(|_: &str| Err(refused()));
    let policy = at_once(2, 3);
    assert_eq!(policy.total_attempts(), 12);
    let service = stack(
        IdempotentRetryLayer::new(policy),
        &["a", "b", "c", "d", "e"],
        &servers,
    );
    let error = service.oneshot(request(Method::GET)).await.unwrap_err();
    assert_eq!(servers.went(), "aaabbbcccddd");
    assert_eq!(stops_of(&error), [NotRetried::AttemptsUsedUp { limit: 12 }]);
}

/// RET-04.
#[tokio::test]
async fn ret_04_fifty_calls_at_once_each_touch_three_endpoints_and_reuse_one_only_when_all_were_tried() {
    for (endpoints, distinct) in [(&["a", "b", "c"][..], 3), (&["a", "b"][..], 2)] {
        let servers = Servers::new(|_: &str| Err(refused()));
        let service = stack(IdempotentRetryLayer::new(at_once(0, 2)), endpoints, &servers);
        let mut calls: Vec<_> = (0..50)
            .map(|_| task::spawn(service.clone().oneshot(request(Method::GET))))
            .collect();
        // Each poll makes one attempt, so between any two of one call are those of all the others.
        let mut errors = Vec::new();
        for round in 0..3 {
            for call in &mut calls {
                match call.poll() {
                    std::task::Poll::Ready(outcome) => errors.push(outcome.unwrap_err()),
                    std::task::Poll::Pending => assert!(round < 2),
                }
            }
        }
        assert_eq!(errors.len(), 50);
        for error in &errors {
            let trail = Trail::of(&**error).unwrap();
            let went: Vec<_> = trail
                .attempts()
                .map(|attempt| attempt.endpoint().unwrap().to_string())
                .collect();
            assert_eq!(went.len(), 3, "the third goes back to one of two: {went:?}");
            assert_eq!(went.iter().collect::<HashSet<_>>().len(), distinct, "{went:?}");
            assert_ne!(went[0], went[1]);
        }
    }
}

/// RET-05.
#[tokio::test]
async fn ret_05_first_attempts_alternate_where_each_call_retries_on_the_same_endpoint() {
    let servers = Servers::new(|_: &str| Ok(answer(500)));
    let statuses = StatusSet::EMPTY.with(StatusCode::INTERNAL_SERVER_ERROR);
    let layer = IdempotentRetryLayer::new(at_once(1, 0)).retry_statuses(statuses);
    let service = stack(layer, &["a", "b"], &servers);
    let mut went = String::new();
    for n in 0..10 {
        let answer = service.clone().oneshot(request(Method::GET)).await.unwrap();
        assert_eq!(answer.status(), 500);
        let call = servers.went();
        assert_eq!(call, if n % 2 == 0 { "aa" } else { "bb" });
        went += &call;
    }
    assert_eq!((went.len(), went.matches('a').count()), (20, 10));
}

/// RET-07.
#[tokio::test]
async fn ret_07_the_second_endpoint_gets_as_many_attempts_as_the_first() {
    let servers = Servers::new(|_: &str| Err(refused()));
    let service = stack(IdempotentRetryLayer::new(at_once(3, 1)), &["a", "b"], &servers);
    let _ = service.oneshot(request(Method::GET)).await;
    assert_eq!(servers.went(), "aaaabbbb");
}

/// RET-08, for whose open question the first invariant decides: a POST that was answered may have been carried out.
#[tokio::test]
async fn ret_08_a_throttled_post_is_returned_as_it_is_and_a_get_leaves_the_endpoint_alone() {
    for (method, status, expected) in [(Method::POST, 503, "a"), (Method::GET, 200, "ab")] {
        let servers = Servers::new(|host: &str| {
            Ok(if host == "a" {
                unavailable("5")
            } else {
                answer(200)
            })
        });
        let layer = IdempotentRetryLayer::new(at_once(2, 1)).retry_statuses(StatusSet::TRANSIENT);
        let service = stack(layer, &["a", "b"], &servers);
        let (outcome, trail) = within(Duration::from_secs(60), service.oneshot(request(method))).await;
        assert_eq!(outcome.unwrap().status(), status);
        assert_eq!(servers.went(), expected);
        let stops = stops(&trail.unwrap());
        assert_eq!(stops.contains(&NotRetried::MayHaveBeenSent), status == 503);
    }
}

/// RET-09.
#[tokio::test]
async fn ret_09_one_good_endpoint_of_three_serves_all_calls_and_none_is_tried_twice_in_a_call() {
    let servers = Servers::new(|host: &str| {
        if host == "c" {
            Ok(answer(200))
        } else {
            Err(refused())
        }
    });
    let service = stack(
        IdempotentRetryLayer::new(at_once(0, 2)),
        &["a", "b", "c"],
        &servers,
    );
    let mut starts = HashSet::new();
    for n in 0..100 {
        let answer = service.clone().oneshot(request(Method::GET)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let went = servers.went();
        assert!(went.len() <= 3, "{went}");
        assert_eq!(went.chars().collect::<HashSet<_>>().len(), went.len(), "{went}");
        starts.insert(went.chars().next());
        // Somebody else's turns, so that the rotation begins at each offset.
        for _ in 0..n % 3 {
            let _ = service.get_ref().clone().oneshot(request(Method::GET)).await;
        }
        servers.went();
    }
    assert_eq!(starts.len(), 3);
}

// ---- what may have been sent

/// Reads one request with its body off a connection. `None`: it ended before.
fn read_request(stream: &mut std::net::TcpStream) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let seen = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse()
                    .ok()
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(seen);
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
}

fn read_head(stream: &mut std::net::TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

fn client() -> HttpClient<Full<Bytes>> {
    Client::builder().build_http().unwrap()
}

fn post_to(address: std::net::SocketAddr) -> Request<Full<Bytes>> {
    Request::post(format!("http://{address}/payments"))
        .body(Full::from("a payment"))
        .unwrap()
}

/// RET-14, the first case.
#[tokio::test]
async fn ret_14_a_post_that_was_read_before_the_connection_closed_is_sent_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let posts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&posts);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if read_request(&mut stream.unwrap()).is_some() {
                seen.fetch_add(1, SeqCst);
            }
        }
    });
    let inner = IdempotentRetryLayer::new(at_once(1, 1)).layer(client());
    let service = BackoffRetryLayer::new(steady(3)).layer(inner);
    let error = service.oneshot(post_to(address)).await.unwrap_err();
    assert_eq!(Fault::of(&*error), Fault::new(FaultKind::Closed, Sent::Maybe));
    assert_eq!(posts.load(SeqCst), 1);
    assert_eq!(
        stops_of(&error),
        [NotRetried::MayHaveBeenSent; 2],
        "by both layers"
    );
}

/// RET-14, the second case.
#[tokio::test]
async fn ret_14_a_post_on_a_pooled_connection_that_had_closed_is_sent_again_and_arrives_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (close, closing) = mpsc::channel::<()>();
    let (closed, is_closed) = mpsc::channel::<()>();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let (mut first, _) = listener.accept().unwrap();
        // Its body is left unread, so that the end of the connection is a reset, onto which nothing can be written.
        read_head(&mut first);
        first.write_all(reply).unwrap();
        closing.recv().unwrap();
        drop(first);
        closed.send(()).unwrap();
        let (mut second, _) = listener.accept().unwrap();
        seen.lock().unwrap().extend(read_request(&mut second));
        second.write_all(reply).unwrap();
        // The connection stays open for as long as the client likes.
        read_request(&mut second);
    });
    let service = IdempotentRetryLayer::new(at_once(0, 1)).layer(client());
    let first = service.clone().oneshot(post_to(address)).await.unwrap();
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "ok");
    // The connection goes back to the pool. Then it closes, and the client, which is not polled meanwhile, does not
    // see it before it has taken the connection out again.
    sleep(Duration::from_millis(50)).await;
    close.send(()).unwrap();
    is_closed.recv().unwrap();
    let (answer, trail) = within(Duration::from_secs(10), service.oneshot(post_to(address))).await;
    assert_eq!(answer.unwrap().status(), 200);
    let trail = trail.expect("an attempt has failed");
    assert_eq!(trail.len(), 2, "{trail}");
    let first = trail.attempts().next().unwrap().outcome();
    assert!(
        matches!(first, AttemptOutcome::Failed(fault) if fault.sent() == Sent::No),
        "{trail}"
    );
    assert_eq!(requests.lock().unwrap().len(), 1);
}

/// RET-15.
#[tokio::test(start_paused = true)]
async fn ret_15_a_key_makes_a_post_repeatable_and_is_neither_invented_nor_changed() {
    for (key, expected) in [(Some("k-1"), 2), (None, 1)] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let server = service_fn(move |request: Request<Full<Bytes>>| {
            let mut log = log.lock().unwrap();
            let key = request.headers().get("idempotency-key").cloned();
            log.push((key, request.into_body()));
            ready(if log.len() == 1 {
                Err(fault(READ_TIMEOUT, Sent::Maybe))
            } else {
                Ok(answer(200))
            })
        });
        let mut post = request(Method::POST);
        if let Some(key) = key {
            post.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        let service = IdempotentRetryLayer::new(at_once(0, 1)).layer(server);
        assert_eq!(service.oneshot(post).await.is_ok(), key.is_some());
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen.len(), expected);
        for (sent_key, body) in seen {
            assert_eq!(sent_key.as_ref().map(|key| key.to_str().unwrap()), key);
            assert_eq!(body.collect().await.unwrap().to_bytes(), "an order");
        }
    }
}

// ---- the budget

fn fixed_budget(tokens: u32) -> RetryBudget {
    let budget = RetryBudget::builder().percent(0.0).floor(0);
    budget.burst(tokens).initial(tokens).build().unwrap()
}

/// RET-16.
#[tokio::test(start_paused = true)]
async fn ret_16_ten_tokens_are_ten_retries_however_the_service_is_cloned_and_boxed() {
    let servers = Servers::new(|_: &str| Err(refused()));
    let budget = fixed_budget(10);
    let layer = IdempotentRetryLayer::new(at_once(0, 4)).budget(budget.clone());
    let service = stack(layer, &["a"], &servers);
    let boxed = tower::util::BoxCloneService::new(service);
    for _ in 0..20 {
        let error = boxed.clone().oneshot(request(Method::GET)).await.unwrap_err();
        assert!(!stops_of(&error).is_empty());
    }
    assert_eq!(servers.went().len(), 30);
    assert_eq!((budget.granted(), budget.available()), (10, 0));
}

/// RET-20.
#[tokio::test(start_paused = true)]
async fn ret_20_a_retry_that_the_budget_refuses_ends_the_call_at_once_with_its_own_error() {
    let start = Instant::now();
    let server = service_fn(|_: Request<Full<Bytes>>| async {
        sleep(Duration::from_millis(4)).await;
        Err::<Answer, _>(refused())
    });
    let budget = fixed_budget(1);
    budget.withdraw().unwrap().spend();
    let service = BackoffRetryLayer::new(steady(5)).budget(budget).layer(server);
    let (outcome, trail) = within(Duration::from_secs(15), service.oneshot(request(Method::GET))).await;
    assert_eq!(start.elapsed().as_millis(), 4);
    assert_eq!(
        Fault::of(&*outcome.unwrap_err()).kind(),
        FaultKind::ConnectRefused
    );
    let trail = trail.unwrap();
    assert_eq!((trail.len(), stops(&trail)), (1, vec![NotRetried::BudgetSpent]));
}

/// RET-21.
#[tokio::test(start_paused = true)]
async fn ret_21_an_open_circuit_below_is_not_retried() {
    let start = Instant::now();
    let servers = Servers::new(|_: &str| Ok(answer(200)));
    let breaker = Breaker::builder("orders").build().unwrap();
    breaker.force(Force::Open);
    let inner = CircuitBreakerLayer::new(breaker.clone()).layer(servers.clone());
    let backoff = Backoff::feign(Duration::from_millis(100), Duration::from_secs(1), 5).unwrap();
    for policy in [steady(5), backoff] {
        let service = BackoffRetryLayer::new(policy).layer(inner.clone());
        let error = service.oneshot(request(Method::GET)).await.unwrap_err();
        assert_eq!(Fault::of(&*error).kind(), FaultKind::Rejected(Rejection::Breaker));
        assert_eq!(stops_of(&error), [NotRetried::Rejected]);
    }
    assert_eq!((servers.went().len(), start.elapsed()), (0, Duration::ZERO));
}

// ---- pauses

/// BKO-01.
#[tokio::test(start_paused = true)]
async fn bko_01_a_wait_of_three_seconds_is_three_seconds_or_the_longest_pause() {
    for (max, expected) in [(10, [0, 3000, 6000]), (1, [0, 1000, 2000])] {
        let (times, outcome) = times(feign(Duration::from_secs(max), 3), || Ok(unavailable("3"))).await;
        assert_eq!(times, expected);
        assert_eq!(outcome.unwrap().status(), 503);
    }
}

/// BKO-02.
#[tokio::test(start_paused = true)]
async fn bko_02_seconds_are_understood_in_all_their_forms_and_garbage_is_passed_over() {
    const USUAL: u128 = 100;
    for (value, expected) in [
        ("2", 2000),
        ("2.0", 2000),
        ("2.", 2000),
        (" 2 ", 2000),
        ("2.5", 3000),
        ("299.997", 300_000),
        ("+2", USUAL),
        ("-1", USUAL),
        ("abc", USUAL),
        ("", USUAL),
    ] {
        let backoff = Backoff::builder()
            .jitter(Jitter::None)
            .max_retry_after(Duration::from_secs(300));
        let layer =
            || BackoffRetryLayer::new(backoff.clone().build().unwrap()).retry_statuses(StatusSet::TRANSIENT);
        let (seen, _) = times(layer(), || Ok(unavailable(value))).await;
        assert_eq!(seen, [0, expected], "{value:?}");
        let twice = || {
            let mut answer = unavailable(value);
            answer.headers_mut().append("retry-after", "7".parse().unwrap());
            Ok(answer)
        };
        let (seen, _) = times(layer(), twice).await;
        assert_eq!(seen, [0, expected], "of two lines the first counts: {value:?}");
    }
}

/// BKO-04.
#[tokio::test(start_paused = true)]
async fn bko_04_a_wait_of_many_digits_is_the_longest_pause_or_too_long() {
    for value in [
        "99999999999999999999",
        "18446744073709551615",
        "18446744073709551615000",
    ] {
        let (seen, _) = times(feign(Duration::from_secs(1), 2), || Ok(unavailable(value))).await;
        assert_eq!(seen, [0, 1000], "{value}");
        let layer = BackoffRetryLayer::new(steady(2)).retry_statuses(StatusSet::TRANSIENT);
        let call = times(layer, || Ok(unavailable(value)));
        let ((seen, outcome), trail) = within(Duration::from_secs(3600), call).await;
        assert_eq!(
            (seen, outcome.unwrap().status().as_u16()),
            (vec![0], 503),
            "{value}"
        );
        assert!(
            matches!(stops(&trail.unwrap())[..], [NotRetried::RetryAfterTooLong { .. }]),
            "{value}"
        );
    }
}

/// BKO-07.
#[tokio::test(start_paused = true)]
async fn bko_07_a_date_that_has_passed_means_at_once_and_each_attempt_counts_and_yields() {
    #[expect(clippy::disallowed_methods, reason = "a date of HTTP is wall time")]
    let past = SystemTime::now() - Duration::from_secs(60);
    for value in [httpdate::fmt_http_date(past), "0".to_owned()] {
        let start = Instant::now();
        let attempts = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&attempts);
        let server = service_fn(move |_: Request<Full<Bytes>>| {
            seen.fetch_add(1, SeqCst);
            ready(Ok::<_, BoxError>(unavailable(&value)))
        });
        let service = feign(Duration::from_secs(1), 5).layer(server);
        let mut call = task::spawn(service.oneshot(request(Method::GET)));
        for n in 1..5 {
            assert_pending!(call.poll());
            assert_eq!(attempts.load(SeqCst), n, "one poll, one attempt");
            assert!(call.is_woken());
        }
        assert_eq!(assert_ready!(call.poll()).unwrap().status(), 503);
        assert_eq!((attempts.load(SeqCst), start.elapsed()), (5, Duration::ZERO));
    }
}

/// BKO-08.
#[test]
fn bko_08_no_pause_is_zero_nor_above_the_longest_nor_shorter_than_the_one_before() {
    for (base, max) in [(1, 1), (1, 1000), (100, 1000), (100, 315_360_000_000)] {
        let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
        let builder = || Backoff::builder().base(base).max(max);
        for backoff in [
            builder().build().unwrap(),
            builder().factor(1.0).build().unwrap(),
            builder().factor(1e300).build().unwrap(),
            builder().jitter(Jitter::Equal).factor(1.01).build().unwrap(),
            builder().jitter(Jitter::Decorrelated).build().unwrap(),
            Backoff::feign(base, max, 5).unwrap(),
        ] {
            let mut before = Duration::ZERO;
            for n in (1..=5000).chain([u32::MAX]) {
                let pause = backoff.pause(n);
                assert!(
                    pause > Duration::ZERO && pause <= max,
                    "{n}: {pause:?} {backoff:?}"
                );
                assert!(pause >= before, "{n}: {pause:?} {backoff:?}");
                before = pause;
            }
            assert_eq!(before, if backoff.pause(2) == base { base } else { max });
        }
    }
}

/// BKO-09. That jitter is larger than its pause cannot be said at all.
#[tokio::test(start_paused = true)]
async fn bko_09_factors_that_cannot_be_are_refused_by_name_and_the_others_keep_every_pause_in_bounds() {
    let max = Duration::from_millis(400);
    let builder = |factor| Backoff::builder().max(max).factor(factor);
    for factor in [-0.1, 0.0, f64::NAN, f64::INFINITY] {
        let error = builder(factor).build().unwrap_err();
        assert_eq!(
            (error.layer(), error.field()),
            ("BackoffRetry", "factor"),
            "{factor}"
        );
    }
    for factor in [1.0, 1.5] {
        for jitter in [Jitter::None, Jitter::Full, Jitter::Equal] {
            let backoff = builder(factor)
                .attempts(10_001)
                .jitter(jitter)
                .seed(9)
                .build()
                .unwrap();
            let (times, _) = times(BackoffRetryLayer::new(backoff), || Err(refused())).await;
            assert_eq!(times.len(), 10_001);
            // A pause ends with the millisecond that it ends in.
            let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(longest <= max.as_millis() + 1, "{longest} {jitter:?}");
        }
    }
}

/// BKO-11.
#[tokio::test(start_paused = true)]
async fn bko_11_a_wait_that_the_deadline_leaves_no_time_for_is_not_begun() {
    let start = Instant::now();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let server = service_fn(move |_: Request<Full<Bytes>>| {
        seen.fetch_add(1, SeqCst);
        async {
            sleep(Duration::from_millis(200)).await;
            Ok::<_, BoxError>(unavailable("60"))
        }
    });
    let service = feign(Duration::from_secs(300), 5).layer(server);
    let (outcome, trail) = within(Duration::from_secs(10), service.oneshot(request(Method::GET))).await;
    assert_eq!(outcome.unwrap().status(), 503);
    assert_eq!((start.elapsed().as_millis(), calls.load(SeqCst)), (200, 1));
    let reason = NotRetried::DeadlineTooClose {
        pause: Duration::from_secs(60),
        left: Duration::from_millis(9_800),
    };
    assert_eq!(stops(&trail.unwrap()), [reason]);
}
