//! The standard stack as a plain service.

use std::{
    future::Future,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{BoxError, util::ServiceExt as _};
use tower_service::Service;

use super::builder::NestBuilder;
use crate::{
    balance::{BalanceHandle, Ewma, LoadBalance},
    breaker::{Breaker, CircuitBreaker},
    call::{ByTrailers, Endpoints, PerRequest, RetryBudget},
    classify::{StatusErrorClassifier, StatusPolicy},
    observe::RecordTrail,
    retry::{BackoffRetry, IdempotentRetry},
    timeout::{ExecutionTimeout, ReadTimeout},
};

/// The layers from the outside in.
pub(super) type Stack<C, R> = RecordTrail<
    CircuitBreaker<
        ExecutionTimeout<
            BackoffRetry<
                StatusErrorClassifier<IdempotentRetry<LoadBalance<ReadTimeout<C>, R, StatusPolicy>>>,
            >,
            PerRequest,
        >,
        ByTrailers,
    >,
>;

/// A nest over a [`Client`](super::client::Client) for plain `http`, called with `Request<B>`.
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub type HttpNest<B, R = Ewma> = Nest<super::client::HttpClient<crate::timeout::UploadBody<B>>, R>;

/// The standard stack, hystrix around feign around ribbon, with safe settings.
///
/// It is a plain `Service<http::Request<B>>` over any client, cheap to clone; all clones share breaker, budget and
/// the figures about the endpoints. A call goes through these layers, from the outside in:
///
/// ```text
/// RecordTrail             begins the call; puts its trail on the outcome
/// CircuitBreaker          rejects while the dependency is down
/// ExecutionTimeout        limits the whole call
/// BackoffRetry            sends again after a pause
/// StatusErrorClassifier   turns statuses into errors, and says whose fault they are
/// IdempotentRetry         sends again at once, to the next endpoint
/// LoadBalance             picks the endpoint of each attempt
/// ReadTimeout             limits the server's silence
/// ```
///
/// A request can have limits and retry counts of its own: put [`Overrides`](crate::call::Overrides) into its extensions.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use tower_outbound::{Nest, call::Endpoints, nest::HttpNest};
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])?;
/// let nest: HttpNest<Full<Bytes>> = Nest::builder("orders", endpoints).build_http()?;
/// assert_eq!(nest.handle().breaker().name(), "orders");
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Nest<C, R = Ewma> {
    stack: Stack<C, R>,
    handle: NestHandle,
}

// Not derived: the rule is shared, so it need not be `Clone`.
impl<C: Clone, R> Clone for Nest<C, R> {
    fn clone(&self) -> Self {
        Nest {
            stack: self.stack.clone(),
            handle: self.handle.clone(),
        }
    }
}

impl Nest<()> {
    /// Begins a nest for the calls to one dependency, which has this name and these endpoints.
    pub fn builder(name: impl Into<String>, endpoints: Endpoints) -> NestBuilder {
        NestBuilder::new(name.into(), endpoints)
    }
}

impl<C, R> Nest<C, R> {
    pub(super) fn new(stack: Stack<C, R>, handle: NestHandle) -> Self {
        Nest { stack, handle }
    }

    /// The parts that can be seen and steered from outside.
    pub fn handle(&self) -> &NestHandle {
        &self.handle
    }

    /// Sends a request: the same as `nest.clone().oneshot(request)`.
    ///
    /// The endpoint takes the place of a host in its address, so a path is enough: `/orders/7`. With the slash: `orders`
    /// alone is a host to `http`, and the path is then `/`.
    pub fn send<B, R2>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<R2>, BoxError>> + use<B, R2, C, R>
    where
        C: Clone,
        Self: Service<Request<B>, Response = Response<R2>, Error = BoxError>,
    {
        self.clone().oneshot(request)
    }
}

impl<C, R, B> Service<Request<B>> for Nest<C, R>
where
    Stack<C, R>: Service<Request<B>, Error = BoxError>,
{
    type Response = <Stack<C, R> as Service<Request<B>>>::Response;
    type Error = BoxError;
    type Future = <Stack<C, R> as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.stack.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.stack.call(request)
    }
}

/// The parts of a [`Nest`] that can be seen and steered from outside. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct NestHandle {
    breaker: Breaker,
    endpoints: Endpoints,
    balance: BalanceHandle,
    budget: Option<RetryBudget>,
}

impl NestHandle {
    pub(super) fn new(
        breaker: Breaker,
        endpoints: Endpoints,
        balance: BalanceHandle,
        budget: Option<RetryBudget>,
    ) -> Self {
        NestHandle {
            breaker,
            endpoints,
            balance,
            budget,
        }
    }

    /// The circuit breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// The live set of endpoints.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// What the balancer knows of each endpoint.
    pub fn balance(&self) -> &BalanceHandle {
        &self.balance
    }

    /// The retry budget, if there is one.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.budget.as_ref()
    }
}
