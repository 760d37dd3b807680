//! Spring's keys: which there are, and what is done by them.
//!
//! The names were read in the sources of the releases that [`SpringRelease`](super::SpringRelease) lists, misspelled
//! ones included.

use super::value::Kind;

/// What is done by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It is acted on.
    Acts(Kind),
    /// It is not, and this is why.
    Not(&'static str),
}

/// Keys with the same beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// `ribbon.X` and `<client>.ribbon.X`.
    Ribbon,
    /// `niws.loadbalancer.<client>.X`.
    ServerStats,
    /// `ZoneAwareNIWSDiscoveryLoadBalancer.<client>.X`.
    Zones,
    /// `feign.client.config.<client>.X`.
    FeignConfig,
    /// `hystrix.command.<key>.X`.
    Command,
    /// `hystrix.threadpool.<key>.X`.
    Pool,
    /// A key of its own.
    Single,
}

/// A key that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) family: Family,
    /// The client or the command that it is about. Empty: all.
    pub(super) about: String,
    /// The name within the family.
    pub(super) name: &'static str,
    pub(super) meaning: Meaning,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Known(Known),
    /// It is close to this one.
    Near(String),
    Nothing,
}

const COUNT: Meaning = Meaning::Acts(Kind::Number { least: 0 });
const SPAN: Meaning = Meaning::Acts(Kind::Number { least: 1 });
const FLAG: Meaning = Meaning::Acts(Kind::Flag);

const CONNECTIONS: Meaning = Meaning::Not("connections belong to the client that you bring");
const CLIENT: Meaning =
    Meaning::Not("it chooses or sets up an HTTP client in Java; bring a client of your own");
const REDIRECTS: Meaning = Meaning::Not("no redirect is followed, unless your client does");
const DISCOVERY: Meaning = Meaning::Not("endpoints come from the set that you give");
const PING: Meaning =
    Meaning::Not("servers are not pinged; attach `probe::ActiveProbes` to the set, which has these settings");
const TLS: Meaning = Meaning::Not("the scheme is in the address of each endpoint");
const CODEC: Meaning = Meaning::Not("bodies are encoded and decoded above the nest");
const BEAN: Meaning = Meaning::Not("Java classes cannot be loaded here; use the setter of that name");
const REQUEST: Meaning = Meaning::Not("set it on the requests, or in a layer above");
const LOGGING: Meaning = Meaning::Not("nothing is logged by it; each outcome carries its trail");
const INTERRUPTS: Meaning = Meaning::Not("work always stops when its call has ended");
const METRICS: Meaning = Meaning::Not("these figures are not kept");
const CACHE: Meaning = Meaning::Not("requests are neither cached nor collapsed");
const THREADS: Meaning = Meaning::Not("calls are not bound to threads");
const RIBBON_ZONES: Meaning = Meaning::Not("zones are handled with their defaults");

