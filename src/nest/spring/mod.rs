//! A stack by the names and the rules of Spring Cloud, for those who leave it.
//!
//! A service that has called others through `@FeignClient` has its settings in `ribbon.*`, `feign.*` and `hystrix.*`,
//! and its habits: how often a call is sent, what opens the circuit, which server is next. This module takes the
//! settings as they are and builds the stack that has the habits, faithful where that is a rule of the library and safe
//! where it was an accident ([differences](#what-differs)). New code is better served by [`Nest`](crate::Nest), whose
//! defaults are safe; [`SpringConfig::settings`] and [`NestBuilder::settings`](super::NestBuilder::settings) show both
//! side by side.
//!
//! # Example
//!
//! ```
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tower_outbound::{
//!     call::Endpoints,
//!     nest::spring::{self, ErrorDecoder, HttpSpringNest, Retryer},
//! };
//!
//! // The lines of `application.properties` that are about calls, or all of them.
//! let properties = [
//!     ("feign.hystrix.enabled", "true"),
//!     ("ribbon.ReadTimeout", "3000"),
//!     ("orders.ribbon.MaxAutoRetriesNextServer", "2"),
//!     ("hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds", "15000"),
//!     ("ribbon.MaxTotalConnections", "400"),
//! ];
//! let config = spring::from_pairs("orders", properties)?
//!     .command_key("OrderClient#get(String)")
//!     // What were beans.
//!     .retryer(Retryer::Never)
//!     .error_decoder(ErrorDecoder::ClientErrorsAsBadRequests);
//!
//! // Nothing is passed over in silence.
//! for remark in config.remarks() {
//!     println!("{remark}");
//! }
//! # assert_eq!(config.remarks().len(), 1);
//! // Three attempts of 1 s + 3 s fit into 15 s.
//! assert_eq!(config.accepted()?, []);
//!
//! let endpoints = Endpoints::from_list(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])?;
//! let nest: HttpSpringNest<Full<Bytes>> = config.nest(endpoints).build_http()?;
//! # Ok::<(), tower_outbound::call::BoxError>(())
//! ```
//!
//! It is then called like every nest: `nest.send(request).await`. With a [fallback](SpringNestBuilder::fallback) it has
//! the type of the fallback in its own.
//!
//! # The nest
//!
//! ```text
//! Fallback                hystrix   if one is given: answers in place of an error, but for bad requests
//! RecordTrail                       begins the call; puts its trail on the outcome
//! CircuitBreaker          hystrix   HystrixLayer: as the release judges
//! ExecutionTimeout        hystrix     at a tie the limit wins; nobody below is told of it
//! Bulkhead                hystrix     the pool and its queue, or the semaphore
//! CollectBody             feign     FeignLayer: the body is part of the call, by the return type
//! BackoffRetry            feign       Retryer
//! StatusErrorClassifier   feign       ErrorDecoder
//! IdempotentRetry         ribbon    RibbonLayer: MaxAutoRetries, MaxAutoRetriesNextServer
//! LoadBalance             ribbon      the rule, and Ribbon's figures about each server
//! ReadTimeout             ribbon      ReadTimeout
//! your client                         with a connect limit of SpringConfig::limits
//! ```
//!
//! Hystrix is there if `feign.hystrix.enabled` is true, which it is not by default. There is no retry budget, and no
//! deadline that the layers below keep to.
//!
//! Each shell is a tower layer and can be used without the others: [`SpringConfig::hystrix`], [`SpringConfig::feign`],
//! [`SpringConfig::ribbon`], and [`SpringConfig::feign_with_url`] for a client that went past Ribbon. In Spring each
//! method of a client has a breaker of its own, and all share one pool: make a nest for each
//! [command key](SpringConfig::command_key), and give them one [pool](SpringNestBuilder::pool).
//!
//! # Keys
//!
//! | keys | acted on | wins over |
//! | --- | --- | --- |
//! | `<client>.ribbon.X` | `ConnectTimeout`, `ReadTimeout`, `MaxAutoRetries`, `MaxAutoRetriesNextServer`, `OkToRetryOnAllOperations`, `retryableStatusCodes`, `listOfServers` (only told, by [`SpringConfig::list_of_servers`]) | `ribbon.X`, the release |
//! | `<client>.ribbon.X` alone | `NFLoadBalancerRuleClassName`, `ActiveConnectionsLimit` | |
//! | `niws.loadbalancer.<client>.X` | `connectionFailureCountThreshold`, `circuitTripTimeoutFactorSeconds`, `circuitTripMaxTimeoutSeconds` | |
//! | `niws.loadbalancer.X` | `availabilityFilteringRule.filterCircuitTripped`, `availabilityFilteringRule.activeConnectionsLimit`, `serverStats.activeRequestsCount.effectiveWindowSeconds` | |
//! | `ZoneAwareNIWSDiscoveryLoadBalancer.<client>.X` | `triggeringLoadPerServerThreshold`, `avoidZoneWithBlackoutPercetage` | |
//! | `feign.client.config.<client>.X` | `connectTimeout` with `readTimeout` (see [`SpringRelease`]), `decode404` | `feign.client.config.default.X`, a bean, Ribbon's limits |
//! | `feign.client.X` | `default-config`, `default-to-properties` | |
//! | `feign.hystrix.enabled` | | |
//! | `spring.cloud.loadbalancer.retry.enabled` | true: retries are made as if spring-retry is on the class path, which is what decides it in Spring | |
//! | `hystrix.command.<key>.X` | `execution.isolation.strategy`, `execution.isolation.thread.timeoutInMilliseconds`, `execution.timeout.enabled`, `execution.isolation.semaphore.maxConcurrentRequests`, `fallback.enabled`, `fallback.isolation.semaphore.maxConcurrentRequests`, `circuitBreaker.*`, `metrics.rollingStats.timeInMilliseconds`, `metrics.healthSnapshot.intervalInMilliseconds` | `hystrix.command.default.X` |
//! | `hystrix.command.<key>.X` alone | `threadPoolKeyOverride` | |
//! | `hystrix.threadpool.<key>.X` | `coreSize`, `maximumSize`, `allowMaximumSizeToDivergeFromCoreSize`, `maxQueueSize`, `queueSizeRejectionThreshold` | `hystrix.threadpool.default.X` |
//!
//! Names are exact, as they are in Ribbon and Hystrix: `ribbon.readTimeout` is not `ribbon.ReadTimeout`. Times are in
//! milliseconds, but for those that say seconds. A limit of 0 is none, as in Java. A value that its key cannot have is a
//! [`SpringError`], where Ribbon would take its default and say nothing. Keys that do nothing are
//! [remarked on](SpringConfig::remarks), with the reason.
//!
//! # Traps that are reproduced
//!
//! - **Ribbon sends a POST again, unasked.** `MaxAutoRetriesNextServer` is 1 where nothing is set. So a POST goes to the
//!   next server when the connection was refused, reset or closed early, even if the first server had read it and carried
//!   it out. To switch that off, set `spring.cloud.loadbalancer.retry.enabled=true`, and GET alone is sent again; or set
//!   both `MaxAutoRetries` and `MaxAutoRetriesNextServer` to 0, and nothing is. [The table](#what-is-sent-again) has the
//!   rest.
//! - Ribbon sends a GET again to the next server although nobody has configured it, and the execution timeout of 1 s is
//!   as long as one read timeout: the retry is made in vain. [`SpringConfig::accepted`] says so.
//! - Request options of Feign's own take the place of Ribbon's limits, and without spring-retry they switch Ribbon's
//!   retries off. Their two keys act only together, until Hoxton, where the mere block acts.
//! - The counts multiply: attempts of the retryer x (`MaxAutoRetries` + 1) x (`MaxAutoRetriesNextServer` + 1).
//!   [`SpringConfig::plan`] tells them.
//! - Every status but 2xx counts against the circuit, 404 too, unless [`ErrorDecoder`] or `decode404` says otherwise.
//! - Feign's retryer, once there is one, sends a POST again after a read timeout.
//!
//! ## What is sent again
//!
//! Each column on its own. There is no retryer in Feign unless [`SpringConfig::retryer`] gives one.
//!
//! | fault | Ribbon | Ribbon with spring-retry | Feign's retryer |
//! | --- | --- | --- | --- |
//! | connection refused | GET, POST | GET | GET, POST |
//! | connect timeout | GET | GET | GET, POST |
//! | reset, or closed before an answer | GET, **POST** | GET | GET, **POST** |
//! | read timeout, before an answer | GET | GET | GET, **POST** |
//! | error status | none | GET, if `retryableStatusCodes` has it | none |
//! | error status with `Retry-After` | none | GET, if `retryableStatusCodes` has it | GET, **POST** |
//!
//! Bold: the server may have carried it out. PUT, DELETE and all others are as POST. `OkToRetryOnAllOperations` makes
//! Ribbon treat them as GET, with spring-retry or without. [`ErrorDecoder::ServerErrorsRetryable`] makes the retryer send
//! any request again after a 5xx. Once an answer has begun, a fault in its body is not retried.
//!
//! # What differs
//!
//! A body of more than 16 MiB is an error, unless [`SpringConfig::max_body`] says otherwise. A pool counts calls, not
//! threads: one with a queue has `coreSize` slots, whatever `maximumSize` says.
//!
//! Names that Spring relaxes (`feign.client.config.orders.connect-timeout`), files and placeholders are not read: whoever
//! reads them makes pairs under the exact names.
//!
#![doc = include_str!("differences.md")]

mod beans;
mod config;
mod entries;
mod error;
mod feign;
mod hystrix;
mod idle;
mod keys;
mod nest;
mod release;
mod remark;
mod ribbon;
mod shells;
mod value;

use self::beans::Beans;
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub use self::nest::HttpSpringNest;
pub use self::{
    beans::{ErrorDecoder, Limits, Retryer, ReturnType},
    config::{SpringConfig, from_pairs},
    error::SpringError,
    feign::{Feign, FeignLayer, FeignUrl, FeignUrlLayer},
    hystrix::{Hystrix, HystrixLayer},
    nest::{NoFallback, SpringHandle, SpringNest, SpringNestBuilder},
    release::SpringRelease,
    remark::{Reason, Remark},
    ribbon::{AnyRule, Ribbon, RibbonLayer},
};
