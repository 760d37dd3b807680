//! A service that answers at once, bare and below the classifier.
#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::{convert::Infallible, future::ready, hint::black_box};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_outbound::classify::{StatusErrorClassifierLayer, StatusPolicy};

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode) -> Answer {
    let mut response = Response::new(Full::from("a small body"));
    *response.status_mut() = status;
    if !status.is_success() {
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
    }
    response
}

fn classify(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("classify");
    for (name, status) in [("200", StatusCode::OK), ("503", StatusCode::SERVICE_UNAVAILABLE)] {
        let mut raw = service_fn(|answer: Answer| ready(Ok::<_, Infallible>(answer)));
        let mut layered = StatusErrorClassifierLayer::new(StatusPolicy::default()).layer(raw);
        group.bench_function(format!("raw/{name}"), |bencher| {
            bencher.iter_batched(
                || answer(status),
                |answer| black_box(raw.call(black_box(answer)).now_or_never()),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("layered/{name}"), |bencher| {
            bencher.iter_batched(
                || answer(status),
                |answer| black_box(layered.call(black_box(answer)).now_or_never()),
                BatchSize::SmallInput,
            );
        });
    }
    let policy = StatusPolicy::default();
    group.bench_function("verdict", |bencher| {
        bencher.iter(|| black_box(&policy).verdict(black_box(StatusCode::OK)));
    });
    group.finish();
}

criterion_group!(benches, classify);
criterion_main!(benches);
