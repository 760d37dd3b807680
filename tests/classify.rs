//! `StatusErrorClassifier` over its public API.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails it by a panic"
)]

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Channel, Empty, Full, StreamBody, channel::Sender};
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    call::{
        ByFault, CallScope, Classify, Fault, FaultError, FaultKind, LONGEST, Sent, StatusError, StatusSet,
        Verdict,
    },
    classify::{
        StatusErrorClassifier, StatusErrorClassifierFuture, StatusErrorClassifierLayer, StatusPolicy,
    },
};

type Answered<B> = Ready<Result<Response<B>, Infallible>>;

fn answer<B>(status: u16, body: B) -> Response<B> {
    Response::builder().status(status).body(body).unwrap()
}

/// The outcome of one call to a server that answers so.
async fn outcome<B: Body>(
    layer: &StatusErrorClassifierLayer,
    answer: Response<B>,
) -> Result<Response<B>, BoxError> {
    let mut answer = Some(answer);
    let server = service_fn(move |()| ready(Ok::<_, Infallible>(answer.take().expect("one call"))));
    layer.layer(server).oneshot(()).await
}

/// The error of one call to a server that answers so.
async fn error<B: Body>(layer: &StatusErrorClassifierLayer, answer: Response<B>) -> StatusError {
    match outcome(layer, answer).await {
        Ok(answer) => panic!("{} passed", answer.status()),
        Err(error) => *error.downcast().expect("a StatusError"),
    }
}

fn by_default() -> StatusErrorClassifierLayer {
    StatusErrorClassifierLayer::new(StatusPolicy::default())
}

/// Counts how often it is dropped and polled.
#[derive(Debug, Clone, Default)]
struct Counts {
    drops: Arc<AtomicUsize>,
    polls: Arc<AtomicUsize>,
}

impl Counts {
    fn drops(&self) -> usize {
        self.drops.load(Ordering::Relaxed)
    }

    fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }

    fn watch<B>(&self, body: B) -> Watched<B> {
        Watched {
            body: Box::pin(body),
            counts: self.clone(),
        }
    }
}

#[derive(Debug)]
struct Watched<B> {
    body: Pin<Box<B>>,
    counts: Counts,
}

impl<B> Drop for Watched<B> {
    fn drop(&mut self) {
        self.counts.drops.fetch_add(1, Ordering::Relaxed);
    }
}

impl<B: Body> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.counts.polls.fetch_add(1, Ordering::Relaxed);
        self.body.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[tokio::test]
async fn each_preset_passes_what_it_calls_a_success_and_makes_errors_of_the_rest() {
    use Verdict::{Failure as F, Ignored as I, Success as S};
    let presets = [
        StatusPolicy::default(),
        StatusPolicy::feign(),
        StatusPolicy::feign().decode_404(),
        StatusPolicy::client_errors_ignored(),
    ];
    // The published table: a change to it is a change of behavior.
    for (status, verdicts) in [
        (200, [S, S, S, S]),
        (204, [S, S, S, S]),
        (301, [S, F, F, F]),
        (302, [S, F, F, F]),
        (304, [S, F, F, F]),
        (400, [I, F, F, I]),
        (401, [I, F, F, I]),
        (403, [I, F, F, I]),
        (404, [I, F, S, I]),
        (408, [F, F, F, I]),
        (409, [I, F, F, I]),
        (410, [I, F, F, I]),
        (418, [I, F, F, I]),
        (422, [I, F, F, I]),
        (425, [I, F, F, I]),
        (429, [F, F, F, I]),
        (500, [F, F, F, F]),
        (501, [F, F, F, F]),
        (502, [F, F, F, F]),
        (503, [F, F, F, F]),
        (504, [F, F, F, F]),
        (505, [F, F, F, F]),
        (599, [F, F, F, F]),
    ] {
        for (policy, expected) in presets.iter().zip(verdicts) {
            let layer = StatusErrorClassifierLayer::new(policy.clone());
            let seen = match outcome(&layer, answer(status, Full::<Bytes>::from("body"))).await {
                Ok(answer) => {
                    assert_eq!(answer.status().as_u16(), status);
                    let body = answer.into_body().collect().await.unwrap().to_bytes();
                    assert_eq!(body, "body", "the body of a success is untouched");
                    Verdict::Success
                }
                Err(error) => {
                    let error = error.downcast::<StatusError>().unwrap();
                    assert_ne!(error.verdict(), Verdict::Success);
                    assert_eq!(error.status().as_u16(), status);
                    error.verdict()
                }
            };
            assert_eq!(seen, expected, "{status} by {policy:?}");
        }
    }
}

