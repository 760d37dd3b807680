//! The settings of breakers by key.

use std::{borrow::Borrow, borrow::ToOwned, fmt, hash::Hash, marker::PhantomData, sync::Arc, time::Duration};

use super::{Breakers, map::Map};
use crate::{
    breaker::BreakerBuilder,
    call::{
        ConfigError,
        config::{at_least_one, limit},
    },
};

const LAYER: &str = "KeyedBreaker";

/// Builds [`Breakers`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct BreakersBuilder<Q: ?Sized + ToOwned> {
    each: BreakerBuilder,
    max_keys: u32,
    idle_after: Duration,
    key: PhantomData<fn(&Q)>,
}

/// More is a mistake: each is some kilobytes.
const MOST_KEYS: u32 = 100_000;

impl<Q> BreakersBuilder<Q>
where
    Q: ?Sized + ToOwned + Hash + Eq + fmt::Display,
    Q::Owned: Borrow<Q> + Hash + Eq + Clone,
{
    pub(super) fn new(each: BreakerBuilder) -> Self {
        BreakersBuilder {
            each,
            max_keys: 1_000,
            idle_after: Duration::from_secs(600),
            key: PhantomData,
        }
    }

    /// How many keys have a breaker at most; 1,000 by default, 1 to 100,000. A breaker takes about 3 kB.
    pub fn max_keys(mut self, keys: u32) -> Self {
        self.max_keys = keys;
        self
    }

    /// How long a breaker is kept that nobody uses; 10 min by default, at least the
    /// [window](BreakerBuilder::window). It may be kept for half as long again, and as long as no new key comes.
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = idle;
        self
    }

    /// The breakers, none as yet.
    ///
    /// # Errors
    ///
    /// Those of [`BreakerBuilder::build`], or a number is out of its range.
    pub fn build(self) -> Result<Breakers<Q>, ConfigError> {
        at_least_one(LAYER, "max_keys", self.max_keys)?;
        if self.max_keys > MOST_KEYS {
            let fix = format!("give at most {MOST_KEYS}");
            return Err(ConfigError::new(LAYER, "max_keys", self.max_keys, fix));
        }
        limit(LAYER, "idle_after", self.idle_after)?;
        let window = self.each.settings().window();
        if self.idle_after < window {
            let fix = format!("give at least the window, {window:?}: what it holds would be lost");
            let value = format_args!("{:?}", self.idle_after);
            return Err(ConfigError::new(LAYER, "idle_after", value, fix));
        }
        // Its mistakes are found now, not when a key comes.
        self.each.clone().build()?;
        Ok(Breakers {
            map: Arc::new(Map::new(self.each, self.max_keys as usize, self.idle_after)),
        })
    }
}

impl<Q: ?Sized + ToOwned> fmt::Debug for BreakersBuilder<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakersBuilder")
            .field("each", &self.each)
            .field("max_keys", &self.max_keys)
            .field("idle_after", &self.idle_after)
            .finish()
    }
}
