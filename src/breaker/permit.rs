//! The permission to make one call.

use std::sync::Arc;

use super::{shard::Shard, word::Word};
use crate::call::Verdict;

/// The permission to make one call, given by [`Breaker::admit`](super::Breaker::admit).
///
/// It is consumed by the verdict on the call, so an outcome is told once. Dropping it says that the call was given
/// up: that counts neither as a success nor as a failure, and a probe is handed back, so that the next call is a
/// probe at once. By choice a call that was given up after a long time
/// [counts as failed](super::BreakerBuilder::cancelled_after).
///
/// A permit counts only for the stretch of time in which it was given. If the circuit has opened, closed or been
/// reset since, settling it changes nothing but the number of [stale](super::Counts::stale) outcomes. With
/// [`hystrix`](super::BreakerBuilder::hystrix) it counts until the circuit has closed or been reset, but decides nothing
/// unless it is the probe.
///
/// ```compile_fail,E0382
/// # use tower_outbound::{breaker::Breaker, call::Verdict};
/// # let breaker = Breaker::new("orders").unwrap();
/// let permit = breaker.admit().unwrap();
/// permit.settle(Verdict::Success);
/// permit.settle(Verdict::Failure); // a call ends once
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit says that the call was given up"]
pub struct Permit {
    shard: Arc<Shard>,
    /// The word that it was given under; `SETTLED` once there is nothing left to give back.
    word: Word,
    /// When the call began, where that is of interest.
    began: u64,
}

/// No word is this: its time is centuries ahead.
const SETTLED: Word = Word(u64::MAX);

impl Permit {
    #[inline]
    pub(super) fn new(shard: Arc<Shard>, word: Word, began: u64) -> Self {
        Permit { shard, word, began }
    }

    /// Is this call a probe? One alone decides by its outcome, [several](super::BreakerBuilder::probes) do together. With Hystrix 1.5.18 there may be several, as each sleep
    /// window lets one through.
    pub fn is_probe(&self) -> bool {
        self.word.is_probe() || self.word.is_test()
    }

    /// Tells how the call ended.
    #[inline]
    pub fn settle(mut self, verdict: Verdict) {
        let word = std::mem::replace(&mut self.word, SETTLED);
        self.shard.settle(word, self.began, verdict);
    }

    /// At a time that the test chooses.
    #[cfg(test)]
    pub(super) fn settle_at(mut self, verdict: Verdict, now: impl Fn() -> u64) {
        let word = std::mem::replace(&mut self.word, SETTLED);
        self.shard.settle_at(word, self.began, verdict, now);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if self.word != SETTLED {
            self.shard.cancel(self.word, self.began);
        }
    }
}
