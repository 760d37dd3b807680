//! The settings of a breaker.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    Breaker, BreakerSettings, HystrixRelease, Transition,
    engine::{Settings, millis_up, nanos},
    event::Hook,
    handle::lanes,
    judge::Judge,
};
use crate::call::{
    ConfigError,
    config::{at_least_one, limit, name, pause, percent},
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
    probe_lease: Option<Duration>,
    hystrix: Option<HystrixRelease>,
    health_snapshot: Duration,
    enabled: bool,
    hook: Option<Hook>,
}

/// As many outcomes as one bucket of a window counts.
const LARGEST_VOLUME: u32 = (1 << 24) - 1;

/// A millisecond for each bucket.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);

const LEASE: Duration = Duration::from_secs(30);
/// Hystrix has none, so it only ends what would last for good.
const LEASE_OF_HYSTRIX: Duration = Duration::from_secs(60 * 60);

/// Each is a few bytes for each thread, and is read at each health tick.
const MOST_SNAPSHOTS: u128 = 1_000;

impl BreakerBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        BreakerBuilder {
            name,
            volume: 20,
            error_percent: 50,
            sleep_window: Duration::from_secs(5),
            window: Duration::from_secs(10),
            probe_lease: None,
            hystrix: None,
            health_snapshot: Duration::from_millis(500),
            enabled: true,
            hook: None,
        }
    }

    /// How many outcomes the window must hold before the circuit can open; 20 by default, at least 1.
    ///
    /// Hystrix: `circuitBreaker.requestVolumeThreshold`. With fewer calls than this in a window the circuit never
    /// opens, however many of them fail. With [`hystrix`](BreakerBuilder::hystrix) it may be 0.
    pub fn volume(mut self, outcomes: u32) -> Self {
        self.volume = outcomes;
        self
    }

    /// The share of failures, in percent, at which the circuit opens; 50 by default, 0 to 100.
    ///
    /// Hystrix: `circuitBreaker.errorThresholdPercentage`. The share is cut to a whole percentage before it is
    /// compared, as Hystrix does, and reaching the threshold is enough: 10 of 20 open at 50, 100 of 201 do not. At 0
    /// the circuit opens by volume alone. With [`hystrix`](BreakerBuilder::hystrix) it may be above 100: the circuit
    /// then never opens.
    pub fn error_percent(mut self, percent: u32) -> Self {
        self.error_percent = percent;
        self
    }

    /// How long the circuit stays open before a probe may go out; 5 s by default, above zero.
    ///
    /// Hystrix: `circuitBreaker.sleepWindowInMilliseconds`. Rounded up to whole milliseconds. The probe may go out
    /// as soon as the window has ended; Hystrix wants one millisecond more, and so does
    /// [`hystrix`](BreakerBuilder::hystrix), where it may be zero.
    pub fn sleep_window(mut self, window: Duration) -> Self {
        self.sleep_window = window;
        self
    }

    /// The length of the rolling window; 10 s by default, above zero.
    ///
    /// Hystrix: `metrics.rollingStats.timeInMilliseconds`. It consists of 10 buckets, the running one included, so an
    /// outcome counts for at least nine tenths of this and never longer than this.
    ///
    /// With [`hystrix`](BreakerBuilder::hystrix) it consists of as many whole
    /// [health snapshots](BreakerBuilder::health_snapshot) as fit in, and the running one is not among them.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// How long a probe may take; 30 s by default, above zero. With [`hystrix`](BreakerBuilder::hystrix) 1 h.
    ///
    /// One that has not ended by then is given up: the next call is a probe in its place, and its own outcome does
    /// not count any more. Give more than the longest time that a call below this layer can take. Rounded up to whole
    /// milliseconds. Hystrix has no such limit, and so can be stuck half-open for good. For 1.5.18 it means nothing, as
    /// another test goes out after the next sleep window.
    pub fn probe_lease(mut self, lease: Duration) -> Self {
        self.probe_lease = Some(lease);
        self
    }

    /// Judges as this release of Hystrix does, in the place of [our own rules](super#states).
    ///
    /// The circuit opens on [health ticks](BreakerBuilder::health_snapshot) and not by each outcome, and the sleep
    /// window has to be over by a millisecond. See the [states of each release](super#states-of-hystrix), and
    /// [where they differ](super#what-differs-from-hystrix) from Hystrix. What counts as a failure is for the classifier
    /// to say: [`HystrixVerdicts`](super::HystrixVerdicts).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{
    ///     breaker::{Breaker, HystrixRelease},
    ///     call::{CircuitState, Verdict},
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let breaker = Breaker::builder("orders").hystrix(HystrixRelease::V1_5_12).build()?;
    /// for _ in 0..20 {
    ///     breaker.admit()?.settle(Verdict::Failure);
    /// }
    /// assert_eq!(breaker.state(), CircuitState::Closed); // no health tick has seen them
    ///
    /// tokio::time::advance(Duration::from_millis(500)).await;
    /// assert_eq!(breaker.state(), CircuitState::Open);
    /// assert_eq!(breaker.health().error_percent(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hystrix(mut self, release: HystrixRelease) -> Self {
        self.hystrix = Some(release);
        self
    }

    /// How often the health figures are brought up to date; 500 ms by default. Without
    /// [`hystrix`](BreakerBuilder::hystrix) it means nothing.
    ///
    /// Hystrix: `metrics.healthSnapshot.intervalInMilliseconds`. Rounded up to whole milliseconds. The rolling window
    /// must hold 1 to 1,000 of them.
    pub fn health_snapshot(mut self, interval: Duration) -> Self {
        self.health_snapshot = interval;
        self
    }

    /// Starts switched off: nothing is rejected or counted until [`Breaker::set_enabled`]. With
    /// [`hystrix`](BreakerBuilder::hystrix) its figures go on, as Hystrix's do.
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

    /// What is said so far. Nothing of it is checked.
    pub fn settings(&self) -> BreakerSettings {
        BreakerSettings {
            volume: self.volume,
            error_percent: self.error_percent,
            sleep_window: self.sleep_window,
            window: self.window,
            hystrix: self.hystrix.map(|release| (release, self.health_snapshot)),
        }
    }

    /// The breaker.
    ///
    /// # Errors
    ///
    /// The name is empty, the volume is 0 or above 16,777,215, the percentage is above 100, the window is below 10 ms, or
    /// a duration is zero or above [ten years](crate::call::LONGEST). With [`hystrix`](BreakerBuilder::hystrix) volume and
    /// sleep window may be 0 and the percentage above 100, and the window must hold 1 to 1,000 health snapshots.
    pub fn build(self) -> Result<Breaker, ConfigError> {
        name(LAYER, "name", &self.name)?;
        if self.volume > LARGEST_VOLUME {
            let fix = format!("give at most {LARGEST_VOLUME}; a window does not count further in a bucket");
            return Err(ConfigError::new(LAYER, "volume", self.volume, fix));
        }
        let window = limit(LAYER, "window", self.window)?;
        let (sleep_window, hystrix) = match self.hystrix {
            None => (self.check_ours()?, None),
            Some(release) => {
                let interval = self.check_snapshots()?;
                (
                    pause(LAYER, "sleep_window", self.sleep_window)?,
                    Some((release, interval)),
                )
            }
        };
        let lease = if hystrix.is_some() {
            LEASE_OF_HYSTRIX
        } else {
            LEASE
        };
        let settings = Settings {
            judge: Judge::new(self.volume, self.error_percent),
            window,
            sleep_window,
            probe_lease: limit(LAYER, "probe_lease", self.probe_lease.unwrap_or(lease))?,
            enabled: self.enabled,
            hystrix,
            lanes: lanes(),
        };
        Ok(Breaker::with(self.name, settings, self.hook))
    }

    /// What Hystrix would take, and we do not. The sleep window.
    fn check_ours(&self) -> Result<Duration, ConfigError> {
        at_least_one(LAYER, "volume", self.volume)?;
        if self.window < SHORTEST_WINDOW {
            let fix = format!("give at least {SHORTEST_WINDOW:?}; it has ten buckets");
            return Err(ConfigError::new(
                LAYER,
                "window",
                format_args!("{:?}", self.window),
                fix,
            ));
        }
        percent(LAYER, "error_percent", self.error_percent.into())?;
        limit(LAYER, "sleep_window", self.sleep_window)
    }

    /// The interval of the health snapshots, in whole milliseconds.
    fn check_snapshots(&self) -> Result<Duration, ConfigError> {
        let interval = limit(LAYER, "health_snapshot", self.health_snapshot)?;
        let interval = Duration::from_millis(millis_up(nanos(interval)));
        let snapshots = self.window.as_millis() / interval.as_millis();
        if (1..=MOST_SNAPSHOTS).contains(&snapshots) {
            return Ok(interval);
        }
        let fix = format!(
            "the window of {:?} would hold {snapshots} of them; give an interval that fits in 1 to {MOST_SNAPSHOTS} times",
            self.window
        );
        let value = format_args!("{:?}", self.health_snapshot);
        Err(ConfigError::new(LAYER, "health_snapshot", value, fix))
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
            .field("hystrix", &self.hystrix)
            .field("health_snapshot", &self.health_snapshot)
            .field("enabled", &self.enabled)
            .field("on_transition", &self.hook.is_some())
            .finish()
    }
}
