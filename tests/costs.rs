//! What a call costs when nothing goes wrong: allocations, counted, and bytes that move. Each number is exact: one
//! that goes down is to be written down here as well.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "sizes are for reading, too")]

use std::{
    borrow::Cow,
    convert::Infallible,
    future::Future,
    mem::size_of,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body::Body;
use http_body_util::{Empty, Full};
use tower::{Layer, Service};
use tower_outbound::{
    Nest,
    balance::{
        BalanceServices, ConsistentHash, Ewma, LeastLoaded, LoadBalance, LoadBalanceLayer, Random,
        RoundRobin, Rule, WeightedRoundRobin,
    },
    breaker::{
        Breaker, Breakers, CircuitBreaker, CircuitBreakerLayer, EndpointBreaker, EndpointBreakerLayer,
        EndpointBreakers, Force, HystrixRelease, KeyedBreaker, KeyedBreakerLayer, by_authority,
    },
    bulkhead::{Bulkhead, BulkheadLayer, BulkheadService},
    call::{
        Affinity, BoxError, ByFault, ByTrailers, DeadlineHeader, Endpoints, ErrorRef, HostHeader,
        OutboundRequest, Overrides, PerRequest, RepeatBody, ReplayBody, Semantics, Services,
    },
    classify::{
        GrpcErrorClassifier, GrpcErrorClassifierLayer, StatusErrorClassifier, StatusErrorClassifierLayer,
        StatusPolicy,
    },
    collect::{CollectBody, CollectBodyLayer},
    fallback::{Fallback, FallbackLayer},
    nest::{
        NestBuilder,
        client::NotSentLayer,
        spring::{self, SpringConfig},
    },
    observe::{RecordTrail, RecordTrailLayer},
    retry::{Backoff, BackoffRetry, BackoffRetryLayer, Idempotent, IdempotentRetry, IdempotentRetryLayer},
    timeout::{
        ConnectTimeout, ConnectTimeoutLayer, ExecutionTimeout, ExecutionTimeoutLayer, ReadTimeout,
        ReadTimeoutLayer, ReceiveDeadline, ReceiveDeadlineLayer, SendDeadline, SendDeadlineLayer,
    },
};

type Get = Request<Full<Bytes>>;

const LIMIT: Duration = Duration::from_secs(1_000);

/// A service that allocates nothing: its answer has come after that many polls.
#[derive(Clone, Copy, Debug)]
struct Server {
    pending: u32,
    status: u16,
}

const AT_ONCE: Server = Server {
    pending: 0,
    status: 200,
};
const LATER: Server = Server {
    pending: 1,
    status: 200,
};

impl<Req> Service<Req> for Server {
    type Response = Response<Empty<Bytes>>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Req) -> Answer {
        Answer(*self)
    }
}

struct Answer(Server);

impl Future for Answer {
    type Output = Result<Response<Empty<Bytes>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if self.0.pending > 0 {
            self.0.pending -= 1;
            return Poll::Pending;
        }
        let mut response = Response::new(Empty::new());
        *response.status_mut() = self.0.status.try_into().unwrap();
        Poll::Ready(Ok(response))
    }
}

const FAILING: Server = Server {
    pending: 0,
    status: 500,
};

/// A request of somebody's own, that is copied without an allocation.
#[derive(Clone, Copy, Debug)]
struct Ping;

impl OutboundRequest for Ping {
    type Kept = Ping;

    fn semantics(&self) -> Semantics {
        Semantics::READ
    }

    fn keep(&self) -> Option<Ping> {
        Some(Ping)
    }

    fn restore(_: &Ping) -> Option<Ping> {
        Some(Ping)
    }
}

/// A request with that many headers that were made at run time, as those that come in are.
fn get(headers: usize) -> Get {
    let mut request = Request::get("http://orders/7").body(Full::default()).unwrap();
    for n in 0..headers {
        let name: http::HeaderName = format!("x-own-{n}").parse().unwrap();
        let value = HeaderValue::from_str(&format!("value {n}")).unwrap();
        request.headers_mut().insert(name, value);
    }
    request
}

