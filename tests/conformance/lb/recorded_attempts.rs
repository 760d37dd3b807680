//! The choices of the ribbon cases, without their sockets: each attempt ends as recorded, and must have gone where it is
//! recorded to have gone.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, Response};
use serde_json::Value;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    balance::{LoadBalanceLayer, RibbonStats},
    call::{BoxError, Endpoint, Endpoints, Fault, FaultError, FaultKind, Sent},
    retry::{Idempotent, IdempotentRetryLayer},
};

use super::{compare, rule_of};
use crate::case::Case;

/// None: the case is about something else as well.
pub(super) async fn differences(case: &Case) -> Option<Vec<String>> {
    let plain = case.setting("transport") == "one_connection_per_attempt"
        && case.setting("spring.cloud.loadbalancer.retry.enabled").is_null()
        && case.setting("feign.options.connectTimeoutMillis").is_null();
    if !plain {
        return None;
    }
    let number = |key: &str| case.setting(key).as_u64().map(|number| number as u32);
    let mut policy = Idempotent::ribbon()
        .same_endpoint(number("ribbon.MaxAutoRetries").unwrap_or(0))
        .next_endpoint(number("ribbon.MaxAutoRetriesNextServer").unwrap_or(1));
    if case.setting("ribbon.OkToRetryOnAllOperations") == true {
        policy = policy.ok_to_retry_on_all_operations();
    }
    let attempts = case.observed()["attempts"].as_array().unwrap();
    let outcomes: VecDeque<Value> = attempts.iter().cloned().collect();
    let outcomes = Arc::new(Mutex::new(outcomes));
    let went: Arc<Mutex<Vec<u64>>> = Arc::default();
    let client = service_fn({
        let (outcomes, went) = (outcomes.clone(), went.clone());
        move |request: Request<String>| {
            let host = request.uri().host().unwrap();
            went.lock().unwrap().push(host["server".len()..].parse().unwrap());
            let attempt = outcomes.lock().unwrap().pop_front();
            async move {
                let attempt = attempt.ok_or("one attempt more than recorded")?;
                let began = attempt["t_ms"].as_u64().unwrap();
                let took = attempt["end_ms"].as_u64().unwrap() - began;
                tokio::time::sleep(Duration::from_millis(took)).await;
                end(attempt["outcome"].as_str().unwrap())
            }
        }
    });
    let servers = case.part("servers").as_array().map_or(0, Vec::len);
    let endpoints: Endpoints = (0..servers)
        .map(|place| Endpoint::new(format!("http://server{place}")).unwrap())
        .collect();
    let rule = rule_of(case.setting("ribbon.NFLoadBalancerRuleClassName"));
    let balance = LoadBalanceLayer::new(endpoints)
        .ribbon_stats(RibbonStats::default())
        .rule(rule.zone_aware());
    let handle = balance.handle();
    let mut stack = IdempotentRetryLayer::new(policy).layer(balance.layer(client));
    let request = case.part("request");
    let method: Method = request["method"].as_str().unwrap().parse().unwrap();
    for _ in 0..request["repeat"].as_u64().unwrap_or(1) {
        let request = Request::builder()
            .method(&method)
            .uri("/r")
            .body(String::new())
            .unwrap();
        let _ = stack.ready().await.unwrap().call(request).await;
    }
    let mut differences = Vec::new();
    let recorded: Vec<_> = attempts
        .iter()
        .map(|attempt| attempt["server"].as_u64().unwrap())
        .collect();
    compare(
        &mut differences,
        "servers",
        recorded,
        went.lock().unwrap().clone(),
    );
    let figures = handle.endpoints();
    for stats in case.observed()["server_stats"].as_array().into_iter().flatten() {
        let place = stats["server"].as_u64().unwrap();
        let one = &figures[place as usize];
        let seen = serde_json::json!({
            "server": place,
            "successive_connection_failures": one.figures().successive_connection_failures(),
            "active_requests": one.figures().in_flight(),
            "total_requests": one.figures().completed(),
            "circuit_tripped": one.is_tripped(),
        });
        compare(&mut differences, "figures", stats.clone(), seen);
    }
    Some(differences)
}

fn end(outcome: &str) -> Result<Response<()>, BoxError> {
    let fault = |kind| FaultError::new(Fault::new(kind, Sent::Maybe), "as recorded");
    Err(match outcome {
        "connect_refused" => io::Error::from(io::ErrorKind::ConnectionRefused).into(),
        "connect_timeout" => fault(FaultKind::ConnectTimeout).into(),
        "read_timeout" => io::Error::from(io::ErrorKind::TimedOut).into(),
        "connection_reset" => io::Error::from(io::ErrorKind::ConnectionReset).into(),
        "unexpected_eof" => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
        _ if outcome.starts_with("status(") => return Ok(Response::new(())),
        _ => return Err(format!("nothing ends with {outcome}").into()),
    })
}
