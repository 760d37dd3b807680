//! The loop, driven by a policy that was written for tower.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::retry::Policy;

use super::{
    FailedAttempt, RetryFuture, RetryLayer, RetryService,
    drive::{Drive, Plan},
};
use crate::call::{AnyAnswer, CallScope, NotRetried, RetryTo, Semantics, timer::poll_timer};

/// Sends requests again as a `tower::retry::Policy` says. Made by [`RetryLayer::tower`].
pub type TowerRetryLayer<P, A = AnyAnswer> = RetryLayer<TowerPolicy<P>, A>;

/// The service of [`TowerRetryLayer`].
pub type TowerRetry<S, P, A = AnyAnswer> = RetryService<S, TowerPolicy<P>, A>;

/// The future of [`TowerRetry`].
pub type TowerRetryFuture<S, Req, P, A = AnyAnswer> = RetryFuture<S, TowerPolicy<P>, A, Req>;

/// A `tower::retry::Policy` that drives the loop of this crate.
///
/// The policy does what it does under `tower::retry::Retry`: it is cloned for each call, asked after each attempt
/// that it has a copy of the request for, shown answers and errors as the service below gave them, and may change
/// both the request and the outcome. Around it is the loop:
///
/// | | `tower::retry::Retry` | here |
/// | --- | --- | --- |
/// | which instance is called | a clone of the one that was polled ready | the very one, each time |
/// | a retry without a pause | in the same poll | in the next one, so that limits above have their turn |
/// | an answer that is thrown away | dropped | drained, if [`read_answers`](RetryLayer::read_answers) was told how |
/// | the deadline of the call | not known | ends the pause; the error that is known is returned |
/// | a [budget](RetryLayer::budget) shared with other layers | | asked after the policy |
/// | a [limit on the attempts](RetryLayer::attempts_in_call) of the whole call | | asked after the policy |
/// | the service is not ready for a retry | its error | [`NotReady`](crate::call::NotReady), with its error as the source |
/// | the trail | | each attempt, and why no other followed |
/// | error | that of the service below | `BoxError` |
///
/// **A risk:** the policy decides alone. Neither the rule on methods nor the one that spares rejections (an open
/// circuit, no endpoint) holds for it: what it wants is sent again, a POST that a server may have carried out as
/// well. A policy can ask: [`Fault::of`](crate::call::Fault::of) reads its error, as it does anybody's.
///
/// ```
/// use std::future::{Ready, ready};
/// use tower::{ServiceBuilder, ServiceExt, retry::Policy};
/// use tower_outbound::{
///     call::{BoxError, Fault, Sent},
///     retry::RetryLayer,
/// };
///
/// /// Twice more, where nothing was sent.
/// #[derive(Clone)]
/// struct TwiceMore(u32);
///
/// impl<Res> Policy<String, Res, BoxError> for TwiceMore {
///     type Future = Ready<()>;
///
///     fn retry(&mut self, _: &mut String, outcome: &mut Result<Res, BoxError>) -> Option<Ready<()>> {
///         let error = outcome.as_ref().err()?;
///         if Fault::of(&**error).sent() != Sent::No {
///             return None;
///         }
///         self.0 = self.0.checked_sub(1)?;
///         Some(ready(()))
///     }
///
///     fn clone_request(&mut self, request: &String) -> Option<String> {
///         Some(request.clone())
///     }
/// }
///
/// # tokio_test::block_on(async {
/// # let client = tower::service_fn(|name: String| async move { Ok::<_, BoxError>(name) });
/// let service = ServiceBuilder::new().layer(RetryLayer::tower(TwiceMore(2))).service(client);
/// assert_eq!(service.oneshot("hello".to_owned()).await?, "hello");
/// # Ok::<(), BoxError>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerPolicy<P> {
    policy: P,
}

impl<P> TowerPolicy<P> {
    /// The policy.
    pub fn get_ref(&self) -> &P {
        &self.policy
    }
}

impl<P> RetryLayer<TowerPolicy<P>, AnyAnswer> {
    /// Retries by a policy that was written for tower. See [`TowerPolicy`] for what that means.
    ///
    /// Which answers are retried is for the policy to say. [`read_answers`](RetryLayer::read_answers) says how one
    /// that is thrown away is drained, and what the trail calls it: give it a
    /// [`StatusSet`](crate::call::StatusSet) where answers are `http::Response`s.
    pub fn tower(policy: P) -> Self {
        RetryLayer {
            policy: TowerPolicy { policy },
            reader: AnyAnswer,
            budget: None,
            attempts_in_call: CallScope::ANY_NUMBER,
        }
    }
}

impl<P, Req, Res, E> Drive<Req, Res, E> for TowerPolicy<P>
where
    P: Policy<Req, Res, E> + Clone,
{
    /// The policy may refuse to copy the request of a retry.
    type Kept = Option<Req>;
    type Wish = P::Future;
    type Wait = P::Future;
    type Pause = UntilDeadline<P::Future>;

    fn name(&self) -> &'static str {
        "TowerRetry"
    }

    fn never_retries(&self) -> bool {
        false
    }

    fn prefers_untried(&self) -> bool {
        true
    }

    /// The policy knows, or does not care.
    fn semantics(_: &Req) -> Semantics {
        Semantics::UNSAFE
    }

    fn keep(&mut self, request: &Req, _: Semantics) -> Option<Option<Req>> {
        self.policy.clone_request(request).map(Some)
    }

    fn ask(&mut self, kept: &mut Option<Req>, outcome: &mut Result<Res, E>) -> Option<P::Future> {
        self.policy.retry(kept.as_mut()?, outcome)
    }

    fn decide(
        &mut self,
        kept: Option<&Option<Req>>,
        wish: Option<P::Future>,
        _: &FailedAttempt<'_>,
    ) -> Result<Plan<P::Future>, NotRetried> {
        Ok(Plan {
            to: RetryTo::Anywhere,
            pause: Duration::ZERO,
            wait: wish.ok_or(match kept {
                Some(Some(_)) => NotRetried::NotByRule,
                // It was not asked.
                _ => NotRetried::BodyNotRepeatable,
            })?,
        })
    }

    fn request(kept: &mut Option<Req>) -> Option<Req> {
        kept.take()
    }

    fn keep_again(&mut self, kept: &mut Option<Req>, request: &Req) {
        *kept = self.policy.clone_request(request);
    }

    fn pause(wait: P::Future, deadline: Option<Instant>) -> Option<UntilDeadline<P::Future>> {
        Some(UntilDeadline {
            pause: wait,
            limit: deadline.map(sleep_until),
        })
    }
}

pin_project! {
    /// How long a foreign pause takes is seen only when it ends.
    #[derive(Debug)]
    pub struct UntilDeadline<F> {
        #[pin]
        pause: F,
        #[pin]
        limit: Option<Sleep>,
    }
}

impl<F: Future<Output = ()>> Future for UntilDeadline<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        match this.limit.as_pin_mut() {
            _ if this.pause.poll(cx).is_ready() => Poll::Ready(()),
            Some(limit) => poll_timer(limit, cx),
            None => Poll::Pending,
        }
    }
}
