//! The limit on the whole call.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use crate::call::{
    AnyRequest, CallScope, ConfigError, ExecutionTimedOut, NoTimeLeft, PerRequest, ReadOverrides, config,
    timer::poll_timer,
};

const NAME: &str = "ExecutionTimeout";

/// Puts an [`ExecutionTimeout`] around a service.
#[derive(Debug, Clone)]
pub struct ExecutionTimeoutLayer<R = AnyRequest> {
    limit: Duration,
    tie: Tie,
    reader: R,
}

/// Who wins where the call ends at the limit, to the instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tie {
    /// The result, and the layers below see to it that little is begun in vain.
    Result,
    /// The limit, of which nobody below knows.
    Limit,
}

impl ExecutionTimeoutLayer {
    /// One limit on everything below: all attempts, the pauses between them, all waits.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn new(limit: Duration) -> Result<Self, ConfigError> {
        ExecutionTimeoutLayer::with(limit, Tie::Result)
    }

    /// The same limit as Hystrix has it (`execution.isolation.thread.timeoutInMilliseconds`), which differs in two ways:
    ///
    /// - A call that takes exactly the limit, or was kept from ending sooner, has timed out, although its result is
    ///   there. Nothing inside is polled any more once the limit is reached.
    /// - It sets no deadline. The layers below go on as if there were no limit: they begin attempts, and pauses, that
    ///   cannot end in time, and give up nothing on their own. A deadline that the call has from elsewhere holds on.
    ///
    /// As with [`new`](ExecutionTimeoutLayer::new) the work ends at the limit, where in Hystrix it would go on by itself.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::{Layer, Service, service_fn};
    /// use tower_outbound::{call::scope, timeout::{ExecutionTimedOut, ExecutionTimeoutLayer}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let second = Duration::from_secs(1);
    /// let exact = service_fn(|knows_of_it: bool| async move {
    ///     assert_eq!(scope::deadline().is_some(), knows_of_it);
    ///     tokio::time::sleep(second).await;
    ///     Ok::<_, std::io::Error>(())
    /// });
    /// assert!(ExecutionTimeoutLayer::new(second)?.layer(exact).call(true).await.is_ok());
    ///
    /// let error = ExecutionTimeoutLayer::hystrix(second)?.layer(exact).call(false).await.unwrap_err();
    /// assert!(error.is::<ExecutionTimedOut>());
    /// # Ok(())
    /// # }
    /// ```
    pub fn hystrix(limit: Duration) -> Result<Self, ConfigError> {
        ExecutionTimeoutLayer::with(limit, Tie::Limit)
    }

    fn with(limit: Duration, tie: Tie) -> Result<Self, ConfigError> {
        let limit = config::limit(NAME, "limit", limit)?;
        Ok(ExecutionTimeoutLayer {
            limit,
            tie,
            reader: AnyRequest,
        })
    }

    /// Heeds the execution limit and the deadline that a request carries in its
    /// [`Overrides`](crate::call::Overrides). Default: no, since not every type of request can carry them.
    ///
    /// The limit of the request takes the place of this one, longer or shorter; the call ends with
    /// [`ExecutionTimedOut`] at the limit or at the deadline, whichever comes first. Say it once in a stack: a limit
    /// on each attempt is another matter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::{Layer, Service, service_fn};
    /// use tower_outbound::{call::Overrides, timeout::{ExecutionTimedOut, ExecutionTimeoutLayer}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let slow = service_fn(|_: http::Request<()>| std::future::pending::<Result<(), std::io::Error>>());
    /// let mut orders = ExecutionTimeoutLayer::new(Duration::from_secs(30))?.per_request().layer(slow);
    ///
    /// let mut hurried = http::Request::new(());
    /// hurried.extensions_mut().insert(Overrides::new().with_execution_limit(Duration::from_secs(1))?);
    /// let error = orders.call(hurried).await.unwrap_err();
    /// assert_eq!(error.downcast_ref::<ExecutionTimedOut>().unwrap().limit(), Duration::from_secs(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn per_request(self) -> ExecutionTimeoutLayer<PerRequest> {
        ExecutionTimeoutLayer {
            limit: self.limit,
            tie: self.tie,
            reader: PerRequest,
        }
    }
}

impl<S, R: Clone> Layer<S> for ExecutionTimeoutLayer<R> {
    type Service = ExecutionTimeout<S, R>;

    fn layer(&self, inner: S) -> ExecutionTimeout<S, R> {
        ExecutionTimeout {
            inner,
            limit: self.limit,
            tie: self.tie,
            reader: self.reader.clone(),
        }
    }
}

