//! The contract of `tests/contract`, over layers of other crates. A harness that finds nothing proves little: here it
//! is seen to find faults that nobody has planted, and to pass what keeps the contract.
//!
//! `table.md` holds what was found, layer by check, and is compared with what is found.
//! Each layer was set up to do as much as it can of what the contract asks for. Where the docs of a crate say that
//! something is on purpose, the test of that finding says so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::disallowed_types,
    reason = "locks of tests are not on the path of a call"
)]

#[macro_use]
#[path = "../../../tests/contract/checks.rs"]
mod checks;
#[path = "../../../tests/contract/probe.rs"]
mod probe;
#[path = "foreign/subjects.rs"]
mod subjects;
#[path = "foreign/trial.rs"]
mod trial;

use futures_util::FutureExt;
use tower::ServiceExt;

use probe::{Act, Script, Subject, Wait, Watch};
use subjects::{
    OurBackoffRetry, OurCircuitBreaker, ResilienceBulkhead, ResilienceCircuitBreaker, ResilienceHedge,
    ResilienceProbing, ResilienceRateLimiter, ResilienceRejectingBulkhead, ResilienceRetry,
    ResilienceTimeLimiter, ResilienceTimeLimiterDetached, ResilienceWaitingBulkhead, SeatbeltBreaker,
    SeatbeltFallback, SeatbeltHedging, SeatbeltRetry, SeatbeltTimeout, TowerRetry, TowerTimeout, Unwrapped,
};
use trial::{Outcome, Row, row};

fn rows() -> Vec<Row> {
    vec![
        row::<OurBackoffRetry>("tower-outbound: backoff retry"),
        row::<OurCircuitBreaker>("tower-outbound: circuit breaker"),
        row::<TowerRetry>("tower: retry"),
        row::<TowerTimeout>("tower: timeout"),
        row::<SeatbeltTimeout>("seatbelt: timeout"),
        row::<SeatbeltFallback>("seatbelt: fallback"),
        row::<SeatbeltBreaker>("seatbelt: breaker"),
        row::<SeatbeltRetry>("seatbelt: retry"),
        row::<SeatbeltHedging>("seatbelt: hedging"),
        row::<ResilienceRetry>("tower-resilience: retry"),
        row::<ResilienceTimeLimiter>("tower-resilience: time limiter"),
        row::<Unwrapped<ResilienceTimeLimiter>>("tower-resilience: time limiter, unwrapped"),
        row::<Unwrapped<ResilienceTimeLimiterDetached>>(
            "tower-resilience: time limiter, detached, unwrapped",
        ),
        row::<ResilienceCircuitBreaker>("tower-resilience: circuit breaker"),
        row::<Unwrapped<ResilienceCircuitBreaker>>("tower-resilience: circuit breaker, unwrapped"),
        row::<Unwrapped<ResilienceProbing>>("tower-resilience: circuit breaker, half open, unwrapped"),
        row::<ResilienceBulkhead>("tower-resilience: bulkhead, backpressure"),
        row::<Unwrapped<ResilienceBulkhead>>("tower-resilience: bulkhead, backpressure, unwrapped"),
        row::<Unwrapped<ResilienceWaitingBulkhead>>("tower-resilience: bulkhead, waiting, unwrapped"),
        row::<Unwrapped<ResilienceRejectingBulkhead>>("tower-resilience: bulkhead, rejecting, unwrapped"),
        row::<ResilienceRateLimiter>("tower-resilience: rate limiter"),
        row::<Unwrapped<ResilienceRateLimiter>>("tower-resilience: rate limiter, unwrapped"),
        row::<ResilienceHedge>("tower-resilience: hedge"),
        row::<Unwrapped<ResilienceHedge>>("tower-resilience: hedge, unwrapped"),
    ]
}

#[test]
fn the_table_is_what_is_found() {
    let found = trial::table(&rows());
    println!("{found}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/table.md");
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == known, "{path} says otherwise; found:\n{found}");
}

/// What a check says about a subject that fails it.
#[track_caller]
fn fault(check: fn()) -> String {
    let Outcome::Fault(fault) = trial::outcome(check) else {
        panic!("the harness sees nothing");
    };
    fault
}

#[track_caller]
fn passes(check: fn()) {
    assert_eq!(trial::outcome(check), Outcome::Pass);
}

const UNREADY: &str = "an instance was called that had not been polled ready since its last call";

#[test]
fn ours_pass_every_check() {
    for (_, check) in checks::all::<OurBackoffRetry>() {
        passes(check);
    }
    for (_, check) in checks::all::<OurCircuitBreaker>() {
        passes(check);
    }
}

/// The contract asks for nothing that only we do.
#[test]
fn towers_own_retry_and_timeout_pass_every_check() {
    for (_, check) in checks::all::<TowerRetry>() {
        passes(check);
    }
    for (_, check) in checks::all::<TowerTimeout>() {
        passes(check);
    }
}

#[test]
fn seatbelts_retry_calls_a_clone_that_was_never_ready() {
    let fault = fault(checks::a_thousand_calls_through_clones::<SeatbeltRetry>);
    assert!(fault.contains(UNREADY), "{fault}");
}

#[test]
fn seatbelts_hedging_calls_a_clone_that_was_never_ready() {
    let fault = fault(checks::a_thousand_calls_through_clones::<SeatbeltHedging>);
    assert!(fault.contains(UNREADY), "{fault}");
}

/// The same over tower's own limit of concurrency, which takes its permit in `poll_ready`.
#[test]
fn seatbelts_retry_and_hedging_panic_over_a_concurrency_limit() {
    for check in [
        checks::slots_below_are_free_while_bodies_are_read::<SeatbeltRetry> as fn(),
        checks::slots_below_are_free_while_bodies_are_read::<SeatbeltHedging>,
    ] {
        let fault = fault(check);
        assert!(fault.contains("poll_ready must be called first"), "{fault}");
    }
}

