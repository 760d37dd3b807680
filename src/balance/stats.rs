//! How Ribbon reads the figures about a server.

use tokio::time::Duration;

use super::figures::{Counters, Moment};
use crate::call::{ConfigError, config};

const NAME: &str = "RibbonStats";

/// When an endpoint counts as tripped, as loaded, or as in a bad zone, for the rules that look at that
/// ([table](super::rule#ribbons-rules)). It is a setting of the [layer](super::LoadBalanceLayer::ribbon_stats).
///
/// An endpoint is **tripped** after a number of
/// [connection failures in a row](super::Figures::successive_connection_failures), for a time that doubles with each
/// further one: 10, 20, 30, 30 ... seconds from the last failure on. Nothing is probed: when the time is over it is
/// picked as before, and the next failure trips it for longer. An answer forgets it all. This is apart from verdicts and
/// from the [vetoes](crate::call::Eligibility) on an endpoint.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::balance::{LoadBalanceLayer, RibbonStats, ZoneAvoidance};
/// use tower_outbound::call::Endpoints;
///
/// let stats = RibbonStats::builder().connection_failures(5).trip_max(Duration::from_secs(60)).build()?;
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let layer = LoadBalanceLayer::new(endpoints).ribbon_stats(stats).rule(ZoneAvoidance::new());
/// assert!(!layer.handle().is_tripped("http://10.0.0.1"));
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RibbonStats {
    connection_failures: u32,
    trip_factor: Duration,
    trip_max: Duration,
    active_limit: u64,
    filter_tripped: bool,
    active_window: Duration,
    zone_load: f64,
    zone_blackout: f64,
}

/// Sets up [`RibbonStats`].
///
/// | setting | default | Ribbon's property |
/// | --- | --- | --- |
/// | [`connection_failures`](RibbonStatsBuilder::connection_failures) | 3 | `niws.loadbalancer.<client>.connectionFailureCountThreshold` |
/// | [`trip_factor`](RibbonStatsBuilder::trip_factor) | 10 s | `niws.loadbalancer.<client>.circuitTripTimeoutFactorSeconds` |
/// | [`trip_max`](RibbonStatsBuilder::trip_max) | 30 s | `niws.loadbalancer.<client>.circuitTripMaxTimeoutSeconds` |
/// | [`active_limit`](RibbonStatsBuilder::active_limit) | none | `<client>.ribbon.ActiveConnectionsLimit` |
/// | [`filter_tripped`](RibbonStatsBuilder::filter_tripped) | true | `niws.loadbalancer.availabilityFilteringRule.filterCircuitTripped` |
/// | [`active_window`](RibbonStatsBuilder::active_window) | 600 s | `niws.loadbalancer.serverStats.activeRequestsCount.effectiveWindowSeconds` |
/// | [`zone_load`](RibbonStatsBuilder::zone_load) | 0.2 | `ZoneAwareNIWSDiscoveryLoadBalancer.<client>.triggeringLoadPerServerThreshold` |
/// | [`zone_blackout`](RibbonStatsBuilder::zone_blackout) | 0.99999 | `ZoneAwareNIWSDiscoveryLoadBalancer.<client>.avoidZoneWithBlackoutPercetage` |
#[derive(Debug, Clone)]
#[must_use]
pub struct RibbonStatsBuilder(RibbonStats);

impl Default for RibbonStats {
    fn default() -> Self {
        RibbonStats {
            connection_failures: 3,
            trip_factor: Duration::from_secs(10),
            trip_max: Duration::from_secs(30),
            active_limit: u64::MAX,
            filter_tripped: true,
            active_window: Duration::from_secs(600),
            zone_load: 0.2,
            zone_blackout: 0.99999,
        }
    }
}

impl RibbonStats {
    /// Begins with Ribbon's defaults.
    pub fn builder() -> RibbonStatsBuilder {
        RibbonStatsBuilder(RibbonStats::default())
    }

    /// How long an endpoint is tripped after its last connection failure, with that many in a row.
    fn blackout(&self, failures: u32) -> Duration {
        let Some(further) = failures.checked_sub(self.connection_failures) else {
            return Duration::ZERO;
        };
        let doubled = 1 << further.min(16);
        self.trip_factor.saturating_mul(doubled).min(self.trip_max)
    }

    #[inline]
    pub(super) fn is_tripped(&self, counters: &Counters, now: &Moment) -> bool {
        let (failures, last) = counters.troubles();
        if failures < self.connection_failures {
            return false;
        }
        // One that has never failed is not tripped, however low the threshold.
        let since = |last| Duration::from_nanos(now.nanos.saturating_sub(last));
        last.is_some_and(|last| since(last) < self.blackout(failures))
    }

