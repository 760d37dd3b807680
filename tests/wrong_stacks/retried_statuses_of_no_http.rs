//! Statuses can be retried only where answers have them.

use std::convert::Infallible;

use http::Request;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{
    CallsExt,
    call::StatusSet,
    retry::{Backoff, BackoffRetryLayer},
};

fn main() {
    let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(String::new()) });
    let _ = ServiceBuilder::new()
        .layer(BackoffRetryLayer::new(Backoff::default()).retry_statuses(StatusSet::TRANSIENT))
        .service(client)
        .calls::<Request<String>>();
}
