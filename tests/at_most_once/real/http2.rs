//! HTTP/2 over the `h2` crate, and what that crate has no words for.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason, RecvStream,
    server::{Connection, SendResponse},
};
use http::{Method, Request, Response};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use super::{
    log::Visit,
    server::{Door, End, Manner, Script, Site},
};

/// How long a connection that goes away has for the streams that it has promised to serve.
const GOING: Duration = Duration::from_millis(300);

/// How long the streams of a connection that the client has closed have to notice.
const LEAVING: Duration = Duration::from_millis(100);

/// A connection into which frames can be written, and that can end in a reset.
struct Tap {
    tcp: TcpStream,
    hand: Arc<Hand>,
}

/// What can be done to it from outside.
#[derive(Default)]
struct Hand {
    frames: Mutex<Vec<u8>>,
    resets: AtomicBool,
}

impl Hand {
    fn goes_away(&self, last: u32) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        const GOAWAY: u8 = 7;
        frames.extend([0, 0, 8, GOAWAY, 0, 0, 0, 0, 0]);
        frames.extend(last.to_be_bytes());
        frames.extend([0; 4]);
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    /// h2 flushes when it has written all frames that it has: here is room between two.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Tap { tcp, hand } = self.get_mut();
        let mut frames = hand.frames.lock().unwrap_or_else(PoisonError::into_inner);
        while !frames.is_empty() {
            let written = ready!(Pin::new(&mut *tcp).poll_write(cx, &frames))?;
            frames.drain(..written);
        }
        Pin::new(tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if self.hand.resets.load(Ordering::Relaxed) {
            let _ = self.tcp.set_zero_linger();
        }
    }
}

type Serving = Connection<Tap, Bytes>;
type Stream = (Request<RecvStream>, SendResponse<Bytes>);

pub async fn serve(mut tcp: TcpStream, door: Door, site: Arc<Site>) -> io::Result<()> {
    let end = match door {
        Door::Open => None,
        Door::AtOnce(end) => Some(end),
        Door::FirstBytes(end) => {
            let _some = tcp.read(&mut [0; 64]).await?;
            Some(end)
        }
    };
    if let Some(end) = end {
        if end == End::Reset {
            tcp.set_zero_linger()?;
        }
        return Ok(());
    }
    let hand = Arc::new(Hand::default());
    let tap = Tap {
        tcp,
        hand: hand.clone(),
    };
    let mut connection: Serving = h2::server::handshake(tap).await.map_err(io::Error::other)?;
    let (ends, mut ending) = unbounded_channel();
    let mut streams = JoinSet::new();
    // Streams above it were not looked at.
    let mut last = None;
    // Dropped, they would be reset.
    let mut held = Vec::new();
    loop {
        let end = tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else {
                    // The streams hear of it, too.
                    let _ = tokio::time::timeout(LEAVING, async {
                        while streams.join_next().await.is_some() {}
                    })
                    .await;
                    return Ok(());
                };
                let Some(mut visit) = visit(&request, &site) else {
                    continue;
                };
                let id = respond.stream_id().as_u32();
                if last.is_some_and(|last| id > last) {
                    visit.refused();
                    held.push((request, respond));
                    continue;
                }
                let manner = site.script.manner(site.number, visit.call, visit.attempt);
                match manner {
                    Manner::GoAwayBefore if last.is_none() => {
                        visit.refused();
                        hand.goes_away(id.saturating_sub(2));
                        last = Some(id.saturating_sub(2));
                        held.push((request, respond));
                        end_soon(&ends);
                        continue;
                    }
                    Manner::GoAwayBehind if last.is_none() => {
                        hand.goes_away(id);
                        last = Some(id);
                    }
                    _ => {}
                }
                streams.spawn(follow(manner, request, respond, visit, site.script.clone(), ends.clone()));
                continue;
            }
            Some(end) = ending.recv() => end,
            Some(_) = streams.join_next() => continue,
        };
        // What is to be written goes out, and what has come was seen.
        while let Poll::Ready(Some(Ok((request, _)))) =
            poll_fn(|cx| Poll::Ready(connection.poll_accept(cx))).await
        {
            if let (Some(mut visit), Some(_)) = (visit(&request, &site), last) {
                visit.refused();
            }
        }
        hand.resets.store(end == End::Reset, Ordering::Relaxed);
        return Ok(());
    }
}

