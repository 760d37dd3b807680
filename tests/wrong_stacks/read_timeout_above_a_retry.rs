//! A read limit is one on each attempt, so it goes below the layers that retry.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt, call::UploadBody, retry::Backoff};

type Body = Full<Bytes>;

fn main() {
    let client = service_fn(|_: Request<UploadBody<Body>>| async {
        Ok::<_, Infallible>(Response::new(Body::default()))
    });
    let _ = ServiceBuilder::new()
        .read_timeout(Duration::from_secs(5))
        .unwrap()
        .backoff_retry(Backoff::default())
        .service(client)
        .calls::<Request<Body>>();
}
