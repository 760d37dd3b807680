//! The part of a large set that is drawn from.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use arc_swap::Guard;

use super::{
    Ewma, Size,
    source::{Seen, Source, per_weight},
};
use crate::{
    balance::{
        figures::Counters,
        roster::{Roster, Seat},
        rule::Candidates,
    },
    call::Endpoint,
};

/// So many, if no more are needed.
pub(super) const SUBSET: usize = 18;
/// So many endpoints are wanted for each attempt in flight.
const FOR_EACH_IN_FLIGHT: f32 = 2.0;
/// Nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000_000;
/// If one of them has gone, or is described anew.
const MAKE_AGAIN: u64 = 20_000_000;
const MOST_LOOKS: usize = 512;

/// Those of a large set that are drawn from.
#[derive(Debug)]
pub(super) struct Subset {
    /// Of which pool they are, and of which state of the set they are the first.
    pool: u64,
    roster: u64,
    /// In nanoseconds, as the counters have it.
    made: u64,
    /// When they were looked at last.
    at: u64,
    /// Has one been drawn that is no more?
    has_lost: AtomicBool,
    /// How many attempts are in flight to them, on average.
    in_flight: f32,
    wanted: usize,
    /// None: it is the whole set. They stay through changes of it.
    members: Option<Arc<[Member]>>,
}

/// What is looked at of one of them is held here, so that it need not be looked for in the set.
#[derive(Debug)]
pub(super) struct Member {
    endpoint: Endpoint,
    counters: Arc<Counters>,
    seat: Seat,
    per_weight: f32,
    late: bool,
}

/// Some of the members, or all.
pub(super) type Members<'a> = &'a [Member];

impl Source for Members<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        <[Member]>::len(self)
    }

    #[inline(always)]
    fn seen(&self, index: usize) -> Option<Seen<'_>> {
        self.get(index).map(Member::seen)
    }
}

impl Member {
    #[inline(always)]
    pub(super) fn seen(&self) -> Seen<'_> {
        Seen {
            endpoint: &self.endpoint,
            counters: &self.counters,
            per_weight: self.per_weight,
            late: self.late,
        }
    }
}

impl Subset {
    /// Those that are drawn from in place of these. None: these are, or it is the subset of another set.
    #[inline(always)]
    pub(super) fn members_of(&self, candidates: &Candidates<'_>) -> Option<Members<'_>> {
        let members = self.members.as_deref()?;
        (self.pool == candidates.roster().pool()).then_some(members)
    }

    /// Where a member is now. None: it has gone, or is described anew.
    #[inline]
    pub(super) fn place(&self, member: &Member, roster: &Roster) -> Option<usize> {
        let place = member.seat.place_as(&member.endpoint, roster);
        if place.is_none() {
            self.has_lost.store(true, Relaxed);
        }
        place
    }
}

impl Ewma {
    /// The subset, after it has been seen to that it is one of this set, and large enough.
    #[inline]
    pub(super) fn looked_after(&self, candidates: &Candidates<'_>) -> Guard<Option<Arc<Subset>>> {
        let subset = self.subset.load();
        let is_due = subset.as_ref().is_none_or(|subset| {
            let since = |then| candidates.nanos().saturating_sub(then);
            subset.pool != candidates.roster().pool()
                || since(subset.at) >= LOOK_AGAIN
                || (subset.has_lost.load(Relaxed) && since(subset.made) >= MAKE_AGAIN)
        });
        if !is_due {
            return subset;
        }
        self.renew(candidates);
        self.subset.load()
    }

    /// Whoever comes first does it; the others go by what there is.
    #[cold]
    fn renew(&self, candidates: &Candidates<'_>) {
        if self.making.swap(true, Acquire) {
            return;
        }
        let now = candidates.nanos();
        let subset = match self.subset.load().as_deref() {
            Some(old) if old.pool != candidates.roster().pool() => {
                self.make(candidates, now, old.in_flight, old.wanted)
            }
            Some(old) if now.saturating_sub(old.at) >= LOOK_AGAIN => self.look_again(candidates, old),
            Some(old) => self.make(candidates, old.at, old.in_flight, old.wanted),
            None => self.make(candidates, now, 0.0, SUBSET),
        };
        self.subset.store(Some(Arc::new(subset)));
        self.making.store(false, Release);
    }

