//! What Hystrix counts.

use crate::call::{Classify, ErrorRef, StatusError, Verdict};

/// Classifies as Hystrix's health figures do.
///
/// An answer is a success. An error that was classified as [ignored](Verdict::Ignored), such as a status that is the
/// caller's fault, is what Hystrix calls a bad request, and is ignored. Every other error is a failure, rejections by
/// a limit on this side and execution timeouts included: enough of them open the circuit.
///
/// This is a deviation from the rule of this crate that rejections are not the dependency's fault, for those who want
/// Hystrix's circuit as it is. [`ByFault`](crate::call::ByFault) keeps to the rule.
///
/// ```
/// use tower_outbound::{
///     breaker::{Breaker, CircuitBreakerLayer, HystrixRelease, HystrixVerdicts},
///     call::ConfigError,
/// };
///
/// # fn main() -> Result<(), ConfigError> {
/// let breaker = Breaker::builder("orders").hystrix(HystrixRelease::V1_5_12).build()?;
/// let layer = CircuitBreakerLayer::new(breaker).classify(HystrixVerdicts);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct HystrixVerdicts;

impl<Response> Classify<Response> for HystrixVerdicts {
    fn classify(&self, outcome: Result<&Response, ErrorRef<'_>>) -> Verdict {
        let Err(error) = outcome else {
            return Verdict::Success;
        };
        match StatusError::of(error).map(StatusError::verdict) {
            Some(Verdict::Ignored) => Verdict::Ignored,
            _ => Verdict::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use bytes::Bytes;

    use super::*;
    use crate::call::{BoxError, Fault, FaultError, FaultKind, Rejection, Sent};

    fn verdict(error: impl Into<BoxError>) -> Verdict {
        Classify::<()>::classify(&HystrixVerdicts, Err(&*error.into()))
    }

    fn status(verdict: Verdict) -> StatusError {
        let (parts, ()) = http::Response::new(()).into_parts();
        StatusError::new(parts, verdict, Bytes::new(), true, None)
    }

    #[test]
    fn answers_are_successes_bad_requests_are_ignored_and_all_else_fails_rejections_too() {
        assert_eq!(HystrixVerdicts.classify(Ok(&())), Verdict::Success);
        assert_eq!(verdict(status(Verdict::Ignored)), Verdict::Ignored);
        assert_eq!(verdict(status(Verdict::Failure)), Verdict::Failure);
        assert_eq!(
            verdict(io::Error::from(io::ErrorKind::ConnectionReset)),
            Verdict::Failure
        );
        for kind in [FaultKind::Rejected(Rejection::Bulkhead), FaultKind::NoEndpoint] {
            let error = FaultError::new(Fault::new(kind, Sent::No), "turned away");
            assert_eq!(verdict(error), Verdict::Failure, "{kind:?}");
        }
    }
}
