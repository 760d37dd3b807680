//! Limits on how long things may take: [`ConnectTimeout`], [`ReadTimeout`], [`ExecutionTimeout`]; and the deadline from
//! process to process: [`SendDeadline`], [`ReceiveDeadline`].
//!
//! One number for "the timeout" is always wrong: a connection that does not come about shows within a second, a slow
//! answer may be worth ten, and a caller that has waited for three attempts has waited long enough whatever the
//! third one does. So there are three limits. Each covers what the others do not.
//!
//! | what takes the time | [`ConnectTimeout`] | [`ReadTimeout`] | [`ExecutionTimeout`] |
//! | --- | --- | --- | --- |
//! | resolving the name, all addresses, TLS | **the limit** on all of it together | does not count | counts |
//! | sending the request body | | does not count; a stall by [`write_limit`](ReadTimeoutLayer::write_limit) | counts |
//! | from the sent request to the head of the response | | **the limit** | counts |
//! | each gap between two frames of the response body | | **the limit**, anew for each | |
//! | the response body as a whole | | by [`body_limit`](ReadTimeoutLayer::body_limit) | |
//! | a reader that does not read | | does not count; counts for the whole body | |
//! | retries, the pauses before them, waits for an endpoint | | each attempt has a limit of its own | counts |
//! | stands | around the connector | next to the client | above the retries |
//! | error | [`ConnectTimedOut`] | [`ReadTimedOut`], [`WriteTimedOut`] | [`ExecutionTimedOut`] |
//! | could a server have seen the request? | no, and that is proved | maybe | maybe |
//!
//! There is no default: every limit is given. All of them count on tokio's clock, whose timers go off within a
//! millisecond after their time. On a tie the result wins over the limit, since what is inside is polled first
//! ([`ExecutionTimeoutLayer::hystrix`] has it the other way round, as Hystrix does).
//!
//! # Which one ends a call?
//!
//! [`ExecutionTimeout`] sets the deadline of the call, which all layers below see
//! ([`scope::deadline`](crate::call::scope::deadline)). A [`ReadTimeout`] whose limit would go off at the deadline or
//! after it leaves the call to the owner of the deadline, so that the error names the limit that ran out. Whoever
//! sets a deadline by hand has to end the call at it. Where the deadline has passed already nothing is sent:
//! [`NoTimeLeft`].
//!
//! A connection that takes longer than the read limit is no read timeout, so equal limits on a host that swallows
//! packets give the connect timeout. [`ConnectTimeout`] tells [`ReadTimeout`] so by a flag on the thread, as
//! [`connecting`](crate::call::connecting) explains. Without one, and for a request that waits for a connection
//! which another request is making (HTTP/2), the read limit counts from the call.
//!
//! # From process to process
//!
//! [`SendDeadline`], below the retries, writes the time that is left into each attempt, as `grpc-timeout` or as
//! milliseconds in a header of your own. [`ReceiveDeadline`], around the service of a server, reads it: whatever is
//! called while the request is served keeps to it, and tells the next. Both can keep a margin for the way.
//!
//! # For one call alone
//!
//! A request can carry limits of its own: [`Overrides`](crate::call::Overrides) in its extensions. [`ReadTimeout`] heeds
//! them; [`ExecutionTimeout`] takes requests of any type, so it has to be told to
//! ([`per_request`](ExecutionTimeoutLayer::per_request)).
//!
//! # Compared with others
//!
//! - `tower::timeout::Timeout` is one limit from the call to the head of the response. It does not know what it
//!   waits for: a slow upload and a slow connect trip it, a body that stalls does not. It polls what is inside first as
//!   well, makes its timer for every call even if the answer is there at once, and sets no deadline.
//! - `tower_http::timeout::TimeoutLayer` is the same for servers: it answers with a status in place of an error.
//! - `tower_http::timeout::ResponseBodyTimeoutLayer` limits each gap in a response body, as [`ReadBody`] does; the head
//!   needs another layer. Its body is not `Unpin`; [`ReadBody`] is where the body inside is.
//! - reqwest's `timeout` is one limit over connect, head and whole body, its `read_timeout` one on the head and each
//!   gap, which an upload trips.
//!
//! # What is paid when nothing goes wrong
//!
//! A timer is made when something has to be waited for, and not before. It lies inside the future of the call.
//! Nothing is left behind by a call that has ended, however long its limit was. [`ReadTimeout`] allocates one signal
//! for a request body that is not in hand, and one timer for a response body that has to be waited for (which keeps
//! the body `Unpin` and the response small); [`ConnectTimeout`] one timer for each connection; [`SendDeadline`] the value
//! of its header.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{Empty, Full};
//! use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::{
//!     call::UploadBody,
//!     timeout::{ExecutionTimeoutLayer, ReadTimeoutLayer},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // Your client stands here; its connector is where `ConnectTimeoutLayer` goes.
//! let client = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| async {
//!     Ok::<_, BoxError>(Response::new(Full::new(Bytes::from("hello"))))
//! });
//! let mut orders = ServiceBuilder::new()
//!     .layer(ExecutionTimeoutLayer::new(Duration::from_secs(30))?)
//!     // Retries go here.
//!     .layer(ReadTimeoutLayer::new(Duration::from_secs(5))?)
//!     .service(client);
//!
//! let response = orders.ready().await?.call(Request::new(Empty::new())).await?;
//! assert!(response.status().is_success());
//! # Ok(())
//! # }
//! ```

mod connect;
mod deadline;
mod execution;
mod read;

pub use self::{
    connect::{ConnectTimeout, ConnectTimeoutFuture, ConnectTimeoutLayer},
    deadline::{
        ReceiveDeadline, ReceiveDeadlineFuture, ReceiveDeadlineLayer, SendDeadline, SendDeadlineFuture,
        SendDeadlineLayer,
    },
    execution::{ExecutionTimeout, ExecutionTimeoutFuture, ExecutionTimeoutLayer},
    read::{ReadBody, ReadTimeout, ReadTimeoutFuture, ReadTimeoutLayer},
};
#[doc(no_inline)]
pub use crate::call::{
    ConnectTimedOut, ExecutionTimedOut, NoTimeLeft, ReadTimedOut, UploadBody, WriteTimedOut,
};
