//! Faults through a whole stack: they stay apart, and keep what they know.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Nest,
    balance::{LoadBalanceLayer, RoundRobin},
    call::{
        BoxError, ConnectTimedOut, Endpoint, Endpoints, ExecutionTimedOut, Fault, FaultKind, NoTimeLeft,
        ReadPhase, ReadTimedOut, Sent, Trail, UploadBody, chain, scope,
    },
    nest::{HttpNest, NestBuilder, ServiceBuilderExt, client::Client},
    retry::{Backoff, Idempotent},
};

use crate::backends::{Backend, Manner};

const LIMIT: Duration = Duration::from_millis(200);

async fn backend(manner: Manner) -> Backend {
    Backend::start("backend", manner).await.unwrap()
}

fn nest(server: &Backend) -> NestBuilder {
    let endpoint = Endpoint::new(server.uri()).unwrap();
    Nest::builder("orders", [endpoint].into_iter().collect())
        .connect_limit(LIMIT)
        .read_limit(LIMIT)
        .idempotent(Idempotent::default().next_endpoint(0))
        .backoff(Backoff::never())
}

fn request(method: Method) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri("/orders");
    request.body(Full::default()).unwrap()
}

/// What comes out of a call, be it in the head or in the body, through a buffer and two more wrappers on top.
async fn error(builder: NestBuilder) -> BoxError {
    let nest: HttpNest<Full<Bytes>> = builder.build_http().unwrap();
    let buffered = ServiceBuilder::new().buffer(1).service(nest);
    let error = match buffered.oneshot(request(Method::GET)).await {
        Err(error) => error,
        Ok(response) => response.collect().await.unwrap_err(),
    };
    let shared: Arc<dyn std::error::Error + Send + Sync> = error.into();
    Box::new(io::Error::other(io::Error::other(shared)))
}

/// CLS-03: whichever limit runs out, the error says which, after any boxing, and without looking at its text.
#[tokio::test]
async fn the_limits_stay_apart_after_all_layers_and_boxes() {
    let has = |error: &BoxError, wanted: fn(&(dyn std::error::Error + 'static)) -> bool| {
        chain(&**error).any(wanted)
    };
    let asleep = backend(Manner::Sleeps(Duration::from_secs(5))).await;

    let connect = error(nest(&backend(Manner::QueueFull).await)).await;
    let head = error(nest(&asleep)).await;
    let body = error(nest(&backend(Manner::StallsInTheBody).await)).await;
    let whole = nest(&asleep)
        .read_limit(LIMIT * 10)
        .execution_limit(LIMIT)
        .accept_cut_short();
    let whole = error(whole).await;

    for (error, kind, sent) in [
        (&connect, FaultKind::ConnectTimeout, Sent::No),
        (&head, FaultKind::ReadTimeout(ReadPhase::Head), Sent::Maybe),
        (&body, FaultKind::ReadTimeout(ReadPhase::Body), Sent::Maybe),
        (&whole, FaultKind::ExecutionTimeout, Sent::Maybe),
    ] {
        let fault = Fault::of(&**error);
        assert_eq!((fault.kind(), fault.sent()), (kind, sent), "{error}");
        assert!(fault.is_timeout());
        assert_eq!(fault.is_connect(), kind == FaultKind::ConnectTimeout);
        for (is, of) in [
            (
                has(error, |level| level.is::<ConnectTimedOut>()),
                FaultKind::ConnectTimeout,
            ),
            (
                has(error, |level| level.is::<ExecutionTimedOut>()),
                FaultKind::ExecutionTimeout,
            ),
        ] {
            assert_eq!(is, kind == of, "{error}");
        }
        let phases: Vec<_> = chain(&**error)
            .filter_map(|level| level.downcast_ref::<ReadTimedOut>())
            .map(|timed_out| FaultKind::ReadTimeout(timed_out.phase()))
            .collect();
        assert_eq!(
            phases.first().is_some_and(|phase| *phase == kind),
            !phases.is_empty()
        );
        assert_eq!(phases.is_empty(), !matches!(kind, FaultKind::ReadTimeout(_)));
    }
    // Refused is no timeout.
    let refused = Fault::of(&*error(nest(&backend(Manner::Refuses).await)).await);
    assert_eq!(refused, Fault::new(FaultKind::ConnectRefused, Sent::No));
    assert!(refused.is_connect() && !refused.is_timeout());
}

/// CLS-03: the deadline of a call that has passed before an attempt is due.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_too_late_to_start_says_so_and_that_nothing_was_sent() {
    let server = service_fn(
        |_: Request<tower_outbound::call::UploadBody<Full<Bytes>>>| async {
            Ok::<_, BoxError>(http::Response::new(Full::<Bytes>::default()))
        },
    );
    let stack = ServiceBuilder::new().read_timeout(LIMIT).unwrap().service(server);
    let mut call = tower_outbound::call::CallScope::begin();
    call.narrow(tokio::time::Instant::now());
    let attempt = call.enter(|| stack.oneshot(request(Method::GET)));
    let mut attempt = std::pin::pin!(attempt);
    let result = std::future::poll_fn(|cx| call.enter(|| attempt.as_mut().poll(cx))).await;
    assert_eq!(scope::deadline(), None);
    let error = result.unwrap_err();
    assert!(chain(&*error).any(|level| level.is::<NoTimeLeft>()));
    assert_eq!(
        Fault::of(&*error),
        Fault::new(FaultKind::ExecutionTimeout, Sent::No)
    );
}

