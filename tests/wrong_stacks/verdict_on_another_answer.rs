//! A breaker's classifier must know the answers of the service below.

use std::convert::Infallible;

use http::Request;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{
    CallsExt,
    breaker::{Breaker, CircuitBreakerLayer},
    classify::StatusPolicy,
};

struct Decoded;

fn main() {
    let breaker = Breaker::new("orders").unwrap();
    let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Decoded) });
    let _ = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(breaker).classify(StatusPolicy::default()))
        .service(client)
        .calls::<Request<String>>();
}
