//! A request that may have reached a server is not sent again unless that is safe, one that provably did not reach it is
//! not lost, and nothing goes on after the caller has left. That is the promise of this crate, and here are many calls
//! under many faults that would break it.
//!
//! ```text
//! schedule   a seed and the number of a call -> all that is done to it
//! stacks     every stack that sends again, over any client
//! ledger     what the servers saw of each call, and what is still going on
//! rules      what the docs say each stack sends again
//! judge      plan, ledger and outcome -> what is wrong
//! report     counts
//! sim        a transport in memory, on a clock of its own
//! real       servers on loopback sockets
//! ```
//!
//! `AT_MOST_ONCE_SEED` and `AT_MOST_ONCE_CALLS` set the seed and how many calls there are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says what it has seen; its locks and its wall clock are not on the path of a call"
)]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "parts of the harness are used by one half of it alone"
)]

mod body;
mod judge;
mod ledger;
mod real;
mod report;
mod rules;
mod schedule;
mod sim;
mod stacks;

/// The seed, from the environment or this one.
pub fn seed() -> u64 {
    number("AT_MOST_ONCE_SEED").unwrap_or(20_180_601)
}

/// How many calls, from the environment or this many.
pub fn calls(default: u64) -> u64 {
    number("AT_MOST_ONCE_CALLS").unwrap_or(default)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

#[test]
fn a_plan_is_the_same_each_time() {
    let plan = |call| format!("{:?}", schedule::Plan::of(seed(), call));
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
}
