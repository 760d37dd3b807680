//! The choice alone, without a service and without a clock.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use super::{
    figures::End,
    handle::BalanceHandle,
    in_flight::InFlight,
    outlier::OutlierEjection,
    pick::{Asked, pick},
    roster::Pool,
    rule::Rule,
    stats::RibbonStats,
};
use crate::call::{Addressed, Endpoint, Endpoints, Verdict};

/// What [`LoadBalance`](super::LoadBalance) picks by, for those who send by other means, and for simulations.
///
/// It is told the time, so that it does the same again if it is told the same: all chance is in the rules, and those that
/// have a use for it can be made from a seed. What layers above say of the [call](crate::call::CallScope) counts here
/// as well.
///
/// ```
/// use std::time::Duration;
/// use tokio::time::Instant;
/// use tower_outbound::{balance::{LeastLoaded, Picker}, call::{Endpoints, Verdict}};
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let picker = Picker::new(endpoints, LeastLoaded::seeded(1));
/// let request = http::Request::new(());
/// let start = Instant::now();
/// let one = picker.pick(&request, start).expect("the set is not empty");
/// let other = picker.pick(&request, start).expect("the set is not empty");
/// assert_ne!(one.endpoint(), other.endpoint());
/// one.end(Verdict::Success, start + Duration::from_millis(20));
/// assert_eq!(picker.handle().total().in_flight(), 1);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct Picker<R> {
    pool: Arc<Pool>,
    rule: Arc<R>,
}

impl<R: Rule> Picker<R> {
    /// Picks among these endpoints by this rule.
    pub fn new(endpoints: Endpoints, rule: R) -> Self {
        Picker {
            pool: Arc::new(Pool::new(endpoints)),
            rule: Arc::new(rule),
        }
    }

    /// When endpoints count as tripped or loaded. See [`LoadBalanceLayer`](super::LoadBalanceLayer::ribbon_stats).
    pub fn ribbon_stats(mut self, stats: RibbonStats) -> Self {
        self.pool = Arc::new(self.pool.with(stats));
        self
    }

    /// Leaves endpoints alone for a time that fail more than others. See
    /// [`LoadBalanceLayer`](super::LoadBalanceLayer::outliers). With a [seed](super::OutlierEjectionBuilder::seeded) it
    /// does the same again if it is told the same.
    pub fn outliers(self, outliers: OutlierEjection) -> Self {
        self.pool.eject(outliers);
        self
    }

    /// Where this request is to go now. `None`: the set is empty, or the rule chooses none of it.
    ///
    /// The time must not go back by much: what is told of the past counts as now.
    pub fn pick(&self, request: &impl Addressed, now: Instant) -> Option<Picked> {
        let roster = self.pool.roster();
        let asked = Asked::read();
        let epoch = self.pool.epoch();
        let now = &epoch.moment(now);
        let (entry, ticket) = pick(&*self.rule, &self.pool, &roster, request, &asked, &[], now)?;
        let decay = self.rule.decay();
        entry.counters().count_from(epoch, now);
        let had_a_choice = roster.has_another_than(entry, now);
        Some(Picked {
            in_flight: InFlight::begin(entry.counted(), now, decay, had_a_choice).watched(ticket),
            endpoint: entry.endpoint.clone(),
        })
    }

    /// A handle to the figures about the endpoints.
    pub fn handle(&self) -> BalanceHandle {
        BalanceHandle::new(self.pool.clone())
    }
}

impl<R> Clone for Picker<R> {
    fn clone(&self) -> Self {
        Picker {
            pool: self.pool.clone(),
            rule: self.rule.clone(),
        }
    }
}

impl<R> fmt::Debug for Picker<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picker")
            .field("endpoints", self.pool.endpoints())
            .finish_non_exhaustive()
    }
}

/// An attempt that counts as in flight to the endpoint that was picked, until it is said how it ended. Dropped, it was
/// given up.
#[derive(Debug)]
#[must_use = "dropped at once, it counts as given up"]
pub struct Picked {
    endpoint: Endpoint,
    in_flight: InFlight,
}

impl Picked {
    /// Where the attempt goes.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// There was an answer, or an error, that counts as this.
    pub fn end(mut self, verdict: Verdict, now: Instant) {
        self.in_flight.end(verdict, End::Answered, now);
    }

    /// The server could not be reached, or fell silent, or broke the connection.
    pub fn connection_failed(mut self, now: Instant) {
        self.in_flight.end(Verdict::Failure, End::ConnectionFailed, now);
    }

    /// It was given up before it ended.
    pub fn abandon(mut self, now: Instant) {
        self.in_flight.abandon(now);
    }
}
