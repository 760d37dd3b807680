//! Only `http::Response`s have statuses.

use std::convert::Infallible;

use http::Request;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt, classify::StatusPolicy};

fn main() {
    let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(String::new()) });
    let _ = ServiceBuilder::new()
        .status_errors(StatusPolicy::default())
        .service(client)
        .calls::<Request<String>>();
}
