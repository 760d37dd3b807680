//! Each case of the table in the docs of `Fault`, on real sockets.

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, Uri};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody, combinators::BoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connected, Connection, HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    call::{BoxError, Fault},
    nest::client::{Client, ClientBuilder},
    timeout::{ReadBody, ReadTimeoutLayer, UploadBody},
};

use crate::server::{
    Act::{self, Answer, Close, GoAway, HalfAnswer, Raw, Read, Reset, ResetStream, Signal, Stall, Wait},
    BoxSocket, GoOn, Handshake, Protocol, Server, Transport,
};

/// The table: the one that the docs show.
const MATRIX: &str = include_str!("../../src/call/fault/matrix.md");

const LIMIT: Duration = Duration::from_millis(300);

pub type Body = BoxBody<Bytes, BoxError>;
pub type Stack = BoxCloneSyncService<Request<Body>, Response<ReadBody<Incoming>>, BoxError>;

/// Checks every row of the table over this transport.
pub fn check(transport: &Transport) {
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for row in MATRIX.lines().skip(2) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [case, http1, http2] = cells[..] else {
            panic!("not a row of three: {row}");
        };
        seen.push(case);
        if case.starts_with("TLS") && transport.scheme == "http" {
            continue;
        }
        for (protocol, expected) in [(Protocol::Http1, http1), (Protocol::Http2, http2)] {
            if expected == "-" {
                continue;
            }
            let context = Case {
                transport: transport.clone(),
                protocol,
            };
            let mut outcome = run(context.run(case));
            // Which of its two errors a socket has after a reset depends on whether something was written meanwhile, as a
            // client of HTTP/2 does by itself, and on a busy machine may do late.
            if case == "the connection is reset after the request" && outcome.contains("BrokenPipe") {
                outcome = run(context.run(case));
            }
            if outcome.starts_with(&expected.replace('`', "")) {
                continue;
            }
            wrong.push(format!("{case}, {protocol:?}: {outcome}"));
        }
    }
    assert!(wrong.is_empty(), "not as the docs say:\n{}", wrong.join("\n"));
    assert!(seen.len() > 20, "{seen:?}");
}

/// A runtime in which news of a socket is heard only when there is nothing else to do: so a test can have the client
/// write before it learns that the connection has ended.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(1 << 20)
        .build()
        .unwrap()
        .block_on(async {
            tokio::time::timeout(Duration::from_secs(20), future)
                .await
                .unwrap()
        })
}

struct Case {
    transport: Transport,
    protocol: Protocol,
}

