//! The errors of hyper, hyper-util and h2.

use std::error::Error;

use hyper_util::client::legacy;

use super::Reading;
use crate::call::fault::{Fault, FaultKind, Sent};

impl Reading {
    /// None: it is none of these. Otherwise: does this level decide?
    pub(super) fn http(&mut self, level: &(dyn Error + 'static)) -> Option<Option<Fault>> {
        if let Some(error) = level.downcast_ref::<legacy::Error>() {
            self.client(error);
            return Some(None);
        }
        if let Some(error) = level.downcast_ref::<hyper::Error>() {
            return Some(self.hyper(error));
        }
        #[cfg(feature = "http2")]
        if let Some(error) = level.downcast_ref::<h2::Error>() {
            return Some(self.h2(error));
        }
        None
    }

    fn client(&mut self, error: &legacy::Error) {
        if error.is_connect() {
            self.connect_failed();
            return;
        }
        // A connection that breaks before it is ready for a request. From then on each error names its connection.
        let of_a_connection = error.source().is_some_and(|source| source.is::<hyper::Error>());
        if of_a_connection && error.connect_info().is_none() {
            self.sent = Sent::No;
        }
    }

    fn hyper(&mut self, error: &hyper::Error) -> Option<Fault> {
        // hyper hands the request back before it starts to write it, and calls that canceled. A connection that does
        // not become ready for one has a closed channel.
        if error.is_canceled() && !is_upgrade(error) || error.is_closed() {
            return Some(Fault::new(FaultKind::Closed, Sent::No));
        }
        if is_of_a_body_that_is_read(error) {
            self.reading_body = true;
        }
        // The body of the request failed. What its error says is about where the body comes from.
        if error.is_user() {
            return Some(Fault::new(FaultKind::Write, Sent::Maybe));
        }
        if error.is_incomplete_message() {
            self.kind = FaultKind::Closed;
        } else if error.is_parse() {
            self.kind = FaultKind::Protocol;
        } else if error.is_timeout() {
            // Nothing came, not even the answer to a ping.
            self.kind = FaultKind::ReadTimeout(self.phase());
        }
        None
    }

    /// RFC 9113, section 8.7: REFUSED_STREAM, and a GOAWAY whose last stream is before this one, prove that the
    /// server did not act. The error of a GOAWAY does not tell which stream it is about: h2 reports it to the streams
    /// beyond the last one, and hyper also to one that it has opened just before, and that may be within it.
    #[cfg(feature = "http2")]
    fn h2(&mut self, error: &h2::Error) -> Option<Fault> {
        if let Some(error) = error.get_io() {
            self.kind = FaultKind::Reset;
            self.io(error);
            return None;
        }
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        if error.is_remote() && refused {
            return Some(Fault::new(FaultKind::Reset, Sent::No));
        }
        let of_our_body = error.is_reset() && !error.is_remote() && !error.is_library();
        self.kind = if of_our_body {
            FaultKind::Write
        } else if error.is_library() || error.reason() == Some(h2::Reason::PROTOCOL_ERROR) {
            FaultKind::Protocol
        } else {
            FaultKind::Reset
        };
        None
    }
}

/// Of an answer whose head had come, as hyper is read here. It has no other mark.
fn is_of_a_body_that_is_read(error: &hyper::Error) -> bool {
    error.to_string().starts_with("error reading a body")
}

/// An upgrade that does not come about is called canceled as well, long after its request was sent. hyper has no
/// other mark on it.
fn is_upgrade(error: &hyper::Error) -> bool {
    error
        .source()
        .is_some_and(|source| source.to_string().starts_with("upgrade"))
}
