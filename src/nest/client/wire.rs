//! Connections that note when they last took bytes.

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
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

/// What a connection knows of its writes. It goes up with each error, in hyper-util's [`Connected`].
#[derive(Debug, Clone)]
pub(super) struct Wire(Arc<Writes>);

#[derive(Debug)]
struct Writes {
    opened: Instant,
    /// Nanoseconds from the opening to the last write, plus one; zero if nothing was ever written.
    last: AtomicU64,
}

impl Wire {
    fn new() -> Self {
        Wire(Arc::new(Writes {
            opened: Instant::now(),
            last: AtomicU64::new(0),
        }))
    }

    /// The stamp is set after the write below took the bytes. An error that a later write or read leads to comes
    /// out of the same task, so whoever holds the error sees the stamp.
    fn note(&self, written: usize) {
        if written > 0 {
            self.0
                .last
                .store(self.nanos_to(Instant::now()).saturating_add(1), Ordering::Release);
        }
    }

    /// Was nothing written at or after this instant? An attempt that started there has then sent nothing.
    pub(super) fn silent_since(&self, started: Instant) -> bool {
        match self.0.last.load(Ordering::Acquire) {
            0 => true,
            stamp => stamp - 1 < self.nanos_to(started),
        }
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
    /// A connection that notes when it last took bytes.
    #[derive(Debug)]
    pub struct Noted<T> {
        #[pin]
        io: T,
        wire: Wire,
    }
}

impl<T: Write> Write for Noted<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = ready!(this.io.poll_write(cx, bytes))?;
        this.wire.note(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = ready!(this.io.poll_write_vectored(cx, slices))?;
        this.wire.note(written);
        Poll::Ready(Ok(written))
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

impl<T: Read> Read for Noted<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_read(cx, buf)
    }
}

impl<T: Connection> Connection for Noted<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.wire.clone())
    }
}

/// A connector whose connections note when they last took bytes.
#[derive(Debug, Clone)]
pub struct NotedConnector<C> {
    inner: C,
}

impl<C> NotedConnector<C> {
    pub(super) fn new(inner: C) -> Self {
        NotedConnector { inner }
    }
}

impl<C: Service<Uri>> Service<Uri> for NotedConnector<C> {
    type Response = Noted<C::Response>;
    type Error = C::Error;
    type Future = NotedFuture<C::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        NotedFuture {
            connect: self.inner.call(target),
        }
    }
}

pin_project! {
    /// The connection of a [`NotedConnector`].
    #[derive(Debug)]
    pub struct NotedFuture<F> {
        #[pin]
        connect: F,
    }
}

impl<F: Future<Output = Result<T, E>>, T, E> Future for NotedFuture<F> {
    type Output = Result<Noted<T>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let io = ready!(self.project().connect.poll(cx))?;
        Poll::Ready(Ok(Noted {
            io,
            wire: Wire::new(),
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
        let wire = Wire::new();
        assert!(wire.silent_since(early), "nothing was ever written");
        tokio::time::advance(Duration::from_millis(1)).await;
        wire.note(0);
        assert!(wire.silent_since(early), "nor with an empty write");
        wire.note(10);
        let tie = Instant::now();
        assert!(!wire.silent_since(early));
        assert!(!wire.silent_since(tie), "a tie proves nothing");
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(wire.silent_since(Instant::now()));
    }
}