/// Allocations in one call, from readiness to the head of the answer, polled by hand on this thread. The request is
/// made before, and the answer is dropped afterwards. The calls before it have filled whatever is kept for long.
fn allocations<S, Req, B>(mut service: S, request: impl Fn() -> Req) -> u64
where
    S: Service<Req, Response = Response<B>, Error: Into<BoxError>>,
    B: Body,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let mut counts = Vec::new();
    for _ in 0..8 {
        let request = request();
        let mut outcome = None;
        let counted = allocation_counter::measure(|| {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
            let mut call = pin!(service.call(request));
            for _ in 0..4 {
                if let Poll::Ready(answer) = call.as_mut().poll(&mut cx) {
                    outcome = Some(answer);
                    break;
                }
            }
        });
        assert!(outcome.is_some(), "it has not ended");
        counts.push(counted.count_total);
    }
    let last = counts[counts.len() - 1];
    assert!(
        counts[4..].iter().all(|count| *count == last),
        "not the same each time: {counts:?}"
    );
    last
}

/// Allocations while a body is waited for and read.
fn allocations_of_a_body() -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = pin!(read(Bodies).call(get(0)));
    let Poll::Ready(Ok(response)) = call.as_mut().poll(&mut cx) else {
        panic!("no answer");
    };
    let mut body = pin!(response.into_body());
    let counted = allocation_counter::measure(|| {
        for _gap in 0..3 {
            assert!(body.as_mut().poll_frame(&mut cx).is_pending());
            assert!(body.as_mut().poll_frame(&mut cx).is_pending());
            assert!(body.as_mut().poll_frame(&mut cx).is_ready());
        }
    });
    counted.count_total
}

/// What it takes more than the same answer without a layer.
fn allocations_of_a_late_verdict() -> u64 {
    let server = || {
        tower::service_fn(|_: Get| {
            let mut answer = Response::new(LateBody(0));
            let grpc = HeaderValue::from_static("application/grpc");
            answer.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
            std::future::ready(Ok::<_, BoxError>(answer))
        })
    };
    let breaker = CircuitBreakerLayer::new(Breaker::new("orders").unwrap()).classify(ByTrailers(ByFault));
    let balance = LoadBalanceLayer::new(endpoints()).classify(ByTrailers(ByFault));
    let stack = breaker.layer(balance.layer(grpc(server())));
    allocations(stack, || get(8)) - allocations(server(), || get(8))
}

/// Answers at once, with a body that lets every frame be waited for, for two polls.
struct Bodies;

struct LateBody(u32);

impl<Req> Service<Req> for Bodies {
    type Response = Response<LateBody>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<LateBody>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Req) -> Self::Future {
        std::future::ready(Ok(Response::new(LateBody(0))))
    }
}

impl Body for LateBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0 += 1;
        if self.0 % 3 == 0 {
            Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::new()))))
        } else {
            Poll::Pending
        }
    }
}

fn connect<S>(inner: S) -> ConnectTimeout<S> {
    ConnectTimeoutLayer::new(LIMIT).unwrap().layer(inner)
}

fn read<S>(inner: S) -> ReadTimeout<S> {
    ReadTimeoutLayer::new(LIMIT).unwrap().layer(inner)
}

fn execution<S>(inner: S) -> ExecutionTimeout<S> {
    ExecutionTimeoutLayer::new(LIMIT).unwrap().layer(inner)
}

fn execution_per_request<S>(inner: S) -> ExecutionTimeout<S, PerRequest> {
    ExecutionTimeoutLayer::new(LIMIT)
        .unwrap()
        .per_request()
        .layer(inner)
}

fn send<S>(inner: S) -> SendDeadline<S> {
    SendDeadlineLayer::new(DeadlineHeader::GRPC).layer(inner)
}

fn receive<S>(inner: S) -> ReceiveDeadline<S> {
    ReceiveDeadlineLayer::new(DeadlineHeader::GRPC).layer(inner)
}

