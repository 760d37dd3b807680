//! The pick of one attempt: what the layers above want, what health says, and what the rule chooses.

use tokio::time::Instant;

use super::{
    roster::{Entry, Roster},
    rule::{Candidates, Rule},
};
use crate::call::{CallScope, Endpoint, scope};

/// What the call says about its next attempt, read at one look.
pub(super) struct Asked {
    pub(super) deadline: Option<Instant>,
    wish: Option<Endpoint>,
    tried: Tried,
}

impl Asked {
    #[inline]
    pub(super) fn read() -> Self {
        scope::current(|scope| Asked {
            deadline: scope.deadline(),
            wish: scope.take_wish(),
            tried: Tried::read(scope),
        })
    }
}

/// The entry that the next attempt goes to. `None`: there is none.
#[inline]
pub(super) fn pick<'a, R: Rule + ?Sized>(rule: &R, roster: &'a Roster, asked: &Asked) -> Option<&'a Entry> {
    let entries = roster.entries();
    if entries.is_empty() {
        return None;
    }
    let wish = asked.wish.as_ref();
    wish.and_then(|wish| roster.find(wish))
        .filter(|entry| entry.endpoint.eligibility().is_eligible())
        .or_else(|| entries.get(choose(rule, entries, asked.tried)))
}

/// Which endpoints this call should not go to again, as long as there are others.
#[derive(Debug, Clone, Copy)]
struct Tried {
    /// No attempt has failed yet, or the layer above does not mind: there is nothing to look up.
    none: bool,
}

impl Tried {
    fn read(scope: &CallScope) -> Self {
        Tried {
            none: scope.trail().is_none() || !scope.prefers_untried(),
        }
    }

    fn contains(self, endpoint: &Endpoint) -> bool {
        !self.none && scope::current(|scope| scope.tried().any(|tried| tried.key() == endpoint.key()))
    }
}

/// The place of the one that the rule chooses. There is at least one entry.
fn choose<R: Rule + ?Sized>(rule: &R, entries: &[Entry], tried: Tried) -> usize {
    let all = Candidates::all(entries);
    let mut before = None;
    // Asking again keeps a rotation even: each turn is taken once, by someone. It costs on average as many questions as
    // there are candidates for each that can be had, so it is given up when looking at all would cost no more, or
    // when the rule says the same again.
    for _ in 0..entries.len() {
        let place = rule.pick(&all) % entries.len();
        let can_be_had =
            |entry: &Entry| entry.endpoint.eligibility().is_eligible() && !tried.contains(&entry.endpoint);
        if entries.get(place).is_some_and(can_be_had) {
            return place;
        }
        if before.replace(place) == Some(place) {
            break;
        }
    }
    among_some(rule, entries, tried)
}

#[cold]
fn among_some<R: Rule + ?Sized>(rule: &R, entries: &[Entry], tried: Tried) -> usize {
    let eligible = |entry: &Entry| entry.endpoint.eligibility().is_eligible();
    let untried = |entry: &Entry| !tried.contains(&entry.endpoint);
    let among = |wanted: &dyn Fn(&Entry) -> bool| {
        let places: Vec<usize> = (0..entries.len())
            .filter(|&place| entries.get(place).is_some_and(wanted))
            .collect();
        let index = rule_index(rule, &Candidates::at(entries, &places))?;
        places.get(index).copied()
    };
    among(&|entry| eligible(entry) && untried(entry))
        .or_else(|| among(&eligible))
        .or_else(|| among(&untried))
        .or_else(|| rule_index(rule, &Candidates::all(entries)))
        .unwrap_or(0)
}

fn rule_index<R: Rule + ?Sized>(rule: &R, candidates: &Candidates<'_>) -> Option<usize> {
    if candidates.is_empty() {
        None
    } else {
        Some(rule.pick(candidates) % candidates.len())
    }
}
