//! The layer and its settings.

use std::{fmt, mem, sync::Arc};

use tokio::time::{Duration, Instant};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    handle::BalanceHandle,
    in_flight::{Counted, InFlight},
    outlier::{Outcome, OutlierEjection, Ticket},
    pick::{Asked, pick},
    roster::{Pool, Roster},
    rule::{Ewma, Rule},
    service::LoadBalance,
    stats::RibbonStats,
};
use crate::call::{
    Addressed, BoxError, ByFault, ConfigError, Endpoint, Endpoints, HostHeader, NoEndpoint, NoTimeLeft, Veto,
    config,
};

pub(super) const NAME: &str = "LoadBalance";

const FIRST_WAIT: Duration = Duration::from_secs(1);

/// What happens to a call that finds the set empty, where its source has said that it is, or whose rule chooses none of
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenEmpty {
    /// It fails at once.
    #[default]
    FailAtOnce,
    /// It waits up to this long for an endpoint. A retry layer above, or a second try of the user, would come too
    /// early while a server is being restarted. A rule that has chosen none is asked again on each change of the set, and
    /// every 10 ms.
    Wait(Duration),
}

/// Makes [`LoadBalance`] services over one set of endpoints. See the [module](super) for what they do, and for the
/// defaults.
///
/// The rule and the figures belong to the layer: its clones, the services it makes and their clones share them.
pub struct LoadBalanceLayer<R = Ewma, C = ByFault> {
    balance: Balance<R, C>,
}

/// Where an attempt goes.
#[derive(Debug)]
pub(super) struct Target {
    to: Arc<Counted>,
    number: u64,
    had_a_choice: bool,
    ticket: Ticket,
}

impl Target {
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.to.endpoint
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It has not started: if it was to be a probe, another call may be one.
        if self.ticket != Ticket::default() {
            let now = Instant::now();
            self.to.unwatch(self.ticket, Outcome::GivenUp(0), now);
        }
    }
}

/// What layer, services and waiting calls have in common.
pub(super) struct Balance<R, C> {
    pub(super) pool: Arc<Pool>,
    rule: Arc<R>,
    pub(super) classify: C,
    pub(super) settings: Settings,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    host: HostHeader,
    when_empty: WhenEmpty,
    first_wait: Duration,
}

/// How the start of an attempt went.
pub(super) enum Start<F, Req> {
    /// The request is on its way.
    Calling(F, InFlight),
    /// Nobody waits for it any more.
    TooLate(BoxError),
    /// There is no endpoint.
    Nowhere {
        /// The request, to be sent when there is one.
        request: Req,
        why: Nowhere,
    },
}

/// Why there is no endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nowhere {
    /// Has the source ever said anything?
    resolved: bool,
    /// How many the rule could have chosen from.
    among: usize,
}

impl Nowhere {
    pub(super) fn of(roster: &Roster) -> Self {
        Nowhere {
            resolved: roster.resolved(),
            among: roster.len(),
        }
    }

    /// Did the rule want none of those that there are?
    pub(super) fn is_choice(self) -> bool {
        self.among > 0
    }

    /// How many endpoints the rule could have chosen from.
    pub(super) fn among(self) -> usize {
        self.among
    }

    pub(super) fn error(self, waited: Duration) -> NoEndpoint {
        NoEndpoint::new(self.resolved, waited).among(self.among)
    }
}

impl LoadBalanceLayer {
    /// Balances over these endpoints.
    pub fn new(endpoints: Endpoints) -> Self {
        LoadBalanceLayer {
            balance: Balance::new(endpoints),
        }
    }
}

impl<R, C> LoadBalanceLayer<R, C> {
    /// The rule that chooses. Default: [`Ewma`].
    pub fn rule<R2: Rule>(self, rule: R2) -> LoadBalanceLayer<R2, C> {
        LoadBalanceLayer {
            balance: self.balance.rule(rule),
        }
    }

    /// The [classifier](crate::call::Classify) that says how attempts are booked. Default: [`ByFault`].
    ///
    /// It is cloned for each call: one that is more than a few words large belongs into an `Arc`.
    pub fn classify<C2>(self, classify: C2) -> LoadBalanceLayer<R, C2> {
        LoadBalanceLayer {
            balance: self.balance.classify(classify),
        }
    }

