//! Bodies of requests that are sent again: what each attempt sends, what is kept for it, and what the caller is told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody, channel::Channel};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Duration, Instant, sleep},
};
use tokio_test::{assert_ready, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Nest,
    balance::{LoadBalanceLayer, RoundRobin},
    call::{
        CallScope, Endpoint, Fault, FaultKind, KeptReplay, NotRetried, OnceBody, RepeatBody, ReplayBody,
        RetryTo, StatusError, StatusSet, Trail,
    },
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    nest::{HttpNest, client::Client},
    retry::{
        Again, Backoff, BackoffRetryLayer, FailedAttempt, Idempotent, IdempotentRetryLayer, RetryLayer,
        RetryPolicy,
    },
};

type Stream = Channel<Bytes, BoxError>;
type Answer = Response<Full<Bytes>>;
type Outcome = Result<Answer, BoxError>;

const CAP: usize = 64 * 1024;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn post<B>(body: B) -> Request<B> {
    Request::post("http://orders/").body(body).unwrap()
}

fn answer(status: u16) -> Answer {
    Response::builder().status(status).body(Full::default()).unwrap()
}

fn refused() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionRefused).into()
}

/// Retries what was sent, too, as all the scenarios do.
fn all_operations() -> Idempotent {
    Idempotent::default().ok_to_retry_on_all_operations()
}

fn at_once() -> IdempotentRetryLayer {
    IdempotentRetryLayer::new(all_operations())
}

/// Retries each fault after this pause.
fn after(pause: Duration, attempts: u32) -> BackoffRetryLayer {
    let policy = Backoff::builder()
        .attempts(attempts)
        .base(pause)
        .max(pause)
        .factor(1.0)
        .jitter(tower_outbound::retry::Jitter::None)
        .retry_unsafe_that_may_have_been_sent();
    BackoffRetryLayer::new(policy.build().unwrap())
}

/// A service that does as a script says with each attempt, by its number from 0 on.
fn scripted<B, F: Future<Output = Outcome>>(
    script: impl Fn(usize, B) -> F + Clone,
) -> (
    impl Service<Request<B>, Response = Answer, Error = BoxError, Future = F> + Clone,
    Arc<AtomicUsize>,
) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&attempts);
    let service =
        service_fn(move |request: Request<B>| script(seen.fetch_add(1, SeqCst), request.into_body()));
    (service, attempts)
}

async fn read<B: Body<Data = Bytes> + Unpin>(body: &mut B, frames: usize) -> Vec<Bytes>
where
    B::Error: std::fmt::Debug,
{
    let mut data = Vec::new();
    for _ in 0..frames {
        match body.frame().await {
            Some(frame) => data.extend(frame.unwrap().into_data()),
            None => break,
        }
    }
    data
}

async fn collect<B: Body<Data = Bytes>>(body: B) -> Bytes
where
    B::Error: std::fmt::Debug,
{
    body.collect().await.unwrap().to_bytes()
}

fn reasons(error: &BoxError) -> Vec<NotRetried> {
    let trail = Trail::of(&**error).expect("a trail");
    trail.stops().map(|stop| stop.reason()).collect()
}

/// Calls within a scope, and tells as well why no retry was made.
async fn told<F: Future>(call: F) -> (F::Output, Vec<NotRetried>) {
    let mut scope = CallScope::begin();
    let mut call = pin!(call);
    let outcome = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
    let reasons = scope.take_trail().map_or_else(Vec::new, |trail| {
        trail.stops().map(|stop| stop.reason()).collect()
    });
    (outcome, reasons)
}

/// Counts the bytes of data that are held anywhere.
#[derive(Clone, Default)]
struct Memory {
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Held(Vec<u8>, Memory);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.1.held.fetch_sub(self.0.len(), SeqCst);
    }
}

impl Memory {
    fn data(&self, data: Vec<u8>) -> Bytes {
        let held = self.held.fetch_add(data.len(), SeqCst) + data.len();
        self.most.fetch_max(held, SeqCst);
        Bytes::from_owner(Held(data, self.clone()))
    }

    fn held(&self) -> usize {
        self.held.load(SeqCst)
    }

    fn most(&self) -> usize {
        self.most.load(SeqCst)
    }
}

/// A stream of that many frames of that size, each made when it is read.
struct Long {
    frames: usize,
    size: usize,
    polls: Arc<AtomicUsize>,
    memory: Memory,
}

impl Long {
    fn new(frames: usize, size: usize) -> Self {
        Long {
            frames,
            size,
            polls: Arc::default(),
            memory: Memory::default(),
        }
    }
}

