//! The future of a call.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::Permit;
use crate::call::{BoxError, CircuitOpen, Classify};

pin_project! {
    /// The future of a call through a [`CircuitBreaker`](super::CircuitBreaker).
    ///
    /// Dropped before its end it counts nothing, and hands a probe back.
    #[must_use = "futures do nothing unless polled"]
    pub struct CircuitBreakerFuture<F, C> {
        #[pin]
        state: State<F, C>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C> {
        Calling {
            // Dropped first: when the probe is handed back, this one has ended.
            #[pin]
            inner: F,
            // None: the call is not counted, or has ended.
            permit: Option<Permit>,
            classify: C,
        },
        Rejected {
            rejection: Option<CircuitOpen>,
        },
    }
}

impl<F, C> CircuitBreakerFuture<F, C> {
    #[inline]
    pub(super) fn calling(inner: F, permit: Option<Permit>, classify: C) -> Self {
        CircuitBreakerFuture {
            state: State::Calling {
                inner,
                permit,
                classify,
            },
        }
    }

    #[cold]
    pub(super) fn rejected(rejection: CircuitOpen) -> Self {
        CircuitBreakerFuture {
            state: State::Rejected {
                rejection: Some(rejection),
            },
        }
    }
}

impl<F, C, T, E> Future for CircuitBreakerFuture<F, C>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
    C: Classify<T>,
{
    type Output = Result<T, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Calling {
                inner,
                permit,
                classify,
            } => {
                let unwound = GivenUp(permit);
                let polled = inner.poll(cx);
                mem::forget(unwound);
                let outcome = ready!(polled).map_err(Into::into);
                // Taken before the classifier runs: should that panic, the permit is dropped.
                if let Some(permit) = permit.take() {
                    settle(permit, classify, &outcome);
                }
                Poll::Ready(outcome)
            }
            StateProj::Rejected { rejection } => match rejection.take() {
                Some(rejection) => Poll::Ready(Err(rejection.into())),
                // Polled after its end, which nobody may do.
                None => Poll::Pending,
            },
        }
    }
}

/// Dropped by a panic alone: the call has ended, though whoever caught the panic may keep its future.
struct GivenUp<'a>(&'a mut Option<Permit>);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}

#[inline]
fn settle<T, C: Classify<T>>(permit: Permit, classify: &C, outcome: &Result<T, BoxError>) {
    let verdict = match outcome {
        Ok(answer) => match classify.late(answer) {
            // The permit goes with the body. Should that be dropped before its end, so is the permit.
            Some(late) => return late.then(move |verdict| permit.settle(verdict)),
            None => classify.classify(Ok(answer)),
        },
        Err(error) => classify.classify(Err(&**error)),
    };
    permit.settle(verdict);
}

impl<F, C> fmt::Debug for CircuitBreakerFuture<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { permit: Some(_), .. } => "calling",
            State::Calling { permit: None, .. } => "not counted, or done",
            State::Rejected { .. } => "rejected",
        };
        f.debug_tuple("CircuitBreakerFuture").field(&state).finish()
    }
}