    /// When endpoints count as tripped or loaded, for Ribbon's rules and for [`BalanceHandle::is_tripped`]. Default:
    /// Ribbon's own settings.
    ///
    /// A [handle](LoadBalanceLayer::handle) that was taken before judges by the settings of before.
    pub fn ribbon_stats(mut self, stats: RibbonStats) -> Self {
        self.balance.ribbon_stats(stats);
        self
    }

    /// Leaves endpoints alone for a time that fail more than others. Default: none is. See [there](super::outlier).
    ///
    /// As the figures do, what is known of outliers belongs to all clones, services and handles of this layer, those that
    /// were made before included. Given again, it begins anew.
    pub fn outliers(self, outliers: OutlierEjection) -> Self {
        self.balance.pool.eject(outliers);
        self
    }

    /// Which `Host` header requests carry. Default: the endpoint's.
    pub fn host_header(mut self, host: HostHeader) -> Self {
        self.balance.settings.host = host;
        self
    }

    /// What happens to a call that finds the set empty, or whose rule chooses none of it. Default: it fails at once.
    ///
    /// # Errors
    ///
    /// If the wait is zero or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn when_empty(mut self, when_empty: WhenEmpty) -> Result<Self, ConfigError> {
        self.balance.settings.when_empty(NAME, when_empty)?;
        Ok(self)
    }

    /// How long a call waits for a set that its source has never published, as happens to the first calls of a
    /// process. Zero: it fails at once. Default: 1 s.
    ///
    /// It holds in place of [`when_empty`](LoadBalanceLayer::when_empty) until the source has said something.
    ///
    /// # Errors
    ///
    /// If it is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn first_wait(mut self, wait: Duration) -> Result<Self, ConfigError> {
        self.balance.settings.first_wait(NAME, wait)?;
        Ok(self)
    }

    /// A handle to the figures about the endpoints.
    pub fn handle(&self) -> BalanceHandle {
        BalanceHandle::new(self.balance.pool.clone())
    }
}

impl<S, R, C: Clone> Layer<S> for LoadBalanceLayer<R, C> {
    type Service = LoadBalance<S, R, C>;

    fn layer(&self, inner: S) -> Self::Service {
        LoadBalance::new(inner, self.balance.clone())
    }
}

impl Balance<Ewma, ByFault> {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        Balance {
            pool: Arc::new(Pool::new(endpoints)),
            rule: Arc::new(Ewma::new()),
            classify: ByFault,
            settings: Settings {
                host: HostHeader::default(),
                when_empty: WhenEmpty::default(),
                first_wait: FIRST_WAIT,
            },
        }
    }
}

impl<R, C> Balance<R, C> {
    pub(super) fn rule<R2: Rule>(self, rule: R2) -> Balance<R2, C> {
        let Balance {
            pool,
            classify,
            settings,
            ..
        } = self;
        Balance {
            pool,
            rule: Arc::new(rule),
            classify,
            settings,
        }
    }

    pub(super) fn classify<C2>(self, classify: C2) -> Balance<R, C2> {
        let Balance {
            pool, rule, settings, ..
        } = self;
        Balance {
            pool,
            rule,
            classify,
            settings,
        }
    }

    pub(super) fn ribbon_stats(&mut self, stats: RibbonStats) {
        self.pool = Arc::new(self.pool.with(stats));
    }
}

impl<R: Rule, C> Balance<R, C> {
    /// Picks an endpoint. `passed`: those that this attempt has been to and did not start at.
    #[inline]
    pub(super) fn target(
        &self,
        request: &dyn Addressed,
        asked: &Asked,
        passed: &[Endpoint],
        now: Instant,
    ) -> Result<Target, Nowhere> {
        let roster = self.pool.roster();
        let now = &self.pool.epoch().moment(now);
        match pick(&*self.rule, &self.pool, &roster, request, asked, passed, now) {
            Some((entry, ticket)) => Ok(Target {
                to: entry.counted().clone(),
                number: entry.number(),
                had_a_choice: roster.has_another_than(entry, now),
                ticket,
            }),
            None => Err(Nowhere::of(&roster)),
        }
    }

