//! What the contract is checked over: each layer alone, pairs, and the nest.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use tower::{BoxError, Layer, ServiceBuilder, retry::Policy};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::{BalanceHandle, BalanceServices, LoadBalanceLayer, WhenEmpty},
    breaker::{
        Breaker, BreakerBuilder, Breakers, CircuitBreakerLayer, EndpointBreakerLayer, EndpointBreakers,
        Force, KeyedBreakerLayer,
    },
    bulkhead::{Bulkhead, BulkheadLayer, Slot},
    call::{
        ByFault, ByTrailers, CircuitState, DeadlineHeader, Endpoint, Endpoints, ErrorRef, RetryBudget,
        Services, StatusSet, UploadBody, Verdict, scope,
    },
    classify::{GrpcErrorClassifierLayer, StatusErrorClassifierLayer, StatusPolicy},
    collect::CollectBodyLayer,
    fallback::FallbackLayer,
    nest::{
        client::NotSentLayer,
        spring::{self, Limits, Retryer, SpringConfig},
    },
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter, RetryLayer},
    timeout::{
        ConnectTimeoutLayer, ExecutionTimeoutLayer, ReadTimeoutLayer, ReceiveDeadlineLayer, SendDeadlineLayer,
    },
};

use super::probe::{Can, Deed, Inner, Setup, Subject};

pub(crate) type Get = Request<Full<Bytes>>;
pub(crate) type Upload = Request<UploadBody<Full<Bytes>>>;

/// Longer than any check waits.
const LIMIT: Duration = Duration::from_secs(10_000);
const SLEEP_WINDOW: Duration = Duration::from_secs(5);
const VOLUME: u32 = 1_000;

/// A policy as it is written for tower: so many more attempts, without a pause.
#[derive(Clone)]
pub(crate) struct Twice(u32);

impl<Res> Policy<Get, Res, BoxError> for Twice {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut Get, outcome: &mut Result<Res, BoxError>) -> Option<Self::Future> {
        outcome.as_ref().err()?;
        self.0 = self.0.checked_sub(1)?;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, request: &Get) -> Option<Get> {
        Some(request.clone())
    }
}

macro_rules! subjects {
    ($($name:ident: $above:ty => $below:ty, $can:expr, $build:expr;)*) => {
        $(
            pub(crate) struct $name;

            impl Subject for $name {
                type Request = $above;
                type Below = $below;

                const CAN: Can = $can;

                fn build(inner: Inner<$below>) -> Setup<$above> {
                    let build: fn(Inner<$below>) -> Setup<$above> = $build;
                    let mut setup = build(inner);
                    setup.gauges.push(("scopes left on the thread", Box::new(scopes)));
                    setup
                }
            }
        )*
    };
}

/// Attempts of [`backoff`], of [`idempotent`], and of both.
const PAUSED: Can = Can::attempts(3);
const AT_ONCE: Can = Can::attempts(4);
const WAITS_IN_THE_CALL: Can = Can {
    attempts: 1,
    passes_readiness_on: false,
};

