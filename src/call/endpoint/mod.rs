//! The servers that calls can go to.

mod address;
mod eligibility;
mod one;
#[cfg(feature = "endpoints")]
mod set;

#[cfg(feature = "probe")]
pub(crate) use self::set::feed::{Feeder, Source};
#[cfg(feature = "endpoints")]
pub use self::set::{Endpoints, Snapshot};
pub use self::{
    address::{Addressed, Affinity, HostHeader, RequestHead, TlsName},
    eligibility::{Eligibility, Veto},
    one::{Endpoint, EndpointBuilder},
};
