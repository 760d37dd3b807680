//! The layer next to a hyper-util client, which writes into errors that nothing was sent.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Extensions;
use hyper_util::client::legacy;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use super::counting::Writes;
use crate::call::{Fault, FaultError, Sent, chain, connecting};

/// Puts [`NotSent`] around a hyper-util client.
#[derive(Debug, Clone, Copy, Default)]
pub struct NotSentLayer;

impl<S> Layer<S> for NotSentLayer {
    type Service = NotSent<S>;

    fn layer(&self, inner: S) -> NotSent<S> {
        NotSent { inner }
    }
}

/// A hyper-util client over a [`CountingConnector`](super::CountingConnector), whose errors tell if the request was
/// provably not sent. A [`Client`](super::Client) has it built in.
///
/// If the connection that an attempt failed on has written nothing since the attempt began, none of it was sent. If all
/// streams that were opened on it since then are beyond the last one of a GOAWAY, the server has left the attempt alone.
/// In both cases the error is wrapped into a [`FaultError`] with [`Sent::No`]. All other errors pass unchanged. It goes next to the
/// client: above a layer that sends twice, it would speak of the last sending alone.
///
/// The beginning of an attempt is its first poll, or, where it had to connect, the last poll after which it had no
/// connection yet. So a connection that another attempt gives back meanwhile, and that then fails, proves what it
/// would prove of any.
#[derive(Debug, Clone)]
pub struct NotSent<S> {
    inner: S,
}

impl<S> NotSent<S> {
    crate::macros::inner_service!(S);
}

impl<S, Req> Service<Req> for NotSent<S>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = NotSentFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        NotSentFuture::new(self.inner.call(request))
    }
}

pin_project! {
    /// The future of [`NotSent`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct NotSentFuture<F> {
        #[pin]
        response: F,
        // Before this nothing of the attempt can have been written. None: nor until the next poll.
        started: Option<Instant>,
    }
}

impl<F> NotSentFuture<F> {
    pub(super) fn new(response: F) -> Self {
        NotSentFuture {
            response,
            started: None,
        }
    }
}

impl<F, T, E> Future for NotSentFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let started = *this.started.get_or_insert_with(Instant::now);
        // hyper-util polls the connector within this poll, and no further once it is pending.
        let (polled, connecting) = connecting::observe(|| this.response.poll(cx));
        match polled {
            Poll::Ready(Ok(response)) => Poll::Ready(Ok(response)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(with_proof(error.into(), started))),
            Poll::Pending => {
                if connecting {
                    *this.started = None;
                }
                Poll::Pending
            }
        }
    }
}

/// Writes into the error that nothing was sent, where that is not plain from the error and the connection knows it.
#[cold]
fn with_proof(error: BoxError, started: Instant) -> BoxError {
    let fault = Fault::of(&*error);
    if fault.sent() == Sent::Maybe && nothing_has_come_of_it(&error, started) {
        return Box::new(FaultError::new(fault.with_sent(Sent::No), error));
    }
    error
}

fn nothing_has_come_of_it(error: &BoxError, started: Instant) -> bool {
    let Some(connection) = chain(&**error)
        .find_map(|level| level.downcast_ref::<legacy::Error>())
        .and_then(legacy::Error::connect_info)
    else {
        return false;
    };
    let mut extras = Extensions::new();
    connection.get_extras(&mut extras);
    extras
        .get::<Writes>()
        .is_some_and(|writes| writes.silent_since(started) || writes.left_alone_since(started))
}
