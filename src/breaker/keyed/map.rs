//! Where breakers are found by their key, without a lock.

use std::{
    borrow::Borrow,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::{
    breaker::{
        Breaker, BreakerBuilder,
        engine::nanos,
        sync::{AtomicU64, Relaxed},
    },
    call::ConfigError,
};

/// The map is in parts, so that a key that comes or goes has only its part copied.
const PARTS: usize = 16;

/// Each thread has its own lines of one in most cases; there may be many breakers, so these have fewer.
const LANES: usize = 4;

type Part<K> = HashMap<K, Arc<Entry>>;

#[derive(Debug)]
struct Entry {
    breaker: Breaker,
    /// Not 0: it was used since somebody last looked.
    used: AtomicU64,
    /// When that was seen last, in nanoseconds since the map was made.
    seen: AtomicU64,
}

impl Entry {
    /// When it was used last, as far as is known.
    fn last_use(&self, now: u64) -> u64 {
        if self.used.load(Relaxed) != 0 {
            self.used.store(0, Relaxed);
            self.seen.store(now, Relaxed);
        }
        self.seen.load(Relaxed)
    }
}

pub(super) struct Map<K> {
    parts: [ArcSwap<Part<K>>; PARTS],
    hasher: RandomState,
    most: usize,
    idle_after: Duration,
    base: Instant,
    len: AtomicU64,
    unkept: AtomicU64,
    writer: Mutex<Writer>,
}

#[expect(
    clippy::disallowed_types,
    reason = "taken when a key comes or goes, never on the way of a call with a known key"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// What those share who change the map, one at a time.
struct Writer {
    each: BreakerBuilder,
    swept: u64,
}

pub(super) enum Found {
    Kept(Breaker),
    NoRoom,
}

impl<K> Map<K> {
    pub(super) fn new(each: BreakerBuilder, most: usize, idle_after: Duration) -> Self {
        Map {
            parts: std::array::from_fn(|_| ArcSwap::from_pointee(HashMap::new())),
            hasher: RandomState::new(),
            most,
            idle_after,
            base: Instant::now(),
            len: AtomicU64::new(0),
            unkept: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                each: each.lanes(LANES),
                swept: 0,
            }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    pub(super) fn note_unkept(&self) {
        self.unkept.fetch_add(1, Relaxed);
    }

    pub(super) fn unkept(&self) -> u64 {
        self.unkept.load(Relaxed)
    }

    fn now(&self) -> u64 {
        let age = Instant::now().saturating_duration_since(self.base);
        nanos(age)
    }

    fn write(&self) -> MutexGuard<'_, Writer> {
        // The map is whole at every moment.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone> Map<K> {
    #[inline]
    fn part<Q: ?Sized + Hash>(&self, key: &Q) -> &ArcSwap<Part<K>> {
        &self.parts[self.hasher.hash_one(key) as usize % PARTS]
    }

    /// What `ask` says of the breaker of this key, if there is one.
    #[inline]
    pub(super) fn find<Q, T>(&self, key: &Q, ask: impl FnOnce(&Breaker) -> T) -> Option<T>
    where
        K: Borrow<Q>,
        Q: ?Sized + Hash + Eq,
    {
        let part = self.part(key).load();
        let entry = part.get(key)?;
        // Written once between two looks of those who drop what is idle.
        if entry.used.load(Relaxed) == 0 {
            entry.used.store(1, Relaxed);
        }
        Some(ask(&entry.breaker))
    }

    pub(super) fn peek<Q>(&self, key: &Q) -> Option<Breaker>
    where
        K: Borrow<Q>,
        Q: ?Sized + Hash + Eq,
    {
        let part = self.part(key).load();
        part.get(key).map(|entry| entry.breaker.clone())
    }

    pub(super) fn all(&self) -> Vec<(K, Breaker)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.load();
            all.extend(
                part.iter()
                    .map(|(key, entry)| (key.clone(), entry.breaker.clone())),
            );
        }
        all
    }

    /// Makes the breaker of this key, unless another thread just has.
    pub(super) fn make<Q>(&self, key: &Q) -> Found
    where
        K: Borrow<Q>,
        Q: ?Sized + Hash + Eq + ToOwned<Owned = K> + fmt::Display,
    {
        let mut writer = self.write();
        if let Some(breaker) = self.find(key, Breaker::clone) {
            return Found::Kept(breaker);
        }
        let now = self.now();
        if now.saturating_sub(writer.swept) >= nanos(self.idle_after) / 2 {
            writer.swept = now;
            self.sweep(now);
        }
        if self.len() >= self.most && !self.make_room(now) {
            return Found::NoRoom;
        }
        let name = format!("{}[{key}]", writer.each.breaker_name());
        // It was checked when the first builder was.
        let Ok(breaker) = writer.each.clone().named(name.into()).build() else {
            return Found::NoRoom;
        };
        let entry = Arc::new(Entry {
            breaker: breaker.clone(),
            used: AtomicU64::new(1),
            seen: AtomicU64::new(now),
        });
        let place = self.part(key);
        let mut part = Part::clone(&place.load());
        part.insert(key.to_owned(), entry);
        self.publish(place, part);
        Found::Kept(breaker)
    }

    pub(super) fn drop_idle(&self) -> usize {
        let mut writer = self.write();
        let now = self.now();
        writer.swept = now;
        self.sweep(now)
    }

    /// Drops what was not used for long.
    fn sweep(&self, now: u64) -> usize {
        let idle = nanos(self.idle_after);
        let before = self.len();
        for place in &self.parts {
            let part = place.load_full();
            let stays = |entry: &Entry| {
                now.saturating_sub(entry.last_use(now)) < idle || !entry.breaker.can_be_dropped()
            };
            let stay: Part<K> = part
                .iter()
                .filter(|(_, entry)| stays(entry))
                .map(|(key, entry)| (key.clone(), entry.clone()))
                .collect();
            if stay.len() < part.len() {
                self.publish(place, stay);
            }
        }
        before - self.len()
    }

    /// Drops the one that can be dropped and was not used for longest.
    fn make_room(&self, now: u64) -> bool {
        let mut oldest: Option<(u64, &ArcSwap<Part<K>>, K)> = None;
        for place in &self.parts {
            let part = place.load();
            for (key, entry) in part.iter() {
                let last_use = entry.last_use(now);
                let is_older = oldest.as_ref().is_none_or(|(oldest, ..)| last_use < *oldest);
                if is_older && entry.breaker.can_be_dropped() {
                    oldest = Some((last_use, place, key.clone()));
                }
            }
        }
        let Some((_, place, key)) = oldest else {
            return false;
        };
        let mut part = Part::clone(&place.load());
        part.remove(&key);
        self.publish(place, part);
        true
    }

    /// The only way in which a part changes, with the lock held.
    fn publish(&self, place: &ArcSwap<Part<K>>, part: Part<K>) {
        let others = self.len() - place.load().len();
        self.len.store((others + part.len()) as u64, Relaxed);
        place.store(Arc::new(part));
    }

    pub(super) fn change(
        &self,
        change: impl Fn(BreakerBuilder) -> BreakerBuilder,
    ) -> Result<(), ConfigError> {
        // The closure may do anything, so it runs without the lock.
        let before = self.write().each.clone();
        let after = change(before.clone()).named(before.breaker_name().clone());
        // They may be those of another builder.
        let after = after.lanes(LANES).or_seed_and_hook_of(&before);
        before.checked_change(&after)?;
        let mut writer = self.write();
        writer.each = after.clone();
        for (_, breaker) in self.all() {
            let name = breaker.shared_name();
            // It differs from the others in its name, and perhaps in its seed.
            breaker.change(|each| after.clone().named(name).with_seed_and_hook_of(&each))?;
        }
        Ok(())
    }
}
