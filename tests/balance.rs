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
        BalanceHandle, Candidates, ConsistentHash, Ewma, EwmaBuilder, Figures, LeastLoaded, LoadBalance,
        LoadBalanceFuture, LoadBalanceLayer, Only, OutlierEjection, Picked, Picker, Random, RibbonRoundRobin,
        RibbonRule, RoundRobin, Rule, WeightedRoundRobin, WhenEmpty,
    },
    call::{
        Affinity, AttemptOutcome, BoxError, CallFailed, CallScope, Endpoint, Endpoints, ErrorRef, Fault,
        FaultKind, HostHeader, NoEndpoint, NoTimeLeft, NotReady, Trail, Verdict, Veto,
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

/// By turns, so that a test can say who is picked next.
fn in_turn(endpoints: Endpoints) -> LoadBalanceLayer<RoundRobin> {
    LoadBalanceLayer::new(endpoints).rule(RoundRobin::new())
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
    NoEndpoint::of(&**error).unwrap()
}

// ---- which one is picked

#[tokio::test]
async fn round_robin_goes_from_the_first_to_the_last_and_round() {
    let client = Client::answering();
    let mut stack = in_turn(set(["a", "b", "c"])).layer(client.clone());
    for _ in 0..7 {
        stack.ready().await.unwrap().call(request()).await.unwrap();
    }
    assert_eq!(client.seen(), ["a", "b", "c", "a", "b", "c", "a"]);
}

/// BAL-01.
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

/// BAL-14.
#[tokio::test]
async fn a_service_that_is_cloned_for_each_request_goes_round_as_well() {
    let client = Client::answering();
    let layer = in_turn(set(["a", "b", "c"]));
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

/// BAL-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_share_one_rotation() {
    let layer = in_turn(set(["a", "b", "c"]));
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
    let layer = in_turn(endpoints);
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

/// BAL-05.
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
    check(Ewma::seeded(3)).await;
    check(WeightedRoundRobin::new()).await;
    check(ConsistentHash::new()).await;
    check(|_: &Candidates<'_>| 4).await;
}

/// BAL-05.
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
    check(Ewma::seeded(8), 8).await;
    check(WeightedRoundRobin::new(), 9).await;
    check(
        ConsistentHash::by(|head| Some(Affinity::of(head.uri().path()))),
        10,
    )
    .await;
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
    let layer = in_turn(endpoints);
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
    let stack = in_turn(set(["a", "b", "c"])).layer(Client::failing(|host| host != "c"));
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
    check(Ewma::new()).await;
    check(WeightedRoundRobin::new()).await;
    check(ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())))).await;
}

/// RET-04, where endpoints run out.
#[tokio::test]
async fn when_all_were_tried_one_is_used_again() {
    let stack = in_turn(set(["a", "b"])).layer(Client::failing(|_| true));
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
    let stack = in_turn(endpoints).layer(Client::failing(|_| true));
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
    async fn check<R: Rule + Send + Sync + 'static>(rule: R) {
        let stack = LoadBalanceLayer::new(set(["bad", "good"]))
            .rule(rule)
            .layer(Client::failing(|host| host == "bad"));
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
    check(RoundRobin::new()).await;
    check(Ewma::new()).await;
}

