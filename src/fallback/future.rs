//! The future of a call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{
    FallbackEnd, Substitute,
    shared::{Shared, Turn, is_the_callers},
};
use crate::call::{BoxError, FallbackFailed, FallbackRejected};

pin_project! {
    /// The future of a call through a [`Fallback`](super::Fallback).
    ///
    /// Dropping it ends the call, or the fallback.
    #[must_use = "futures do nothing unless polled"]
    pub struct FallbackFuture<Call, F, Req, Res>
    where
        F: Substitute<Req, Res>,
    {
        #[pin]
        state: State<Call, F::Taken, F::Future>,
        shared: Arc<Shared<F>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<Call, Taken, Fallback> {
        Calling {
            #[pin]
            call: Call,
            taken: Option<Taken>,
        },
        // Boxed, so that calls which succeed need not carry the room for it.
        FallingBack { running: Pin<Box<Running<Fallback>>> },
        Done,
    }
}

pin_project! {
    /// A fallback.
    struct Running<Fallback> {
        // Dropped first: when another one may begin, this one has ended.
        #[pin]
        fallback: Fallback,
        error: Option<BoxError>,
        turn: Turn,
    }
}

impl<Call, F, Req, Res> FallbackFuture<Call, F, Req, Res>
where
    F: Substitute<Req, Res>,
{
    #[inline]
    pub(super) fn new(call: Call, taken: F::Taken, shared: Arc<Shared<F>>) -> Self {
        FallbackFuture {
            state: State::Calling {
                call,
                taken: Some(taken),
            },
            shared,
        }
    }
}

impl<F> Shared<F> {
    /// The call has failed. An error: and that is the end.
    #[cold]
    fn fall_back<Req, Res>(
        &self,
        taken: F::Taken,
        error: BoxError,
    ) -> Result<Pin<Box<Running<F::Future>>>, BoxError>
    where
        F: Substitute<Req, Res>,
    {
        if is_the_callers(&*error) {
            return Err(error);
        }
        let Some(turn) = self.begin() else {
            self.tell(&*error, FallbackEnd::Rejected);
            return Err(FallbackRejected::new(self.max_concurrent, error).into());
        };
        Ok(Box::pin(Running {
            fallback: self.substitute.answer(taken, &*error),
            error: Some(error),
            turn,
        }))
    }
}

impl<Call, F, Req, Res, E> Future for FallbackFuture<Call, F, Req, Res>
where
    Call: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    F: Substitute<Req, Res>,
{
    type Output = Result<Res, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Calling { call, taken } => {
                    let outcome = ready!(call.poll(cx));
                    let taken = taken.take();
                    // The call is over before the fallback begins.
                    this.state.set(State::Done);
                    let error = match outcome {
                        Ok(response) => return Poll::Ready(Ok(response)),
                        Err(error) => error.into(),
                    };
                    let Some(taken) = taken else {
                        return Poll::Pending;
                    };
                    match this.shared.fall_back::<Req, Res>(taken, error) {
                        Ok(running) => this.state.set(State::FallingBack { running }),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                StateProj::FallingBack { running } => {
                    let mut running = running.as_mut().project();
                    let outcome = ready!(running.fallback.as_mut().poll(cx));
                    let error = running.error.take();
                    this.state.set(State::Done);
                    let Some(error) = error else {
                        return Poll::Pending;
                    };
                    let end = if outcome.is_ok() {
                        FallbackEnd::Answered
                    } else {
                        FallbackEnd::Failed
                    };
                    this.shared.tell(&*error, end);
                    return Poll::Ready(outcome.map_err(|failed| FallbackFailed::new(failed, error).into()));
                }
                // Polled again after its end.
                StateProj::Done => return Poll::Pending,
            }
        }
    }
}

impl<Call, F, Req, Res> fmt::Debug for FallbackFuture<Call, F, Req, Res>
where
    F: Substitute<Req, Res>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::FallingBack { .. } => "falling back",
            State::Done => "done",
        };
        f.debug_tuple("FallbackFuture").field(&state).finish()
    }
}
