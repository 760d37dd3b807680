//! What an outcome counts as.

use std::{error::Error, sync::Arc};

use http::Response;

use super::{
    fault::{FallbackRejected, Fault, FaultKind, GrpcError, Sent, StatusError},
    grpc::GrpcCode,
    late::LateVerdict,
};

/// An error as classifiers see it, whatever layer it comes from.
pub type ErrorRef<'a> = &'a (dyn Error + Send + Sync + 'static);

/// What the outcome of a call or of an attempt counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The dependency did its work.
    Success,
    /// The dependency failed.
    Failure,
    /// The caller's fault, or nobody's: never counted.
    Ignored,
}

impl Verdict {
    /// The verdict on an error: the one it was given when it was classified, or else the one its [`Fault`] has.
    ///
    /// Rejections by a layer of this crate, and finding no endpoint, are [`Ignored`](Verdict::Ignored): no server
    /// had a part in them; nor had one where there was no time left for the call to begin
    /// ([`NoTimeLeft`](super::NoTimeLeft)). Where it was a fallback that was turned away, the error of the call decides. A gRPC status
    /// counts as [its code](GrpcCode::verdict) does. All other faults are a [`Failure`](Verdict::Failure).
    pub fn of(error: &(dyn Error + 'static)) -> Verdict {
        if let Some(status) = StatusError::of(error) {
            return status.verdict();
        }
        if let Some(grpc) = GrpcError::of(error) {
            return grpc.verdict();
        }
        if let Some(fallback) = FallbackRejected::of(error) {
            return Verdict::of(fallback.original());
        }
        let fault = Fault::of(error);
        match fault.kind() {
            FaultKind::Rejected(_) | FaultKind::NoEndpoint => Verdict::Ignored,
            // Callers in a hurry must not open the circuit for those that are not.
            FaultKind::ExecutionTimeout if fault.sent() == Sent::No => Verdict::Ignored,
            FaultKind::Grpc(code) => GrpcCode::from_number(code).verdict(),
            _ => Verdict::Failure,
        }
    }
}

/// Gives the [`Verdict`] on outcomes.
///
/// A closure `Fn(Result<&Response, ErrorRef<'_>>) -> Verdict` is a classifier. Errors come type-erased at every
/// level, so that one object can serve all layers of a nest, which then cannot disagree.
///
/// ```
/// use tower_outbound::call::{Classify, ErrorRef, Verdict};
///
/// let classify = |outcome: Result<&http::Response<()>, ErrorRef<'_>>| match outcome {
///     Ok(response) if response.status().is_server_error() => Verdict::Failure,
///     Ok(_) => Verdict::Success,
///     Err(error) => Verdict::of(error),
/// };
/// assert_eq!(classify.classify(Ok(&http::Response::new(()))), Verdict::Success);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no verdict on answers of type `{Response}`",
    label = "no verdict on `{Response}`",
    note = "a closure `Fn(Result<&{Response}, ErrorRef<'_>>) -> Verdict` is a classifier",
    note = "a classifier of statuses needs `http::Response`: does a layer below change the response?"
)]
pub trait Classify<Response> {
    /// What this outcome counts as.
    fn classify(&self, outcome: Result<&Response, ErrorRef<'_>>) -> Verdict;

    /// The promise of a verdict on this answer, if it comes later: with the end of the body. What
    /// [`classify`](Classify::classify) says of it does not count then. Default: none.
    ///
    /// A layer that counts outcomes asks this first, and settles the call by it.
    #[inline]
    fn late(&self, answer: &Response) -> Option<LateVerdict> {
        let _ = answer;
        None
    }
}

#[diagnostic::do_not_recommend]
impl<F, Response> Classify<Response> for F
where
    F: Fn(Result<&Response, ErrorRef<'_>>) -> Verdict,
{
    #[inline]
    fn classify(&self, outcome: Result<&Response, ErrorRef<'_>>) -> Verdict {
        self(outcome)
    }
}

#[diagnostic::do_not_recommend]
impl<C: Classify<Response> + ?Sized, Response> Classify<Response> for Arc<C> {
    #[inline]
    fn classify(&self, outcome: Result<&Response, ErrorRef<'_>>) -> Verdict {
        (**self).classify(outcome)
    }

    #[inline]
    fn late(&self, answer: &Response) -> Option<LateVerdict> {
        (**self).late(answer)
    }
}

/// The default classifier: an answer, whatever it is, is a success; an error counts as [`Verdict::of`] says.
///
/// It serves requests and responses of any type. Over HTTP it needs a `StatusErrorClassifier` below, which turns
/// statuses into errors, or that layer's policy in its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByFault;

impl<Response> Classify<Response> for ByFault {
    #[inline]
    fn classify(&self, outcome: Result<&Response, ErrorRef<'_>>) -> Verdict {
        match outcome {
            Ok(_) => Verdict::Success,
            Err(error) => Verdict::of(error),
        }
    }
}

/// As another classifier, but where an answer promises a [`LateVerdict`], and its head counts as a success, that
/// verdict counts, and is waited for.
///
/// Only `http::Response`s can promise one. Default: around [`ByFault`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByTrailers<C = ByFault>(
    /// The classifier of the head, and of errors.
    pub C,
);

impl<C, B> Classify<Response<B>> for ByTrailers<C>
where
    C: Classify<Response<B>>,
{
    #[inline]
    fn classify(&self, outcome: Result<&Response<B>, ErrorRef<'_>>) -> Verdict {
        self.0.classify(outcome)
    }

    #[inline]
    fn late(&self, answer: &Response<B>) -> Option<LateVerdict> {
        let late = LateVerdict::on(answer.extensions())?;
        (self.classify(Ok(answer)) == Verdict::Success).then(|| late.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::*;
    use crate::call::{ExecutionTimedOut, FaultError, NoTimeLeft, Rejection};

    #[test]
    fn rejections_and_a_missing_endpoint_are_nobodys_failure() {
        for kind in [
            FaultKind::Rejected(Rejection::Breaker),
            FaultKind::Rejected(Rejection::Bulkhead),
            FaultKind::NoEndpoint,
        ] {
            let error = FaultError::new(Fault::new(kind, Sent::No), "turned away");
            assert_eq!(Verdict::of(&error), Verdict::Ignored, "{kind:?}");
        }
        let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(Verdict::of(&reset()), Verdict::Failure);
        let fallback = FallbackRejected::new(1, reset().into());
        assert_eq!(
            Verdict::of(&fallback),
            Verdict::Failure,
            "the call was not turned away"
        );
    }

    #[test]
    fn a_call_for_which_there_was_no_time_left_is_nobodys_failure() {
        assert_eq!(Verdict::of(&NoTimeLeft::new("SendDeadline")), Verdict::Ignored);
        let late = ExecutionTimedOut::new(Duration::from_secs(1));
        assert_eq!(Verdict::of(&late), Verdict::Failure, "it was made");
    }

    #[test]
    fn a_shared_classifier_and_a_closure_classify_alike() {
        let closure = |outcome: Result<&u8, ErrorRef<'_>>| {
            if matches!(outcome, Ok(7)) {
                Verdict::Success
            } else {
                Verdict::Ignored
            }
        };
        let shared = Arc::new(closure);
        assert_eq!(closure.classify(Ok(&7)), shared.classify(Ok(&7)));
        assert_eq!(shared.classify(Ok(&8)), Verdict::Ignored);
    }
}
