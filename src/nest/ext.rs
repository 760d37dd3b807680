//! The methods of `ServiceBuilder` that make a stack read as the nest.

#[allow(
    unused_imports,
    reason = "which are used depends on the layers that are switched on"
)]
use std::{borrow::Cow, time::Duration};

use tower::ServiceBuilder;
#[allow(
    unused_imports,
    reason = "which are used depends on the layers that are switched on"
)]
use tower::layer::util::Stack;
use tower_service::Service;

#[allow(
    unused_imports,
    reason = "which are used depends on the layers that are switched on"
)]
use crate::call::ConfigError;

/// A method of `ServiceBuilder` for each layer of this crate, each behind the feature of its layer.
///
/// The methods take a policy or a handle, which carries the settings; each layer's own type has the rest of them, and
/// goes into the stack with [`layer`](ServiceBuilder::layer). Methods that take a duration can fail, since zero is
/// no limit.
///
/// ```
/// # #[cfg(all(feature = "nest", feature = "client"))]
/// # fn stack() -> Result<(), tower_outbound::call::ConfigError> {
/// use std::time::Duration;
/// use tower::ServiceBuilder;
/// use tower_outbound::{
///     CallsExt, ServiceBuilderExt,
///     balance::LoadBalanceLayer,
///     breaker::Breaker,
///     call::Endpoints,
///     classify::StatusPolicy,
///     nest::client::Client,
///     retry::{Backoff, Idempotent},
/// };
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1:8080"])?;
/// let stack = ServiceBuilder::new()
///     .record_trail()
///     .circuit_breaker(Breaker::new("orders")?)
///     .execution_timeout(Duration::from_secs(30))?
///     .backoff_retry(Backoff::default())
///     .status_errors(StatusPolicy::default())
///     .idempotent_retry(Idempotent::default())
///     .layer(LoadBalanceLayer::new(endpoints).classify(StatusPolicy::default()))
///     .read_timeout(Duration::from_secs(5))?
///     .service(Client::builder().build_http()?)
///     .calls::<http::Request<http_body_util::Full<bytes::Bytes>>>();
/// # Ok(())
/// # }
/// ```
pub trait ServiceBuilderExt<L>: sealed::Sealed + Sized {
    /// Marks where a call begins and ends, and puts its trail on its outcome.
    #[cfg(feature = "trail")]
    #[cfg_attr(docsrs, doc(cfg(feature = "trail")))]
    fn record_trail(self) -> ServiceBuilder<Stack<crate::observe::RecordTrailLayer, L>>;

