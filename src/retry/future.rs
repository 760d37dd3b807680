//! The loop, as a future without boxes.
//!
//! ```text
//! Calling ──▶ Draining ──▶ Sleeping ──▶ Readying ──▶ Calling ... ──▶ Done
//! ```
//!
//! An answer that is thrown away is drained, so that its connection can be used again. The pause runs from the end
//! of the attempt. Readiness is asked for after the pause, never held through it. A retry without a pause begins
//! in the next poll: one poll starts one attempt, or a server that fails at once would keep the limits above from
//! being looked at.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;
use tower_service::Service;

use super::{FailedAttempt, RetryPolicy};
use crate::call::{
    Attempt, AttemptOutcome, BudgetSlot, CallScope, Event, Fault, FaultKind, LONGEST, NoTimeLeft, NotReady,
    NotRetried, OutboundRequest, ReadAnswer, Retry, RetryBudget, RetryTo, Semantics, Stop, scope,
};

/// How long an answer that is thrown away may take to drain. It has come already, or it is about to; waiting longer
/// costs more than the new connection that it may save.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_millis(100);

pin_project! {
    /// The future of [`RetryService`](super::RetryService).
    pub struct RetryFuture<S, P, A, Req>
    where
        S: Service<Req>,
        A: ReadAnswer<S::Response>,
        Req: OutboundRequest,
    {
        #[pin]
        state: State<S::Future, A::Drain, Req>,
        // None: the call goes straight through.
        retries: Option<Loop<S, P, A, Req::Kept>>,
    }

    impl<S, P, A, Req> PinnedDrop for RetryFuture<S, P, A, Req>
    where
        S: Service<Req>,
        A: ReadAnswer<S::Response>,
        Req: OutboundRequest,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let calling = matches!(&*this.state, State::Calling { .. });
            if let (true, Some(retries)) = (calling, this.retries) {
                // Layers below write down what they know of the attempt that is given up.
                retries.abandon(|| this.state.set(State::Done));
            }
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, D, Req> {
        Calling {
            #[pin]
            attempt: F,
        },
        Draining {
            #[pin]
            drain: D,
            #[pin]
            limit: Option<Sleep>,
            next: Option<Next<Req>>,
        },
        Sleeping {
            #[pin]
            sleep: Sleep,
            next: Option<Next<Req>>,
        },
        Readying {
            next: Option<Next<Req>>,
        },
        Done,
    }
}

/// The attempt to come.
struct Next<Req> {
    request: Req,
    slot: Option<BudgetSlot>,
    stay: bool,
    due: Instant,
}

/// What the loop keeps of a call.
pub(super) struct Loop<S, P, A, Kept> {
    policy: P,
    reader: A,
    budget: Option<RetryBudget>,
    /// Is it this layer that counts the call for the budget?
    counts: bool,
    semantics: Semantics,
    /// The copy and the service for further attempts. None: the request cannot be sent again.
    spare: Option<(Kept, S)>,
    scope: CallScope,
    /// Attempts made, those of them in a row that were meant for one endpoint, and how often it was changed.
    attempts: u64,
    here: u64,
    moves: u64,
    /// How many attempts were in the trail when this one started, and when that was.
    before: usize,
    started: Instant,
}

impl<S, P: RetryPolicy, A, Kept> Loop<S, P, A, Kept> {
    #[inline]
    pub(super) fn new(policy: P, reader: A, budget: Option<RetryBudget>, semantics: Semantics) -> Self {
        let mut scope = CallScope::join_or_begin();
        scope.prefer_untried(policy.prefers_untried());
        let started = Instant::now();
        let mut counts = false;
        if let Some(budget) = &budget {
            counts = scope.first_counted_by(budget.id());
            if counts {
                budget.call_starts(started);
            }
        }
        Loop {
            policy,
            reader,
            budget,
            counts,
            semantics,
            spare: None,
            scope,
            attempts: 0,
            here: 0,
            moves: 0,
            before: 0,
            started,
        }
    }

    #[inline]
    pub(super) fn keep(&mut self, kept: Kept, service: S) {
        self.spare = Some((kept, service));
    }

    /// Starts an attempt.
    #[inline]
    pub(super) fn start<F>(&mut self, call: impl FnOnce() -> F) -> F {
        self.attempts += 1;
        self.here += 1;
        let (before, attempt) = self
            .scope
            .enter(|| (scope::current(|scope| scope.attempts()), call()));
        self.before = before;
        attempt
    }

