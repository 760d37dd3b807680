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
    /// Of a host with several addresses each gets its share of the connect limit, so that a dead one does not use up
    /// the time of those after it.
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
        self.set_up(&mut connector);
        self.build(connector)
    }

    fn set_up<R>(&self, connector: &mut HttpConnector<R>) {
        connector.set_nodelay(true);
        // It tries one address after the other, and divides this between them. A little more than the limit, so that
        // it is the limit that runs out first, and says so.
        let shared = self.connect_limit.saturating_add(self.connect_limit / 16);
        connector.set_connect_timeout(Some(shared));
    }

    /// A client over this connector.
    ///
    /// The connector must have no connect limit of its own that is shorter, and its connections must take writes in
    /// order; every connector that works with hyper-util does. A connector for TLS verifies servers by the host in
    /// their address. An attempt on an endpoint with a [TLS name](crate::call::EndpointBuilder::tls_name) of its own
    /// fails, unsent: such endpoints need [`build_tls`](ClientBuilder::build_tls).
    ///
    /// Where hosts have several addresses give hyper's `HttpConnector` the connect limit as well, by
    /// `set_connect_timeout`: it divides it between them. Without one it waits for the first address as long as it is
    /// let, and a dead one uses up the whole limit.
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, net::SocketAddr};

    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use hyper_util::client::legacy::connect::dns::Name;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpSocket, TcpStream},
        task::JoinSet,
        time::{Instant, timeout},
    };
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::call::ConnectTimedOut;

    /// An address that swallows connects, since the queue of those that wait to be accepted is full.
    struct Dead {
        address: SocketAddr,
        _listener: TcpListener,
        _queue: JoinSet<std::io::Result<TcpStream>>,
        _accepted: Vec<TcpStream>,
    }

    async fn dead() -> Dead {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let listener = socket.listen(0).unwrap();
        let (mut queue, mut accepted) = (JoinSet::new(), Vec::new());
        queue.spawn(TcpStream::connect(address));
        while let Ok(Some(connected)) = timeout(Duration::from_millis(100), queue.join_next()).await {
            accepted.push(connected.unwrap().unwrap());
            queue.spawn(TcpStream::connect(address));
        }
        Dead {
            address,
            _listener: listener,
            _queue: queue,
            _accepted: accepted,
        }
    }

    async fn answering() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 1024]).await;
            socket.write_all(b"HTTP/1.1 204 -\r\n\r\n").await.unwrap();
        });
        address
    }

    /// Calls a host that has these addresses, by a client whose connect limit is 900 ms.
    async fn call(addresses: Vec<SocketAddr>) -> (Result<u16, BoxError>, Duration) {
        let resolver =
            service_fn(move |_: Name| std::future::ready(Ok::<_, Infallible>(addresses.clone().into_iter())));
        let builder = ClientBuilder::default().connect_limit(Duration::from_millis(900));
        let mut connector = HttpConnector::new_with_resolver(resolver);
        builder.set_up(&mut connector);
        let client = builder.build(connector).unwrap();
        let start = Instant::now();
        let request = Request::get("http://orders/").body(Full::<Bytes>::default());
        let outcome = client.oneshot(request.unwrap()).await;
        (outcome.map(|answer| answer.status().as_u16()), start.elapsed())
    }

    /// TMO-08, on sockets.
    #[tokio::test]
    async fn of_three_addresses_two_dead_ones_leave_time_for_the_third_and_three_take_the_limit_once() {
        let (a, b, c) = tokio::join!(dead(), dead(), dead());
        let (answer, took) = call(vec![a.address, b.address, answering().await]).await;
        assert_eq!(answer.unwrap(), 204);
        assert!(took < Duration::from_millis(900), "{took:?}");

        let (answer, took) = call(vec![a.address, b.address, c.address]).await;
        let error = answer.unwrap_err();
        let timed_out = crate::call::chain(&*error).find_map(|level| level.downcast_ref::<ConnectTimedOut>());
        assert_eq!(timed_out.unwrap().limit(), Duration::from_millis(900), "{error}");
        let whole = Duration::from_millis(900)..Duration::from_millis(1800);
        assert!(whole.contains(&took), "{took:?}");
    }
}
