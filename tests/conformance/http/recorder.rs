//! The innermost service of a stack: the client, which writes down each time that it is asked to send.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use http::{Request, Response};
use tokio::time::Instant;
use tower::{BoxError, Service};
use tower_outbound::call::{Fault, FaultKind, chain};

/// One sending.
#[derive(Debug, Clone)]
pub(super) struct Sending {
    pub(super) server: usize,
    pub(super) method: String,
    pub(super) start: Instant,
    pub(super) end: Option<Instant>,
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With a head, or with an error of the client.
    Ended(String),
    /// By a limit above, or because the call ended.
    Dropped,
}

/// All sendings of a case.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    sendings: Arc<Mutex<Vec<Sending>>>,
}

impl Log {
    pub(super) fn all(&self) -> Vec<Sending> {
        self.sendings.lock().unwrap().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.sendings.lock().unwrap().len()
    }
}

/// A client that writes down what it sends.
#[derive(Debug, Clone)]
pub(super) struct Recorder<S> {
    client: S,
    servers: Arc<HashMap<u16, usize>>,
    log: Log,
}

impl<S> Recorder<S> {
    pub(super) fn new(client: S, addresses: &[SocketAddr], log: Log) -> Self {
        let servers = addresses
            .iter()
            .enumerate()
            .map(|(number, address)| (address.port(), number));
        Recorder {
            client,
            servers: Arc::new(servers.collect()),
            log,
        }
    }
}

impl<S, B, A> Service<Request<B>> for Recorder<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = BoxError>,
    S::Future: Send + 'static,
    A: 'static,
{
    type Response = Response<A>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let port = request.uri().port_u16().expect("endpoints have ports");
        let running = {
            let mut sendings = self.log.sendings.lock().unwrap();
            sendings.push(Sending {
                server: self.servers[&port],
                method: request.method().to_string(),
                start: Instant::now(),
                end: None,
                outcome: Outcome::Dropped,
            });
            Running {
                log: self.log.clone(),
                number: sendings.len() - 1,
            }
        };
        let sent = self.client.call(request);
        Box::pin(async move {
            let sent = sent.await;
            running.end(match &sent {
                Ok(response) => format!("status({})", response.status().as_u16()),
                Err(error) => name_of(error, false),
            });
            sent
        })
    }
}

struct Running {
    log: Log,
    number: usize,
}

impl Running {
    fn end(self, outcome: String) {
        self.log.sendings.lock().unwrap()[self.number].outcome = Outcome::Ended(outcome);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.log.sendings.lock().unwrap()[self.number].end = Some(Instant::now());
    }
}

/// A fault by the name that the cases have for it.
pub(super) fn name(fault: Fault, in_body: bool) -> String {
    match fault.kind() {
        FaultKind::ConnectRefused => "connect_refused",
        FaultKind::ConnectTimeout => "connect_timeout",
        FaultKind::ReadTimeout(_) => "read_timeout",
        FaultKind::Reset => "connection_reset",
        FaultKind::Closed if in_body => "premature_eof",
        FaultKind::Closed => "unexpected_eof",
        FaultKind::Protocol => "protocol_error",
        FaultKind::Status(status) => return format!("status({})", status.as_u16()),
        FaultKind::NoEndpoint => "no_available_server",
        FaultKind::ExecutionTimeout => "hystrix_timeout",
        _ => return format!("{:?}", fault.kind()),
    }
    .to_owned()
}

/// An error by the name that the cases have for its fault.
pub(super) fn name_of(error: &BoxError, in_body: bool) -> String {
    let fault = Fault::of(&**error);
    // A reset before the connect has come back is one too.
    let reset = chain(&**error).any(|link| {
        let io = link.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionReset)
    });
    if fault.kind() == FaultKind::Connect && reset {
        return "connection_reset".to_owned();
    }
    name(fault, in_body)
}
