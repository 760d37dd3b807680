//! The client as a service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Extensions, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::client::legacy::{
    self,
    connect::{Connect, HttpConnector},
};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::BoxError;
use tower_service::Service;

use super::{
    builder::ClientBuilder,
    wire::{NotedConnector, Wire},
};
use crate::{
    call::{Fault, FaultError, Sent},
    timeout::ConnectTimeout,
};

/// What a client's connector is wrapped into.
pub(super) type Connecting<C> = ConnectTimeout<NotedConnector<C>>;

/// A client for plain `http`.
pub type HttpClient<B> = Client<HttpConnector, B>;

/// A pooled HTTP client over the connector `C`, for requests with the body `B`.
///
/// It is always ready, and cloning it is one count. See the [module](super) for what it does differently.
pub struct Client<C, B> {
    inner: Arc<legacy::Client<Connecting<C>, B>>,
}

impl Client<(), ()> {
    /// Begins a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

impl<C, B> Client<C, B> {
    pub(super) fn new(inner: legacy::Client<Connecting<C>, B>) -> Self {
        Client {
            inner: Arc::new(inner),
        }
    }
}

impl<C, B> Clone for Client<C, B> {
    fn clone(&self) -> Self {
        Client {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<C, B> std::fmt::Debug for Client<C, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<C, B> Service<Request<B>> for Client<C, B>
where
    Connecting<C>: Connect + Clone + Send + Sync + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = ClientFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ClientFuture {
        let started = Instant::now();
        ClientFuture {
            response: self.inner.request(request),
            started,
        }
    }
}

pin_project! {
    /// The answer of a [`Client`].
    #[derive(Debug)]
    pub struct ClientFuture {
        #[pin]
        response: legacy::ResponseFuture,
        started: Instant,
    }
}

impl Future for ClientFuture {
    type Output = Result<Response<Incoming>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(ready!(this.response.poll(cx)).map_err(|error| with_proof(error, *this.started)))
    }
}

/// Writes into the error that nothing was sent, where that is not plain from the error and the connection knows it.
fn with_proof(error: legacy::Error, started: Instant) -> BoxError {
    let fault = Fault::of(&error);
    if fault.sent() == Sent::Maybe && nothing_was_written(&error, started) {
        return Box::new(FaultError::new(fault.with_sent(Sent::No), error));
    }
    Box::new(error)
}

fn nothing_was_written(error: &legacy::Error, started: Instant) -> bool {
    let Some(connection) = error.connect_info() else {
        return false;
    };
    let mut extras = Extensions::new();
    connection.get_extras(&mut extras);
    extras
        .get::<Wire>()
        .is_some_and(|wire| wire.silent_since(started))
}
