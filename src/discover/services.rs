//! Services that somebody else makes.

use std::{
    hash::Hash,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tower::{BoxError, discover::Change};

use super::stream::follow;
use crate::call::{ConfigError, Endpoint, Services};

impl<S: Send + Sync + 'static> Services<S> {
    /// Services, each with the address that it goes to. Of two with the same address the later one counts.
    ///
    /// # Errors
    ///
    /// If one is no address: see [`EndpointBuilder::build`](crate::call::EndpointBuilder::build).
    pub fn from_list<I, A>(services: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item = (A, S)>,
        A: AsRef<str>,
    {
        services
            .into_iter()
            .map(|(address, service)| Ok((Endpoint::new(address.as_ref().trim())?, service)))
            .collect()
    }

    /// The services that a stream tells of, as [`tower::discover`] has them.
    ///
    /// `describe` says of a name of the stream where its service goes. One that it cannot say that of is logged, and left
    /// out. Where two names mean endpoints with the same key, the later service counts, and removing it brings back the
    /// other.
    ///
    /// The stream is read as that of [`Endpoints::from_stream`](crate::call::Endpoints::from_stream) is: by one task, from
    /// the first call on; an error of it is logged, and when it ends the last set stays.
    ///
    /// ```
    /// use futures_util::stream;
    /// use tower::{discover::Change, service_fn};
    /// use tower_outbound::call::{BoxError, Endpoint, Services};
    ///
    /// let client = service_fn(|_: http::Request<()>| async { Ok::<_, BoxError>("hello") });
    /// let changes = stream::iter([Ok::<_, BoxError>(Change::Insert(([10, 0, 0, 1], 8080), client))]);
    /// let orders = Services::from_stream(changes, |&address| {
    ///     Endpoint::builder(std::net::SocketAddr::from(address).to_string()).zone("eu-1").build()
    /// });
    /// assert!(!orders.endpoints().snapshot().resolved());
    /// ```
    pub fn from_stream<D, K, E, F, F2>(changes: D, mut describe: F) -> Self
    where
        D: Stream<Item = Result<Change<K, S>, E>> + Send + 'static,
        K: Hash + Eq + Send + 'static,
        E: Into<BoxError> + 'static,
        F: FnMut(&K) -> Result<Endpoint, F2> + Send + 'static,
        F2: Into<BoxError> + 'static,
    {
        let mut changes = Box::pin(changes);
        let named = PollFn(move |cx: &mut Context<'_>| {
            loop {
                let change = match ready!(changes.as_mut().poll_next(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => Err(error),
                    Some(Ok(Change::Remove(name))) => Ok(Change::Remove(name)),
                    Some(Ok(Change::Insert(name, service))) => match describe(&name) {
                        Ok(endpoint) => Ok(Change::Insert(name, Services::named(endpoint, service))),
                        Err(error) => {
                            let error: BoxError = error.into();
                            tracing::warn!(%error, "a service is left out, since it is not known where it goes");
                            continue;
                        }
                    },
                };
                return Poll::Ready(Some(change));
            }
        });
        Services::driven_by(|feeder| follow(named, move |edits, all| feeder.publish_edits(edits, all)))
    }
}

/// A stream of what this gives when it is polled.
struct PollFn<F>(F);

// What is pinned in it is in a box.
impl<F> Unpin for PollFn<F> {}

impl<T, F: FnMut(&mut Context<'_>) -> Poll<Option<T>>> Stream for PollFn<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}
