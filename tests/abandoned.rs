//! How soon a server learns that nobody waits for its answer any more. In a file of its own, so that no other test takes
//! the cores meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "a test fails by panicking, and says what it has measured"
)]

#[path = "faults/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of faults")]
mod server;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use server::{Connection, Protocol};
use tokio::{
    net::TcpListener,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::Instant,
};
use tower::{Layer, ServiceExt};
use tower_outbound::{nest::client::Client, timeout::ReadTimeoutLayer};

const WAVES: usize = 20;
const AT_ONCE: usize = 50;
const LIMIT: Duration = Duration::from_millis(50);

enum News {
    /// A request has come.
    Came,
    /// The client has closed or reset what it came on.
    Left(Instant),
}

/// A server on a thread of its own that reads requests and never answers.
fn silent(protocol: Protocol) -> (SocketAddr, UnboundedReceiver<News>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, news) = unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            while !tell.is_closed() {
                let (tcp, _) = listener.accept().await.unwrap();
                let connection = Connection::new(Box::new(tcp), protocol);
                connections.spawn(watch(connection, protocol, tell.clone()));
            }
        });
    });
    (address, news)
}

async fn watch(mut connection: Connection, protocol: Protocol, tell: UnboundedSender<News>) {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    if connection.read().await.is_err() {
        return;
    }
    let _ = tell.send(News::Came);
    loop {
        let news = match (protocol, connection.read_frame().await) {
            (Protocol::Http1, Ok(_)) => panic!("nothing more was to come"),
            (_, Err(_)) if protocol == Protocol::Http1 => News::Left(Instant::now()),
            (_, Err(_)) => return,
            (_, Ok((HEADERS, ..))) => News::Came,
            (_, Ok((RST_STREAM, ..))) => News::Left(Instant::now()),
            (_, Ok(_)) => continue,
        };
        let left = matches!(news, News::Left(_));
        let _ = tell.send(news);
        if left && protocol == Protocol::Http1 {
            return;
        }
    }
}

async fn measure(protocol: Protocol) -> Vec<Duration> {
    let (address, mut news) = silent(protocol);
    let mut client = Client::builder();
    if protocol == Protocol::Http2 {
        client = client.http2_only();
    }
    let stack = ReadTimeoutLayer::new(Duration::from_secs(30))
        .unwrap()
        .layer(client.build_http().unwrap());
    let mut took = Vec::new();
    for _ in 0..WAVES {
        let calls = (0..AT_ONCE).map(|n| {
            let request = Request::get(format!("http://{address}/{n}"));
            stack
                .clone()
                .oneshot(request.body(Full::<Bytes>::default()).unwrap())
        });
        let mut calls = Box::pin(join_all(calls));
        let all_came = async {
            for _ in 0..AT_ONCE {
                assert!(matches!(news.recv().await, Some(News::Came)));
            }
        };
        tokio::select! {
            _ = &mut calls => panic!("nothing is ever answered"),
            () = all_came => {}
        }
        let given_up = Instant::now();
        drop(calls);
        for _ in 0..AT_ONCE {
            match tokio::time::timeout(Duration::from_secs(5), news.recv()).await {
                Ok(Some(News::Left(at))) => took.push(at - given_up),
                _ => panic!("{protocol:?}: the server has not been told"),
            }
        }
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_sees_within_50_ms_that_an_attempt_was_given_up() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut took = measure(protocol).await;
        took.sort();
        let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100 - 1]);
        println!(
            "{protocol:?}: of {} p50 {p50:?}, p99 {p99:?}, max {:?}",
            took.len(),
            took[took.len() - 1]
        );
        assert_eq!(took.len(), WAVES * AT_ONCE);
        assert!(p99 <= LIMIT, "{protocol:?}: p99 {p99:?}");
    }
}