impl Case {
    async fn run(&self, case: &str) -> String {
        const REFUSED_STREAM: u32 = 7;
        const CANCEL: u32 = 8;
        const INTERNAL_ERROR: u32 = 2;
        const ENHANCE_YOUR_CALM: u32 = 11;
        match case {
            "nobody listens" => {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
                self.outcome(socket.local_addr().unwrap()).await
            }
            "the connect gets no answer" => {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
                let address = socket.local_addr().unwrap();
                let _listener = socket.listen(0).unwrap();
                let mut queue = Vec::new();
                // One place, or a few, depending on the system.
                while let Ok(stream) = tokio::time::timeout(LIMIT, TcpStream::connect(address)).await {
                    queue.push(stream);
                }
                self.outcome(address).await
            }
            "the name does not resolve" => self.outcome("nowhere.invalid:80").await,
            "TLS: the certificate is for another name" => {
                let server = self.server([[Read, Answer]]);
                let port = server.address.port();
                self.outcome(format!("localhost:{port}")).await
            }
            "TLS: the handshake stalls" => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                self.outcome(listener.local_addr().unwrap()).await
            }
            "a new connection is closed before it is used" => self.unused([Wait, Close]).await,
            "a new connection is reset before it is used" => self.unused([Wait, Reset]).await,
            "the connection is closed after the request" => self.only([Read, Close]).await,
            "the connection is reset after the request" => self.settled([Read, Wait, Reset]).await,
            "the connection is closed within the head" => {
                self.only([Read, Raw(b"HTTP/1.1 200 OK\r\nconte"), Close]).await
            }
            "the answer is no HTTP" => self.only([Read, Raw(b"220 mail.example ESMTP\r\n\r\n")]).await,
            "the head does not come" => self.only([Read, Stall]).await,
            "the connection is closed within the body" => self.only([Read, HalfAnswer, Close]).await,
            "the connection is reset within the body" => {
                self.signalled([Read, HalfAnswer, Wait, Reset]).await
            }
            "the body stalls" => self.only([Read, HalfAnswer, Stall]).await,
            "the body of the request fails" => {
                let server = self.server([[Stall]]);
                let begun = stream::iter([Ok(Frame::data(Bytes::from_static(b"begun")))]);
                let broken = stream::once(async {
                    // Until the beginning is on its way.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Err("the disk is broken".into())
                });
                let body = StreamBody::new(begun.chain(broken));
                let request = Request::post(self.uri(server.address));
                let request = request.body(BodyExt::boxed(body)).unwrap();
                outcome(self.stack(None).oneshot(request).await).await
            }
            "an idle connection is closed, which is noticed" => {
                let mut server = self.server([vec![Read, Answer, Wait, Close, Signal], vec![Read, Answer]]);
                let stack = self.used(&mut server, self.stack(None)).await;
                // Until the client has heard of it.
                tokio::time::sleep(Duration::from_millis(50)).await;
                outcome(stack.oneshot(self.get(server.address)).await).await
            }
            "an idle connection is closed, and the request written into it" => {
                self.reused(self.stack(None), [Read, Answer, Wait, Close, Signal])
                    .await
            }
            "an idle connection is reset before the request is written" => {
                self.reused(self.stack(None), [Read, Answer, Wait, Reset]).await
            }
            "the same without a counting connection" => {
                self.reused(self.uncounted(), [Read, Answer, Wait, Reset]).await
            }
            "the stream is refused: REFUSED_STREAM" => self.only([Read, ResetStream(REFUSED_STREAM)]).await,
            "the stream is beyond the last one of a GOAWAY" => {
                self.only([Read, GoAway { last: 0, reason: 0 }]).await
            }
            "the same with an error as the reason" => {
                let reason = ENHANCE_YOUR_CALM;
                self.only([Read, GoAway { last: 0, reason }]).await
            }
            "such a GOAWAY, without a counting connection" => {
                let server = self.server([[Read, GoAway { last: 0, reason: 0 }]]);
                outcome(self.uncounted().oneshot(self.get(server.address)).await).await
            }
            "the stream is within a GOAWAY, and the connection closed" => {
                self.only([Read, GoAway { last: 1, reason: 0 }, Close]).await
            }
            "the stream is refused within the body" => {
                self.signalled([Read, HalfAnswer, Wait, ResetStream(REFUSED_STREAM)])
                    .await
            }
            "the stream comes to be beyond the last one of a GOAWAY within the body" => {
                let reason = INTERNAL_ERROR;
                self.signalled([Read, HalfAnswer, Wait, GoAway { last: 0, reason }])
                    .await
            }
            "the stream is reset: CANCEL" => self.only([Read, ResetStream(CANCEL)]).await,
            "the stream is reset: INTERNAL_ERROR" => self.only([Read, ResetStream(INTERNAL_ERROR)]).await,
            "the stream is reset: ENHANCE_YOUR_CALM" => {
                self.only([Read, ResetStream(ENHANCE_YOUR_CALM)]).await
            }
            other => panic!("the table has a case that is not tested: {other}"),
        }
    }

    fn server<const N: usize>(&self, scripts: [impl Into<Vec<Act>>; N]) -> Server {
        let scripts = scripts.into_iter().map(Into::into).collect();
        Server::start(&self.transport, self.protocol, scripts)
    }

    fn uri(&self, authority: impl std::fmt::Display) -> String {
        format!("{}://{authority}/", self.transport.scheme)
    }

    fn get(&self, authority: impl std::fmt::Display) -> Request<Body> {
        let body = Empty::new().map_err(|never| match never {}).boxed();
        Request::get(self.uri(authority)).body(body).unwrap()
    }

    fn dialer(&self, until_news: Option<GoOn>) -> Dialer {
        Dialer::new(&self.transport, until_news)
    }

    fn stack(&self, until_news: Option<GoOn>) -> Stack {
        let mut client: ClientBuilder = Client::builder().connect_limit(LIMIT);
        if self.protocol == Protocol::Http2 {
            client = client.http2_only();
        }
        let client = client
            .build::<_, UploadBody<Body>>(self.dialer(until_news))
            .unwrap();
        BoxCloneSyncService::new(ReadTimeoutLayer::new(LIMIT).unwrap().layer(client))
    }

    /// The same, of which the connections do not count.
    fn uncounted(&self) -> Stack {
        let mut client = legacy::Client::builder(TokioExecutor::new());
        client.retry_canceled_requests(false);
        client.http2_only(self.protocol == Protocol::Http2);
        let client = client.build::<_, UploadBody<Body>>(self.dialer(None));
        BoxCloneSyncService::new(ReadTimeoutLayer::new(LIMIT).unwrap().layer(client))
    }

    /// What becomes of a request to this address.
    async fn outcome(&self, authority: impl std::fmt::Display) -> String {
        outcome(self.stack(None).oneshot(self.get(authority)).await).await
    }

    /// What becomes of a request to a server that does this.
    async fn only<const N: usize>(&self, script: [Act; N]) -> String {
        let server = self.server([script]);
        self.outcome(server.address).await
    }

    /// The same, where the client has nothing more to write when the server goes on.
    async fn settled<const N: usize>(&self, script: [Act; N]) -> String {
        let server = self.server([script]);
        let then = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.go_on();
        };
        tokio::join!(self.outcome(server.address), then).0
    }

    /// The same, where the client has the head before the server goes on.
    async fn signalled<const N: usize>(&self, script: [Act; N]) -> String {
        let server = self.server([script]);
        let response = self.stack(None).oneshot(self.get(server.address)).await;
        server.go_on();
        outcome(response).await
    }

    /// The same, where the client gets its connection when the news of its end is there.
    async fn unused<const N: usize>(&self, script: [Act; N]) -> String {
        let server = self.server([script]);
        outcome(
            self.stack(Some(server.go()))
                .oneshot(self.get(server.address))
                .await,
        )
        .await
    }

    /// The stack after a call that was answered, and the connection after what the script does then.
    async fn used(&self, server: &mut Server, mut stack: Stack) -> Stack {
        let response = stack.ready().await.unwrap().call(self.get(server.address));
        response.await.unwrap().collect().await.unwrap();
        // Until the connection is back in the pool.
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.go_on();
        // On a thread of its own: nothing is heard of it on this one meanwhile.
        server.signal();
        stack
    }

    /// What becomes of a second request on a connection that ends before the client has heard of it.
    async fn reused<const N: usize>(&self, stack: Stack, script: [Act; N]) -> String {
        let mut server = self.server([script]);
        let stack = self.used(&mut server, stack).await;
        outcome(stack.oneshot(self.get(server.address)).await).await
    }
}

