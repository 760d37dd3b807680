//! Failures that gRPC tells in headers and in trailers: CLS-07.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails it by a panic"
)]

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::{BalanceHandle, Figures, LoadBalanceLayer},
    breaker::{Breaker, CircuitBreakerLayer},
    call::{
        ByFault, ByTrailers, CircuitState, Endpoints, Fault, FaultKind, GrpcCode, GrpcError, LateVerdict,
        Sent, Verdict,
    },
    classify::{GrpcBody, GrpcErrorClassifierLayer, GrpcPolicy, StatusPolicy},
    retry::{Backoff, Idempotent, Jitter},
};

type Get = Request<Full<Bytes>>;

/// Frames, one a poll. `Pending` before the last one for ever, if it stalls.
#[derive(Debug, Default)]
struct Script {
    frames: VecDeque<Result<Frame<Bytes>, io::Error>>,
    stalls: bool,
    says_end: bool,
}

impl Script {
    fn new(frames: impl IntoIterator<Item = Result<Frame<Bytes>, io::Error>>) -> Self {
        Script {
            frames: frames.into_iter().collect(),
            ..Script::default()
        }
    }

    /// A message, and trailers with this status.
    fn ends(status: &'static str) -> Self {
        Script::new([data(), trailers(status)])
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.frames.pop_front() {
            None if self.stalls => Poll::Pending,
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.says_end && self.frames.is_empty()
    }
}

fn data() -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(Bytes::from_static(b"an order")))
}

fn trailers(status: &'static str) -> Result<Frame<Bytes>, io::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    Ok(Frame::trailers(trailers))
}

fn answer(body: Script) -> Response<Script> {
    Response::builder()
        .header("content-type", "application/grpc+proto")
        .body(body)
        .unwrap()
}

type Call = BoxCloneSyncService<Get, Response<GrpcBody<Script>>, BoxError>;

/// A breaker that opens at the first failure, over a balancer, over this server.
struct Stack {
    service: Call,
    breaker: Breaker,
    balance: BalanceHandle,
    hits: Arc<AtomicUsize>,
}

impl Stack {
    fn new(script: impl Fn() -> Script + Clone + Send + Sync + 'static) -> Self {
        Stack::with(GrpcPolicy::default(), move || answer(script()))
    }

    fn with(
        policy: GrpcPolicy,
        answer: impl Fn() -> Response<Script> + Clone + Send + Sync + 'static,
    ) -> Self {
        let hits = Arc::<AtomicUsize>::default();
        let breaker = Breaker::builder("orders")
            .volume(1)
            .error_percent(1)
            .sleep_window(Duration::from_secs(5))
            .build()
            .unwrap();
        let balance =
            LoadBalanceLayer::new(Endpoints::from_list(["a:1"]).unwrap()).classify(ByTrailers(ByFault));
        let handle = balance.handle();
        let counts = hits.clone();
        let backoff = Backoff::builder()
            .attempts(3)
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let service = ServiceBuilder::new()
            .layer(CircuitBreakerLayer::new(breaker.clone()).classify(ByTrailers(ByFault)))
            .backoff_retry(backoff)
            .idempotent_retry(Idempotent::default().same_endpoint(1))
            .layer(balance)
            .grpc_errors(policy)
            .service(service_fn(move |_: Get| {
                counts.fetch_add(1, Ordering::Relaxed);
                std::future::ready(Ok::<_, Infallible>(answer()))
            }));
        Stack {
            service: BoxCloneSyncService::new(service),
            breaker,
            balance: handle,
            hits,
        }
    }

    async fn call(&self) -> Result<Response<GrpcBody<Script>>, BoxError> {
        self.service.clone().oneshot(Request::new(Full::default())).await
    }

    fn figures(&self) -> Figures {
        self.balance.total()
    }

    fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

// CLS-07: reported to breaker and balancer when the trailers arrive, and nothing is retried.
#[tokio::test(start_paused = true)]
async fn a_failure_in_the_trailers_reaches_breaker_and_balancer_when_they_come_and_is_not_retried() {
    let stack = Stack::new(|| Script::ends("14"));
    let mut body = stack.call().await.unwrap().into_body();
    tokio::time::advance(Duration::from_millis(30)).await;
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(stack.breaker.state(), CircuitState::Closed);
    assert_eq!(
        (stack.figures().in_flight(), stack.figures().completed()),
        (1, 0),
        "not settled by the head"
    );

    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert_eq!(stack.breaker.state(), CircuitState::Open);
    let figures = stack.figures();
    assert_eq!((figures.in_flight(), figures.failures()), (0, 1));
    assert_eq!(
        figures.response_time_mean(),
        Duration::ZERO,
        "the time to the head"
    );
    assert!(body.frame().await.is_none());
    assert_eq!(stack.figures().failures(), 1, "told once");
    assert_eq!(stack.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_end_of_a_body_says_is_the_verdict() {
    let broken = || Script::new([data(), Err(io::ErrorKind::ConnectionReset.into())]);
    let ends_with_data = || Script {
        says_end: true,
        ..Script::new([data()])
    };
    type Case = (&'static str, fn() -> Script, Verdict);
    let cases: [Case; 8] = [
        ("OK", || Script::ends("0"), Verdict::Success),
        ("NOT_FOUND", || Script::ends("5"), Verdict::Ignored),
        ("INTERNAL", || Script::ends("13"), Verdict::Failure),
        ("no code of gRPC", || Script::ends("77"), Verdict::Failure),
        (
            "trailers without a status",
            || Script::new([data(), Ok(Frame::trailers(HeaderMap::new()))]),
            Verdict::Failure,
        ),
        ("no trailers", || Script::new([data()]), Verdict::Failure),
        (
            "no trailers, and the body says so",
            ends_with_data,
            Verdict::Failure,
        ),
        ("a body that breaks off", broken, Verdict::Failure),
    ];
    for (name, script, verdict) in cases {
        let stack = Stack::new(script);
        let mut body = stack.call().await.unwrap().into_body();
        while let Some(Ok(_)) = body.frame().await {
            if body.is_end_stream() {
                break;
            }
        }
        let figures = stack.figures();
        let counted = (figures.successes(), figures.ignored(), figures.failures());
        let expected = match verdict {
            Verdict::Success => (1, 0, 0),
            Verdict::Ignored => (0, 1, 0),
            Verdict::Failure => (0, 0, 1),
        };
        assert_eq!(counted, expected, "{name}");
        let open = stack.breaker.state() == CircuitState::Open;
        assert_eq!(open, verdict == Verdict::Failure, "{name}");
        assert_eq!(stack.hits(), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_early_counts_as_given_up() {
    let stack = Stack::new(|| Script::ends("14"));
    let mut body = stack.call().await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    let figures = stack.figures();
    assert_eq!(
        (figures.in_flight(), figures.abandoned(), figures.completed()),
        (0, 1, 0)
    );
    assert_eq!(stack.breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_decided_by_its_trailers_and_handed_back_with_its_body() {
    let stack = Stack::new(|| Script::ends("0"));
    let fails = Stack::new(|| Script::ends("14"));
    // The same breaker, so that the one opens and the other probes.
    for (probe, ends) in [(&stack, CircuitState::Closed), (&fails, CircuitState::Open)] {
        probe.breaker.admit().unwrap().settle(Verdict::Failure);
        tokio::time::advance(Duration::from_secs(6)).await;
        let given_up = probe.call().await.unwrap();
        assert!(probe.call().await.is_err(), "one probe at a time");
        drop(given_up);
        let body = probe.call().await.unwrap().into_body();
        assert_eq!(probe.breaker.state(), CircuitState::HalfOpen);
        body.collect().await.unwrap();
        assert_eq!(probe.breaker.state(), ends);
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_in_the_headers_is_an_error_that_can_be_retried() {
    let only_head = |status: &'static str| {
        move || {
            let mut answer = answer(Script::default());
            answer
                .headers_mut()
                .insert("grpc-status", HeaderValue::from_static(status));
            answer
                .headers_mut()
                .insert("grpc-message", HeaderValue::from_static("no%0Aorder"));
            answer
        }
    };
    for (number, code, hits) in [("14", GrpcCode::Unavailable, 3), ("5", GrpcCode::NotFound, 1)] {
        let stack = Stack::with(GrpcPolicy::default(), only_head(number));
        let error = stack.call().await.unwrap_err();
        assert_eq!(stack.hits(), hits, "{code}");
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::Grpc(code.number()), Sent::Maybe)
        );
        assert_eq!(Verdict::of(&*error), code.verdict());
        let grpc = GrpcError::of(&*error).unwrap();
        assert_eq!((grpc.code(), grpc.message()), (code, "no\norder"));
        assert_eq!(grpc.headers()["grpc-status"], number);
        assert!(!grpc.to_string().contains('\n'), "{grpc}");
        let figures = stack.figures();
        let counted = figures.failures() + figures.ignored();
        assert_eq!(counted, stack.hits() as u64, "each attempt was judged");
    }
    let fine = Stack::with(GrpcPolicy::default(), only_head("0"));
    let answer = fine.call().await.unwrap();
    assert_eq!(fine.figures().successes(), 1, "known with the head");
    assert!(LateVerdict::on(answer.extensions()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_word_of_the_user_holds_in_headers_and_in_trailers() {
    let policy = GrpcPolicy::default()
        .success(GrpcCode::NotFound)
        .failure(GrpcCode::Aborted);
    let stack = Stack::with(policy, || answer(Script::ends("5")));
    stack.call().await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(stack.figures().successes(), 1);

    let stack = Stack::with(policy, || answer(Script::ends("10")));
    stack.call().await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(stack.figures().failures(), 1);

    let stack = Stack::with(policy, || {
        let mut answer = answer(Script::default());
        answer
            .headers_mut()
            .insert("grpc-status", HeaderValue::from_static("5"));
        answer
    });
    assert!(stack.call().await.is_ok(), "an answer it stays");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_no_status_to_come_is_unknown_at_once() {
    let stack = Stack::new(|| Script {
        says_end: true,
        ..Script::default()
    });
    let error = stack.call().await.unwrap_err();
    assert_eq!(GrpcError::of(&*error).unwrap().code(), GrpcCode::Unknown);
    assert_eq!(Verdict::of(&*error), Verdict::Failure);
}

#[tokio::test]
async fn answers_that_are_not_of_grpc_pass_as_they_are() {
    for (status, content_type) in [
        (200, "application/json"),
        (200, "application/grpc-web"),
        (200, "application/grp"),
        (503, "application/grpc"),
    ] {
        let server = service_fn(move |()| {
            let answer = Response::builder()
                .status(status)
                .header("content-type", content_type);
            std::future::ready(answer.body(Full::new(Bytes::from_static(b"text"))))
        });
        let service = GrpcErrorClassifierLayer::default().layer(server);
        let answer = service.oneshot(()).await.unwrap();
        assert_eq!(answer.status(), status);
        assert!(LateVerdict::on(answer.extensions()).is_none(), "{content_type}");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "text");
    }
    for content_type in [
        "application/grpc",
        "application/grpc;x",
        "application/grpc ; x",
        "Application/gRPC+json",
    ] {
        let server = service_fn(move |()| {
            let answer = Response::builder().header("content-type", content_type);
            std::future::ready(answer.body(Script::ends("0")))
        });
        let answer = GrpcErrorClassifierLayer::default()
            .layer(server)
            .oneshot(())
            .await
            .unwrap();
        assert!(LateVerdict::on(answer.extensions()).is_some(), "{content_type}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_the_nest_breaker_and_balancer_hear_of_trailers() {
    let server = service_fn(|_: Request<_>| {
        let answer = answer(Script::ends("14"));
        std::future::ready(Ok::<_, BoxError>(answer))
    });
    let client = GrpcErrorClassifierLayer::default().layer(server);
    let breaker = Breaker::builder("orders")
        .volume(1)
        .error_percent(1)
        .build()
        .unwrap();
    let nest = Nest::builder("orders", Endpoints::from_list(["a:1"]).unwrap())
        .breaker(breaker.clone())
        .build(client)
        .unwrap();
    let answer = nest.send(Request::new(Full::<Bytes>::default())).await.unwrap();
    let figures = || nest.handle().balance().total();
    assert_eq!(
        (figures().in_flight(), breaker.state()),
        (1, CircuitState::Closed)
    );
    answer.into_body().collect().await.unwrap();
    assert_eq!((figures().failures(), breaker.state()), (1, CircuitState::Open));
}

#[test]
fn a_status_that_is_an_error_by_its_head_is_not_waited_for() {
    use tower_outbound::call::Classify;
    let (_open, late) = LateVerdict::open();
    for (status, waits) in [(200, true), (503, false), (404, false)] {
        let mut answer = Response::builder()
            .status(status)
            .body(Empty::<Bytes>::new())
            .unwrap();
        answer.extensions_mut().insert(late.clone());
        let policy = StatusPolicy::default();
        assert_eq!(policy.late(&answer).is_some(), waits, "{status}");
        assert_eq!(ByTrailers(policy).late(&answer).is_some(), waits, "{status}");
        assert!(ByFault.late(&answer).is_none());
    }
}

#[tokio::test]
async fn a_body_says_of_its_length_and_its_end_what_the_one_inside_says() {
    for text in ["", "an order"] {
        let server = service_fn(move |()| {
            let answer = Response::builder().header("grpc-status", "0");
            std::future::ready(answer.body(Full::new(Bytes::from(text))))
        });
        let service = GrpcErrorClassifierLayer::default().layer(server);
        let mut body = service.oneshot(()).await.unwrap().into_body();
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        assert_eq!(body.is_end_stream(), text.is_empty());
        let _ = body.frame().await;
        assert!(body.is_end_stream());
    }
}
