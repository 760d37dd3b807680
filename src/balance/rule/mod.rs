//! Which of the candidates gets the next attempt.
//!
//! # This crate's rules
//!
//! Vetoes, and what the call has tried, are seen to before and after they are asked.
//!
//! | rule | picks | looks at |
//! | --- | --- | --- |
//! | [`Ewma`] (the default) | of fourteen drawn the one that is likely to answer soonest | fourteen endpoints |
//! | [`LeastLoaded`] | of two drawn, or more, the one with the fewest attempts in flight | two |
//! | [`RoundRobin`] | one after the other, from the first on | one |
//! | [`WeightedRoundRobin`] | the same, each as often as its weight says | one |
//! | [`Random`] | any; it is Ribbon's `RandomRule` as well | one |
//! | [`WeightedRandom`] | any, each as likely as its weight says | one |
//! | [`ConsistentHash`] | always the same for requests that belong together, by weight, within bounds | a few; all if it must look further |
//!
//! None takes a lock, and none looks at more when there are more endpoints.
//!
//! Two show another rule a part of the set, and others if that is too small. They are put around any rule, and around
//! each other:
//!
//! | rule | shows | what it adds to a pick |
//! | --- | --- | --- |
//! | [`ZoneFirst`] | the own zone, and for what is too much for it the other zones | no look at an endpoint |
//! | [`Only`] by descriptions | those that pass; if they are too few, others | no look |
//! | [`Only`] by live figures | the same | a look at all |
//!
//! [`Ewma`] draws from all of a part that it is shown, however large.
//!
//! What is worked out for a set (turns, a ring, who is in a zone) is worked out when it has changed, by the next pick. Of
//! a set with more than 256 endpoints it is used for 20 us for each endpoint at least, which is 200 ms with ten thousand: so
//! however often that changes, it costs one or two hundredths of a processor. Until then newcomers, and other weights, zones and
//! metadata of those that stay, are not seen to. One that has gone is never picked.
//!
//! Where no more than one in 64 of more than 256 endpoints is without a veto, who that is, or that there is none, is looked
//! up once in 1 us for each endpoint of the set, which is 10 ms with ten thousand, and after a change. Until then calls stay
//! with those, and one whose veto has been taken back is not picked. A new veto counts at once.
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

mod bound;
mod consistent_hash;
mod dice;
mod ewma;
mod from_fn;
mod least_loaded;
mod memo;
mod only;
mod part;
mod random;
mod ribbon;
mod round_robin;
mod steady;
mod weighted_random;
mod weighted_round_robin;
mod zone_first;

use std::{fmt, sync::Arc};

use tokio::time::{Duration, Instant};

pub use self::{
    consistent_hash::ConsistentHash,
    ewma::{Ewma, EwmaBuilder},
    from_fn::{FromFn, from_fn},
    least_loaded::LeastLoaded,
    only::Only,
    random::Random,
    ribbon::{
        AvailabilityFiltering, BestAvailable, RibbonRoundRobin, RibbonRule, WeightedResponseTime,
        ZoneAvoidance, ZoneAware,
    },
    round_robin::RoundRobin,
    weighted_random::WeightedRandom,
    weighted_round_robin::WeightedRoundRobin,
    zone_first::ZoneFirst,
};
use super::{
    figures::{Counters, Figures, Moment},
    pick::{Shortcut, Tried},
    roster::{Entry, Latest, Pool, Roster, Seat},
    stats::RibbonStats,
    subset::Subset,
};
use crate::call::{Addressed, Affinity, Endpoint, RequestHead};

/// Chooses among candidates.
///
/// To narrow the choice of a rule that is there already, see [`Only`] and [`ZoneFirst`].
///
/// A rule is shared by all services and clones of a layer and is asked on each attempt: state belongs into atomics, and
/// what is costly to work out can be kept by the [number](Candidates::id) of the candidates. It sees the
/// [request](Candidates::request), the [time](Candidates::now), the figures about the endpoints, and [what the call has
/// tried](Candidate::was_tried). An `Arc` of a rule is one (`Arc<dyn Rule + Send + Sync>`, where it comes out of a
/// configuration), and so is a closure `Fn(&Candidates<'_>) -> usize` whose argument has its type written out:
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
///
/// Around one that may choose none goes [`from_fn`]. Or write a type, where there is state, or something to say of the [decay](Rule::decay):
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::balance::{Candidates, Rule};
///
/// /// Reads go to the fastest, or to one that was never asked; everything else goes to the first.
/// struct FastReads;
///
/// impl Rule for FastReads {
///     fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
///         if !candidates.request().is_some_and(|head| head.semantics().is_safe()) {
///             return Some(0);
///         }
///         let times = candidates.iter().map(|candidate| candidate.response_time());
///         times.enumerate().min_by_key(|&(_, time)| time).map(|(index, _)| index)
///     }
///     fn decay(&self) -> Duration {
///         Duration::from_secs(10)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rule of a balancer",
    label = "not a `Rule`",
    note = "a closure `|candidates: &Candidates<'_>| -> usize` is one; write out the type of its argument",
    note = "`Arc<dyn Rule + Send + Sync>` is one, a `Box` is none; `rule::from_fn(|candidates| ..)` makes one that may choose none"
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

    /// Within what time the [response times](Candidate::response_time) that it looks at are forgotten: after that long
    /// one of before has a weight of 37 % (1/e). Default: 1 s.
    fn decay(&self) -> Duration {
        DECAY
    }

    /// The one that it picks of the whole set, if that is at hand and need not be looked for. Not for rules of others.
    #[doc(hidden)]
    #[inline]
    fn shortcut(&self, _: &Candidates<'_>) -> Option<Shortcut> {
        None
    }
}

