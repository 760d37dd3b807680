//! What keys and setters come to.

use std::time::Duration;

use tower_outbound::nest::spring::{self, Limits, Reason, SpringConfig, SpringError, SpringRelease};

const GET: &str = "hystrix.command.OrderClient#get(String)";
const ALL: &str = "hystrix.command.default";

fn config<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> SpringConfig {
    spring::from_pairs("orders", pairs).unwrap()
}

fn error(key: &str, value: &str) -> SpringError {
    spring::from_pairs("orders", [(key, value)]).unwrap_err()
}

fn limits(connect: u64, read: u64) -> Limits {
    Limits {
        connect: Duration::from_millis(connect),
        read: Duration::from_millis(read),
    }
}

/// A value of the table of settings.
fn setting(config: &SpringConfig, name: &str) -> String {
    let mut settings = config.settings().unwrap();
    let found = settings.find(|(row, _)| *row == name);
    found.unwrap_or_else(|| panic!("no row {name}")).1
}

fn reasons(config: &SpringConfig) -> Vec<(String, Reason)> {
    let remarks = config.remarks();
    remarks
        .iter()
        .map(|remark| (remark.key().to_owned(), remark.reason().clone()))
        .collect()
}

fn reason(config: &SpringConfig, key: &str) -> Option<Reason> {
    reasons(config)
        .into_iter()
        .find(|(found, _)| found == key)
        .map(|(_, reason)| reason)
}

fn without_effect(config: &SpringConfig, key: &str) -> bool {
    matches!(reason(config, key), Some(Reason::WithoutEffect(_)))
}

#[test]
fn a_client_of_its_own_wins_over_all_clients_and_both_over_the_release() {
    let none: [(&str, &str); 0] = [];
    for (release, connect, read) in [
        (SpringRelease::Dalston, 2000, 5000),
        (SpringRelease::Edgware, 1000, 1000),
        (SpringRelease::Hoxton, 1000, 1000),
    ] {
        assert_eq!(
            config(none).release(release).limits(),
            limits(connect, read),
            "{release}"
        );
    }
    assert_eq!(
        config(none).limits(),
        limits(1000, 1000),
        "Edgware if nothing is said"
    );
    let both = config([
        ("orders.ribbon.ReadTimeout", "300"),
        ("ribbon.ReadTimeout", "400"),
        ("ribbon.ConnectTimeout", "500"),
        ("stock.ribbon.ConnectTimeout", "600"),
    ]);
    assert_eq!(both.limits(), limits(500, 300));
    assert_eq!(
        reasons(&both),
        [("stock.ribbon.ConnectTimeout".to_owned(), Reason::OtherClient)]
    );
}

#[test]
fn the_last_of_several_values_counts() {
    let twice = config([("ribbon.ReadTimeout", "1"), ("ribbon.ReadTimeout", "2")]);
    assert_eq!(twice.limits().read, Duration::from_millis(2));
}

#[test]
fn a_limit_of_zero_is_none_as_in_java() {
    let none = config([("ribbon.ReadTimeout", "0")]);
    assert_eq!(none.limits().read, tower_outbound::call::LONGEST);
}

#[test]
fn a_command_of_its_own_wins_over_all_commands() {
    let pairs = || {
        [
            (format!("{ALL}.circuitBreaker.requestVolumeThreshold"), "7"),
            (format!("{ALL}.circuitBreaker.errorThresholdPercentage"), "70"),
            (format!("{GET}.circuitBreaker.requestVolumeThreshold"), "8"),
            ("feign.hystrix.enabled".to_owned(), "true"),
        ]
    };
    let all = config(pairs());
    assert_eq!(all.command(), "orders");
    assert_eq!(setting(&all, "breaker volume"), "7");
    assert_eq!(
        reason(&all, &format!("{GET}.circuitBreaker.requestVolumeThreshold")),
        Some(Reason::OtherCommand)
    );
    let get = config(pairs()).command_key("OrderClient#get(String)");
    assert_eq!(setting(&get, "breaker volume"), "8");
    assert_eq!(setting(&get, "breaker error percent"), "70");
    assert_eq!(get.remarks(), []);
}

#[test]
fn a_pool_is_named_after_the_client_unless_the_command_says_otherwise() {
    let pairs = [
        (format!("{ALL}.threadPoolKeyOverride"), "nobody"),
        (format!("{GET}.threadPoolKeyOverride"), "reports"),
        ("hystrix.threadpool.default.coreSize".to_owned(), "1"),
        ("hystrix.threadpool.orders.coreSize".to_owned(), "2"),
        ("hystrix.threadpool.reports.coreSize".to_owned(), "3"),
        ("feign.hystrix.enabled".to_owned(), "true"),
    ];
    let orders = config(pairs.clone());
    assert_eq!(setting(&orders, "calls at once"), "2");
    assert!(
        without_effect(&orders, &pairs[0].0),
        "there is no default form of it"
    );
    assert_eq!(reason(&orders, &pairs[4].0), Some(Reason::OtherCommand));
    let reports = orders.command_key("OrderClient#get(String)");
    assert_eq!(setting(&reports, "calls at once"), "3");
}

