//! The settings of a breaker, to be looked at.

use std::time::Duration;

use super::{HystrixRelease, engine};

/// What a [`Breaker`](super::Breaker) goes by. Of one that is not built yet, what is said of it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    pub(super) volume: u32,
    pub(super) error_percent: u32,
    pub(super) sleep_window: Duration,
    pub(super) window: Duration,
    pub(super) hystrix: Option<(HystrixRelease, Duration)>,
}

impl BreakerSettings {
    pub(super) fn of(settings: &engine::Settings) -> Self {
        let (volume, error_percent) = settings.judge.bounds();
        BreakerSettings {
            volume,
            error_percent,
            sleep_window: settings.sleep_window,
            window: settings.window,
            hystrix: settings.hystrix,
        }
    }

    /// How many outcomes the window must hold before the circuit can open.
    pub fn volume(&self) -> u32 {
        self.volume
    }

    /// The share of failures, in percent, at which the circuit opens.
    pub fn error_percent(&self) -> u32 {
        self.error_percent
    }

    /// How long the circuit stays open before a probe may go out.
    pub fn sleep_window(&self) -> Duration {
        self.sleep_window
    }

    /// The length of the rolling window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// The release of Hystrix that it judges as. `None`: by our own rules.
    pub fn hystrix(&self) -> Option<HystrixRelease> {
        self.hystrix.map(|(release, _)| release)
    }

    /// How often the health figures are brought up to date. `None`: they always are.
    pub fn health_snapshot(&self) -> Option<Duration> {
        self.hystrix.map(|(_, interval)| interval)
    }
}