/// Ends the connection when the streams below have had their time.
fn end_soon(ends: &UnboundedSender<End>) {
    let ends = ends.clone();
    tokio::spawn(async move {
        tokio::time::sleep(GOING).await;
        let _ = ends.send(End::Close);
    });
}

fn visit(request: &Request<RecvStream>, site: &Site) -> Option<Visit> {
    let key = request.headers().get("idempotency-key");
    site.visit(request.uri().path(), key.map(|key| key.as_bytes()))
}

/// Reads at least so much of the body, or all of it. False: the client has given it up.
async fn read(body: &mut RecvStream, visit: &mut Visit, least: usize) -> bool {
    let mut read = 0;
    while read < least {
        match body.data().await {
            Some(Ok(data)) => {
                visit.read(&data);
                read += data.len();
                let _ = body.flow_control().release_capacity(data.len());
            }
            Some(Err(_)) => return false,
            None => return true,
        }
    }
    true
}

async fn follow(
    manner: Manner,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    mut visit: Visit,
    script: Arc<dyn Script>,
    ends: UnboundedSender<End>,
) {
    let bodiless = request.method() == Method::HEAD;
    let mut body = request.into_body();
    match manner {
        Manner::Refuse => {
            visit.refused();
            respond.send_reset(Reason::REFUSED_STREAM);
            return;
        }
        Manner::AfterHead(end) => {
            let _ = ends.send(end);
            return std::future::pending().await;
        }
        Manner::MidBody(end) => {
            if read(&mut body, &mut visit, 1).await {
                let _ = ends.send(end);
                std::future::pending::<()>().await;
            }
            return;
        }
        _ => {}
    }
    let answered = script.answer(visit.call);
    let whole = if bodiless { Bytes::new() } else { answered.clone() };
    if let Manner::Early(status) = manner {
        answer(&mut respond, status, None, whole.clone());
    }
    if !read(&mut body, &mut visit, usize::MAX).await {
        return;
    }
    visit.whole();
    let body = answered;
    let end = match manner {
        Manner::Answer => return answer(&mut respond, 200, None, whole),
        Manner::Status(status, after) => return answer(&mut respond, status, after, whole),
        Manner::AnswerThen(end, idle) => {
            answer(&mut respond, 200, None, whole);
            tokio::time::sleep(idle).await;
            end
        }
        Manner::Late(wait) => {
            visit.waits();
            tokio::select! {
                () = tokio::time::sleep(wait) => answer(&mut respond, 200, None, whole),
                _ = poll_fn(|cx| respond.poll_reset(cx)) => visit.left(),
            }
            return;
        }
        Manner::Stall => {
            visit.waits();
            let _ = poll_fn(|cx| respond.poll_reset(cx)).await;
            visit.left();
            return;
        }
        Manner::StallInResponse | Manner::MidResponse(_) => {
            let head = Response::builder().header("content-length", body.len());
            let Ok(mut send) = respond.send_response(head.body(()).unwrap_or_default(), false) else {
                return;
            };
            let _ = send.send_data(body.slice(..body.len() / 2), false);
            if let Manner::MidResponse(end) = manner {
                end
            } else {
                visit.waits();
                let _ = poll_fn(|cx| send.poll_reset(cx)).await;
                visit.left();
                return;
            }
        }
        Manner::AfterHead(end) | Manner::MidBody(end) | Manner::AfterRequest(end) => end,
        Manner::Cancel | Manner::GoAwayBefore => {
            respond.send_reset(Reason::CANCEL);
            return;
        }
        Manner::GoAwayBehind => End::Close,
        Manner::Refuse | Manner::Early(_) => return,
    };
    let _ = ends.send(end);
    // Until the connection ends; or the stream would be reset before it.
    std::future::pending::<()>().await;
}

fn answer(respond: &mut SendResponse<Bytes>, status: u16, after: Option<u64>, body: Bytes) {
    let mut head = Response::builder().status(status);
    if let Some(after) = after {
        head = head.header("retry-after", after);
    }
    let Ok(mut send) = respond.send_response(head.body(()).unwrap_or_default(), body.is_empty()) else {
        return;
    };
    if !body.is_empty() {
        let _ = send.send_data(body, true);
    }
}
