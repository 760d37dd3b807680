//! How long the pauses of a backoff are.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use http::StatusCode;
use tokio::time::Duration;

use super::FailedAttempt;
use crate::call::{Fault, FaultKind};

/// gRPC's RESOURCE_EXHAUSTED.
const GRPC_EXHAUSTED: i32 = 8;

/// How chance changes a pause, so that clients which failed together do not come back together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Jitter {
    /// Not at all.
    None,
    /// Drawn evenly from zero to the pause.
    #[default]
    Full,
    /// Half of the pause, and as much again drawn evenly.
    Equal,
    /// Drawn evenly from the base to three times the pause before, or to three times the base at first; at most the
    /// longest. No factor has a part in it.
    ///
    /// Source: "decorrelated jitter" in AWS' "Exponential Backoff And Jitter".
    Decorrelated,
}

/// A first pause and the longest one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) base: Duration,
    pub(super) max: Duration,
}

/// How the pauses of a call grow, and what chance makes of them.
#[derive(Debug, Clone)]
pub(super) struct Pauses {
    pub(super) scale: Scale,
    pub(super) factor: f64,
    pub(super) jitter: Jitter,
    /// The first pause is multiplied already, and each is cut to whole milliseconds.
    pub(super) as_feign: bool,
    /// What few policies have, in one place, so that the others are cheap to clone.
    pub(super) rare: Option<Arc<Rare>>,
}

#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Where chance comes from, for all clones. None: from the thread.
    pub(super) seed: Option<AtomicU64>,
    pub(super) throttled: Option<Scale>,
    pub(super) delay: Option<Delay>,
    pub(super) longest_asked_for: Option<Duration>,
}

impl Rare {
    pub(super) fn is_empty(&self) -> bool {
        self.seed.is_none()
            && self.throttled.is_none()
            && self.delay.is_none()
            && self.longest_asked_for.is_none()
    }
}

/// A function of the user's that says how long a pause is.
#[derive(Clone)]
pub(super) struct Delay(Arc<dyn Fn(&FailedAttempt<'_>) -> Duration + Send + Sync>);

impl Delay {
    pub(super) fn new(delay: impl Fn(&FailedAttempt<'_>) -> Duration + Send + Sync + 'static) -> Self {
        Delay(Arc::new(delay))
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delay")
    }
}

impl Pauses {
    pub(super) fn is_a_function(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.delay.is_some())
    }

    /// The longest wait that a server may ask for, if it is another than usual.
    pub(super) fn longest_asked_for(&self) -> Option<Duration> {
        self.rare.as_ref()?.longest_asked_for
    }

    fn throttled(&self) -> Option<Scale> {
        self.rare.as_ref()?.throttled
    }

    /// The longest pause there can be before this retry, the first of which is 1.
    pub(super) fn longest(&self, retry: u32) -> Duration {
        if self.is_a_function() {
            self.scale.max
        } else {
            self.grown(self.scale, retry)
        }
    }

    /// The same after a throttling answer, if that has pauses of its own.
    pub(super) fn longest_throttled(&self, retry: u32) -> Option<Duration> {
        self.throttled().map(|scale| self.grown(scale, retry))
    }

    /// The longest there can be, whatever the attempts before ended with.
    pub(super) fn longest_of_all(&self, retry: u32) -> Duration {
        let Some(throttled) = self.throttled() else {
            return self.longest(retry);
        };
        if self.jitter == Jitter::Decorrelated {
            // Each grows from the one before, on whichever scale that was.
            let base = self.scale.base.max(throttled.base);
            let max = self.scale.max.max(throttled.max);
            return self.grown(Scale { base, max }, retry);
        }
        self.longest(retry).max(self.grown(throttled, retry))
    }

    /// The pause after this attempt, as far as it is not the server that asks for one.
    pub(super) fn after(&self, failed: &FailedAttempt<'_>) -> Duration {
        let rare = self.rare.as_deref();
        if let Some(delay) = rare.and_then(|rare| rare.delay.as_ref()) {
            return (delay.0)(failed).min(self.scale.max);
        }
        let throttled = self.throttled().filter(|_| is_throttled(&failed.fault()));
        let scale = throttled.unwrap_or(self.scale);
        let retry = u32::try_from(failed.attempts()).unwrap_or(u32::MAX);
        self.jittered(scale, self.grown(scale, retry), failed.paused())
    }

    fn grown(&self, scale: Scale, retry: u32) -> Duration {
        let retry = retry.max(1);
        let power = i32::try_from(retry).unwrap_or(i32::MAX);
        let (factor, power) = match self.jitter {
            Jitter::Decorrelated => (3.0, power),
            _ if self.as_feign => (self.factor, power),
            _ => (self.factor, power - 1),
        };
        if scale.base.is_zero() {
            // Zero times infinity is no number.
            return Duration::ZERO;
        }
        let (unit, base) = if self.as_feign {
            (1_000_000_u32, scale.base.as_nanos() as f64 / 1e6)
        } else {
            (1, scale.base.as_nanos() as f64)
        };
        let pause = base * factor.powi(power);
        if pause < scale.max.as_nanos() as f64 / f64::from(unit) {
            // At most the cap, ten years, which a u64 holds in nanoseconds.
            Duration::from_nanos(pause as u64 * u64::from(unit)).min(scale.max)
        } else {
            scale.max
        }
    }

    /// What chance makes of a pause that comes after another one.
    pub(super) fn jittered(&self, scale: Scale, pause: Duration, before: Duration) -> Duration {
        match self.jitter {
            Jitter::None => pause,
            Jitter::Full => self.part_of(pause),
            Jitter::Equal => pause / 2 + self.part_of(pause - pause / 2),
            Jitter::Decorrelated => {
                // The one before may have been on another scale, or the server's wish.
                let before = before.clamp(scale.base, scale.max);
                let span = before.saturating_mul(3).saturating_sub(scale.base);
                (scale.base + self.part_of(span)).min(scale.max)
            }
        }
    }

    fn part_of(&self, pause: Duration) -> Duration {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((nanos as f64 * self.draw()) as u64).min(pause)
    }

    /// From 0 to 1, without 1.
    fn draw(&self) -> f64 {
        match self.rare.as_ref().and_then(|rare| rare.seed.as_ref()) {
            None => fastrand::f64(),
            Some(seed) => fastrand::Rng::with_seed(seed.fetch_add(1, Relaxed)).f64(),
        }
    }
}

/// Does the server say that there are too many calls?
fn is_throttled(fault: &Fault) -> bool {
    match fault.kind() {
        FaultKind::Status(StatusCode::TOO_MANY_REQUESTS) | FaultKind::Grpc(GRPC_EXHAUSTED) => true,
        FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE) => fault.retry_after().is_some(),
        _ => false,
    }
}
