//! The errors that layers of this crate make. They stand here, and not in the layers, so that [`Fault::of`] can
//! read them without knowing any layer.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use tower::BoxError;

use super::{Fault, FaultKind, ReadPhase, Sent, chain};
use crate::call::{CallFailed, Verdict, millis::Millis};

/// No connection within the limit on the connect phase: resolving, all addresses and TLS taken together.
///
/// Nothing was sent. A refused connection is another error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTimedOut {
    limit: Duration,
    target: String,
}

impl ConnectTimedOut {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: Duration, target: String) -> Self {
        ConnectTimedOut { limit, target }
    }

    /// The limit that ran out.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The host and port that it went to.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl fmt::Display for ConnectTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ConnectTimeout: no connection to {} within {:?}; is the host up and the limit long enough?",
            self.target, self.limit
        )
    }
}

impl Error for ConnectTimedOut {}

/// The server was silent for longer than the read limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadTimedOut {
    limit: Duration,
    phase: ReadPhase,
}

impl ReadTimedOut {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: Duration, phase: ReadPhase) -> Self {
        ReadTimedOut { limit, phase }
    }

    /// The limit that ran out.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Was it the head that did not come, or the body that stalled?
    pub fn phase(&self) -> ReadPhase {
        self.phase
    }
}

impl fmt::Display for ReadTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.phase {
            ReadPhase::Head => "no response head after the request was sent",
            ReadPhase::Body => "no further byte of the response body",
        };
        write!(
            f,
            "ReadTimeout: {what} within {:?}; the server may have acted on the request",
            self.limit
        )
    }
}

impl Error for ReadTimedOut {}

/// The limit on the whole call ran out, retries, waits and sleeps included. All work on it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionTimedOut {
    limit: Duration,
}

impl ExecutionTimedOut {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: Duration) -> Self {
        ExecutionTimedOut { limit }
    }

    /// The limit that ran out.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

impl fmt::Display for ExecutionTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ExecutionTimeout: the call did not end within {:?}",
            self.limit
        )
    }
}

impl Error for ExecutionTimedOut {}

/// An attempt was due to start when the deadline of the call had passed. It was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoTimeLeft {
    layer: &'static str,
}

impl NoTimeLeft {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(layer: &'static str) -> Self {
        NoTimeLeft { layer }
    }

    /// The layer that did not start it.
    pub fn layer(&self) -> &'static str {
        self.layer
    }
}

impl fmt::Display for NoTimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the deadline of the call has passed, so nothing was sent",
            self.layer
        )
    }
}

impl Error for NoTimeLeft {}

/// The state that a circuit breaker turned a call away in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CircuitState {
    /// Calls pass and are counted.
    Closed,
    /// Calls are rejected until the sleep window has ended.
    Open,
    /// A probe is on its way; other calls are rejected.
    HalfOpen,
    /// Held open by hand.
    ForcedOpen,
    /// Held closed by hand.
    ForcedClosed,
    /// Switched off: nothing is counted or rejected.
    Disabled,
}

impl fmt::Display for CircuitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CircuitState::Closed => "closed",
            CircuitState::Open => "open",
            CircuitState::HalfOpen => "half-open",
            CircuitState::ForcedOpen => "forced open",
            CircuitState::ForcedClosed => "forced closed",
            CircuitState::Disabled => "disabled",
        })
    }
}

/// A circuit breaker rejected the call. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitOpen {
    name: Arc<str>,
    state: CircuitState,
    retry_in: Option<Duration>,
}

impl CircuitOpen {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(name: Arc<str>, state: CircuitState, retry_in: Option<Duration>) -> Self {
        CircuitOpen {
            name,
            state,
            retry_in,
        }
    }

    /// Finds the rejection in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CircuitOpen> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The name of the breaker.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state that it was in.
    pub fn state(&self) -> CircuitState {
        self.state
    }

    /// When the next probe may go out, as far as that is known.
    pub fn retry_in(&self) -> Option<Duration> {
        self.retry_in
    }
}

impl fmt::Display for CircuitOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CircuitBreaker {:?}: rejected, the circuit is {}",
            self.name, self.state
        )?;
        match self.retry_in {
            Some(left) => write!(f, "; a probe may go out in {}", Millis(left)),
            None => Ok(()),
        }
    }
}

impl Error for CircuitOpen {}

/// There was no endpoint that the call could go to. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEndpoint {
    resolved: bool,
    waited: Duration,
}

impl NoEndpoint {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(resolved: bool, waited: Duration) -> Self {
        NoEndpoint { resolved, waited }
    }

    /// Has discovery ever given a set, be it an empty one?
    pub fn resolved(&self) -> bool {
        self.resolved
    }

    /// How long the call waited for one.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.resolved {
            "the set of endpoints is empty"
        } else {
            "discovery has given no endpoints yet; does its stream run, and is the wait long enough?"
        };
        write!(f, "LoadBalance: no endpoint after {}: {why}", Millis(self.waited))
    }
}

impl Error for NoEndpoint {}

/// The body of the request failed while it was sent: the place that it came from, not the server that it went to.
///
/// Whatever the source says, a part of the request may have reached the server.
#[derive(Debug)]
pub struct RequestBodyFailed {
    source: BoxError,
}

