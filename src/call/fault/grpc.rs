//! The error of an answer whose gRPC status is one.

use std::{error::Error, fmt};

use http::HeaderMap;

use super::{Fault, FaultKind, Sent, chain};
use crate::call::{GrpcCode, Verdict, grpc};

/// An answer whose gRPC status, told before any body, counts as an error or is nobody's business to count.
#[derive(Debug, Clone)]
pub struct GrpcError {
    code: GrpcCode,
    message: String,
    headers: HeaderMap,
    verdict: Verdict,
}

impl GrpcError {
    /// The error of an answer with this code and these headers. The message is read from `grpc-message`.
    pub fn new(code: GrpcCode, headers: HeaderMap, verdict: Verdict) -> Self {
        GrpcError {
            code,
            message: grpc::message_in(&headers),
            headers,
            verdict,
        }
    }

    /// Finds the answer in an error, however deeply it is wrapped.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a GrpcError> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The code.
    pub fn code(&self) -> GrpcCode {
        self.code
    }

    /// What the server said, decoded, and cut after [4 KiB](grpc::MOST_OF_A_MESSAGE). Empty if it said nothing.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The headers of the answer, `grpc-status-details-bin` among them.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// What the answer counts as.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(super) fn fault(&self) -> Fault {
        Fault::new(FaultKind::Grpc(self.code.number()), Sent::Maybe)
    }
}

impl fmt::Display for GrpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrpcErrorClassifier: the server answered {}", self.code)?;
        if self.message.is_empty() {
            return Ok(());
        }
        // It is the server's text: nothing of it may pass for a line of ours.
        write!(f, ": {}", self.message.escape_debug())
    }
}

impl Error for GrpcError {}