#[tokio::test]
async fn a_wish_to_stay_is_granted_while_the_endpoint_is_there_and_well() {
    let endpoints = set(["a", "b", "c"]);
    let client = Client::failing(|_| true);
    let stack = in_turn(endpoints.clone()).layer(client.clone());
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
    let stack = in_turn(set(["a", "b", "c"])).layer(client.clone());
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
    let layer = in_turn(set(["a", "b"]));
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

/// BAL-12.
#[tokio::test]
async fn however_a_call_ends_nothing_stays_in_flight() {
    let layer = in_turn(set(["ok", "err", "silent", "panic", "panic-at-once"]));
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
    let layer =
        in_turn(set(["success", "failure", "ignored"])).classify(|outcome: Result<&Rsp, ErrorRef<'_>>| {
            match outcome.unwrap().body().as_str() {
                "success" => Verdict::Success,
                "failure" => Verdict::Failure,
                _ => Verdict::Ignored,
            }
        });
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
    let layer = in_turn(endpoints.clone());
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
    let stack = in_turn(set(["a", "b"])).layer(Client::failing(|_| true));
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
    let stack = in_turn(set(["a", "b", "c"])).layer(Client::failing(|host| host != "b"));
    let mut scope = CallScope::begin();
    let error = attempt(&mut scope, &stack).await.unwrap_err();
    assert!(error.is::<std::io::Error>());
    attempt(&mut scope, &stack).await.unwrap();
    let silent = in_turn(set(["d"])).layer(Client::silent());
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
    let stack = in_turn(set(["a"])).layer(Client::answering());
    let mut scope = CallScope::begin();
    attempt(&mut scope, &stack).await.unwrap();
    assert!(scope.trail().is_none());
    assert_eq!(scope.picked().unwrap().key(), "a");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_when_the_deadline_has_passed() {
    let client = Client::answering();
    let layer = in_turn(set(["a"]));
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
        let stack = in_turn(set(["a:81"])).host_header(host).layer(client);
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
        let mut stack = in_turn(endpoints).layer(gate.clone());
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
    let layer = in_turn(endpoints.clone());
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
    let layer = in_turn(endpoints.clone())
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
    assert_eq!(NotReady::of(&*error).unwrap().layer(), "LoadBalance");
    assert_eq!(Fault::of(&*error).kind(), FaultKind::NotReady);
    assert_eq!(layer.handle().total(), Figures::default());
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_goes_while_the_service_becomes_ready_is_not_called() {
    let endpoints = Endpoints::new();
    let gate = Gate::default();
    gate.state.store(1, SeqCst);
    let mut stack = in_turn(endpoints.clone())
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
    let stack = in_turn(endpoints.clone()).layer(Client::answering());
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
    let stack = in_turn(Endpoints::new())
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap()
        .layer(Client::answering());
    let start = Instant::now();
    let error = stack.oneshot(request()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(no_endpoint(&error).waited(), Duration::from_secs(5));
}

/// BAL-02.
#[tokio::test(start_paused = true)]
async fn waiting_calls_are_polled_once_each_and_no_more_while_nothing_happens() {
    let endpoints = Endpoints::new();
    let mut stack = in_turn(endpoints.clone())
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
    let mut stack = in_turn(endpoints.clone())
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
        let stack = in_turn(endpoints.clone())
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
    let mut stack = in_turn(Endpoints::new())
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
    let layer = || in_turn(Endpoints::new());
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
    let stack = in_turn(endpoints.clone()).layer(Client::answering());
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
        let mut layer = in_turn(endpoints);
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
    let stack = in_turn(Endpoints::from_stream(changes)).layer(Client::answering());
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
        let stack = in_turn(Endpoints::from_stream(changes)).layer(Client::answering());
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
    let stack = in_turn(Endpoints::from_stream(changes)).layer(Client::answering());
    told.send(Err("not yet".into())).unwrap();
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    assert!(stack.oneshot(request()).await.is_ok());
}

#[tokio::test]
async fn many_changes_without_a_call_are_all_applied_at_the_first_one() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let stack = in_turn(endpoints.clone()).layer(Client::answering());
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
    let stack = in_turn(Endpoints::from_stream(changes)).layer(Client::answering());
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
        let stack = in_turn(Endpoints::from_stream(changes)).layer(client.clone());
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
    let mut stack = in_turn(endpoints.clone()).layer(Client::answering());
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
async fn what_goes_and_comes_back_at_once_has_not_changed_and_others_stay_where_they_are() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let mut stack = in_turn(endpoints.clone()).layer(Client::answering());
    for (name, host) in [(1, "a"), (2, "b"), (3, "c")] {
        told.send(Ok(Change::Insert(name, endpoint(host)))).unwrap();
    }
    stack.ready().await.unwrap().call(request()).await.unwrap();
    let before = endpoints.snapshot();
    told.send(Ok(Change::Remove(2))).unwrap();
    told.send(Ok(Change::Insert(2, endpoint("b")))).unwrap();
    settle().await;
    assert_eq!(endpoints.snapshot().version(), before.version());
    told.send(Ok(Change::Remove(1))).unwrap();
    told.send(Ok(Change::Insert(1, endpoint("d")))).unwrap();
    settle().await;
    let after = endpoints.snapshot();
    assert_eq!(after.version(), before.version() + 1);
    assert_eq!(after.endpoints()[..2], before.endpoints()[1..]);
    assert_eq!(after.endpoints()[2].key(), "d");
}

#[tokio::test]
async fn what_is_put_into_a_set_with_a_source_holds_until_the_source_publishes_again() {
    let (told, changes) = channel();
    let endpoints = Endpoints::from_stream(changes);
    let mut stack = in_turn(endpoints.clone()).layer(Client::answering());
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    stack.ready().await.unwrap().call(request()).await.unwrap();
    let keys = || -> Vec<String> {
        let snapshot = endpoints.snapshot();
        snapshot
            .endpoints()
            .iter()
            .map(|one| one.key().to_owned())
            .collect()
    };
    endpoints.insert(endpoint("by-hand"));
    endpoints.remove("a");
    settle().await;
    assert_eq!(keys(), ["by-hand"]);
    told.send(Ok(Change::Insert(2, endpoint("b")))).unwrap();
    settle().await;
    assert_eq!(keys(), ["a", "b"]);
    told.send(Ok(Change::Remove(1))).unwrap();
    settle().await;
    assert_eq!(keys(), ["b"]);
}

#[tokio::test]
async fn a_watch_channel_is_read_at_once_and_followed_from_the_first_call_on() {
    let (lists, list) = watch::channel(vec![endpoint("a")]);
    let endpoints = Endpoints::from_watch(list);
    assert!(endpoints.snapshot().resolved());
    assert_eq!(endpoints.snapshot().endpoints()[0].key(), "a");
    lists.send(vec![endpoint("b")]).unwrap();
    let client = Client::answering();
    let stack = in_turn(endpoints.clone()).layer(client.clone());
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
    let layer = in_turn(endpoints.clone());
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
    let mut stack = in_turn(endpoints.clone()).layer(Client::answering());
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
    let stack = in_turn(Endpoints::from_stream(changes)).layer(Client::answering());
    told.send(Ok(Change::Insert(1, endpoint("a")))).unwrap();
    stack.clone().oneshot(request()).await.unwrap();
    drop(told);
    settle().await;
    assert_eq!(alive_tasks(), 0);
    stack.oneshot(request()).await.unwrap();
}

// ---- the choice alone

/// A picker that is told the time, in milliseconds from its start.
struct Clocked<R> {
    picker: Picker<R>,
    start: Instant,
}

impl<R: Rule> Clocked<R> {
    fn new(endpoints: Endpoints, rule: R) -> Self {
        Clocked {
            picker: Picker::new(endpoints, rule),
            start: Instant::now(),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn pick(&self, millis: u64) -> Picked {
        self.picker.pick(&request(), self.at(millis)).unwrap()
    }

    /// One attempt each `every` ms that ends before the next begins, as told; how many went to each.
    fn drive(
        &self,
        from: u64,
        attempts: u64,
        every: u64,
        ends: impl Fn(&str) -> (u64, Verdict),
    ) -> HashMap<String, u64> {
        let mut went = HashMap::new();
        for n in 0..attempts {
            let now = from + n * every;
            let picked = self.pick(now);
            let key = picked.endpoint().key().to_owned();
            let (took, verdict) = ends(&key);
            picked.end(verdict, self.at(now + took));
            *went.entry(key).or_default() += 1;
        }
        went
    }
}

fn many(n: usize) -> Endpoints {
    (0..n).map(|n| endpoint(&format!("h{n}"))).collect()
}

fn of(went: &HashMap<String, u64>, key: &str) -> u64 {
    went.get(key).copied().unwrap_or(0)
}

#[test]
fn the_same_seed_and_the_same_times_give_the_same_picks() {
    let picks = |seed| -> Vec<String> {
        let clocked = Clocked::new(many(50), Ewma::seeded(seed));
        let mut open = Vec::new();
        let mut keys = Vec::new();
        for now in 0..300 {
            let picked = clocked.pick(now * 3);
            keys.push(picked.endpoint().key().to_owned());
            open.push(picked);
            if now % 3 == 0 {
                open.remove(0).end(Verdict::Success, clocked.at(now * 3 + 1));
            }
        }
        keys
    };
    assert_eq!(picks(7), picks(7));
    assert_ne!(picks(7), picks(8));
}

#[test]
fn ewma_goes_where_answers_come_sooner() {
    let clocked = Clocked::new(set(["slow", "fast"]), Ewma::seeded(1));
    let took = |key: &str| (if key == "slow" { 100 } else { 10 }, Verdict::Success);
    let went = clocked.drive(0, 300, 10, took);
    assert!(of(&went, "slow") <= 3, "{went:?}");
}

#[test]
fn ewma_gives_no_calls_to_a_server_that_fails_at_once() {
    let clocked = Clocked::new(set(["broken", "a", "b", "c"]), Ewma::seeded(2));
    let ends = |key: &str| match key {
        "broken" => (1, Verdict::Failure),
        _ => (20, Verdict::Success),
    };
    let went = clocked.drive(0, 1_000, 10, ends);
    assert!((1..=3).contains(&of(&went, "broken")), "{went:?}");
}

#[test]
fn ewma_spreads_what_is_under_way() {
    let clocked = Clocked::new(set(["a", "b"]), Ewma::seeded(3));
    let ends = |key: &str| (if key == "a" { 10 } else { 12 }, Verdict::Success);
    clocked.drive(0, 100, 20, ends);
    let open: Vec<_> = (0..20).map(|_| clocked.pick(2_000)).collect();
    let to_b = open.iter().filter(|one| one.endpoint().key() == "b").count();
    assert!((7..=10).contains(&to_b), "{to_b}");
}

#[test]
fn ewma_keeps_away_from_a_server_that_has_fallen_silent() {
    let clocked = Clocked::new(set(["silent", "a"]), Ewma::seeded(3));
    let ends = |key: &str| (if key == "silent" { 10 } else { 30 }, Verdict::Success);
    clocked.drive(0, 100, 20, ends);
    // The better one of before is given an attempt, and says nothing any more.
    let silent = loop {
        let picked = clocked.pick(2_000);
        if picked.endpoint().key() == "silent" {
            break picked;
        }
        picked.end(Verdict::Success, clocked.at(2_030));
    };
    // Its number alone would not keep others away: twice 10 ms are less than 30.
    let went = clocked.drive(2_100, 100, 20, ends);
    assert_eq!(of(&went, "silent"), 0, "{went:?}");
    silent.abandon(clocked.at(4_200));
    // And it is not forgotten when the attempt is given up.
    let went = clocked.drive(4_200, 50, 20, ends);
    assert_eq!(of(&went, "silent"), 0, "{went:?}");
}

#[test]
fn ewma_asks_a_slow_server_again_after_a_while_by_one_call() {
    let clocked = Clocked::new(set(["slow", "a"]), Ewma::seeded(4));
    let ends = |key: &str| (if key == "slow" { 200 } else { 10 }, Verdict::Success);
    clocked.drive(0, 100, 20, ends);
    let asked_again = (0..2_000).map(|n| 2_000 + n * 20).find_map(|now| {
        let picked = clocked.pick(now);
        if picked.endpoint().key() == "slow" {
            return Some((now, picked));
        }
        picked.end(Verdict::Success, clocked.at(now + 10));
        None
    });
    let (now, asking) = asked_again.unwrap();
    assert!((8_000..30_000).contains(&now), "{now} ms");
    let others: Vec<_> = (0..5).map(|n| clocked.pick(now + n)).collect();
    assert!(others.iter().all(|one| one.endpoint().key() == "a"));
    asking.end(Verdict::Success, clocked.at(now + 10));
    others
        .into_iter()
        .for_each(|one| one.end(Verdict::Success, clocked.at(now + 15)));
    // It is well again, and gets its part.
    let went = clocked.drive(now + 20, 500, 20, |_| (10, Verdict::Success));
    assert!(of(&went, "slow") > 100, "{went:?}");
}

#[test]
fn ewma_takes_a_newcomer_for_one_of_its_peers_and_begins_slowly() {
    let endpoints = set(["a", "b", "c", "d"]);
    let clocked = Clocked::new(endpoints.clone(), Ewma::seeded(5));
    let ends = |_: &str| (20, Verdict::Success);
    clocked.drive(0, 200, 5, ends);
    endpoints.insert(endpoint("new"));
    let first = clocked.drive(1_000, 200, 5, ends);
    assert!(of(&first, "new") < 20, "{first:?}");
    let later = clocked.drive(7_000, 1_000, 5, ends);
    assert!((100..400).contains(&of(&later, "new")), "{later:?}");
}

#[tokio::test]
async fn what_says_nothing_about_a_server_does_not_make_it_look_fast() {
    // Rejected below the balancer: nobody's fault, and quick.
    let client = in_turn(Endpoints::new()).layer(Client::answering());
    let unknown = |candidates: &Candidates<'_>| {
        assert_eq!(candidates.get(0).unwrap().response_time(), None);
        0
    };
    let stack = LoadBalanceLayer::new(set(["a"])).rule(unknown).layer(client);
    for _ in 0..3 {
        stack.clone().oneshot(request()).await.unwrap_err();
    }
    assert_eq!(stack.handle().total().ignored(), 3);
}

#[test]
fn looking_at_an_endpoint_changes_nothing() {
    let seen: Arc<Mutex<Vec<(Duration, Duration)>>> = Arc::default();
    let times = seen.clone();
    let look = move |candidates: &Candidates<'_>| {
        let one = candidates.get(0).unwrap();
        for _ in 0..100 {
            let look = (one.response_time().unwrap_or_default(), one.waiting());
            times.lock().unwrap().push(look);
        }
        0
    };
    let clocked = Clocked::new(set(["a"]), look);
    clocked.pick(0).end(Verdict::Success, clocked.at(40));
    let _open = clocked.pick(50);
    clocked.pick(5_050).end(Verdict::Success, clocked.at(5_060));
    let seen = seen.lock().unwrap();
    assert!(
        seen.chunks(100)
            .all(|looks| looks.iter().all(|look| *look == looks[0]))
    );
    let millis = |duration: Duration| (duration.as_secs_f64() * 1e3).round() as u64;
    let looks: Vec<_> = seen
        .chunks(100)
        .map(|looks| (millis(looks[0].0), millis(looks[0].1)))
        .collect();
    assert_eq!(looks, [(0, 0), (40, 0), (40, 5_000)]);
}

/// So many of a large set Ewma draws from, if little is in flight.
const PART: usize = 18;

fn part_of(clocked: &Clocked<Ewma>, from: u64) -> std::collections::BTreeSet<String> {
    let went = clocked.drive(from, 2_000, 1, |_| (1, Verdict::Success));
    went.into_keys().collect()
}

#[test]
fn of_a_large_set_a_client_uses_a_part_that_its_seed_determines() {
    let part = part_of(&Clocked::new(many(100), Ewma::seeded(1)), 0);
    assert_eq!(part.len(), PART);
    let backwards: Endpoints = (0..100).rev().map(|n| endpoint(&format!("h{n}"))).collect();
    assert_eq!(part_of(&Clocked::new(backwards, Ewma::seeded(1)), 0), part);
    assert_ne!(part_of(&Clocked::new(many(100), Ewma::seeded(2)), 0), part);
    let of_all = |n| part_of(&Clocked::new(many(n), Ewma::seeded(1)), 0).len();
    assert_eq!(
        [of_all(27), of_all(28)],
        [27, PART],
        "all, if it would be two thirds of them"
    );
    let all = Ewma::builder().whole_set().build().unwrap();
    assert_eq!(part_of(&Clocked::new(many(100), all), 0).len(), 100);
    let few = Ewma::builder().subset(5).seed(1).build().unwrap();
    let few = part_of(&Clocked::new(many(100), few), 0);
    assert!(few.len() == 5 && few.is_subset(&part), "{few:?}");
}

#[test]
fn a_part_changes_by_no_more_than_the_set_does() {
    let endpoints = many(100);
    let clocked = Clocked::new(endpoints.clone(), Ewma::seeded(1));
    let before = part_of(&clocked, 0);
    let gone = before.first().unwrap().clone();
    endpoints.remove(&gone);
    let after = part_of(&clocked, 3_000);
    assert_eq!(after.len(), PART);
    assert_eq!(before.difference(&after).collect::<Vec<_>>(), [&gone]);
}

#[test]
fn a_part_stays_while_others_come_and_go_and_soon_takes_others_for_those_that_go() {
    let endpoints = many(200);
    let clocked = Clocked::new(endpoints.clone(), Ewma::seeded(1));
    let part = part_of(&clocked, 0);
    let others = (0..200)
        .map(|n| format!("h{n}"))
        .filter(|key| !part.contains(key));
    let mut now = 2_000;
    for other in others.take(100) {
        endpoints.remove(&other);
        let picked = clocked.pick(now);
        assert!(part.contains(picked.endpoint().key()));
        now += 1;
    }
    for gone in part.iter().skip(1) {
        endpoints.remove(gone);
    }
    let went = clocked.drive(now, 200, 1, |_| (1, Verdict::Success));
    assert!(
        went.len() >= PART && of(&went, part.first().unwrap()) < 100,
        "{went:?}"
    );
}

#[test]
fn a_part_grows_with_what_is_in_flight_and_when_too_few_may_be_picked() {
    let clocked = Clocked::new(many(200), Ewma::seeded(1));
    let mut open: Vec<_> = (0..2_000_u64).map(|n| clocked.pick(n * 10)).collect();
    let used = |open: &[Picked]| {
        open.iter()
            .map(|one| one.endpoint().key().to_owned())
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    assert_eq!(
        used(&open),
        200,
        "2,000 in flight are more than so few can be meant for"
    );
    open.clear();

    let endpoints = many(100);
    let clocked = Clocked::new(endpoints.clone(), Ewma::seeded(1));
    let part = part_of(&clocked, 0);
    let snapshot = endpoints.snapshot();
    let all_but_one = || {
        let of_part = snapshot.endpoints().iter().filter(|one| part.contains(one.key()));
        of_part.skip(1)
    };
    all_but_one().for_each(|one| one.eligibility().forbid(Veto::Outlier));
    let others = part_of(&clocked, 3_000);
    assert_eq!((others.len(), others.intersection(&part).count()), (PART, 1));
    all_but_one().for_each(|one| one.eligibility().allow(Veto::Outlier));
    assert_eq!(part_of(&clocked, 60_000), part, "and they return");
}

#[test]
fn settings_of_ewma_that_cannot_be_are_refused_by_name() {
    let field = |builder: EwmaBuilder| builder.build().unwrap_err().field();
    let of = Ewma::builder;
    assert_eq!(field(of().choices(0)), "choices");
    assert_eq!(field(of().choices(17)), "choices");
    assert_eq!(field(of().decay(Duration::ZERO)), "decay");
    assert_eq!(field(of().recovery(Duration::ZERO)), "recovery");
    assert_eq!(field(of().slow_start(Duration::MAX)), "slow_start");
    assert_eq!(field(of().subset(0)), "subset");
    assert!(of().choices(16).slow_start(Duration::ZERO).build().is_ok());
}

#[test]
fn turns_go_by_weight() {
    let weighted = |key: &str, weight| {
        Endpoint::builder(format!("http://{key}"))
            .key(key)
            .weight(weight)
            .build()
            .unwrap()
    };
    let endpoints: Endpoints = [weighted("a", 5), weighted("b", 3), weighted("c", 2)]
        .into_iter()
        .collect();
    let clocked = Clocked::new(endpoints.clone(), WeightedRoundRobin::new());
    let ends = |_: &str| (0, Verdict::Success);
    let went = clocked.drive(0, 1_000, 1, ends);
    assert_eq!((of(&went, "a"), of(&went, "b"), of(&went, "c")), (500, 300, 200));
    endpoints.snapshot().endpoints()[0]
        .eligibility()
        .forbid(Veto::User);
    let went = clocked.drive(0, 1_000, 1, ends);
    assert_eq!(of(&went, "a"), 0);
    assert!((550..=650).contains(&of(&went, "b")), "{went:?}");
    endpoints.insert(weighted("b", 1));
    endpoints.snapshot().endpoints()[0]
        .eligibility()
        .allow(Veto::User);
    let went = clocked.drive(0, 800, 1, ends);
    assert_eq!((of(&went, "a"), of(&went, "b"), of(&went, "c")), (500, 100, 200));
}

fn of_user(user: u64) -> Req {
    let mut request = request();
    request
        .extensions_mut()
        .insert(Affinity::of(format!("user-{user}")));
    request
}

fn homes(picker: &Picker<ConsistentHash>) -> Vec<String> {
    let home = |user| {
        let picked = picker.pick(&of_user(user), Instant::now()).unwrap();
        picked.endpoint().key().to_owned()
    };
    (0..1_000).map(home).collect()
}

#[test]
fn requests_that_belong_together_stay_together_while_the_set_changes_around_them() {
    let endpoints = many(10);
    let picker = Picker::new(endpoints.clone(), ConsistentHash::new());
    let before = homes(&picker);
    let backwards: Endpoints = (0..10).rev().map(|n| endpoint(&format!("h{n}"))).collect();
    assert_eq!(homes(&Picker::new(backwards, ConsistentHash::new())), before);
    for n in 0..10 {
        let share = before.iter().filter(|home| **home == format!("h{n}")).count();
        assert!((60..=160).contains(&share), "h{n}: {share} of 1,000");
    }
    let moved = |after: &[String]| {
        let pairs = before.iter().zip(after);
        pairs
            .filter(|(before, after)| before != after)
            .map(|(before, _)| before.clone())
            .collect::<Vec<_>>()
    };
    let h3 = || {
        endpoints
            .snapshot()
            .endpoints()
            .iter()
            .find(|one| one.key() == "h3")
            .unwrap()
            .clone()
    };
    h3().eligibility().forbid(Veto::Breaker);
    let vetoed = homes(&picker);
    assert!(!moved(&vetoed).is_empty() && moved(&vetoed).iter().all(|home| home == "h3"));
    h3().eligibility().allow(Veto::Breaker);
    assert_eq!(homes(&picker), before);
    endpoints.remove("h3");
    assert_eq!(homes(&picker), vetoed, "a veto moves what its end would");
    endpoints.insert(endpoint("h3"));
    endpoints.insert(endpoint("another"));
    let more = homes(&picker);
    assert!(
        before
            .iter()
            .zip(&more)
            .all(|(before, after)| before == after || after == "another")
    );
    assert!(moved(&more).len() < 200);
}

#[test]
fn a_header_or_a_closure_may_say_what_belongs_together() {
    let with_header = |user: &str| {
        let mut request = request();
        request.headers_mut().insert("x-user", user.parse().unwrap());
        request
    };
    let home = |picker: &Picker<ConsistentHash>, request: &Req| {
        let picked = picker.pick(request, Instant::now()).unwrap();
        picked.endpoint().key().to_owned()
    };
    let by_header = ConsistentHash::by_header(http::HeaderName::from_static("x-user"));
    let picker = Picker::new(many(10), by_header);
    let homes: Vec<_> = (0..20)
        .map(|n| home(&picker, &with_header(&format!("u{n}"))))
        .collect();
    let again: Vec<_> = (0..20)
        .map(|n| home(&picker, &with_header(&format!("u{n}"))))
        .collect();
    assert_eq!(homes, again);
    let without: std::collections::HashSet<_> = (0..100).map(|_| home(&picker, &request())).collect();
    assert!(without.len() > 5, "without a key it is any");
    let by_method = ConsistentHash::by(|head| {
        assert!(head.semantics().is_safe());
        Some(Affinity::of(head.method().as_str()))
    });
    let picker = Picker::new(many(10), by_method);
    assert_eq!(
        home(&picker, &with_header("u1")),
        home(&picker, &with_header("u2"))
    );
}

#[test]
fn what_is_too_much_for_an_endpoint_goes_where_it_would_without_it() {
    let endpoints = many(10);
    let picker = Picker::new(endpoints.clone(), ConsistentHash::new().spill_above(2));
    let now = Instant::now();
    let open: Vec<_> = (0..4).map(|_| picker.pick(&of_user(1), now).unwrap()).collect();
    let keys: Vec<_> = open.iter().map(|one| one.endpoint().key().to_owned()).collect();
    assert_eq!((&keys[0], &keys[2]), (&keys[1], &keys[3]));
    assert_ne!(keys[0], keys[2]);
    drop(open);
    endpoints.remove(&keys[0]);
    let picked = picker.pick(&of_user(1), now).unwrap();
    assert_eq!(picked.endpoint().key(), keys[2]);
}

#[tokio::test]
async fn a_retry_of_a_request_with_a_home_goes_elsewhere() {
    let stack = LoadBalanceLayer::new(many(10))
        .rule(ConsistentHash::by(|head| Some(Affinity::of(head.uri().path()))))
        .layer(Client::failing(|_| true));
    let (one, _) = retried(&stack, 3).await;
    let (other, _) = retried(&stack, 3).await;
    assert_eq!(one, other, "always to the same ones");
    assert!(one[0] != one[1] && one[1] != one[2] && one[2] != one[0]);
}

#[tokio::test]
async fn a_rule_of_ones_own_sees_what_the_call_has_tried() {
    // Those that were tried last of all.
    let rule = |candidates: &Candidates<'_>| {
        let mut untried = candidates.iter().enumerate().filter(|(_, one)| !one.was_tried());
        untried.next().map_or(0, |(index, _)| index)
    };
    let stack = LoadBalanceLayer::new(set(["a", "b", "c"]))
        .rule(rule)
        .layer(Client::failing(|_| true));
    let (went, _) = retried(&stack, 3).await;
    assert_eq!(went, ["a", "b", "c"]);
}

/// BAL-07.
#[tokio::test]
async fn an_endpoint_that_goes_between_ready_and_call_gets_nothing_and_the_choice_is_made_anew() {
    let endpoints = set(["a", "b", "c"]);
    let client = Client::silent();
    let mut stack = LoadBalanceLayer::new(endpoints.clone())
        .rule(LeastLoaded::seeded(1))
        .layer(client.clone());
    // Loads of 0, 1 and 10.
    let mut open = Vec::new();
    let snapshot = endpoints.snapshot();
    for place in [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2] {
        let mut scope = CallScope::begin();
        scope.wish_to_stay(Some(snapshot.endpoints()[place].clone()));
        open.push(scope.enter(|| call(&mut stack)));
    }
    let loads: Vec<_> = stack
        .handle()
        .endpoints()
        .iter()
        .map(|one| one.figures().in_flight())
        .collect();
    assert_eq!(loads, [0, 1, 10]);
    let before = client.seen().len();
    stack.ready().await.unwrap();
    endpoints.remove("b");
    open.push(call(&mut stack));
    assert_eq!(client.seen()[before..], ["a"]);
}

/// BAL-02.
#[tokio::test(start_paused = true)]
async fn while_no_endpoint_may_be_picked_a_rule_is_asked_now_and_then_and_nothing_spins() {
    let endpoints = set(["a", "b", "c"]);
    let all = endpoints.snapshot();
    all.endpoints()
        .iter()
        .for_each(|one| one.eligibility().forbid(Veto::User));
    let asked = Arc::new(AtomicUsize::new(0));
    let layer = LoadBalanceLayer::new(endpoints)
        .rule(Counted(RibbonRoundRobin::new(), asked.clone()))
        .when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
        .unwrap();
    let mut stack = layer.layer(Client::answering());
    let mut waiting: Vec<_> = (0..100).map(|_| call(&mut stack)).collect();
    for one in &mut waiting {
        assert_pending!(one.poll());
        assert!(!one.is_woken(), "it does not wake itself");
    }
    assert_eq!(asked.load(SeqCst), 100);
    // Time stands still: nobody is woken, and whoever polls all the same asks the rule no more.
    for one in &mut waiting {
        assert_pending!(one.poll());
    }
    assert_eq!(asked.load(SeqCst), 100);
    let half = waiting.split_off(50);
    let start = Instant::now();
    let tasks: Vec<_> = half
        .into_iter()
        .map(|one| tokio::spawn(one.into_inner()))
        .collect();
    for task in join_all(tasks).await {
        let error = task.unwrap().unwrap_err();
        assert_eq!(no_endpoint(&error).waited(), Duration::from_secs(5));
    }
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    let times = asked.load(SeqCst) - 100;
    assert!(times <= 50 * 501, "every 10 ms: {times}");
    // The others have been there as long, but with their last look there is one that may be picked.
    all.endpoints()[1].eligibility().allow(Veto::User);
    for mut one in waiting {
        assert_eq!(assert_ready!(one.poll()).unwrap().body(), "b");
    }
}

struct Counted<R>(R, Arc<AtomicUsize>);

impl<R: Rule> Rule for Counted<R> {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        self.1.fetch_add(1, SeqCst);
        self.0.pick(candidates)
    }

    fn chooses_alone(&self) -> bool {
        self.0.chooses_alone()
    }
}

/// BAL-02.
#[test]
fn with_nothing_to_tell_endpoints_apart_each_rule_picks_one_at_once() {
    let rules: Vec<Arc<dyn Rule>> = vec![
        Arc::new(Ewma::seeded(1)),
        Arc::new(LeastLoaded::seeded(1)),
        Arc::new(Random::seeded(1)),
        Arc::new(RoundRobin::new()),
        Arc::new(WeightedRoundRobin::new()),
        Arc::new(ConsistentHash::new()),
    ];
    let ribbons = RibbonRule::ALL.map(|rule| -> Arc<dyn Rule> { rule.rule() });
    for rule in rules.into_iter().chain(ribbons) {
        let asked = Arc::new(AtomicUsize::new(0));
        let clocked = Clocked::new(set(["a", "b", "c"]), Counted(rule, asked.clone()));
        // All answers in no time, so that there is nothing to go by.
        let went = clocked.drive(0, 100, 0, |_| (0, Verdict::Success));
        assert_eq!(went.values().sum::<u64>(), 100);
        assert_eq!(asked.load(SeqCst), 100);
    }
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
    /// BAL-03.
    #[test]
    fn whatever_happens_calls_go_to_the_current_set_and_counts_are_right(
        rule in 0..6,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let rule: Arc<dyn Rule> = match rule {
            0 => Arc::new(RoundRobin::new()),
            1 => Arc::new(Random::seeded(1)),
            2 => Arc::new(LeastLoaded::seeded(1)),
            3 => Arc::new(Ewma::builder().subset(1).seed(1).build().unwrap()),
            4 => Arc::new(WeightedRoundRobin::new()),
            _ => Arc::new(ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())))),
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

/// Changes the set in all ways.
fn meddle(endpoints: &Endpoints, n: usize) {
    let weighty = Endpoint::builder("http://a")
        .key("a")
        .weight(1 + n as u32 % 3)
        .build()
        .unwrap();
    endpoints.insert(weighty);
    endpoints.insert(endpoint("z"));
    endpoints.remove(["z", "b"][n % 2]);
    match n % 5 {
        0 => endpoints.replace(["c", "a", "b"].map(endpoint)),
        1 => endpoints.replace(std::iter::from_fn({
            let mut left = 3;
            // It is drawn without a lock.
            move || {
                endpoints.insert(endpoint("y"));
                left -= 1;
                (left > 0).then(|| endpoint(["a", "b", "c"][left]))
            }
        })),
        2 if n % 3 == 0 => endpoints.replace([]),
        _ => endpoints.insert(endpoint("b")),
    }
}

#[test]
fn a_rule_a_classifier_and_a_service_may_change_the_set() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let endpoints = set(["a", "b", "c"]);
        let count = Arc::new(AtomicUsize::new(0));
        let meddles = || {
            let (endpoints, count) = (endpoints.clone(), count.clone());
            move || meddle(&endpoints, count.fetch_add(1, SeqCst))
        };
        let (picks, looks, hashes, judges, calls) = (meddles(), meddles(), meddles(), meddles(), meddles());
        let by_turns = RoundRobin::new();
        let rule = move |candidates: &Candidates<'_>| {
            picks();
            by_turns.pick(candidates).unwrap_or(0)
        };
        let wanted = move |_: &Endpoint| {
            looks();
            true
        };
        let hash = ConsistentHash::by(move |_| {
            hashes();
            Some(Affinity::of("x"))
        });
        let classify = move |_: Result<&Rsp, ErrorRef<'_>>| {
            judges();
            Verdict::Failure
        };
        let client = service_fn(move |_: Req| {
            calls();
            async { Ok::<_, BoxError>(Response::new(String::new())) }
        });
        let outliers = || {
            OutlierEjection::builder()
                .consecutive_failures(1)
                .build()
                .unwrap()
        };
        let layer = LoadBalanceLayer::new(endpoints.clone()).classify(classify);
        let first = layer
            .clone()
            .outliers(outliers())
            .rule(rule)
            .layer(client.clone());
        let second = layer
            .clone()
            .rule(Only::new(wanted, Ewma::new()))
            .layer(client.clone());
        let third = layer.rule(hash).layer(client);
        for _ in 0..200 {
            let _ = first.clone().oneshot(request()).now_or_never().unwrap();
            let _ = second.clone().oneshot(request()).now_or_never().unwrap();
            let _ = third.clone().oneshot(request()).now_or_never().unwrap();
        }
        assert_eq!(first.handle().total().in_flight(), 0);
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(Duration::from_secs(20))
        .expect("they wait for each other");
}

