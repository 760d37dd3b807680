//! What each retry handler allows after an error, and whether the error counts against the server.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Method, Request, Response};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    balance::{LoadBalanceLayer, RibbonRule, RibbonStats, WhenEmpty},
    call::{BoxError, Endpoints, Fault, FaultError, FaultKind, Sent},
    retry::{Idempotent, IdempotentRetryLayer},
};

use super::servers::{Servers, Then, refused};
use crate::{
    case::Case,
    deviations::Deviation,
    hystrix::{only, only_parts},
    report::Outcome,
};

pub(super) async fn replay(case: &Case) -> Outcome {
    only_parts(case, &["error"]);
    only(case.observed(), &["retriable", "counts_as_server_failure"]);
    let name = case.part("error").as_str().unwrap();
    let Some(error) = error_of(name) else {
        return Outcome::Differs(vec![format!("no error is named {name}")]);
    };
    let observed = case.observed();
    let mut recorded = observed["retriable"].clone();
    let mut counts = observed["counts_as_server_failure"].clone();
    let handlers: BTreeSet<&str> = recorded.as_object().unwrap().keys().map(|name| &**name).collect();
    if handlers != BTreeSet::from(HANDLERS) {
        return Outcome::Differs(vec![format!("not the five handlers: {handlers:?}")]);
    }
    let mut deviations = BTreeSet::new();
    if name == "eof" || name.starts_with("ribbon_client") {
        // What is put in its place has to be in the place of what Java does.
        let Some(java) = java(name) else {
            return Outcome::Differs(vec![format!("nobody knows what Java does after {name}")]);
        };
        if *observed != java {
            return Outcome::Differs(vec![format!(
                "Java after {name}: recorded {observed}, known {java}"
            )]);
        }
        deviations.insert(Deviation::JavaOnly);
    }
    match name {
        // Java has a second error for an end of file, which is no socket exception. Here there is one.
        "eof" => {
            recorded[CONNECT_ERRORS] = json!({"retry_same_server": true, "retry_next_server": true});
            counts = json!(true);
        }
        // Ribbon's own errors. Here there is one, for want of a server, and it is retried by nobody.
        _ if name.starts_with("ribbon_client") => {
            for (_, handler) in recorded.as_object_mut().unwrap() {
                *handler = json!({"retry_same_server": false, "retry_next_server": false});
            }
            counts = json!(false);
        }
        _ => {}
    }
    let mut differences = Vec::new();
    for (handler, allows) in recorded.as_object().unwrap() {
        for (policy, method) in policies(handler) {
            let seen = json!({
                "retry_same_server": is_retried(policy.same_endpoint(limit(handler)).next_endpoint(0), &method, error).await,
                "retry_next_server": is_retried(policy.same_endpoint(0).next_endpoint(limit(handler)), &method, error).await,
            });
            super::compare(
                &mut differences,
                &format!("{handler}, {method}"),
                allows.clone(),
                seen,
            );
        }
    }
    let seen = Value::Bool(counts_against_the_server(error).await);
    super::compare(&mut differences, "counts as a server failure", counts, seen);
    Outcome::of(deviations, differences)
}

const ALL_ERRORS: &str = "all_errors (GET, or OkToRetryOnAllOperations)";
const CONNECT_ERRORS: &str = "connect_errors_only (other methods)";

const HANDLERS: [&str; 5] = [
    ALL_ERRORS,
    CONNECT_ERRORS,
    "none",
    "default_handler_enabled",
    "default_handler_disabled",
];

/// What Java does after the errors that only Java has.
fn java(error: &str) -> Option<Value> {
    // Of `connect_errors_only` and `none`: the next server. Of the default handler: the same server, as it does
    // after a connect that failed, which counts against the server as well.
    let (next, same) = match error {
        "eof"
        | "ribbon_client(GENERAL)"
        | "ribbon_client(CONFIGURATION)"
        | "ribbon_client(NUMBEROF_RETRIES_EXEEDED)"
        | "ribbon_client(NUMBEROF_RETRIES_NEXTSERVER_EXCEEDED)"
        | "ribbon_client(SOCKET_TIMEOUT_EXCEPTION)"
        | "ribbon_client(READ_TIMEOUT_EXCEPTION)"
        | "ribbon_client(UNKNOWN_HOST_EXCEPTION)"
        | "ribbon_client(CONNECT_EXCEPTION)"
        | "ribbon_client(CLIENT_THROTTLED)"
        | "ribbon_client(NO_ROUTE_TO_HOST_EXCEPTION)"
        | "ribbon_client(CACHE_MISSING)" => (false, false),
        "ribbon_client(SERVER_THROTTLED)" => (true, false),
        "ribbon_client(GENERAL)(connect_refused)" => (false, true),
        _ => return None,
    };
    let allows = |same: bool, next: bool| json!({"retry_same_server": same, "retry_next_server": next});
    Some(json!({
        "retriable": {
            ALL_ERRORS: allows(true, true),
            CONNECT_ERRORS: allows(false, next),
            "none": allows(false, next),
            "default_handler_enabled": allows(same, true),
            "default_handler_disabled": allows(false, false),
        },
        "counts_as_server_failure": same,
    }))
}

