//! Every stack that sends again, by its name, over any client.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    Nest,
    balance::{BalanceHandle, LoadBalanceLayer},
    breaker::Breaker,
    bulkhead::{Bulkhead, BulkheadLayer},
    call::{BoxError, ConfigError, Endpoints, RetryBudget, StatusSet},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    nest::spring::{self, ErrorDecoder, Retryer, SpringConfig},
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
    timeout::{ReadTimeoutLayer, UploadBody},
};

use crate::body::CallBody;

pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// A stack as its caller sees it.
pub type Stack = BoxCloneSyncService<Request<CallBody>, Response<AnswerBody>, BoxError>;

/// Which stack a call goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackKind {
    /// The nest as it is by default, but for its limits and a breaker that does not open.
    NestDefault,
    /// 3 x (1 + 1) x (1 + 1) attempts, and no budget.
    NestUnlimited,
    /// The default one under an execution limit that cuts it short, with a breaker that opens and a bulkhead above it.
    NestHurried,
    /// A nest that sends nothing again.
    NestNever,
    IdempotentDefault,
    /// The default rule, 2 x 3 attempts, for transient statuses too.
    IdempotentStatuses,
    Ribbon,
    /// 2 x 2 attempts, for transient statuses too.
    RibbonStatuses,
    RibbonSpringRetry,
    /// 2 x 2 attempts.
    RibbonDefaultHandler,
    /// The default rule with `ok_to_retry_on_all_operations`.
    AllOperations,
    /// Ribbon's with it.
    RibbonAllOperations,
    /// 3 attempts, over a classifier.
    BackoffDefault,
    /// 3 attempts that read answers.
    BackoffStatuses,
    /// Feign's retryer over its decoder.
    BackoffFeign,
    /// `retry_unsafe_that_may_have_been_sent`.
    BackoffRisky,
    /// `Backoff` over a classifier over `Idempotent`, 3 x 2 x 2 attempts with one budget that nothing fills again, so
    /// that each token can be accounted for.
    Nested,
    /// Hystrix around Feign around Ribbon, as by default.
    SpringNest,
    /// The same with Feign's retryer.
    SpringFeign,
    /// The same with a decoder that makes 5xx retryable.
    SpringDecoder,
    /// With spring-retry and 503 as a status to retry, without Hystrix.
    SpringRetry,
    /// The shell of Ribbon alone, `MaxAutoRetries` 1.
    RibbonShell,
    /// The shell of Feign with its retryer, over a balancer.
    FeignShell,
    /// The default `Backoff` around a nest as Spring has it, which is a call of its own.
    AroundSpring,
    /// The default `Backoff` around Ribbon's rule, in one call.
    BackoffOverRibbon,
    /// Both retries with `idempotent_methods`.
    IdempotentMethods,
    /// 3 x (1 + 1) x (1 + 1) attempts of which a call may have 3.
    NestOfThree,
}

/// Where a budget comes from, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    None,
    /// The default one.
    Default,
    /// Some tokens at the start, and no more.
    Counted,
}

impl StackKind {
    pub const ALL: [StackKind; 27] = [
        StackKind::NestDefault,
        StackKind::NestUnlimited,
        StackKind::NestHurried,
        StackKind::NestNever,
        StackKind::IdempotentDefault,
        StackKind::IdempotentStatuses,
        StackKind::Ribbon,
        StackKind::RibbonStatuses,
        StackKind::RibbonSpringRetry,
        StackKind::RibbonDefaultHandler,
        StackKind::AllOperations,
        StackKind::RibbonAllOperations,
        StackKind::BackoffDefault,
        StackKind::BackoffStatuses,
        StackKind::BackoffFeign,
        StackKind::BackoffRisky,
        StackKind::Nested,
        StackKind::SpringNest,
        StackKind::SpringFeign,
        StackKind::SpringDecoder,
        StackKind::SpringRetry,
        StackKind::RibbonShell,
        StackKind::FeignShell,
        StackKind::AroundSpring,
        StackKind::BackoffOverRibbon,
        StackKind::IdempotentMethods,
        StackKind::NestOfThree,
    ];

    pub fn budget(self) -> Budget {
        match self {
            StackKind::NestDefault | StackKind::NestHurried => Budget::Default,
            StackKind::Nested => Budget::Counted,
            _ => Budget::None,
        }
    }

    /// Has it a limit on the whole call that its attempts can run into?
    pub fn is_hurried(self) -> bool {
        self == StackKind::NestHurried
    }
}

/// What the stacks are given.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub connect: Duration,
    pub read: Duration,
    /// Of the stack that is in a hurry. The others have time for all that they may do.
    pub hurry: Duration,
    /// How many tokens a counted budget has.
    pub tokens: u32,
}

/// A stack, and what can be seen of it from outside.
pub struct Built {
    pub kind: StackKind,
    pub service: Stack,
    pub endpoints: Endpoints,
    pub balance: BalanceHandle,
    pub budget: Option<RetryBudget>,
    pub breaker: Option<Breaker>,
    pub bulkhead: Option<Bulkhead>,
}

