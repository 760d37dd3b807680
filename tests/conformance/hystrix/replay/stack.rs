//! The layers of a case, by the names of its settings.

use std::future::Future;

use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    breaker::{Breaker, HystrixRelease},
    call::{BoxError, ErrorRef},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    fallback::FallbackLayer,
    nest::spring,
};

use super::{
    call::{Answer, Call, Response},
    ending::{Cause, Words},
};
use crate::case::Case;

type Boxed = BoxCloneSyncService<Call, Response, BoxError>;

#[derive(Debug, Clone)]
pub(super) struct Stack {
    /// Without a fallback, and with one.
    plain: Boxed,
    with_fallback: Boxed,
    pub(super) breaker: Breaker,
    pub(super) words: Words,
}

impl Stack {
    /// The shell of Hystrix around statuses that become errors, as an error decoder of users has them, around the
    /// function.
    pub(super) fn of(case: &Case) -> Stack {
        let config = spring::from_pairs("command", pairs(case)).unwrap();
        let config = config.hystrix_release(match case.setting("hystrix_version").as_str() {
            Some("1.5.12" | "1.5.13") => HystrixRelease::V1_5_12,
            Some("1.5.18") => HystrixRelease::V1_5_18,
            other => panic!("there is no release {other:?}"),
        });
        let shell = config.hystrix().unwrap();
        let statuses = StatusErrorClassifierLayer::new(StatusPolicy::client_errors_ignored());
        let plain = Boxed::new(shell.layer(statuses.layer(service_fn(Call::run))));
        let fallback = config.fallback(FallbackLayer::with_request(Call::clone, fall_back));
        Stack {
            with_fallback: match &fallback {
                Some(fallback) => Boxed::new(fallback.layer(plain.clone())),
                None => plain.clone(),
            },
            plain,
            breaker: shell.breaker().clone(),
            words: Words {
                is_pool: case.setting("hystrix.command.default.execution.isolation.strategy") != "SEMAPHORE",
                fallback_enabled: fallback.is_some(),
            },
        }
    }

    pub(super) async fn call(&self, call: Call) -> Answer {
        let service = if call.has_fallback() {
            &self.with_fallback
        } else {
            &self.plain
        };
        service.clone().oneshot(call).await
    }
}

/// The settings that are Spring's; the others are about the recording.
fn pairs(case: &Case) -> impl Iterator<Item = (&str, String)> {
    let settings = case.config().as_object().unwrap().iter();
    settings.filter(|(key, _)| key.contains('.')).map(|(key, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (&**key, value)
    })
}

fn fall_back(call: Call, error: ErrorRef<'_>) -> impl Future<Output = Answer> + use<> {
    call.fall_back(Cause::of(error))
}