/// CLS-03: in HTTP/2 one call connects for all that wait meanwhile, and their read limits count from the connection too.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_connect_of_another_one_have_no_read_limit_yet() {
    for read_limit in [LIMIT / 2, LIMIT] {
        let nowhere = service_fn(|_: http::Uri| std::future::pending::<io::Result<TokioIo<TcpStream>>>());
        let client = Client::builder().connect_limit(LIMIT).http2_only();
        let client = client.build::<_, UploadBody<Full<Bytes>>>(nowhere).unwrap();
        let stack = ServiceBuilder::new()
            .read_timeout(read_limit)
            .unwrap()
            .service(client);
        let mut faults = join_all((0..3).map(|_| async {
            let mut request = request(Method::POST);
            *request.uri_mut() = http::Uri::from_static("http://nowhere/orders");
            Fault::of(&*stack.clone().oneshot(request).await.unwrap_err())
        }))
        .await
        .into_iter();
        let first = Fault::new(FaultKind::ConnectTimeout, Sent::No);
        assert_eq!(faults.next(), Some(first));
        for fault in faults {
            assert_eq!(fault, Fault::new(FaultKind::Connect, Sent::No));
        }
    }
}

/// What has a connection waits for the server, be it that nothing at all comes from it.
#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_has_the_read_limit_in_http_2_as_well() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::builder().http2_only();
    let client = client.build_http::<UploadBody<Full<Bytes>>>().unwrap();
    let stack = ServiceBuilder::new().read_timeout(LIMIT).unwrap().service(client);
    let uri = format!("http://{}/orders", listener.local_addr().unwrap());
    let faults = join_all((0..3).map(|_| async {
        let mut request = request(Method::POST);
        *request.uri_mut() = uri.parse().unwrap();
        Fault::of(&*stack.clone().oneshot(request).await.unwrap_err())
    }))
    .await;
    let silent = Fault::new(FaultKind::ReadTimeout(ReadPhase::Head), Sent::Maybe);
    assert_eq!(faults, [silent; 3]);
}

/// CLS-06: the true cause, where it happened, and how often it was tried.
#[tokio::test]
async fn after_retries_on_the_same_endpoint_the_error_names_it_and_ends_in_the_refusal() {
    for method in [Method::GET, Method::POST] {
        let refuses = backend(Manner::Refuses).await;
        let retries = Idempotent::default().same_endpoint(1).next_endpoint(0);
        let nest: HttpNest<Full<Bytes>> = nest(&refuses).idempotent(retries).build_http().unwrap();
        let error = nest.send(request(method)).await.unwrap_err();
        let root = chain(&*error)
            .filter_map(|level| level.downcast_ref::<io::Error>())
            .last();
        assert_eq!(root.unwrap().kind(), io::ErrorKind::ConnectionRefused);
        let trail = Trail::of(&*error).unwrap();
        let places: Vec<_> = trail
            .attempts()
            .map(|attempt| attempt.endpoint().unwrap().authority().to_string())
            .collect();
        let address = refuses.address().to_string();
        assert_eq!(places, [address.clone(), address.clone()]);
        let text = error.to_string();
        assert!(text.contains(&address) && text.contains("attempts: 2"), "{text}");
    }
}

/// CLS-10: the channel to A is dead for good; a POST moves on, since nothing was sent.
#[tokio::test]
async fn an_endpoint_that_does_not_become_ready_costs_no_call_and_a_post_goes_to_the_next() {
    let [a, b] = ["http://a:1", "http://b:1"].map(|uri| Endpoint::new(uri).unwrap());
    let broken = tower::util::BoxService::new(Broken);
    let to_a = tower::buffer::Buffer::new(broken, 8);
    let calls_of_b = Arc::new(AtomicUsize::new(0));
    let counter = calls_of_b.clone();
    let to_b = service_fn(move |_: Request<Full<Bytes>>| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, BoxError>(http::Response::new(Full::<Bytes>::default())))
    });
    let channels = service_fn(move |request: Request<Full<Bytes>>| {
        let (to_a, to_b) = (to_a.clone(), to_b.clone());
        async move {
            match request.uri().host() {
                Some("a") => to_a.oneshot(request).await,
                _ => to_b.oneshot(request).await,
            }
        }
    });
    let stack = |endpoints: Vec<Endpoint>| {
        let balance = LoadBalanceLayer::new(endpoints.into_iter().collect::<Endpoints>());
        ServiceBuilder::new()
            .idempotent_retry(Idempotent::default().next_endpoint(1))
            .layer(balance.rule(RoundRobin::new()))
            .service(channels.clone())
    };
    let answer = stack(vec![a.clone(), b])
        .oneshot(request(Method::POST))
        .await
        .unwrap();
    assert_eq!(
        (answer.status(), calls_of_b.load(Ordering::Relaxed)),
        (StatusCode::OK, 1)
    );

    // With nowhere else to go the error says what it was, and that it may be tried again.
    let error = stack(vec![a]).oneshot(request(Method::POST)).await.unwrap_err();
    assert_eq!(Fault::of(&*error), Fault::new(FaultKind::NotReady, Sent::No));
    assert_eq!(Trail::of(&*error).unwrap().len(), 2);
}

/// Its readiness fails, and a call of it is a mistake.
struct Broken;

impl tower::Service<Request<Full<Bytes>>> for Broken {
    type Response = http::Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Err("the channel is broken".into()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        panic!("called without being ready")
    }
}
