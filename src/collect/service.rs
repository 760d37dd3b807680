//! The service.

use std::task::{Context, Poll};

use http::Response;
use http_body::Body;
use tower_service::Service;

use super::{CollectBodyFuture, CollectedBody, layer::Reads};
use crate::call::BoxError;

/// A service whose calls end when the bodies of their answers have been read.
///
/// Requests may be of any type. Made by [`CollectBodyLayer`](super::CollectBodyLayer).
#[derive(Debug, Clone)]
pub struct CollectBody<S> {
    inner: S,
    reads: Reads,
}

impl<S> CollectBody<S> {
    pub(super) fn new(inner: S, reads: Reads) -> Self {
        CollectBody { inner, reads }
    }

    crate::macros::inner_service!(S);
}

impl<S, Req, B> Service<Req> for CollectBody<S>
where
    S: Service<Req, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Response = Response<CollectedBody<B>>;
    type Error = BoxError;
    type Future = CollectBodyFuture<S::Future, B>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        CollectBodyFuture::new(self.inner.call(request), self.reads)
    }
}
