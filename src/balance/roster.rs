//! The endpoints that may be picked, each with its counters.
#![expect(
    clippy::disallowed_types,
    reason = "a std lock guards the rebuilding of the roster after a change of the set; other picks take no lock"
)]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, Guard};

use super::{
    figures::{Counters, Epoch},
    stats::RibbonStats,
};
use crate::call::{Affinity, Endpoint, Endpoints, Snapshot};

/// What a layer and all its services share: the set, and the roster made from it.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    pub(super) stats: RibbonStats,
}

#[derive(Debug)]
struct Shared {
    endpoints: Endpoints,
    epoch: Epoch,
    roster: ArcSwap<Roster>,
    rebuilding: Mutex<()>,
}

/// One state of the set, with the counters of its endpoints.
#[derive(Debug)]
pub(super) struct Roster {
    id: u64,
    source: Arc<Snapshot>,
    entries: Box<[Entry]>,
    /// The places of the endpoints of each zone, in the order in which the zones occur. Those without one share one.
    zones: Box<[Box<[usize]>]>,
}

/// No two rosters of a process have the same number, be they of one set or not.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) endpoint: Endpoint,
    pub(super) counters: Arc<Counters>,
    /// Which of [`Roster::zones`] it is in.
    pub(super) zone: usize,
    /// Of its key.
    pub(super) hash: Affinity,
    /// Did most of the others come before it?
    pub(super) late: bool,
}

impl Pool {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        let roster = Roster::new(endpoints.snapshot(), &[]);
        let shared = Shared {
            endpoints,
            epoch: Epoch::default(),
            roster: ArcSwap::from_pointee(roster),
            rebuilding: Mutex::new(()),
        };
        Pool {
            shared: Arc::new(shared),
            stats: RibbonStats::default(),
        }
    }

    /// The same set and the same counters, read in another way.
    pub(super) fn with(&self, stats: RibbonStats) -> Self {
        Pool {
            shared: self.shared.clone(),
            stats,
        }
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.shared.endpoints
    }

    pub(super) fn epoch(&self) -> &Epoch {
        &self.shared.epoch
    }

    /// The roster of the latest state of the set that was published before this call.
    #[inline]
    pub(super) fn roster(&self) -> Guard<Arc<Roster>> {
        let roster = self.shared.roster.load();
        if roster.source.version() == self.shared.endpoints.version() {
            roster
        } else {
            self.shared.rebuild()
        }
    }
}

impl Shared {
    /// Whoever picks first after a change makes the new roster; the others wait for it, since the old one may hold
    /// an endpoint that has been taken out.
    #[cold]
    fn rebuild(&self) -> Guard<Arc<Roster>> {
        let _rebuilding = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.roster.load();
        if old.source.version() == self.endpoints.version() {
            return old;
        }
        self.roster
            .store(Arc::new(Roster::new(self.endpoints.snapshot(), &old.entries)));
        self.roster.load()
    }
}

impl Roster {
    /// An endpoint whose key was in the roster before keeps its counters; those of the others go with the old roster.
    fn new(source: Arc<Snapshot>, old: &[Entry]) -> Self {
        let mut survivors = Survivors::new(old);
        let mut newcomers = Vec::new();
        let mut entries: Box<[Entry]> = source
            .endpoints()
            .iter()
            .enumerate()
            .map(|(place, endpoint)| match survivors.take(endpoint) {
                Some(before) => Entry {
                    endpoint: endpoint.clone(),
                    ..before.clone()
                },
                None => {
                    newcomers.push(place);
                    Entry {
                        endpoint: endpoint.clone(),
                        counters: Arc::default(),
                        zone: 0,
                        hash: Affinity::of(endpoint.key()),
                        late: false,
                    }
                }
            })
            .collect();
        if newcomers.len() * 2 <= entries.len() {
            for place in newcomers {
                if let Some(entry) = entries.get_mut(place) {
                    entry.late = true;
                }
            }
        }
        let mut roster = Roster {
            id: NEXT_ID.fetch_add(1, Relaxed),
            source,
            entries,
            zones: Box::default(),
        };
        roster.sort_into_zones();
        roster
    }

    /// As in Ribbon names of zones that differ in upper and lower case alone are one.
    fn sort_into_zones(&mut self) {
        let mut by_name: HashMap<Option<String>, usize> = HashMap::new();
        let mut zones: Vec<Vec<usize>> = Vec::new();
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let name = entry.endpoint.zone().map(str::to_ascii_lowercase);
            entry.zone = *by_name.entry(name).or_insert_with(|| {
                zones.push(Vec::new());
                zones.len() - 1
            });
            if let Some(zone) = zones.get_mut(entry.zone) {
                zone.push(place);
            }
        }
        self.zones = zones.into_iter().map(Vec::into_boxed_slice).collect();
    }

    /// Is there another endpoint than this one that may be picked? Mostly one of the first two is.
    pub(super) fn has_another_than(&self, entry: &Entry) -> bool {
        self.entries
            .iter()
            .any(|other| !std::ptr::eq(other, entry) && other.endpoint.eligibility().is_eligible())
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn zones(&self) -> &[Box<[usize]>] {
        &self.zones
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All, in the order of the set.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The one at this place.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&Entry> {
        self.entries.get(place)
    }

    pub(super) fn resolved(&self) -> bool {
        self.source.resolved()
    }

    /// The entry of this endpoint, or of the one that has its key now. Looks at all: it is for retries, not for each
    /// call.
    pub(super) fn find(&self, endpoint: &Endpoint) -> Option<&Entry> {
        let same = self.entries.iter().find(|entry| entry.endpoint == *endpoint);
        same.or_else(|| self.find_key(endpoint.key()))
    }

    pub(super) fn find_key(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.endpoint.key() == key)
    }
}

