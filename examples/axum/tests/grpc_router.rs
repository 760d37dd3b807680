//! A circuit breaker around the services of a router that speak gRPC, where a call can succeed by its head and fail in
//! its trailers.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use axum::{
    Router, body::Body, error_handling::HandleErrorLayer, extract::Request, response::Response, routing::post,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::{
    breaker::{Breaker, CircuitBreakerLayer},
    call::{BoxError, ByFault, ByTrailers, CircuitOpen, CircuitState, GrpcCode, GrpcError},
    classify::GrpcErrorClassifierLayer,
};

const VOLUME: u32 = 4;

/// A message, and then trailers with a status.
struct Message(Option<Bytes>, Option<&'static str>);

impl http_body::Body for Message {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.0.take().map(Frame::data);
        Poll::Ready(data.or_else(|| self.1.take().map(|code| Frame::trailers(status(code)))).map(Ok))
    }
}

fn status(code: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(http::header::HeaderName::from_static("grpc-status"), HeaderValue::from_static(code))])
}

/// An answer that is nothing but its head, as gRPC has them for errors.
fn only_head(code: GrpcCode) -> Response {
    let mut answer = Response::new(Body::empty());
    answer.headers_mut().insert("grpc-status", HeaderValue::from(code.number()));
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    answer
}

/// `Router::layer` takes services that cannot fail: each error becomes an answer of gRPC.
async fn answered(error: BoxError) -> Response {
    match GrpcError::of(&*error) {
        Some(error) => only_head(error.code()),
        None if error.is::<CircuitOpen>() => only_head(GrpcCode::Unavailable),
        None => only_head(GrpcCode::Unknown),
    }
}

/// A router whose handler answers with this status in its trailers, and counts how often it was asked.
fn router(code: &'static str) -> (Router, Breaker, Arc<AtomicU32>) {
    let breaker = Breaker::builder("orders").volume(VOLUME).build().unwrap();
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(answered))
        .layer(CircuitBreakerLayer::new(breaker.clone()).classify(ByTrailers(ByFault)))
        .layer(GrpcErrorClassifierLayer::default());
    let asked = Arc::<AtomicU32>::default();
    let count = asked.clone();
    let handler = move || async move {
        count.fetch_add(1, SeqCst);
        let message = Message(Some(Bytes::from_static(b"an order")), Some(code));
        let mut answer = Response::new(Body::new(message));
        answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        answer
    };
    let router = Router::new().route("/orders.Orders/Get", post(handler)).layer(layers);
    (router, breaker, asked)
}

/// The status in the head of the answer, and that in its trailers.
async fn call(router: &Router) -> (Option<String>, Option<String>) {
    fn code(headers: Option<&HeaderMap>) -> Option<String> {
        Some(headers?.get("grpc-status")?.to_str().unwrap().to_owned())
    }
    let request = Request::post("/orders.Orders/Get").body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let head = code(Some(answer.headers()));
    let body = answer.into_body().collect().await.unwrap();
    (head, code(body.trailers()))
}

#[tokio::test]
async fn failures_in_trailers_open_the_circuit_of_a_router() {
    let (router, breaker, asked) = router("14");
    for _ in 0..VOLUME {
        assert_eq!(breaker.state(), CircuitState::Closed);
        assert_eq!(call(&router).await, (None, Some("14".to_owned())), "passed on as it is");
    }
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(call(&router).await, (Some("14".to_owned()), None), "rejected, as gRPC says it");
    assert_eq!(asked.load(SeqCst), VOLUME, "the handler is left alone");
}

#[tokio::test]
async fn faults_of_callers_in_trailers_leave_it_closed() {
    for code in ["0", "3", "5"] {
        let (router, breaker, asked) = router(code);
        for _ in 0..2 * VOLUME {
            assert_eq!(call(&router).await, (None, Some(code.to_owned())));
        }
        assert_eq!(breaker.state(), CircuitState::Closed);
        assert_eq!(asked.load(SeqCst), 2 * VOLUME);
    }
}