const RIBBON: &[(&str, Meaning)] = &[
    ("ConnectTimeout", COUNT),
    ("ReadTimeout", COUNT),
    ("MaxAutoRetries", COUNT),
    ("MaxAutoRetriesNextServer", COUNT),
    ("OkToRetryOnAllOperations", FLAG),
    ("retryableStatusCodes", Meaning::Acts(Kind::Statuses)),
    ("NFLoadBalancerRuleClassName", Meaning::Acts(Kind::Rule)),
    ("ActiveConnectionsLimit", COUNT),
    (
        "ServerWeightTaskTimerInterval",
        Meaning::Not("weights are worked out every 30 s"),
    ),
    ("listOfServers", Meaning::Acts(Kind::List)),
    ("FollowRedirects", REDIRECTS),
    ("MaxConnectionsPerHost", CONNECTIONS),
    ("MaxTotalConnections", CONNECTIONS),
    ("MaxHttpConnectionsPerHost", CONNECTIONS),
    ("MaxTotalHttpConnections", CONNECTIONS),
    ("ConnectionManagerTimeout", CONNECTIONS),
    ("PoolMaxThreads", CONNECTIONS),
    ("PoolMinThreads", CONNECTIONS),
    ("PoolKeepAliveTime", CONNECTIONS),
    ("PoolKeepAliveTimeUnits", CONNECTIONS),
    ("EnableConnectionPool", CONNECTIONS),
    ("ConnectionPoolCleanerTaskEnabled", CONNECTIONS),
    ("ConnectionCleanerRepeatInterval", CONNECTIONS),
    ("ConnIdleEvictTimeMilliSeconds", CONNECTIONS),
    ("GZipPayload", CODEC),
    ("IsSecure", TLS),
    ("Port", TLS),
    ("SecurePort", TLS),
    ("ForceClientPortConfiguration", TLS),
    ("UseIPAddrForServer", DISCOVERY),
    ("NFLoadBalancerClassName", DISCOVERY),
    ("NFLoadBalancerPingClassName", PING),
    ("NFLoadBalancerPingInterval", PING),
    ("NFLoadBalancerMaxTotalPingTime", PING),
    ("NIWSServerListClassName", DISCOVERY),
    ("NIWSServerListFilterClassName", DISCOVERY),
    ("ServerListRefreshInterval", DISCOVERY),
    ("ServerListUpdaterClassName", DISCOVERY),
    ("DeploymentContextBasedVipAddresses", DISCOVERY),
    ("EnableZoneAffinity", RIBBON_ZONES),
    ("EnableZoneExclusivity", RIBBON_ZONES),
    ("PrioritizeVipAddressBasedServers", DISCOVERY),
    ("TargetRegion", DISCOVERY),
    ("zoneAffinity.maxLoadPerServer", RIBBON_ZONES),
    ("zoneAffinity.maxBlackOutServesrPercentage", RIBBON_ZONES),
    ("zoneAffinity.minAvailableServers", RIBBON_ZONES),
    ("ServerListSubsetFilter.size", DISCOVERY),
    ("ServerListSubsetFilter.forceEliminatePercent", DISCOVERY),
    ("ServerListSubsetFilter.eliminationFailureThresold", DISCOVERY),
    ("ServerListSubsetFilter.eliminationConnectionThresold", DISCOVERY),
    ("EnablePrimeConnections", CONNECTIONS),
    (
        "BackoffTimeout",
        Meaning::Not("Ribbon never paused between attempts on this path"),
    ),
];

const SERVER_STATS: &[(&str, Meaning)] = &[
    ("connectionFailureCountThreshold", SPAN),
    ("circuitTripTimeoutFactorSeconds", COUNT),
    ("circuitTripMaxTimeoutSeconds", COUNT),
];

const ZONES: &[(&str, Meaning)] = &[
    ("triggeringLoadPerServerThreshold", Meaning::Acts(Kind::Decimal)),
    ("avoidZoneWithBlackoutPercetage", Meaning::Acts(Kind::Decimal)),
];

const FEIGN_CONFIG: &[(&str, Meaning)] = &[
    ("connectTimeout", COUNT),
    ("readTimeout", COUNT),
    ("decode404", FLAG),
    ("loggerLevel", LOGGING),
    ("retryer", BEAN),
    ("errorDecoder", BEAN),
    ("encoder", CODEC),
    ("decoder", CODEC),
    ("contract", CODEC),
    ("requestInterceptors", REQUEST),
    ("defaultRequestHeaders", REQUEST),
    ("defaultQueryParameters", REQUEST),
    ("followRedirects", REDIRECTS),
    (
        "exceptionPropagationPolicy",
        Meaning::Not("the source of each error is there"),
    ),
];

const COMMAND: &[(&str, Meaning)] = &[
    ("execution.isolation.strategy", Meaning::Acts(Kind::Isolation)),
    ("execution.isolation.thread.timeoutInMilliseconds", SPAN),
    ("execution.timeout.enabled", FLAG),
    ("execution.isolation.semaphore.maxConcurrentRequests", COUNT),
    ("execution.isolation.thread.interruptOnTimeout", INTERRUPTS),
    ("execution.isolation.thread.interruptOnFutureCancel", INTERRUPTS),
    ("fallback.enabled", FLAG),
    ("fallback.isolation.semaphore.maxConcurrentRequests", COUNT),
    ("circuitBreaker.enabled", FLAG),
    ("circuitBreaker.forceOpen", FLAG),
    ("circuitBreaker.forceClosed", FLAG),
    ("circuitBreaker.requestVolumeThreshold", COUNT),
    ("circuitBreaker.sleepWindowInMilliseconds", COUNT),
    ("circuitBreaker.errorThresholdPercentage", COUNT),
    ("metrics.rollingStats.timeInMilliseconds", SPAN),
    ("metrics.rollingStats.numBuckets", SPAN),
    ("metrics.healthSnapshot.intervalInMilliseconds", SPAN),
    ("metrics.rollingPercentile.enabled", METRICS),
    ("metrics.rollingPercentile.timeInMilliseconds", METRICS),
    ("metrics.rollingPercentile.numBuckets", METRICS),
    ("metrics.rollingPercentile.bucketSize", METRICS),
    ("requestCache.enabled", CACHE),
    ("requestLog.enabled", LOGGING),
    ("threadPoolKeyOverride", Meaning::Acts(Kind::Text)),
];

