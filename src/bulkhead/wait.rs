//! A call that waits for a slot, or for the service below once it has one.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tower_service::Service;

use super::{
    NAME,
    handle::{Place, Slot},
};
use crate::call::{BoxError, NotReady, scope, timer::poll_timer};

pin_project! {
    /// Waits for a slot, then for the service below, then makes the call.
    pub(super) struct Waiting<S, Req> {
        // Not asked for readiness before there is a slot: what readiness holds would be held through the wait.
        service: S,
        request: Option<Req>,
        stage: Stage,
        #[pin]
        timer: Option<Sleep>,
    }
}

enum Stage {
    InLine { place: Place, since: Instant },
    HasSlot(Slot),
    Over,
}

impl<S, Req> Waiting<S, Req> {
    pub(super) fn in_line(service: S, request: Req, place: Place, since: Instant) -> Self {
        Waiting::at(Stage::InLine { place, since }, service, request)
    }

    pub(super) fn with_slot(service: S, request: Req, slot: Slot) -> Self {
        Waiting::at(Stage::HasSlot(slot), service, request)
    }

    fn at(stage: Stage, service: S, request: Req) -> Self {
        Waiting {
            service,
            request: Some(request),
            stage,
            timer: None,
        }
    }

    /// Waits for a slot and for readiness, and makes the call.
    pub(super) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(S::Future, Slot), BoxError>>
    where
        S: Service<Req>,
        S::Error: Into<BoxError>,
    {
        let mut this = self.project();
        if let Stage::InLine { place, since } = this.stage {
            let Poll::Ready(slot) = place.poll_slot(cx) else {
                ready!(poll_limit(this.timer, *since, place, cx));
                return Poll::Ready(Err(place.refuse(since.elapsed()).into()));
            };
            *this.stage = Stage::HasSlot(slot);
            this.timer.set(None);
        }
        ready!(this.service.poll_ready(cx)).map_err(|error| NotReady::new(NAME, error.into()))?;
        match (this.request.take(), mem::replace(this.stage, Stage::Over)) {
            (Some(request), Stage::HasSlot(slot)) => Poll::Ready(Ok((this.service.call(request), slot))),
            // Polled again after its end.
            _ => Poll::Pending,
        }
    }

    pub(super) fn has_slot(&self) -> bool {
        matches!(self.stage, Stage::HasSlot(_))
    }
}

/// Ready: it has waited for long enough.
fn poll_limit(
    mut timer: Pin<&mut Option<Sleep>>,
    since: Instant,
    place: &Place,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if timer.is_none() {
        let until = since + place.max_wait();
        // Beyond the deadline nobody waits, and whoever has set it ends the call.
        if scope::deadline().is_some_and(|deadline| deadline <= until) {
            return Poll::Pending;
        }
        timer.set(Some(sleep_until(until)));
    }
    match timer.as_pin_mut() {
        Some(timer) => poll_timer(timer, cx),
        None => Poll::Pending,
    }
}
