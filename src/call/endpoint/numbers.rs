//! The numbers of endpoints, by the hashes of their keys.

use hashbrown::{HashTable, hash_table::Entry};

use super::room::with_room;

/// Finds the number of the endpoint with a key. Which of those with one hash it is the owner says, who has the endpoints.
///
/// It is cleared of what those leave that go, as [`make_room`](super::room::make_room) does it, so that its size depends on
/// how many are in it and not on how many have been.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashTable<Numbered>);

#[derive(Debug, Clone, Copy)]
struct Numbered {
    hash: u64,
    number: u64,
}

impl Numbered {
    fn hash(&self) -> u64 {
        self.hash
    }

    /// A table asks this of some with another hash as well, and to ask the owner takes longer.
    fn is(&self, hash: u64, is_it: impl Fn(u64) -> bool) -> bool {
        self.hash == hash && is_it(self.number)
    }
}

impl Numbers {
    pub(super) fn with_capacity(len: usize) -> Self {
        Numbers(HashTable::with_capacity(with_room(len)))
    }

    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u64) -> bool) -> Option<u64> {
        let found = self.0.find(hash, |one| one.is(hash, &is_it));
        found.map(|one| one.number)
    }

    /// Puts in one whose key is not there yet.
    pub(super) fn insert(&mut self, hash: u64, number: u64) {
        self.make_room();
        self.0
            .insert_unique(hash, Numbered { hash, number }, Numbered::hash);
    }

    /// Puts it in, unless one is there already: that comes back.
    pub(super) fn find_or_insert(
        &mut self,
        hash: u64,
        number: u64,
        is_it: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        self.make_room();
        match self.0.entry(hash, |one| one.is(hash, &is_it), Numbered::hash) {
            Entry::Occupied(found) => Some(found.get().number),
            Entry::Vacant(vacant) => {
                vacant.insert(Numbered { hash, number });
                None
            }
        }
    }

    /// Takes it out.
    pub(super) fn take(&mut self, hash: u64, is_it: impl Fn(u64) -> bool) -> Option<u64> {
        let found = self.0.find_entry(hash, |one| one.is(hash, &is_it)).ok()?;
        let (Numbered { number, .. }, _) = found.remove();
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(with_room(self.0.len()), Numbered::hash);
        }
        Some(number)
    }

    /// For one more.
    fn make_room(&mut self) {
        if self.0.len() == self.0.capacity() {
            self.move_to_a_clean_table();
        }
    }

    #[cold]
    fn move_to_a_clean_table(&mut self) {
        let mut clean = HashTable::with_capacity(with_room(self.0.len()));
        for one in self.0.drain() {
            clean.insert_unique(one.hash, one, Numbered::hash);
        }
        self.0 = clean;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::call::Affinity;

    /// Which number each key has; several keys have one hash.
    #[derive(Default)]
    struct Keys {
        numbers: Numbers,
        model: BTreeMap<u16, u64>,
        keys: Vec<u16>,
    }

    impl Keys {
        fn hash(key: u16) -> u64 {
            hash(u64::from(key / 4))
        }

        fn insert(&mut self, key: u16) -> Option<u64> {
            let number = self.keys.len() as u64;
            self.keys.push(key);
            let keys = &self.keys;
            let known = self
                .numbers
                .find_or_insert(Keys::hash(key), number, |one| keys[one as usize] == key);
            if known.is_none() {
                self.model.insert(key, number);
            }
            known
        }

        fn take(&mut self, key: u16) -> Option<u64> {
            let keys = &self.keys;
            self.numbers
                .take(Keys::hash(key), |one| keys[one as usize] == key)
        }

        fn find(&self, key: u16) -> Option<u64> {
            let is_it = |one: u64| self.keys[one as usize] == key;
            self.numbers.find(Keys::hash(key), is_it)
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map_whatever_comes_and_goes_and_however_many_have_one_hash(
            runs in prop::collection::vec((any::<bool>(), 0..600_u16, 1..200_u16, 1..7_u16), 0..20),
        ) {
            let mut keys = Keys::default();
            for (comes, first, count, step) in runs {
                for key in (0..count).map(|n| first + n * step) {
                    let known = keys.model.get(&key).copied();
                    if comes {
                        prop_assert_eq!(keys.insert(key), known);
                    } else {
                        prop_assert_eq!(keys.take(key), known);
                        keys.model.remove(&key);
                    }
                }
                prop_assert_eq!(keys.numbers.0.len(), keys.model.len());
                for key in first..first + 20 {
                    prop_assert_eq!(keys.find(key), keys.model.get(&key).copied());
                }
            }
            for key in 0..2_000 {
                prop_assert_eq!(keys.find(key), keys.model.get(&key).copied());
            }
        }
    }

    fn hash(number: u64) -> u64 {
        Affinity::of(number.to_string()).get()
    }

    /// Few, many, and nearly as many as fit in.
    #[test]
    fn however_many_come_and_go_the_table_does_not_grow() {
        for len in [3, 100, 10_000, 12_700] {
            let mut inside: Vec<u64> = (0..len).collect();
            let mut numbers = Numbers::with_capacity(inside.len());
            for &number in &inside {
                numbers.insert(hash(number), number);
            }
            let before = numbers.0.allocation_size();
            for next in len..100_000 {
                let lot = hash(next ^ 1 << 40) % len;
                let gone = std::mem::replace(&mut inside[lot as usize], next);
                assert_eq!(numbers.take(hash(gone), |one| one == gone), Some(gone));
                numbers.insert(hash(next), next);
                assert!(numbers.0.allocation_size() <= before, "{len} after {next}");
            }
            for &number in &inside {
                let is_it = |one| one == number;
                assert_eq!(numbers.find(hash(number), is_it), Some(number));
                assert_eq!(numbers.find_or_insert(hash(number), 0, is_it), Some(number));
            }
            assert_eq!(numbers.0.len(), inside.len());
        }
    }

    #[test]
    fn a_table_that_was_large_is_small_again() {
        let mut numbers = Numbers::default();
        (0..10).for_each(|number| numbers.insert(hash(number), number));
        let before = numbers.0.allocation_size();
        (10..10_000).for_each(|number| numbers.insert(hash(number), number));
        for gone in 10..10_000 {
            assert_eq!(numbers.take(hash(gone), |number| number == gone), Some(gone));
        }
        assert!(numbers.0.allocation_size() <= 8 * before);
        assert!((0..10).all(|one| numbers.find(hash(one), |number| number == one).is_some()));
    }
}
