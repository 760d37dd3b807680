//! Services that come, go, and are replaced.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, StreamExt, stream};
use proptest::prelude::*;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{
    Service, ServiceExt,
    discover::{Change, ServiceList},
    limit::ConcurrencyLimit,
    util::BoxCloneSyncService,
};
use tower_outbound::{
    balance::{BalanceServices, BalanceServicesFuture, Candidates, LeastLoaded, Random, RoundRobin},
    call::{BoxError, Endpoint, NoEndpoint, Services, Veto},
};

use super::mock::*;

/// Goes to B while it is there, and then to the one with the fewest calls.
fn to_b(candidates: &Candidates<'_>) -> usize {
    let b = candidates.iter().position(|one| one.endpoint().key() == "b");
    b.unwrap_or_else(|| {
        let loads = candidates.iter().map(|one| one.in_flight());
        loads.enumerate().min_by_key(|&(_, load)| load).unwrap().0
    })
}

/// BAL-07.
#[tokio::test]
async fn one_that_goes_between_ready_and_call_or_while_it_is_waited_for_gets_nothing() {
    let all = [
        Server::new("a"),
        Server::that_is("b", Ready::Busy),
        Server::new("c"),
    ];
    let set = services(&all);
    let balance = BalanceServices::new(set.clone()).rule(to_b);
    // C has ten calls.
    all[2].gate.forget_permits(1_000_000);
    let only_c = |candidates: &Candidates<'_>| candidates.len() - 1;
    let open_c = BalanceServices::new(set.clone()).rule(only_c);
    let mut open: Vec<_> = (0..10).map(|_| task::spawn(open_c.clone().call(get()))).collect();
    open.iter_mut().for_each(|call| assert_pending!(call.poll()));
    // Chosen and taken out before the call is polled.
    let mut idle = balance.clone();
    ServiceExt::<Req>::ready(&mut idle).await.unwrap();
    let mut call = task::spawn(idle.call(get()));
    set.remove("b");
    assert_eq!(*assert_ready_ok!(call.poll()).body(), "a");
    // Waited for and taken out.
    set.insert(endpoint("b"), all[1].service());
    all[0].becomes(Ready::Busy);
    all[2].becomes(Ready::Busy);
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    set.remove("b");
    all[1].becomes(Ready::Yes);
    assert_pending!(call.poll());
    all[0].becomes(Ready::Yes);
    assert_eq!(*assert_ready_ok!(call.poll()).body(), "a");
    assert_eq!((all[1].calls(), all[1].instances()), (0, 0));
}

