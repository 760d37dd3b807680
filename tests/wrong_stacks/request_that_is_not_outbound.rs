//! A retry must know what a request may do, and how to copy it.

use std::convert::Infallible;

use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt, retry::Idempotent};

#[derive(Clone)]
struct Lookup;

fn main() {
    let client = service_fn(|_: Lookup| async { Ok::<_, Infallible>(()) });
    let _ = ServiceBuilder::new()
        .idempotent_retry(Idempotent::default())
        .service(client)
        .calls::<Lookup>();
}
