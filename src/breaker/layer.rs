//! The layer.

use tower_layer::Layer;

use super::{Breaker, CircuitBreaker};
use crate::call::ByFault;

/// Puts a [`Breaker`] around a service.
///
/// All services made by it, and by other layers with the same breaker, share one circuit. See the
/// [module](super) for an example.
#[derive(Debug, Clone)]
pub struct CircuitBreakerLayer<C = ByFault> {
    breaker: Breaker,
    classify: C,
}

impl CircuitBreakerLayer {
    /// With this breaker, and the classifier [`ByFault`]: answers are successes, errors count as
    /// [`Verdict::of`](crate::call::Verdict::of) says.
    pub fn new(breaker: Breaker) -> Self {
        CircuitBreakerLayer {
            breaker,
            classify: ByFault,
        }
    }
}

impl<C> CircuitBreakerLayer<C> {
    /// With another classifier, such as a `StatusPolicy` or a closure.
    ///
    /// It is cloned for each call, so it should be cheap to clone. It runs once the call has ended, with no lock held.
    ///
    /// A closure needs its types written out. For a client with answers of its own, as reqwest has:
    ///
    /// ```
    /// use tower_outbound::{
    ///     breaker::{Breaker, CircuitBreakerLayer},
    ///     call::{ErrorRef, Verdict},
    /// };
    ///
    /// struct Answer {
    ///     code: u16,
    /// }
    ///
    /// let layer = CircuitBreakerLayer::new(Breaker::new("orders")?).classify(
    ///     |outcome: Result<&Answer, ErrorRef<'_>>| match outcome {
    ///         Ok(answer) if answer.code >= 500 => Verdict::Failure,
    ///         Ok(_) => Verdict::Success,
    ///         Err(error) => Verdict::of(error),
    ///     },
    /// );
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn classify<D>(self, classify: D) -> CircuitBreakerLayer<D> {
        CircuitBreakerLayer {
            breaker: self.breaker,
            classify,
        }
    }

    /// The breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }
}

impl<S, C: Clone> Layer<S> for CircuitBreakerLayer<C> {
    type Service = CircuitBreaker<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker::new(inner, self.breaker.clone(), self.classify.clone())
    }
}