#[tokio::test]
async fn calls_under_way_end_on_a_service_that_was_taken_out_and_it_is_dropped_with_the_last() {
    let [a, b] = servers(["a", "b"]);
    a.gate.forget_permits(1_000_000);
    let set = services([&a]);
    let kept: Endpoint = set.endpoints().snapshot().endpoints()[0].clone();
    let balance = in_turn(&set);
    let mut calls: Vec<_> = (0..3).map(|_| task::spawn(balance.clone().call(get()))).collect();
    calls.iter_mut().for_each(|call| assert_pending!(call.poll()));
    set.insert(endpoint("b"), b.service());
    assert!(set.remove("a") && !set.remove("a"));
    for _ in 0..5 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!((a.calls(), b.calls()), (3, 5));
    assert_eq!(a.instances(), 3, "one for each call that is under way");
    a.gate.add_permits(1);
    for call in &mut calls {
        assert_eq!(*assert_ready_ok!(call.poll()).body(), "a");
    }
    drop(calls);
    assert_eq!(a.instances(), 0, "also while somebody keeps the endpoint");
    drop(kept);
    let handle = balance.handle();
    drop((set, balance));
    assert_eq!(
        (b.instances(), handle.endpoints().len()),
        (0, 1),
        "a handle keeps none"
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_is_replaced_is_called_from_then_on_and_figures_and_vetoes_stay() {
    let [old, new, other] = [Server::new("old"), Server::new("new"), Server::new("other")];
    let set = Services::new();
    set.insert(endpoint("a"), old.service());
    set.insert(endpoint("b"), other.service());
    let balance = in_turn(&set);
    for _ in 0..4 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    let before = set.endpoints().snapshot();
    before.endpoints()[1].eligibility().forbid(Veto::User);
    set.insert(endpoint("a"), new.service());
    set.replace([(endpoint("a"), new.service()), (endpoint("b"), other.service())]);
    let after = set.endpoints().snapshot();
    assert_eq!(after.version(), before.version(), "the endpoints are the same");
    assert_eq!(old.instances(), 0);
    for _ in 0..4 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!((old.calls(), new.calls(), other.calls()), (2, 4, 2));
    assert_eq!(balance.handle().endpoint("a").unwrap().successes(), 6);
    // Another description is another endpoint; figures stay all the same.
    let zoned = Endpoint::builder("http://a").key("a").zone("z").build().unwrap();
    set.insert(zoned, old.service());
    assert_eq!(new.instances(), 0);
    balance.clone().oneshot(get()).await.unwrap();
    assert_eq!(
        (old.calls(), balance.handle().endpoint("a").unwrap().successes()),
        (3, 7)
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_woken_by_a_service_that_comes_or_is_replaced() {
    for ready in [Ready::Busy, Ready::Broken] {
        for replaces in [true, false] {
            let (bad, good) = (Server::that_is("bad", ready), Server::new("good"));
            let set = Services::new();
            set.insert(endpoint("a"), bad.service());
            let balance = in_turn(&set)
                .when_empty(tower_outbound::balance::WhenEmpty::Wait(Duration::from_secs(1)))
                .unwrap();
            let start = Instant::now();
            let mut call = task::spawn(balance.clone().call(get()));
            assert_pending!(call.poll());
            let key = if replaces { "a" } else { "b" };
            set.insert(endpoint(key), good.service());
            assert!(call.is_woken(), "{ready:?}, {key}");
            assert_eq!(*assert_ready_ok!(call.poll()).body(), "good");
            assert!(start.elapsed().is_zero());
        }
    }
}

#[tokio::test]
async fn an_endpoint_belongs_to_one_set_and_can_come_back_to_it() {
    let [a, b] = servers(["a", "b"]);
    let shared = endpoint("x");
    let [one, two] = [Services::new(), Services::new()];
    one.insert(shared.clone(), a.service());
    two.insert(shared.clone(), b.service());
    assert_eq!(*in_turn(&one).oneshot(get()).await.unwrap().body(), "a");
    assert_eq!(*in_turn(&two).oneshot(get()).await.unwrap().body(), "b");
    one.remove("x");
    assert_eq!(*in_turn(&two).oneshot(get()).await.unwrap().body(), "b");
    one.insert(shared.clone(), b.service());
    assert_eq!(*in_turn(&one).oneshot(get()).await.unwrap().body(), "b");
    assert_eq!(one.endpoints().snapshot().endpoints()[0], shared);
    // What was put in by hand has no service.
    one.endpoints().insert(endpoint("y"));
    one.endpoints().insert(endpoint("z"));
    let balance = in_turn(&one);
    for _ in 0..6 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    one.remove("x");
    assert!(balance.oneshot(get()).await.is_err());
}

#[tokio::test]
async fn an_endpoint_that_was_taken_out_by_itself_gets_no_calls_until_it_is_put_in_again() {
    let [a, b] = servers(["a", "b"]);
    let set = services([&a, &b]);
    let balance = in_turn(&set);
    let went = async || {
        for _ in 0..4 {
            balance.clone().oneshot(get()).await.unwrap();
        }
        (a.calls(), b.calls())
    };
    set.endpoints().remove("a");
    assert_eq!(went().await, (0, 4));
    set.insert(endpoint("a"), a.service());
    assert_eq!(went().await, (2, 6));
    set.endpoints().replace([]);
    set.replace([(endpoint("a"), a.service())]);
    assert_eq!(went().await, (6, 6));
    assert_eq!((a.instances(), b.instances()), (1, 0));
}

/// RDY-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_call_is_lost_while_services_come_and_go_and_are_busy_in_all_threads() {
    let all = servers(["a", "b", "c", "d"]);
    let set = Services::new();
    let put = {
        let (set, all) = (set.clone(), all.clone());
        move |place: usize| {
            let server: &Arc<Server> = &all[place];
            set.insert(endpoint(server.name), ConcurrencyLimit::new(server.service(), 2));
        }
    };
    (0..4).for_each(&put);
    let balance = BalanceServices::new(set.clone())
        .rule(Random::seeded(1))
        .ready_wait(Duration::from_secs(100))
        .unwrap();
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let balance = balance.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    balance.clone().oneshot(get()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let changes = tokio::spawn({
        let set = set.clone();
        async move {
            for n in 0..2_000 {
                if n % 3 == 0 {
                    set.remove(["a", "b", "c"][n % 7 % 3]);
                } else {
                    put(n % 4);
                }
                tokio::task::yield_now().await;
            }
        }
    });
    let calls = async {
        for call in calls {
            call.await.unwrap();
        }
        changes.await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(60), calls)
        .await
        .unwrap();
    assert_eq!(all.iter().map(|server| server.calls()).sum::<usize>(), 32 * 200);
    assert_eq!(balance.handle().total().in_flight(), 0);
    let instances: usize = all.iter().map(|server| server.instances()).sum();
    assert_eq!(instances, set.len());
}

type Told = Result<Change<u16, To>, BoxError>;

fn channel() -> (
    mpsc::UnboundedSender<Told>,
    impl futures_util::Stream<Item = Told> + Send + 'static,
) {
    let (tell, mut told) = mpsc::unbounded_channel();
    (tell, stream::poll_fn(move |cx| told.poll_recv(cx)))
}

fn describe(name: &u16) -> Result<Endpoint, BoxError> {
    match *name {
        0 => Err("nobody knows it".into()),
        port => Ok(Endpoint::builder(format!("127.0.0.1:{}", port % 100))
            .key(format!("{}", port % 100))
            .build()?),
    }
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn a_stream_feeds_the_set_and_its_failure_or_end_keeps_the_last() {
    let [a, b, c] = servers(["a", "b", "c"]);
    let (tell, told) = channel();
    let set = Services::from_stream(told, describe);
    let balance = in_turn(&set);
    assert_eq!((alive_tasks(), set.endpoints().snapshot().resolved()), (0, false));
    let first = tokio::spawn(balance.clone().oneshot(get()));
    settle().await;
    assert_eq!(alive_tasks(), 2, "the call waits, and one task reads");
    tell.send(Ok(Change::Insert(1, a.service()))).unwrap();
    assert_eq!(*first.await.unwrap().unwrap().body(), "a");
    tell.send(Ok(Change::Insert(2, b.service()))).unwrap();
    tell.send(Ok(Change::Insert(0, c.service()))).unwrap();
    tell.send(Err("for a moment".into())).unwrap();
    // Two names for one endpoint: the later counts, and then the first again.
    tell.send(Ok(Change::Insert(101, c.service()))).unwrap();
    settle().await;
    let went = async || {
        let mut went = Vec::new();
        for _ in 0..set.len() {
            went.push(balance.clone().oneshot(get()).await.unwrap().into_body());
        }
        went.sort();
        went.join(" ")
    };
    assert_eq!(went().await, "b c");
    tell.send(Ok(Change::Remove(101))).unwrap();
    settle().await;
    assert_eq!(went().await, "a b");
    assert_eq!(c.instances(), 0);
    tell.send(Ok(Change::Remove(2))).unwrap();
    tell.send(Ok(Change::Remove(7))).unwrap();
    settle().await;
    assert_eq!(went().await, "a");
    assert_eq!(b.instances(), 0);
    drop(tell);
    settle().await;
    assert_eq!((went().await, alive_tasks()), ("a".to_owned(), 0));
}

#[tokio::test]
async fn the_task_ends_with_the_last_handle_and_the_services_go_with_it() {
    let [a] = servers(["a"]);
    let (tell, told) = channel();
    let set = Services::from_stream(told, describe);
    let balance = in_turn(&set);
    tell.send(Ok(Change::Insert(1, a.service()))).unwrap();
    balance.clone().oneshot(get()).await.unwrap();
    assert_eq!(alive_tasks(), 1);
    drop(set);
    settle().await;
    assert!(!tell.is_closed());
    drop(balance);
    settle().await;
    assert_eq!((alive_tasks(), tell.is_closed(), a.instances()), (0, true, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_says_nothing_is_waited_for_as_long_as_the_first_wait() {
    let silent = stream::pending::<Told>();
    let balance = in_turn(&Services::from_stream(silent, describe));
    let start = Instant::now();
    let error = balance.oneshot(get()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert!(!error.downcast_ref::<NoEndpoint>().unwrap().resolved());
}

#[tokio::test]
async fn what_tower_takes_for_a_discover_will_do() {
    let all = servers(["a", "b"]);
    let boxed = all
        .each_ref()
        .map(|server| BoxCloneSyncService::<Req, Rsp, BoxError>::new(server.service()));
    let list = ServiceList::new::<Req>(boxed);
    let set = Services::from_stream(list, |place: &usize| Endpoint::new(format!("10.0.0.{place}:80")));
    let balance = BalanceServices::new(set).rule(RoundRobin::new());
    for _ in 0..4 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!((all[0].calls(), all[1].calls()), (2, 2));
    let listed = Services::from_list([(" 10.0.0.1:80", all[0].service())]).unwrap();
    assert_eq!(*in_turn(&listed).oneshot(get()).await.unwrap().body(), "a");
    assert!(Services::from_list([("no address/", all[0].service())]).is_err());
}

#[tokio::test]
async fn ten_thousand_services_that_change_while_calls_are_made_lose_none_and_leave_nothing() {
    const MANY: usize = 10_000;
    let server = Server::new("all");
    let key = |n: usize| Endpoint::new(format!("10.{}.{}.1:80", n / 256, n % 256)).unwrap();
    let (tell, mut told) = mpsc::unbounded_channel::<Result<Change<usize, To>, BoxError>>();
    let changes = stream::poll_fn(move |cx| told.poll_recv(cx));
    let set = Services::from_stream(changes.boxed(), move |&n: &usize| Ok::<_, BoxError>(key(n)));
    (0..MANY).for_each(|n| tell.send(Ok(Change::Insert(n, server.service()))).unwrap());
    let balance = BalanceServices::new(set.clone()).rule(Random::seeded(1));
    for n in 0..2_000 {
        balance.clone().oneshot(get()).await.unwrap();
        tell.send(Ok(Change::Remove(n))).unwrap();
        tell.send(Ok(Change::Insert(n + MANY, server.service()))).unwrap();
        if n % 100 == 0 {
            settle().await;
        }
    }
    settle().await;
    assert_eq!((set.len(), server.instances()), (MANY, MANY));
    assert_eq!(server.calls(), 2_000);
    drop((set, balance));
    settle().await;
    assert_eq!(server.instances(), 0);
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u8),
    Remove(u8),
    Replace(Vec<u8>),
    Becomes(u8, u8),
    Start,
    Poll(u8),
    Drop(u8),
    Wait(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4_u8).prop_map(Op::Insert),
        (0..4_u8).prop_map(Op::Remove),
        prop::collection::vec(0..4_u8, 0..4).prop_map(Op::Replace),
        (0..4_u8, 0..3_u8).prop_map(|(key, ready)| Op::Becomes(key, ready)),
        Just(Op::Start),
        Just(Op::Start),
        any::<u8>().prop_map(Op::Poll),
        any::<u8>().prop_map(Op::Poll),
        any::<u8>().prop_map(Op::Drop),
        any::<u8>().prop_map(Op::Wait),
    ]
}

type Call = BalanceServicesFuture<
    To,
    Req,
    LeastLoaded,
    tower_outbound::call::ByFault,
    tower_outbound::balance::services::ByHead,
>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

proptest! {
    /// BAL-03.
    #[test]
    fn whatever_happens_calls_go_to_services_that_are_in_the_set_and_ready(ops in prop::collection::vec(op(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let outcome: Result<(), TestCaseError> = runtime.block_on(async {
            let servers = servers(NAMES);
            let set = Services::new();
            let balance = BalanceServices::new(set.clone())
                .rule(LeastLoaded::seeded(1))
                .ready_wait(Duration::from_secs(1_000)).unwrap()
                .when_empty(tower_outbound::balance::WhenEmpty::Wait(Duration::from_secs(1_000))).unwrap();
            let mut open: Vec<std::pin::Pin<Box<Call>>> = Vec::new();
            let mut cx = Context::from_waker(Waker::noop());
            for op in ops {
                let calls: HashMap<_, _> = servers.iter().map(|server| (server.name, server.calls())).collect();
                match op {
                    Op::Insert(n) => set.insert(endpoint(NAMES[n as usize]), servers[n as usize].service()),
                    Op::Remove(n) => { set.remove(NAMES[n as usize]); }
                    Op::Replace(all) => set.replace(
                        all.into_iter().map(|n| (endpoint(NAMES[n as usize]), servers[n as usize].service())),
                    ),
                    Op::Becomes(n, ready) => {
                        servers[n as usize].becomes([Ready::Yes, Ready::Busy, Ready::Broken][ready as usize]);
                    }
                    Op::Start => open.push(Box::pin(balance.clone().call(get()))),
                    Op::Poll(n) if !open.is_empty() => {
                        let place = n as usize % open.len();
                        if let Poll::Ready(answer) = open[place].as_mut().poll(&mut cx) {
                            prop_assert!(answer.is_ok(), "{}", answer.unwrap_err());
                            drop(open.swap_remove(place));
                        } else {
                            let in_set = |name: &str| set.endpoints().snapshot().endpoints().iter().any(|one| one.key() == name);
                            let ready = servers.iter().find(|one| one.is() == Ready::Yes && in_set(one.name));
                            if let Some(ready) = ready {
                                // It may have been passed for good reason a moment ago.
                                tokio::time::advance(Duration::from_secs(4)).await;
                                let poll = open[place].as_mut().poll(&mut cx);
                                prop_assert!(poll.is_ready(), "{} is ready", ready.name);
                                drop(open.swap_remove(place));
                            }
                        }
                    }
                    Op::Drop(n) if !open.is_empty() => drop(open.swap_remove(n as usize % open.len())),
                    Op::Wait(ms) => tokio::time::advance(Duration::from_millis(ms.into())).await,
                    Op::Poll(_) | Op::Drop(_) => {}
                }
                for server in &servers {
                    let in_set = set.endpoints().snapshot().endpoints().iter().any(|one| one.key() == server.name);
                    if server.calls() > calls[server.name] {
                        prop_assert!(in_set && server.is() == Ready::Yes, "{}", server.name);
                    }
                    if open.is_empty() {
                        prop_assert_eq!(server.instances(), usize::from(in_set));
                    }
                }
                prop_assert_eq!(balance.handle().total().in_flight(), 0);
            }
            Ok(())
        });
        outcome?;
    }
}

#[test]
fn what_is_never_polled_again_after_its_end_is_pending() {
    let [a] = servers(["a"]);
    let balance = in_turn(&services([&a]));
    let mut call = Box::pin(balance.clone().call(get()));
    assert!(call.as_mut().now_or_never().unwrap().is_ok());
    assert!(format!("{balance:?} {call:?} {:?}", balance.services()).contains("BalanceServices"));
}