/// A service whose calls end within a limit, whatever they do in it.
///
/// It sets the deadline of the call, which the layers below keep to: nothing is begun that could not end in time. At
/// the limit the call ends in [`ExecutionTimedOut`], and the work on it with it: the future inside is dropped at
/// once, not when the caller gets round to dropping its own.
///
/// Where a call has a deadline already, the nearer one holds below. If that has passed, the service inside is
/// not called, and the error is [`NoTimeLeft`].
///
/// The limit begins with the call: a wait in `poll_ready`, when there is no request yet, is not in it.
///
/// The call is over with the response. What an HTTP body takes after that is for
/// [`ReadTimeout`](super::ReadTimeout), gap by gap; for a limit on the whole of it, put `tokio::time::timeout` around
/// the reading.
///
/// [`ExecutionTimeoutLayer::hystrix`] has another rule for a tie, and sets no deadline.
///
/// It serves requests of any type; with [`per_request`](ExecutionTimeoutLayer::per_request) a request can have a limit of
/// its own. Lower in a stack, below the retries, it is a limit on each attempt.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, Service, service_fn};
/// use tower_outbound::{call::scope, timeout::{ExecutionTimedOut, ExecutionTimeoutLayer}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let slow = service_fn(|_: &str| async {
///     assert!(scope::deadline().is_some());
///     std::future::pending::<Result<(), std::io::Error>>().await
/// });
/// let mut orders = ExecutionTimeoutLayer::new(Duration::from_secs(3))?.layer(slow);
///
/// let error = orders.call("list").await.unwrap_err();
/// assert!(error.is::<ExecutionTimedOut>());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ExecutionTimeout<S, R = AnyRequest> {
    inner: S,
    limit: Duration,
    tie: Tie,
    reader: R,
}

impl<S, R> ExecutionTimeout<S, R> {
    /// The limit, of calls whose request does not want another one.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    crate::macros::inner_service!(S);

    /// When the call must have ended, and how long that is.
    #[inline]
    fn limit_of<Req>(&self, request: &Req, now: Instant) -> (Instant, Duration)
    where
        R: ReadOverrides<Req>,
    {
        let Some(overrides) = self.reader.overrides(request) else {
            return (now + self.limit, self.limit);
        };
        let limit = overrides.execution_limit().unwrap_or(self.limit);
        let due = now + limit;
        match overrides.deadline().filter(|deadline| *deadline < due) {
            Some(deadline) => (deadline, deadline.saturating_duration_since(now)),
            None => (due, limit),
        }
    }
}

impl<S, R, Req> Service<Req> for ExecutionTimeout<S, R>
where
    R: ReadOverrides<Req>,
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ExecutionTimeoutFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let now = Instant::now();
        let (due, limit) = self.limit_of(&request, now);
        let mut scope = CallScope::join();
        let state = if due <= now || scope.deadline().is_some_and(|deadline| deadline <= now) {
            State::NoTimeLeft
        } else {
            if self.tie == Tie::Result {
                scope.narrow(due);
            }
            State::Calling {
                inner: scope.enter(|| self.inner.call(request)),
            }
        };
        ExecutionTimeoutFuture {
            state,
            sleep: None,
            scope,
            due,
            limit,
            tie: self.tie,
        }
    }
}

pin_project! {
    /// The future of [`ExecutionTimeout`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ExecutionTimeoutFuture<F> {
        #[pin]
        state: State<F>,
        #[pin]
        sleep: Option<Sleep>,
        scope: CallScope,
        due: Instant,
        limit: Duration,
        tie: Tie,
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

impl<F, T, E> Future for ExecutionTimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let inner = match this.state.as_mut().project() {
            StateProj::Calling { inner } => inner,
            StateProj::NoTimeLeft => {
                this.state.set(State::Done);
                return Poll::Ready(Err(Box::new(NoTimeLeft::new(NAME))));
            }
            StateProj::Done => return Poll::Pending,
        };
        // At the limit nothing new is begun below, and a result that came late does not count.
        let is_late = || *this.tie == Tie::Limit && Instant::now() >= *this.due;
        let polled = if is_late() {
            Poll::Pending
        } else {
            let polled = this.scope.enter(|| inner.poll(cx));
            if polled.is_ready() && is_late() {
                Poll::Pending
            } else {
                polled
            }
        };
        if polled.is_pending() {
            if this.sleep.is_none() {
                this.sleep.set(Some(sleep_until(*this.due)));
            }
            if let Some(sleep) = this.sleep.as_mut().as_pin_mut() {
                ready!(poll_timer(sleep, cx));
            }
            // The work ends here, and within the scope: layers below write down what they give up.
            this.scope.enter(|| this.state.set(State::Done));
        } else {
            this.state.set(State::Done);
        }
        this.sleep.set(None);
        Poll::Ready(match polled {
            // Large responses are dear to move, so they do not go through the scope.
            Poll::Ready(Ok(response)) => this.scope.finish(Ok(())).map(|()| response),
            Poll::Ready(Err(error)) => this.scope.finish(Err(error.into())),
            Poll::Pending => this.scope.finish(Err(ExecutionTimedOut::new(*this.limit).into())),
        })
    }
}
