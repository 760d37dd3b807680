//! The walk over an error's chain of sources.

use std::{error::Error, io, iter, sync::Arc};

use super::{Fault, FaultKind, Sent, errors};

/// Chains are short; a cycle made by a user's error must not hang us.
const DEEPEST: usize = 64;

/// An error and all its sources, from the outside in.
///
/// Unlike [`Error::source`] alone this goes through the wrappers that hide the level they wrap: the source of an
/// [`io::Error`] or of an `Arc` is the source of what is inside, so the inside itself would be passed over.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| below(*error)).take(DEEPEST)
}

fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return Some(inner);
    }
    if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return Some(&**shared);
    }
    error.source()
}

/// What the levels seen so far say.
struct Reading {
    kind: FaultKind,
    sent: Sent,
    /// Has a level said that the connect phase failed?
    connecting: bool,
}

pub(super) fn fault(error: &(dyn Error + 'static)) -> Fault {
    let mut reading = Reading {
        kind: FaultKind::Other,
        sent: Sent::Maybe,
        connecting: false,
    };
    for level in chain(error) {
        if let Some(fault) = errors::own(level) {
            return fault;
        }
        #[cfg(feature = "hyper")]
        if let Some(fault) = reading.hyper(level) {
            return fault;
        }
        if let Some(error) = level.downcast_ref::<io::Error>() {
            reading.io(error.kind());
        }
    }
    Fault::new(reading.kind, reading.sent)
}

impl Reading {
    fn io(&mut self, kind: io::ErrorKind) {
        use io::ErrorKind as Io;
        match kind {
            // Only connecting can be refused.
            Io::ConnectionRefused => {
                self.kind = FaultKind::ConnectRefused;
                self.sent = Sent::No;
            }
            Io::TimedOut if self.connecting => self.kind = FaultKind::ConnectTimeout,
            Io::HostUnreachable | Io::NetworkUnreachable | Io::AddrNotAvailable if !self.connecting => {
                self.kind = FaultKind::Connect;
            }
            Io::ConnectionReset | Io::ConnectionAborted if !self.connecting => self.kind = FaultKind::Reset,
            Io::BrokenPipe | Io::NotConnected if !self.connecting => self.kind = FaultKind::Reset,
            Io::UnexpectedEof if !self.connecting => self.kind = FaultKind::Closed,
            Io::WriteZero if !self.connecting => self.kind = FaultKind::Write,
            Io::TimedOut => self.kind = FaultKind::ReadTimeout(super::ReadPhase::Head),
            _ => {}
        }
    }

    /// Some: this level decides.
    #[cfg(feature = "hyper")]
    fn hyper(&mut self, level: &(dyn Error + 'static)) -> Option<Fault> {
        if let Some(error) = level.downcast_ref::<hyper_util::client::legacy::Error>() {
            if error.is_connect() {
                self.connecting = true;
                self.kind = FaultKind::Connect;
                self.sent = Sent::No;
            }
        } else if let Some(error) = level.downcast_ref::<hyper::Error>() {
            // hyper hands the request back before it starts to write it, and calls that canceled.
            if error.is_canceled() {
                return Some(Fault::new(FaultKind::Closed, Sent::No));
            }
            // The body of the request failed. What its error says is about where the body comes from.
            if error.is_user() {
                return Some(Fault::new(FaultKind::Write, Sent::Maybe));
            }
            if error.is_incomplete_message() {
                self.kind = FaultKind::Closed;
            } else if error.is_parse() {
                self.kind = FaultKind::Protocol;
            } else if error.is_body_write_aborted() {
                self.kind = FaultKind::Write;
            }
        }
        #[cfg(feature = "http2")]
        if let Some(error) = level.downcast_ref::<h2::Error>() {
            return self.h2(error);
        }
        None
    }

    /// RFC 9113, section 8.7: REFUSED_STREAM, and a GOAWAY whose last stream is before this one, prove that the
    /// server did not act. h2 reports the latter to the streams beyond it as a remote GOAWAY with NO_ERROR.
    #[cfg(feature = "http2")]
    fn h2(&mut self, error: &h2::Error) -> Option<Fault> {
        let unprocessed = error.is_remote()
            && (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
                || error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR));
        if unprocessed {
            return Some(Fault::new(FaultKind::Reset, Sent::No));
        }
        // An io error inside tells more, so the walk goes on.
        self.kind = if error.reason() == Some(h2::Reason::PROTOCOL_ERROR) {
            FaultKind::Protocol
        } else {
            FaultKind::Reset
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, time::Duration};

    use super::*;
    use crate::call::fault::{
        CircuitOpen, CircuitState, ConnectTimedOut, ExecutionTimedOut, FaultError, ReadPhase, ReadTimedOut,
        Rejection,
    };

    #[derive(Debug)]
    struct Wrapped(Box<dyn Error + Send + Sync>);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }

    fn deep(error: impl Error + Send + Sync + 'static) -> Wrapped {
        let shared: Arc<dyn Error + Send + Sync> = Arc::new(Wrapped(Box::new(error)));
        Wrapped(Box::new(io::Error::other(Wrapped(Box::new(io::Error::other(
            shared,
        ))))))
    }

    #[test]
    fn own_errors_are_found_below_wrappers_that_hide_a_level() {
        let limit = Duration::from_secs(1);
        let kind = |error: &Wrapped| Fault::of(error).kind();
        assert_eq!(
            kind(&deep(ConnectTimedOut::new(limit, "a:1".into()))),
            FaultKind::ConnectTimeout
        );
        assert_eq!(
            kind(&deep(ReadTimedOut::new(limit, ReadPhase::Body))),
            FaultKind::ReadTimeout(ReadPhase::Body)
        );
        assert_eq!(
            kind(&deep(ExecutionTimedOut::new(limit))),
            FaultKind::ExecutionTimeout
        );
        let open = CircuitOpen::new("orders".into(), CircuitState::Open, Some(limit));
        assert_eq!(kind(&deep(open)), FaultKind::Rejected(Rejection::Breaker));
    }

    #[test]
    fn the_outermost_own_error_decides() {
        let inner = ReadTimedOut::new(Duration::from_secs(1), ReadPhase::Head);
        let outer = FaultError::unsent(inner);
        let fault = Fault::of(&outer);
        assert_eq!(
            fault,
            Fault::new(FaultKind::ReadTimeout(ReadPhase::Head), Sent::No)
        );
    }

    #[test]
    fn io_errors_are_read_and_only_a_refusal_proves_that_nothing_was_sent() {
        for (io, kind, sent) in [
            (
                io::ErrorKind::ConnectionRefused,
                FaultKind::ConnectRefused,
                Sent::No,
            ),
            (io::ErrorKind::ConnectionReset, FaultKind::Reset, Sent::Maybe),
            (io::ErrorKind::BrokenPipe, FaultKind::Reset, Sent::Maybe),
            (io::ErrorKind::UnexpectedEof, FaultKind::Closed, Sent::Maybe),
            (
                io::ErrorKind::TimedOut,
                FaultKind::ReadTimeout(ReadPhase::Head),
                Sent::Maybe,
            ),
            (io::ErrorKind::PermissionDenied, FaultKind::Other, Sent::Maybe),
        ] {
            assert_eq!(
                Fault::of(&deep(io::Error::from(io))),
                Fault::new(kind, sent),
                "{io:?}"
            );
        }
    }

    #[test]
    fn an_error_that_is_its_own_source_does_not_hang_the_walk() {
        #[derive(Debug)]
        struct Loop;
        impl fmt::Display for Loop {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("loop")
            }
        }
        impl Error for Loop {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(self)
            }
        }
        assert_eq!(Fault::of(&Loop).kind(), FaultKind::Other);
    }
}
