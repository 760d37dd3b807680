//! The walk over an error's chain of sources.

mod foreign;
#[cfg(feature = "hyper")]
mod http;

use std::{error::Error, io, iter, sync::Arc};

use super::{Fault, FaultKind, ReadPhase, Sent, errors};
use crate::call::CallFailed;

/// Chains are short; a cycle made by a user's error must not hang us.
const DEEPEST: usize = 64;

/// An error and all its sources, from the outside in.
///
/// Unlike [`Error::source`] alone this goes through the wrappers that hide the level they wrap: the source of an
/// [`io::Error`], or of a `Box` or an `Arc` around an error, is the source of what is inside, so the inside itself would
/// be passed over. (Of boxes and `Arc`s around one type that holds for the types that [`Fault::of`] knows.)
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
    within::<io::Error>(error)
        .or_else(|| errors::within(error))
        .or_else(|| foreign::within(error))
        .or_else(|| error.source())
}

/// What is inside, if this is a `Box` or an `Arc` around an error of that type.
pub(super) fn within<'a, T: Error + 'static>(
    error: &'a (dyn Error + 'static),
) -> Option<&'a (dyn Error + 'static)> {
    if let Some(boxed) = error.downcast_ref::<Box<T>>() {
        return Some(&**boxed);
    }
    let shared = error.downcast_ref::<Arc<T>>()?;
    Some(&**shared)
}

/// What the levels seen so far say.
struct Reading {
    kind: FaultKind,
    sent: Sent,
    /// Has a level said that the connect phase failed?
    connecting: bool,
    /// Is it known that the request was sent no more than once?
    #[cfg_attr(not(feature = "reqwest"), allow(dead_code, reason = "asked by a feature"))]
    sent_once: bool,
    /// Has a level said that this may not be about the first sending? Then nothing below it proves anything.
    sent_before: bool,
    /// Has a level said that the body of an answer was being read? Then nothing proves anything either: whatever the
    /// server says now, it has answered.
    reading_body: bool,
}

/// Of an error that may be about one of several sendings, as far as its type tells.
pub(super) fn fault(error: &(dyn Error + 'static)) -> Fault {
    read(error, false)
}

/// Of an error of a client that is known to send no request twice.
#[cfg(feature = "reqwest")]
pub(super) fn fault_of_one_sending(error: &(dyn Error + 'static)) -> Fault {
    read(error, true)
}

fn read(error: &(dyn Error + 'static), sent_once: bool) -> Fault {
    let mut reading = Reading {
        kind: FaultKind::Other,
        sent: Sent::Maybe,
        connecting: false,
        sent_once,
        sent_before: false,
        reading_body: false,
    };
    let decided = chain(error).find_map(|level| reading.level(level));
    let fault = decided.unwrap_or(Fault::new(reading.kind, reading.sent));
    if reading.sent_before || reading.reading_body {
        fault.with_sent(Sent::Maybe)
    } else {
        fault
    }
}

impl Reading {
    /// Some: this level decides.
    fn level(&mut self, level: &(dyn Error + 'static)) -> Option<Fault> {
        if let Some(call) = level.downcast_ref::<CallFailed>() {
            // What is below is the last attempt. What it proves does not hold for those before it.
            self.sent_before |= call.trail().may_have_been_sent();
        }
        if let Some(fault) = errors::own(level) {
            return Some(fault);
        }
        if let Some(error) = level.downcast_ref::<io::Error>() {
            self.io(error);
            return None;
        }
        #[cfg(feature = "hyper")]
        if let Some(decided) = self.http(level) {
            return decided;
        }
        self.foreign(level)
    }

    fn io(&mut self, error: &io::Error) {
        use io::ErrorKind as Io;
        match error.kind() {
            // Only connecting can be refused.
            Io::ConnectionRefused => {
                self.kind = FaultKind::ConnectRefused;
                self.sent = Sent::No;
            }
            Io::TimedOut => self.timed_out(FaultKind::ReadTimeout(self.phase())),
            _ if self.connecting => {}
            Io::HostUnreachable | Io::NetworkUnreachable | Io::AddrNotAvailable => {
                self.kind = FaultKind::Connect;
            }
            // What h2 says of streams whose connection has come to its end; the system's has a code.
            Io::BrokenPipe if error.raw_os_error().is_none() => self.kind = FaultKind::Closed,
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::NotConnected => {
                self.kind = FaultKind::Reset;
            }
            Io::UnexpectedEof => self.kind = FaultKind::Closed,
            Io::WriteZero => self.kind = FaultKind::Write,
            _ => {}
        }
    }

    #[cfg(feature = "hyper")]
    fn connect_failed(&mut self) {
        self.connecting = true;
        self.sent = Sent::No;
        // Unless a level above knows better.
        if self.kind != FaultKind::ConnectTimeout {
            self.kind = FaultKind::Connect;
        }
    }

    fn phase(&self) -> ReadPhase {
        if self.reading_body {
            ReadPhase::Body
        } else {
            ReadPhase::Head
        }
    }

    /// A limit ran out: that on the connect phase, if a level above has said so, or else this one.
    fn timed_out(&mut self, otherwise: FaultKind) {
        self.kind = if self.connecting {
            FaultKind::ConnectTimeout
        } else {
            otherwise
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, time::Duration};

    use super::*;
    use crate::call::fault::{
        CircuitOpen, CircuitState, ConnectTimedOut, ExecutionTimedOut, FaultError, NoEndpoint, NotReady,
        ReadPhase, ReadTimedOut, Rejection,
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
    fn what_a_balancer_says_is_found_below_wrappers_and_in_no_other_error() {
        let nowhere = deep(NoEndpoint::new(true, Duration::ZERO).among(3));
        assert_eq!(NoEndpoint::of(&nowhere).map(NoEndpoint::endpoints), Some(3));
        assert!(NotReady::of(&nowhere).is_none());
        let not_ready = deep(NotReady::new("LoadBalance", "gone".into()));
        assert_eq!(NotReady::of(&not_ready).map(NotReady::layer), Some("LoadBalance"));
        assert!(NoEndpoint::of(&not_ready).is_none());
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
            (io::ErrorKind::BrokenPipe, FaultKind::Closed, Sent::Maybe),
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
