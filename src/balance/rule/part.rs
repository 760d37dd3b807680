//! Some of the candidates, shown to another rule as if they were all.

use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

use tokio::time::{Duration, Instant};

use super::{
    super::{demand::Demand, roster::Seat},
    Candidate, Candidates, Rule, Shown, steady,
};

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
    /// In which state of the set they are at these places.
    roster: u64,
    places: Box<[usize]>,
    /// In later ones they are in these, unless it is for that state alone.
    seats: Box<[Seat]>,
    /// Where they are among the candidates, if that is somewhere else.
    indexes: Option<Box<[usize]>>,
    look: Due,
    eligible: AtomicUsize,
}

impl Part {
    /// No two parts have the same number, and no set has one like it.
    fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        NEXT.fetch_add(1, Relaxed)
    }

    /// Those of the candidates that pass; to be kept, if they are asked for again as they are.
    pub(super) fn of(
        candidates: &Candidates<'_>,
        kept: bool,
        wanted: impl Fn(&Candidate<'_>) -> bool,
    ) -> Self {
        let id = candidates.id().filter(|_| kept).map(|_| Part::next_id());
        let indexes: Box<[usize]> = candidates
            .iter()
            .enumerate()
            .filter_map(|(index, candidate)| wanted(&candidate).then_some(index))
            .collect();
        let places: Box<[usize]> = indexes
            .iter()
            .filter_map(|&index| candidates.place(index))
            .collect();
        let roster = candidates.roster();
        // What is a part itself may last, though the set is no longer large.
        let may_last = !candidates.are_all() || !steady::hold(candidates).is_zero();
        let lasts = id.is_some() && may_last;
        let seated = if lasts { &*places } else { &[] };
        Part {
            id,
            roster: roster.id(),
            seats: seated.iter().filter_map(|&place| roster.seat(place)).collect(),
            places,
            indexes: (!candidates.are_all()).then_some(indexes),
            look: Due::new(candidates.now()),
            eligible: AtomicUsize::new(usize::MAX),
        }
    }

    /// Has the set changed since?
    #[inline]
    pub(super) fn is_old(&self, candidates: &Candidates<'_>) -> bool {
        self.roster != candidates.roster_id()
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
        candidates.part(match self.id {
            Some(id) if self.is_old(candidates) => Shown::Seats {
                id,
                seats: &self.seats,
            },
            id => Shown::Places {
                id,
                places: &self.places,
            },
        })
    }

    /// Where a member of the part is among the candidates.
    #[inline]
    pub(super) fn index(&self, member: usize, candidates: &Candidates<'_>) -> Option<usize> {
        match &self.indexes {
            None => self.shown(candidates).place(member),
            Some(indexes) if self.is_old(candidates) => self.index_of_present(member, indexes, candidates),
            Some(indexes) => indexes.get(member).copied(),
        }
    }

    /// The same after a change: where one has gone, the next one of the part stands in for it, and not the next candidate.
    #[cold]
    fn index_of_present(
        &self,
        member: usize,
        indexes: &[usize],
        candidates: &Candidates<'_>,
    ) -> Option<usize> {
        let all = || indexes.iter().zip(&self.seats);
        let mut from = all().skip(member).chain(all().take(member));
        let (&index, _) = from.find(|(_, seat)| seat.place(candidates.roster()).is_some())?;
        Some(index)
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
            index: self.index(choice.index, candidates)?,
            ..choice
        })
    }

    /// The one that the rule chooses of the members that meet the demand.
    pub(super) fn pick_of<R: Rule>(
        &self,
        rule: &R,
        candidates: &Candidates<'_>,
        demand: Demand,
    ) -> Option<usize> {
        let member = pick_of(rule, &self.shown(candidates), 1, |one| one.meets(demand))?;
        self.index(member, candidates)
    }
}

/// What a rule has chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) standing: Standing,
}

/// The more the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Drained,
    DrainedUntried,
    Vetoed,
    VetoedUntried,
    Tried,
    /// It has no veto, and was not tried.
    CanBeHad,
}

impl Standing {
    #[inline]
    fn of(candidate: &Candidate<'_>) -> Self {
        match (
            candidate.endpoint().eligibility().is_eligible(),
            candidate.was_tried(),
        ) {
            (true, false) => Standing::CanBeHad,
            (true, true) => Standing::Tried,
            (false, false) if candidate.meets(Demand::Stays) => Standing::VetoedUntried,
            (false, true) if candidate.meets(Demand::Stays) => Standing::Vetoed,
            (false, false) => Standing::DrainedUntried,
            (false, true) => Standing::Drained,
        }
    }
}

impl Choice {
    /// The one that is in better standing; the first of equals.
    pub(super) fn better(one: Option<Choice>, other: Option<Choice>) -> Option<Choice> {
        match (one, other) {
            (Some(one), Some(other)) if one.standing < other.standing => Some(other),
            (one, other) => one.or(other),
        }
    }

    pub(super) fn can_be_had(&self) -> bool {
        self.standing == Standing::CanBeHad
    }
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
    // Of a part that was made before all may have gone.
    if n == 0 || candidates.place(0).is_none() {
        return None;
    }
    let index = rule.pick(candidates)?.checked_rem(n)?;
    let standing = candidates.get(index).map(|one| Standing::of(&one));
    match standing {
        Some(standing) if standing == Standing::CanBeHad || rule.chooses_alone() => {
            return Some(Choice { index, standing });
        }
        _ => {}
    }
    let index = pick_again(rule, candidates, index)?;
    Some(Choice {
        index,
        standing: Standing::CanBeHad,
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

impl Candidate<'_> {
    pub(super) fn meets(&self, demand: Demand) -> bool {
        demand.is_met(self.entry, self.tried)
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
