//! A policy that was written for tower must be one for these requests, answers and errors.

use std::{
    future::{Ready, ready},
    io,
};

use tower::{BoxError, ServiceBuilder, retry::Policy, service_fn};
use tower_outbound::{CallsExt, retry::RetryLayer};

#[derive(Clone)]
struct Once(bool);

impl Policy<String, (), io::Error> for Once {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut String, _: &mut io::Result<()>) -> Option<Ready<()>> {
        std::mem::take(&mut self.0).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &String) -> Option<String> {
        Some(request.clone())
    }
}

fn main() {
    let client = service_fn(|_: String| async { Ok::<_, BoxError>(()) });
    let _ = ServiceBuilder::new()
        .layer(RetryLayer::tower(Once(true)))
        .service(client)
        .calls::<String>();
}
