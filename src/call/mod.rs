//! The ground floor: what all layers share, and none of it depends on a layer.
//!
//! | question | answered by |
//! | --- | --- |
//! | What went wrong, and could a server have seen it? | [`Fault`], [`Sent`] |
//! | What is there to go wrong, and what follows? | [`what_went_wrong`] |
//! | What does an outcome count as? | [`Verdict`], [`Classify`], [`LateVerdict`] |
//! | How much time is left, and where did the last attempt go? | [`CallScope`] |
//! | How is that told to the next process? | [`DeadlineHeader`] |
//! | What happened in this call? | [`Trail`] |
//! | May this request be sent again? | [`OutboundRequest`], [`Semantics`] |
//! | Where can it go? | [`Endpoint`], `Endpoints`, `Services` |
//! | What does it want otherwise than the stack is set? | [`Overrides`] |
//! | Is an answer one to be retried? | [`ReadAnswer`] |
//! | Is there room for another retry? | [`RetryBudget`] |
//!
//! A **call** is what the caller asked for; an **attempt** is one sending of it. The two are never mixed.

mod answer;
mod body;
mod budget;
pub(crate) mod config;
pub mod connecting;
mod deadline_header;
mod endpoint;
mod fault;
pub mod grpc;
pub mod grpc_timeout;
mod late;
pub(crate) mod millis;
mod overrides;
mod request;
pub mod retry_after;
pub mod scope;
mod status;
pub(crate) mod timer;
mod trail;
mod verdict;
pub mod what_went_wrong;

#[cfg(feature = "classify")]
pub(crate) use self::body::Prefix;
#[cfg(feature = "timeout")]
pub use self::body::UploadBody;
#[cfg(feature = "timeout")]
pub(crate) use self::body::{IN_HAND, Upload};
#[cfg(feature = "retry")]
#[cfg_attr(docsrs, doc(cfg(feature = "retry")))]
pub use self::body::{KeptReplay, ReplayBody};
#[cfg(all(feature = "endpoints", feature = "breaker"))]
pub(crate) use self::endpoint::InOrder;
#[cfg(any(feature = "discover", feature = "probe"))]
pub(crate) use self::endpoint::make_room;
#[cfg(all(feature = "endpoints", any(feature = "balance", feature = "breaker")))]
pub(crate) use self::endpoint::{Delta, Follower, Index, Member};
#[cfg(feature = "discover")]
pub(crate) use self::endpoint::{Edit, Key};
#[cfg(feature = "endpoints")]
pub use self::endpoint::{Endpoints, Services, Snapshot};
#[cfg(feature = "probe")]
pub(crate) use self::endpoint::{Feeder, Source};
#[cfg(feature = "balance")]
pub(crate) use self::endpoint::{Lent, NotNow};
#[cfg(feature = "balance")]
pub(crate) use self::fault::is_connection_failure;
#[cfg(feature = "retry")]
pub(crate) use self::fault::is_socket_fault;
pub use self::{
    answer::{AnyAnswer, ReadAnswer},
    body::{DrainBody, OnceBody, RepeatBody},
    budget::{BudgetSlot, Earned, RetryBudget, RetryBudgetBuilder},
    config::{ConfigError, LONGEST},
    deadline_header::DeadlineHeader,
    endpoint::{
        Addressed, Affinity, Eligibility, Endpoint, EndpointBuilder, HostHeader, RequestHead, TlsName, Veto,
    },
    fault::{
        AnswerBodyFailed, AnswerTooLarge, BulkheadFull, CircuitOpen, CircuitState, ConnectTimedOut,
        ExecutionTimedOut, FallbackFailed, FallbackRejected, Fault, FaultError, FaultKind, GrpcError,
        NoEndpoint, NoTimeLeft, NotReady, ReadPhase, ReadTimedOut, Rejection, RequestBodyFailed, Sent,
        StatusError, WriteTimedOut, chain,
    },
    grpc::GrpcCode,
    late::{LateVerdict, OpenVerdict},
    overrides::{AnyRequest, CarriesOverrides, Overrides, PerRequest, ReadOverrides},
    request::{IDEMPOTENCY_KEY, KeptRequest, NotRepeatable, OutboundRequest, Semantics},
    scope::CallScope,
    status::StatusSet,
    trail::{Attempt, AttemptOutcome, CallFailed, Event, NotRetried, Retry, RetryTo, Stop, Trail},
    verdict::{ByFault, ByTrailers, Classify, ErrorRef, Verdict},
};
pub use tower::BoxError;
