//! The future of a call.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    search::Search,
    service::{Look, NAME, Shared},
    view::RequestView,
};
use crate::{
    balance::{Rule, future::ended, in_flight::InFlight, layer::Target, pick::Asked},
    call::{Attempt, BoxError, Classify, NoTimeLeft},
};

pin_project! {
    /// The future of [`BalanceServices`](super::BalanceServices).
    pub struct BalanceServicesFuture<S, Req, R, C, V>
    where
        S: Service<Req>,
    {
        shared: Arc<Shared<S, R, C, V>>,
        #[pin]
        state: State<S, Req>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Called { request: Option<Req> },
        // Boxed, so that calls which find a service that is ready do not carry the room for it.
        Searching { search: Pin<Box<Search<S, Req>>> },
        // Dropped in this order: first the attempt ends, then it is booked as abandoned, then its service goes.
        Calling {
            #[pin]
            future: S::Future,
            in_flight: InFlight,
            service: S,
            before: Vec<Attempt>,
        },
    }
}

/// A service that was found ready, and has not been called.
pub(super) struct Found<S, Req> {
    pub(super) service: S,
    pub(super) target: Target,
    pub(super) request: Req,
    /// Attempts that have failed before, where nobody above keeps a trail.
    pub(super) before: Vec<Attempt>,
}

impl<S: Service<Req>, Req, R, C, V> BalanceServicesFuture<S, Req, R, C, V> {
    #[inline]
    pub(super) fn new(shared: Arc<Shared<S, R, C, V>>, request: Req) -> Self {
        BalanceServicesFuture {
            shared,
            state: State::Called {
                request: Some(request),
            },
        }
    }
}

impl<S, Req, R, C, V> Future for BalanceServicesFuture<S, Req, R, C, V>
where
    S: Service<Req> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    R: Rule,
    C: Classify<S::Response>,
    V: RequestView<Req>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (shared, mut state) = (&**this.shared, this.state);
        loop {
            match state.as_mut().project() {
                StateProj::Called { request } => {
                    let Some(request) = request.take() else {
                        // Polled again after its end.
                        return Poll::Pending;
                    };
                    let now = Instant::now();
                    let asked = Asked::read();
                    if asked.deadline.is_some_and(|deadline| deadline <= now) {
                        return Poll::Ready(Err(Box::new(NoTimeLeft::new(NAME))));
                    }
                    shared.services.wake(now);
                    match shared.look(&request, &asked, &[], now, cx) {
                        Look::Ready(service, target) => {
                            let found = Found {
                                service,
                                target,
                                request,
                                before: Vec::new(),
                            };
                            state.set(start(shared, found, now));
                        }
                        found => {
                            let search = Box::pin(Search::after(found, shared, request, now));
                            state.set(State::Searching { search });
                        }
                    }
                }
                StateProj::Searching { search } => {
                    let found = ready!(search.as_mut().poll(shared, cx))?;
                    state.set(start(shared, found, Instant::now()));
                }
                StateProj::Calling {
                    future,
                    in_flight,
                    before,
                    ..
                } => {
                    let result = ready!(future.poll(cx)).map_err(Into::into);
                    let before = std::mem::take(before);
                    return Poll::Ready(ended(in_flight, &shared.balance.classify, result, before));
                }
            }
        }
    }
}

/// Sends the request.
#[inline]
fn start<S, Req, R, C, V>(shared: &Shared<S, R, C, V>, found: Found<S, Req>, now: Instant) -> State<S, Req>
where
    S: Service<Req>,
    R: Rule,
    V: RequestView<Req>,
{
    let Found {
        mut service,
        target,
        mut request,
        before,
    } = found;
    shared.view.address(&mut request, target.endpoint());
    let in_flight = shared.balance.begin(target, now);
    State::Calling {
        future: service.call(request),
        in_flight,
        service,
        before,
    }
}

impl<S: Service<Req>, Req, R, C, V> fmt::Debug for BalanceServicesFuture<S, Req, R, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Called { .. } => "called",
            State::Searching { .. } => "looking for a service that is ready",
            State::Calling { .. } => "calling",
        };
        f.debug_struct("BalanceServicesFuture")
            .field("state", &state)
            .finish()
    }
}
