//! Each shell without the others.

use std::time::Duration;

use http::Method;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    CallsExt,
    call::{BoxError, CircuitState, Fault, FaultKind, StatusError},
    nest::spring::{ErrorDecoder, Limits, Retryer},
};

use super::mock::{client, config, endpoints, get, request, reset, silence, status};

#[tokio::test(start_paused = true)]
async fn hystrix_alone_guards_requests_of_any_type() {
    let pairs = [(
        "hystrix.command.default.circuitBreaker.requestVolumeThreshold",
        "2",
    )];
    let layer = config(pairs).hystrix().unwrap();
    let silent = service_fn(|_: u32| std::future::pending::<Result<(), BoxError>>());
    let guarded = layer.layer(silent);
    for _ in 0..2 {
        let error = guarded.clone().oneshot(7).await.unwrap_err();
        assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    }
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(layer.breaker().state(), CircuitState::Open);
    assert_eq!(layer.bulkhead().in_flight(), 0);
    let pool = layer.bulkhead().clone();
    let other = config(pairs).command_key("other").hystrix().unwrap().pool(pool);
    assert_eq!(other.bulkhead().name(), "orders");
    assert_eq!(other.breaker().state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn ribbon_alone_balances_and_retries_and_sees_no_status() {
    let (client, log) = client(|n| async move { if n == 0 { reset() } else { status(503) } });
    let layer = config([]).ribbon(endpoints(&["a", "b"])).unwrap();
    let balance = layer.balance();
    let ribbon = layer.layer(client);
    let response = ribbon.oneshot(get()).await.unwrap();
    assert_eq!(response.status(), 503, "an answer is an answer");
    assert_eq!(log.hosts(), ["a", "b"]);
    assert_eq!((balance.total().successes(), balance.total().failures()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn ribbon_alone_limits_the_silence_of_a_server() {
    let (client, log) = client(|_| silence());
    let pairs = [
        ("ribbon.ReadTimeout", "250"),
        ("orders.ribbon.MaxAutoRetries", "1"),
    ];
    let ribbon = config(pairs)
        .ribbon(endpoints(&["a", "b"]))
        .unwrap()
        .layer(client);
    ribbon.oneshot(get()).await.unwrap_err();
    assert_eq!((log.times(), log.elapsed()), (vec![0, 250, 500, 750], 1000));
    assert_eq!(log.hosts(), ["a", "a", "b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn feign_alone_has_limits_of_its_own_and_decodes() {
    let (client, log) = client(|_| silence());
    let feign = config([]).feign_with_url().unwrap().layer(client);
    feign.oneshot(get()).await.unwrap_err();
    assert_eq!(log.elapsed(), 60_000);

    let (client, log) = super::mock::client(|_| async { status(404) });
    let options = Limits {
        connect: Duration::from_millis(10),
        read: Duration::from_millis(20),
    };
    let config = config([]).request_options(options).retryer(Retryer::FEIGN);
    assert_eq!(config.url_limits(), options);
    let config = config.error_decoder(ErrorDecoder::ClientErrorsAsBadRequests);
    let feign = config.feign_with_url().unwrap().layer(client);
    let error = feign.oneshot(request(Method::PUT)).await.unwrap_err();
    assert_eq!(StatusError::of(&*error).unwrap().status(), 404);
    assert_eq!(log.times(), [0]);
}

#[tokio::test(start_paused = true)]
async fn shells_are_layers_of_any_stack() {
    let (client, log) = client(|_| async { status(200) });
    let config = config([]);
    let stack = ServiceBuilder::new()
        .layer(config.hystrix().unwrap())
        .layer(config.feign().unwrap())
        .layer(config.ribbon(endpoints(&["a"])).unwrap())
        .service(client)
        .calls::<http::Request<http_body_util::Full<bytes::Bytes>>>();
    assert!(stack.oneshot(get()).await.is_ok());
    assert_eq!(log.hosts(), ["a"]);
}
