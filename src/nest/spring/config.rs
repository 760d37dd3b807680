//! What the pairs and the setters come to.

use std::time::Duration;

use super::{
    Beans, ErrorDecoder, Limits, Retryer, ReturnType, SpringError, SpringRelease,
    entries::{Entries, SHARED},
    keys::Family,
    value::Isolation,
};
use crate::{balance::RibbonRule, breaker::HystrixRelease, call::StatusSet};

/// The settings of one client, by Spring's keys. Made by [`from_pairs`].
///
/// Setters are for what is a bean in Spring and has no key. They are by value, so that a line of them ends in one of the
/// shells or in the [nest](SpringConfig::nest).
#[derive(Debug, Clone)]
#[must_use]
pub struct SpringConfig {
    pub(super) client: String,
    command: Option<String>,
    pub(super) release: SpringRelease,
    hystrix_release: Option<HystrixRelease>,
    pub(super) entries: Entries,
    pub(super) beans: Beans,
}

/// Reads the settings of this client out of these pairs of a key and a value.
///
/// Keys are Spring's, by their exact names. Where one is given several times the last one counts. The pairs may be
/// those of a whole application: what is about others, and what is not known, is told by
/// [`remarks`](SpringConfig::remarks).
///
/// # Errors
///
/// The first value that its key cannot have, with what it may be.
pub fn from_pairs<K, V>(
    client: impl Into<String>,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> Result<SpringConfig, SpringError>
where
    K: Into<String>,
    V: Into<String>,
{
    let client = client.into();
    let config = SpringConfig {
        entries: Entries::read(&client, pairs)?,
        client,
        command: None,
        release: SpringRelease::default(),
        hystrix_release: None,
        beans: Beans::default(),
    };
    config.check_windows()?;
    Ok(config)
}

/// What Ribbon goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RibbonSettings {
    pub(super) limits: Limits,
    pub(super) spring_retry: bool,
    pub(super) same: u32,
    pub(super) next: u32,
    pub(super) all_operations: bool,
    pub(super) statuses: StatusSet,
    pub(super) rule: RibbonRule,
    pub(super) failures: u32,
    pub(super) trip_factor: Duration,
    pub(super) trip_max: Duration,
    pub(super) filter_tripped: bool,
    pub(super) active_limit: Option<u32>,
    pub(super) active_window: Duration,
    pub(super) zone_load: f64,
    pub(super) zone_blackout: f64,
}

/// What Hystrix goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HystrixSettings {
    /// `None`: it is switched off.
    pub(super) timeout: Option<Duration>,
    /// Is it a pool, which commands share, and not a semaphore?
    pub(super) has_pool: bool,
    pub(super) at_once: u32,
    pub(super) queue: u32,
    pub(super) fallback_enabled: bool,
    pub(super) fallbacks_at_once: u32,
    pub(super) breaker_enabled: bool,
    pub(super) forced_open: bool,
    pub(super) forced_closed: bool,
    pub(super) volume: u32,
    pub(super) error_percent: u32,
    pub(super) sleep_window: Duration,
    pub(super) window: Duration,
    pub(super) snapshot: Duration,
}

const WINDOW: &str = "metrics.rollingStats.timeInMilliseconds";
pub(super) const BUCKETS: &str = "metrics.rollingStats.numBuckets";

