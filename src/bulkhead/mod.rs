//! Limiting how many calls are in flight at once.
//!
//! A dependency that has become slow holds each of its callers for longer, and in the end all of them: memory,
//! connections, and whatever the callers hold meanwhile. A bulkhead gives it a number of slots. When they are taken,
//! further calls are turned away with [`BulkheadFull`], at once or after a bounded wait,
//! and the rest of the program goes on.
//!
//! # Example
//!
//! The [`Bulkhead`] is made first. It is the state; layers and services only refer to it.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{bulkhead::{Bulkhead, BulkheadLayer}, call::BulkheadFull};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let bulkhead = Bulkhead::builder("reports").max_concurrent(1).build()?;
//! let reports = ServiceBuilder::new()
//!     .layer(BulkheadLayer::new(bulkhead.clone()))
//!     .service(service_fn(|n: u32| async move {
//!         tokio::time::sleep(Duration::from_secs(1)).await;
//!         Ok::<_, std::io::Error>(2 * n)
//!     }));
//!
//! let first = tokio::spawn(reports.clone().oneshot(1));
//! tokio::task::yield_now().await;
//! assert_eq!(bulkhead.in_flight(), 1);
//!
//! let error = reports.clone().oneshot(2).await.unwrap_err();
//! assert!(error.is::<BulkheadFull>());
//!
//! assert_eq!(first.await??, 2);
//! assert_eq!(reports.oneshot(3).await?, 6);
//! # Ok(())
//! # }
//! ```
//!
//! # Defaults
//!
//! They are those of Hystrix's semaphore (`HystrixCommandProperties`), and of its thread pools, which have no queue either.
//!
//! | setting | default | allowed | meaning |
//! | --- | --- | --- | --- |
//! | [`max_concurrent`](BulkheadBuilder::max_concurrent) | 10 | any; 0 turns every call away | calls in flight at once |
//! | [`max_waiting`](BulkheadBuilder::max_waiting) | 0 | any | further calls that may wait for a slot |
//! | [`max_wait`](BulkheadBuilder::max_wait) | 1 s | above zero, with a `max_waiting` | how long one of them waits |
//!
//! # What counts
//!
//! A call takes its slot when it is made, not in `poll_ready`, and gives it back when it ends, when it is dropped, or
//! when it panics. The call has ended with its response; what an HTTP body takes after that does not count, unless a
//! `CollectBodyLayer` below reads it first.
//!
//! Slots go to calls in the order in which they came. A call that waits holds its request, and neither a slot nor the
//! readiness of the service below. It is turned away at the end of its wait; if its deadline comes first, whoever has set
//! that ends the call. If that has passed already, it does not begin to wait: [`NoTimeLeft`](crate::call::NoTimeLeft).
//! Dropping it gives its place to the next.
//!
//! A rejection is [`Rejected(Bulkhead)`](crate::call::Rejection::Bulkhead) and was
//! [not sent](crate::call::Sent::No). The retry layers of this crate do not retry it, and it is no failure of the
//! service below ([`ByFault`](crate::call::ByFault) ignores it; to Hystrix's circuit breaker it is one).
//!
//! # Where it stands
//!
//! Below an execution timeout, so that the wait is in its limit, and above the retries, so that a slot stands for a
//! call and not for an attempt. Below a load balancer, one for each endpoint, it would limit attempts.
//!
//! # Readiness
//!
//! While a slot is free `poll_ready` is passed on to the inner service. When there is none it answers "ready" without
//! asking, since the call will be turned away or has to wait. Such a call, once it has a slot, waits until a clone of
//! the inner service is ready, and calls that. Errors from `poll_ready` are the inner service's alone.
//!
//! # Compared with others
//!
//! - Hystrix's semaphore turns away at once, as the default here. A slot is free when the caller has its outcome; in
//!   Hystrix a function that runs on after its timeout holds its place in a thread pool until it ends, whereas here it
//!   has been dropped.
//! - `tower::limit::ConcurrencyLimit` takes its permit in `poll_ready`, so a caller waits for as long as it takes, and
//!   a service that is ready and not called holds a permit. Put `tower::load_shed` above it to turn calls away.
//!
//! # Cost
//!
//! A call that finds a slot free takes no lock and allocates nothing; all calls write to one word of memory. A call that
//! has to wait allocates its place, and one that is turned away its error.

mod config;
mod future;
mod handle;
mod layer;
mod service;
mod slots;
mod wait;

pub use self::{
    config::BulkheadBuilder,
    future::BulkheadFuture,
    handle::{Bulkhead, Slot},
    layer::BulkheadLayer,
    service::BulkheadService,
};
#[doc(no_inline)]
pub use crate::call::BulkheadFull;

/// The name in errors.
const NAME: &str = "Bulkhead";