/// More than there will be.
const MANY: u32 = 16_000_000;
const AMPLE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Builds it over this client, which stands right below the read limit.
pub fn build<C, R>(
    kind: StackKind,
    settings: Settings,
    endpoints: Endpoints,
    client: C,
) -> Result<Built, BoxError>
where
    C: Service<Request<UploadBody<CallBody>>, Response = Response<R>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    C::Future: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let balance = LoadBalanceLayer::new(endpoints.clone());
    let mut built = Built {
        kind,
        service: Stack::new(tower::service_fn(|_| async { Err("none".into()) })),
        balance: balance.handle(),
        endpoints: endpoints.clone(),
        budget: None,
        breaker: None,
        bulkhead: None,
    };
    let read = ReadTimeoutLayer::new(settings.read)?;
    let below = ServiceBuilder::new()
        .layer(balance)
        .layer(read)
        .service(client.clone());
    let retries = |policy| IdempotentRetryLayer::new(policy);
    let classify = |policy| StatusErrorClassifierLayer::new(policy);
    let three = || Backoff::builder().attempts(3);
    match kind {
        StackKind::NestDefault
        | StackKind::NestUnlimited
        | StackKind::NestHurried
        | StackKind::NestNever
        | StackKind::NestOfThree => nest(&mut built, settings, client)?,
        StackKind::IdempotentDefault => {
            built.service = shell(retries(Idempotent::default()).layer(below));
        }
        StackKind::IdempotentStatuses => {
            let policy = Idempotent::default().same_endpoint(1).next_endpoint(2);
            let layer = retries(policy).retry_statuses(StatusSet::TRANSIENT);
            // Its answers have to say why they were not retried.
            built.service = shell(RecordTrailLayer::new().layer(layer.layer(below)));
        }
        StackKind::Ribbon => built.service = shell(retries(Idempotent::ribbon()).layer(below)),
        StackKind::RibbonStatuses => {
            let policy = Idempotent::ribbon().same_endpoint(1);
            let layer = retries(policy).retry_statuses(StatusSet::TRANSIENT);
            built.service = shell(layer.layer(below));
        }
        StackKind::RibbonSpringRetry => {
            built.service = shell(retries(Idempotent::ribbon_spring_retry()).layer(below));
        }
        StackKind::RibbonDefaultHandler => {
            let policy = Idempotent::ribbon_default_handler().same_endpoint(1);
            built.service = shell(retries(policy).layer(below));
        }
        StackKind::AllOperations => {
            let policy = Idempotent::default().ok_to_retry_on_all_operations();
            built.service = shell(retries(policy).layer(below));
        }
        StackKind::RibbonAllOperations => {
            let policy = Idempotent::ribbon().ok_to_retry_on_all_operations();
            built.service = shell(retries(policy).layer(below));
        }
        StackKind::BackoffDefault => {
            let below = classify(StatusPolicy::default()).layer(below);
            built.service = shell(BackoffRetryLayer::new(three().build()?).layer(below));
        }
        StackKind::BackoffStatuses => {
            let layer = BackoffRetryLayer::new(three().build()?).retry_statuses(StatusSet::TRANSIENT);
            built.service = shell(layer.layer(below));
        }
        StackKind::BackoffFeign => {
            let below = classify(StatusPolicy::feign()).layer(below);
            built.service = shell(BackoffRetryLayer::new(feign()?).layer(below));
        }
        StackKind::BackoffRisky => {
            let policy = three().retry_unsafe_that_may_have_been_sent().build()?;
            let below = classify(StatusPolicy::default()).layer(below);
            built.service = shell(BackoffRetryLayer::new(policy).layer(below));
        }
        StackKind::Nested => {
            let budget = RetryBudget::builder()
                .percent(0.0)
                .floor(0)
                .burst(settings.tokens)
                .initial(settings.tokens)
                .build()?;
            built.budget = Some(budget.clone());
            let stack = ServiceBuilder::new()
                .layer(RecordTrailLayer::new())
                .layer(BackoffRetryLayer::new(three().build()?).budget(budget.clone()))
                .layer(classify(StatusPolicy::default()))
                .layer(retries(Idempotent::default().same_endpoint(1)).budget(budget))
                .service(below);
            built.service = shell(stack);
        }
        StackKind::IdempotentMethods => {
            let policy = Idempotent::default().same_endpoint(1).idempotent_methods();
            let stack = ServiceBuilder::new()
                .layer(RecordTrailLayer::new())
                .layer(BackoffRetryLayer::new(three().idempotent_methods().build()?))
                .layer(classify(StatusPolicy::default()))
                .layer(retries(policy))
                .service(below);
            built.service = shell(stack);
        }
        StackKind::BackoffOverRibbon => {
            let stack = ServiceBuilder::new()
                .layer(RecordTrailLayer::new())
                .layer(BackoffRetryLayer::new(three().build()?))
                .layer(classify(StatusPolicy::default()))
                .layer(retries(Idempotent::ribbon()))
                .service(below);
            built.service = shell(stack);
        }
        StackKind::SpringNest
        | StackKind::SpringFeign
        | StackKind::SpringDecoder
        | StackKind::SpringRetry
        | StackKind::AroundSpring => {
            let nest = spring(kind, settings)?.nest(endpoints).build(client)?;
            let handle = nest.handle();
            built.balance = handle.balance().clone();
            built.breaker = handle.breaker().cloned();
            built.bulkhead = handle.bulkhead().cloned();
            built.service = if kind == StackKind::AroundSpring {
                shell(BackoffRetryLayer::new(Backoff::default()).layer(nest))
            } else {
                shell(nest)
            };
        }
        StackKind::RibbonShell => {
            let layer = spring(kind, settings)?.ribbon(endpoints)?;
            built.balance = layer.balance();
            built.service = shell(layer.layer(client));
        }
        StackKind::FeignShell => {
            built.service = shell(spring(kind, settings)?.feign()?.layer(below));
        }
    }
    Ok(built)
}

