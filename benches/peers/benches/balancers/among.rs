//! Calls among other work, which takes the caches: nobody calls a balancer in a loop of nothing else.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion};

use crate::{growth::MANY, subjects::SUBJECTS};

pub const GROUP: &str = "among other work";

/// So much other memory is written to before each call. In kilobytes: more than the first cache, about the second, and more.
pub const TOUCHED: [usize; 3] = [64, 1_024, 4_096];

pub const NAMES: [&str; 6] = [
    "no balancer",
    "Ewma",
    "tower PeakEwma",
    "no balancer, small requests",
    "Ewma, small requests",
    "tower PeakEwma, small requests",
];

/// A line of the cache.
const LINE: usize = 64;

/// The call alone is measured, on the wall, as the thread's time cannot be read for each. What reading the clock takes is in the
/// rows without a balancer.
pub fn among(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(GROUP);
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1_500))
        .sample_size(50);
    for (name, build) in SUBJECTS.iter().filter(|(name, _)| NAMES.contains(name)) {
        let mut call = None;
        for kilobytes in TOUCHED {
            let mut memory = vec![0_u8; kilobytes * 1_024];
            group.bench_function(BenchmarkId::new(*name, kilobytes), |bencher| {
                let call = call.get_or_insert_with(|| build(MANY));
                bencher.iter_custom(|calls| {
                    let mut took = Duration::ZERO;
                    for _ in 0..calls {
                        memory
                            .iter_mut()
                            .step_by(LINE)
                            .for_each(|byte| *byte = byte.wrapping_add(1));
                        black_box(&mut memory);
                        let start = Instant::now();
                        call();
                        took += start.elapsed();
                    }
                    took
                });
            });
        }
    }
    group.finish();
}
