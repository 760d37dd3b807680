//! Setting a client up.

use std::time::Duration;

use http::Uri;
use http_body::Body;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tower_layer::Layer;

use super::{
    service::{Client, Connecting, HttpClient},
    wire::NotedConnector,
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

    /// A client over this connector, one for TLS for instance.
    ///
    /// The connector must have no connect limit of its own that is shorter, and its connections must take writes in
    /// order; every connector that works with hyper-util does.
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
        Ok(Client::new(
            builder.build(connect.layer(NotedConnector::new(connector))),
        ))
    }
}
