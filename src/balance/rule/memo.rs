//! What a rule has worked out for a set, kept as long as the set stays.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

use arc_swap::ArcSwap;

use super::Candidates;

/// A rule may be asked about a few parts of a set in turn.
const MOST: usize = 8;

/// Keeps something for each of the last few sets, or parts of them, that a rule was asked about.
#[derive(Debug)]
pub(super) struct Memo<T> {
    kept: ArcSwap<Vec<Kept<T>>>,
    making: AtomicBool,
}

#[derive(Debug)]
struct Kept<T> {
    /// Of which candidates it is.
    id: u64,
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
        if let Some(found) = find(&kept, id) {
            return then(Some(found));
        }
        drop(kept);
        self.make(id, make);
        then(find(&self.kept.load(), id))
    }

    #[cold]
    fn make(&self, id: u64, make: impl FnOnce() -> T) {
        if self.making.swap(true, Acquire) {
            return;
        }
        let _end = End(&self.making);
        let newest = Kept {
            id,
            made: Arc::new(make()),
        };
        let kept = self.kept.load();
        let others = kept.iter().filter(|kept| kept.id != id);
        let all = std::iter::once(newest).chain(others.cloned()).take(MOST);
        self.kept.store(Arc::new(all.collect()));
    }
}

#[inline]
fn find<T>(kept: &[Kept<T>], id: u64) -> Option<&T> {
    let found = kept.iter().find(|kept| kept.id == id)?;
    Some(&found.made)
}

/// A user's closure may panic on the way.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
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
            made: self.made.clone(),
        }
    }
}
