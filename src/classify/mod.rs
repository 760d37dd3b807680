//! Statuses turned into errors and verdicts.
//!
//! HTTP clients give back an answer with any status as a success. That leaves two questions to everyone above: is
//! it an error, and whose? [`StatusErrorClassifier`] answers both once, by a [`StatusPolicy`]: an answer that is no
//! success becomes a [`StatusError`](crate::call::StatusError) with its [`Verdict`](crate::call::Verdict), its
//! headers, its `Retry-After` and the beginning of its body. Retries, breakers and metrics further up read the
//! verdict off the error, through any boxing, so they cannot disagree.
//!
//! # What counts as what
//!
//! | status | `default()` | `feign()` | `feign().decode_404()` | `client_errors_ignored()` |
//! | --- | --- | --- | --- | --- |
//! | 200, 201, 202, 204, 206 | success | success | success | success |
//! | 100, 101, 300, 301, 302, 303, 304, 307, 308 | success | failure | failure | failure |
//! | 400, 401, 403, 405, 409, 410, 412, 413, 418, 422, 425, 451, 499 | ignored | failure | failure | ignored |
//! | 404 | ignored | failure | success | ignored |
//! | 408, 429 | failure | failure | failure | ignored |
//! | 500, 501, 502, 503, 504, 505, 507, 511, 599 | failure | failure | failure | failure |
//! | 600, 999 | failure | failure | failure | failure |
//!
//! A status that is not listed counts as its class does: as 206, 300, 400, 599 or 600. *Success* stays an answer.
//! *Failure* and *ignored* become errors; a failure counts against the server, what is ignored never counts.
//!
//! Which of them are worth another attempt is a question for the retry layers. They ask
//! [`StatusSet::TRANSIENT`](crate::call::StatusSet::TRANSIENT): 408, 429, 502, 503 and 504. Both by default:
//!
//! | status | verdict | transient | why |
//! | --- | --- | --- | --- |
//! | 200 | success | no | |
//! | 301 | success | no | an answer: following it is a choice of the caller's |
//! | 400 | ignored | no | the request is wrong, and stays so |
//! | 401 | ignored | no | the caller has no, or the wrong, credentials |
//! | 404 | ignored | no | it is not there |
//! | 408 | failure | yes | the server gave the request up before it had all of it |
//! | 409 | ignored | no | the state of the resource is against it |
//! | 422 | ignored | no | the request is understood, and wrong |
//! | 425 | ignored | no | not before the TLS handshake is over: a matter for the client |
//! | 429 | failure | yes | the server has too much to do for this caller |
//! | 500 | failure | no | the server broke at this request, and is likely to do so again |
//! | 501 | failure | no | the server cannot do it, and stays so |
//! | 502 | failure | yes | the server behind the gateway was not there |
//! | 503 | failure | yes | not now |
//! | 504 | failure | yes | the server behind the gateway was too slow |
//! | 505 | failure | no | the server does not speak this version |
//!
//! # The body of an error
//!
//! It is read before the error is given back, so that the connection is free again, and kept on the error:
//!
//! | setting | default | beyond it |
//! | --- | --- | --- |
//! | [`max_body`](StatusErrorClassifierLayer::max_body) | 16 KiB | the beginning is kept, the rest dropped |
//! | [`body_wait`](StatusErrorClassifierLayer::body_wait) | 1 s, and never past the deadline of the call | what has come is kept |
//!
//! A body that is cut short, stalls or breaks off does not change the outcome: it is the same error, whose
//! [`complete`](crate::call::StatusError::complete) is false. The bodies of successes are not touched.
//!
//! # What it does not see
//!
//! Only the status is judged. A failure that is told in the body is a success here, and so is one told by gRPC, whose
//! status is 200 whatever happened: [`grpc`] is for that. Errors from below pass unchanged.
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{
//!     call::{StatusError, Verdict},
//!     classify::{StatusErrorClassifierLayer, StatusPolicy},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut orders = ServiceBuilder::new()
//!     .layer(StatusErrorClassifierLayer::new(StatusPolicy::default()).max_body(4096)?)
//!     .service(service_fn(|_: Request<()>| async {
//!         Response::builder()
//!             .status(503)
//!             .header("retry-after", "2")
//!             .body(Full::<Bytes>::from("down for repair"))
//!     }));
//!
//! let error = orders.ready().await?.call(Request::new(())).await.unwrap_err();
//! assert_eq!(Verdict::of(&*error), Verdict::Failure);
//!
//! let error = error.downcast::<StatusError>()?;
//! assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
//! assert_eq!(error.retry_after().map(|wait| wait.as_secs()), Some(2));
//! assert_eq!(&error.body()[..], b"down for repair");
//! # Ok(())
//! # }
//! ```

mod answer;
mod future;
pub mod grpc;
mod layer;
mod policy;
mod service;
mod verdicts;

#[cfg(test)]
mod tests;

pub use self::{
    answer::HttpAnswer,
    future::StatusErrorClassifierFuture,
    grpc::{GrpcBody, GrpcErrorClassifier, GrpcErrorClassifierFuture, GrpcErrorClassifierLayer, GrpcPolicy},
    layer::StatusErrorClassifierLayer,
    policy::StatusPolicy,
    service::StatusErrorClassifier,
};
