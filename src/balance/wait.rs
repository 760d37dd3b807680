//! A call that found no endpoint and waits for one.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{
    sync::futures::OwnedNotified,
    time::{Instant, Sleep, sleep_until},
};
use tower_service::Service;

use super::{
    figures::InFlight,
    layer::{Balance, NAME, Start},
    rule::Rule,
};
use crate::call::{Addressed, BoxError, NoEndpoint, NotReady, scope, timer::poll_timer};

pin_project! {
    /// Waits for an endpoint, then for the service below, then starts the attempt.
    pub(super) struct Waiting<S, Req, R, C> {
        // Not asked for readiness before there is an endpoint: what readiness holds would be held through the wait.
        service: S,
        request: Option<Req>,
        balance: Balance<R, C>,
        since: Instant,
        there_is_one: bool,
        // Made before the set is looked at, so that no change is missed.
        #[pin]
        changed: OwnedNotified,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<S, Req, R, C> Waiting<S, Req, R, C> {
    pub(super) fn new(service: S, request: Req, balance: Balance<R, C>) -> Self {
        Waiting {
            service,
            request: Some(request),
            since: Instant::now(),
            there_is_one: false,
            changed: balance.pool.endpoints().changed(),
            timer: None,
            balance,
        }
    }

    pub(super) fn classify(&self) -> &C {
        &self.balance.classify
    }

    /// Waits until the set is not empty. An error: not within the limit.
    fn poll_endpoint(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), NoEndpoint>> {
        let mut this = self.project();
        let endpoints = this.balance.pool.endpoints();
        loop {
            let resolved = {
                let roster = this.balance.pool.roster();
                if !roster.entries().is_empty() {
                    this.timer.set(None);
                    return Poll::Ready(Ok(()));
                }
                roster.resolved()
            };
            let until = this.since.checked_add(this.balance.settings.wait(resolved));
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                let waited = now.saturating_duration_since(*this.since);
                return Poll::Ready(Err(NoEndpoint::new(resolved, waited)));
            }
            if this.changed.as_mut().poll(cx).is_ready() {
                this.changed.set(endpoints.changed());
                continue;
            }
            // Beyond the deadline nobody waits, and whoever has set it ends the call.
            let deadline = scope::deadline();
            let Some(until) = until.filter(|until| deadline.is_none_or(|deadline| *until <= deadline)) else {
                this.timer.set(None);
                return Poll::Pending;
            };
            if this.timer.as_ref().get_ref().as_ref().map(Sleep::deadline) != Some(until) {
                this.timer.set(Some(sleep_until(until)));
            }
            if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                ready!(poll_timer(timer, cx));
                this.timer.set(None);
            }
        }
    }

    /// Waits for an endpoint and for readiness, and starts the attempt.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(S::Future, InFlight), BoxError>>
    where
        S: Service<Req> + Clone,
        S::Error: Into<BoxError>,
        Req: Addressed,
        R: Rule,
    {
        loop {
            if !self.there_is_one {
                ready!(self.as_mut().poll_endpoint(cx))?;
                *self.as_mut().project().there_is_one = true;
            }
            let this = self.as_mut().project();
            ready!(this.service.poll_ready(cx)).map_err(|error| NotReady::new(NAME, error.into()))?;
            let Some(sending) = this.request.take() else {
                // Polled again after its end.
                return Poll::Pending;
            };
            match this.balance.start(this.service, sending) {
                Start::Calling(future, in_flight) => return Poll::Ready(Ok((future, in_flight))),
                Start::TooLate(error) => return Poll::Ready(Err(error)),
                Start::Empty { request: unsent, .. } => {
                    // It was taken out while the service became ready.
                    *this.request = Some(unsent);
                    *this.service = this.service.clone();
                    *this.there_is_one = false;
                }
            }
        }
    }
}
