//! Which of the candidates gets the next attempt.
//!
//! # This crate's rules
//!
//! Vetoes, and what the call has tried, are seen to before and after they are asked.
//!
//! | rule | picks | looks at |
//! | --- | --- | --- |
//! | [`RoundRobin`] (the default) | one after the other, from the first on | one endpoint |
//! | [`Random`] | any; it is Ribbon's `RandomRule` as well | one |
//! | [`LeastLoaded`] | of two drawn the one with fewer attempts in flight | two |
//!
//! # Ribbon's rules
//!
//! They pick what Ribbon 2.2 picks, one by one, also where that is odd. They [choose
//! alone](Rule::chooses_alone): what a call has tried is nothing to them, and they may choose none. Their "alive" is an
//! endpoint without a [veto](crate::call::Veto); where they do not look at that, it is the veto of a
//! [probe](crate::call::Veto::Probe) alone that is disregarded, since Ribbon knows no other.
//!
//! | rule | first picks of 3 | tripped endpoints | not alive | looks at | source |
//! | --- | --- | --- | --- | --- | --- |
//! | [`RibbonRoundRobin`] | 1, 2, 0 | picked | passed over, at most ten times; then none | one | `RoundRobinRule` |
//! | [`Random`] | by lot | picked | drawn again | one | `RandomRule` |
//! | [`AvailabilityFiltering`] | 1, 2, 0 | passed over; if all are, round all | passed over; if all are, none | one; all if eleven are tripped | `AvailabilityFilteringRule`, `AvailabilityPredicate` |
//! | [`ZoneAvoidance`] | 0, 1, 2 | left out; if all are, round all | picked | all | `ZoneAvoidanceRule`, `ZoneAvoidancePredicate`, `CompositePredicate` |
//! | [`BestAvailable`] | 0, 0, 0 | passed over; if all are, as `RibbonRoundRobin` | picked | all | `BestAvailableRule` |
//! | [`WeightedResponseTime`] | 1, 2, 0 until weights differ, then by lot | picked | drawn again | one; all every 30 s | `WeightedResponseTimeRule` |
//! | [`RibbonRoundRobin`] with [`WhenEmpty::Wait`](super::WhenEmpty::Wait)`(500 ms)` | 1, 2, 0 | picked | asked again for 500 ms, then none | one | `RetryRule` |
//!
//! Spring puts [`ZoneAware`] before each (`ZoneAwareLoadBalancer`). [`RibbonRule`] is any of the seven.
//! [`RibbonStats`] says when an endpoint is tripped (`ServerStats`, `LoadBalancerContext`).
//!
//! Not as in Ribbon: figures of an endpoint live as long as it is in the set (there they go when nobody has asked for
//! 30 min); weights are worked out anew at once when the set has changed (there it goes round until the 30 s are over);
//! and nothing spins where no endpoint can be picked.

mod dice;
mod least_loaded;
mod random;
mod ribbon;
mod round_robin;

use std::{fmt, sync::Arc};

use tokio::time::Instant;

pub use self::{
    least_loaded::LeastLoaded,
    random::Random,
    ribbon::{
        AvailabilityFiltering, BestAvailable, RibbonRoundRobin, RibbonRule, WeightedResponseTime,
        ZoneAvoidance, ZoneAware,
    },
    round_robin::RoundRobin,
};
use super::{
    figures::Figures,
    roster::{Entry, Roster},
    stats::RibbonStats,
};
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
    /// counts on from the first. `None`: none of them is, and the call ends, or waits, as with an
    /// [empty set](super::WhenEmpty).
    ///
    /// It may be asked again for one attempt, if it names a candidate that cannot be had: one with a veto, or one that
    /// the call has tried. If that does not help it is asked with those left out, so that a rule need not look at
    /// [vetoes](Endpoint::eligibility).
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize>;

    /// Is what it picks final? Then it is asked once an attempt, is always shown the whole set, and vetoes and endpoints
    /// that the call has tried are its own business, as with Ribbon's rules. Default: no.
    fn chooses_alone(&self) -> bool {
        false
    }
}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Candidates<'_>) -> usize> Rule for F {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        Some(self(candidates))
    }
}

