//! The standard nest, and stacks written line by line, over services in memory and under the paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_outbound::{
    CallsExt, Nest, ServiceBuilderExt,
    balance::{Candidates, OutlierEjection, RoundRobin, WhenEmpty},
    breaker::Breaker,
    call::{
        BoxError, CircuitState, ConfigError, Endpoint, Endpoints, Fault, FaultKind, LONGEST, NotRetried,
        Rejection, RetryBudget, StatusError, Trail,
    },
    classify::StatusPolicy,
    nest::{Finding, NestBuilder},
    retry::{Backoff, Idempotent, Jitter},
    timeout::UploadBody,
};

type Upload = UploadBody<Full<Bytes>>;

fn endpoints(names: &[&str]) -> Endpoints {
    names.iter().map(|name| Endpoint::new(*name).unwrap()).collect()
}

/// By turns, so that a test can say who is picked next.
fn builder() -> NestBuilder<RoundRobin> {
    Nest::builder("orders", endpoints(&["a:1", "b:1", "c:1"])).rule(RoundRobin::new())
}

fn get() -> Request<Full<Bytes>> {
    Request::get("/orders").body(Full::default()).unwrap()
}

/// A client that answers what `answer` says, and counts.
fn client<F, Fut>(
    answer: F,
) -> (
    impl Service<Request<Upload>, Response = Response<Empty<Bytes>>, Error = io::Error, Future = Fut> + Clone,
    Arc<AtomicUsize>,
)
where
    F: Fn(usize, String) -> Fut + Clone,
    Fut: Future<Output = Result<Response<Empty<Bytes>>, io::Error>>,
{
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let client = service_fn(move |request: Request<Upload>| {
        let host = request.uri().host().unwrap_or_default().to_owned();
        answer(counter.fetch_add(1, SeqCst), host)
    });
    (client, sent)
}

fn status(code: u16) -> Result<Response<Empty<Bytes>>, io::Error> {
    Ok(Response::builder().status(code).body(Empty::new()).unwrap())
}

fn reset() -> Result<Response<Empty<Bytes>>, io::Error> {
    Err(io::ErrorKind::ConnectionReset.into())
}

