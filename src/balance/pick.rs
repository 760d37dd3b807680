//! The pick of one attempt: what the layers above want, what health says, and what the rule chooses.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    demand::Demand,
    figures::Moment,
    outlier::Ticket,
    roster::{Entry, Latest, Pool, Roster},
    rule::{Candidates, Rule},
    scarce::SMALL,
};
use crate::call::{Addressed, Endpoint, scope};

/// What the call says about its next attempt, read at one look.
pub(super) struct Asked {
    pub(super) deadline: Option<Instant>,
    wish: Option<Endpoint>,
    /// There may be attempts before this one that picks are to look at.
    has_tried: bool,
}

impl Asked {
    #[inline]
    pub(super) fn read() -> Self {
        scope::current(|scope| Asked {
            deadline: scope.deadline(),
            wish: scope.take_wish(),
            has_tried: scope.trail().is_some() && scope.prefers_untried(),
        })
    }
}

/// How often it is chosen again if somebody else was faster in sending the one call there that may go.
const CHOICES: u32 = 3;

/// The entry that the next attempt goes to, and what it is for the detector of outliers. `None`: there is none, or the rule
/// wants none. `passed`: those that this attempt has been to and did not start at.
#[inline]
pub(super) fn pick<'a, R: Rule + ?Sized>(
    rule: &R,
    pool: &Pool,
    latest: &'a Latest,
    request: &dyn Addressed,
    asked: &Asked,
    passed: &[Endpoint],
    now: &Moment,
) -> Option<(&'a Entry, Ticket)> {
    let outliers = pool.outliers();
    let (is_on, is_due) = outliers.is_on_and_due(now.instant);
    if is_due {
        outliers.look(now.instant, || Arc::clone(pool.roster().roster()));
    }
    let choose = || entry(rule, pool, latest, request, asked, passed, now);
    if is_on {
        for _ in 0..CHOICES {
            let entry = choose()?;
            if let Some(ticket) = outliers.admit(entry.counters(), &entry.endpoint, now.instant) {
                return Some((entry, ticket));
            }
        }
    }
    Some((choose()?, Ticket::default()))
}

#[inline]
fn entry<'a, R: Rule + ?Sized>(
    rule: &R,
    pool: &Pool,
    latest: &'a Latest,
    request: &dyn Addressed,
    asked: &Asked,
    passed: &[Endpoint],
    now: &Moment,
) -> Option<&'a Entry> {
    let roster = &**latest;
    if roster.is_empty() {
        return None;
    }
    let tried = Tried {
        before: asked.has_tried,
        passed,
    };
    let wish = asked.wish.as_ref().filter(|wish| !tried.has_passed(wish));
    let stay = wish
        .and_then(|wish| roster.find(wish))
        .filter(|entry| entry.endpoint.eligibility().is_eligible());
    if stay.is_some() {
        return stay;
    }
    let all = Candidates::all(pool, latest, request, tried, now);
    if let Some(Shortcut { member }) = rule.shortcut(&all) {
        let members = latest.subset().and_then(|subset| subset.members.as_ref());
        return Some(members?.get(member)?.entry());
    }
    if rule.chooses_alone() {
        return roster.get(place(rule, &all)?);
    }
    choose(rule, roster, &all, tried, now)
}

/// A member of the subset of the very state of the set that a rule was shown: it is in the set, has no veto, and the call has not
/// tried it. Nobody looks again.
#[derive(Debug)]
pub struct Shortcut {
    pub(super) member: usize,
}

/// Which endpoints this call should not go to again, as long as there are others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tried<'a> {
    /// False: no attempt has failed yet, or the layer above does not mind, and there is nothing to look up.
    before: bool,
    passed: &'a [Endpoint],
}

impl Tried<'_> {
    #[inline]
    pub(super) fn contains(self, endpoint: &Endpoint) -> bool {
        (self.before && is_tried(endpoint)) || self.has_passed(endpoint)
    }

    /// Are there none?
    #[inline]
    pub(super) fn is_nothing(self) -> bool {
        !self.before && self.passed.is_empty()
    }

    #[inline]
    fn has_passed(self, endpoint: &Endpoint) -> bool {
        self.passed.iter().any(|passed| passed.key() == endpoint.key())
    }
}

#[cold]
fn is_tried(endpoint: &Endpoint) -> bool {
    scope::current(|scope| scope.tried().any(|tried| tried.key() == endpoint.key()))
}

/// So often the rule of a large set is asked in vain before all are looked at.
const ASKS: usize = 64;

