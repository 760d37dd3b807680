//! A balancer must be able to write the endpoint into the request.

use std::convert::Infallible;

use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt, call::Endpoints};

#[derive(Clone)]
struct Lookup;

fn main() {
    let endpoints = Endpoints::from_list(["http://10.0.0.1"]).unwrap();
    let client = service_fn(|_: Lookup| async { Ok::<_, Infallible>(()) });
    let _ = ServiceBuilder::new()
        .load_balance(endpoints)
        .service(client)
        .calls::<Lookup>();
}
