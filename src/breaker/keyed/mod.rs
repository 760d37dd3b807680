//! A breaker for each key: for each host, for each route, or by whatever tells calls apart.

mod builder;
mod layer;
mod map;
mod route;
mod service;

use std::{borrow::Borrow, borrow::ToOwned, fmt, hash::Hash, sync::Arc};

use self::map::{Found, Map};
pub use self::{
    builder::BreakersBuilder,
    layer::KeyedBreakerLayer,
    route::{Route, by_authority, by_route},
    service::KeyedBreaker,
};
use super::{Breaker, BreakerBuilder, Permit};
use crate::call::{CircuitOpen, ConfigError};

/// Breakers by key, made as keys are met, all with the same settings. A handle that is cheap to clone.
///
/// `Q` is the key as it is borrowed from a request: [`str`] for text.
///
/// # Memory
///
/// There are at most as many as [`max_keys`](BreakersBuilder::max_keys). One that was not used for
/// [`idle_after`](BreakersBuilder::idle_after) is dropped when another is made, and so is the one that was not used for
/// longest where there is no room. Never dropped is one that is not plainly closed (open, half-open, forced or switched
/// off), that has a call on its way, or whose handle somebody holds. If all are such, a new key gets none: its calls go
/// through uncounted, and [`unkept`](Breakers::unkept) says how many did.
///
/// # Cost
///
/// The breaker of a known key is found without a lock and without an allocation, in a map that is copied when a key comes or
/// goes.
///
/// ```
/// use std::{io, time::Duration};
/// use tower_outbound::{breaker::{Breaker, Breakers}, call::{CircuitState, Verdict}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hosts: Breakers<str> = Breakers::builder(Breaker::builder("hosts").volume(2))
///     .max_keys(500)
///     .idle_after(Duration::from_secs(600))
///     .build()?;
/// for _ in 0..2 {
///     if let Some(permit) = hosts.admit("a.example")? {
///         permit.settle(Verdict::Failure);
///     }
/// }
/// assert_eq!(hosts.admit("a.example").unwrap_err().name(), "hosts[a.example]");
/// assert!(hosts.admit("b.example").is_ok());
/// # Ok(())
/// # }
/// ```
pub struct Breakers<Q: ?Sized + ToOwned> {
    map: Arc<Map<Q::Owned>>,
}

impl<Q> Breakers<Q>
where
    Q: ?Sized + ToOwned + Hash + Eq + fmt::Display,
    Q::Owned: Borrow<Q> + Hash + Eq + Clone,
{
    /// With these settings for each breaker, and the other numbers by default. The name of each is theirs, with the key
    /// in brackets.
    ///
    /// # Errors
    ///
    /// Those of [`BreakerBuilder::build`].
    pub fn new(each: BreakerBuilder) -> Result<Self, ConfigError> {
        Breakers::builder(each).build()
    }

    /// Begins with these settings for each breaker.
    pub fn builder(each: BreakerBuilder) -> BreakersBuilder<Q> {
        BreakersBuilder::new(each)
    }

    /// Asks to make one call with this key. `None`: go, it is not counted, as there is no room for the key.
    ///
    /// # Errors
    ///
    /// Those of [`Breaker::admit`].
    #[inline]
    pub fn admit(&self, key: &Q) -> Result<Option<Permit>, CircuitOpen> {
        match self.map.find(key, Breaker::admit) {
            Some(admitted) => admitted.map(Some),
            None => self.admit_new(key),
        }
    }

    #[cold]
    fn admit_new(&self, key: &Q) -> Result<Option<Permit>, CircuitOpen> {
        match self.map.make(key) {
            Found::Kept(breaker) => breaker.admit().map(Some),
            Found::NoRoom => {
                self.map.note_unkept();
                Ok(None)
            }
        }
    }

    /// The breaker of this key, made if there is none. `None`: there is no room for it.
    pub fn breaker(&self, key: &Q) -> Option<Breaker> {
        let known = self.map.find(key, Breaker::clone);
        known.or_else(|| match self.map.make(key) {
            Found::Kept(breaker) => Some(breaker),
            Found::NoRoom => None,
        })
    }

    /// The breaker of this key, if there is one. It does not count as used by this.
    pub fn known(&self, key: &Q) -> Option<Breaker> {
        self.map.peek(key)
    }

    /// All keys with their breakers, in no order. Whoever holds one of these keeps it from being dropped.
    pub fn all(&self) -> Vec<(Q::Owned, Breaker)> {
        self.map.all()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls went through uncounted since there was no room for their key.
    pub fn unkept(&self) -> u64 {
        self.map.unkept()
    }

    /// Drops those that were not used for long, and says how many that were. A new key does so as well, from time to time.
    pub fn drop_idle(&self) -> usize {
        self.map.drop_idle()
    }

    /// Changes the settings of all, those to come included, as [`Breaker::change`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Breaker::change`]. Nothing has changed then.
    pub fn change(&self, change: impl Fn(BreakerBuilder) -> BreakerBuilder) -> Result<(), ConfigError> {
        self.map.change(change)
    }
}

impl<Q: ?Sized + ToOwned> Clone for Breakers<Q> {
    fn clone(&self) -> Self {
        Breakers {
            map: self.map.clone(),
        }
    }
}

impl<Q: ?Sized + ToOwned> fmt::Debug for Breakers<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breakers")
            .field("len", &self.map.len())
            .field("unkept", &self.map.unkept())
            .finish_non_exhaustive()
    }
}
