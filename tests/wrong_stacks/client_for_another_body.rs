//! A read timeout watches the upload, so the client below it sends the wrapped body.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::ServiceBuilder;
use tower_outbound::{
    CallsExt, ServiceBuilderExt,
    nest::client::{Client, HttpClient},
};

fn main() {
    let client: HttpClient<Full<Bytes>> = Client::builder().build_http().unwrap();
    let _ = ServiceBuilder::new()
        .read_timeout(Duration::from_secs(5))
        .unwrap()
        .service(client)
        .calls::<Request<Full<Bytes>>>();
}
