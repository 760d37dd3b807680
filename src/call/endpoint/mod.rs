//! The servers that calls can go to.

mod address;
mod eligibility;
mod one;
#[cfg(feature = "endpoints")]
mod services;
#[cfg(feature = "endpoints")]
mod set;

#[cfg(feature = "balance")]
pub(crate) use self::services::{Lent, NotNow};
pub use self::{
    address::{Addressed, Affinity, HostHeader, RequestHead, TlsName},
    eligibility::{Eligibility, Veto},
    one::{Endpoint, EndpointBuilder},
};
#[cfg(feature = "endpoints")]
pub use self::{
    services::Services,
    set::{Endpoints, Snapshot},
};