fn millis(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

impl SpringConfig {
    /// Which Spring Cloud is meant. Default: Edgware.
    pub fn release(mut self, release: SpringRelease) -> Self {
        self.release = release;
        self
    }

    /// Which Hystrix is meant, where it is not the one of the release.
    pub fn hystrix_release(mut self, release: HystrixRelease) -> Self {
        self.hystrix_release = Some(release);
        self
    }

    /// The key of the command, by which `hystrix.command.<key>.*` is found. Default: the name of the client.
    ///
    /// For a method of a Feign client it is `Interface#method(Parameter,Types)`. In Spring each method has a breaker of its
    /// own.
    pub fn command_key(mut self, key: impl Into<String>) -> Self {
        self.command = Some(key.into());
        self
    }

    /// Feign's retryer. Default: none, as in Spring.
    pub fn retryer(mut self, retryer: Retryer) -> Self {
        self.beans.retryer = retryer;
        self
    }

    /// Feign's error decoder.
    pub fn error_decoder(mut self, decoder: ErrorDecoder) -> Self {
        self.beans.decoder = decoder;
        self
    }

    /// What the method of the client gives back.
    pub fn return_type(mut self, return_type: ReturnType) -> Self {
        self.beans.return_type = return_type;
        self
    }

    /// A bean of type `Request.Options`, which takes the place of Ribbon's limits. Without spring-retry it also switches
    /// Ribbon's retries off, as it has no counts in it.
    pub fn request_options(mut self, options: Limits) -> Self {
        self.beans.options = Some(options);
        self
    }

    /// The attribute `decode404` of the client: a 404 is an answer without a body. The key of that name does the same.
    pub fn decode_404(mut self, yes: bool) -> Self {
        self.beans.decode_404 = yes;
        self
    }

    /// How many bytes of a body are taken at most; more are an error. Default: 16 MiB. Feign takes all there are.
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.beans.max_body = bytes;
        self
    }

    /// Puts a [`Trail`](crate::call::Trail) on every outcome, and not only where an attempt failed. Default: no. It is
    /// nothing that Spring has.
    pub fn record_every_call(mut self, yes: bool) -> Self {
        self.beans.record_every_call = yes;
        self
    }

    /// The name of the client.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The key of the command.
    pub fn command(&self) -> &str {
        self.command.as_deref().unwrap_or(&self.client)
    }

    /// The servers that `listOfServers` names, as they stand there.
    pub fn list_of_servers(&self) -> &[String] {
        let own = self.entries.list(&self.own_ribbon("listOfServers"));
        own.or_else(|| self.entries.list("ribbon.listOfServers"))
            .unwrap_or_default()
    }

    /// Does the nest have Hystrix: is `feign.hystrix.enabled` true? Default: no, as in Spring since Dalston.
    pub fn has_hystrix(&self) -> bool {
        self.entries.flag("feign.hystrix.enabled").unwrap_or(false)
    }

    /// The connect and the read limit of an attempt: Feign's request options if there are some, else Ribbon's.
    pub fn limits(&self) -> Limits {
        self.ribbon_settings().limits
    }

    /// The same for a client with a `url` on its annotation, which goes past Ribbon: Feign's request options, or 10 s and
    /// 60 s.
    pub fn url_limits(&self) -> Limits {
        self.options().unwrap_or(Limits::FEIGN)
    }

    pub(super) fn hystrix_version(&self) -> HystrixRelease {
        self.hystrix_release.unwrap_or(match self.release {
            SpringRelease::Dalston | SpringRelease::Edgware => HystrixRelease::V1_5_12,
            _ => HystrixRelease::V1_5_18,
        })
    }

    /// Is a 404 an answer?
    pub(super) fn decodes_404(&self) -> bool {
        self.beans.decode_404
            || self.release.reads_feign_config()
                && [self.shared_block(), &self.client].iter().any(|block| {
                    let key = format!("feign.client.config.{block}.decode404");
                    self.entries.flag(&key).unwrap_or(false)
                })
    }

    /// Request options other than Spring's default object.
    pub(super) fn options(&self) -> Option<Limits> {
        let bean = self.beans.options;
        if !self.release.reads_feign_config() || !self.properties_win() {
            return bean;
        }
        let blocks = [self.shared_block(), &self.client];
        let millis = |block: &str, name| self.entries.count(&format!("feign.client.config.{block}.{name}"));
        let mut options = bean;
        for block in blocks {
            let (connect, read) = (millis(block, "connectTimeout"), millis(block, "readTimeout"));
            if self.release.any_block_is_options() {
                if self.entries.any_below(&format!("feign.client.config.{block}.")) {
                    let before = options.unwrap_or(Limits::FEIGN);
                    options = Some(Limits {
                        connect: connect
                            .map_or(before.connect, |connect| Limits::from_millis(connect, 0).connect),
                        read: read.map_or(before.read, |read| Limits::from_millis(0, read).read),
                    });
                }
            } else if let (Some(connect), Some(read)) = (connect, read) {
                options = Some(Limits::from_millis(connect, read));
            }
        }
        options
    }

    /// The name of the block that holds for all clients.
    pub(super) fn shared_block(&self) -> &str {
        self.entries.name("feign.client.default-config").unwrap_or(SHARED)
    }

    /// Do keys win over beans? If not, Spring's own bean of request options wins over the keys as well.
    pub(super) fn properties_win(&self) -> bool {
        self.entries
            .flag("feign.client.default-to-properties")
            .unwrap_or(true)
    }

    pub(super) fn own_ribbon(&self, name: &str) -> String {
        format!("{}.ribbon.{name}", self.client)
    }

    pub(super) fn spring_retry(&self) -> bool {
        self.entries
            .flag("spring.cloud.loadbalancer.retry.enabled")
            .unwrap_or(false)
    }

    pub(super) fn ribbon_settings(&self) -> RibbonSettings {
        let count = |name: &str| {
            let own = self.entries.count(&self.own_ribbon(name));
            own.or_else(|| self.entries.count(&format!("ribbon.{name}")))
        };
        let flag = |name: &str| {
            let own = self.entries.flag(&self.own_ribbon(name));
            own.or_else(|| self.entries.flag(&format!("ribbon.{name}")))
        };
        let statuses = self.entries.statuses(&self.own_ribbon("retryableStatusCodes"));
        let statuses = statuses.or_else(|| self.entries.statuses("ribbon.retryableStatusCodes"));
        let stats = |name: &str| {
            self.entries
                .count(&format!("niws.loadbalancer.{}.{name}", self.client))
        };
        let zones = |name: &str| {
            let key = format!("ZoneAwareNIWSDiscoveryLoadBalancer.{}.{name}", self.client);
            self.entries.decimal(&key)
        };
        let active_window = "niws.loadbalancer.serverStats.activeRequestsCount.effectiveWindowSeconds";
        let filtering = |name: &str| format!("niws.loadbalancer.availabilityFilteringRule.{name}");
        let default = self.release.ribbon_limits();
        let by_ribbon = Limits {
            connect: count("ConnectTimeout")
                .map_or(default.connect, |limit| Limits::from_millis(limit, 0).connect),
            read: count("ReadTimeout").map_or(default.read, |limit| Limits::from_millis(0, limit).read),
        };
        let spring_retry = self.spring_retry();
        let options = self.options();
        // Options that are not Spring's own are the whole configuration of a request, and have no counts in them. With
        // spring-retry the counts are read elsewhere.
        let counts = spring_retry || options.is_none();
        RibbonSettings {
            limits: options.unwrap_or(by_ribbon),
            spring_retry,
            same: count("MaxAutoRetries").filter(|_| counts).unwrap_or(0),
            next: match count("MaxAutoRetriesNextServer") {
                _ if !counts => 0,
                next => next.unwrap_or(1),
            },
            all_operations: flag("OkToRetryOnAllOperations").unwrap_or(false),
            statuses: statuses.filter(|_| spring_retry).unwrap_or(StatusSet::EMPTY),
            rule: self
                .entries
                .rule(&self.own_ribbon("NFLoadBalancerRuleClassName"))
                .unwrap_or(RibbonRule::ZoneAvoidance),
            failures: stats("connectionFailureCountThreshold").unwrap_or(3),
            trip_factor: seconds(stats("circuitTripTimeoutFactorSeconds").unwrap_or(10)),
            trip_max: seconds(stats("circuitTripMaxTimeoutSeconds").unwrap_or(30)),
            filter_tripped: self
                .entries
                .flag(&filtering("filterCircuitTripped"))
                .unwrap_or(true),
            active_limit: self
                .entries
                .count(&self.own_ribbon("ActiveConnectionsLimit"))
                .or_else(|| self.entries.count(&filtering("activeConnectionsLimit"))),
            active_window: seconds(self.entries.count(active_window).unwrap_or(600)),
            zone_load: zones("triggeringLoadPerServerThreshold").unwrap_or(0.2),
            zone_blackout: zones("avoidZoneWithBlackoutPercetage").unwrap_or(0.99999),
        }
    }

    pub(super) fn hystrix_settings(&self) -> HystrixSettings {
        let keys =
            |name: &str| [self.command(), SHARED].map(|about| format!("hystrix.command.{about}.{name}"));
        let count = |name, default| {
            keys(name)
                .iter()
                .find_map(|key| self.entries.count(key))
                .unwrap_or(default)
        };
        let flag = |name, default| {
            keys(name)
                .iter()
                .find_map(|key| self.entries.flag(key))
                .unwrap_or(default)
        };
        let timeout = count("execution.isolation.thread.timeoutInMilliseconds", 1000);
        let (at_once, queue) = match self.isolation() {
            Isolation::Semaphore => (
                count("execution.isolation.semaphore.maxConcurrentRequests", 10),
                0,
            ),
            Isolation::Thread => self.pool_size(),
        };
        HystrixSettings {
            timeout: flag("execution.timeout.enabled", true).then(|| millis(timeout)),
            has_pool: self.isolation() == Isolation::Thread,
            at_once,
            queue,
            fallback_enabled: flag("fallback.enabled", true),
            fallbacks_at_once: count("fallback.isolation.semaphore.maxConcurrentRequests", 10),
            breaker_enabled: flag("circuitBreaker.enabled", true),
            forced_open: flag("circuitBreaker.forceOpen", false),
            forced_closed: flag("circuitBreaker.forceClosed", false),
            volume: count("circuitBreaker.requestVolumeThreshold", 20),
            error_percent: count("circuitBreaker.errorThresholdPercentage", 50),
            sleep_window: millis(count("circuitBreaker.sleepWindowInMilliseconds", 5000)),
            window: millis(count(WINDOW, 10_000)),
            snapshot: millis(count("metrics.healthSnapshot.intervalInMilliseconds", 500)),
        }
    }

    pub(super) fn isolation(&self) -> Isolation {
        [self.command(), SHARED]
            .iter()
            .find_map(|about| {
                let key = format!("hystrix.command.{about}.execution.isolation.strategy");
                self.entries.isolation(&key)
            })
            .unwrap_or_default()
    }

    /// The key of the thread pool: the client's name, which all its commands share, unless the command has another.
    pub(super) fn pool_key(&self) -> &str {
        self.entries
            .name(&format!(
                "hystrix.command.{}.threadPoolKeyOverride",
                self.command()
            ))
            .unwrap_or(&self.client)
    }

    fn pool_keys(&self, name: &str) -> [String; 2] {
        [self.pool_key(), SHARED].map(|about| format!("hystrix.threadpool.{about}.{name}"))
    }

    pub(super) fn pool_number(&self, name: &str, default: i64) -> i64 {
        let keys = self.pool_keys(name);
        keys.iter()
            .find_map(|key| self.entries.number(key))
            .unwrap_or(default)
    }

    pub(super) fn pool_may_grow(&self) -> bool {
        let keys = self.pool_keys("allowMaximumSizeToDivergeFromCoreSize");
        keys.iter()
            .find_map(|key| self.entries.flag(key))
            .unwrap_or(false)
    }

    /// How many calls may run at once, and how many may wait.
    fn pool_size(&self) -> (u32, u32) {
        let count = |number: i64| u32::try_from(number).unwrap_or(0);
        let core = self.pool_number("coreSize", 10);
        let queue = self.pool_number("maxQueueSize", -1);
        if queue <= 0 {
            // Handed over directly, so that the pool grows as soon as its core is busy.
            let most = if self.pool_may_grow() {
                core.max(self.pool_number("maximumSize", 10))
            } else {
                core
            };
            return (count(most), 0);
        }
        let threshold = self.pool_number("queueSizeRejectionThreshold", 5);
        (count(core), count(queue.min(threshold)))
    }

    /// Hystrix wants windows whose length its buckets divide.
    fn check_windows(&self) -> Result<(), SpringError> {
        for about in self.entries.about(Family::Command).chain([SHARED]) {
            let find = |name, default: i64| {
                let [own, shared] = [about, SHARED].map(|about| format!("hystrix.command.{about}.{name}"));
                let key = if self.entries.number(&own).is_some() {
                    own
                } else {
                    shared
                };
                (self.entries.number(&key).unwrap_or(default), key)
            };
            let ((window, window_key), (buckets, buckets_key)) = (find(WINDOW, 10_000), find(BUCKETS, 10));
            if window % buckets != 0 {
                let given = self.entries.number(&window_key).is_some();
                let (key, allowed) = if given {
                    (
                        window_key,
                        format!("a multiple of `numBuckets`, which is {buckets}"),
                    )
                } else {
                    (
                        buckets_key,
                        format!("a number that divides the window of {window} ms"),
                    )
                };
                return Err(SpringError::new(&key, self.entries.text(&key), allowed));
            }
        }
        Ok(())
    }
}
