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
//! They are Hystrix's (`HystrixCommandProperties`), but for the lease, which Hystrix does not have. Whether the circuit
//! is judged by our rules or as Hystrix does it is another setting.
//!
//! | setting | default | allowed | meaning |
//! | --- | --- | --- | --- |
//! | [`volume`](BreakerBuilder::volume) | 20 | 1 to 16,777,215 | outcomes that the window must hold before the circuit can open |
//! | [`error_percent`](BreakerBuilder::error_percent) | 50 | 0 to 100 | share of failures at which it opens, in whole percent, cut |
//! | [`window`](BreakerBuilder::window) | 10 s | 10 ms and up | length of the rolling window, in 10 buckets |
//! | [`sleep_window`](BreakerBuilder::sleep_window) | 5 s | above zero | how long it rejects before a probe may go out |
//! | [`sleep_growth`](BreakerBuilder::sleep_growth) | none | factor 1 and up | each sleep window of a row is longer than the one before, up to the longest |
//! | [`sleep_jitter`](BreakerBuilder::sleep_jitter) | 0 % | 0 to 100 | by up to this share each sleep window is shortened at random |
//! | [`seed`](BreakerBuilder::seed) | random | | what the random numbers are drawn from |
//! | [`consecutive_failures`](BreakerBuilder::consecutive_failures) | none | 1 to 1,048,575 | so many failures in a row open it as well |
//! | [`slow_calls`](BreakerBuilder::slow_calls) | none | above zero, 1 to 100 % | so large a share of slow successes opens it as well |
//! | [`last_outcomes`](BreakerBuilder::last_outcomes) | none | 1 to 100,000 | the shares among so many last outcomes open it as well |
//! | [`without_error_percent`](BreakerBuilder::without_error_percent) | no | | the share of failures does not open it |
//! | [`without_window`](BreakerBuilder::without_window) | no | | the shares in the window of time do not open it |
//! | [`probes`](BreakerBuilder::probes) | 1 | 1 to 1,000 | how many probes go out at once |
//! | [`probe_success_percent`](BreakerBuilder::probe_success_percent) | 100 % | 1 to 100 | share of them that must succeed |
//! | [`probe_lease`](BreakerBuilder::probe_lease) | 30 s | above zero | how long a probe may take before another takes its place |
//! | [`cancelled_after`](BreakerBuilder::cancelled_after) | never | above zero | a call that is given up after so long has failed |
//! | [`shadow`](BreakerBuilder::shadow) | no | | rejects nothing, and tells what it would have done |
//! | [`hystrix`](BreakerBuilder::hystrix) | no | 1.5.12, 1.5.18 | judged as that release does it |
//! | [`health_snapshot`](BreakerBuilder::health_snapshot) | 500 ms | 1 to 1,000 in a window | how often Hystrix's figures are brought up to date |
//! | [`disabled`](BreakerBuilder::disabled) | no | | neither rejects nor counts; with [`hystrix`](BreakerBuilder::hystrix) it counts on |
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
//! | any | a call ends that was admitted before the last change of state, or whose probe has been replaced | no change; counted as [stale](Counts::stale) |
//!
//! Every outcome is judged as it ends, a success as well. Not counted are rejections, ignored outcomes and calls that
//! were given up; the latter include calls that an outer timeout drops, so a timeout belongs below this layer, where
//! its error is a failure. For one that has to stand above it there is
//! [`cancelled_after`](BreakerBuilder::cancelled_after).
//!
//! With several [`probes`](BreakerBuilder::probes) the half-open circuit goes by all of them:
//!
//! | state | what happens | then |
//! | --- | --- | --- |
//! | half-open | another call while fewer probes are out or have ended than there are | half-open: this call is a probe, too |
//! | half-open | so many probes have succeeded that enough have | closed, with an empty window |
//! | half-open | so many probes have failed that enough cannot succeed | open, for a full sleep window |
//! | half-open | a probe is ignored, dropped or panics, or its lease has ended | half-open: another call is a probe in its place |
//!
//! # Rules
//!
//! By default the share of failures in the window of time is the only rule. Each of the others is set beside it; the
//! circuit opens as soon as one of those that are set says so, and the [`Cause`] tells which it was, with its numbers.
//! If several say so at once, the one that is told is the first in this order:
//!
//! | rule | set by | looks at | cause |
//! | --- | --- | --- | --- |
//! | share of failures | [`error_percent`](BreakerBuilder::error_percent), set by default | the window of time | [`Tripped`](Cause::Tripped) |
//! | share of slow calls | [`slow_calls`](BreakerBuilder::slow_calls) | the window of time | [`TooSlow`](Cause::TooSlow) |
//! | failures in a row | [`consecutive_failures`](BreakerBuilder::consecutive_failures) | what came since the latest success | [`FailuresInARow`](Cause::FailuresInARow) |
//! | share of failures | [`last_outcomes`](BreakerBuilder::last_outcomes) | the last outcomes | [`LastFailed`](Cause::LastFailed) |
//! | share of slow calls | both | the last outcomes | [`LastTooSlow`](Cause::LastTooSlow) |
//!
//! Where the circuit closes or is reset, all of them begin anew.
//!
//! # Watching and steering
//!
//! The handle tells the [state](Breaker::state), the [counts](Breaker::counts) and [how long it
//! is](Breaker::probe_in) until a probe may go out. Transitions are told to a
//! [hook](BreakerBuilder::on_transition), to [subscribers](Breaker::transitions) and as `tracing` events: each once, in
//! order, with its cause, and with no lock held.
//!
//! Settings [change](Breaker::change) while calls go on, and the window stays. By hand: [`Breaker::force`] holds a circuit open or closed and leaves the state below as it is,
//! [`Breaker::set_enabled`] switches it off, which wins over any force, and [`Breaker::reset`] starts anew.
//!
//! # States of Hystrix
//!
//! [`BreakerBuilder::hystrix`] takes the rules of a release of Hystrix in the place of these. Both judge by *health
//! snapshots*: there is a tick every 500 ms, counted from when the breaker was built, last closed or reset, and each
//! shows the outcomes of the window up to it; what came since is not seen yet, and is seen for a full window from the
//! next tick on. [`Breaker::health`] tells what the latest tick shows. The trip test is the one above: both bounds are
//! inclusive, the share is cut to whole percents. No task makes the ticks: whoever comes next works out what they would
//! have seen, so an event of a transition is made then.
//!
//! 1.5.12, where the trial is what is called the probe above:
//!
//! | state | what happens | then |
//! | --- | --- | --- |
//! | closed | a tick meets the trip test | open since that tick, whenever somebody notices |
//! | open | a call until the sleep window is over by a millisecond | rejected |
//! | open | a call after that | half-open: this call is the trial |
//! | half-open | another call while the trial is out | rejected, however long it takes |
//! | half-open | the trial succeeds | closed; the window is wiped, its ticks begin anew, and the success is in it |
//! | half-open | the trial fails or is [ignored](crate::call::Verdict::Ignored) | open, for a full sleep window from now |
//! | half-open | the trial is dropped or panics | half-open: the next call is the trial, at once |
//! | any | a call ends that was let through earlier in the same window | it is in the figures, and decides nothing |
//! | any | a call ends that was let through in an earlier window | no change; counted as [stale](Counts::stale) |
//!
//! 1.5.18, and 1.5.14 to 1.5.17, which have no half-open state:
//!
//! | state | what happens | then |
//! | --- | --- | --- |
//! | closed | a call comes, or [`Breaker::state`] is asked, and the latest tick meets the trip test | open since now |
//! | open | a call until the sleep window is over by a millisecond | rejected |
//! | open | a call after that | open: this call is a test, and the next sleep window begins now |
//! | open | a test fails, is ignored, dropped or panics | no change: the next test comes a sleep window after it went out |
//! | open | a test succeeds, be it not the latest | closed; the window is wiped, its ticks begin anew, and the success is in it |
//! | open, forced closed | a call that was let through while it was open succeeds | closed, in the same way |
//! | any | a call ends that was let through earlier | as in 1.5.12 |
//!
//! In both, an open circuit is told as open until a trial goes out, and a force leaves the machine below as it is, which
//! goes on by outcomes and ticks: [`Breaker::unforced_state`]. A task that waits for the inner service is woken when
//! somebody notices that the circuit has opened, which a tick alone does not do.
//!
//! # What differs from Hystrix
//!
//! Our own rules judge each outcome as it ends; Hystrix does so once every 500 ms, waits a millisecond more before a
//! probe, lets any late outcome decide a half-open circuit (1.5.12), and treats an ignored outcome of a probe as a
//! failure.
//!
//! With [`BreakerBuilder::hystrix`] these differences are left, all of them on purpose:
//!
//! * A late outcome decides nothing. In Hystrix one that began before the circuit opened closes or re-opens a half-open
//!   circuit (1.5.12), or closes an open one (1.5.18), and one that began before the circuit closed is in the figures of
//!   the new window.
//! * A trial can get lost no more: one that is given up is handed back, one that a limit below turned away is a failure,
//!   and one that does not end at all is replaced after an hour ([`probe_lease`](BreakerBuilder::probe_lease)). Hystrix
//!   1.5.12 can stay half-open for good.
//! * What counts as a failure is the classifier's business; [`HystrixVerdicts`] counts as Hystrix does.
//! * A breaker that is switched off and on again starts with an empty window.
//!
//! # Many breakers
//!
//! [`Breakers`] keeps one for each key, such as the host or the route, and [`KeyedBreakerLayer`] asks that of the call.
//! Below a balancer [`EndpointBreakers`] keeps one for each endpoint, which rejects nothing but keeps the balancer from
//! picking an endpoint that is not well (feature `endpoints`, which `balance` switches on).
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
//! writes to memory that its thread shares with few others, or none. [`slow_calls`](BreakerBuilder::slow_calls) and
//! [`cancelled_after`](BreakerBuilder::cancelled_after) read the clock at the beginning as well;
//! [`last_outcomes`](BreakerBuilder::last_outcomes) writes to memory that all threads share. A breaker takes the same
//! memory however many calls there are: about 3 kB where four threads count, which two cores have. With [`hystrix`](BreakerBuilder::hystrix) it reads
//! the clock at each step, and once in an interval a call sums the window up; after a while without calls the next one does so
//! for each tick that has passed, at most for those of two windows, and allocates for it.
//!
//! A rejection reads the clock twice, and allocates its error. In one run on two cores that had other work to do, around a
//! service that does nothing, all rounded:
//!
//! | nanoseconds a call | closed | closed, two threads at once | open: rejected | half-open: the first call |
//! | --- | --- | --- | --- | --- |
//! | this one | 120 | 150 | 300 | 810 |
//! | tower-resilience 0.13.0 | 410 | 900 and more | 150 | 480 |
//! | seatbelt 0.11.0 | 120 | 410 | 70 | 760 |
//! | failsafe 1.3.0, no tower layer | 120 | 230 | 60 | 190 |
//! | recloser 1.4.0, no tower layer | 12 | 60 | 50 | 190 |
//!
//! `benches/peers/breakers.md` in the repository says how that was measured, what is behind it, and how many instructions
//! it is. The first call of a half-open circuit is the probe. Recloser needs no clock while it is closed, as it judges the
//! last calls and not those of a time.