    /// What is in flight; none, if nothing has started or ended for too long to believe it.
    pub(super) fn active(&self, counters: &Counters, now: &Moment) -> u64 {
        let in_flight = counters.in_flight();
        let unchanged = || Duration::from_nanos(now.nanos.saturating_sub(counters.changed()));
        if in_flight > 0 && unchanged() > self.active_window {
            return 0;
        }
        in_flight
    }

    pub(super) fn is_available(&self, counters: &Counters, now: &Moment) -> bool {
        let full = self.active_limit != u64::MAX && self.active(counters, now) >= self.active_limit;
        let tripped = self.filter_tripped && self.is_tripped(counters, now);
        !full && !tripped
    }

    pub(super) fn zone_load(&self) -> f64 {
        self.zone_load
    }

    pub(super) fn zone_blackout(&self) -> f64 {
        self.zone_blackout
    }
}

impl RibbonStatsBuilder {
    /// After how many connection failures in a row an endpoint is tripped. At zero, one that has failed once is tripped
    /// even after an answer.
    pub fn connection_failures(mut self, threshold: u32) -> Self {
        self.0.connection_failures = threshold;
        self
    }

    /// How long the first trip lasts. Each further failure doubles it. Zero: nothing trips.
    pub fn trip_factor(mut self, factor: Duration) -> Self {
        self.0.trip_factor = factor;
        self
    }

    /// The longest trip.
    pub fn trip_max(mut self, max: Duration) -> Self {
        self.0.trip_max = max;
        self
    }

    /// An endpoint with that many attempts in flight is left out like a tripped one. Default: no limit.
    pub fn active_limit(mut self, attempts: u64) -> Self {
        self.0.active_limit = attempts;
        self
    }

    /// Whether tripped endpoints are left out by [`AvailabilityFiltering`](super::AvailabilityFiltering) and
    /// [`ZoneAvoidance`](super::ZoneAvoidance).
    pub fn filter_tripped(mut self, filter: bool) -> Self {
        self.0.filter_tripped = filter;
        self
    }

    /// After how long without a start or an end the attempts in flight count as none. In Ribbon that mends a count
    /// that has drifted, which ours cannot; what it does here is to forget long calls.
    pub fn active_window(mut self, window: Duration) -> Self {
        self.0.active_window = window;
        self
    }

    /// From which load, in attempts in flight per endpoint that is not tripped, the most loaded zone is left out.
    pub fn zone_load(mut self, load: f64) -> Self {
        self.0.zone_load = load;
        self
    }

    /// From which share of tripped endpoints, 0 to 1, a zone is left out.
    pub fn zone_blackout(mut self, share: f64) -> Self {
        self.0.zone_blackout = share;
        self
    }

    /// The settings.
    ///
    /// # Errors
    ///
    /// If a duration is longer than [`LONGEST`](crate::call::LONGEST), or the load or the share is below zero or no
    /// number.
    pub fn build(self) -> Result<RibbonStats, ConfigError> {
        let RibbonStatsBuilder(stats) = self;
        config::pause(NAME, "trip_factor", stats.trip_factor)?;
        config::pause(NAME, "trip_max", stats.trip_max)?;
        config::pause(NAME, "active_window", stats.active_window)?;
        for (field, value) in [
            ("zone_load", stats.zone_load),
            ("zone_blackout", stats.zone_blackout),
        ] {
            if value.is_nan() || value < 0.0 {
                return Err(ConfigError::new(NAME, field, value, "give a number from zero on"));
            }
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_doubles_up_to_its_maximum_and_does_not_overflow() {
        let stats = RibbonStats::default();
        let seconds: Vec<_> = (0..8)
            .map(|failures| stats.blackout(failures).as_secs())
            .collect();
        assert_eq!(seconds, [0, 0, 0, 10, 20, 30, 30, 30]);
        let long = RibbonStats::builder()
            .connection_failures(0)
            .trip_factor(Duration::from_secs(1))
            .trip_max(crate::call::LONGEST)
            .build()
            .unwrap();
        assert_eq!(long.blackout(15).as_secs(), 1 << 15);
        assert_eq!(long.blackout(u32::MAX).as_secs(), 1 << 16, "no further than that");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let field = |builder: RibbonStatsBuilder| builder.build().unwrap_err().field();
        assert_eq!(
            field(RibbonStats::builder().trip_factor(Duration::MAX)),
            "trip_factor"
        );
        assert_eq!(field(RibbonStats::builder().trip_max(Duration::MAX)), "trip_max");
        assert_eq!(
            field(RibbonStats::builder().active_window(Duration::MAX)),
            "active_window"
        );
        assert_eq!(field(RibbonStats::builder().zone_load(-0.1)), "zone_load");
        assert_eq!(
            field(RibbonStats::builder().zone_blackout(f64::NAN)),
            "zone_blackout"
        );
    }
}