/// A request that wants something otherwise.
fn impatient() -> Get {
    let mut request = get(0);
    let overrides = Overrides::new().with_read_limit(LIMIT).unwrap();
    let overrides = overrides.with_execution_limit(LIMIT).unwrap();
    request.extensions_mut().insert(overrides);
    request
}

fn told(mut request: Get) -> Get {
    request
        .headers_mut()
        .insert("grpc-timeout", HeaderValue::from_static("1H"));
    request
}

fn statuses<S>(inner: S) -> StatusErrorClassifier<S> {
    StatusErrorClassifierLayer::new(StatusPolicy::default()).layer(inner)
}

fn grpc<S>(inner: S) -> GrpcErrorClassifier<S> {
    GrpcErrorClassifierLayer::default().layer(inner)
}

fn backoff<S>(inner: S) -> BackoffRetry<S> {
    BackoffRetryLayer::new(Backoff::default()).layer(inner)
}

fn idempotent<S>(inner: S) -> IdempotentRetry<S> {
    IdempotentRetryLayer::new(Idempotent::default()).layer(inner)
}

fn endpoints() -> Endpoints {
    Endpoints::from_list(["a:1", "b:1", "c:1"]).unwrap()
}

fn balance<S>(inner: S) -> LoadBalance<S> {
    LoadBalanceLayer::new(endpoints()).layer(inner)
}

fn balance_services<S: Clone + Send + Sync + 'static>(service: S) -> BalanceServices<S> {
    let services = ["a:1", "b:1", "c:1"].map(|address| (address, service.clone()));
    BalanceServices::new(Services::from_list(services).unwrap())
}

fn breaker<S>(inner: S) -> CircuitBreaker<S> {
    CircuitBreakerLayer::new(Breaker::new("orders").unwrap()).layer(inner)
}

fn by_all_rules<S>(inner: S) -> CircuitBreaker<S> {
    let breaker = Breaker::builder("orders")
        .consecutive_failures(5)
        .slow_calls(LIMIT, 50)
        .last_outcomes(100)
        .sleep_growth(2.0, LIMIT)
        .probes(5)
        .cancelled_after(LIMIT)
        .build()
        .unwrap();
    CircuitBreakerLayer::new(breaker).layer(inner)
}

type Host = fn(&Get) -> Option<Cow<'_, str>>;

/// By host; the host is known already.
fn by_host<S>(inner: S) -> KeyedBreaker<S, str, Host> {
    let hosts: Breakers<str> = Breakers::new(Breaker::builder("hosts")).unwrap();
    hosts.admit("orders").unwrap();
    KeyedBreakerLayer::new(hosts, by_authority as Host).layer(inner)
}

fn by_endpoint<S>(inner: S) -> EndpointBreaker<S> {
    let endpoints = Endpoints::from_list(["orders", "b:1"]).unwrap();
    let breakers = EndpointBreakers::new(endpoints, Breaker::builder("orders")).unwrap();
    EndpointBreakerLayer::new(breakers).layer(inner)
}

fn bulkhead<S>(inner: S) -> BulkheadService<S> {
    BulkheadLayer::new(Bulkhead::new("orders").unwrap()).layer(inner)
}

