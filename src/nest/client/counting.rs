//! Connections that count what they write, and hear which streams a server leaves alone.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::frames::{LeftAlone, Protocol};
use crate::call::connecting;

/// The most that TLS sends as one record (RFC 8446, section 5.1). A peer cannot read a part of one.
const RECORD: usize = 16 * 1024;

/// How much is read at once where what is read is looked at: a record of TLS.
const READ_AT_ONCE: usize = RECORD;

/// What a connection has written so far, live: how much, and when last; and of which streams the server has said that it
/// leaves them alone.
///
/// hyper-util puts it into the extensions of each response, and [`NotSent`](super::NotSent) reads it off errors.
/// Under TLS it is about what was given to the TLS layer.
#[derive(Debug, Clone)]
pub struct Writes(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    opened: Instant,
    bytes: AtomicU64,
    /// Nanoseconds from the opening to the last write, plus one; zero if nothing was ever written.
    last: AtomicU64,
    /// Nanoseconds from the opening to when the last stream was opened that a GOAWAY does not leave alone, plus two;
    /// one if it leaves all alone, zero if there was none that tells.
    included: AtomicU64,
}

impl Writes {
    fn new() -> Self {
        Writes(Arc::new(Counters {
            opened: Instant::now(),
            bytes: AtomicU64::new(0),
            last: AtomicU64::new(0),
            included: AtomicU64::new(0),
        }))
    }

    /// How many bytes it has written since it was opened.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Was nothing written at this instant or after it? Whatever started there has then sent nothing.
    ///
    /// A write of more than 16 KiB that failed or was put off counts as one: TLS may have sent a part of it.
    pub fn silent_since(&self, started: Instant) -> bool {
        match self.0.last.load(Ordering::Acquire) {
            0 => true,
            stamp => stamp - 1 < self.nanos_to(started),
        }
    }

    /// Has the server said, by a GOAWAY, that it does not act on any stream that was opened at this instant or after it?
    /// Always no for HTTP/1.
    ///
    /// The streams of a connection are told apart by when they were opened, as a request does not know its own.
    pub fn left_alone_since(&self, started: Instant) -> bool {
        match self.0.included.load(Ordering::Acquire) {
            0 => false,
            1 => true,
            stamp => stamp - 2 < self.nanos_to(started),
        }
    }

    /// As for writes, whoever holds the error that this leads to sees it.
    fn leave_alone(&self, streams: LeftAlone) {
        let stamp = match streams {
            LeftAlone::Unknown => 0,
            LeftAlone::All => 1,
            LeftAlone::After(nanos) => nanos.saturating_add(2),
        };
        self.0.included.store(stamp, Ordering::Release);
    }

    /// The stamp is set after the write below took the bytes. An error that a later write or read leads to comes
    /// out of the same task, so whoever holds the error sees the stamp.
    ///
    /// A write that takes nothing may still have sent something where there is a layer between here and the socket:
    /// TLS sends a long one record by record, and fails with the one that fails.
    ///
    /// Returns the time of the write in nanoseconds, if it is one.
    fn note(&self, given: usize, write: &Poll<io::Result<usize>>) -> Option<u64> {
        match write {
            Poll::Ready(Ok(0)) => return None,
            // Only the task of the connection writes.
            Poll::Ready(Ok(written)) => {
                self.0.bytes.fetch_add(*written as u64, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) | Poll::Pending if given <= RECORD => return None,
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        let now = self.nanos_to(Instant::now());
        self.0.last.store(now.saturating_add(1), Ordering::Release);
        Some(now)
    }

    /// Zero for an instant before the connection was opened.
    fn nanos_to(&self, instant: Instant) -> u64 {
        instant
            .saturating_duration_since(self.0.opened)
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX)
    }
}

pin_project! {
    /// A connection that counts what it writes. Made by a [`CountingConnector`].
    #[derive(Debug)]
    pub struct Counting<T> {
        #[pin]
        io: T,
        writes: Writes,
        protocol: Protocol,
        // What is read of HTTP/2 goes through here, so that it can be looked at. Empty until then.
        read: Vec<u8>,
    }
}

impl<T> Counting<T> {
    fn new(io: T) -> Self {
        Counting {
            io,
            writes: Writes::new(),
            protocol: Protocol::new(),
            read: Vec::new(),
        }
    }
}

/// Notes a write of these slices, and follows as much of them as was written.
#[inline]
fn note<'a>(
    writes: &Writes,
    protocol: &mut Protocol,
    given: usize,
    slices: impl IntoIterator<Item = &'a [u8]>,
    write: &Poll<io::Result<usize>>,
) {
    let now = writes.note(given, write);
    if let (Some(now), Poll::Ready(Ok(written))) = (now, write) {
        let mut left = *written;
        for slice in slices {
            let part = left.min(slice.len());
            protocol.written(&slice[..part], now);
            left -= part;
            if left == 0 {
                break;
            }
        }
    }
}

