//! A retry calls a clone of the service below.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Service, ServiceBuilder};
use tower_outbound::{CallsExt, ServiceBuilderExt, retry::Backoff};

struct Connection;

impl Service<Request<String>> for Connection {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

fn main() {
    let _ = ServiceBuilder::new()
        .backoff_retry(Backoff::default())
        .service(Connection)
        .calls::<Request<String>>();
}
