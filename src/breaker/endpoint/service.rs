//! The service.

use std::task::{Context, Poll, ready};

use http::Request;
use tower_service::Service;

use super::{EndpointBreakerLayer, EndpointBreakers};
use crate::{
    breaker::CircuitBreakerFuture,
    call::{BoxError, ByFault, Classify},
};

/// A service whose calls are counted for the breakers of their endpoints. Made by [`EndpointBreakerLayer`].
///
/// The endpoint is the one with the scheme, host and port that stand in the request. A call to another address is not
/// counted.
#[derive(Debug, Clone)]
pub struct EndpointBreaker<S, C = ByFault> {
    inner: S,
    how: EndpointBreakerLayer<C>,
}

impl<S, C> EndpointBreaker<S, C> {
    pub(super) fn new(inner: S, how: EndpointBreakerLayer<C>) -> Self {
        EndpointBreaker { inner, how }
    }

    /// The breakers.
    pub fn breakers(&self) -> &EndpointBreakers {
        self.how.breakers()
    }

    crate::macros::inner_service!(S);
}

impl<S, C, B> Service<Request<B>> for EndpointBreaker<S, C>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
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
    fn call(&mut self, request: Request<B>) -> Self::Future {
        // A local while the inner service works: should that panic, it is dropped.
        let permit = self.how.breakers().admit(request.uri());
        CircuitBreakerFuture::calling(self.inner.call(request), permit, self.how.classifier())
    }
}
