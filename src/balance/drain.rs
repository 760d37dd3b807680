//! Taking an endpoint out of service.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use tokio::time::{Duration, Instant, sleep_until};

use super::{
    figures::Counters,
    roster::{Entry, Pool},
};
use crate::call::{Endpoint, timer::poll_timer};

/// A pick that has looked at the endpoint just before the veto has begun its attempt by then.
const SETTLE: Duration = Duration::from_millis(1);

/// How a [drain](super::BalanceHandle::drain) has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "there may be attempts left, or no endpoint of that name"]
pub enum Drained {
    /// The endpoint is out of the set, and no attempt is under way there: each has the head of its answer, or an error. Bodies
    /// may still be on their way.
    Empty,
    /// The endpoint is out of the set, and at the limit so many attempts were under way there. They go on.
    AttemptsLeft(u64),
    /// There was no endpoint of this name.
    NotThere,
}

pub(super) async fn drain(pool: &Pool, key: &str, limit: Duration) -> Drained {
    let Some((mut held, counters)) = pool.roster().find_key(key).map(parts) else {
        return Drained::NotThere;
    };
    let now = Instant::now();
    let until = now.checked_add(limit);
    let settled = now + SETTLE.min(limit);
    let last = counters.await_last();
    // Once the endpoint has gone, what is left of it is waited for.
    let mut is_in = true;
    loop {
        // They hear of all that comes after this.
        let mut ended = pin!(last.ended());
        let mut changed = pin!(pool.endpoints().changed());
        if is_in {
            is_in = held.follow(pool, key, &counters);
        }
        let (left, now) = (last.in_flight(), Instant::now());
        let is_late = until.is_some_and(|until| until <= now);
        if is_late || left == 0 && settled <= now {
            if is_in {
                pool.endpoints().remove(key);
                is_in = false;
                // Has one been begun meanwhile?
                continue;
            }
            return match left {
                0 => Drained::Empty,
                left => Drained::AttemptsLeft(left),
            };
        }
        let wake = if left == 0 { Some(settled) } else { until };
        let mut timer = pin!(wake.map(sleep_until));
        poll_fn(|cx| {
            let is_time = |timer| poll_timer(timer, cx).is_ready();
            if timer.as_mut().as_pin_mut().is_some_and(is_time)
                || ended.as_mut().poll(cx).is_ready()
                || changed.as_mut().poll(cx).is_ready()
            {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

fn parts(entry: &Entry) -> (Held, Arc<Counters>) {
    (Held::new(&entry.endpoint), entry.counters().clone())
}

/// The endpoint that has the veto of this drain. It is taken back when this is dropped: if the endpoint has gone, so that
/// it can be put in again.
struct Held(Endpoint);

impl Held {
    fn new(endpoint: &Endpoint) -> Self {
        endpoint.eligibility().begin_drain();
        Held(endpoint.clone())
    }

    /// Goes over to the description that the endpoint has now. False: it is not in the set any more.
    fn follow(&mut self, pool: &Pool, key: &str, counters: &Arc<Counters>) -> bool {
        let roster = pool.roster();
        let entry = roster.find_key(key);
        // One that was taken out and put in again has others.
        let Some(entry) = entry.filter(|entry| Arc::ptr_eq(entry.counters(), counters)) else {
            return false;
        };
        if self.0 != entry.endpoint {
            *self = Held::new(&entry.endpoint);
        }
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.eligibility().end_drain();
    }
}
