//! Asking over HTTP.

use std::{fmt, future::poll_fn, marker::PhantomData, pin::pin};

use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode, Uri, uri::PathAndQuery};
use http_body::Body;
use tower_service::Service;

use super::Probe;
use crate::call::{Addressed, BoxError, ConfigError, DrainBody, Endpoint, HostHeader, StatusSet};

const NAME: &str = "HttpProbe";

/// Asks endpoints with a `GET` (Ribbon's `PingUrl`): one that answers with 200 is well.
///
/// It goes through a client of yours to the address of the endpoint. That may be the one which calls go through; none of
/// the layers around it sees the probe. A client for HTTP/1 can keep the connection, since short answers are read.
///
/// ```no_run
/// # #[cfg(feature = "full")]
/// # fn probed() -> Result<(), tower_outbound::call::ConfigError> {
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use tower_outbound::{call::Endpoints, nest::client::Client, probe::{ActiveProbes, HttpProbe}};
///
/// let orders = Endpoints::from_list(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])?;
/// let client = Client::builder().build_http::<Full<Bytes>>()?;
/// ActiveProbes::default().attach(&orders, HttpProbe::get(client, "/health")?);
/// # Ok(())
/// # }
/// ```
pub struct HttpProbe<C, B> {
    client: C,
    path: PathAndQuery,
    statuses: StatusSet,
    content: Option<Bytes>,
    _body: PhantomData<fn() -> B>,
}

impl<C, B> HttpProbe<C, B> {
    /// Asks for this path, which may have a query.
    ///
    /// # Errors
    ///
    /// It is none: it begins with no slash, or has a character that must be escaped.
    pub fn get(client: C, path: &str) -> Result<Self, ConfigError> {
        let parsed = path.parse().ok().filter(|_| path.starts_with('/'));
        let Some(path) = parsed else {
            return Err(ConfigError::new(
                NAME,
                "path",
                format_args!("{path:?}"),
                "give a path that begins with /",
            ));
        };
        Ok(HttpProbe {
            client,
            path,
            statuses: StatusSet::EMPTY.with(StatusCode::OK),
            content: None,
            _body: PhantomData,
        })
    }

    /// The statuses of one that is well. Default: 200 alone.
    pub fn statuses(mut self, statuses: StatusSet) -> Self {
        self.statuses = statuses;
        self
    }

    /// What the whole body of its answer must be (`PingUrl`'s `expectedContent`). Default: anything.
    pub fn content(mut self, content: impl Into<Bytes>) -> Self {
        self.content = Some(content.into());
        self
    }
}

impl<C, B, Answer> Probe for HttpProbe<C, B>
where
    C: Service<Request<B>, Response = Response<Answer>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync,
    B: Default + Send,
    Answer: Body<Data: Send, Error: Into<BoxError>> + Send,
{
    async fn ask(&self, endpoint: Endpoint) -> Result<(), BoxError> {
        let mut client = self.client.clone();
        poll_fn(|cx| client.poll_ready(cx)).await.map_err(Into::into)?;
        let mut request = Request::new(B::default());
        *request.uri_mut() = Uri::from(self.path.clone());
        request.send_to(&endpoint, HostHeader::OfEndpoint);
        let answer = client.call(request).await.map_err(Into::into)?;
        let (status, body) = (answer.status(), answer.into_body());
        let is_expected = self.statuses.contains(status);
        if let (true, Some(content)) = (is_expected, &self.content) {
            return read(body, content).await;
        }
        if let Some(drain) = DrainBody::new(body) {
            drain.await;
        }
        if is_expected {
            Ok(())
        } else {
            Err(format!("it answered with {status}").into())
        }
    }
}

/// Is this the whole body?
async fn read<A: Body<Error: Into<BoxError>>>(body: A, content: &[u8]) -> Result<(), BoxError> {
    let mut body = pin!(body);
    let mut left = content;
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.map_err(Into::into)?.into_data() else {
            continue;
        };
        while data.has_remaining() {
            let chunk = data.chunk();
            let length = chunk.len();
            left = left.strip_prefix(chunk).ok_or("its answer has another content")?;
            data.advance(length);
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err("its answer ends too early".into())
    }
}

impl<C: Clone, B> Clone for HttpProbe<C, B> {
    fn clone(&self) -> Self {
        HttpProbe {
            client: self.client.clone(),
            path: self.path.clone(),
            statuses: self.statuses,
            content: self.content.clone(),
            _body: PhantomData,
        }
    }
}

impl<C, B> fmt::Debug for HttpProbe<C, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpProbe")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