#[test]
fn a_word_on_one_status_leaves_the_others_as_they_are() {
    for policy in [
        StatusPolicy::feign().ignored(StatusCode::GONE),
        StatusPolicy::feign().success(StatusCode::GONE),
        StatusPolicy::feign().failure(StatusCode::OK),
    ] {
        assert_eq!(
            policy.verdict(StatusCode::NOT_FOUND),
            Verdict::Failure,
            "{policy:?}"
        );
    }
}

#[test]
fn by_default_every_transient_status_is_a_failure() {
    for status in StatusSet::TRANSIENT.iter() {
        assert_eq!(
            StatusPolicy::default().verdict(status),
            Verdict::Failure,
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_missing_page_is_an_error_that_nobody_counts() {
    // CLS-01: the breaker asks for the verdict, however the error was wrapped on its way up.
    let error = outcome(&by_default(), answer(404, Empty::<Bytes>::new()))
        .await
        .unwrap_err();
    let wrapped: BoxError = Box::new(io::Error::other(FaultError::new(Fault::of(&*error), error)));
    assert_eq!(Verdict::of(&*wrapped), Verdict::Ignored);
    assert_eq!(
        Fault::of(&*wrapped).kind(),
        FaultKind::Status(StatusCode::NOT_FOUND)
    );
}

#[tokio::test]
async fn one_policy_gives_one_verdict_at_every_place() {
    // CLS-08: with a policy that turns common sense around.
    let policy = StatusPolicy::default()
        .failure(StatusCode::NOT_FOUND)
        .success(StatusCode::SERVICE_UNAVAILABLE);
    let layer = StatusErrorClassifierLayer::new(policy.clone());

    let missing = answer(404, Empty::<Bytes>::new());
    assert_eq!(policy.classify(Ok(&missing)), Verdict::Failure, "as an answer");
    let error = outcome(&layer, missing).await.unwrap_err();
    assert_eq!(
        Classify::<Response<()>>::classify(&policy, Err(&*error)),
        Verdict::Failure,
        "as an error"
    );
    assert_eq!(
        Classify::<Response<()>>::classify(&ByFault, Err(&*error)),
        Verdict::Failure,
        "for a layer that knows no statuses"
    );
    // Another policy does not overrule the verdict that was given.
    let other = StatusPolicy::client_errors_ignored();
    assert_eq!(
        Classify::<Response<()>>::classify(&other, Err(&*error)),
        Verdict::Failure
    );

    let busy = answer(503, Empty::<Bytes>::new());
    assert_eq!(policy.classify(Ok(&busy)), Verdict::Success);
    assert!(outcome(&layer, busy).await.is_ok());
}

#[test]
fn as_a_classifier_it_leaves_other_errors_to_their_fault() {
    let verdict = |error: &(dyn std::error::Error + Send + Sync + 'static)| {
        Classify::<Response<()>>::classify(&StatusPolicy::default(), Err(error))
    };
    assert_eq!(
        verdict(&io::Error::from(io::ErrorKind::ConnectionReset)),
        Verdict::Failure
    );
    let nowhere = FaultError::new(Fault::new(FaultKind::NoEndpoint, Sent::No), "nowhere to go");
    assert_eq!(verdict(&nowhere), Verdict::Ignored);
}

#[tokio::test]
async fn the_error_has_the_whole_body_and_the_body_is_gone_by_then() {
    // CLS-05
    let counts = Counts::default();
    let text = "x".repeat(1024);
    let mut response = answer(503, counts.watch(Full::<Bytes>::from(text.clone())));
    response.headers_mut().insert("retry-after", "2".parse().unwrap());
    response.headers_mut().insert("x-id", "7".parse().unwrap());

    let error = error(&by_default(), response).await;

    assert_eq!(counts.drops(), 1, "before another attempt could start");
    assert!(error.complete());
    assert_eq!(error.body(), &text);
    assert_eq!(error.headers()["x-id"], "7");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(
        Fault::of(&error).retry_after(),
        Some(Duration::from_secs(2)),
        "and retry layers see it"
    );
}

#[tokio::test]
async fn a_body_is_kept_up_to_the_bound() {
    for (bound, kept, complete) in [
        (0, "", false),
        (1, "a", false),
        (5, "abcde", false),
        (6, "abcdef", true),
        (7, "abcdef", true),
    ] {
        let layer = by_default().max_body(bound).unwrap();

        let whole = error(&layer, answer(500, Full::<Bytes>::from("abcdef"))).await;
        assert_eq!(
            (&whole.body()[..], whole.complete()),
            (kept.as_bytes(), complete),
            "one frame, bound {bound}"
        );

        let frames = "abcdef"
            .chars()
            .map(|c| Ok::<_, Infallible>(Frame::data(Bytes::from(c.to_string()))))
            .chain([Ok(Frame::trailers(HeaderMap::new()))]);
        let stream = StreamBody::new(futures_util::stream::iter(frames));
        let parted = error(&layer, answer(500, stream)).await;
        assert_eq!(
            (&parted.body()[..], parted.complete()),
            (kept.as_bytes(), complete),
            "many frames and trailers, bound {bound}"
        );
    }
}

#[tokio::test]
async fn sixteen_kibibytes_are_kept_unless_said_otherwise() {
    let size = 16 * 1024;
    for (length, complete) in [(size, true), (size + 1, false)] {
        let error = error(
            &by_default(),
            answer(500, Full::<Bytes>::from(vec![b'x'; length])),
        )
        .await;
        assert_eq!((error.body().len(), error.complete()), (size, complete));
    }
}

#[tokio::test]
async fn an_empty_body_is_not_polled() {
    // As the answer to a HEAD request has one, whatever its Content-Length says.
    let counts = Counts::default();
    let mut response = answer(503, counts.watch(Empty::<Bytes>::new()));
    response
        .headers_mut()
        .insert("content-length", "1000000".parse().unwrap());
    let error = error(&by_default(), response).await;
    assert!(error.complete() && error.body().is_empty());
    assert_eq!((counts.polls(), counts.drops()), (0, 1));
}

#[tokio::test]
async fn a_body_of_known_size_is_read_with_one_poll() {
    let counts = Counts::default();
    let error = error(
        &by_default(),
        answer(503, counts.watch(Full::<Bytes>::from("busy"))),
    )
    .await;
    assert!(error.complete());
    assert_eq!(counts.polls(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_does_not_change_the_outcome() {
    let frames = [
        Ok(Frame::data(Bytes::from("half"))),
        Err(io::Error::from(io::ErrorKind::ConnectionReset)),
    ];
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let error = error(&by_default(), answer(500, body)).await;
    assert_eq!(error.status(), 500);
    assert_eq!((&error.body()[..], error.complete()), (&b"half"[..], false));
}

/// A body that has begun and goes no further; it stalls as long as the sender lives.
async fn stalled() -> (Sender<Bytes, io::Error>, Channel<Bytes, io::Error>) {
    let (mut sender, body) = Channel::new(4);
    sender.send_data(Bytes::from("half")).await.unwrap();
    (sender, body)
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_costs_the_wait_and_does_not_change_the_outcome() {
    for (layer, expected) in [
        (by_default(), Duration::from_secs(1)),
        (
            by_default().body_wait(Duration::from_millis(300)).unwrap(),
            Duration::from_millis(300),
        ),
        (by_default().body_wait(Duration::ZERO).unwrap(), Duration::ZERO),
    ] {
        let (_sender, body) = stalled().await;
        let counts = Counts::default();
        let start = Instant::now();
        let error = error(&layer, answer(500, counts.watch(body))).await;
        assert_eq!(start.elapsed(), expected);
        assert_eq!(error.status(), 500);
        assert_eq!((&error.body()[..], error.complete()), (&b"half"[..], false));
        assert_eq!(counts.drops(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_a_total_and_not_started_anew_by_each_byte() {
    let (mut sender, body) = Channel::<Bytes, io::Error>::new(1);
    let drip = tokio::spawn(async move {
        while sender.send_data(Bytes::from("x")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    });
    let start = Instant::now();
    let error = error(&by_default(), answer(500, body)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!((&error.body()[..], error.complete()), (&b"xxx"[..], false));
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_in_time_is_whole() {
    let (mut sender, body) = stalled().await;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(999)).await;
        sender.send_data(Bytes::from(" and half")).await.unwrap();
    });
    let error = error(&by_default(), answer(500, body)).await;
    assert_eq!(
        (&error.body()[..], error.complete()),
        (&b"half and half"[..], true)
    );
}

#[tokio::test(start_paused = true)]
async fn the_body_is_waited_for_no_longer_than_to_the_deadline_of_the_call() {
    for (left, expected) in [(200, 200), (0, 0), (5000, 1000)] {
        let (_sender, body) = stalled().await;
        let mut body = Some(body);
        let mut service = by_default().layer(service_fn(move |()| {
            ready(Ok::<_, Infallible>(answer(500, body.take().unwrap())))
        }));
        let start = Instant::now();
        let mut scope = CallScope::begin();
        scope.narrow(start + Duration::from_millis(left));
        let mut call = Box::pin(service.call(()));
        let outcome = std::future::poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
        assert!(outcome.unwrap_err().is::<StatusError>());
        assert_eq!(start.elapsed(), Duration::from_millis(expected), "{left} ms left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_ready_for_ever_ends_with_the_wait() {
    #[derive(Debug)]
    struct Endless;
    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::new()))))
        }
    }
    let mut body = Some(Endless);
    let mut service = by_default().layer(service_fn(move |()| {
        ready(Ok::<_, Infallible>(answer(500, body.take().unwrap())))
    }));
    let mut call = task::spawn(service.call(()));
    assert_pending!(call.poll());
    assert!(call.is_woken());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(assert_ready_err!(call.poll()).is::<StatusError>());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_the_attempt_and_the_body() {
    let counts = Counts::default();
    let (_sender, body) = stalled().await;
    let mut body = Some(counts.watch(body));
    let mut service = by_default().layer(service_fn(move |()| {
        ready(Ok::<_, Infallible>(answer(500, body.take().unwrap())))
    }));
    let mut call = task::spawn(service.call(()));
    assert_pending!(call.poll());
    assert_eq!(counts.drops(), 0);
    drop(call);
    assert_eq!(counts.drops(), 1);

    struct Attempt(Arc<AtomicUsize>);
    impl Drop for Attempt {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let mut service = by_default().layer(service_fn(|()| {
        let attempt = Attempt(drops.clone());
        async move {
            let _attempt = attempt;
            std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>().await
        }
    }));
    let mut call = task::spawn(service.call(()));
    assert_pending!(call.poll());
    drop(call);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_attempt_is_dropped_before_the_body_of_its_error_is_read() {
    let attempt = Arc::new(());
    let held = attempt.clone();
    let (_sender, body) = stalled().await;
    let mut body = Some(body);
    let mut service = by_default().layer(service_fn(move |()| {
        let (held, body) = (held.clone(), body.take().unwrap());
        // A future that keeps what it holds until it is dropped.
        let mut answer = Some(answer(500, body));
        std::future::poll_fn(move |_| {
            let _ = &held;
            Poll::Ready(Ok::<_, Infallible>(answer.take().unwrap()))
        })
    }));
    let mut call = task::spawn(service.call(()));
    assert_eq!(Arc::strong_count(&attempt), 3);
    assert_pending!(call.poll());
    assert_eq!(Arc::strong_count(&attempt), 2);
}

#[tokio::test]
async fn errors_from_below_pass_unchanged() {
    let mut service = by_default().layer(service_fn(|()| {
        ready(Err::<Response<Empty<Bytes>>, _>(io::Error::from(
            io::ErrorKind::ConnectionReset,
        )))
    }));
    let error = service.ready().await.unwrap().call(()).await.unwrap_err();
    assert_eq!(
        error.downcast::<io::Error>().unwrap().kind(),
        io::ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn readiness_passes_through() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_with(|inner| by_default().layer(inner.map_response(only_a_head)));
    fn only_a_head(status: u16) -> Response<Empty<Bytes>> {
        answer(status, Empty::new())
    }

    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    let mut call = task::spawn(service.call("request"));
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(request, "request");
    assert_pending!(call.poll());
    respond.send_response(204);
    assert_eq!(assert_ready!(call.poll()).unwrap().status(), 204);

    handle.allow(1);
    handle.send_error("dead for good");
    assert_eq!(
        assert_ready_err!(service.poll_ready()).to_string(),
        "dead for good"
    );
}

#[test]
fn bounds_that_cannot_be_right_are_refused_when_the_layer_is_built() {
    const MIB: usize = 1024 * 1024;
    assert!(by_default().max_body(16 * MIB).is_ok());
    let error = by_default().max_body(16 * MIB + 1).unwrap_err();
    assert_eq!(
        (error.layer(), error.field(), error.value()),
        ("StatusErrorClassifier", "max_body", "16777217")
    );
    assert!(by_default().body_wait(LONGEST).is_ok());
    let error = by_default().body_wait(Duration::MAX).unwrap_err();
    assert_eq!(error.field(), "body_wait");
}

#[test]
fn the_policy_can_be_asked_at_the_layer_and_at_the_service() {
    let policy = StatusPolicy::feign();
    let layer = StatusErrorClassifierLayer::new(policy.clone());
    let mut service = layer.layer(7);
    assert_eq!((layer.policy(), service.policy()), (&policy, &policy));
    assert_eq!(StatusErrorClassifier::new(7, policy.clone()).policy(), &policy);
    assert_eq!(
        StatusErrorClassifierLayer::default().policy(),
        &StatusPolicy::default()
    );
    *service.get_mut() += 1;
    assert_eq!(*service.get_ref(), 8);
    assert_eq!(service.into_inner(), 8);
}

#[test]
fn everything_is_send_sync_and_what_should_be_is_clone() {
    fn send_sync<T: Send + Sync + 'static>() {}
    fn clone<T: Clone + Send + Sync + 'static>() {}
    clone::<StatusPolicy>();
    clone::<StatusErrorClassifierLayer>();
    clone::<StatusErrorClassifier<tower::util::BoxCloneSyncService<(), (), BoxError>>>();
    send_sync::<StatusErrorClassifierFuture<Answered<Full<Bytes>>, Full<Bytes>>>();

    fn service<S: Service<Request<()>, Error = BoxError>>(_: &S) {}
    service(&by_default().layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(answer(200, Empty::<Bytes>::new())))
    })));
}

#[test]
fn a_call_carries_little_more_than_the_policy() {
    // The room for reading an error is made when there is one.
    type Call = StatusErrorClassifierFuture<
        std::future::Pending<Result<Response<Full<Bytes>>, Infallible>>,
        Full<Bytes>,
    >;
    assert!(size_of::<Call>() <= 112, "{}", size_of::<Call>());
}
