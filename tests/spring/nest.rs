//! The nest of all three shells.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use tokio::time::advance;
use tower::ServiceExt;
use tower_outbound::{
    Nest,
    breaker::HystrixRelease,
    call::{CircuitState, Endpoint, Endpoints, Fault, FaultKind, Rejection, Sent, StatusError, Trail},
    nest::{
        Finding,
        spring::{self, ErrorDecoder, Retryer, ReturnType, SpringRelease},
    },
};

use super::mock::{client, config, endpoints, get, request, reset, silence, status, text};

const ALL: &str = "hystrix.command.default";
const TWO: [&str; 2] = ["a", "b"];

#[tokio::test(start_paused = true)]
async fn by_default_a_silent_server_costs_one_second_and_the_plan_says_so() {
    let config = config([]);
    let finding = Finding::PlanExceedsExecutionLimit {
        plan: Duration::from_secs(5),
        limit: Duration::from_secs(1),
    };
    assert_eq!(config.accepted().unwrap(), [finding]);
    let (client, log) = client(|_| silence());
    let nest = config.nest(endpoints(&TWO)).build(client).unwrap();
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    assert_eq!((log.times(), log.elapsed()), (vec![0], 1000));
}

#[tokio::test(start_paused = true)]
async fn without_the_key_there_is_no_hystrix() {
    let config = spring::from_pairs("orders", [(format!("{ALL}.circuitBreaker.forceOpen"), "true")]).unwrap();
    assert_eq!(config.accepted().unwrap(), []);
    assert_eq!(config.remarks().len(), 1);
    let (client, log) = client(|_| silence());
    let nest = config.nest(endpoints(&TWO)).build(client).unwrap();
    assert!(nest.handle().breaker().is_none() && nest.handle().bulkhead().is_none());
    let calls = (0..20).map(|_| nest.send(get()));
    for outcome in futures_util::future::join_all(calls).await {
        let kind = Fault::of(&*outcome.unwrap_err()).kind();
        assert!(matches!(kind, FaultKind::ReadTimeout(_)), "{kind}");
    }
    assert_eq!((log.times().len(), log.elapsed()), (40, 2000));
}

