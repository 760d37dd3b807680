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
        AvailabilityFiltering, BestAvailable, ConsistentHash, Ewma, LeastLoaded, LoadBalanceLayer, Only,
        Random, RibbonRoundRobin, Rule, WeightedRandom, WeightedResponseTime, WeightedRoundRobin,
        ZoneAvoidance, ZoneAware, ZoneFirst,
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

fn by_path() -> ConsistentHash {
    ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())))
}

fn is_in_b(endpoint: &Endpoint) -> bool {
    endpoint.zone() == Some("b")
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
    over(c, "weighted random", WeightedRandom::new);
    over(c, "consistent hash", by_path);
    over(c, "consistent hash, bounded by the mean", || {
        by_path().bounded_by(1.25).unwrap()
    });
    over(c, "zone first, least loaded", || {
        ZoneFirst::new("a", LeastLoaded::new())
    });
    over(c, "only a third, least loaded", || {
        Only::new(is_in_b, LeastLoaded::new())
    });
    over(c, "only the idle, least loaded", || {
        Only::live(|one| one.in_flight() < 5, LeastLoaded::new()).or_all()
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
    drop(group);
    changes(c);
    tables(c, "least loaded", LeastLoaded::new);
    tables(c, "weighted round robin", WeightedRoundRobin::new);
    tables(c, "weighted random", WeightedRandom::new);
    tables(c, "consistent hash", by_path);
    tables(c, "zone first", || ZoneFirst::new("a", LeastLoaded::new()));
    tables(c, "zone first, weighted round robin", || {
        ZoneFirst::new("a", WeightedRoundRobin::new())
    });
}

/// What a change costs whoever makes it, what it costs the next call, and what the first call of all costs.
fn changes(c: &mut Criterion) {
    let mut group = c.benchmark_group("balance");
    for n in [3, 100, 10_000] {
        let set = endpoints(n);
        let mut stack = LoadBalanceLayer::new(set.clone()).layer(Client);
        for _ in 0..2 * n {
            once(&mut stack, request());
        }
        let all = set.snapshot().endpoints().to_vec();
        // Here and there, so that the cache does not hold what the next change is about.
        let mut turns = (0..).map(|turn: usize| all[turn * 7_919 % n].clone());
        group.bench_function(BenchmarkId::new("remove and insert", n), |b| {
            b.iter_batched(
                || turns.next().unwrap(),
                |one| {
                    set.remove(one.key());
                    set.insert(one);
                },
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("remove, call, insert, call", n), |b| {
            b.iter_batched(
                || turns.next().unwrap(),
                |one| {
                    set.remove(one.key());
                    once(&mut stack, request());
                    set.insert(one);
                    once(&mut stack, request())
                },
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("the first call after a change", n), |b| {
            b.iter_batched(
                || {
                    let one = turns.next().unwrap();
                    set.remove(one.key());
                    set.insert(one);
                },
                |()| once(&mut stack, request()),
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("a layer and its first call", n), |b| {
            b.iter_with_large_drop(|| {
                let mut stack = LoadBalanceLayer::new(set.clone()).layer(Client);
                once(&mut stack, request());
                stack
            });
        });
    }
}

/// As `changes`, for rules that work something out for a set.
fn tables<R: Rule>(c: &mut Criterion, name: &str, rule: impl Fn() -> R) {
    let mut group = c.benchmark_group("balance");
    let set = endpoints(10_000);
    let mut stack = LoadBalanceLayer::new(set.clone()).rule(rule()).layer(Client);
    for _ in 0..20_000 {
        once(&mut stack, request());
    }
    let all = set.snapshot().endpoints().to_vec();
    let mut turns = (0..).map(|turn: usize| all[turn * 7_919 % all.len()].clone());
    group.bench_function(
        BenchmarkId::new(format!("remove, call, insert, call: {name}"), 10_000),
        |b| {
            b.iter_batched(
                || turns.next().unwrap(),
                |one| {
                    set.remove(one.key());
                    once(&mut stack, request());
                    set.insert(one);
                    once(&mut stack, request())
                },
                criterion::BatchSize::PerIteration,
            );
        },
    );
    group.bench_function(
        BenchmarkId::new(format!("a layer and its first call: {name}"), 10_000),
        |b| {
            b.iter_with_large_drop(|| {
                let mut stack = LoadBalanceLayer::new(set.clone()).rule(rule()).layer(Client);
                once(&mut stack, request());
                stack
            });
        },
    );
}

criterion_group!(benches, balance);
criterion_main!(benches);