/// A pool follows its set under the set's lock, and may go meanwhile.
#[test]
fn balancers_over_one_set_come_and_go_while_it_changes() {
    let endpoints = set(["a", "b", "c"]);
    std::thread::scope(|threads| {
        for seed in 0..2 {
            let endpoints = &endpoints;
            threads.spawn(move || {
                for n in 0..2_000 {
                    meddle(endpoints, n + seed);
                }
            });
        }
        for _ in 0..1_000 {
            let layer = in_turn(endpoints.clone());
            let handle = layer.handle();
            let other = in_turn(handle.set().clone()).ribbon_stats(Default::default());
            drop(layer);
            assert!(handle.endpoints().len() <= 5);
            drop(handle);
            other.handle().total();
        }
    });
    let handle = in_turn(endpoints.clone()).handle();
    let keys = |all: Vec<String>| all;
    let followed = handle
        .endpoints()
        .iter()
        .map(|one| one.endpoint().key().to_owned())
        .collect();
    let held = endpoints
        .snapshot()
        .endpoints()
        .iter()
        .map(|one| one.key().to_owned())
        .collect();
    assert_eq!(keys(followed), keys(held));
}

/// A verdict may come when all else is gone.
#[tokio::test(start_paused = true)]
async fn an_attempt_may_end_after_its_set_and_its_balancer() {
    let (tell, told) = oneshot::channel::<()>();
    let told = told.shared();
    let client = service_fn(move |_: Req| {
        let told = told.clone();
        async move {
            told.await.ok();
            Err::<Rsp, _>(refused())
        }
    });
    let outliers = OutlierEjection::builder()
        .consecutive_failures(1)
        .build()
        .unwrap();
    let endpoints = set(["a", "b"]);
    let kept = endpoints.snapshot();
    let layer = in_turn(endpoints.clone()).outliers(outliers);
    let mut stack = layer.layer(client);
    let mut calls: Vec<_> = (0..4).map(|_| call(&mut stack)).collect();
    calls.iter_mut().for_each(|call| assert_pending!(call.poll()));
    drop((layer, stack, endpoints));
    drop(calls.pop());
    tell.send(()).unwrap();
    for mut call in calls {
        assert!(assert_ready!(call.poll()).is_err());
    }
    assert!(kept.endpoints().iter().all(|one| one.eligibility().is_eligible()));
}
