//! The layers of a case.

use std::{future::Future, pin::Pin, time::Duration};

use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    breaker::{Breaker, CircuitBreakerLayer, HystrixRelease, HystrixVerdicts},
    bulkhead::{Bulkhead, BulkheadLayer},
    call::{BoxError, ErrorRef, LONGEST},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    fallback::FallbackLayer,
    timeout::ExecutionTimeoutLayer,
};

use super::{
    call::{Answer, Call, Response},
    ending::{Cause, Words},
};
use crate::case::Case;

// Interim: by hand, until `nest::spring` is there.
#[derive(Debug, Clone)]
pub(super) struct Stack {
    plain: Boxed,
    with_fallback: Boxed,
    pub(super) breaker: Breaker,
    pub(super) words: Words,
}

type Boxed = BoxCloneSyncService<Call, Response, BoxError>;

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
            let queue = t("maxQueueSize", -1).min(t("queueSizeRejectionThreshold", 5)).max(0) as u32;
            let b = Bulkhead::builder("pool").max_concurrent(t("coreSize", 10) as u32);
            if queue > 0 { b.max_waiting(queue).max_wait(LONGEST) } else { b }
        } else {
            Bulkhead::builder("semaphore").max_concurrent(num("execution.isolation.semaphore.maxConcurrentRequests", 10) as u32)
        }.build().unwrap();
        let timeout = flag("execution.timeout.enabled", true).then(|| ms(num("execution.isolation.thread.timeoutInMilliseconds", 1000)));
        let timeout = ExecutionTimeoutLayer::hystrix(timeout.unwrap_or(LONGEST)).unwrap();
        let s = StatusErrorClassifierLayer::new(StatusPolicy::client_errors_ignored()).layer(service_fn(Call::run));
        let s = BulkheadLayer::new(bulkhead).layer(s);
        let s = timeout.layer(s);
        let s = CircuitBreakerLayer::new(breaker.clone()).classify(HystrixVerdicts).layer(s);
        let enabled = flag("fallback.enabled", true);
        let fallback = FallbackLayer::with_request(Call::clone, fall_back).max_concurrent(num("fallback.isolation.semaphore.maxConcurrentRequests", 10) as u32);
        Stack {
            plain: BoxCloneSyncService::new(s.clone()),
            with_fallback: if enabled { BoxCloneSyncService::new(fallback.layer(s)) } else { BoxCloneSyncService::new(s) },
            breaker,
            words: Words { is_pool, fallback_enabled: enabled },
        }
    }

    pub(super) async fn call(&self, call: Call) -> Answer {
        let service = if call.has_fallback() { &self.with_fallback } else { &self.plain };
        service.clone().oneshot(call).await
    }
}

fn fall_back(call: Call, error: ErrorRef<'_>) -> impl Future<Output = Answer> + use<> {
    let cause = Cause::of(error);
    call.fall_back(cause)
}
