//! Following the transitions of a breaker.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Transition;

/// How many transitions are kept for a subscriber that is behind.
pub(super) const KEPT: usize = 64;

type Received = (Result<Transition, RecvError>, Receiver<Transition>);

/// The transitions of a [`Breaker`](super::Breaker) from the moment of
/// [asking](super::Breaker::transitions) on: each once and in order. A `Stream`.
///
/// It ends when the breaker is gone, which is when its last handle, service and permit are dropped; this does not keep it.
/// At least 64 transitions are kept for whoever does not read. Beyond these the oldest are dropped, and [`Missed`] tells
/// how many, in their place. A subscription that is dropped costs its breaker nothing more.
#[must_use = "a stream does nothing unless polled"]
pub struct Transitions {
    /// Gives the receiver back with what it received.
    next: Pin<Box<dyn Future<Output = Received> + Send + Sync>>,
}

/// So many transitions were told while nobody read, and are not kept any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    count: u64,
}

impl Missed {
    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} transitions were missed", self.count)
    }
}

impl Error for Missed {}

async fn receive(mut from: Receiver<Transition>) -> Received {
    (from.recv().await, from)
}

impl Transitions {
    pub(super) fn new(from: Receiver<Transition>) -> Self {
        Transitions {
            next: Box::pin(receive(from)),
        }
    }

    /// The next transition, or how many were missed. `None`: the breaker is gone.
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Transition, Missed>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Transitions {
    type Item = Result<Transition, Missed>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (received, from) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(receive(from));
        Poll::Ready(match received {
            Ok(transition) => Some(Ok(transition)),
            Err(RecvError::Lagged(count)) => Some(Err(Missed { count })),
            Err(RecvError::Closed) => None,
        })
    }
}

impl fmt::Debug for Transitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transitions").finish_non_exhaustive()
    }
}