/// Feign's retryer with its own values.
fn feign() -> Result<Backoff, ConfigError> {
    Backoff::feign(Duration::from_millis(100), Duration::from_secs(1), 5)
}

fn nest<C, R>(built: &mut Built, settings: Settings, client: C) -> Result<(), BoxError>
where
    C: Service<Request<UploadBody<CallBody>>, Response = Response<R>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    C::Future: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let builder = Nest::builder("at-most-once", built.endpoints.clone())
        .connect_limit(settings.connect)
        .read_limit(settings.read)
        .execution_limit(AMPLE);
    let breaker = Breaker::builder("at-most-once").probe_lease(AMPLE);
    let closed = breaker.clone().volume(MANY).window(HOUR).build()?;
    let budget = RetryBudget::default();
    let builder = match built.kind {
        StackKind::NestUnlimited => builder
            .idempotent(Idempotent::default().same_endpoint(1))
            .backoff(Backoff::builder().attempts(3).build()?)
            .breaker(closed)
            .no_budget(),
        StackKind::NestOfThree => builder
            .idempotent(Idempotent::default().same_endpoint(1))
            .backoff(Backoff::builder().attempts(3).build()?)
            .attempts_in_call(3)
            .breaker(closed)
            .no_budget(),
        StackKind::NestHurried => builder
            .execution_limit(settings.hurry)
            .accept_cut_short()
            .breaker(breaker.build()?)
            .budget(budget),
        StackKind::NestNever => builder
            .idempotent(Idempotent::default().next_endpoint(0))
            .backoff(Backoff::never())
            .breaker(closed)
            .no_budget(),
        _ => builder.breaker(closed).budget(budget),
    };
    let nest = builder.build(client)?;
    built.balance = nest.handle().balance().clone();
    built.breaker = Some(nest.handle().breaker().clone());
    built.budget = nest.handle().budget().cloned();
    built.service = if built.kind == StackKind::NestHurried {
        let bulkhead = Bulkhead::builder("at-most-once")
            .max_concurrent(6)
            .max_waiting(3)
            .max_wait(Duration::from_millis(20))
            .build()?;
        built.bulkhead = Some(bulkhead.clone());
        shell(BulkheadLayer::new(bulkhead).layer(nest))
    } else {
        shell(nest)
    };
    Ok(())
}

fn spring(kind: StackKind, settings: Settings) -> Result<SpringConfig, BoxError> {
    let millis = |time: Duration| time.as_millis().to_string();
    let mut pairs = vec![
        ("ribbon.ConnectTimeout", millis(settings.connect)),
        ("ribbon.ReadTimeout", millis(settings.read)),
        (
            "niws.loadbalancer.availabilityFilteringRule.filterCircuitTripped",
            "false".to_owned(),
        ),
        (
            "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
            millis(AMPLE),
        ),
        (
            "hystrix.command.default.circuitBreaker.requestVolumeThreshold",
            MANY.to_string(),
        ),
        ("hystrix.threadpool.default.coreSize", "10000".to_owned()),
    ];
    match kind {
        StackKind::SpringRetry => {
            pairs.push(("spring.cloud.loadbalancer.retry.enabled", "true".to_owned()));
            pairs.push(("ribbon.retryableStatusCodes", "503".to_owned()));
            pairs.push(("ribbon.MaxAutoRetries", "1".to_owned()));
        }
        StackKind::RibbonShell => pairs.push(("ribbon.MaxAutoRetries", "1".to_owned())),
        StackKind::FeignShell => {}
        _ => pairs.push(("feign.hystrix.enabled", "true".to_owned())),
    }
    let config = spring::from_pairs("at-most-once", pairs)?;
    Ok(match kind {
        StackKind::SpringFeign | StackKind::FeignShell => config.retryer(Retryer::FEIGN),
        StackKind::SpringDecoder => config
            .retryer(Retryer::FEIGN)
            .error_decoder(ErrorDecoder::ServerErrorsRetryable),
        _ => config,
    })
}

/// As its caller sees it.
pub fn shell<S, R>(service: S) -> Stack
where
    S: Service<Request<CallBody>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let service = service
        .map_err(Into::into)
        .map_response(|answer: Response<R>| answer.map(|body| body.map_err(Into::into).boxed_unsync()));
    Stack::new(service)
}
