//! The endpoints that may be picked, each with its counters.
#![expect(
    clippy::disallowed_types,
    reason = "a std lock guards the rebuilding of the roster after a change of the set; other picks take no lock"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::{ArcSwap, Guard};

use super::figures::Counters;
use crate::call::{Endpoint, Endpoints, Snapshot};

/// What a layer and all its services share: the set, and the roster made from it.
#[derive(Debug)]
pub(super) struct Pool {
    endpoints: Endpoints,
    roster: ArcSwap<Roster>,
    rebuilding: Mutex<()>,
}

/// One state of the set, with the counters of its endpoints.
#[derive(Debug)]
pub(super) struct Roster {
    source: Arc<Snapshot>,
    entries: Box<[Entry]>,
    by_key: HashMap<Box<str>, usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) endpoint: Endpoint,
    pub(super) counters: Arc<Counters>,
}

impl Pool {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        let roster = Roster::new(endpoints.snapshot(), None);
        Pool {
            endpoints,
            roster: ArcSwap::from_pointee(roster),
            rebuilding: Mutex::new(()),
        }
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The roster of the latest state of the set that was published before this call.
    #[inline]
    pub(super) fn roster(&self) -> Guard<Arc<Roster>> {
        let roster = self.roster.load();
        if roster.source.version() == self.endpoints.version() {
            roster
        } else {
            self.rebuild()
        }
    }

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
            .store(Arc::new(Roster::new(self.endpoints.snapshot(), Some(&old))));
        self.roster.load()
    }
}

impl Roster {
    /// An endpoint whose key was in the roster before keeps its counters; those of the others go with the old roster.
    fn new(source: Arc<Snapshot>, old: Option<&Roster>) -> Self {
        let entries: Box<[Entry]> = source
            .endpoints()
            .iter()
            .map(|endpoint| Entry {
                endpoint: endpoint.clone(),
                counters: old
                    .and_then(|old| old.find(endpoint.key()))
                    .and_then(|index| Some(old?.entries.get(index)?.counters.clone()))
                    .unwrap_or_default(),
            })
            .collect();
        let by_key = entries
            .iter()
            .enumerate()
            .map(|(index, entry)| (entry.endpoint.key().into(), index))
            .collect();
        Roster {
            source,
            entries,
            by_key,
        }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn resolved(&self) -> bool {
        self.source.resolved()
    }

    /// Where the endpoint with this key stands.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
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
            .entries()
            .iter()
            .map(|entry| InFlight::begin(entry.endpoint.clone(), entry.counters.clone(), Instant::now()))
            .collect();
        let in_flight = || -> Vec<u64> {
            let roster = pool.roster();
            roster
                .entries()
                .iter()
                .map(|entry| entry.counters.in_flight())
                .collect()
        };
        set.insert(endpoint("http://c"));
        set.insert(Endpoint::builder("http://b").weight(7).build().unwrap());
        assert_eq!(in_flight(), [1, 1, 0], "a new description is the same endpoint");
        let gone = Arc::downgrade(&pool.roster().entries()[0].counters);
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
