//! How much room is kept for those to come, however many have gone.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// So many, and an eighth for those to come.
pub(super) fn with_room(len: usize) -> usize {
    len + len / 8 + 1
}

/// Makes room for one more in a map from which others have gone.
///
/// What has gone leaves marks in a table. Left to itself it takes twice the memory once there are too many, and keeps it;
/// cleared of them it is as large as one that was made for what is in it. That is due once in many changes, and where so
/// few are left that it is far too large.
pub(crate) fn make_room<K: Hash + Eq, V, S: BuildHasher + Clone>(map: &mut HashMap<K, V, S>) {
    if map.len() == map.capacity() || map.len() < map.capacity() / 8 {
        let mut clean = HashMap::with_capacity_and_hasher(with_room(map.len()), map.hasher().clone());
        clean.extend(map.drain());
        *map = clean;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Affinity;

    #[test]
    fn however_many_come_and_go_a_map_does_not_grow() {
        for len in [3, 100, 10_000] {
            let mut inside: Vec<u64> = (0..len).collect();
            let mut map = HashMap::new();
            for &key in &inside {
                make_room(&mut map);
                map.insert(key, ());
            }
            let before = map.capacity();
            for key in len..100_000 {
                let lot = Affinity::of(key.to_string()).get();
                let gone = std::mem::replace(&mut inside[(lot % len) as usize], key);
                assert!(map.remove(&gone).is_some());
                make_room(&mut map);
                map.insert(key, ());
                assert!(map.capacity() <= before, "{len} after {key}");
            }
            assert!(inside.iter().all(|key| map.contains_key(key)));
        }
    }

    #[test]
    fn a_map_that_was_large_is_small_again_once_one_comes() {
        let mut map: HashMap<u64, ()> = (0..10_000).map(|key| (key, ())).collect();
        map.retain(|key, ()| *key < 10);
        make_room(&mut map);
        map.insert(10_000, ());
        assert!(map.capacity() < 100, "{}", map.capacity());
        assert!((0..10).all(|key| map.contains_key(&key)));
    }
}
