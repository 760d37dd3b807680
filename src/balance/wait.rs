//! A call that found no endpoint and waits for one.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{
    sync::futures::OwnedNotified,
    time::{Duration, Instant, Sleep, sleep_until},
};
use tower_service::Service;

use super::{
    figures::InFlight,
    layer::{Balance, NAME, Nowhere, Start},
    rule::Rule,
};
use crate::call::{Addressed, BoxError, NoEndpoint, NotReady, scope, timer::poll_timer};

/// When a rule that has chosen none is asked again: what it has looked at need not be a change of the set.
const ASK_AGAIN: Duration = Duration::from_millis(10);

pin_project! {
    /// Waits for an endpoint, then for the service below, then starts the attempt.
    pub(super) struct Waiting<S, Req, R, C> {
        // Not asked for readiness before there is an endpoint: what readiness holds would be held through the wait.
        service: S,
        request: Option<Req>,
        balance: Balance<R, C>,
        since: Instant,
        there_is_one: bool,
        // The rule has chosen none, and is not asked before.
        not_before: Option<Instant>,
        // Made before the set is looked at, so that no change is missed.
        #[pin]
        changed: OwnedNotified,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<S, Req, R, C> Waiting<S, Req, R, C> {
    pub(super) fn new(service: S, request: Req, balance: Balance<R, C>, why: Nowhere) -> Self {
        let since = Instant::now();
        Waiting {
            service,
            request: Some(request),
            since,
            there_is_one: false,
            not_before: why.is_choice().then(|| since + ASK_AGAIN),
            changed: balance.pool.endpoints().changed(),
            timer: None,
            balance,
        }
    }

    pub(super) fn classify(&self) -> &C {
        &self.balance.classify
    }

    /// Waits until the set is not empty, and a rule that has chosen none of it may be asked again. An error: not within
    /// the limit.
    fn poll_endpoint(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), NoEndpoint>> {
        let mut this = self.project();
        let endpoints = this.balance.pool.endpoints();
        loop {
            let now = Instant::now();
            let why = {
                let roster = this.balance.pool.roster();
                if !roster.is_empty() && this.not_before.is_none_or(|not_before| not_before <= now) {
                    this.timer.set(None);
                    return Poll::Ready(Ok(()));
                }
                Nowhere::of(&roster)
            };
            let until = this.since.checked_add(this.balance.settings.wait(why));
            if until.is_some_and(|until| until <= now) {
                let waited = now.saturating_duration_since(*this.since);
                return Poll::Ready(Err(why.error(waited)));
            }
            if this.changed.as_mut().poll(cx).is_ready() {
                this.changed.set(endpoints.changed());
                *this.not_before = None;
                continue;
            }
            // If the limit is near it is asked once more there.
            *this.not_before = this.not_before.filter(|_| why.is_choice());
            let until = match (until, *this.not_before) {
                (Some(until), Some(not_before)) => Some(until.min(not_before)),
                (until, not_before) => until.or(not_before),
            };
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
                Start::Nowhere { request: unsent, why } => {
                    // It was taken out while the service became ready, or the rule wants none.
                    *this.request = Some(unsent);
                    *this.service = this.service.clone();
                    *this.there_is_one = false;
                    *this.not_before = why.is_choice().then(|| Instant::now() + ASK_AGAIN);
                }
            }
        }
    }
}