const POOL: &[(&str, Meaning)] = &[
    ("coreSize", SPAN),
    ("maximumSize", SPAN),
    ("allowMaximumSizeToDivergeFromCoreSize", FLAG),
    ("maxQueueSize", Meaning::Acts(Kind::Number { least: -1 })),
    ("queueSizeRejectionThreshold", COUNT),
    ("keepAliveTimeMinutes", THREADS),
    ("metrics.rollingStats.timeInMilliseconds", METRICS),
    ("metrics.rollingStats.numBuckets", METRICS),
];

const SINGLE: &[(&str, Meaning)] = &[
    ("feign.hystrix.enabled", FLAG),
    ("feign.client.default-config", Meaning::Acts(Kind::Text)),
    ("feign.client.default-to-properties", FLAG),
    ("feign.client.decode-slash", REQUEST),
    ("spring.cloud.loadbalancer.retry.enabled", FLAG),
    (
        "niws.loadbalancer.availabilityFilteringRule.filterCircuitTripped",
        FLAG,
    ),
    (
        "niws.loadbalancer.availabilityFilteringRule.activeConnectionsLimit",
        COUNT,
    ),
    (
        "niws.loadbalancer.serverStats.activeRequestsCount.effectiveWindowSeconds",
        COUNT,
    ),
    (
        "niws.loadbalancer.serverStats.expire.minutes",
        Meaning::Not("figures go with their endpoint"),
    ),
    ("niws.loadbalancer.zoneAvoidanceRule.enabled", RIBBON_ZONES),
    ("ribbon.eureka.enabled", DISCOVERY),
    ("ribbon.eureka.approximateZoneFromHostname", DISCOVERY),
    ("ribbon.secure-ports", TLS),
    (
        "ribbon.eager-load.enabled",
        Meaning::Not("a nest is there once it is built"),
    ),
    (
        "ribbon.eager-load.clients",
        Meaning::Not("a nest is there once it is built"),
    ),
    ("ribbon.httpclient.enabled", CLIENT),
    ("ribbon.okhttp.enabled", CLIENT),
    ("ribbon.restclient.enabled", CLIENT),
    ("ribbon.http.client.enabled", CLIENT),
    (
        "feign.circuitbreaker.enabled",
        Meaning::Not("Spring Cloud CircuitBreaker is not reproduced"),
    ),
    ("hystrix.shareSecurityContext", THREADS),
];

/// Whatever begins so.
const BRANCHES: &[(&str, Meaning)] = &[
    ("eureka.", DISCOVERY),
    ("feign.httpclient.", CLIENT),
    ("feign.okhttp.", CLIENT),
    ("feign.compression.", CODEC),
    (
        "feign.circuitbreaker.",
        Meaning::Not("Spring Cloud CircuitBreaker is not reproduced"),
    ),
    ("hystrix.collapser.", CACHE),
    ("hystrix.metrics.", METRICS),
    ("hystrix.stream.", METRICS),
    ("hystrix.config.", METRICS),
    (
        "spring.cloud.loadbalancer.",
        Meaning::Not("Spring Cloud LoadBalancer is not reproduced"),
    ),
    (
        "spring.cloud.openfeign.",
        Meaning::Not("this is the name since 2022.0, when Ribbon and Hystrix were gone; write `feign.`"),
    ),
    ("ZoneAwareNIWSDiscoveryLoadBalancer.", RIBBON_ZONES),
    ("DynamicServerListLoadBalancer.", THREADS),
];

