//! From the settings of a case to the stack that is tested: Spring's own keys, and setters for what are beans.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::Value;
use tower::{BoxError, Layer, Service, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    balance::BalanceHandle,
    breaker::Breaker,
    call::{AnswerBodyFailed, CircuitState, Endpoints, ErrorRef, Fault, FaultKind, Rejection, Trail},
    fallback::FallbackLayer,
    nest::{
        client::Client,
        spring::{self, ErrorDecoder, Limits, Retryer, ReturnType, SpringConfig, SpringNest},
    },
    observe::RecordTrailLayer,
};

use super::{
    recorder::{self, Log, Recorder},
    told,
};
use crate::case::Case;

pub(super) type Body = Full<Bytes>;
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;
pub(super) type Stack = BoxCloneSyncService<Request<Body>, Response<AnswerBody>, BoxError>;

/// A stack, and what looks into it.
pub(super) struct Built {
    pub(super) stack: Stack,
    pub(super) balance: Option<BalanceHandle>,
    pub(super) breaker: Option<Breaker>,
    pub(super) causes: Causes,
}

/// What a fallback was handed: the failure by its name, what Java's factory is handed for it, and the trail.
#[derive(Debug, Clone)]
pub(super) struct Cause {
    pub(super) kind: String,
    pub(super) java: String,
    pub(super) trail: Option<Trail>,
}

pub(super) type Causes = Arc<Mutex<Vec<Cause>>>;

const CLIENT: &str = "client";

/// The settings of a case, as an application has them.
fn config(case: &Case) -> Result<SpringConfig, BoxError> {
    let mut pairs = vec![("feign.hystrix.enabled".to_owned(), "true".to_owned())];
    for (key, value) in case.config().as_object().expect("settings") {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match key.as_str() {
            // Beans, or what the recordings were made with.
            "transport" | "feign_version" | "user.timezone" | "fallback" => {}
            key if key.starts_with("feign.") => {}
            // Class names are read for a client alone.
            key if key.starts_with("ribbon.") => pairs.push((format!("{CLIENT}.{key}"), value)),
            key => pairs.push((key.to_owned(), value)),
        }
    }
    let mut config = spring::from_pairs(CLIENT, pairs)?.record_every_call(true);
    let millis = |value: &Value| value.as_u64().map(Duration::from_millis);
    if let retryer @ Value::Object(_) = case.setting("feign.retryer") {
        config = config.retryer(Retryer::Default {
            period: millis(&retryer["period"]).expect("period"),
            max_period: millis(&retryer["maxPeriod"]).expect("maxPeriod"),
            max_attempts: u32::try_from(retryer["maxAttempts"].as_u64().expect("maxAttempts"))?,
        });
    }
    let connect = millis(case.setting("feign.options.connectTimeoutMillis"));
    if let Some(connect) = connect {
        let read = millis(case.setting("feign.options.readTimeoutMillis"));
        config = config.request_options(Limits {
            connect,
            read: read.unwrap_or(Limits::FEIGN.read),
        });
    }
    match case.setting("feign.errorDecoder").as_str() {
        Some("bad_request_on_4xx") => config = config.error_decoder(ErrorDecoder::ClientErrorsAsBadRequests),
        Some("retryable_on_5xx") => config = config.error_decoder(ErrorDecoder::ServerErrorsRetryable),
        _ => {}
    }
    match case.part("request")["return_type"].as_str() {
        Some("void") => config = config.return_type(ReturnType::Void),
        Some("response") => config = config.return_type(ReturnType::Response),
        _ => {}
    }
    if case.setting("feign.decode404") == true {
        config = config.decode_404(true);
    }
    Ok(config)
}

