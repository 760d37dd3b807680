//! Reading an answer's body as a part of the call.
//!
//! A call has ended with the head of its answer; what happens to the body after that is its reader's business. So a
//! body that breaks off or stalls is no failure of the call: no breaker counts it, no fallback answers, no limit on
//! the execution covers it. A [`CollectBody`] reads the body before the call ends, as a client does that decodes its
//! answers (Feign), and makes such a body the call's error: [`AnswerBodyFailed`].
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_outbound::collect::CollectBodyLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::call::BoxError> {
//! let client = service_fn(|_: Request<()>| async {
//!     Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("seven"))))
//! });
//! let response = CollectBodyLayer::new().layer(client).oneshot(Request::new(())).await?;
//! assert_eq!(response.body().bytes().map(|bytes| &bytes[..]), Some(&b"seven"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What is read
//!
//! | setting | reads | as Feign with the return type |
//! | --- | --- | --- |
//! | [`CollectBodyLayer::new`] | the whole body, up to 16 MiB or what [`max_body`](CollectBodyLayer::max_body) says | any that is decoded |
//! | [`known_up_to(n)`](CollectBodyLayer::known_up_to) | a body whose length was announced, and is at most `n`; others are handed over as they are | `Response`, with `n` = 8192 |
//! | [`unread`](CollectBodyLayer::unread) | nothing: the body is dropped | `void` |
//! | [`unread_status(404)`](CollectBodyLayer::unread_status) | nothing of an answer with that status | any, with `decode404` |
//!
//! Trailers are kept. A body that is longer than the bound is an error,
//! [`AnswerTooLarge`], at once if its length was announced.
//!
//! # Where it stands
//!
//! Below the breaker, the limit on the execution and the bulkhead, which thereby cover the body. Above the layers that
//! retry, since an answer that has begun is not asked for again; below one of them, a request that is safe to repeat
//! would be sent again when its answer breaks off. Above a `StatusErrorClassifierLayer`, which reads the bodies of
//! errors itself. A `ReadTimeoutLayer` below limits the gaps; without one, and without a limit on the execution, a body
//! that stalls is waited for without end.
//!
//! In the trail of the call the attempt whose answer broke off has failed.
//!
//! # Cost
//!
//! A body that comes in one piece is handed on as it is. One in several is copied into one piece, once.

mod body;
mod future;
mod gather;
mod layer;
mod service;

pub use self::{
    body::CollectedBody, future::CollectBodyFuture, layer::CollectBodyLayer, service::CollectBody,
};
#[doc(no_inline)]
pub use crate::call::{AnswerBodyFailed, AnswerTooLarge};
