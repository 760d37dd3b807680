//! The limit on a server's silence.

mod body;
mod future;
mod limits;

use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tokio::time::{Duration, Instant};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use self::limits::{Limit, Limits};
pub use self::{body::ReadBody, future::ReadTimeoutFuture};
use crate::call::{CarriesOverrides, ConfigError, IN_HAND, UploadBody, config, scope};

const NAME: &str = "ReadTimeout";

/// Puts a [`ReadTimeout`] around an HTTP client.
#[derive(Debug, Clone)]
pub struct ReadTimeoutLayer {
    limits: Limits,
    in_hand: u64,
}

impl ReadTimeoutLayer {
    /// The longest silence of a server: before the head of its response, and before each frame of the body.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn new(limit: Duration) -> Result<Self, ConfigError> {
        let limit = config::limit(NAME, "limit", limit)?;
        Ok(ReadTimeoutLayer {
            limits: Limits {
                read: Limit::new(limit),
                body: None,
                write: None,
            },
            in_hand: IN_HAND,
        })
    }

    /// The longest that the body of a response may take as a whole, from its head to its end. Default: for ever, as
    /// long as no gap is too long.
    ///
    /// It counts the time that the reader takes as well. Past it the body ends in
    /// [`ReadTimedOut`](crate::call::ReadTimedOut), of the [whole body](crate::call::ReadTimedOut::is_of_whole_body),
    /// unless its end is there. It costs an allocation for each response.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn body_limit(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.limits.body = Some(Limit::new(config::limit(NAME, "body_limit", limit)?));
        Ok(self)
    }

    /// The longest that the client may take nothing of an upload that it could have, which means that the server does
    /// not read. Default: for ever, as far as this layer is concerned.
    ///
    /// The clock does not run while the request has no connection, nor while the source of the body has nothing to
    /// send, and starts anew with each piece of at most 16 KiB. Past it the call ends in
    /// [`WriteTimedOut`](crate::call::WriteTimedOut), and the upload with it. It sees uploads that are
    /// [followed](ReadTimeoutLayer::in_hand), until the head of the response has come.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn write_limit(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.limits.write = Some(Limit::new(config::limit(NAME, "write_limit", limit)?));
        Ok(self)
    }

    /// Up to which size, in bytes, a request body of known length is taken to be in hand, so that it leaves in one
    /// write and need not be followed. The default is 64 KiB.
    ///
    /// Give 0 where small bodies come slowly although their length is known, as when a gateway passes an upload on:
    /// else the limit counts while they come. It costs an allocation for each request with a body.
    #[must_use]
    pub fn in_hand(mut self, bytes: u64) -> Self {
        self.in_hand = bytes;
        self
    }
}

impl<S> Layer<S> for ReadTimeoutLayer {
    type Service = ReadTimeout<S>;

    fn layer(&self, inner: S) -> ReadTimeout<S> {
        ReadTimeout {
            inner,
            limits: self.limits,
            in_hand: self.in_hand,
        }
    }
}

/// An HTTP client with a limit on the silence of the server.
///
/// # The head
///
/// The clock starts when the request has a connection and its body has been given to the client, and stops with the
/// head. So neither a slow connect nor a large upload trips it.
///
/// - **Has it a connection?** A [`ConnectTimeout`](super::ConnectTimeout) in the client's connector says so as long as
///   it has not. If the client connects once more for the same request, the clock starts anew.
/// - **Has its body been sent?** A body that has ended already, or whose length is known to be at most
///   [`in_hand`](ReadTimeoutLayer::in_hand), has been as soon as there is a connection. Every other one is followed: the
///   clock starts when the client has taken its end. What the client has in its write buffer then counts as sent
///   (hyper, by default: in HTTP/1 up to 256 KiB over TCP and 408 KiB over TLS).
///
/// A server that stops taking an upload is not silent but slow, and the read limit does not see it; that is for a
/// [`write_limit`](ReadTimeoutLayer::write_limit), or for the [`ExecutionTimeout`](super::ExecutionTimeout).
///
/// # The body
///
/// [`ReadBody`] gives each gap between two frames the same limit anew. A limit on the whole of a body is
/// [`body_limit`](ReadTimeoutLayer::body_limit).
///
/// # Giving up
///
/// A call that is given up ends its upload, if that was followed: [`UploadBody`] then ends in an error. If the response
/// comes before the upload has ended, it is returned, and the upload goes on until the response body is dropped: who
/// has no more interest in the answer has none in the question, and a client should stop sending when the server
/// has answered with an error (RFC 9112, section 9.5). So hold the body of an early answer as long as the upload is to
/// go on, even if there is nothing in it.
///
/// # The deadline
///
/// If the call has no time left, the client is not called and the error is
/// [`NoTimeLeft`](crate::call::NoTimeLeft). If its deadline comes before the limit would run out, or just then, no timer is made: who has
/// set the deadline ends the call.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{Empty, Full};
/// use tower::{BoxError, Layer, Service, service_fn};
/// use tower_outbound::{call::{ReadPhase, UploadBody}, timeout::{ReadTimedOut, ReadTimeoutLayer}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let silent = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| {
///     std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>()
/// });
/// let mut orders = ReadTimeoutLayer::new(Duration::from_secs(5))?.layer(silent);
///
/// let error = orders.call(Request::new(Empty::new())).await.unwrap_err();
/// assert_eq!(error.downcast_ref::<ReadTimedOut>().unwrap().phase(), ReadPhase::Head);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadTimeout<S> {
    inner: S,
    limits: Limits,
    in_hand: u64,
}

impl<S> ReadTimeout<S> {
    /// The limit on silence, of calls whose request does not want another one.
    pub fn limit(&self) -> Duration {
        self.limits.read.get()
    }

    crate::macros::inner_service!(S);
}

impl<S, B, R> Service<Request<B>> for ReadTimeout<S>
where
    S: Service<Request<UploadBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<ReadBody<R>>;
    type Error = BoxError;
    type Future = ReadTimeoutFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let deadline = scope::deadline();
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return ReadTimeoutFuture::no_time_left();
        }
        let mut limits = self.limits;
        if let Some(overrides) = request.overrides() {
            limits.read = overrides.read_limit().map_or(limits.read, Limit::new);
            limits.body = overrides.body_limit().map(Limit::new).or(limits.body);
        }
        let (head, body) = request.into_parts();
        let (body, upload) = UploadBody::new(body, self.in_hand, limits.write.map(Limit::get));
        let inner = self.inner.call(Request::from_parts(head, body));
        ReadTimeoutFuture::new(inner, limits, upload)
    }
}
