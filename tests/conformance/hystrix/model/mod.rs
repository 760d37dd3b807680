//! A reference model of Hystrix: plain lists, everything recomputed, and no clock but a number.
//!
//! It is asked twice about each case: as Hystrix is, which must give what was recorded, and by our [`Rules`], which
//! says what this crate must give. It knows nothing of the crate.

mod breaker;
mod calls;
mod settings;
mod slots;
mod steps;

use serde_json::Value;

use crate::case::Case;

/// Where this crate departs from Hystrix: a field for each deviation. All false is Hystrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rules {
    /// What has timed out or was given up ends then, and holds no thread.
    pub(super) work_stops: bool,
    /// Semaphore isolation: the caller does not wait for a function that has timed out.
    pub(super) caller_leaves: bool,
    /// A trial that the semaphore turns away is a failure; one that is given up hands its place to the next call.
    pub(super) probe_is_freed: bool,
    /// Only a trial decides, and nothing from before the last wipe is booked.
    pub(super) late_is_ignored: bool,
    /// A call turned away while half-open changes nothing.
    pub(super) bystanders_change_nothing: bool,
    /// A health tick comes before all else that is due at its instant; in the recordings the timer that was set first
    /// fires first.
    pub(super) ticks_come_first: bool,
    /// A stack overflow is a panic, which is no outcome and goes past the fallback.
    pub(super) java_only: bool,
}

impl Rules {
    pub(super) const HYSTRIX: Rules = Rules {
        work_stops: false,
        caller_leaves: false,
        probe_is_freed: false,
        late_is_ignored: false,
        bystanders_change_nothing: false,
        ticks_come_first: false,
        java_only: false,
    };

    pub(super) const OURS: Rules = Rules {
        work_stops: true,
        caller_leaves: true,
        probe_is_freed: true,
        late_is_ignored: true,
        bystanders_change_nothing: true,
        ticks_come_first: true,
        java_only: true,
    };
}

/// What a case gives, in the fields of the recordings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) observed: Value,
    /// When all of it was over.
    pub(super) ended_ms: u64,
    /// Two things happened at the same instant that might happen in either order.
    pub(super) tied: bool,
}

/// What the model says.
///
/// `until`: when to look at the breaker for the last time, in a case with threads, if that is after its end.
pub(super) fn tell(case: &Case, rules: Rules, until: u64) -> Told {
    if case.part("calls").is_null() {
        steps::tell(case, rules)
    } else {
        calls::tell(case, rules, until)
    }
}

/// The number of a call.
type Id = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Success,
    Failure,
    BadRequest,
    Panic,
}

impl Outcome {
    fn read(name: &str) -> Outcome {
        match name {
            "success" => Outcome::Success,
            "failure" | "error" => Outcome::Failure,
            "bad_request" => Outcome::BadRequest,
            "unrecoverable_error" => Outcome::Panic,
            other => panic!("no function ends as {other}"),
        }
    }
}

/// Why a function did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Circuit,
    Semaphore,
    Pool,
}
