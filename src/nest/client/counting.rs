//! Connections that count what they write.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use crate::call::connecting;

/// The most that TLS sends as one record (RFC 8446, section 5.1). A peer cannot read a part of one.
const RECORD: usize = 16 * 1024;

/// What a connection has written so far, live: how much, and when last.
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
}

impl Writes {
    fn new() -> Self {
        Writes(Arc::new(Counters {
            opened: Instant::now(),
            bytes: AtomicU64::new(0),
            last: AtomicU64::new(0),
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

    /// The stamp is set after the write below took the bytes. An error that a later write or read leads to comes
    /// out of the same task, so whoever holds the error sees the stamp.
    ///
    /// A write that takes nothing may still have sent something where there is a layer between here and the socket:
    /// TLS sends a long one record by record, and fails with the one that fails.
    fn note(&self, given: usize, write: &Poll<io::Result<usize>>) {
        match write {
            Poll::Ready(Ok(0)) => return,
            // Only the task of the connection writes.
            Poll::Ready(Ok(written)) => {
                self.0.bytes.fetch_add(*written as u64, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) | Poll::Pending if given <= RECORD => return,
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        self.0
            .last
            .store(self.nanos_to(Instant::now()).saturating_add(1), Ordering::Release);
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
    }
}

impl<T: Write> Write for Counting<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let write = this.io.poll_write(cx, bytes);
        this.writes.note(bytes.len(), &write);
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
        this.writes.note(given, &write);
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
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_read(cx, buf)
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
/// order, as all do. [`NotSentLayer`](super::NotSentLayer) next to that client reads the counts; a
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
        Poll::Ready(connected.map(|io| Counting {
            io,
            writes: Writes::new(),
        }))
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
