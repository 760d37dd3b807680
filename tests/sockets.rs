//! The nest on real sockets: what reaches a server, and how often.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "../examples/support/backends.rs"]
mod backends;

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use backends::{Backend, Manner};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower_outbound::{
    Nest,
    balance::RoundRobin,
    call::{BoxError, Endpoint, Fault, FaultKind, NotRetried, OnceBody, ReadPhase, Sent, Trail},
    nest::{HttpNest, NestBuilder},
    retry::{Backoff, Idempotent},
};

const LIMIT: Duration = Duration::from_millis(300);

/// By turns, so that a test can say who is picked next.
fn nest(servers: &[&Backend]) -> NestBuilder<RoundRobin> {
    let endpoints = servers
        .iter()
        .map(|server| Endpoint::new(server.uri()).unwrap())
        .collect();
    Nest::builder("orders", endpoints)
        .rule(RoundRobin::new())
        .connect_limit(LIMIT)
        .read_limit(LIMIT)
        .execution_limit(Duration::from_secs(10))
}

fn request(method: Method) -> Request<Full<Bytes>> {
    let body = if method == Method::GET {
        Bytes::new()
    } else {
        Bytes::from_static(b"an order")
    };
    Request::builder()
        .method(method)
        .uri("/orders?secret")
        .body(Full::new(body))
        .unwrap()
}

async fn send(builder: NestBuilder<RoundRobin>, method: Method) -> Result<StatusCode, BoxError> {
    let nest: HttpNest<Full<Bytes>, RoundRobin> = builder.build_http().unwrap();
    nest.send(request(method)).await.map(|response| response.status())
}

/// A server of this kind, and a healthy one that comes after it in the rotation.
async fn pair(manner: Manner) -> (Backend, Backend) {
    (
        Backend::start("bad", manner).await.unwrap(),
        Backend::start("good", Manner::Answers(200)).await.unwrap(),
    )
}

#[tokio::test]
async fn a_get_to_any_bad_server_is_answered_by_the_next_one() {
    for manner in [
        Manner::Refuses,
        Manner::QueueFull,
        Manner::Sleeps(Duration::from_secs(5)),
        Manner::ResetsAfterReading,
        Manner::ClosesAfterReading,
        Manner::Answers(503),
    ] {
        let (bad, good) = pair(manner).await;
        let status = send(nest(&[&bad, &good]), Method::GET).await.unwrap();
        assert_eq!((status, good.received()), (StatusCode::OK, 1), "{manner:?}");
    }
}

#[tokio::test]
async fn a_post_that_was_not_sent_moves_on_and_reaches_exactly_one_server_once() {
    for manner in [Manner::Refuses, Manner::QueueFull] {
        let (bad, good) = pair(manner).await;
        let status = send(nest(&[&bad, &good]), Method::POST).await.unwrap();
        assert_eq!(
            (status, bad.received(), good.received()),
            (StatusCode::OK, 0, 1),
            "{manner:?}"
        );
    }
}

#[tokio::test]
async fn a_post_that_may_have_been_sent_reaches_exactly_one_server_once() {
    for (manner, kind) in [
        (Manner::ResetsAfterReading, FaultKind::Reset),
        (Manner::ClosesAfterReading, FaultKind::Closed),
        (
            Manner::Sleeps(Duration::from_secs(5)),
            FaultKind::ReadTimeout(ReadPhase::Head),
        ),
        (
            Manner::Answers(503),
            FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE),
        ),
    ] {
        let (bad, good) = pair(manner).await;
        let error = send(nest(&[&bad, &good]), Method::POST).await.unwrap_err();
        assert_eq!(Fault::of(&*error).kind(), kind);
        assert_eq!((bad.received(), good.received()), (1, 0), "{manner:?}");
        let stops: Vec<_> = Trail::of(&*error)
            .unwrap()
            .stops()
            .map(|stop| stop.reason())
            .collect();
        assert!(
            stops.contains(&NotRetried::MayHaveBeenSent),
            "{manner:?}: {stops:?}"
        );
    }
}

/// Who reads that nothing was sent may order again, so what the last attempt proves must hold for all.
#[tokio::test]
async fn a_call_is_not_said_to_be_unsent_if_an_attempt_before_the_last_one_may_have_been_sent() {
    for (manner, sent) in [
        (Manner::ClosesAfterReading, Sent::Maybe),
        (Manner::Sleeps(Duration::from_secs(5)), Sent::Maybe),
        (Manner::Refuses, Sent::No),
    ] {
        let first = Backend::start("first", manner).await.unwrap();
        let last = Backend::start("last", Manner::Refuses).await.unwrap();
        let nest: HttpNest<Full<Bytes>, RoundRobin> = nest(&[&first, &last])
            .backoff(Backoff::never())
            .build_http()
            .unwrap();
        let mut keyed = request(Method::POST);
        keyed
            .headers_mut()
            .insert("idempotency-key", "7".parse().unwrap());
        let error = nest.send(keyed).await.unwrap_err();
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ConnectRefused, sent),
            "{error}"
        );
        assert_eq!(
            Trail::of(&*error).unwrap().may_have_been_sent(),
            sent == Sent::Maybe
        );
    }
}

