//! The layer.

use tower_layer::Layer;

use super::{GrpcErrorClassifier, GrpcPolicy};

/// Turns gRPC statuses into errors and verdicts.
///
/// See the [module](super) for what it does and an example.
#[derive(Debug, Clone, Copy, Default)]
pub struct GrpcErrorClassifierLayer {
    policy: GrpcPolicy,
}

impl GrpcErrorClassifierLayer {
    /// Codes count as this policy says.
    pub fn new(policy: GrpcPolicy) -> Self {
        GrpcErrorClassifierLayer { policy }
    }

    /// What codes count as.
    pub fn policy(&self) -> &GrpcPolicy {
        &self.policy
    }
}

impl<S> Layer<S> for GrpcErrorClassifierLayer {
    type Service = GrpcErrorClassifier<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GrpcErrorClassifier::new(inner, self.policy)
    }
}