type Instead = fn(ErrorRef<'_>) -> std::future::Ready<Result<Response<Empty<Bytes>>, BoxError>>;

fn fallback<S>(inner: S) -> Fallback<S, Instead> {
    FallbackLayer::of((|_| std::future::ready(Ok(Response::new(Empty::new())))) as Instead).layer(inner)
}

fn collect<S>(inner: S) -> CollectBody<S> {
    CollectBodyLayer::new().layer(inner)
}

fn as_hystrix(release: HystrixRelease) -> CircuitBreaker<Server> {
    let breaker = Breaker::builder("orders").hystrix(release).build().unwrap();
    CircuitBreakerLayer::new(breaker).layer(AT_ONCE)
}

fn trail<S>(inner: S) -> RecordTrail<S> {
    RecordTrailLayer::new().layer(inner)
}

fn nest() -> NestBuilder {
    Nest::builder("orders", endpoints())
}

/// The target of a connector, made without an allocation.
fn spring() -> SpringConfig {
    spring::from_pairs("orders", [("feign.hystrix.enabled", "true")]).unwrap()
}

fn uri() -> Uri {
    Uri::from_static("http://orders:80")
}

#[test]
fn a_layer_allocates_nothing_over_a_service_that_answers_at_once() {
    let counted = [
        ("no layer", allocations(AT_ONCE, || get(8))),
        ("ConnectTimeout", allocations(connect(AT_ONCE), uri)),
        ("ReadTimeout", allocations(read(AT_ONCE), || get(8))),
        ("ExecutionTimeout", allocations(execution(AT_ONCE), || get(8))),
        (
            "ExecutionTimeout over ReadTimeout, with limits of the request",
            allocations(execution_per_request(read(AT_ONCE)), impatient),
        ),
        (
            "SendDeadline without a deadline",
            allocations(send(AT_ONCE), || get(8)),
        ),
        ("ReceiveDeadline", allocations(receive(AT_ONCE), || get(8))),
        ("StatusErrorClassifier", allocations(statuses(AT_ONCE), || get(8))),
        ("GrpcErrorClassifier", allocations(grpc(AT_ONCE), || get(8))),
        ("LoadBalance", allocations(balance(AT_ONCE), || get(8))),
        (
            "BalanceServices",
            allocations(balance_services(AT_ONCE), || get(8)),
        ),
        (
            "BalanceServices of a type of one's own",
            allocations(balance_services(AT_ONCE).any_request(), || Ping),
        ),
        ("CircuitBreaker", allocations(breaker(AT_ONCE), || get(8))),
        ("Bulkhead", allocations(bulkhead(AT_ONCE), || get(8))),
        ("Fallback", allocations(fallback(AT_ONCE), || get(8))),
        ("CollectBody", allocations(collect(AT_ONCE), || get(8))),
        (
            "CircuitBreaker as Hystrix 1.5.12",
            allocations(as_hystrix(HystrixRelease::V1_5_12), || get(8)),
        ),
        (
            "CircuitBreaker as Hystrix 1.5.18",
            allocations(as_hystrix(HystrixRelease::V1_5_18), || get(8)),
        ),
        (
            "CircuitBreaker with all its rules",
            allocations(by_all_rules(AT_ONCE), || get(8)),
        ),
        ("KeyedBreaker", allocations(by_host(AT_ONCE), || get(8))),
        ("EndpointBreaker", allocations(by_endpoint(AT_ONCE), || get(8))),
        ("RecordTrail", allocations(trail(AT_ONCE), || get(8))),
        ("NotSent", allocations(NotSentLayer.layer(AT_ONCE), || get(8))),
        (
            "BackoffRetry of a type of one's own",
            allocations(backoff(AT_ONCE), || Ping),
        ),
        (
            "IdempotentRetry of a type of one's own",
            allocations(idempotent(AT_ONCE), || Ping),
        ),
        (
            "BackoffRetry without a header",
            allocations(backoff(AT_ONCE), || get(0)),
        ),
        (
            "IdempotentRetry without a header",
            allocations(idempotent(AT_ONCE), || get(0)),
        ),
    ];
    assert_eq!(counted.map(|(name, _)| (name, 0)), counted);
}

#[test]
fn a_layer_that_can_retry_keeps_one_flat_copy_however_many_headers_there_are() {
    for headers in [1, 8, 32] {
        let counted = [
            allocations(backoff(AT_ONCE), || get(headers)),
            allocations(idempotent(AT_ONCE), || get(headers)),
        ];
        assert_eq!(counted, [1, 1], "{headers} headers");
    }
    // Where no retry is possible there is no copy.
    let post = || {
        let mut request = get(8);
        *request.method_mut() = http::Method::POST;
        request
    };
    let never = BackoffRetryLayer::new(Backoff::never()).layer(AT_ONCE);
    assert_eq!(allocations(never, || get(8)), 0);
    let gets_alone = IdempotentRetryLayer::new(Idempotent::ribbon_spring_retry()).layer(AT_ONCE);
    assert_eq!(allocations(gets_alone, post), 0);
}

#[test]
fn a_nest_costs_what_its_layers_cost() {
    for (headers, copies) in [(0, 0), (8, 2), (32, 2)] {
        let get = || get(headers);
        let alone = [
            allocations(trail(AT_ONCE), get),
            allocations(breaker(AT_ONCE), get),
            allocations(execution(AT_ONCE), get),
            allocations(backoff(AT_ONCE), get),
            allocations(statuses(AT_ONCE), get),
            allocations(idempotent(AT_ONCE), get),
            allocations(balance(AT_ONCE), get),
            allocations(read(AT_ONCE), get),
        ];
        let together = allocations(nest().build(AT_ONCE).unwrap(), get);
        assert_eq!(
            (alone.iter().sum(), together),
            (copies, copies),
            "{headers} headers"
        );
    }
}

/// The copy that a retry at once needs, and no more: Spring's retryer makes none.
#[test]
fn a_nest_of_spring_costs_what_its_layers_cost() {
    for (headers, copies) in [(0, 0), (8, 1), (32, 1)] {
        let nest = spring().nest(endpoints()).build(AT_ONCE).unwrap();
        assert_eq!(allocations(nest, || get(headers)), copies, "{headers} headers");
    }
    let config = spring::from_pairs("orders", [("x", "y")]).unwrap();
    let limits = config.limits();
    let none = config
        .request_options(limits)
        .nest(endpoints())
        .build(AT_ONCE)
        .unwrap();
    assert_eq!(
        allocations(none, || get(8)),
        0,
        "nothing is sent again, so nothing is kept"
    );
}

/// The first calls make what is kept of a set until it changes.
#[test]
fn a_pick_out_of_ten_thousand_allocates_nothing_whatever_the_rule() {
    let set = Endpoints::from_list((0..10_000).map(|n| format!("10.0.{}.{}", n / 250, n % 250))).unwrap();
    fn of<R: Rule>(set: &Endpoints, rule: R) -> u64 {
        let layer = LoadBalanceLayer::new(set.clone()).rule(rule);
        // The first look at an endpoint makes its counters, once.
        assert_eq!(layer.handle().endpoints().len(), 10_000);
        allocations(layer.layer(AT_ONCE), || get(8))
    }
    let of_three = Ewma::builder().choices(3).build().unwrap();
    let whole_set = Ewma::builder().whole_set().build().unwrap();
    let by_path = ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())));
    let counted = [
        ("RoundRobin", of(&set, RoundRobin::new())),
        ("Random", of(&set, Random::new())),
        ("WeightedRoundRobin", of(&set, WeightedRoundRobin::new())),
        ("LeastLoaded", of(&set, LeastLoaded::new())),
        ("Ewma", of(&set, Ewma::new())),
        ("Ewma of three", of(&set, of_three)),
        ("Ewma of the whole set", of(&set, whole_set)),
        ("ConsistentHash", of(&set, by_path)),
    ];
    assert_eq!(counted.map(|(name, _)| (name, 0)), counted);
}

