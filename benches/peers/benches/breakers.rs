//! What circuit breakers cost, this crate's beside those of others, around the same service, which does nothing.
//!
//! ```text
//! cargo bench --manifest-path benches/peers/Cargo.toml
//! valgrind --tool=callgrind <the binary of it> --calls <name> <closed|open> <how many>
//! ```
//!
//! The second form makes so many calls and nothing else, so that their instructions can be counted: as the difference
//! between two counts of calls. What was found is in `breakers.md`.
//!
//! The breakers of tower-outbound, tower-resilience and seatbelt are tower layers: each call asks for readiness, calls, and
//! polls to the end. Those of failsafe and recloser take the future of the service by their own methods.

#![allow(missing_docs, reason = "criterion's macros make items without")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "sleeping blocks nobody here")]

use std::{
    fmt,
    future::{Future, Ready, ready},
    hint::{black_box, spin_loop},
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use criterion::{BenchmarkGroup, Criterion, criterion_group, measurement::WallTime};
use failsafe::{FailurePolicy as _, backoff, failure_policy, futures::CircuitBreaker as _};
use recloser::{AsyncRecloser, Recloser};
use seatbelt::{
    RecoveryInfo, ResilienceContext,
    breaker::{Breaker as Seatbelt, HalfOpenMode},
};
use tick::Clock;
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};
use tower_outbound::breaker::{Breaker, CircuitBreakerLayer};
use tower_resilience::circuitbreaker::CircuitBreakerLayer as ResilienceLayer;

const LONG: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(1);
const WINDOW: Duration = Duration::from_secs(10);
const VOLUME: u32 = 20;

#[derive(Debug, Clone, Copy)]
struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("down")
    }
}

impl std::error::Error for Down {}

type Outcome = Result<u64, Down>;

/// Fails for 0.
fn answer(n: u64) -> Ready<Outcome> {
    ready(if n == 0 { Err(Down) } else { Ok(n) })
}

/// A waiting future is polled at once again: only locks of peers are waited for here.
fn finish<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        spin_loop();
    }
}

/// A call with a number; has it succeeded?
trait Call: FnMut(u64) -> bool + Clone + Send {}
impl<F: FnMut(u64) -> bool + Clone + Send> Call for F {}

fn tower<S>(mut service: S) -> impl Call
where
    S: Service<u64, Response = u64, Error: fmt::Debug> + Clone + Send,
{
    move |n| {
        let _ = black_box(service.poll_ready(&mut Context::from_waker(Waker::noop())));
        finish(service.call(black_box(n))).is_ok()
    }
}

fn raw() -> impl Call {
    tower(service_fn(answer))
}

fn ours(sleep: Duration) -> impl Call {
    let breaker = Breaker::builder("bench")
        .volume(VOLUME)
        .window(WINDOW)
        .sleep_window(sleep);
    tower(CircuitBreakerLayer::new(breaker.build().unwrap()).layer(service_fn(answer)))
}

fn resilience(sleep: Duration) -> impl Call {
    let layer = ResilienceLayer::builder()
        .failure_rate_threshold(0.5)
        .minimum_number_of_calls(VOLUME as usize)
        .sliding_window_size(100)
        .wait_duration_in_open(sleep)
        .permitted_calls_in_half_open(1)
        .build()
        .unwrap();
    tower(layer.layer(service_fn(answer)))
}

fn seatbelt(sleep: Duration) -> impl Call {
    let context: ResilienceContext<u64, Outcome> = ResilienceContext::new(Clock::new_tokio());
    let layer = Seatbelt::layer("bench", &context)
        .min_throughput(VOLUME)
        .failure_threshold(0.5)
        .sampling_duration(WINDOW)
        .break_duration(sleep)
        .half_open_mode(HalfOpenMode::quick())
        .recovery_with(|outcome: &Outcome, _| match outcome {
            Ok(_) => RecoveryInfo::never(),
            Err(_) => RecoveryInfo::retry(),
        })
        .rejected_input_error(|_, _| Down);
    tower(layer.layer(service_fn(answer)))
}

fn failsafe(sleep: Duration) -> impl Call {
    let backoff = backoff::constant(sleep);
    let share = failure_policy::success_rate_over_time_window(0.5, VOLUME, WINDOW, backoff.clone());
    let policy = share.or_else(failure_policy::consecutive_failures(VOLUME, backoff));
    let breaker = failsafe::Config::new().failure_policy(policy).build();
    move |n| finish(breaker.call(answer(black_box(n)))).is_ok()
}

