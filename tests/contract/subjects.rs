//! What the contract is checked over: each layer alone, pairs, and the nest.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use tower::{BoxError, Layer, ServiceBuilder, retry::Policy};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::{BalanceHandle, LoadBalanceLayer, WhenEmpty},
    breaker::{Breaker, CircuitBreakerLayer, Force},
    call::{CircuitState, Endpoint, Endpoints, RetryBudget, StatusSet, UploadBody, Verdict, scope},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    nest::client::NotSentLayer,
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter, RetryLayer},
    timeout::{ConnectTimeoutLayer, ExecutionTimeoutLayer, ReadTimeoutLayer},
};

use super::probe::{Can, Inner, Setup, Subject};

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

subjects! {
    OfConnectTimeout: Uri => Uri, Can::ONCE, |inner| Setup::new(connect().layer(inner));
    OfReadTimeout: Get => Upload, Can::ONCE, |inner| Setup::new(read().layer(inner));
    OfExecutionTimeout: Get => Get, Can::ONCE, |inner| Setup::new(execution().layer(inner));
    OfStatusErrorClassifier: Get => Get, Can::ONCE, |inner| Setup::new(statuses().layer(inner));
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
    OfCircuitBreaker: Get => Get, Can::ONCE, |inner| {
        let breaker = breaker();
        Setup::new(CircuitBreakerLayer::new(breaker.clone()).layer(inner)).breaks(breaker)
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
    BalanceOverBreaker: Get => Get, Can::ONCE, |inner| {
        let (balance, breaker) = (balance(), breaker());
        let figures = balance.handle();
        let layers = ServiceBuilder::new().layer(balance).circuit_breaker(breaker.clone());
        Setup::new(layers.service(inner)).balances(figures).breaks(breaker)
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
    Breaker::builder("orders")
        .volume(VOLUME)
        .sleep_window(SLEEP_WINDOW)
        .probe_lease(10 * LIMIT)
        .build()
        .unwrap()
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

impl<Req> Setup<Req> {
    fn spends(mut self, budget: RetryBudget) -> Self {
        let tokens = move || budget.available() + budget.granted();
        self.gauges.push(("tokens of the budget", Box::new(tokens)));
        self
    }

    fn balances(mut self, figures: BalanceHandle) -> Self {
        let (total, set) = (figures.clone(), figures.set().clone());
        self.gauges
            .push(("attempts in flight", Box::new(move || total.total().in_flight())));
        let members: Vec<Endpoint> = set.snapshot().endpoints().to_vec();
        let empty = set.clone();
        self.stall = Some((
            Box::new(move || empty.replace([])),
            Box::new(move || set.replace(members.clone())),
        ));
        self
    }

    fn breaks(mut self, breaker: Breaker) -> Self {
        let probed = breaker.clone();
        let trip = move || {
            for _ in 0..VOLUME {
                // The first ones that come after it has opened are rejected.
                if let Ok(permit) = probed.admit() {
                    permit.settle(Verdict::Failure);
                }
            }
            assert_eq!(probed.state(), CircuitState::Open);
        };
        self.states.push((
            "as the probe of a circuit that was open",
            Box::new(trip),
            SLEEP_WINDOW,
        ));
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
