//! The error of clients that cannot verify a server by a name of its own.

use std::{error::Error, fmt};

use tower::BoxError;

use crate::call::{Fault, FaultError, FaultKind, Sent, TlsName};

/// The request is for a server that is to be verified by a name of its own, and the client has no way to do that.
#[derive(Debug)]
struct NoTlsNames {
    name: TlsName,
}

/// The error of such a request, which was not sent.
pub(super) fn refuse(name: &TlsName) -> BoxError {
    let error = NoTlsNames { name: name.clone() };
    Box::new(FaultError::new(Fault::new(FaultKind::Connect, Sent::No), error))
}

impl fmt::Display for NoTlsNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the endpoint is to be verified by the TLS name {:?}, and the connector of this client cannot be told so; \
             use a client from Client::builder().build_tls()",
            self.name.as_str()
        )
    }
}

impl Error for NoTlsNames {}
