//! The settings of a breaker, to be looked at.

use std::time::Duration;

use super::HystrixRelease;

/// What a [`Breaker`](super::Breaker) goes by. Of one that is not built yet, what is said of it so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    pub(super) volume: u32,
    pub(super) error_percent: Option<u32>,
    pub(super) slow_calls: Option<(Duration, u32)>,
    pub(super) consecutive_failures: Option<u32>,
    pub(super) last_outcomes: Option<u32>,
    pub(super) judges_window: bool,
    pub(super) sleep_window: Duration,
    pub(super) sleep_growth: Option<(f64, Duration)>,
    pub(super) sleep_jitter: u32,
    pub(super) window: Duration,
    pub(super) probes: u32,
    pub(super) probe_success_percent: u32,
    pub(super) cancelled_after: Option<Duration>,
    pub(super) shadow: bool,
    pub(super) hystrix: Option<(HystrixRelease, Duration)>,
}

impl BreakerSettings {
    /// How many outcomes the window must hold before the circuit can open.
    pub fn volume(&self) -> u32 {
        self.volume
    }

    /// The share of failures, in percent, at which the circuit opens. `None`: it does not open by that.
    pub fn error_percent(&self) -> Option<u32> {
        self.error_percent
    }

    /// How long a success may take without being slow, and the share of slow ones, in percent, at which the circuit opens.
    pub fn slow_calls(&self) -> Option<(Duration, u32)> {
        self.slow_calls
    }

    /// How many failures in a row open the circuit.
    pub fn consecutive_failures(&self) -> Option<u32> {
        self.consecutive_failures
    }

    /// How many outcomes the window of the last outcomes holds, if there is one.
    pub fn last_outcomes(&self) -> Option<u32> {
        self.last_outcomes
    }

    /// Are the shares of the rolling window of time judged?
    pub fn judges_window(&self) -> bool {
        self.judges_window
    }

    /// How long the circuit stays open before a probe may go out; the first time of a row, where sleep windows grow.
    pub fn sleep_window(&self) -> Duration {
        self.sleep_window
    }

    /// How many times as long each sleep window of a row is as the one before, and the longest that there is.
    pub fn sleep_growth(&self) -> Option<(f64, Duration)> {
        self.sleep_growth
    }

    /// By up to how many percent each sleep window is shortened at random.
    pub fn sleep_jitter(&self) -> u32 {
        self.sleep_jitter
    }

    /// How many probes go out at once.
    pub fn probes(&self) -> u32 {
        self.probes
    }

    /// How many percent of the probes must succeed.
    pub fn probe_success_percent(&self) -> u32 {
        self.probe_success_percent
    }

    /// The time after which a call that is given up counts as failed.
    pub fn cancelled_after(&self) -> Option<Duration> {
        self.cancelled_after
    }

    /// Is nothing rejected?
    pub fn is_shadow(&self) -> bool {
        self.shadow
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
