//! Ribbon's rules, pick by pick.

mod availability_filtering;
mod best_available;
mod position;
mod round_robin;
mod weighted;
mod zone_avoidance;
mod zone_aware;
mod zones;

use std::{fmt, sync::Arc};

use tokio::time::Duration;

pub use self::{
    availability_filtering::AvailabilityFiltering, best_available::BestAvailable,
    round_robin::RibbonRoundRobin, weighted::WeightedResponseTime, zone_avoidance::ZoneAvoidance,
    zone_aware::ZoneAware,
};
use super::{super::WhenEmpty, Candidate, Random, Rule};
use crate::call::Veto;

/// Any of Ribbon's seven rules, by name, for settings that are read from somewhere.
///
/// It is displayed as the class is named in Ribbon.
///
/// ```
/// use tower_outbound::balance::{LoadBalanceLayer, RibbonRule};
/// use tower_outbound::call::Endpoints;
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let rule = RibbonRule::ZoneAvoidance;
/// let layer = LoadBalanceLayer::new(endpoints).rule(rule.zone_aware()).when_empty(rule.when_empty())?;
/// assert_eq!(rule.to_string(), "ZoneAvoidanceRule");
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RibbonRule {
    /// [`RibbonRoundRobin`]: `RoundRobinRule`.
    RoundRobin,
    /// [`Random`]: `RandomRule`.
    Random,
    /// [`AvailabilityFiltering`]: `AvailabilityFilteringRule`, which Ribbon has by itself.
    AvailabilityFiltering,
    /// [`ZoneAvoidance`]: `ZoneAvoidanceRule`, which Spring has if nothing else is said.
    ZoneAvoidance,
    /// [`BestAvailable`]: `BestAvailableRule`.
    BestAvailable,
    /// [`WeightedResponseTime`]: `WeightedResponseTimeRule`.
    WeightedResponseTime,
    /// [`RibbonRoundRobin`] with a [wait](RibbonRule::when_empty) of 500 ms for a server that is alive: `RetryRule`.
    Retry,
}

impl RibbonRule {
    /// All of them.
    pub const ALL: [RibbonRule; 7] = [
        RibbonRule::RoundRobin,
        RibbonRule::Random,
        RibbonRule::AvailabilityFiltering,
        RibbonRule::ZoneAvoidance,
        RibbonRule::BestAvailable,
        RibbonRule::WeightedResponseTime,
        RibbonRule::Retry,
    ];

    /// A new one of these.
    pub fn rule(self) -> Arc<dyn Rule + Send + Sync> {
        match self {
            RibbonRule::RoundRobin | RibbonRule::Retry => Arc::new(RibbonRoundRobin::new()),
            RibbonRule::Random => Arc::new(Random::new()),
            RibbonRule::AvailabilityFiltering => Arc::new(AvailabilityFiltering::new()),
            RibbonRule::ZoneAvoidance => Arc::new(ZoneAvoidance::new()),
            RibbonRule::BestAvailable => Arc::new(BestAvailable::new()),
            RibbonRule::WeightedResponseTime => Arc::new(WeightedResponseTime::new()),
        }
    }

    /// A new one of these behind the choice of a zone, as Spring has every rule.
    pub fn zone_aware(self) -> ZoneAware<Arc<dyn Rule + Send + Sync>> {
        ZoneAware::new(move || self.rule())
    }

    /// What [`when_empty`](super::super::LoadBalanceLayer::when_empty) belongs to it: a wait of 500 ms to
    /// [`Retry`](RibbonRule::Retry), none to the others. Ribbon spends that time asking over and over; here the call
    /// waits, and is asked again every 10 ms.
    pub fn when_empty(self) -> WhenEmpty {
        match self {
            RibbonRule::Retry => WhenEmpty::Wait(Duration::from_millis(500)),
            _ => WhenEmpty::FailAtOnce,
        }
    }
}

impl fmt::Display for RibbonRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RibbonRule::RoundRobin => "RoundRobinRule",
            RibbonRule::Random => "RandomRule",
            RibbonRule::AvailabilityFiltering => "AvailabilityFilteringRule",
            RibbonRule::ZoneAvoidance => "ZoneAvoidanceRule",
            RibbonRule::BestAvailable => "BestAvailableRule",
            RibbonRule::WeightedResponseTime => "WeightedResponseTimeRule",
            RibbonRule::Retry => "RetryRule",
        })
    }
}

/// Ribbon's "alive": there it is its ping that says no.
fn is_alive(candidate: Candidate<'_>) -> bool {
    candidate.endpoint().eligibility().is_eligible()
}

/// The rules that do not look at "alive" disregard a probe as well. Other vetoes have nothing like them in Ribbon, and
/// whoever gives one means it.
fn is_allowed(candidate: Candidate<'_>) -> bool {
    candidate
        .endpoint()
        .eligibility()
        .is_eligible_apart_from(Veto::Probe)
}

fn is_available(candidate: Candidate<'_>) -> bool {
    is_allowed(candidate) && candidate.is_available()
}
