//! What is asked of an endpoint: less and less, where none has it all.

use super::{pick::Tried, roster::Entry};
use crate::call::Veto;

/// The vetoes may be the fault of whoever gave them: if all endpoints have one they count for nothing, but for those on
/// what is being taken out of service, which comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// No veto, and the call has not tried it.
    CanBeHad,
    NoVeto,
    /// It is not being taken out of service.
    StaysUntried,
    Stays,
    Untried,
    Nothing,
}

impl Demand {
    /// Those that come in turn where none can be had.
    pub(super) const IN_TURN: [Demand; 5] = [
        Demand::NoVeto,
        Demand::StaysUntried,
        Demand::Stays,
        Demand::Untried,
        Demand::Nothing,
    ];

    #[inline]
    pub(super) fn is_met(self, entry: &Entry, tried: Tried<'_>) -> bool {
        let has_no_veto = || entry.endpoint.eligibility().is_eligible();
        let is_untried = || !tried.contains(&entry.endpoint);
        match self {
            Demand::CanBeHad => has_no_veto() && is_untried(),
            Demand::NoVeto => has_no_veto(),
            Demand::StaysUntried => stays(entry) && is_untried(),
            Demand::Stays => stays(entry),
            Demand::Untried => is_untried(),
            Demand::Nothing => true,
        }
    }
}

/// It is not being taken out of service.
fn stays(entry: &Entry) -> bool {
    !entry.endpoint.eligibility().is_forbidden_by(Veto::Drain)
}
