//! The service.

use std::{
    mem,
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower_service::Service;

use super::{
    Bulkhead, BulkheadFuture, NAME,
    handle::{Entry, Place},
    wait::Waiting,
};
use crate::call::{BoxError, NoTimeLeft, scope};

/// A service of which a limited number of calls is in flight at once.
///
/// Made by [`BulkheadLayer`](super::BulkheadLayer). Rejections are [`BulkheadFull`](crate::call::BulkheadFull) errors
/// from the future of the call; `poll_ready` fails only if the inner service does.
#[derive(Debug)]
pub struct BulkheadService<S> {
    inner: S,
    bulkhead: Bulkhead,
    /// Has this instance of the inner service been found ready, and not been called since?
    inner_is_ready: bool,
}

impl<S> BulkheadService<S> {
    pub(super) fn new(inner: S, bulkhead: Bulkhead) -> Self {
        BulkheadService {
            inner,
            bulkhead,
            inner_is_ready: false,
        }
    }

    /// The bulkhead.
    pub fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }

    crate::macros::inner_service!(S);
}

/// The clone has not been asked whether it is ready.
impl<S: Clone> Clone for BulkheadService<S> {
    fn clone(&self) -> Self {
        BulkheadService::new(self.inner.clone(), self.bulkhead.clone())
    }
}

impl<S, Req> Service<Req> for BulkheadService<S>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BulkheadFuture<S, Req>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Without a free slot the inner service is asked once there is one, if ever.
        if !self.inner_is_ready && self.bulkhead.is_full() {
            return Poll::Ready(Ok(()));
        }
        let polled = self.inner.poll_ready(cx);
        self.inner_is_ready = matches!(polled, Poll::Ready(Ok(())));
        polled.map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let ready = mem::take(&mut self.inner_is_ready);
        match self.bulkhead.enter_or_wait() {
            // The slot is a local while the inner service works: should that panic, it is dropped.
            Entry::In(slot) if ready => BulkheadFuture::calling(self.inner.call(request), slot),
            Entry::In(slot) => BulkheadFuture::waiting(Waiting::with_slot(self.inner.clone(), request, slot)),
            Entry::InLine(place) => self.wait(place, request, ready),
            Entry::Full(rejection) => {
                self.release(ready);
                BulkheadFuture::refused(rejection.into())
            }
        }
    }
}

impl<S: Clone> BulkheadService<S> {
    /// Gives back what the inner service holds for a call that is not made now.
    fn release(&mut self, ready: bool) {
        if ready {
            self.inner = self.inner.clone();
        }
    }

    #[cold]
    fn wait<Req>(&mut self, place: Place, request: Req, ready: bool) -> BulkheadFuture<S, Req>
    where
        S: Service<Req>,
    {
        self.release(ready);
        let now = Instant::now();
        if scope::deadline().is_some_and(|deadline| deadline <= now) {
            return BulkheadFuture::refused(NoTimeLeft::new(NAME).into());
        }
        BulkheadFuture::waiting(Waiting::in_line(self.inner.clone(), request, place, now))
    }
}
