//! Which keys do nothing, as the other settings are.

use super::{
    Reason, Remark, SpringConfig,
    config::BUCKETS,
    entries::SHARED,
    keys::{Family, Known},
    value::Isolation,
};
use crate::balance::RibbonRule;

const NO_HYSTRIX: &str = "the nest has no Hystrix, since `feign.hystrix.enabled` is not true";

impl SpringConfig {
    /// The keys that do nothing in the nest, with the reason, in the order in which they were given.
    ///
    /// There is one for each key that was given and is not acted on, so none is passed over in silence. They are about the
    /// setters that were called before.
    ///
    /// ```
    /// use tower_outbound::nest::spring::{self, Reason};
    ///
    /// let config = spring::from_pairs(
    ///     "orders",
    ///     [("ribbon.readTimeout", "3000"), ("ribbon.MaxTotalConnections", "400")],
    /// )?;
    /// let remarks = config.remarks();
    /// assert_eq!(remarks[0].reason(), &Reason::Misspelled { name: "ribbon.ReadTimeout".into() });
    /// assert!(remarks[1].to_string().contains("the client that you bring"));
    /// # Ok::<(), spring::SpringError>(())
    /// ```
    pub fn remarks(&self) -> Vec<Remark> {
        self.entries.remarks(|key, known| match known.family {
            Family::Ribbon => self.idle_ribbon(known),
            Family::FeignConfig => self.idle_feign(key, known),
            Family::Command => self.idle_command(known),
            Family::Pool => self.idle_pool(known),
            Family::Single => self.idle_single(known),
            Family::Zones | Family::ServerStats => None,
        })
    }

    fn idle_ribbon(&self, known: &Known) -> Option<Reason> {
        let options = self.options().is_some();
        let without = |why| Some(Reason::WithoutEffect(why));
        match known.name {
            "ConnectTimeout" | "ReadTimeout" if options => {
                without("request options of Feign take the place of Ribbon's limits")
            }
            "MaxAutoRetries" | "MaxAutoRetriesNextServer" | "OkToRetryOnAllOperations"
                if options && !self.spring_retry() =>
            {
                without(
                    "request options of Feign switch Ribbon's retries off, unless spring-retry makes them",
                )
            }
            "retryableStatusCodes" if !self.spring_retry() => {
                without("statuses are retried with `spring.cloud.loadbalancer.retry.enabled=true` alone")
            }
            "ActiveConnectionsLimit" => self.idle_filter(),
            "listOfServers" => Some(Reason::NotActedOn(
                "the nest calls the endpoints that you give; the list is at hand as `list_of_servers()`",
            )),
            _ => None,
        }
    }

    /// The settings of a filter that the rule does not have.
    fn idle_filter(&self) -> Option<Reason> {
        let filters = matches!(
            self.ribbon_settings().rule,
            RibbonRule::AvailabilityFiltering | RibbonRule::ZoneAvoidance
        );
        (!filters).then_some(Reason::WithoutEffect("the rule does not look at it"))
    }

    fn idle_feign(&self, key: &str, known: &Known) -> Option<Reason> {
        if known.about != self.client && known.about != self.shared_block() {
            return Some(Reason::OtherClient);
        }
        if !self.release.reads_feign_config() {
            return Some(Reason::NotInRelease(self.release));
        }
        let other = match known.name {
            "connectTimeout" => "readTimeout",
            "readTimeout" => "connectTimeout",
            _ => return None,
        };
        if !self.properties_win() {
            return Some(Reason::WithoutEffect(
                "with `feign.client.default-to-properties=false` Spring's own bean of request options wins",
            ));
        }
        let stem = key.strip_suffix(known.name)?;
        let alone = self.entries.number(&format!("{stem}{other}")).is_none();
        (alone && !self.release.any_block_is_options()).then_some(Reason::WithoutEffect(
            "`connectTimeout` and `readTimeout` act only together, in one block",
        ))
    }

    fn idle_command(&self, known: &Known) -> Option<Reason> {
        let without = |why| Some(Reason::WithoutEffect(why));
        let shared = known.about == SHARED;
        if !shared && known.about != self.command() {
            return Some(Reason::OtherCommand);
        }
        if !self.has_hystrix() {
            return without(NO_HYSTRIX);
        }
        let settings = self.hystrix_settings();
        match known.name {
            "threadPoolKeyOverride" if shared => without("it is read for each command alone"),
            BUCKETS => Some(Reason::NotActedOn(
                "it must divide the window, and nothing else comes of it",
            )),
            "execution.isolation.thread.timeoutInMilliseconds" if settings.timeout.is_none() => {
                without("`execution.timeout.enabled` is false")
            }
            "execution.isolation.semaphore.maxConcurrentRequests"
                if self.isolation() == Isolation::Thread =>
            {
                without("the isolation is THREAD")
            }
            "fallback.isolation.semaphore.maxConcurrentRequests" if !settings.fallback_enabled => {
                without("`fallback.enabled` is false")
            }
            name if name.starts_with("circuitBreaker.")
                && name != "circuitBreaker.enabled"
                && !settings.breaker_enabled =>
            {
                without("`circuitBreaker.enabled` is false")
            }
            _ => None,
        }
    }

    fn idle_pool(&self, known: &Known) -> Option<Reason> {
        let without = |why| Some(Reason::WithoutEffect(why));
        if known.about != SHARED && known.about != self.pool_key() {
            return Some(Reason::OtherCommand);
        }
        if !self.has_hystrix() {
            return without(NO_HYSTRIX);
        }
        if self.isolation() == Isolation::Semaphore {
            return without("the isolation is SEMAPHORE");
        }
        let queue = self.pool_number("maxQueueSize", -1) > 0;
        match known.name {
            "maximumSize" if !self.pool_may_grow() => {
                without("`allowMaximumSizeToDivergeFromCoreSize` is not true")
            }
            "maximumSize" | "allowMaximumSizeToDivergeFromCoreSize" if queue => {
                Some(Reason::NotActedOn("a pool with a queue has its core alone"))
            }
            "queueSizeRejectionThreshold" if !queue => without("there is no queue"),
            _ => None,
        }
    }

    fn idle_single(&self, known: &Known) -> Option<Reason> {
        match known.name {
            "niws.loadbalancer.availabilityFilteringRule.filterCircuitTripped" => self.idle_filter(),
            "niws.loadbalancer.availabilityFilteringRule.activeConnectionsLimit" => {
                let own = self.own_ribbon("ActiveConnectionsLimit");
                let overruled = self.entries.number(&own).is_some();
                let overruled = overruled.then_some(Reason::WithoutEffect(
                    "the client has an `ActiveConnectionsLimit` of its own",
                ));
                self.idle_filter().or(overruled)
            }
            "feign.client.default-config" | "feign.client.default-to-properties"
                if !self.release.reads_feign_config() =>
            {
                Some(Reason::NotInRelease(self.release))
            }
            _ => None,
        }
    }
}
