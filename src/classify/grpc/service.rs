//! The service.

use std::task::{Context, Poll};

use http::Response;
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::{GrpcBody, GrpcErrorClassifierFuture, GrpcPolicy};
use crate::classify::HttpAnswer;

/// Reads the gRPC status of the answers of the service within, from their headers or their trailers.
///
/// Requests may be of any type. Made by [`GrpcErrorClassifierLayer`](super::GrpcErrorClassifierLayer); see the
/// [module](super).
#[derive(Debug, Clone)]
pub struct GrpcErrorClassifier<S> {
    inner: S,
    policy: GrpcPolicy,
}

impl<S> GrpcErrorClassifier<S> {
    /// Around this service, with this policy.
    pub fn new(inner: S, policy: GrpcPolicy) -> Self {
        GrpcErrorClassifier { inner, policy }
    }

    /// What codes count as.
    pub fn policy(&self) -> &GrpcPolicy {
        &self.policy
    }

    crate::macros::inner_service!(S);
}

impl<S, Req, B> Service<Req> for GrpcErrorClassifier<S>
where
    S: Service<Req>,
    S::Response: HttpAnswer<Body = B>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<GrpcBody<B>>;
    type Error = BoxError;
    type Future = GrpcErrorClassifierFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        GrpcErrorClassifierFuture::new(self.inner.call(request), self.policy)
    }
}
