//! The layer.

use tower_layer::Layer;

use super::{EndpointBreaker, EndpointBreakers};
use crate::call::ByFault;

/// Counts how calls to each endpoint end, for [`EndpointBreakers`]. It stands right below `LoadBalance`.
#[derive(Debug, Clone)]
pub struct EndpointBreakerLayer<C = ByFault> {
    breakers: EndpointBreakers,
    classify: C,
}

impl EndpointBreakerLayer {
    /// With these breakers, and the classifier [`ByFault`].
    pub fn new(breakers: EndpointBreakers) -> Self {
        EndpointBreakerLayer {
            breakers,
            classify: ByFault,
        }
    }
}

impl<C> EndpointBreakerLayer<C> {
    /// With another classifier; as [`CircuitBreakerLayer::classify`](crate::breaker::CircuitBreakerLayer::classify).
    ///
    /// Give it the one that the balancer has, such as a `StatusPolicy`, where statuses are turned into errors above.
    pub fn classify<D>(self, classify: D) -> EndpointBreakerLayer<D> {
        EndpointBreakerLayer {
            breakers: self.breakers,
            classify,
        }
    }

    /// The breakers.
    pub fn breakers(&self) -> &EndpointBreakers {
        &self.breakers
    }

    pub(super) fn classifier(&self) -> C
    where
        C: Clone,
    {
        self.classify.clone()
    }
}

impl<S, C: Clone> Layer<S> for EndpointBreakerLayer<C> {
    type Service = EndpointBreaker<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        EndpointBreaker::new(inner, self.clone())
    }
}
