//! What each code counts as.

use crate::call::{GrpcCode, Verdict};

/// What each status of gRPC counts as.
///
/// The default is [`GrpcCode::verdict`], tabled in the [module](super).
///
/// ```
/// use tower_outbound::{call::{GrpcCode, Verdict}, classify::GrpcPolicy};
///
/// let policy = GrpcPolicy::default()
///     .success(GrpcCode::NotFound) // "no such order" is an answer
///     .failure(GrpcCode::Unimplemented);
/// assert_eq!(policy.verdict(GrpcCode::NotFound), Verdict::Success);
/// assert_eq!(policy.verdict(GrpcCode::Unimplemented), Verdict::Failure);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcPolicy {
    verdicts: [Verdict; GrpcCode::ALL.len()],
}

impl Default for GrpcPolicy {
    fn default() -> Self {
        GrpcPolicy {
            verdicts: GrpcCode::ALL.map(GrpcCode::verdict),
        }
    }
}

impl GrpcPolicy {
    /// This code is a success: such an answer stays an answer.
    #[must_use]
    pub fn success(self, code: GrpcCode) -> Self {
        self.with([code], Verdict::Success)
    }

    /// This code is a failure of the server.
    #[must_use]
    pub fn failure(self, code: GrpcCode) -> Self {
        self.with([code], Verdict::Failure)
    }

    /// This code is the caller's fault, or nobody's: it never counts.
    #[must_use]
    pub fn ignored(self, code: GrpcCode) -> Self {
        self.with([code], Verdict::Ignored)
    }

    /// All these codes have this verdict. Of several words on a code the last one counts. `OK` is a success whatever is
    /// said of it.
    #[must_use]
    pub fn with(mut self, codes: impl IntoIterator<Item = GrpcCode>, verdict: Verdict) -> Self {
        for code in codes {
            if code != GrpcCode::Ok {
                self.verdicts[code as usize] = verdict;
            }
        }
        self
    }

    /// What this code counts as.
    #[inline]
    pub fn verdict(&self, code: GrpcCode) -> Verdict {
        self.verdicts[code as usize]
    }
}
