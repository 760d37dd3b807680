//! Proof that nothing was sent, with connections that are used again and many calls at once.

use std::{
    collections::HashSet,
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    call::{BoxError, Fault, FaultKind, Sent},
    nest::client::{Client, HttpClient, Writes},
    timeout::{ReadTimeoutLayer, UploadBody},
};

use crate::{
    matrix::run,
    server::{
        Act::{Answer, Close, Read, Reset, Signal, Wait},
        Protocol, Server, Transport,
    },
};

type Posts = HttpClient<Full<Bytes>>;

fn post(server: impl std::fmt::Display, path: impl std::fmt::Display) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://{server}/{path}"));
    request.body(Full::default()).unwrap()
}

async fn send(client: &Posts, request: Request<Full<Bytes>>) -> Result<(), BoxError> {
    let response = client.clone().oneshot(request).await?;
    response.collect().await?;
    Ok(())
}

#[test]
fn of_many_reused_connections_each_tells_what_was_written_of_its_own_request() {
    const CONNECTIONS: usize = 64;
    let server = Server::start(
        &Transport::cleartext(),
        Protocol::Http1,
        (0..CONNECTIONS)
            .map(|n| {
                let then = if n % 2 == 0 {
                    vec![Reset]
                } else {
                    vec![Signal, Read, Close]
                };
                [vec![Read, Signal, Wait, Answer, Wait], then].concat()
            })
            .collect(),
    );
    let client: Posts = Client::builder().build_http().unwrap();
    let sent = run(async {
        let first = join_all((0..CONNECTIONS).map(|n| send(&client, post(server.address, n))));
        let answers = async {
            tokio::task::yield_now().await;
            // All are there at once, so each has a connection of its own.
            tokio::time::sleep(Duration::from_millis(100)).await;
            for _ in 0..CONNECTIONS {
                server.signal();
            }
            (0..CONNECTIONS).for_each(|_| server.go_on());
        };
        let (first, ()) = tokio::join!(first, answers);
        assert!(first.iter().all(Result::is_ok));
        // Until all connections are back in the pool.
        tokio::time::sleep(Duration::from_millis(50)).await;
        (0..CONNECTIONS).for_each(|_| server.go_on());
        (0..CONNECTIONS).for_each(|_| server.signal());
        join_all((0..CONNECTIONS).map(|n| send(&client, post(server.address, n)))).await
    });
    let faults: Vec<_> = sent
        .into_iter()
        .map(|sent| Fault::of(&*sent.unwrap_err()))
        .collect();
    let count = |kind, sent| {
        let fault = Fault::new(kind, sent);
        faults.iter().filter(|seen| **seen == fault).count()
    };
    assert_eq!(
        (
            count(FaultKind::Reset, Sent::No),
            count(FaultKind::Closed, Sent::Maybe)
        ),
        (CONNECTIONS / 2, CONNECTIONS / 2),
        "{faults:?}"
    );
}