subjects! {
    OfConnectTimeout: Uri => Uri, Can::ONCE, |inner| Setup::new(connect().layer(inner));
    OfReadTimeout: Get => Upload, Can::ONCE, |inner| Setup::new(read().layer(inner));
    OfExecutionTimeout: Get => Get, Can::ONCE, |inner| Setup::new(execution().layer(inner));
    OfSendDeadline: Get => Get, Can::ONCE, |inner| {
        Setup::new(SendDeadlineLayer::new(DeadlineHeader::GRPC).layer(inner))
    };
    OfReceiveDeadline: Get => Get, Can::ONCE, |inner| {
        Setup::new(ReceiveDeadlineLayer::new(DeadlineHeader::GRPC).layer(inner))
    };
    ReceiveOverSend: Get => Get, Can::ONCE, |inner| {
        let layers = ServiceBuilder::new()
            .map_request(|mut request: Get| {
                request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static("3H"));
                request
            })
            .receive_deadline(DeadlineHeader::GRPC)
            .send_deadline(DeadlineHeader::GRPC);
        Setup::new(layers.service(inner))
    };
    OfStatusErrorClassifier: Get => Get, Can::ONCE, |inner| Setup::new(statuses().layer(inner));
    OfGrpcErrorClassifier: Get => Get, Can::ONCE, |inner| Setup::new(grpc().layer(inner));
    OfBackoffRetry: Get => Get, PAUSED, |inner| {
        let budget = budget();
        Setup::new(backoff().budget(budget.clone()).layer(inner)).spends(budget)
    };
    OfIdempotentRetry: Get => Get, AT_ONCE, |inner| {
        let budget = budget();
        Setup::new(idempotent().budget(budget.clone()).layer(inner)).spends(budget)
    };
    OfTowerRetry: Get => Get, PAUSED, |inner| Setup::new(RetryLayer::tower(Twice(2)).layer(inner));
    OfLoadBalance: Get => Get, Can::ONCE, |inner| {
        let balance = balance();
        Setup::new(balance.layer(inner)).balances(balance.handle())
    };
    OfBalanceServices: Get => Get, WAITS_IN_THE_CALL, |inner| {
        let services: Services<_> = endpoints()
            .snapshot()
            .endpoints()
            .iter()
            .map(|endpoint| (endpoint.clone(), inner.clone()))
            .collect();
        let balance = BalanceServices::new(services).ready_wait(LIMIT).unwrap();
        let figures = balance.handle();
        Setup::new(balance).flies(figures)
    };
    IdempotentOverBalanceServices: Get => Get, Can { attempts: 4, ..WAITS_IN_THE_CALL }, |inner| {
        let budget = budget();
        let services: Services<_> = ["a:1", "b:1"]
            .map(|address| (Endpoint::new(address).unwrap(), inner.clone()))
            .into_iter()
            .collect();
        let balance = BalanceServices::new(services).ready_wait(LIMIT).unwrap();
        let figures = balance.handle();
        let layers = ServiceBuilder::new().layer(idempotent().budget(budget.clone()));
        Setup::new(layers.service(balance)).spends(budget).flies(figures)
    };
    OfCircuitBreaker: Get => Get, Can::ONCE, |inner| {
        let breaker = breaker();
        Setup::new(CircuitBreakerLayer::new(breaker.clone()).layer(inner)).breaks(breaker)
    };
    OfKeyedBreaker: Get => Get, Can::ONCE, |inner| {
        let keys: Breakers<str> = Breakers::new(each()).unwrap();
        let layer = KeyedBreakerLayer::new(keys.clone(), |_: &Get| Some(Cow::Borrowed("orders")));
        Setup::new(layer.layer(inner)).breaks_by_key(keys)
    };
    OfEndpointBreaker: Get => Get, Can::ONCE, |inner| {
        let breakers = endpoint_breakers(Endpoints::from_list(["orders:80"]).unwrap());
        let layers = ServiceBuilder::new()
            .map_request(|mut request: Get| {
                *request.uri_mut() = Uri::from_static("http://orders:80/7");
                request
            })
            .layer(EndpointBreakerLayer::new(breakers.clone()));
        Setup::new(layers.service(inner)).breaks_by_endpoint(breakers)
    };
    OfBulkhead: Get => Get, Can::ONCE, |inner| {
        let bulkhead = bulkhead(0);
        Setup::new(BulkheadLayer::new(bulkhead.clone()).layer(inner)).limits(bulkhead)
    };
    BulkheadWithALine: Get => Get, Can::ONCE, |inner| {
        let bulkhead = bulkhead(SLOTS);
        Setup::new(BulkheadLayer::new(bulkhead.clone()).layer(inner)).limits(bulkhead)
    };
    ExecutionOverBulkhead: Get => Get, Can::ONCE, |inner| {
        let bulkhead = bulkhead(SLOTS);
        let layers = ServiceBuilder::new().layer(execution()).bulkhead(bulkhead.clone());
        Setup::new(layers.service(inner)).limits(bulkhead)
    };
    OfFallback: Get => Get, Can::ONCE, |inner| {
        let layer = FallbackLayer::with_request(
            |request: &Get| request.uri().clone(),
            |_: Uri, _: ErrorRef<'_>| async {
                tokio::task::yield_now().await;
                Err("nothing in its place".into())
            },
        );
        let mut setup = Setup::new(layer.layer(inner));
        setup.gauges.push(("fallbacks that run", Box::new(move || layer.running().into())));
        setup
    };
    FallbackOverBreaker: Get => Get, Can::ONCE, |inner| {
        let breaker = breaker();
        let layers = ServiceBuilder::new()
            .fallback(|_: ErrorRef<'_>| std::future::ready(Err("nothing in its place".into())))
            .circuit_breaker(breaker.clone());
        Setup::new(layers.service(inner)).breaks(breaker)
    };
    OfCollectBody: Get => Get, Can::ONCE, |inner| Setup::new(CollectBodyLayer::new().layer(inner));
    BulkheadOverCollect: Get => Get, Can::ONCE, |inner| {
        let bulkhead = bulkhead(0);
        let layers = ServiceBuilder::new().bulkhead(bulkhead.clone()).collect_body();
        Setup::new(layers.service(inner)).limits(bulkhead)
    };
    CollectOverBackoff: Get => Get, PAUSED, |inner| {
        let budget = budget();
        let layers = ServiceBuilder::new().collect_body().layer(backoff().budget(budget.clone()));
        Setup::new(layers.service(inner)).spends(budget)
    };
    OfRecordTrail: Get => Get, Can::ONCE, |inner| Setup::new(RecordTrailLayer::new().layer(inner));
    OfNotSent: Get => Get, Can::ONCE, |inner| Setup::new(NotSentLayer.layer(inner));
    BreakerOverExecution: Get => Get, Can::ONCE, |inner| {
        let breaker = breaker();
        let layers = ServiceBuilder::new().circuit_breaker(breaker.clone()).layer(execution());
        Setup::new(layers.service(inner)).breaks(breaker)
    };
    ExecutionOverBackoff: Get => Get, PAUSED, |inner| {
        let budget = budget();
        let layers = ServiceBuilder::new().layer(execution()).layer(backoff().budget(budget.clone()));
        Setup::new(layers.service(inner)).spends(budget)
    };
    BackoffOverClassifier: Get => Get, PAUSED, |inner| {
        let budget = budget();
        let layers = ServiceBuilder::new().layer(backoff().budget(budget.clone())).layer(statuses());
        Setup::new(layers.service(inner)).spends(budget)
    };
    BackoffThatReadsAnswers: Get => Get, PAUSED, |inner| {
        let budget = budget();
        let layer = backoff().budget(budget.clone()).retry_statuses(StatusSet::TRANSIENT);
        Setup::new(layer.layer(inner)).spends(budget)
    };
    BackoffOverIdempotent: Get => Get, Can::attempts(12), |inner| {
        let budget = budget();
        let layers = ServiceBuilder::new()
            .layer(backoff().budget(budget.clone()))
            .layer(idempotent().budget(budget.clone()));
        Setup::new(layers.service(inner)).spends(budget)
    };
    IdempotentOverBalance: Get => Get, AT_ONCE, |inner| {
        let (budget, balance) = (budget(), balance());
        let figures = balance.handle();
        let layers = ServiceBuilder::new().layer(idempotent().budget(budget.clone())).layer(balance);
        Setup::new(layers.service(inner)).spends(budget).balances(figures)
    };
    BalanceOverRead: Get => Upload, Can::ONCE, |inner| {
        let balance = balance();
        let figures = balance.handle();
        Setup::new(ServiceBuilder::new().layer(balance).layer(read()).service(inner)).balances(figures)
    };
    BalanceOverGrpc: Get => Get, Can::ONCE, |inner| {
        let balance = balance();
        let figures = balance.handle();
        let layers = ServiceBuilder::new().layer(balance.classify(ByTrailers(ByFault))).layer(grpc());
        Setup::new(layers.service(inner)).balances(figures)
    };
    BalanceOverBreaker: Get => Get, Can::ONCE, |inner| {
        let (balance, breaker) = (balance(), breaker());
        let figures = balance.handle();
        let layers = ServiceBuilder::new().layer(balance).circuit_breaker(breaker.clone());
        Setup::new(layers.service(inner)).balances(figures).breaks(breaker)
    };
    BalanceOverEndpointBreaker: Get => Get, Can::ONCE, |inner| {
        let one = Endpoints::from_list(["a:1"]).unwrap();
        let balance = LoadBalanceLayer::new(one.clone()).when_empty(WhenEmpty::Wait(LIMIT)).unwrap();
        let (figures, breakers) = (balance.handle(), endpoint_breakers(one));
        let layers = ServiceBuilder::new().layer(balance).endpoint_breakers(breakers.clone());
        Setup::new(layers.service(inner)).balances(figures).breaks_by_endpoint(breakers)
    };
    TheNest: Get => Upload, Can::attempts(4), |inner| {
        let nest = Nest::builder("orders", endpoints())
            .budget(budget())
            .breaker(breaker())
            .backoff(Backoff::builder().jitter(Jitter::None).build().unwrap())
            .when_empty(WhenEmpty::Wait(LIMIT))
            .read_limit(LIMIT)
            .execution_limit(10 * LIMIT)
            .build(inner)
            .unwrap();
        let parts = nest.handle().clone();
        Setup::new(nest)
            .spends(parts.budget().unwrap().clone())
            .balances(parts.balance().clone())
            .breaks(parts.breaker().clone())
    };
    HystrixShell: Get => Get, Can::ONCE, |inner| {
        let layer = spring().hystrix().unwrap();
        Setup::new(layer.layer(inner)).limits(layer.bulkhead().clone())
    };
    FeignShell: Get => Get, PAUSED, |inner| Setup::new(spring().feign().unwrap().layer(inner));
    FeignShellWithUrl: Get => Upload, PAUSED, |inner| {
        let options = Limits { connect: LIMIT, read: LIMIT };
        Setup::new(spring().request_options(options).feign_with_url().unwrap().layer(inner))
    };
    RibbonShell: Get => Upload, Can::attempts(2), |inner| {
        let layer = spring().ribbon(endpoints()).unwrap();
        Setup::new(layer.layer(inner)).flies(layer.balance())
    };
    TheSpringNest: Get => Upload, Can::attempts(6), |inner| {
        let nest = spring().nest(endpoints()).build(inner).unwrap();
        let parts = nest.handle().clone();
        Setup::new(nest).flies(parts.balance().clone()).limits(parts.bulkhead().unwrap().clone())
    };
}

