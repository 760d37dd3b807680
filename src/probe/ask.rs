//! What an endpoint is asked.

use std::{fmt, future::Future};

use crate::call::{BoxError, Endpoint};

/// Asks an endpoint whether it is well (Ribbon's `IPing`).
///
/// A closure is one that takes an [`Endpoint`] and returns a future of a `bool`, or of a `Result<(), E>`. One that is
/// ready-made is [`HttpProbe`](super::HttpProbe).
///
/// ```
/// use tower_outbound::{call::Endpoint, probe::Probe};
///
/// fn probe() -> impl Probe {
///     |endpoint: Endpoint| async move {
///         let address = endpoint.authority().as_str();
///         tokio::net::TcpStream::connect(address).await.map(drop)
///     }
/// }
/// # let _ = probe();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot probe endpoints",
    note = "give a closure like `|endpoint: Endpoint| async move {{ .. }}` whose future is `Send` and ends with a `bool` or a \
            `Result<(), E>`"
)]
pub trait Probe {
    /// Asks. An error says that the endpoint is not well, and why. A panic says so too.
    fn ask(&self, endpoint: Endpoint) -> impl Future<Output = Result<(), BoxError>> + Send;
}

#[diagnostic::do_not_recommend]
impl<F, Fut> Probe for F
where
    F: Fn(Endpoint) -> Fut,
    Fut: Future<Output: ProbeAnswer> + Send,
{
    fn ask(&self, endpoint: Endpoint) -> impl Future<Output = Result<(), BoxError>> + Send {
        let asked = self(endpoint);
        async move { asked.await.into_result() }
    }
}

/// What the future of a closure that is a [`Probe`] may end with.
pub trait ProbeAnswer {
    /// Is it well? If not, why not.
    fn into_result(self) -> Result<(), BoxError>;
}

impl ProbeAnswer for bool {
    fn into_result(self) -> Result<(), BoxError> {
        if self {
            Ok(())
        } else {
            Err("it is not well".into())
        }
    }
}

impl<E: Into<BoxError>> ProbeAnswer for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

/// Why a probe has failed.
#[derive(Debug)]
pub(super) enum NotWell {
    Said(BoxError),
    Panicked,
    TimedOut,
}

impl fmt::Display for NotWell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotWell::Said(error) => error.fmt(f),
            NotWell::Panicked => f.write_str("the probe panicked"),
            NotWell::TimedOut => f.write_str("it did not answer in time"),
        }
    }
}
