//! The part of a large set that a rule draws from.
//!
//! It is published together with the set, so that a pick reads both at one look.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{
    figures::Counters,
    roster::{Entry, Roster, Seat},
};

/// Those of a large set that are drawn from.
#[derive(Debug)]
pub(super) struct Subset {
    /// The rule that draws from it.
    pub(super) owner: Weak<()>,
    /// Of which state of the set they are the first.
    pub(super) roster: u64,
    /// In nanoseconds, as the counters have it.
    pub(super) made: u64,
    /// When they were looked at last.
    pub(super) at: u64,
    /// Has one been drawn that is no more?
    pub(super) has_lost: AtomicBool,
    /// How many attempts are in flight to them, on average.
    pub(super) in_flight: f32,
    pub(super) wanted: usize,
    /// None: it is the whole set. They stay through changes of it.
    pub(super) members: Option<Members>,
}

/// The members of a subset.
#[derive(Debug, Clone)]
pub(super) struct Members {
    /// After the last come some of the first once more, so that a few in a row are always a slice.
    ring: Arc<[Member]>,
    len: usize,
}

/// One of them, as it was when it was taken up, so that it need not be looked for in the set.
#[derive(Debug)]
pub(super) struct Member {
    /// Those of the entry, which are looked at most.
    counters: Arc<Counters>,
    entry: Entry,
    seat: Seat,
}

impl Subset {
    /// What of it is of use for a set of so many. Members that are no part of it would keep what is counted about endpoints that
    /// have gone; how many are wanted is known still, until it is made anew.
    pub(super) fn for_set_of(self: &Arc<Self>, n: usize) -> Option<Arc<Self>> {
        if self.owner.strong_count() == 0 {
            return None;
        }
        if self.members.as_ref().is_none_or(|members| members.len() < n) {
            return Some(self.clone());
        }
        Some(Arc::new(Subset {
            owner: self.owner.clone(),
            has_lost: AtomicBool::new(true),
            members: None,
            ..**self
        }))
    }

    /// Where a member is now. None: it has gone, or is described anew.
    #[inline]
    pub(super) fn place(&self, member: &Member, roster: &Roster) -> Option<usize> {
        let place = member.seat.place_as(&member.entry.endpoint, roster);
        if place.is_none() {
            self.has_lost.store(true, Relaxed);
        }
        place
    }
}

impl Members {
    /// Those at these places, of which so many may be asked for in a row.
    pub(super) fn of(roster: &Roster, places: impl Iterator<Item = usize> + Clone, in_a_row: usize) -> Self {
        let member = |place| Member::of(roster, place);
        let mut ring: Vec<Member> = places.clone().filter_map(member).collect();
        let len = ring.len();
        ring.extend(places.take(in_a_row.saturating_sub(1)).filter_map(member));
        Members {
            ring: ring.into(),
            len,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Member> {
        self.ring.get(index)
    }

    /// So many from this index on. After the last comes the first.
    #[inline]
    pub(super) fn in_a_row(&self, first: usize, count: usize) -> &[Member] {
        self.ring.get(first..first + count).unwrap_or_default()
    }
}

impl Member {
    /// The one at this place.
    fn of(roster: &Roster, place: usize) -> Option<Self> {
        let entry = roster.get(place)?.clone();
        Some(Member {
            counters: Arc::clone(entry.counters()),
            entry,
            seat: roster.seat(place)?,
        })
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }
}
