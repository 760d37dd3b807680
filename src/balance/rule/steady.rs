//! What is worked out for a large set holds a while, though the set changes.

use tokio::time::Duration;

use super::{super::roster::Seat, Candidates};

/// Of a set with no more than this everything is worked out as soon as it has changed.
const SMALL: usize = 256;

/// For each endpoint: so long what has been worked out is used before it is worked out anew. That takes one or two
/// hundredths of it.
const PACE: Duration = Duration::from_micros(20);

/// For how long what is worked out now will do.
pub(super) fn hold(candidates: &Candidates<'_>) -> Duration {
    match candidates.roster().len() {
        n if n > SMALL => PACE * n as u32,
        _ => Duration::ZERO,
    }
}

/// The candidates by numbers that stay theirs, for something that was worked out about them and holds through changes.
#[derive(Debug)]
pub(super) struct Steady {
    /// In this state of the set the numbers are the indexes.
    roster: u64,
    /// Empty: so they are always, as those of a part, or of a small set.
    seats: Box<[Seat]>,
}

impl Steady {
    pub(super) fn of(candidates: &Candidates<'_>) -> Self {
        let places = candidates.are_all() && !hold(candidates).is_zero();
        let roster = candidates.roster();
        let seats = (0..if places { candidates.len() } else { 0 }).filter_map(|place| roster.seat(place));
        Steady {
            roster: roster.id(),
            seats: seats.collect(),
        }
    }

    /// The index of the one with this number. None: it has gone.
    #[inline]
    pub(super) fn index(&self, number: usize, candidates: &Candidates<'_>) -> Option<usize> {
        if self.seats.is_empty() || self.roster == candidates.roster_id() {
            return Some(number);
        }
        self.seats.get(number)?.place(candidates.roster())
    }
}