#[test]
fn a_pool_has_a_queue_if_it_is_told_one_and_the_threshold_bounds_it() {
    let pool = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (format!("hystrix.threadpool.default.{name}"), *value));
        let config = config(pairs.chain([("feign.hystrix.enabled".to_owned(), "true")]));
        (
            setting(&config, "calls at once"),
            setting(&config, "calls that wait"),
            config.remarks().len(),
        )
    };
    let expected = |at_once: &str, wait: &str, remarks| (at_once.to_owned(), wait.to_owned(), remarks);
    assert_eq!(pool(&[]), expected("10", "0", 0));
    assert_eq!(
        pool(&[("maxQueueSize", "-1"), ("queueSizeRejectionThreshold", "7")]),
        expected("10", "0", 1)
    );
    assert_eq!(
        pool(&[("maxQueueSize", "20")]),
        expected("10", "5", 0),
        "the threshold is 5 by default"
    );
    assert_eq!(pool(&[("maxQueueSize", "3")]), expected("10", "3", 0));
    assert_eq!(
        pool(&[("coreSize", "4"), ("maximumSize", "9")]),
        expected("4", "0", 1)
    );
    let may_grow = ("allowMaximumSizeToDivergeFromCoreSize", "true");
    assert_eq!(
        pool(&[("coreSize", "4"), ("maximumSize", "9"), may_grow]),
        expected("9", "0", 0)
    );
    assert_eq!(
        pool(&[("maximumSize", "20"), may_grow, ("maxQueueSize", "3")]),
        expected("10", "3", 2)
    );
}

#[test]
fn with_semaphores_the_pool_says_nothing_and_the_other_way_round() {
    let pairs = |isolation: &'static str| {
        config([
            (format!("{ALL}.execution.isolation.strategy"), isolation),
            (
                format!("{ALL}.execution.isolation.semaphore.maxConcurrentRequests"),
                "4",
            ),
            ("hystrix.threadpool.default.coreSize".to_owned(), "3"),
            ("feign.hystrix.enabled".to_owned(), "true"),
        ])
    };
    let (semaphore, thread) = (pairs("SEMAPHORE"), pairs("THREAD"));
    assert_eq!(setting(&semaphore, "calls at once"), "4");
    assert!(without_effect(&semaphore, "hystrix.threadpool.default.coreSize"));
    assert_eq!(setting(&thread, "calls at once"), "3");
    assert!(without_effect(
        &thread,
        "hystrix.command.default.execution.isolation.semaphore.maxConcurrentRequests"
    ));
}

#[test]
fn until_greenwich_feigns_timeouts_act_only_together_and_from_hoxton_on_by_the_mere_block() {
    let block = |pairs: &[(&str, &str)]| {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| (format!("feign.client.config.{name}"), (*value).to_owned()))
            .collect();
        move |release| config(pairs.clone()).release(release)
    };
    use SpringRelease::{Dalston, Edgware, Greenwich, Hoxton};
    let one = block(&[("orders.readTimeout", "300")]);
    assert_eq!(one(Edgware).limits(), limits(1000, 1000));
    assert!(without_effect(
        &one(Edgware),
        "feign.client.config.orders.readTimeout"
    ));
    assert_eq!(one(Hoxton).limits(), limits(10_000, 300));
    assert_eq!(one(Hoxton).remarks(), []);

    let split = block(&[("orders.readTimeout", "300"), ("default.connectTimeout", "200")]);
    assert_eq!(split(Greenwich).limits(), limits(1000, 1000), "not in one block");
    assert_eq!(split(Hoxton).limits(), limits(200, 300));

    let both = block(&[
        ("default.connectTimeout", "200"),
        ("default.readTimeout", "300"),
        ("orders.readTimeout", "400"),
    ]);
    assert_eq!(both(Edgware).limits(), limits(200, 300));
    assert_eq!(both(Hoxton).limits(), limits(200, 400));
    assert_eq!(both(Dalston).limits(), limits(2000, 5000));
    assert_eq!(
        reason(&both(Dalston), "feign.client.config.default.readTimeout"),
        Some(Reason::NotInRelease(Dalston))
    );

    let logger = block(&[("orders.loggerLevel", "FULL")]);
    assert_eq!(logger(Edgware).limits(), limits(1000, 1000));
    assert_eq!(
        logger(Hoxton).limits(),
        limits(10_000, 60_000),
        "a block is a block"
    );
    assert_eq!(
        block(&[("stock.readTimeout", "300")])(Hoxton).limits(),
        limits(1000, 1000)
    );
}

