//! The three shells in one.

use std::{
    fmt,
    future::{Future, Ready},
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{
    BoxError,
    util::{Either, ServiceExt as _},
};
use tower_layer::Layer;
use tower_service::Service;

use super::{Feign, FeignLayer, Hystrix, HystrixLayer, Ribbon, RibbonLayer, SpringConfig};
use crate::{
    balance::BalanceHandle,
    breaker::Breaker,
    bulkhead::Bulkhead,
    call::{ConfigError, Endpoints, ErrorRef, HostHeader, config},
    fallback::{Fallback, FallbackLayer, Substitute},
    nest::Plan,
    observe::{RecordTrail, RecordTrailLayer},
};

/// The shells from the outside in.
type Shells<C> = RecordTrail<Hystrix<Feign<Ribbon<C>>>>;

type Stack<C, F> = Either<Fallback<Shells<C>, F>, Shells<C>>;

/// A nest over a [`Client`](crate::nest::client::Client) for plain `http`, called with `Request<B>`.
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub type HttpSpringNest<B, F = NoFallback> =
    SpringNest<crate::nest::client::HttpClient<crate::timeout::UploadBody<B>>, F>;

/// Hystrix around Feign around Ribbon, as Spring Cloud wires them. Made by [`SpringConfig::nest`].
///
/// It is a plain `Service<http::Request<B>>` over any client, cheap to clone; all clones share breaker, bulkhead and
/// rotation. See the [module](super) for its layers and an example.
pub struct SpringNest<C, F = NoFallback> {
    stack: Stack<C, F>,
    fallback: Option<FallbackLayer<F>>,
    handle: SpringHandle,
}

/// The fallback of a nest that has none.
#[derive(Debug, Clone, Copy)]
pub enum NoFallback {}

impl<Req, Res> Substitute<Req, Res> for NoFallback {
    type Taken = ();
    type Future = Ready<Result<Res, BoxError>>;

    fn take(&self, _: &Req) {
        match *self {}
    }

    fn answer(&self, (): (), _: ErrorRef<'_>) -> Self::Future {
        match *self {}
    }
}

/// What is said of a [`SpringNest`] beside its settings. Made by [`SpringConfig::nest`].
#[derive(Debug)]
#[must_use]
pub struct SpringNestBuilder<F = NoFallback> {
    config: SpringConfig,
    endpoints: Endpoints,
    host_header: HostHeader,
    pool: Option<Bulkhead>,
    fallback: Option<FallbackLayer<F>>,
}

impl SpringNestBuilder {
    pub(super) fn new(config: SpringConfig, endpoints: Endpoints) -> Self {
        SpringNestBuilder {
            config,
            endpoints,
            host_header: HostHeader::OfEndpoint,
            pool: None,
            fallback: None,
        }
    }
}

impl<F> SpringNestBuilder<F> {
    /// What answers in place of an error: a fallback in Feign, or a fallback factory.
    ///
    /// How many may run at once is set by `fallback.isolation.semaphore.maxConcurrentRequests`. It is not asked where
    /// `fallback.enabled` is false. It needs Hystrix: without `feign.hystrix.enabled=true` Spring ignores a fallback, and
    /// here [`build`](SpringNestBuilder::build) refuses it.
    ///
    /// What it answers has the type that the nest's answers have, whose body is made from `Bytes`:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Full};
    /// use tower_outbound::{call::{BoxError, Endpoints, ErrorRef}, fallback::FallbackLayer, nest::spring};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let fallback = FallbackLayer::new(|_: ErrorRef<'_>| async {
    ///     Ok(Response::new(Bytes::from("[]").into()))
    /// });
    /// // Nobody to call.
    /// let nest = spring::from_pairs("orders", [("feign.hystrix.enabled", "true")])?
    ///     .nest(Endpoints::new())
    ///     .fallback(fallback)
    ///     .build_http()?;
    /// let response = nest.send(Request::get("/orders").body(Full::<Bytes>::default())?).await?;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "[]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A closure has no name that a field could have as its type. A [`Substitute`] of your own has one:
    ///
    /// ```
    /// use std::future::{Ready, ready};
    ///
    /// use bytes::Bytes;
    /// use http::Response;
    /// use http_body_util::Full;
    /// use tower_outbound::{
    ///     call::{BoxError, Endpoints, ErrorRef},
    ///     fallback::{FallbackLayer, Substitute},
    ///     nest::spring::{self, HttpSpringNest},
    /// };
    ///
    /// #[derive(Clone)]
    /// struct NoOrders;
    ///
    /// // For answers of any body that is made from bytes.
    /// impl<Req, B: From<Bytes>> Substitute<Req, Response<B>> for NoOrders {
    ///     type Taken = ();
    ///     type Future = Ready<Result<Response<B>, BoxError>>;
    ///
    ///     fn take(&self, _: &Req) {}
    ///
    ///     fn answer(&self, (): (), _: ErrorRef<'_>) -> Self::Future {
    ///         ready(Ok(Response::new(Bytes::from("[]").into())))
    ///     }
    /// }
    ///
    /// struct Orders {
    ///     nest: HttpSpringNest<Full<Bytes>, NoOrders>,
    /// }
    ///
    /// impl Orders {
    ///     fn new(endpoints: Endpoints) -> Result<Self, BoxError> {
    ///         let config = spring::from_pairs("orders", [("feign.hystrix.enabled", "true")])?;
    ///         Ok(Orders { nest: config.nest(endpoints).fallback(FallbackLayer::of(NoOrders)).build_http()? })
    ///     }
    ///
    ///     async fn all(&self) -> Result<u16, BoxError> {
    ///         let request = http::Request::get("/orders").body(Full::default())?;
    ///         Ok(self.nest.send(request).await?.status().as_u16())
    ///     }
    /// }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// #     assert_eq!(Orders::new(Endpoints::new())?.all().await?, 200);
    /// #     Ok::<_, BoxError>(())
    /// # })?;
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn fallback<F2>(self, fallback: FallbackLayer<F2>) -> SpringNestBuilder<F2> {
        SpringNestBuilder {
            fallback: Some(fallback),
            config: self.config,
            endpoints: self.endpoints,
            host_header: self.host_header,
            pool: self.pool,
        }
    }

    /// The thread pool that the command shares with others, whose size then holds. In Spring all methods of a client share
    /// one.
    pub fn pool(mut self, pool: Bulkhead) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Which `Host` header the requests carry. Default: the endpoint's, as in Ribbon.
    pub fn host_header(mut self, host: HostHeader) -> Self {
        self.host_header = host;
        self
    }

    /// Builds the nest over this client: any `Service<http::Request<UploadBody<B>>>` that answers with
    /// `http::Response`. Its connect limit should be the one of [`SpringConfig::limits`].
    ///
    /// # Errors
    ///
    /// If the name of client or command is empty or blank; if there is a fallback without Hystrix; if a value is none that its layer can have, such as a window that holds
    /// no health snapshot.
    pub fn build<C>(self, client: C) -> Result<SpringNest<C, F>, ConfigError>
    where
        F: Clone,
    {
        let config = &self.config;
        config::name("Spring", "client", config.client())?;
        let has_hystrix = config.has_hystrix();
        if self.fallback.is_some() && !has_hystrix {
            return Err(ConfigError::new(
                "Spring",
                "fallback",
                "one without Hystrix",
                "set `feign.hystrix.enabled` to true, or leave the fallback out",
            ));
        }
        let hystrix = if has_hystrix {
            HystrixLayer::new(config, self.pool)?
        } else {
            HystrixLayer::off(config)?
        };
        let limits = config.limits().check()?;
        let feign = FeignLayer::new(config, limits.read)?;
        let ribbon = RibbonLayer::new(config, self.endpoints.clone())?.host_header(self.host_header);
        let handle = SpringHandle {
            breaker: has_hystrix.then(|| hystrix.breaker().clone()),
            bulkhead: has_hystrix.then(|| hystrix.bulkhead().clone()),
            balance: ribbon.balance(),
            endpoints: self.endpoints,
            plan: config.plan()?,
        };
        let record = RecordTrailLayer::new().every_call(config.beans.record_every_call);
        let shells = record.layer(hystrix.layer(feign.layer(ribbon.layer(client))));
        let fallback = self.fallback.and_then(|layer| config.fallback(layer));
        Ok(SpringNest {
            stack: match &fallback {
                Some(layer) => Either::Left(layer.layer(shells)),
                None => Either::Right(shells),
            },
            fallback,
            handle,
        })
    }

    /// Builds the nest over a [`Client`](crate::nest::client::Client) for plain `http`, with the connect limit of
    /// [`SpringConfig::limits`].
    ///
    /// # Errors
    ///
    /// As [`build`](SpringNestBuilder::build), and if an endpoint that is in the set by now has another scheme than
    /// `http`.
    #[cfg(feature = "client")]
    #[cfg_attr(docsrs, doc(cfg(feature = "client")))]
    pub fn build_http<B>(self) -> Result<HttpSpringNest<B, F>, ConfigError>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send,
        B::Error: Into<BoxError>,
        F: Clone,
    {
        crate::nest::builder::only_http("Spring", &self.endpoints)?;
        let client = crate::nest::client::Client::builder()
            .connect_limit(self.config.limits().check()?.connect)
            .build_http()?;
        self.build(client)
    }
}

impl<C, F> SpringNest<C, F> {
    /// The parts that can be seen and steered from outside.
    pub fn handle(&self) -> &SpringHandle {
        &self.handle
    }

    /// The fallback, if there is one that is asked. It tells how many are running.
    pub fn fallback(&self) -> Option<&FallbackLayer<F>> {
        self.fallback.as_ref()
    }

    /// Sends a request: the same as `nest.clone().oneshot(request)`.
    ///
    /// The endpoint takes the place of a host in its address, so a path is enough: `/orders/7`.
    pub fn send<B, R>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<R>, BoxError>> + use<B, R, C, F>
    where
        C: Clone,
        F: Clone,
        Self: Service<Request<B>, Response = Response<R>, Error = BoxError>,
    {
        self.clone().oneshot(request)
    }
}

impl<C, F, B> Service<Request<B>> for SpringNest<C, F>
where
    Stack<C, F>: Service<Request<B>, Error = BoxError>,
{
    type Response = <Stack<C, F> as Service<Request<B>>>::Response;
    type Error = BoxError;
    type Future = <Stack<C, F> as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.stack.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.stack.call(request)
    }
}

impl<C: Clone, F: Clone> Clone for SpringNest<C, F> {
    fn clone(&self) -> Self {
        SpringNest {
            stack: self.stack.clone(),
            fallback: self.fallback.clone(),
            handle: self.handle.clone(),
        }
    }
}

impl<C, F> fmt::Debug for SpringNest<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpringNest")
            .field("handle", &self.handle)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

/// The parts of a [`SpringNest`] that can be seen and steered from outside. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct SpringHandle {
    breaker: Option<Breaker>,
    bulkhead: Option<Bulkhead>,
    balance: BalanceHandle,
    endpoints: Endpoints,
    plan: Plan,
}

impl SpringHandle {
    /// The circuit breaker. `None`: the nest has no Hystrix.
    pub fn breaker(&self) -> Option<&Breaker> {
        self.breaker.as_ref()
    }

    /// The semaphore, or the pool. `None`: the nest has no Hystrix.
    pub fn bulkhead(&self) -> Option<&Bulkhead> {
        self.bulkhead.as_ref()
    }

    /// What the balancer knows of each endpoint.
    pub fn balance(&self) -> &BalanceHandle {
        &self.balance
    }

    /// The live set of endpoints.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// How often a call is sent at most, and how long that can take.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
