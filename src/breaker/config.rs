//! The settings of a breaker.

use std::{fmt, sync::Arc, time::Duration};

use super::{Breaker, Transition, engine::Settings, event::Hook, handle::lanes, judge::Judge};
use crate::call::{
    ConfigError,
    config::{at_least_one, limit, name, percent},
};

const LAYER: &str = "CircuitBreaker";

/// Builds a [`Breaker`]. Made by [`Breaker::builder`].
///
/// Built as it is, it has the [defaults](super#defaults). Mistakes are found by [`build`](BreakerBuilder::build).
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BreakerBuilder {
    name: Arc<str>,
    volume: u32,
    error_percent: u32,
    sleep_window: Duration,
    window: Duration,
    probe_lease: Duration,
    enabled: bool,
    hook: Option<Hook>,
}

/// As many outcomes as one bucket of a window counts.
const LARGEST_VOLUME: u32 = (1 << 24) - 1;

/// A millisecond for each bucket.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);

impl BreakerBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        BreakerBuilder {
            name,
            volume: 20,
            error_percent: 50,
            sleep_window: Duration::from_secs(5),
            window: Duration::from_secs(10),
            probe_lease: Duration::from_secs(30),
            enabled: true,
            hook: None,
        }
    }

    /// How many outcomes the window must hold before the circuit can open; 20 by default, at least 1.
    ///
    /// Hystrix: `circuitBreaker.requestVolumeThreshold`. With fewer calls than this in a window the circuit never
    /// opens, however many of them fail.
    pub fn volume(mut self, outcomes: u32) -> Self {
        self.volume = outcomes;
        self
    }

    /// The share of failures, in percent, at which the circuit opens; 50 by default, 0 to 100.
    ///
    /// Hystrix: `circuitBreaker.errorThresholdPercentage`. The share is cut to a whole percentage before it is
    /// compared, as Hystrix does, and reaching the threshold is enough: 10 of 20 open at 50, 100 of 201 do not. At 0
    /// the circuit opens by volume alone.
    pub fn error_percent(mut self, percent: u32) -> Self {
        self.error_percent = percent;
        self
    }

    /// How long the circuit stays open before a probe may go out; 5 s by default, above zero.
    ///
    /// Hystrix: `circuitBreaker.sleepWindowInMilliseconds`. Rounded up to whole milliseconds. The probe may go out
    /// as soon as the window has ended; Hystrix wants one millisecond more.
    pub fn sleep_window(mut self, window: Duration) -> Self {
        self.sleep_window = window;
        self
    }

    /// The length of the rolling window; 10 s by default, above zero.
    ///
    /// Hystrix: `metrics.rollingStats.timeInMilliseconds`. It consists of 10 buckets, the running one included, so an
    /// outcome counts for at least nine tenths of this and never longer than this.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// How long a probe may take; 30 s by default, above zero.
    ///
    /// One that has not ended by then is given up: the next call is a probe in its place, and its own outcome does
    /// not count any more. Give more than the longest time that a call below this layer can take. Rounded up to whole
    /// milliseconds. Hystrix has no such limit, and so can be stuck half-open for good.
    pub fn probe_lease(mut self, lease: Duration) -> Self {
        self.probe_lease = lease;
        self
    }

    /// Starts switched off: nothing is rejected or counted until [`Breaker::set_enabled`].
    ///
    /// Hystrix: `circuitBreaker.enabled=false`.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    /// Called once for each transition, in their order; a second hook replaces the first.
    ///
    /// It runs with no lock held, on the thread whose call changed the state or, where threads change it at the same
    /// time, on one of them; it may use the handle. It should be quick: a call waits for it. A `tracing` event at the
    /// level `INFO` is made for each transition in any case.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
    /// use tower_outbound::{breaker::{Breaker, Force}, call::CircuitState};
    ///
    /// let opened = Arc::new(AtomicU32::new(0));
    /// let seen = opened.clone();
    /// let breaker = Breaker::builder("orders")
    ///     .on_transition(move |transition| {
    ///         if transition.to() == CircuitState::ForcedOpen {
    ///             seen.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     })
    ///     .build()?;
    /// breaker.force(Force::Open);
    /// breaker.force(Force::Open); // no transition
    /// assert_eq!(opened.load(Ordering::Relaxed), 1);
    /// # Ok::<_, tower_outbound::call::ConfigError>(())
    /// ```
    pub fn on_transition(mut self, hook: impl Fn(&Transition) + Send + Sync + 'static) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// The breaker.
    ///
    /// # Errors
    ///
    /// The name is empty, the volume is 0 or above 16,777,215, the percentage is above 100, the window is below 10 ms, or
    /// a duration is zero or above [ten years](crate::call::LONGEST).
    pub fn build(self) -> Result<Breaker, ConfigError> {
        name(LAYER, "name", &self.name)?;
        let volume = at_least_one(LAYER, "volume", self.volume)?;
        if volume > LARGEST_VOLUME {
            let fix = format!("give at most {LARGEST_VOLUME}; a window does not count further in a bucket");
            return Err(ConfigError::new(LAYER, "volume", volume, fix));
        }
        let window = limit(LAYER, "window", self.window)?;
        if window < SHORTEST_WINDOW {
            let fix = format!("give at least {SHORTEST_WINDOW:?}; it has ten buckets");
            return Err(ConfigError::new(LAYER, "window", format_args!("{window:?}"), fix));
        }
        percent(LAYER, "error_percent", self.error_percent.into())?;
        let settings = Settings {
            judge: Judge::new(volume, self.error_percent),
            window,
            sleep_window: limit(LAYER, "sleep_window", self.sleep_window)?,
            probe_lease: limit(LAYER, "probe_lease", self.probe_lease)?,
            enabled: self.enabled,
            lanes: lanes(),
        };
        Ok(Breaker::with(self.name, settings, self.hook))
    }
}

impl fmt::Debug for BreakerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerBuilder")
            .field("name", &self.name)
            .field("volume", &self.volume)
            .field("error_percent", &self.error_percent)
            .field("sleep_window", &self.sleep_window)
            .field("window", &self.window)
            .field("probe_lease", &self.probe_lease)
            .field("enabled", &self.enabled)
            .field("on_transition", &self.hook.is_some())
            .finish()
    }
}
