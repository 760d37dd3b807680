//! The shell of Ribbon.

use std::sync::Arc;

use tower_layer::Layer;

use super::SpringConfig;
use crate::{
    balance::{BalanceHandle, LoadBalance, LoadBalanceLayer, RibbonStats, Rule, ZoneAware},
    call::{ConfigError, Endpoints, HostHeader, StatusSet},
    retry::{Idempotent, IdempotentRetry, IdempotentRetryLayer},
    timeout::{ReadTimeout, ReadTimeoutLayer},
};

/// A service in the shell of Ribbon. Made by a [`RibbonLayer`].
pub type Ribbon<S> = IdempotentRetry<LoadBalance<ReadTimeout<S>, AnyRule>, StatusSet>;

/// Any of Ribbon's rules, behind the choice of a zone.
pub type AnyRule = ZoneAware<Arc<dyn Rule + Send + Sync>>;

/// The shell of Ribbon: retries at once, the choice of an endpoint, and the read limit. Made by
/// [`SpringConfig::ribbon`].
///
/// ```text
/// IdempotentRetry   on the same endpoint, then on the next ones
/// LoadBalance       picks the endpoint of each attempt, by Ribbon's rule and its figures
/// ReadTimeout       limits the server's silence
/// ```
///
/// The connect limit belongs to the client: [`SpringConfig::limits`]. All services that it makes share one rotation and
/// one set of figures.
#[derive(Debug, Clone)]
pub struct RibbonLayer {
    retry: IdempotentRetryLayer<StatusSet>,
    balance: LoadBalanceLayer<AnyRule>,
    read: ReadTimeoutLayer,
}

impl SpringConfig {
    pub(super) fn idempotent(&self) -> Idempotent {
        let settings = self.ribbon_settings();
        let policy = if settings.spring_retry {
            Idempotent::ribbon_spring_retry()
        } else {
            Idempotent::ribbon()
        };
        let policy = policy.same_endpoint(settings.same).next_endpoint(settings.next);
        if settings.all_operations {
            policy.ok_to_retry_on_all_operations()
        } else {
            policy
        }
    }
}

impl RibbonLayer {
    pub(super) fn new(config: &SpringConfig, endpoints: Endpoints) -> Result<Self, ConfigError> {
        let settings = config.ribbon_settings();
        let stats = RibbonStats::builder()
            .connection_failures(settings.failures)
            .trip_factor(settings.trip_factor)
            .trip_max(settings.trip_max)
            .filter_tripped(settings.filter_tripped)
            .active_limit(settings.active_limit.map_or(u64::MAX, u64::from))
            .active_window(settings.active_window)
            .zone_load(settings.zone_load)
            .zone_blackout(settings.zone_blackout)
            .build()?;
        Ok(RibbonLayer {
            retry: IdempotentRetryLayer::new(config.idempotent()).retry_statuses(settings.statuses),
            balance: LoadBalanceLayer::new(endpoints)
                .ribbon_stats(stats)
                .rule(settings.rule.zone_aware())
                .when_empty(settings.rule.when_empty())?,
            read: ReadTimeoutLayer::new(settings.limits.read)?,
        })
    }

    /// Which `Host` header the requests carry. Default: the endpoint's, as in Ribbon.
    #[must_use]
    pub fn host_header(mut self, host: HostHeader) -> Self {
        self.balance = self.balance.host_header(host);
        self
    }

    /// What the balancer knows of each endpoint.
    pub fn balance(&self) -> BalanceHandle {
        self.balance.handle()
    }
}

impl<S> Layer<S> for RibbonLayer {
    type Service = Ribbon<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.retry.layer(self.balance.layer(self.read.layer(inner)))
    }
}
