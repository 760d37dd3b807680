//! The service.

use std::task::{Context, Poll};

use http::Response;
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::{HttpAnswer, StatusErrorClassifierFuture, StatusPolicy, layer::Settings};

/// Turns answers of the service within whose status counts as an error into a
/// [`StatusError`](crate::call::StatusError).
///
/// Requests may be of any type. Made by [`StatusErrorClassifierLayer`](super::StatusErrorClassifierLayer).
#[derive(Debug, Clone)]
pub struct StatusErrorClassifier<S> {
    inner: S,
    settings: Settings,
}

impl<S> StatusErrorClassifier<S> {
    /// Around this service, with this policy and the defaults of the layer.
    pub fn new(inner: S, policy: StatusPolicy) -> Self {
        let settings = Settings {
            policy,
            ..Settings::default()
        };
        StatusErrorClassifier::with(inner, settings)
    }

    pub(super) fn with(inner: S, settings: Settings) -> Self {
        StatusErrorClassifier { inner, settings }
    }

    /// What statuses count as.
    pub fn policy(&self) -> &StatusPolicy {
        &self.settings.policy
    }

    crate::macros::inner_service!(S);
}

impl<S, Req, B> Service<Req> for StatusErrorClassifier<S>
where
    S: Service<Req>,
    S::Response: HttpAnswer<Body = B>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = StatusErrorClassifierFuture<S::Future, B>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        StatusErrorClassifierFuture::new(self.inner.call(request), self.settings.clone())
    }
}
