//! A client in memory that answers as it is told, and notes what it was sent.

use std::{
    future::Future,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{Service, service_fn};
use tower_outbound::{
    call::{Endpoint, Endpoints},
    nest::spring::{self, SpringConfig},
    timeout::UploadBody,
};

pub(crate) type Upload = UploadBody<Full<Bytes>>;
pub(crate) type Answer = Result<Response<Full<Bytes>>, io::Error>;

/// Milliseconds since the log was made, and the host.
#[derive(Clone)]
pub(crate) struct Log {
    since: Instant,
    sent: Arc<Mutex<Vec<(u128, String)>>>,
}

impl Log {
    pub(crate) fn times(&self) -> Vec<u128> {
        self.sent.lock().unwrap().iter().map(|(time, _)| *time).collect()
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().map(|(_, host)| host.clone()).collect()
    }

    pub(crate) fn elapsed(&self) -> u128 {
        self.since.elapsed().as_millis()
    }
}

/// A client that answers what `answer` says to the n-th request, counted from 0.
pub(crate) fn client<F, Fut>(
    answer: F,
) -> (
    impl Service<Request<Upload>, Response = Response<Full<Bytes>>, Error = io::Error, Future = Fut> + Clone,
    Log,
)
where
    F: Fn(usize) -> Fut + Clone,
    Fut: Future<Output = Answer>,
{
    let log = Log {
        since: Instant::now(),
        sent: Arc::default(),
    };
    let noted = log.clone();
    let client = service_fn(move |request: Request<Upload>| {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let mut sent = noted.sent.lock().unwrap();
        sent.push((noted.since.elapsed().as_millis(), host));
        answer(sent.len() - 1)
    });
    (client, log)
}

/// Never answers.
pub(crate) async fn silence() -> Answer {
    std::future::pending().await
}

pub(crate) fn status(code: u16) -> Answer {
    Ok(Response::builder()
        .status(code)
        .body(Full::from(format!("ok-{code}")))
        .unwrap())
}

pub(crate) fn reset() -> Answer {
    Err(io::ErrorKind::ConnectionReset.into())
}

pub(crate) fn endpoints(names: &[&str]) -> Endpoints {
    names.iter().map(|name| Endpoint::new(*name).unwrap()).collect()
}

pub(crate) fn request(method: Method) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    *request.method_mut() = method;
    *request.uri_mut() = "/orders".parse().unwrap();
    request
}

pub(crate) fn get() -> Request<Full<Bytes>> {
    request(Method::GET)
}

/// With Hystrix, and these keys.
pub(crate) fn config<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> SpringConfig {
    let pairs = pairs.into_iter().chain([("feign.hystrix.enabled", "true")]);
    spring::from_pairs("orders", pairs).unwrap()
}

pub(crate) async fn text<B: Body<Error: std::fmt::Debug>>(response: Response<B>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