mod circuit;
mod config;
#[cfg(feature = "endpoints")]
mod endpoint;
mod engine;
mod event;
mod figures;
mod future;
mod handle;
mod hystrix;
mod judge;
mod keyed;
mod last;
mod layer;
mod machine;
mod permit;
mod probes;
mod run;
mod service;
mod settings;
mod shard;
mod sleep;
mod sync;
mod transitions;
mod waiting;
mod window;
mod word;

#[cfg(all(test, outbound_loom))]
mod loom_tests;
#[cfg(test)]
#[cfg(not(outbound_loom))]
mod model_tests;
#[cfg(all(test, outbound_loom))]
mod rules_loom_tests;
#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests;

#[cfg(feature = "endpoints")]
pub use self::endpoint::{EndpointBreaker, EndpointBreakerLayer, EndpointBreakers};
pub use self::{
    config::BreakerBuilder,
    event::{Cause, Transition},
    figures::{Counts, Health},
    future::CircuitBreakerFuture,
    handle::{Breaker, Force},
    hystrix::{HystrixRelease, HystrixVerdicts},
    keyed::{Breakers, BreakersBuilder, KeyedBreaker, KeyedBreakerLayer, Route, by_authority, by_route},
    layer::CircuitBreakerLayer,
    permit::Permit,
    service::CircuitBreaker,
    settings::BreakerSettings,
    transitions::{Missed, Transitions},
};
