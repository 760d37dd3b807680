//! The layers of a case.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    breaker::{Breaker, CircuitBreakerLayer, HystrixRelease, HystrixVerdicts},
    bulkhead::{Bulkhead, BulkheadLayer},
    call::BoxError,
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    timeout::ExecutionTimeoutLayer,
};

use super::{
    call::{Call, Response},
    ending::{Cause, Words},
};
use crate::case::Case;

// Interim: by hand, until `nest::spring` is there.
#[derive(Debug, Clone)]
pub(super) struct Stack {
    with_fallback: Outer,
    pub(super) breaker: Breaker,
    pub(super) words: Words,
}

type Inner = BoxCloneSyncService<Call, Response, BoxError>;
#[derive(Debug, Clone)]
struct Outer { inner: Inner, enabled: bool, permits: Arc<Semaphore> }

macro_rules! wrapper { ($name:ident) => {
#[derive(Debug)]
pub(super) struct $name(BoxError);
impl std::fmt::Display for $name { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "fallback: {}", self.0) } }
impl std::error::Error for $name { fn source(&self) -> Option<&(dyn std::error::Error + 'static)> { Some(&*self.0) } }
}}
wrapper!(FallbackFailed);
wrapper!(FallbackRejected);

impl Stack {
    pub(super) fn of(case: &Case) -> Stack {
        let c = |k: &str| case.setting(&format!("hystrix.command.default.{k}")).clone();
        let num = |k: &str, d: u64| c(k).as_u64().unwrap_or(d);
        let flag = |k: &str, d: bool| c(k).as_bool().unwrap_or(d);
        let ms = Duration::from_millis;
        let release = if case.setting("hystrix_version") == "1.5.18" { HystrixRelease::V1_5_18 } else { HystrixRelease::V1_5_12 };
        let mut b = Breaker::builder("command")
            .hystrix(release)
            .health_snapshot(ms(num("metrics.healthSnapshot.intervalInMilliseconds", 500)))
            .window(ms(num("metrics.rollingStats.timeInMilliseconds", 10_000)))
            .volume(num("circuitBreaker.requestVolumeThreshold", 20) as u32)
            .error_percent(num("circuitBreaker.errorThresholdPercentage", 50) as u32)
            .sleep_window(ms(num("circuitBreaker.sleepWindowInMilliseconds", 5000)));
        if !flag("circuitBreaker.enabled", true) { b = b.disabled(); }
        let breaker = b.build().unwrap();
        let is_pool = c("execution.isolation.strategy") != "SEMAPHORE";
        let bulkhead = if is_pool {
            let t = |k: &str, d: i64| case.setting(&format!("hystrix.threadpool.default.{k}")).as_i64().unwrap_or(d);
            Bulkhead::builder("pool").max_concurrent(t("coreSize", 10) as u32).max_waiting(t("maxQueueSize", -1).min(t("queueSizeRejectionThreshold", 5)).max(0) as u32)
        } else {
            Bulkhead::builder("semaphore").max_concurrent(num("execution.isolation.semaphore.maxConcurrentRequests", 10) as u32)
        }.build().unwrap();
        let timeout = flag("execution.timeout.enabled", true).then(|| ExecutionTimeoutLayer::hystrix(ms(num("execution.isolation.thread.timeoutInMilliseconds", 1000))).unwrap());
        let bottom = service_fn(Call::run);
        let s = StatusErrorClassifierLayer::new(StatusPolicy::client_errors_ignored()).layer(bottom);
        let s = BulkheadLayer::new(bulkhead).layer(s);
        let s = match timeout {
            Some(t) => BoxCloneSyncService::new(t.layer(s)),
            None => BoxCloneSyncService::new(s),
        };
        let s = CircuitBreakerLayer::new(breaker.clone()).classify(HystrixVerdicts).layer(s);
        let stack = Stack {
            with_fallback: Outer { inner: BoxCloneSyncService::new(s), enabled: flag("fallback.enabled", true), permits: Arc::new(Semaphore::new(num("fallback.isolation.semaphore.maxConcurrentRequests", 10) as usize)) },
            breaker,
            words: Words { is_pool, fallback_enabled: flag("fallback.enabled", true) },
        };
        stack
    }

    pub(super) async fn call(&self, call: Call) -> Result<Response, BoxError> {
        let Outer { inner, enabled, permits } = self.with_fallback.clone();
        match inner.oneshot(call.clone()).await {
            Err(error) if enabled && call.has_fallback() && Cause::of(&*error) != Cause::BadRequest => {
                let Ok(_permit) = permits.try_acquire() else { return Err(FallbackRejected(error).into()) };
                call.fall_back(Cause::of(&*error)).await.map_err(|_| FallbackFailed(error).into())
            }
            other => other,
        }
    }
}
