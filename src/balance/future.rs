//! The future of a call.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    figures::End,
    in_flight::{Counted, InFlight},
    rule::Rule,
    wait::Waiting,
};
use crate::call::{
    Addressed, Attempt, AttemptOutcome, BoxError, CallScope, Classify, Fault, LateVerdict, Verdict,
    is_connection_failure, scope,
};

pin_project! {
    /// The future of [`LoadBalance`](super::LoadBalance).
    pub struct LoadBalanceFuture<S, Req, R, C>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, R, C>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, R, C>
    where
        S: Service<Req>,
    {
        // Dropped in this order: first the attempt ends, then it is booked as abandoned.
        Calling {
            #[pin]
            future: S::Future,
            in_flight: InFlight,
            classify: C,
        },
        // Boxed, so that calls which need not wait do not carry the room for a timer and a second request.
        Waiting { waiting: Pin<Box<Waiting<S, Req, R, C>>> },
        Refused { error: Option<BoxError> },
    }
}

impl<S: Service<Req>, Req, R, C> LoadBalanceFuture<S, Req, R, C> {
    #[inline(always)]
    pub(super) fn calling(future: S::Future, in_flight: InFlight, classify: C) -> Self {
        LoadBalanceFuture {
            state: State::Calling {
                future,
                in_flight,
                classify,
            },
        }
    }

    pub(super) fn waiting(waiting: Waiting<S, Req, R, C>) -> Self {
        LoadBalanceFuture {
            state: State::Waiting {
                waiting: Box::pin(waiting),
            },
        }
    }

    pub(super) fn refused(error: BoxError) -> Self {
        LoadBalanceFuture {
            state: State::Refused { error: Some(error) },
        }
    }
}

impl<S, Req, R, C> Future for LoadBalanceFuture<S, Req, R, C>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    Req: Addressed,
    R: Rule,
    C: Classify<S::Response> + Clone,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Calling {
                    future,
                    in_flight,
                    classify,
                } => {
                    let result = ready!(future.poll(cx)).map_err(Into::into);
                    return Poll::Ready(ended(in_flight, classify, result, Vec::new()));
                }
                StateProj::Waiting { waiting } => {
                    let (future, in_flight) = ready!(waiting.as_mut().poll(cx))?;
                    let classify = waiting.classify().clone();
                    state.set(State::Calling {
                        future,
                        in_flight,
                        classify,
                    });
                }
                StateProj::Refused { error } => {
                    return match error.take() {
                        Some(error) => Poll::Ready(Err(error)),
                        // Polled again after its end.
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// Books the attempt and says to the layers above where it went.
///
/// `before`: attempts that have failed before it, where nobody above keeps a trail.
#[inline]
pub(super) fn ended<T, C: Classify<T>>(
    in_flight: &mut InFlight,
    classify: &C,
    result: Result<T, BoxError>,
    before: Vec<Attempt>,
) -> Result<T, BoxError> {
    match result {
        Ok(response) => {
            if let Some(late) = classify.late(&response) {
                answered(in_flight, &late);
                return Ok(response);
            }
            let verdict = classify.classify(Ok(&response));
            let now = Instant::now();
            if let Some(to) = in_flight.end(verdict, End::Answered, now) {
                scope::current(|scope| {
                    if scope.trail().is_some() {
                        record_answer(scope, in_flight, &to, now);
                    }
                    scope.set_picked(&to.endpoint);
                });
            }
            Ok(response)
        }
        Err(error) => {
            let verdict = classify.classify(Err(&*error));
            failed(in_flight, verdict, error, before)
        }
    }
}

#[cold]
fn record_answer(scope: &mut CallScope, in_flight: &InFlight, to: &Counted, now: Instant) {
    scope.record_answer(in_flight.attempt(to, now, AttemptOutcome::Answered));
}

/// Says to the layers above where the attempt went, and leaves it in flight until its verdict comes.
#[cold]
fn answered(in_flight: &mut InFlight, late: &LateVerdict) {
    let now = Instant::now();
    let Some((answered, to)) = in_flight.answered(now) else {
        return;
    };
    scope::current(|scope| {
        if scope.trail().is_some() {
            record_answer(scope, in_flight, &to, now);
        }
        scope.set_picked(&to.endpoint);
    });
    late.then(move |verdict| answered.end(verdict, Instant::now()));
}

#[cold]
fn failed<T>(
    in_flight: &mut InFlight,
    verdict: Verdict,
    error: BoxError,
    mut before: Vec<Attempt>,
) -> Result<T, BoxError> {
    let fault = Fault::of(&*error);
    let end = if is_connection_failure(&fault, &*error) {
        End::ConnectionFailed
    } else {
        End::Met
    };
    before.extend(book_failure(in_flight, verdict, end, fault));
    Err(with_trail(before, error))
}

/// Books an attempt that has failed. It comes back where nobody above keeps a trail.
pub(super) fn book_failure(
    in_flight: &mut InFlight,
    verdict: Verdict,
    end: End,
    fault: Fault,
) -> Option<Attempt> {
    let now = Instant::now();
    let to = in_flight.end(verdict, end, now)?;
    let attempt = in_flight.attempt(&to, now, AttemptOutcome::Failed(fault));
    scope::current(|scope| {
        scope.set_picked(&to.endpoint);
        if scope.keeps_trail() {
            scope.record(attempt);
            None
        } else {
            Some(attempt)
        }
    })
}

/// Nobody above tells where the call went, so the error has to.
pub(super) fn with_trail(unheard: Vec<Attempt>, error: BoxError) -> BoxError {
    if unheard.is_empty() {
        return error;
    }
    let mut call = CallScope::begin();
    for attempt in unheard {
        call.record(attempt);
    }
    match call.finish::<Infallible>(Err(error)) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

impl<S: Service<Req>, Req, R, C> fmt::Debug for LoadBalanceFuture<S, Req, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { .. } => "waiting for an endpoint",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("LoadBalanceFuture")
            .field("state", &state)
            .finish()
    }
}
