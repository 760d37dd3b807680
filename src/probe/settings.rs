//! The settings of active probes.

use std::sync::Arc;

use tokio::time::Duration;

use super::{Probe, prober::Prober};
use crate::call::{ConfigError, Endpoints, config};

const NAME: &str = "ActiveProbes";

/// How often endpoints are asked whether they are well, and what follows from their answers. See the
/// [module](super#defaults) for the defaults.
///
/// It is a plain value: [`attach`](ActiveProbes::attach) puts it to work, on as many sets as one likes.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveProbes {
    pub(super) interval: Duration,
    pub(super) jitter: f64,
    pub(super) timeout: Duration,
    pub(super) failures: u32,
    pub(super) successes: u32,
    pub(super) at_once: u32,
}

/// Sets up [`ActiveProbes`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ActiveProbesBuilder(ActiveProbes);

impl Default for ActiveProbes {
    fn default() -> Self {
        ActiveProbes {
            interval: Duration::from_secs(10),
            jitter: 0.1,
            timeout: Duration::from_secs(1),
            failures: 3,
            successes: 1,
            at_once: 16,
        }
    }
}

impl ActiveProbes {
    /// Begins with the defaults.
    pub fn builder() -> ActiveProbesBuilder {
        ActiveProbesBuilder(ActiveProbes::default())
    }

    /// Begins with what Ribbon's `BaseLoadBalancer` does with a ping: each 30 s (`NFLoadBalancerPingInterval`), without
    /// jitter, one after the other, and each answer counts at once. A probe has 2 s, which in Ribbon is the setting for
    /// all of them together (`NFLoadBalancerMaxTotalPingTime`); nothing there heeds it.
    ///
    /// Two things stay as they are here: each endpoint has a phase of its own, where Ribbon asks all of them in a row,
    /// and a new one is picked before its first probe, where Ribbon takes it for dead.
    pub fn ribbon() -> ActiveProbesBuilder {
        ActiveProbesBuilder(ActiveProbes {
            interval: Duration::from_secs(30),
            jitter: 0.0,
            timeout: Duration::from_secs(2),
            failures: 1,
            successes: 1,
            at_once: 1,
        })
    }

    /// Has the endpoints of this set asked by this probe: from now on within a tokio runtime, and otherwise from the first
    /// call of a balancer over it on. Each is asked for the first time within a tenth of the interval. A probe that was
    /// attached to the set before ends, and its vetoes go.
    pub fn attach<P>(&self, endpoints: &Endpoints, probe: P)
    where
        P: Probe + Send + Sync + 'static,
    {
        let settings = self.clone();
        endpoints.probed_by(|set| Prober::new(settings, Arc::new(probe), set));
    }

    /// Ends what was attached to this set. What is under way is dropped and the vetoes are taken back, by the task that
    /// asks: soon, but not before this returns.
    pub fn detach(endpoints: &Endpoints) {
        endpoints.probed_by_none();
    }
}

impl ActiveProbesBuilder {
    /// From the start of one probe of an endpoint to that of the next. Where there are more endpoints than can be asked in
    /// that time, it takes longer.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.0.interval = interval;
        self
    }

    /// By which share of the interval each may be longer or shorter, from 0 to 1. Each time it is drawn anew, so that
    /// clients which started together do not stay in step.
    pub fn jitter(mut self, share: f64) -> Self {
        self.0.jitter = share;
        self
    }

    /// How long one probe may take. One that takes longer is dropped and has failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// After how many failed probes in a row an endpoint gets a veto.
    pub fn failures(mut self, in_a_row: u32) -> Self {
        self.0.failures = in_a_row;
        self
    }

    /// After how many good probes in a row the veto is taken back.
    pub fn successes(mut self, in_a_row: u32) -> Self {
        self.0.successes = in_a_row;
        self
    }

    /// How many probes are under way at once, at most.
    pub fn at_once(mut self, probes: u32) -> Self {
        self.0.at_once = probes;
        self
    }

    /// The settings.
    ///
    /// # Errors
    ///
    /// A duration is zero or longer than [ten years](crate::call::LONGEST); the timeout is longer than the interval; the
    /// jitter is not from 0 to 1; a number is zero.
    pub fn build(self) -> Result<ActiveProbes, ConfigError> {
        let ActiveProbesBuilder(probes) = self;
        config::limit(NAME, "interval", probes.interval)?;
        config::limit(NAME, "timeout", probes.timeout)?;
        if probes.timeout > probes.interval {
            return Err(ConfigError::new(
                NAME,
                "timeout",
                format_args!("{:?}", probes.timeout),
                format!("give at most the interval, {:?}", probes.interval),
            ));
        }
        if !(0.0..=1.0).contains(&probes.jitter) {
            return Err(ConfigError::new(
                NAME,
                "jitter",
                probes.jitter,
                "give a share from 0 to 1",
            ));
        }
        config::at_least_one(NAME, "failures", probes.failures)?;
        config::at_least_one(NAME, "successes", probes.successes)?;
        config::at_least_one(NAME, "at_once", probes.at_once)?;
        Ok(probes)
    }
}
