//! What a bulkhead costs: the raw service beside the same one behind a free slot, and behind none.

#![allow(missing_docs, reason = "criterion's macros make items without")]

use std::{convert::Infallible, future::Ready, future::ready, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use tower::{Layer, Service, limit::ConcurrencyLimitLayer, service_fn};
use tower_outbound::bulkhead::{Bulkhead, BulkheadLayer};

fn service()
-> impl Service<u64, Response = u64, Error = Infallible, Future = Ready<Result<u64, Infallible>>> + Clone {
    service_fn(|n: u64| ready(Ok(n)))
}

/// Asks for readiness, calls, and polls to the end.
fn once<S: Service<u64, Response = u64>>(service: &mut S) -> Option<Result<u64, S::Error>> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = black_box(service.poll_ready(&mut cx));
    service.call(black_box(1)).now_or_never()
}

fn bulkhead(slots: u32) -> Bulkhead {
    Bulkhead::builder("bench")
        .max_concurrent(slots)
        .build()
        .unwrap_or_else(|error| unreachable!("{error}"))
}

fn bulkheads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bulkhead");
    let mut raw = service();
    group.bench_function("raw", |bencher| bencher.iter(|| once(&mut raw)));

    let mut free = BulkheadLayer::new(bulkhead(10)).layer(service());
    group.bench_function("a free slot", |bencher| bencher.iter(|| once(&mut free)));

    let mut full = BulkheadLayer::new(bulkhead(0)).layer(service());
    group.bench_function("full, rejected", |bencher| bencher.iter(|| once(&mut full)));

    let mut towers = ConcurrencyLimitLayer::new(10).layer(service());
    group.bench_function("tower's ConcurrencyLimit", |bencher| {
        bencher.iter(|| once(&mut towers))
    });

    group.finish();
}

criterion_group!(benches, bulkheads);
criterion_main!(benches);