/// One whose limits and circuit stay out of the checks.
fn spring() -> SpringConfig {
    let pairs = [
        ("feign.hystrix.enabled", "true"),
        ("ribbon.ReadTimeout", "10000000"),
        (
            "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
            "100000000",
        ),
        (
            "hystrix.command.default.circuitBreaker.requestVolumeThreshold",
            "1000000",
        ),
        ("hystrix.threadpool.default.coreSize", "1000"),
    ];
    let retryer = Retryer::Default {
        period: Duration::from_millis(100),
        max_period: Duration::from_secs(1),
        max_attempts: 3,
    };
    spring::from_pairs("orders", pairs).unwrap().retryer(retryer)
}

fn connect() -> ConnectTimeoutLayer {
    ConnectTimeoutLayer::new(LIMIT).unwrap()
}

fn read() -> ReadTimeoutLayer {
    ReadTimeoutLayer::new(LIMIT).unwrap()
}

fn execution() -> ExecutionTimeoutLayer {
    ExecutionTimeoutLayer::new(LIMIT).unwrap()
}

fn statuses() -> StatusErrorClassifierLayer {
    StatusErrorClassifierLayer::new(StatusPolicy::default())
}

fn grpc() -> GrpcErrorClassifierLayer {
    GrpcErrorClassifierLayer::default()
}

