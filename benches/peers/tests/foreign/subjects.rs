//! The layers that the contract is checked over.

use std::{
    error::Error,
    fmt,
    future::{Future, Ready, ready},
    marker::PhantomData,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::Either};
use http::{Request, Response};
use http_body_util::Full;
use seatbelt::{
    RecoveryInfo, ResilienceContext,
    breaker::{AbandonedPolicy, Breaker, HalfOpenMode},
    fallback::Fallback,
    hedging::Hedging,
    retry::Retry,
    timeout::Timeout,
};
use tick::{Clock, ClockControl};
use tower::{BoxError, Layer, Service, ServiceExt, retry::Policy, timeout::TimeoutLayer};
use tower_outbound::{
    breaker::{Breaker as OurBreaker, CircuitBreakerLayer as OurBreakerLayer, Force},
    call::{CircuitState as OurState, RetryBudget, Verdict},
    retry::{Backoff, BackoffRetryLayer, Jitter},
};
use tower_resilience::{
    bulkhead::{BulkheadHandle, BulkheadLayer, BulkheadServiceError},
    circuitbreaker::{CircuitBreakerError, CircuitBreakerHandle, CircuitBreakerLayer, CircuitState},
    hedge::{HedgeError, HedgeLayer},
    ratelimiter::{RateLimiterLayer, RateLimiterServiceError},
    retry::RetryLayer,
    timelimiter::{TimeLimiterError, TimeLimiterLayer},
};

use crate::probe::{Can, Inner, ScriptedBody, Setup, Subject};

type Get = Request<Full<Bytes>>;
type Answer = Response<ScriptedBody>;
type Outcome = Result<Answer, BoxError>;

/// Longer than any check waits.
const LIMIT: Duration = Duration::from_secs(10_000);
pub(crate) const SLEEP_WINDOW: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;

/// A foreign layer, whose error is handed on as it is or taken apart.
pub(crate) trait Peer {
    const CAN: Can = Can::ONCE;

    fn build(inner: Inner<Get>, unwraps: bool) -> Setup<Get>;
}

/// A subject whose layer's own error is taken apart by the means that its crate gives.
pub(crate) struct Unwrapped<P>(PhantomData<P>);

impl<P: Peer> Subject for Unwrapped<P> {
    type Request = Get;
    type Below = Get;

    const CAN: Can = P::CAN;

    fn build(inner: Inner<Get>) -> Setup<Get> {
        P::build(inner, true)
    }
}

macro_rules! subjects {
    ($($name:ident: $can:expr, $build:expr;)*) => {
        $(
            pub(crate) struct $name;

            impl Subject for $name {
                type Request = Get;
                type Below = Get;

                const CAN: Can = $can;

                fn build(inner: Inner<Get>) -> Setup<Get> {
                    let build: fn(Inner<Get>) -> Setup<Get> = $build;
                    build(inner)
                }
            }
        )*
    };
}

macro_rules! peers {
    ($($name:ident: $can:expr, $build:expr;)*) => {
        $(
            pub(crate) struct $name;

            impl Peer for $name {
                const CAN: Can = $can;

                fn build(inner: Inner<Get>, unwraps: bool) -> Setup<Get> {
                    let build: fn(Inner<Get>, bool) -> Setup<Get> = $build;
                    build(inner, unwraps)
                }
            }

            impl Subject for $name {
                type Request = Get;
                type Below = Get;

                const CAN: Can = $can;

                fn build(inner: Inner<Get>) -> Setup<Get> {
                    <$name as Peer>::build(inner, false)
                }
            }
        )*
    };
}

// ===== ours, as a control =====

