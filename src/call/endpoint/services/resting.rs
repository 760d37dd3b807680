//! Services that were not ready, and when they are asked again.
#![expect(
    clippy::disallowed_types,
    reason = "a std lock guards the list of those that were not ready; where all are it is not taken"
)]

use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use tokio::time::{Duration, Instant};

use super::NotNow;
use crate::call::{Endpoint, Veto};

/// After the first time; each further one in a row doubles it, as often as this.
const BUSY: (Duration, u32) = (Duration::from_millis(1), 6);
const FAILED: (Duration, u32) = (Duration::from_millis(100), 5);

const NEVER: u64 = u64::MAX;

/// In the count of strikes: they are failures.
const FAILURES: u32 = 1 << 31;

/// Those that rest have a veto, so that picks leave them out where there are others. It is taken back by the first call
/// after their time, which costs it nothing: there is no task and no timer.
#[derive(Debug)]
pub(super) struct Resting {
    /// The earliest time in the list, in nanoseconds, as the list has it.
    next: AtomicU64,
    /// The times are counted from here.
    since: OnceLock<Instant>,
    list: Mutex<Vec<(u64, Endpoint)>>,
}

impl Default for Resting {
    fn default() -> Self {
        Resting {
            next: AtomicU64::new(NEVER),
            since: OnceLock::new(),
            list: Mutex::default(),
        }
    }
}

impl Resting {
    fn nanos(&self, now: Instant) -> u64 {
        let since = *self.since.get_or_init(|| now);
        let nanos = now.saturating_duration_since(since).as_nanos();
        u64::try_from(nanos).unwrap_or(NEVER - 1)
    }

    fn list(&self) -> MutexGuard<'_, Vec<(u64, Endpoint)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `strikes`: how often in a row it was not ready before, and of which kind that was. 0: never.
    pub(super) fn rest(&self, endpoint: &Endpoint, strikes: &AtomicU32, how: NotNow, now: Instant) {
        let mut list = self.list();
        if endpoint.eligibility().is_forbidden_by(Veto::NotReady) {
            return;
        }
        let ((first, most), other) = match how {
            NotNow::Busy => (BUSY, FAILURES),
            NotNow::Failed => (FAILED, 0),
        };
        // Of its kind alone: what fails after it was busy fails for the first time.
        let before = match strikes.load(Relaxed) {
            before if before & FAILURES == other => 0,
            before => before & !FAILURES,
        };
        let kind = FAILURES - other;
        strikes.store(kind | (before + 1).min(FAILURES - 1), Relaxed);
        let pause = first * (1 << before.min(most));
        let due = self.nanos(now).saturating_add(pause.as_nanos() as u64);
        endpoint.eligibility().forbid(Veto::NotReady);
        list.push((due, endpoint.clone()));
        self.next.fetch_min(due, Relaxed);
    }

    #[inline]
    pub(super) fn wake(&self, now: Instant) {
        if self.next.load(Relaxed) != NEVER {
            self.wake_those_due(now);
        }
    }

    #[cold]
    fn wake_those_due(&self, now: Instant) {
        let now = self.nanos(now);
        if self.next.load(Relaxed) <= now {
            self.retain(|due, _| due > now);
        }
    }

    /// It is ready, or has another service, or is not in the set any more.
    pub(super) fn forget(&self, endpoint: &Endpoint) {
        if endpoint.eligibility().is_forbidden_by(Veto::NotReady) {
            self.retain(|_, other| other != endpoint);
            endpoint.eligibility().allow(Veto::NotReady);
        }
    }

    /// The set is no more.
    pub(super) fn clear(&self) {
        self.retain(|_, _| false);
    }

    fn retain(&self, rests: impl Fn(u64, &Endpoint) -> bool) {
        let mut list = self.list();
        let mut next = NEVER;
        list.retain(|(due, endpoint)| {
            let rests = rests(*due, endpoint);
            if rests {
                next = next.min(*due);
            } else {
                endpoint.eligibility().allow(Veto::NotReady);
            }
            rests
        });
        self.next.store(next, Relaxed);
    }

    /// When the first one may be asked again.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.next.load(Relaxed) {
            NEVER => None,
            next => self.since.get()?.checked_add(Duration::from_nanos(next)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_ready_rests_for_longer_each_time_and_for_no_longer_than_the_most() {
        let resting = Resting::default();
        let endpoint = Endpoint::new("http://a").unwrap();
        let mut now = Instant::now();
        let strikes = AtomicU32::new(0);
        for (how, pauses) in [
            (NotNow::Busy, [1, 2, 4, 8, 16, 32, 64, 64]),
            (NotNow::Failed, [100, 200, 400, 800, 1_600, 3_200, 3_200, 3_200]),
        ] {
            for millis in pauses {
                let pause = Duration::from_millis(millis);
                resting.rest(&endpoint, &strikes, how, now);
                // Once is enough.
                resting.rest(&endpoint, &strikes, how, now);
                assert_eq!(resting.next(), Some(now + pause));
                resting.wake(now + pause - Duration::from_nanos(1));
                assert!(endpoint.eligibility().is_forbidden_by(Veto::NotReady));
                now += pause;
                resting.wake(now);
                assert!(endpoint.eligibility().is_eligible());
                assert_eq!(resting.next(), None);
            }
        }
    }

    #[test]
    fn none_is_forgotten_with_a_veto() {
        let resting = Resting::default();
        let now = Instant::now();
        let [a, b] = ["http://a", "http://b"].map(|key| Endpoint::new(key).unwrap());
        resting.rest(&a, &AtomicU32::new(0), NotNow::Failed, now);
        resting.rest(&b, &AtomicU32::new(0), NotNow::Busy, now);
        resting.forget(&b);
        assert!(b.eligibility().is_eligible() && !a.eligibility().is_eligible());
        assert_eq!(resting.next(), Some(now + Duration::from_millis(100)));
        resting.clear();
        assert!(a.eligibility().is_eligible());
    }
}
