//! Takes over the deadline that the process before has told of.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower_layer::Layer;
use tower_service::Service;

use crate::call::{CallScope, ConfigError, DeadlineHeader, config, timer::poll_timer};

/// gRPC's DEADLINE_EXCEEDED.
const GRPC_STATUS: (HeaderName, HeaderValue) = (
    HeaderName::from_static("grpc-status"),
    HeaderValue::from_static("4"),
);

/// Puts a [`ReceiveDeadline`] around the service of a server.
#[derive(Debug, Clone)]
pub struct ReceiveDeadlineLayer {
    header: DeadlineHeader,
    margin: Duration,
}

impl ReceiveDeadlineLayer {
    /// Takes over the time that requests tell of in this header.
    pub fn new(header: DeadlineHeader) -> Self {
        ReceiveDeadlineLayer {
            header,
            margin: Duration::ZERO,
        }
    }

    /// How much less there is than was told, for the way that the request has come. Default: none.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn margin(mut self, margin: Duration) -> Result<Self, ConfigError> {
        self.margin = config::pause("ReceiveDeadline", "margin", margin)?;
        Ok(self)
    }
}

impl<S> Layer<S> for ReceiveDeadlineLayer {
    type Service = ReceiveDeadline<S>;

    fn layer(&self, inner: S) -> ReceiveDeadline<S> {
        ReceiveDeadline {
            inner,
            header: self.header.clone(),
            margin: self.margin,
        }
    }
}

/// The service of a server that heeds the deadline which a request brings along.
///
/// All calls that are made while the request is served, by stacks of this crate and in the same task, have that
/// deadline too: no attempt is begun that could not end in time, and a [`SendDeadline`](super::SendDeadline) below
/// them tells the next server. (In a spawned task it is not seen; see [`call::scope`](crate::call::scope).)
///
/// At the deadline nobody waits for the answer any more, so the work on it is dropped and the answer is an empty one:
/// 504, or with [gRPC's header](DeadlineHeader::GRPC) status 4, DEADLINE_EXCEEDED. A request that has no time left
/// when it comes is not served at all. On a tie the service's own answer wins. Its body, once begun, is not limited.
///
/// A request without the header, or with one that cannot be read, is served as it is.
///
/// The error is that of the service inside, so that it goes into an axum router as it is.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use http::{Request, Response, StatusCode};
/// use tower::{Layer, Service, service_fn};
/// use tower_outbound::{call::{DeadlineHeader, scope}, timeout::ReceiveDeadlineLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let handler = service_fn(|_: Request<()>| async {
///     assert!(scope::deadline().is_some());
///     std::future::pending::<Result<Response<String>, Infallible>>().await
/// });
/// let header = DeadlineHeader::millis(http::HeaderName::from_static("x-time-left"));
/// let mut server = ReceiveDeadlineLayer::new(header).layer(handler);
///
/// let request = Request::builder().header("x-time-left", "250").body(())?;
/// let response = server.call(request).await?;
/// assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReceiveDeadline<S> {
    inner: S,
    header: DeadlineHeader,
    margin: Duration,
}

impl<S> ReceiveDeadline<S> {
    crate::macros::inner_service!(S);
}

impl<S, B, R> Service<Request<B>> for ReceiveDeadline<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ReceiveDeadlineFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let told = self.header.read(request.headers());
        let mut scope = CallScope::join();
        let state = match told.map(|told| told.saturating_sub(self.margin)) {
            Some(Duration::ZERO) => State::NoTimeLeft,
            left => {
                if let Some(left) = left {
                    scope.narrow(Instant::now() + left);
                }
                State::Serving {
                    inner: scope.enter(|| self.inner.call(request)),
                }
            }
        };
        ReceiveDeadlineFuture {
            state,
            sleep: None,
            // One that was there before is for whoever has set it.
            due: told.and(scope.deadline()),
            scope,
            grpc: self.header.is_grpc(),
        }
    }
}

pin_project! {
    /// The future of [`ReceiveDeadline`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ReceiveDeadlineFuture<F> {
        #[pin]
        state: State<F>,
        #[pin]
        sleep: Option<Sleep>,
        due: Option<Instant>,
        scope: CallScope,
        grpc: bool,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Serving {
            #[pin]
            inner: F,
        },
        NoTimeLeft,
        Done,
    }
}

impl<F, R, E> Future for ReceiveDeadlineFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Default,
{
    type Output = Result<Response<R>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let polled = match this.state.as_mut().project() {
            StateProj::Serving { inner } => this.scope.enter(|| inner.poll(cx)),
            StateProj::NoTimeLeft => {
                this.state.set(State::Done);
                return Poll::Ready(Ok(too_late(*this.grpc)));
            }
            StateProj::Done => return Poll::Pending,
        };
        if polled.is_pending() {
            let Some(due) = *this.due else {
                return Poll::Pending;
            };
            if this.sleep.is_none() {
                this.sleep.set(Some(sleep_until(due)));
            }
            if let Some(sleep) = this.sleep.as_mut().as_pin_mut() {
                ready!(poll_timer(sleep, cx));
            }
        }
        // What is given up is given up within the scope: layers below write down what they know of it.
        this.scope.enter(|| this.state.set(State::Done));
        this.sleep.set(None);
        let _ = this.scope.finish(Ok(()));
        match polled {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => Poll::Ready(Ok(too_late(*this.grpc))),
        }
    }
}

/// An answer that hardly anybody waits for.
fn too_late<R: Default>(grpc: bool) -> Response<R> {
    let mut response = Response::new(R::default());
    if grpc {
        let (name, value) = GRPC_STATUS;
        response.headers_mut().insert(name, value);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
    } else {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    }
    response
}
