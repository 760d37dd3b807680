//! Servers on loopback that misbehave on purpose, each in one way, and count what they receive.
//!
//! They speak just enough HTTP/1.1 to read a whole request. A request counts as received once its body has been
//! read to the end: from then on a server may act on it.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by the example and the tests, each of which uses a part"
)]

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Answers with this status at once.
    Answers(u16),
    /// Answers 503 and asks for this many seconds of quiet.
    Unavailable { retry_after: u64 },
    /// Answers 200 after this time.
    Sleeps(Duration),
    /// Reads the whole request, then resets the connection.
    ResetsAfterReading,
    /// Reads the whole request, then closes the connection.
    ClosesAfterReading,
    /// Sends the head of a 200 and half of its body, then nothing more.
    StallsInTheBody,
    /// Nobody listens.
    Refuses,
    /// Listens, but its accept queue is full: a connect gets no answer at all.
    QueueFull,
}

/// A server on loopback. It ends when it is dropped.
pub struct Backend {
    name: &'static str,
    address: SocketAddr,
    received: Arc<AtomicUsize>,
    _alive: Alive,
}

/// What keeps a server, or a port nobody answers on, in place.
enum Alive {
    Task(AbortHandle),
    Bound(TcpSocket),
    Full {
        _listener: TcpListener,
        _queue: Vec<TcpStream>,
        _waiting: JoinSet<io::Result<TcpStream>>,
    },
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Alive::Task(task) = self {
            task.abort();
        }
    }
}

impl Backend {
    /// Starts a server that behaves in this way.
    pub async fn start(name: &'static str, manner: Manner) -> io::Result<Backend> {
        let received = Arc::new(AtomicUsize::new(0));
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        let alive = match manner {
            // A port that is bound but not listened on refuses, and nobody else can take it.
            Manner::Refuses => Alive::Bound(socket),
            Manner::QueueFull => fill_the_queue(socket, address).await?,
            manner => {
                let listener = socket.listen(1024)?;
                let received = Arc::clone(&received);
                Alive::Task(tokio::spawn(accept(listener, manner, received)).abort_handle())
            }
        };
        Ok(Backend {
            name,
            address,
            received,
            _alive: alive,
        })
    }

    /// What it is called in this story.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it listens, or does not.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as an endpoint is written.
    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many whole requests it has received.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }
}

/// A connect that really times out: the queue of connections waiting to be accepted is as short as the system
/// allows, nobody accepts, and it is filled up. The system then drops further connects without a word, which is what
/// a host behind a firewall or a dead machine looks like.
async fn fill_the_queue(socket: TcpSocket, address: SocketAddr) -> io::Result<Alive> {
    let listener = socket.listen(0)?;
    let mut queue = Vec::new();
    let mut waiting = JoinSet::new();
    // One place, or a few, depending on the system.
    while queue.len() < 64 {
        waiting.spawn(TcpStream::connect(address));
        match tokio::time::timeout(Duration::from_millis(200), waiting.join_next()).await {
            Ok(Some(Ok(connected))) => queue.push(connected?),
            Ok(_) => return Err(io::Error::other("a connect that fills the queue was ended")),
            // This connect hangs, and so will every other.
            Err(_) => {
                return Ok(Alive::Full {
                    _listener: listener,
                    _queue: queue,
                    _waiting: waiting,
                });
            }
        }
    }
    Err(io::Error::other(
        "the accept queue of this system cannot be filled",
    ))
}

async fn accept(listener: TcpListener, manner: Manner, received: Arc<AtomicUsize>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, manner, Arc::clone(&received)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, manner: Manner, received: Arc<AtomicUsize>) -> io::Result<()> {
    let mut buffer = Vec::new();
    while read_request(&mut stream, &mut buffer).await? {
        received.fetch_add(1, Ordering::SeqCst);
        match manner {
            Manner::Answers(status) => answer(&mut stream, status, "", "hello\n").await?,
            Manner::Unavailable { retry_after } => {
                answer(
                    &mut stream,
                    503,
                    &format!("retry-after: {retry_after}\r\n"),
                    "busy\n",
                )
                .await?;
            }
            Manner::Sleeps(time) => {
                tokio::time::sleep(time).await;
                answer(&mut stream, 200, "", "at last\n").await?;
            }
            Manner::ResetsAfterReading => {
                stream.set_zero_linger()?;
                return Ok(());
            }
            Manner::StallsInTheBody => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf.")
                    .await?;
                std::future::pending::<()>().await;
            }
            Manner::ClosesAfterReading | Manner::Refuses | Manner::QueueFull => return Ok(()),
        }
    }
    Ok(())
}

async fn answer(stream: &mut TcpStream, status: u16, header: &str, body: &str) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 {status} -\r\n{header}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await
}

/// Reads one request to its end and leaves what follows it in the buffer. False: the connection is at its end.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let Some(head) = read_past(stream, buffer, b"\r\n\r\n").await? else {
        return Ok(false);
    };
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let header = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned())
    };
    if header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        return Ok(read_past(stream, buffer, b"0\r\n\r\n").await?.is_some());
    }
    let length = header("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(false);
        }
    }
    buffer.drain(..length);
    Ok(true)
}

/// Takes everything up to and with this mark out of the buffer.
async fn read_past(stream: &mut TcpStream, buffer: &mut Vec<u8>, mark: &[u8]) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(at) = buffer.windows(mark.len()).position(|window| window == mark) {
            return Ok(Some(buffer.drain(..at + mark.len()).collect()));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}
