//! A stream of changes.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::task;
use tower::{BoxError, discover::Change};

use crate::call::{Edit, Endpoint, Endpoints, Key, make_room};

/// How many changes are published as one at most, so that a stream which never pauses does not keep its thread.
const BATCH: usize = 4096;

impl Endpoints {
    /// The endpoints that a stream tells of, one change at a time.
    ///
    /// The set is not [resolved](crate::call::Snapshot::resolved) before the stream has said something. An error is
    /// logged and the stream is asked on: one that fails again and again must pause by itself. When it ends, the
    /// last set stays; it is not polled again. Before the first call it is not polled at all: a channel behind it
    /// should be bounded, or hold few changes.
    ///
    /// `K` is the stream's own name for what it inserts and removes. Where two of them mean endpoints with the same
    /// key, the later one counts, and removing it brings back the other. What is ready is published as one, and costs
    /// time in proportion to the number of changes, however many endpoints there are.
    ///
    /// ```
    /// use futures_util::stream;
    /// use tower::discover::Change;
    /// use tower_outbound::call::{BoxError, Endpoint, Endpoints};
    ///
    /// let first = Endpoint::new("http://10.0.0.1:8080")?;
    /// let orders = Endpoints::from_stream(stream::iter([Ok::<_, BoxError>(Change::Insert("first", first))]));
    /// assert!(!orders.snapshot().resolved());
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn from_stream<S, K, E>(changes: S) -> Self
    where
        S: Stream<Item = Result<Change<K, Endpoint>, E>> + Send + 'static,
        K: Hash + Eq + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Endpoints::unresolved()
            .driven_by(|feeder| follow(changes, move |edits, all| feeder.publish_edits(edits, all)))
    }
}

/// Reads a stream to its end, and publishes what has changed, until nobody wants it any more.
pub(super) fn follow<S, K, E>(
    changes: S,
    publish: impl Fn(Vec<Edit>, &dyn Fn() -> Vec<Endpoint>) -> bool,
) -> impl Future<Output = ()>
where
    S: Stream<Item = Result<Change<K, Endpoint>, E>>,
    K: Hash + Eq,
    E: Into<BoxError>,
{
    // Tokio would make a channel pause within a batch, which would publish it in parts.
    task::unconstrained(async move {
        let mut known = Known::default();
        let mut changes = pin!(changes);
        loop {
            let step = std::future::poll_fn(|cx| known.take_what_is_ready(changes.as_mut(), cx)).await;
            if step.changed {
                let edits = known.edits();
                if !publish(edits, &|| known.all()) {
                    return;
                }
            }
            match step.then {
                Then::Await => {}
                Then::Yield => task::yield_now().await,
                Then::End => {
                    tracing::warn!(
                        endpoints = known.numbers.len(),
                        "the stream of endpoints has ended; the last set stays"
                    );
                    return;
                }
            }
        }
    })
}

/// What the stream has named, by its own names, which are numbered in the order in which they came.
struct Known<K> {
    numbers: HashMap<K, u64>,
    endpoints: BTreeMap<u64, Endpoint>,
    /// The numbers of the names that mean an endpoint with this key. The greatest counts.
    names: HashMap<Key, Vec<u64>>,
    next: u64,
    /// What has been named, or is no more, since the last publication.
    touched: Vec<Endpoint>,
}

struct Step {
    changed: bool,
    then: Then,
}

enum Then {
    Await,
    Yield,
    End,
}

