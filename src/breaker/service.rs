//! The service.

use std::{
    mem,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{Breaker, CircuitBreakerFuture, engine::Gate, waiting::Waiting};
use crate::call::{BoxError, ByFault, CircuitState, Classify};

/// A service whose calls a [`Breaker`] admits and counts.
///
/// Made by [`CircuitBreakerLayer`](super::CircuitBreakerLayer). Rejections are
/// [`CircuitOpen`](crate::call::CircuitOpen) errors from the future of the call; `poll_ready` fails only if the inner
/// service does.
#[derive(Debug)]
pub struct CircuitBreaker<S, C = ByFault> {
    inner: S,
    breaker: Breaker,
    classify: C,
    asked: Asked,
    waiting: Waiting,
}

/// What the latest `poll_ready` of this instance did.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// There was none since the last call, or it has not ended.
    Nobody,
    /// The inner service, and it is ready.
    Inner,
    /// Nobody below, as the circuit was in this state: the call will be rejected.
    Circuit(CircuitState),
}

impl<S, C> CircuitBreaker<S, C> {
    pub(super) fn new(inner: S, breaker: Breaker, classify: C) -> Self {
        CircuitBreaker {
            inner,
            breaker,
            classify,
            asked: Asked::Nobody,
            waiting: Waiting::default(),
        }
    }

    /// The breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    crate::macros::inner_service!(S);

    /// The state, where no call would be let through now.
    #[inline]
    fn rejecting(&self) -> Option<CircuitState> {
        match self.breaker.look() {
            Gate::Pass(_) | Gate::Shadowed(_) | Gate::Probe => None,
            Gate::Reject { state, .. } => Some(state),
        }
    }

    #[inline]
    fn ready(&mut self, asked: Asked) -> Poll<Result<(), BoxError>> {
        self.asked = asked;
        self.waiting.stop();
        Poll::Ready(Ok(()))
    }

    /// The inner service is not ready. Should the circuit come to reject calls, there is nothing to wait for, and the
    /// inner service would wake nobody.
    #[cold]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            let changed = self.waiting.poll_changed(self.breaker.shard(), cx);
            // Looked at after the task was registered, so that no change can slip through.
            if let Some(state) = self.rejecting() {
                return self.ready(Asked::Circuit(state));
            }
            if changed.is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// The clone has not been asked whether it is ready.
impl<S: Clone, C: Clone> Clone for CircuitBreaker<S, C> {
    fn clone(&self) -> Self {
        CircuitBreaker::new(self.inner.clone(), self.breaker.clone(), self.classify.clone())
    }
}

impl<S, C, Req> Service<Req> for CircuitBreaker<S, C>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    C: Classify<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitBreakerFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Some(state) = self.rejecting() {
            return self.ready(Asked::Circuit(state));
        }
        self.asked = Asked::Nobody;
        match self.inner.poll_ready(cx) {
            Poll::Ready(Ok(())) => self.ready(Asked::Inner),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => self.wait(cx),
        }
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let shard = self.breaker.shard();
        let admitted = match mem::replace(&mut self.asked, Asked::Nobody) {
            Asked::Inner => shard.admit(true),
            // Whoever calls without asking is let through to the inner service, but not with the one probe.
            Asked::Nobody => shard.admit(false),
            Asked::Circuit(state) => Err(shard.refuse(state)),
        };
        match admitted {
            // The permit is a local while the inner service works: should that panic, it is dropped.
            Ok(permit) => {
                CircuitBreakerFuture::calling(self.inner.call(request), Some(permit), self.classify.clone())
            }
            Err(rejection) => CircuitBreakerFuture::rejected(rejection),
        }
    }
}