/// The policies that stand for a handler, each with a method that it is made for.
fn policies(handler: &str) -> Vec<(Idempotent, Method)> {
    let others = [
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
    ];
    let with = |policy: Idempotent, methods: &[Method]| {
        methods.iter().map(|method| (policy, method.clone())).collect()
    };
    match handler {
        ALL_ERRORS => {
            let mut all: Vec<_> = with(Idempotent::ribbon().ok_to_retry_on_all_operations(), &others);
            all.push((Idempotent::ribbon(), Method::GET));
            all
        }
        CONNECT_ERRORS => with(Idempotent::ribbon(), &others),
        "none" => with(Idempotent::ribbon(), &[Method::GET]),
        "default_handler_enabled" | "default_handler_disabled" => {
            with(Idempotent::ribbon_default_handler(), &[Method::GET, Method::POST])
        }
        _ => panic!("no handler is named {handler}"),
    }
}

/// The handlers that allow nothing are counts of zero.
fn limit(handler: &str) -> u32 {
    match handler {
        "none" | "default_handler_disabled" => 0,
        _ => 1,
    }
}

async fn is_retried(policy: Idempotent, method: &Method, error: fn() -> BoxError) -> bool {
    let attempts = Arc::new(AtomicUsize::new(0));
    let client = service_fn({
        let attempts = attempts.clone();
        move |_: Request<String>| {
            attempts.fetch_add(1, SeqCst);
            async move { Err::<Response<()>, BoxError>(error()) }
        }
    });
    let request = Request::builder().method(method).body(String::new()).unwrap();
    let call = IdempotentRetryLayer::new(policy).layer(client);
    assert!(call.oneshot(request).await.is_err());
    attempts.load(SeqCst) > 1
}

async fn counts_against_the_server(error: fn() -> BoxError) -> bool {
    let rule = RibbonRule::ZoneAvoidance.rule();
    let mut servers = Servers::new(&[None], rule, RibbonStats::default(), WhenEmpty::FailAtOnce);
    // So that a count that is set back is seen as well.
    servers.attempt_at(0, Then::Fails(Duration::ZERO, refused)).await;
    servers.attempt_at(0, Then::Fails(Duration::ZERO, error)).await;
    match servers.handle().total().successive_connection_failures() {
        0 => false,
        2 => true,
        other => panic!("{other} of two failures"),
    }
}

/// The errors of the recordings as they are met here.
fn error_of(name: &str) -> Option<fn() -> BoxError> {
    fn io(kind: io::ErrorKind) -> BoxError {
        io::Error::from(kind).into()
    }
    Some(match name {
        "connect_refused" => refused,
        "connect_timeout" => || fault(FaultKind::ConnectTimeout),
        "read_timeout" => || io(io::ErrorKind::TimedOut),
        "connection_reset" => || io(io::ErrorKind::ConnectionReset),
        "unexpected_eof" | "eof" => || io(io::ErrorKind::UnexpectedEof),
        "no_route_to_host" => || io(io::ErrorKind::HostUnreachable),
        "bind_error" => || io(io::ErrorKind::AddrNotAvailable),
        // Of datagrams; the nearest that a connection can meet.
        "port_unreachable" => || io(io::ErrorKind::NetworkUnreachable),
        // What the resolver of the standard library gives has no kind of its own.
        "unknown_host" => || fault(FaultKind::Connect),
        "io_error" => || io::Error::other("no more to say").into(),
        "protocol_error" => || fault(FaultKind::Protocol),
        "runtime(connect_refused)" => || Wrapped(refused()).into(),
        "runtime(read_timeout)" => || Wrapped(io(io::ErrorKind::TimedOut)).into(),
        _ if name.starts_with("ribbon_client") => no_endpoint,
        _ => return None,
    })
}

fn fault(kind: FaultKind) -> BoxError {
    FaultError::new(Fault::new(kind, Sent::Maybe), "as recorded").into()
}

fn no_endpoint() -> BoxError {
    let client = service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new(())) });
    let call = LoadBalanceLayer::new(Endpoints::new()).layer(client);
    let refused = futures_util::FutureExt::now_or_never(call.oneshot(Request::new(())));
    refused.unwrap().unwrap_err()
}

/// An error of somebody's own around another one.
#[derive(Debug)]
struct Wrapped(BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrapped")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}
