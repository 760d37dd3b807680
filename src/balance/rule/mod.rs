//! Which of the candidates gets the next attempt.

mod dice;
mod least_loaded;
mod random;
mod round_robin;

use std::{fmt, sync::Arc};

pub use self::{least_loaded::LeastLoaded, random::Random, round_robin::RoundRobin};
use super::roster::Entry;
use crate::call::Endpoint;

/// Chooses among candidates.
///
/// A rule is shared by all services and clones of a layer and is asked on each attempt: state belongs into atomics.
/// A closure `Fn(&Candidates<'_>) -> usize` is a rule:
///
/// ```
/// use tower_outbound::balance::{Candidates, LoadBalanceLayer};
/// use tower_outbound::call::Endpoints;
///
/// // Always the one with the fewest attempts in flight; the first of several.
/// let best_available = |candidates: &Candidates<'_>| {
///     let load = candidates.iter().map(|candidate| candidate.in_flight());
///     load.enumerate().min_by_key(|&(_, load)| load).map_or(0, |(index, _)| index)
/// };
/// let layer = LoadBalanceLayer::new(Endpoints::new()).rule(best_available);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rule of a balancer",
    label = "not a `Rule`",
    note = "a closure `|candidates: &Candidates<'_>| -> usize` is one; write out the type of its argument"
)]
pub trait Rule {
    /// The index of the one that is to get the attempt. There is at least one candidate; an index beyond the last
    /// counts on from the first.
    ///
    /// It may be asked again for one attempt, if it names a candidate that cannot be had: one with a veto, or one that
    /// the call has tried. If that does not help it is asked with those left out, so that a rule need not look at
    /// [vetoes](Endpoint::eligibility).
    fn pick(&self, candidates: &Candidates<'_>) -> usize;
}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Candidates<'_>) -> usize> Rule for F {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> usize {
        self(candidates)
    }
}

#[diagnostic::do_not_recommend]
impl<R: Rule + ?Sized> Rule for Arc<R> {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> usize {
        (**self).pick(candidates)
    }
}

/// The endpoints that a [`Rule`] chooses from, in the order of the set.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    entries: &'a [Entry],
    /// Some: only the entries at these places.
    places: Option<&'a [usize]>,
}

/// One endpoint that a [`Rule`] may choose.
#[derive(Clone, Copy)]
pub struct Candidate<'a>(&'a Entry);

impl<'a> Candidates<'a> {
    pub(super) fn all(entries: &'a [Entry]) -> Self {
        Candidates {
            entries,
            places: None,
        }
    }

    pub(super) fn at(entries: &'a [Entry], places: &'a [usize]) -> Self {
        Candidates {
            entries,
            places: Some(places),
        }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.map_or(self.entries.len(), <[usize]>::len)
    }

    /// Are there none? A rule never sees that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one at this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Candidate<'a>> {
        let place = match self.places {
            None => index,
            Some(places) => *places.get(index)?,
        };
        self.entries.get(place).map(Candidate)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Candidate<'a>> + use<'a> {
        let candidates = *self;
        (0..self.len()).filter_map(move |index| candidates.get(index))
    }
}

impl<'a> Candidate<'a> {
    /// The endpoint.
    pub fn endpoint(&self) -> &'a Endpoint {
        &self.0.endpoint
    }

    /// How many attempts through this layer are under way to it.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.0.counters.in_flight()
    }
}

impl fmt::Debug for Candidates<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Candidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("endpoint", self.endpoint())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