/// What is known of this key, read for this client.
pub(super) fn find(key: &str, client: &str) -> Found {
    let known = |family, about: &str, name, meaning| {
        Found::Known(Known {
            family,
            about: about.to_owned(),
            name,
            meaning,
        })
    };
    if let Some((name, meaning)) = SINGLE.iter().find(|(name, _)| *name == key) {
        return known(Family::Single, "", name, *meaning);
    }
    let Some(place) = place(key, client) else {
        return outside(key, known);
    };
    if let Some((name, meaning, about)) = place.find(|given, name| given == name) {
        return known(place.family, about, name, meaning);
    }
    match place.find(|given, name| folded(given) == folded(name)) {
        Some((name, _, about)) => {
            let beginning = match about {
                "" => place.before.to_owned(),
                about => format!("{}{about}{}", place.before, place.after),
            };
            Found::Near(format!("{beginning}{name}"))
        }
        None => outside(key, known),
    }
}

/// Keys that belong to no family with a name in it.
fn outside(key: &str, known: impl Fn(Family, &str, &'static str, Meaning) -> Found) -> Found {
    if let Some((name, _)) = SINGLE.iter().find(|(name, _)| folded(name) == folded(key)) {
        return Found::Near((*name).to_owned());
    }
    match BRANCHES.iter().find(|(branch, _)| key.starts_with(branch)) {
        Some((branch, meaning)) => known(Family::Single, "", branch, *meaning),
        None => Found::Nothing,
    }
}

/// Where in a family a key is.
struct Place<'a> {
    family: Family,
    table: &'static [(&'static str, Meaning)],
    before: &'static str,
    after: &'static str,
    about: About<'a>,
}

/// How what it is about, and its name, are found.
enum About<'a> {
    /// They are known apart.
    Apart { about: &'a str, name: &'a str },
    /// What it is about may have dots in it, so the name is what the rest ends with.
    Joined(&'a str),
}

fn place<'a>(key: &'a str, client: &str) -> Option<Place<'a>> {
    let joined = |family, table, before, rest| Place {
        family,
        table,
        before,
        after: ".",
        about: About::Joined(rest),
    };
    if let Some(rest) = key.strip_prefix("hystrix.command.") {
        return Some(joined(Family::Command, COMMAND, "hystrix.command.", rest));
    }
    if let Some(rest) = key.strip_prefix("hystrix.threadpool.") {
        return Some(joined(Family::Pool, POOL, "hystrix.threadpool.", rest));
    }
    if let Some(rest) = key.strip_prefix("niws.loadbalancer.") {
        return Some(joined(
            Family::ServerStats,
            SERVER_STATS,
            "niws.loadbalancer.",
            rest,
        ));
    }
    if let Some(rest) = key.strip_prefix("ZoneAwareNIWSDiscoveryLoadBalancer.") {
        return Some(joined(
            Family::Zones,
            ZONES,
            "ZoneAwareNIWSDiscoveryLoadBalancer.",
            rest,
        ));
    }
    if let Some(rest) = key.strip_prefix("feign.client.config.") {
        let own = rest.strip_prefix(client).and_then(|rest| rest.strip_prefix('.'));
        let (about, name) = match own {
            Some(name) => (&rest[..client.len()], name),
            None => rest.split_once('.')?,
        };
        return Some(Place {
            family: Family::FeignConfig,
            table: FEIGN_CONFIG,
            before: "feign.client.config.",
            after: ".",
            about: About::Apart { about, name },
        });
    }
    let (about, name) = match key.strip_prefix("ribbon.") {
        Some(name) => ("", name),
        // One about nobody is not one about all.
        None => key
            .split_once(".ribbon.")
            .filter(|(client, _)| !client.trim().is_empty())?,
    };
    Some(Place {
        family: Family::Ribbon,
        table: RIBBON,
        before: if about.is_empty() { "ribbon." } else { "" },
        after: ".ribbon.",
        about: About::Apart { about, name },
    })
}

impl<'a> Place<'a> {
    fn find(&self, same: impl Fn(&str, &str) -> bool) -> Option<(&'static str, Meaning, &'a str)> {
        self.table.iter().find_map(|&(name, meaning)| {
            let about = match self.about {
                About::Apart { about, name: given } => {
                    // A list or a map: what is in it is part of the key.
                    let stem = match meaning {
                        Meaning::Not(_) if !name.contains('.') => given.split(['.', '[']).next(),
                        _ => Some(given),
                    };
                    stem.filter(|stem| same(stem, name)).map(|_| about)
                }
                About::Joined(rest) => {
                    // As many parts from its end as the name has.
                    let parts = name.matches('.').count() + 1;
                    let dot = rest.rmatch_indices('.').nth(parts - 1)?.0;
                    Some(&rest[..dot]).filter(|_| same(&rest[dot + 1..], name))
                }
            };
            about.map(|about| (name, meaning, about))
        })
    }
}

