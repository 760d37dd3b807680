//! Why a call took eight seconds: read limit 1 s, a server that takes 2 s, and a retryer of three attempts with pauses
//! of 1 s.

use std::time::Duration;

use http::Method;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    call::{Fault, FaultKind, ReadPhase},
    nest::spring::{self, Limits, Retryer, SpringConfig},
};

use super::mock::{Answer, client, endpoints, request, status};

async fn slow() -> Answer {
    tokio::time::sleep(Duration::from_secs(2)).await;
    status(200)
}

fn config<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> SpringConfig {
    let retryer = Retryer::Default {
        period: Duration::from_secs(1),
        max_period: Duration::from_secs(1),
        max_attempts: 3,
    };
    spring::from_pairs("orders", pairs).unwrap().retryer(retryer)
}

/// Attempts, and milliseconds.
async fn call(config: SpringConfig, method: Method, servers: &[&str]) -> (usize, u128) {
    let (client, log) = client(|_| slow());
    let nest = config.nest(endpoints(servers)).build(client).unwrap();
    let error = nest.send(request(method)).await.unwrap_err();
    let kind = Fault::of(&*error).kind();
    assert!(
        matches!(
            kind,
            FaultKind::ReadTimeout(ReadPhase::Head) | FaultKind::ExecutionTimeout
        ),
        "{error}"
    );
    (log.times().len(), log.elapsed())
}

#[tokio::test(start_paused = true)]
async fn with_feign_alone_it_takes_five() {
    let second = Duration::from_secs(1);
    let options = Limits {
        connect: second,
        read: second,
    };
    let (client, log) = client(|_| slow());
    let feign = config([]).request_options(options).feign_with_url().unwrap();
    feign
        .layer(client)
        .oneshot(request(Method::GET))
        .await
        .unwrap_err();
    assert_eq!((log.times(), log.elapsed()), (vec![0, 2000, 4000], 5000));
}

#[tokio::test(start_paused = true)]
async fn ribbons_retry_that_nobody_configured_makes_it_eight() {
    for (same, next, expected) in [
        ("0", "0", (3, 5000)),
        ("1", "0", (6, 8000)),
        ("1", "1", (12, 14_000)),
    ] {
        let retries = [
            ("ribbon.MaxAutoRetries", same),
            ("ribbon.MaxAutoRetriesNextServer", next),
        ];
        assert_eq!(
            call(config(retries), Method::GET, &["a"]).await,
            expected,
            "{same} and {next}"
        );
    }
    for servers in [&["a"][..], &["a", "b"]] {
        assert_eq!(
            call(config([]), Method::GET, servers).await,
            (6, 8000),
            "by default"
        );
        let spring_retry = config([("spring.cloud.loadbalancer.retry.enabled", "true")]);
        assert_eq!(
            call(spring_retry, Method::GET, servers).await,
            (6, 8000),
            "by spring-retry"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_is_sent_again_by_feign_alone() {
    assert_eq!(call(config([]), Method::POST, &["a", "b"]).await, (3, 5000));
}

#[tokio::test(start_paused = true)]
async fn hystrix_hides_it_and_here_it_also_ends_it() {
    let hystrix = config([("feign.hystrix.enabled", "true")]);
    assert_eq!(hystrix.accepted().unwrap().len(), 1);
    assert_eq!(call(hystrix, Method::GET, &["a", "b"]).await, (1, 1000));
    let enough = config([
        ("feign.hystrix.enabled", "true"),
        (
            "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
            "60000",
        ),
    ]);
    assert_eq!(call(enough, Method::GET, &["a", "b"]).await, (6, 8000));
}
