//! Finds things by their hashes, in a state that the next one shares but for what a change is about.

use std::sync::Arc;

use super::room::with_room;

/// Things by their hashes, which are to be as likely as one another. A clone, and a change of it, take a time that
/// grows with the square root of how many there are.
#[derive(Debug, Clone)]
pub(crate) struct Index<T> {
    /// In the order of the hashes: the upper bits say in which bucket one is.
    buckets: Vec<Arc<Vec<(u64, T)>>>,
    /// There are two to the power of this many buckets.
    bits: u32,
    len: usize,
}

/// With so many times the square of the number of buckets there are to be more of them: a change copies one, and the
/// list of all.
const FULL: usize = 4;

impl<T: Clone> Index<T> {
    /// Puts it behind others with this hash.
    pub(crate) fn insert(&mut self, hash: u64, what: T) {
        if self.len >= FULL << (2 * self.bits) {
            self.split();
        }
        if let Some(bucket) = self.bucket_mut(hash) {
            let at = bucket.partition_point(|(other, _)| *other <= hash);
            if bucket.len() == bucket.capacity() {
                // Left to itself it doubles, and each bucket that is copied is full.
                bucket.reserve_exact(with_room(bucket.len()) - bucket.len());
            }
            bucket.insert(at, (hash, what));
            self.len += 1;
        }
    }

    /// Takes out the first one with this hash that is wanted.
    pub(crate) fn remove(&mut self, hash: u64, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let bucket = self.bucket_mut(hash)?;
        let start = bucket.partition_point(|(other, _)| *other < hash);
        let same = bucket.iter().skip(start).take_while(|(other, _)| *other == hash);
        let at = same.enumerate().find(|(_, (_, what))| is_wanted(what))?.0;
        let (_, what) = bucket.remove(start + at);
        self.len -= 1;
        Some(what)
    }

    fn bucket_mut(&mut self, hash: u64) -> Option<&mut Vec<(u64, T)>> {
        let number = self.number(hash);
        self.buckets.get_mut(number).map(Arc::make_mut)
    }

    fn split(&mut self) {
        self.bits += 1;
        let before = std::mem::take(&mut self.buckets);
        let halves = (0..).zip(before).flat_map(|(number, bucket): (u64, _)| {
            let second = (2 * number + 1) << (64 - self.bits);
            let (low, high) = bucket.split_at(bucket.partition_point(|(hash, _)| *hash < second));
            [low.to_vec(), high.to_vec()].map(Arc::new)
        });
        self.buckets = halves.collect();
    }
}

impl<T> Index<T> {
    #[allow(dead_code, reason = "called by a layer that is a feature")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Those with this hash, in the order in which they came.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> impl Iterator<Item = &T> {
        let bucket = self
            .buckets
            .get(self.number(hash))
            .map_or(&[][..], |bucket| bucket);
        let start = bucket.partition_point(|(other, _)| *other < hash);
        let same = bucket
            .iter()
            .skip(start)
            .take_while(move |(other, _)| *other == hash);
        same.map(|(_, what)| what)
    }

    /// Those whose hashes are from the first to the last, in the order of the hashes.
    #[allow(dead_code, reason = "called by a layer that is a feature")]
    pub(crate) fn between(&self, first: u64, last: u64) -> impl Iterator<Item = &T> {
        let buckets = self.buckets.get(self.number(first)..=self.number(last));
        let all = buckets
            .unwrap_or_default()
            .iter()
            .flat_map(|bucket| bucket.iter());
        all.filter(move |(hash, _)| (first..=last).contains(hash))
            .map(|(_, what)| what)
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        hash.checked_shr(u64::BITS - self.bits).unwrap_or(0) as usize
    }
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Index {
            buckets: vec![Arc::default()],
            bits: 0,
            len: 0,
        }
    }
}

impl<T: Clone> FromIterator<(u64, T)> for Index<T> {
    fn from_iter<I: IntoIterator<Item = (u64, T)>>(all: I) -> Self {
        let mut all: Vec<(u64, T)> = all.into_iter().collect();
        // Not the unstable one: those with one hash stay in the order in which they came.
        all.sort_by_key(|(hash, _)| *hash);
        let mut index = Index {
            len: all.len(),
            ..Index::default()
        };
        while index.len > FULL << (2 * index.bits) {
            index.bits += 1;
        }
        let mut all = all.into_iter().peekable();
        index.buckets = (0..1_usize << index.bits)
            .map(|number| {
                let mut bucket = Vec::new();
                while let Some(one) = all.next_if(|(hash, _)| index.number(*hash) == number) {
                    bucket.push(one);
                }
                bucket.shrink_to_fit();
                Arc::new(bucket)
            })
            .collect();
        index
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few hashes, so that there are several with one.
    fn hash(key: u8) -> u64 {
        u64::from(key / 3).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    proptest! {
        #[test]
        fn it_finds_what_was_put_in_and_earlier_states_stay(
            ops in prop::collection::vec((any::<bool>(), any::<u8>()), 0..400),
            first in any::<u64>(),
            last in any::<u64>(),
        ) {
            let (first, last) = (first.min(last), first.max(last));
            let mut index = Index::default();
            let mut model: Vec<u8> = Vec::new();
            let mut before = (index.clone(), model.clone());
            for (step, (is_insert, key)) in ops.into_iter().enumerate() {
                if is_insert {
                    index.insert(hash(key), key);
                    model.push(key);
                } else {
                    let at = model.iter().position(|one| *one == key);
                    let gone = at.map(|at| model.remove(at));
                    prop_assert_eq!(index.remove(hash(key), |one| *one == key), gone);
                }
                if step == 100 {
                    before = (index.clone(), model.clone());
                }
            }
            for (index, model) in [(&index, &model), (&before.0, &before.1)] {
                prop_assert_eq!(index.len(), model.len());
                for key in 0..=u8::MAX {
                    let same = |one: &&u8| hash(**one) == hash(key);
                    prop_assert!(index.find(hash(key)).eq(model.iter().filter(same)));
                }
                let mut found: Vec<u8> = index.between(first, last).copied().collect();
                let mut expected = model.clone();
                expected.retain(|key| (first..=last).contains(&hash(*key)));
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_change_copies_one_bucket_of_many() {
        let before: Index<u64> = (0..10_000_u64)
            .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n))
            .collect();
        let mut after = before.clone();
        after.insert(1 << 40, 0);
        let pairs = before.buckets.iter().zip(&after.buckets);
        assert_eq!(pairs.filter(|(old, new)| !Arc::ptr_eq(old, new)).count(), 1);
        let most = before.buckets.iter().map(|bucket| bucket.len()).max();
        assert_eq!(before.buckets.len(), 64);
        assert!(most < Some(400), "{most:?}");
    }
}
