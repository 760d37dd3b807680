//! What went wrong with an attempt, and whether a server may have seen it.

mod errors;
mod grpc;
mod read;
mod socket;

use std::{error::Error, fmt, time::Duration};

use http::StatusCode;

pub use self::errors::{
    AnswerBodyFailed, AnswerTooLarge, BulkheadFull, CircuitOpen, CircuitState, ConnectTimedOut,
    ExecutionTimedOut, FallbackFailed, FallbackRejected, FaultError, NoEndpoint, NoTimeLeft, NotReady,
    ReadTimedOut, RequestBodyFailed, StatusError, WriteTimedOut,
};
pub use self::grpc::GrpcError;
pub use self::read::chain;
#[cfg(feature = "balance")]
pub(crate) use self::socket::is_connection_failure;
#[cfg(feature = "retry")]
pub(crate) use self::socket::is_socket_fault;

/// Could a server have seen the request?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sent {
    /// No, and that is proved: no byte of it reached a server, or the server said that it did not act on it.
    No,
    /// Perhaps. All that is not proved is this.
    Maybe,
}

/// The phase in which a read limit ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadPhase {
    /// The request was out and the head of the response did not come.
    Head,
    /// The head had come and the body stalled.
    Body,
}

/// The layer that turned a call away before any server had a part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// A circuit breaker that is not closed.
    Breaker,
    /// A bulkhead with no free slot.
    Bulkhead,
    /// A rate limit or an in-flight limit.
    Limit,
    /// A retry budget with nothing left.
    Budget,
    /// The limit on fallbacks. It is the fallback that was turned away; the call itself had failed before, for the reason
    /// that is the source of the error.
    Fallback,
}

/// The kind of a [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The host answered that nobody listens there.
    ConnectRefused,
    /// No connection within the connect limit.
    ConnectTimeout,
    /// No connection for another reason: name not found, no route, TLS.
    Connect,
    /// The service below failed to become ready.
    NotReady,
    /// The request could not be written, or its upload stalled.
    Write,
    /// The read limit ran out.
    ReadTimeout(ReadPhase),
    /// The connection was reset.
    Reset,
    /// The connection was closed before the answer was complete. The server may have read, and done, everything.
    Closed,
    /// The peer broke the protocol.
    Protocol,
    /// An answer whose status counts as an error.
    Status(StatusCode),
    /// An answer whose gRPC status counts as an error.
    Grpc(i32),
    /// Turned away by a layer on this side.
    Rejected(Rejection),
    /// There was no endpoint to send it to.
    NoEndpoint,
    /// The limit on the whole call ran out.
    ExecutionTimeout,
    /// None of the above.
    Other,
}

/// What went wrong with an attempt: a kind, whether the request may have reached a server, and how long the
/// server asked to be left alone.
///
/// Read off any error by [`Fault::of`]:
///
/// ```
/// use std::io;
/// use tower_outbound::call::{Fault, FaultKind, Sent};
///
/// let error = io::Error::from(io::ErrorKind::ConnectionRefused);
/// let fault = Fault::of(&error);
/// assert_eq!(fault.kind(), FaultKind::ConnectRefused);
/// assert_eq!(fault.sent(), Sent::No);
/// ```
///
/// # What happens, and what it is read as
///
/// Measured on sockets, with the `Client` of this crate below a `ReadTimeout`. The tests check each line of this
/// table, without TLS and over it:
///
#[doc = include_str!("matrix.md")]
///
/// `No` stands on proof alone, which is one of these:
///
/// - The connection did not come about, or broke before it was given the request.
/// - hyper hands a request back, as canceled, that it has not begun to write.
/// - The server says that it did not act: REFUSED_STREAM (RFC 9113, section 8.7).
/// - The connection counts what it writes, and has written nothing since the attempt began; or it follows its streams,
///   and a GOAWAY names one as the last that was opened before the attempt began. The reason of a GOAWAY does not
///   matter. Both need the `Client` of this crate, or two lines for another hyper-util client: `nest::client::CountingConnector` and `NotSentLayer`.
///
/// A connection that is closed without an answer ("incomplete message") proves nothing: the server may have read, and
/// done, everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    sent: Sent,
    retry_after: Option<Duration>,
}

impl Fault {
    /// A fault of this kind. [`Sent::No`] is a claim of proof.
    pub const fn new(kind: FaultKind, sent: Sent) -> Self {
        Fault {
            kind,
            sent,
            retry_after: None,
        }
    }