pub(super) fn build(case: &Case, addresses: &[SocketAddr], log: Log) -> Result<Built, BoxError> {
    let config = config(case)?;
    let limits = if case.level() == "feign" {
        config.url_limits()
    } else {
        config.limits()
    };
    let client = Client::builder()
        .connect_limit(limits.connect)
        // A fresh connection for each attempt.
        .most_idle_per_host(0)
        .build_http()?;
    let client = Recorder::new(client, addresses, log);
    let endpoints = Endpoints::from_list(addresses.iter().map(|address| format!("http://{address}")))?;
    let trail = RecordTrailLayer::new().every_call(true);
    let causes = Causes::default();
    Ok(match case.level() {
        "feign" => Built {
            stack: boxed(trail.layer(config.feign_with_url()?.layer(client))),
            balance: None,
            breaker: None,
            causes,
        },
        "ribbon" => {
            let ribbon = config.ribbon(endpoints)?;
            Built {
                balance: Some(ribbon.balance()),
                stack: boxed(trail.layer(ribbon.layer(client))),
                breaker: None,
                causes,
            }
        }
        "nest" => {
            let nest = config.nest(endpoints);
            match case.setting("fallback").as_str() {
                None => nested(nest.build(client)?, causes),
                Some(fallback) => {
                    let (throws, asked) = (fallback == "throws", Arc::clone(&causes));
                    let retryable = case.setting("feign.errorDecoder") == "retryable_on_5xx";
                    let fallback = FallbackLayer::new(move |error: ErrorRef<'_>| {
                        asked.lock().unwrap().push(cause(retryable, error));
                        std::future::ready(match throws {
                            false => Ok(Response::new(Bytes::from_static(b"fallback").into())),
                            true => Err(BoxError::from("the fallback fails")),
                        })
                    });
                    nested(nest.fallback(fallback).build(client)?, causes)
                }
            }
        }
        other => return Err(format!("level {other}").into()),
    })
}

fn nested<C, F, B>(nest: SpringNest<C, F>, causes: Causes) -> Built
where
    SpringNest<C, F>:
        Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + Sync + 'static,
    <SpringNest<C, F> as Service<Request<Body>>>::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Built {
        balance: Some(nest.handle().balance().clone()),
        breaker: nest.handle().breaker().cloned(),
        stack: boxed(nest),
        causes,
    }
}

fn boxed<S, B>(service: S) -> Stack
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(
        service.map_response(|response| response.map(|body| body.map_err(Into::into).boxed_unsync())),
    )
}

/// Did the call end with its answer's body?
pub(super) fn failed_in_body(error: ErrorRef<'_>) -> bool {
    AnswerBodyFailed::of(error).is_some()
}

/// What a fallback is handed. With a decoder that makes 5xx retryable the status of one is lost.
fn cause(retryable_5xx: bool, error: ErrorRef<'_>) -> Cause {
    let fault = Fault::of(error);
    let in_body = failed_in_body(error);
    let (kind, java) = match fault.kind() {
        FaultKind::Rejected(Rejection::Breaker) => ("circuit_open".to_owned(), "runtime".to_owned()),
        FaultKind::NoEndpoint => (recorder::name(fault, in_body), "runtime".to_owned()),
        FaultKind::ExecutionTimeout => ("hystrix_timeout".to_owned(), "hystrix_timeout_marker".to_owned()),
        FaultKind::Status(status) => {
            let retryable = retryable_5xx && status.is_server_error();
            let name = recorder::name(fault, in_body);
            let java = match fault.retry_after() {
                _ if retryable => "feign_retryable".to_owned(),
                Some(_) => "feign_retryable(retry_after)".to_owned(),
                None => name.clone(),
            };
            (name, java)
        }
        _ if in_body => (recorder::name(fault, true), "feign_error".to_owned()),
        _ => (recorder::name(fault, false), "feign_retryable".to_owned()),
    };
    Cause {
        kind,
        java,
        trail: Trail::of(error).cloned(),
    }
}

pub(super) fn stats(balance: &BalanceHandle) -> Vec<told::Stats> {
    balance
        .endpoints()
        .iter()
        .enumerate()
        .map(|(server, endpoint)| told::Stats {
            server,
            failures: endpoint.figures().successive_connection_failures().into(),
            active: endpoint.figures().in_flight(),
            total: endpoint.figures().completed(),
            tripped: endpoint.is_tripped(),
        })
        .collect()
}

pub(super) fn breaker(breaker: &Breaker, on: bool) -> told::Breaker {
    let state = match breaker.state() {
        CircuitState::Closed | CircuitState::Disabled => "CLOSED",
        CircuitState::Open => "OPEN",
        CircuitState::HalfOpen => "HALF_OPEN",
        other => unreachable!("state {other:?}"),
    };
    let health = breaker.health();
    told::Breaker {
        circuit: on.then(|| (state != "CLOSED", state.to_owned())),
        total: health.total(),
        errors: health.errors(),
        percent: health.error_percent(),
    }
}
