//! How a call ended, in the words of the recordings: read off what its caller got, and what its fallback was given.

use std::error::Error;

use tokio::time::Instant;
use tower_outbound::call::{FallbackFailed, FallbackRejected, Fault, FaultKind, Rejection, Verdict};

use super::call::{Answer, Seen};

/// What may call for a fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    BadRequest,
    Failure,
    Timeout,
    CircuitOpen,
    BulkheadFull,
}

impl Cause {
    pub(super) fn of(error: &(dyn Error + 'static)) -> Cause {
        match Fault::of(error).kind() {
            FaultKind::Status(_) if Verdict::of(error) == Verdict::Ignored => Cause::BadRequest,
            FaultKind::Status(_) | FaultKind::Other => Cause::Failure,
            FaultKind::ExecutionTimeout => Cause::Timeout,
            FaultKind::Rejected(Rejection::Breaker) => Cause::CircuitOpen,
            FaultKind::Rejected(Rejection::Bulkhead) => Cause::BulkheadFull,
            other => panic!("nothing here ends in {other:?}: {error}"),
        }
    }
}

/// The words of the case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    /// The bulkhead stands for a pool of threads.
    pub(super) is_pool: bool,
    pub(super) fallback_enabled: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub(super) kind: &'static str,
    pub(super) events: Vec<&'static str>,
    pub(super) at: Instant,
}

impl Words {
    fn of(self, cause: Cause) -> (&'static str, &'static str) {
        match cause {
            Cause::BadRequest => ("bad_request", "BAD_REQUEST"),
            Cause::Failure => ("failure", "FAILURE"),
            Cause::Timeout => ("hystrix_timeout", "TIMEOUT"),
            Cause::CircuitOpen => ("circuit_open", "SHORT_CIRCUITED"),
            Cause::BulkheadFull if self.is_pool => ("thread_pool_rejected", "THREAD_POOL_REJECTED"),
            Cause::BulkheadFull => ("semaphore_rejected", "SEMAPHORE_REJECTED"),
        }
    }

    /// Of a call that ends now.
    pub(super) fn ending(self, answer: &Answer, seen: Seen) -> Ending {
        let (kind, events) = match (answer, seen.cause) {
            (Ok(_), None) => ("success", vec!["SUCCESS"]),
            (Ok(_), Some(cause)) => ("fallback", vec![self.of(cause).1, "FALLBACK_SUCCESS"]),
            (Err(error), _) => self.of_error(&**error),
        };
        Ending {
            kind,
            events,
            at: Instant::now(),
        }
    }

    fn of_error(self, error: &(dyn Error + 'static)) -> (&'static str, Vec<&'static str>) {
        if let Some(rejected) = FallbackRejected::of(error) {
            let cause = Cause::of(rejected.original());
            return ("fallback_rejected", vec![self.of(cause).1, "FALLBACK_REJECTION"]);
        }
        let cause = Cause::of(error);
        let (kind, event) = self.of(cause);
        let after = if FallbackFailed::of(error).is_some() {
            Some("FALLBACK_FAILURE")
        } else {
            // A bad request asks for none.
            (self.fallback_enabled && cause != Cause::BadRequest).then_some("FALLBACK_MISSING")
        };
        (kind, [event].into_iter().chain(after).collect())
    }
}

/// Of a call that ended in a panic: there is nothing to be read.
pub(super) fn panicked() -> Ending {
    Ending {
        kind: "panic",
        events: Vec::new(),
        at: Instant::now(),
    }
}