/// How a name is compared that may be written in another way.
fn folded(name: &str) -> String {
    name.chars()
        .filter(|letter| !matches!(letter, '-' | '_'))
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(key: &str) -> (Family, String, &'static str) {
        match find(key, "my.orders") {
            Found::Known(known) => (known.family, known.about, known.name),
            other => panic!("{key}: {other:?}"),
        }
    }

    #[test]
    fn a_key_is_taken_apart_where_its_family_says() {
        for (key, family, about, name) in [
            ("ribbon.ReadTimeout", Family::Ribbon, "", "ReadTimeout"),
            (
                "my.orders.ribbon.ReadTimeout",
                Family::Ribbon,
                "my.orders",
                "ReadTimeout",
            ),
            (
                "stock.ribbon.zoneAffinity.minAvailableServers",
                Family::Ribbon,
                "stock",
                "zoneAffinity.minAvailableServers",
            ),
            (
                "ribbon.eureka.enabled",
                Family::Single,
                "",
                "ribbon.eureka.enabled",
            ),
            (
                "hystrix.command.default.circuitBreaker.enabled",
                Family::Command,
                "default",
                "circuitBreaker.enabled",
            ),
            (
                "hystrix.command.A#b(List.C).fallback.enabled",
                Family::Command,
                "A#b(List.C)",
                "fallback.enabled",
            ),
            (
                "hystrix.threadpool.my.orders.coreSize",
                Family::Pool,
                "my.orders",
                "coreSize",
            ),
            (
                "ZoneAwareNIWSDiscoveryLoadBalancer.my.orders.avoidZoneWithBlackoutPercetage",
                Family::Zones,
                "my.orders",
                "avoidZoneWithBlackoutPercetage",
            ),
            (
                "niws.loadbalancer.my.orders.connectionFailureCountThreshold",
                Family::ServerStats,
                "my.orders",
                "connectionFailureCountThreshold",
            ),
            (
                "feign.client.config.my.orders.readTimeout",
                Family::FeignConfig,
                "my.orders",
                "readTimeout",
            ),
            (
                "feign.client.config.default.requestInterceptors[0]",
                Family::FeignConfig,
                "default",
                "requestInterceptors",
            ),
            (
                "feign.client.config.stock.defaultRequestHeaders.x-a",
                Family::FeignConfig,
                "stock",
                "defaultRequestHeaders",
            ),
            (
                "feign.client.decode-slash",
                Family::Single,
                "",
                "feign.client.decode-slash",
            ),
            (
                "eureka.client.service-url.defaultZone",
                Family::Single,
                "",
                "eureka.",
            ),
        ] {
            assert_eq!(known(key), (family, about.to_owned(), name), "{key}");
        }
    }

    #[test]
    fn another_spelling_is_told_with_the_one_that_is_read() {
        for (key, near) in [
            ("ribbon.readTimeout", "ribbon.ReadTimeout"),
            ("stock.ribbon.max-auto-retries", "stock.ribbon.MaxAutoRetries"),
            (
                "hystrix.command.default.circuit-breaker.enabled",
                "hystrix.command.default.circuitBreaker.enabled",
            ),
            (
                "hystrix.threadpool.default.core-size",
                "hystrix.threadpool.default.coreSize",
            ),
            (
                "feign.client.config.default.read-timeout",
                "feign.client.config.default.readTimeout",
            ),
            ("feign.client.defaultConfig", "feign.client.default-config"),
        ] {
            assert_eq!(find(key, "orders"), Found::Near(near.to_owned()), "{key}");
        }
    }

    #[test]
    fn what_is_in_no_family_is_unknown() {
        for key in [
            "server.port",
            "ribbon.Nonsense",
            "hystrix.command.default",
            "hystrix.command.enabled",
            "niws.loadbalancer.x",
            ".ribbon.ReadTimeout",
            " .ribbon.ReadTimeout",
            ".ribbon.readTimeout",
            "",
        ] {
            assert_eq!(find(key, "orders"), Found::Nothing, "{key}");
        }
    }
}
