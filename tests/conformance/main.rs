//! What the real libraries did, replayed through this crate: feign, ribbon and hystrix alone, and the nest of all.
//!
//! `cases/` holds one recorded case per line: its settings under their real property names, what its servers do, and
//! what was observed. Each level turns the settings into layers by `nest::spring`, replays the case, and compares.
//! A difference is a failure unless one of the named [`deviations`] covers the case: a predicate on it, with a better
//! behavior that is asserted in place of the recorded one.
//!
//! `CONFORMANCE_CASES` names another folder of cases to be run in place of this one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells what it compared"
)]
#![allow(
    clippy::disallowed_types,
    reason = "locks of tests are not on the path of a call"
)]

mod case;
mod deviations;
mod http;
mod hystrix;
mod lb;
mod report;
mod table;

/// A command around a scripted function.
#[test]
fn hystrix() {
    let mut report = report::Report::new("hystrix");
    for case in case::of_levels(&["hystrix"]) {
        report.add(&case, hystrix::replay(&case));
    }
    report.conclude();
}

/// The choice of servers and the retryer's pauses.
#[test]
fn lb() {
    let mut report = report::Report::new("lb");
    for case in case::of_levels(&["lb", "retryer"]) {
        report.add(&case, lb::replay(&case));
    }
    report.conclude();
}

/// The same of the level `ribbon`, whose attempts end as recorded: its sockets have a level of their own.
#[test]
fn lb_of_ribbon() {
    let mut report = report::Report::new("lb of ribbon");
    for case in case::of_levels(&["ribbon"]) {
        if let Some(outcome) = lb::replay_choices(&case) {
            report.add(&case, outcome);
        }
    }
    report.conclude();
}