impl<K: Hash + Eq> Known<K> {
    fn take_what_is_ready<S, E>(&mut self, mut changes: Pin<&mut S>, cx: &mut Context<'_>) -> Poll<Step>
    where
        S: Stream<Item = Result<Change<K, Endpoint>, E>>,
        E: Into<BoxError>,
    {
        let mut changed = false;
        for _ in 0..BATCH {
            let next = match changes.as_mut().poll_next(cx) {
                Poll::Pending if changed => {
                    return Poll::Ready(Step {
                        changed,
                        then: Then::Await,
                    });
                }
                poll => ready!(poll),
            };
            match next {
                Some(Ok(change)) => {
                    changed = true;
                    self.apply(change);
                }
                Some(Err(error)) => {
                    let error: BoxError = error.into();
                    tracing::warn!(%error, "the stream of endpoints failed; the last set stays");
                }
                None => {
                    return Poll::Ready(Step {
                        changed,
                        then: Then::End,
                    });
                }
            }
        }
        Poll::Ready(Step {
            changed,
            then: Then::Yield,
        })
    }

    fn apply(&mut self, change: Change<K, Endpoint>) {
        match change {
            Change::Insert(name, endpoint) => {
                make_room(&mut self.numbers);
                let number = *self.numbers.entry(name).or_insert(self.next);
                self.next = self.next.max(number + 1);
                self.forget(number);
                // Found by the endpoint that came last, so that no other is kept for its key.
                let key = Key(endpoint.clone());
                let mut names = self.names.remove(&key).unwrap_or_default();
                names.push(number);
                make_room(&mut self.names);
                self.names.insert(key, names);
                self.touched.push(endpoint.clone());
                self.endpoints.insert(number, endpoint);
            }
            Change::Remove(name) => {
                if let Some(number) = self.numbers.remove(&name) {
                    self.forget(number);
                }
            }
        }
    }

    /// The name with this number means nothing.
    fn forget(&mut self, number: u64) {
        let Some(endpoint) = self.endpoints.remove(&number) else {
            return;
        };
        if let Some(mut names) = self.names.remove(endpoint.key()) {
            names.retain(|&name| name != number);
            // Found by one that is still named, so that this one is not kept for its key.
            if let Some(other) = names.last().and_then(|other| self.endpoints.get(other)) {
                self.names.insert(Key(other.clone()), names);
            }
        }
        self.touched.push(endpoint);
    }

    /// What has changed since this was asked last, by key: one that has gone and come back has not changed.
    fn edits(&mut self) -> Vec<Edit> {
        let touched = std::mem::take(&mut self.touched);
        let edits = touched.into_iter().map(|endpoint| {
            let names = self.names.get(endpoint.key());
            let last = names.and_then(|names| names.iter().max());
            match last.and_then(|number| self.endpoints.get(number)) {
                Some(meant) => Edit::Put(meant.clone()),
                None => Edit::Take(endpoint),
            }
        });
        edits.collect()
    }

    /// Everything that is named. Of two with the same key the later one counts.
    fn all(&self) -> Vec<Endpoint> {
        self.endpoints.values().cloned().collect()
    }
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Known {
            numbers: HashMap::new(),
            endpoints: BTreeMap::new(),
            names: HashMap::new(),
            next: 0,
            touched: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Affinity;

    #[test]
    fn however_many_come_and_go_no_more_room_is_kept_for_them() {
        const N: u64 = 780;
        let endpoint = |name: u64| Endpoint::new(format!("http://h{name}")).unwrap();
        let mut known = Known::default();
        let mut inside: Vec<u64> = (0..N).collect();
        for &name in &inside {
            known.apply(Change::Insert(name, endpoint(name)));
        }
        assert_eq!(known.edits().len(), inside.len());
        let room = |known: &Known<u64>| (known.numbers.capacity(), known.names.capacity());
        let before = room(&known);
        for name in N..20_000 {
            let lot = Affinity::of(name.to_string()).get() % N;
            let gone = std::mem::replace(&mut inside[lot as usize], name);
            known.apply(Change::Remove(gone));
            known.apply(Change::Insert(name, endpoint(name)));
            assert_eq!(known.edits().len(), 2);
            let after = room(&known);
            assert!(
                after.0 <= before.0 && after.1 <= before.1,
                "{after:?} after {name}"
            );
        }
        assert_eq!(known.all().len(), inside.len());
    }
}
