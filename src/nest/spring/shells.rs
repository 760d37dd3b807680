//! From settings to layers.

use std::time::Duration;

use super::{FeignLayer, FeignUrlLayer, HystrixLayer, RibbonLayer, SpringConfig, nest::SpringNestBuilder};
use crate::{
    balance::WhenEmpty,
    call::{ConfigError, Endpoints},
    fallback::FallbackLayer,
    nest::{Finding, Plan, settings::Parts},
};

impl SpringConfig {
    /// The shell of Hystrix, with a breaker and a bulkhead of its own: for a stack that you write yourself, and there
    /// whether or not `feign.hystrix.enabled` is true.
    ///
    /// # Errors
    ///
    /// If the name of client or command is empty, or the window does not hold 1 to 1,000 health snapshots.
    pub fn hystrix(&self) -> Result<HystrixLayer, ConfigError> {
        HystrixLayer::new(self, None)
    }

    /// This fallback as the keys have it, to be put around the [shell of Hystrix](SpringConfig::hystrix): with
    /// `fallback.isolation.semaphore.maxConcurrentRequests` as its limit, and none where `fallback.enabled` is false. The
    /// nest does so itself.
    ///
    /// ```
    /// use tower_outbound::{call::{BoxError, ErrorRef}, fallback::FallbackLayer, nest::spring};
    ///
    /// let fallback = FallbackLayer::new(|_: ErrorRef<'_>| async { Ok::<_, BoxError>("none") });
    /// let config = spring::from_pairs("orders", [("hystrix.command.default.fallback.enabled", "false")])?;
    /// assert!(config.fallback(fallback).is_none());
    /// # Ok::<_, spring::SpringError>(())
    /// ```
    pub fn fallback<F>(&self, fallback: FallbackLayer<F>) -> Option<FallbackLayer<F>> {
        let settings = self.hystrix_settings();
        settings
            .fallback_enabled
            .then(|| fallback.max_concurrent(settings.fallbacks_at_once))
    }

    /// The shell of Feign over Ribbon.
    ///
    /// # Errors
    ///
    /// If a limit or a pause is longer than [ten years](crate::call::LONGEST).
    pub fn feign(&self) -> Result<FeignLayer, ConfigError> {
        FeignLayer::new(self, self.limits().check()?.read)
    }

    /// The shell of Feign for a client with a `url` on its annotation, which needs no Ribbon below it.
    ///
    /// # Errors
    ///
    /// As [`feign`](SpringConfig::feign).
    pub fn feign_with_url(&self) -> Result<FeignUrlLayer, ConfigError> {
        FeignUrlLayer::new(self)
    }

    /// The shell of Ribbon over these endpoints.
    ///
    /// # Errors
    ///
    /// If a limit is zero or longer than [ten years](crate::call::LONGEST).
    pub fn ribbon(&self, endpoints: Endpoints) -> Result<RibbonLayer, ConfigError> {
        RibbonLayer::new(self, endpoints)
    }

    /// The nest of all three over these endpoints, as Spring wires it: without Hystrix unless `feign.hystrix.enabled`
    /// is true.
    pub fn nest(self, endpoints: Endpoints) -> SpringNestBuilder {
        SpringNestBuilder::new(self, endpoints)
    }

    /// How often a call through the nest is sent at most, and how long that can take.
    ///
    /// # Errors
    ///
    /// If a pause of the retryer is longer than [ten years](crate::call::LONGEST).
    pub fn plan(&self) -> Result<Plan, ConfigError> {
        let backoff = self.backoff()?;
        let settings = self.ribbon_settings();
        let wait = match settings.rule.when_empty() {
            WhenEmpty::Wait(wait) => wait,
            _ => Duration::ZERO,
        };
        let attempt = wait
            .saturating_add(settings.limits.connect)
            .saturating_add(settings.limits.read);
        let execution = self.hystrix_settings().timeout.filter(|_| self.has_hystrix());
        Ok(Plan::new(
            backoff.max_attempts(),
            self.idempotent().total_attempts(),
            attempt,
            settings.limits.read,
            backoff.longest_pauses(),
            execution,
        ))
    }

    /// What contradicts itself in the [plan](SpringConfig::plan), and is built all the same, since Spring builds it.
    ///
    /// With the defaults of Spring there is such a thing: Hystrix gives 1 s, and a connect and a read limit of 1 s, twice,
    /// come to more. The retry is then made in vain, as its caller has gone.
    ///
    /// # Errors
    ///
    /// As [`plan`](SpringConfig::plan).
    pub fn accepted(&self) -> Result<Vec<Finding>, ConfigError> {
        Ok(self.plan()?.findings())
    }

    /// All settings, a name and a value each, as they are now. The names are those that
    /// [`NestBuilder::settings`](crate::nest::NestBuilder::settings) has, so the two can be compared.
    ///
    /// # Errors
    ///
    /// As [`plan`](SpringConfig::plan).
    pub fn settings(&self) -> Result<impl Iterator<Item = (&'static str, String)> + use<>, ConfigError> {
        let ribbon = self.ribbon_settings();
        let hystrix = self.has_hystrix().then(|| self.hystrix_settings());
        let tripped = if ribbon.filter_tripped {
            format!(
                "after {} failures, for {:?} to {:?}",
                ribbon.failures, ribbon.trip_factor, ribbon.trip_max
            )
        } else {
            "picked like any other".to_owned()
        };
        let breaker = hystrix.filter(|settings| settings.breaker_enabled);
        let parts = Parts {
            connect: ribbon.limits.connect,
            read: ribbon.limits.read,
            execution: hystrix.and_then(|settings| settings.timeout),
            deadline_is_told: false,
            idempotent: self.idempotent(),
            retried_answers: ribbon.statuses,
            backoff: &self.backoff()?,
            budget: None,
            attempts_in_call: None,
            statuses: &self.statuses(),
            breaker: breaker.map(|settings| self.breaker(&settings).settings()),
            breaker_counts: "all errors but bad requests",
            bulkhead: hystrix.map(|settings| (settings.at_once, settings.queue)),
            fallbacks: hystrix
                .filter(|settings| settings.fallback_enabled)
                .map(|settings| settings.fallbacks_at_once),
            rule: ribbon.rule.to_string(),
            tripped,
            outliers: false,
            when_empty: ribbon.rule.when_empty(),
            plan: self.plan()?,
        };
        Ok(parts.rows())
    }
}
