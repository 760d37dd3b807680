//! The servers that calls can go to.

mod address;
mod eligibility;
#[cfg(feature = "endpoints")]
mod in_order;
#[cfg(all(feature = "endpoints", any(feature = "balance", feature = "breaker")))]
mod index;
#[cfg(feature = "endpoints")]
mod members;
#[cfg(feature = "endpoints")]
mod numbers;
mod one;
#[cfg(feature = "endpoints")]
mod room;
#[cfg(feature = "endpoints")]
mod services;
#[cfg(feature = "endpoints")]
mod set;

#[cfg(all(feature = "endpoints", feature = "breaker"))]
pub(crate) use self::in_order::InOrder;
#[cfg(any(feature = "discover", feature = "probe"))]
pub(crate) use self::room::make_room;
#[cfg(feature = "balance")]
pub(crate) use self::services::{Lent, NotNow};
#[cfg(feature = "probe")]
pub(crate) use self::set::feed::{Feeder, Source};
pub use self::{
    address::{Addressed, Affinity, HostHeader, RequestHead, TlsName},
    eligibility::{Eligibility, Veto},
    one::{Endpoint, EndpointBuilder},
};
#[cfg(all(feature = "endpoints", any(feature = "balance", feature = "breaker")))]
pub(crate) use self::{
    index::Index,
    members::{Delta, Member},
    set::Follower,
};
#[cfg(feature = "discover")]
pub(crate) use self::{members::Key, set::Edit};
#[cfg(feature = "endpoints")]
pub use self::{
    services::Services,
    set::{Endpoints, Snapshot},
};
