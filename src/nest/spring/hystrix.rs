//! The shell of Hystrix.

use std::time::Duration;

use tower_layer::Layer;

use super::{SpringConfig, config::HystrixSettings};
use crate::{
    breaker::{Breaker, BreakerBuilder, CircuitBreaker, CircuitBreakerLayer, Force, HystrixVerdicts},
    bulkhead::{Bulkhead, BulkheadLayer, BulkheadService},
    call::{ConfigError, LONGEST},
    timeout::{ExecutionTimeout, ExecutionTimeoutLayer},
};

/// How long a breaker of Hystrix's kind waits for a trial, if nothing is said.
const LEASE: Duration = Duration::from_secs(60 * 60);

/// A service in the shell of Hystrix. Made by a [`HystrixLayer`].
pub type Hystrix<S> = CircuitBreaker<ExecutionTimeout<BulkheadService<S>>, HystrixVerdicts>;

/// The shell of Hystrix: breaker, execution timeout, and a limit on the calls in flight. Made by
/// [`SpringConfig::hystrix`].
///
/// ```text
/// CircuitBreaker     as the release judges, by what Hystrix counts
/// ExecutionTimeout   at a tie the limit wins; nobody below is told of it
/// Bulkhead           the semaphore, or the pool and its queue
/// ```
///
/// One breaker and one bulkhead are shared by all services that it makes. What is switched off lets every call through.
/// It guards requests and answers of any type.
#[derive(Debug, Clone)]
pub struct HystrixLayer {
    breaker: CircuitBreakerLayer<HystrixVerdicts>,
    timeout: ExecutionTimeoutLayer,
    bulkhead: BulkheadLayer,
}

impl HystrixLayer {
    pub(super) fn new(config: &SpringConfig, bulkhead: Option<Bulkhead>) -> Result<Self, ConfigError> {
        let settings = config.hystrix_settings();
        let timeout = settings.timeout.unwrap_or(LONGEST);
        Ok(HystrixLayer {
            breaker: CircuitBreakerLayer::new(breaker(config, &settings)?).classify(HystrixVerdicts),
            timeout: ExecutionTimeoutLayer::hystrix(timeout)?,
            bulkhead: BulkheadLayer::new(match bulkhead {
                Some(bulkhead) => bulkhead,
                None => pool(config, &settings)?,
            }),
        })
    }

    /// Lets every call through.
    pub(super) fn off(config: &SpringConfig) -> Result<Self, ConfigError> {
        Ok(HystrixLayer {
            breaker: CircuitBreakerLayer::new(Breaker::builder(config.command()).disabled().build()?)
                .classify(HystrixVerdicts),
            timeout: ExecutionTimeoutLayer::hystrix(LONGEST)?,
            bulkhead: BulkheadLayer::new(
                Bulkhead::builder(config.client())
                    .max_concurrent(u32::MAX)
                    .build()?,
            ),
        })
    }

    /// With this pool, which the command shares with others, in the place of one of its own. In Spring all methods of a
    /// client share one.
    #[must_use]
    pub fn pool(mut self, pool: Bulkhead) -> Self {
        self.bulkhead = BulkheadLayer::new(pool);
        self
    }

    /// The circuit breaker.
    pub fn breaker(&self) -> &Breaker {
        self.breaker.breaker()
    }

    /// The semaphore, or the pool.
    pub fn bulkhead(&self) -> &Bulkhead {
        self.bulkhead.bulkhead()
    }
}

impl SpringConfig {
    pub(super) fn breaker(&self, settings: &HystrixSettings) -> BreakerBuilder {
        let builder = Breaker::builder(self.command())
            .hystrix(self.hystrix_version())
            .health_snapshot(settings.snapshot)
            .volume(settings.volume)
            .error_percent(settings.error_percent)
            .sleep_window(settings.sleep_window)
            .window(settings.window);
        if settings.breaker_enabled {
            builder
        } else {
            builder.disabled()
        }
    }
}

fn breaker(config: &SpringConfig, settings: &HystrixSettings) -> Result<Breaker, ConfigError> {
    let mut builder = config.breaker(settings);
    // A trial that is still within its limit must not be given up for lost.
    let longest = settings.timeout.unwrap_or(config.plan()?.longest());
    if longest > LEASE {
        builder = builder.probe_lease(longest.min(LONGEST));
    }
    let breaker = builder.build()?;
    if settings.forced_open {
        breaker.force(Force::Open);
    } else if settings.forced_closed {
        breaker.force(Force::Closed);
    }
    Ok(breaker)
}

fn pool(config: &SpringConfig, settings: &HystrixSettings) -> Result<Bulkhead, ConfigError> {
    let name = if settings.has_pool {
        config.pool_key()
    } else {
        config.command()
    };
    let builder = Bulkhead::builder(name).max_concurrent(settings.at_once);
    if settings.queue == 0 {
        return builder.build();
    }
    // What waits in the queue is ended by the execution timeout alone.
    builder.max_waiting(settings.queue).max_wait(LONGEST).build()
}

impl<S> Layer<S> for HystrixLayer {
    type Service = Hystrix<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.breaker.layer(self.timeout.layer(self.bulkhead.layer(inner)))
    }
}