    /// Is it still in the set, as it was when it was picked?
    pub(super) fn is_in_the_set(&self, target: &Target) -> bool {
        self.pool.roster().has(target.number, target.endpoint())
    }

    /// Is it being drained since it was picked, and a pick made now would not go there?
    pub(super) fn is_drained(&self, target: &Target) -> bool {
        let drains = |endpoint: &Endpoint| endpoint.eligibility().is_forbidden_by(Veto::Drain);
        drains(target.endpoint())
            && (self.rule.chooses_alone() || self.pool.roster().iter().any(|entry| !drains(&entry.endpoint)))
    }

    /// The attempt starts.
    #[inline]
    pub(super) fn begin(&self, mut target: Target, now: Instant) -> InFlight {
        let decay = self.rule.decay();
        let ticket = mem::take(&mut target.ticket);
        let epoch = self.pool.epoch();
        let now = &epoch.moment(now);
        target.to.counters.count_from(epoch, now);
        InFlight::begin(&target.to, now, decay, target.had_a_choice).watched(ticket)
    }

    /// Picks an endpoint and sends the request there through a service that is ready.
    #[inline(always)]
    pub(super) fn start<S, Req>(&self, service: &mut S, mut request: Req) -> Start<S::Future, Req>
    where
        S: Service<Req>,
        Req: Addressed,
    {
        let now = Instant::now();
        let asked = Asked::read();
        if asked.deadline.is_some_and(|deadline| deadline <= now) {
            return Start::TooLate(Box::new(NoTimeLeft::new(NAME)));
        }
        let in_flight = {
            let roster = self.pool.roster();
            let rule = &*self.rule;
            let epoch = self.pool.epoch();
            let now = &epoch.moment(now);
            let Some((entry, ticket)) = pick(rule, &self.pool, &roster, &request, &asked, &[], now) else {
                let why = Nowhere::of(&roster);
                return Start::Nowhere { request, why };
            };
            // Before what is counted in one step: of a large set all of this comes from far, and so comes at once.
            entry.counters().count_from(epoch, now);
            let decay = rule.decay();
            let had_a_choice = roster.has_another_than(entry, now);
            // Before code of others is called, which may panic: this gives back what was taken.
            let in_flight = InFlight::begin(entry.counted(), now, decay, had_a_choice).watched(ticket);
            request.send_to(&entry.endpoint, self.settings.host);
            in_flight
        };
        Start::Calling(service.call(request), in_flight)
    }
}

impl Settings {
    pub(super) fn when_empty(
        &mut self,
        balancer: &'static str,
        when_empty: WhenEmpty,
    ) -> Result<(), ConfigError> {
        if let WhenEmpty::Wait(wait) = when_empty {
            if wait.is_zero() {
                return Err(ConfigError::new(
                    balancer,
                    "when_empty",
                    "Wait(0 s)",
                    "give a duration above zero, or FailAtOnce",
                ));
            }
            config::limit(balancer, "when_empty", wait)?;
        }
        self.when_empty = when_empty;
        Ok(())
    }

    pub(super) fn first_wait(&mut self, balancer: &'static str, wait: Duration) -> Result<(), ConfigError> {
        self.first_wait = config::pause(balancer, "first_wait", wait)?;
        Ok(())
    }

    /// How long a call waits for an endpoint.
    pub(super) fn wait(&self, why: Nowhere) -> Duration {
        match self.when_empty {
            _ if !why.resolved => self.first_wait,
            WhenEmpty::FailAtOnce => Duration::ZERO,
            WhenEmpty::Wait(wait) => wait,
        }
    }
}

impl<R, C: Clone> Clone for Balance<R, C> {
    fn clone(&self) -> Self {
        Balance {
            pool: self.pool.clone(),
            rule: self.rule.clone(),
            classify: self.classify.clone(),
            settings: self.settings,
        }
    }
}

impl<R, C: Clone> Clone for LoadBalanceLayer<R, C> {
    fn clone(&self) -> Self {
        LoadBalanceLayer {
            balance: self.balance.clone(),
        }
    }
}

impl<R, C> fmt::Debug for Balance<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance")
            .field("endpoints", self.pool.endpoints())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<R, C> fmt::Debug for LoadBalanceLayer<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadBalanceLayer")
            .field("balance", &self.balance)
            .finish()
    }
}
