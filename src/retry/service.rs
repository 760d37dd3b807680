//! The service, for any policy.

use std::{
    mem,
    task::{Context, Poll},
};

use tower::BoxError;
use tower_service::Service;

use super::{RetryFuture, drive::Drive, future::Loop};
use crate::call::{AnyAnswer, ReadAnswer, RetryBudget};

/// Sends a request again when a policy says so.
///
/// It is used by the names of its policies: [`BackoffRetry`](super::BackoffRetry) and
/// [`IdempotentRetry`](super::IdempotentRetry). The loop is driven by any [`RetryPolicy`](super::RetryPolicy), for
/// requests that are [`OutboundRequest`](crate::call::OutboundRequest), and by a `TowerPolicy` for those that its
/// policy is written for. A copy of the request and a clone of the service are made only if a
/// retry is possible at all.
#[derive(Debug, Clone)]
pub struct RetryService<S, P, A = AnyAnswer> {
    pub(super) inner: S,
    pub(super) policy: P,
    pub(super) reader: A,
    pub(super) budget: Option<RetryBudget>,
    pub(super) attempts_in_call: u32,
}

impl<S, P, A> RetryService<S, P, A> {
    crate::macros::inner_service!(S);
}

impl<S, P, A, Req> Service<Req> for RetryService<S, P, A>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    P: Drive<Req, S::Response, S::Error>,
    A: ReadAnswer<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RetryFuture<S, P, A, Req>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let mut overridden = self.policy.overridden(&request);
        let policy = overridden.as_mut().unwrap_or(&mut self.policy);
        if policy.never_retries() {
            return RetryFuture::straight(self.inner.call(request));
        }
        let semantics = P::semantics(&request);
        let kept = policy.keep(&request, semantics);
        let mut retries = Loop::new(
            policy.clone(),
            self.reader.clone(),
            self.budget.clone(),
            semantics,
            policy.prefers_untried(),
        );
        retries.limit_attempts(self.attempts_in_call);
        let attempt = match kept {
            Some(kept) => {
                // The very instance that was polled ready is the one called.
                let clone = self.inner.clone();
                let mut ready = mem::replace(&mut self.inner, clone);
                let attempt = retries.start(|| ready.call(request));
                retries.keep(kept, ready);
                attempt
            }
            None => retries.start(|| self.inner.call(request)),
        };
        RetryFuture::new(attempt, retries)
    }
}
