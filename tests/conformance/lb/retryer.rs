//! The pauses of Feign's retryer.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    call::BoxError,
    retry::{Backoff, BackoffRetryLayer},
};

use super::{compare, servers::refused};
use crate::case::Case;

pub(super) async fn differences(case: &Case) -> Vec<String> {
    let retryer = case.setting("feign.retryer");
    let millis = |name: &str| Duration::from_millis(retryer[name].as_u64().unwrap());
    let recorded: Vec<_> = case.observed()["kth_sleep_ms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pause| u128::from(pause.as_u64().unwrap()))
        .collect();
    let attempts = recorded.len() as u32 + 1;
    let backoff = Backoff::feign(millis("period"), millis("maxPeriod"), attempts).unwrap();
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
        .map(|pair| (pair[1] - pair[0]).as_millis())
        .collect();
    let mut differences = Vec::new();
    compare(&mut differences, "pauses", recorded, pauses);
    differences
}
