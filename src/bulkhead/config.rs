//! The settings of a bulkhead.

use std::{sync::Arc, time::Duration};

use super::{Bulkhead, NAME, slots::Slots};
use crate::call::{
    ConfigError,
    config::{limit, name},
};

/// How long a call waits at most, where nothing is said.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Builds a [`Bulkhead`]. Made by [`Bulkhead::builder`].
///
/// Built as it is, it has the [defaults](super#defaults). Mistakes are found by [`build`](BulkheadBuilder::build).
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BulkheadBuilder {
    name: Arc<str>,
    max_concurrent: u32,
    max_waiting: u32,
    max_wait: Option<Duration>,
}

impl BulkheadBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        BulkheadBuilder {
            name,
            max_concurrent: 10,
            max_waiting: 0,
            max_wait: None,
        }
    }

    /// How many calls may be in flight at once; 10 by default. With 0 every call is turned away.
    ///
    /// Hystrix: `execution.isolation.semaphore.maxConcurrentRequests`, or the `coreSize` of a thread pool.
    pub fn max_concurrent(mut self, calls: u32) -> Self {
        self.max_concurrent = calls;
        self
    }

    /// How many further calls may wait for a slot; none by default, so that a full bulkhead turns calls away at once.
    ///
    /// Hystrix: the smaller one of a thread pool's `maxQueueSize` (−1: 0) and `queueSizeRejectionThreshold`.
    pub fn max_waiting(mut self, calls: u32) -> Self {
        self.max_waiting = calls;
        self
    }

    /// How long a call may wait for a slot; 1 s by default, above zero. It needs a
    /// [`max_waiting`](BulkheadBuilder::max_waiting).
    ///
    /// A call that has not got a slot by then is turned away. One whose deadline is nearer ends there. Hystrix has no
    /// such limit: what waits in the queue of a pool is ended by its execution timeout alone, so there give one
    /// that is not shorter than that.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// The bulkhead.
    ///
    /// # Errors
    ///
    /// The name is empty; the wait is zero, above [ten years](crate::call::LONGEST), or given although no call may wait.
    pub fn build(self) -> Result<Bulkhead, ConfigError> {
        name(NAME, "name", &self.name)?;
        let max_wait = limit(NAME, "max_wait", self.max_wait.unwrap_or(MAX_WAIT))?;
        if self.max_wait.is_some() && self.max_waiting == 0 {
            return Err(ConfigError::new(
                NAME,
                "max_waiting",
                0,
                "there is a max_wait, so say how many calls may wait, or leave it out",
            ));
        }
        let slots = Slots::new(self.max_concurrent, self.max_waiting);
        Ok(Bulkhead::with(self.name, slots, max_wait))
    }
}
