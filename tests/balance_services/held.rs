//! What a call holds while it waits, and code of the user that does more than it should.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceExt, discover::Change};
use tower_outbound::{
    balance::{BalanceServices, Drained, Only, OutlierEjection, Random},
    call::{BoxError, Endpoint, Services, Veto},
};

use super::mock::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_that_is_drained_is_not_called_by_a_call_that_has_waited_for_it_before() {
    for is_there_another in [true, false] {
        let [a, b] = ["a", "b"].map(|name| Server::that_is(name, Ready::Busy));
        let set = services([&a, &b]);
        if !is_there_another {
            set.remove("b");
        }
        let balance = in_turn(&set).ready_wait(10 * SECOND).unwrap();
        let mut call = task::spawn(balance.clone().call(get()));
        assert_pending!(call.poll());
        let handle = balance.handle();
        let mut drain = task::spawn(handle.drain("a", SECOND).boxed());
        assert_pending!(drain.poll());
        a.becomes(Ready::Yes);
        assert!(call.is_woken());
        if is_there_another {
            assert_pending!(call.poll());
            b.becomes(Ready::Yes);
            assert!(call.is_woken());
            assert_eq!(*assert_ready_ok!(call.poll()).body(), "b");
            assert_eq!(a.calls(), 0);
        } else {
            // As a new call would.
            assert_eq!(*assert_ready_ok!(call.poll()).body(), "a");
        }
        tokio::time::advance(SECOND).await;
        assert_eq!(drain.await, Drained::Empty);
    }
}

#[tokio::test(start_paused = true)]
async fn one_whose_endpoint_has_gone_is_not_called_by_a_call_that_has_waited_for_it_before() {
    let [a, b] = ["a", "b"].map(|name| Server::that_is(name, Ready::Busy));
    let set = services([&a, &b]);
    let balance = in_turn(&set);
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    set.endpoints().remove("a");
    a.becomes(Ready::Yes);
    assert_pending!(call.poll());
    assert_eq!((a.calls(), a.instances()), (0, 1));
    b.becomes(Ready::Yes);
    assert_eq!(*assert_ready_ok!(call.poll()).body(), "b");
    // The last one.
    b.becomes(Ready::Busy);
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    set.endpoints().remove("b");
    assert!(call.poll().is_ready(), "the set is empty");
}

#[tokio::test]
async fn what_was_put_in_by_hand_gets_its_service_when_that_is_put_in() {
    let [a] = servers(["a"]);
    for way in 0..3 {
        let set = Services::new();
        let by_hand = || set.endpoints().insert(endpoint("a"));
        let put = || match way {
            0 | 1 => set.insert(endpoint("a"), a.service()),
            _ => set.replace([(endpoint("a"), a.service())]),
        };
        if way == 1 {
            put();
            set.endpoints().remove("a");
        }
        by_hand();
        assert!(in_turn(&set).oneshot(get()).await.is_err());
        put();
        assert_eq!(*in_turn(&set).oneshot(get()).await.unwrap().body(), "a", "{way}");
    }
}

/// Polls a call within another thread when it is woken, and waits for that.
struct PollsAtOnce<F: Future> {
    call: Mutex<Option<Pin<Box<F>>>>,
    ended: Mutex<Option<F::Output>>,
}

