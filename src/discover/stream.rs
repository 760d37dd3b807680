//! A stream of changes.

use std::{
    hash::Hash,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use indexmap::{IndexMap, map::Values};
use tokio::task;
use tower::{BoxError, discover::Change};

use crate::call::{Endpoint, Endpoints};

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
    /// key, the later one counts, and removing it brings back the other.
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
        Endpoints::unresolved().driven_by(|feeder| {
            follow(changes, Some, move |known: Values<'_, K, Endpoint>| {
                feeder.publish(known.cloned())
            })
        })
    }
}

/// Reads a stream to its end, and publishes what it has named after each change, until nobody wants it any more.
///
/// `read` makes of a change one of what is published; `None`: it is disregarded.
pub(super) fn follow<S, K, T, V, E>(
    changes: S,
    mut read: impl FnMut(Change<K, T>) -> Option<Change<K, V>>,
    mut publish: impl FnMut(Values<'_, K, V>) -> bool,
) -> impl Future<Output = ()>
where
    S: Stream<Item = Result<Change<K, T>, E>>,
    K: Hash + Eq,
    E: Into<BoxError>,
{
    // Tokio would make a channel pause within a batch, which would publish it in parts.
    task::unconstrained(async move {
        let mut known = Known(IndexMap::new());
        let mut changes = pin!(changes);
        loop {
            let step =
                std::future::poll_fn(|cx| known.take_what_is_ready(changes.as_mut(), &mut read, cx)).await;
            if step.changed && !publish(known.0.values()) {
                return;
            }
            match step.then {
                Then::Await => {}
                Then::Yield => task::yield_now().await,
                Then::End => {
                    tracing::warn!(
                        endpoints = known.0.len(),
                        "the stream of endpoints has ended; the last set stays"
                    );
                    return;
                }
            }
        }
    })
}

/// What the stream has named, by its own names.
struct Known<K, V>(IndexMap<K, V>);

struct Step {
    changed: bool,
    then: Then,
}

enum Then {
    Await,
    Yield,
    End,
}

impl<K: Hash + Eq, V> Known<K, V> {
    fn take_what_is_ready<S, T, E>(
        &mut self,
        mut changes: Pin<&mut S>,
        mut read: impl FnMut(Change<K, T>) -> Option<Change<K, V>>,
        cx: &mut Context<'_>,
    ) -> Poll<Step>
    where
        S: Stream<Item = Result<Change<K, T>, E>>,
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
                    if let Some(change) = read(change) {
                        changed = true;
                        self.apply(change);
                    }
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

    fn apply(&mut self, change: Change<K, V>) {
        match change {
            Change::Insert(name, value) => {
                self.0.insert(name, value);
            }
            Change::Remove(name) => {
                self.0.shift_remove(&name);
            }
        }
    }
}
