//! A retry needs a body that can be sent a second time.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt, retry::Backoff};

type Upload = BoxBody<Bytes, Infallible>;

fn main() {
    let client = service_fn(|_: Request<Upload>| async { Ok::<_, Infallible>(Response::new(())) });
    let _ = ServiceBuilder::new()
        .backoff_retry(Backoff::default())
        .service(client)
        .calls::<Request<Upload>>();
}
