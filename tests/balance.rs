//! What `LoadBalance` and the live set of endpoints promise, seen from outside.
#![allow(
    clippy::disallowed_types,
    reason = "tests write down what they have seen behind a std lock"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    collections::HashMap,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream,
};
use http::{Request, Response, header::HOST};
use proptest::prelude::*;
use tokio::{
    sync::{Barrier, mpsc, oneshot, watch},
    time::{Duration, Instant, timeout},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceExt, discover::Change, limit::ConcurrencyLimit, service_fn};
use tower_outbound::{
    balance::{
        BalanceHandle, Candidates, Figures, LeastLoaded, LoadBalance, LoadBalanceFuture, LoadBalanceLayer,
        Random, RoundRobin, Rule, WhenEmpty,
    },
    call::{
        AttemptOutcome, BoxError, CallFailed, CallScope, Endpoint, Endpoints, ErrorRef, Fault, FaultKind,
        HostHeader, NoEndpoint, NoTimeLeft, NotReady, Trail, Verdict, Veto,
    },
};

type Req = Request<()>;
type Rsp = Response<String>;

fn endpoint(name: &str) -> Endpoint {
    Endpoint::builder(format!("http://{name}"))
        .key(name)
        .build()
        .unwrap()
}

fn set<const N: usize>(names: [&str; N]) -> Endpoints {
    names.map(endpoint).into_iter().collect()
}

fn request() -> Req {
    Request::get("http://orders/17").body(()).unwrap()
}

/// A client whose servers do what the test says. It keeps a record of where it was sent.
#[derive(Clone)]
struct Client {
    seen: Arc<Mutex<Vec<String>>>,
    server: Arc<Server>,
}

type Server = dyn Fn(&str) -> BoxFuture<'static, Result<Rsp, BoxError>> + Send + Sync;

impl Client {
    fn new(
        server: impl Fn(&str) -> BoxFuture<'static, Result<Rsp, BoxError>> + Send + Sync + 'static,
    ) -> Self {
        Client {
            seen: Arc::default(),
            server: Arc::new(server),
        }
    }

    fn answering() -> Self {
        Client::failing(|_| false)
    }

    fn failing(fails: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Client::new(move |host| {
            let result = if fails(host) {
                Err(refused())
            } else {
                Ok(Response::new(host.to_owned()))
            };
            async move { result }.boxed()
        })
    }

    fn silent() -> Self {
        Client::new(|_| pending().boxed())
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Service<Req> for Client {
    type Response = Rsp;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Rsp, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let host = request.uri().host().unwrap().to_owned();
        self.seen.lock().unwrap().push(host.clone());
        (self.server)(&host)
    }
}

fn refused() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()
}

/// A call to be polled by hand.
fn call<S: Service<Req>>(service: &mut S) -> task::Spawn<S::Future>
where
    S::Error: std::fmt::Debug,
{
    task::spawn(()).enter(|cx, _| assert_ready!(service.poll_ready(cx)).unwrap());
    task::spawn(service.call(request()))
}

/// What a retry layer does, as far as a balancer sees it.
async fn attempt<S>(scope: &mut CallScope, service: &S) -> Result<Rsp, BoxError>
where
    S: Service<Req, Response = Rsp, Error = BoxError> + Clone,
{
    let mut service = service.clone();
    poll_fn(|cx| service.poll_ready(cx)).await?;
    let mut future = pin!(scope.enter(|| service.call(request())));
    poll_fn(|cx| scope.enter(|| future.as_mut().poll(cx))).await
}

/// Up to so many attempts; where they went, and how it ended.
async fn retried<S>(service: &S, attempts: usize) -> (Vec<String>, Result<Rsp, BoxError>)
where
    S: Service<Req, Response = Rsp, Error = BoxError> + Clone,
{
    let mut scope = CallScope::begin();
    let mut went = Vec::new();
    loop {
        let result = attempt(&mut scope, service).await;
        went.push(scope.picked().unwrap().key().to_owned());
        if result.is_ok() || went.len() == attempts {
            return (went, scope.finish(result));
        }
    }
}

fn figures(handle: &BalanceHandle, key: &str) -> Figures {
    handle.endpoint(key).unwrap()
}

fn no_endpoint(error: &BoxError) -> &NoEndpoint {
    error.downcast_ref().unwrap()
}

// ---- which one is picked

#[tokio::test]
async fn round_robin_goes_from_the_first_to_the_last_and_round() {
    let client = Client::answering();
    let mut stack = LoadBalanceLayer::new(set(["a", "b", "c"])).layer(client.clone());
    for _ in 0..7 {
        stack.ready().await.unwrap().call(request()).await.unwrap();
    }
    assert_eq!(client.seen(), ["a", "b", "c", "a", "b", "c", "a"]);
}

#[tokio::test]
async fn a_rotation_survives_the_end_of_its_counter() {
    for start in [usize::MAX - 1, u32::MAX as usize - 1, i32::MAX as usize - 1] {
        let client = Client::answering();
        let stack = LoadBalanceLayer::new(set(["a", "b", "c"]))
            .rule(RoundRobin::starting_at(start))
            .layer(client.clone());
        for _ in 0..10 {
            stack.clone().oneshot(request()).await.unwrap();
        }
        let seen = client.seen();
        let irregular = seen.windows(2).filter(|pair| {
            let step = (pair[1].as_bytes()[0] + 3 - pair[0].as_bytes()[0]) % 3;
            step != 1
        });
        assert!(irregular.count() <= 1, "{start}: {seen:?}");
    }
}

