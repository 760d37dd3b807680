//! Some of the candidates, shown to another rule as if they were all.

use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

use tokio::time::{Duration, Instant};

use super::{Candidate, Candidates, Rule};

/// So many times a rule is asked whether it can name one that can be had.
const ASKS: usize = 8;

const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Of more than this some are looked at.
const MOST_LOOKS: usize = 1_024;

/// Those of a set that pass, worked out once.
#[derive(Debug)]
pub(super) struct Part {
    /// None: it is for one pick.
    id: Option<u64>,
    /// Where they are in the set.
    places: Box<[usize]>,
    /// Where they are among the candidates, if that is somewhere else.
    indexes: Option<Box<[usize]>>,
    look: Due,
    eligible: AtomicUsize,
}

/// What a candidate is asked for when none has both.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    NoVeto,
    Untried,
    Nothing,
}

impl Part {
    /// No two parts have the same number, and no set has one like it.
    fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        NEXT.fetch_add(1, Relaxed)
    }

    pub(super) fn of(candidates: &Candidates<'_>, wanted: impl Fn(&Candidate<'_>) -> bool) -> Self {
        let indexes: Box<[usize]> = candidates
            .iter()
            .enumerate()
            .filter_map(|(index, candidate)| wanted(&candidate).then_some(index))
            .collect();
        let places = indexes.iter().filter_map(|&index| candidates.place(index));
        Part {
            id: candidates.id().map(|_| Part::next_id()),
            places: places.collect(),
            indexes: (!candidates.are_all()).then_some(indexes),
            look: Due::new(candidates.now()),
            eligible: AtomicUsize::new(usize::MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The candidates that are its members, for a rule.
    #[inline]
    pub(super) fn shown<'a>(&'a self, candidates: &Candidates<'a>) -> Candidates<'a> {
        candidates.part(self.id, &self.places)
    }

    /// Where a member of the part is among the candidates.
    #[inline]
    pub(super) fn index(&self, member: usize) -> Option<usize> {
        match &self.indexes {
            None => self.places.get(member).copied(),
            Some(indexes) => indexes.get(member).copied(),
        }
    }

    /// How many there are without a veto. That is looked at now and then.
    #[inline]
    pub(super) fn eligible(&self, candidates: &Candidates<'_>) -> usize {
        if self.eligible.load(Relaxed) == usize::MAX || self.look.is_due(candidates.now()) {
            self.count(candidates);
        }
        self.eligible.load(Relaxed)
    }

    #[cold]
    fn count(&self, candidates: &Candidates<'_>) {
        let (eligible, _) = count(&self.shown(candidates));
        self.eligible.store(eligible, Relaxed);
    }

    /// What the rule chooses of the members, by the index among the candidates. See [`pick`].
    #[inline]
    pub(super) fn pick<R: Rule>(&self, rule: &R, candidates: &Candidates<'_>) -> Option<Choice> {
        let choice = pick(rule, &self.shown(candidates))?;
        Some(Choice {
            index: self.index(choice.index)?,
            ..choice
        })
    }
}

/// What a rule has chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) index: usize,
    /// Has it no veto, and was it not tried?
    pub(super) can_be_had: bool,
}

/// How many have no veto, and how many attempts are in flight to those. Of very many it is about so many.
pub(super) fn count(candidates: &Candidates<'_>) -> (usize, u64) {
    let step = candidates.len().div_ceil(MOST_LOOKS).max(1);
    let looked = (0..candidates.len()).step_by(step);
    let eligible = looked
        .filter_map(|index| candidates.get(index))
        .filter(|candidate| candidate.endpoint().eligibility().is_eligible());
    let (count, in_flight) = eligible.fold((0, 0), |(count, in_flight), candidate| {
        (count + step, in_flight + step as u64 * candidate.in_flight())
    });
    (count.min(candidates.len()), in_flight)
}

/// What the rule chooses of those that have no veto and were not tried. None: there is none, or it chooses none.
///
/// A rule that [chooses alone](Rule::chooses_alone) is asked once, and may choose another one.
#[inline]
pub(super) fn pick<R: Rule>(rule: &R, candidates: &Candidates<'_>) -> Option<Choice> {
    let n = candidates.len();
    if n == 0 {
        return None;
    }
    let index = rule.pick(candidates)?.checked_rem(n)?;
    let can_be_had = candidates.get(index).is_some_and(|one| one.can_be_had());
    if can_be_had || rule.chooses_alone() {
        return Some(Choice { index, can_be_had });
    }
    let index = pick_again(rule, candidates, index)?;
    Some(Choice {
        index,
        can_be_had: true,
    })
}

/// Asking again keeps a rotation even; looking at all ends it.
#[cold]
fn pick_again<R: Rule>(rule: &R, candidates: &Candidates<'_>, first: usize) -> Option<usize> {
    let n = candidates.len();
    let mut before = first;
    for _ in 1..n.min(ASKS) {
        let index = rule.pick(candidates)?.checked_rem(n)?;
        if candidates.get(index).is_some_and(|one| one.can_be_had()) {
            return Some(index);
        }
        if index == before {
            break;
        }
        before = index;
    }
    pick_of(rule, candidates, 1, |one| one.can_be_had())
}

/// The one that the rule chooses of those that pass. None: they are not enough, or it chooses none.
///
/// All are looked at once. Nothing is allocated unless many pass.
pub(super) fn pick_of<R: Rule>(
    rule: &R,
    candidates: &Candidates<'_>,
    enough: usize,
    wanted: impl Fn(&Candidate<'_>) -> bool,
) -> Option<usize> {
    let (mut places, mut indexes) = (Few::new(), Few::new());
    for (index, candidate) in candidates.iter().enumerate() {
        if wanted(&candidate) {
            places.push(candidates.place(index)?);
            if !candidates.are_all() {
                indexes.push(index);
            }
        }
    }
    let places = places.as_slice();
    if places.is_empty() || places.len() < enough {
        return None;
    }
    let member = rule.pick(&candidates.at(places))?.checked_rem(places.len())?;
    let indexes = if candidates.are_all() {
        places
    } else {
        indexes.as_slice()
    };
    indexes.get(member).copied()
}

/// So many are kept without a place of their own.
const FEW: usize = 64;

struct Few {
    few: [usize; FEW],
    len: usize,
    /// All, if they are more than a few.
    many: Vec<usize>,
}

impl Few {
    fn new() -> Self {
        Few {
            few: [0; FEW],
            len: 0,
            many: Vec::new(),
        }
    }

    fn push(&mut self, number: usize) {
        if let Some(next) = self.few.get_mut(self.len) {
            *next = number;
            self.len += 1;
            return;
        }
        if self.many.is_empty() {
            self.many.extend(self.few);
        }
        self.many.push(number);
    }

    fn as_slice(&self) -> &[usize] {
        if self.many.is_empty() {
            self.few.get(..self.len).unwrap_or_default()
        } else {
            &self.many
        }
    }
}

impl Asked {
    /// First those without a veto; if all have one, vetoes count for nothing.
    pub(super) const IN_TURN: [Asked; 3] = [Asked::NoVeto, Asked::Untried, Asked::Nothing];

    pub(super) fn of(self, candidate: &Candidate<'_>) -> bool {
        match self {
            Asked::NoVeto => candidate.endpoint().eligibility().is_eligible(),
            Asked::Untried => !candidate.was_tried(),
            Asked::Nothing => true,
        }
    }
}

/// When something is looked at again, by one of those who come then.
#[derive(Debug)]
pub(super) struct Due {
    since: Instant,
    /// In nanoseconds from then on.
    next: AtomicU64,
}

impl Due {
    pub(super) fn new(now: Instant) -> Self {
        Due {
            since: now,
            next: AtomicU64::new(LOOK_AGAIN.as_nanos() as u64),
        }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let nanos = now.saturating_duration_since(self.since).as_nanos() as u64;
        let next = self.next.load(Relaxed);
        nanos >= next && {
            let again = nanos.saturating_add(LOOK_AGAIN.as_nanos() as u64);
            self.next.compare_exchange(next, again, Acquire, Relaxed).is_ok()
        }
    }
}
