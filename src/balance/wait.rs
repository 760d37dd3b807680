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
    in_flight::InFlight,
    layer::{Balance, NAME, Nowhere, Start},
    rule::Rule,
};
use crate::call::{Addressed, BoxError, Endpoints, NoEndpoint, NotReady, scope, timer::poll_timer};

/// When a rule that has chosen none is asked again: what it has looked at need not be a change of the set.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(10);

pin_project! {
    /// What a call waits for that has nowhere to go: a change of the set, and the time.
    pub(super) struct Watch {
        since: Instant,
        // Made before the set is looked at, so that no change is missed.
        #[pin]
        changed: OwnedNotified,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl Watch {
    pub(super) fn over(endpoints: &Endpoints) -> Self {
        Watch {
            since: Instant::now(),
            changed: endpoints.changed(),
            timer: None,
        }
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Has the set changed since this was asked last? If not, the task is woken when it does.
    pub(super) fn poll_changed(self: Pin<&mut Self>, endpoints: &Endpoints, cx: &mut Context<'_>) -> bool {
        let mut this = self.project();
        let changed = this.changed.as_mut().poll(cx).is_ready();
        if changed {
            this.changed.set(endpoints.changed());
        }
        changed
    }

    /// Waits until then, but for good where that is beyond the deadline: there nobody waits, and whoever has set it ends
    /// the call.
    pub(super) fn poll_until(self: Pin<&mut Self>, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
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
        Poll::Ready(())
    }

    /// Nothing is waited for now.
    fn rest(self: Pin<&mut Self>) {
        self.project().timer.set(None);
    }
}

pin_project! {
    /// Waits for an endpoint, then for the service below, then starts the attempt.
    pub(super) struct Waiting<S, Req, R, C> {
        // Not asked for readiness before there is an endpoint: what readiness holds would be held through the wait.
        service: S,
        request: Option<Req>,
        balance: Balance<R, C>,
        there_is_one: bool,
        // The rule has chosen none, and is not asked before.
        not_before: Option<Instant>,
        #[pin]
        watch: Watch,
    }
}

impl<S, Req, R, C> Waiting<S, Req, R, C> {
    pub(super) fn new(service: S, request: Req, balance: Balance<R, C>, why: Nowhere) -> Self {
        let watch = Watch::over(balance.pool.endpoints());
        Waiting {
            service,
            request: Some(request),
            there_is_one: false,
            not_before: why.is_choice().then(|| watch.since + ASK_AGAIN),
            watch,
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
        loop {
            let now = Instant::now();
            let why = {
                let roster = this.balance.pool.roster();
                if !roster.is_empty() && this.not_before.is_none_or(|not_before| not_before <= now) {
                    this.watch.rest();
                    return Poll::Ready(Ok(()));
                }
                Nowhere::of(&roster)
            };
            let since = this.watch.since;
            let until = since.checked_add(this.balance.settings.wait(why));
            if until.is_some_and(|until| until <= now) {
                return Poll::Ready(Err(why.error(now.saturating_duration_since(since))));
            }
            if this
                .watch
                .as_mut()
                .poll_changed(this.balance.pool.endpoints(), cx)
            {
                *this.not_before = None;
                continue;
            }
            // If the limit is near it is asked once more there.
            *this.not_before = this.not_before.filter(|_| why.is_choice());
            ready!(
                this.watch
                    .as_mut()
                    .poll_until(sooner(until, *this.not_before), cx)
            );
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

/// The sooner of the two, where there are two.
pub(super) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