impl RequestBodyFailed {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(source: BoxError) -> Self {
        RequestBodyFailed { source }
    }
}

impl fmt::Display for RequestBodyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the body of the request failed while it was sent: {}",
            self.source
        )
    }
}

impl Error for RequestBodyFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The service below failed to become ready, so the attempt was not sent.
#[derive(Debug)]
pub struct NotReady {
    layer: &'static str,
    source: BoxError,
}

impl NotReady {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(layer: &'static str, source: BoxError) -> Self {
        NotReady { layer, source }
    }

    /// The layer that asked for readiness.
    pub fn layer(&self) -> &'static str {
        self.layer
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the service below is not ready: {}",
            self.layer, self.source
        )
    }
}

impl Error for NotReady {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// An answer whose status counts as an error, or is nobody's business to count.
#[derive(Debug, Clone)]
pub struct StatusError {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    complete: bool,
    verdict: Verdict,
    retry_after: Option<Duration>,
}

impl StatusError {
    /// The error of an answer, with the verdict on it, the part of its body that was kept, and the wait that its
    /// `Retry-After` asks for.
    pub fn new(
        parts: http::response::Parts,
        verdict: Verdict,
        body: Bytes,
        complete: bool,
        retry_after: Option<Duration>,
    ) -> Self {
        StatusError {
            status: parts.status,
            headers: parts.headers,
            body,
            complete,
            verdict,
            retry_after,
        }
    }

    /// Finds the answer in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a StatusError> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers of the answer.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body of the answer, or its beginning: see [`complete`](StatusError::complete).
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Is [`body`](StatusError::body) the whole body? It is not if it was longer than the bound, or broke off.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// What the answer counts as.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How long the server asked to be left alone, counted from its answer.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The answer, put together again. If its body is not [complete](StatusError::complete), the headers that tell
    /// its length are left out.
    pub fn into_response(mut self) -> http::Response<Bytes> {
        if !self.complete {
            self.headers.remove(CONTENT_LENGTH);
            self.headers.remove(TRANSFER_ENCODING);
        }
        let mut response = http::Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StatusErrorClassifier: the server answered {}", self.status)?;
        match self.retry_after {
            Some(wait) => write!(f, " and asks to be left alone for {wait:?}"),
            None => Ok(()),
        }
    }
}

impl Error for StatusError {}

/// An error with the [`Fault`] that a layer which knew more has read off it.
///
/// The layer next to the client uses it to write down the proof that nothing was sent. A client of your own can
/// use it to tell this crate's layers what its errors mean.
#[derive(Debug)]
pub struct FaultError {
    fault: Fault,
    source: BoxError,
}

impl FaultError {
    /// This error is this fault.
    pub fn new(fault: Fault, source: impl Into<BoxError>) -> Self {
        FaultError {
            fault,
            source: source.into(),
        }
    }

    /// An error known not to have reached a server, with the kind that is read off it.
    pub fn unsent(source: impl Into<BoxError>) -> Self {
        let source = source.into();
        FaultError {
            fault: Fault::of(&*source).with_sent(Sent::No),
            source,
        }
    }

    /// The fault.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// The error that it was read off.
    pub fn into_inner(self) -> BoxError {
        self.source
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault, self.source)
    }
}

impl Error for FaultError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Reads the fault off one level of the chain, if it is an error of this crate. Such a level decides.
pub(super) fn own(error: &(dyn Error + 'static)) -> Option<Fault> {
    use super::Rejection;

    let (kind, sent) = if let Some(error) = error.downcast_ref::<FaultError>() {
        return Some(error.fault);
    } else if let Some(error) = error.downcast_ref::<StatusError>() {
        return Some(
            Fault::new(FaultKind::Status(error.status), Sent::Maybe).with_retry_after(error.retry_after),
        );
    } else if let Some(error) = error.downcast_ref::<CircuitOpen>() {
        return Some(
            Fault::new(FaultKind::Rejected(Rejection::Breaker), Sent::No).with_retry_after(error.retry_in),
        );
    } else if let Some(error) = error.downcast_ref::<ReadTimedOut>() {
        (FaultKind::ReadTimeout(error.phase), Sent::Maybe)
    } else if error.is::<RequestBodyFailed>() {
        (FaultKind::Write, Sent::Maybe)
    } else if error.is::<ConnectTimedOut>() {
        (FaultKind::ConnectTimeout, Sent::No)
    } else if error.is::<ExecutionTimedOut>() {
        (FaultKind::ExecutionTimeout, Sent::Maybe)
    } else if error.is::<NoTimeLeft>() {
        (FaultKind::ExecutionTimeout, Sent::No)
    } else if error.is::<NoEndpoint>() {
        (FaultKind::NoEndpoint, Sent::No)
    } else if error.is::<NotReady>() {
        (FaultKind::NotReady, Sent::No)
    } else {
        return None;
    };
    Some(Fault::new(kind, sent))
}

/// What is inside, if this is a `Box` or an `Arc` around an error of this crate that users hold in their hands.
pub(super) fn within<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    use super::read::within;

    within::<FaultError>(error)
        .or_else(|| within::<StatusError>(error))
        .or_else(|| within::<CallFailed>(error))
}
