//! When somebody has to look, and who does.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sync::AtomicU64;

/// Times are numbers of the owner's. Switched off at first.
#[derive(Debug)]
pub(super) struct Due {
    at: AtomicU64,
    /// Is somebody looking?
    looking: AtomicU64,
}

const OFF: u64 = u64::MAX;
/// As long as nothing is brought forward.
const NEVER: u64 = u64::MAX - 1;

/// The one who looks, alone while this lives.
#[derive(Debug)]
pub(super) struct Looking<'a>(&'a Due);

impl Default for Due {
    fn default() -> Self {
        Due {
            at: AtomicU64::new(OFF),
            looking: AtomicU64::new(0),
        }
    }
}

impl Due {
    pub(super) fn switch_on(&self) {
        self.at.store(0, Release);
    }

    pub(super) fn switch_off(&self) {
        self.at.store(OFF, Release);
    }

    /// `None`: it is switched off.
    #[inline]
    pub(super) fn at(&self) -> Option<u64> {
        let at = self.at.load(Relaxed);
        (at != OFF).then_some(at)
    }

    /// Not later than then. What has been done before is seen by whoever looks because of that.
    pub(super) fn bring_forward(&self, to: u64) {
        // Written again if it is the same, or those who look would not see what was done before this.
        let next = |at: u64| (at != OFF && to <= at).then_some(to);
        let _ = self.at.fetch_update(Release, Relaxed, next);
    }

    /// Whoever comes first looks. What comes up from here on makes it due again.
    pub(super) fn take(&self) -> Option<Looking<'_>> {
        if self.looking.swap(1, Acquire) != 0 {
            return None;
        }
        let looking = Looking(self);
        let next = |at: u64| (at != OFF).then_some(NEVER);
        let _ = self.at.fetch_update(AcqRel, Relaxed, next);
        Some(looking)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.looking.store(0, Release);
    }
}

#[cfg(all(test, not(outbound_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_taken_once_and_the_earliest_time_counts() {
        let due = Due::default();
        due.bring_forward(0);
        assert_eq!(due.at(), None, "it is switched off");
        due.switch_on();
        assert_eq!(due.at(), Some(0));
        let looking = due.take();
        assert!(looking.is_some() && due.take().is_none());
        assert_eq!(due.at(), Some(NEVER), "nobody else need come");
        due.bring_forward(9);
        due.bring_forward(5);
        due.bring_forward(7);
        drop(looking);
        assert_eq!(due.at(), Some(5));
        due.switch_off();
        drop(due.take());
        due.bring_forward(3);
        assert_eq!(due.at(), None);
    }
}

#[cfg(all(test, outbound_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{explore, threads};

    #[derive(Default)]
    struct Shared {
        due: Due,
        done: AtomicU64,
        seen: AtomicU64,
        inside: AtomicU64,
    }

    fn on() -> std::sync::Arc<Shared> {
        let shared = Shared::default();
        shared.due.switch_on();
        shared.into()
    }

    fn work(shared: &Shared) {
        shared.done.fetch_add(1, Relaxed);
        shared.due.bring_forward(0);
    }

    fn look(shared: &Shared) {
        if shared.due.at() != Some(0) {
            return;
        }
        if let Some(_looking) = shared.due.take() {
            assert_eq!(shared.inside.fetch_add(1, Relaxed), 0, "one at a time");
            let seen = shared.done.load(Relaxed);
            shared.seen.store(seen, Relaxed);
            shared.due.bring_forward(1_000);
            shared.inside.fetch_sub(1, Relaxed);
        }
    }

    #[test]
    fn loom_what_is_done_while_somebody_looks_is_seen_or_looked_for_again() {
        explore(3, || {
            let shared = on();
            threads(&shared, work, work, look);
            let seen = shared.seen.load(Relaxed);
            assert!(seen == 2 || shared.due.at() == Some(0), "{seen} of 2");
        });
    }

    #[test]
    fn loom_one_looks_at_a_time() {
        explore(3, || {
            let shared = on();
            threads(&shared, look, work, look);
            let seen = shared.seen.load(Relaxed);
            assert!(seen == 1 || shared.due.at() == Some(0), "{seen} of 1");
        });
    }
}
