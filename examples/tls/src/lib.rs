//! Servers on loopback that speak TLS, each with a certificate of its own making, and what a client needs to trust
//! them.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo},
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tower_outbound::{
    call::{BoxError, ConfigError},
    nest::client::{Client, ClientBuilder},
};

/// A certificate for these names and addresses, signed by itself: the server's settings, and the client's.
pub fn certificate(names: &[&str]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).expect("names of hosts");
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a certificate and its key");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

/// A client that verifies each endpoint by its TLS name, or by its host if it has none.
pub fn client<B>(
    settings: ClientBuilder,
    trust: Arc<ClientConfig>,
) -> Result<Client<HttpsConnector<HttpConnector>, B>, ConfigError>
where
    B: http_body_util::BodyExt + Send,
    B::Data: Send,
{
    settings.build_tls(move |name: Option<&str>| {
        let mut connector = HttpsConnectorBuilder::new()
            .with_tls_config((*trust).clone())
            .https_only();
        if let Some(name) = name {
            let name = ServerName::try_from(name.to_owned())?;
            connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        Ok::<_, BoxError>(connector.enable_http1().build())
    })
}

/// What a server has seen of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// The name in the TLS handshake.
    pub tls_name: Option<String>,
    /// The host header, or the authority in HTTP/2.
    pub host: String,
}

/// A server that answers every request with its own name and says what it has seen. It ends with its task.
pub async fn server(
    name: &'static str,
    config: Arc<ServerConfig>,
) -> io::Result<(
    SocketAddr,
    tokio::sync::mpsc::UnboundedReceiver<Seen>,
    JoinSet<()>,
)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (saw, seen) = unbounded_channel();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut connections = JoinSet::new();
        for connection in 0.. {
            let Ok((tcp, _)) = listener.accept().await else {
                return;
            };
            connections.spawn(serve(name, connection, tcp, config.clone(), saw.clone()));
        }
    });
    Ok((address, seen, task))
}

async fn serve(
    name: &'static str,
    connection: usize,
    tcp: TcpStream,
    config: Arc<ServerConfig>,
    saw: UnboundedSender<Seen>,
) {
    // Clients that do not like the certificate leave here.
    let Ok(stream) = TlsAcceptor::from(config).accept(tcp).await else {
        return;
    };
    let tls_name = stream.get_ref().1.server_name().map(str::to_owned);
    let answer = service_fn(move |request: Request<Incoming>| {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let _ = saw.send(Seen {
            connection,
            tls_name: tls_name.clone(),
            host: authority.or(host).unwrap_or_default().to_owned(),
        });
        async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(name)))) }
    });
    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}
