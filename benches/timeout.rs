//! What the three limits cost when nothing goes wrong: a raw service, and the same below each layer.
#![allow(missing_docs, clippy::unwrap_used, reason = "benchmarks")]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::Duration;
use tower::{Layer, Service, service_fn};
use tower_outbound::timeout::{ConnectTimeoutLayer, ExecutionTimeoutLayer, ReadTimeoutLayer};

const LIMIT: Duration = Duration::from_secs(5);

/// Polls to completion by hand: no executor is measured.
fn complete<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// Answers at once, or pends once before, as every call over a network does at least.
#[derive(Clone, Copy)]
struct Answering {
    pends: bool,
}

struct Answer<T>(bool, Option<T>);

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, Infallible>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.0) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(self.1.take().unwrap()))
    }
}

impl<B> Service<Request<B>> for Answering {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        Answer(
            self.pends,
            Some(Response::new(Full::new(Bytes::from_static(b"hello")))),
        )
    }
}

fn request(size: usize) -> Request<Full<Bytes>> {
    static BODY: [u8; 1024 * 1024] = [7; 1024 * 1024];
    Request::new(Full::new(Bytes::from_static(&BODY[..size])))
}

/// The head, for a service that answers at once and for one that pends once.
fn head(c: &mut Criterion) {
    // A timer needs a runtime; nothing runs on it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _runtime = runtime.enter();
    let mut group = c.benchmark_group("timeout");
    for (name, pends) in [("at_once", false), ("pends_once", true)] {
        let raw = Answering { pends };
        let mut service = raw;
        group.bench_function(BenchmarkId::new("raw", name), |b| {
            b.iter(|| complete(service.call(request(64))))
        });
        let mut service = tower::timeout::TimeoutLayer::new(LIMIT).layer(raw);
        group.bench_function(BenchmarkId::new("tower_timeout", name), |b| {
            b.iter(|| complete(service.call(request(64))))
        });
        let mut service = ReadTimeoutLayer::new(LIMIT).unwrap().layer(raw);
        group.bench_function(BenchmarkId::new("read", name), |b| {
            b.iter(|| complete(service.call(request(64))))
        });
        group.bench_function(BenchmarkId::new("read_followed_upload", name), |b| {
            b.iter(|| complete(service.call(request(1024 * 1024))))
        });
        let mut service = ExecutionTimeoutLayer::new(LIMIT).unwrap().layer(raw);
        group.bench_function(BenchmarkId::new("execution", name), |b| {
            b.iter(|| complete(service.call(request(64))))
        });
        let mut service = ExecutionTimeoutLayer::new(LIMIT)
            .unwrap()
            .layer(ReadTimeoutLayer::new(LIMIT / 2).unwrap().layer(raw));
        group.bench_function(BenchmarkId::new("execution_and_read", name), |b| {
            b.iter(|| complete(service.call(request(64))))
        });
    }
    group.finish();
}

/// Connecting: once for each connection, not for each call.
fn connect(c: &mut Criterion) {
    let mut group = c.benchmark_group("timeout");
    let raw = service_fn(|_: Uri| -> Ready<Result<(), Infallible>> { ready(Ok(())) });
    let uri = Uri::from_static("http://orders:8080");
    let mut service = raw;
    group.bench_function("connect/raw", |b| b.iter(|| complete(service.call(uri.clone()))));
    let mut service = ConnectTimeoutLayer::new(LIMIT).unwrap().layer(raw);
    group.bench_function("connect/limited", |b| {
        b.iter(|| complete(service.call(uri.clone())))
    });
    group.finish();
}

/// A response body of 64 frames that are there, and an upload of 1 MiB that is given out in pieces.
fn bodies(c: &mut Criterion) {
    let mut group = c.benchmark_group("timeout");
    let frames = || {
        http_body_util::StreamBody::new(futures_util::stream::iter(
            (0..64).map(|_| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(b"frame")))),
        ))
    };
    fn drain<B: Body>(body: B) {
        let mut body = pin!(body);
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
            black_box(frame.is_ok());
        }
    }
    group.bench_function("body_of_64_frames/raw", |b| b.iter(|| drain(frames())));
    let mut service = ReadTimeoutLayer::new(LIMIT)
        .unwrap()
        .layer(service_fn(move |_: Request<_>| {
            ready(Ok::<_, Infallible>(Response::new(frames())))
        }));
    group.bench_function("body_of_64_frames/read", |b| {
        b.iter(|| drain(complete(service.call(request(64))).unwrap().into_body()))
    });
    let mut service = ReadTimeoutLayer::new(LIMIT)
        .unwrap()
        .layer(service_fn(|request: Request<_>| {
            drain(request);
            ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        }));
    for size in [64, 1024 * 1024] {
        group.bench_function(BenchmarkId::new("upload/raw", size), |b| {
            b.iter(|| drain(request(size).into_body().map_err(Into::<tower::BoxError>::into)))
        });
        group.bench_function(BenchmarkId::new("upload/read", size), |b| {
            b.iter(|| complete(service.call(request(size))))
        });
    }
    group.finish();
}

criterion_group!(benches, head, connect, bodies);
criterion_main!(benches);
