//! What a breaker tells of its figures.

use super::judge;

/// The health figures that a circuit is judged by: how many outcomes, and how many of them were failures.
///
/// Told by [`Breaker::health`](super::Breaker::health).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Health {
    pub(super) successes: u64,
    pub(super) failures: u64,
}

impl Health {
    pub(super) fn successes(&self) -> u64 {
        self.successes
    }

    /// Outcomes: what is compared with the volume.
    pub fn total(&self) -> u64 {
        self.successes + self.failures
    }

    /// Failures among them.
    pub fn errors(&self) -> u64 {
        self.failures
    }

    /// The share of failures in whole percent, cut as Hystrix does; 0 where there is no outcome.
    pub fn error_percent(&self) -> u64 {
        judge::error_percent(self.successes, self.failures)
    }
}

/// What a breaker has counted.
///
/// Successes and failures are those of the rolling window, the running bucket included; the other numbers are totals
/// since the breaker was built. The numbers are read one after the other, while calls go on, so they may be a few calls apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    pub(super) successes: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
    pub(super) rejected: u64,
    pub(super) would_reject: u64,
    pub(super) ignored: u64,
    pub(super) cancelled: u64,
    pub(super) stale: u64,
}

impl Counts {
    /// Successes in the window. The success of a probe is not among them: it empties the window.
    pub fn successes(&self) -> u64 {
        self.successes
    }

    /// Failures in the window. The failure of a probe is not among them: it decides alone.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Successes in the window that took longer than the limit of [`slow_calls`](super::BreakerBuilder::slow_calls); 0
    /// without such a limit. They are among the successes.
    pub fn slow(&self) -> u64 {
        self.slow
    }

    /// All outcomes in the window: what is compared with the volume.
    pub fn total(&self) -> u64 {
        self.successes + self.failures
    }

    /// The share of failures in the window in whole percent, cut as Hystrix does; 0 in an empty window.
    pub fn error_percent(&self) -> u64 {
        judge::error_percent(self.successes, self.failures)
    }

    /// Calls that were turned away. They are neither successes nor failures.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Calls that would have been turned away, had the breaker not been in [shadow
    /// mode](super::BreakerBuilder::shadow).
    pub fn would_reject(&self) -> u64 {
        self.would_reject
    }

    /// Outcomes with the verdict [`Ignored`](crate::call::Verdict::Ignored).
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Calls that were given up before they had an outcome: dropped by the caller, or ended by a panic. Those that
    /// [count as failed](super::BreakerBuilder::cancelled_after) are not among them.
    pub fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Outcomes that came too late to count: since the call was admitted the circuit had opened, closed or been
    /// reset, or the lease of the probe had ended.
    pub fn stale(&self) -> u64 {
        self.stale
    }
}