/// The counters of the roster before, asked for in the order of the new one.
struct Survivors<'a> {
    old: &'a [Entry],
    /// Where the next one is expected: most changes leave most of the order as it was.
    next: usize,
    /// Made when one is not where it is expected.
    by_key: Option<HashMap<&'a str, &'a Entry>>,
}

impl<'a> Survivors<'a> {
    fn new(old: &'a [Entry]) -> Self {
        Survivors {
            old,
            next: 0,
            by_key: None,
        }
    }

    fn take(&mut self, endpoint: &Endpoint) -> Option<&'a Entry> {
        // One further, if the expected one has been taken out.
        for place in [self.next, self.next + 1] {
            if let Some(entry) = self.old.get(place).filter(|entry| entry.endpoint == *endpoint) {
                self.next = place + 1;
                return Some(entry);
            }
        }
        let old = self.old;
        let by_key = self
            .by_key
            .get_or_insert_with(|| old.iter().map(|entry| (entry.endpoint.key(), entry)).collect());
        // If it has a new description in its old place, the one after it is expected next.
        let found = by_key.get(endpoint.key()).copied();
        if old
            .get(self.next)
            .is_some_and(|entry| entry.endpoint.key() == endpoint.key())
        {
            self.next += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::balance::figures::InFlight;

    fn endpoint(key: &str) -> Endpoint {
        Endpoint::new(key).unwrap()
    }

    #[test]
    fn counters_stay_with_the_key_and_go_with_it() {
        let set: Endpoints = ["http://a", "http://b"].map(endpoint).into_iter().collect();
        let pool = Pool::new(set.clone());
        let open: Vec<_> = pool
            .roster()
            .iter()
            .map(|entry| {
                let now = pool.epoch().moment(Instant::now());
                entry.counters.count_from(pool.epoch(), now);
                InFlight::begin(&entry.endpoint, &entry.counters, now, 1.0, false)
            })
            .collect();
        let in_flight = || -> Vec<u64> {
            let roster = pool.roster();
            roster.iter().map(|entry| entry.counters.in_flight()).collect()
        };
        set.insert(endpoint("http://c"));
        set.insert(Endpoint::builder("http://b").weight(7).build().unwrap());
        assert_eq!(in_flight(), [1, 1, 0], "a new description is the same endpoint");
        let gone = Arc::downgrade(&pool.roster().get(0).unwrap().counters);
        set.remove("http://a");
        assert_eq!(in_flight(), [1, 0]);
        drop(open);
        assert!(
            gone.upgrade().is_none(),
            "nothing is kept of an endpoint that has gone"
        );
        set.insert(endpoint("http://a"));
        assert_eq!(in_flight(), [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn counters_follow_their_keys_through_any_change(
            before in Just((0..8_u8).collect::<Vec<_>>()).prop_shuffle(),
            left_out in 0..8_usize,
            after in Just((0..10_u8).collect::<Vec<_>>()).prop_shuffle(),
            kept in 0..10_usize,
            new_description in any::<u16>(),
        ) {
            let make = |key: u8| endpoint(&format!("http://h{key}"));
            let set: Endpoints = before[left_out..].iter().copied().map(make).collect();
            let pool = Pool::new(set.clone());
            let old: Vec<Entry> = pool.roster().iter().cloned().collect();
            set.replace(after[..kept].iter().map(|&key| {
                let heavier = 1 + u32::from(new_description >> key & 1);
                Endpoint::builder(format!("http://h{key}")).weight(heavier).build().unwrap()
            }));
            for entry in pool.roster().iter() {
                match old.iter().find(|old| old.endpoint.key() == entry.endpoint.key()) {
                    Some(old) => prop_assert!(Arc::ptr_eq(&old.counters, &entry.counters)),
                    None => prop_assert!(old.iter().all(|old| !Arc::ptr_eq(&old.counters, &entry.counters))),
                }
            }
        }
    }

    #[test]
    fn a_roster_without_a_change_is_the_same_object() {
        let set: Endpoints = [endpoint("http://a")].into_iter().collect();
        let pool = Pool::new(set.clone());
        let before = Arc::clone(&pool.roster());
        set.insert(endpoint("http://a"));
        assert!(Arc::ptr_eq(&before, &pool.roster()));
        set.insert(endpoint("http://b"));
        assert!(!Arc::ptr_eq(&before, &pool.roster()));
    }
}
