//! The errors of tokio, tower, reqwest and tonic.

use std::error::Error;

use super::Reading;
use crate::call::fault::{Fault, FaultKind};

/// What is inside, if this is a `Box` or an `Arc` around an error that is known here.
pub(super) fn within<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    #[cfg(feature = "hyper")]
    if let Some(inside) = super::within::<hyper::Error>(error)
        .or_else(|| super::within::<hyper_util::client::legacy::Error>(error))
    {
        return Some(inside);
    }
    #[cfg(feature = "http2")]
    if let Some(inside) = super::within::<h2::Error>(error) {
        return Some(inside);
    }
    #[cfg(feature = "reqwest")]
    if let Some(inside) = super::within::<reqwest::Error>(error) {
        return Some(inside);
    }
    #[cfg(feature = "tonic")]
    if let Some(inside) = super::within::<tonic::Status>(error) {
        return Some(inside);
    }
    let _ = error;
    None
}

impl Reading {
    /// Some: this level decides.
    pub(super) fn foreign(&mut self, level: &(dyn Error + 'static)) -> Option<Fault> {
        if level.is::<tokio::time::error::Elapsed>() {
            self.timed_out(FaultKind::ExecutionTimeout);
            return None;
        }
        #[cfg(feature = "tower-errors")]
        if let Some(decided) = self.tower(level) {
            return decided;
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = level.downcast_ref::<reqwest::Error>() {
            return self.reqwest(error);
        }
        #[cfg(feature = "tonic")]
        if let Some(decided) = self.tonic(level) {
            return decided;
        }
        None
    }

    /// None: it is none of these. Otherwise: does this level decide?
    #[cfg(feature = "tower-errors")]
    fn tower(&mut self, level: &(dyn Error + 'static)) -> Option<Option<Fault>> {
        use crate::call::fault::{Rejection, Sent};

        if level.is::<tower::timeout::error::Elapsed>() {
            self.timed_out(FaultKind::ExecutionTimeout);
            Some(None)
        } else if level.is::<tower::load_shed::error::Overloaded>() {
            let kind = FaultKind::Rejected(Rejection::Limit);
            Some(Some(Fault::new(kind, Sent::No)))
        } else if level.is::<tower::buffer::error::ServiceError>() {
            // The service below failed in its readiness, and with it all that was waiting for it.
            Some(Some(Fault::new(FaultKind::NotReady, Sent::No)))
        } else if level.is::<tower::buffer::error::Closed>() {
            // The worker is gone, perhaps by a panic while it called the service below.
            Some(Some(Fault::new(FaultKind::NotReady, Sent::Maybe)))
        } else {
            None
        }
    }

    #[cfg(feature = "reqwest")]
    fn reqwest(&mut self, error: &reqwest::Error) -> Option<Fault> {
        use crate::call::fault::{ReadPhase, Sent};

        if let Some(status) = error.status() {
            return Some(Fault::new(FaultKind::Status(status), Sent::Maybe));
        }
        if error.is_builder() {
            return Some(Fault::new(FaultKind::Other, Sent::No));
        }
        // A client that follows redirects has sent to one server, which may have acted, before it fails on the next.
        self.sent_before = !self.sent_once;
        if error.is_timeout() {
            // Its own mark of a timeout is private, so there is nothing below that says more.
            self.kind = if error.is_connect() {
                FaultKind::ConnectTimeout
            } else if error.is_body() || error.is_decode() {
                FaultKind::ReadTimeout(ReadPhase::Body)
            } else {
                FaultKind::ReadTimeout(ReadPhase::Head)
            };
        }
        None
    }

    /// None: it is none of these. Otherwise: does this level decide?
    #[cfg(feature = "tonic")]
    fn tonic(&mut self, level: &(dyn Error + 'static)) -> Option<Option<Fault>> {
        if let Some(status) = level.downcast_ref::<tonic::Status>() {
            // If it was made on this side, what it was made from tells more.
            self.kind = FaultKind::Grpc(status.code().into());
        } else if level.is::<tonic::ConnectError>() {
            self.connect_failed();
        } else if level.is::<tonic::TimeoutExpired>() {
            self.timed_out(FaultKind::ExecutionTimeout);
        } else {
            return None;
        }
        Some(None)
    }
}
