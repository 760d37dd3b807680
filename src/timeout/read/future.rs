//! The wait for the head of a response.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;

use super::{
    NAME, ReadBody,
    limits::{Limit, Limits},
};
use crate::call::{
    NoTimeLeft, ReadPhase, ReadTimedOut, Upload, WriteTimedOut, connecting, scope, timer::poll_timer,
};

pin_project! {
    /// The future of [`ReadTimeout`](super::ReadTimeout).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ReadTimeoutFuture<F> {
        #[pin]
        state: State<F>,
        // Made once the limit is due, unless the deadline of the call is nearer.
        #[pin]
        sleep: Option<Sleep>,
        // When the limit runs out. None: the clock does not run.
        due: Option<Instant>,
        limit: Limit,
        body_limit: Option<Limit>,
        // There if the request body is followed.
        upload: Option<Upload>,
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

impl<F> ReadTimeoutFuture<F> {
    pub(super) fn new(inner: F, limits: Limits, upload: Option<Upload>) -> Self {
        ReadTimeoutFuture {
            state: State::Calling { inner },
            sleep: None,
            due: None,
            limit: limits.read,
            body_limit: limits.body,
            upload,
        }
    }

    pub(super) fn no_time_left() -> Self {
        ReadTimeoutFuture {
            state: State::NoTimeLeft,
            sleep: None,
            due: None,
            limit: Limit::new(Duration::ZERO),
            body_limit: None,
            upload: None,
        }
    }
}

impl<F, R, E> Future for ReadTimeoutFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<ReadBody<R>>, BoxError>;

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
        let (polled, connecting) = connecting::observe(|| inner.poll(cx));
        let mut stalled = None;
        if polled.is_pending() {
            if connecting {
                *this.due = None;
                if let Some(upload) = this.upload.as_ref() {
                    upload.has_not_begun();
                }
                this.sleep.set(None);
                return Poll::Pending;
            }
            if this.due.is_none() {
                let going_on = this.upload.as_ref().filter(|upload| !upload.poll_ended(cx));
                match going_on.map(Upload::stalls_at) {
                    Some(stall) => {
                        let Some((limit, due)) = stall else {
                            return Poll::Pending;
                        };
                        ready!(poll_stall(this.sleep.as_mut(), due, cx));
                        stalled = Some(limit);
                    }
                    None => {
                        this.sleep.set(None);
                        *this.due = Some(Instant::now() + this.limit.get());
                    }
                }
            }
        }
        if polled.is_pending() && stalled.is_none() {
            // With two timers at the same tick the inner one would win, and its error hide whose limit ran out. So
            // there is only the one of the deadline, as long as the call is within the scope of whoever set it.
            if let (None, Some(due)) = (this.sleep.as_ref().get_ref(), *this.due) {
                if scope::deadline().is_none_or(|deadline| deadline > due) {
                    this.sleep.set(Some(sleep_until(due)));
                }
            }
            match this.sleep.as_mut().as_pin_mut() {
                Some(sleep) => ready!(poll_timer(sleep, cx)),
                None => return Poll::Pending,
            }
        }
        // Whoever keeps this future does not keep the attempt, its timer or its upload.
        this.state.set(State::Done);
        this.sleep.set(None);
        let upload = this.upload.take();
        Poll::Ready(match polled {
            Poll::Ready(Ok(response)) => {
                let going_on = upload.filter(|upload| !upload.has_ended());
                Ok(response.map(|body| {
                    ReadBody::new(body, this.limit.get(), this.body_limit.map(Limit::get), going_on)
                }))
            }
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => Err(match stalled {
                Some(limit) => WriteTimedOut::new(limit).into(),
                None => ReadTimedOut::new(this.limit.get(), ReadPhase::Head).into(),
            }),
        })
    }
}

/// Has the upload stalled? A timer that was made before it last moved goes off too early, and is set anew.
fn poll_stall(mut sleep: Pin<&mut Option<Sleep>>, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        let early = match sleep.as_mut().as_pin_mut() {
            Some(sleep) => {
                let at = sleep.deadline();
                ready!(poll_timer(sleep, cx));
                at < due
            }
            None => true,
        };
        if !early {
            return Poll::Ready(());
        }
        // The deadline of the call is its owner's business.
        if scope::deadline().is_some_and(|deadline| deadline <= due) {
            sleep.set(None);
            return Poll::Pending;
        }
        sleep.set(Some(sleep_until(due)));
    }
}