subjects! {
    OurBackoffRetry: Can::attempts(ATTEMPTS), |inner| {
        let budget = RetryBudget::builder().percent(0.0).floor(0).burst(1_000).initial(1_000).build().unwrap();
        let backoff = Backoff::builder().attempts(3).jitter(Jitter::None).build().unwrap();
        let mut setup = Setup::new(BackoffRetryLayer::new(backoff).budget(budget.clone()).layer(inner));
        let tokens = move || budget.available() + budget.granted();
        setup.gauges.push(("tokens of the budget", Box::new(tokens)));
        setup
    };
    OurCircuitBreaker: Can::ONCE, |inner| {
        const VOLUME: u32 = 1_000;
        let breaker = OurBreaker::builder("orders").volume(VOLUME).sleep_window(SLEEP_WINDOW).build().unwrap();
        let mut setup = Setup::new(OurBreakerLayer::new(breaker.clone()).layer(inner));
        let tripped = breaker.clone();
        let trip = move || {
            for _ in 0..VOLUME {
                if let Ok(permit) = tripped.admit() {
                    permit.settle(Verdict::Failure);
                }
            }
        };
        setup.states.push(("as the probe of a circuit that was open", Box::new(trip), SLEEP_WINDOW));
        let (open, close) = (breaker.clone(), breaker.clone());
        setup.reject = Some((
            Box::new(move || open.force(Force::Open)),
            Box::new(move || close.force(Force::None)),
        ));
        let closed = move || u64::from(breaker.state() == OurState::Closed);
        setup.health.push(("closed circuits", Box::new(closed)));
        setup
    };
}

// ===== tower =====

subjects! {
    TowerRetry: Can::attempts(ATTEMPTS), |inner| {
        Setup::new(tower::retry::RetryLayer::new(Again(ATTEMPTS - 1)).layer(inner))
    };
    TowerTimeout: Can::ONCE, |inner| Setup::new(TimeoutLayer::new(LIMIT).layer(inner));
}

/// So many more, with pauses.
#[derive(Clone)]
struct Again(usize);

impl Policy<Get, Answer, BoxError> for Again {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _: &mut Get, outcome: &mut Outcome) -> Option<Self::Future> {
        outcome.as_ref().err()?;
        self.0 = self.0.checked_sub(1)?;
        Some(tokio::time::sleep(Duration::from_millis(10)))
    }

    fn clone_request(&mut self, request: &Get) -> Option<Get> {
        Some(request.clone())
    }
}

// ===== seatbelt =====

// Its clock stands still unless it is moved. The one that tokio drives needs a task, which is not the layers' doing.
subjects! {
    SeatbeltTimeout: Can::ONCE, |inner| {
        let layer = Timeout::layer("orders", &context(&Clock::new_frozen()))
            .timeout(LIMIT)
            .timeout_error(|_| "timed out".into());
        Setup::new(layer.layer(inner))
    };
    SeatbeltFallback: Can::ONCE, |inner| {
        let layer = Fallback::layer("orders", &context(&Clock::new_frozen()))
            .should_fallback(|_: &Outcome| false)
            .fallback(|outcome, _| outcome);
        Setup::new(layer.layer(inner))
    };
    SeatbeltRetry: Can::attempts(ATTEMPTS), |inner| {
        let layer = Retry::layer("orders", &context(&Clock::new_frozen()))
            .clone_input()
            .max_retry_attempts(ATTEMPTS as u32 - 1)
            .base_delay(Duration::ZERO)
            .recovery_with(|outcome: &Outcome, _| recovery(outcome));
        Setup::new(layer.layer(inner))
    };
    // No further attempt is due while the clock stands still.
    SeatbeltHedging: Can::ONCE, |inner| {
        let layer = Hedging::layer("orders", &context(&Clock::new_frozen()))
            .clone_input()
            .hedging_delay(LIMIT)
            .recovery_with(|_: &Outcome, _| RecoveryInfo::never());
        Setup::new(layer.layer(inner))
    };
    SeatbeltBreaker: Can::ONCE, |inner| seatbelt_breaker(inner).0;
}

/// And what moves its clock.
pub(crate) fn seatbelt_breaker(inner: Inner<Get>) -> (Setup<Get>, ClockControl) {
    let clock = ClockControl::new();
    let control = clock.clone();
    let switch = Switch {
        breaks: Arc::default(),
        inner,
    };
    let layer = Breaker::layer("orders", &context(&control.to_clock()))
        .min_throughput(1_000)
        .failure_threshold(0.5)
        .break_duration(SLEEP_WINDOW)
        .sampling_duration(LIMIT)
        .half_open_mode(HalfOpenMode::quick())
        .abandoned_policy(AbandonedPolicy::ignore())
        .recovery_with(|outcome: &Outcome, _| recovery(outcome))
        .rejected_input_error(|_, _| "rejected".into());
    let breaks = switch.breaks.clone();
    let breaker = layer.layer(switch);
    let mut setup = Setup::new(breaker.clone());
    // It has no handle, so that it is opened by what it sees. Nobody below is asked.
    let trip = Arc::new(move || {
        breaks.store(true, SeqCst);
        for _ in 0..2_000 {
            let _ = breaker.clone().oneshot(Get::default()).now_or_never().unwrap();
        }
        breaks.store(false, SeqCst);
    });
    let pass = Arc::new(move || control.advance(2 * SLEEP_WINDOW));
    let (probe, time) = (trip.clone(), pass.clone());
    let state = move || {
        probe();
        time();
    };
    setup.states.push((
        "as the probe of a circuit that was open",
        Box::new(state),
        Duration::ZERO,
    ));
    setup.reject = Some((Box::new(move || trip()), Box::new(move || pass())));
    (setup, clock)
}