fn recloser(sleep: Duration) -> impl Call {
    let breaker = Recloser::custom()
        .error_rate(0.5)
        .closed_len(100)
        .half_open_len(1)
        .open_wait(sleep)
        .build();
    let breaker = AsyncRecloser::from(breaker);
    move |n| finish(breaker.call(answer(black_box(n)))).is_ok()
}

/// Lets calls fail, more than any of them needs.
fn trip(call: &mut impl Call) {
    for _ in 0..150 {
        call(0);
    }
}

fn open<C: Call>(build: impl Fn(Duration) -> C) -> C {
    let mut call = build(LONG);
    assert!(call(1), "it is closed at first");
    trip(&mut call);
    assert!(!call(1), "it is open");
    call
}

/// How long so many calls take, each of which is the first after the sleep window of a circuit of its own.
fn probes<C: Call>(build: impl Fn(Duration) -> C, mut calls: u64) -> Duration {
    let mut took = Duration::ZERO;
    while calls > 0 {
        let mut due: Vec<C> = (0..calls.min(1_000)).map(|_| build(SHORT)).collect();
        due.iter_mut().for_each(trip);
        thread::sleep(3 * SHORT);
        let start = Instant::now();
        for call in &mut due {
            assert!(call(1), "it may have a probe");
        }
        took += start.elapsed();
        calls -= due.len() as u64;
    }
    took
}

fn breaker<C: Call>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, build: impl Fn(Duration) -> C) {
    let mut closed = build(LONG);
    group.bench_function(format!("{name}: closed"), |bencher| bencher.iter(|| closed(1)));
    group.bench_function(format!("{name}: closed, two threads"), |bencher| {
        bencher.iter_custom(|calls| two_threads(&build(LONG), calls));
    });
    let mut open = open(&build);
    group.bench_function(format!("{name}: open"), |bencher| bencher.iter(|| open(1)));
    group.bench_function(format!("{name}: half-open"), |bencher| {
        bencher.iter_custom(|calls| probes(&build, calls));
    });
}

/// How long it takes until each of two threads has made so many calls.
fn two_threads(call: &impl Call, calls: u64) -> Duration {
    let line = Barrier::new(3);
    thread::scope(|scope| {
        for mut call in [call.clone(), call.clone()] {
            let line = &line;
            scope.spawn(move || {
                line.wait();
                for _ in 0..calls {
                    black_box(call(1));
                }
                line.wait();
            });
        }
        line.wait();
        let start = Instant::now();
        line.wait();
        start.elapsed()
    })
}

fn breakers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("breakers");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    let mut call = raw();
    group.bench_function("no breaker", |bencher| bencher.iter(|| call(1)));
    group.bench_function("no breaker: two threads", |bencher| {
        bencher.iter_custom(|calls| two_threads(&raw(), calls));
    });
    breaker(&mut group, "tower-outbound", ours);
    breaker(&mut group, "tower-resilience", resilience);
    breaker(&mut group, "seatbelt", seatbelt);
    breaker(&mut group, "failsafe", failsafe);
    breaker(&mut group, "recloser", recloser);
    group.finish();
}

criterion_group!(benches, breakers);

/// So many calls, for whoever counts instructions.
fn make_calls(name: &str, state: &str, calls: u64) {
    fn make<C: Call>(state: &str, calls: u64, build: impl Fn(Duration) -> C) {
        let mut call = if state == "open" { open(build) } else { build(LONG) };
        for _ in 0..calls {
            black_box(call(1));
        }
    }
    match name {
        "none" => make("closed", calls, |_| raw()),
        "tower-outbound" => make(state, calls, ours),
        "tower-resilience" => make(state, calls, resilience),
        "seatbelt" => make(state, calls, seatbelt),
        "failsafe" => make(state, calls, failsafe),
        "recloser" => make(state, calls, recloser),
        _ => panic!("no breaker has the name {name}"),
    }
}

fn main() {
    // The clock of seatbelt asks for a runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--calls") {
        make_calls(&args[at + 1], &args[at + 2], args[at + 3].parse().unwrap());
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