/// A timer lies in the future; tokio has made room for it with the runtime.
#[test]
fn a_call_that_has_to_be_waited_for_allocates_nothing_more() {
    let counted = [
        ("ReadTimeout", allocations(read(LATER), || get(8))),
        ("ExecutionTimeout", allocations(execution(LATER), || get(8))),
        ("ReceiveDeadline", allocations(receive(LATER), || told(get(8)))),
        ("StatusErrorClassifier", allocations(statuses(LATER), || get(8))),
        ("GrpcErrorClassifier", allocations(grpc(LATER), || get(8))),
        ("LoadBalance", allocations(balance(LATER), || get(8))),
        ("CircuitBreaker", allocations(breaker(LATER), || get(8))),
        ("Bulkhead", allocations(bulkhead(LATER), || get(8))),
        ("Fallback", allocations(fallback(LATER), || get(8))),
        ("CollectBody", allocations(collect(LATER), || get(8))),
        ("RecordTrail", allocations(trail(LATER), || get(8))),
        ("BackoffRetry", allocations(backoff(LATER), || Ping)),
        ("IdempotentRetry", allocations(idempotent(LATER), || Ping)),
        ("the nest", allocations(nest().build(LATER).unwrap(), || get(0))),
    ];
    assert_eq!(counted.map(|(name, _)| (name, 0)), counted);
    // A connection has its timer in a box.
    assert_eq!(allocations(connect(LATER), uri), 1);
}