    /// Answers in place of an error, by a closure that gets the error; at most 10 at once.
    #[cfg(feature = "fallback")]
    #[cfg_attr(docsrs, doc(cfg(feature = "fallback")))]
    fn fallback<F, Fut, Res>(
        self,
        fallback: F,
    ) -> ServiceBuilder<Stack<crate::fallback::FallbackLayer<F>, L>>
    where
        F: Fn(crate::call::ErrorRef<'_>) -> Fut,
        Fut: Future<Output = Result<Res, crate::call::BoxError>>;

    /// Rejects calls while the dependency is down.
    #[cfg(feature = "breaker")]
    #[cfg_attr(docsrs, doc(cfg(feature = "breaker")))]
    fn circuit_breaker(
        self,
        breaker: crate::breaker::Breaker,
    ) -> ServiceBuilder<Stack<crate::breaker::CircuitBreakerLayer, L>>;

    /// Rejects calls by the breaker of their key, such as the host: see
    /// [`KeyedBreakerLayer`](crate::breaker::KeyedBreakerLayer).
    #[cfg(feature = "breaker")]
    #[cfg_attr(docsrs, doc(cfg(feature = "breaker")))]
    fn keyed_breakers<Q, F, Req>(
        self,
        breakers: crate::breaker::Breakers<Q>,
        key: F,
    ) -> ServiceBuilder<Stack<crate::breaker::KeyedBreakerLayer<Q, F>, L>>
    where
        Q: ?Sized + ToOwned,
        F: Fn(&Req) -> Option<Cow<'_, Q>>;

    /// Keeps the balancer from endpoints that are not well. It belongs right below load balancing.
    #[cfg(all(feature = "breaker", feature = "endpoints"))]
    #[cfg_attr(docsrs, doc(cfg(all(feature = "breaker", feature = "endpoints"))))]
    fn endpoint_breakers(
        self,
        breakers: crate::breaker::EndpointBreakers,
    ) -> ServiceBuilder<Stack<crate::breaker::EndpointBreakerLayer, L>>;

    /// Limits the whole call: retries, waits and sleeps included, though not the time before the call in which the
    /// stack is polled for readiness. For requests with limits of their own put in
    /// [`ExecutionTimeoutLayer::per_request`](crate::timeout::ExecutionTimeoutLayer::per_request) as a layer.
    ///
    /// # Errors
    ///
    /// If the limit is zero, or longer than ten years.
    #[cfg(feature = "timeout")]
    #[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
    fn execution_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ExecutionTimeoutLayer, L>>, ConfigError>;

    /// Limits how many calls are in flight at once.
    #[cfg(feature = "bulkhead")]
    #[cfg_attr(docsrs, doc(cfg(feature = "bulkhead")))]
    fn bulkhead(
        self,
        bulkhead: crate::bulkhead::Bulkhead,
    ) -> ServiceBuilder<Stack<crate::bulkhead::BulkheadLayer, L>>;

    /// Reads the answer's body, up to 16 MiB, before the call ends, so that one which breaks off is the call's failure.
    #[cfg(feature = "collect")]
    #[cfg_attr(docsrs, doc(cfg(feature = "collect")))]
    fn collect_body(self) -> ServiceBuilder<Stack<crate::collect::CollectBodyLayer, L>>;

    /// Sends a call again after a pause, where that is safe.
    #[cfg(feature = "retry")]
    #[cfg_attr(docsrs, doc(cfg(feature = "retry")))]
    fn backoff_retry(
        self,
        policy: crate::retry::Backoff,
    ) -> ServiceBuilder<Stack<crate::retry::BackoffRetryLayer, L>>;

    /// Turns statuses into errors, and says whose fault they are.
    #[cfg(feature = "classify")]
    #[cfg_attr(docsrs, doc(cfg(feature = "classify")))]
    fn status_errors(
        self,
        policy: crate::classify::StatusPolicy,
    ) -> ServiceBuilder<Stack<crate::classify::StatusErrorClassifierLayer, L>>;

    /// Turns gRPC statuses into errors and verdicts. Belongs around the client, below load balancing.
    #[cfg(feature = "classify")]
    #[cfg_attr(docsrs, doc(cfg(feature = "classify")))]
    fn grpc_errors(
        self,
        policy: crate::classify::GrpcPolicy,
    ) -> ServiceBuilder<Stack<crate::classify::GrpcErrorClassifierLayer, L>>;

    /// Sends a call again at once, to the same or to the next endpoint, where that is safe.
    #[cfg(feature = "retry")]
    #[cfg_attr(docsrs, doc(cfg(feature = "retry")))]
    fn idempotent_retry(
        self,
        policy: crate::retry::Idempotent,
    ) -> ServiceBuilder<Stack<crate::retry::IdempotentRetryLayer, L>>;

    /// Picks an endpoint for each attempt, by [`Ewma`](crate::balance::Ewma): where an answer is
    /// likely to come soonest.
    ///
    /// Every answer is a success to it, a 503 as well. Over HTTP say
    /// `.layer(LoadBalanceLayer::new(endpoints).classify(StatusPolicy::default()))` in its place, or have
    /// [`status_errors`](ServiceBuilderExt::status_errors) below it.
    #[cfg(feature = "balance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "balance")))]
    fn load_balance(
        self,
        endpoints: crate::call::Endpoints,
    ) -> ServiceBuilder<Stack<crate::balance::LoadBalanceLayer, L>>;

    /// Limits how long a server may be silent.
    ///
    /// # Errors
    ///
    /// If the limit is zero, or longer than ten years.
    #[cfg(feature = "timeout")]
    #[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
    fn read_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ReadTimeoutLayer, L>>, ConfigError>;

    /// Tells the server how much time is left, in each attempt. It belongs below the retries.
    #[cfg(feature = "timeout")]
    #[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
    fn send_deadline(
        self,
        header: crate::call::DeadlineHeader,
    ) -> ServiceBuilder<Stack<crate::timeout::SendDeadlineLayer, L>>;

    /// Heeds the time that a request tells of which is served. It goes around the service of a server.
    #[cfg(feature = "timeout")]
    #[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
    fn receive_deadline(
        self,
        header: crate::call::DeadlineHeader,
    ) -> ServiceBuilder<Stack<crate::timeout::ReceiveDeadlineLayer, L>>;

    /// Limits the connect phase. It goes around a connector, not into the stack above a client.
    ///
    /// # Errors
    ///
    /// If the limit is zero, or longer than ten years.
    #[cfg(feature = "timeout")]
    #[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
    fn connect_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ConnectTimeoutLayer, L>>, ConfigError>;
}

impl<L> ServiceBuilderExt<L> for ServiceBuilder<L> {
    #[cfg(feature = "trail")]
    fn record_trail(self) -> ServiceBuilder<Stack<crate::observe::RecordTrailLayer, L>> {
        self.layer(crate::observe::RecordTrailLayer::new())
    }

