//! The breakers of a set of endpoints, and their vetoes.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use http::{Uri, uri::Authority};
use tokio::time::Instant;

use crate::{
    breaker::{
        Breaker, BreakerBuilder, Permit, Transition,
        engine::nanos,
        sync::{AtomicU64, Relaxed, SeqCst},
    },
    call::{CircuitState, ConfigError, Endpoint, Endpoints, Veto},
};

/// In nanoseconds. While a probe is out nobody knows when it will be handed back.
const LOOK_AGAIN: u64 = 100_000_000;
const NEVER: u64 = u64::MAX;

pub(super) struct Shared {
    endpoints: Endpoints,
    table: ArcSwap<Table>,
    base: Instant,
    due: Arc<Due>,
    each: Mutex<BreakerBuilder>,
}

#[expect(
    clippy::disallowed_types,
    reason = "taken when the set has changed, never on the way of a call"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// When somebody has to look which endpoints may have their probe, in nanoseconds since the beginning.
#[derive(Debug)]
struct Due(AtomicU64);

struct Table {
    version: u64,
    watched: Vec<Arc<Watched>>,
    /// The places of the endpoints with an authority; more than one where they differ in their scheme.
    places: HashMap<Authority, Vec<usize>>,
}

/// An endpoint with its breaker.
struct Watched {
    endpoint: Endpoint,
    breaker: Breaker,
    /// Without it the breaker, which calls may outlive, writes no veto any more.
    _watch: Arc<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Who put the veto is no more.
        self.endpoint.eligibility().allow(Veto::Breaker);
    }
}

impl Watched {
    fn new(endpoint: &Endpoint, each: &BreakerBuilder, due: &Arc<Due>) -> Option<Self> {
        let (cell, due, hook) = (endpoint.clone(), due.clone(), each.hook().cloned());
        let watch = Arc::new(());
        let is_watched = Arc::downgrade(&watch);
        let name = format!("{}[{}]", each.breaker_name(), endpoint.key());
        let builder = each.clone().named(name.into()).shadow(true);
        let builder = builder.on_transition(move |transition: &Transition| {
            match transition.to() {
                _ if is_watched.strong_count() == 0 => {}
                CircuitState::Closed | CircuitState::Disabled | CircuitState::ForcedClosed => {
                    cell.eligibility().allow(Veto::Breaker);
                }
                _ => {
                    cell.eligibility().forbid(Veto::Breaker);
                    due.0.store(0, SeqCst);
                }
            }
            if let Some(hook) = &hook {
                hook(transition);
            }
        });
        // It was checked when the first builder was.
        let breaker = builder.build().ok()?;
        Some(Watched {
            endpoint: endpoint.clone(),
            breaker,
            _watch: watch,
        })
    }

    /// Lets a probe come, if one may go out. How long it is until somebody has to look again.
    fn look(&self) -> Option<u64> {
        let cell = self.endpoint.eligibility();
        match (self.breaker.judged_state(), self.breaker.probe_in()) {
            (CircuitState::Open | CircuitState::HalfOpen, Some(left)) if left.is_zero() => {
                cell.allow(Veto::Breaker);
                Some(LOOK_AGAIN)
            }
            (CircuitState::Open | CircuitState::HalfOpen, left) => {
                cell.forbid(Veto::Breaker);
                Some(left.map_or(LOOK_AGAIN, nanos))
            }
            // The circuit may have closed between an earlier look and the veto that followed from it.
            (CircuitState::Closed | CircuitState::ForcedClosed | CircuitState::Disabled, _) => {
                cell.allow(Veto::Breaker);
                None
            }
            _ => {
                cell.forbid(Veto::Breaker);
                None
            }
        }
    }
}

