//! The layer.

use tower_layer::Layer;

use super::{Bulkhead, BulkheadService};

/// Puts a [`Bulkhead`] around a service.
///
/// All services made by it, and by other layers with the same bulkhead, share its slots. See the [module](super) for
/// an example.
#[derive(Debug, Clone)]
pub struct BulkheadLayer {
    bulkhead: Bulkhead,
}

impl BulkheadLayer {
    /// With this bulkhead.
    pub fn new(bulkhead: Bulkhead) -> Self {
        BulkheadLayer { bulkhead }
    }

    /// The bulkhead.
    pub fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }
}

impl<S> Layer<S> for BulkheadLayer {
    type Service = BulkheadService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BulkheadService::new(inner, self.bulkhead.clone())
    }
}
