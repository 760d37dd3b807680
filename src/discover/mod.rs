//! Where endpoints come from.
//!
//! Discovery writes a live set, [`Endpoints`], and a balancer reads it; neither knows the other. This module adds to
//! the set the ways of filling it:
//!
//! | from | how |
//! | --- | --- |
//! | a list in the configuration | [`Endpoints::from_list`] |
//! | endpoints made in code | `collect` an iterator, or `Endpoints::from(vec)` |
//! | a `tokio::sync::watch` channel that holds the whole list | [`Endpoints::from_watch`] |
//! | a stream of changes, as [`tower::discover`] has them | [`Endpoints::from_stream`] |
//! | anything else | [`Endpoints::insert`], [`remove`](Endpoints::remove) and [`replace`](Endpoints::replace) from a task of your own |
//!
//! A set of ready-made services, [`Services`](crate::call::Services), is filled in the same ways: by hand,
//! [from a list](crate::call::Services::from_list), or [from a stream](crate::call::Services::from_stream), which is
//! read as this one is.
//!
//! # What can be relied on
//!
//! - No runtime is needed to make a set. A channel or a stream is read by one task, which is started by the first
//!   `poll_ready` of a balancer within a tokio runtime, and ends when the last handle on the set, balancers included,
//!   is dropped.
//! - If the runtime that the task runs in ends, the next `poll_ready` within another one goes on with the same
//!   stream. What the stream itself has taken from the old runtime (timers, sockets) does not work any more.
//! - All changes that are ready are published as one.
//! - A source that fails or ends keeps the last good set. It never makes a balancer fail.
//! - What a source takes out is taken out, if need be down to an empty set: the call then fails with
//!   [`NoEndpoint`](crate::call::NoEndpoint), by the rule that the balancer has for it.
//! - A set that has a source belongs to it: what is put in by hand holds until the source publishes again.

mod list;
mod services;
mod stream;
mod watch;

#[cfg(doc)]
use crate::call::Endpoints;
