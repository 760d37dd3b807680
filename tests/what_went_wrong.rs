//! What the page `call::what_went_wrong` says of retries is what the default policies do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails it by a panic"
)]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_outbound::{
    call::{
        Fault, FaultError, FaultKind, GrpcCode, GrpcError, IDEMPOTENCY_KEY, ReadPhase, Rejection, Sent,
        StatusError,
    },
    classify::StatusPolicy,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
};

const PAGE: &str = include_str!("../src/call/fault/what_went_wrong.md");

/// The error of a row, with what the row says of `Sent`.
fn error(kind: &str, sent: Sent) -> BoxError {
    let number = || -> i32 { kind[kind.find('(').unwrap() + 1..kind.len() - 1].parse().unwrap() };
    let of = |kind: FaultKind| FaultError::new(Fault::new(kind, sent), "as a client would say").into();
    if kind.starts_with("Status") {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = StatusCode::from_u16(number() as u16).unwrap();
        let verdict = StatusPolicy::default().verdict(head.status);
        return StatusError::new(head, verdict, Bytes::new(), true, None).into();
    }
    if kind.starts_with("Grpc") {
        let code = GrpcCode::from_number(number());
        return GrpcError::new(code, HeaderMap::new(), code.verdict()).into();
    }
    of(match kind {
        "ConnectRefused" => FaultKind::ConnectRefused,
        "ConnectTimeout" => FaultKind::ConnectTimeout,
        "Connect" => FaultKind::Connect,
        "NotReady" => FaultKind::NotReady,
        "Write" => FaultKind::Write,
        "ReadTimeout(Head)" => FaultKind::ReadTimeout(ReadPhase::Head),
        "ReadTimeout(Body)" => FaultKind::ReadTimeout(ReadPhase::Body),
        "Reset" => FaultKind::Reset,
        "Closed" => FaultKind::Closed,
        "Protocol" => FaultKind::Protocol,
        "Rejected(Breaker)" => FaultKind::Rejected(Rejection::Breaker),
        "Rejected(Bulkhead)" => FaultKind::Rejected(Rejection::Bulkhead),
        "Rejected(Limit)" => FaultKind::Rejected(Rejection::Limit),
        "Rejected(Budget)" => FaultKind::Rejected(Rejection::Budget),
        "NoEndpoint" => FaultKind::NoEndpoint,
        "ExecutionTimeout" => FaultKind::ExecutionTimeout,
        "Other" => FaultKind::Other,
        unknown => panic!("{unknown} is no kind"),
    })
}

fn requests() -> [(&'static str, Request<Full<Bytes>>); 3] {
    let request = |method: Method| {
        Request::builder()
            .method(method)
            .uri("/orders")
            .body(Full::new(Bytes::from_static(b"an order")))
            .unwrap()
    };
    let mut keyed = request(Method::POST);
    keyed.headers_mut().insert(IDEMPOTENCY_KEY, "7".parse().unwrap());
    [
        ("GET", request(Method::GET)),
        ("keyed", keyed),
        ("POST", request(Method::POST)),
    ]
}

/// Which requests this layer sends a second time after such an error.
async fn retried<L>(layer: &L, kind: &str, sent: Sent) -> Vec<&'static str>
where
    L: Layer<Server>,
    L::Service: Service<Request<Full<Bytes>>, Response = Response<Empty<Bytes>>, Error = BoxError>,
{
    let mut retried = Vec::new();
    for (name, request) in requests() {
        let server = Server {
            hits: Arc::default(),
            kind: kind.into(),
            sent,
        };
        let hits = server.hits.clone();
        let outcome = layer.layer(server).oneshot(request).await;
        let hits = hits.load(Ordering::Relaxed);
        assert_eq!(outcome.is_ok(), hits == 2, "{kind} {name}");
        if hits == 2 {
            retried.push(name);
        }
    }
    retried
}

/// Fails once so, and answers then.
#[derive(Clone)]
struct Server {
    hits: Arc<AtomicU32>,
    kind: Arc<str>,
    sent: Sent,
}

impl<Req> Service<Req> for Server {
    type Response = Response<Empty<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<Empty<Bytes>>, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Req) -> Self::Future {
        std::future::ready(match self.hits.fetch_add(1, Ordering::Relaxed) {
            0 => Err(error(&self.kind, self.sent)),
            _ => Ok(Response::new(Empty::new())),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_says_which_requests_the_default_policies_retry() {
    let idempotent = IdempotentRetryLayer::new(Idempotent::default());
    let backoff = BackoffRetryLayer::new(Backoff::default());
    let requests = |word: &str| match word {
        "all" => vec!["GET", "keyed", "POST"],
        "safe" => vec!["GET", "keyed"],
        "none" => vec![],
        other => panic!("{other:?} is no set of requests"),
    };
    let mut rows = 0;
    for row in PAGE.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let kind = cells[0].trim_end_matches('`');
        let sent = if cells[2] == "no" { Sent::No } else { Sent::Maybe };
        assert_eq!(
            retried(&idempotent, kind, sent).await,
            requests(cells[4]),
            "{kind} by Idempotent"
        );
        assert_eq!(
            retried(&backoff, kind, sent).await,
            requests(cells[5]),
            "{kind} by Backoff"
        );
        rows += 1;
    }
    assert_eq!(rows, 23, "the whole table was read");
}

#[tokio::test(start_paused = true)]
async fn on_proof_a_reset_and_an_early_close_are_retried_for_all_requests() {
    let idempotent = IdempotentRetryLayer::new(Idempotent::default());
    let backoff = BackoffRetryLayer::new(Backoff::default());
    for kind in ["Reset", "Closed"] {
        assert_eq!(retried(&idempotent, kind, Sent::No).await.len(), 3, "{kind}");
        assert_eq!(retried(&backoff, kind, Sent::No).await.len(), 3, "{kind}");
    }
}
