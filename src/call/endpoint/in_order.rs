//! Things by numbers that rise, in their order.

use std::slice;

use super::room::with_room;

/// Things by their numbers, and in the order of those. What comes has a number above all others.
///
/// They lie beside one another, and who goes leaves a gap. Once gaps are more than an eighth, or nothing more fits in, all
/// move together: a change costs a few moves on average, and what it all takes does not depend on how many have come
/// and gone.
#[derive(Debug)]
pub(crate) struct InOrder<T> {
    /// None: it has gone.
    places: Vec<(u64, Option<T>)>,
    len: usize,
}

impl<T> InOrder<T> {
    pub(crate) fn with_capacity(len: usize) -> Self {
        InOrder {
            places: Vec::with_capacity(with_room(len)),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let place = self.find(number)?;
        self.places.get(place)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.find(number)?;
        self.places.get_mut(place)?.1.as_mut()
    }

    /// Puts it behind all others. Its number is above theirs.
    pub(crate) fn push(&mut self, number: u64, what: T) {
        if self.places.len() == self.places.capacity() {
            self.close_gaps();
        }
        self.places.push((number, Some(what)));
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.find(number)?;
        let what = self.places.get_mut(place)?.1.take()?;
        self.len -= 1;
        if self.places.len() > with_room(self.len) {
            self.close_gaps();
        }
        Some(what)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &T)> {
        Iter {
            places: self.places.iter(),
            left: self.len,
        }
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().filter_map(|(_, what)| what)
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.places.binary_search_by_key(&number, |place| place.0).ok()
    }

    /// And keeps no more room than those that are there have need of.
    #[cold]
    fn close_gaps(&mut self) {
        self.places.retain(|(_, what)| what.is_some());
        let enough = with_room(self.len);
        self.places.shrink_to(enough);
        self.places.reserve_exact(enough - self.len);
    }
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        InOrder {
            places: Vec::new(),
            len: 0,
        }
    }
}

struct Iter<'a, T> {
    places: slice::Iter<'a, (u64, Option<T>)>,
    left: usize,
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (u64, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self
            .places
            .find_map(|(number, what)| Some((*number, what.as_ref()?)));
        self.left -= usize::from(next.is_some());
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::call::Affinity;

    proptest! {
        #[test]
        fn it_is_an_ordered_map_that_takes_little_more_than_its_things_do(
            ops in prop::collection::vec((0..5_u8, any::<prop::sample::Index>()), 0..400),
        ) {
            let mut things = InOrder::default();
            let mut model = BTreeMap::new();
            for (next, (op, which)) in (0..).zip(ops) {
                let number = which.index(next as usize + 1) as u64;
                match op {
                    0..3 => {
                        things.push(next, [next; 2]);
                        model.insert(next, [next; 2]);
                    }
                    3 => prop_assert_eq!(things.remove(number), model.remove(&number)),
                    _ => {
                        let both = [things.get_mut(number), model.get_mut(&number)];
                        both.into_iter().flatten().for_each(|what| what[1] = next);
                    }
                }
                prop_assert_eq!(things.get(number), model.get(&number));
                let all = things.iter();
                prop_assert_eq!((things.len(), all.len()), (model.len(), model.len()));
                prop_assert!(all.eq(model.iter().map(|(number, what)| (*number, what))));
                prop_assert!(things.places.capacity() <= with_room(with_room(things.len())));
            }
            prop_assert!(things.into_values().eq(model.into_values()));
        }
    }

    #[test]
    fn however_many_come_and_go_they_take_the_same_place() {
        let mut things = InOrder::with_capacity(10_000);
        (0..10_000_u64).for_each(|number| things.push(number, ()));
        let before = things.places.capacity();
        let mut numbers: Vec<u64> = (0..10_000).collect();
        for next in 10_000..200_000 {
            let lot = Affinity::of(next.to_string()).get();
            let gone = std::mem::replace(&mut numbers[(lot % 10_000) as usize], next);
            assert!(things.remove(gone).is_some());
            things.push(next, ());
            assert!(things.places.capacity() <= before);
        }
    }
}
