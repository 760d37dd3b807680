//! Requests that are not HTTP, and layers that are not ours.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    CallsExt, ServiceBuilderExt,
    balance::{LoadBalanceLayer, RoundRobin},
    breaker::Breaker,
    call::{
        Addressed, BoxError, CircuitState, Endpoint, Endpoints, ErrorRef, Fault, FaultError, FaultKind,
        HostHeader, NotRepeatable, OutboundRequest, Rejection, Semantics, Sent, Verdict,
    },
    retry::{Backoff, Idempotent},
};

/// A request of a protocol of one's own.
#[derive(Debug, Clone, PartialEq)]
struct Lookup {
    id: u64,
    at: Option<String>,
}

impl OutboundRequest for Lookup {
    type Kept = Self;

    fn semantics(&self) -> Semantics {
        Semantics::READ
    }

    fn keep(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn restore(kept: &Self) -> Option<Self> {
        Some(kept.clone())
    }
}

impl Addressed for Lookup {
    fn send_to(&mut self, endpoint: &Endpoint, _: HostHeader) {
        self.at = Some(endpoint.authority().to_string());
    }
}

/// A layer of one's own, of the kind that limits how many calls there are at once.
#[derive(Debug, Clone)]
struct AtMost {
    slots: Arc<tokio::sync::Semaphore>,
}

#[derive(Debug, Clone)]
struct AtMostService<S> {
    inner: S,
    slots: Arc<tokio::sync::Semaphore>,
}

impl<S> Layer<S> for AtMost {
    type Service = AtMostService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AtMostService {
            inner,
            slots: Arc::clone(&self.slots),
        }
    }
}

impl<S, Req> Service<Req> for AtMostService<S>
where
    S: Service<Req, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = futures_util::future::BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => {
                let call = self.inner.call(request);
                Box::pin(async move {
                    let _slot = slot;
                    call.await
                })
            }
            Err(_) => {
                let fault = Fault::new(FaultKind::Rejected(Rejection::Bulkhead), Sent::No);
                Box::pin(async move { Err(FaultError::new(fault, "all slots are taken").into()) })
            }
        }
    }
}

fn at_most(slots: usize) -> AtMost {
    AtMost {
        slots: Arc::new(tokio::sync::Semaphore::new(slots)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_ones_own_goes_through_breaker_timeout_bulkhead_retries_and_balancer() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let endpoints = ["a:1", "b:1"]
        .into_iter()
        .map(|uri| Endpoint::new(uri).unwrap())
        .collect::<Endpoints>();
    let breaker = Breaker::new("lookups").unwrap();
    let stack = ServiceBuilder::new()
        .circuit_breaker(breaker.clone())
        .execution_timeout(Duration::from_secs(10))
        .unwrap()
        .layer(at_most(1))
        .backoff_retry(Backoff::default())
        .idempotent_retry(Idempotent::default())
        .layer(LoadBalanceLayer::new(endpoints).rule(RoundRobin::new()))
        .service(service_fn(move |lookup: Lookup| {
            counter.fetch_add(1, SeqCst);
            async move {
                match lookup.at.as_deref() {
                    Some("b:1") => Ok(lookup.id),
                    _ => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                }
            }
        }))
        .calls::<Lookup>();
    let answer = stack.oneshot(Lookup { id: 7, at: None }).await.unwrap();
    assert_eq!(
        (answer, sent.load(SeqCst)),
        (7, 2),
        "the first went to a, the second to b"
    );
    assert_eq!(breaker.counts().total(), 1, "the breaker sees one call");
}

#[tokio::test(start_paused = true)]
async fn a_request_of_ones_own_is_ended_by_the_execution_limit() {
    let stack = ServiceBuilder::new()
        .execution_timeout(Duration::from_secs(1))
        .unwrap()
        .backoff_retry(Backoff::default())
        .service(service_fn(async |_: Lookup| {
            std::future::pending::<Result<(), io::Error>>().await
        }));
    let began = Instant::now();
    let error = stack.oneshot(Lookup { id: 7, at: None }).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ExecutionTimeout);
    assert_eq!(began.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_by_a_layer_of_ones_own_is_neither_retried_nor_counted() {
    let breaker = Breaker::builder("lookups")
        .volume(1)
        .error_percent(1)
        .build()
        .unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let stack = ServiceBuilder::new()
        .circuit_breaker(breaker.clone())
        .backoff_retry(Backoff::default())
        .map_request(move |lookup: Lookup| {
            counter.fetch_add(1, SeqCst);
            lookup
        })
        .layer(at_most(0))
        .service(service_fn(async |_: Lookup| Ok::<_, BoxError>(())));
    let error = stack.oneshot(Lookup { id: 7, at: None }).await.unwrap_err();
    assert_eq!(
        Fault::of(&*error).kind(),
        FaultKind::Rejected(Rejection::Bulkhead)
    );
    assert_eq!(calls.load(SeqCst), 1);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_says_nothing_of_itself_is_sent_once() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let stack = ServiceBuilder::new()
        .backoff_retry(Backoff::default())
        .service(service_fn(move |_: NotRepeatable<&str>| {
            counter.fetch_add(1, SeqCst);
            async { Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused)) }
        }));
    assert!(stack.oneshot(NotRepeatable("once")).await.is_err());
    assert_eq!(sent.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_closure_can_say_what_counts_as_a_failure() {
    let breaker = Breaker::builder("answers").volume(2).build().unwrap();
    let layer = tower_outbound::breaker::CircuitBreakerLayer::new(breaker.clone()).classify(
        |outcome: Result<&u64, ErrorRef<'_>>| match outcome {
            Ok(0) => Verdict::Failure,
            Ok(_) => Verdict::Success,
            Err(error) => Verdict::of(error),
        },
    );
    let mut stack = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(async |lookup: Lookup| Ok::<_, io::Error>(lookup.id)));
    for _ in 0..2 {
        stack
            .ready()
            .await
            .unwrap()
            .call(Lookup { id: 0, at: None })
            .await
            .unwrap();
    }
    assert_eq!(breaker.state(), CircuitState::Open);
}
