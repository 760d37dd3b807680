//! What is drawn from, and what is looked at of it.

use crate::{
    balance::{
        figures::Counters,
        rule::{Candidate, Candidates},
    },
    call::Endpoint,
};

/// What is drawn from.
pub(super) trait Source {
    fn len(&self) -> usize;

    /// The one at this index. None: it has gone.
    fn seen(&self, index: usize) -> Option<Seen<'_>>;
}

/// A candidate, as far as it is looked at.
pub(super) struct Seen<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) counters: &'a Counters,
    /// Has it come into a set that others were in before?
    pub(super) late: bool,
}

impl Source for Candidates<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        Candidates::len(self)
    }

    #[inline(always)]
    fn seen(&self, index: usize) -> Option<Seen<'_>> {
        self.get(index).map(Seen::of)
    }
}

impl<'a> Seen<'a> {
    #[inline(always)]
    pub(super) fn is_eligible(&self) -> bool {
        self.endpoint.eligibility().is_eligible()
    }

    #[inline(always)]
    fn of(candidate: Candidate<'a>) -> Self {
        Seen {
            endpoint: candidate.endpoint(),
            counters: candidate.counters(),
            late: candidate.is_late(),
        }
    }
}