fn context(clock: &Clock) -> ResilienceContext<Get, Outcome> {
    ResilienceContext::new(clock)
}

fn recovery(outcome: &Outcome) -> RecoveryInfo {
    if outcome.is_ok() {
        RecoveryInfo::never()
    } else {
        RecoveryInfo::retry()
    }
}

/// Breaks by itself while it is told to, and else is what is inside.
#[derive(Clone)]
struct Switch {
    breaks: Arc<AtomicBool>,
    inner: Inner<Get>,
}

impl Service<Get> for Switch {
    type Response = Answer;
    type Error = BoxError;
    type Future = Either<Ready<Outcome>, <Inner<Get> as Service<Get>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.breaks.load(SeqCst) {
            return Poll::Ready(Ok(()));
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Get) -> Self::Future {
        if self.breaks.load(SeqCst) {
            return Either::Left(ready(Err("broken".into())));
        }
        Either::Right(self.inner.call(request))
    }
}

// ===== tower-resilience =====

subjects! {
    ResilienceRetry: Can::attempts(ATTEMPTS), |inner| {
        let layer = RetryLayer::<Get, Answer, BoxError>::builder()
            .max_attempts(ATTEMPTS)
            .fixed_backoff(Duration::from_millis(10))
            .build();
        Setup::new(layer.layer(inner))
    };
}

peers! {
    ResilienceTimeLimiter: Can::ONCE, |inner, unwraps| {
        limited(TimeLimiterLayer::builder().timeout_duration(LIMIT).build().layer(inner), unwraps)
    };
    ResilienceTimeLimiterDetached: Can::ONCE, |inner, unwraps| {
        let layer = TimeLimiterLayer::detached().timeout_duration(LIMIT).build();
        limited(layer.layer(inner), unwraps)
    };
    ResilienceCircuitBreaker: Can::ONCE, |inner, unwraps| {
        let (layer, handle) = CircuitBreakerLayer::builder()
            .wait_duration_in_open(LIMIT)
            .minimum_number_of_calls(1_000)
            .sliding_window_size(1_000)
            .build_with_handle()
            .unwrap();
        let handle = Arc::new(handle);
        let mut setup = broken(layer.layer(inner), unwraps).stays_closed(handle.clone());
        let close = handle.clone();
        setup.reject = Some((
            Box::new(move || handle.force_open().now_or_never().unwrap()),
            Box::new(move || close.force_closed().now_or_never().unwrap()),
        ));
        setup
    };
    // Its clock is that of the system, so that the time for which it is open is none at all.
    ResilienceProbing: Can::ONCE, |inner, unwraps| {
        let (layer, handle) = CircuitBreakerLayer::builder()
            .wait_duration_in_open(Duration::ZERO)
            .permitted_calls_in_half_open(1)
            .minimum_number_of_calls(1_000)
            .sliding_window_size(1_000)
            .build_with_handle()
            .unwrap();
        let handle = Arc::new(handle);
        let mut setup = broken(layer.layer(inner), unwraps).stays_closed(handle.clone());
        let open = move || handle.force_open().now_or_never().unwrap();
        setup
            .states
            .push(("as the probe of a circuit that was open", Box::new(open), Duration::ZERO));
        setup
    };
    ResilienceBulkhead: Can::ONCE, |inner, unwraps| {
        let (layer, handle) = BulkheadLayer::builder()
            .max_concurrent_calls(PLACES)
            .backpressure()
            .build_with_handle()
            .unwrap();
        bulkhead(layer, handle, inner, unwraps)
    };
    ResilienceRejectingBulkhead: Can::ONCE, |inner, unwraps| {
        let (layer, handle) = BulkheadLayer::builder()
            .max_concurrent_calls(PLACES)
            .reject_when_full()
            .build_with_handle()
            .unwrap();
        let mut setup = bulkhead(layer, handle, inner, unwraps);
        setup.reject = setup.stall.take();
        setup
    };
    ResilienceWaitingBulkhead: Can::ONCE, |inner, unwraps| {
        let (layer, handle) = BulkheadLayer::builder()
            .max_concurrent_calls(PLACES)
            .max_wait_duration(LIMIT)
            .build_with_handle()
            .unwrap();
        bulkhead(layer, handle, inner, unwraps)
    };
    ResilienceRateLimiter: Can::ONCE, |inner, unwraps| {
        let layer = RateLimiterLayer::builder().limit_for_period(100_000).build().unwrap().layer(inner);
        if unwraps {
            Setup::new(layer.map_err(|error| match error {
                RateLimiterServiceError::Inner(inner) => inner,
                other => other.into(),
            }))
        } else {
            Setup::new(layer)
        }
    };
    // A second attempt goes out when the delay is over, and no check lets a first one wait for as long.
    ResilienceHedge: Can::attempts(2), |inner, unwraps| {
        let layer = HedgeLayer::builder()
            .max_hedged_attempts(2)
            .delay(Duration::from_millis(4_500))
            .build()
            .layer(inner.map_err(Shared::from));
        if unwraps {
            Setup::new(layer.map_err(HedgeError::into_inner))
        } else {
            Setup::new(layer)
        }
    };
}

