//! Each deviation covers what it is about, and not the case next to it.

use serde_json::{Value, json};

use super::{
    effective,
    oracle::{Given, Ways, tell},
};
use crate::{case::Case, deviations::Deviation};

/// The deviations of a case whose first call begins at 0.
fn of(level: &str, config: Value, request: Value, servers: Value) -> Vec<Deviation> {
    let mut whole =
        json!({"id": "by hand", "level": level, "config": config, "request": request, "servers": servers});
    whole["config"]["transport"] = whole["config"]["transport"]
        .as_str()
        .unwrap_or("one_connection_per_attempt")
        .into();
    let case = Case::new(whole);
    let given = Given {
        started: vec![0],
        ..Given::default()
    };
    effective(&case, &given, &tell(&case, Ways::JAVA, &given))
        .into_iter()
        .collect()
}

fn get() -> Value {
    json!({"method": "GET", "path": "/r"})
}

fn post() -> Value {
    json!({"method": "POST", "path": "/r", "body": "payload"})
}

fn listening(step: Value) -> Value {
    json!([{"kind": "listen", "script": [step]}])
}

const LIMIT: &str = "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds";
const ISOLATION: &str = "hystrix.command.default.execution.isolation.strategy";

#[test]
fn work_stops_where_the_limit_cuts_the_chain_and_nowhere_else() {
    let silent = |limit: u64| {
        let config = json!({"ribbon.ReadTimeout": 200, "ribbon.MaxAutoRetries": 1, LIMIT: limit});
        of("nest", config, get(), listening(json!({"do": "hang"})))
    };
    assert_eq!(silent(300), [Deviation::WorkStopsWithItsCaller]);
    assert_eq!(silent(3000), []);
}

#[test]
fn the_caller_leaves_at_the_deadline_under_semaphore_isolation_alone() {
    let silent = |isolation: &str, limit: u64| {
        let config = json!({"ribbon.ReadTimeout": 200, LIMIT: limit, ISOLATION: isolation});
        of("nest", config, get(), listening(json!({"do": "hang"})))
    };
    assert_eq!(
        silent("SEMAPHORE", 100),
        [
            Deviation::WorkStopsWithItsCaller,
            Deviation::CallerLeavesAtTheDeadline
        ]
    );
    assert_eq!(silent("THREAD", 100), [Deviation::WorkStopsWithItsCaller]);
    assert_eq!(silent("SEMAPHORE", 1000), []);
}

#[test]
fn resends_are_hidden_in_the_transports_of_java_for_requests_without_a_body() {
    let closed = |transport: &str, request: Value| {
        let config = json!({"transport": transport, "feign.options.connectTimeoutMillis": 200});
        of(
            "feign",
            config,
            request,
            listening(json!({"do": "close_after_read"})),
        )
    };
    assert_eq!(closed("java_urlconnection", get()), [Deviation::NoHiddenResends]);
    assert_eq!(closed("apache_httpclient", get()), [Deviation::NoHiddenResends]);
    assert_eq!(closed("apache_httpclient", post()), []);
    assert_eq!(closed("one_connection_per_attempt", get()), []);
}

#[test]
fn short_bodies_go_unseen_in_the_client_of_the_jdk_alone() {
    let short = |transport: &str, step: &str| {
        let step = json!({"do": step, "status": 200, "content_length": 100, "body": "partial"});
        let config = json!({"transport": transport, "feign.options.connectTimeoutMillis": 200});
        of("feign", config, get(), listening(step))
    };
    assert_eq!(
        short("java_urlconnection", "truncate_body"),
        [Deviation::ShortBodiesAreErrors]
    );
    assert_eq!(short("java_urlconnection", "stall_body"), []);
    assert_eq!(short("apache_httpclient", "truncate_body"), []);
}

#[test]
fn the_zone_of_the_machine_matters_for_dates_alone() {
    let told_to_wait = |zone: &str, wait: &str| {
        let headers = json!({"Retry-After": wait});
        let step = json!({"do": "respond", "status": 503, "body": "", "headers": headers});
        let retryer = json!({"period": 30, "maxPeriod": 100, "maxAttempts": 2});
        let config = json!({"user.timezone": zone, "feign.retryer": retryer});
        of("feign", config, get(), listening(step))
    };
    assert_eq!(
        told_to_wait("GMT+08:00", "{http_date:+5000}"),
        [Deviation::HttpDatesAreGmt]
    );
    assert_eq!(told_to_wait("GMT", "{http_date:+5000}"), []);
    assert_eq!(told_to_wait("GMT+08:00", "5"), []);
}

#[test]
fn only_java_refuses_patch_and_numbers_beyond_a_long() {
    let answered = |transport: &str, method: &str, wait: &str| {
        let headers = json!({"Retry-After": wait});
        let step = json!({"do": "respond", "status": 503, "body": "", "headers": headers});
        let request = json!({"method": method, "path": "/r", "body": "payload"});
        of("feign", json!({"transport": transport}), request, listening(step))
    };
    assert_eq!(
        answered("java_urlconnection", "PATCH", "1"),
        [Deviation::JavaOnly]
    );
    assert_eq!(answered("java_urlconnection", "PUT", "1"), []);
    assert_eq!(answered("apache_httpclient", "PATCH", "1"), []);
    assert_eq!(
        answered("apache_httpclient", "PUT", "99999999999999999999"),
        [Deviation::JavaOnly]
    );
}

#[test]
fn attempts_are_booked_elsewhere_by_spring_retry_alone() {
    let refused = |spring_retry: bool, same: u64| {
        let config = json!({
            "spring.cloud.loadbalancer.retry.enabled": spring_retry,
            "ribbon.MaxAutoRetries": same,
            "ribbon.MaxAutoRetriesNextServer": 0,
        });
        of(
            "ribbon",
            config,
            get(),
            json!([{"kind": "refuse"}, {"kind": "refuse"}]),
        )
    };
    assert_eq!(refused(true, 1), [Deviation::AttemptsAreBookedWhereTheyWent]);
    assert_eq!(refused(false, 1), []);
    // One attempt is booked where it went in both.
    let once = json!({"spring.cloud.loadbalancer.retry.enabled": true});
    let answers = listening(json!({"do": "respond", "status": 200, "body": "ok"}));
    assert_eq!(of("ribbon", once, get(), answers), []);
}

#[test]
fn an_early_close_is_of_a_type_of_its_own_in_apaches_client() {
    let closed = |transport: &str| {
        let config = json!({"transport": transport});
        let step = json!({"do": "close_after_read"});
        of("ribbon", config, post(), listening(step))
    };
    assert_eq!(closed("apache_httpclient"), [Deviation::JavaOnly]);
    assert_eq!(closed("java_urlconnection"), []);
    assert_eq!(closed("one_connection_per_attempt"), []);
}
