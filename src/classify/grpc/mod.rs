//! gRPC's statuses turned into errors and verdicts.
//!
//! An answer of gRPC has the status 200 however it ends; how it ended is told by `grpc-status`, either in the headers
//! (an answer that has nothing else), or in the trailers after the body. [`GrpcErrorClassifier`] reads both:
//!
//! | where | what comes of it |
//! | --- | --- |
//! | in the headers | a [`GrpcError`](crate::call::GrpcError) with the verdict on its code. It can be retried |
//! | in the trailers | the answer goes up at once, with the promise of a [`LateVerdict`](crate::call::LateVerdict) |
//! | nowhere, and the body has ended | as `UNKNOWN` |
//! | the body breaks off | a failure |
//! | the body is dropped before its end | no verdict: the call counts as given up |
//!
//! A late verdict reaches the circuit breakers and load balancers above that listen to it: those whose classifier is
//! [`ByTrailers`](crate::call::ByTrailers) or a [`StatusPolicy`](super::StatusPolicy), as they are in the nest. A
//! breaker keeps its permit until then, and a balancer counts the attempt as in flight. Layers above which drop the body
//! or read it do so with the same effect as the caller. The call itself has succeeded by then: nothing is retried after
//! the answer was handed over.
//!
//! Put it around the client, below load balancing, so that verdicts and retries are about attempts. Answers that are not
//! gRPC's pass as they are: those without a `grpc-status` whose `content-type` is not `application/grpc` or whose
//! status is not 200. gRPC-Web, which has its trailers in the body, is not read.
//!
//! A tonic client above makes a `Status` of the error, whose code is UNKNOWN since it does not know it. The code of the
//! server is that of [`GrpcError::of`](crate::call::GrpcError::of)`(&status)`.
//!
//! # What counts as what
//!
//! | code | by default |
//! | --- | --- |
//! | 0 OK | success |
//! | 1 CANCELLED | ignored |
//! | 2 UNKNOWN | failure |
//! | 3 INVALID_ARGUMENT | ignored |
//! | 4 DEADLINE_EXCEEDED | failure |
//! | 5 NOT_FOUND | ignored |
//! | 6 ALREADY_EXISTS | ignored |
//! | 7 PERMISSION_DENIED | ignored |
//! | 8 RESOURCE_EXHAUSTED | failure |
//! | 9 FAILED_PRECONDITION | ignored |
//! | 10 ABORTED | ignored |
//! | 11 OUT_OF_RANGE | ignored |
//! | 12 UNIMPLEMENTED | ignored |
//! | 13 INTERNAL | failure |
//! | 14 UNAVAILABLE | failure |
//! | 15 DATA_LOSS | failure |
//! | 16 UNAUTHENTICATED | ignored |
//!
//! The reasons are told at [`GrpcCode::verdict`](crate::call::GrpcCode::verdict).
//!
//! # Example
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::Empty;
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{
//!     breaker::{Breaker, CircuitBreakerLayer},
//!     call::{ByFault, ByTrailers, GrpcCode, GrpcError, Verdict},
//!     classify::{GrpcErrorClassifierLayer, GrpcPolicy},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let policy = GrpcPolicy::default().failure(GrpcCode::Aborted);
//! let orders = ServiceBuilder::new()
//!     .layer(CircuitBreakerLayer::new(Breaker::new("orders")?).classify(ByTrailers(ByFault)))
//!     .layer(GrpcErrorClassifierLayer::new(policy))
//!     .service(service_fn(|_: Request<()>| async {
//!         Response::builder()
//!             .header("content-type", "application/grpc")
//!             .header("grpc-status", "14")
//!             .header("grpc-message", "down%20for%20repair")
//!             .body(Empty::<bytes::Bytes>::new())
//!     }));
//!
//! let error = orders.oneshot(Request::new(())).await.unwrap_err();
//! assert_eq!(Verdict::of(&*error), Verdict::Failure);
//! let error = GrpcError::of(&*error).unwrap();
//! assert_eq!((error.code(), error.message()), (GrpcCode::Unavailable, "down for repair"));
//! # Ok(())
//! # }
//! ```

mod body;
mod future;
mod layer;
mod policy;
mod service;

#[cfg(test)]
mod tests;

pub use self::{
    body::GrpcBody, future::GrpcErrorClassifierFuture, layer::GrpcErrorClassifierLayer, policy::GrpcPolicy,
    service::GrpcErrorClassifier,
};
