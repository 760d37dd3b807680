//! What the loop leaves to whoever drives it.

use std::{
    convert::Infallible,
    future::Future,
    task::{Context, Poll},
};

use tokio::time::{Duration, Instant, Sleep, sleep_until};

use super::{Again, FailedAttempt, RetryPolicy};
use crate::call::{FaultKind, LONGEST, NotRetried, OutboundRequest, RetryTo, Semantics};

/// Drives the loop: each [`RetryPolicy`] does, and so does a policy that was written for tower.
///
/// Theirs are what is kept for further attempts, the decision, and the pause. Scope, trail, deadline, budget,
/// readiness and draining are the loop's.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not retry requests `{Req}` with answers `{Res}` and errors `{E}`",
    label = "no retry policy for this service",
    note = "a `RetryPolicy` needs requests that are `OutboundRequest`",
    note = "a `tower::retry::Policy` must be `Clone`, and one for these requests, answers and errors"
)]
pub trait Drive<Req, Res, E>: Clone {
    /// What further attempts are made from.
    type Kept;
    /// What is made of an outcome as the service below gave it.
    type Wish;
    /// A pause that has not begun.
    type Wait;
    /// The pause.
    type Pause: Future<Output = ()>;

    /// The name of the layer, for trails and errors.
    fn name(&self) -> &'static str;

    /// Does it never retry anything?
    fn never_retries(&self) -> bool;

    /// Should a retry prefer endpoints that the call has not tried?
    fn prefers_untried(&self) -> bool;

    /// This policy, as the request wants it for its call alone. `None`: as it is.
    fn overridden(&self, request: &Req) -> Option<Self> {
        let _ = request;
        None
    }

    /// What the request may do to a server.
    fn semantics(request: &Req) -> Semantics;

    /// Keeps what further attempts are made from. `None`: there will be none.
    fn keep(&mut self, request: &Req, semantics: Semantics) -> Option<Self::Kept>;

    /// An attempt has ended, well or not, and another one could follow. `Some`: it shall.
    fn ask(&mut self, kept: &mut Self::Kept, outcome: &mut Result<Res, E>) -> Option<Self::Wish>;

    /// The attempt failed, or was wished away. Shall another one follow?
    fn decide(
        &mut self,
        kept: Option<&Self::Kept>,
        wish: Option<Self::Wish>,
        failed: &FailedAttempt<'_>,
    ) -> Result<Plan<Self::Wait>, NotRetried>;

    /// Could there be a request for the next attempt?
    fn check(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }

    /// Ready when that has changed while the next attempt is waited for.
    fn poll_lost(_kept: &Self::Kept, _cx: &mut Context<'_>) -> Poll<NotRetried> {
        Poll::Pending
    }

    /// The next attempt is about to start: what is left of those before has no claim to the body any more.
    fn take_over(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }

    /// The request of the next attempt. `None`: it cannot be sent another time after all.
    fn request(kept: &mut Self::Kept) -> Option<Req>;

    /// The next attempt is about to start with this request.
    fn keep_again(&mut self, kept: &mut Self::Kept, request: &Req);

    /// Begins the pause. `None`: there is none, or it has gone by.
    fn pause(wait: Self::Wait, deadline: Option<Instant>) -> Option<Self::Pause>;
}

/// Another attempt is to follow.
#[derive(Debug)]
pub struct Plan<Wait> {
    pub(super) to: RetryTo,
    /// How long the pause is, as far as that is known beforehand.
    pub(super) pause: Duration,
    pub(super) wait: Wait,
}

impl<P, Req, Res, E> Drive<Req, Res, E> for P
where
    P: RetryPolicy,
    Req: OutboundRequest,
{
    type Kept = Req::Kept;
    type Wish = Infallible;
    type Wait = Instant;
    type Pause = Sleep;

    fn name(&self) -> &'static str {
        RetryPolicy::name(self)
    }

    #[inline]
    fn never_retries(&self) -> bool {
        RetryPolicy::never_retries(self)
    }

    #[inline]
    fn prefers_untried(&self) -> bool {
        RetryPolicy::prefers_untried(self)
    }

    #[inline]
    fn overridden(&self, request: &Req) -> Option<P> {
        RetryPolicy::overridden(self, request.overrides()?)
    }

    #[inline]
    fn semantics(request: &Req) -> Semantics {
        request.semantics()
    }

    #[inline]
    fn keep(&mut self, request: &Req, semantics: Semantics) -> Option<Req::Kept> {
        if self.may_retry(semantics) {
            request.keep()
        } else {
            None
        }
    }

    #[inline]
    fn ask(&mut self, _: &mut Req::Kept, _: &mut Result<Res, E>) -> Option<Infallible> {
        None
    }

    fn decide(
        &mut self,
        _: Option<&Req::Kept>,
        _: Option<Infallible>,
        failed: &FailedAttempt<'_>,
    ) -> Result<Plan<Instant>, NotRetried> {
        match failed.fault().kind() {
            FaultKind::Rejected(_) => return Err(NotRetried::Rejected),
            FaultKind::NoEndpoint => return Err(NotRetried::NoEndpoint),
            _ => {}
        }
        let again: Again = self.again(failed)?;
        let (now, pause) = (Instant::now(), again.pause());
        Ok(Plan {
            to: again.to(),
            pause,
            wait: now.checked_add(pause).unwrap_or(now + LONGEST),
        })
    }

    #[inline]
    fn check(kept: &Req::Kept) -> Result<(), NotRetried> {
        Req::check(kept)
    }

    #[inline]
    fn poll_lost(kept: &Req::Kept, cx: &mut Context<'_>) -> Poll<NotRetried> {
        Req::poll_lost(kept, cx)
    }

    #[inline]
    fn take_over(kept: &Req::Kept) -> Result<(), NotRetried> {
        Req::take_over(kept)
    }

    fn request(kept: &mut Req::Kept) -> Option<Req> {
        Req::restore(kept)
    }

    fn keep_again(&mut self, _: &mut Req::Kept, _: &Req) {}

    fn pause(due: Instant, _: Option<Instant>) -> Option<Sleep> {
        (due > Instant::now()).then(|| sleep_until(due))
    }
}
