//! The future: waits for the answer, and for the body of one that is an error.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;

use super::{HttpAnswer, layer::Settings};
use crate::call::{Prefix, StatusError, Verdict, scope, timer::poll_timer};

pin_project! {
    /// The future of a [`StatusErrorClassifier`](super::StatusErrorClassifier).
    ///
    /// `F` is the future of the service within, `B` the body of its answers. Dropping it drops whichever of them is
    /// there.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct StatusErrorClassifierFuture<F, B> {
        #[pin]
        state: State<F, B>,
        settings: Settings,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F, B> {
        Calling { #[pin] future: F },
        // In a box, so that calls which succeed need not carry the room for it through all layers.
        Reading { error: Pin<Box<ErrorAnswer<B>>> },
        Done,
    }
}

pin_project! {
    /// An answer that is an error, while its body is read.
    #[derive(Debug)]
    struct ErrorAnswer<B> {
        head: Option<Parts>,
        #[pin]
        body: Prefix<B>,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F, B> StatusErrorClassifierFuture<F, B> {
    pub(super) fn new(future: F, settings: Settings) -> Self {
        StatusErrorClassifierFuture {
            state: State::Calling { future },
            settings,
        }
    }
}

impl<F, A, B, E> Future for StatusErrorClassifierFuture<F, B>
where
    F: Future<Output = Result<A, E>>,
    A: HttpAnswer<Body = B>,
    E: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<B>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Calling { future } => {
                    let outcome = ready!(future.poll(cx)).map(A::into_response);
                    let error = match outcome {
                        Ok(response)
                            if this.settings.policy.verdict(response.status()) != Verdict::Success =>
                        {
                            response
                        }
                        passes => {
                            this.state.set(State::Done);
                            return Poll::Ready(passes.map_err(Into::into));
                        }
                    };
                    let error = Box::pin(ErrorAnswer::new(error, this.settings.max_body));
                    this.state.set(State::Reading { error });
                }
                StateProj::Reading { error } => {
                    let error = ready!(error.as_mut().poll(cx, this.settings));
                    this.state.set(State::Done);
                    return Poll::Ready(Err(error));
                }
                // A future that has ended is not to be polled again; one that is stays where it is.
                StateProj::Done => return Poll::Pending,
            }
        }
    }
}

impl<B: Body> ErrorAnswer<B> {
    fn new(response: Response<B>, max_body: usize) -> Self {
        let (head, body) = response.into_parts();
        ErrorAnswer {
            head: Some(head),
            body: Prefix::new(body, max_body),
            timer: None,
        }
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>, settings: &Settings) -> Poll<BoxError> {
        let mut this = self.project();
        let kept = match this.body.as_mut().poll(cx) {
            Poll::Ready(kept) => kept,
            Poll::Pending => {
                ready!(wait(this.timer, settings.body_wait, cx));
                this.body.cut()
            }
        };
        let Some(head) = this.head.take() else {
            return Poll::Pending;
        };
        let policy = &settings.policy;
        let verdict = policy.verdict(head.status);
        // Read now and not with the head: a date is held against the time at which the caller learns of it.
        let retry_after = policy.retry_after(head.status, &head.headers);
        Poll::Ready(Box::new(StatusError::new(
            head,
            verdict,
            kept.bytes,
            kept.complete,
            retry_after,
        )))
    }
}

/// Ready: nobody waits for the rest of the body any longer.
fn wait(mut timer: Pin<&mut Option<Sleep>>, limit: Duration, cx: &mut Context<'_>) -> Poll<()> {
    if timer.is_none() {
        let now = Instant::now();
        let end = now + limit;
        // At the deadline the status is known and worth more than a timeout would be.
        let end = scope::deadline().map_or(end, |deadline| end.min(deadline));
        if end <= now {
            return Poll::Ready(());
        }
        timer.set(Some(sleep_until(end)));
    }
    match timer.as_pin_mut() {
        Some(timer) => poll_timer(timer, cx),
        None => Poll::Ready(()),
    }
}
