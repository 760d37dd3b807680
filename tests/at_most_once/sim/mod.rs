//! Calls over a transport in memory, many at once, on a clock that does not wait.

mod broken;
mod exhaustive;
mod transport;
mod world;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use self::world::{run, sound};
use crate::{report::Report, schedule::Plan};

/// How many calls share a clock and their stacks.
const WORLD: u64 = 4096;

/// What CI makes. A longer run is `scripts/at_most_once`.
const CALLS: u64 = 100_000;

/// Makes these calls, world by world, on so many threads.
fn all(seed: u64, calls: u64, threads: u64) -> Report {
    let next = AtomicU64::new(0);
    let work = || {
        let mut report = Report::default();
        loop {
            let first = next.fetch_add(WORLD, Ordering::Relaxed);
            if first >= calls {
                return report;
            }
            let plans = (first..calls.min(first + WORLD)).map(|call| Plan::of(seed, call));
            report.merge(run(plans.collect(), &sound).report);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut report = Report::default();
        for thread in threads {
            report.merge(thread.join().unwrap());
        }
        report
    })
}

#[test]
fn nothing_is_sent_twice_lost_or_left_behind() {
    let (seed, calls) = (crate::seed(), crate::calls(CALLS));
    let threads = crate::number("AT_MOST_ONCE_THREADS").unwrap_or(1);
    let started = Instant::now();
    let report = all(seed, calls, threads);
    print!("{report}");
    println!("{}", report.line("simulated", seed, started.elapsed()));
    assert!(report.is_clean(), "{report}");
    // Each kind of thing has happened.
    for (seen, what) in [
        (report.allowed, "sent twice by a rule that says so"),
        (report.recovered, "not sent at first, and sent again"),
        (report.left, "left by its caller"),
        (report.held_by_budget, "held by a budget"),
        (report.held_by_body, "held by its body"),
        (report.held_by_deadline, "held by a deadline"),
        (report.without_endpoint, "without an endpoint"),
        (report.rejected, "rejected"),
    ] {
        assert!(seen > 0 || calls < WORLD * 8, "no call was {what}:\n{report}");
    }
}
