//! The service.

use std::{
    borrow::{Borrow, Cow, ToOwned},
    fmt,
    hash::Hash,
    task::{Context, Poll, ready},
};

use tower_service::Service;

use super::{Breakers, KeyedBreakerLayer};
use crate::{
    breaker::CircuitBreakerFuture,
    call::{BoxError, ByFault, Classify},
};

/// A service whose calls the breakers of their keys admit and count. Made by [`KeyedBreakerLayer`].
///
/// Rejections are [`CircuitOpen`](crate::call::CircuitOpen) errors from the future of the call, with the name of the
/// breaker, in which the key stands.
pub struct KeyedBreaker<S, Q: ?Sized + ToOwned, F, C = ByFault> {
    inner: S,
    how: KeyedBreakerLayer<Q, F, C>,
}

impl<S, Q: ?Sized + ToOwned, F, C> KeyedBreaker<S, Q, F, C> {
    pub(super) fn new(inner: S, how: KeyedBreakerLayer<Q, F, C>) -> Self {
        KeyedBreaker { inner, how }
    }

    /// The breakers.
    pub fn breakers(&self) -> &Breakers<Q> {
        self.how.breakers()
    }

    crate::macros::inner_service!(S);
}

impl<S: Clone, Q: ?Sized + ToOwned, F: Clone, C: Clone> Clone for KeyedBreaker<S, Q, F, C> {
    fn clone(&self) -> Self {
        KeyedBreaker::new(self.inner.clone(), self.how.clone())
    }
}

impl<S, Q, F, C, Req> Service<Req> for KeyedBreaker<S, Q, F, C>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    Q: ?Sized + ToOwned + Hash + Eq + fmt::Display,
    Q::Owned: Borrow<Q> + Hash + Eq + Clone,
    F: Fn(&Req) -> Option<Cow<'_, Q>>,
    C: Classify<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CircuitBreakerFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(ready!(self.inner.poll_ready(cx)).map_err(Into::into))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let admitted = match self.how.key_of(&request) {
            Some(key) => self.how.breakers().admit(&key),
            None => Ok(None),
        };
        match admitted {
            // The permit is a local while the inner service works: should that panic, it is dropped.
            Ok(permit) => {
                CircuitBreakerFuture::calling(self.inner.call(request), permit, self.how.classifier())
            }
            Err(rejection) => CircuitBreakerFuture::rejected(rejection),
        }
    }
}

impl<S: fmt::Debug, Q: ?Sized + ToOwned, F, C> fmt::Debug for KeyedBreaker<S, Q, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreaker")
            .field("inner", &self.inner)
            .field("breakers", self.how.breakers())
            .finish_non_exhaustive()
    }
}
