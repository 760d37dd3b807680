//! The edges of each setting: what is past them is an error that names layer, field, value and fix; what is on them
//! works.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_outbound::{
    Nest,
    balance::{LoadBalanceLayer, WhenEmpty},
    breaker::{Breaker, BreakerBuilder, CircuitBreakerLayer, HystrixRelease},
    bulkhead::{Bulkhead, BulkheadLayer},
    call::{BoxError, ConfigError, DeadlineHeader, Endpoint, Endpoints, LONGEST, RetryBudget},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    nest::NestBuilder,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
    timeout::{
        ConnectTimeoutLayer, ExecutionTimeoutLayer, ReadTimeoutLayer, ReceiveDeadlineLayer, SendDeadlineLayer,
    },
};

use super::{
    checks::paused,
    probe::{Act, Ask, Script, Watch},
    subjects::{Get, Upload, endpoints},
};

const ZERO: Duration = Duration::ZERO;
const NANO: Duration = Duration::from_nanos(1);
const MAX: Duration = Duration::MAX;

fn too_long() -> Duration {
    LONGEST + NANO
}

/// The error, which must say what is wrong.
#[track_caller]
fn refused<T>(outcome: Result<T, ConfigError>, layer: &str, field: &str, value: &str) {
    let Err(error) = outcome else {
        panic!("{layer}: {field} = {value} was taken");
    };
    assert_eq!(
        (error.layer(), error.field(), error.value()),
        (layer, field, value)
    );
    assert!(error.fix().len() > 5, "{error}");
    for part in [layer, field, value, error.fix()] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn limits_are_above_zero_and_at_most_ten_years() {
    fn check<T>(layer: &str, new: impl Fn(Duration) -> Result<T, ConfigError>) {
        refused(new(ZERO), layer, "limit", "0 s");
        refused(new(too_long()), layer, "limit", &format!("{:?}", too_long()));
        refused(new(MAX), layer, "limit", &format!("{MAX:?}"));
        assert!(new(NANO).is_ok() && new(LONGEST).is_ok());
    }
    check("ConnectTimeout", ConnectTimeoutLayer::new);
    check("ReadTimeout", ReadTimeoutLayer::new);
    check("ExecutionTimeout", ExecutionTimeoutLayer::new);
    check("ExecutionTimeout", ExecutionTimeoutLayer::hystrix);
}

#[test]
fn a_read_timeout_has_two_more_limits_and_a_deadline_a_margin() {
    let read = || ReadTimeoutLayer::new(LONGEST).unwrap();
    for limit in [ZERO, MAX] {
        let value = if limit.is_zero() {
            "0 s".to_owned()
        } else {
            format!("{limit:?}")
        };
        refused(read().body_limit(limit), "ReadTimeout", "body_limit", &value);
        refused(read().write_limit(limit), "ReadTimeout", "write_limit", &value);
    }
    assert!(read().body_limit(NANO).is_ok() && read().write_limit(LONGEST).is_ok());
    let send = || SendDeadlineLayer::new(DeadlineHeader::GRPC);
    let receive = || ReceiveDeadlineLayer::new(DeadlineHeader::GRPC);
    let value = format!("{MAX:?}");
    refused(send().margin(MAX), "SendDeadline", "margin", &value);
    refused(receive().margin(MAX), "ReceiveDeadline", "margin", &value);
    assert!(send().margin(ZERO).is_ok() && receive().margin(LONGEST).is_ok());
}

#[test]
fn the_bounds_of_the_classifier_have_an_end() {
    let layer = || StatusErrorClassifierLayer::new(StatusPolicy::default());
    let most = 16 * 1024 * 1024;
    refused(
        layer().max_body(most + 1),
        "StatusErrorClassifier",
        "max_body",
        "16777217",
    );
    refused(
        layer().body_wait(MAX),
        "StatusErrorClassifier",
        "body_wait",
        &format!("{MAX:?}"),
    );
    assert!(layer().max_body(0).is_ok() && layer().max_body(most).is_ok());
    assert!(layer().body_wait(ZERO).is_ok() && layer().body_wait(LONGEST).is_ok());
}

#[test]
fn a_backoff_makes_an_attempt_and_its_pauses_grow() {
    let new = Backoff::builder;
    let layer = "BackoffRetry";
    refused(new().attempts(0).build(), layer, "attempts", "0");
    refused(new().base(ZERO).build(), layer, "base", "0 s");
    refused(new().max(ZERO).build(), layer, "max", "0 s");
    refused(new().max(MAX).build(), layer, "max", &format!("{MAX:?}"));
    refused(new().base(MAX).build(), layer, "base", &format!("{MAX:?}"));
    refused(
        new()
            .base(Duration::from_secs(2))
            .max(Duration::from_secs(1))
            .build(),
        layer,
        "base",
        "2s",
    );
    refused(
        new().max_retry_after(MAX).build(),
        layer,
        "max_retry_after",
        &format!("{MAX:?}"),
    );
    for factor in [0.99, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(new().factor(factor).build(), layer, "factor", &factor.to_string());
    }
    let second = Duration::from_secs(1);
    refused(Backoff::feign(second, second, 0), layer, "max_attempts", "0");
    refused(
        Backoff::feign(MAX, second, 1),
        layer,
        "period",
        &format!("{MAX:?}"),
    );
    refused(
        Backoff::feign(second, MAX, 1),
        layer,
        "max_period",
        &format!("{MAX:?}"),
    );
    let edges = new()
        .attempts(u32::MAX)
        .base(LONGEST)
        .max(LONGEST)
        .factor(f64::MAX)
        .max_retry_after(LONGEST)
        .build()
        .unwrap();
    assert!(
        (1..10)
            .chain([u32::MAX])
            .all(|retry| edges.pause(retry) <= LONGEST)
    );
    assert!(edges.longest_pauses() >= LONGEST);
    assert_eq!(
        Idempotent::default()
            .same_endpoint(u32::MAX)
            .next_endpoint(u32::MAX)
            .total_attempts(),
        u64::MAX
    );
}

#[test]
fn a_budget_is_a_share_that_is_kept_exactly() {
    let new = RetryBudget::builder;
    for percent in [-0.1, 100.1, f64::NAN, f64::INFINITY, 0.05] {
        refused(
            new().percent(percent).build(),
            "RetryBudget",
            "percent",
            &percent.to_string(),
        );
    }
    refused(new().burst(0).build(), "RetryBudget", "burst", "0");
    refused(new().burst(5).initial(6).build(), "RetryBudget", "initial", "6");
    assert!(new().percent(0.0).floor(0).initial(0).build().is_ok());
    let edges = new()
        .percent(100.0)
        .floor(u32::MAX)
        .burst(u32::MAX)
        .initial(u32::MAX);
    assert_eq!(edges.build().unwrap().available(), u64::from(u32::MAX));
}

#[test]
fn a_balancer_waits_some_time_or_not_at_all() {
    let new = || LoadBalanceLayer::new(endpoints());
    refused(
        new().when_empty(WhenEmpty::Wait(ZERO)),
        "LoadBalance",
        "when_empty",
        "Wait(0 s)",
    );
    refused(
        new().when_empty(WhenEmpty::Wait(MAX)),
        "LoadBalance",
        "when_empty",
        &format!("{MAX:?}"),
    );
    refused(
        new().first_wait(MAX),
        "LoadBalance",
        "first_wait",
        &format!("{MAX:?}"),
    );
    assert!(new().first_wait(ZERO).is_ok() && new().first_wait(LONGEST).is_ok());
    assert!(new().when_empty(WhenEmpty::Wait(LONGEST)).is_ok());
}

#[test]
fn an_endpoint_has_an_address_and_a_weight() {
    for uri in ["", " ", "http://", "/path"] {
        refused(Endpoint::new(uri), "Endpoint", "uri", &format!("{uri:?}"));
    }
    refused(
        Endpoint::builder("a:1").weight(0).build(),
        "Endpoint",
        "weight",
        "0",
    );
    refused(
        Endpoint::builder("a:1").zone("").build(),
        "Endpoint",
        "zone",
        "empty",
    );
    refused(Endpoints::from_list([""]), "Endpoint", "uri", "\"\"");
}

#[test]
fn a_breaker_has_a_name_a_volume_a_percentage_and_times() {
    let new = || Breaker::builder("orders");
    let layer = "CircuitBreaker";
    for name in ["", " ", "\t\n"] {
        refused(Breaker::new(name), layer, "name", "empty");
    }
    refused(new().volume(0).build(), layer, "volume", "0");
    refused(new().error_percent(101).build(), layer, "error_percent", "101");
    refused(
        new().error_percent(u32::MAX).build(),
        layer,
        "error_percent",
        &u32::MAX.to_string(),
    );
    type Set = fn(BreakerBuilder, Duration) -> BreakerBuilder;
    let times: [(&str, Set, Duration); 3] = [
        ("window", BreakerBuilder::window, Duration::from_millis(10)),
        ("sleep_window", BreakerBuilder::sleep_window, NANO),
        ("probe_lease", BreakerBuilder::probe_lease, NANO),
    ];
    for (field, set, shortest) in times {
        refused(set(new(), ZERO).build(), layer, field, "0 s");
        refused(set(new(), MAX).build(), layer, field, &format!("{MAX:?}"));
        assert!(set(new(), shortest).build().is_ok() && set(new(), LONGEST).build().is_ok());
    }
}

#[test]
fn a_bulkhead_has_a_name_and_a_wait_for_those_who_wait() {
    let new = || Bulkhead::builder("orders");
    let layer = "Bulkhead";
    refused(Bulkhead::new(""), layer, "name", "empty");
    let waiting = || new().max_waiting(1);
    refused(waiting().max_wait(ZERO).build(), layer, "max_wait", "0 s");
    refused(
        waiting().max_wait(MAX).build(),
        layer,
        "max_wait",
        &format!("{MAX:?}"),
    );
    refused(new().max_wait(NANO).build(), layer, "max_waiting", "0");
    assert!(new().max_concurrent(0).build().is_ok());
    let edges = new().max_concurrent(u32::MAX).max_waiting(u32::MAX);
    assert!(edges.clone().max_wait(LONGEST).build().is_ok() && edges.max_wait(NANO).build().is_ok());
}

#[test]
fn a_breaker_of_hystrix_takes_what_hystrix_takes_and_a_window_of_health_snapshots() {
    for release in [HystrixRelease::V1_5_12, HystrixRelease::V1_5_18] {
        let new = || Breaker::builder("orders").hystrix(release);
        let layer = "CircuitBreaker";
        assert!(new().volume(0).sleep_window(ZERO).build().is_ok());
        assert!(new().error_percent(u32::MAX).build().is_ok());
        refused(new().volume(1 << 24).build(), layer, "volume", "16777216");
        refused(new().window(ZERO).build(), layer, "window", "0 s");
        refused(new().window(MAX).build(), layer, "window", &format!("{MAX:?}"));
        refused(
            new().sleep_window(MAX).build(),
            layer,
            "sleep_window",
            &format!("{MAX:?}"),
        );
        refused(new().probe_lease(ZERO).build(), layer, "probe_lease", "0 s");
        let snapshot = |millis| new().health_snapshot(Duration::from_millis(millis)).build();
        refused(snapshot(0), layer, "health_snapshot", "0 s");
        refused(snapshot(10_001), layer, "health_snapshot", "10.001s");
        refused(snapshot(9), layer, "health_snapshot", "9ms");
        assert!(snapshot(10_000).is_ok() && snapshot(10).is_ok());
        // Rounded up to a millisecond.
        let shortest = new().window(Duration::from_millis(1)).health_snapshot(NANO);
        assert!(shortest.build().is_ok());
        refused(
            new().window(NANO).health_snapshot(NANO).build(),
            layer,
            "health_snapshot",
            "1ns",
        );
    }
}

#[test]
fn a_nest_says_which_of_its_settings_is_wrong() {
    let new = || Nest::builder("orders", endpoints());
    refused(Nest::builder("", endpoints()).build(()), "Nest", "name", "empty");
    type Set = fn(NestBuilder, Duration) -> NestBuilder;
    let limits: [(&str, Set); 3] = [
        ("read_limit", NestBuilder::read_limit),
        ("connect_limit", NestBuilder::connect_limit),
        ("execution_limit", NestBuilder::execution_limit),
    ];
    for (field, set) in limits {
        refused(
            set(new().accept_cut_short(), ZERO).build(()),
            "Nest",
            field,
            "0 s",
        );
        refused(
            set(new().accept_cut_short(), MAX).build(()),
            "Nest",
            field,
            &format!("{MAX:?}"),
        );
        assert!(set(new().accept_cut_short(), LONGEST).build(()).is_ok());
    }
    refused(
        new().when_empty(WhenEmpty::Wait(ZERO)).build(()),
        "LoadBalance",
        "when_empty",
        "Wait(0 s)",
    );
}

/// A call that is waited for, and one that breaks, so that all timers are made.
async fn works<S, Req, T>(stack: S, watch: &Watch, what: &str)
where
    S: tower::Service<Req, Response = T, Error: Into<BoxError>> + Clone,
    Req: Ask,
{
    for act in [Act::Answer(200), Act::Answer(503), Act::Break] {
        watch.plays(Script::slow(2, move |_| act));
        let outcome = stack.clone().oneshot(watch.ask()).await;
        assert!(act != Act::Break || outcome.is_err(), "{what}");
    }
    watch.found_no_fault();
}

#[test]
fn the_longest_times_overflow_nothing() {
    paused(async {
        let watch = Watch::default();
        let inner = || watch.inner::<Get>();
        let connect = ConnectTimeoutLayer::new(LONGEST).unwrap();
        works(connect.layer(watch.inner()), &watch, "connect").await;
        let read = ReadTimeoutLayer::new(LONGEST).unwrap();
        works::<_, Get, _>(read.layer(watch.inner::<Upload>()), &watch, "read").await;
        let execution = ExecutionTimeoutLayer::new(LONGEST).unwrap();
        works(execution.layer(inner()), &watch, "execution").await;
        let statuses = StatusErrorClassifierLayer::new(StatusPolicy::default());
        let statuses = statuses.body_wait(LONGEST).unwrap();
        works(statuses.layer(inner()), &watch, "statuses").await;
        let backoff = Backoff::builder().attempts(3).base(LONGEST).max(LONGEST);
        works(
            BackoffRetryLayer::new(backoff.build().unwrap()).layer(inner()),
            &watch,
            "backoff",
        )
        .await;
        let idempotent = IdempotentRetryLayer::new(Idempotent::default());
        works(idempotent.layer(inner()), &watch, "idempotent").await;
        let balance = LoadBalanceLayer::new(endpoints()).first_wait(LONGEST).unwrap();
        let balance = balance.when_empty(WhenEmpty::Wait(LONGEST)).unwrap();
        works(balance.layer(inner()), &watch, "balance").await;
        let breaker = Breaker::builder("orders")
            .window(LONGEST)
            .sleep_window(LONGEST)
            .probe_lease(LONGEST)
            .health_snapshot(LONGEST)
            .volume(1);
        let as_hystrix =
            [HystrixRelease::V1_5_12, HystrixRelease::V1_5_18].map(|it| breaker.clone().hystrix(it));
        for breaker in as_hystrix.into_iter().chain([breaker]) {
            works(
                CircuitBreakerLayer::new(breaker.build().unwrap()).layer(inner()),
                &watch,
                "breaker",
            )
            .await;
        }
        let bulkhead = Bulkhead::builder("orders").max_concurrent(1).max_waiting(1);
        let bulkhead = bulkhead.max_wait(LONGEST).build().unwrap();
        let slot = bulkhead.enter().unwrap();
        let waits = works(BulkheadLayer::new(bulkhead).layer(inner()), &watch, "bulkhead");
        let frees = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(slot);
        };
        tokio::join!(waits, frees);
    });
}
