//! Tower middleware for calls that leave a process.
//!
//! Layers that stand alone in any tower or axum stack, and stacked in the right order are the nest that Spring Cloud
//! users know as hystrix -> feign -> ribbon. From the outside in:
//!
//! | layer | module | what it does |
//! | --- | --- | --- |
//! | `RecordTrail` | [`observe`] | marks where a call begins and ends; puts its trail on the outcome |
//! | `Fallback` | [`fallback`] | answers in place of an error |
//! | `CircuitBreaker` | [`breaker`] | rejects while the dependency is down |
//! | `KeyedBreaker` | [`breaker`] | rejects by host, route or another key; in the place of `CircuitBreaker` |
//! | `ExecutionTimeout` | [`timeout`] | limits the whole call, and sets its deadline |
//! | `Bulkhead` | [`bulkhead`] | limits how many calls are in flight at once |
//! | `CollectBody` | [`collect`] | reads the answer's body before the call ends |
//! | `BackoffRetry` | [`retry`] | sends again after a pause |
//! | `StatusErrorClassifier` | [`classify`] | turns statuses into errors, and says whose fault they are |
//! | `IdempotentRetry` | [`retry`] | sends again at once, to the same or to the next endpoint |
//! | `LoadBalance` | [`balance`] | picks an endpoint for each attempt |
//! | `EndpointBreaker` | [`breaker`] | keeps the balancer from an endpoint that is not well |
//! | `ReadTimeout` | [`timeout`] | limits the server's silence |
//! | `GrpcErrorClassifier` | [`classify`] | reads gRPC statuses, in headers and trailers |
//! | `SendDeadline` | [`timeout`] | tells the server how much time is left |
//! | `ConnectTimeout` | [`timeout`] | limits the connect phase; goes around a connector |
//!
//! On the other side, around the service of a server, `ReceiveDeadline` ([`timeout`]) heeds what it was told.
//!
//! [`nest`] puts them together: [`Nest`] from a few settings, [`nest::spring`] from those of a Spring Cloud client, or
//! [`ServiceBuilderExt`] line by line. [`discover`] is where endpoints come from, [`probe`] asks them whether they are
//! well, and [`call`] is what all layers share: start there to read an error.
//!
//! # Example
//!
//! ```no_run
//! # #[cfg(feature = "full")]
//! # async fn call() -> Result<(), tower_outbound::call::BoxError> {
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tower_outbound::{Nest, call::Endpoints};
//!
//! let endpoints = Endpoints::from_list(["http://127.0.0.1:8080"])?;
//! let nest = Nest::builder("orders", endpoints).build_http()?;
//! let response = nest.send(http::Request::get("/orders/7").body(Full::<Bytes>::default())?).await?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
// The pages of layers that are switched off are not there to be linked to.
#![cfg_attr(not(feature = "full"), allow(rustdoc::broken_intra_doc_links))]

mod macros;
mod sync;

#[cfg(feature = "balance")]
#[cfg_attr(docsrs, doc(cfg(feature = "balance")))]
pub mod balance;
#[cfg(feature = "breaker")]
#[cfg_attr(docsrs, doc(cfg(feature = "breaker")))]
pub mod breaker;
#[cfg(feature = "bulkhead")]
#[cfg_attr(docsrs, doc(cfg(feature = "bulkhead")))]
pub mod bulkhead;
pub mod call;
#[cfg(feature = "classify")]
#[cfg_attr(docsrs, doc(cfg(feature = "classify")))]
pub mod classify;
#[cfg(feature = "collect")]
#[cfg_attr(docsrs, doc(cfg(feature = "collect")))]
pub mod collect;
#[cfg(feature = "discover")]
#[cfg_attr(docsrs, doc(cfg(feature = "discover")))]
pub mod discover;
#[cfg(feature = "fallback")]
#[cfg_attr(docsrs, doc(cfg(feature = "fallback")))]
pub mod fallback;
pub mod nest;
#[cfg(feature = "trail")]
#[cfg_attr(docsrs, doc(cfg(feature = "trail")))]
pub mod observe;
#[cfg(feature = "probe")]
#[cfg_attr(docsrs, doc(cfg(feature = "probe")))]
pub mod probe;
#[cfg(feature = "retry")]
#[cfg_attr(docsrs, doc(cfg(feature = "retry")))]
pub mod retry;
#[cfg(feature = "timeout")]
#[cfg_attr(docsrs, doc(cfg(feature = "timeout")))]
pub mod timeout;

#[cfg(feature = "nest")]
#[cfg_attr(docsrs, doc(cfg(feature = "nest")))]
pub use nest::Nest;
pub use nest::{CallsExt, ServiceBuilderExt};

/// The programs in the README compile.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
struct Readme;