#[test]
fn a_bean_of_options_gives_way_to_keys_unless_keys_are_told_to_give_way() {
    let pairs = [
        ("feign.client.config.shared.connectTimeout", "200"),
        ("feign.client.config.shared.readTimeout", "300"),
        ("feign.client.default-config", "shared"),
    ];
    let bean = limits(7, 8);
    assert_eq!(config(pairs).request_options(bean).limits(), limits(200, 300));
    let reversed = pairs
        .into_iter()
        .chain([("feign.client.default-to-properties", "false")]);
    let reversed = config(reversed);
    assert_eq!(reversed.clone().request_options(bean).limits(), bean);
    assert_eq!(
        reversed.limits(),
        limits(1000, 1000),
        "Spring's own bean wins over the keys too"
    );
    assert!(without_effect(
        &reversed,
        "feign.client.config.shared.readTimeout"
    ));
}

#[test]
fn options_of_feigns_own_switch_ribbons_retries_off_unless_spring_retry_makes_them() {
    let pairs = |spring_retry: &'static str| {
        config([
            ("ribbon.MaxAutoRetries", "2"),
            ("ribbon.MaxAutoRetriesNextServer", "3"),
            ("ribbon.retryableStatusCodes", "502,503"),
            ("spring.cloud.loadbalancer.retry.enabled", spring_retry),
        ])
    };
    let options = limits(200, 300);
    assert_eq!(pairs("false").plan().unwrap().attempts(), 12);
    assert!(without_effect(&pairs("false"), "ribbon.retryableStatusCodes"));
    let off = pairs("false").request_options(options);
    assert_eq!(off.plan().unwrap().attempts(), 1);
    assert!(without_effect(&off, "ribbon.MaxAutoRetries"));
    let on = pairs("true").request_options(options);
    assert_eq!(on.plan().unwrap().attempts(), 12);
    assert_eq!(on.remarks(), []);
    assert_eq!(setting(&on, "statuses sent again at once"), "502-503");
}

#[test]
fn class_names_are_read_for_each_client_alone() {
    let rule = |key: &str, class: &str| {
        let config = config([(key, format!("com.netflix.loadbalancer.{class}"))]);
        (setting(&config, "rule"), config.remarks().len())
    };
    let key = "orders.ribbon.NFLoadBalancerRuleClassName";
    assert_eq!(rule("x", "y").0, "ZoneAvoidanceRule");
    for class in [
        "RoundRobinRule",
        "RandomRule",
        "RetryRule",
        "AvailabilityFilteringRule",
        "ZoneAvoidanceRule",
        "BestAvailableRule",
        "WeightedResponseTimeRule",
    ] {
        assert_eq!(rule(key, class), (class.to_owned(), 0));
    }
    let shared = "ribbon.NFLoadBalancerRuleClassName";
    assert_eq!(rule(shared, "RandomRule"), ("ZoneAvoidanceRule".to_owned(), 1));
    assert_eq!(
        rule("stock.ribbon.NFLoadBalancerRuleClassName", "MyOwn").1,
        1,
        "others may have rules of their own"
    );
    let error = error(key, "RandomRule");
    assert!(
        error.allowed().contains("com.netflix.loadbalancer.RandomRule"),
        "{error}"
    );
}

#[test]
fn a_value_that_is_none_is_an_error_that_says_what_is() {
    for (key, value, allowed) in [
        ("ribbon.ReadTimeout", "1s", "a whole number from 0 to 2147483647"),
        (
            "orders.ribbon.MaxAutoRetries",
            "-1",
            "a whole number from 0 to 2147483647",
        ),
        ("ribbon.OkToRetryOnAllOperations", "yes", "true or false"),
        (
            "ribbon.retryableStatusCodes",
            "5xx",
            "HTTP statuses between commas, as in `502,503`",
        ),
        ("feign.hystrix.enabled", "on", "true or false"),
        (
            "feign.client.config.orders.readTimeout",
            "${limit}",
            "a whole number from 0 to 2147483647",
        ),
        (
            "hystrix.command.A#b().execution.isolation.strategy",
            "POOL",
            "THREAD or SEMAPHORE",
        ),
        (
            "hystrix.threadpool.default.coreSize",
            "0",
            "a whole number from 1 to 2147483647",
        ),
        (
            "hystrix.threadpool.default.maxQueueSize",
            "-2",
            "a whole number from -1 to 2147483647",
        ),
        (
            "niws.loadbalancer.orders.connectionFailureCountThreshold",
            "",
            "a whole number from 1 to 2147483647",
        ),
    ] {
        let error = error(key, value);
        assert_eq!(
            (error.key(), error.value(), error.allowed()),
            (key, value, allowed)
        );
        assert_eq!(error.to_string(), format!("`{key}` is `{value}`: give {allowed}"));
    }
    assert!(spring::from_pairs("orders", [("stock.ribbon.ReadTimeout", "1s")]).is_ok());
}

