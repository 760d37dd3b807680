//! The breakers of a set of endpoints, and their vetoes.
//!
//! Whoever changes the set makes the next table, which shares nearly all with the one before. A call reads the latest.

use std::{
    array,
    hash::{BuildHasher, RandomState},
    sync::{Arc, MutexGuard, PoisonError},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{Uri, uri::Authority};
use tokio::time::Instant;

use crate::{
    breaker::{
        Breaker, BreakerBuilder, Permit, Transition,
        engine::nanos,
        sync::{AtomicU64, Relaxed, SeqCst},
    },
    call::{CircuitState, ConfigError, Delta, Endpoint, Endpoints, Follower, InOrder, Index, Member, Veto},
};

/// In nanoseconds. While a probe is out nobody knows when it will be handed back.
const LOOK_AGAIN: u64 = 100_000_000;
const NEVER: u64 = u64::MAX;
/// Who looks for sleep windows that have ended looks at the groups in which one may have. It is a power of two.
const GROUPS: usize = 64;
/// With no more endpoints than this all are looked at.
const FEW: usize = 64;

/// Follows the set.
pub(super) struct Shared {
    table: ArcSwap<Table>,
    base: Instant,
    due: Arc<Due>,
    writer: Mutex<Writer>,
}

#[expect(
    clippy::disallowed_types,
    reason = "taken by who changes the set or the settings, never on the way of a call"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// What it takes to make the next table.
struct Writer {
    each: BreakerBuilder,
    /// By their numbers in the set.
    watched: InOrder<Arc<Watched>>,
}

/// When somebody has to look which endpoints may have their probe, in nanoseconds since the beginning.
#[derive(Debug)]
struct Due {
    any: AtomicU64,
    groups: [AtomicU64; GROUPS],
}

struct Table {
    /// By the hashes of their authorities. There is more than one with an authority where they differ in their scheme,
    /// or in their key alone.
    by_authority: Index<Arc<Watched>>,
    hasher: RandomState,
}

/// An endpoint, as it is described now, with its breaker.
struct Watched {
    /// The order of the set is that of the numbers.
    number: u64,
    /// Of its authority.
    hash: u64,
    endpoint: Endpoint,
    breaker: Breaker,
    cell: Arc<Cell>,
}

/// Where a breaker, which calls may outlive, puts its veto. None: nowhere any more.
#[derive(Debug)]
struct Cell(ArcSwapOption<(Endpoint, u64)>);

impl Cell {
    /// Puts the veto on, or takes it back. In which group the endpoint is.
    fn set(&self, has_veto: bool) -> Option<usize> {
        let mut place = self.0.load_full();
        loop {
            if let Some(place) = &place {
                set_veto(&place.0, has_veto);
            }
            // It may have been moved meanwhile, and whoever did so has not seen this.
            let now = self.0.load_full();
            let is_same = match (&place, &now) {
                (Some(one), Some(other)) => one.0 == other.0,
                (one, other) => one.is_none() && other.is_none(),
            };
            if is_same {
                return now.map(|now| group(now.1));
            }
            if let Some(old) = place {
                set_veto(&old.0, false);
            }
            place = now;
        }
    }

    /// From now on the veto goes here. One that stands comes along.
    fn moves_to(&self, now: Option<(&Endpoint, u64)>) {
        let next = now.map(|(endpoint, hash)| Arc::new((endpoint.clone(), hash)));
        let before = self.0.swap(next);
        let before = before.as_ref().map(|place| &place.0);
        let now = now.map(|(endpoint, _)| endpoint);
        if let Some(before) = before.filter(|before| Some(*before) != now) {
            if let Some(now) = now.filter(|_| before.eligibility().is_forbidden_by(Veto::Breaker)) {
                set_veto(now, true);
            }
            set_veto(before, false);
        }
    }
}

fn set_veto(endpoint: &Endpoint, has_veto: bool) {
    if has_veto {
        endpoint.eligibility().forbid(Veto::Breaker);
    } else {
        endpoint.eligibility().allow(Veto::Breaker);
    }
}

/// Those whose hashes have the same upper bits.
fn group(hash: u64) -> usize {
    (hash >> (u64::BITS - GROUPS.ilog2())) as usize
}

impl Due {
    fn new() -> Self {
        Due {
            any: AtomicU64::new(NEVER),
            groups: array::from_fn(|_| AtomicU64::new(NEVER)),
        }
    }

    /// Has somebody look at this group at once.
    fn wake(&self, group: usize) {
        if let Some(group) = self.groups.get(group) {
            group.store(0, SeqCst);
        }
        self.any.store(0, SeqCst);
    }
}

impl Watched {
    fn new(
        number: u64,
        hash: u64,
        endpoint: &Endpoint,
        each: &BreakerBuilder,
        due: &Arc<Due>,
    ) -> Option<Self> {
        let (due, hook) = (due.clone(), each.hook().cloned());
        let cell = Arc::new(Cell(ArcSwapOption::from_pointee((endpoint.clone(), hash))));
        let place = cell.clone();
        let name = format!("{}[{}]", each.breaker_name(), endpoint.key());
        let builder = each.clone().named(name.into()).shadow(true);
        let builder = builder.on_transition(move |transition: &Transition| {
            match transition.to() {
                CircuitState::Closed | CircuitState::Disabled | CircuitState::ForcedClosed => {
                    place.set(false);
                }
                _ => {
                    if let Some(group) = place.set(true) {
                        due.wake(group);
                    }
                }
            }
            if let Some(hook) = &hook {
                hook(transition);
            }
        });
        // It was checked when the first builder was.
        let breaker = builder.build().ok()?;
        Some(Watched {
            number,
            hash,
            endpoint: endpoint.clone(),
            breaker,
            cell,
        })
    }

    /// The same breaker for the endpoint as it is described now.
    fn described_by(&self, number: u64, hash: u64, endpoint: &Endpoint, due: &Due) -> Self {
        self.cell.moves_to(Some((endpoint, hash)));
        // When its next probe may come is known to its old group, if to any.
        if self.breaker.judged_state() != CircuitState::Closed {
            due.wake(group(hash));
        }
        Watched {
            number,
            hash,
            endpoint: endpoint.clone(),
            breaker: self.breaker.clone(),
            cell: self.cell.clone(),
        }
    }

    /// Lets a probe come, if one may go out. How long it is until somebody has to look again.
    fn look(&self) -> Option<u64> {
        match (self.breaker.judged_state(), self.breaker.probe_in()) {
            (CircuitState::Open | CircuitState::HalfOpen, Some(left)) if left.is_zero() => {
                self.cell.set(false);
                Some(LOOK_AGAIN)
            }
            (CircuitState::Open | CircuitState::HalfOpen, left) => {
                self.cell.set(true);
                Some(left.map_or(LOOK_AGAIN, nanos))
            }
            // The circuit may have closed between an earlier look and the veto that followed from it.
            (CircuitState::Closed | CircuitState::ForcedClosed | CircuitState::Disabled, _) => {
                self.cell.set(false);
                None
            }
            _ => {
                self.cell.set(true);
                None
            }
        }
    }
}

impl Table {
    fn hash(&self, authority: &Authority) -> u64 {
        self.hasher.hash_one(authority)
    }

    #[inline]
    fn find(&self, to: &Uri) -> Option<&Watched> {
        let mut found = self.with_authority(to.authority()?);
        let first = found.next()?;
        match found.next() {
            None => Some(first),
            Some(second) => [first, second]
                .into_iter()
                .chain(found)
                .find(|watched| Some(watched.endpoint.scheme()) == to.scheme()),
        }
    }

    #[inline]
    fn with_authority(&self, authority: &Authority) -> impl Iterator<Item = &Watched> {
        let same = self.by_authority.find(self.hash(authority));
        same.map(|watched| &**watched)
            .filter(move |watched| watched.endpoint.authority() == authority)
    }

    /// All of a group.
    fn group(&self, group: usize) -> impl Iterator<Item = &Watched> {
        let width = u64::MAX / GROUPS as u64;
        let first = (group as u64) << (u64::BITS - GROUPS.ilog2());
        let all = self.by_authority.between(first, first | width);
        all.map(|watched| &**watched)
    }

    /// The table after this difference.
    fn change(&mut self, delta: &Delta, writer: &mut Writer, due: &Arc<Due>) {
        match delta {
            Delta::Came(member) => {
                let hash = self.hash(member.endpoint.authority());
                let new = Watched::new(member.number, hash, &member.endpoint, &writer.each, due);
                if let Some(new) = new {
                    let new = self.put(new);
                    writer.watched.push(new.number, new);
                }
            }
            Delta::Went(number) => {
                if let Some(old) = writer.watched.remove(*number) {
                    self.take(&old);
                    // Who put the veto is no more.
                    old.cell.moves_to(None);
                }
            }
            Delta::Became(number, now) => {
                if let Some(old) = writer.watched.get(*number).cloned() {
                    self.take(&old);
                    let hash = self.hash(now.endpoint.authority());
                    let new = self.put(old.described_by(now.number, hash, &now.endpoint, due));
                    match writer.watched.get_mut(now.number) {
                        Some(place) => *place = new,
                        None => {
                            writer.watched.remove(*number);
                            writer.watched.push(now.number, new);
                        }
                    }
                }
            }
        }
    }

    fn put(&mut self, watched: Watched) -> Arc<Watched> {
        let watched = Arc::new(watched);
        self.by_authority.insert(watched.hash, watched.clone());
        watched
    }

    fn take(&mut self, watched: &Watched) {
        self.by_authority
            .remove(watched.hash, |one| one.number == watched.number);
    }
}

impl Follower for Shared {
    fn follow(&self, deltas: &[Delta]) {
        let mut writer = self.writer();
        let before = self.table.load();
        let mut table = Table {
            by_authority: before.by_authority.clone(),
            hasher: before.hasher.clone(),
        };
        for delta in deltas {
            table.change(delta, &mut writer, &self.due);
        }
        self.table.store(Arc::new(table));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (_, watched) in self.writer().watched.iter() {
            watched.cell.moves_to(None);
        }
    }
}

impl Shared {
    pub(super) fn following(endpoints: &Endpoints, each: BreakerBuilder) -> Arc<Self> {
        endpoints.followed_by(|members, _| {
            let due = Arc::new(Due::new());
            let mut writer = Writer {
                each,
                watched: InOrder::with_capacity(members.len()),
            };
            let mut table = Table {
                by_authority: Index::default(),
                hasher: RandomState::new(),
            };
            for (number, endpoint) in members {
                let endpoint = endpoint.clone();
                table.change(&Delta::Came(Member { number, endpoint }), &mut writer, &due);
            }
            Shared {
                table: ArcSwap::from_pointee(table),
                base: Instant::now(),
                due,
                writer: Mutex::new(writer),
            }
        })
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn admit(&self, to: &Uri) -> Option<Permit> {
        if self.due.any.load(Relaxed) != NEVER {
            self.look();
        }
        let table = self.table.load();
        // In shadow mode it never rejects.
        table.find(to)?.breaker.admit().ok()
    }

    /// Lets probes come where sleep windows have ended.
    #[cold]
    fn look(&self) {
        let age = Instant::now().saturating_duration_since(self.base);
        let now = nanos(age);
        let due = self.due.any.load(SeqCst);
        // One call looks; a circuit that opens meanwhile makes it due again.
        let mine = due <= now && self.due.any.compare_exchange(due, NEVER, SeqCst, SeqCst).is_ok();
        if !mine {
            return;
        }
        let table = self.table.load();
        let looks_at_all = table.by_authority.len() <= FEW;
        for (number, group) in self.due.groups.iter().enumerate() {
            if looks_at_all || group.load(SeqCst) <= now {
                group.store(NEVER, SeqCst);
                let waits = table.group(number).filter_map(Watched::look).min();
                if let Some(wait) = waits {
                    group.fetch_min(now.saturating_add(wait), SeqCst);
                }
            }
        }
        let groups = self.due.groups.iter();
        let next = groups.map(|group| group.load(SeqCst)).min();
        self.due.any.fetch_min(next.unwrap_or(NEVER), SeqCst);
    }

    /// The breaker of this endpoint.
    pub(super) fn breaker(&self, endpoint: &Endpoint) -> Option<Breaker> {
        let table = self.table.load();
        let mut found = table.with_authority(endpoint.authority());
        let watched = found.find(|watched| watched.endpoint == *endpoint)?;
        Some(watched.breaker.clone())
    }

    /// What this says of each, in the order of the set.
    pub(super) fn all<T>(&self, ask: impl Fn(&Endpoint, &Breaker) -> T) -> Vec<T> {
        let table = self.table.load();
        let mut all: Vec<&Arc<Watched>> = table.by_authority.between(0, u64::MAX).collect();
        all.sort_unstable_by_key(|watched| watched.number);
        let all = all.into_iter();
        all.map(|watched| ask(&watched.endpoint, &watched.breaker))
            .collect()
    }

    pub(super) fn change(
        &self,
        change: impl Fn(BreakerBuilder) -> BreakerBuilder,
    ) -> Result<(), ConfigError> {
        // The closure may do anything, so it runs without the lock.
        let before = self.writer().each.clone();
        let after = change(before.clone()).named(before.breaker_name().clone());
        let after = after.or_seed_and_hook_of(&before);
        before.checked_change(&after)?;
        self.writer().each = after.clone();
        for breaker in self.all(|_, breaker| breaker.clone()) {
            let name = breaker.shared_name();
            breaker.change(|own| after.clone().named(name).shadow(true).with_seed_and_hook_of(&own))?;
        }
        Ok(())
    }
}
