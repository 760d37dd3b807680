//! The standard nest over a service in memory: what all layers together cost a call that succeeds at once.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::{convert::Infallible, hint::black_box};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Service, service_fn};
use tower_outbound::{
    Nest,
    call::{Endpoint, Endpoints},
    timeout::UploadBody,
};

fn request() -> Request<Full<Bytes>> {
    Request::get("/orders/7")
        .header("accept", "application/json")
        .header("x-request-id", "4d2c0f")
        .body(Full::default())
        .unwrap()
}

fn nest(c: &mut Criterion) {
    let mut group = c.benchmark_group("nest");

    let mut raw = service_fn(|request: Request<Full<Bytes>>| {
        black_box(&request);
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    group.bench_function("raw service", |b| {
        b.iter_batched(
            request,
            |request| raw.call(request).now_or_never().unwrap(),
            BatchSize::SmallInput,
        );
    });

    let client = service_fn(|request: Request<UploadBody<Full<Bytes>>>| {
        black_box(&request);
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let endpoints: Endpoints = ["a:1", "b:1", "c:1"]
        .into_iter()
        .map(|uri| Endpoint::new(uri).unwrap())
        .collect();
    let mut nest = Nest::builder("orders", endpoints).build(client).unwrap();
    let mut ready = std::task::Context::from_waker(std::task::Waker::noop());
    group.bench_function("nest", |b| {
        b.iter_batched(
            request,
            |request| {
                assert!(Service::<Request<Full<Bytes>>>::poll_ready(&mut nest, &mut ready).is_ready());
                nest.call(request).now_or_never().unwrap().unwrap()
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, nest);
criterion_main!(benches);
