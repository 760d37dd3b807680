//! Faults as Java's exceptions divide them, for the rules of libraries that decide by these.

use std::{error::Error, io};

use super::{Fault, FaultKind, read::chain};

/// Would Java have thrown a `SocketException`: refused, no route, reset, early close? Timeouts are of another family
/// there, and so are a name that is not found, TLS and a broken protocol.
#[allow(dead_code, reason = "asked by layers that are features")]
pub(crate) fn is_socket_fault(fault: &Fault, error: Option<&(dyn Error + 'static)>) -> bool {
    match fault.kind() {
        FaultKind::ConnectRefused | FaultKind::Reset | FaultKind::Closed => true,
        FaultKind::Connect => error.is_some_and(|error| {
            chain(error)
                .filter_map(|error| error.downcast_ref::<io::Error>())
                .any(|error| {
                    matches!(
                        error.kind(),
                        io::ErrorKind::HostUnreachable
                            | io::ErrorKind::NetworkUnreachable
                            | io::ErrorKind::AddrNotAvailable
                            // Accepted by the kernel, and thrown out before the connect had come back.
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::ConnectionAborted
                    )
                })
        }),
        _ => false,
    }
}

/// Does it count as a failure to reach the server, as in Ribbon (`LoadBalancerContext`): a socket fault, or a limit
/// that ran out while connecting or reading?
#[allow(dead_code, reason = "asked by a layer that is a feature")]
pub(crate) fn is_connection_failure(fault: &Fault, error: &(dyn Error + 'static)) -> bool {
    fault.is_timeout() || is_socket_fault(fault, Some(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_that_ends_in_a_reset_is_a_socket_fault_as_one_without_a_route_is() {
        use io::ErrorKind as Io;
        let fault = Fault::new(FaultKind::Connect, crate::call::Sent::No);
        for (kind, is) in [
            (Io::HostUnreachable, true),
            (Io::ConnectionReset, true),
            (Io::ConnectionAborted, true),
            (Io::NotFound, false),
            (Io::InvalidData, false),
        ] {
            assert_eq!(
                is_socket_fault(&fault, Some(&io::Error::from(kind))),
                is,
                "{kind:?}"
            );
        }
        assert!(!is_socket_fault(&fault, None));
    }

    #[test]
    fn what_is_a_connection_failure_is_what_ribbon_takes_for_one() {
        use io::ErrorKind as Io;
        for (kind, counts) in [
            (Io::ConnectionRefused, true),
            (Io::ConnectionReset, true),
            (Io::BrokenPipe, true),
            (Io::UnexpectedEof, true),
            (Io::HostUnreachable, true),
            (Io::NetworkUnreachable, true),
            (Io::AddrNotAvailable, true),
            (Io::TimedOut, true),
            (Io::NotFound, false),
            (Io::InvalidData, false),
            (Io::Other, false),
        ] {
            let error = io::Error::from(kind);
            assert_eq!(
                is_connection_failure(&Fault::of(&error), &error),
                counts,
                "{kind:?}"
            );
        }
    }
}
