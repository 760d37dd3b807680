//! What is left of a large set where hardly any endpoint may be picked.
//!
//! To find that out all must be looked at. It is kept for a while, so that not each call does so.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;

use super::figures::Moment;

/// Of a set with no more than this all are looked at each time.
pub(super) const SMALL: usize = 256;

/// Hardly any are no more than one of so many.
const RARE: usize = 64;

/// For each endpoint, in nanoseconds: so long what has been seen is used before all are looked at again. That takes one
/// or two hundredths of it.
const PACE: u64 = 1_000;

/// Those of one state of a set that have no veto, if they are few.
#[derive(Debug, Default)]
pub(super) struct Scarce {
    until: AtomicU64,
    places: ArcSwapOption<Vec<usize>>,
}

impl Scarce {
    /// Where they are, if they have been found to be few a short while ago. Some may have a veto by now, and others none.
    #[inline]
    pub(super) fn known(&self, now: &Moment) -> Option<Arc<Vec<usize>>> {
        if self.until.load(Relaxed) <= now.nanos {
            return None;
        }
        self.places.load_full()
    }

    /// Keeps where they are, of so many. `None`: they are not few.
    pub(super) fn keep(
        &self,
        mut found: impl Iterator<Item = usize>,
        n: usize,
        now: &Moment,
    ) -> Option<Arc<Vec<usize>>> {
        let few = n / RARE;
        let places: Arc<Vec<usize>> = Arc::new(found.by_ref().take(few).collect());
        if found.next().is_some() {
            return None;
        }
        self.places.store(Some(places.clone()));
        let hold = PACE.saturating_mul(n as u64);
        self.until.store(now.nanos.saturating_add(hold), Relaxed);
        Some(places)
    }

    pub(super) fn forget(&self) {
        self.until.store(0, Relaxed);
    }
}
