//! A reqwest client, set up right for a stack of this crate.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::no_tls_names;
use crate::call::{ConfigError, Fault, FaultError, Sent, TlsName};

type Inner = <reqwest::Client as Service<reqwest::Request>>::Future;

/// A reqwest client as a `Service<http::Request<B>>` that sends each request once: it follows no redirect and sends
/// nothing again behind the back of the layers above.
///
/// That makes its errors tell more than reqwest's do: one that proves that the request was not sent says so, as a
/// [`FaultError`] around reqwest's error. (By itself an error of a client that may have followed a redirect proves
/// nothing; see [`Fault::of`].) All other errors pass unchanged.
///
/// Answers that redirect come back as they are. Endpoints with a TLS name of their own are refused, unsent: reqwest
/// verifies servers by the host in their address.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::nest::ReqwestClient;
///
/// let client = ReqwestClient::new(reqwest::Client::builder().connect_timeout(Duration::from_secs(1)))?;
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ReqwestClient {
    inner: reqwest::Client,
}

impl ReqwestClient {
    /// A client with these settings. Its policies for redirects and for retries are replaced by none.
    ///
    /// Give it a `connect_timeout`, which is the limit on the connect phase, and leave the other limits of reqwest to
    /// the layers above.
    ///
    /// # Errors
    ///
    /// If reqwest does not accept the settings.
    pub fn new(settings: reqwest::ClientBuilder) -> Result<Self, ConfigError> {
        let once = settings
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        let inner = once.build().map_err(|error| {
            let fix = "give settings that reqwest can build a client of";
            ConfigError::new("ReqwestClient", "settings", error, fix)
        })?;
        Ok(ReqwestClient { inner })
    }
}

impl<B> Service<Request<B>> for ReqwestClient
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<reqwest::Body>;
    type Error = BoxError;
    type Future = ReqwestClientFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // reqwest's is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ReqwestClientFuture {
        if let Some(name) = request.extensions().get::<TlsName>() {
            return ReqwestClientFuture::refused(no_tls_names::refuse(name));
        }
        match reqwest::Request::try_from(request.map(reqwest::Body::wrap)) {
            Ok(request) => ReqwestClientFuture {
                state: State::Sending {
                    response: self.inner.call(request),
                },
            },
            Err(error) => ReqwestClientFuture::refused(told(error)),
        }
    }
}

pin_project! {
    /// The answer of a [`ReqwestClient`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReqwestClientFuture {
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = StateProj]
    enum State {
        Sending {
            #[pin]
            response: Inner,
        },
        Refused { error: Option<BoxError> },
    }
}

impl ReqwestClientFuture {
    fn refused(error: BoxError) -> Self {
        ReqwestClientFuture {
            state: State::Refused { error: Some(error) },
        }
    }
}

impl Future for ReqwestClientFuture {
    type Output = Result<Response<reqwest::Body>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Sending { response } => response.poll(cx).map(|result| match result {
                Ok(response) => Ok(response.into()),
                Err(error) => Err(told(error)),
            }),
            StateProj::Refused { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                // Polled again after its end.
                None => Poll::Pending,
            },
        }
    }
}

impl std::fmt::Debug for ReqwestClientFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReqwestClientFuture").finish_non_exhaustive()
    }
}

/// Says of an error that it is one of a single sending, where that makes a difference.
#[cold]
fn told(error: reqwest::Error) -> BoxError {
    let fault = Fault::of_one_sending(&error);
    if fault.sent() == Sent::No {
        Box::new(FaultError::new(fault, error))
    } else {
        Box::new(error)
    }
}
