//! The settings.

use tokio::time::Duration;

use crate::call::{ConfigError, config};

const NAME: &str = "OutlierEjection";

/// When a balancer leaves an endpoint alone that fails more than its peers, for how long, and how many of them. See the
/// [module](super) for what it does.
///
/// [`default()`](OutlierEjection::default) has all the defaults of the [builder](OutlierEjectionBuilder).
#[derive(Debug, Clone, PartialEq)]
pub struct OutlierEjection {
    pub(super) in_a_row: Option<u32>,
    pub(super) success_rate: Option<f64>,
    pub(super) rate_volume: Volume,
    pub(super) failure_percentage: Option<f64>,
    pub(super) percentage_volume: Volume,
    pub(super) interval: Duration,
    pub(super) base: Duration,
    max: Duration,
    jitter: f64,
    max_ejected: f64,
    panic: f64,
    pub(super) probe_successes: u32,
    pub(super) abandoned_after: Option<Duration>,
    pub(super) seed: Option<u64>,
}

/// What there must be before rates are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Volume {
    pub(super) requests: u32,
    pub(super) endpoints: u32,
}

/// Sets up [`OutlierEjection`].
///
/// | setting | default |
/// | --- | --- |
/// | [`consecutive_failures`](OutlierEjectionBuilder::consecutive_failures) | 5 |
/// | [`success_rate`](OutlierEjectionBuilder::success_rate) | 1.9 standard deviations |
/// | [`success_rate_volume`](OutlierEjectionBuilder::success_rate_volume) | 100 attempts to each of 5 endpoints |
/// | [`failure_percentage`](OutlierEjectionBuilder::failure_percentage) | off |
/// | [`failure_percentage_volume`](OutlierEjectionBuilder::failure_percentage_volume) | 50 attempts, a set of 5 |
/// | [`interval`](OutlierEjectionBuilder::interval) | 10 s |
/// | [`ejection_time`](OutlierEjectionBuilder::ejection_time) | 30 s |
/// | [`max_ejection_time`](OutlierEjectionBuilder::max_ejection_time) | 300 s |
/// | [`jitter`](OutlierEjectionBuilder::jitter) | 20 % |
/// | [`max_ejected`](OutlierEjectionBuilder::max_ejected) | 50 % of the set |
/// | [`panic_threshold`](OutlierEjectionBuilder::panic_threshold) | 50 % of the set |
/// | [`probe_successes`](OutlierEjectionBuilder::probe_successes) | 3 |
/// | [`abandoned_after`](OutlierEjectionBuilder::abandoned_after) | 1 s |
#[derive(Debug, Clone)]
#[must_use]
pub struct OutlierEjectionBuilder(OutlierEjection);

impl Default for OutlierEjection {
    fn default() -> Self {
        OutlierEjection {
            in_a_row: Some(5),
            success_rate: Some(1.9),
            rate_volume: Volume {
                requests: 100,
                endpoints: 5,
            },
            failure_percentage: None,
            percentage_volume: Volume {
                requests: 50,
                endpoints: 5,
            },
            interval: Duration::from_secs(10),
            base: Duration::from_secs(30),
            max: Duration::from_secs(300),
            jitter: 20.0,
            max_ejected: 50.0,
            panic: 50.0,
            probe_successes: 3,
            abandoned_after: Some(Duration::from_secs(1)),
            seed: None,
        }
    }
}

impl OutlierEjection {
    /// Begins with the defaults.
    pub fn builder() -> OutlierEjectionBuilder {
        OutlierEjectionBuilder(OutlierEjection::default())
    }

    /// Are the successes and failures of an interval of use?
    pub(super) fn compares(&self) -> bool {
        self.success_rate.is_some() || self.failure_percentage.is_some()
    }

    /// How many of so many may be ejected at once.
    pub(super) fn most_of(&self, size: usize) -> usize {
        let share = (size as f64 * self.max_ejected / 100.0) as usize;
        share.max(1).min(size.saturating_sub(1))
    }

    /// Are the ejections to be disregarded, if so many of so many may be picked?
    pub(super) fn is_panic(&self, usable: usize, size: usize) -> bool {
        (usable as f64) * 100.0 < self.panic * size as f64
    }

    /// For how long an endpoint is ejected for the so many-th time in a row; `lot` is from zero on, below one.
    pub(super) fn time(&self, in_a_row: u32, lot: f64) -> Duration {
        let longest = self.max.max(self.base);
        let time = self.base.saturating_mul(in_a_row).min(longest);
        time.mul_f64(1.0 - self.jitter / 100.0 * lot)
    }
}

