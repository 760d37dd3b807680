//! What the retry layers cost where nothing fails.
#![allow(missing_docs, reason = "criterion's macro makes an undocumented function")]

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    task::{Context, Poll},
};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service};
use tower_outbound::{
    call::{OutboundRequest, RetryBudget, Semantics, StatusSet},
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
};

type Body = Empty<bytes::Bytes>;

#[derive(Clone)]
struct Plain;

impl OutboundRequest for Plain {
    type Kept = Plain;

    fn semantics(&self) -> Semantics {
        Semantics::READ
    }

    fn keep(&self) -> Option<Plain> {
        Some(Plain)
    }

    fn restore(_: &Plain) -> Option<Plain> {
        Some(Plain)
    }
}

#[derive(Clone)]
struct Raw;

impl<Req> Service<Req> for Raw {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Body::new())))
    }
}

fn http() -> Request<Body> {
    Request::get("http://orders.example/orders/17?full=true")
        .header("accept", "application/json")
        .header("user-agent", "bench/1.0")
        .header("x-request-id", "0f8fad5b-d9cb-469f-a165-70867728950e")
        .header("authorization", "Bearer abcdefghijklmnopqrstuvwxyz0123456789")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .body(Body::new())
        .unwrap_or_default()
}

fn measure<S, Req>(criterion: &mut Criterion, name: &str, mut service: S, request: impl Fn() -> Req)
where
    S: Service<Req, Response = Response<Body>>,
{
    criterion
        .benchmark_group("retry")
        .bench_function(name, |bencher| {
            bencher.iter_batched(
                &request,
                |request| {
                    let mut cx = Context::from_waker(std::task::Waker::noop());
                    let _ = black_box(service.poll_ready(&mut cx));
                    service
                        .call(request)
                        .now_or_never()
                        .map(|outcome| outcome.is_ok())
                },
                BatchSize::SmallInput,
            );
        });
}

fn happy_path(criterion: &mut Criterion) {
    let backoff = || BackoffRetryLayer::new(Backoff::default());
    let idempotent = || IdempotentRetryLayer::new(Idempotent::default());
    measure(criterion, "plain/raw", Raw, || Plain);
    measure(
        criterion,
        "plain/never",
        BackoffRetryLayer::new(Backoff::never()).layer(Raw),
        || Plain,
    );
    measure(criterion, "plain/backoff", backoff().layer(Raw), || Plain);
    measure(criterion, "plain/idempotent", idempotent().layer(Raw), || Plain);
    let budget = RetryBudget::default();
    measure(
        criterion,
        "plain/backoff, budget",
        backoff().budget(budget.clone()).layer(Raw),
        || Plain,
    );
    measure(criterion, "http/raw", Raw, http);
    measure(
        criterion,
        "http/never",
        BackoffRetryLayer::new(Backoff::never()).layer(Raw),
        http,
    );
    measure(criterion, "http/backoff", backoff().layer(Raw), http);
    measure(criterion, "http/idempotent", idempotent().layer(Raw), http);
    let statuses = idempotent().retry_statuses(StatusSet::TRANSIENT);
    measure(criterion, "http/idempotent, statuses", statuses.layer(Raw), http);
    let both = backoff()
        .budget(budget.clone())
        .layer(idempotent().budget(budget).layer(Raw));
    measure(criterion, "http/both, budget", both, http);
}

criterion_group!(benches, happy_path);
criterion_main!(benches);