async fn outcome(result: Result<Response<ReadBody<Incoming>>, BoxError>) -> String {
    let error: BoxError = match result {
        Err(error) => error,
        Ok(response) => match response.collect().await {
            Ok(_) => return "answered".to_owned(),
            Err(error) => error,
        },
    };
    let fault = Fault::of(&*error);
    format!("{:?}, {:?} ({})", fault.kind(), fault.sent(), chain(&*error))
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let levels = tower_outbound::call::chain(error).map(|level| format!("{level:?}"));
    levels.collect::<Vec<_>>().join(" < ")
}

/// A connector over hyper-util's, with a handshake on top.
#[derive(Clone)]
pub struct Dialer {
    tcp: HttpConnector<Nowhere>,
    handshake: Handshake,
    until_news: Option<GoOn>,
}

impl Dialer {
    /// `until_news`: the server goes on when there is a connection, which is handed over when there is something to be
    /// read from it, be it its end.
    pub fn new(transport: &Transport, until_news: Option<GoOn>) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(Nowhere);
        tcp.enforce_http(false);
        Dialer {
            tcp,
            handshake: transport.client.clone(),
            until_news,
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Dialed>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Dialed>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let host = target.host().unwrap_or_default().to_owned();
        let (connect, handshake, until_news) = (
            self.tcp.call(target),
            self.handshake.clone(),
            self.until_news.clone(),
        );
        Box::pin(async move {
            let socket = handshake(host, connect.await?.into_inner()).await?;
            if let Some(server) = until_news {
                let _ = server.send(());
                socket.tcp().readable().await?;
            }
            Ok(TokioIo::new(Dialed(socket)))
        })
    }
}

/// Knows no name but `localhost`.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

impl Service<Name> for Nowhere {
    type Response = std::vec::IntoIter<std::net::SocketAddr>;
    type Error = io::Error;
    type Future = std::future::Ready<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        std::future::ready(match name.as_str() {
            "localhost" => Ok(vec![([127, 0, 0, 1], 0).into()].into_iter()),
            _ => Err(io::Error::other("there is no such name")),
        })
    }
}

pub struct Dialed(BoxSocket);

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Dialed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