const DECAY: Duration = Duration::from_secs(1);

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

    #[inline]
    fn decay(&self) -> Duration {
        (**self).decay()
    }

    #[inline]
    fn shortcut(&self, candidates: &Candidates<'_>) -> Option<Shortcut> {
        (**self).shortcut(candidates)
    }
}

/// The endpoints that a [`Rule`] chooses from, in the order of the set.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    pool: &'a Pool,
    latest: &'a Latest,
    roster: &'a Roster,
    request: &'a dyn Addressed,
    tried: Tried<'a>,
    now: &'a Moment,
    /// Some: only some of the entries.
    part: Option<Shown<'a>>,
}

/// Which entries are shown where not all are.
#[derive(Clone, Copy)]
enum Shown<'a> {
    /// Those at these places.
    Places {
        /// None: they have been put together for this pick.
        id: Option<u64>,
        places: &'a [usize],
    },
    /// Those that were in these seats when the set was another. Some may have gone, but not all.
    Seats { id: u64, seats: &'a [Seat] },
}

/// One endpoint that a [`Rule`] may choose.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    entry: &'a Entry,
    place: usize,
    roster: &'a Roster,
    stats: &'a RibbonStats,
    tried: Tried<'a>,
    now: &'a Moment,
}

impl<'a> Candidates<'a> {
    pub(super) fn all(
        pool: &'a Pool,
        latest: &'a Latest,
        request: &'a dyn Addressed,
        tried: Tried<'a>,
        now: &'a Moment,
    ) -> Self {
        Candidates {
            pool,
            latest,
            roster: latest,
            request,
            tried,
            now,
            part: None,
        }
    }

    /// Of the whole set only these, for this pick.
    pub(super) fn at(self, places: &'a [usize]) -> Self {
        self.part(Shown::Places { id: None, places })
    }

    #[inline]
    fn part(self, shown: Shown<'a>) -> Self {
        Candidates {
            part: Some(shown),
            ..self
        }
    }

    pub(super) fn roster(&self) -> &'a Roster {
        self.roster
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        match self.part {
            None => self.roster.len(),
            Some(Shown::Places { places, .. }) => places.len(),
            Some(Shown::Seats { seats, .. }) => seats.len(),
        }
    }

    /// Are there none? A rule never sees that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that stands for just these candidates in this order, so that a rule can keep what it has worked out about
    /// them: no others have it in this process, and after a change of the set, or of the
    /// [description](Candidate::endpoint) of one of them, it is another. `None`: they have been put together for this pick.
    ///
    /// A part that a rule such as [`Only`] or [`ZoneFirst`] shows of a set of more than 256 keeps its number for up to 20 us
    /// for each endpoint of the set, if that changes more often: newcomers are not in it so long, and for one that has
    /// gone another one of the part is seen twice.
    #[inline]
    pub fn id(&self) -> Option<u64> {
        match self.part {
            None => Some(self.roster.id()),
            Some(Shown::Places { id, .. }) => id,
            Some(Shown::Seats { id, .. }) => Some(id),
        }
    }

    /// The head of the request that is to be sent. `None`: it is of a [type](Addressed::head) that shows none.
    pub fn request(&self) -> Option<RequestHead<'a>> {
        self.request.head()
    }

    /// Which requests it [belongs together with](Affinity).
    pub fn affinity(&self) -> Option<Affinity> {
        self.request.affinity()
    }

    /// When the attempt starts. A rule reads no clock.
    pub fn now(&self) -> Instant {
        self.now.instant
    }

    /// The one at this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Candidate<'a>> {
        let place = self.place(index)?;
        let entry = self.roster.get(place)?;
        Some(Candidate {
            entry,
            place,
            roster: self.roster,
            stats: &self.pool.stats,
            tried: self.tried,
            now: self.now,
        })
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Candidate<'a>> + use<'a> {
        let candidates = *self;
        (0..self.len()).filter_map(move |index| candidates.get(index))
    }

    /// When the attempt starts, in nanoseconds, as the counters have it.
    #[inline]
    fn nanos(&self) -> u64 {
        self.now.nanos
    }

    /// Which endpoints the call has tried.
    #[inline]
    fn tried(&self) -> Tried<'a> {
        self.tried
    }

    /// Is none left out?
    #[inline]
    fn are_all(&self) -> bool {
        self.part.is_none()
    }

    /// Which state of which set this is about.
    #[inline]
    fn roster_id(&self) -> u64 {
        self.roster.id()
    }

    /// What a rule draws from in place of the whole set.
    #[inline]
    fn subset(&self) -> Option<&'a Subset> {
        self.latest.subset()
    }

    /// The one that has been published since, if there is one.
    fn newer_subset(&self) -> Option<Arc<Subset>> {
        self.pool.roster().other_subset(self.subset()).cloned()
    }

    /// From the next pick on a rule draws from this one.
    fn keep_subset(&self, subset: &Arc<Subset>) {
        self.pool.keep_subset(self.subset(), subset);
    }

    /// The places of the endpoints of each zone of the set. Sorted at the first question after a change.
    fn zones(&self) -> &'a [Box<[usize]>] {
        self.roster.zones()
    }

    /// The load, and the share of tripped endpoints, from which on a zone is bad.
    fn zone_limits(&self) -> (f64, f64) {
        (self.pool.stats.zone_load(), self.pool.stats.zone_blackout())
    }

    /// Where the one at this index is in the set.
    #[inline]
    pub(super) fn place(&self, index: usize) -> Option<usize> {
        match self.part {
            None => Some(index),
            Some(Shown::Places { places, .. }) => places.get(index).copied(),
            Some(Shown::Seats { seats, .. }) => seated(seats, index, self.roster),
        }
    }
}

