//! What the loop asks a policy.

use std::fmt;

use tokio::time::Duration;

use crate::call::{ErrorRef, Fault, FaultKind, NotRetried, Overrides, RetryTo, Semantics, Sent};

/// Decides whether a request is sent again, and when.
///
/// A policy keeps nothing of a call: the loop counts, and hands it what it has counted. It is cloned for each
/// call, so it should be small.
///
/// Before it is asked the loop has seen to it that no rejection by a layer on this side is retried. Its
/// answer is then held against the limit on the attempts of the call, the deadline, the body and the budget. A policy
/// of your own is a few lines:
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{
///     call::{FaultKind, NotRetried, RetryTo, Semantics},
///     retry::{Again, FailedAttempt, RetryLayer, RetryPolicy},
/// };
///
/// /// Knocks twice where nobody answered the door.
/// #[derive(Debug, Clone)]
/// struct KnockTwice;
///
/// impl RetryPolicy for KnockTwice {
///     fn name(&self) -> &'static str {
///         "KnockTwice"
///     }
///
///     fn may_retry(&self, _: Semantics) -> bool {
///         true
///     }
///
///     fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried> {
///         if failed.fault().kind() != FaultKind::ConnectRefused {
///             Err(NotRetried::NotTransient)
///         } else if failed.attempts() >= 2 {
///             Err(NotRetried::AttemptsUsedUp { limit: 2 })
///         } else {
///             Ok(Again::new(RetryTo::Anywhere, Duration::from_millis(10)))
///         }
///     }
/// }
///
/// let layer = RetryLayer::new(KnockTwice);
/// # let _ = layer;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no retry policy",
    label = "not a `RetryPolicy`",
    note = "`Backoff` and `Idempotent` are; give a `tower::retry::Policy` to `RetryLayer::tower`, of the feature `tower-policy`"
)]
pub trait RetryPolicy: Clone {
    /// The name of the layer, for trails and errors.
    fn name(&self) -> &'static str;

    /// Could a request with these semantics be sent again at all? If not, no copy of it is kept.
    fn may_retry(&self, semantics: Semantics) -> bool;

    /// Does it never retry anything? Then calls go straight through. Default: no.
    fn never_retries(&self) -> bool {
        false
    }

    /// An attempt failed. Shall another one follow?
    ///
    /// # Errors
    ///
    /// The reason why not.
    fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried>;

    /// Should a retry prefer endpoints that the call has not tried? Read by a load balancer below. Default: yes.
    fn prefers_untried(&self) -> bool {
        true
    }

    /// This policy, as a request wants it for its call alone. `None`: nothing of that is for this policy. Default: so.
    fn overridden(&self, overrides: &Overrides) -> Option<Self> {
        let _ = overrides;
        None
    }
}

/// An attempt that failed, and what came before it.
pub struct FailedAttempt<'a> {
    pub(super) semantics: Semantics,
    pub(super) fault: Fault,
    pub(super) may_have_been_sent: bool,
    pub(super) error: Option<ErrorRef<'a>>,
    pub(super) attempts: u64,
    pub(super) here: u32,
    pub(super) moves: u32,
    pub(super) paused: Duration,
    pub(super) can_move_on: bool,
    pub(super) had_a_choice: bool,
}

impl<'a> FailedAttempt<'a> {
    /// What the request may do to a server.
    pub fn semantics(&self) -> Semantics {
        self.semantics
    }

    /// What went wrong.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// The error. `None`: the fault was read off an answer.
    pub fn error(&self) -> Option<ErrorRef<'a>> {
        self.error
    }

    /// How many attempts this layer has made in this call. 1 or more.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// How many of them in a row, up to this one, were meant for the same endpoint. 1 or more.
    pub fn attempts_here(&self) -> u64 {
        self.here.into()
    }

    /// How often a retry was to go to the next endpoint.
    pub fn moves(&self) -> u64 {
        self.moves.into()
    }

    /// The pause that this layer made before the attempt. Zero: none, or it was the first.
    pub fn paused(&self) -> Duration {
        self.paused
    }

    /// Has the call been to one endpoint alone so far, and did the load balancer below have others to pick from?
    pub fn can_move_on(&self) -> bool {
        self.can_move_on
    }

    /// Did the load balancer below have others to pick from than the endpoint that failed?
    pub(super) fn had_a_choice(&self) -> bool {
        self.had_a_choice
    }

    /// May a server have seen the request, in this attempt or in one before it in this call?
    pub fn may_have_been_sent(&self) -> bool {
        self.may_have_been_sent || self.fault.sent() == Sent::Maybe
    }

    /// May the request be sent again as far as invariants go: it cannot have reached a server, or it is safe, or it
    /// carries an idempotency key?
    pub fn is_safe_to_repeat(&self) -> bool {
        !self.may_have_been_sent() || self.semantics.is_safe() || self.semantics.is_keyed()
    }

    /// Is the fault a status, read off an answer or an error?
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.fault.kind(), FaultKind::Status(_) | FaultKind::Grpc(_))
    }
}

impl fmt::Debug for FailedAttempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedAttempt")
            .field("semantics", &self.semantics)
            .field("fault", &self.fault)
            .field("attempts", &self.attempts)
            .field("attempts_here", &self.here)
            .field("moves", &self.moves)
            .finish_non_exhaustive()
    }
}

/// The request is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    to: RetryTo,
    pause: Duration,
}

impl Again {
    /// There, after this pause, counted from the end of the attempt.
    pub fn new(to: RetryTo, pause: Duration) -> Self {
        Again { to, pause }
    }

    /// Where it goes. The same endpoint is a wish to the load balancer below.
    pub fn to(&self) -> RetryTo {
        self.to
    }

    /// The pause before it, counted from the end of the attempt.
    pub fn pause(&self) -> Duration {
        self.pause
    }
}
