//! Which requests are sent again beyond those that a rule lets pass: one word for both policies.

use super::FailedAttempt;
use crate::call::Semantics;

/// Which requests are sent again although a server may have seen them, beyond those that the rule of the policy lets
/// pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeats {
    /// None.
    AsTheRule,
    /// Those with an idempotent method. RFC 9110, section 9.2.2: they can be repeated automatically where the
    /// connection fails before the answer is read.
    IdempotentMethods,
    /// All. The user has taken the risk.
    Everything,
}

impl Repeats {
    /// Does it let requests with these semantics pass, whatever the rule says?
    #[inline]
    pub(super) fn grants(self, semantics: Semantics) -> bool {
        match self {
            Repeats::AsTheRule => false,
            Repeats::IdempotentMethods => semantics.is_idempotent(),
            Repeats::Everything => true,
        }
    }

    /// The same, for the rule of this crate: nothing was sent, or the request is safe or has a key.
    #[inline]
    pub(super) fn grants_beyond_safe(self, failed: &FailedAttempt<'_>) -> bool {
        failed.is_safe_to_repeat() || self.grants(failed.semantics())
    }

    /// Which requests those are, in words.
    pub(super) fn beyond_safe(self) -> &'static str {
        match self {
            Repeats::AsTheRule => "safe and keyed requests, others if nothing was sent",
            Repeats::IdempotentMethods => "idempotent and keyed requests, others if nothing was sent",
            Repeats::Everything => "any request",
        }
    }
}
