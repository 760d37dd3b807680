//! The layer that marks where a call begins and ends.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use crate::call::CallScope;

/// Marks where a call begins and ends, and puts its [`Trail`](crate::call::Trail) on its outcome.
///
/// It belongs at the top of a stack. A final error carries the trail if an attempt had failed (an error without one,
/// a rejection for instance, stays as it is); a response carries it if it took more than one attempt.
/// [`Trail::of`](crate::call::Trail::of) and [`Trail::on`](crate::call::Trail::on) find it.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_outbound::{call::Trail, observe::RecordTrailLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let stack = ServiceBuilder::new()
///     .layer(RecordTrailLayer::new())
///     // the layers that retry and balance, and
///     .service(tower::service_fn(async |_: Request<()>| Ok::<_, std::io::Error>(Response::new(Bytes::new()))));
/// let response = stack.oneshot(Request::new(())).await.unwrap();
/// assert!(Trail::on(&response).is_none(), "a first attempt that succeeds leaves no trail");
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordTrailLayer {
    every_call: bool,
}

impl RecordTrailLayer {
    /// Trails for calls in which an attempt failed.
    pub fn new() -> Self {
        Self::default()
    }

    /// A trail for every call, at the price of a few small allocations each: the trail, its attempts, and its place
    /// among the extensions of the response. Default: no.
    #[must_use]
    pub fn every_call(mut self, yes: bool) -> Self {
        self.every_call = yes;
        self
    }
}

impl<S> Layer<S> for RecordTrailLayer {
    type Service = RecordTrail<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RecordTrail {
            inner,
            every_call: self.every_call,
        }
    }
}

/// The service of a [`RecordTrailLayer`].
#[derive(Debug, Clone)]
pub struct RecordTrail<S> {
    inner: S,
    every_call: bool,
}

impl<S> RecordTrail<S> {
    crate::macros::inner_service!(S);
}

impl<S, Req, B> Service<Req> for RecordTrail<S>
where
    S: Service<Req, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = RecordTrailFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let mut scope = CallScope::begin();
        if self.every_call {
            scope.start_trail();
        }
        let call = scope.enter(|| self.inner.call(request));
        RecordTrailFuture {
            state: State::Calling { call },
            scope,
        }
    }
}

pin_project! {
    /// The outcome of a [`RecordTrail`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct RecordTrailFuture<F> {
        #[pin]
        state: State<F>,
        scope: CallScope,
    }

    impl<F> PinnedDrop for RecordTrailFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // What the layers below write down of it belongs to this call, not to one in which it is dropped.
            this.scope.enter(|| this.state.set(State::Done));
        }
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Calling {
            #[pin]
            call: F,
        },
        Done,
    }
}

impl<F, B, E> Future for RecordTrailFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<B>, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let StateProj::Calling { call } = this.state.as_mut().project() else {
            return Poll::Pending;
        };
        let outcome = ready!(this.scope.enter(|| call.poll(cx)));
        this.state.set(State::Done);
        let outcome = this.scope.finish(outcome.map_err(Into::into));
        Poll::Ready(outcome.map(|mut response| {
            if let Some(trail) = this.scope.take_trail() {
                response.extensions_mut().insert(*trail);
            }
            response
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use tokio::time::Instant;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::call::{Attempt, AttemptOutcome, Fault, FaultKind, Sent, Trail, scope};

    fn attempt(outcome: AttemptOutcome) -> Attempt {
        Attempt::new(None, Instant::now(), Instant::now(), outcome)
    }

    const FAILED: AttemptOutcome = AttemptOutcome::Failed(Fault::new(FaultKind::Reset, Sent::Maybe));

    #[tokio::test]
    async fn an_error_carries_the_trail() {
        let stack = RecordTrailLayer::new().layer(service_fn(async |()| {
            scope::current(|scope| scope.record(attempt(FAILED)));
            Err::<Response<()>, _>(io::Error::from(io::ErrorKind::ConnectionReset))
        }));
        let error = stack.oneshot(()).await.unwrap_err();
        assert_eq!(Trail::of(&*error).unwrap().len(), 1);
        assert_eq!(
            Fault::of(&*error).kind(),
            FaultKind::Reset,
            "and the error is still there"
        );
    }

    #[tokio::test]
    async fn a_response_after_a_failed_attempt_carries_the_trail() {
        let stack = RecordTrailLayer::new().layer(service_fn(async |()| {
            scope::current(|scope| {
                scope.record(attempt(FAILED));
                scope.record_answer(attempt(AttemptOutcome::Answered));
            });
            Ok::<_, Infallible>(Response::new(()))
        }));
        let response = stack.oneshot(()).await.unwrap();
        assert_eq!(Trail::on(&response).unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_response_at_the_first_attempt_carries_it_only_on_request() {
        let answer = service_fn(async |()| {
            scope::current(|scope| scope.record_answer(attempt(AttemptOutcome::Answered)));
            Ok::<_, Infallible>(Response::new(()))
        });
        let quiet = RecordTrailLayer::new().layer(answer).oneshot(()).await.unwrap();
        assert!(Trail::on(&quiet).is_none());
        let told = RecordTrailLayer::new()
            .every_call(true)
            .layer(answer)
            .oneshot(())
            .await
            .unwrap();
        assert_eq!(Trail::on(&told).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn an_error_without_any_attempt_stays_as_it_is() {
        let stack = RecordTrailLayer::new().layer(service_fn(async |()| {
            Err::<Response<()>, _>(io::Error::from(io::ErrorKind::NotFound))
        }));
        let error = stack.oneshot(()).await.unwrap_err();
        assert!(error.is::<io::Error>());
    }
}
