//! Leaving endpoints alone that fail more than their peers: settings, and what is known of one that is left alone.
//!
//! It is off unless [given](super::LoadBalanceLayer::outliers). An endpoint that is found to be an outlier is
//! **ejected**: it has the veto [`Veto::Outlier`](crate::call::Veto::Outlier), and no rule picks it for a time. Then
//! it returns by way of **probes**, which are ordinary calls.
//!
//! What is a failure says the classifier, and the default one takes every answer for a success, a 503 as well: over HTTP
//! say `.classify(StatusPolicy::default())`.
//!
//! # When an endpoint is ejected
//!
//! | trigger | default | source |
//! | --- | --- | --- |
//! | [failures in a row](OutlierEjectionBuilder::consecutive_failures) | 5 | Envoy's `consecutive_5xx`, if the classifier counts those |
//! | a [success rate](OutlierEjectionBuilder::success_rate) below that of the peers | mean less 1.9 standard deviations, of 5 endpoints with 100 attempts in 10 s | gRPC A50, Envoy |
//! | a [failure percentage](OutlierEjectionBuilder::failure_percentage) of its own | off; with the [volume](OutlierEjectionBuilder::failure_percentage_volume) of 5 endpoints in the set and 50 attempts in 10 s | gRPC A50, Envoy |
//!
//! What is a failure says the [classifier](super::LoadBalanceLayer::classify) of the layer, if need be
//! [late](crate::call::LateVerdict). What it ignores neither counts nor ends a row. An attempt that was given up
//! counts as a failure if it had waited for [long enough](OutlierEjectionBuilder::abandoned_after), and as nothing
//! otherwise: under a limit further up, a server that has fallen silent shows nothing else. One that is given up after its
//! answer, before its late verdict, counts as nothing: callers end streams when they like. An attempt decides by its
//! end only if nothing has been decided about its endpoint since it started: the results of before an ejection count
//! neither for it nor after it.
//!
//! The rates are compared once an [interval](OutlierEjectionBuilder::interval), the worst endpoint first. Of the
//! lesser known consequences of the formula: of five endpoints it finds only one, and that if the others are nearly
//! alike; and where more than a fifth of all fail at everything none of them stands out. Failures in a row do not
//! depend on peers.
//!
//! # How many are ejected
//!
//! At once at most [half](OutlierEjectionBuilder::max_ejected) of the set, rounded down, but at least one where there
//! is another. Envoy and A50 have 10 %, which is of no use where a zone, or every second server after half a
//! deployment, is broken; and of more than half it is more likely that they fail for a reason of their callers. One
//! that has been spared for this is ejected when it fails as often again, if there is room then.
//!
//! Below the [panic threshold](OutlierEjectionBuilder::panic_threshold) this detector is disregarded: if less than
//! half of the set may be picked, by all vetoes taken together, it takes its own back, those of others stay, until
//! enough are well. By itself it does not come that far with the defaults. While any endpoint is ejected, the vetoes
//! of others are looked at once a second, and the set within 100 ms of a change: where it has become so small that
//! too many are ejected, the first of them are back at once.
//!
//! # For how long
//!
//! For [30 s](OutlierEjectionBuilder::ejection_time) times the number of ejections in a row, up to [300
//! s](OutlierEjectionBuilder::max_ejection_time), less up to [20 %](OutlierEjectionBuilder::jitter) by lot, so that
//! what was ejected together does not return together. For each interval in which an endpoint was never ejected its
//! number falls by one. (A50's and Envoy's figures; Envoy has a jitter that adds.)
//!
//! After that time one call at a time may go there. [Three](OutlierEjectionBuilder::probe_successes) that succeed, in
//! a row, bring the endpoint back, under [`Ewma`](super::Ewma) with its slow start; one that fails ejects it again,
//! for longer. One that is given up early or ignored says nothing, and the next call is a probe. After the [base
//! time](OutlierEjectionBuilder::ejection_time) a probe that has not ended lets another go out beside it. A server
//! that fails at half of its calls gets through three probes once in eight times; A50 and Envoy let everything return
//! at once.
//!
//! # What it costs
//!
//! A pick compares the time with when something is due, and reads a word of the endpoint; the end of an attempt is
//! one more addition. Together that is about 10 ns. No task runs: what is due is done by the pick that comes first,
//! while others go on. The rates are compared once an interval, and while any endpoint is ejected the set is surveyed
//! once a second and within 100 ms of a change: of 10,000 endpoints the former took 0.13 to 0.34 ms, and the latter
//! 0.03 to 0.05 ms. While nothing is picked nothing happens, and nothing is missed. A lock is taken by the call whose
//! end ejects an endpoint, by probes, and by whoever does what is due.
//!
//! # Layers that share a set
//!
//! Each layer ejects by what it has seen, and an endpoint is picked by none of them while any has it ejected: the
//! veto is the endpoint's. Each counts its own share, so that two may together have ejected twice as many; a panic
//! counts them all. A layer that is dropped, with its services and handles, takes its vetoes along.
//!
//! # What it does
//!
//! In the simulation `burst` (50 clients and 100 servers at 70 % load; for 10 s five servers fail, within 1 ms)
//! callers see 0.45 % errors in these 10 s with [`RoundRobin`](super::RoundRobin) and the defaults, and 5.0 %
//! without: five failures for each client and server that fails, however long it does (8 seeds, which differ by less
//! than 0.01 %). It is for rules that do not look at failures. [`Ewma`](super::Ewma) does, and shows fewer by itself;
//! there it is for endpoints that fail in some calls only.
//!
//! ```
//! use std::time::Duration;
//! # #[cfg(feature = "classify")]
//! # fn ejecting() -> Result<(), tower_outbound::call::ConfigError> {
//! use tower_outbound::{balance::{LoadBalanceLayer, OutlierEjection}, call::Endpoints, classify::StatusPolicy};
//!
//! let outliers = OutlierEjection::builder()
//!     .consecutive_failures(3)
//!     .ejection_time(Duration::from_secs(10))
//!     .build()?;
//! let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
//! let balance = LoadBalanceLayer::new(endpoints).classify(StatusPolicy::default()).outliers(outliers);
//! assert!(balance.handle().endpoints().iter().all(|endpoint| endpoint.ejection().is_none()));
//! # Ok(())
//! # }
//! # #[cfg(feature = "classify")]
//! # ejecting().unwrap();
//! ```

mod due;
mod ejection;
mod hub;
mod rates;
mod settings;
mod state;
mod watch;

pub use self::{
    ejection::{Ejection, EjectionCause},
    settings::{OutlierEjection, OutlierEjectionBuilder},
};
pub(super) use self::{
    hub::Hub,
    watch::{Outcome, Ticket, Watch},
};
