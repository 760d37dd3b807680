//! Balancing over ready-made services, one an endpoint.

mod future;
mod search;
mod service;
mod view;

pub use self::{
    future::BalanceServicesFuture,
    service::BalanceServices,
    view::{AnyRequest, ByHead, RequestView},
};
