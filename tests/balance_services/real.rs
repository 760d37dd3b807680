//! Real connections over loopback: one client connection for each server, made before and handed to the balancer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::Empty;
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Duration,
};
use tower::{Service, ServiceExt};
use tower_outbound::{
    balance::{BalanceServices, RoundRobin},
    call::{Endpoint, HostHeader, Services},
};

/// An HTTP/2 server that answers each request, until it is killed.
struct Backend {
    address: SocketAddr,
    answered: Arc<AtomicUsize>,
    server: JoinSet<()>,
}

impl Backend {
    async fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answered = Arc::<AtomicUsize>::default();
        let count = answered.clone();
        let mut server = JoinSet::new();
        server.spawn(async move {
            // They end with the server.
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                let count = count.clone();
                connections.spawn(async move {
                    let mut connection = h2::server::handshake(connection).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        assert!(request.uri().authority().is_some());
                        count.fetch_add(1, SeqCst);
                        let head = Response::builder().header("grpc-status", "0").body(()).unwrap();
                        respond.send_response(head, true).unwrap();
                    }
                });
            }
        });
        Backend {
            address,
            answered,
            server,
        }
    }

    fn answered(&self) -> usize {
        self.answered.load(SeqCst)
    }

    async fn kill(&mut self) {
        self.server.shutdown().await;
    }
}

/// A connection of hyper's, as a service of tower's.
#[derive(Clone)]
struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    async fn to(address: SocketAddr) -> Connection {
        let socket = TcpStream::connect(address).await.unwrap();
        let executor = TokioExecutor::new();
        let (sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(socket))
            .await
            .unwrap();
        tokio::spawn(connection.map(drop));
        Connection(sender)
    }
}

impl Service<Request<Empty<Bytes>>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Empty<Bytes>>) -> Self::Future {
        self.0.send_request(request).boxed()
    }
}

fn request() -> Request<Empty<Bytes>> {
    Request::get("/17").body(Empty::new()).unwrap()
}

#[tokio::test]
async fn connections_of_http_2_are_used_while_they_live_and_again_when_they_are_made_anew() {
    let mut backends = [
        Backend::start().await,
        Backend::start().await,
        Backend::start().await,
    ];
    let set = Services::new();
    let key = |place: usize, address: SocketAddr| {
        let endpoint = Endpoint::builder(address.to_string()).key(format!("server {place}"));
        endpoint.build().unwrap()
    };
    for (place, backend) in backends.iter().enumerate() {
        set.insert(key(place, backend.address), Connection::to(backend.address).await);
    }
    let balance = BalanceServices::new(set.clone())
        .rule(RoundRobin::new())
        .write_address(HostHeader::OfEndpoint);
    let call = async |times: usize| {
        for _ in 0..times {
            balance.clone().oneshot(request()).await.unwrap();
        }
    };
    call(30).await;
    assert!(backends.iter().all(|backend| backend.answered() == 10));
    // Killed while nothing is under way: the connection says that it is closed before anything is sent.
    backends[0].kill().await;
    let closed = tokio::time::timeout(Duration::from_secs(10), async {
        let handle = balance.handle();
        while handle
            .endpoint("server 0")
            .unwrap()
            .successive_connection_failures()
            == 0
        {
            // Until its client has noticed, a call may end with the connection.
            let _ = balance.clone().oneshot(request()).await;
        }
    });
    closed.await.unwrap();
    let before: Vec<_> = backends.iter().map(Backend::answered).collect();
    call(100).await;
    assert_eq!(backends[0].answered(), before[0]);
    assert!(backends[1].answered() - before[1] >= 49);
    // Replaced under the same key.
    backends[0] = Backend::start().await;
    set.insert(
        key(0, backends[0].address),
        Connection::to(backends[0].address).await,
    );
    call(30).await;
    assert_eq!(backends[0].answered(), 10);
    assert_eq!(balance.handle().total().in_flight(), 0);
}

/// A channel connects by itself, and is ready at all times: what it cannot reach is an attempt that has failed.
#[cfg(feature = "tonic")]
#[tokio::test]
async fn channels_of_tonic_write_their_own_address_and_the_rule_keeps_away_from_one_without_a_server() {
    use tonic::{body::Body, transport::Channel};
    use tower_outbound::call::{Fault, Sent};

    let backends = [Backend::start().await, Backend::start().await];
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let channel = |address: SocketAddr| {
        let uri = format!("http://{address}");
        (uri.clone(), Channel::from_shared(uri).unwrap().connect_lazy())
    };
    let addresses = [backends[0].address, backends[1].address, nobody];
    let set = Services::from_list(addresses.map(channel)).unwrap();
    let request = || Request::post("/orders.Orders/List").body(Body::empty()).unwrap();
    let balance = BalanceServices::new(set.clone()).rule(RoundRobin::new());
    for _ in 0..2 {
        assert!(balance.clone().oneshot(request()).await.is_ok());
    }
    assert_eq!(backends.each_ref().map(Backend::answered), [1, 1]);
    let error = balance.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).sent(), Sent::No, "{error}");
    let balance = BalanceServices::new(set);
    let mut failed = 0;
    for _ in 0..100 {
        failed += u32::from(balance.clone().oneshot(request()).await.is_err());
    }
    // Until the others have answered they are taken for no better.
    assert!(failed <= 5, "{failed}");
}
