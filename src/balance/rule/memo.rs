//! What a rule has worked out for a set, kept as long as the set stays.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

use arc_swap::ArcSwap;
use tokio::time::{Duration, Instant};

use super::{Candidates, steady};

/// A rule may be asked about a few parts of a set in turn.
const MOST: usize = 8;

/// Keeps something for each of the last few sets, or parts of them, that a rule was asked about.
///
/// What is kept for a large set is handed over for a [while](steady::hold) after the set has changed: whoever keeps
/// something must see to it that it holds through changes.
#[derive(Debug)]
pub(super) struct Memo<T> {
    kept: ArcSwap<Vec<Kept<T>>>,
    making: AtomicBool,
}

#[derive(Debug)]
struct Kept<T> {
    /// Of which candidates it is.
    id: u64,
    /// If that is a whole set: of which pool, and how long it will do for later states of that set.
    pool: Option<u64>,
    at: Instant,
    hold: Duration,
    made: Arc<T>,
}

impl<T> Memo<T> {
    /// Hands over what has been worked out for these candidates; after a change, by whoever comes first. None: another
    /// thread is about to do it, or they are [together for this pick alone](Candidates::id).
    #[inline]
    pub(super) fn with<A>(
        &self,
        candidates: &Candidates<'_>,
        make: impl FnOnce() -> T,
        then: impl FnOnce(Option<&T>) -> A,
    ) -> A {
        let Some(id) = candidates.id() else {
            return then(None);
        };
        let kept = self.kept.load();
        if let Some(found) = kept.iter().find(|kept| kept.id == id) {
            return then(Some(&found.made));
        }
        if let Some(found) = kept.iter().find(|kept| kept.will_do(candidates)) {
            return then(Some(&found.made));
        }
        if self.make(id, candidates, make) {
            drop(kept);
            let kept = self.kept.load();
            let found = kept.iter().find(|kept| kept.id == id);
            return then(found.map(|found| &*found.made));
        }
        // Somewhat longer is better than looking at all.
        let found = kept.iter().find(|kept| kept.is_of_the_set(candidates));
        then(found.map(|found| &*found.made))
    }

    #[cold]
    fn make(&self, id: u64, candidates: &Candidates<'_>, make: impl FnOnce() -> T) -> bool {
        let Some(_making) = Making::begin(&self.making) else {
            return false;
        };
        let newest = Kept {
            id,
            pool: candidates.are_all().then(|| candidates.roster().pool()),
            at: candidates.now(),
            hold: steady::hold(candidates),
            made: Arc::new(make()),
        };
        let kept = self.kept.load();
        // Of a set nothing but the latest will be asked for.
        let is_other = |kept: &&Kept<T>| kept.id != id && (kept.pool.is_none() || kept.pool != newest.pool);
        let others: Vec<_> = kept.iter().filter(is_other).take(MOST - 1).cloned().collect();
        let all = std::iter::once(newest).chain(others);
        self.kept.store(Arc::new(all.collect()));
        true
    }
}

impl<T> Kept<T> {
    fn is_of_the_set(&self, candidates: &Candidates<'_>) -> bool {
        let roster = candidates.roster();
        !self.hold.is_zero()
            && candidates.are_all()
            && self.pool == Some(roster.pool())
            && roster.has_settled_since(self.id)
    }

    fn will_do(&self, candidates: &Candidates<'_>) -> bool {
        self.is_of_the_set(candidates) && candidates.now().saturating_duration_since(self.at) < self.hold
    }
}

/// Something is made by one thread at a time. Code of users may panic on the way.
pub(super) struct Making<'a>(&'a AtomicBool);

impl<'a> Making<'a> {
    /// None: another thread is at it.
    pub(super) fn begin(is_made: &'a AtomicBool) -> Option<Self> {
        (!is_made.swap(true, Acquire)).then_some(Making(is_made))
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo {
            kept: ArcSwap::default(),
            making: AtomicBool::new(false),
        }
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Kept {
            id: self.id,
            pool: self.pool,
            at: self.at,
            hold: self.hold,
            made: self.made.clone(),
        }
    }
}
