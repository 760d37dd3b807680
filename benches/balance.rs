//! One call through `LoadBalance`, from readiness to the answer, against the service alone.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that fails is to stop")]

use std::{
    hint::black_box,
    task::{Context, Poll, Waker},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, Service};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, BestAvailable, ConsistentHash, Ewma, LeastLoaded, LoadBalanceLayer, Random,
        RibbonRoundRobin, Rule, WeightedResponseTime, WeightedRoundRobin, ZoneAvoidance, ZoneAware,
    },
    call::{Affinity, BoxError, CallScope, Endpoint, Endpoints},
};

#[derive(Clone)]
struct Client;

impl Service<Request<()>> for Client {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<()>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(request.uri());
        std::future::ready(Ok(Response::new(())))
    }
}

fn endpoints(n: usize) -> Endpoints {
    (0..n)
        .map(|n| {
            let address = format!("http://10.0.{}.{}:8080", n / 250, n % 250);
            Endpoint::builder(address).zone(["a", "b", "c"][n % 3]).build()
        })
        .collect::<Result<_, _>>()
        .unwrap()
}

fn once<S: Service<Request<()>>>(service: &mut S, request: Request<()>) -> S::Response
where
    S::Error: std::fmt::Debug,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    service.call(request).now_or_never().unwrap().unwrap()
}

fn request() -> Request<()> {
    Request::new(())
}

fn over<R: Rule>(c: &mut Criterion, name: &str, rule: impl Fn() -> R) {
    let mut group = c.benchmark_group("balance");
    for n in [3, 100, 1_000, 10_000] {
        let mut stack = LoadBalanceLayer::new(endpoints(n)).rule(rule()).layer(Client);
        group.bench_function(BenchmarkId::new(name, n), |b| {
            b.iter(|| once(&mut stack, black_box(request())));
        });
    }
}

fn balance(c: &mut Criterion) {
    c.benchmark_group("balance").bench_function("service alone", |b| {
        b.iter(|| once(&mut Client, black_box(request())));
    });
    over(c, "round robin", tower_outbound::balance::RoundRobin::new);
    over(c, "random", Random::new);
    over(c, "least loaded", LeastLoaded::new);
    over(c, "ewma", Ewma::new);
    over(c, "ewma of three", || Ewma::builder().choices(3).build().unwrap());
    over(c, "weighted round robin", WeightedRoundRobin::new);
    over(c, "consistent hash", || {
        ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())))
    });
    over(c, "ribbon's round robin", RibbonRoundRobin::new);
    over(c, "availability filtering", AvailabilityFiltering::new);
    over(c, "best available", BestAvailable::new);
    over(c, "weighted response time", WeightedResponseTime::new);
    over(c, "zone avoidance, three zones", ZoneAvoidance::new);
    over(c, "zone aware zone avoidance, three zones", || {
        ZoneAware::new(ZoneAvoidance::new)
    });
    let mut group = c.benchmark_group("balance");
    let turns = tower_outbound::balance::RoundRobin::new();
    let mut stack = LoadBalanceLayer::new(endpoints(3)).rule(turns).layer(Client);
    group.bench_function("round robin in a call/3", |b| {
        b.iter(|| {
            let mut scope = CallScope::begin();
            scope.enter(|| once(&mut stack, black_box(request())))
        });
    });
    group.bench_function("round robin, cloned for the call/3", |b| {
        b.iter(|| once(&mut stack.clone(), black_box(request())));
    });
    let set = endpoints(10_000);
    let mut stack = LoadBalanceLayer::new(set.clone()).layer(Client);
    let another = Endpoint::new("http://10.1.0.1").unwrap();
    group.bench_function("the first call after a change/10000", |b| {
        b.iter_batched(
            || {
                if !set.remove(another.key()) {
                    set.insert(another.clone());
                }
            },
            |()| once(&mut stack, request()),
            criterion::BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, balance);
criterion_main!(benches);