impl Body for Long {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.polls.fetch_add(1, SeqCst);
        if self.frames == 0 {
            return Poll::Ready(None);
        }
        self.frames -= 1;
        let data = self.memory.data(vec![self.frames as u8; self.size]);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

// ---- what the second attempt sends ----

#[tokio::test(start_paused = true)]
async fn bdy_01_a_body_is_sent_again_whole_with_its_length_whatever_it_is_in() {
    for size in [0, 1, 5, CAP] {
        for chunk in [1 << 20, 7_000] {
            let body = Bytes::from((0..size).map(|n| n as u8).collect::<Vec<_>>());
            let known = ReplayBody::new(Full::new(body.clone()).map_err(BoxError::from).boxed());
            let chunks: Vec<_> = body.chunks(chunk).map(Bytes::copy_from_slice).collect();
            let frames = chunks
                .into_iter()
                .map(|data| Ok::<_, io::Error>(Frame::data(data)));
            let stream = futures_util::stream::iter(frames.collect::<Vec<_>>());
            let streamed = ReplayBody::new(StreamBody::new(stream).map_err(BoxError::from).boxed());
            for (replay, lengths) in [
                (known, [Some(size as u64); 2]),
                (streamed, [None, Some(size as u64)]),
            ] {
                let seen = Arc::new(Mutex::new(Vec::new()));
                let log = Arc::clone(&seen);
                let (service, attempts) = scripted(move |n, body: ReplayBody<_>| {
                    log.lock().unwrap().push(body.size_hint().exact());
                    async move {
                        let data = collect(body).await;
                        let status = if n == 0 { 503 } else { 200 };
                        Ok(Response::builder().status(status).body(Full::new(data)).unwrap())
                    }
                });
                let stack = at_once().retry_statuses(StatusSet::TRANSIENT).layer(service);
                let answer = stack.oneshot(post(replay)).await.unwrap();
                assert_eq!((answer.status(), attempts.load(SeqCst)), (StatusCode::OK, 2));
                assert_eq!(collect(answer.into_body()).await, body);
                assert_eq!(*seen.lock().unwrap(), lengths, "{size} bytes");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_06_a_retry_that_begins_after_0_1_or_2_chunks_were_read_sends_the_same_bytes() {
    for polled in 0..=2 {
        let (mut sender, body) = Stream::new(1);
        tokio::spawn(async move {
            for chunk in ["ab", "cd"] {
                sleep(ms(500)).await;
                sender.send_data(Bytes::from(chunk)).await.unwrap();
            }
        });
        let (service, attempts) = scripted(move |n, mut body: ReplayBody<Stream>| async move {
            if n == 0 {
                assert_eq!(read(&mut body, polled).await.len(), polled);
                sleep(ms(10)).await;
                return Err(refused());
            }
            Ok(Response::new(Full::new(collect(body).await)))
        });
        let answer = at_once().layer(service).oneshot(post(ReplayBody::new(body)));
        let answer = answer.await.unwrap();
        assert_eq!(collect(answer.into_body()).await, "abcd", "after {polled} chunks");
        assert_eq!(attempts.load(SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_06_an_attempt_that_was_asking_for_the_first_chunk_takes_nothing_from_the_next() {
    let (mut sender, body) = Stream::new(1);
    tokio::spawn(async move {
        for chunk in ["ab", "cd"] {
            sleep(ms(500)).await;
            sender.send_data(Bytes::from(chunk)).await.unwrap();
        }
    });
    let (tell, ended) = oneshot::channel();
    let tell = Arc::new(Mutex::new(Some(tell)));
    // As a connection does, the first attempt goes on asking for data after it has failed.
    let (service, _) = scripted(move |n, mut body: ReplayBody<Stream>| {
        let tell = tell.lock().unwrap().take();
        async move {
            if n > 0 {
                return Ok(Response::new(Full::new(collect(body).await)));
            }
            tokio::spawn(async move { tell.unwrap().send((body.frame().await, Instant::now())).ok() });
            sleep(ms(10)).await;
            Err(refused())
        }
    });
    let start = Instant::now();
    let answer = at_once().layer(service).oneshot(post(ReplayBody::new(body)));
    assert_eq!(collect(answer.await.unwrap().into_body()).await, "abcd");
    let (frame, when) = ended.await.unwrap();
    assert!(frame.unwrap().is_err(), "it must not be taken for complete");
    assert_eq!(when - start, ms(10), "it is told at once");
}

#[tokio::test(start_paused = true)]
async fn bdy_11_trailers_are_sent_once_with_each_attempt() {
    let (mut sender, body) = Stream::new(4);
    sender.send_data(Bytes::from("ab")).await.unwrap();
    sender.send_data(Bytes::from("cd")).await.unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("t", "1".parse().unwrap());
    sender.send_trailers(trailers.clone()).await.unwrap();
    drop(sender);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (service, _) = scripted(move |n, mut body: ReplayBody<Stream>| {
        let log = Arc::clone(&log);
        async move {
            // Over HTTP/1 trailers cannot follow a body whose length was said.
            assert_eq!(body.size_hint().exact(), None);
            let mut frames = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.unwrap();
                frames.push((frame.data_ref().cloned(), frame.trailers_ref().cloned()));
            }
            assert!(body.is_end_stream() && body.frame().await.is_none());
            log.lock().unwrap().push(frames);
            if n < 2 { Err(refused()) } else { Ok(answer(200)) }
        }
    });
    let stack = after(ms(1), 3).layer(service);
    stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    let expected = vec![
        (Some(Bytes::from("ab")), None),
        (Some(Bytes::from("cd")), None),
        (None, Some(trailers)),
    ];
    assert_eq!(*seen.lock().unwrap(), vec![expected; 3]);
}

#[tokio::test(start_paused = true)]
async fn trailers_count_for_the_cap_as_data_does() {
    for (cap, sent) in [(6, 2), (5, 1)] {
        let (mut sender, body) = Stream::new(4);
        sender.send_data(Bytes::from("abcd")).await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("t", "1".parse().unwrap());
        sender.send_trailers(trailers).await.unwrap();
        let (service, attempts) = scripted(move |n, body: ReplayBody<Stream>| async move {
            assert_eq!(collect(body).await, "abcd");
            Ok(answer(if n == 0 { 503 } else { 200 }))
        });
        let stack = at_once().retry_statuses(StatusSet::TRANSIENT).layer(service);
        let request = post(ReplayBody::with_cap(body, cap));
        let (_, reasons) = told(stack.oneshot(request)).await;
        assert_eq!(attempts.load(SeqCst), sent);
        assert_eq!(reasons.contains(&NotRetried::BodyBeyondCap { cap }), sent == 1);
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_08_a_body_that_nobody_has_read_is_handed_on_whole_whatever_its_size() {
    const FRAMES: usize = 640;
    let body = Long::new(FRAMES, 16 * 1024);
    let (polls, memory) = (Arc::clone(&body.polls), body.memory.clone());
    let (service, attempts) = scripted(move |n, mut body: ReplayBody<Long>| {
        let polls = Arc::clone(&polls);
        async move {
            if n < 2 {
                return Err(refused());
            }
            assert_eq!(polls.load(SeqCst), 0, "nothing is read ahead of an attempt");
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                length += frame.unwrap().data_ref().unwrap().len();
            }
            assert_eq!(length, FRAMES * 16 * 1024);
            Ok(answer(200))
        }
    });
    let stack = after(ms(100), 3).layer(service);
    stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    assert_eq!(attempts.load(SeqCst), 3);
    assert!(memory.most() <= CAP + 16 * 1024, "{}", memory.most());
}

// ---- where there is no second attempt ----

#[tokio::test(start_paused = true)]
async fn bdy_08_a_body_that_was_read_beyond_the_cap_is_not_sent_again_and_the_trail_says_so() {
    for (frames, reason) in [(4, None), (5, Some(NotRetried::BodyBeyondCap { cap: CAP }))] {
        let body = Long::new(640, 16 * 1024);
        let memory = body.memory.clone();
        let (service, attempts) = scripted(move |n, mut body: ReplayBody<Long>| async move {
            if n == 0 {
                assert_eq!(read(&mut body, frames).await.len(), frames);
                return Err(refused());
            }
            Ok(answer(200))
        });
        let stack = at_once().layer(service);
        match (stack.oneshot(post(ReplayBody::new(body))).await, reason) {
            (Ok(_), None) => assert_eq!(attempts.load(SeqCst), 2),
            (Err(error), Some(reason)) => {
                assert_eq!(attempts.load(SeqCst), 1);
                assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
                assert_eq!(reasons(&error), [reason]);
                assert!(error.to_string().contains("than the 65536 bytes that are kept"));
            }
            (outcome, _) => panic!("{frames} frames: {outcome:?}"),
        }
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_02_a_stream_that_cannot_be_sent_again_goes_through_once_and_its_answer_comes_back() {
    /// A service that reads all, and answers with this status.
    fn reads<B: Body<Data = Bytes> + Send + 'static>(
        status: u16,
    ) -> (
        impl Service<Request<B>, Response = Answer, Error = BoxError> + Clone,
        Arc<AtomicUsize>,
    )
    where
        B::Error: std::fmt::Debug,
    {
        scripted(move |_, body: B| async move {
            assert_eq!(collect(body).await, "hello");
            Ok(answer(status))
        })
    }
    async fn body() -> Stream {
        let (mut sender, body) = Stream::new(8);
        sender.send_data(Bytes::from("hel")).await.unwrap();
        sender.send_data(Bytes::from("lo")).await.unwrap();
        body
    }
    let layer = at_once().retry_statuses(StatusSet::TRANSIENT);
    for status in [200, 503] {
        let (service, attempts) = reads(status);
        let call = layer.layer(service).oneshot(post(OnceBody::new(body().await)));
        let (answer, reasons) = told(call).await;
        assert_eq!(
            (answer.unwrap().status().as_u16(), attempts.load(SeqCst)),
            (status, 1)
        );
        let expected: &[_] = if status == 503 {
            &[NotRetried::BodyNotRepeatable]
        } else {
            &[]
        };
        assert_eq!(reasons, expected);

        let (service, attempts) = reads(status);
        let call = layer
            .layer(service)
            .oneshot(post(ReplayBody::with_cap(body().await, 4)));
        let (answer, reasons) = told(call).await;
        assert_eq!(
            (answer.unwrap().status().as_u16(), attempts.load(SeqCst)),
            (status, 1)
        );
        let expected: &[_] = if status == 503 {
            &[NotRetried::BodyBeyondCap { cap: 4 }]
        } else {
            &[]
        };
        assert_eq!(reasons, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_03_what_is_kept_is_bounded_by_what_comes_and_not_by_what_was_announced() {
    for (chunk, status) in [1_024, 16_384, 100_000]
        .into_iter()
        .flat_map(|chunk| [(chunk, 200), (chunk, 503)])
    {
        let frames = (1 << 20) / chunk;
        let body = Long::new(frames, chunk);
        let memory = body.memory.clone();
        let (service, attempts) = scripted(move |_, mut body: ReplayBody<Long>| async move {
            let mut count = 0;
            while let Some(frame) = body.frame().await {
                frame.unwrap();
                count += 1;
            }
            assert_eq!(count, frames);
            Ok(answer(status))
        });
        let stack = at_once().retry_statuses(StatusSet::TRANSIENT).layer(service);
        let mut request = post(ReplayBody::new(body));
        request
            .headers_mut()
            .insert("content-length", "10".parse().unwrap());
        let (answer, reasons) = told(stack.oneshot(request)).await;
        assert_eq!(
            (answer.unwrap().status().as_u16(), attempts.load(SeqCst)),
            (status, 1)
        );
        assert_eq!(
            reasons.contains(&NotRetried::BodyBeyondCap { cap: CAP }),
            status == 503
        );
        assert!(memory.most() <= CAP + chunk, "{} in {chunk}", memory.most());
    }
}

/// The same stream, whose length is known.
struct Announced(Long);

impl Body for Announced {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.0.frames * self.0.size) as u64)
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_says_it_is_too_long_is_never_kept() {
    for (frames, kept) in [(64, 1_024), (65, 0)] {
        let body = Announced(Long::new(frames, 1_024));
        let memory = body.0.memory.clone();
        let (service, attempts) = scripted(move |n, mut body: ReplayBody<Announced>| {
            let memory = memory.clone();
            async move {
                if n > 0 {
                    return Ok(answer(200));
                }
                drop(body.frame().await);
                assert_eq!(memory.held(), kept);
                assert_eq!(body.size_hint().exact(), Some((frames as u64 - 1) * 1_024));
                Err(refused())
            }
        });
        let stack = at_once().layer(service);
        let (outcome, reasons) = told(stack.oneshot(post(ReplayBody::new(body)))).await;
        assert_eq!(outcome.is_ok(), kept > 0);
        assert_eq!(attempts.load(SeqCst), 1 + usize::from(kept > 0));
        assert_eq!(
            reasons.contains(&NotRetried::BodyBeyondCap { cap: CAP }),
            kept == 0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_is_not_sent_again_and_its_error_is_no_word_on_the_request() {
    let (mut sender, body) = Stream::new(4);
    sender.send_data(Bytes::from("ab")).await.unwrap();
    sender.abort(refused());
    let (service, attempts) = scripted(|_, mut body: ReplayBody<Stream>| async move {
        body.frame().await.unwrap().unwrap();
        Err(body.frame().await.unwrap().unwrap_err())
    });
    let stack = at_once().layer(service);
    let error = stack.oneshot(post(ReplayBody::new(body))).await.unwrap_err();
    assert_eq!(attempts.load(SeqCst), 1);
    assert_eq!(Fault::of(&*error).kind(), FaultKind::Write);
    assert_eq!(reasons(&error), [NotRetried::BodyNotRepeatable]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_where_no_retry_can_follow() {
    // Nobody above retries, or the call has ended with an early answer and its upload goes on.
    let memory = Memory::default();
    let data: Vec<_> = (0..4).map(|n| memory.data(vec![n; 1_000])).collect();
    let (mut sender, body) = Stream::new(4);
    let (tell, uploading) = oneshot::channel();
    let tell = Arc::new(Mutex::new(Some(tell)));
    let (service, _) = scripted(move |_, mut body: ReplayBody<Stream>| {
        let tell = tell.lock().unwrap().take();
        async move {
            drop(read(&mut body, 2).await);
            let _ = tell.unwrap().send(body);
            Ok(answer(200))
        }
    });
    let mut data = VecDeque::from(data);
    for _ in 0..2 {
        sender.send_data(data.pop_front().unwrap()).await.unwrap();
    }
    let mut stack = at_once().layer(service);
    // The future may be held for longer than it runs.
    let mut call = Box::pin(stack.call(post(ReplayBody::new(body))));
    call.as_mut().await.unwrap();
    let mut upload = uploading.await.unwrap();
    for left in [1, 0] {
        sender.send_data(data.pop_front().unwrap()).await.unwrap();
        drop(upload.frame().await.unwrap().unwrap());
        assert_eq!(memory.held(), left * 1_000);
    }
    drop(sender);
    assert!(upload.frame().await.is_none(), "and it ends as it should");
}

// ---- attempts that overlap ----

/// A first attempt that answers 503 after one chunk, while its connection takes the rest of the upload. The answer of
/// the second is the body that it got.
fn early_503(
    uploads: &Arc<Mutex<Vec<Result<(), ()>>>>,
) -> (
    impl Service<Request<ReplayBody<Stream>>, Response = Answer, Error = BoxError> + Clone,
    Arc<AtomicUsize>,
) {
    let uploads = Arc::clone(uploads);
    scripted(move |n, mut body: ReplayBody<Stream>| {
        let uploads = Arc::clone(&uploads);
        async move {
            if n > 0 {
                return Ok(Response::new(Full::new(collect(body).await)));
            }
            body.frame().await.unwrap().unwrap();
            tokio::spawn(async move {
                let end = loop {
                    match body.frame().await {
                        Some(Ok(_)) => {}
                        Some(Err(_)) => break Err(()),
                        None => break Ok(()),
                    }
                };
                uploads.lock().unwrap().push(end);
            });
            Ok(answer(503))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn bdy_12_a_retry_is_given_up_when_more_than_the_cap_comes_while_it_waits() {
    let uploads = Arc::default();
    let (service, attempts) = early_503(&uploads);
    let (mut sender, body) = Stream::new(1);
    let producer = tokio::spawn(async move {
        sender.send_data(Bytes::from("first")).await.unwrap();
        sleep(ms(300)).await;
        let mut sent = 0;
        while sender.send_data(Bytes::from(vec![0; 16 * 1024])).await.is_ok() {
            sent += 1;
            assert!(sent < 100, "the producer must see that nobody reads");
            sleep(ms(1)).await;
        }
        sent
    });
    let start = Instant::now();
    let stack = ServiceBuilder::new()
        .layer(after(ms(1_000), 2))
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(service);
    let error = stack.oneshot(post(ReplayBody::new(body))).await.unwrap_err();
    assert_eq!(StatusError::of(&*error).unwrap().status(), 503);
    assert_eq!(
        reasons(&error),
        [NotRetried::BodyBeyondCap { cap: CAP }],
        "{error}"
    );
    assert_eq!(attempts.load(SeqCst), 1);
    let took = start.elapsed();
    assert!(
        ms(300) <= took && took < ms(310),
        "at once, and not after the pause: {took:?}"
    );
    assert!(producer.await.unwrap() <= 6);
    assert_eq!(*uploads.lock().unwrap(), [Err(())], "its upload ended, too");
}

#[tokio::test(start_paused = true)]
async fn bdy_12_up_to_the_cap_the_upload_goes_on_while_the_retry_waits_and_all_of_it_is_sent_again() {
    let uploads = Arc::default();
    let (service, _) = early_503(&uploads);
    let (mut sender, body) = Stream::new(1);
    tokio::spawn(async move {
        for chunk in ["ab", "cd", "ef"] {
            sender.send_data(Bytes::from(chunk)).await.unwrap();
            sleep(ms(100)).await;
        }
    });
    let stack = ServiceBuilder::new()
        .layer(after(ms(1_000), 2))
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(service);
    let answer = stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    assert_eq!(collect(answer.into_body()).await, "abcdef");
    assert_eq!(
        *uploads.lock().unwrap(),
        [Ok(())],
        "so its connection can be used again"
    );
}

#[tokio::test(start_paused = true)]
async fn bdy_12_where_nobody_reads_while_the_retry_waits_the_producer_waits_and_all_is_sent() {
    let (mut sender, body) = Stream::new(1);
    let producer = tokio::spawn(async move {
        for n in 0..64 {
            sender.send_data(Bytes::from(vec![n; 16 * 1024])).await.unwrap();
        }
    });
    let (service, _) = scripted(move |n, mut body: ReplayBody<Stream>| async move {
        if n == 0 {
            body.frame().await.unwrap().unwrap();
            return Ok(answer(503));
        }
        Ok(Response::new(Full::new(collect(body).await)))
    });
    let stack = ServiceBuilder::new()
        .layer(after(ms(1_000), 2))
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(service);
    let answer = stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    let expected: Vec<u8> = (0..64).flat_map(|n| [n; 16 * 1024]).collect();
    assert!(collect(answer.into_body()).await == expected);
    producer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bdy_12_an_answer_that_was_thrown_away_for_a_retry_is_not_missed_since_nothing_comes_between() {
    let uploads = Arc::default();
    let (service, attempts) = early_503(&uploads);
    let (mut sender, body) = Stream::new(1);
    tokio::spawn(async move {
        for n in 0..64 {
            sender.send_data(Bytes::from(vec![n; 16 * 1024])).await.unwrap();
            sleep(ms(1)).await;
        }
    });
    let stack = after(ms(1_000), 2)
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service);
    let answer = stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    assert_eq!((answer.status(), attempts.load(SeqCst)), (StatusCode::OK, 2));
    let expected: Vec<u8> = (0..64).flat_map(|n| [n; 16 * 1024]).collect();
    assert!(collect(answer.into_body()).await == expected);
    assert_eq!(*uploads.lock().unwrap(), [Err(())]);
}

/// Sends 16 KiB each millisecond from 300 ms on, 64 times.
fn produces(mut sender: http_body_util::channel::Sender<Bytes, BoxError>) {
    tokio::spawn(async move {
        sender.send_data(Bytes::from("first")).await?;
        sleep(ms(300)).await;
        for n in 0..64 {
            sender.send_data(Bytes::from(vec![n; 16 * 1024])).await?;
            sleep(ms(1)).await;
        }
        Ok::<_, http_body_util::channel::SendError>(())
    });
}

#[tokio::test(start_paused = true)]
async fn bdy_12_from_the_start_of_the_next_attempt_on_the_upload_before_takes_nothing_from_it() {
    let uploads: Arc<Mutex<Vec<_>>> = Arc::default();
    let log = Arc::clone(&uploads);
    let (service, attempts) = scripted(move |n, mut body: ReplayBody<Stream>| {
        let log = Arc::clone(&log);
        async move {
            if n == 0 {
                body.frame().await.unwrap().unwrap();
                tokio::spawn(async move {
                    while let Some(Ok(_)) = body.frame().await {}
                    log.lock().unwrap().push(Instant::now());
                });
                return Err(refused());
            }
            // It takes a second to connect.
            sleep(ms(1_000)).await;
            Ok(Response::new(Full::new(collect(body).await)))
        }
    });
    let (sender, body) = Stream::new(1);
    produces(sender);
    let start = Instant::now();
    let stack = at_once().layer(service);
    let answer = stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    let length = "first".len() + 64 * 16 * 1024;
    assert_eq!(collect(answer.into_body()).await.len(), length);
    assert_eq!(attempts.load(SeqCst), 2);
    assert_eq!(
        *uploads.lock().unwrap(),
        [start],
        "it ended when the next one started"
    );
}

/// Is ready for the first call, and for others after half a second.
struct SlowToBeReady<S> {
    inner: S,
    asked: bool,
    wait: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S: Clone> Clone for SlowToBeReady<S> {
    fn clone(&self) -> Self {
        SlowToBeReady {
            inner: self.inner.clone(),
            asked: false,
            wait: None,
        }
    }
}

impl<S: Service<Req>, Req> Service<Req> for SlowToBeReady<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.asked {
            let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(ms(500))));
            std::task::ready!(wait.as_mut().poll(cx));
        }
        self.asked = true;
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> S::Future {
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_12_a_body_that_is_lost_while_the_service_becomes_ready_is_not_sent_again_either() {
    let uploads = Arc::default();
    let (service, attempts) = early_503(&uploads);
    let (sender, body) = Stream::new(1);
    produces(sender);
    let service = SlowToBeReady {
        inner: StatusErrorClassifierLayer::new(StatusPolicy::default()).layer(service),
        asked: false,
        wait: None,
    };
    let stack = after(ms(10), 2).layer(service);
    let error = stack.oneshot(post(ReplayBody::new(body))).await.unwrap_err();
    assert_eq!(StatusError::of(&*error).unwrap().status(), 503);
    assert_eq!(reasons(&error), [NotRetried::BodyBeyondCap { cap: CAP }]);
    assert_eq!(attempts.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_a_retry_waits_ends_the_upload_and_drops_the_stream() {
    let uploads: Arc<Mutex<Vec<_>>> = Arc::default();
    let (service, _) = early_503(&uploads);
    let (mut sender, body) = Stream::new(1);
    sender.send_data(Bytes::from("first")).await.unwrap();
    let stack = ServiceBuilder::new()
        .layer(after(ms(1_000), 2))
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(service);
    let call = tokio::time::timeout(ms(100), stack.oneshot(post(ReplayBody::new(body))));
    assert!(call.await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(*uploads.lock().unwrap(), [Err(())]);
    assert!(sender.send_data(Bytes::new()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_that_is_handed_on_leaves_its_upload_alone() {
    let uploads: Arc<Mutex<Vec<_>>> = Arc::default();
    let (service, _) = early_503(&uploads);
    let (mut sender, body) = Stream::new(1);
    let stack = IdempotentRetryLayer::new(Idempotent::default())
        .retry_statuses(StatusSet::TRANSIENT)
        .layer(service);
    sender.send_data(Bytes::from("first")).await.unwrap();
    let answer = stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    assert_eq!(answer.status(), 503);
    for _ in 0..10 {
        sender.send_data(Bytes::from(vec![0; 100_000])).await.unwrap();
    }
    drop(sender);
    tokio::task::yield_now().await;
    assert_eq!(*uploads.lock().unwrap(), [Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn two_layers_that_retry_send_the_same_bytes_each_time() {
    let (mut sender, body) = Stream::new(8);
    for chunk in ["ab", "cd", "ef"] {
        sender.send_data(Bytes::from(chunk)).await.unwrap();
    }
    drop(sender);
    let (service, attempts) = scripted(move |n, mut body: ReplayBody<Stream>| async move {
        let data = read(&mut body, n).await.concat();
        assert!(b"abcdef".starts_with(&data));
        if n < 5 {
            return Err(refused());
        }
        assert_eq!(data, b"abcdef");
        Ok(answer(200))
    });
    let stack = ServiceBuilder::new()
        .layer(after(ms(10), 3))
        .layer(at_once())
        .service(service);
    stack.oneshot(post(ReplayBody::new(body))).await.unwrap();
    assert_eq!(attempts.load(SeqCst), 6);
}

// ---- reading an error's body before the decision ----

/// Pauses for as long as the first bytes of a 429's body say.
#[derive(Debug, Clone)]
struct AsTheBodySays;

impl RetryPolicy for AsTheBodySays {
    fn name(&self) -> &'static str {
        "AsTheBodySays"
    }

    fn may_retry(&self, _: tower_outbound::call::Semantics) -> bool {
        true
    }

    fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried> {
        if failed.attempts() >= 3 {
            return Err(NotRetried::AttemptsUsedUp { limit: 3 });
        }
        let status = failed.error().and_then(|error| StatusError::of(error));
        let body = status.ok_or(NotRetried::NotTransient)?.body();
        let hint = std::str::from_utf8(&body[..body.len().min(100)]).unwrap();
        let millis = hint.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Again::new(RetryTo::Anywhere, ms(millis)))
    }
}

#[tokio::test(start_paused = true)]
async fn bdy_10_a_policy_reads_the_body_of_an_error_and_the_caller_gets_all_of_it() {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    let body = |n: usize| format!("wait {} ms {}", (n + 1) * 100, "x".repeat(9_000));
    let (service, _) = scripted(move |n, _: String| {
        log.lock().unwrap().push(Instant::now());
        async move {
            let answer = Response::builder().status(429);
            Ok(answer.body(Full::from(body(n))).unwrap())
        }
    });
    let stack = ServiceBuilder::new()
        .layer(RetryLayer::new(AsTheBodySays))
        .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()))
        .service(service);
    let error = stack.oneshot(post(String::new())).await.unwrap_err();
    let starts = starts.lock().unwrap().clone();
    assert_eq!([starts[1] - starts[0], starts[2] - starts[1]], [ms(100), ms(200)]);
    let last = StatusError::of(&*error).unwrap();
    assert!(last.complete());
    assert_eq!(last.body(), &body(2));
}

// ---- any body, any failure ----

/// What the connection of a failed attempt does with the rest of its upload.
#[derive(Debug, Clone, Copy)]
enum Afterwards {
    Drops,
    Holds,
    ReadsOn,
}

#[derive(Debug, Clone)]
struct Failure {
    reads: usize,
    afterwards: Afterwards,
}

fn failures() -> impl Strategy<Value = Vec<Failure>> {
    let afterwards = prop_oneof![
        Just(Afterwards::Drops),
        Just(Afterwards::Holds),
        Just(Afterwards::ReadsOn)
    ];
    let failure = (0..12_usize, afterwards).prop_map(|(reads, afterwards)| Failure { reads, afterwards });
    prop::collection::vec(failure, 0..5)
}

/// A stream with these chunks, of which some have to be waited for.
fn chunks(
    sizes: &[(usize, bool)],
    memory: Memory,
) -> impl Body<Data = Bytes, Error = BoxError> + Send + use<> {
    let mut at = 0_usize;
    let chunks: Vec<_> = sizes
        .iter()
        .map(|(size, waits)| {
            let data: Vec<u8> = (at..at + size).map(|n| (n % 251) as u8).collect();
            at += size;
            (data, *waits)
        })
        .collect();
    let stream = futures_util::stream::unfold(chunks.into_iter(), move |mut chunks| {
        let memory = memory.clone();
        async move {
            let (data, waits) = chunks.next()?;
            if waits {
                sleep(ms(7)).await;
            }
            Some((Ok(Frame::data(memory.data(data))), chunks))
        }
    });
    StreamBody::new(Box::pin(stream))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_attempt_sends_a_prefix_and_the_last_one_all_and_no_more_than_the_cap_and_a_chunk_is_kept(
        sizes in prop::collection::vec((0..2_000_usize, any::<bool>()), 0..10),
        failures in failures(),
        cap in 0..12_000_usize,
    ) {
        let whole: Vec<u8> = (0..sizes.iter().map(|(size, _)| size).sum()).map(|n: usize| (n % 251) as u8).collect();
        let largest = sizes.iter().map(|(size, _)| *size).max().unwrap_or(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let memory = Memory::default();
        let body = ReplayBody::with_cap(chunks(&sizes, memory.clone()), cap);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::new(Mutex::new(Vec::new()));
        let (log, keep, script, expected) = (Arc::clone(&seen), Arc::clone(&held), failures.clone(), whole.clone());
        let (outcome, attempts) = runtime.block_on(async {
            let (service, attempts) = scripted(move |n, mut body: ReplayBody<_>| {
                let (log, keep, failure) = (Arc::clone(&log), Arc::clone(&keep), script.get(n).cloned());
                let expected = expected.clone();
                async move {
                    let mut got = Vec::new();
                    let mut frames = failure.as_ref().map_or(usize::MAX, |failure| failure.reads);
                    while frames > 0 {
                        let Some(frame) = body.frame().await else { break };
                        got.extend_from_slice(frame.unwrap().data_ref().unwrap());
                        frames -= 1;
                    }
                    assert!(expected.starts_with(&got), "no prefix");
                    log.lock().unwrap().push(got);
                    match failure.map(|failure| failure.afterwards) {
                        None => return Ok(answer(200)),
                        Some(Afterwards::Drops) => {}
                        Some(Afterwards::Holds) => keep.lock().unwrap().push(body),
                        Some(Afterwards::ReadsOn) => drop(tokio::spawn(async move {
                            while let Some(Ok(_)) = body.frame().await {}
                        })),
                    }
                    Err(refused())
                }
            });
            let stack = after(ms(10), 9).layer(service);
            let outcome = stack.oneshot(post(body)).await;
            (outcome, attempts.load(SeqCst))
        });
        let seen = seen.lock().unwrap();
        prop_assert_eq!(seen.len(), attempts);
        match outcome {
            Ok(_) => {
                prop_assert_eq!(attempts, failures.len() + 1);
                prop_assert_eq!(seen.last().unwrap(), &whole);
            }
            Err(error) => {
                prop_assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
                prop_assert_eq!(reasons(&error), [NotRetried::BodyBeyondCap { cap }]);
                prop_assert!(whole.len() > cap);
            }
        }
        prop_assert!(memory.most() <= cap + largest, "{} kept", memory.most());
        drop(runtime);
        prop_assert_eq!(memory.held(), 0, "held by {} uploads that nobody needs", held.lock().unwrap().len());
    }
}

/// Gives these frames, and does something in the middle of the poll that gives the one of this number.
struct Within<F> {
    frames: VecDeque<Bytes>,
    before: usize,
    then: Option<F>,
}

impl<F: FnOnce() + Unpin> Body for Within<F> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.before == 0 {
            if let Some(then) = self.then.take() {
                then();
            }
        }
        self.before = self.before.saturating_sub(1);
        Poll::Ready(self.frames.pop_front().map(|data| Ok(Frame::data(data))))
    }
}

/// The body of a first attempt with a cap of 4, in the middle of whose second poll this is done with the copy that is
/// kept.
fn within<T: Send + 'static>(
    then: impl FnOnce(Copies) -> T + Send + Unpin + 'static,
) -> (ReplayBody<Within<Then>>, Done<T>, Memory) {
    let (copies, result): (Arc<Mutex<Option<Copies>>>, _) = (Arc::default(), Arc::new(Mutex::new(None)));
    let (within, tell) = (Arc::clone(&copies), Arc::clone(&result));
    let then: Then = Box::new(move || {
        let copies = within.lock().unwrap().take().unwrap();
        let done = then(copies);
        *tell.lock().unwrap() = Some(done);
    });
    let memory = Memory::default();
    let frames = ["ab", "cdef", "gh"].map(|data| memory.data(data.into())).into();
    let body = Within {
        frames,
        before: 1,
        then: Some(then),
    };
    let body = ReplayBody::with_cap(body, 4);
    *copies.lock().unwrap() = Some(body.keep_body().unwrap());
    (body, result, memory)
}

type Done<T> = Arc<Mutex<Option<T>>>;
type Then = Box<dyn FnOnce() + Send>;
type Copies = KeptReplay<Within<Then>>;

#[test]
fn what_an_attempt_reads_while_the_next_one_starts_is_kept_for_that_whatever_the_cap() {
    let (first, next, _) = within(|kept| {
        let next: ReplayBody<_> = RepeatBody::restore_body(&kept).unwrap();
        ReplayBody::take_over_body(&kept).unwrap();
        (kept, next)
    });
    let mut first = task::spawn(first);
    let poll = |body: &mut task::Spawn<ReplayBody<_>>| body.enter(|cx, body| body.poll_frame(cx));
    assert!(matches!(poll(&mut first), Poll::Ready(Some(Ok(_)))));
    assert!(
        matches!(poll(&mut first), Poll::Ready(Some(Err(_)))),
        "it is not told"
    );
    let (kept, next) = next.lock().unwrap().take().unwrap();
    assert_eq!(ReplayBody::check_body(&kept), Ok(()));
    drop(first);
    let whole = task::spawn(next.collect()).poll();
    assert_eq!(assert_ready!(whole).unwrap().to_bytes(), "abcdefgh");
    // That one has read on, and nothing more is kept.
    let reason = NotRetried::BodyBeyondCap { cap: 4 };
    assert_eq!(ReplayBody::check_body(&kept), Err(reason));
    assert!(ReplayBody::restore_body(&kept).is_none());
}

#[test]
fn a_retry_that_finds_the_attempt_before_in_the_middle_of_a_read_asks_again() {
    let (mut first, next, _) = within(|kept| {
        let next: ReplayBody<_> = RepeatBody::restore_body(&kept).unwrap();
        assert_eq!(next.size_hint().exact(), None);
        let mut next = task::spawn(next);
        assert!(next.enter(|cx, next| next.poll_frame(cx)).is_pending());
        assert!(next.is_woken(), "it must not wait for ever");
        (kept, next)
    });
    let mut cx = Context::from_waker(std::task::Waker::noop());
    for _ in 0..2 {
        // It has not begun, so the first one reads on, and reads beyond the cap.
        assert!(matches!(
            Pin::new(&mut first).poll_frame(&mut cx),
            Poll::Ready(Some(Ok(_)))
        ));
    }
    let (kept, mut next) = next.lock().unwrap().take().unwrap();
    assert!(ReplayBody::take_over_body(&kept).is_err());
    let error = assert_ready!(next.enter(|cx, next| next.poll_frame(cx)))
        .unwrap()
        .unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::Write);
    assert_eq!(
        assert_ready!(task::spawn(first.collect()).poll())
            .unwrap()
            .to_bytes(),
        "gh"
    );
}

#[test]
fn a_call_that_ends_in_the_middle_of_a_read_drops_the_stream_after_it() {
    let (first, _, memory) = within(|kept| {
        // The next one is given up with its call.
        drop(ReplayBody::<Within<Then>>::restore_body(&kept).unwrap());
        drop(kept);
    });
    let mut first = task::spawn(first);
    assert!(matches!(
        first.enter(|cx, first| first.poll_frame(cx)),
        Poll::Ready(Some(Ok(_)))
    ));
    assert!(matches!(
        first.enter(|cx, first| first.poll_frame(cx)),
        Poll::Ready(Some(Err(_)))
    ));
    assert_eq!(memory.held(), 0, "with what is left of it, and what was kept");
}

/// Attempts that read at the same time, on threads of their own.
#[test]
fn a_retry_that_races_with_the_upload_before_it_loses_and_doubles_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    const CHUNKS: usize = 200;
    let expected: Vec<u8> = (0..CHUNKS).flat_map(|n| [n as u8; 16]).collect();
    let mut given_up = 0;
    for round in 0..1_500 {
        // The cap is met in some rounds, at about the time when the retry begins.
        let cap = if round % 2 == 0 { 1 << 20 } else { 16 * 60 };
        let (body, expected) = (
            Long {
                frames: CHUNKS,
                size: 16,
                polls: Arc::default(),
                memory: Memory::default(),
            },
            expected.clone(),
        );
        let outcome = runtime.block_on(async move {
            let body = ReplayBody::with_cap(body, cap);
            let (service, _) = scripted(move |n, mut body: ReplayBody<Long>| {
                let expected = expected.clone();
                async move {
                    if n < 2 {
                        let (started, reading) = oneshot::channel();
                        tokio::spawn(async move {
                            let _ = started.send(());
                            while let Some(Ok(_)) = body.frame().await {
                                if round % 3 == 0 {
                                    tokio::task::yield_now().await;
                                }
                            }
                        });
                        let _ = reading.await;
                        return Err(refused());
                    }
                    let mut got = collect(body).await.to_vec();
                    // The source counts down.
                    got.reverse();
                    assert!(got == expected, "round {round}");
                    Ok(answer(200))
                }
            });
            let stack = IdempotentRetryLayer::new(all_operations().next_endpoint(2)).layer(service);
            tokio::spawn(stack.oneshot(post(body))).await.unwrap()
        });
        if let Err(error) = outcome {
            given_up += 1;
            assert_eq!(
                reasons(&error),
                [NotRetried::BodyBeyondCap { cap }],
                "round {round}"
            );
        }
    }
    assert!(given_up < 1_500, "some must get through");
}

// ---- over a real client ----

/// What a server on loopback does with the first request.
#[derive(Debug, Clone, Copy)]
enum First {
    /// Answers 503 to the head, and reads no more while the connection stays open.
    AnswersEarly,
    /// Resets the connection after some of the body.
    Resets,
    /// Reads the head, and neither more nor answers.
    Stalls,
    /// Reads all of it and closes.
    Closes,
    /// Is not there.
    Refuses,
}

/// A server that does so with all its requests.
async fn first_server(manner: First) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    if matches!(manner, First::Refuses) {
        return endpoint;
    }
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            let (_, mut read) = head(&mut connection).await;
            match manner {
                First::AnswersEarly => {
                    let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    connection.write_all(answer).await.unwrap();
                    open.push(connection);
                }
                First::Resets => {
                    let _ = connection.read_buf(&mut read).await;
                    connection.set_zero_linger().unwrap();
                }
                First::Stalls => open.push(connection),
                First::Closes => {
                    while !read.ends_with(b"\r\n0\r\n\r\n") {
                        if connection.read_buf(&mut read).await.unwrap_or(0) == 0 {
                            break;
                        }
                    }
                }
                First::Refuses => {}
            }
        }
    });
    endpoint
}

/// The head of a request, and what has come with it.
async fn head(connection: &mut TcpStream) -> (String, Vec<u8>) {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            return (String::from_utf8(read).unwrap().to_lowercase(), body);
        }
        assert!(connection.read_buf(&mut read).await.unwrap() > 0);
    }
}

/// A server that answers 200, and hands on the body and the head of the one request that it gets.
async fn good_server() -> (Endpoint, oneshot::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let (head, mut read) = head(&mut connection).await;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map(|length| length.parse::<usize>().unwrap());
        let is_whole = |read: &[u8]| match length {
            Some(length) => read.len() >= length,
            None => read.ends_with(b"\r\n0\r\n\r\n"),
        };
        while !is_whole(&read) {
            assert!(connection.read_buf(&mut read).await.unwrap() > 0, "cut short");
        }
        let body = if length.is_some() { read } else { unchunked(&read) };
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(answer).await.unwrap();
        tell.send((head, body)).unwrap();
    });
    (endpoint, told)
}

fn unchunked(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = chunked.windows(2).position(|window| window == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&chunked[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunked[line + 2..line + 2 + size]);
        chunked = &chunked[line + 2 + size + 2..];
    }
}

/// A stream of so many bytes, in frames of 8 KiB.
fn stream_of(bytes: usize) -> (impl Body<Data = Bytes, Error = BoxError> + Send + Unpin, Vec<u8>) {
    let whole: Vec<u8> = (0..bytes).map(|n| (n / 3) as u8).collect();
    let frames: Vec<_> = whole
        .chunks(8_192)
        .map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk))))
        .collect();
    (StreamBody::new(futures_util::stream::iter(frames)), whole)
}

#[tokio::test]
async fn over_http_1_the_second_server_gets_the_body_to_the_byte_whatever_the_first_one_did_with_it() {
    // With the larger one the connection of an attempt that is given up is in the middle of a write, which nobody takes.
    for size in [60_000, 12 << 20] {
        for manner in [
            First::AnswersEarly,
            First::Resets,
            First::Stalls,
            First::Closes,
            First::Refuses,
        ] {
            if matches!(manner, First::Stalls) && size > 60_000 {
                // Not silent but slow: the read limit waits for the upload.
                continue;
            }
            let bad = first_server(manner).await;
            let (good, received) = good_server().await;
            let (body, whole) = stream_of(size);
            let backoff = Backoff::builder().retry_unsafe_that_may_have_been_sent();
            let nest: HttpNest<ReplayBody<_>, _> = Nest::builder("orders", [bad, good].into_iter().collect())
                .rule(RoundRobin::new())
                .idempotent(all_operations())
                .backoff(backoff.build().unwrap())
                .read_limit(ms(300))
                .build_http()
                .unwrap();
            let request = Request::post("/orders")
                .body(ReplayBody::with_cap(body, 32 << 20))
                .unwrap();
            let answer = nest.send(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            let (head, body) = received.await.unwrap();
            let length = head.contains(&format!("content-length: {size}\r\n"));
            assert!(length ^ head.contains("transfer-encoding: chunked"), "{head}");
            assert!(body == whole, "{manner:?}, {size} bytes: got {}", body.len());
        }
    }
}

#[tokio::test]
async fn over_http_1_without_a_layer_that_ends_uploads_the_retry_does_not_wait_for_the_one_before() {
    for size in [60_000, 12 << 20] {
        let bad = first_server(First::AnswersEarly).await;
        let (good, received) = good_server().await;
        let (body, whole) = stream_of(size);
        let client = Client::builder().build_http().unwrap();
        let endpoints: tower_outbound::call::Endpoints = [bad, good].into_iter().collect();
        let stack = at_once().retry_statuses(StatusSet::TRANSIENT).layer(
            LoadBalanceLayer::new(endpoints)
                .rule(RoundRobin::new())
                .layer(client),
        );
        let request = Request::post("/orders").body(ReplayBody::with_cap(body, 32 << 20));
        let answer = stack.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let (_, body) = received.await.unwrap();
        assert!(body == whole, "{size} bytes: got {}", body.len());
    }
}

#[tokio::test]
async fn over_http_1_a_body_of_known_length_has_it_in_each_attempt() {
    let bad = first_server(First::Resets).await;
    let (good, received) = good_server().await;
    let nest: HttpNest<ReplayBody<Full<Bytes>>, _> =
        Nest::builder("orders", [bad, good].into_iter().collect())
            .rule(RoundRobin::new())
            .idempotent(all_operations())
            .build_http()
            .unwrap();
    let body = Bytes::from(vec![7; 50_000]);
    let request = Request::post("/orders").body(ReplayBody::new(Full::new(body.clone())));
    nest.send(request.unwrap()).await.unwrap();
    let (head, received) = received.await.unwrap();
    assert!(head.contains("content-length: 50000"), "{head}");
    assert!(received == body);
}

#[tokio::test]
async fn over_http_2_the_stream_of_the_attempt_before_is_reset_and_never_ends_as_if_it_were_complete() {
    let mut endpoints = Vec::new();
    let (tell, mut told) = tokio::sync::mpsc::channel(2);
    for bad in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        endpoints.push(Endpoint::new(format!("http://{}", listener.local_addr().unwrap())).unwrap());
        let tell = tell.clone();
        tokio::spawn(async move {
            let (connection, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(connection).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            tokio::spawn(async move { while connection.accept().await.is_some() {} });
            let mut body = request.into_body();
            let mut got = body.data().await.unwrap().unwrap().to_vec();
            if bad {
                let early = Response::builder().status(503).body(()).unwrap();
                respond.send_response(early, true).unwrap();
            }
            let mut reset = false;
            while let Some(data) = body.data().await {
                match data {
                    Ok(data) => got.extend_from_slice(&data),
                    Err(_) => {
                        reset = true;
                        break;
                    }
                }
            }
            if !bad {
                respond.send_response(Response::new(()), true).unwrap();
            }
            tell.send((bad, got, reset)).await.unwrap();
        });
    }
    let (mut sender, body) = Stream::new(1);
    sender.send_data(Bytes::from("ab")).await.unwrap();
    let client = Client::builder().http2_only().build_http().unwrap();
    let endpoints: tower_outbound::call::Endpoints = endpoints.into_iter().collect();
    let stack = at_once().retry_statuses(StatusSet::TRANSIENT).layer(
        LoadBalanceLayer::new(endpoints)
            .rule(RoundRobin::new())
            .layer(client),
    );
    let call = tokio::spawn(stack.oneshot(Request::post("/").body(ReplayBody::new(body)).unwrap()));
    let (bad, got, reset) = told.recv().await.unwrap();
    assert!(bad && got == b"ab" && reset);
    sender.send_data(Bytes::from("cd")).await.unwrap();
    drop(sender);
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    assert_eq!(told.recv().await.unwrap(), (false, b"abcd".to_vec(), false));
}