#[test]
fn a_window_that_its_buckets_do_not_divide_is_an_error() {
    let window = format!("{ALL}.metrics.rollingStats.timeInMilliseconds");
    let buckets = format!("{GET}.metrics.rollingStats.numBuckets");
    let error = error(&window, "1001");
    assert_eq!((error.key(), error.value()), (&*window, "1001"));
    let pairs = [(&*window, "1000"), (&*buckets, "7")];
    let error = spring::from_pairs("orders", pairs).unwrap_err();
    assert_eq!(error.key(), window);
    assert!(spring::from_pairs("orders", [(&*window, "1050")]).is_ok());
    let error = spring::from_pairs("orders", [(&*buckets, "7")]).unwrap_err();
    assert_eq!((error.key(), error.value()), (&*buckets, "7"));
}

#[test]
fn no_key_is_passed_over_in_silence() {
    let pairs = [
        ("ribbon.ReadTimeout", "1"),
        ("ribbon.readTimeout", "2"),
        ("ribbon.MaxTotalConnections", "3"),
        ("ribbon.ActiveConnectionsLimit", "4"),
        ("server.port", "8080"),
        ("eureka.client.fetch-registry", "true"),
        ("hystrix.command.default.circuitBreaker.enabled", "true"),
        (
            "hystrix.command.default.execution.isolation.thread.interruptOnTimeout",
            "true",
        ),
        ("feign.client.config.stock.readTimeout", "5"),
        ("feign.client.config.orders.retryer", "com.example.Retryer"),
        ("niws.loadbalancer.default.circuitTripMaxTimeoutSeconds", "6"),
        ("niws.loadbalancer.stock.circuitTripMaxTimeoutSeconds", "7"),
    ];
    let kinds: Vec<_> = reasons(&config(pairs))
        .into_iter()
        .map(|(key, reason)| {
            let kind = match reason {
                Reason::NotActedOn(_) => "not acted on",
                Reason::WithoutEffect(_) => "without effect",
                Reason::Misspelled { .. } => "misspelled",
                Reason::OtherClient => "other client",
                Reason::Unknown => "unknown",
                other => panic!("{other:?}"),
            };
            (key, kind)
        })
        .collect();
    let expected = [
        "misspelled",
        "not acted on",
        "without effect",
        "unknown",
        "not acted on",
        "without effect",
        "not acted on",
        "other client",
        "not acted on",
        "without effect",
        "other client",
    ];
    let expected: Vec<_> = pairs[1..]
        .iter()
        .zip(expected)
        .map(|((key, _), kind)| ((*key).to_owned(), kind))
        .collect();
    assert_eq!(kinds, expected);
}

#[test]
fn a_remark_says_what_to_do() {
    let remarks = config([("ribbon.read-timeout", "1"), ("ribbon.IsSecure", "true")]).remarks();
    assert_eq!(
        remarks[0].to_string(),
        "`ribbon.read-timeout` does nothing: the name that is read is `ribbon.ReadTimeout`"
    );
    assert_eq!(
        (remarks[1].key(), remarks[1].value()),
        ("ribbon.IsSecure", "true")
    );
    assert!(remarks[1].to_string().contains("scheme"));
}

#[test]
fn the_list_of_servers_can_be_asked_for() {
    let list = config([
        ("ribbon.listOfServers", "a:1"),
        ("orders.ribbon.listOfServers", "b:1, c:2"),
    ]);
    assert_eq!(list.list_of_servers(), ["b:1", "c:2"]);
    let remarks = list.remarks();
    assert_eq!(remarks.len(), 2, "the nest calls what it is given");
    assert!(remarks[1].to_string().contains("`list_of_servers()`"));
}

#[test]
fn a_key_about_no_client_is_not_one_about_all() {
    for key in [".ribbon.ReadTimeout", " .ribbon.ReadTimeout"] {
        let config = config([(key, "7")]);
        assert_eq!(reason(&config, key), Some(Reason::Unknown), "{key:?}");
        assert_eq!(config.limits(), limits(1000, 1000));
    }
}
