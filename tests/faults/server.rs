//! A server on a real socket that does, connection by connection, what a script says. It speaks just enough HTTP/1 and
//! HTTP/2 to read a request and to misbehave afterwards.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// A TCP connection, or TLS over one.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send {
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

pub type BoxSocket = Box<dyn Socket>;

/// From the host that was dialed, and the connection to it.
pub type Handshake = Arc<
    dyn Fn(String, TcpStream) -> Pin<Box<dyn Future<Output = io::Result<BoxSocket>> + Send>> + Send + Sync,
>;

/// What lies between TCP and HTTP, on either side.
#[derive(Clone)]
pub struct Transport {
    pub scheme: &'static str,
    pub client: Handshake,
    pub server: Handshake,
}

impl Transport {
    pub fn cleartext() -> Self {
        let as_it_is: Handshake = Arc::new(|_, tcp| Box::pin(async { Ok(Box::new(tcp) as BoxSocket) }));
        Transport {
            scheme: "http",
            client: as_it_is.clone(),
            server: as_it_is,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// One thing that the server does on a connection.
#[derive(Debug, Clone)]
pub enum Act {
    /// Reads a whole request.
    Read,
    /// Answers the request that it has read.
    Answer,
    /// Sends a head that promises ten bytes of body, and five of them.
    HalfAnswer,
    /// Sends these bytes.
    Raw(&'static [u8]),
    /// HTTP/2: resets the stream that it has read.
    ResetStream(u32),
    /// HTTP/2: goes away after this stream.
    GoAway { last: u32, reason: u32 },
    /// Closes its side, and reads on.
    Close,
    /// Resets the connection.
    Reset,
    /// Reads whatever comes and does nothing.
    Stall,
    /// Says that it has come to this point.
    Signal,
    /// Waits to be told to go on.
    Wait,
}

pub type GoOn = mpsc::UnboundedSender<()>;

/// It runs on a thread of its own, and ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    signals: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
    go: GoOn,
    _alive: oneshot::Sender<()>,
}

impl Server {
    /// Each connection follows the next script, and the last one if there are more.
    pub fn start(transport: &Transport, protocol: Protocol, scripts: Vec<Vec<Act>>) -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (signal, signals) = std::sync::mpsc::channel();
        let (go, going) = mpsc::unbounded_channel();
        let (alive, ended) = oneshot::channel();
        let handshake = transport.server.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let serve = async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            let going = Arc::new(tokio::sync::Mutex::new(going));
            for n in 0.. {
                let (tcp, _) = listener.accept().await.unwrap();
                let script = scripts[n.min(scripts.len() - 1)].clone();
                let (handshake, signal, going) = (handshake.clone(), signal.clone(), going.clone());
                connections.spawn(async move {
                    // A client that does not like the certificate is one that ends here.
                    if let Ok(socket) = handshake(String::new(), tcp).await {
                        let connection = Connection::new(socket, protocol);
                        let _ = connection.follow(script, signal, going).await;
                    }
                });
            }
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        Server {
            address,
            signals: signals.into(),
            go,
            _alive: alive,
        }
    }

    /// Blocks until a connection has come to its next [`Act::Signal`].
    pub fn signal(&self) {
        self.signals.lock().unwrap().recv().unwrap();
    }

    /// Lets a connection go on after its [`Act::Wait`].
    pub fn go_on(&self) {
        self.go.send(()).unwrap();
    }

    /// What lets it.
    pub fn go(&self) -> GoOn {
        self.go.clone()
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200`, from the static table of HPACK.
const STATUS_200: &[u8] = &[0x88];

/// The server's side of a connection.
pub struct Connection {
    socket: BoxSocket,
    protocol: Protocol,
    greeted: bool,
    /// Of the request that was read last.
    pub stream: u32,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn new(socket: BoxSocket, protocol: Protocol) -> Self {
        Connection {
            socket,
            protocol,
            greeted: false,
            stream: 0,
            buffer: Vec::new(),
        }
    }

    async fn follow(
        mut self,
        script: Vec<Act>,
        signal: std::sync::mpsc::Sender<()>,
        going: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>>,
    ) -> io::Result<()> {
        for act in script {
            match act {
                Act::Read => self.read().await?,
                Act::Answer => self.answer().await?,
                Act::HalfAnswer => match self.protocol {
                    Protocol::Http1 => {
                        self.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf.")
                            .await?;
                    }
                    Protocol::Http2 => {
                        self.frame(HEADERS, END_HEADERS, self.stream, STATUS_200).await?;
                        self.frame(DATA, 0, self.stream, b"half.").await?;
                    }
                },
                Act::Raw(bytes) => self.write(bytes).await?,
                Act::ResetStream(reason) => {
                    self.frame(RST_STREAM, 0, self.stream, &reason.to_be_bytes())
                        .await?;
                }
                Act::GoAway { last, reason } => {
                    let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
                    self.frame(GOAWAY, 0, 0, &payload).await?;
                }
                Act::Close => {
                    self.socket.shutdown().await?;
                }
                Act::Reset => {
                    self.socket.tcp().set_zero_linger()?;
                    drop(self.socket);
                    // What the next act says holds: it has been reset.
                    let _ = signal.send(());
                    return Ok(());
                }
                Act::Stall => self.drain().await,
                Act::Signal => {
                    let _ = signal.send(());
                }
                Act::Wait => {
                    going.lock().await.recv().await;
                }
            }
        }
        // Closing a socket with something unread in it would reset it.
        self.drain().await;
        Ok(())
    }

    async fn drain(&mut self) {
        let mut sink = [0; 4096];
        while let Ok(1..) = self.socket.read(&mut sink).await {}
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.write(&frame).await
    }

    /// Reads a whole request. The head of an HTTP/1 request is what it returns.
    pub async fn read(&mut self) -> io::Result<()> {
        match self.protocol {
            Protocol::Http1 => {
                let end = self.read_past(b"\r\n\r\n").await?;
                self.buffer.drain(..end);
                Ok(())
            }
            Protocol::Http2 => self.read_stream().await,
        }
    }

    pub async fn answer(&mut self) -> io::Result<()> {
        match self.protocol {
            Protocol::Http1 => {
                self.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await
            }
            Protocol::Http2 => {
                self.frame(HEADERS, END_HEADERS, self.stream, STATUS_200).await?;
                self.frame(DATA, END_STREAM, self.stream, b"ok").await
            }
        }
    }

    /// Where the mark ends in the buffer.
    async fn read_past(&mut self, mark: &[u8]) -> io::Result<usize> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                return Ok(at + mark.len());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read_stream(&mut self) -> io::Result<()> {
        if !self.greeted {
            self.greeted = true;
            let end = self.read_past(PREFACE).await?;
            self.buffer.drain(..end);
            self.frame(SETTINGS, 0, 0, &[]).await?;
        }
        loop {
            let (kind, flags, stream) = self.read_frame().await?;
            if kind == SETTINGS && flags & ACK == 0 {
                self.frame(SETTINGS, ACK, 0, &[]).await?;
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                self.stream = stream;
                return Ok(());
            }
        }
    }

    /// Kind, flags and stream of the next frame.
    pub async fn read_frame(&mut self) -> io::Result<(u8, u8, u32)> {
        while self.buffer.len() < 9 {
            self.more().await?;
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let length = number(&self.buffer[..3]) as usize;
        let (kind, flags) = (self.buffer[3], self.buffer[4]);
        let stream = number(&self.buffer[5..9]);
        while self.buffer.len() < 9 + length {
            self.more().await?;
        }
        self.buffer.drain(..9 + length);
        Ok((kind, flags, stream))
    }
}
