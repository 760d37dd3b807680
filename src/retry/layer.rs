//! The layer, for any policy.

use tower_layer::Layer;

use super::{RetryPolicy, RetryService};
use crate::call::{AnyAnswer, CallScope, ConfigError, RetryBudget, config};

/// Puts a retry loop with a policy on a service.
///
/// It is used by the names of its policies: [`BackoffRetryLayer`](super::BackoffRetryLayer) and
/// [`IdempotentRetryLayer`](super::IdempotentRetryLayer).
#[derive(Debug, Clone)]
pub struct RetryLayer<P, A = AnyAnswer> {
    pub(super) policy: P,
    pub(super) reader: A,
    pub(super) budget: Option<RetryBudget>,
    pub(super) attempts_in_call: u32,
}

impl<P: RetryPolicy> RetryLayer<P, AnyAnswer> {
    /// Retries errors by this policy, without a budget.
    pub fn new(policy: P) -> Self {
        RetryLayer {
            policy,
            reader: AnyAnswer,
            budget: None,
            attempts_in_call: CallScope::ANY_NUMBER,
        }
    }
}

impl<P, A> RetryLayer<P, A> {
    /// Each retry costs a token of this budget. Give clones of one budget to all layers that retry calls to the
    /// same dependency. Default: none.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// How many attempts a whole call takes at most, the first included, over this layer and all others of the call
    /// that retry: where layers nest, their attempts multiply. Counted is each sending of the request. Where several
    /// layers say a number the smallest holds. A layer whose policy never retries says none. Default: no limit.
    ///
    /// What is not made for it is a [`CallAttemptsUsedUp`](crate::call::NotRetried::CallAttemptsUsedUp) in the trail.
    /// Layers below a buffer, or in another task, are another call to it.
    ///
    /// # Errors
    ///
    /// If it is zero.
    ///
    /// ```
    /// use tower::ServiceBuilder;
    /// use tower_outbound::retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer};
    ///
    /// // 2 x 3 = 6, but for the limit.
    /// let layers = ServiceBuilder::new()
    ///     .layer(BackoffRetryLayer::new(Backoff::default()).attempts_in_call(4)?)
    ///     .layer(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(2)));
    /// # let _ = layers;
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn attempts_in_call(mut self, attempts: u32) -> Result<Self, ConfigError> {
        self.attempts_in_call = config::at_least_one("RetryLayer", "attempts_in_call", attempts)?;
        Ok(self)
    }

    /// Answers that this reader finds a fault in are put to the policy as well. Default: no answer is.
    ///
    /// When the policy gives up, the answer is handed on as it is.
    #[must_use]
    pub fn read_answers<B>(self, reader: B) -> RetryLayer<P, B> {
        RetryLayer {
            policy: self.policy,
            reader,
            budget: self.budget,
            attempts_in_call: self.attempts_in_call,
        }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

impl<S, P: Clone, A: Clone> Layer<S> for RetryLayer<P, A> {
    type Service = RetryService<S, P, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryService {
            inner,
            policy: self.policy.clone(),
            reader: self.reader.clone(),
            budget: self.budget.clone(),
            attempts_in_call: self.attempts_in_call,
        }
    }
}
