//! The part of a large set that a rule draws from.
//!
//! It is published together with the set, so that a pick reads both at one look.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{
    figures::Counters,
    roster::{Roster, Seat},
};
use crate::call::Endpoint;

/// Those of a large set that are drawn from.
#[derive(Debug)]
pub(super) struct Subset {
    /// The rule that draws from it.
    pub(super) owner: u64,
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
    pub(super) members: Option<Arc<[Member]>>,
}

/// What is looked at of one of them is held here, so that it need not be looked for in the set.
#[derive(Debug)]
pub(super) struct Member {
    endpoint: Endpoint,
    counters: Arc<Counters>,
    seat: Seat,
    late: bool,
}

impl Subset {
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

impl Member {
    /// The one at this place.
    pub(super) fn of(roster: &Roster, place: usize) -> Option<Self> {
        let entry = roster.get(place)?;
        Some(Member {
            endpoint: entry.endpoint.clone(),
            counters: Arc::clone(entry.counters()),
            seat: roster.seat(place)?,
            late: entry.late,
        })
    }

    #[inline]
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Did most of the others come before it?
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.late
    }
}
