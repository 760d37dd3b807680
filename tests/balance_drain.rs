//! Taking endpoints out of service, seen from outside.
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
    collections::VecDeque,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tokio::{
    sync::oneshot,
    time::{Duration, Instant, sleep},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, BalanceHandle, Drained, Ewma, LeastLoaded, LoadBalance, LoadBalanceLayer,
        Random, RoundRobin, Rule, WeightedRoundRobin,
    },
    call::{BoxError, CallScope, Endpoint, Endpoints, Veto},
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// A tick of the timer, and what a pick is given that was being made.
const MOMENT: Duration = Duration::from_millis(3);

type Req = Request<()>;

fn endpoint(name: &str) -> Endpoint {
    Endpoint::builder(format!("http://{name}"))
        .key(name)
        .build()
        .unwrap()
}

fn set<const N: usize>(names: [&str; N]) -> Endpoints {
    names.map(endpoint).into_iter().collect()
}

fn keys(endpoints: &Endpoints) -> Vec<String> {
    let snapshot = endpoints.snapshot();
    let keys = snapshot.endpoints().iter().map(|one| one.key().to_owned());
    keys.collect()
}

/// Answers when it is told to, in the order in which it was called.
#[derive(Clone, Default)]
struct Servers(Arc<Mutex<VecDeque<Open>>>);

/// Where a request went, and what answers it.
type Open = (String, oneshot::Sender<()>);

impl Servers {
    /// The first open request to this host is answered.
    fn answer(&self, host: &str) {
        let mut open = self.0.lock().unwrap();
        let place = open.iter().position(|(open, _)| open == host).unwrap();
        open.remove(place).unwrap().1.send(()).unwrap();
    }

    fn last(&self) -> String {
        self.0.lock().unwrap().back().unwrap().0.clone()
    }
}

impl Service<Req> for Servers {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<()>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let (answer, answered) = oneshot::channel();
        let host = request.uri().host().unwrap().to_owned();
        self.0.lock().unwrap().push_back((host, answer));
        async move {
            answered.await.map_err(|_| "no answer")?;
            Ok(Response::new(()))
        }
        .boxed()
    }
}

type Stack<R = RoundRobin> = LoadBalance<Servers, R>;

struct Scene<R = RoundRobin> {
    endpoints: Endpoints,
    servers: Servers,
    stack: Stack<R>,
    handle: BalanceHandle,
}

impl Scene {
    fn new<const N: usize>(names: [&str; N]) -> Self {
        Scene::with(names, RoundRobin::new())
    }
}

impl<R: Rule> Scene<R> {
    fn with<const N: usize>(names: [&str; N], rule: R) -> Self {
        let (endpoints, servers) = (set(names), Servers::default());
        let layer = LoadBalanceLayer::new(endpoints.clone()).rule(rule);
        Scene {
            stack: layer.layer(servers.clone()),
            handle: layer.handle(),
            endpoints,
            servers,
        }
    }

    /// A call on its way. Where it went is the host.
    fn call(&mut self) -> (String, task::Spawn<<Stack<R> as Service<Req>>::Future>) {
        let mut call = task::spawn(self.stack.call(Request::new(())));
        assert_pending!(call.poll());
        (self.servers.last(), call)
    }