#[test]
fn the_default_plan_is_four_attempts_in_26_seconds_and_has_no_finding() {
    let plan = builder().plan();
    // Four times 1 s to connect and 5 s to read, twice 1 s for the body of an error, a pause of at most 100 ms.
    assert_eq!(
        (plan.attempts(), plan.longest()),
        (4, Duration::from_millis(26_100))
    );
    assert_eq!(plan.findings(), []);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_unless_it_is_accepted() {
    let limit = Duration::from_secs(24);
    let tight = || builder().execution_limit(limit);
    let finding = Finding::PlanExceedsExecutionLimit {
        plan: Duration::from_millis(26_100),
        limit,
    };
    assert_eq!(tight().plan().findings(), [finding]);
    let error = tight().build(()).unwrap_err();
    assert_eq!((error.field(), error.value()), ("execution_limit", "24s"));
    assert!(
        error.fix().contains("26.1s") && error.fix().contains("accept_cut_short"),
        "{error}"
    );
    assert!(tight().accept_cut_short().build(()).is_ok());
    assert!(builder().no_execution_limit().build(()).is_ok());
}

#[test]
fn a_breaker_that_gives_probes_up_before_a_call_can_end_is_refused() {
    let breaker = |lease| {
        Breaker::builder("orders")
            .probe_lease(Duration::from_secs(lease))
            .build()
            .unwrap()
    };
    let nest = |lease| {
        builder()
            .execution_limit(Duration::from_secs(60))
            .breaker(breaker(lease))
            .build(())
    };
    let error = nest(59).unwrap_err();
    assert_eq!(error.field(), "breaker");
    assert!(
        error.fix().contains("60s") && error.fix().contains("probe_lease"),
        "{error}"
    );
    let nest = nest(60).unwrap();
    assert_eq!(nest.handle().breaker().probe_lease(), Duration::from_secs(60));
    let ours = builder()
        .execution_limit(Duration::from_secs(90))
        .build(())
        .unwrap();
    assert_eq!(ours.handle().breaker().probe_lease(), Duration::from_secs(90));
}

#[test]
fn a_plan_of_countless_attempts_is_not_taken_for_a_short_one() {
    let endless = Idempotent::default()
        .same_endpoint(u32::MAX)
        .next_endpoint(u32::MAX);
    let nanos = Duration::from_nanos(1);
    let plan = builder()
        .idempotent(endless)
        .connect_limit(nanos)
        .read_limit(nanos)
        .plan();
    assert!(plan.longest() > Duration::from_secs(1_000_000_000), "{plan}");
}

#[test]
fn the_setting_that_is_wrong_is_the_one_that_is_named() {
    let error = builder()
        .when_empty(WhenEmpty::Wait(Duration::MAX))
        .build(())
        .unwrap_err();
    assert_eq!(error.field(), "when_empty");
}

#[test]
fn bad_settings_are_errors_that_name_layer_field_value_and_fix() {
    let zero = Duration::ZERO;
    let too_long = LONGEST + Duration::from_nanos(1);
    let errors: Vec<ConfigError> = vec![
        Nest::builder(" ", Endpoints::new()).build(()).unwrap_err(),
        builder().read_limit(zero).build(()).unwrap_err(),
        builder().read_limit(Duration::MAX).build(()).unwrap_err(),
        builder().connect_limit(zero).build(()).unwrap_err(),
        builder().execution_limit(zero).build(()).unwrap_err(),
        builder().execution_limit(too_long).build(()).unwrap_err(),
        ServiceBuilder::new().read_timeout(zero).unwrap_err(),
        ServiceBuilder::new().connect_timeout(too_long).unwrap_err(),
        ServiceBuilder::new()
            .execution_timeout(Duration::MAX)
            .unwrap_err(),
        Breaker::new("").unwrap_err(),
        Breaker::builder("x").error_percent(101).build().unwrap_err(),
        Breaker::builder("x").volume(0).build().unwrap_err(),
        Breaker::builder("x")
            .sleep_window(Duration::MAX)
            .build()
            .unwrap_err(),
        Breaker::builder("x").window(zero).build().unwrap_err(),
        Backoff::feign(zero, Duration::MAX, 5).unwrap_err(),
        Backoff::feign(Duration::from_secs(1), Duration::from_secs(1), 0).unwrap_err(),
        Endpoint::new("").unwrap_err(),
        RetryBudget::builder().percent(100.5).build().unwrap_err(),
    ];
    for error in errors {
        for (part, text) in [
            ("layer", error.layer()),
            ("field", error.field()),
            ("value", error.value()),
            ("fix", error.fix()),
        ] {
            assert!(!text.trim().is_empty(), "{part} of {error:?}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_succeeds_is_the_only_one() {
    let (client, sent) = client(|_, _| async { status(200) });
    let response = builder().build(client).unwrap().send(get()).await.unwrap();
    assert_eq!((response.status(), sent.load(SeqCst)), (StatusCode::OK, 1));
    assert!(Trail::on(&response).is_none());
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_goes_to_an_endpoint_that_the_call_has_not_tried() {
    let (client, sent) = client(|n, host| async move {
        let expected = ["a", "b", "c"][n.min(2)];
        assert_eq!(host, expected);
        if n < 2 { reset() } else { status(200) }
    });
    let response = builder().build(client).unwrap().send(get()).await.unwrap();
    assert_eq!(
        sent.load(SeqCst),
        3,
        "two by the next endpoint, one after a pause"
    );
    assert_eq!(Trail::on(&response).unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_to_an_untried_endpoint_whatever_the_rule_says_except_as_ribbon_does_it() {
    for (policy, second) in [(Idempotent::default(), "b"), (Idempotent::ribbon(), "a")] {
        let (client, sent) = client(move |n, host| async move {
            assert_eq!(host, ["a", second][n]);
            if n == 0 { reset() } else { status(200) }
        });
        let always_the_first = |_: &Candidates<'_>| 0;
        let nest = builder()
            .idempotent(policy)
            .rule(always_the_first)
            .build(client)
            .unwrap();
        nest.send(get()).await.unwrap();
        assert_eq!(sent.load(SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_answers_with_failures_is_ejected_if_that_is_asked_for() {
    for ejects in [false, true] {
        let (client, sent) = client(|_, host| async move { status(if host == "a" { 503 } else { 200 }) });
        let mut builder = builder().no_budget();
        if ejects {
            builder = builder.outliers(OutlierEjection::default());
        }
        let setting = (
            "outliers are ejected",
            if ejects { "yes" } else { "no" }.to_owned(),
        );
        assert!(builder.settings().any(|row| row == setting));
        let nest = builder.build(client).unwrap();
        for _ in 0..60 {
            // By turns, so that an answer of the first one is asked for again.
            nest.send(get()).await.unwrap();
        }
        let failed = sent.load(SeqCst) - 60;
        assert_eq!(failed == 5, ejects, "{failed} of its answers were seen");
    }
}

#[tokio::test(start_paused = true)]
async fn the_final_error_of_a_read_timeout_keeps_to_the_plan() {
    let (client, sent) = client(|_, _| std::future::pending());
    let began = Instant::now();
    let error = builder().build(client).unwrap().send(get()).await.unwrap_err();
    assert!(matches!(Fault::of(&*error).kind(), FaultKind::ReadTimeout(_)));
    assert_eq!((sent.load(SeqCst), Trail::of(&*error).unwrap().len()), (4, 4));
    // In memory nothing is spent on connecting: four times 5 s, and a pause of at most 100 ms.
    let took = began.elapsed();
    assert!(
        Duration::from_secs(20) <= took && took <= Duration::from_millis(20_102),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn client_errors_never_open_the_circuit_and_are_not_retried() {
    let (client, sent) = client(|n, _| async move { status(if n < 30 { 404 } else { 200 }) });
    let nest = builder().build(client).unwrap();
    for _ in 0..30 {
        let error = nest.send(get()).await.unwrap_err();
        assert_eq!(
            Fault::of(&*error).kind(),
            FaultKind::Status(StatusCode::NOT_FOUND)
        );
    }
    nest.send(get()).await.unwrap();
    let counts = nest.handle().breaker().counts();
    assert_eq!((sent.load(SeqCst), counts.total(), counts.failures()), (31, 1, 0));
    assert_eq!(nest.handle().breaker().state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_rejects_without_an_attempt_and_closes_after_a_probe() {
    let (client, sent) = client(|n, _| async move { if n < 20 { status(500) } else { status(200) } });
    let nest = builder().build(client).unwrap();
    for _ in 0..20 {
        let error = nest.send(get()).await.unwrap_err();
        assert!(Trail::of(&*error).is_some());
    }
    let error = nest.send(get()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::Rejected(Rejection::Breaker));
    assert_eq!(
        sent.load(SeqCst),
        20,
        "500 is not transient, so each call was one attempt"
    );
    tokio::time::advance(Duration::from_millis(5001)).await;
    nest.clone().oneshot(get()).await.unwrap();
    assert_eq!(
        nest.handle().breaker().state(),
        CircuitState::Closed,
        "clones share the breaker"
    );
}

#[tokio::test(start_paused = true)]
async fn both_retry_layers_spend_one_budget() {
    let budget = RetryBudget::builder()
        .percent(0.0)
        .floor(0)
        .burst(3)
        .build()
        .unwrap();
    let (client, sent) = client(|_, _| async { reset() });
    let breaker = Breaker::builder("orders").disabled().build().unwrap();
    let nest = builder()
        .budget(budget.clone())
        .breaker(breaker)
        .build(client)
        .unwrap();
    for _ in 0..5 {
        nest.send(get()).await.unwrap_err();
    }
    assert_eq!(
        sent.load(SeqCst),
        5 + 3,
        "five calls, and the three retries that the budget held"
    );
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_status_has_its_body() {
    let client = service_fn(async |_: Request<Upload>| {
        Response::builder()
            .status(409)
            .body(Full::new(Bytes::from_static(b"taken")))
    });
    let error = builder().build(client).unwrap().send(get()).await.unwrap_err();
    let status = tower_outbound::call::chain(&*error)
        .find_map(|error| error.downcast_ref::<StatusError>())
        .unwrap();
    assert_eq!((&status.body()[..], status.complete()), (&b"taken"[..], true));
}

/// A layer of somebody else, that does nothing.
#[derive(Clone)]
struct Foreign;

#[derive(Clone)]
struct ForeignService<S>(S);

impl<S> Layer<S> for Foreign {
    type Service = ForeignService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ForeignService(inner)
    }
}

impl<S: Service<Req>, Req> Service<Req> for ForeignService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_ones_own_can_stand_between_any_two() {
    let (client, sent) = client(|n, _| async move { if n < 2 { reset() } else { status(200) } });
    let second = Duration::from_secs(1);
    let stack = ServiceBuilder::new()
        .layer(Foreign)
        .record_trail()
        .layer(Foreign)
        .circuit_breaker(Breaker::new("orders").unwrap())
        .layer(Foreign)
        .execution_timeout(30 * second)
        .unwrap()
        .layer(Foreign)
        .backoff_retry(Backoff::default())
        .layer(Foreign)
        .status_errors(StatusPolicy::default())
        .layer(Foreign)
        .idempotent_retry(Idempotent::default())
        .layer(Foreign)
        .load_balance(endpoints(&["a:1", "b:1"]))
        .layer(Foreign)
        .read_timeout(second)
        .unwrap()
        .layer(Foreign)
        .service(client)
        .calls::<Request<Full<Bytes>>>();
    let boxed: BoxCloneSyncService<_, _, BoxError> = BoxCloneSyncService::new(stack);
    let response = boxed.oneshot(get()).await.unwrap();
    assert_eq!((Trail::on(&response).unwrap().len(), sent.load(SeqCst)), (3, 3));
}

/// The nest without one of its layers, for each of them.
#[tokio::test(start_paused = true)]
async fn each_layer_can_be_taken_out() {
    macro_rules! stack {
        (@layers $builder:expr; trail $($rest:ident)*) => { stack!(@layers $builder.record_trail(); $($rest)*) };
        (@layers $builder:expr; breaker $($rest:ident)*) => {
            stack!(@layers $builder.circuit_breaker(Breaker::new("orders").unwrap()); $($rest)*)
        };
        (@layers $builder:expr; execution $($rest:ident)*) => {
            stack!(@layers $builder.execution_timeout(Duration::from_secs(30)).unwrap(); $($rest)*)
        };
        (@layers $builder:expr; backoff $($rest:ident)*) => {
            stack!(@layers $builder.backoff_retry(Backoff::default()); $($rest)*)
        };
        (@layers $builder:expr; statuses $($rest:ident)*) => {
            stack!(@layers $builder.status_errors(StatusPolicy::default()); $($rest)*)
        };
        (@layers $builder:expr; idempotent $($rest:ident)*) => {
            stack!(@layers $builder.idempotent_retry(Idempotent::default()); $($rest)*)
        };
        (@layers $builder:expr; balance $($rest:ident)*) => {
            stack!(@layers $builder.load_balance(endpoints(&["a:1"])); $($rest)*)
        };
        (@layers $builder:expr; read $($rest:ident)*) => {
            stack!(@layers $builder.read_timeout(Duration::from_secs(1)).unwrap(); $($rest)*)
        };
        (@layers $builder:expr;) => { $builder };
        ($($layers:ident)*) => {
            stack!(@layers ServiceBuilder::new(); $($layers)*)
        };
    }
    macro_rules! answers {
        ($stack:expr) => {{
            let (client, sent) = client(|_, _| async { status(200) });
            let response = $stack
                .service(client)
                .calls::<Request<Full<Bytes>>>()
                .oneshot(get())
                .await;
            assert_eq!(
                response.map_err(Into::<BoxError>::into).unwrap().status(),
                StatusCode::OK
            );
            assert_eq!(sent.load(SeqCst), 1);
        }};
    }
    answers!(stack!(trail breaker execution backoff statuses idempotent balance read));
    answers!(stack!(breaker execution backoff statuses idempotent balance read));
    answers!(stack!(trail execution backoff statuses idempotent balance read));
    answers!(stack!(trail breaker backoff statuses idempotent balance read));
    answers!(stack!(trail breaker execution statuses idempotent balance read));
    answers!(stack!(trail breaker execution backoff idempotent balance read));
    answers!(stack!(trail breaker execution backoff statuses balance read));
    answers!(stack!(trail breaker execution backoff statuses idempotent read));

    // Without the read limit the client gets the body as it is.
    let client = service_fn(async |_: Request<Full<Bytes>>| status(200));
    let stack = stack!(trail breaker execution backoff statuses idempotent balance).service(client);
    assert_eq!(stack.oneshot(get()).await.unwrap().status(), StatusCode::OK);
}

#[test]
fn the_nest_can_be_cloned_sent_and_shared() {
    fn check<T: Clone + Send + Sync + 'static>(_: &T) {}
    let client =
        service_fn(async |_: Request<Upload>| Ok::<_, io::Error>(Response::new(Full::<Bytes>::default())));
    check(&builder().build(client).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_attempts_holds_for_both_retry_layers_and_is_in_plan_and_settings() {
    for (limit, expected) in [(None, 4), (Some(3), 3), (Some(1), 1), (Some(9), 4)] {
        let builder = || match limit {
            Some(limit) => builder().attempts_in_call(limit),
            None => builder(),
        };
        assert_eq!(builder().plan().attempts(), expected);
        let (client, sent) = client(|_, _| std::future::ready(reset()));
        let nest = builder().no_budget().build(client).unwrap();
        let error = nest.send(get()).await.unwrap_err();
        assert_eq!(sent.load(SeqCst) as u64, expected, "{limit:?}");
        let limited = Trail::of(&*error)
            .unwrap()
            .stops()
            .any(|stop| matches!(stop.reason(), NotRetried::CallAttemptsUsedUp { .. }));
        assert_eq!(limited, expected < 4, "{error}");
        let setting = builder()
            .settings()
            .find(|(name, _)| *name == "limit on attempts");
        let said = limit.map_or("none".to_owned(), |limit| limit.to_string());
        assert_eq!(setting.unwrap().1, said);
    }
    let plan = builder().attempts_in_call(1).plan();
    // One attempt, the body of its error, and no pause.
    assert_eq!(plan.longest(), Duration::from_secs(7));
    let error = builder().attempts_in_call(0).build(()).unwrap_err();
    assert_eq!((error.layer(), error.field()), ("Nest", "attempts_in_call"));
}

#[tokio::test(start_paused = true)]
async fn where_nothing_was_sent_the_first_move_to_another_endpoint_has_no_pause() {
    for (names, expected) in [(&["a:1", "b:1"][..], [0, 0, 200]), (&["a:1"], [0, 100, 300])] {
        let start = Instant::now();
        let times = Arc::new([const { AtomicUsize::new(usize::MAX) }; 3]);
        let log = Arc::clone(&times);
        let (client, _) = client(move |n, _| {
            log[n].store(start.elapsed().as_millis() as usize, SeqCst);
            std::future::ready(Err(io::ErrorKind::ConnectionRefused.into()))
        });
        let steady = Backoff::builder()
            .attempts(3)
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let nest = Nest::builder("orders", endpoints(names))
            .idempotent(Idempotent::default().next_endpoint(0))
            .backoff(steady)
            .build(client)
            .unwrap();
        nest.send(get()).await.unwrap_err();
        let times = times.each_ref().map(|time| time.load(SeqCst));
        assert_eq!(times, expected, "{names:?}");
    }
}

#[test]
fn the_pauses_are_told_as_they_are_set() {
    let ms = Duration::from_millis;
    let told = |backoff: tower_outbound::retry::BackoffBuilder| {
        let builder = builder().backoff(backoff.attempts(3).build().unwrap());
        let mut settings = builder.settings();
        settings.find(|(name, _)| *name == "pauses").unwrap().1
    };
    let new = Backoff::builder;
    assert_eq!(told(new()), "up to 100ms, 200ms");
    assert_eq!(
        told(new().jitter(Jitter::Decorrelated)),
        "from 100ms up to 300ms, 900ms"
    );
    assert_eq!(
        told(new().jitter(Jitter::None).throttled(ms(500), ms(700))),
        "100ms, 200ms; throttled: 500ms, 700ms"
    );
    assert_eq!(
        told(new().delay(|_| Duration::ZERO)),
        "as a function says, at most 1s"
    );
}
