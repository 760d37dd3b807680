//! A connect timeout goes around a connector, not above a client.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::{ServiceBuilder, service_fn};
use tower_outbound::{CallsExt, ServiceBuilderExt};

fn main() {
    let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(())) });
    let _ = ServiceBuilder::new()
        .connect_timeout(Duration::from_secs(1))
        .unwrap()
        .service(client)
        .calls::<Request<String>>();
}
