//! Ribbon's rules by the names of their classes.

use std::fmt;

const PACKAGE: &str = "com.netflix.loadbalancer.";

/// A rule of Ribbon's, as `<client>.ribbon.NFLoadBalancerRuleClassName` names it. Default: `ZoneAvoidanceRule`, as in
/// Spring Cloud.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RibbonRule {
    /// In turn.
    RoundRobin,
    /// At random.
    Random,
    /// In turn; where there is nobody to choose, it looks again for 500 ms.
    Retry,
    /// In turn, without servers whose circuit is tripped or that are too busy.
    AvailabilityFiltering,
    /// In turn, in the zones that are well, without servers whose circuit is tripped or that are too busy.
    #[default]
    ZoneAvoidance,
    /// The one with the fewest requests in flight.
    BestAvailable,
    /// At random, fast servers more often.
    WeightedResponseTime,
}

impl RibbonRule {
    const ALL: [RibbonRule; 7] = [
        RibbonRule::RoundRobin,
        RibbonRule::Random,
        RibbonRule::Retry,
        RibbonRule::AvailabilityFiltering,
        RibbonRule::ZoneAvoidance,
        RibbonRule::BestAvailable,
        RibbonRule::WeightedResponseTime,
    ];

    /// The name of its class, without the package.
    pub fn name(self) -> &'static str {
        match self {
            RibbonRule::RoundRobin => "RoundRobinRule",
            RibbonRule::Random => "RandomRule",
            RibbonRule::Retry => "RetryRule",
            RibbonRule::AvailabilityFiltering => "AvailabilityFilteringRule",
            RibbonRule::ZoneAvoidance => "ZoneAvoidanceRule",
            RibbonRule::BestAvailable => "BestAvailableRule",
            RibbonRule::WeightedResponseTime => "WeightedResponseTimeRule",
        }
    }

    /// The rule whose class this is, written with its package as Java wants it.
    pub(super) fn of_class(class: &str) -> Option<Self> {
        let name = class.strip_prefix(PACKAGE)?;
        RibbonRule::ALL.into_iter().find(|rule| rule.name() == name)
    }

    pub(super) fn classes() -> String {
        let classes = RibbonRule::ALL.map(|rule| format!("{PACKAGE}{}", rule.name()));
        classes.join(", ")
    }
}

impl fmt::Display for RibbonRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
