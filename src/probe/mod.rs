//! Asking endpoints whether they are well, beside the calls.
//!
//! A balancer learns from calls which endpoint is slow or fails. [`ActiveProbes`] ask without waiting for a call to fail:
//! a function of yours is run for each endpoint of a set again and again, and one that has failed it some times in a row gets
//! a [`Veto::Probe`](crate::call::Veto::Probe), until it is well again. No balancer over the set picks it meanwhile. They
//! are off unless they are attached.
//!
//! ```
//! use std::time::Duration;
//! use tokio::net::TcpStream;
//! use tower_outbound::{call::{Endpoint, Endpoints}, probe::ActiveProbes};
//!
//! let orders: Endpoints = ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]
//!     .into_iter()
//!     .map(Endpoint::new)
//!     .collect::<Result<_, _>>()?;
//! ActiveProbes::builder()
//!     .interval(Duration::from_secs(5))
//!     .failures(2)
//!     .build()?
//!     .attach(&orders, |endpoint: Endpoint| async move {
//!         TcpStream::connect(endpoint.authority().as_str()).await.map(drop)
//!     });
//! # Ok::<(), tower_outbound::call::ConfigError>(())
//! ```
//!
//! # What is asked
//!
//! | probe | an endpoint is well if |
//! | --- | --- |
//! | a closure (see [`Probe`]) | its future ends with `true` or `Ok(())`; Ribbon's `IPing` |
//! | [`HttpProbe`] | it answers a `GET` with 200, and if wanted a certain body; Ribbon's `PingUrl` |
//!
//! A probe that returns `false` or an error, that takes longer than its timeout, or that panics has failed.
//!
//! # Defaults
//!
//! | setting | default | [`ribbon`](ActiveProbes::ribbon) | allowed | meaning |
//! | --- | --- | --- | --- | --- |
//! | [`interval`](ActiveProbesBuilder::interval) | 10 s | 30 s | above zero | between two probes of an endpoint |
//! | [`jitter`](ActiveProbesBuilder::jitter) | 0.1 | 0 | 0 to 1 | the share of the interval that is left to chance |
//! | [`timeout`](ActiveProbesBuilder::timeout) | 1 s | 2 s | up to the interval | how long one probe may take |
//! | [`failures`](ActiveProbesBuilder::failures) | 3 | 1 | 1 or more | failed ones in a row before the veto |
//! | [`successes`](ActiveProbesBuilder::successes) | 1 | 1 | 1 or more | good ones in a row that take it back |
//! | [`at_once`](ActiveProbesBuilder::at_once) | 16 | 1 | 1 or more | probes under way at once |
//!
//! # What can be relied on
//!
//! - A new endpoint may be picked until probes say otherwise, so that a set works at once. It is asked for the first time
//!   within a tenth of the interval, and from then on at a phase of its own: neither endpoints nor clients are in step.
//! - If all endpoints have a veto, a balancer disregards that ([what is picked](crate::balance#what-is-picked)): a probe that
//!   is broken does not take a whole service away. Ribbon's rules do as they do there.
//! - One task asks all endpoints of a set. [`attach`](ActiveProbes::attach) starts it; outside a tokio runtime the first
//!   `poll_ready` of a balancer within one does. So the first round may be over before the first call: with `failures(1)` all
//!   that is not well has its veto once a tenth of the interval and a timeout are over, if so many can be asked by then.
//!   A set that a [stream](crate::discover) fills is empty until the first call, and nobody is asked before.
//! - It ends when the last handle on the set, balancers included, is dropped; one that the function itself holds counts. If
//!   its runtime ends, the next `poll_ready` within another one goes on: what was under way is asked anew.
//! - When probing ends its vetoes are taken back, and other vetoes are not touched.
//! - When an endpoint is taken out of the set, the probe of it that is under way is dropped. What is known of it goes with it;
//!   one that comes back with another description and the same address keeps it. The set is looked at when it has changed, but
//!   no sooner than 20 µs for each endpoint after the last time, which for 10,000 is 0.2 s.
//! - A set has one probe. To ask two things, ask both in one function.

mod ask;
mod http;
mod members;
mod prober;
mod settings;

pub use self::{
    ask::{Probe, ProbeAnswer},
    http::HttpProbe,
    settings::{ActiveProbes, ActiveProbesBuilder},
};