#[test]
fn a_rejection_makes_one_box() {
    let service = breaker(AT_ONCE);
    service.breaker().force(Force::Open);
    assert_eq!(allocations(service, || get(8)), 1);
    let service = bulkhead(AT_ONCE);
    let _slots: Vec<_> = std::iter::from_fn(|| service.bulkhead().enter().ok()).collect();
    assert_eq!(allocations(service, || get(8)), 1);
    let nest = nest().build(AT_ONCE).unwrap();
    nest.handle().breaker().force(Force::Open);
    assert_eq!(allocations(nest, || get(8)), 1);
    let empty = LoadBalanceLayer::new(Endpoints::new()).layer(AT_ONCE);
    assert_eq!(allocations(empty, || get(8)), 1);
}

/// What is asked for costs what its documentation says.
#[test]
fn what_is_not_the_usual_path_has_a_price_that_is_known() {
    let long = || {
        let mut request = get(1);
        let cookie = HeaderValue::from_str(&"c".repeat(4_000)).unwrap();
        request.headers_mut().insert(http::header::COOKIE, cookie);
        request
    };
    let upload = || get(0).map(|_| Full::new(Bytes::from(vec![0; 1_000_000])));
    let original_host = LoadBalanceLayer::new(endpoints()).host_header(HostHeader::OfRequest);
    let counted = [
        ("a copy with a long cookie", allocations(backoff(AT_ONCE), long)),
        ("an upload that is followed", allocations(read(AT_ONCE), upload)),
        (
            "the original host header",
            allocations(original_host.layer(AT_ONCE), || get(8)),
        ),
        (
            "a trail of every call",
            allocations(RecordTrailLayer::new().every_call(true).layer(AT_ONCE), || get(8)),
        ),
        (
            "an answer that is an error",
            allocations(statuses(FAILING), || get(8)),
        ),
        (
            "a verdict that comes with the trailers, for a breaker and a balancer",
            allocations_of_a_late_verdict(),
        ),
        (
            "a response body that is waited for, frame by frame",
            allocations_of_a_body(),
        ),
        (
            "a limit on the whole body",
            allocations(
                ReadTimeoutLayer::new(LIMIT)
                    .unwrap()
                    .body_limit(LIMIT)
                    .unwrap()
                    .layer(AT_ONCE),
                || get(8),
            ),
        ),
        (
            "a deadline that is told",
            allocations(execution(send(AT_ONCE)), || get(8)),
        ),
    ];
    assert_eq!(
        counted,
        [
            ("a copy with a long cookie", 2),
            ("an upload that is followed", 1),
            ("the original host header", 1),
            ("a trail of every call", 4),
            ("an answer that is an error", 2),
            (
                "a verdict that comes with the trailers, for a breaker and a balancer",
                7
            ),
            ("a response body that is waited for, frame by frame", 1),
            ("a limit on the whole body", 1),
            ("a deadline that is told", 1),
        ]
    );
}

