//! Tells the next process how much time is left.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Request;
use pin_project_lite::pin_project;
use tokio::time::Duration;
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use crate::call::{ConfigError, DeadlineHeader, NoTimeLeft, config, scope};

const NAME: &str = "SendDeadline";

/// Puts a [`SendDeadline`] around a client.
#[derive(Debug, Clone)]
pub struct SendDeadlineLayer {
    header: DeadlineHeader,
    margin: Duration,
}

impl SendDeadlineLayer {
    /// Tells of the time that is left in this header.
    pub fn new(header: DeadlineHeader) -> Self {
        SendDeadlineLayer {
            header,
            margin: Duration::ZERO,
        }
    }

    /// How much less is told than is left, for the way of the answer back. Default: none.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn margin(mut self, margin: Duration) -> Result<Self, ConfigError> {
        self.margin = config::pause(NAME, "margin", margin)?;
        Ok(self)
    }
}

impl<S> Layer<S> for SendDeadlineLayer {
    type Service = SendDeadline<S>;

    fn layer(&self, inner: S) -> SendDeadline<S> {
        SendDeadline {
            inner,
            header: self.header.clone(),
            margin: self.margin,
        }
    }
}

/// A client whose requests tell the server how much time is left, so that it need not work for nobody.
///
/// The time is that from the call until the deadline of the call ([`scope::deadline`]), less the
/// [margin](SendDeadlineLayer::margin), rounded down. Where a call has no deadline the request is sent as it is. A
/// header that the request has already is made to tell of less, never of more.
///
/// If no time is left that could be told, the client is not called, and the error is [`NoTimeLeft`].
///
/// It belongs below the retries, next to the client, so that each attempt tells of what is left by then: for a
/// [nest](crate::nest) it goes around the client that the nest is built over. [`ReceiveDeadline`](super::ReceiveDeadline)
/// is the other end.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_outbound::{call::DeadlineHeader, timeout::{ExecutionTimeoutLayer, SendDeadlineLayer}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let client = service_fn(|request: Request<()>| async move {
///     assert_eq!(request.headers()["grpc-timeout"], "2900000u");
///     Ok::<_, BoxError>(Response::new(()))
/// });
/// let mut orders = ServiceBuilder::new()
///     .layer(ExecutionTimeoutLayer::new(Duration::from_secs(3))?)
///     // Retries go here.
///     .layer(SendDeadlineLayer::new(DeadlineHeader::GRPC).margin(Duration::from_millis(100))?)
///     .service(client);
/// orders.ready().await?.call(Request::new(())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SendDeadline<S> {
    inner: S,
    header: DeadlineHeader,
    margin: Duration,
}

impl<S> SendDeadline<S> {
    crate::macros::inner_service!(S);
}

impl<S, B> Service<Request<B>> for SendDeadline<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = SendDeadlineFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let told = match scope::current(|scope| scope.remaining()) {
            None => true,
            Some(left) => {
                let left = left.saturating_sub(self.margin);
                !left.is_zero() && self.header.write(request.headers_mut(), left)
            }
        };
        SendDeadlineFuture {
            state: if told {
                State::Calling {
                    inner: self.inner.call(request),
                }
            } else {
                State::NoTimeLeft
            },
        }
    }
}

pin_project! {
    /// The future of [`SendDeadline`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct SendDeadlineFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Calling {
            #[pin]
            inner: F,
        },
        NoTimeLeft,
        Done,
    }
}

impl<F, T, E> Future for SendDeadlineFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let outcome = match this.state.as_mut().project() {
            StateProj::Calling { inner } => ready!(inner.poll(cx)).map_err(Into::into),
            StateProj::NoTimeLeft => Err(NoTimeLeft::new(NAME).into()),
            StateProj::Done => return Poll::Pending,
        };
        this.state.set(State::Done);
        Poll::Ready(outcome)
    }
}