#[tokio::test]
async fn a_service_that_is_cloned_for_each_request_goes_round_as_well() {
    let client = Client::answering();
    let layer = LoadBalanceLayer::new(set(["a", "b", "c"]));
    for _ in 0..100 {
        for stack in [layer.layer(client.clone()), layer.clone().layer(client.clone())] {
            stack.clone().oneshot(request()).await.unwrap();
        }
        layer.layer(client.clone()).oneshot(request()).await.unwrap();
    }
    for figures in layer.handle().endpoints() {
        assert_eq!(figures.figures().successes(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_share_one_rotation() {
    let layer = LoadBalanceLayer::new(set(["a", "b", "c"]));
    let stack = layer.layer(Client::answering());
    let start = Arc::new(Barrier::new(30));
    let tasks = (0..30).map(|_| {
        let (stack, start) = (stack.clone(), start.clone());
        tokio::spawn(async move {
            start.wait().await;
            for _ in 0..10 {
                stack.clone().oneshot(request()).await.unwrap();
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    for figures in layer.handle().endpoints() {
        assert_eq!(
            (figures.figures().successes(), figures.figures().in_flight()),
            (100, 0)
        );
    }
}

#[tokio::test]
async fn least_loaded_takes_the_one_with_fewer_in_flight() {
    let client = Client::silent();
    let mut stack = LoadBalanceLayer::new(set(["a", "b"]))
        .rule(LeastLoaded::seeded(1))
        .layer(client.clone());
    let open: Vec<_> = (0..10).map(|_| call(&mut stack)).collect();
    let loads: Vec<_> = stack
        .handle()
        .endpoints()
        .iter()
        .map(|one| one.figures().in_flight())
        .collect();
    assert_eq!(loads, [5, 5]);
    drop(open);
}

#[tokio::test]
async fn a_rule_of_ones_own_sees_endpoints_and_loads_and_cannot_leave_the_list() {
    let client = Client::silent();
    let far = |candidates: &Candidates<'_>| {
        assert!(candidates.iter().all(|one| one.endpoint().weight() == 1));
        candidates.get(0).unwrap().in_flight() as usize + 1_000
    };
    let mut stack = LoadBalanceLayer::new(set(["a", "b", "c"]))
        .rule(far)
        .layer(client.clone());
    let _open = [call(&mut stack), call(&mut stack), call(&mut stack)];
    assert_eq!(client.seen(), ["b", "b", "b"]);
    let shared: Arc<dyn Rule + Send + Sync> = Arc::new(RoundRobin::starting_at(2));
    let client = Client::answering();
    let stack = LoadBalanceLayer::new(set(["a", "b", "c"]))
        .rule(shared)
        .layer(client.clone());
    stack.oneshot(request()).await.unwrap();
    assert_eq!(client.seen(), ["c"]);
}

// ---- vetoes

#[tokio::test]
async fn an_endpoint_with_a_veto_is_not_picked_and_the_others_share_evenly() {
    let endpoints = set(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
    let snapshot = endpoints.snapshot();
    for endpoint in &snapshot.endpoints()[..5] {
        endpoint.eligibility().forbid(Veto::Probe);
    }
    let layer = LoadBalanceLayer::new(endpoints);
    let stack = layer.layer(Client::answering());
    for _ in 0..500 {
        stack.clone().oneshot(request()).await.unwrap();
    }
    let picks: Vec<_> = layer
        .handle()
        .endpoints()
        .iter()
        .map(|one| one.figures().attempts())
        .collect();
    assert_eq!(picks, [0, 0, 0, 0, 0, 100, 100, 100, 100, 100]);
}

#[tokio::test]
async fn with_one_eligible_endpoint_it_gets_everything_whatever_the_rule() {
    async fn check<R: Rule>(rule: R) {
        let endpoints = set(["a", "b", "c", "d", "e"]);
        for endpoint in &endpoints.snapshot().endpoints()[1..] {
            endpoint.eligibility().forbid(Veto::User);
        }
        let client = Client::answering();
        let stack = LoadBalanceLayer::new(endpoints).rule(rule).layer(client.clone());
        for _ in 0..200 {
            stack.clone().oneshot(request()).await.unwrap();
        }
        assert!(client.seen().iter().all(|host| host == "a"));
    }
    check(RoundRobin::new()).await;
    check(Random::seeded(3)).await;
    check(LeastLoaded::seeded(3)).await;
    check(|_: &Candidates<'_>| 4).await;
}

#[tokio::test]
async fn only_eligible_endpoints_are_picked_while_vetoes_come_and_go() {
    async fn check<R: Rule>(rule: R, seed: u64) {
        let endpoints = set(["a", "b", "c", "d", "e"]);
        let all = endpoints.snapshot();
        let client = Client::answering();
        let mut stack = LoadBalanceLayer::new(endpoints).rule(rule).layer(client.clone());
        let mut random = fastrand(seed);
        for _ in 0..10_000 {
            let flipped = &all.endpoints()[random() % 5];
            if flipped.eligibility().is_eligible() {
                flipped.eligibility().forbid(Veto::Outlier);
            } else {
                flipped.eligibility().allow(Veto::Outlier);
            }
            let response = stack.ready().await.unwrap().call(request()).await.unwrap();
            let picked = all
                .endpoints()
                .iter()
                .find(|one| one.key() == response.body())
                .unwrap();
            let all_vetoed = all.endpoints().iter().all(|one| !one.eligibility().is_eligible());
            assert!(picked.eligibility().is_eligible() || all_vetoed);
        }
    }
    check(Random::seeded(5), 5).await;
    check(LeastLoaded::seeded(6), 6).await;
    check(RoundRobin::new(), 7).await;
}

fn fastrand(mut state: u64) -> impl FnMut() -> usize {
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    }
}

#[tokio::test]
async fn when_all_have_a_veto_all_may_be_picked() {
    let endpoints = set(["a", "b", "c"]);
    for endpoint in endpoints.snapshot().endpoints() {
        endpoint.eligibility().forbid(Veto::Breaker);
    }
    let layer = LoadBalanceLayer::new(endpoints);
    let stack = layer.layer(Client::answering());
    for _ in 0..300 {
        stack.clone().oneshot(request()).await.unwrap();
    }
    for figures in layer.handle().endpoints() {
        assert!(figures.figures().successes() > 0, "{figures:?}");
    }
}

// ---- retries

#[tokio::test]
async fn a_retry_goes_to_an_endpoint_that_the_call_has_not_tried() {
    let stack = LoadBalanceLayer::new(set(["a", "b", "c"])).layer(Client::failing(|host| host != "c"));
    for _ in 0..100 {
        let (went, result) = retried(&stack, 3).await;
        assert!(result.is_ok(), "{went:?}");
        let distinct: std::collections::HashSet<_> = went.iter().collect();
        assert_eq!(distinct.len(), went.len(), "{went:?}");
        // The other calls disturb the rotation.
        stack.clone().oneshot(request()).await.ok();
    }
}

/// RET-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_calls_at_once_each_try_three_different_endpoints() {
    async fn check<R: Rule + Send + Sync + 'static>(rule: R) {
        let client = Client::new(|_| {
            async {
                tokio::task::yield_now().await;
                Err(refused())
            }
            .boxed()
        });
        let stack = LoadBalanceLayer::new(set(["a", "b", "c"]))
            .rule(rule)
            .layer(client);
        let start = Arc::new(Barrier::new(50));
        let tasks = (0..50).map(|_| {
            let (stack, start) = (stack.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                retried(&stack, 3).await
            })
        });
        for task in join_all(tasks).await {
            let (mut went, result) = task.unwrap();
            went.sort();
            assert_eq!(went, ["a", "b", "c"]);
            assert_eq!(Trail::of(&*result.unwrap_err()).unwrap().len(), 3);
        }
        assert_eq!(stack.handle().total().in_flight(), 0);
    }
    check(RoundRobin::new()).await;
    check(Random::new()).await;
    check(LeastLoaded::new()).await;
}

/// RET-04, where endpoints run out.
#[tokio::test]
async fn when_all_were_tried_one_is_used_again() {
    let stack = LoadBalanceLayer::new(set(["a", "b"])).layer(Client::failing(|_| true));
    let (went, _) = retried(&stack, 5).await;
    assert_eq!(went[..2], ["a", "b"]);
    assert_eq!(went.len(), 5);
}

#[tokio::test]
async fn when_all_were_tried_and_all_have_a_veto_the_rule_still_chooses() {
    let endpoints = set(["a", "b"]);
    for endpoint in endpoints.snapshot().endpoints() {
        endpoint.eligibility().forbid(Veto::Breaker);
    }
    let stack = LoadBalanceLayer::new(endpoints).layer(Client::failing(|_| true));
    let (went, _) = retried(&stack, 12).await;
    assert_ne!(went[0], went[1]);
    assert!(
        went[2..].contains(&"a".into()) && went[2..].contains(&"b".into()),
        "{went:?}"
    );
}

/// RAC-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_good_server_of_two_serves_all_parallel_calls() {
    let stack = LoadBalanceLayer::new(set(["bad", "good"])).layer(Client::failing(|host| host == "bad"));
    for _ in 0..100 {
        let tasks = (0..100).map(|_| {
            let stack = stack.clone();
            tokio::spawn(async move { retried(&stack, 2).await })
        });
        for task in join_all(tasks).await {
            let (went, result) = task.unwrap();
            assert!(result.is_ok(), "{went:?}");
        }
    }
}

#[tokio::test]
async fn a_wish_to_stay_is_granted_while_the_endpoint_is_there_and_well() {
    let endpoints = set(["a", "b", "c"]);
    let client = Client::failing(|_| true);
    let stack = LoadBalanceLayer::new(endpoints.clone()).layer(client.clone());
    let mut scope = CallScope::begin();
    let stay = async |scope: &mut CallScope| {
        let picked = scope.picked().cloned();
        scope.wish_to_stay(picked);
        attempt(scope, &stack).await.unwrap_err();
        scope.picked().unwrap().key().to_owned()
    };
    assert_eq!(stay(&mut scope).await, "a");
    assert_eq!(stay(&mut scope).await, "a");
    // The same server by another description is the same server.
    endpoints.insert(Endpoint::builder("http://a").key("a").weight(2).build().unwrap());
    assert_eq!(stay(&mut scope).await, "a");
    endpoints.remove("a");
    assert_eq!(stay(&mut scope).await, "c", "the rotation's next");
    endpoints.snapshot().endpoints()[1]
        .eligibility()
        .forbid(Veto::Breaker);
    assert_eq!(stay(&mut scope).await, "b");
}

#[tokio::test]
async fn a_wish_holds_for_one_attempt() {
    let client = Client::failing(|_| true);
    let stack = LoadBalanceLayer::new(set(["a", "b", "c"])).layer(client.clone());
    let mut scope = CallScope::begin();
    attempt(&mut scope, &stack).await.unwrap_err();
    let picked = scope.picked().cloned();
    scope.wish_to_stay(picked);
    attempt(&mut scope, &stack).await.unwrap_err();
    attempt(&mut scope, &stack).await.unwrap_err();
    assert_eq!(client.seen(), ["a", "a", "b"]);
}

// ---- booking

#[tokio::test]
async fn each_attempt_is_booked_on_the_endpoint_that_it_went_to() {
    let layer = LoadBalanceLayer::new(set(["a", "b"]));
    let stack = layer.layer(Client::failing(|host| host == "a"));
    for _ in 0..5 {
        let (went, result) = retried(&stack, 2).await;
        assert_eq!(went, ["a", "b"]);
        assert!(result.is_ok());
    }
    let handle = layer.handle();
    let (a, b) = (figures(&handle, "a"), figures(&handle, "b"));
    assert_eq!((a.attempts(), a.failures(), a.successes()), (5, 5, 0));
    assert_eq!((b.attempts(), b.failures(), b.successes()), (5, 0, 5));
    assert_eq!(handle.total().attempts(), 10);
}

#[tokio::test]
async fn however_a_call_ends_nothing_stays_in_flight() {
    let layer = LoadBalanceLayer::new(set(["ok", "err", "silent", "panic", "panic-at-once"]));
    let client = Client::new(|host| match host {
        "ok" => async { Ok(Response::new(String::new())) }.boxed(),
        "err" => async { Err(refused()) }.boxed(),
        "silent" => pending().boxed(),
        "panic" => async { panic!("in the future") }.boxed(),
        _ => panic!("in call"),
    });
    let mut stack = layer.layer(client);
    let handle = layer.handle();
    for _ in 0..100 {
        let mut ok = call(&mut stack);
        assert_eq!(figures(&handle, "ok").in_flight(), 1);
        let response = assert_ready!(ok.poll()).unwrap();
        assert_eq!(
            figures(&handle, "ok").in_flight(),
            0,
            "the head ends it, whatever becomes of the body"
        );
        drop(response);
        assert!(assert_ready!(call(&mut stack).poll()).is_err());
        let mut silent = call(&mut stack);
        assert_pending!(silent.poll());
        assert_eq!(figures(&handle, "silent").in_flight(), 1);
        drop(silent);
        let mut panics = call(&mut stack);
        assert!(catch_unwind(AssertUnwindSafe(|| panics.poll().is_ready())).is_err());
        drop(panics);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(call(&mut stack)))).is_err());
        for _ in 0..5 {
            // Dropped before the first poll.
            catch_unwind(AssertUnwindSafe(|| drop(call(&mut stack)))).ok();
        }
    }
    assert_eq!(handle.total().in_flight(), 0);
    let ended = |key| {
        let figures = figures(&handle, key);
        (figures.successes(), figures.failures(), figures.abandoned())
    };
    assert_eq!(ended("ok"), (100, 0, 100));
    assert_eq!(ended("err"), (0, 100, 100));
    assert_eq!(ended("silent"), (0, 0, 200));
    assert_eq!(ended("panic"), (0, 0, 200));
    assert_eq!(ended("panic-at-once"), (0, 0, 200));
}

#[tokio::test]
async fn an_answer_counts_as_the_classifier_says() {
    let layer = LoadBalanceLayer::new(set(["success", "failure", "ignored"])).classify(
        |outcome: Result<&Rsp, ErrorRef<'_>>| match outcome.unwrap().body().as_str() {
            "success" => Verdict::Success,
            "failure" => Verdict::Failure,
            _ => Verdict::Ignored,
        },
    );
    let stack = layer.layer(Client::answering());
    for _ in 0..3 {
        stack.clone().oneshot(request()).await.unwrap();
    }
    let handle = layer.handle();
    assert_eq!(figures(&handle, "success").successes(), 1);
    assert_eq!(figures(&handle, "failure").failures(), 1);
    assert_eq!(figures(&handle, "ignored").ignored(), 1);
    assert_eq!(handle.total().attempts(), 3);
}

#[tokio::test]
async fn figures_end_with_their_endpoint_and_calls_under_way_go_on() {
    let endpoints = set(["a", "b"]);
    let layer = LoadBalanceLayer::new(endpoints.clone());
    let (answer, answered) = oneshot::channel::<()>();
    let answered = Mutex::new(Some(answered));
    let client = Client::new(move |_| {
        let answered = answered.lock().unwrap().take();
        async move {
            answered.unwrap().await.unwrap();
            Ok(Response::new(String::new()))
        }
        .boxed()
    });
    let mut stack = layer.layer(client);
    let mut under_way = call(&mut stack);
    endpoints.remove("a");
    assert_pending!(under_way.poll());
    assert!(layer.handle().endpoint("a").is_none());
    endpoints.insert(endpoint("a"));
    assert_eq!(figures(&layer.handle(), "a"), Figures::default());
    answer.send(()).unwrap();
    assert!(assert_ready!(under_way.poll()).is_ok());
    assert_eq!(figures(&layer.handle(), "a"), Figures::default());
}

// ---- what the layers above learn

#[tokio::test]
async fn the_error_names_the_endpoint_also_where_no_layer_keeps_a_trail() {
    let stack = LoadBalanceLayer::new(set(["a", "b"])).layer(Client::failing(|_| true));
    let error = stack.oneshot(request()).await.unwrap_err();
    assert_eq!(Fault::of(&*error).kind(), FaultKind::ConnectRefused);
    assert!(
        error.to_string().contains("attempts: 1; a connect refused"),
        "{error}"
    );
    let trail = Trail::of(&*error).unwrap();
    let endpoint = trail.attempts().next().unwrap().endpoint().unwrap();
    assert_eq!((trail.len(), endpoint.key()), (1, "a"));
    let mut error = error.downcast::<CallFailed>().unwrap().into_inner();
    error = error.downcast::<std::io::Error>().unwrap();
    assert_eq!(error.to_string(), refused().to_string(), "wrapped once");
}

#[tokio::test]
async fn the_trail_of_the_call_holds_each_attempt_once_and_the_error_is_not_wrapped() {
    let stack = LoadBalanceLayer::new(set(["a", "b", "c"])).layer(Client::failing(|host| host != "b"));
    let mut scope = CallScope::begin();
    let error = attempt(&mut scope, &stack).await.unwrap_err();
    assert!(error.is::<std::io::Error>());
    attempt(&mut scope, &stack).await.unwrap();
    let silent = LoadBalanceLayer::new(set(["d"])).layer(Client::silent());
    {
        let mut future = Box::pin(scope.enter(|| silent.clone().call(request())));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(scope.enter(|| future.as_mut().poll(&mut cx)).is_pending());
        scope.enter(|| drop(future));
    }
    let trail = scope.trail().unwrap();
    let outcomes: Vec<_> = trail
        .attempts()
        .map(|attempt| (attempt.endpoint().unwrap().key(), attempt.outcome()))
        .collect();
    assert!(matches!(
        outcomes[..],
        [
            ("a", AttemptOutcome::Failed(_)),
            ("b", AttemptOutcome::Answered),
            ("d", AttemptOutcome::Abandoned),
        ]
    ));
}

#[tokio::test]
async fn a_call_without_a_failure_starts_no_trail_but_says_where_it_went() {
    let stack = LoadBalanceLayer::new(set(["a"])).layer(Client::answering());
    let mut scope = CallScope::begin();
    attempt(&mut scope, &stack).await.unwrap();
    assert!(scope.trail().is_none());
    assert_eq!(scope.picked().unwrap().key(), "a");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_when_the_deadline_has_passed() {
    let client = Client::answering();
    let layer = LoadBalanceLayer::new(set(["a"]));
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now());
    let error = attempt(&mut scope, &layer.layer(client.clone()))
        .await
        .unwrap_err();
    assert_eq!(error.downcast_ref::<NoTimeLeft>().unwrap().layer(), "LoadBalance");
    assert!(client.seen().is_empty());
    assert_eq!(layer.handle().total(), Figures::default());
}

#[tokio::test]
async fn the_host_header_is_the_endpoints_or_the_callers() {
    let hosts = |host| async move {
        let client = service_fn(|request: Request<()>| async move {
            let host = request
                .headers()
                .get(HOST)
                .map(|host| host.to_str().unwrap().to_owned());
            Ok::<_, BoxError>((request.uri().to_string(), host))
        });
        let stack = LoadBalanceLayer::new(set(["a:81"]))
            .host_header(host)
            .layer(client);
        let request = Request::get("http://orders/17?x=y")
            .header(HOST, "shop")
            .body(())
            .unwrap();
        stack.oneshot(request).await.unwrap()
    };
    let uri = "http://a:81/17?x=y".to_owned();
    assert_eq!(hosts(HostHeader::OfEndpoint).await, (uri.clone(), None));
    assert_eq!(hosts(HostHeader::OfRequest).await, (uri, Some("shop".into())));
}

// ---- readiness

/// Counts what is asked of it. Ready when the test says so.
#[derive(Clone, Default)]
struct Gate {
    asked: Arc<AtomicUsize>,
    /// 0: not ready, 1: ready, 2: broken.
    state: Arc<AtomicUsize>,
}

impl Service<Req> for Gate {
    type Response = Rsp;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Rsp, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.asked.fetch_add(1, SeqCst);
        match self.state.load(SeqCst) {
            0 => Poll::Pending,
            1 => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err("broken".into())),
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        std::future::ready(Ok(Response::new(request.uri().host().unwrap().to_owned())))
    }
}

