//! What is missing deep in a stack is named, and not that a layer far above lacks a service.

use std::{convert::Infallible, time::Duration};

use http::Response;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{
    CallsExt, ServiceBuilderExt,
    breaker::Breaker,
    call::{Endpoints, NotRepeatable},
    classify::StatusPolicy,
    retry::{Backoff, Idempotent},
};

type Lookup = NotRepeatable<u64>;

fn main() {
    let endpoints = Endpoints::from_list(["http://10.0.0.1"]).unwrap();
    let client = service_fn(|_: Lookup| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let _ = ServiceBuilder::new()
        .record_trail()
        .circuit_breaker(Breaker::new("orders").unwrap())
        .execution_timeout(Duration::from_secs(30))
        .unwrap()
        .backoff_retry(Backoff::default())
        .status_errors(StatusPolicy::default())
        .idempotent_retry(Idempotent::default())
        .load_balance(endpoints)
        .service(client)
        .calls::<Lookup>();
}
