//! The settings of a case, as its oracle and its comparison read them. The stack is built from the properties
//! themselves.

use serde_json::Value;

use crate::{case::Case, hystrix::only};

/// Which client the recorded case ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// A fresh connection for each attempt, and nothing of its own.
    Plain,
    /// Feign's default client, over the JDK's.
    Jdk,
    /// Feign's Apache client.
    Apache,
}

/// Feign's `Retryer.Default`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retryer {
    pub(super) period: u64,
    pub(super) max_period: u64,
    pub(super) max_attempts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoder {
    Default,
    BadRequestOn4xx,
    RetryableOn5xx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReturnType {
    Text,
    Void,
    Response,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    ZoneAvoidance,
    RoundRobin,
    AvailabilityFiltering,
    BestAvailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    None,
    Present,
    Throws,
}

#[derive(Debug, Clone)]
pub(super) struct Hystrix {
    /// In milliseconds, if there is one.
    pub(super) timeout: Option<u64>,
    pub(super) semaphore: bool,
    pub(super) interrupt: bool,
    pub(super) breaker: bool,
    pub(super) volume: u64,
    pub(super) percent: u64,
    pub(super) sleep_window: u64,
    pub(super) snapshot: u64,
    pub(super) window: u64,
    pub(super) fallback: Fallback,
}

/// The settings of a case. Times are in milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) transport: Transport,
    /// Of the machine's time zone from GMT, in minutes.
    pub(super) zone: i64,
    pub(super) connect: u64,
    pub(super) read: u64,
    pub(super) retryer: Option<Retryer>,
    /// Feign 9.7 and later stop at the first pause when they are interrupted; before, pauses collapse.
    pub(super) interrupted_pauses_throw: bool,
    pub(super) decoder: Decoder,
    pub(super) decode404: bool,
    pub(super) return_type: ReturnType,
    pub(super) spring_retry: bool,
    pub(super) retryable_statuses: Vec<u16>,
    pub(super) same: u64,
    pub(super) next: u64,
    pub(super) retry_all: bool,
    pub(super) rule: Rule,
    pub(super) hystrix: Hystrix,
}

/// All that the settings of these levels consist of. What is not here is not understood, and no case may have it.
const KNOWN: [&str; 28] = [
    "transport",
    "user.timezone",
    "feign_version",
    "feign.options.connectTimeoutMillis",
    "feign.options.readTimeoutMillis",
    "feign.retryer",
    "feign.errorDecoder",
    "feign.decode404",
    "fallback",
    "spring.cloud.loadbalancer.retry.enabled",
    "ribbon.ConnectTimeout",
    "ribbon.ReadTimeout",
    "ribbon.MaxAutoRetries",
    "ribbon.MaxAutoRetriesNextServer",
    "ribbon.OkToRetryOnAllOperations",
    "ribbon.retryableStatusCodes",
    "ribbon.NFLoadBalancerRuleClassName",
    "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
    "hystrix.command.default.execution.isolation.thread.interruptOnTimeout",
    "hystrix.command.default.execution.isolation.strategy",
    "hystrix.command.default.execution.timeout.enabled",
    "hystrix.command.default.fallback.enabled",
    "hystrix.command.default.circuitBreaker.enabled",
    "hystrix.command.default.circuitBreaker.requestVolumeThreshold",
    "hystrix.command.default.circuitBreaker.errorThresholdPercentage",
    "hystrix.command.default.circuitBreaker.sleepWindowInMilliseconds",
    "hystrix.command.default.metrics.healthSnapshot.intervalInMilliseconds",
    "hystrix.command.default.metrics.rollingStats.timeInMilliseconds",
];