#[tokio::test]
async fn equal_connect_and_read_limits_on_a_full_accept_queue_give_a_connect_timeout() {
    let full = Backend::start("full", Manner::QueueFull).await.unwrap();
    for method in [Method::GET, Method::POST] {
        let builder = nest(&[&full])
            .idempotent(Idempotent::default().next_endpoint(0))
            .backoff(Backoff::never());
        let error = send(builder, method).await.unwrap_err();
        assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectTimeout);
    }
}

#[tokio::test]
async fn a_connect_phase_longer_than_the_read_limit_is_not_a_read_timeout() {
    let full = Backend::start("full", Manner::QueueFull).await.unwrap();
    let builder = nest(&[&full])
        .read_limit(LIMIT / 3)
        .idempotent(Idempotent::default().next_endpoint(0));
    let began = Instant::now();
    let error = send(builder.backoff(Backoff::never()), Method::GET)
        .await
        .unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectTimeout);
    assert!(began.elapsed() >= LIMIT);
}

#[tokio::test]
async fn nothing_arrives_after_the_execution_limit_has_ended_the_call() {
    let (slow, other) = (
        Backend::start("slow", Manner::Sleeps(Duration::from_secs(5)))
            .await
            .unwrap(),
        Backend::start("other", Manner::Sleeps(Duration::from_secs(5)))
            .await
            .unwrap(),
    );
    let retries = Backoff::feign(LIMIT, LIMIT, 5).unwrap();
    let builder = nest(&[&slow, &other])
        .backoff(retries)
        .execution_limit(LIMIT * 7 / 2)
        .accept_cut_short();
    let began = Instant::now();
    let error = send(builder, Method::GET).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    assert!(began.elapsed() < LIMIT * 9 / 2);
    let received = slow.received() + other.received();
    assert!(received >= 2);
    // The retries that were still planned would all have come within this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(slow.received() + other.received(), received);
}

#[tokio::test]
async fn a_nest_whose_execution_limit_equals_its_read_limit_still_sends_its_first_attempt() {
    let slow = Backend::start("slow", Manner::Sleeps(Duration::from_secs(5)))
        .await
        .unwrap();
    let error = send(
        nest(&[&slow]).execution_limit(LIMIT).accept_cut_short(),
        Method::GET,
    )
    .await
    .unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    assert_eq!(slow.received(), 1);
    let trail = Trail::of(&*error).unwrap();
    assert_eq!(
        trail.len(),
        1,
        "the attempt that was given up is in the trail: {trail}"
    );

    let quick = Backend::start("quick", Manner::Answers(200)).await.unwrap();
    let status = send(
        nest(&[&quick]).execution_limit(LIMIT).accept_cut_short(),
        Method::GET,
    )
    .await
    .unwrap();
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn an_answer_that_stalls_in_its_body_ends_with_a_read_timeout_and_is_not_sent_again() {
    let (stalls, good) = pair(Manner::StallsInTheBody).await;
    let nest: HttpNest<Full<Bytes>, RoundRobin> = nest(&[&stalls, &good]).build_http().unwrap();
    let response = nest.send(request(Method::GET)).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ReadTimeout(ReadPhase::Body));
    assert_eq!((stalls.received(), good.received()), (1, 0));
}

#[tokio::test]
async fn the_trail_tells_where_each_attempt_went_and_keeps_no_query() {
    let (refuses, closes) = (
        Backend::start("refuses", Manner::Refuses).await.unwrap(),
        Backend::start("closes", Manner::ClosesAfterReading)
            .await
            .unwrap(),
    );
    let error = send(nest(&[&refuses, &closes]).backoff(Backoff::never()), Method::POST)
        .await
        .unwrap_err();
    let trail = Trail::of(&*error).unwrap();
    let places: Vec<_> = trail
        .attempts()
        .map(|attempt| attempt.endpoint().unwrap().authority().as_str())
        .collect();
    assert_eq!(
        places,
        [refuses.address().to_string(), closes.address().to_string()]
    );
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_nest_for_plain_http_refuses_an_endpoint_with_another_scheme() {
    let endpoints = [Endpoint::new("https://a:1").unwrap()].into_iter().collect();
    let error = Nest::builder("orders", endpoints)
        .build_http::<Full<Bytes>>()
        .unwrap_err();
    assert_eq!((error.field(), error.value()), ("endpoints", "https://a:1"));
    assert!(error.fix().contains("TLS"), "{error}");
}

/// A body that never ends, as long as somebody reads it.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 16 * 1024])))))
    }
}

#[tokio::test]
async fn an_upload_ends_when_the_caller_has_left() {
    use tokio::{io::AsyncReadExt, net::TcpListener};

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new(listener.local_addr().unwrap().to_string()).unwrap();
    let builder = Nest::builder("upload", [endpoint].into_iter().collect());
    let nest: HttpNest<OnceBody<Endless>> = builder.build_http().unwrap();
    let upload = Request::post("/").body(OnceBody::new(Endless)).unwrap();
    let call = tokio::spawn(nest.send(upload));
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut buffer = vec![0; 1 << 20];
    assert!(stream.read(&mut buffer).await.unwrap() > 0);
    call.abort();
    // Reads what is still on its way; the connection must come to its end and not go on for ever.
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        while let Ok(1..) = stream.read(&mut buffer).await {}
    });
    ended
        .await
        .expect("the upload went on after the call was dropped");
}
