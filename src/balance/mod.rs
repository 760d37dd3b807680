//! Choosing the endpoint of each attempt.
//!
//! [`LoadBalance`] picks an endpoint from a live set, writes its address into the request, calls the service below,
//! and books how the attempt ended. Everything below it is one service, shared by all endpoints: a client that goes
//! where the address says.
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{balance::LoadBalanceLayer, call::{BoxError, Endpoint, Endpoints}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let orders: Endpoints = ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]
//!     .into_iter()
//!     .map(Endpoint::new)
//!     .collect::<Result<_, _>>()?;
//!
//! let balance = LoadBalanceLayer::new(orders.clone());
//! let figures = balance.handle();
//! let client = service_fn(|request: http::Request<String>| async move {
//!     Ok::<_, BoxError>(http::Response::new(request.uri().to_string()))
//! });
//! let stack = ServiceBuilder::new().layer(balance).service(client);
//!
//! let request = http::Request::get("http://orders/17").body(String::new())?;
//! let response = stack.clone().oneshot(request).await?;
//! assert!(response.body().starts_with("http://10.0.0."));
//! assert_eq!(figures.total().successes(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Two forms
//!
//! | | [`LoadBalance`] | [`BalanceServices`] |
//! | --- | --- | --- |
//! | below it is | one service, that goes where the address says: a hyper-util or reqwest client | a service for each endpoint: connections, tonic's channels, a stack for each server |
//! | it picks from | [`Endpoints`](crate::call::Endpoints) | [`Services`](crate::call::Services) |
//! | it is | a layer | a service, at the lower end of a stack |
//! | readiness | of the one service, asked before the pick | of each endpoint's service, asked after the pick; one that is not ready is passed |
//! | the address | is written into the request | is not, unless that is asked for |
//! | requests | that are [`Addressed`](crate::call::Addressed) | of any type |
//!
//! Take the first where a client pools connections by address, and the second where somebody else makes the connections,
//! or where what stands between balancer and server must be one for each server: a limit, a buffer, a TLS identity. Rules,
//! figures, and what follows here hold for both; what is the second's own stands [there](services).
//!
//! # What is picked
//!
//! The [`Rule`] chooses: [`Ewma`] unless another is given, which goes where an answer is likely to come soonest; [one of the
//! others](rule), [one of Ribbon's seven](rule#ribbons-rules), or one of your own; [`ZoneFirst`] and [`Only`] keep any of
//! them to a zone or a version. Its state and the figures about the endpoints belong to the layer value: all services that it
//! makes, and all their clones, share one rotation and one count. Without a service and a clock there is [`Picker`].
//!
//! Before the rule is asked, and after it has answered, these hold in this order:
//!
//! 1. If a retry layer above wishes to stay on an endpoint, and it is still in the set and nobody has a
//!    [`Veto`](crate::call::Veto) on it, the attempt goes there.
//! 2. An endpoint with a veto is not picked. If all have one, the vetoes are taken for a fault of whoever gave them,
//!    and all may be picked; those that are being [drained](BalanceHandle::drain) only if there are no others.
//! 3. An endpoint that this call has tried before is not picked, as long as there is another.
//!
//! A rule that [chooses alone](Rule::chooses_alone) is asked once, and only the first holds: Ribbon's have their own ways,
//! and [`ZoneFirst`] and [`Only`] see to the others among those that they show.
//!
//! After an endpoint has been taken out of the set no pick goes to it. Attempts that are under way there go on;
//! [`drain`](BalanceHandle::drain) takes one out once they have ended.
//!
//! # When there is nothing to pick
//!
//! | the set | what happens | default |
//! | --- | --- | --- |
//! | is empty | [`WhenEmpty`]: the call fails at once, or waits | fails at once |
//! | has never been published by its source | the call waits up to [`first_wait`](LoadBalanceLayer::first_wait) | 1 s |
//! | is not empty, but the rule chooses none of it | as if it were empty | |
//! | is not empty, but the deadline of the call has passed | [`NoTimeLeft`](crate::call::NoTimeLeft), nothing is sent | |
//!
//! The error is [`NoEndpoint`](crate::call::NoEndpoint); ask for it by [`NoEndpoint::of`](crate::call::NoEndpoint::of). A
//! call that waits holds nothing of the service below: a concurrency limit there counts it only once it has an endpoint. It
//! waits no longer than the deadline of the call; there, the layer that has set the deadline ends it.
//!
//! # What is booked
//!
//! Each attempt counts as in flight from the pick to the head of the response, and as one of these when it has ended
//! (see [`Figures`]): a success, a failure or neither, as the [classifier](LoadBalanceLayer::classify) says, or abandoned
//! if the future was dropped, or panicked, before its end. Apart from that classifier, and as in Ribbon, connection
//! failures in a row are counted, and the time from the pick to the head or the error is added up. Where the layers above keep a
//! [`Trail`](crate::call::Trail), the attempt is written into it with its endpoint; where none does, a failure becomes
//! a [`CallFailed`](crate::call::CallFailed) with a trail of one attempt, so that the error names the endpoint in any
//! case.
//!
//! **The default classifier takes every answer for a success, a 503 as well.** A server that answers so at once then looks
//! like the fastest, and is no outlier. Over HTTP say `.classify(StatusPolicy::default())`, as the nest does, or put a
//! [`StatusErrorClassifier`](crate::classify::StatusErrorClassifier) below. If the compiler then speaks of a missing method,
//! end the stack with [`.calls::<YourRequest>()`](crate::CallsExt::calls): it says why.
//!
//! # Outliers
//!
//! Endpoints that fail more than their peers can be [left alone](LoadBalanceLayer::outliers) for a time: after failures in
//! a row, or by their success rates. They return by way of probes, which are ordinary calls, one at a time. At most half
//! of the set is ejected at once. [More](outlier).
//!
//! # Defaults
//!
//! | setting | default | |
//! | --- | --- | --- |
//! | [`rule`](LoadBalanceLayer::rule) | [`Ewma`] | the soonest of fourteen; Ribbon's is [`AvailabilityFiltering`] |
//! | [`classify`](LoadBalanceLayer::classify) | [`ByFault`](crate::call::ByFault) | an answer is a success; a rejection is neither |
//! | [`ribbon_stats`](LoadBalanceLayer::ribbon_stats) | Ribbon's: 3 connection failures, 10 s to 30 s | only its rules look at them |
//! | [`outliers`](LoadBalanceLayer::outliers) | off | [`OutlierEjection::default()`] is 5 failures in a row, 30 s and more |
//! | [`host_header`](LoadBalanceLayer::host_header) | [`OfEndpoint`](crate::call::HostHeader::OfEndpoint) | as Ribbon |
//! | [`when_empty`](LoadBalanceLayer::when_empty) | [`FailAtOnce`](WhenEmpty::FailAtOnce) | |
//! | [`first_wait`](LoadBalanceLayer::first_wait) | 1 s | |

mod demand;
mod display;
mod drain;
mod figures;
mod future;
mod handle;
mod in_flight;
mod layer;
mod load;
pub mod outlier;
mod pick;
mod picker;
mod roster;
pub mod rule;
mod scarce;
mod service;
pub mod services;
mod stats;
mod subset;
mod wait;

pub use self::{
    drain::Drained,
    figures::Figures,
    future::LoadBalanceFuture,
    handle::{BalanceHandle, EndpointFigures},
    layer::{LoadBalanceLayer, WhenEmpty},
    outlier::{Ejection, EjectionCause, OutlierEjection, OutlierEjectionBuilder},
    picker::{Picked, Picker},
    rule::{
        AvailabilityFiltering, BestAvailable, Candidate, Candidates, ConsistentHash, Ewma, EwmaBuilder,
        LeastLoaded, Only, Random, RibbonRoundRobin, RibbonRule, RoundRobin, Rule, WeightedRandom,
        WeightedResponseTime, WeightedRoundRobin, ZoneAvoidance, ZoneAware, ZoneFirst,
    },
    service::LoadBalance,
    services::{BalanceServices, BalanceServicesFuture},
    stats::{RibbonStats, RibbonStatsBuilder},
};
