//! What is in a set, and in which order.

#[cfg(feature = "discover")]
use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
};

use super::{Affinity, Endpoint, in_order::InOrder, numbers::Numbers};

/// An endpoint, found by its key.
#[cfg(feature = "discover")]
#[derive(Debug, Clone)]
pub(crate) struct Key(pub(crate) Endpoint);

/// An endpoint of a set, and its number there: the order of the set is that of the numbers.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "read by a layer that is a feature")]
pub(crate) struct Member {
    pub(crate) number: u64,
    pub(crate) endpoint: Endpoint,
}

/// One difference between a state of a set and the next.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "read by a layer that is a feature")]
pub(crate) enum Delta {
    /// It came, with a number above all others.
    Came(Member),
    /// The one with this number is this now. Either the number is the same and the description another, or the number
    /// is above all others, since its place has changed.
    Became(u64, Member),
    /// The one with this number went.
    Went(u64),
}

/// Will the endpoint that is in the set do for this one, which has the same key?
pub(super) type WillDo = fn(&Endpoint, &Endpoint) -> bool;

pub(super) const SAME_DESCRIPTION: WillDo = Endpoint::describes_the_same;

/// Somebody else has seen to it that one which is to stay is the same.
pub(super) const SAME_OBJECT: WillDo = <Endpoint as PartialEq>::eq;

/// The endpoints of a set. A change takes a time that hardly depends on how many there are, but for one in many, after
/// which all lie closer together. What they take depends on how many there are, and not on how many there have been.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// By key.
    numbers: Numbers,
    in_order: InOrder<Endpoint>,
    next: u64,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.in_order.len()
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &Endpoint)> {
        self.in_order.iter()
    }

    /// Puts it in, in the place of one that has its key. None: that one will do for it, and stays.
    pub(super) fn put(&mut self, endpoint: Endpoint, will_do: WillDo) -> Option<Delta> {
        let Some(number) = self.number(&endpoint) else {
            return Some(Delta::Came(self.append(endpoint)));
        };
        let old = self.in_order.get_mut(number)?;
        if will_do(old, &endpoint) {
            return None;
        }
        *old = endpoint.clone();
        Some(Delta::Became(number, Member { number, endpoint }))
    }

    /// Takes out the one with this key. None: there is none.
    pub(super) fn take(&mut self, key: &str) -> Option<Delta> {
        let is_it = |number| is_of(self.in_order.get(number), key);
        let number = self.numbers.take(Affinity::of(key).get(), is_it)?;
        self.in_order.remove(number);
        Some(Delta::Went(number))
    }

    /// The number of the one with the key of this.
    fn number(&self, endpoint: &Endpoint) -> Option<u64> {
        let is_it = |number| is_of(self.in_order.get(number), endpoint.key());
        self.numbers.find(endpoint.affinity().get(), is_it)
    }

    /// Makes these the members, in this order. Those that will do for one of them stay.
    pub(super) fn become_these(&mut self, next: Members, will_do: WillDo) -> Vec<Delta> {
        let gone: Vec<Endpoint> = self
            .in_order
            .iter()
            .map(|(_, old)| old)
            .filter(|old| next.number(old).is_none())
            .cloned()
            .collect();
        let mut deltas: Vec<Delta> = gone.iter().filter_map(|old| self.take(old.key())).collect();
        // Those before the first newcomer keep their numbers, as long as they are in their old order.
        let mut last = None;
        let mut in_place = true;
        for endpoint in next.in_order.into_values() {
            let known = self.number(&endpoint);
            let known = known.and_then(|number| Some((number, self.in_order.get(number)?)));
            let Some((number, old)) = known else {
                in_place = false;
                deltas.push(Delta::Came(self.append(endpoint)));
                continue;
            };
            let is_same = will_do(old, &endpoint);
            in_place = in_place && last < Some(number);
            last = Some(number);
            if !in_place {
                let endpoint = if is_same { old.clone() } else { endpoint };
                self.take(endpoint.key());
                deltas.push(Delta::Became(number, self.append(endpoint)));
            } else if !is_same {
                deltas.extend(self.put(endpoint, will_do));
            }
        }
        deltas
    }

    fn append(&mut self, endpoint: Endpoint) -> Member {
        let number = self.next;
        self.next += 1;
        self.in_order.push(number, endpoint.clone());
        self.numbers.insert(endpoint.affinity().get(), number);
        Member { number, endpoint }
    }
}

fn is_of(endpoint: Option<&Endpoint>, key: &str) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.key() == key)
}

impl FromIterator<Endpoint> for Members {
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        let endpoints = endpoints.into_iter();
        let about = endpoints.size_hint().0;
        let mut members = Members {
            numbers: Numbers::with_capacity(about),
            in_order: InOrder::with_capacity(about),
            next: 0,
        };
        for endpoint in endpoints {
            let in_order = &mut members.in_order;
            let is_it = |number| is_of(in_order.get(number), endpoint.key());
            let hash = endpoint.affinity().get();
            match members.numbers.find_or_insert(hash, members.next, is_it) {
                None => {
                    in_order.push(members.next, endpoint);
                    members.next += 1;
                }
                Some(known) => {
                    let old = in_order.get_mut(known);
                    if let Some(old) = old.filter(|old| !old.describes_the_same(&endpoint)) {
                        *old = endpoint;
                    }
                }
            }
        }
        members
    }
}

#[cfg(feature = "discover")]
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

#[cfg(feature = "discover")]
impl Eq for Key {}

#[cfg(feature = "discover")]
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

#[cfg(feature = "discover")]
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}
