//! The pauses of Feign's retryer.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use serde_json::Value;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    call::BoxError,
    retry::{Backoff, BackoffRetryLayer},
};

use super::{compare, servers::refused};
use crate::{
    case::Case,
    hystrix::{only, only_parts},
};

/// How many values of the formula are recorded: those of the attempt counter at 1, 2 ...
const INTERVALS: usize = 12;

pub(super) async fn differences(case: &Case) -> Vec<String> {
    only_parts(case, &[]);
    only(case.config(), &["feign.retryer"]);
    only(case.observed(), &["intervals_by_attempt_counter", "kth_sleep_ms"]);
    let retryer = case.setting("feign.retryer");
    only(retryer, &["period", "maxPeriod", "maxAttempts"]);
    let number = |name: &str| retryer[name].as_u64().unwrap();
    let (period, max) = (number("period"), number("maxPeriod"));
    let attempts = match &retryer["maxAttempts"] {
        Value::Null => INTERVALS,
        _ => usize::try_from(number("maxAttempts")).unwrap(),
    };
    // The first pause is with the counter at 2.
    let formula = |counter: usize| {
        let grown = period as f64 * 1.5_f64.powi(counter as i32 - 1);
        (grown as u64).min(max)
    };
    let mut differences = Vec::new();
    let recorded = numbers(&case.observed()["intervals_by_attempt_counter"]);
    let known: Vec<_> = (1..=INTERVALS).map(formula).collect();
    compare(&mut differences, "intervals", recorded, known);
    let recorded = numbers(&case.observed()["kth_sleep_ms"]);
    let known: Vec<_> = (2..=attempts).map(formula).collect();
    compare(&mut differences, "pauses by the formula", &recorded, &known);
    let backoff = Backoff::feign(
        Duration::from_millis(period),
        Duration::from_millis(max),
        attempts as u32,
    )
    .unwrap();
    let starts: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let client = service_fn({
        let starts = starts.clone();
        move |_: Request<String>| {
            starts.lock().unwrap().push(Instant::now());
            async { Err::<Response<()>, BoxError>(refused()) }
        }
    });
    let call = BackoffRetryLayer::new(backoff).layer(client);
    assert!(call.oneshot(Request::new(String::new())).await.is_err());
    let pauses = starts
        .lock()
        .unwrap()
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_millis().try_into().unwrap())
        .collect();
    compare(&mut differences, "pauses", recorded, pauses);
    differences
}

fn numbers(all: &Value) -> Vec<u64> {
    let all = all.as_array().unwrap().iter();
    all.map(|one| one.as_u64().unwrap()).collect()
}