#[tokio::test(start_paused = true)]
async fn the_next_server_is_tried_at_once_and_the_answer_is_whole() {
    let (client, log) = client(|n| async move { if n == 0 { reset() } else { status(200) } });
    let nest = config([]).nest(endpoints(&TWO)).build(client).unwrap();
    let response = nest.send(get()).await.unwrap();
    assert_eq!(
        Trail::on(&response).map(|trail| trail.attempts().count()),
        Some(2)
    );
    assert_eq!(text(response).await, "ok-200");
    assert_eq!(
        (log.times(), log.hosts()),
        (vec![0, 0], vec!["a".into(), "b".into()])
    );
    let balance = nest.handle().balance();
    let failures = balance
        .endpoints()
        .iter()
        .map(|entry| entry.figures().failures())
        .collect::<Vec<_>>();
    assert_eq!(failures, [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn no_server_fails_at_once_and_counts() {
    let (client, log) = client(|_| async { status(200) });
    let nest = config([])
        .retryer(Retryer::FEIGN)
        .nest(Endpoints::new())
        .build(client)
        .unwrap();
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::NoEndpoint);
    assert_eq!((log.times().len(), log.elapsed()), (0, 0));
    advance(Duration::from_millis(500)).await;
    assert_eq!(nest.handle().breaker().unwrap().health().errors(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_status_counts_unless_it_is_made_a_bad_request_or_an_answer() {
    let volume = format!("{ALL}.circuitBreaker.requestVolumeThreshold");
    let config = config([(&*volume, "4")]);
    let bad_requests = config
        .clone()
        .error_decoder(ErrorDecoder::ClientErrorsAsBadRequests);
    for (config, state, is_error) in [
        (config.clone(), CircuitState::Open, true),
        (bad_requests, CircuitState::Closed, true),
        (config.clone().decode_404(true), CircuitState::Closed, false),
        (
            config.clone().decode_404(true).return_type(ReturnType::Void),
            CircuitState::Open,
            true,
        ),
        (
            config.return_type(ReturnType::Response),
            CircuitState::Closed,
            false,
        ),
    ] {
        let (client, _) = client(|_| async { status(404) });
        let nest = config.nest(endpoints(&TWO)).build(client).unwrap();
        for _ in 0..4 {
            assert_eq!(nest.send(get()).await.is_err(), is_error);
        }
        advance(Duration::from_millis(500)).await;
        assert_eq!(nest.handle().breaker().unwrap().state(), state);
    }
}

#[tokio::test(start_paused = true)]
async fn the_release_and_the_keys_of_the_command_make_the_breaker() {
    let breaker = |release, hystrix: Option<HystrixRelease>| {
        let config = config([
            (
                "hystrix.command.default.circuitBreaker.errorThresholdPercentage",
                "30",
            ),
            (
                "hystrix.command.default.circuitBreaker.sleepWindowInMilliseconds",
                "40",
            ),
            (
                "hystrix.command.default.metrics.rollingStats.timeInMilliseconds",
                "2000",
            ),
            (
                "hystrix.command.default.metrics.healthSnapshot.intervalInMilliseconds",
                "100",
            ),
        ]);
        let mut config = config.release(release).command_key("OrderClient#get()");
        if let Some(hystrix) = hystrix {
            config = config.hystrix_release(hystrix);
        }
        let nest = config.nest(endpoints(&TWO)).build(()).unwrap();
        nest.handle().breaker().unwrap().clone()
    };
    use HystrixRelease::{V1_5_12, V1_5_18};
    for (release, hystrix) in [
        (SpringRelease::Dalston, V1_5_12),
        (SpringRelease::Edgware, V1_5_12),
        (SpringRelease::Finchley, V1_5_18),
        (SpringRelease::Hoxton, V1_5_18),
    ] {
        assert_eq!(
            breaker(release, None).settings().hystrix(),
            Some(hystrix),
            "{release}"
        );
    }
    let breaker = breaker(SpringRelease::Edgware, Some(V1_5_18));
    let settings = breaker.settings();
    assert_eq!(breaker.name(), "OrderClient#get()");
    assert_eq!(settings.hystrix(), Some(V1_5_18));
    assert_eq!((settings.volume(), settings.error_percent()), (20, Some(30)));
    assert_eq!(settings.sleep_window(), Duration::from_millis(40));
    assert_eq!(settings.window(), Duration::from_secs(2));
    assert_eq!(settings.health_snapshot(), Some(Duration::from_millis(100)));
}

#[tokio::test(start_paused = true)]
async fn a_window_without_a_snapshot_is_refused_when_the_nest_is_built() {
    let config = config([(
        "hystrix.command.default.metrics.healthSnapshot.intervalInMilliseconds",
        "20000",
    )]);
    let error = config.nest(endpoints(&TWO)).build(()).unwrap_err();
    assert_eq!(error.field(), "health_snapshot");
}

#[tokio::test(start_paused = true)]
async fn a_circuit_can_be_forced_open_or_switched_off_by_a_key() {
    let force = [("hystrix.command.default.circuitBreaker.forceOpen", "true")];
    let off = ("hystrix.command.default.circuitBreaker.enabled", "false");
    let (client, log) = client(|_| async { status(200) });
    let nest = config(force).nest(endpoints(&TWO)).build(client.clone()).unwrap();
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::Rejected(Rejection::Breaker));
    assert_eq!(log.times().len(), 0);
    let nest = config(force.into_iter().chain([off]))
        .nest(endpoints(&TWO))
        .build(client)
        .unwrap();
    assert!(
        nest.send(get()).await.is_ok(),
        "even the force has no effect then"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_turns_calls_away_and_they_count() {
    for (pairs, in_time) in [
        (vec![("hystrix.threadpool.orders.coreSize", "2")], 2),
        (
            vec![
                ("hystrix.command.orders.execution.isolation.strategy", "SEMAPHORE"),
                (
                    "hystrix.command.orders.execution.isolation.semaphore.maxConcurrentRequests",
                    "3",
                ),
            ],
            3,
        ),
    ] {
        let (client, log) = client(|_| silence());
        let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
        let calls = futures_util::future::join_all((0..5).map(|_| nest.send(get()))).await;
        let rejected = calls.into_iter().filter(|outcome| {
            let kind = Fault::of(&**outcome.as_ref().unwrap_err()).kind();
            kind == FaultKind::Rejected(Rejection::Bulkhead)
        });
        assert_eq!((rejected.count(), log.times().len()), (5 - in_time, in_time));
        assert_eq!(nest.handle().bulkhead().unwrap().rejected(), 5 - in_time as u64);
        advance(Duration::from_millis(500)).await;
        assert_eq!(nest.handle().breaker().unwrap().health().errors(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_the_queue_of_a_pool_is_ended_by_the_execution_timeout() {
    let pairs = [
        ("hystrix.threadpool.default.coreSize", "1"),
        ("hystrix.threadpool.default.maxQueueSize", "1"),
        ("ribbon.ReadTimeout", "9000"),
        (
            "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
            "3000",
        ),
    ];
    let (client, log) = client(|_| silence());
    let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
    let outcomes = futures_util::future::join_all((0..3).map(|_| nest.send(get()))).await;
    let kinds: Vec<_> = outcomes
        .iter()
        .map(|outcome| Fault::of(&**outcome.as_ref().unwrap_err()).kind())
        .collect();
    assert_eq!(
        kinds,
        [
            FaultKind::ExecutionTimeout,
            FaultKind::ExecutionTimeout,
            FaultKind::Rejected(Rejection::Bulkhead)
        ]
    );
    assert_eq!((log.times(), log.elapsed()), (vec![0], 3000));
}

#[tokio::test(start_paused = true)]
async fn commands_of_a_client_can_share_a_pool_and_have_breakers_of_their_own() {
    let pairs = [("hystrix.threadpool.orders.coreSize", "1")];
    let (client, log) = client(|_| silence());
    let config = config(pairs);
    let get_one = config
        .clone()
        .command_key("Orders#get()")
        .nest(endpoints(&TWO))
        .build(client.clone())
        .unwrap();
    let pool = get_one.handle().bulkhead().unwrap().clone();
    let list = config
        .command_key("Orders#list()")
        .nest(endpoints(&TWO))
        .pool(pool)
        .build(client)
        .unwrap();
    let (first, second) = tokio::join!(get_one.send(get()), list.send(get()));
    assert_eq!(
        Fault::of(&*first.unwrap_err()).kind(),
        FaultKind::ExecutionTimeout
    );
    assert_eq!(
        Fault::of(&*second.unwrap_err()).kind(),
        FaultKind::Rejected(Rejection::Bulkhead)
    );
    assert_eq!(log.times().len(), 1);
    assert_ne!(
        get_one.handle().breaker().unwrap().name(),
        list.handle().breaker().unwrap().name()
    );
}

#[tokio::test(start_paused = true)]
async fn the_retryer_obeys_retry_after_and_a_decoder_can_make_errors_retryable() {
    let retryer = Retryer::Default {
        period: Duration::from_millis(30),
        max_period: Duration::from_millis(100),
        max_attempts: 3,
    };
    let asking = || {
        let mut response = status(503)?;
        response.headers_mut().insert("retry-after", "0".parse().unwrap());
        Ok(response)
    };
    let by_default = config([]).retryer(retryer);
    let retryable = by_default
        .clone()
        .error_decoder(ErrorDecoder::ServerErrorsRetryable);
    for (config, asks, times) in [
        (&by_default, false, vec![0]),
        (&by_default, true, vec![0, 0, 0]),
        (&retryable, false, vec![0, 45, 112]),
        (&retryable, true, vec![0, 45, 112]),
    ] {
        let (client, log) = client(move |_| async move { if asks { asking() } else { status(500) } });
        let nest = config.clone().nest(endpoints(&TWO)).build(client).unwrap();
        let error = nest.send(request(Method::POST)).await.unwrap_err();
        let body = StatusError::of(&*error).unwrap().body();
        assert!(body.starts_with(b"ok-5"));
        assert_eq!(log.times(), times);
    }
}

#[tokio::test(start_paused = true)]
async fn with_spring_retry_statuses_are_retried_and_the_last_one_is_judged() {
    let pairs = [
        ("spring.cloud.loadbalancer.retry.enabled", "true"),
        ("orders.ribbon.retryableStatusCodes", "503"),
    ];
    for (code, attempts) in [(503, 2), (500, 1)] {
        let (client, log) = client(move |_| async move { status(code) });
        let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
        let error = nest.send(get()).await.unwrap_err();
        assert_eq!(StatusError::of(&*error).unwrap().status(), code);
        assert_eq!(log.times().len(), attempts);
    }
    let (client, log) = client(|_| async { reset() });
    let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
    nest.send(request(Method::POST)).await.unwrap_err();
    assert_eq!(log.times().len(), 1, "nothing but GET is sent again");
}

#[tokio::test(start_paused = true)]
async fn figures_of_ribbon_go_by_the_keys() {
    let pairs = [
        ("niws.loadbalancer.orders.connectionFailureCountThreshold", "1"),
        ("niws.loadbalancer.orders.circuitTripTimeoutFactorSeconds", "7"),
        (
            "orders.ribbon.NFLoadBalancerRuleClassName",
            "com.netflix.loadbalancer.ZoneAvoidanceRule",
        ),
    ];
    let (client, log) = client(|n| async move { if n == 0 { reset() } else { status(200) } });
    let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
    for _ in 0..3 {
        nest.send(get()).await.unwrap();
    }
    assert_eq!(log.hosts(), ["a", "b", "b", "b"]);
    let balance = nest.handle().balance();
    let tripped = || {
        balance
            .endpoints()
            .iter()
            .map(|entry| entry.is_tripped())
            .collect::<Vec<_>>()
    };
    assert_eq!(tripped(), [true, false]);
    advance(Duration::from_secs(7)).await;
    assert_eq!(tripped(), [false, false]);
}

#[test]
fn both_presets_have_the_same_table_with_values_of_their_own() {
    let safe: Vec<_> = Nest::builder("orders", Endpoints::new()).settings().collect();
    let spring: Vec<_> = config([]).settings().unwrap().collect();
    let names =
        |settings: &[(&'static str, String)]| settings.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(&safe), names(&spring));
    let value = |settings: &[(&'static str, String)], name: &str| {
        settings
            .iter()
            .find(|(found, _)| *found == name)
            .unwrap()
            .1
            .clone()
    };
    for (name, safe_value, spring_value) in [
        ("connect limit", "1s", "1s"),
        ("read limit", "5s", "1s"),
        ("rule", "Ewma", "ZoneAvoidanceRule"),
        ("next endpoints", "1", "1"),
        (
            "error statuses",
            "failures 408, 429, 500-999; ignored 400-407, 409-428, 430-499",
            "failures 100-199, 300-999",
        ),
        ("attempts with pauses", "2", "1"),
        ("pauses", "up to 100ms", "none"),
        ("retry budget", "10 % of calls and 1 a second", "none"),
        ("limit on attempts", "none", "none"),
        ("calls at once", "none", "10"),
        ("execution limit", "30s", "1s"),
        ("deadline is told below", "yes", "no"),
        ("breaker judges", "each outcome", "as Hystrix 1.5.12, every 500ms"),
        ("breaker volume", "20", "20"),
        ("fallbacks at once", "none", "10"),
        ("attempts at most", "4", "2"),
    ] {
        assert_eq!(value(&safe, name), safe_value, "{name}");
        assert_eq!(value(&spring, name), spring_value, "{name}");
    }
    let feign: Vec<_> = config([]).retryer(Retryer::FEIGN).settings().unwrap().collect();
    assert_eq!(value(&feign, "pauses"), "150ms, 225ms, 337ms, 506ms");
}

#[test]
fn plain_http_is_all_that_a_nest_of_its_own_client_speaks() {
    let endpoints = Endpoints::from_list(["https://a:1"]).unwrap();
    let error = config([])
        .nest(endpoints)
        .build_http::<Full<Bytes>>()
        .unwrap_err();
    assert_eq!((error.layer(), error.field()), ("Spring", "endpoints"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_twice_where_nothing_was_configured_for_a_post_that_timed_out() {
    let pairs = [("hystrix.command.default.execution.timeout.enabled", "false")];
    let (client, log) = client(|_| silence());
    let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
    let error = nest.clone().oneshot(request(Method::POST)).await.unwrap_err();
    assert_eq!(Fault::of(&*error).sent(), Sent::Maybe);
    assert_eq!((log.times(), log.elapsed()), (vec![0], 1000));
}

#[tokio::test(start_paused = true)]
async fn at_a_tie_hystrix_wins_and_nobody_below_knows_of_it() {
    let (client, _) = client(|_| async {
        assert_eq!(tower_outbound::call::scope::deadline(), None);
        tokio::time::sleep(Duration::from_secs(1)).await;
        status(200)
    });
    let pairs = [("ribbon.ReadTimeout", "9000")];
    let nest = config(pairs).nest(endpoints(&TWO)).build(client).unwrap();
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
}

#[tokio::test(start_paused = true)]
async fn a_server_or_a_zone_that_is_busy_is_left_out_as_the_keys_say() {
    let (own, all) = (
        ("orders.ribbon.ActiveConnectionsLimit", "1"),
        (
            "niws.loadbalancer.availabilityFilteringRule.activeConnectionsLimit",
            "1",
        ),
    );
    let load = (
        "ZoneAwareNIWSDiscoveryLoadBalancer.orders.triggeringLoadPerServerThreshold",
        "5",
    );
    for (pairs, zoned, third) in [
        (vec![], false, "a"),
        (vec![own], false, "b"),
        (vec![all], false, "b"),
        (
            vec![all, ("orders.ribbon.ActiveConnectionsLimit", "9")],
            false,
            "a",
        ),
        (vec![], true, "b"),
        (vec![load], true, "a"),
    ] {
        let set: Endpoints = TWO
            .map(|name| {
                let endpoint = Endpoint::builder(name);
                if zoned { endpoint.zone(name) } else { endpoint }
                    .build()
                    .unwrap()
            })
            .into_iter()
            .collect();
        let (client, log) = client(|n| async move { if n == 0 { silence().await } else { status(200) } });
        let nest = config(pairs.clone()).nest(set).build(client).unwrap();
        let others = async {
            for _ in 0..2 {
                nest.send(get()).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            _ = nest.send(get()) => panic!("the first one hangs"),
            () = others => {}
        }
        assert_eq!(log.hosts(), ["a", "b", third], "{pairs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_retry_rule_looks_for_a_server_for_half_a_second() {
    let rule = (
        "orders.ribbon.NFLoadBalancerRuleClassName",
        "com.netflix.loadbalancer.RetryRule",
    );
    let (client, log) = client(|_| async { status(200) });
    let nest = config([rule, ("ribbon.MaxAutoRetriesNextServer", "0")]);
    let nest = nest.nest(Endpoints::new()).build(client).unwrap();
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(
        (Fault::of(&*error).kind(), log.elapsed()),
        (FaultKind::NoEndpoint, 500)
    );
    assert_eq!(nest.handle().plan().longest(), Duration::from_millis(3500));
}
