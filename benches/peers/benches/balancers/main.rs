//! What a balancer costs, each rule of this crate's beside tower's balancer, over the same service, which does nothing.
//!
//! ```text
//! scripts/balancers                        # all of it, and writes balancers.md
//! cargo bench --manifest-path benches/peers/Cargo.toml --bench balancers
//! valgrind --tool=callgrind <the binary of it> --calls <name> <how many endpoints> <how many calls>
//! ```
//!
//! The last form makes so many calls, so that their instructions can be counted: as the difference between two counts of
//! calls. What was found is in `balancers.md`.
//!
//! A call is readiness, the pick, the call of the service, and the end of the answer. With tower each endpoint has a service
//! of its own, and one task has the balancer; in a `Buffer`, which is what shares it, the calls of one task go to that of the
//! buffer and back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails by panicking")]

mod among;
mod cpu_time;
mod growth;
mod subjects;
mod tables;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use tokio::time::Instant;

use cpu_time::CpuTime;
use subjects::{SUBJECTS, buffered, shared};

const SIZES: [usize; 4] = [3, 100, 1_000, 10_000];

fn calls(criterion: &mut Criterion<CpuTime>) {
    let mut group = criterion.benchmark_group("balancers");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1_500))
        .sample_size(50);
    for (name, build) in SUBJECTS {
        for n in SIZES {
            let mut call = None;
            group.bench_function(BenchmarkId::new(*name, n), |bencher| {
                let call = call.get_or_insert_with(|| build(n));
                bencher.iter(call);
            });
        }
    }
    group.finish();
}

/// With several threads the time on the wall is what counts.
fn tasks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tasks");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1_500))
        .sample_size(50);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    for n in [3, 10_000] {
        group.bench_function(BenchmarkId::new("Ewma, two tasks", n), |bencher| {
            bencher.iter_custom(|calls| runtime.block_on(shared(n, 2, calls)));
        });
        group.bench_function(BenchmarkId::new("tower PeakEwma in a Buffer", n), |bencher| {
            bencher.iter_custom(|calls| runtime.block_on(buffered(n, 1, calls)));
        });
        group.bench_function(
            BenchmarkId::new("tower PeakEwma in a Buffer, two tasks", n),
            |bencher| {
                bencher.iter_custom(|calls| runtime.block_on(buffered(n, 2, calls)));
            },
        );
    }
    group.finish();
}

/// How long these took that are made at once by tasks of their own, so many each.
async fn at_once<F: Future<Output = ()> + Send + 'static>(tasks: impl Iterator<Item = F>) -> Duration {
    let start = Instant::now();
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap();
    }
    start.elapsed()
}

/// So many calls, for whoever counts instructions.
fn make_calls(name: &str, n: usize, calls: u64) {
    let Some((_, build)) = SUBJECTS.iter().find(|(known, _)| *known == name) else {
        panic!("no balancer has the name {name}");
    };
    let mut call = build(n);
    for _ in 0..calls {
        call();
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[1..] {
        ["--calls", name, n, calls] => make_calls(name, n.parse().unwrap(), calls.parse().unwrap()),
        ["--names"] => SUBJECTS.iter().for_each(|(name, _)| println!("{name}")),
        ["--tables", instructions] => print!("{}", tables::tables(instructions)),
        _ => {
            let mut criterion = Criterion::default()
                .with_measurement(CpuTime)
                .configure_from_args();
            calls(&mut criterion);
            growth::growth(&mut criterion);
            criterion.final_summary();
            let mut criterion = Criterion::default().configure_from_args();
            tasks(&mut criterion);
            among::among(&mut criterion);
            criterion.final_summary();
        }
    }
}
