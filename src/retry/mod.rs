//! Sending a request again: with growing pauses ([`BackoffRetry`], Feign's retryer), or at once on the same and the
//! next endpoints ([`IdempotentRetry`], Ribbon's retries).
//!
//! Both are one loop with two policies: [`Backoff`] and [`Idempotent`]. In a stack the first goes above the load
//! balancer and above the layer that turns statuses into errors, the second directly above the load balancer:
//!
//! ```text
//! BackoffRetry            pauses, heeds Retry-After
//! StatusErrorClassifier   statuses become errors
//! IdempotentRetry         at once: same endpoint, next endpoint
//! LoadBalance
//! ```
//!
//! A policy of your own is a [`RetryPolicy`]; one that was written for `tower::retry` drives the same loop by
//! `RetryLayer::tower`, of the feature `tower-policy`, and decides alone: the rules below are not its rules, save
//! for budget and deadline.
//!
//! # What is sent again
//!
//! A request that may have reached a server is sent again only if it is safe (GET, HEAD, OPTIONS, TRACE) or carries
//! an `Idempotency-Key`. Others are retried if it is proved that nothing was sent: a refused connection, for
//! instance. Idempotent methods (PUT, DELETE) can be added by choice. The presets that reproduce a library have its
//! rule, and say where it is laxer. Case by case: [when is a call sent again?](when_is_a_call_sent_again)
//!
//! Never sent again are calls that a layer on this side rejected (an open circuit, a full bulkhead), those for which
//! no endpoint was found, requests with a [body](#bodies) that cannot be sent again, and retries that the
//! [budget](crate::call::RetryBudget) refuses, the [limit on the attempts](RetryLayer::attempts_in_call) of the whole
//! call forbids, or the deadline leaves no time for. In all these cases the error or
//! the answer of the last attempt is returned as it is, at once; its [trail](crate::call::Trail) says why nothing
//! followed.
//!
//! # How that is tested
//!
//! `tests/at_most_once` makes calls through every preset and nest under seeded faults at every point of an attempt, of all
//! methods, with and without a key, with bodies of all kinds, under churn of the endpoints and with callers that leave. It
//! holds what the servers saw against the rules of these pages, which it has written down for itself. What it must find is
//! nothing: no request sent twice that must not be, none lost that was provably not sent, nothing that goes on when the
//! caller has left, no token, slot, permit or count that is not given back, no body that is not the same. That it does find
//! these is tested on layers that are broken on purpose. Runs of this version (release build, two cores):
//!
//! | calls | transport | seeds | found | took |
//! | --- | --- | --- | --- | --- |
//! | 10,000,000 | simulated | 7 | nothing | 41 s |
//! | 3 times 100,000 | sockets, HTTP/1 and HTTP/2 | 1, 7, 20180601 | nothing | 35 to 37 s each |
//!
//! Retries that a laxer rule makes came as often as that rule says, 599,735 times in the first line. CI makes 1,000,000 and
//! 20,000 calls; `scripts/at_most_once` makes as many as above. Not in it are TLS, reqwest, tonic and policies for
//! `tower::retry`.
//!
//! # Bodies
//!
//! The first attempt sends the body that it was given; it never fails because no copy of it could be made. What a
//! further one sends depends on the body:
//!
//! | body | a further attempt sends | if it does not, the trail says |
//! | --- | --- | --- |
//! | one that is `Clone`, such as `Full<Bytes>` | a clone | |
//! | a stream in a [`ReplayBody`](crate::call::ReplayBody), unread so far | all of it, whatever its size | |
//! | one that was read up to the cap (64 KiB) | what was read, and then the rest | |
//! | one that was read beyond the cap | | [`BodyBeyondCap`](crate::call::NotRetried::BodyBeyondCap) |
//! | one that failed while it was read | | [`BodyNotRepeatable`](crate::call::NotRetried::BodyNotRepeatable) |
//! | one in an [`OnceBody`](crate::call::OnceBody) | | [`BodyNotRepeatable`](crate::call::NotRetried::BodyNotRepeatable) |
//!
//! Trailers are sent again as well, and the length is that of the whole body. Where no retry follows the caller gets
//! the answer or the error of the attempt that was made, never one about a body that was too large. That holds while
//! a retry waits for its time, too: if the upload of the attempt before, which its connection may still be sending,
//! goes beyond the cap, the retry is given up and the error that is known is returned at once.
//!
//! A policy of your own can read the body of an error before it decides: where a `StatusErrorClassifier` is below,
//! [`FailedAttempt::error`] is a [`StatusError`](crate::call::StatusError) with the beginning of the body, and with all
//! of a body up to the classifier's bound. It is the same error that the caller gets in the end.
//!
//! ```
//! use std::time::Duration;
//! use tower_outbound::{
//!     call::{NotRetried, RetryTo, Semantics, StatusError},
//!     retry::{Again, FailedAttempt, RetryPolicy},
//! };
//!
//! /// Tries twice, and pauses for the seconds with which the body of the error begins.
//! #[derive(Debug, Clone)]
//! struct AsTheBodySays;
//!
//! impl RetryPolicy for AsTheBodySays {
//!     fn name(&self) -> &'static str {
//!         "AsTheBodySays"
//!     }
//!
//!     fn may_retry(&self, semantics: Semantics) -> bool {
//!         semantics.is_safe()
//!     }
//!
//!     fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried> {
//!         if failed.attempts() > 1 {
//!             return Err(NotRetried::AttemptsUsedUp { limit: 2 });
//!         }
//!         let error = failed.error().ok_or(NotRetried::NotTransient)?;
//!         let body = StatusError::of(error).map(|status| status.body().as_ref()).unwrap_or_default();
//!         let digits = body.iter().take_while(|byte| byte.is_ascii_digit()).count();
//!         let seconds = std::str::from_utf8(&body[..digits]).ok().and_then(|digits| digits.parse().ok());
//!         let seconds = seconds.ok_or(NotRetried::NotTransient)?;
//!         Ok(Again::new(RetryTo::Anywhere, Duration::from_secs(seconds)))
//!     }
//! }
//! ```
//!
//! # Defaults
//!
//! | | `Backoff` | `Idempotent` |
//! | --- | --- | --- |
//! | attempts in all | 2 | 2: one, and one on the next endpoint |
//! | pause | 0 to 100 ms, then 0 to 200 ms, ... 0 to 1 s; none before the first move to another endpoint where nothing was sent | none |
//! | `Retry-After` | heeded up to 10 s | the same endpoint is left alone |
//! | answers retried | none; see `retry_statuses` | none; see `retry_statuses` |
//! | budget | none; see [`RetryLayer::budget`] | none |
//! | limit on the attempts of the whole call | none; see [`RetryLayer::attempts_in_call`] | none |
//!
//! # What it costs
//!
//! A flat copy of the request, a clone of the service below and a look at the clock for each call that could be
//! retried; no allocation but that of the copy. A policy that never retries costs nothing. What a
//! [`ReplayBody`](crate::call::ReplayBody) adds stands there.
//!
//! An answer that is thrown away is read to its end first, if that takes no more than 8 KiB and 100 ms, so that its
//! connection can be used again.
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_outbound::{
//!     call::RetryBudget,
//!     retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
//! };
//!
//! # tokio_test::block_on(async {
//! # let client = tower::service_fn(|_: http::Request<String>| async {
//! #     Ok::<_, tower::BoxError>(http::Response::new("hello"))
//! # });
//! let budget = RetryBudget::default();
//! let service = ServiceBuilder::new()
//!     .layer(BackoffRetryLayer::new(Backoff::default()).budget(budget.clone()))
//!     .layer(IdempotentRetryLayer::new(Idempotent::default()).budget(budget.clone()))
//!     .service(client);
//! let request = http::Request::get("http://orders/1").body(String::new())?;
//! assert_eq!(service.oneshot(request).await?.into_body(), "hello");
//! # Ok::<(), tower::BoxError>(())
//! # }).unwrap();
//! ```

mod backoff;
mod drive;
mod future;
mod idempotent;
mod layer;
mod pauses;
mod policy;
mod repeats;
mod service;
#[cfg(feature = "tower-policy")]
mod tower_policy;
pub mod when_is_a_call_sent_again;

pub use self::{
    backoff::{Backoff, BackoffBuilder, BackoffRetry, BackoffRetryLayer},
    future::RetryFuture,
    idempotent::{Idempotent, IdempotentRetry, IdempotentRetryLayer},
    layer::RetryLayer,
    pauses::Jitter,
    policy::{Again, FailedAttempt, RetryPolicy},
    service::RetryService,
};

#[cfg(feature = "tower-policy")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower-policy")))]
pub use self::tower_policy::{TowerPolicy, TowerRetry, TowerRetryFuture, TowerRetryLayer};

/// The future of [`BackoffRetry`].
pub type BackoffRetryFuture<S, Req, A = crate::call::AnyAnswer> = RetryFuture<S, Backoff, A, Req>;

/// The future of [`IdempotentRetry`].
pub type IdempotentRetryFuture<S, Req, A = crate::call::AnyAnswer> = RetryFuture<S, Idempotent, A, Req>;