impl Settings {
    pub(super) fn of(case: &Case) -> Settings {
        let config = case.config().as_object().expect("settings are an object");
        for key in config.keys() {
            assert!(
                KNOWN.contains(&key.as_str()),
                "{}: unknown setting {key}",
                case.id()
            );
        }
        let number = |key: &str, default: u64| match case.setting(key) {
            Value::Null => default,
            value => value.as_u64().unwrap_or_else(|| panic!("{key} = {value}")),
        };
        let flag = |key: &str, default: bool| match case.setting(key) {
            Value::Null => default,
            value => value.as_bool().unwrap_or_else(|| panic!("{key} = {value}")),
        };
        let text = |key: &str| case.setting(key).as_str();
        let explicit = !case.setting("feign.options.connectTimeoutMillis").is_null();
        let spring_retry = flag("spring.cloud.loadbalancer.retry.enabled", false);
        let command = |key: &str| format!("hystrix.command.default.{key}");
        // Request options of its own replace what Ribbon's settings say of the request: its timeouts, and in the
        // variant without spring-retry the numbers of retries too.
        let counts = !explicit || spring_retry;
        let (connect, read) = if explicit {
            (
                number("feign.options.connectTimeoutMillis", 10_000),
                number("feign.options.readTimeoutMillis", 60_000),
            )
        } else {
            (
                number("ribbon.ConnectTimeout", 1000),
                number("ribbon.ReadTimeout", 1000),
            )
        };
        Settings {
            transport: match text("transport").expect("a transport") {
                "one_connection_per_attempt" => Transport::Plain,
                "java_urlconnection" => Transport::Jdk,
                "apache_httpclient" => Transport::Apache,
                other => panic!("transport {other}"),
            },
            zone: text("user.timezone").map_or(0, zone),
            connect,
            read,
            retryer: match case.setting("feign.retryer") {
                Value::Null => None,
                Value::String(never) if never == "never" => None,
                value => {
                    only(value, &["period", "maxPeriod", "maxAttempts"]);
                    Some(Retryer {
                        period: value["period"].as_u64().expect("period"),
                        max_period: value["maxPeriod"].as_u64().expect("maxPeriod"),
                        max_attempts: value["maxAttempts"].as_u64().expect("maxAttempts"),
                    })
                }
            },
            interrupted_pauses_throw: match text("feign_version") {
                None => false,
                Some("9.7.0") => true,
                Some(other) => panic!("feign {other}"),
            },
            decoder: match text("feign.errorDecoder") {
                None => Decoder::Default,
                Some("bad_request_on_4xx") => Decoder::BadRequestOn4xx,
                Some("retryable_on_5xx") => Decoder::RetryableOn5xx,
                Some(other) => panic!("error decoder {other}"),
            },
            decode404: flag("feign.decode404", false),
            return_type: match case.part("request")["return_type"].as_str() {
                None => ReturnType::Text,
                Some("void") => ReturnType::Void,
                Some("response") => ReturnType::Response,
                Some(other) => panic!("return type {other}"),
            },
            spring_retry,
            retryable_statuses: text("ribbon.retryableStatusCodes")
                .unwrap_or_default()
                .split(',')
                .filter_map(|code| code.trim().parse().ok())
                .collect(),
            same: if counts {
                number("ribbon.MaxAutoRetries", 0)
            } else {
                0
            },
            next: if counts {
                number("ribbon.MaxAutoRetriesNextServer", 1)
            } else {
                0
            },
            retry_all: flag("ribbon.OkToRetryOnAllOperations", false),
            rule: match text("ribbon.NFLoadBalancerRuleClassName")
                .map(|name| name.rsplit('.').next().unwrap())
            {
                None | Some("ZoneAvoidanceRule") => Rule::ZoneAvoidance,
                Some("RoundRobinRule") => Rule::RoundRobin,
                Some("AvailabilityFilteringRule") => Rule::AvailabilityFiltering,
                Some("BestAvailableRule") => Rule::BestAvailable,
                Some(other) => panic!("rule {other}"),
            },
            hystrix: Hystrix {
                timeout: flag(&command("execution.timeout.enabled"), true)
                    .then(|| number(&command("execution.isolation.thread.timeoutInMilliseconds"), 1000)),
                semaphore: match text(&command("execution.isolation.strategy")) {
                    None | Some("THREAD") => false,
                    Some("SEMAPHORE") => true,
                    Some(other) => panic!("isolation {other}"),
                },
                interrupt: flag(&command("execution.isolation.thread.interruptOnTimeout"), true),
                breaker: flag(&command("circuitBreaker.enabled"), true),
                volume: number(&command("circuitBreaker.requestVolumeThreshold"), 20),
                percent: number(&command("circuitBreaker.errorThresholdPercentage"), 50),
                sleep_window: number(&command("circuitBreaker.sleepWindowInMilliseconds"), 5000),
                snapshot: number(&command("metrics.healthSnapshot.intervalInMilliseconds"), 500),
                window: number(&command("metrics.rollingStats.timeInMilliseconds"), 10_000),
                fallback: match text("fallback") {
                    None => Fallback::None,
                    Some("present") => Fallback::Present,
                    Some("throws") => Fallback::Throws,
                    Some(other) => panic!("fallback {other}"),
                },
            },
        }
    }
}

/// A zone by its distance, as `GMT-05:00`.
fn zone(name: &str) -> i64 {
    let distance = name
        .strip_prefix("GMT")
        .unwrap_or_else(|| panic!("time zone {name}"));
    let (hours, minutes) = distance.split_once(':').unwrap_or((distance, "0"));
    if hours.is_empty() {
        return 0;
    }
    let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("time zone {name}"));
    let hours = number(hours);
    hours * 60 + number(minutes) * hours.signum()
}