#[test]
fn a_connection_that_another_call_gives_back_while_this_one_connects_proves_as_much() {
    let script = vec![Read, Wait, Answer, Wait, Reset];
    let server = Server::start(&Transport::cleartext(), Protocol::Http1, vec![script]);
    let server = Arc::new(server);
    // Connects once, and then no more.
    let connects = Arc::new(AtomicUsize::new(0));
    let connector = tower::service_fn(move |to: http::Uri| {
        let first = connects.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            if !first {
                std::future::pending::<()>().await;
            }
            TcpStream::connect(to.authority().unwrap().as_str())
                .await
                .map(TokioIo::new)
        })
    });
    let client = Client::builder()
        .build::<_, BoxBody<Bytes, Infallible>>(connector)
        .unwrap();
    let request = |path, body| post(server.address, path).map(|_| body);
    // The first call writes once more when the second has begun.
    let later = stream::once(async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(Frame::data(Bytes::from_static(b"body")))
    });
    let first = request("first", StreamBody::new(later).boxed());
    let second = request("second", Full::default().boxed());
    let second = run(async {
        let (caller, other) = (client.clone(), server.clone());
        let first = tokio::spawn(async move {
            let response = caller.oneshot(first).await.unwrap();
            response.collect().await.unwrap();
            // The connection is not back in the pool yet, and the second call gets it when it is.
            other.go_on();
            other.signal();
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let second = tokio::spawn(client.clone().oneshot(second));
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.go_on();
        first.await.unwrap();
        second.await.unwrap()
    });
    let fault = Fault::of(&*second.unwrap_err());
    assert_eq!(fault, Fault::new(FaultKind::Reset, Sent::No));
}

#[test]
fn a_response_tells_what_its_connection_has_written_so_far() {
    let server = Server::start(
        &Transport::cleartext(),
        Protocol::Http1,
        vec![vec![Read, Answer, Read, Answer]],
    );
    let mut client: Posts = Client::builder().build_http().unwrap();
    run(async {
        let mut written = 0;
        for _ in 0..2 {
            let response = client.call(post(server.address, "")).await.unwrap();
            let writes: Writes = response.extensions().get::<Writes>().unwrap().clone();
            let before = std::mem::replace(&mut written, writes.bytes());
            assert!(written > before + 20, "{before} {written}");
            response.collect().await.unwrap();
        }
    });
}

/// As TLS, it sends a long write record by record, and fails as a whole when one of them fails: here the second.
struct Records(TcpStream);

impl Connection for Records {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Records {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Records {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let record = &bytes[..bytes.len().min(16 * 1024)];
        let written = ready!(Pin::new(&mut self.0).poll_write(cx, record))?;
        Poll::Ready(if written < bytes.len() {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(written)
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[test]
fn a_write_that_fails_after_a_part_of_it_was_sent_proves_nothing() {
    let connector = tower::service_fn(|to: http::Uri| {
        Box::pin(async move {
            TcpStream::connect(to.authority().unwrap().as_str())
                .await
                .map(|tcp| TokioIo::new(Records(tcp)))
        })
    });
    let client = Client::builder().build::<_, Full<Bytes>>(connector).unwrap();
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let request =
            post(listener.local_addr().unwrap(), "orders").map(|_| Bytes::from(vec![7; 50_000]).into());
        let (fault, seen) = tokio::join!(client.clone().oneshot(request), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            let _ = stream.read_to_end(&mut seen).await;
            seen
        });
        assert!(seen.starts_with(b"POST /orders HTTP/1.1\r\n") && seen.len() >= 16 * 1024);
        let fault = Fault::of(&*fault.unwrap_err());
        assert_eq!(fault, Fault::new(FaultKind::Reset, Sent::Maybe));
    });
}

/// What the server has seen a byte of.
type Seen = Arc<Mutex<HashSet<usize>>>;

/// Ends connections at every moment that there is, and writes down each request that a byte of has come.
async fn erratic(listener: TcpListener, seen: Seen) {
    for n in 0_usize.. {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve(stream, n, seen.clone()));
    }
}

async fn serve(mut stream: TcpStream, n: usize, seen: Seen) -> io::Result<()> {
    for turn in n.. {
        let mut buffer = [0; 1024];
        match turn % 7 {
            // Before anything comes, or while it comes.
            0 => {
                note(
                    &seen,
                    stream.try_read(&mut buffer).map_or(&[], |read| &buffer[..read]),
                );
                stream.set_zero_linger()?;
                return Ok(());
            }
            1 => tokio::task::yield_now().await,
            _ => {}
        }
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        note(&seen, &buffer[..read]);
        match turn % 7 {
            2 => return Ok(()),
            3 => {
                stream.set_zero_linger()?;
                return Ok(());
            }
            _ => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    .await?
            }
        }
        match turn % 7 {
            // Just when the next request may be on its way.
            4 => {
                note(
                    &seen,
                    stream.try_read(&mut buffer).map_or(&[], |read| &buffer[..read]),
                );
                stream.set_zero_linger()?;
                return Ok(());
            }
            5 => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

fn note(seen: &Seen, bytes: &[u8]) {
    let head = String::from_utf8_lossy(bytes);
    let ids = head
        .split(['/', ' '])
        .filter_map(|word| word.parse::<usize>().ok());
    seen.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_that_is_said_not_to_be_sent_has_been_seen_by_the_server() {
    const CALLERS: usize = 32;
    const EACH: usize = 100;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let server = tokio::spawn(erratic(listener, seen.clone()));
    // Once in a while hyper loses a request that it is handed just as its connection ends, and never answers.
    let limit = ReadTimeoutLayer::new(Duration::from_secs(2)).unwrap();
    let client: HttpClient<UploadBody<Full<Bytes>>> = Client::builder().build_http().unwrap();
    let [unsent, maybe] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    let answered = Arc::new(AtomicUsize::new(0));
    let callers = (0..CALLERS).map(|caller| {
        let (client, limit) = (client.clone(), limit.clone());
        let (unsent, maybe, answered) = (unsent.clone(), maybe.clone(), answered.clone());
        tokio::spawn(async move {
            for n in 0..EACH {
                let id = caller * EACH + n;
                let mut stack = limit.layer(client.clone());
                let answer = stack.call(post(address, id)).await;
                let Err(error) = (match answer {
                    Ok(response) => response.collect().await.map(drop),
                    Err(error) => Err(error),
                }) else {
                    answered.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let list = match Fault::of(&*error).sent() {
                    Sent::No => &unsent,
                    Sent::Maybe => &maybe,
                };
                list.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    server.abort();
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let unsent = unsent.lock().unwrap_or_else(PoisonError::into_inner);
    let maybe = maybe.lock().unwrap_or_else(PoisonError::into_inner);
    let answered = answered.load(Ordering::Relaxed);
    println!(
        "{answered} answered, {} not sent, {} perhaps",
        unsent.len(),
        maybe.len()
    );
    let both: Vec<_> = unsent.iter().filter(|id| seen.contains(id)).collect();
    assert!(both.is_empty(), "said not to be sent, and seen: {both:?}");
    assert!(answered > 0 && !unsent.is_empty() && !maybe.is_empty());
}
