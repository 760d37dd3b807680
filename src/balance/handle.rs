//! Looking at a balancer from outside.

use std::{fmt, sync::Arc};

use tokio::time::{Duration, Instant};

use super::{
    drain::{Drained, drain},
    figures::Figures,
    outlier::Ejection,
    roster::{Entry, Pool},
};
use crate::call::{Endpoint, Endpoints};

/// Shows the figures about the endpoints of one layer. Cloning it is cheap.
#[derive(Clone)]
pub struct BalanceHandle {
    pool: Arc<Pool>,
}

/// An endpoint of the set, and what has been counted about it.
#[derive(Debug, Clone)]
pub struct EndpointFigures {
    endpoint: Endpoint,
    figures: Figures,
    tripped: bool,
    ejection: Option<Ejection>,
    ejections: u64,
}

impl BalanceHandle {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        BalanceHandle { pool }
    }

    /// The set that the layer balances over.
    pub fn set(&self) -> &Endpoints {
        self.pool.endpoints()
    }

    /// The figures of each endpoint that is in the set now, in the order of the set.
    ///
    /// They are kept by key: an endpoint that comes back with another description goes on with the ones it had, and
    /// one that is taken out and put in again begins anew.
    ///
    /// Each can be [displayed](EndpointFigures#impl-Display-for-EndpointFigures) on a line:
    ///
    /// ```
    /// use tower_outbound::{balance::LoadBalanceLayer, call::Endpoints};
    ///
    /// let orders = Endpoints::from_list(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])?;
    /// let handle = LoadBalanceLayer::new(orders).handle();
    /// for endpoint in handle.endpoints() {
    ///     println!("{endpoint}");
    /// }
    /// assert_eq!(handle.endpoints()[0].to_string(), "10.0.0.1:8080: 0 in flight, 0 ok, 0 failed");
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn endpoints(&self) -> Vec<EndpointFigures> {
        let roster = self.pool.roster();
        let now = self.pool.epoch().moment(Instant::now());
        roster
            .iter()
            .map(|entry| EndpointFigures {
                endpoint: entry.endpoint.clone(),
                figures: entry.counters().read(),
                tripped: self.pool.stats.is_tripped(entry.counters(), &now),
                ejection: self.pool.outliers().ejection(entry.counters()),
                ejections: entry.counters().watch().map_or(0, |watch| watch.ejections()),
            })
            .collect()
    }

    /// The figures of the endpoint with this key. `None`: it is not in the set now.
    pub fn endpoint(&self, key: &str) -> Option<Figures> {
        let roster = self.pool.roster();
        roster.find_key(key).map(|entry| entry.counters().read())
    }

    /// Is the endpoint with this key tripped now, by the [settings](super::RibbonStats) of the layer? Not if it is not
    /// in the set.
    pub fn is_tripped(&self, key: &str) -> bool {
        let roster = self.pool.roster();
        let now = self.pool.epoch().moment(Instant::now());
        let tripped = |entry: &Entry| self.pool.stats.is_tripped(entry.counters(), &now);
        roster.find_key(key).is_some_and(tripped)
    }

    /// Takes an endpoint out of service. From the first poll on nothing more is sent there; then its attempts under way
    /// are waited for, up to the limit; then it is removed from the [set](BalanceHandle::set).
    ///
    /// It is a [`Veto::Drain`](crate::call::Veto::Drain) that keeps calls away, for all balancers over the set. What is
    /// waited for are the attempts of this layer, which are [in flight](Figures::in_flight) up to the head of the
    /// answer. At least 1 ms is waited, for picks that were being made when the veto came. Where all others have a veto
    /// they are picked all the same; calls go to this one only if there is no other, or all are being drained, and not at all
    /// if the rule is one of Ribbon's. A limit of zero waits for nothing; one beyond the end of the clock is none.
    ///
    /// Dropping the future before the endpoint is removed takes the veto back, and all is as it was. When it has ended the
    /// veto is taken back as well, so that the endpoint can be put in again. Of [`Services`](crate::call::Services) the service
    /// is kept until it is removed or replaced there. A [source](crate::discover) that goes on naming the endpoint brings it back: have it taken out there while this
    /// waits. An endpoint that has been removed meanwhile is waited for all the same. One that is put in while it is being
    /// drained, be it by another description, is drained and removed all the same: put it in when this has ended, or has been
    /// dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{balance::{Drained, LoadBalanceLayer}, call::{ConfigError, Endpoint, Endpoints}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), ConfigError> {
    /// let orders = Endpoints::from(vec![Endpoint::new("http://10.0.0.1")?, Endpoint::new("http://10.0.0.2")?]);
    /// let handle = LoadBalanceLayer::new(orders.clone()).handle();
    /// match handle.drain("http://10.0.0.2", Duration::from_secs(30)).await {
    ///     Drained::Empty => println!("it can be stopped, once its last bodies are out"),
    ///     Drained::AttemptsLeft(count) => println!("{count} attempts are still under way"),
    ///     _ => println!("there is none of that name"),
    /// }
    /// assert_eq!(orders.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, key: &str, limit: Duration) -> Drained {
        drain(&self.pool, key, limit).await
    }

    /// What is known of the endpoint with this key as an [outlier](super::outlier). `None`: it is not ejected, or not in
    /// the set.
    pub fn ejection(&self, key: &str) -> Option<Ejection> {
        let roster = self.pool.roster();
        self.pool.outliers().ejection(roster.find_key(key)?.counters())
    }

    /// Are [ejections disregarded](super::outlier#how-many-are-ejected), as of the last look, since too few endpoints
    /// may be picked?
    pub fn disregards_ejections(&self) -> bool {
        self.pool.outliers().is_panicking()
    }

    /// The sums over the endpoints that are in the set now.
    pub fn total(&self) -> Figures {
        let roster = self.pool.roster();
        roster
            .iter()
            .fold(Figures::default(), |sum, entry| sum.plus(entry.counters().read()))
    }
}

/// Without the endpoints, of which there may be thousands.
impl fmt::Debug for BalanceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalanceHandle")
            .field("endpoints", self.set())
            .finish_non_exhaustive()
    }
}

impl EndpointFigures {
    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What has been counted about it.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Was it ejected then as an [outlier](super::outlier), and why, and until when?
    pub fn ejection(&self) -> Option<&Ejection> {
        self.ejection.as_ref()
    }

    /// How often it has been ejected since it came into the set, failed probes included.
    pub fn ejections(&self) -> u64 {
        self.ejections
    }

    /// Was it tripped then, by the [settings](super::RibbonStats) of the layer?
    pub fn is_tripped(&self) -> bool {
        self.tripped
    }
}
