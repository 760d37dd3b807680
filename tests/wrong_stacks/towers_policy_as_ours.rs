//! A policy that was written for tower has an entrance of its own.

use std::future::{Ready, ready};

use tower::retry::Policy;
use tower_outbound::retry::RetryLayer;

#[derive(Clone)]
struct Once(bool);

impl<Res, E> Policy<String, Res, E> for Once {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut String, _: &mut Result<Res, E>) -> Option<Ready<()>> {
        std::mem::take(&mut self.0).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &String) -> Option<String> {
        Some(request.clone())
    }
}

fn main() {
    let _ = RetryLayer::new(Once(true));
}
