//! The limits of a read timeout, in little room: they go along with each call.

use std::num::NonZeroU64;

use tokio::time::Duration;

/// A duration above zero, of at most ten years: the nanoseconds of 584 fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(NonZeroU64);

impl Limit {
    /// Of a duration that has been checked.
    pub(super) fn new(limit: Duration) -> Self {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Limit(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }

    #[inline]
    pub(super) fn get(self) -> Duration {
        Duration::from_nanos(self.0.get())
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) read: Limit,
    pub(super) body: Option<Limit>,
    pub(super) write: Option<Limit>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::LONGEST;

    #[test]
    fn every_limit_that_can_be_set_comes_out_as_it_went_in() {
        for limit in [Duration::from_nanos(1), Duration::new(1, 999_999_999), LONGEST] {
            assert_eq!(Limit::new(limit).get(), limit);
        }
    }
}