    /// Polls an attempt. At its end: what became of it, and what was wrong with that.
    #[inline]
    fn poll_attempt<F, Response, Error>(
        &mut self,
        attempt: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<(Result<Response, BoxError>, Option<Fault>)>
    where
        F: Future<Output = Result<Response, Error>>,
        Error: Into<BoxError>,
        A: ReadAnswer<Response>,
    {
        let Loop {
            scope,
            reader,
            before,
            started,
            ..
        } = self;
        scope.enter(|| {
            let outcome = ready!(attempt.poll(cx)).map_err(Into::into);
            let fault = match &outcome {
                Ok(answer) => reader.fault(answer),
                Err(error) => Some(Fault::of(&**error)),
            };
            scope::current(|scope| match fault {
                Some(fault) => scope.record_failure(*before, *started, fault),
                None if scope.trail().is_some() && scope.attempts() == *before => {
                    scope.record_answer(Attempt::new(
                        scope.picked().cloned(),
                        *started,
                        Instant::now(),
                        AttemptOutcome::Answered,
                    ));
                }
                None => {}
            });
            Poll::Ready((outcome, fault))
        })
    }

    /// The attempt failed: is the request sent again?
    ///
    /// What costs something is asked last: the copy of the body, then the token.
    fn decide<Req, Response>(
        &mut self,
        outcome: &Result<Response, BoxError>,
        fault: Fault,
    ) -> Result<Next<Req>, NotRetried>
    where
        Req: OutboundRequest<Kept = Kept>,
    {
        match fault.kind() {
            FaultKind::Rejected(_) => return Err(NotRetried::Rejected),
            FaultKind::NoEndpoint => return Err(NotRetried::NoEndpoint),
            _ => {}
        }
        let again = self.policy.again(&FailedAttempt {
            semantics: self.semantics,
            fault,
            error: outcome.as_ref().err().map(|error| &**error),
            attempts: self.attempts,
            here: self.here,
            moves: self.moves,
        })?;
        let (to, pause) = (again.to(), again.pause());
        if let Some(left) = self.scope.remaining().filter(|left| pause >= *left) {
            return Err(NotRetried::DeadlineTooClose { pause, left });
        }
        let request = self.spare.as_ref().and_then(|(kept, _)| Req::restore(kept));
        let request = request.ok_or(NotRetried::BodyNotRepeatable)?;
        let slot = match &self.budget {
            Some(budget) => Some(budget.withdraw().ok_or(NotRetried::BudgetSpent)?),
            None => None,
        };
        if to != RetryTo::SameEndpoint {
            self.moves += u64::from(to == RetryTo::NextEndpoint);
            self.here = 0;
        }
        // Where nothing below says where it went, there is no same or next endpoint.
        let to = if self.scope.picked().is_some() {
            to
        } else {
            RetryTo::Anywhere
        };
        self.record(Retry::new(self.policy.name(), to, pause));
        tracing::debug!(layer = self.policy.name(), %fault, %to, ?pause, "retry");
        let now = Instant::now();
        Ok(Next {
            request,
            slot,
            stay: to == RetryTo::SameEndpoint,
            due: now.checked_add(pause).unwrap_or(now + LONGEST),
        })
    }

    /// Starts the attempt that was decided on. Its service is ready.
    fn start_next<Req>(&mut self, next: Next<Req>) -> Option<S::Future>
    where
        S: Service<Req>,
    {
        if let Some(slot) = next.slot {
            slot.spend();
        }
        // What an attempt does not reach must not be held to be where it failed.
        let picked = self.scope.take_picked();
        self.scope.wish_to_stay(picked.filter(|_| next.stay));
        self.started = Instant::now();
        let (kept, mut service) = self.spare.take()?;
        let attempt = self.start(|| service.call(next.request));
        self.spare = Some((kept, service));
        Some(attempt)
    }

    /// Waits until the service is ready for the next attempt, and for that alone: what comes out as an error ends
    /// the call.
    fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>
    where
        S: Service<Req>,
        S::Error: Into<BoxError>,
    {
        let Loop { scope, spare, .. } = self;
        let ready = match spare {
            Some((_, service)) => ready!(scope.enter(|| service.poll_ready(cx))),
            None => Ok(()),
        };
        if let Err(error) = ready {
            let error = NotReady::new(self.policy.name(), error.into());
            return self.not_started(error);
        }
        if self.scope.remaining().is_some_and(|left| left.is_zero()) {
            return self.not_started(NoTimeLeft::new(self.policy.name()));
        }
        Poll::Ready(Ok(()))
    }

    /// The attempt that was decided on is not started after all, and the call ends.
    fn not_started<T>(&mut self, error: impl Into<BoxError>) -> Poll<Result<T, BoxError>> {
        let error = error.into();
        let fault = Fault::of(&*error);
        self.scope.take_picked();
        self.within(|scope| scope.record_failure(scope.attempts(), Instant::now(), fault));
        self.finish(Err(error))
    }

    /// When an answer that is thrown away has had its time to drain.
    fn drain_until(&self) -> Instant {
        let end = Instant::now() + DRAIN_LIMIT;
        self.scope.deadline().map_or(end, |deadline| end.min(deadline))
    }

    fn record(&mut self, event: impl Into<Event>) {
        self.within(|scope| scope.record(event));
    }

    /// A scope has its trail only while it is on the thread.
    fn within<R>(&mut self, f: impl FnOnce(&mut CallScope) -> R) -> R {
        self.scope.enter(|| scope::current(f))
    }

    fn succeeded(&self) {
        if let Some(budget) = self.budget.as_ref().filter(|_| self.counts) {
            budget.call_succeeded();
        }
    }

    #[inline]
    fn finish<T>(&mut self, outcome: Result<T, BoxError>) -> Poll<Result<T, BoxError>> {
        Poll::Ready(self.scope.finish(outcome))
    }
}

impl<S, P, A, Kept> Loop<S, P, A, Kept> {
    /// The attempt is given up from outside.
    fn abandon(&mut self, give_up: impl FnOnce()) {
        let (before, started) = (self.before, self.started);
        self.scope.enter(|| {
            give_up();
            scope::current(|scope| {
                if scope.attempts() == before {
                    let picked = scope.picked().cloned();
                    let outcome = AttemptOutcome::Abandoned;
                    scope.record(Attempt::new(picked, started, Instant::now(), outcome));
                }
            });
        });
    }
}

impl<S, P, A, Req> RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    A: ReadAnswer<S::Response>,
    Req: OutboundRequest,
{
    #[inline]
    pub(super) fn straight(attempt: S::Future) -> Self {
        RetryFuture {
            state: State::Calling { attempt },
            retries: None,
        }
    }

    #[inline]
    pub(super) fn new(attempt: S::Future, retries: Loop<S, P, A, Req::Kept>) -> Self {
        RetryFuture {
            state: State::Calling { attempt },
            retries: Some(retries),
        }
    }
}

impl<S, P, A, Req> Future for RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    P: RetryPolicy,
    A: ReadAnswer<S::Response>,
    Req: OutboundRequest,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(retries) = this.retries else {
            let outcome = match this.state.as_mut().project() {
                StateProj::Calling { attempt } => ready!(attempt.poll(cx)),
                _ => return polled_again(),
            };
            this.state.set(State::Done);
            return Poll::Ready(outcome.map_err(Into::into));
        };
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Calling { attempt } => {
                    let (outcome, fault) = ready!(retries.poll_attempt(attempt, cx));
                    this.state.set(State::Done);
                    let Some(fault) = fault else {
                        retries.succeeded();
                        return retries.finish(outcome);
                    };
                    let next = match retries.decide(&outcome, fault) {
                        Ok(next) => next,
                        Err(reason) => {
                            retries.record(Stop::new(retries.policy.name(), reason));
                            return retries.finish(outcome);
                        }
                    };
                    // What is thrown away is gone before the next attempt starts.
                    if let Some(drain) = outcome.ok().and_then(|answer| retries.reader.drain(answer)) {
                        this.state.set(State::Draining {
                            drain,
                            limit: None,
                            next: Some(next),
                        });
                        continue;
                    }
                    Some(next)
                }
                StateProj::Draining {
                    drain,
                    mut limit,
                    next,
                } => {
                    if drain.poll(cx).is_pending() {
                        if limit.is_none() {
                            limit.set(Some(sleep_until(retries.drain_until())));
                        }
                        if let Some(limit) = limit.as_pin_mut() {
                            ready!(limit.poll(cx));
                        }
                    }
                    next.take()
                }
                StateProj::Sleeping { sleep, next } => {
                    ready!(sleep.poll(cx));
                    let next = next.take();
                    this.state.set(State::Readying { next });
                    continue;
                }
                StateProj::Readying { next } => {
                    ready!(retries.poll_ready(cx))?;
                    let attempt = next.take().and_then(|next| retries.start_next(next));
                    let Some(attempt) = attempt else {
                        return polled_again();
                    };
                    this.state.set(State::Calling { attempt });
                    continue;
                }
                StateProj::Done => return polled_again(),
            };
            let Some(next) = next else {
                return polled_again();
            };
            if next.due <= Instant::now() {
                // No pause, or it went by while draining: let others, and the limits above, have their turn.
                this.state.set(State::Readying { next: Some(next) });
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.state.set(State::Sleeping {
                sleep: sleep_until(next.due),
                next: Some(next),
            });
        }
    }
}

/// A future must not be polled again after its end; there is nothing that could become ready.
fn polled_again<T>() -> Poll<T> {
    debug_assert!(false, "polled again after it had ended");
    Poll::Pending
}

impl<S, P, A, Req> fmt::Debug for RetryFuture<S, P, A, Req>
where
    S: Service<Req>,
    A: ReadAnswer<S::Response>,
    Req: OutboundRequest,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("state", &self.state.name())
            .field(
                "attempts",
                &self.retries.as_ref().map_or(1, |retries| retries.attempts),
            )
            .finish_non_exhaustive()
    }
}

impl<F, D, Req> State<F, D, Req> {
    fn name(&self) -> &'static str {
        match self {
            State::Calling { .. } => "Calling",
            State::Draining { .. } => "Draining",
            State::Sleeping { .. } => "Sleeping",
            State::Readying { .. } => "Readying",
            State::Done => "Done",
        }
    }
}