impl<T: Write> Write for Counting<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let write = this.io.poll_write(cx, bytes);
        note(this.writes, this.protocol, bytes.len(), [bytes], &write);
        write
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let write = this.io.poll_write_vectored(cx, slices);
        let given = slices
            .iter()
            .fold(0, |sum: usize, slice| sum.saturating_add(slice.len()));
        let slices = slices.iter().map(|slice| &**slice);
        note(this.writes, this.protocol, given, slices, &write);
        write
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_shutdown(cx)
    }
}

impl<T: Read> Read for Counting<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let Some(streams) = this.protocol.streams() else {
            return this.io.poll_read(cx, buf);
        };
        // What is put into the buffer of another cannot be seen there.
        this.read.resize(READ_AT_ONCE, 0);
        let most = buf.remaining().min(READ_AT_ONCE);
        let mut read = ReadBuf::new(&mut this.read[..most]);
        ready!(this.io.poll_read(cx, read.unfilled()))?;
        if let Some(left_alone) = streams.read(read.filled()) {
            this.writes.leave_alone(left_alone);
        }
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<T: Connection> Connection for Counting<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.writes.clone())
    }
}

/// A connector whose connections count what they write, so that a failed request can be proved not to have been sent.
///
/// It goes around the connector of a hyper-util client, TLS included, and the connections have to take writes in
/// order, as all do. Of HTTP/2 it looks at the heads of all frames, for which what is read is copied once more. [`NotSentLayer`](super::NotSentLayer) next to that client reads the counts; a
/// [`Client`](super::Client) has both built in.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use hyper_util::{client::legacy, rt::TokioExecutor};
/// use tower::Layer;
/// use tower_outbound::nest::client::{CountingConnector, NotSentLayer};
///
/// let connector = CountingConnector::new(legacy::connect::HttpConnector::new());
/// let client: legacy::Client<_, Full<Bytes>> = legacy::Client::builder(TokioExecutor::new())
///     .retry_canceled_requests(false)
///     .build(connector);
/// let client = NotSentLayer.layer(client);
/// ```
#[derive(Debug, Clone)]
pub struct CountingConnector<C> {
    inner: C,
}

impl<C> CountingConnector<C> {
    /// Counts what the connections of this connector write.
    pub fn new(inner: C) -> Self {
        CountingConnector { inner }
    }
}

impl<C: Service<Uri>> Service<Uri> for CountingConnector<C> {
    type Response = Counting<C::Response>;
    type Error = C::Error;
    type Future = CountingConnectorFuture<C::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        CountingConnectorFuture {
            connect: self.inner.call(target),
        }
    }
}

pin_project! {
    /// The future of a [`CountingConnector`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct CountingConnectorFuture<F> {
        #[pin]
        connect: F,
    }
}

impl<F: Future<Output = Result<T, E>>, T, E> Future for CountingConnectorFuture<F> {
    type Output = Result<Counting<T>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(connected) = self.project().connect.poll(cx) else {
            // Until here the request that waits for it has sent nothing.
            connecting::mark();
            return Poll::Pending;
        };
        Poll::Ready(connected.map(Counting::new))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_write_before_the_attempt_proves_that_the_attempt_wrote_nothing() {
        let early = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        let writes = Writes::new();
        assert!(writes.silent_since(early), "nothing was ever written");
        tokio::time::advance(Duration::from_millis(1)).await;
        writes.note(10, &Poll::Ready(Ok(0)));
        assert!(writes.silent_since(early), "nor with an empty write");
        writes.note(10, &Poll::Ready(Ok(10)));
        let tie = Instant::now();
        assert!(!writes.silent_since(early));
        assert!(!writes.silent_since(tie), "a tie proves nothing");
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(writes.silent_since(Instant::now()));
        assert_eq!(writes.bytes(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_write_that_is_not_done_may_have_sent_a_part_and_one_of_a_record_has_not() {
        let failed = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        for (given, silent) in [(1, true), (RECORD, true), (RECORD + 1, false)] {
            for write in [failed(), Poll::Pending] {
                let writes = Writes::new();
                writes.note(given, &write);
                assert_eq!(writes.silent_since(Instant::now()), silent, "{given} {write:?}");
                assert_eq!(writes.bytes(), 0);
            }
        }
    }
}
