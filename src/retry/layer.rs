//! The layer, for any policy.

use tower_layer::Layer;

use super::{RetryPolicy, RetryService};
use crate::call::{AnyAnswer, RetryBudget};

/// Puts a retry loop with a policy on a service.
///
/// It is used by the names of its policies: [`BackoffRetryLayer`](super::BackoffRetryLayer) and
/// [`IdempotentRetryLayer`](super::IdempotentRetryLayer).
#[derive(Debug, Clone)]
pub struct RetryLayer<P, A = AnyAnswer> {
    pub(super) policy: P,
    pub(super) reader: A,
    pub(super) budget: Option<RetryBudget>,
}

impl<P: RetryPolicy> RetryLayer<P, AnyAnswer> {
    /// Retries errors by this policy, without a budget.
    pub fn new(policy: P) -> Self {
        RetryLayer {
            policy,
            reader: AnyAnswer,
            budget: None,
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

    /// Answers that this reader finds a fault in are put to the policy as well. Default: no answer is.
    ///
    /// When the policy gives up, the answer is handed on as it is.
    #[must_use]
    pub fn read_answers<B>(self, reader: B) -> RetryLayer<P, B> {
        RetryLayer {
            policy: self.policy,
            reader,
            budget: self.budget,
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
        }
    }
}