/// The place of the one in the seat with this index. If it has gone, the next one stands in for it, so that a part is a
/// list without gaps until it is made anew.
#[inline]
fn seated(seats: &[Seat], index: usize, roster: &Roster) -> Option<usize> {
    let (before, after) = seats.split_at_checked(index)?;
    let mut seats = after.iter().chain(before);
    seats.find_map(|seat| seat.place(roster))
}

impl<'a> Candidate<'a> {
    /// The endpoint: its zone, its weight, who has a veto on it.
    #[inline]
    pub fn endpoint(&self) -> &'a Endpoint {
        &self.entry.endpoint
    }

    /// How many attempts through this layer are under way to it.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.entry.counters().in_flight()
    }

    /// For how long the attempts that are under way to it have waited for their answers, on average. Zero if none does. One that
    /// has its answer, and whose [verdict comes later](crate::call::LateVerdict), waits no more, however long it goes on.
    ///
    /// Nothing is heard of a server that has fallen silent, but this grows.
    pub fn waiting(&self) -> Duration {
        Duration::from_secs_f32(self.entry.counters().load().open(self.now.nanos).age)
    }

    /// The time in which it has answered of late: a mean whose weights fall within the [decay](Rule::decay) of the rule.
    /// `None`: nothing has ended yet.
    ///
    /// An attempt that has [failed](crate::call::Verdict::Failure) counts as four times the mean, as 250 ms at
    /// least, and as a minute at most unless it took longer, so that failing fast looks like no virtue; one that was given up counts if it had waited for longer than
    /// the mean; an error that counts as neither success nor failure does not count. One that ends after another has a
    /// weight of a tenth at least.
    pub fn response_time(&self) -> Option<Duration> {
        let (estimate, _) = self.entry.counters().load().estimate(self.now.nanos)?;
        Some(Duration::from_secs_f32(estimate))
    }

    /// Has the call that is being made tried it before, and would go elsewhere if it could?
    #[inline]
    pub fn was_tried(&self) -> bool {
        self.tried.contains(&self.entry.endpoint)
    }

    /// May it be picked, as far as [vetoes](Endpoint::eligibility) and what the call has tried go?
    #[inline]
    fn can_be_had(&self) -> bool {
        self.entry.endpoint.eligibility().is_eligible() && !self.was_tried()
    }

    /// Its live counters.
    #[inline]
    fn counters(&self) -> &'a Arc<Counters> {
        self.entry.counters()
    }

    /// Has it come into a set that others were in before?
    #[inline]
    fn is_late(&self) -> bool {
        self.entry.late
    }

    /// Where it stands in the order that a seed gives to all endpoints, whatever set they are in.
    #[inline]
    fn rank(&self, seed: u64) -> u64 {
        self.entry.hash.with(seed).get()
    }

    /// The number of its zone.
    fn zone(&self) -> usize {
        self.roster.zone(self.place)
    }

    /// What has been counted about it.
    pub fn figures(&self) -> Figures {
        self.entry.counters().read()
    }

    /// Is it tripped, by the [settings](RibbonStats) of the layer?
    pub fn is_tripped(&self) -> bool {
        self.stats.is_tripped(self.entry.counters(), self.now)
    }

    /// As [`in_flight`](Candidate::in_flight), but none if nothing has started or ended for
    /// [too long](super::RibbonStatsBuilder::active_window).
    pub fn active(&self) -> u64 {
        self.stats.active(self.entry.counters(), self.now)
    }

    /// Is it neither tripped nor at its limit, as far as the [settings](RibbonStats) of the layer say so?
    pub fn is_available(&self) -> bool {
        self.stats.is_available(self.entry.counters(), self.now)
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