#[tokio::test]
async fn it_is_ready_when_the_service_below_is_whatever_the_set_holds() {
    let gate = Gate::default();
    for endpoints in [Endpoints::new(), set(["a"])] {
        let mut stack = LoadBalanceLayer::new(endpoints).layer(gate.clone());
        let mut ready = |state| {
            gate.state.store(state, SeqCst);
            stack.poll_ready(&mut Context::from_waker(Waker::noop()))
        };
        assert!(ready(0).is_pending());
        assert!(matches!(ready(1), Poll::Ready(Ok(()))));
        assert!(matches!(ready(2), Poll::Ready(Err(_))));
    }
}

/// RDY-06.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_or_is_refused_holds_nothing_of_the_service_below() {
    let endpoints = Endpoints::new();
    let layer = LoadBalanceLayer::new(endpoints.clone());
    let limit = ConcurrencyLimit::new(Client::answering(), 1);
    let mut refusing = layer.layer(limit.clone());
    let error = refusing.ready().await.unwrap().call(request()).await.unwrap_err();
    assert!(no_endpoint(&error).resolved());
    let mut waiting = layer
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(limit.clone());
    let first = waiting.ready().await.unwrap().call(request());
    let second = waiting.ready().await.unwrap().call(request());
    let (mut first, mut second) = (task::spawn(first), task::spawn(second));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    // Neither of the three services that are about holds the one permit.
    let other = limit.clone().oneshot(request());
    timeout(Duration::from_secs(1), other).await.unwrap().unwrap();
    endpoints.insert(endpoint("a"));
    assert_eq!(
        timeout(Duration::from_secs(1), first)
            .await
            .unwrap()
            .unwrap()
            .body(),
        "a"
    );
    assert_eq!(
        timeout(Duration::from_secs(1), second)
            .await
            .unwrap()
            .unwrap()
            .body(),
        "a"
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_is_asked_for_after_the_wait_and_its_failure_is_told_apart() {
    let endpoints = Endpoints::new();
    let gate = Gate::default();
    gate.state.store(1, SeqCst);
    let layer = LoadBalanceLayer::new(endpoints.clone())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap();
    let mut stack = layer.layer(gate.clone());
    let mut waiting = call(&mut stack);
    assert_pending!(waiting.poll());
    assert_eq!(gate.asked.load(SeqCst), 1);
    gate.state.store(2, SeqCst);
    endpoints.insert(endpoint("a"));
    assert!(waiting.is_woken());
    let error = assert_ready!(waiting.poll()).unwrap_err();
    assert_eq!(error.downcast_ref::<NotReady>().unwrap().layer(), "LoadBalance");
    assert_eq!(Fault::of(&*error).kind(), FaultKind::NotReady);
    assert_eq!(layer.handle().total(), Figures::default());
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_goes_while_the_service_becomes_ready_is_not_called() {
    let endpoints = Endpoints::new();
    let gate = Gate::default();
    gate.state.store(1, SeqCst);
    let mut stack = LoadBalanceLayer::new(endpoints.clone())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(gate.clone());
    let mut waiting = call(&mut stack);
    assert_pending!(waiting.poll());
    gate.state.store(0, SeqCst);
    endpoints.insert(endpoint("a"));
    assert_pending!(waiting.poll());
    endpoints.remove("a");
    gate.state.store(1, SeqCst);
    assert_pending!(waiting.poll());
    endpoints.insert(endpoint("b"));
    assert!(waiting.is_woken());
    assert_eq!(assert_ready!(waiting.poll()).unwrap().body(), "b");
}

// ---- an empty set

#[tokio::test(start_paused = true)]
async fn a_call_on_an_empty_set_fails_at_once_and_the_next_after_an_insert_succeeds() {
    let endpoints = set(["a"]);
    let stack = LoadBalanceLayer::new(endpoints.clone()).layer(Client::answering());
    endpoints.remove("a");
    for _ in 0..3 {
        let start = Instant::now();
        let error = stack.clone().oneshot(request()).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(
            (no_endpoint(&error).resolved(), no_endpoint(&error).waited()),
            (true, Duration::ZERO)
        );
    }
    endpoints.insert(endpoint("b"));
    assert_eq!(stack.oneshot(request()).await.unwrap().body(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_wait_on_an_empty_set_ends_at_its_limit_to_the_millisecond() {
    let stack = LoadBalanceLayer::new(Endpoints::new())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(Client::answering());
    let start = Instant::now();
    let error = stack.oneshot(request()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(no_endpoint(&error).waited(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_are_polled_once_each_and_no_more_while_nothing_happens() {
    let endpoints = Endpoints::new();
    let mut stack = LoadBalanceLayer::new(endpoints.clone())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(Client::answering());
    let mut waiting: Vec<_> = (0..100).map(|_| call(&mut stack)).collect();
    for one in &mut waiting {
        assert_pending!(one.poll());
    }
    tokio::time::advance(Duration::from_secs(4)).await;
    assert!(waiting.iter().all(|one| !one.is_woken()));
    endpoints.insert(endpoint("a"));
    for one in &mut waiting {
        assert!(one.is_woken());
        assert!(assert_ready!(one.poll()).is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_comes_between_call_and_poll_is_not_missed() {
    let endpoints = Endpoints::new();
    let mut stack = LoadBalanceLayer::new(endpoints.clone())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(Client::answering());
    let mut waiting = call(&mut stack);
    endpoints.insert(endpoint("a"));
    assert!(assert_ready!(waiting.poll()).is_ok());
}

/// RDY-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_waiter_is_left_behind_when_endpoints_come_from_another_thread() {
    for _ in 0..300 {
        let endpoints = Endpoints::new();
        let stack = LoadBalanceLayer::new(endpoints.clone())
            .when_empty(WhenEmpty::Wait(Duration::from_secs(60)))
            .unwrap()
            .layer(Client::answering());
        let tasks: Vec<_> = (0..4)
            .map(|_| tokio::spawn(stack.clone().oneshot(request())))
            .collect();
        tokio::spawn(async move { endpoints.insert(endpoint("a")) });
        for task in tasks {
            timeout(Duration::from_secs(10), task)
                .await
                .unwrap()
                .unwrap()
                .unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_the_deadline_by_the_hand_of_its_owner() {
    let mut stack = LoadBalanceLayer::new(Endpoints::new())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(Client::answering());
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now() + Duration::from_secs(2));
    let mut waiting = call(&mut stack);
    scope.enter(|| assert_pending!(waiting.poll()));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(!waiting.is_woken(), "it keeps no timer beyond the deadline");
}

#[test]
fn a_wait_that_cannot_be_meant_is_refused() {
    let layer = || LoadBalanceLayer::new(Endpoints::new());
    assert!(layer().when_empty(WhenEmpty::Wait(Duration::ZERO)).is_err());
    let error = layer().when_empty(WhenEmpty::Wait(Duration::MAX)).unwrap_err();
    assert_eq!((error.layer(), error.field()), ("LoadBalance", "when_empty"));
    assert!(layer().first_wait(Duration::MAX).is_err());
    assert!(layer().first_wait(Duration::ZERO).is_ok());
}

// ---- discovery

type Told = Result<Change<u32, Endpoint>, BoxError>;

/// A stream that is fed by the test.
fn channel() -> (
    mpsc::UnboundedSender<Told>,
    impl stream::Stream<Item = Told> + Send + 'static,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    (sender, stream::poll_fn(move |cx| receiver.poll_recv(cx)))
}

/// Lets the task that reads a stream run.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_feeds_the_set_and_what_it_takes_out_is_out() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let stack = LoadBalanceLayer::new(endpoints.clone()).layer(Client::answering());
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    told.send(Ok(Change::Insert(2, endpoint("b")))).unwrap();
    assert_eq!(stack.clone().oneshot(request()).await.unwrap().body(), "a");
    assert_eq!(
        endpoints.snapshot().version(),
        1,
        "what is ready is published as one"
    );
    told.send(Ok(Change::Remove(1))).unwrap();
    settle().await;
    for _ in 0..3 {
        assert_eq!(stack.clone().oneshot(request()).await.unwrap().body(), "b");
    }
    told.send(Ok(Change::Remove(2))).unwrap();
    settle().await;
    let start = Instant::now();
    let error = stack.clone().oneshot(request()).await.unwrap_err();
    assert!(no_endpoint(&error).resolved());
    assert_eq!(start.elapsed(), Duration::ZERO);
    told.send(Ok(Change::Insert(2, endpoint("b")))).unwrap();
    settle().await;
    assert!(stack.oneshot(request()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_says_nothing_is_waited_for_as_long_as_the_first_wait() {
    for (wait, expected) in [(None, 1000), (Some(0), 0), (Some(250), 250)] {
        let endpoints = Endpoints::from_stream(stream::pending::<Told>());
        let mut layer = LoadBalanceLayer::new(endpoints);
        if let Some(wait) = wait {
            layer = layer.first_wait(Duration::from_millis(wait)).unwrap();
        }
        let start = Instant::now();
        let error = layer
            .layer(Client::answering())
            .oneshot(request())
            .await
            .unwrap_err();
        assert_eq!(start.elapsed().as_millis(), expected);
        assert_eq!(
            (
                no_endpoint(&error).resolved(),
                no_endpoint(&error).waited().as_millis()
            ),
            (false, expected)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn when_the_first_word_is_that_there_is_none_the_rule_for_an_empty_set_holds() {
    let (told, changes) = channel();
    let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(Client::answering());
    let start = Instant::now();
    let call = tokio::spawn(stack.oneshot(request()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    told.send(Ok(Change::Remove(1))).unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_millis(300));
    assert!(no_endpoint(&error).resolved());
}

#[tokio::test]
async fn a_stream_that_fails_or_ends_keeps_the_last_set_and_is_not_polled_after_its_end() {
    for fails in [false, true] {
        let (told, mut changes) = channel();
        let ends = Arc::new(AtomicUsize::new(0));
        let seen = ends.clone();
        let changes = stream::poll_fn(move |cx| {
            let poll = changes.poll_next_unpin(cx);
            seen.fetch_add(usize::from(matches!(poll, Poll::Ready(None))), SeqCst);
            poll
        });
        let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(Client::answering());
        told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
        assert!(stack.clone().oneshot(request()).await.is_ok());
        if fails {
            told.send(Err("lost".into())).unwrap();
        }
        drop(told);
        settle().await;
        for _ in 0..10 {
            assert_eq!(stack.clone().oneshot(request()).await.unwrap().body(), "a");
        }
        assert_eq!((alive_tasks(), ends.load(SeqCst)), (0, 1));
    }
}

#[tokio::test]
async fn after_an_error_the_stream_goes_on() {
    let (told, changes) = channel();
    let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(Client::answering());
    told.send(Err("not yet".into())).unwrap();
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    assert!(stack.oneshot(request()).await.is_ok());
}

#[tokio::test]
async fn many_changes_without_a_call_are_all_applied_at_the_first_one() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let stack = LoadBalanceLayer::new(endpoints.clone()).layer(Client::answering());
    let mut random = fastrand(9);
    let mut expected = HashMap::new();
    for _ in 0..100_000 {
        let key = random() as u32 % 10;
        if random() % 2 == 0 {
            told.send(Ok(Change::Insert(key, endpoint(&format!("h{key}")))))
                .unwrap();
            expected.insert(key, format!("h{key}"));
        } else {
            told.send(Ok(Change::Remove(key))).unwrap();
            expected.remove(&key);
        }
    }
    told.send(Ok(Change::Insert(99, endpoint("last")))).unwrap();
    expected.insert(99, "last".into());
    assert!(stack.oneshot(request()).await.is_ok());
    while endpoints
        .snapshot()
        .endpoints()
        .iter()
        .all(|one| one.key() != "last")
    {
        tokio::task::yield_now().await;
    }
    let mut seen: Vec<_> = endpoints
        .snapshot()
        .endpoints()
        .iter()
        .map(|one| one.key().to_owned())
        .collect();
    let mut expected: Vec<_> = expected.into_values().collect();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
    assert!(
        endpoints.snapshot().version() < 100,
        "it is not published change by change"
    );
}

#[tokio::test]
async fn a_stream_that_never_pauses_lets_others_run() {
    let mut n = 0;
    let changes = stream::poll_fn(move |_| {
        n += 1;
        Poll::Ready(Some(Ok::<_, BoxError>(Change::Insert(n % 3, endpoint("a")))))
    });
    let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(Client::answering());
    for _ in 0..3 {
        assert!(stack.clone().oneshot(request()).await.is_ok());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_the_last_of_what_came_under_one_name_is_called() {
    let inserts = |addresses: &[&str]| {
        addresses
            .iter()
            .map(|address| Change::Insert(1, Endpoint::new(format!("http://{address}")).unwrap()))
            .collect::<Vec<_>>()
    };
    for removed_at in 0..=2 {
        let (told, changes) = channel();
        let client = Client::answering();
        let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(client.clone());
        let mut ops = inserts(&["v1", "v2", "v3"]);
        ops.insert(removed_at, Change::Remove(1));
        for op in ops {
            told.send(Ok(op)).unwrap();
        }
        for _ in 0..3 {
            stack.clone().oneshot(request()).await.unwrap();
        }
        assert_eq!(client.seen(), ["v3", "v3", "v3"]);
    }
}

#[tokio::test]
async fn two_names_for_one_endpoint_hold_it_until_both_are_gone() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let mut stack = LoadBalanceLayer::new(endpoints.clone()).layer(Client::answering());
    for name in [1, 2] {
        told.send(Ok(Change::Insert(name, endpoint("a")))).unwrap();
    }
    stack.ready().await.unwrap().call(request()).await.unwrap();
    let before = endpoints.snapshot();
    assert_eq!(before.endpoints().len(), 1);
    for (name, left) in [(2, 1), (1, 0)] {
        told.send(Ok(Change::Remove(name))).unwrap();
        settle().await;
        assert_eq!(endpoints.len(), left);
        if left == 1 {
            assert_eq!(
                endpoints.snapshot().endpoints()[0],
                before.endpoints()[0],
                "and it is the same object"
            );
        }
    }
}

#[tokio::test]
async fn a_watch_channel_is_read_at_once_and_followed_from_the_first_call_on() {
    let (lists, list) = watch::channel(vec![endpoint("a")]);
    let endpoints = Endpoints::from_watch(list);
    assert!(endpoints.snapshot().resolved());
    assert_eq!(endpoints.snapshot().endpoints()[0].key(), "a");
    lists.send(vec![endpoint("b")]).unwrap();
    let client = Client::answering();
    let stack = LoadBalanceLayer::new(endpoints.clone()).layer(client.clone());
    stack.clone().oneshot(request()).await.unwrap();
    lists.send(vec![endpoint("c"), endpoint("d")]).unwrap();
    settle().await;
    stack.clone().oneshot(request()).await.unwrap();
    assert_eq!(client.seen(), ["b", "d"]);
    drop(lists);
    settle().await;
    assert_eq!(endpoints.len(), 2);
    assert_eq!(alive_tasks(), 0);
    stack.oneshot(request()).await.unwrap();
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn one_task_reads_the_stream_from_the_first_call_on_and_ends_with_the_last_handle() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let layer = LoadBalanceLayer::new(endpoints.clone());
    let (mut one, mut two) = (layer.layer(Client::answering()), layer.layer(Client::answering()));
    settle().await;
    assert_eq!(alive_tasks(), 0, "no task before the first call");
    for _ in 0..3 {
        one.ready().await.unwrap();
        two.ready().await.unwrap();
    }
    settle().await;
    assert_eq!(alive_tasks(), 1);
    drop((endpoints, layer, one));
    settle().await;
    assert_eq!(alive_tasks(), 1, "a service is a handle as well");
    assert!(!told.is_closed());
    drop(two);
    settle().await;
    assert_eq!(alive_tasks(), 0);
    assert!(told.is_closed(), "and the stream is dropped");
}

#[test]
fn no_runtime_is_needed_to_build_and_another_one_goes_on_where_the_first_has_ended() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let mut stack = LoadBalanceLayer::new(endpoints.clone()).layer(Client::answering());
    // Not within a runtime, this is no error, and starts nothing.
    assert!(
        stack
            .poll_ready(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
    for (name, key) in [(1, "a"), (2, "b")] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        told.send(Ok(Change::Insert(name, endpoint(key)))).unwrap();
        runtime.block_on(async {
            stack.clone().oneshot(request()).await.unwrap();
            settle().await;
        });
        assert_eq!(endpoints.len(), name as usize);
        assert!(!told.is_closed());
    }
}

#[tokio::test]
async fn a_stream_that_panics_keeps_the_last_set() {
    let (told, mut changes) = channel();
    let changes = stream::poll_fn(move |cx| match changes.poll_next_unpin(cx) {
        Poll::Ready(None) => panic!("the stream is broken"),
        poll => poll,
    });
    let stack = LoadBalanceLayer::new(Endpoints::from_stream(changes)).layer(Client::answering());
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    stack.clone().oneshot(request()).await.unwrap();
    drop(told);
    settle().await;
    assert_eq!(alive_tasks(), 0);
    stack.oneshot(request()).await.unwrap();
}

// ---- any order of events

#[derive(Debug, Clone)]
enum Op {
    Insert(u8),
    Remove(u8),
    Replace(Vec<u8>),
    Veto(u8, bool),
    Ready,
    Call,
    End(u8),
    Drop(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4_u8).prop_map(Op::Insert),
        (0..4_u8).prop_map(Op::Remove),
        prop::collection::vec(0..4_u8, 0..4).prop_map(Op::Replace),
        (0..4_u8, any::<bool>()).prop_map(|(key, veto)| Op::Veto(key, veto)),
        Just(Op::Ready),
        Just(Op::Call),
        Just(Op::Call),
        any::<u8>().prop_map(Op::End),
        any::<u8>().prop_map(Op::Drop),
    ]
}

type Pending = LoadBalanceFuture<Scripted, Req, Arc<dyn Rule>, tower_outbound::call::ByFault>;

/// Gives the test the other end of each call.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Option<Sent>>>);

type Sent = (String, oneshot::Sender<()>);

impl Service<Req> for Scripted {
    type Response = Rsp;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Rsp, BoxError>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let (end, ended) = oneshot::channel();
        let host = request.uri().host().unwrap().to_owned();
        *self.0.lock().unwrap() = Some((host, end));
        Box::pin(async move {
            ended.await?;
            Ok(Response::new(String::new()))
        })
    }
}

struct Open {
    key: String,
    generation: u64,
    end: oneshot::Sender<()>,
    future: Pin<Box<Pending>>,
}

proptest! {
    #[test]
    fn whatever_happens_calls_go_to_the_current_set_and_counts_are_right(
        rule in 0..3,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let rule: Arc<dyn Rule> = match rule {
            0 => Arc::new(RoundRobin::new()),
            1 => Arc::new(Random::seeded(1)),
            _ => Arc::new(LeastLoaded::seeded(1)),
        };
        let name = |key: u8| format!("h{key}");
        let endpoints = Endpoints::new();
        let client = Scripted::default();
        let layer = LoadBalanceLayer::new(endpoints.clone()).rule(rule);
        let handle = layer.handle();
        let mut stack: LoadBalance<_, _> = layer.layer(client.clone());
        let mut generations: HashMap<String, u64> = HashMap::new();
        let mut generation = 0;
        let mut open: Vec<Open> = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        for op in ops {
            match op {
                Op::Insert(key) => endpoints.insert(endpoint(&name(key))),
                Op::Remove(key) => {
                    endpoints.remove(&name(key));
                }
                Op::Replace(keys) => endpoints.replace(keys.iter().map(|&key| endpoint(&name(key)))),
                Op::Veto(key, veto) => {
                    if let Some(one) = endpoints.snapshot().endpoints().iter().find(|one| one.key() == name(key)) {
                        if veto {
                            one.eligibility().forbid(Veto::User);
                        } else {
                            one.eligibility().allow(Veto::User);
                        }
                    }
                }
                Op::Ready => prop_assert!(stack.poll_ready(&mut cx).is_ready()),
                Op::Call => {
                    let mut future = Box::pin(stack.call(request()));
                    match client.0.lock().unwrap().take() {
                        Some((host, end)) => {
                            let snapshot = endpoints.snapshot();
                            let picked = snapshot.endpoints().iter().find(|one| one.key() == host);
                            prop_assert!(picked.is_some(), "{} is not in the set", host);
                            let all_vetoed = snapshot.endpoints().iter().all(|one| !one.eligibility().is_eligible());
                            prop_assert!(all_vetoed || picked.unwrap().eligibility().is_eligible());
                            open.push(Open { generation: generations[&host], key: host, end, future });
                        }
                        None => {
                            prop_assert!(endpoints.is_empty());
                            let Poll::Ready(Err(error)) = future.as_mut().poll(&mut cx) else { panic!("no end") };
                            prop_assert!(error.is::<NoEndpoint>());
                        }
                    }
                }
                Op::End(which) if !open.is_empty() => {
                    let mut ended = open.swap_remove(which as usize % open.len());
                    ended.end.send(()).unwrap();
                    prop_assert!(ended.future.as_mut().poll(&mut cx).is_ready());
                }
                Op::Drop(which) if !open.is_empty() => {
                    drop(open.swap_remove(which as usize % open.len()));
                }
                Op::End(_) | Op::Drop(_) => {}
            }
            let snapshot = endpoints.snapshot();
            generations.retain(|key, _| snapshot.endpoints().iter().any(|one| one.key() == key));
            for one in snapshot.endpoints() {
                generation += 1;
                generations.entry(one.key().to_owned()).or_insert(generation);
            }
            for one in handle.endpoints() {
                let key = one.endpoint().key();
                let expected = open.iter().filter(|open| open.key == key && open.generation == generations[key]).count();
                prop_assert_eq!(one.figures().in_flight(), expected as u64);
            }
        }
    }
}

// ---- types

#[test]
fn services_and_futures_go_where_their_parts_go() {
    fn service<T: Clone + Send + Sync + std::fmt::Debug + 'static>(_: &T) {}
    fn future<T: Send + std::fmt::Debug>(_: &T) {}
    fn shared<T: Send + Sync>() {}
    let layer = LoadBalanceLayer::new(set(["a"])).rule(LeastLoaded::new());
    service(&layer);
    service(&layer.handle());
    service(&Endpoints::new());
    let gate = tower::util::MapRequest::new(Client::answering(), std::convert::identity::<Req>);
    let mut stack = layer.layer(gate);
    fn stack_is<T: Clone + Send + Sync + 'static>(_: &T) {}
    stack_is(&stack);
    future(&stack.call(request()));
    shared::<LoadBalanceFuture<Gate, Req, RoundRobin, tower_outbound::call::ByFault>>();
    let _: &dyn Fn(LoadBalance<Client>) -> Client = &LoadBalance::into_inner;
}

#[test]
fn the_handle_leads_to_the_set_itself() {
    let set = Endpoints::new();
    let layer = LoadBalanceLayer::new(set.clone());
    layer.handle().set().insert(Endpoint::new("a:1").unwrap());
    assert_eq!(set.len(), 1);
}