impl<F: Future<Output: Send> + Send + 'static> PollsAtOnce<F> {
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut call = self.call.lock().unwrap();
        if let Some(running) = &mut *call {
            if let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                *call = None;
                *self.ended.lock().unwrap() = Some(ended);
            }
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Wake for PollsAtOnce<F> {
    fn wake(self: Arc<Self>) {
        thread::spawn(move || self.poll()).join().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_looks_while_the_change_is_being_made_misses_nothing() {
    let [old, new] = [Server::that_is("old", Ready::Busy), Server::new("new")];
    for way in 0..4 {
        let set = Services::new();
        set.insert(endpoint("a"), old.service());
        let balance = in_turn(&set);
        let call = Arc::new(PollsAtOnce {
            call: Mutex::new(Some(Box::pin(balance.oneshot(get())))),
            ended: Mutex::default(),
        });
        // Within the runtime, as far as the clock is concerned.
        let handle = tokio::runtime::Handle::current();
        let _in = handle.enter();
        call.poll();
        assert!(call.ended.lock().unwrap().is_none());
        let zoned = Endpoint::builder("http://a").key("a").zone("z").build().unwrap();
        let is_answered = match way {
            0 => {
                set.insert(zoned, new.service());
                true
            }
            1 => {
                set.replace([(zoned, new.service())]);
                true
            }
            2 => {
                set.insert(endpoint("a"), new.service());
                true
            }
            _ => {
                set.remove("a");
                false
            }
        };
        let outcome = call.ended.lock().unwrap().take();
        assert_eq!(
            outcome.unwrap_or_else(|| panic!("{way}: it waits")).is_ok(),
            is_answered,
            "{way}"
        );
    }
    assert_eq!((old.calls(), new.calls()), (0, 3));
}

/// A service that puts its own endpoint in and takes it out as it is dropped.
struct Meddler {
    to: To,
    set: Arc<Mutex<Option<Services<Meddler>>>>,
}

impl Clone for Meddler {
    fn clone(&self) -> Self {
        Meddler {
            to: self.to.clone(),
            set: Arc::default(),
        }
    }
}

impl Service<Req> for Meddler {
    type Response = Rsp;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Rsp, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Req>::poll_ready(&mut self.to, cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.to.call(request)
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        let set = self.set.lock().unwrap().clone();
        if let Some(set) = set {
            set.remove("no such");
            set.endpoints().insert(endpoint("meddled"));
            set.endpoints().remove("meddled");
        }
    }
}

#[test]
fn a_service_may_change_the_set_as_it_is_dropped() {
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(meddle());
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(Duration::from_secs(20))
        .expect("they wait for each other");
}

async fn meddle() {
    let [a] = servers(["a"]);
    let known = Arc::new(Mutex::new(None));
    let meddler = || Meddler {
        to: a.service(),
        set: known.clone(),
    };
    let set = Services::new();
    *known.lock().unwrap() = Some(set.clone());
    let zoned = |zone: &str| Endpoint::builder("http://a").key("a").zone(zone).build().unwrap();
    for zone in ["x", "x", "y", "x"] {
        set.insert(zoned(zone), meddler());
        set.replace([
            (zoned(zone), meddler()),
            (zoned("z"), meddler()),
            (zoned(zone), meddler()),
        ]);
        set.remove("a");
        set.insert(zoned(zone), meddler());
    }
    set.replace([]);
    assert_eq!(a.instances(), 0);
    *known.lock().unwrap() = None;
    // The same from a stream, where one comes and goes in one batch.
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<Result<Change<u8, Meddler>, BoxError>>();
    let changes = stream::poll_fn(move |cx| told.poll_recv(cx));
    let set = Services::from_stream(changes.boxed(), |_: &u8| Ok::<_, BoxError>(endpoint("a")));
    *known.lock().unwrap() = Some(set.clone());
    let mut balance = BalanceServices::new(set.clone());
    ServiceExt::<Req>::ready(&mut balance).await.unwrap();
    for by_hand in [false, true, false] {
        for changes in ["+-", "+", "+", "-", "+-+", "++", "-+-", "-"] {
            for change in changes.chars() {
                let change = if change == '+' {
                    Change::Insert(1, meddler())
                } else {
                    Change::Remove(1)
                };
                tell.send(Ok(change)).unwrap();
            }
            if by_hand {
                set.insert(endpoint("b"), meddler());
            }
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }
    *known.lock().unwrap() = None;
    drop((set, balance));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(a.instances(), 0);
}

/// Panics where it is told to.
struct Panics {
    to: To,
    at: Arc<AtomicUsize>,
}

impl Panics {
    fn at(&self, place: usize) {
        assert_ne!(self.at.load(SeqCst), place, "told to");
    }
}

impl Clone for Panics {
    fn clone(&self) -> Self {
        self.at(1);
        Panics {
            to: self.to.clone(),
            at: self.at.clone(),
        }
    }
}

impl Service<Req> for Panics {
    type Response = Rsp;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Rsp, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.at(2);
        Service::<Req>::poll_ready(&mut self.to, cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.at(3);
        let (call, at) = (self.to.call(request), self.at.clone());
        async move {
            assert_ne!(at.load(SeqCst), 4, "told to");
            call.await
        }
        .boxed()
    }
}

/// Panics as it is dropped, unless that is because of another panic.
struct PanicsAtTheEnd {
    _alive: Arc<()>,
}

impl Drop for PanicsAtTheEnd {
    fn drop(&mut self) {
        assert!(thread::panicking(), "it always does");
    }
}

#[test]
fn a_service_that_panics_as_it_is_dropped_keeps_no_other_and_leaves_the_set_whole() {
    let alive = Arc::new(());
    let service = || PanicsAtTheEnd {
        _alive: alive.clone(),
    };
    let four = ["a", "b", "c", "d"].map(|key| (endpoint(key), service()));
    let set: Services<_> = four.into_iter().collect();
    let panics = |change: &dyn Fn()| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        assert!(caught.is_err());
    };
    panics(&|| {
        set.remove("a");
    });
    assert_eq!((set.len(), Arc::strong_count(&alive)), (3, 4));
    panics(&|| set.insert(endpoint("b"), service()));
    assert_eq!((set.len(), Arc::strong_count(&alive)), (3, 4));
    set.insert(endpoint("a"), service());
    assert_eq!((set.len(), Arc::strong_count(&alive)), (4, 5));
    // Who has picked an endpoint, or has it in an error, may keep it for longer than the set is there.
    let kept = set.endpoints().snapshot();
    let set = Mutex::new(Some(set));
    panics(&|| drop(set.lock().unwrap_or_else(PoisonError::into_inner).take()));
    assert_eq!(Arc::strong_count(&alive), 1, "of {}", kept.endpoints().len());
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_service_leaves_nothing_behind() {
    let [a] = servers(["a"]);
    let at = Arc::new(AtomicUsize::new(0));
    let set = Services::new();
    set.insert(
        endpoint("a"),
        Panics {
            to: a.service(),
            at: at.clone(),
        },
    );
    let outliers = OutlierEjection::builder()
        .consecutive_failures(1)
        .build()
        .unwrap();
    let balance = BalanceServices::new(set.clone()).outliers(outliers);
    for waits in [false, true] {
        for place in 1..=4 {
            let call = tokio::spawn({
                let mut balance = balance.clone();
                if waits {
                    a.becomes(Ready::Busy);
                }
                async move { balance.call(get()).await.map(drop) }
            });
            if waits {
                tokio::task::yield_now().await;
            }
            at.store(place, SeqCst);
            a.becomes(Ready::Yes);
            let panicked = call.await.is_err();
            // One that waits has its clone.
            assert_eq!(panicked, !(waits && place == 1), "{waits} {place}");
            at.store(0, SeqCst);
            assert_eq!(balance.handle().total().in_flight(), 0);
            assert_eq!(a.instances(), 1, "{waits} {place}");
            balance.clone().oneshot(get()).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_readiness_gives_its_probe_to_another() {
    let [a, b] = servers(["a", "b"]);
    *a.fails.lock().unwrap() = true;
    let outliers = OutlierEjection::builder()
        .consecutive_failures(1)
        .jitter(0.0)
        .build()
        .unwrap();
    let balance = in_turn(&services([&a, &b]))
        .outliers(outliers)
        .ready_wait(5 * SECOND)
        .unwrap();
    for _ in 0..4 {
        let _ = balance.clone().oneshot(get()).await;
    }
    assert_eq!((a.calls(), balance.handle().ejection("a").is_some()), (1, true));
    *a.fails.lock().unwrap() = false;
    tokio::time::advance(31 * SECOND).await;
    for ends in 0..3 {
        [&a, &b].iter().for_each(|server| server.becomes(Ready::Busy));
        let mut calls = [0; 3].map(|_| task::spawn(balance.clone().call(get())));
        calls.iter_mut().for_each(|call| assert_pending!(call.poll()));
        assert!(balance.handle().ejection("a").unwrap().is_probing(), "{ends}");
        match ends {
            // Given up.
            0 => {}
            // The limit.
            1 => {
                tokio::time::advance(6 * SECOND).await;
                calls.iter_mut().for_each(|call| assert!(call.poll().is_ready()));
            }
            // Another one is ready.
            _ => {
                b.becomes(Ready::Yes);
                calls.iter_mut().for_each(|call| assert!(call.poll().is_ready()));
            }
        }
    }
    [&a, &b].iter().for_each(|server| server.becomes(Ready::Yes));
    tokio::time::advance(SECOND).await;
    for _ in 0..8 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert!(a.calls() > 1 && balance.handle().ejection("a").is_none());
}

/// RDY-10.
#[tokio::test(start_paused = true)]
async fn one_that_another_call_has_found_ready_is_not_forgotten_by_a_call_that_is_polled_for_no_reason() {
    let a = Server::that_is("a", Ready::Broken);
    let balance = in_turn(&services([&a]))
        .when_empty(tower_outbound::balance::WhenEmpty::Wait(20 * SECOND))
        .unwrap();
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    a.becomes(Ready::Yes);
    balance.clone().oneshot(get()).await.unwrap();
    assert_pending!(call.poll());
    tokio::time::advance(SECOND / 10).await;
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
}

/// RDY-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_while_readiness_flaps_in_all_threads() {
    let all = servers(["a", "b", "c", "d"]);
    let set = services(&all);
    let balance = BalanceServices::new(set.clone())
        .rule(Random::seeded(1))
        .when_empty(tower_outbound::balance::WhenEmpty::Wait(20 * SECOND))
        .unwrap()
        .ready_wait(20 * SECOND)
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let (balance, stop) = (balance.clone(), stop.clone());
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                while !stop.load(SeqCst) {
                    let start = Instant::now();
                    balance.clone().oneshot(get()).await.unwrap();
                    longest = longest.max(start.elapsed());
                    tokio::task::yield_now().await;
                }
                longest
            })
        })
        .collect();
    let flaps: Vec<_> = (0..2_u64)
        .map(|seed| {
            let (all, stop, set) = (all.clone(), stop.clone(), set.clone());
            thread::spawn(move || {
                let mut dice = fastrand::Rng::with_seed(seed);
                while !stop.load(SeqCst) {
                    let server = &all[dice.usize(..4)];
                    match dice.u8(..20) {
                        0 => server.becomes(Ready::Broken),
                        1..8 => server.becomes(Ready::Busy),
                        8..17 => server.becomes(Ready::Yes),
                        17 => set.insert(endpoint(server.name), server.service()),
                        18 => {
                            let zone = ["x", "y"][dice.usize(..2)];
                            let zoned = Endpoint::builder(format!("http://{}", server.name));
                            let zoned = zoned.key(server.name).zone(zone).build().unwrap();
                            set.insert(zoned, server.service());
                        }
                        _ => drop(set.remove(server.name)),
                    }
                    thread::yield_now();
                }
            })
        })
        .collect();
    tokio::time::sleep(2 * SECOND).await;
    stop.store(true, SeqCst);
    for flap in flaps {
        tokio::task::spawn_blocking(|| flap.join().unwrap())
            .await
            .unwrap();
    }
    // From here on one is ready, and all end soon.
    let start = Instant::now();
    all[0].becomes(Ready::Yes);
    set.replace([(endpoint("a"), all[0].service())]);
    let mut longest = Duration::ZERO;
    for call in calls {
        longest = longest.max(call.await.unwrap());
    }
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    assert!(longest < 15 * SECOND, "{longest:?}");
    assert_eq!(balance.handle().total().in_flight(), 0);
    let instances: usize = all.iter().map(|server| server.instances()).sum();
    assert_eq!(instances, 1);
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_chooses_none_is_asked_again_while_the_call_waits() {
    let [a] = servers(["a"]);
    let wants = Arc::new(AtomicBool::new(false));
    let asked = wants.clone();
    let only_if = Only::live(move |_| asked.load(SeqCst), Random::new());
    let balance = BalanceServices::new(services([&a]))
        .rule(only_if)
        .when_empty(tower_outbound::balance::WhenEmpty::Wait(SECOND))
        .unwrap();
    let start = Instant::now();
    let call = tokio::spawn(balance.oneshot(get()));
    tokio::time::sleep(SECOND / 4).await;
    wants.store(true, SeqCst);
    call.await.unwrap().unwrap();
    assert!(
        start.elapsed() <= SECOND / 4 + 2 * SECOND / 100,
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_while_it_is_waited_for_rests_as_one_that_failed_at_once() {
    let [a, b] = ["a", "b"].map(|name| Server::that_is(name, Ready::Busy));
    let set = services([&a, &b]);
    let balance = in_turn(&set);
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    tokio::time::advance(SECOND / 2).await;
    a.becomes(Ready::Broken);
    assert_pending!(call.poll());
    let one = set.endpoints().snapshot().endpoints()[0].clone();
    assert!(one.eligibility().is_forbidden_by(Veto::NotReady));
}

#[tokio::test]
async fn an_endpoint_that_one_change_takes_out_and_puts_back_keeps_its_service() {
    let [old, new] = servers(["old", "new"]);
    let set = Services::new();
    let one = endpoint("a");
    set.insert(one.clone(), old.service());
    let zoned = Endpoint::builder("http://a").key("a").zone("z").build().unwrap();
    set.replace([(zoned, old.service()), (one, new.service())]);
    assert_eq!(*in_turn(&set).oneshot(get()).await.unwrap().body(), "new");
    assert_eq!((old.instances(), new.instances()), (0, 1));
}

#[tokio::test]
async fn what_is_put_in_by_hand_beside_a_stream_holds_until_the_stream_says_something() {
    let all = servers(["a", "b", "c"]);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<Result<Change<u8, To>, BoxError>>();
    let changes = stream::poll_fn(move |cx| told.poll_recv(cx));
    let set = Services::from_stream(changes, |name: &u8| {
        Ok::<_, BoxError>(endpoint(["a", "b", "c"][*name as usize]))
    });
    let keys = || -> Vec<String> {
        let snapshot = set.endpoints().snapshot();
        snapshot
            .endpoints()
            .iter()
            .map(|one| one.key().to_owned())
            .collect()
    };
    tell.send(Ok(Change::Insert(0, all[0].service()))).unwrap();
    let balance = in_turn(&set);
    balance.clone().oneshot(get()).await.unwrap();
    set.insert(endpoint("b"), all[1].service());
    set.remove("a");
    assert_eq!(keys(), ["b"]);
    tell.send(Ok(Change::Insert(2, all[2].service()))).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(keys(), ["a", "c"]);
    assert_eq!([0, 1, 2].map(|n: usize| all[n].instances()), [1, 0, 1]);
    // Into the set of the endpoints; the second time it is no change.
    set.endpoints().insert(endpoint("x"));
    set.endpoints().insert(endpoint("x"));
    tell.send(Ok(Change::Remove(2))).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(keys(), ["a"]);
    assert_eq!(*balance.oneshot(get()).await.unwrap().body(), "a");
}

#[tokio::test(start_paused = true)]
async fn one_that_was_drained_and_is_put_in_again_is_called_again() {
    let [a, b] = servers(["a", "b"]);
    let set = services([&a, &b]);
    let balance = in_turn(&set);
    assert_eq!(balance.handle().drain("a", SECOND).await, Drained::Empty);
    set.insert(endpoint("a"), a.service());
    let mut went = Vec::new();
    for _ in 0..4 {
        went.push(balance.clone().oneshot(get()).await.unwrap().into_body());
    }
    went.sort();
    assert_eq!(went, ["a", "a", "b", "b"]);
}