    #[cfg(feature = "fallback")]
    fn fallback<F, Fut, Res>(self, fallback: F) -> ServiceBuilder<Stack<crate::fallback::FallbackLayer<F>, L>>
    where
        F: Fn(crate::call::ErrorRef<'_>) -> Fut,
        Fut: Future<Output = Result<Res, crate::call::BoxError>>,
    {
        self.layer(crate::fallback::FallbackLayer::new(fallback))
    }

    #[cfg(feature = "breaker")]
    fn circuit_breaker(
        self,
        breaker: crate::breaker::Breaker,
    ) -> ServiceBuilder<Stack<crate::breaker::CircuitBreakerLayer, L>> {
        self.layer(crate::breaker::CircuitBreakerLayer::new(breaker))
    }

    #[cfg(feature = "breaker")]
    fn keyed_breakers<Q, F, Req>(
        self,
        breakers: crate::breaker::Breakers<Q>,
        key: F,
    ) -> ServiceBuilder<Stack<crate::breaker::KeyedBreakerLayer<Q, F>, L>>
    where
        Q: ?Sized + ToOwned,
        F: Fn(&Req) -> Option<Cow<'_, Q>>,
    {
        self.layer(crate::breaker::KeyedBreakerLayer::new(breakers, key))
    }

    #[cfg(all(feature = "breaker", feature = "endpoints"))]
    fn endpoint_breakers(
        self,
        breakers: crate::breaker::EndpointBreakers,
    ) -> ServiceBuilder<Stack<crate::breaker::EndpointBreakerLayer, L>> {
        self.layer(crate::breaker::EndpointBreakerLayer::new(breakers))
    }

    #[cfg(feature = "timeout")]
    fn execution_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ExecutionTimeoutLayer, L>>, ConfigError> {
        Ok(self.layer(crate::timeout::ExecutionTimeoutLayer::new(limit)?))
    }

    #[cfg(feature = "bulkhead")]
    fn bulkhead(
        self,
        bulkhead: crate::bulkhead::Bulkhead,
    ) -> ServiceBuilder<Stack<crate::bulkhead::BulkheadLayer, L>> {
        self.layer(crate::bulkhead::BulkheadLayer::new(bulkhead))
    }

    #[cfg(feature = "collect")]
    fn collect_body(self) -> ServiceBuilder<Stack<crate::collect::CollectBodyLayer, L>> {
        self.layer(crate::collect::CollectBodyLayer::new())
    }

    #[cfg(feature = "retry")]
    fn backoff_retry(
        self,
        policy: crate::retry::Backoff,
    ) -> ServiceBuilder<Stack<crate::retry::BackoffRetryLayer, L>> {
        self.layer(crate::retry::BackoffRetryLayer::new(policy))
    }

    #[cfg(feature = "classify")]
    fn status_errors(
        self,
        policy: crate::classify::StatusPolicy,
    ) -> ServiceBuilder<Stack<crate::classify::StatusErrorClassifierLayer, L>> {
        self.layer(crate::classify::StatusErrorClassifierLayer::new(policy))
    }

    #[cfg(feature = "classify")]
    fn grpc_errors(
        self,
        policy: crate::classify::GrpcPolicy,
    ) -> ServiceBuilder<Stack<crate::classify::GrpcErrorClassifierLayer, L>> {
        self.layer(crate::classify::GrpcErrorClassifierLayer::new(policy))
    }

    #[cfg(feature = "retry")]
    fn idempotent_retry(
        self,
        policy: crate::retry::Idempotent,
    ) -> ServiceBuilder<Stack<crate::retry::IdempotentRetryLayer, L>> {
        self.layer(crate::retry::IdempotentRetryLayer::new(policy))
    }

    #[cfg(feature = "balance")]
    fn load_balance(
        self,
        endpoints: crate::call::Endpoints,
    ) -> ServiceBuilder<Stack<crate::balance::LoadBalanceLayer, L>> {
        self.layer(crate::balance::LoadBalanceLayer::new(endpoints))
    }

    #[cfg(feature = "timeout")]
    fn read_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ReadTimeoutLayer, L>>, ConfigError> {
        Ok(self.layer(crate::timeout::ReadTimeoutLayer::new(limit)?))
    }

    #[cfg(feature = "timeout")]
    fn send_deadline(
        self,
        header: crate::call::DeadlineHeader,
    ) -> ServiceBuilder<Stack<crate::timeout::SendDeadlineLayer, L>> {
        self.layer(crate::timeout::SendDeadlineLayer::new(header))
    }

    #[cfg(feature = "timeout")]
    fn receive_deadline(
        self,
        header: crate::call::DeadlineHeader,
    ) -> ServiceBuilder<Stack<crate::timeout::ReceiveDeadlineLayer, L>> {
        self.layer(crate::timeout::ReceiveDeadlineLayer::new(header))
    }

    #[cfg(feature = "timeout")]
    fn connect_timeout(
        self,
        limit: Duration,
    ) -> Result<ServiceBuilder<Stack<crate::timeout::ConnectTimeoutLayer, L>>, ConfigError> {
        Ok(self.layer(crate::timeout::ConnectTimeoutLayer::new(limit)?))
    }
}

/// Says what a finished stack is called with.
pub trait CallsExt: Sized {
    /// Changes nothing, and makes the compiler check here that this stack takes requests of this type.
    ///
    /// Without it a stack whose parts do not fit, or a body that cannot be repeated, is found only where it is first
    /// called, and there the compiler speaks of a missing method. Put it there whenever that happens: the compiler then
    /// says why. Parts that fit in an order that makes no sense are not found.
    fn calls<Req>(self) -> Self
    where
        Self: Service<Req>,
    {
        self
    }
}

impl<S> CallsExt for S {}

mod sealed {
    pub trait Sealed {}
    impl<L> Sealed for tower::ServiceBuilder<L> {}
}