/// A stream that can be sent again: what it is made of, the list of its frames, and nothing for a further attempt.
#[test]
fn a_stream_that_can_be_sent_again_has_a_price_that_is_known() {
    fn read(body: &mut ReplayBody<Full<Bytes>>) {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(frame)) = Pin::new(&mut *body).poll_frame(&mut cx) {
            assert!(frame.is_ok());
        }
    }
    let mut counts = Vec::new();
    let mut measure = |what, f: &mut dyn FnMut()| {
        counts.push((what, allocation_counter::measure(f).count_total));
    };
    let data = Bytes::from_static(&[7; 1_000]);
    let (mut first, mut kept, mut second, mut alone) = (None, None, None, None);
    measure("made", &mut || {
        first = Some(ReplayBody::new(Full::new(data.clone())))
    });
    measure("kept", &mut || {
        kept = first.as_ref().and_then(RepeatBody::keep_body)
    });
    measure("read", &mut || first.iter_mut().for_each(read));
    measure("made again", &mut || {
        second = kept.as_ref().and_then(ReplayBody::restore_body)
    });
    measure("read again", &mut || second.iter_mut().for_each(read));
    measure("made without a retry", &mut || {
        alone = Some(ReplayBody::new(Full::new(data.clone())))
    });
    measure("read without a retry", &mut || alone.iter_mut().for_each(read));
    assert_eq!(
        counts,
        [
            ("made", 2),
            ("kept", 0),
            ("read", 1),
            ("made again", 0),
            ("read again", 0),
            ("made without a retry", 2),
            ("read without a retry", 0),
        ]
    );
    assert!(size_of::<ReplayBody<Full<Bytes>>>() <= 48);
}

/// The sizes of each service and of its future, over a service of 8 bytes whose future has as many. Printed with
/// `--nocapture`. The bounds leave a little room: tokio's timer and the compiler's layout have a say in it.
#[test]
fn services_and_futures_are_small() {
    fn sizes<S: Service<Req>, Req>(_: impl Fn(Server) -> S) -> (usize, usize) {
        (size_of::<S>(), size_of::<S::Future>())
    }
    let sizes = [
        ("nothing", sizes::<_, Get>(|server| server), (8, 8)),
        ("ConnectTimeout", sizes::<_, Uri>(connect), (24, 144)),
        ("ReadTimeout", sizes::<_, Get>(read), (40, 184)),
        ("ExecutionTimeout", sizes::<_, Get>(execution), (32, 240)),
        ("SendDeadline", sizes::<_, Get>(send), (64, 16)),
        ("ReceiveDeadline", sizes::<_, Get>(receive), (64, 240)),
        ("StatusErrorClassifier", sizes::<_, Get>(statuses), (96, 112)),
        ("GrpcErrorClassifier", sizes::<_, Get>(grpc), (32, 32)),
        ("BackoffRetry", sizes::<_, Get>(backoff), (104, 864)),
        ("IdempotentRetry", sizes::<_, Get>(idempotent), (32, 800)),
        ("LoadBalance", sizes::<_, Get>(balance), (64, 48)),
        ("BalanceServices", sizes::<_, Get>(balance_services), (8, 264)),
        ("CircuitBreaker", sizes::<_, Get>(breaker), (40, 48)),
        ("Bulkhead", sizes::<_, Get>(bulkhead), (24, 32)),
        ("Fallback", sizes::<_, Get>(fallback), (16, 24)),
        ("CollectBody", sizes::<_, Get>(collect), (24, 200)),
        ("RecordTrail", sizes::<_, Get>(trail), (16, 104)),
        (
            "the nest",
            sizes::<_, Get>(|server| nest().build(server).unwrap()),
            (472, 2048),
        ),
        (
            "the nest of Spring",
            sizes::<_, Get>(|server| spring().nest(endpoints()).build(server).unwrap()),
            (696, 2296),
        ),
    ];
    for (name, (service, future), _) in sizes {
        println!("{name:24} service {service:5}, future {future:5}");
    }
    for (name, (service, future), (most, most_future)) in sizes {
        assert!(
            service <= most && future <= most_future,
            "{name}: {service}, {future}"
        );
    }
}