impl OutlierEjectionBuilder {
    /// Ejects an endpoint after so many failures with no success in between.
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.0.in_a_row = Some(failures);
        self
    }

    /// Failures in a row eject nothing.
    pub fn no_consecutive_failures(mut self) -> Self {
        self.0.in_a_row = None;
        self
    }

    /// Ejects an endpoint whose share of successes in an interval is below the mean of its peers by more than so many
    /// standard deviations.
    pub fn success_rate(mut self, deviations: f64) -> Self {
        self.0.success_rate = Some(deviations);
        self
    }

    /// Success rates are not compared.
    pub fn no_success_rate(mut self) -> Self {
        self.0.success_rate = None;
        self
    }

    /// Success rates are compared among endpoints with at least so many attempts in the interval, if there are at least so
    /// many of them.
    pub fn success_rate_volume(mut self, attempts: u32, endpoints: u32) -> Self {
        self.0.rate_volume = Volume {
            requests: attempts,
            endpoints,
        };
        self
    }

    /// Ejects an endpoint of whose attempts in an interval at least so many percent have failed, whatever its peers do.
    /// gRPC and Envoy take 85.
    pub fn failure_percentage(mut self, percent: f64) -> Self {
        self.0.failure_percentage = Some(percent);
        self
    }

    /// The failure percentage is looked at if there were at least so many attempts in the interval and the set has at
    /// least so many endpoints.
    pub fn failure_percentage_volume(mut self, attempts: u32, endpoints: u32) -> Self {
        self.0.percentage_volume = Volume {
            requests: attempts,
            endpoints,
        };
        self
    }

    /// How often success rates and failure percentages are looked at, and for how long an endpoint must have been well
    /// for its next ejection to be shorter by one base time.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.0.interval = interval;
        self
    }

    /// For how long an endpoint is ejected the first time; the second time in a row for twice as long, and so on. It is
    /// also how long a probe may take before another one goes out beside it.
    pub fn ejection_time(mut self, base: Duration) -> Self {
        self.0.base = base;
        self
    }

    /// No ejection is longer than this, or than the base time, if that is longer.
    pub fn max_ejection_time(mut self, max: Duration) -> Self {
        self.0.max = max;
        self
    }

    /// An ejection is shorter than it would be by up to so many percent, by lot. Zero: none is.
    pub fn jitter(mut self, percent: f64) -> Self {
        self.0.jitter = percent;
        self
    }

    /// At most so many percent of the set are ejected at once, rounded down; one may be in any case, if it is not the
    /// only endpoint, and the last one never is.
    pub fn max_ejected(mut self, percent: f64) -> Self {
        self.0.max_ejected = percent;
        self
    }

    /// If less than so many percent of the set may be picked, counting the vetoes of all, ejections are disregarded.
    /// Zero: they never are.
    pub fn panic_threshold(mut self, percent: f64) -> Self {
        self.0.panic = percent;
        self
    }

    /// How many probes in a row must succeed for an endpoint to return.
    pub fn probe_successes(mut self, successes: u32) -> Self {
        self.0.probe_successes = successes;
        self
    }

    /// An attempt that is given up after it has waited for so long counts as a failure. It should be longer than answers
    /// usually take, and no longer than the limits above the balancer.
    pub fn abandoned_after(mut self, waited: Duration) -> Self {
        self.0.abandoned_after = Some(waited);
        self
    }

    /// Attempts that are given up never count as failures: callers who lose their patience say nothing about servers
    /// here. One that has fallen silent is found only by limits below the balancer then.
    pub fn ignore_abandoned(mut self) -> Self {
        self.0.abandoned_after = None;
        self
    }

    /// With a jitter that this seed determines, for tests and simulations.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.0.seed = Some(seed);
        self
    }

    /// The settings.
    ///
    /// # Errors
    ///
    /// If no trigger is left; a count is zero; a percentage is not from 0 to 100, or zero where that would eject at no or
    /// at any failure; the deviations are below zero or no number; or a duration is zero or longer than
    /// [`LONGEST`](crate::call::LONGEST).
    pub fn build(self) -> Result<OutlierEjection, ConfigError> {
        let OutlierEjectionBuilder(settings) = self;
        if settings.in_a_row.is_none() && !settings.compares() {
            let fix = "leave a trigger on, or leave the ejection of outliers away";
            return Err(ConfigError::new(
                NAME,
                "consecutive_failures",
                "off, as all are",
                fix,
            ));
        }
        config::at_least_one(NAME, "consecutive_failures", settings.in_a_row.unwrap_or(1))?;
        let deviations = settings.success_rate.unwrap_or(0.0);
        if !deviations.is_finite() || deviations < 0.0 {
            let fix = "give a number of standard deviations, from zero on";
            return Err(ConfigError::new(NAME, "success_rate", deviations, fix));
        }
        for (field, volume) in [
            ("success_rate_volume", settings.rate_volume),
            ("failure_percentage_volume", settings.percentage_volume),
        ] {
            config::at_least_one(NAME, field, volume.requests)?;
            config::at_least_one(NAME, field, volume.endpoints)?;
        }
        for (field, percent) in [
            ("failure_percentage", settings.failure_percentage.unwrap_or(1.0)),
            ("max_ejected", settings.max_ejected),
        ] {
            config::percent(NAME, field, percent)?;
            if percent == 0.0 {
                return Err(ConfigError::new(
                    NAME,
                    field,
                    percent,
                    "give a percentage above zero",
                ));
            }
        }
        config::percent(NAME, "jitter", settings.jitter)?;
        config::percent(NAME, "panic_threshold", settings.panic)?;
        config::limit(NAME, "interval", settings.interval)?;
        config::limit(NAME, "ejection_time", settings.base)?;
        config::limit(NAME, "max_ejection_time", settings.max)?;
        config::at_least_one(NAME, "probe_successes", settings.probe_successes)?;
        config::pause(
            NAME,
            "abandoned_after",
            settings.abandoned_after.unwrap_or_default(),
        )?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_set_may_be_ejected_but_one_of_two_and_none_of_one() {
        let settings = OutlierEjection::default();
        let most: Vec<_> = (0..8).map(|size| settings.most_of(size)).collect();
        assert_eq!(most, [0, 0, 1, 1, 2, 2, 3, 3]);
        let all = OutlierEjection::builder().max_ejected(100.0).build().unwrap();
        assert_eq!(all.most_of(10), 9, "one is always left");
        let few = OutlierEjection::builder().max_ejected(10.0).build().unwrap();
        assert_eq!([few.most_of(2), few.most_of(19), few.most_of(20)], [1, 1, 2]);
    }

    #[test]
    fn own_ejections_alone_are_no_panic_with_the_defaults() {
        let settings = OutlierEjection::default();
        for size in 2..100 {
            let left = size - settings.most_of(size);
            assert!(!settings.is_panic(left, size), "{left} of {size}");
        }
        assert!(settings.is_panic(4, 9) && !settings.is_panic(5, 9));
    }

    #[test]
    fn the_time_grows_up_to_its_maximum_and_the_jitter_makes_it_shorter() {
        let settings = OutlierEjection::default();
        let seconds = |in_a_row, lot| settings.time(in_a_row, lot).as_secs_f64();
        assert_eq!(
            [
                seconds(1, 0.0),
                seconds(2, 0.0),
                seconds(10, 0.0),
                seconds(u32::MAX, 0.0)
            ],
            [30.0, 60.0, 300.0, 300.0]
        );
        assert_eq!(seconds(2, 0.5), 54.0);
        let long = OutlierEjection::builder().ejection_time(Duration::from_secs(400));
        assert_eq!(long.build().unwrap().time(2, 0.0).as_secs(), 400);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let builder = OutlierEjection::builder;
        let zero = Duration::ZERO;
        for (builder, field) in [
            (
                builder().no_consecutive_failures().no_success_rate(),
                "consecutive_failures",
            ),
            (builder().consecutive_failures(0), "consecutive_failures"),
            (builder().success_rate(f64::NAN), "success_rate"),
            (builder().success_rate(-1.0), "success_rate"),
            (builder().success_rate_volume(0, 5), "success_rate_volume"),
            (builder().failure_percentage(0.0), "failure_percentage"),
            (builder().failure_percentage(100.1), "failure_percentage"),
            (
                builder().failure_percentage_volume(50, 0),
                "failure_percentage_volume",
            ),
            (builder().interval(zero), "interval"),
            (builder().ejection_time(zero), "ejection_time"),
            (builder().max_ejection_time(Duration::MAX), "max_ejection_time"),
            (builder().jitter(101.0), "jitter"),
            (builder().max_ejected(0.0), "max_ejected"),
            (builder().panic_threshold(-1.0), "panic_threshold"),
            (builder().probe_successes(0), "probe_successes"),
            (builder().abandoned_after(Duration::MAX), "abandoned_after"),
        ] {
            assert_eq!(builder.build().unwrap_err().field(), field);
        }
        let only = builder()
            .no_consecutive_failures()
            .no_success_rate()
            .failure_percentage(85.0);
        assert!(only.build().is_ok());
        assert_eq!(builder().build().unwrap(), OutlierEjection::default());
    }
}
