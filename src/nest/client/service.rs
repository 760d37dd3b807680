//! The client as a service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::client::legacy::{
    self,
    connect::{CaptureConnection, Connect, HttpConnector, capture_connection},
};
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::{
    builder::ClientBuilder, counting::CountingConnector, not_sent::NotSentFuture, tls_names::TlsNames,
};
use crate::{
    call::{Fault, FaultError, FaultKind, Sent, TlsName, connecting},
    nest::no_tls_names,
    timeout::ConnectTimeout,
};

/// What a client's connector is wrapped into.
pub(super) type Connecting<C> = ConnectTimeout<CountingConnector<C>>;

/// A client for plain `http`.
pub type HttpClient<B> = Client<HttpConnector, B>;

/// A pooled HTTP client over the connector `C`, for requests with the body `B`.
///
/// It is always ready, and cloning it is one count. See the [module](super) for what it does differently.
pub struct Client<C, B> {
    inner: Arc<Inner<C, B>>,
}

struct Inner<C, B> {
    /// For requests whose server is verified by the name in their address.
    plain: legacy::Client<Connecting<C>, B>,
    tls_names: Option<TlsNames<C, B>>,
    /// Does one call connect for others, which then do not see for themselves that there is no connection yet?
    shares_connects: bool,
}

impl Client<(), ()> {
    /// Begins a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

impl<C, B> Client<C, B> {
    pub(super) fn new(
        plain: legacy::Client<Connecting<C>, B>,
        tls_names: Option<TlsNames<C, B>>,
        shares_connects: bool,
    ) -> Self {
        Client {
            inner: Arc::new(Inner {
                plain,
                tls_names,
                shares_connects,
            }),
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

impl<C, B> fmt::Debug for Client<C, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<C, B> Inner<C, B>
where
    C: Clone,
    Connecting<C>: Connect + Clone + Send + Sync + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    fn send(&self, mut request: Request<B>) -> Result<Sending, BoxError> {
        let unconnected = self.shares_connects.then(|| capture_connection(&mut request));
        Ok(Sending {
            response: self.response(request)?,
            unconnected,
        })
    }

    fn response(&self, request: Request<B>) -> Result<legacy::ResponseFuture, BoxError> {
        let Some(name) = request.extensions().get::<TlsName>() else {
            return Ok(self.plain.request(request));
        };
        let Some(names) = &self.tls_names else {
            return Err(no_tls_names::refuse(name));
        };
        match names.client(name) {
            Ok(client) => Ok(client.request(request)),
            Err(error) => {
                let fault = Fault::new(FaultKind::Connect, Sent::No);
                Err(Box::new(FaultError::new(fault, error)))
            }
        }
    }
}

impl<C, B> Service<Request<B>> for Client<C, B>
where
    C: Clone,
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
        let state = match self.inner.send(request) {
            Ok(response) => State::Sending {
                response: NotSentFuture::new(response),
            },
            Err(error) => State::Refused { error: Some(error) },
        };
        ClientFuture { state }
    }
}

pin_project! {
    /// The answer of a [`Client`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ClientFuture {
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State {
        Sending {
            #[pin]
            response: NotSentFuture<Sending>,
        },
        // There is no connector that could connect to it.
        Refused { error: Option<BoxError> },
    }
}

pin_project! {
    /// The answer of hyper-util's client, which says as long as it has no connection that this is so.
    #[derive(Debug)]
    struct Sending {
        #[pin]
        response: legacy::ResponseFuture,
        // There until it has one, where its connector alone does not tell.
        unconnected: Option<CaptureConnection>,
    }
}

impl Future for Sending {
    type Output = Result<Response<Incoming>, legacy::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.response.poll(cx);
        if polled.is_pending() {
            match this.unconnected {
                Some(captured) if captured.connection_metadata().is_none() => connecting::mark(),
                unconnected => *unconnected = None,
            }
        }
        polled
    }
}

impl Future for ClientFuture {
    type Output = Result<Response<Incoming>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Sending { response } => response.poll(cx),
            StateProj::Refused { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                // Polled again after its end.
                None => Poll::Pending,
            },
        }
    }
}