/// Those of its layers that call the service itself, and no clone of it, are well.
#[test]
fn seatbelts_timeout_and_fallback_pass_every_check() {
    for (_, check) in checks::all::<SeatbeltTimeout>() {
        passes(check);
    }
    for (_, check) in checks::all::<SeatbeltFallback>() {
        passes(check);
    }
}

#[test]
fn seatbelts_open_breaker_waits_for_the_service_below_before_it_rejects() {
    let fault = fault(checks::a_rejection_asks_nobody_below::<SeatbeltBreaker>);
    assert!(fault.contains("what rejects makes its callers wait"), "{fault}");
}

/// The place of a probe that was dropped is not given back: as its docs say, there is one in a break duration.
#[test]
fn seatbelts_breaker_rejects_for_a_further_break_after_its_probe_was_dropped() {
    let fault = fault(checks::a_call_dropped_at_any_poll_leaves_nothing_behind::<SeatbeltBreaker>);
    assert!(
        fault.contains("as the probe of a circuit that was open"),
        "{fault}"
    );
    assert!(fault.ends_with("rejected"), "{fault}");
    // It is a break and no more: time heals it.
    checks::paused(async {
        let watch = Watch::new(Script {
            answer: Box::new(|_| (Wait::Polls(1), Act::Answer(200))),
            ..Script::default()
        });
        let (setup, clock) = subjects::seatbelt_breaker(watch.inner());
        let (_, open, _) = &setup.states[0];
        open();
        assert!(setup.stack.clone().oneshot(watch.ask()).now_or_never().is_none());
        assert_eq!(watch.calls(), 1);
        setup.stack.clone().oneshot(watch.ask()).await.unwrap_err();
        clock.advance(2 * subjects::SLEEP_WINDOW);
        setup.stack.clone().oneshot(watch.ask()).await.unwrap();
    });
}

#[test]
fn resiliences_retry_passes_every_check() {
    for (_, check) in checks::all::<ResilienceRetry>() {
        passes(check);
    }
}

/// On purpose, say the docs of all but the breaker's. What is inside can be taken out, and then the check passes.
#[test]
fn resiliences_errors_hide_their_source() {
    fn hides<P: Subject + subjects::Peer>() {
        let fault = fault(checks::errors_keep_their_source::<P>);
        assert!(fault.ends_with("found None; expected Some(Broken)"), "{fault}");
        passes(checks::errors_keep_their_source::<Unwrapped<P>>);
    }
    hides::<ResilienceTimeLimiter>();
    hides::<ResilienceCircuitBreaker>();
    hides::<ResilienceBulkhead>();
    hides::<ResilienceRateLimiter>();
    hides::<ResilienceHedge>();
}

/// While a call is in the queue of the bulkhead, it keeps a place below that others could use.
#[test]
fn resiliences_bulkhead_that_waits_holds_the_service_below_ready_for_a_call_that_is_not_made() {
    let check =
        checks::a_call_dropped_at_any_poll_leaves_nothing_behind::<Unwrapped<ResilienceWaitingBulkhead>>;
    let fault = fault(check);
    assert!(
        fault.contains("readiness is held while nothing is called"),
        "{fault}"
    );
    // With `backpressure` it waits before it asks, and is well.
    passes(checks::a_call_dropped_at_any_poll_leaves_nothing_behind::<Unwrapped<ResilienceBulkhead>>);
}

#[test]
fn resiliences_full_bulkhead_waits_for_the_service_below_before_it_rejects() {
    let fault = fault(checks::a_rejection_asks_nobody_below::<Unwrapped<ResilienceRejectingBulkhead>>);
    assert!(fault.contains("what rejects makes its callers wait"), "{fault}");
    // Its open breaker does not.
    passes(checks::a_rejection_asks_nobody_below::<ResilienceCircuitBreaker>);
}

/// On purpose: it is what `detached` is there for.
#[test]
fn resiliences_detached_time_limiter_leaves_a_dropped_call_running() {
    type Subject = Unwrapped<ResilienceTimeLimiterDetached>;
    let fault = fault(checks::a_call_dropped_at_any_poll_leaves_nothing_behind::<Subject>);
    assert!(fault.starts_with("calls that are out"), "{fault}");
    passes(checks::a_call_dropped_at_any_poll_leaves_nothing_behind::<ResilienceTimeLimiter>);
}

#[test]
fn resiliences_detached_time_limiter_tells_a_panic_as_a_timeout() {
    type Subject = Unwrapped<ResilienceTimeLimiterDetached>;
    let fault = fault(checks::a_panic_below_leaves_a_stack_that_works::<Subject>);
    assert!(fault.starts_with("no panic came through"), "{fault}");
    let error = checks::paused(async {
        let watch = Watch::new(Script::at_once(|_| Act::PanicInPoll));
        let stack = <ResilienceTimeLimiterDetached as probe::Subject>::build(watch.inner()).stack;
        stack.oneshot(watch.ask()).await.unwrap_err()
    });
    assert_eq!(error.to_string(), "request timed out");
}

/// As its docs say: the error is that of the first attempt. A service that is dead is told as what came before.
#[test]
fn resiliences_hedge_tells_the_first_error_when_a_second_attempt_finds_the_service_dead() {
    let fault = fault(checks::a_service_that_is_dead_is_an_error_and_no_wait::<Unwrapped<ResilienceHedge>>);
    assert!(
        fault.ends_with("found Some(Broken); expected Some(Dead)"),
        "{fault}"
    );
}
