//! The limit on the connect phase.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Uri, uri::Scheme};
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use crate::call::{ConfigError, ConnectTimedOut, config, connecting, timer::poll_timer};

/// Puts a [`ConnectTimeout`] around a connector.
#[derive(Debug, Clone)]
pub struct ConnectTimeoutLayer {
    limit: Duration,
}

impl ConnectTimeoutLayer {
    /// One limit over the whole connect phase: resolving the name, trying its addresses, TLS.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limit is zero, or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn new(limit: Duration) -> Result<Self, ConfigError> {
        let limit = config::limit("ConnectTimeout", "limit", limit)?;
        Ok(ConnectTimeoutLayer { limit })
    }
}

impl<C> Layer<C> for ConnectTimeoutLayer {
    type Service = ConnectTimeout<C>;

    fn layer(&self, inner: C) -> ConnectTimeout<C> {
        ConnectTimeout {
            inner,
            limit: self.limit,
        }
    }
}

/// A connector with a limit on the connect phase.
///
/// It goes around the whole connector, TLS included. The limit is one for all addresses of a host: three dead ones do
/// not take three times as long. (How one connector shares its time out among addresses is its own business; hyper's
/// `HttpConnector::set_connect_timeout` divides a limit of its own between them.)
///
/// The error is [`ConnectTimedOut`]: nothing was sent. A refused connection is the connector's own error and comes
/// through unchanged. While it connects it tells a [`ReadTimeout`](super::ReadTimeout) above that the request has no
/// connection yet.
///
/// The deadline of a call does not shorten it, since a client may go on connecting for the calls that come after.
///
/// ```
/// use std::time::Duration;
/// use http::Uri;
/// use tower::{Layer, Service, service_fn};
/// use tower_outbound::{call::Fault, timeout::ConnectTimeoutLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let swallows_packets = service_fn(|_: Uri| std::future::pending::<Result<(), std::io::Error>>());
/// let mut connector = ConnectTimeoutLayer::new(Duration::from_secs(1))?.layer(swallows_packets);
///
/// let error = connector.call(Uri::from_static("http://orders/list")).await.unwrap_err();
/// assert_eq!(Fault::of(&*error).to_string(), "connect timeout (not sent)");
/// assert!(error.to_string().contains("no connection to orders:80 within 1s"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ConnectTimeout<C> {
    inner: C,
    limit: Duration,
}

impl<C> ConnectTimeout<C> {
    /// The limit.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    crate::macros::inner_service!(C);
}

impl<C> Service<Uri> for ConnectTimeout<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = ConnectTimeoutFuture<C::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        // Counted from here: a connector that blocks in its first poll has used up time as well.
        let due = Instant::now() + self.limit;
        ConnectTimeoutFuture {
            inner: self.inner.call(target.clone()),
            sleep: None,
            due,
            limit: self.limit,
            target,
        }
    }
}

pin_project! {
    /// The future of [`ConnectTimeout`]. It is `Unpin` where the connector's is, as hyper-util's client demands.
    #[must_use = "futures do nothing unless polled"]
    pub struct ConnectTimeoutFuture<F> {
        #[pin]
        inner: F,
        // In a box, for the sake of `Unpin`. Connecting is not the path of each call.
        sleep: Option<Pin<Box<Sleep>>>,
        due: Instant,
        limit: Duration,
        target: Uri,
    }
}

// Not derived: the target may have a user name and a password in it.
impl<F> fmt::Debug for ConnectTimeoutFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectTimeoutFuture")
            .field("target", &host_and_port(&self.target))
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<F, T, E> Future for ConnectTimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(connected) = this.inner.poll(cx) {
            return Poll::Ready(connected.map_err(Into::into));
        }
        let due = *this.due;
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if poll_timer(sleep.as_mut(), cx).is_pending() {
            connecting::mark();
            return Poll::Pending;
        }
        let error = ConnectTimedOut::new(*this.limit, host_and_port(this.target));
        Poll::Ready(Err(Box::new(error)))
    }
}

/// Where it goes to, without user name, path and query.
fn host_and_port(target: &Uri) -> String {
    let host = target.host().unwrap_or_default();
    let port = target.port_u16().or_else(|| {
        let scheme = target.scheme()?;
        if *scheme == Scheme::HTTP || scheme.as_str() == "ws" {
            Some(80)
        } else if *scheme == Scheme::HTTPS || scheme.as_str() == "wss" {
            Some(443)
        } else {
            None
        }
    });
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_host_and_port_and_nothing_else() {
        for (uri, target) in [
            ("http://host/path?query", "host:80"),
            ("https://user:password@host/", "host:443"),
            ("wss://host", "host:443"),
            ("http://user@host:8080", "host:8080"),
            ("http://[::1]", "[::1]:80"),
            ("unix://socket", "socket"),
            ("host:99", "host:99"),
            ("/path", ""),
        ] {
            assert_eq!(host_and_port(&Uri::from_static(uri)), target, "{uri}");
        }
    }

    #[test]
    fn the_debug_form_hides_the_user() {
        let future = ConnectTimeoutFuture {
            inner: (),
            sleep: None,
            due: Instant::now(),
            limit: Duration::from_secs(1),
            target: Uri::from_static("http://user:password@host"),
        };
        assert!(!format!("{future:?}").contains("password"));
    }
}
