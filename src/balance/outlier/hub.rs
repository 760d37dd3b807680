//! What the endpoints of a balancer have in common: when something is due, and who does it.
#![expect(
    clippy::disallowed_types,
    reason = "a std lock guards who is ejected; a call takes it when that changes, or is a probe"
)]

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::time::{Duration, Instant};

use super::{
    Ejection, EjectionCause, OutlierEjection,
    due::Due,
    state::{News, State},
    watch::{Phase, Sign, Ticket, Watch, nanos},
};
use crate::{
    balance::{figures::Counters, roster::Roster},
    call::Endpoint,
};

/// The detector of a balancer.
#[derive(Default)]
pub(in crate::balance) struct Hub {
    due: Due,
    /// From how many failures in a row on. Zero: that is off.
    in_a_row: AtomicU32,
    /// After how many nanoseconds what is given up is a failure.
    abandoned_after: AtomicU64,
    /// The times here are counted from there, in nanoseconds.
    since: OnceLock<Instant>,
    /// None: it is switched off.
    state: Mutex<Option<State>>,
}

impl Hub {
    /// Begins anew with these settings.
    pub(in crate::balance) fn switch_on(&self, settings: OutlierEjection) {
        let mut state = self.lock();
        if let Some(before) = &mut *state {
            before.close(0);
        }
        self.in_a_row.store(settings.in_a_row.unwrap_or(0), Relaxed);
        let abandoned_after = settings.abandoned_after.map_or(u64::MAX, nanos);
        self.abandoned_after.store(abandoned_after, Relaxed);
        *state = Some(State::new(settings));
        self.due.switch_on();
    }

    /// Takes all vetoes back, for good.
    pub(in crate::balance) fn switch_off(&self) {
        self.due.switch_off();
        if let Some(mut state) = self.lock().take() {
            state.close(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        // Should code of ours panic half way, what it leaves is put right by the next look, or by an end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something under the lock, and tells of it without: that runs code of others, which may panic or pick.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        let (done, news) = {
            let mut state = self.lock();
            let state = state.as_mut()?;
            (work(state), state.take_news())
        };
        news.iter().for_each(tell);
        Some(done)
    }

    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Relaxed)
    }

    pub(super) fn abandoned_after(&self) -> u64 {
        self.abandoned_after.load(Relaxed)
    }

    fn nanos(&self, now: Instant) -> u64 {
        let first = *self.since.get_or_init(|| now);
        nanos(now.saturating_duration_since(first))
    }

    fn instant(&self, at: u64) -> Option<Instant> {
        self.since.get()?.checked_add(Duration::from_nanos(at))
    }

    /// Is it on, and is there something to do?
    #[inline]
    pub(in crate::balance) fn is_on_and_due(&self, now: Instant) -> (bool, bool) {
        match self.due.at() {
            None => (false, false),
            Some(due) => (true, due <= self.nanos(now)),
        }
    }

    /// The set has changed.
    pub(in crate::balance) fn set_changed(&self) {
        self.due.bring_forward(0);
    }

    /// Whoever comes first does what is due; the others pick by what there is.
    #[cold]
    pub(in crate::balance) fn look(&self, now: Instant, roster: impl FnOnce() -> Arc<Roster>) {
        let Some(_looking) = self.due.take() else {
            return;
        };
        let (now, roster) = (self.nanos(now), roster());
        self.with(|state| self.due.bring_forward(state.look(&roster, now)));
    }

    /// What the attempt that starts now is. `None`: none may start, look for another endpoint.
    #[inline]
    pub(in crate::balance) fn admit(
        self: &Arc<Self>,
        counters: &Counters,
        endpoint: &Endpoint,
        now: Instant,
    ) -> Option<Ticket> {
        counters.watched_by(self).admit(endpoint, now)
    }

    pub(super) fn take_probe(&self, watch: &Watch, now: Instant) -> Option<Ticket> {
        let now = self.nanos(now);
        self.with(|state| {
            let (ticket, until) = state.take_probe(watch, now)?;
            self.due.bring_forward(until);
            Some(ticket)
        })?
    }

    #[cold]
    pub(super) fn probe_ended(&self, watch: &Watch, ticket: Ticket, sign: Sign, now: Instant) {
        let (now, at) = (self.nanos(now), now);
        self.with(|state| {
            if let Some(due) = state.probe_ended(watch, ticket, sign, now, at) {
                self.due.bring_forward(due);
            }
        });
    }

    #[cold]
    pub(super) fn too_many_in_a_row(
        &self,
        ticket: Ticket,
        counters: &Arc<Counters>,
        endpoint: &Endpoint,
        failures: u32,
        now: Instant,
    ) {
        let now = self.nanos(now);
        let Some(watch) = counters.watch() else {
            return;
        };
        let cause = EjectionCause::FailuresInARow { failures };
        self.with(|state| {
            if ticket.is_of(watch.word()) && state.eject(watch, counters, endpoint, cause, now) {
                self.due.bring_forward(0);
            }
        });
    }

    /// Are ejections disregarded now?
    pub(in crate::balance) fn is_panicking(&self) -> bool {
        self.lock().as_ref().is_some_and(State::is_panicking)
    }

    /// Is this one ejected?
    pub(in crate::balance) fn ejection(&self, counters: &Counters) -> Option<Ejection> {
        let watch = counters.watch()?;
        if watch.word().phase() == Phase::In {
            return None;
        }
        let state = self.lock();
        let ejected = state.as_ref()?.get(watch)?;
        Some(Ejection {
            cause: ejected.cause,
            since: self.instant(ejected.since)?,
            until: self.instant(ejected.until)?,
            in_a_row: watch.in_a_row(),
            probing: watch.word().phase() != Phase::Out,
        })
    }
}

fn tell(news: &News) {
    match news {
        News::Ejected {
            endpoint,
            cause,
            time,
            in_a_row,
        } => tracing::info!(
            target: "tower_outbound::balance",
            endpoint = endpoint.key(),
            %cause,
            ?time,
            in_a_row,
            "an endpoint is ejected"
        ),
        News::Returned { endpoint } => tracing::info!(
            target: "tower_outbound::balance",
            endpoint = endpoint.key(),
            "an ejected endpoint is back"
        ),
        News::Panic { begins, usable, size } => tracing::warn!(
            target: "tower_outbound::balance",
            begins,
            usable,
            size,
            "too few endpoints may be picked, ejections are disregarded, or are not any more"
        ),
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("is_on", &self.due.at().is_some())
            .finish_non_exhaustive()
    }
}
