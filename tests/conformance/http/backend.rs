//! The servers of a case: on loopback, doing what its script says, and writing down what they see.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::OnceCell,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    script::{Answer, RESET_AFTER, Server, ShortEnd, Step, step},
    told::Arrival,
};

/// What the servers of a case saw, with its time.
pub(super) type Seen = Arc<Mutex<Vec<(Instant, usize, String)>>>;

/// The servers of one case. They end when they are dropped.
pub(super) struct Backends {
    addresses: Vec<SocketAddr>,
    seen: Seen,
    _tasks: JoinSet<()>,
    _refusing: Vec<TcpSocket>,
}

impl Backends {
    pub(super) async fn start(servers: &[Server]) -> io::Result<Backends> {
        let seen = Seen::default();
        let mut addresses = Vec::new();
        let mut tasks = JoinSet::new();
        let mut refusing = Vec::new();
        let mut blackholes = 0;
        for (number, server) in servers.iter().enumerate() {
            match server {
                Server::Refuses => {
                    // A port that is bound but not listened on refuses, and nobody else can take it.
                    let socket = bound()?;
                    addresses.push(socket.local_addr()?);
                    refusing.push(socket);
                }
                Server::Blackhole => {
                    addresses.push(blackhole(blackholes).await?);
                    blackholes += 1;
                }
                Server::Listens(script) => {
                    let socket = bound()?;
                    addresses.push(socket.local_addr()?);
                    let (listener, script, seen) = (socket.listen(1024)?, script.clone(), Arc::clone(&seen));
                    tasks.spawn(accept(listener, script.into(), number, seen));
                }
            }
        }
        Ok(Backends {
            addresses,
            seen,
            _tasks: tasks,
            _refusing: refusing,
        })
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What they saw so far.
    pub(super) fn arrivals(&self, begun: Instant, returned: u64) -> Vec<Arrival> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .map(|(at, server, method)| {
                let at = at.duration_since(begun).as_millis().try_into().unwrap();
                Arrival {
                    server: *server,
                    method: method.clone(),
                    at,
                    after_return: at > returned + 5,
                }
            })
            .collect()
    }
}

fn bound() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    Ok(socket)
}

async fn accept(listener: TcpListener, script: Arc<[Step]>, server: usize, seen: Seen) {
    let mut connections = JoinSet::new();
    let accepted = AtomicUsize::new(0);
    while let Ok((stream, _)) = listener.accept().await {
        let number = accepted.fetch_add(1, Ordering::Relaxed);
        let step = step(&script, number).clone();
        connections.spawn(serve(stream, step, server, Arc::clone(&seen)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, step: Step, server: usize, seen: Seen) -> io::Result<()> {
    let note = |method: String| seen.lock().unwrap().push((Instant::now(), server, method));
    if let Step::CloseBeforeRead = step {
        // Until its first byte is there, so that it is not taken for a connect that failed.
        let _ = stream.peek(&mut [0]).await;
        note("?".to_owned());
        return stream.set_zero_linger();
    }
    let method = read_request(&mut stream).await?;
    note(method.clone());
    let bodiless = |answer: &Answer| method == "HEAD" || matches!(answer.status, 204 | 304);
    match step {
        Step::CloseBeforeRead | Step::CloseAfterRead => return Ok(()),
        Step::Hang => {}
        Step::ResetAfterRead => return stream.set_zero_linger(),
        Step::Respond { answer, delay } => {
            sleep(Duration::from_millis(delay)).await;
            let body = if bodiless(&answer) { "" } else { &answer.body };
            let text = head(&answer, answer.body.len()) + body;
            return stream.write_all(text.as_bytes()).await;
        }
        Step::ShortBody {
            answer,
            announced,
            end,
        } => {
            let body = if bodiless(&answer) { "" } else { &answer.body };
            let text = head(&answer, announced) + body;
            stream.write_all(text.as_bytes()).await?;
            match end {
                ShortEnd::Closes => return Ok(()),
                ShortEnd::Stalls => {}
                ShortEnd::Resets => {
                    sleep(Duration::from_millis(RESET_AFTER)).await;
                    return stream.set_zero_linger();
                }
            }
        }
    }
    // Silent, until the client has had enough.
    let _ = stream.read(&mut [0]).await;
    Ok(())
}

fn head(answer: &Answer, length: usize) -> String {
    let mut head = format!("HTTP/1.1 {} -\r\n", answer.status);
    if answer.status != 204 {
        head += &format!("content-length: {length}\r\n");
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {}\r\n", dated(value));
    }
    head + "\r\n"
}

/// Puts a date in the place of `{http_date:+N}`.
#[expect(clippy::disallowed_methods, reason = "an HTTP date is a point of wall time")]
fn dated(value: &str) -> String {
    match value
        .strip_prefix("{http_date:+")
        .and_then(|rest| rest.strip_suffix('}'))
    {
        Some(after) => {
            let after = Duration::from_millis(after.parse().expect("milliseconds"));
            httpdate::fmt_http_date(std::time::SystemTime::now() + after)
        }
        None => value.to_owned(),
    }
}

/// Reads one request to its end, and tells its method.
async fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, length)| length.trim().parse().ok())
        .unwrap_or(0);
    while read.len() < end + length {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head.split(' ').next().unwrap_or("?").to_owned())
}

/// The n-th port at which no connection is ever established. All cases share them.
async fn blackhole(number: usize) -> io::Result<SocketAddr> {
    static ALL: [OnceCell<Blackhole>; 6] = [const { OnceCell::const_new() }; 6];
    let hole = ALL[number].get_or_try_init(Blackhole::dig).await?;
    Ok(hole.address)
}

/// A port whose queue of connections waiting to be accepted is as short as the system allows, and full: the system
/// drops further ones without a word.
struct Blackhole {
    address: SocketAddr,
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl Blackhole {
    async fn dig() -> io::Result<Blackhole> {
        let socket = bound()?;
        let address = socket.local_addr()?;
        let listener = socket.listen(0)?;
        let mut queue = Vec::new();
        while queue.len() < 64 {
            match timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
                Ok(connected) => queue.push(connected?),
                Err(_) => {
                    return Ok(Blackhole {
                        address,
                        _listener: listener,
                        _queue: queue,
                    });
                }
            }
        }
        Err(io::Error::other(
            "the accept queue of this system cannot be filled",
        ))
    }
}