/// So many calls at once, more than any check makes.
const PLACES: usize = 2_000;

fn limited<S>(service: S, unwraps: bool) -> Setup<Get>
where
    S: Service<Get, Response = Answer, Error = TimeLimiterError<BoxError>, Future: Send + 'static>,
    S: Clone + Send + Sync + 'static,
{
    if unwraps {
        Setup::new(service.map_err(|error| match error {
            TimeLimiterError::Inner(inner) => inner,
            other => other.into(),
        }))
    } else {
        Setup::new(service)
    }
}

fn broken<S>(service: S, unwraps: bool) -> Setup<Get>
where
    S: Service<Get, Response = Answer, Error = CircuitBreakerError<BoxError>, Future: Send + 'static>,
    S: Clone + Send + Sync + 'static,
{
    if unwraps {
        Setup::new(service.map_err(|error| match error {
            CircuitBreakerError::Inner(inner) => inner,
            other => other.into(),
        }))
    } else {
        Setup::new(service)
    }
}

fn bulkhead(layer: BulkheadLayer, handle: BulkheadHandle, inner: Inner<Get>, unwraps: bool) -> Setup<Get> {
    let service = layer.layer(inner);
    let mut setup = if unwraps {
        Setup::new(service.map_err(|error| match error {
            BulkheadServiceError::Inner(inner) => inner,
            other => other.into(),
        }))
    } else {
        Setup::new(service)
    };
    let active = move || handle.active_calls() as u64;
    setup.gauges.push(("active calls", Box::new(active)));
    // All places are taken by calls of a neighbor that never end, until they are dropped.
    type Call = Pin<Box<dyn Future<Output = ()> + Send>>;
    let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
    let taken = calls.clone();
    let take = move || {
        for _ in 0..PLACES {
            let neighbor = layer.layer(tower::service_fn(|_: Get| std::future::pending::<Outcome>()));
            let mut call: Call = Box::pin(neighbor.oneshot(Get::default()).map(drop));
            assert!((&mut call).now_or_never().is_none());
            taken.lock().unwrap().push(call);
        }
    };
    setup.stall = Some((Box::new(take), Box::new(move || calls.lock().unwrap().clear())));
    setup
}

trait StaysClosed {
    fn stays_closed<C: Send + Sync + 'static>(self, handle: Arc<CircuitBreakerHandle<C>>) -> Self;
}

impl StaysClosed for Setup<Get> {
    fn stays_closed<C: Send + Sync + 'static>(mut self, handle: Arc<CircuitBreakerHandle<C>>) -> Self {
        let closed = move || u64::from(handle.state() == CircuitState::Closed);
        self.health.push(("closed circuits", Box::new(closed)));
        self
    }
}

/// An error that can be cloned, as the hedge asks for.
#[derive(Debug, Clone)]
struct Shared(Arc<dyn Error + Send + Sync>);

impl From<BoxError> for Shared {
    fn from(error: BoxError) -> Self {
        Shared(error.into())
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Shared {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}