impl Table {
    fn new(endpoints: &Endpoints, before: &[Arc<Watched>], each: &BreakerBuilder, due: &Arc<Due>) -> Self {
        // Read first: should the set change in between, it is seen next time.
        let snapshot = endpoints.snapshot();
        let watched: Vec<Arc<Watched>> = snapshot
            .endpoints()
            .iter()
            .filter_map(|endpoint| {
                let known = before.iter().find(|watched| watched.endpoint == *endpoint);
                match known {
                    Some(watched) => Some(watched.clone()),
                    None => Watched::new(endpoint, each, due).map(Arc::new),
                }
            })
            .collect();
        let mut places: HashMap<Authority, Vec<usize>> = HashMap::new();
        for (place, watched) in watched.iter().enumerate() {
            let authority = watched.endpoint.authority().clone();
            places.entry(authority).or_default().push(place);
        }
        Table {
            version: snapshot.version(),
            watched,
            places,
        }
    }

    #[inline]
    fn find(&self, to: &Uri) -> Option<&Watched> {
        let places = self.places.get(to.authority()?)?;
        let mut found = places.iter().filter_map(|place| self.watched.get(*place));
        if places.len() == 1 {
            return found.next().map(|watched| &**watched);
        }
        found
            .find(|watched| Some(watched.endpoint.scheme()) == to.scheme())
            .map(|watched| &**watched)
    }
}

impl Shared {
    pub(super) fn new(endpoints: Endpoints, each: BreakerBuilder) -> Self {
        let due = Arc::new(Due(AtomicU64::new(NEVER)));
        let table = Table::new(&endpoints, &[], &each, &due);
        Shared {
            endpoints,
            table: ArcSwap::from_pointee(table),
            base: Instant::now(),
            due,
            each: Mutex::new(each),
        }
    }

    fn each(&self) -> MutexGuard<'_, BreakerBuilder> {
        self.each.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn admit(&self, to: &Uri) -> Option<Permit> {
        self.keep_up();
        if self.due.0.load(Relaxed) != NEVER {
            self.look();
        }
        let table = self.table.load();
        // In shadow mode it never rejects.
        table.find(to)?.breaker.admit().ok()
    }

    /// Takes over what has changed in the set.
    #[inline]
    fn keep_up(&self) {
        if self.table.load().version != self.endpoints.version() {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&self) {
        let each = self.each();
        let before = self.table.load_full();
        if before.version != self.endpoints.version() {
            let table = Table::new(&self.endpoints, &before.watched, &each, &self.due);
            self.table.store(Arc::new(table));
        }
        drop(each);
    }

    /// Lets probes come where sleep windows have ended.
    #[cold]
    fn look(&self) {
        let age = Instant::now().saturating_duration_since(self.base);
        let now = nanos(age);
        let due = self.due.0.load(SeqCst);
        // One call looks; a circuit that opens meanwhile makes it due again.
        let mine = due <= now && self.due.0.compare_exchange(due, NEVER, SeqCst, SeqCst).is_ok();
        if !mine {
            return;
        }
        let waits = self
            .table
            .load()
            .watched
            .iter()
            .filter_map(|watched| watched.look())
            .min();
        if let Some(wait) = waits {
            self.due.0.fetch_min(now.saturating_add(wait), SeqCst);
        }
    }

    pub(super) fn all<T>(&self, ask: impl Fn(&Endpoint, &Breaker) -> Option<T>) -> Vec<T> {
        self.keep_up();
        let table = self.table.load();
        let watched = table.watched.iter();
        watched
            .filter_map(|watched| ask(&watched.endpoint, &watched.breaker))
            .collect()
    }

    pub(super) fn change(
        &self,
        change: impl Fn(BreakerBuilder) -> BreakerBuilder,
    ) -> Result<(), ConfigError> {
        // The closure may do anything, so it runs without the lock.
        let before = self.each().clone();
        let after = change(before.clone()).named(before.breaker_name().clone());
        let after = after.or_seed_and_hook_of(&before);
        before.checked_change(&after)?;
        *self.each() = after.clone();
        for breaker in self.all(|_, breaker| Some(breaker.clone())) {
            let name = breaker.shared_name();
            breaker.change(|own| after.clone().named(name).shadow(true).with_seed_and_hook_of(&own))?;
        }
        Ok(())
    }
}
