//! What a circuit breaker costs: the raw service beside the same one behind a circuit in each of its states.

#![allow(missing_docs, reason = "criterion's macros make items without")]

use std::{borrow::Cow, convert::Infallible, future::Ready, future::ready, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use tower::{Layer, Service, service_fn};
use tower_outbound::{
    breaker::{Breaker, Breakers, CircuitBreakerLayer, Force, HystrixRelease, KeyedBreakerLayer},
    call::Verdict,
};

fn service() -> impl Service<u64, Response = u64, Error = Infallible, Future = Ready<Result<u64, Infallible>>>
{
    service_fn(|n: u64| ready(Ok(n)))
}

/// Asks for readiness, calls, and polls to the end.
fn once<S: Service<u64, Response = u64>>(service: &mut S) -> Option<Result<u64, S::Error>> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = black_box(service.poll_ready(&mut cx));
    service.call(black_box(1)).now_or_never()
}

fn breaker() -> Breaker {
    Breaker::builder("bench")
        .build()
        .unwrap_or_else(|error| unreachable!("{error}"))
}

fn circuit_breaker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("breaker");
    let mut raw = service();
    group.bench_function("raw", |bencher| bencher.iter(|| once(&mut raw)));

    let mut closed = CircuitBreakerLayer::new(breaker()).layer(service());
    group.bench_function("closed", |bencher| bencher.iter(|| once(&mut closed)));

    for release in [HystrixRelease::V1_5_12, HystrixRelease::V1_5_18] {
        let breaker = Breaker::builder("bench")
            .hystrix(release)
            .build()
            .unwrap_or_else(|error| unreachable!("{error}"));
        let mut closed = CircuitBreakerLayer::new(breaker).layer(service());
        group.bench_function(format!("closed, {release:?}"), |bencher| {
            bencher.iter(|| once(&mut closed))
        });
    }

    // One failure in the window: each success is judged.
    let blemished = breaker();
    let mut judged = CircuitBreakerLayer::new(blemished.clone()).layer(service());
    group.bench_function("closed, with a failure in the window", |bencher| {
        bencher.iter_custom(|iterations| {
            if let Ok(permit) = blemished.admit() {
                permit.settle(Verdict::Failure);
            }
            let start = tokio::time::Instant::now();
            for _ in 0..iterations {
                black_box(once(&mut judged));
            }
            start.elapsed()
        });
    });

    let all_rules = Breaker::builder("bench")
        .consecutive_failures(5)
        .slow_calls(std::time::Duration::from_secs(1), 50)
        .last_outcomes(100)
        .build()
        .unwrap_or_else(|error| unreachable!("{error}"));
    let mut judged = CircuitBreakerLayer::new(all_rules).layer(service());
    group.bench_function("closed, with all rules", |bencher| {
        bencher.iter(|| once(&mut judged))
    });

    let keys: Breakers<u64> =
        Breakers::new(Breaker::builder("bench")).unwrap_or_else(|error| unreachable!("{error}"));
    let layer = KeyedBreakerLayer::new(keys, |n: &u64| Some(Cow::Borrowed(n)));
    let mut keyed = layer.layer(service());
    group.bench_function("closed, by key", |bencher| bencher.iter(|| once(&mut keyed)));

    let open = breaker();
    open.force(Force::Open);
    let mut rejecting = CircuitBreakerLayer::new(open).layer(service());
    group.bench_function("forced open, rejected", |bencher| {
        bencher.iter(|| once(&mut rejecting))
    });

    let tripped = Breaker::builder("bench")
        .volume(1)
        .sleep_window(std::time::Duration::from_secs(3600))
        .build()
        .unwrap_or_else(|error| unreachable!("{error}"));
    if let Ok(permit) = tripped.admit() {
        permit.settle(Verdict::Failure);
    }
    let mut rejecting = CircuitBreakerLayer::new(tripped).layer(service());
    group.bench_function("open, rejected", |bencher| bencher.iter(|| once(&mut rejecting)));

    let held = breaker();
    held.force(Force::Closed);
    let mut passing = CircuitBreakerLayer::new(held).layer(service());
    group.bench_function("forced closed", |bencher| bencher.iter(|| once(&mut passing)));

    let off = breaker();
    off.set_enabled(false);
    let mut passing = CircuitBreakerLayer::new(off).layer(service());
    group.bench_function("disabled", |bencher| bencher.iter(|| once(&mut passing)));

    group.finish();
}

criterion_group!(benches, circuit_breaker);
criterion_main!(benches);
