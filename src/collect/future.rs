//! The future: waits for the answer, and for its body.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{CollectedBody, gather::Gather, layer::Reads};
use crate::call::{AnswerBodyFailed, Attempt, AttemptOutcome, BoxError, Fault, scope};

pin_project! {
    /// The future of a [`CollectBody`](super::CollectBody).
    ///
    /// `F` is the future of the service within, `B` the body of its answers. Dropping it drops whichever of them is
    /// there.
    #[must_use = "futures do nothing unless polled"]
    pub struct CollectBodyFuture<F, B> {
        #[pin]
        state: State<F, B>,
        reads: Reads,
        started: Instant,
    }

    impl<F, B> PinnedDrop for CollectBodyFuture<F, B> {
        fn drop(this: Pin<&mut Self>) {
            if let State::Reading { .. } = this.state {
                abandon(this.started);
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B> {
        Calling {
            #[pin]
            call: F,
        },
        Reading {
            head: Option<Parts>,
            #[pin]
            body: Gather<B>,
        },
        Done,
    }
}

impl<F, B> CollectBodyFuture<F, B> {
    #[inline]
    pub(super) fn new(call: F, reads: Reads) -> Self {
        CollectBodyFuture {
            state: State::Calling { call },
            reads,
            started: Instant::now(),
        }
    }
}

impl Reads {
    /// The most that a body may have which is read. `None`: it is not.
    fn bound<B: Body>(self, response: &Response<B>) -> Option<u64> {
        match self {
            Reads::Whole { most, unread } => Some(most).filter(|_| unread != Some(response.status())),
            Reads::KnownUpTo(most) => response
                .body()
                .size_hint()
                .exact()
                .filter(|length| *length <= most),
            Reads::Nothing => None,
        }
    }
}

impl<F, B, E> Future for CollectBodyFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<CollectedBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let StateProj::Calling { call } = this.state.as_mut().project() {
            let outcome = ready!(call.poll(cx));
            this.state.set(State::Done);
            let response = outcome.map_err(Into::into)?;
            let Some(most) = this.reads.bound(&response) else {
                return Poll::Ready(Ok(response.map(|body| match this.reads {
                    Reads::Nothing | Reads::Whole { .. } => CollectedBody::read(Bytes::new(), None),
                    _ => CollectedBody::as_it_was(body),
                })));
            };
            let (head, body) = response.into_parts();
            this.state.set(State::Reading {
                head: Some(head),
                body: Gather::new(body, most),
            });
        }
        let StateProj::Reading { head, mut body } = this.state.as_mut().project() else {
            // Polled again after its end.
            return Poll::Pending;
        };
        let outcome = ready!(body.as_mut().poll(cx));
        let (head, read) = (head.take(), body.len());
        this.state.set(State::Done);
        let Some(head) = head else {
            return Poll::Pending;
        };
        Poll::Ready(match outcome {
            Ok(body) => Ok(Response::from_parts(head, body)),
            Err(error) => {
                let error = AnswerBodyFailed::new(head.status, read, error);
                fail(*this.started, Fault::of(&error));
                Err(error.into())
            }
        })
    }
}

/// The attempt which gave that answer has failed after all.
#[cold]
fn fail(started: Instant, fault: Fault) {
    scope::current(|scope| scope.record_failure(started, fault));
}

/// Nobody waits for the rest of the body any more.
#[cold]
fn abandon(started: Instant) {
    scope::current(|scope| {
        if !scope.is_written() {
            let endpoint = scope.picked().cloned();
            scope.record(Attempt::new(
                endpoint,
                started,
                Instant::now(),
                AttemptOutcome::Abandoned,
            ));
        }
    });
}

impl<F, B> fmt::Debug for CollectBodyFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Reading { .. } => "reading the body",
            State::Done => "done",
        };
        f.debug_tuple("CollectBodyFuture").field(&state).finish()
    }
}
