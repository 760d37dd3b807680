//! The errors that layers of this crate make. They stand here, and not in the layers, so that [`Fault::of`] can
//! read them without knowing any layer.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use tower::BoxError;

use super::{Fault, FaultKind, GrpcError, ReadPhase, Sent, chain};
use crate::call::{CallFailed, ErrorRef, Verdict, millis::Millis};

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
    whole_body: bool,
}

impl ReadTimedOut {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: Duration, phase: ReadPhase) -> Self {
        ReadTimedOut {
            limit,
            phase,
            whole_body: false,
        }
    }

    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn of_whole_body(limit: Duration) -> Self {
        ReadTimedOut {
            limit,
            phase: ReadPhase::Body,
            whole_body: true,
        }
    }

    /// The limit that ran out.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Was it the head that did not come, or the body?
    pub fn phase(&self) -> ReadPhase {
        self.phase
    }

    /// Was it the limit on the whole body? Otherwise it was the one on a gap in it, or on the head.
    pub fn is_of_whole_body(&self) -> bool {
        self.whole_body
    }
}

impl fmt::Display for ReadTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.phase {
            ReadPhase::Head => "no response head after the request was sent",
            ReadPhase::Body if self.whole_body => "the response body was not complete",
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

/// The upload of the request body stalled for longer than the write limit. What was left of it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteTimedOut {
    limit: Duration,
}

impl WriteTimedOut {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: Duration) -> Self {
        WriteTimedOut { limit }
    }

    /// The limit that ran out.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

impl fmt::Display for WriteTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ReadTimeout: no further byte of the request body was taken within {:?}; the server may have acted on \
             the request",
            self.limit
        )
    }
}

impl Error for WriteTimedOut {}

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
    /// In shadow mode: all is counted and judged, and nothing is rejected.
    Shadow,
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
            CircuitState::Shadow => "shadow",
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

/// A bulkhead turned the call away. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkheadFull {
    name: Arc<str>,
    in_flight: [u32; 2],
    waiting: [u32; 2],
    waited: Duration,
}

impl BulkheadFull {
    /// Of calls in flight and of calls that wait: how many were seen, and how many there may be.
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(name: Arc<str>, in_flight: [u32; 2], waiting: [u32; 2], waited: Duration) -> Self {
        BulkheadFull {
            name,
            in_flight,
            waiting,
            waited,
        }
    }

    /// Finds the rejection in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a BulkheadFull> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The name of the bulkhead.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many calls were in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight[0]
    }

    /// How many calls may be in flight at once.
    pub fn max_concurrent(&self) -> u32 {
        self.in_flight[1]
    }

    /// How many calls waited for a slot.
    pub fn waiting(&self) -> u32 {
        self.waiting[0]
    }

    /// How many calls may wait for one.
    pub fn max_waiting(&self) -> u32 {
        self.waiting[1]
    }

    /// How long this call waited. Zero: it was turned away at once.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Display for BulkheadFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([in_flight, most], [waiting, most_waiting]) = (self.in_flight, self.waiting);
        write!(f, "Bulkhead {:?}: ", self.name)?;
        if most == 0 {
            return f.write_str("rejected, as `max_concurrent` is 0");
        }
        if self.waited.is_zero() {
            write!(f, "rejected, {in_flight} of {most} calls are in flight")?;
        } else {
            let waited = Millis(self.waited);
            write!(
                f,
                "no slot within {waited}, {in_flight} of {most} calls are in flight"
            )?;
        }
        if most_waiting > 0 {
            write!(f, " and {waiting} of {most_waiting} wait")?;
        }
        f.write_str("; is what it calls slow, or `max_concurrent` too low?")
    }
}

impl Error for BulkheadFull {}

/// There was no endpoint that the call could go to. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEndpoint {
    resolved: bool,
    waited: Duration,
    among: usize,
}

impl NoEndpoint {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(resolved: bool, waited: Duration) -> Self {
        NoEndpoint {
            resolved,
            waited,
            among: 0,
        }
    }

    /// There were that many endpoints, and the rule chose none of them.
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn among(mut self, endpoints: usize) -> Self {
        self.among = endpoints;
        self
    }

    /// Finds it in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a NoEndpoint> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// How many endpoints there were. Above zero: the rule of the balancer chose none of them.
    pub fn endpoints(&self) -> usize {
        self.among
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
        write!(f, "LoadBalance: no endpoint after {}: ", Millis(self.waited))?;
        match (self.among, self.resolved) {
            (0, true) => f.write_str("the set of endpoints is empty"),
            (0, false) => f.write_str(
                "discovery has given no endpoints yet; does its stream run, and is the wait long enough?",
            ),
            (endpoints, _) => write!(f, "the rule chose none of the {endpoints} in the set"),
        }
    }
}

impl Error for NoEndpoint {}

/// A call failed, and its fallback was turned away, since as many as may be were running.
///
/// Its source is the error of the call. Its [`Fault`] is a [rejection of the fallback](super::Rejection::Fallback), and has
/// the [`Sent`] and the wait of the call's.
#[derive(Debug)]
pub struct FallbackRejected {
    limit: u32,
    original: BoxError,
}

