//! The service.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use tower_service::Service;

use super::{FallbackFuture, Substitute, shared::Shared};
use crate::call::BoxError;

/// A service whose errors another answer takes the place of.
///
/// Made by [`FallbackLayer`](super::FallbackLayer). See the [module](super).
pub struct Fallback<S, F> {
    inner: S,
    shared: Arc<Shared<F>>,
}

impl<S, F> Fallback<S, F> {
    pub(super) fn new(inner: S, shared: Arc<Shared<F>>) -> Self {
        Fallback { inner, shared }
    }

    /// How many fallbacks may run at once.
    pub fn max_concurrent(&self) -> u32 {
        self.shared.max_concurrent
    }

    /// How many fallbacks are running now.
    pub fn running(&self) -> u32 {
        self.shared.running.load(Relaxed)
    }

    crate::macros::inner_service!(S);
}

impl<S: Clone, F> Clone for Fallback<S, F> {
    fn clone(&self) -> Self {
        Fallback::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S, F, Req> Service<Req> for Fallback<S, F>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    F: Substitute<Req, S::Response>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = FallbackFuture<S::Future, F, Req, S::Response>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let taken = self.shared.substitute.take(&request);
        FallbackFuture::new(self.inner.call(request), taken, self.shared.clone())
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Fallback<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("inner", &self.inner)
            .field("max_concurrent", &self.max_concurrent())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}