    fn drain(&self, key: &'static str, limit: Duration) -> task::Spawn<BoxFuture<'static, Drained>> {
        let handle = self.handle.clone();
        task::spawn(async move { handle.drain(key, limit).await }.boxed())
    }

    fn veto(&self, key: &str, veto: Veto) {
        let snapshot = self.endpoints.snapshot();
        let mut all = snapshot.endpoints().iter();
        all.find(|one| one.key() == key)
            .unwrap()
            .eligibility()
            .forbid(veto);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_new_goes_there_and_it_is_removed_when_its_last_attempt_has_ended() {
    let mut scene = Scene::new(["a", "b"]);
    let mut open: Vec<_> = (0..4).map(|_| scene.call()).collect();
    let mut drain = scene.drain("b", MINUTE);
    assert_pending!(drain.poll());
    for _ in 0..10 {
        assert_eq!(scene.call().0, "a");
    }
    sleep(30 * SECOND).await;
    for (number, (to, call)) in open.iter_mut().enumerate() {
        assert_pending!(drain.poll(), "before the end of attempt {number}");
        assert_eq!(keys(&scene.endpoints), ["a", "b"]);
        scene.servers.answer(to);
        assert!(assert_ready!(call.poll()).is_ok());
    }
    assert!(drain.is_woken());
    assert_ready_eq!(drain.poll(), Drained::Empty);
    assert_eq!(keys(&scene.endpoints), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_last_attempt_however_that_ends() {
    let mut scene = Scene::new(["a", "b"]);
    for how in ["answered", "dropped", "broken"] {
        let mut open: Vec<_> = (0..4).map(|_| scene.call()).filter(|(to, _)| to == "b").collect();
        let mut drain = scene.drain("b", MINUTE);
        assert_pending!(drain.poll());
        sleep(SECOND).await;
        let (_, first) = open.pop().unwrap();
        drop(first);
        assert_pending!(drain.poll(), "one of two is left");
        assert_eq!(keys(&scene.endpoints), ["a", "b"]);
        let (_, mut last) = open.pop().unwrap();
        let (number, sender) = {
            let mut open = scene.servers.0.lock().unwrap();
            open.retain(|(host, sender)| host != "b" || !sender.is_closed());
            let place = open.iter().position(|(host, _)| host == "b").unwrap();
            (place, open.remove(place).unwrap().1)
        };
        assert!(number > 0);
        match how {
            "answered" => {
                sender.send(()).unwrap();
                assert!(assert_ready!(last.poll()).is_ok());
            }
            "broken" => {
                drop(sender);
                assert!(assert_ready!(last.poll()).is_err());
            }
            _ => drop(last),
        }
        assert!(drain.is_woken(), "{how}");
        assert_ready_eq!(drain.poll(), Drained::Empty);
        assert_eq!(keys(&scene.endpoints), ["a"]);
        scene.endpoints.insert(endpoint("b"));
        scene.servers.0.lock().unwrap().clear();
    }
}

#[tokio::test(start_paused = true)]
async fn one_without_attempts_is_gone_in_a_moment() {
    let scene = Scene::new(["a", "b"]);
    let began = Instant::now();
    assert_eq!(scene.handle.drain("b", MINUTE).await, Drained::Empty);
    // A pick may be about to send something there.
    assert!(began.elapsed() >= Duration::from_millis(1) && began.elapsed() <= MOMENT);
    assert_eq!(keys(&scene.endpoints), ["a"]);
    assert_eq!(scene.handle.drain("b", MINUTE).await, Drained::NotThere);
    assert_eq!(scene.handle.drain("a", Duration::ZERO).await, Drained::Empty);
    assert!(scene.endpoints.is_empty());
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_it_is_removed_and_what_is_under_way_goes_on() {
    let mut scene = Scene::new(["a", "b"]);
    let open: Vec<_> = (0..6).map(|_| scene.call()).collect();
    let began = Instant::now();
    let drained = scene.handle.drain("b", 5 * SECOND).await;
    assert_eq!(drained, Drained::AttemptsLeft(3));
    assert!(began.elapsed() >= 5 * SECOND && began.elapsed() <= 5 * SECOND + MOMENT);
    assert_eq!(keys(&scene.endpoints), ["a"]);
    for (to, mut call) in open {
        scene.servers.answer(&to);
        assert!(assert_ready!(call.poll()).is_ok());
    }
    let mut scene = Scene::new(["a", "b"]);
    let _open = [scene.call(), scene.call()];
    assert_eq!(
        scene.handle.drain("b", Duration::ZERO).await,
        Drained::AttemptsLeft(1)
    );
    scene.endpoints.insert(endpoint("b"));
    let _open = [scene.call(), scene.call()];
    let mut endless = scene.drain("b", Duration::MAX);
    assert_pending!(endless.poll());
    sleep(1_000 * MINUTE).await;
    assert_pending!(endless.poll());
}

#[tokio::test(start_paused = true)]
async fn dropping_it_takes_its_veto_back_and_no_other() {
    let mut scene = Scene::new(["a", "b"]);
    let _open = [scene.call(), scene.call()];
    scene.veto("b", Veto::User);
    let mut drain = scene.drain("b", MINUTE);
    assert_pending!(drain.poll());
    let b = scene.endpoints.snapshot().endpoints()[1].clone();
    assert!(b.eligibility().is_forbidden_by(Veto::Drain));
    drop(drain);
    assert!(!b.eligibility().is_forbidden_by(Veto::Drain));
    assert!(b.eligibility().is_forbidden_by(Veto::User));
    assert_eq!(keys(&scene.endpoints), ["a", "b"]);
    b.eligibility().allow(Veto::User);
    let mut went = [scene.call().0, scene.call().0];
    went.sort();
    assert_eq!(went, ["a", "b"]);
    assert_eq!(scene.handle.drain("b", SECOND).await, Drained::AttemptsLeft(1));
    assert!(b.eligibility().is_eligible(), "it can be put in again");
}

#[tokio::test(start_paused = true)]
async fn each_drain_of_an_endpoint_has_a_veto_of_its_own_and_so_has_the_user() {
    let mut scene = Scene::new(["a", "b"]);
    let open = [scene.call(), scene.call()];
    let b = scene.endpoints.snapshot().endpoints()[1].clone();
    let [mut given_up, mut goes_on] = [(); 2].map(|()| scene.drain("b", MINUTE));
    assert_pending!(given_up.poll());
    assert_pending!(goes_on.poll());
    drop(given_up);
    assert!(b.eligibility().is_forbidden_by(Veto::Drain));
    assert_eq!([scene.call().0, scene.call().0], ["a", "a"]);
    drop(goes_on);
    assert!(b.eligibility().is_eligible());
    b.eligibility().forbid(Veto::Drain);
    let mut given_up = scene.drain("b", MINUTE);
    assert_pending!(given_up.poll());
    drop(given_up);
    assert!(b.eligibility().is_forbidden_by(Veto::Drain), "all is as it was");
    b.eligibility().allow(Veto::Drain);
    // Both end, and so does that of another balancer over the set.
    let other = LoadBalanceLayer::new(scene.endpoints.clone()).handle();
    let [mut one, mut two] = [(); 2].map(|()| scene.drain("b", MINUTE));
    let mut three = task::spawn(async move { other.drain("b", MINUTE).await }.boxed());
    assert_pending!(one.poll());
    assert_pending!(two.poll());
    assert_pending!(three.poll());
    sleep(MOMENT).await;
    assert_ready_eq!(three.poll(), Drained::Empty);
    assert_pending!(one.poll());
    drop(open);
    assert_ready_eq!(one.poll(), Drained::Empty);
    assert_ready_eq!(two.poll(), Drained::Empty);
    assert_eq!(keys(&scene.endpoints), ["a"]);
    assert!(b.eligibility().is_eligible(), "to be put in again");
}

#[tokio::test(start_paused = true)]
async fn another_description_of_the_endpoint_is_drained_as_well() {
    let mut scene = Scene::new(["a", "b"]);
    let open = [scene.call(), scene.call()];
    let old = scene.endpoints.snapshot().endpoints()[1].clone();
    let mut drain = scene.drain("b", MINUTE);
    assert_pending!(drain.poll());
    let heavier = Endpoint::builder("http://b").key("b").weight(2).build().unwrap();
    scene.endpoints.insert(heavier.clone());
    assert!(drain.is_woken());
    assert_pending!(drain.poll());
    assert!(heavier.eligibility().is_forbidden_by(Veto::Drain));
    assert!(!old.eligibility().is_forbidden_by(Veto::Drain));
    assert_eq!([scene.call().0, scene.call().0], ["a", "a"]);
    sleep(MOMENT).await;
    drop(open);
    assert_ready_eq!(drain.poll(), Drained::Empty);
    assert_eq!(keys(&scene.endpoints), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_put_in_meanwhile_is_removed_all_the_same_and_stays_if_it_is_put_in_afterwards() {
    let scene = Scene::new(["a", "b"]);
    let mut drain = scene.drain("b", MINUTE);
    assert_pending!(drain.poll());
    scene.endpoints.insert(endpoint("b"));
    sleep(MOMENT).await;
    assert_ready_eq!(drain.poll(), Drained::Empty);
    assert_eq!(keys(&scene.endpoints), ["a"]);
    scene.endpoints.insert(endpoint("b"));
    assert_eq!(keys(&scene.endpoints), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_removed_meanwhile_is_waited_for_and_one_that_comes_back_is_another() {
    for sees_it_go in [true, false] {
        let mut scene = Scene::new(["a", "b"]);
        let open = [scene.call(), scene.call()];
        let mut drain = scene.drain("b", MINUTE);
        assert_pending!(drain.poll());
        scene.endpoints.remove("b");
        // Somebody sees that it is gone: otherwise it would only have another description.
        if sees_it_go {
            assert_pending!(drain.poll());
        } else {
            assert_eq!(scene.handle.endpoints().len(), 1);
        }
        scene.endpoints.insert(endpoint("b"));
        assert_pending!(drain.poll());
        let _new = [scene.call(), scene.call()];
        sleep(MOMENT).await;
        assert_pending!(drain.poll());
        drop(open);
        assert!(drain.is_woken());
        assert_ready_eq!(drain.poll(), Drained::Empty);
        assert_eq!(
            keys(&scene.endpoints),
            ["a", "b"],
            "it is not for this one to remove"
        );
        let b = scene.endpoints.snapshot().endpoints()[1].clone();
        assert!(b.eligibility().is_eligible());
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_picked_only_where_there_is_no_other() {
    async fn check<R: Rule>(rule: R) {
        let mut scene = Scene::with(["a", "b", "c"], rule);
        let mut open = Vec::new();
        while !open.iter().any(|(to, _)| to == "b") {
            open.push(scene.call());
        }
        let mut drain = scene.drain("b", MINUTE);
        assert_pending!(drain.poll());
        scene.veto("a", Veto::Breaker);
        scene.veto("c", Veto::Outlier);
        let mut went = Vec::new();
        for _ in 0..40 {
            went.push(scene.call().0);
        }
        assert!(!went.contains(&"b".to_owned()), "{went:?}");
        assert!(
            went.contains(&"a".to_owned()) && went.contains(&"c".to_owned()),
            "{went:?}"
        );
        scene.endpoints.remove("a");
        scene.endpoints.remove("c");
        assert_eq!(scene.call().0, "b");
    }
    check(RoundRobin::new()).await;
    check(Random::seeded(1)).await;
    check(LeastLoaded::seeded(1)).await;
    check(Ewma::builder().seed(1).build().unwrap()).await;
    check(WeightedRoundRobin::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_ribbons_does_not_pick_it_even_there() {
    let mut scene = Scene::with(["a"], AvailabilityFiltering::new());
    let _open = scene.call();
    let mut drain = scene.drain("a", MINUTE);
    assert_pending!(drain.poll());
    assert!(scene.stack.oneshot(Request::new(())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_to_one_that_was_tried_rather_than_to_it() {
    let mut scene = Scene::new(["a", "b"]);
    let _open = [scene.call(), scene.call()];
    let mut drain = scene.drain("b", MINUTE);
    assert_pending!(drain.poll());
    scene.veto("a", Veto::Breaker);
    let mut scope = CallScope::begin();
    for _ in 0..3 {
        let mut attempt = task::spawn(scope.enter(|| scene.stack.call(Request::new(()))));
        assert_pending!(scope.enter(|| attempt.poll()));
        assert_eq!(scene.servers.last(), "a");
        scene.servers.0.lock().unwrap().pop_back();
        assert!(assert_ready!(scope.enter(|| attempt.poll())).is_err());
    }
}

#[derive(Clone)]
struct Yielding;

impl Service<Req> for Yielding {
    type Response = ();
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Req) -> Self::Future {
        tokio::task::yield_now().map(Ok).boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_parallel_calls_each_drain_ends() {
    let names: Vec<_> = (0..50).map(|n| format!("h{n}")).collect();
    let endpoints: Endpoints = names.iter().map(|name| endpoint(name)).collect();
    let layer = LoadBalanceLayer::new(endpoints.clone());
    let stack = layer.layer(Yielding);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let stack = stack.clone();
            tokio::spawn(async move {
                loop {
                    stack.clone().oneshot(Request::new(())).await.unwrap();
                }
            })
        })
        .collect();
    let drains = names[1..].iter().map(|name| {
        let (handle, name) = (layer.handle(), name.clone());
        tokio::spawn(async move { handle.drain(&name, Duration::MAX).await })
    });
    let drains: Vec<_> = drains.collect();
    for drain in drains {
        let drained = tokio::time::timeout(MINUTE, drain).await.unwrap().unwrap();
        assert_eq!(drained, Drained::Empty);
    }
    assert_eq!(keys(&endpoints), ["h0"]);
    for call in calls {
        call.abort();
    }
}