impl FallbackRejected {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: u32, original: BoxError) -> Self {
        FallbackRejected { limit, original }
    }

    /// Finds it in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a FallbackRejected> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// How many fallbacks may run at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The error of the call.
    pub fn original(&self) -> ErrorRef<'_> {
        &*self.original
    }

    /// The error of the call, on its own.
    pub fn into_original(self) -> BoxError {
        self.original
    }
}

impl fmt::Display for FallbackRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fallback: rejected, ")?;
        match self.limit {
            0 => f.write_str("as `max_concurrent` is 0")?,
            limit => write!(
                f,
                "{limit} are running; is the fallback slow, or `max_concurrent` too low?"
            )?,
        }
        write!(f, " It was to answer for: {}", self.original)
    }
}

impl Error for FallbackRejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.original)
    }
}

/// A call failed, and its fallback as well.
///
/// Its source is the error of the call, so that [`Fault::of`] says what went wrong first.
#[derive(Debug)]
pub struct FallbackFailed {
    failed: BoxError,
    original: BoxError,
}

impl FallbackFailed {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(failed: BoxError, original: BoxError) -> Self {
        FallbackFailed { failed, original }
    }

    /// Finds it in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a FallbackFailed> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The error of the fallback.
    pub fn fallback(&self) -> ErrorRef<'_> {
        &*self.failed
    }

    /// The error of the call.
    pub fn original(&self) -> ErrorRef<'_> {
        &*self.original
    }

    /// The error of the call, on its own.
    pub fn into_original(self) -> BoxError {
        self.original
    }
}

impl fmt::Display for FallbackFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Fallback: failed as well: {}. It was to answer for: {}",
            self.failed, self.original
        )
    }
}

impl Error for FallbackFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.original)
    }
}

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

/// The head of an answer had come, and its body could not be read to the end.
///
/// Its [`Fault`] is of the kind that its source is: a stall, a connection that broke off, or a body that is
/// [too large](AnswerTooLarge).
#[derive(Debug)]
pub struct AnswerBodyFailed {
    status: StatusCode,
    read: u64,
    source: BoxError,
}

impl AnswerBodyFailed {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(status: StatusCode, read: u64, source: BoxError) -> Self {
        AnswerBodyFailed { status, read, source }
    }

    /// Finds it in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a AnswerBodyFailed> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// How many bytes of the body had been read.
    pub fn read(&self) -> u64 {
        self.read
    }
}

impl fmt::Display for AnswerBodyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CollectBody: the server answered {}, and after {} bytes the body failed: {}",
            self.status, self.read, self.source
        )
    }
}

impl Error for AnswerBodyFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The body of an answer is longer than what is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerTooLarge {
    limit: u64,
}

impl AnswerTooLarge {
    #[allow(dead_code, reason = "made by a layer that is a feature")]
    pub(crate) fn new(limit: u64) -> Self {
        AnswerTooLarge { limit }
    }

    /// How many bytes are read at most.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

impl fmt::Display for AnswerTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the body has more than the {} bytes that are read; raise `max_body`, or do not collect such bodies",
            self.limit
        )
    }
}

impl Error for AnswerTooLarge {}

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

    /// Finds it in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a NotReady> {
        chain(error).find_map(|error| error.downcast_ref())
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
    } else if let Some(error) = error.downcast_ref::<GrpcError>() {
        return Some(error.fault());
    } else if let Some(error) = error.downcast_ref::<CircuitOpen>() {
        return Some(
            Fault::new(FaultKind::Rejected(Rejection::Breaker), Sent::No).with_retry_after(error.retry_in),
        );
    } else if let Some(error) = error.downcast_ref::<AnswerBodyFailed>() {
        // There was an answer, whatever the source proves.
        return Some(Fault::of(&*error.source).with_sent(Sent::Maybe));
    } else if let Some(error) = error.downcast_ref::<FallbackRejected>() {
        let original = Fault::of(error.original());
        return Some(
            Fault::new(FaultKind::Rejected(Rejection::Fallback), original.sent())
                .with_retry_after(original.retry_after()),
        );
    } else if let Some(error) = error.downcast_ref::<ReadTimedOut>() {
        (FaultKind::ReadTimeout(error.phase), Sent::Maybe)
    } else if error.is::<RequestBodyFailed>() || error.is::<WriteTimedOut>() {
        (FaultKind::Write, Sent::Maybe)
    } else if error.is::<ConnectTimedOut>() {
        (FaultKind::ConnectTimeout, Sent::No)
    } else if error.is::<ExecutionTimedOut>() {
        (FaultKind::ExecutionTimeout, Sent::Maybe)
    } else if error.is::<NoTimeLeft>() {
        (FaultKind::ExecutionTimeout, Sent::No)
    } else if error.is::<BulkheadFull>() {
        (FaultKind::Rejected(Rejection::Bulkhead), Sent::No)
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
