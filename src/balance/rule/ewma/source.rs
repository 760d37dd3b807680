//! What is drawn from, and what is looked at of it.

use crate::{
    balance::{
        figures::Counters,
        load::Look,
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
    /// One by its weight.
    pub(super) per_weight: f32,
    /// Has it come into a set that others were in before?
    pub(super) late: bool,
}

/// One by its weight.
#[inline]
pub(super) fn per_weight(endpoint: &Endpoint) -> f32 {
    1.0 / i64::from(endpoint.weight()) as f32
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
    pub(super) fn look(&self, nanos: u64) -> Look {
        self.counters.load().look(nanos, self.per_weight)
    }

    /// Zero, unless it is new, or may not be picked.
    #[inline(always)]
    pub(super) fn oddity(&self) -> u64 {
        self.counters.load().newness() | self.endpoint.eligibility().vetoes()
    }

    #[inline(always)]
    fn of(candidate: Candidate<'a>) -> Self {
        Seen {
            endpoint: candidate.endpoint(),
            counters: candidate.counters(),
            per_weight: per_weight(candidate.endpoint()),
            late: candidate.is_late(),
        }
    }
}