fn backoff() -> BackoffRetryLayer {
    let backoff = Backoff::builder().attempts(3).jitter(Jitter::None);
    BackoffRetryLayer::new(backoff.build().unwrap())
}

fn idempotent() -> IdempotentRetryLayer {
    IdempotentRetryLayer::new(Idempotent::default().same_endpoint(1).next_endpoint(1))
}

pub(crate) fn endpoints() -> Endpoints {
    Endpoints::from_list(["a:1", "b:1", "c:1"]).unwrap()
}

fn balance() -> LoadBalanceLayer {
    LoadBalanceLayer::new(endpoints())
        .when_empty(WhenEmpty::Wait(LIMIT))
        .unwrap()
}

/// One that opens when it is told to, and not by the few failures of a check.
fn breaker() -> Breaker {
    each().build().unwrap()
}

fn each() -> BreakerBuilder {
    Breaker::builder("orders")
        .volume(VOLUME)
        .sleep_window(SLEEP_WINDOW)
        .probe_lease(10 * LIMIT)
}

fn endpoint_breakers(endpoints: Endpoints) -> EndpointBreakers {
    EndpointBreakers::new(endpoints, each()).unwrap()
}

/// As many as there are calls at once in any check.
const SLOTS: u32 = 1_000;

fn bulkhead(waiting: u32) -> Bulkhead {
    let bulkhead = Bulkhead::builder("orders")
        .max_concurrent(SLOTS)
        .max_waiting(waiting);
    let bulkhead = if waiting > 0 {
        bulkhead.max_wait(LIMIT)
    } else {
        bulkhead
    };
    bulkhead.build().unwrap()
}

const TOKENS: u32 = 1_000;

/// One that earns nothing, so that it can be seen where each token is.
fn budget() -> RetryBudget {
    let budget = RetryBudget::builder().percent(0.0).floor(0);
    budget.burst(TOKENS).initial(TOKENS).build().unwrap()
}

