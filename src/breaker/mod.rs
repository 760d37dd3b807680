//! Rejecting calls while a dependency is down.
//!
//! A dependency that fails most of its calls is better left alone: its callers get their error at once instead of
//! after a timeout, and it gets the time to recover. A [`CircuitBreaker`] counts how calls end. When too many fail it
//! *opens*: calls are rejected with [`CircuitOpen`](crate::call::CircuitOpen) and nothing is sent. After a while one
//! call goes out as a *probe*, and its outcome alone decides whether the circuit closes or stays open.
//!
//! Use it where a dependency can be down as a whole, above timeouts and retries, so that it counts calls and not
//! attempts, and so that a retry layer below it does not retry its rejections. It does not limit how many calls are
//! out at once: all that were admitted before it opened run to their end, and it judges by calls that have ended
//! alone. For a limit put a concurrency limit next to it.
//!
//! # Example
//!
//! The [`Breaker`] is made first. It is the state; layers and services only refer to it.
//!
//! ```
//! use std::{io, time::Duration};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{
//!     breaker::{Breaker, CircuitBreakerLayer},
//!     call::{CircuitOpen, CircuitState},
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let breaker = Breaker::builder("doubler").volume(4).build()?;
//! let mut service = ServiceBuilder::new()
//!     .layer(CircuitBreakerLayer::new(breaker.clone()))
//!     .service(service_fn(|n: i32| async move {
//!         if n < 0 { Err(io::Error::other("down")) } else { Ok(2 * n) }
//!     }));
//!
//! for _ in 0..4 {
//!     let error = service.ready().await?.call(-1).await.unwrap_err();
//!     assert!(error.is::<io::Error>());
//! }
//! assert_eq!(breaker.state(), CircuitState::Open);
//!
//! let error = service.ready().await?.call(1).await.unwrap_err();
//! let rejection = error.downcast_ref::<CircuitOpen>().unwrap();
//! assert_eq!(rejection.retry_in(), Some(Duration::from_secs(5)));
//!
//! tokio::time::advance(Duration::from_secs(5)).await;
//! assert_eq!(service.ready().await?.call(1).await?, 2); // the probe
//! assert_eq!(breaker.state(), CircuitState::Closed);
//! # Ok(())
//! # }
//! ```
//!
//! # Defaults
//!
//! They are Hystrix's (`HystrixCommandProperties`), but for the lease, which Hystrix does not have.
//!
//! | setting | default | allowed | meaning |
//! | --- | --- | --- | --- |
//! | [`volume`](BreakerBuilder::volume) | 20 | 1 and up | outcomes that the window must hold before the circuit can open |
//! | [`error_percent`](BreakerBuilder::error_percent) | 50 | 0 to 100 | share of failures at which it opens, in whole percent, cut |
//! | [`window`](BreakerBuilder::window) | 10 s | above zero | length of the rolling window, in 10 buckets |
//! | [`sleep_window`](BreakerBuilder::sleep_window) | 5 s | above zero | how long it rejects before a probe may go out |
//! | [`probe_lease`](BreakerBuilder::probe_lease) | 30 s | above zero | how long a probe may take before another takes its place |
//! | [`disabled`](BreakerBuilder::disabled) | no | | neither rejects nor counts |
//! | [`on_transition`](BreakerBuilder::on_transition) | none | | called once for each change of state |
//! | [`classify`](CircuitBreakerLayer::classify) | [`ByFault`](crate::call::ByFault) | | what an outcome counts as |
//!
//! # States
//!
//! | state | what happens | then |
//! | --- | --- | --- |
//! | closed | a call ends, and the window holds at least `volume` outcomes, at least `error_percent` of them failures | open |
//! | open | a call before the sleep window has ended | rejected |
//! | open | a call once the sleep window has ended, to the instant or later | half-open: this call is the probe |
//! | half-open | another call while the probe is out | rejected |
//! | half-open | the probe succeeds | closed, with an empty window |
//! | half-open | the probe fails | open, for a full sleep window |
//! | half-open | the probe is [ignored](crate::call::Verdict::Ignored), dropped or panics | half-open: the next call is a probe, at once |
//! | half-open | the lease of the probe has ended, and a call comes | half-open: this call is the probe in its place |
//! | any | a call ends that was admitted before the last change of state, or whose lease has ended | no change; counted as [stale](Counts::stale) |
//!
//! Every outcome is judged as it ends, a success as well. Not counted are rejections, ignored outcomes and calls that
//! were given up; the latter include calls that an outer timeout drops, so a timeout belongs below this layer, where
//! its error is a failure.
//!
//! By hand: [`Breaker::force`] holds a circuit open or closed and leaves the state below as it is,
//! [`Breaker::set_enabled`] switches it off, which wins over any force, and [`Breaker::reset`] starts anew.
//!
//! This differs from Hystrix, which judges once every 500 ms, waits a millisecond more before a probe, lets
//! any late outcome decide a half-open circuit (1.5.12), and treats an ignored outcome of a probe as a failure.
//!
//! # Readiness
//!
//! A closed circuit passes `poll_ready` on to the inner service. One that would reject a call answers "ready" without
//! asking the inner service, and rejects in `call`; that call is rejected even if the circuit has come to let calls
//! through in between, as the inner service was not asked. A task that waits for the inner service is woken when the
//! circuit comes to reject. Errors from `poll_ready` are the inner service's alone.
//!
//! What the inner service holds for a call that it was ready for (the slot of a concurrency limit, for instance) it
//! holds on if that call is rejected, until the instance is called again or dropped. Call clones, as `oneshot` does,
//! rather than keeping one instance for long.
//!
//! # Cost
//!
//! A call through a closed circuit takes no lock and allocates nothing. It reads the clock once, at its end, and
//! writes to memory that its thread shares with few others, or none.
//!
mod config;
mod engine;
mod event;
mod figures;
mod future;
mod handle;
mod hystrix;
mod judge;
mod layer;
mod machine;
mod permit;
mod service;
mod settings;
mod sync;
mod window;
mod word;

#[cfg(test)]
mod tests;

pub use self::{
    config::BreakerBuilder,
    event::{Cause, Transition},
    figures::{Counts, Health},
    future::CircuitBreakerFuture,
    handle::{Breaker, Force},
    hystrix::{HystrixRelease, HystrixVerdicts},
    layer::CircuitBreakerLayer,
    permit::Permit,
    service::CircuitBreaker,
    settings::BreakerSettings,
};
