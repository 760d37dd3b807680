//! The layer that many write themselves: on any error it sends again. On the same sockets it sends twice what must not
//! be sent twice, or these tests would not see it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    balance::LoadBalanceLayer,
    call::{BoxError, Endpoints, OutboundRequest},
    timeout::ReadTimeoutLayer,
};

use super::{
    client::Tracked,
    run::{SETTINGS, Size, run},
};
use crate::{
    body::CallBody,
    judge::Wrong,
    stacks::{AnswerBody, Stack},
};

#[derive(Clone)]
struct RetryOnAnyError<S>(S);

impl<S, R> Service<Request<CallBody>> for RetryOnAnyError<S>
where
    S: Service<Request<CallBody>, Response = Response<R>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    R: Send,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<CallBody>) -> Self::Future {
        let service = self.0.clone();
        let kept = request.keep();
        Box::pin(async move {
            let first = service.clone().oneshot(request).await;
            match (first, kept.as_ref().and_then(Request::restore)) {
                (Err(_), Some(again)) => service.oneshot(again).await,
                (first, _) => first,
            }
        })
    }
}

fn naive(client: Tracked, endpoints: Endpoints) -> Result<Stack, BoxError> {
    let below = ServiceBuilder::new()
        .layer(LoadBalanceLayer::new(endpoints))
        .layer(ReadTimeoutLayer::new(SETTINGS.read)?)
        .service(client);
    let service = RetryOnAnyError(below)
        .map_response(|answer| answer.map(|body| -> AnswerBody { body.map_err(Into::into).boxed_unsync() }));
    Ok(Stack::new(service))
}

#[test]
fn a_layer_that_sends_again_on_any_error_is_caught_at_it_on_sockets() {
    let size = Size {
        seed: crate::seed(),
        calls: 1000,
        at_once: 64,
    };
    let started = Instant::now();
    let seen = run(size, Some(naive));
    println!(
        "{}",
        seen.report.line("naive on sockets", size.seed, started.elapsed())
    );
    assert!(seen.report.duplicates >= 20, "{seen}");
    assert!(seen.report.count(Wrong::Duplicate) > 0);
}
