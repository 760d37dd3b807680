//! The layer.

use std::{
    borrow::{Cow, ToOwned},
    fmt,
};

use tower_layer::Layer;

use super::{Breakers, KeyedBreaker};
use crate::call::ByFault;

/// Puts [`Breakers`] around a service: each call asks that of its key.
///
/// The key is read from the request by a function. A request that has none goes through uncounted.
///
/// ```
/// use std::borrow::Cow;
/// use tower_outbound::breaker::{Breaker, Breakers, KeyedBreakerLayer, by_authority};
///
/// struct Query {
///     tenant: u64,
/// }
///
/// // By host and port of a request over HTTP,
/// let hosts: Breakers<str> = Breakers::new(Breaker::builder("hosts"))?;
/// let layer = KeyedBreakerLayer::new(hosts, by_authority::<String>);
/// // or by anything else.
/// let tenants: Breakers<u64> = Breakers::new(Breaker::builder("tenants"))?;
/// let layer = KeyedBreakerLayer::new(tenants, |query: &Query| Some(Cow::Owned(query.tenant)));
/// # Ok::<_, tower_outbound::call::ConfigError>(())
/// ```
///
/// # Readiness
///
/// The key is not known before the call, so the inner service is always asked whether it is ready, also for a call
/// that is rejected then. What it holds for such a call it holds until the instance is called again or dropped.
pub struct KeyedBreakerLayer<Q: ?Sized + ToOwned, F, C = ByFault> {
    breakers: Breakers<Q>,
    key: F,
    classify: C,
}

impl<Q: ?Sized + ToOwned, F> KeyedBreakerLayer<Q, F> {
    /// With these breakers, this function that reads the key, and the classifier [`ByFault`].
    pub fn new<Req>(breakers: Breakers<Q>, key: F) -> Self
    where
        F: Fn(&Req) -> Option<Cow<'_, Q>>,
    {
        KeyedBreakerLayer {
            breakers,
            key,
            classify: ByFault,
        }
    }
}

impl<Q: ?Sized + ToOwned, F, C> KeyedBreakerLayer<Q, F, C> {
    /// With another classifier; as [`CircuitBreakerLayer::classify`](crate::breaker::CircuitBreakerLayer::classify).
    pub fn classify<D>(self, classify: D) -> KeyedBreakerLayer<Q, F, D> {
        KeyedBreakerLayer {
            breakers: self.breakers,
            key: self.key,
            classify,
        }
    }

    /// The breakers.
    pub fn breakers(&self) -> &Breakers<Q> {
        &self.breakers
    }

    pub(super) fn key_of<'a, Req>(&self, request: &'a Req) -> Option<Cow<'a, Q>>
    where
        F: Fn(&'a Req) -> Option<Cow<'a, Q>>,
    {
        (self.key)(request)
    }

    pub(super) fn classifier(&self) -> C
    where
        C: Clone,
    {
        self.classify.clone()
    }
}

impl<Q: ?Sized + ToOwned, F: Clone, C: Clone> Clone for KeyedBreakerLayer<Q, F, C> {
    fn clone(&self) -> Self {
        KeyedBreakerLayer {
            breakers: self.breakers.clone(),
            key: self.key.clone(),
            classify: self.classify.clone(),
        }
    }
}

impl<S, Q: ?Sized + ToOwned, F: Clone, C: Clone> Layer<S> for KeyedBreakerLayer<Q, F, C> {
    type Service = KeyedBreaker<S, Q, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedBreaker::new(inner, self.clone())
    }
}

impl<Q: ?Sized + ToOwned, F, C> fmt::Debug for KeyedBreakerLayer<Q, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreakerLayer")
            .field("breakers", &self.breakers)
            .finish_non_exhaustive()
    }
}