/// How much of a call is on the thread when none is being polled.
fn scopes() -> u64 {
    scope::current(|scope| {
        u64::from(scope.keeps_trail())
            + u64::from(scope.deadline().is_some())
            + u64::from(scope.picked().is_some())
    })
}

fn count(breakers: &EndpointBreakers, which: fn(&Endpoint, CircuitState) -> bool) -> u64 {
    let states = breakers.states().into_iter();
    states.filter(|(endpoint, state)| which(endpoint, *state)).count() as u64
}

impl<Req> Setup<Req> {
    fn spends(mut self, budget: RetryBudget) -> Self {
        let tokens = move || budget.available() + budget.granted();
        self.gauges.push(("tokens of the budget", Box::new(tokens)));
        self
    }

    fn flies(mut self, figures: BalanceHandle) -> Self {
        let in_flight = move || figures.total().in_flight();
        self.gauges.push(("attempts in flight", Box::new(in_flight)));
        self
    }

    fn balances(mut self, figures: BalanceHandle) -> Self {
        let set = figures.set().clone();
        self = self.flies(figures);
        let members: Vec<Endpoint> = set.snapshot().endpoints().to_vec();
        let empty = set.clone();
        self.stall = Some((
            Box::new(move || empty.replace([])),
            Box::new(move || set.replace(members.clone())),
        ));
        self
    }

    /// Calls are turned away, or have to wait, while all slots are taken.
    fn limits(mut self, bulkhead: Bulkhead) -> Self {
        let (waits, taken) = (bulkhead.max_waiting() > 0, Arc::<Mutex<Vec<Slot>>>::default());
        let (flying, waiting) = (bulkhead.clone(), bulkhead.clone());
        self.gauges.push((
            "slots that are taken",
            Box::new(move || flying.in_flight().into()),
        ));
        self.gauges
            .push(("calls that wait", Box::new(move || waiting.waiting().into())));
        let slots = taken.clone();
        let fill: Deed = Box::new(move || {
            slots
                .lock()
                .unwrap()
                .extend(std::iter::from_fn(|| bulkhead.enter().ok()))
        });
        let empty: Deed = Box::new(move || taken.lock().unwrap().clear());
        if waits {
            self.stall = Some((fill, empty));
        } else {
            self.reject = Some((fill, empty));
        }
        self
    }

    /// A call is the probe of a circuit that was open.
    fn probes(mut self, breaker: impl Fn() -> Breaker + 'static) -> Self {
        let trip = move || {
            let probed = breaker();
            for _ in 0..VOLUME {
                // The first ones that come after it has opened are rejected.
                if let Ok(permit) = probed.admit() {
                    permit.settle(Verdict::Failure);
                }
            }
            assert_eq!(probed.unforced_state(), CircuitState::Open);
        };
        self.states.push((
            "as the probe of a circuit that was open",
            Box::new(trip),
            SLEEP_WINDOW,
        ));
        self
    }

    /// What it rejects it asks for readiness below all the same, as the key is not known before the call.
    fn breaks_by_key(mut self, keys: Breakers<str>) -> Self {
        let probed = keys.clone();
        self = self.probes(move || probed.breaker("orders").unwrap());
        let circuits = keys.clone();
        let closed = move || {
            let of_key = circuits.breaker("orders").unwrap();
            u64::from(of_key.state() == CircuitState::Closed)
        };
        self.health.push(("closed circuits", Box::new(closed)));
        self.gauges
            .push(("calls without a breaker", Box::new(move || keys.unkept())));
        self
    }

    fn breaks_by_endpoint(mut self, breakers: EndpointBreakers) -> Self {
        let probed = breakers.clone();
        self = self.probes(move || {
            let (endpoint, _) = probed.states().remove(0);
            probed.breaker(&endpoint).unwrap()
        });
        let circuits = breakers.clone();
        let closed = move || count(&circuits, |_, state| state == CircuitState::Closed);
        self.health.push(("closed circuits", Box::new(closed)));
        let eligible = move || count(&breakers, |endpoint, _| endpoint.eligibility().is_eligible());
        self.health.push(("endpoints without a veto", Box::new(eligible)));
        self
    }

    fn breaks(mut self, breaker: Breaker) -> Self {
        let probed = breaker.clone();
        self = self.probes(move || probed.clone());
        let (open, close) = (breaker.clone(), breaker.clone());
        self.reject = Some((
            Box::new(move || open.force(Force::Open)),
            Box::new(move || close.force(Force::None)),
        ));
        let closed = move || u64::from(breaker.state() == CircuitState::Closed);
        self.health.push(("closed circuits", Box::new(closed)));
        self
    }
}
