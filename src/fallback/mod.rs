//! Answering in place of an error.
//!
//! Some calls have a second-best answer: the list of yesterday, an empty page, a default. A [`Fallback`] around the whole
//! stack gives it when a call has failed, whatever the reason: an error of the transport, a status, a limit that ran
//! out, an open circuit, a full bulkhead.
//!
//! # Example
//!
//! ```
//! use std::io;
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_outbound::{call::ErrorRef, fallback::FallbackLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::call::BoxError> {
//! let prices = service_fn(|article: u32| async move {
//!     if article == 7 { Err(io::Error::from(io::ErrorKind::ConnectionReset)) } else { Ok(100) }
//! });
//! let prices = FallbackLayer::new(|_: ErrorRef<'_>| async { Ok(99) }).layer(prices);
//! assert_eq!(prices.clone().oneshot(6).await?, 100);
//! assert_eq!(prices.oneshot(7).await?, 99);
//! # Ok(())
//! # }
//! ```
//!
//! A fallback that needs something of the request says what, before the request is sent:
//! [`FallbackLayer::with_request`]. Nothing of it is kept otherwise.
//!
//! # What it answers, and what not
//!
//! | the call | then |
//! | --- | --- |
//! | succeeds | its answer |
//! | fails, or is rejected by a layer below | the fallback's answer |
//! | ends in an error that was classified as [ignored](crate::call::Verdict::Ignored), such as a [`StatusError`](crate::call::StatusError) of a bad request | that error: the fault is the caller's |
//! | fails, and so does the fallback | [`FallbackFailed`] |
//! | fails, and as many fallbacks as may be are running | [`FallbackRejected`] |
//! | panics, or is dropped | it panics, or is dropped |
//!
//! Both errors have the error of the call as their source. [`Fault::of`](crate::call::Fault::of) a failed fallback is
//! the fault of the call: what went wrong first. A fallback that was turned away is
//! [`Rejected(Fallback)`](crate::call::Rejection::Fallback), with the [`Sent`](crate::call::Sent) of the call.
//!
//! An error of `poll_ready` passes by: there is no call yet.
//!
//! # Where it stands
//!
//! At the top, below a `RecordTrailLayer` alone, so that it sees what breaker and limits reject, and that a breaker counts
//! how calls end without it. The limit on an execution does not cover it there. A fallback that calls another
//! service should have a limit of its own.
//!
//! # Defaults
//!
//! | setting | default | allowed | meaning |
//! | --- | --- | --- | --- |
//! | [`max_concurrent`](FallbackLayer::max_concurrent) | 10 | any; 0 turns each away | fallbacks that run at once |
//! | [`on_fallback`](FallbackLayer::on_fallback) | none | | called once for each, at its end |
//!
//! They are Hystrix's (`fallback.isolation.semaphore.maxConcurrentRequests`). In Hystrix a fallback that was turned away
//! hides the error of the call; here it is the source.
//!
//! # Cost
//!
//! A call that succeeds counts one reference and allocates nothing. A fallback allocates its future.

mod event;
mod future;
mod layer;
mod service;
mod shared;
mod substitute;

pub use self::{
    event::{FallbackEnd, FallbackEvent},
    future::FallbackFuture,
    layer::FallbackLayer,
    service::Fallback,
    substitute::{Substitute, WithRequest},
};
#[doc(no_inline)]
pub use crate::call::{FallbackFailed, FallbackRejected};