/// The one that the rule chooses, among those that can be had. There is at least one candidate.
#[inline]
fn choose<'a, R: Rule + ?Sized>(
    rule: &R,
    roster: &'a Roster,
    all: &Candidates<'_>,
    tried: Tried<'_>,
    now: &Moment,
) -> Option<&'a Entry> {
    if let Some(few) = roster.known_few(now) {
        return roster.get(among_few(rule, all, tried, &few)?);
    }
    let first = place(rule, all)?;
    match roster.get(first) {
        Some(entry) if Demand::CanBeHad.is_met(entry, tried) => Some(entry),
        _ => roster.get(choose_again(rule, all, tried, now, first)?),
    }
}

/// The first one that it has chosen cannot be had.
#[cold]
fn choose_again<R: Rule + ?Sized>(
    rule: &R,
    all: &Candidates<'_>,
    tried: Tried<'_>,
    now: &Moment,
    first: usize,
) -> Option<usize> {
    let (roster, n) = (all.roster(), all.len());
    let can_be_had = |entry: &Entry| Demand::CanBeHad.is_met(entry, tried);
    // Where none can be had the turn that was taken is not lost.
    if n <= SMALL && !roster.iter().any(can_be_had) {
        return among_some(rule, all, tried, Some(first));
    }
    let mut before = first;
    // Asking again keeps a rotation even: each turn is taken once, by someone. It costs on average as many questions as
    // there are candidates for each that can be had, so it is given up when looking at all would cost no more, or
    // when the rule says the same again.
    for asked in 1..n {
        if n > SMALL && asked == ASKS {
            if let Some(few) = roster.find_few(now) {
                return among_few(rule, all, tried, &few);
            }
        }
        let place = place(rule, all)?;
        if roster.get(place).is_some_and(can_be_had) {
            return Some(place);
        }
        if before == place {
            break;
        }
        before = place;
    }
    among_some(rule, all, tried, None)
}

/// Hardly any can be had: these, if they have no veto by now. The rule is asked about them alone, so that each question
/// is a turn of one of them.
#[cold]
fn among_few<R: Rule + ?Sized>(
    rule: &R,
    all: &Candidates<'_>,
    tried: Tried<'_>,
    few: &[usize],
) -> Option<usize> {
    let roster = all.roster();
    // Where all have a veto nearly every one will do.
    let (some, asks, demand) = match few {
        [] => (*all, ASKS, Demand::StaysUntried),
        few => (all.at(few), few.len(), Demand::CanBeHad),
    };
    for _ in 0..asks {
        let place = place(rule, &some)?;
        if roster.get(place).is_some_and(|entry| demand.is_met(entry, tried)) {
            return Some(place);
        }
    }
    let mut entries = few.iter().filter_map(|&place| roster.get(place));
    let is_one_left = entries.any(|entry| Demand::NoVeto.is_met(entry, tried));
    if !few.is_empty() && !is_one_left {
        roster.forget_few();
    }
    among_some(rule, all, tried, None)
}

/// `first`: what the rule has said already, if that turn is not to be lost.
#[cold]
fn among_some<R: Rule + ?Sized>(
    rule: &R,
    all: &Candidates<'_>,
    tried: Tried<'_>,
    mut first: Option<usize>,
) -> Option<usize> {
    for demand in std::iter::once(Demand::CanBeHad).chain(Demand::IN_TURN) {
        if demand == Demand::Nothing {
            break;
        }
        let wanted = |entry: &Entry| demand.is_met(entry, tried);
        let entries = all.roster().iter().enumerate();
        let places: Vec<usize> = entries
            .filter_map(|(place, entry)| wanted(entry).then_some(place))
            .collect();
        if places.is_empty() {
            continue;
        }
        // For the first one that was done above. A rotation that has gone round in vain would, if it were asked once
        // among some, always be at the same of them.
        let asks = match all.len() {
            _ if demand == Demand::CanBeHad => 0,
            n if n <= SMALL => n,
            _ => ASKS,
        };
        let mut before = None;
        for _ in 0..asks {
            let place = match first.take() {
                Some(first) => first,
                None => place(rule, all)?,
            };
            if all.roster().get(place).is_some_and(wanted) {
                return Some(place);
            }
            if before.replace(place) == Some(place) {
                break;
            }
        }
        return place(rule, &all.at(&places));
    }
    place(rule, all)
}

/// Where the one that the rule chooses is in the set.
#[inline]
fn place<R: Rule + ?Sized>(rule: &R, candidates: &Candidates<'_>) -> Option<usize> {
    let (index, n) = (rule.pick(candidates)?, candidates.len());
    // Dividing takes longer than asking whether it must be.
    let index = if index < n { index } else { index.checked_rem(n)? };
    candidates.place(index)
}