#[diagnostic::do_not_recommend]
impl<R: Rule + ?Sized> Rule for Arc<R> {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        (**self).pick(candidates)
    }

    #[inline]
    fn chooses_alone(&self) -> bool {
        (**self).chooses_alone()
    }
}

/// The endpoints that a [`Rule`] chooses from, in the order of the set.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    roster: &'a Roster,
    stats: &'a RibbonStats,
    now: Instant,
    /// Some: only the entries at these places.
    places: Option<&'a [usize]>,
}

/// One endpoint that a [`Rule`] may choose.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    entry: &'a Entry,
    stats: &'a RibbonStats,
    now: Instant,
}

impl<'a> Candidates<'a> {
    pub(super) fn all(roster: &'a Roster, stats: &'a RibbonStats, now: Instant) -> Self {
        Candidates {
            roster,
            stats,
            now,
            places: None,
        }
    }

    /// Of the whole set only these.
    pub(super) fn at(self, places: &'a [usize]) -> Self {
        Candidates {
            places: Some(places),
            ..self
        }
    }

    pub(super) fn entries(&self) -> &'a [Entry] {
        self.roster.entries()
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.map_or(self.entries().len(), <[usize]>::len)
    }

    /// Are there none? A rule never sees that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the attempt starts.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The one at this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Candidate<'a>> {
        let entry = self.entries().get(self.place(index)?)?;
        Some(Candidate {
            entry,
            stats: self.stats,
            now: self.now,
        })
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Candidate<'a>> + use<'a> {
        let candidates = *self;
        (0..self.len()).filter_map(move |index| candidates.get(index))
    }

    /// Is none left out?
    fn are_all(&self) -> bool {
        self.places.is_none()
    }

    /// Which state of which set this is about.
    fn roster_id(&self) -> u64 {
        self.roster.id()
    }

    /// The places of the endpoints of each zone of the set.
    fn zones(&self) -> &'a [Box<[usize]>] {
        self.roster.zones()
    }

    /// The load, and the share of tripped endpoints, from which on a zone is bad.
    fn zone_limits(&self) -> (f64, f64) {
        (self.stats.zone_load(), self.stats.zone_blackout())
    }

    /// Where the one at this index is in the set.
    #[inline]
    pub(super) fn place(&self, index: usize) -> Option<usize> {
        match self.places {
            None => Some(index),
            Some(places) => places.get(index).copied(),
        }
    }
}

impl<'a> Candidate<'a> {
    /// The endpoint: its zone, its weight, who has a veto on it.
    pub fn endpoint(&self) -> &'a Endpoint {
        &self.entry.endpoint
    }

    /// How many attempts through this layer are under way to it.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.entry.counters.in_flight()
    }

    /// The number of its zone.
    fn zone(&self) -> usize {
        self.entry.zone
    }

    /// What has been counted about it.
    pub fn figures(&self) -> Figures {
        self.entry.counters.read()
    }

    /// Is it tripped, by the [settings](RibbonStats) of the layer?
    pub fn is_tripped(&self) -> bool {
        self.stats.is_tripped(&self.entry.counters, self.now)
    }

    /// As [`in_flight`](Candidate::in_flight), but none if nothing has started or ended for
    /// [too long](super::RibbonStatsBuilder::active_window).
    pub fn active(&self) -> u64 {
        self.stats.active(&self.entry.counters, self.now)
    }

    /// Is it neither tripped nor at its limit, as far as the [settings](RibbonStats) of the layer say so?
    pub fn is_available(&self) -> bool {
        self.stats.is_available(&self.entry.counters, self.now)
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
            .field("figures", &self.figures())
            .finish()
    }
}
