//! Servers on loopback sockets that count what comes, and end it where a script says.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
};

use super::{
    http1, http2,
    log::{Log, Visit},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http1,
    Http2,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is closed. What comes after that is answered by a reset, and so is what was not read.
    Close,
    /// Its sending half is closed; what comes is read. HTTP/2: as `Close`.
    Half,
    Reset,
}

/// What is done with a request whose head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Answer,
    /// With `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// Answers with this as soon as the head is there, and reads the body then.
    Early(u16),
    /// Answers, and ends the connection when it has been idle so long. Zero: right behind the answer.
    AnswerThen(End, Duration),
    /// Answers after this time, if somebody still waits.
    Late(Duration),
    AfterHead(End),
    MidBody(End),
    AfterRequest(End),
    MidResponse(End),
    /// Never answers.
    Stall,
    /// Half an answer, and nothing more.
    StallInResponse,
    /// HTTP/2: REFUSED_STREAM. HTTP/1 has no such word, and does as `AfterRequest`.
    Refuse,
    /// HTTP/2: resets the stream when all of it was read. HTTP/1 as above.
    Cancel,
    /// HTTP/2: goes away, and says that it has not looked at this stream. HTTP/1 as above.
    GoAwayBefore,
    /// HTTP/2: goes away behind this stream, reads it and ends the connection. HTTP/1 as above.
    GoAwayBehind,
}

/// What is done with a connection before a request is read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Open,
    AtOnce(End),
    /// Ends it with the first bytes that come.
    FirstBytes(End),
}

/// What happens at the servers.
pub trait Script: Send + Sync + 'static {
    /// To the connection with this number, counted over all servers. Some servers let nobody in.
    fn door(&self, server: usize, connection: u64) -> Door;

    /// To this attempt of this call.
    fn manner(&self, server: usize, call: u64, attempt: usize) -> Manner;

    /// Of the answer.
    fn answer(&self, call: u64) -> Bytes;
}

/// What the connections of a server share.
pub struct Site {
    pub number: usize,
    pub script: Arc<dyn Script>,
    pub log: Arc<Log>,
}

impl Site {
    /// A request has come, if its path is one of ours.
    pub fn visit(&self, path: &str, key: Option<&[u8]>) -> Option<Visit> {
        let (call, attempt) = path.strip_prefix("/c/")?.split_once('/')?;
        self.log.arrives(call.parse().ok()?, attempt.parse().ok()?, key)
    }
}

/// The path of an attempt.
pub fn path(call: u64, attempt: usize) -> String {
    format!("/c/{call}/{attempt}")
}

/// Servers on a thread of their own, until this is dropped.
pub struct Servers {
    servers: Vec<Server>,
    connections: Arc<AtomicU64>,
    _alive: oneshot::Sender<()>,
}

/// One of them.
pub struct Server {
    pub address: SocketAddr,
    up: watch::Sender<bool>,
}

impl Server {
    /// Opens or closes its port. Connections that there are go on.
    pub fn set_up(&self, up: bool) {
        self.up.send_replace(up);
    }
}

impl Servers {
    /// Of each protocol that is named, one.
    pub fn start(protocols: &[Protocol], script: &Arc<dyn Script>, log: &Arc<Log>) -> io::Result<Servers> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (alive, ended) = oneshot::channel();
        let connections = Arc::new(AtomicU64::new(0));
        let mut servers = Vec::new();
        let mut serving = JoinSet::new();
        for (number, protocol) in protocols.iter().enumerate() {
            // Bound, so that nobody else gets the port while the server is down.
            let held = TcpSocket::new_v4()?;
            held.set_reuseaddr(true)?;
            held.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            let address = held.local_addr()?;
            let (up, is_up) = watch::channel(true);
            let site = Site {
                number,
                script: script.clone(),
                log: log.clone(),
            };
            let listener = {
                let _inside = runtime.enter();
                listen(address)?
            };
            let serve = serve(
                held,
                listener,
                is_up,
                *protocol,
                Arc::new(site),
                connections.clone(),
            );
            serving.spawn_on(serve, runtime.handle());
            servers.push(Server { address, up });
        }
        std::thread::spawn(move || {
            runtime.block_on(async {
                let _ = ended.await;
                serving.shutdown().await;
            });
        });
        Ok(Servers {
            servers,
            connections,
            _alive: alive,
        })
    }

    pub fn get(&self, number: usize) -> &Server {
        &self.servers[number]
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| server.address)
    }

    /// How many were accepted.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

async fn serve(
    held: TcpSocket,
    listener: TcpListener,
    mut is_up: watch::Receiver<bool>,
    protocol: Protocol,
    site: Arc<Site>,
    count: Arc<AtomicU64>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = is_up.changed() => {
                if changed.is_err() {
                    return;
                }
                let up = *is_up.borrow_and_update();
                if up != listener.is_some() {
                    listener = up.then(|| listen(address_of(&held)).expect("the port is held"));
                }
            }
            Ok((tcp, _)) = accepted => {
                let number = count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection(tcp, protocol, number, site.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn address_of(held: &TcpSocket) -> SocketAddr {
    held.local_addr().expect("it is bound")
}

async fn connection(tcp: TcpStream, protocol: Protocol, number: u64, site: Arc<Site>) {
    let _ = tcp.set_nodelay(true);
    let door = site.script.door(site.number, number);
    // How it ended is in the log.
    let _ = match protocol {
        Protocol::Http1 => http1::serve(tcp, door, site).await,
        Protocol::Http2 => http2::serve(tcp, door, site).await,
    };
}

/// An address where nobody listens, as long as this is kept.
pub fn closed_port() -> io::Result<(SocketAddr, TcpSocket)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    Ok((socket.local_addr()?, socket))
}

/// A listener whose queue is full, so that a connect gets no answer.
pub struct FullQueue {
    pub address: SocketAddr,
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl FullQueue {
    pub async fn new() -> io::Result<FullQueue> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        let listener = socket.listen(0)?;
        let mut queue = Vec::new();
        // One place, or a few, depending on the system.
        let wait = Duration::from_millis(300);
        while let Ok(stream) = tokio::time::timeout(wait, TcpStream::connect(address)).await {
            queue.push(stream?);
        }
        Ok(FullQueue {
            address,
            _listener: listener,
            _queue: queue,
        })
    }
}
