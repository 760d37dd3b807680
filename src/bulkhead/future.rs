//! The future of a call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{handle::Slot, wait::Waiting};
use crate::call::BoxError;

pin_project! {
    /// The future of a call through a [`BulkheadService`](super::BulkheadService).
    ///
    /// Dropping it ends the call or the wait, and gives the slot or the place in the line back.
    #[must_use = "futures do nothing unless polled"]
    pub struct BulkheadFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        // Dropped in this order: first the call ends, then its slot is free.
        Calling {
            #[pin]
            future: S::Future,
            slot: Slot,
        },
        // Boxed, so that calls which need not wait do not carry the room for a timer and a request.
        Waiting { waiting: Pin<Box<Waiting<S, Req>>> },
        // Not told yet, or never to be told.
        Ended { error: Option<BoxError> },
    }
}

impl<S: Service<Req>, Req> BulkheadFuture<S, Req> {
    #[inline]
    pub(super) fn calling(future: S::Future, slot: Slot) -> Self {
        BulkheadFuture {
            state: State::Calling { future, slot },
        }
    }

    #[cold]
    pub(super) fn waiting(waiting: Waiting<S, Req>) -> Self {
        let waiting = Box::pin(waiting);
        BulkheadFuture {
            state: State::Waiting { waiting },
        }
    }

    #[cold]
    pub(super) fn refused(error: BoxError) -> Self {
        BulkheadFuture {
            state: State::Ended { error: Some(error) },
        }
    }
}

impl<S, Req> Future for BulkheadFuture<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        if let StateProj::Waiting { waiting } = state.as_mut().project() {
            match ready!(waiting.as_mut().poll(cx)) {
                Ok((future, slot)) => state.set(State::Calling { future, slot }),
                Err(error) => state.set(State::Ended { error: Some(error) }),
            }
        }
        let outcome = match state.as_mut().project() {
            StateProj::Calling { future, .. } => ready!(future.poll(cx)).map_err(Into::into),
            StateProj::Ended { error } => match error.take() {
                Some(error) => Err(error),
                // Polled again after its end.
                None => return Poll::Pending,
            },
            StateProj::Waiting { .. } => return Poll::Pending,
        };
        state.set(State::Ended { error: None });
        Poll::Ready(outcome)
    }
}

impl<S: Service<Req>, Req> fmt::Debug for BulkheadFuture<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { waiting } if waiting.has_slot() => "waiting for the service below",
            State::Waiting { .. } => "waiting for a slot",
            State::Ended { error: Some(_) } => "refused",
            State::Ended { error: None } => "done",
        };
        f.debug_tuple("BulkheadFuture").field(&state).finish()
    }
}
