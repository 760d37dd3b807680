//! Setting a client up.

use std::time::Duration;

use http::Uri;
use http_body::Body;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tower::BoxError;
use tower_layer::Layer;

use super::{
    counting::CountingConnector,
    service::{Client, Connecting, HttpClient},
    tls_names::TlsNames,
};
use crate::{
    call::{ConfigError, config::limit},
    timeout::ConnectTimeoutLayer,
};

/// Settings of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    connect_limit: Duration,
    idle_limit: Duration,
    most_idle: usize,
    #[cfg(feature = "http2")]
    http2_only: bool,
}

/// What is the same for all clients of a [`Client`].
pub(super) struct Wiring {
    builder: legacy::Builder,
    connect: ConnectTimeoutLayer,
}

impl Wiring {
    pub(super) fn client<C, B>(&self, connector: C) -> legacy::Client<Connecting<C>, B>
    where
        Connecting<C>: legacy::connect::Connect + Clone,
        B: Body + Send,
        B::Data: Send,
    {
        self.builder
            .build(self.connect.layer(CountingConnector::new(connector)))
    }
}

impl Default for ClientBuilder {
    fn default() -> Self {
        ClientBuilder {
            connect_limit: Duration::from_secs(1),
            idle_limit: Duration::from_secs(4),
            most_idle: usize::MAX,
            #[cfg(feature = "http2")]
            http2_only: false,
        }
    }
}

impl ClientBuilder {
    /// The limit on the connect phase: resolving, all addresses and TLS together. Default: 1 s, as Spring Cloud sets
    /// for Ribbon.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How long an idle connection is kept. Default: 4 s, below the 5 s after which many servers close theirs.
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = limit;
        self
    }

    /// How many idle connections are kept for each host. Default: no limit.
    pub fn most_idle_per_host(mut self, connections: usize) -> Self {
        self.most_idle = connections;
        self
    }

    /// Speaks HTTP/2 from the first byte on, to servers that are known to. Default: HTTP/1.1.
    ///
    /// One call then connects for all that wait meanwhile. So that their read limits count from there on too, the client
    /// makes use of hyper-util's `capture_connection` itself: one that was put on a request before is not heard.
    #[cfg(feature = "http2")]
    pub fn http2_only(mut self) -> Self {
        self.http2_only = true;
        self
    }

    /// A client for plain `http`, over hyper-util's own connector.
    ///
    /// # Errors
    ///
    /// If a limit is zero, or longer than ten years.
    pub fn build_http<B>(self) -> Result<HttpClient<B>, ConfigError>
    where
        B: Body + Send,
        B::Data: Send,
    {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        self.build(connector)
    }

    /// A client over this connector.
    ///
    /// The connector must have no connect limit of its own that is shorter, and its connections must take writes in
    /// order; every connector that works with hyper-util does. A connector for TLS verifies servers by the host in
    /// their address. An attempt on an endpoint with a [TLS name](crate::call::EndpointBuilder::tls_name) of its own
    /// fails, unsent: such endpoints need [`build_tls`](ClientBuilder::build_tls).
    ///
    /// # Errors
    ///
    /// If a limit is zero, or longer than ten years.
    pub fn build<C, B>(self, connector: C) -> Result<Client<C, B>, ConfigError>
    where
        C: tower_service::Service<Uri> + Clone,
        Connecting<C>: legacy::connect::Connect + Clone,
        B: Body + Send,
        B::Data: Send,
    {
        let shares_connects = self.shares_connects();
        let wiring = self.wiring()?;
        Ok(Client::new(wiring.client(connector), None, shares_connects))
    }

    /// A client for endpoints that are dialed by their address and verified by a
    /// [TLS name](crate::call::EndpointBuilder::tls_name) of their own.
    ///
    /// `connector` makes the connector for servers with this name, and without one (`None`) for those that are
    /// verified by the host in their address. It is asked for the latter at once and for each name when the first
    /// call comes. Connections verified by one name are never used for another, even at the same address. With
    /// hyper-rustls:
    ///
    /// ```text
    /// let client = Client::builder().build_tls(move |name: Option<&str>| {
    ///     let mut connector = HttpsConnectorBuilder::new().with_tls_config(config.clone()).https_or_http();
    ///     if let Some(name) = name {
    ///         let name = ServerName::try_from(name.to_owned())?;
    ///         connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
    ///     }
    ///     Ok(connector.enable_http1().build())
    /// })?;
    /// ```
    ///
    /// `examples/tls` in the repository is a whole program.
    ///
    /// # Errors
    ///
    /// If a limit is zero, or longer than ten years, or if there is no connector for servers without a name.
    pub fn build_tls<C, B>(
        self,
        connector: impl Fn(Option<&str>) -> Result<C, BoxError> + Send + Sync + 'static,
    ) -> Result<Client<C, B>, ConfigError>
    where
        C: tower_service::Service<Uri> + Clone,
        Connecting<C>: legacy::connect::Connect + Clone,
        B: Body + Send,
        B::Data: Send,
    {
        let shares_connects = self.shares_connects();
        let wiring = self.wiring()?;
        let plain = connector(None).map_err(|error| {
            let fix = "make one for servers that are verified by the host in their address";
            ConfigError::new("Client", "connector", format_args!("no connector: {error}"), fix)
        })?;
        let client = wiring.client(plain);
        Ok(Client::new(
            client,
            Some(TlsNames::new(Box::new(connector), wiring)),
            shares_connects,
        ))
    }

    /// hyper-util makes one connection for all calls that wait for it only where it knows beforehand that they can
    /// share it.
    fn shares_connects(&self) -> bool {
        #[cfg(feature = "http2")]
        let shares = self.http2_only;
        #[cfg(not(feature = "http2"))]
        let shares = false;
        shares
    }

    fn wiring(self) -> Result<Wiring, ConfigError> {
        let idle_limit = limit("Client", "idle_limit", self.idle_limit)?;
        let connect = ConnectTimeoutLayer::new(self.connect_limit).map_err(|error| {
            ConfigError::new("Client", "connect_limit", error.value(), error.fix().to_owned())
        })?;
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(idle_limit)
            .pool_max_idle_per_host(self.most_idle)
            .retry_canceled_requests(false);
        #[cfg(feature = "http2")]
        builder.http2_only(self.http2_only);
        Ok(Wiring { builder, connect })
    }
}