    /// Reads the fault off an error, however deeply it is wrapped. Of a `BoxError` it is `Fault::of(&*error)`.
    ///
    /// The whole chain of sources is walked, through the wrappers that hide a level (`io::Error`, `Box`, `Arc`; see
    /// [`chain`]). What is not known is [`FaultKind::Other`] and [`Sent::Maybe`]. Known are:
    ///
    /// | errors of | with the feature |
    /// | --- | --- |
    /// | this crate, io, tokio's timeout | |
    /// | hyper, hyper-util's client | `hyper` (on by default) |
    /// | h2 | `http2` |
    /// | tower's timeout, load shedding and buffer | `tower-errors` |
    /// | reqwest | `reqwest` |
    /// | tonic's channel, and its `Status` | `tonic` |
    ///
    /// Of a call with several attempts it is the fault of the last one, but [`Sent::No`] holds for all of them: where one
    /// before may have reached a server ([`Trail::may_have_been_sent`](crate::call::Trail::may_have_been_sent)), it is
    /// [`Sent::Maybe`].
    ///
    /// A reqwest client follows redirects unless it is told not to, and its errors do not tell whether it did: a POST
    /// may have been carried out by the server that answered 303. So a reqwest error by itself never proves
    /// [`Sent::No`]; a `ReqwestClient`, which sends once, adds the proof.
    pub fn of(error: &(dyn Error + 'static)) -> Fault {
        read::fault(error)
    }

    /// The same of an error of a client that sends each request once, whatever others of its kind do.
    #[cfg(feature = "reqwest")]
    pub(crate) fn of_one_sending(error: &(dyn Error + 'static)) -> Fault {
        read::fault_of_one_sending(error)
    }

    /// The same fault with this proof, or lack of it.
    #[must_use]
    pub const fn with_sent(mut self, sent: Sent) -> Self {
        self.sent = sent;
        self
    }

    /// The same fault with the wait that the server asked for, from now on.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// What kind of fault it is.
    pub const fn kind(&self) -> FaultKind {
        self.kind
    }

    /// Whether the request may have reached a server.
    pub const fn sent(&self) -> Sent {
        self.sent
    }

    /// How long the server asked to be left alone, counted from its answer. Zero: not at all.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Was the call turned away on this side, or without an endpoint to go to? Such a fault is never retried by
    /// this crate's policies, and no server has failed. A fallback that was turned away does not count: the call was not.
    pub const fn is_rejection(&self) -> bool {
        match self.kind {
            FaultKind::Rejected(Rejection::Fallback) => false,
            FaultKind::Rejected(_) | FaultKind::NoEndpoint => true,
            _ => false,
        }
    }

    /// Did a connection not come about?
    pub const fn is_connect(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::ConnectRefused | FaultKind::ConnectTimeout | FaultKind::Connect
        )
    }

    /// Did a limit run out, whichever it was?
    pub const fn is_timeout(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::ConnectTimeout | FaultKind::ReadTimeout(_) | FaultKind::ExecutionTimeout
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::ConnectRefused => f.write_str("connect refused"),
            FaultKind::ConnectTimeout => f.write_str("connect timeout"),
            FaultKind::Connect => f.write_str("no connection"),
            FaultKind::NotReady => f.write_str("not ready"),
            FaultKind::Write => f.write_str("write failed"),
            FaultKind::ReadTimeout(ReadPhase::Head) => f.write_str("read timeout"),
            FaultKind::ReadTimeout(ReadPhase::Body) => f.write_str("read timeout in the body"),
            FaultKind::Reset => f.write_str("connection reset"),
            FaultKind::Closed => f.write_str("closed before the answer was complete"),
            FaultKind::Protocol => f.write_str("protocol error"),
            FaultKind::Status(status) => write!(f, "status {}", status.as_u16()),
            FaultKind::Grpc(code) => write!(f, "grpc status {code}"),
            FaultKind::Rejected(Rejection::Breaker) => f.write_str("rejected by the circuit breaker"),
            FaultKind::Rejected(Rejection::Bulkhead) => f.write_str("rejected by the bulkhead"),
            FaultKind::Rejected(Rejection::Limit) => f.write_str("rejected by a limit"),
            FaultKind::Rejected(Rejection::Budget) => f.write_str("rejected by the retry budget"),
            FaultKind::Rejected(Rejection::Fallback) => f.write_str("fallback rejected by its limit"),
            FaultKind::NoEndpoint => f.write_str("no endpoint"),
            FaultKind::ExecutionTimeout => f.write_str("execution timeout"),
            FaultKind::Other => f.write_str("other error"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match (self.kind, self.sent) {
            // An answer came, so there is no question.
            (FaultKind::Status(_) | FaultKind::Grpc(_), _) => Ok(()),
            (_, Sent::No) => f.write_str(" (not sent)"),
            (_, Sent::Maybe) => f.write_str(" (may have been sent)"),
        }
    }
}