    /// Is it still as large as it should be?
    fn look_again(&self, candidates: &Candidates<'_>, old: &Subset) -> Subset {
        let (mut in_flight, mut eligible) = (0, 0);
        let members = old.members.as_deref();
        let n = members.map_or(candidates.len(), <[Member]>::len);
        // Of very many some will do.
        let step = n.div_ceil(MOST_LOOKS);
        for index in (0..n).step_by(step.max(1)) {
            let seen = match members {
                None => candidates.seen(index),
                Some(members) => members.get(index).map(Member::seen),
            };
            if let Some(seen) = seen {
                in_flight += step as u64 * seen.counters.in_flight();
                eligible += step * usize::from(seen.endpoint.eligibility().is_eligible());
            }
        }
        let in_flight = old.in_flight + 0.3 * (in_flight as f32 - old.in_flight);
        let enough = ((in_flight * FOR_EACH_IN_FLIGHT).ceil() as usize).max(SUBSET);
        let wanted = if enough > old.wanted || enough < old.wanted / 2 {
            enough
        } else {
            old.wanted
        };
        let size = self.size(wanted);
        let fits = old.roster == candidates.roster_id()
            && (members.is_none() || (eligible * 4 >= size * 3 && eligible * 3 <= size * 4));
        if wanted == old.wanted && fits {
            return Subset {
                at: candidates.nanos(),
                in_flight,
                has_lost: AtomicBool::new(false),
                members: old.members.clone(),
                ..*old
            };
        }
        self.make(candidates, candidates.nanos(), in_flight, wanted)
    }

    pub(super) fn size(&self, wanted: usize) -> usize {
        match self.settings.size {
            Size::AsNeeded => wanted,
            Size::All => usize::MAX,
            Size::Fixed(size) => size,
        }
    }

    fn make(&self, candidates: &Candidates<'_>, at: u64, in_flight: f32, wanted: usize) -> Subset {
        let size = self.size(wanted);
        let is_part = size.saturating_mul(3) / 2 < candidates.len();
        Subset {
            pool: candidates.roster().pool(),
            roster: candidates.roster_id(),
            made: candidates.nanos(),
            at,
            has_lost: AtomicBool::new(false),
            in_flight,
            wanted,
            members: is_part.then(|| self.first(candidates.roster(), size)),
        }
    }

    /// Those that rank first with this seed: so many as may be picked, and those between them which may not.
    fn first(&self, roster: &Roster, size: usize) -> Arc<[Member]> {
        // Twice as many as needed are below this, on average, so that few have to be sorted.
        let part = (u64::MAX).checked_div(roster.len() as u64).unwrap_or(u64::MAX);
        let mut limit = part.saturating_mul(2 * size as u64);
        loop {
            let ranks = roster.iter().map(|entry| entry.hash.with(self.seed).get());
            let mut ranked: Vec<(u64, u32)> = ranks.zip(0..).filter(|&(rank, _)| rank <= limit).collect();
            ranked.sort_unstable();
            let is_eligible = |place: u32| {
                let entry = roster.get(place as usize);
                entry.is_some_and(|entry| entry.endpoint.eligibility().is_eligible())
            };
            let last = ranked
                .iter()
                .enumerate()
                .filter(|&(_, &(_, place))| is_eligible(place))
                .nth(size - 1);
            let last = last.map(|(last, _)| last);
            if last.is_some() || limit == u64::MAX {
                ranked.truncate(last.map_or(usize::MAX, |last| last + 1));
                let member = |(_, place): (u64, u32)| {
                    let entry = roster.get(place as usize)?;
                    Some(Member {
                        endpoint: entry.endpoint.clone(),
                        counters: Arc::clone(entry.counters()),
                        seat: roster.seat(place as usize)?,
                        per_weight: per_weight(&entry.endpoint),
                        late: entry.late,
                    })
                };
                return ranked.into_iter().filter_map(member).collect();
            }
            limit = limit.saturating_mul(4);
        }
    }
}
