//! The table in the docs of `Fault`, over TLS.

#![allow(dead_code, unreachable_pub, reason = "shared with the same tests without TLS")]
#![allow(clippy::disallowed_types, reason = "the lock is not on the path of a call")]

#[path = "../../../tests/faults/matrix.rs"]
mod matrix;
#[path = "../../../tests/faults/server.rs"]
mod server;

use std::sync::Arc;

use rustls::pki_types::ServerName;
use server::{BoxSocket, Handshake, Socket, Transport};
use tls_example::certificate;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server as accepted};

impl Socket for client::TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

impl Socket for accepted::TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

fn tls() -> Transport {
    let (config, trust) = certificate(&["127.0.0.1"]);
    // They would be news as well, where the end of the connection is waited for.
    let mut config = (*config).clone();
    config.send_tls13_tickets = 0;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let connector = TlsConnector::from(trust);
    let client: Handshake = Arc::new(move |host, tcp| {
        let connector = connector.clone();
        Box::pin(async move {
            let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
            Ok(Box::new(connector.connect(name, tcp).await?) as BoxSocket)
        })
    });
    let server: Handshake = Arc::new(move |_, tcp| {
        let acceptor = acceptor.clone();
        Box::pin(async move { Ok(Box::new(acceptor.accept(tcp).await?) as BoxSocket) })
    });
    Transport {
        scheme: "https",
        client,
        server,
    }
}

#[test]
fn every_fault_in_the_docs_is_what_happens_over_tls() {
    matrix::check(&tls());
}
