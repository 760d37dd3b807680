//! The settings of a breaker.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use super::{
    Breaker, BreakerSettings, HystrixRelease, Transition,
    engine::{More, Settings, millis_up, nanos},
    event::Hook,
    judge::{Judge, LONGEST_RUN},
    shard::lanes,
    sleep::Growth,
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
    error_percent: Option<u32>,
    slow_calls: Option<(Duration, u32)>,
    consecutive_failures: Option<u32>,
    last_outcomes: Option<u32>,
    judges_window: bool,
    sleep_window: Duration,
    sleep_growth: Option<(f64, Duration)>,
    sleep_jitter: u32,
    seed: Option<u64>,
    window: Duration,
    probes: u32,
    probe_success_percent: u32,
    cancelled_after: Option<Duration>,
    shadow: bool,
    lanes: Option<usize>,
    probe_lease: Option<Duration>,
    hystrix: Option<HystrixRelease>,
    health_snapshot: Duration,
    enabled: bool,
    hook: Option<Hook>,
}

/// As many outcomes as one bucket of a window counts.
const LARGEST_VOLUME: u32 = (1 << 24) - 1;

/// 800 kB.
const MOST_OUTCOMES: u32 = 100_000;
const MOST_PROBES: u32 = 1_000;

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
            error_percent: Some(50),
            slow_calls: None,
            consecutive_failures: None,
            last_outcomes: None,
            judges_window: true,
            sleep_window: Duration::from_secs(5),
            sleep_growth: None,
            sleep_jitter: 0,
            seed: None,
            window: Duration::from_secs(10),
            probes: 1,
            probe_success_percent: 100,
            cancelled_after: None,
            shadow: false,
            lanes: None,
            probe_lease: None,
            hystrix: None,
            health_snapshot: Duration::from_millis(500),
            enabled: true,
            hook: None,
        }
    }

    /// How many outcomes the window must hold before the circuit can open; 20 by default, 1 to
    /// 16,777,215.
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
        self.error_percent = Some(percent);
        self
    }

    /// The circuit does not open by the share of failures, but by the other rules that are set.
    pub fn without_error_percent(mut self) -> Self {
        self.error_percent = None;
        self
    }

    /// Opens after so many failures with no success in between as well; no such rule by default, 1 to
    /// 1,048,575.
    ///
    /// The volume does not matter for it, nor the time that they take. Ignored outcomes and calls that were given up
    /// neither count nor end the row.
    ///
    /// ```
    /// use tower_outbound::{breaker::Breaker, call::{CircuitState, Verdict}};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let breaker = Breaker::builder("orders").consecutive_failures(5).build()?;
    /// for _ in 0..5 {
    ///     breaker.admit()?.settle(Verdict::Failure);
    /// }
    /// assert_eq!(breaker.state(), CircuitState::Open);
    /// # Ok(())
    /// # }
    /// ```
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.consecutive_failures = Some(failures);
        self
    }

    /// Opens if too many calls are slow as well: a success that took longer than `limit` is slow, and `percent` of all
    /// outcomes is too many. No such rule by default; a limit above zero, 1 to 100 percent.
    ///
    /// The [volume](BreakerBuilder::volume) must be reached, and the share is cut and compared as that of
    /// [failures](BreakerBuilder::error_percent) is. A slow success is a success to all other rules. A call takes as
    /// long as its permit is held: from when it is admitted until its outcome is told. The clock is read once more for
    /// each call.
    pub fn slow_calls(mut self, limit: Duration, percent: u32) -> Self {
        self.slow_calls = Some((limit, percent));
        self
    }

    /// Judges the shares of failures and of slow calls among the last so many outcomes as well, however old they are; no
    /// such window by default, 1 to 100,000.
    ///
    /// The volume that it must hold is [`volume`](BreakerBuilder::volume), or all of it where it is shorter. It takes 8
    /// bytes for each outcome, allocated when the breaker is built.
    pub fn last_outcomes(mut self, outcomes: u32) -> Self {
        self.last_outcomes = Some(outcomes);
        self
    }

    /// The shares in the rolling window of time open nothing; those of the [last
    /// outcomes](BreakerBuilder::last_outcomes) do.
    ///
    /// The [counts](super::Counts) are still those of the window of time.
    pub fn without_window(mut self) -> Self {
        self.judges_window = false;
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

    /// Sleep windows grow: each is `factor` times as long as the one before, up to `longest`. By default they do not.
    ///
    /// The factor is at least 1, and the longest at least the [sleep window](BreakerBuilder::sleep_window), which is how
    /// long the first of a row is. A row goes on when a probe fails, and also when the circuit opens again before it
    /// has been closed for as long as its [window](BreakerBuilder::window): a dependency that comes back for a moment
    /// only is not well yet. It ends when the circuit has been closed for longer, is reset or is switched on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::breaker::Breaker;
    ///
    /// let breaker = Breaker::builder("orders")
    ///     .sleep_window(Duration::from_secs(1))
    ///     .sleep_growth(2.0, Duration::from_secs(60))
    ///     .sleep_jitter(20)
    ///     .build()?;
    /// # Ok::<_, tower_outbound::call::ConfigError>(())
    /// ```
    pub fn sleep_growth(mut self, factor: f64, longest: Duration) -> Self {
        self.sleep_growth = Some((factor, longest));
        self
    }

    /// Each sleep window is shortened by a random share of up to so many percent; 0 by default, 0 to 100.
    ///
    /// Many clients whose circuits opened together then do not probe together. No sleep window is longer for it.
    pub fn sleep_jitter(mut self, percent: u32) -> Self {
        self.sleep_jitter = percent;
        self
    }

    /// What the random numbers are drawn from, so that a test can repeat them; random by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many probes may go out at once when the sleep window has ended; 1 by default, 1 to 1,000.
    ///
    /// With more than one they decide together, by [`probe_success_percent`](BreakerBuilder::probe_success_percent): the
    /// circuit closes or opens again as soon as the outcomes that are missing cannot change it, and those count no more.
    /// No more than these ever go out before it is decided, but for one in the place of each that was
    /// [ignored](crate::call::Verdict::Ignored) or given up, or whose [lease](BreakerBuilder::probe_lease) has ended.
    /// Each takes 8 bytes, allocated when the breaker is built.
    pub fn probes(mut self, probes: u32) -> Self {
        self.probes = probes;
        self
    }

    /// How many percent of the [probes](BreakerBuilder::probes) must succeed to close the circuit, rounded up to whole
    /// probes; 100 by default, 1 to 100.
    pub fn probe_success_percent(mut self, percent: u32) -> Self {
        self.probe_success_percent = percent;
        self
    }

    /// A call that is given up from outside after so long counts as failed; by default it never does. Above zero.
    ///
    /// Where a timeout stands above this layer, it drops the call, and the circuit would never learn that the
    /// dependency is down. Give about the length of that timeout: who gives up earlier has reasons of their own. A
    /// probe that is given up after so long has failed as well. The clock is read once more for each call. A
    /// call that ends by a panic does not count.
    ///
    /// Where a [verdict comes late](crate::call::LateVerdict) this goes for the body as well: one that is dropped after so
    /// long, counted from the beginning of the call, has failed.
    pub fn cancelled_after(mut self, long: Duration) -> Self {
        self.cancelled_after = Some(long);
        self
    }

    /// In shadow mode, for a breaker that is tried out: nothing is rejected, and everything else goes on.
    ///
    /// Calls are counted and judged, the circuit opens, sleeps and lets probes out, transitions are told, marked as
    /// [`is_shadow`](Transition::is_shadow), and [`would_reject`](super::Counts::would_reject) counts the calls that would
    /// have been turned away. Their own outcomes decide nothing. [`Breaker::state`] is
    /// [`Shadow`](crate::call::CircuitState::Shadow), [`Breaker::unforced_state`] is that of the circuit. A
    /// [force](Breaker::force) rejects nothing either. It can be switched while calls go on, by [`Breaker::change`].
    ///
    /// ```
    /// use tower_outbound::{breaker::Breaker, call::{CircuitState, Verdict}};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let breaker = Breaker::builder("orders").shadow(true).build()?;
    /// for _ in 0..30 {
    ///     breaker.admit()?.settle(Verdict::Failure);
    /// }
    /// assert_eq!(breaker.state(), CircuitState::Shadow);
    /// assert_eq!(breaker.unforced_state(), CircuitState::Open);
    /// assert_eq!(breaker.counts().would_reject(), 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// The length of the rolling window; 10 s by default, at least 10 ms.
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
    /// One that has not ended by then can be replaced: the next call is a probe in its place, and from then on its own
    /// outcome does not count any more. Give more than the longest time that a call below this layer can take. Rounded up to whole
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

    /// With as many lanes as this, where there are many breakers.
    pub(super) fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    pub(super) fn named(mut self, name: Arc<str>) -> Self {
        self.name = name;
        self
    }

    /// With what was drawn for another, and with its hook.
    pub(super) fn with_seed_and_hook_of(mut self, other: &Self) -> Self {
        self.seed = other.seed;
        self.hook = other.hook.clone();
        self
    }

    /// With these where it has none, as one that was made anew.
    pub(super) fn or_seed_and_hook_of(mut self, other: &Self) -> Self {
        self.seed = self.seed.or(other.seed);
        self.hook = self.hook.or_else(|| other.hook.clone());
        self
    }

    pub(super) fn breaker_name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn hook(&self) -> Option<&Hook> {
        self.hook.as_ref()
    }

    /// What is said so far. Nothing of it is checked.
    pub fn settings(&self) -> BreakerSettings {
        BreakerSettings {
            volume: self.volume,
            error_percent: self.error_percent,
            slow_calls: self.slow_calls,
            consecutive_failures: self.consecutive_failures,
            last_outcomes: self.last_outcomes,
            judges_window: self.judges_window,
            sleep_window: self.sleep_window,
            sleep_growth: self.sleep_growth,
            sleep_jitter: self.sleep_jitter,
            window: self.window,
            probes: self.probes,
            probe_success_percent: self.probe_success_percent,
            cancelled_after: self.cancelled_after,
            shadow: self.shadow,
            hystrix: self.hystrix.map(|release| (release, self.health_snapshot)),
        }
    }

    /// The breaker.
    ///
    /// # Errors
    ///
    /// The name is empty, a number is out of the range that its setter names, a duration is above
    /// [ten years](crate::call::LONGEST), the volume is above 16,777,215, the window is below 10 ms, or nothing is left
    /// that could open the circuit. With [`hystrix`](BreakerBuilder::hystrix) volume and sleep window may be 0 and the
    /// percentage above 100, the window must hold 1 to 1,000 health snapshots, and what Hystrix does not have may not be
    /// set, but for the [lease](BreakerBuilder::probe_lease), [`cancelled_after`](BreakerBuilder::cancelled_after) and
    /// [shadow mode](BreakerBuilder::shadow).
    pub fn build(mut self) -> Result<Breaker, ConfigError> {
        if self.seed.is_none() {
            self.seed = Some(RandomState::new().build_hasher().finish());
        }
        let settings = self.check()?;
        Ok(Breaker::with(self, settings))
    }

    /// The settings of this one changed to those, if they can be while calls go on.
    pub(super) fn checked_change(&self, to: &Self) -> Result<Settings, ConfigError> {
        let settings = to.check()?;
        let fixed = |field, is_same: bool, value: &dyn fmt::Display, fix: &'static str| {
            if is_same {
                Ok(())
            } else {
                Err(ConfigError::new(LAYER, field, value, fix))
            }
        };
        let build = "leave it as it is, or build another breaker: it cannot change while calls go on";
        let last = format!("{:?}", to.last_outcomes);
        fixed(
            "last_outcomes",
            self.last_outcomes == to.last_outcomes,
            &last,
            build,
        )?;
        let window = format!("{:?}", to.window);
        fixed("window", self.window == to.window, &window, build)?;
        fixed("probes", self.probes == to.probes, &to.probes, build)?;
        let seed = format!("{:?}", to.seed);
        fixed("seed", self.seed == to.seed, &seed, build)?;
        let hystrix = format!("{:?}", to.hystrix);
        fixed("hystrix", self.hystrix == to.hystrix, &hystrix, build)?;
        let snapshot = format!("{:?}", to.health_snapshot);
        let is_same = self.health_snapshot == to.health_snapshot;
        fixed("health_snapshot", is_same, &snapshot, build)?;
        let is_same = match (&self.hook, &to.hook) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        fixed("on_transition", is_same, &"another hook", build)?;
        let by_hand = "use `Breaker::set_enabled`";
        fixed("disabled", self.enabled == to.enabled, &!to.enabled, by_hand)?;
        Ok(settings)
    }

    fn check(&self) -> Result<Settings, ConfigError> {
        name(LAYER, "name", &self.name)?;
        if self.volume > LARGEST_VOLUME {
            let fix = format!("give at most {LARGEST_VOLUME}; a window does not count further in a bucket");
            return Err(ConfigError::new(LAYER, "volume", self.volume, fix));
        }
        let window = limit(LAYER, "window", self.window)?;
        let (sleep_window, hystrix) = match self.hystrix {
            None => (self.check_ours()?, None),
            Some(release) => {
                self.check_hystrix_alone()?;
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
        if let Some(long) = self.cancelled_after {
            limit(LAYER, "cancelled_after", long)?;
        }
        Ok(Settings {
            judge: self.judge(),
            window,
            sleep_window,
            probe_lease: limit(LAYER, "probe_lease", self.probe_lease.unwrap_or(lease))?,
            enabled: self.enabled,
            hystrix,
            lanes: self.lanes.unwrap_or_else(lanes),
            more: More {
                slow_limit: self.slow_calls.map(|(limit, _)| limit),
                last: self.last_outcomes.unwrap_or(0),
                growth: self.growth(),
                probes: self.probes,
                success_percent: self.probe_success_percent,
                cancelled_after: self.cancelled_after,
                shadow: self.shadow,
            },
        })
    }

    fn judge(&self) -> Judge {
        let mut judge = match self.error_percent {
            Some(percent) => Judge::new(self.volume, percent),
            None => Judge::new(self.volume, 100).without_error_percent(),
        };
        if let Some((_, percent)) = self.slow_calls {
            judge = judge.with_slow_percent(percent);
        }
        if let Some(failures) = self.consecutive_failures {
            judge = judge.with_run(failures);
        }
        judge.with_windows(self.judges_window, self.last_outcomes.is_some())
    }

    fn growth(&self) -> Growth {
        let (factor, most) = self.sleep_growth.unwrap_or((1.0, self.sleep_window));
        Growth {
            factor,
            most,
            jitter: self.sleep_jitter,
            seed: self.seed.unwrap_or_default(),
        }
    }

    fn check_rules(&self) -> Result<(), ConfigError> {
        let at_most = |field, value: u32, most: u32, what| {
            at_least_one(LAYER, field, value)?;
            if value > most {
                let fix = format!("give at most {most}; {what}");
                return Err(ConfigError::new(LAYER, field, value, fix));
            }
            Ok(())
        };
        if let Some(failures) = self.consecutive_failures {
            let what = "a row that long is no row";
            at_most("consecutive_failures", failures, LONGEST_RUN, what)?;
        }
        if let Some(outcomes) = self.last_outcomes {
            at_most("last_outcomes", outcomes, MOST_OUTCOMES, "each takes 8 bytes")?;
        }
        if let Some((slow, share)) = self.slow_calls {
            limit(LAYER, "slow_calls", slow)?;
            at_least_one(LAYER, "slow_calls", share)?;
            percent(LAYER, "slow_calls", share.into())?;
        }
        let has_window = self.judges_window || self.last_outcomes.is_some();
        let has_share = self.error_percent.is_some() || self.slow_calls.is_some();
        if self.consecutive_failures.is_none() && !(has_window && has_share) {
            return Err(ConfigError::new(
                LAYER,
                "error_percent",
                "none, nor is another rule there",
                "give a share of failures or of slow calls and a window for it, or a number of consecutive failures",
            ));
        }
        at_most("probes", self.probes, MOST_PROBES, "more are no probes")?;
        let field = "probe_success_percent";
        at_least_one(LAYER, field, self.probe_success_percent)?;
        percent(LAYER, field, self.probe_success_percent.into())?;
        Ok(())
    }

    fn check_sleep(&self) -> Result<Duration, ConfigError> {
        if let Some((factor, longest)) = self.sleep_growth {
            if !(factor >= 1.0 && factor.is_finite()) {
                let fix = "give a factor of at least 1";
                return Err(ConfigError::new(LAYER, "sleep_growth", factor, fix));
            }
            limit(LAYER, "sleep_growth", longest)?;
            if longest < self.sleep_window {
                let fix = format!("give at least the sleep window, {:?}", self.sleep_window);
                let value = format_args!("{longest:?}");
                return Err(ConfigError::new(LAYER, "sleep_growth", value, fix));
            }
        }
        percent(LAYER, "sleep_jitter", self.sleep_jitter.into())?;
        limit(LAYER, "sleep_window", self.sleep_window)
    }

    /// What Hystrix does not have is not set.
    fn check_hystrix_alone(&self) -> Result<(), ConfigError> {
        let beyond = [
            ("error_percent", self.error_percent.is_none()),
            ("slow_calls", self.slow_calls.is_some()),
            ("consecutive_failures", self.consecutive_failures.is_some()),
            ("last_outcomes", self.last_outcomes.is_some()),
            ("without_window", !self.judges_window),
            ("sleep_growth", self.sleep_growth.is_some()),
            ("sleep_jitter", self.sleep_jitter > 0),
            ("probes", self.probes != 1),
            ("probe_success_percent", self.probe_success_percent != 100),
        ];
        match beyond.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((field, _)) => Err(ConfigError::new(
                LAYER,
                field,
                "beside `hystrix`, which has no such thing",
                "leave it as it is by default, or judge by this crate's own rules",
            )),
        }
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
        if let Some(share) = self.error_percent {
            percent(LAYER, "error_percent", share.into())?;
        }
        self.check_rules()?;
        self.check_sleep()
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
            .field("slow_calls", &self.slow_calls)
            .field("consecutive_failures", &self.consecutive_failures)
            .field("last_outcomes", &self.last_outcomes)
            .field("judges_window", &self.judges_window)
            .field("sleep_window", &self.sleep_window)
            .field("sleep_growth", &self.sleep_growth)
            .field("sleep_jitter", &self.sleep_jitter)
            .field("window", &self.window)
            .field("probes", &self.probes)
            .field("probe_success_percent", &self.probe_success_percent)
            .field("cancelled_after", &self.cancelled_after)
            .field("shadow", &self.shadow)
            .field("probe_lease", &self.probe_lease)
            .field("hystrix", &self.hystrix)
            .field("health_snapshot", &self.health_snapshot)
            .field("enabled", &self.enabled)
            .field("on_transition", &self.hook.is_some())
            .finish()
    }
}
