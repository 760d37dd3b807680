//! Services that are not ready.

use std::{sync::Arc, task::Poll};

use futures_util::future::join_all;
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceBuilder, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit};
use tower_outbound::{
    balance::{BalanceServices, Ewma, LeastLoaded, Random, RoundRobin, Rule, WhenEmpty},
    call::{FaultKind, NotReady, RetryBudget, Services, Veto},
    retry::{Idempotent, IdempotentRetryLayer},
};

use super::mock::*;

const MS: Duration = Duration::from_millis(1);

/// BAL-08.
#[tokio::test(start_paused = true)]
async fn one_that_is_broken_costs_no_call_no_retry_and_few_questions() {
    let [a, b] = [Server::that_is("a", Ready::Broken), Server::new("b")];
    let budget = RetryBudget::builder()
        .percent(0.0)
        .floor(0)
        .burst(10)
        .initial(10)
        .build()
        .unwrap();
    let balance = in_turn(&services([&a, &b]));
    for _ in 0..100 {
        assert_eq!(*balance.clone().oneshot(get()).await.unwrap().body(), "b");
        tokio::time::advance(20 * MS).await;
    }
    // At 0, 0.1, 0.3, 0.7 and 1.5 s.
    assert_eq!((a.asked(), a.calls()), (5, 0));
    let retry = IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1)).budget(budget.clone());
    let retried = ServiceBuilder::new().layer(retry).service(balance.clone());
    for _ in 0..100 {
        retried.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(budget.available(), 10);
    // And it is not lost.
    a.becomes(Ready::Yes);
    tokio::time::advance(Duration::from_secs(4)).await;
    for _ in 0..10 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(a.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_never_ready_is_passed_at_once_and_asked_now_and_then() {
    let [a, b, c] = [
        Server::that_is("a", Ready::Busy),
        Server::new("b"),
        Server::new("c"),
    ];
    let balance = in_turn(&services([&a, &b, &c]));
    for _ in 0..1_000 {
        let mut call = task::spawn(balance.clone().call(get()));
        assert!(matches!(call.poll(), Poll::Ready(Ok(_))), "another one is ready");
        tokio::time::advance(MS).await;
    }
    assert_eq!((a.calls(), b.calls() + c.calls()), (0, 1_000));
    assert!(b.calls() > 450 && c.calls() > 450);
    assert!((10..40).contains(&a.asked()), "{}", a.asked());
    assert_eq!(a.instances(), 1, "those that were asked are dropped");
    a.becomes(Ready::Yes);
    tokio::time::advance(64 * MS).await;
    for _ in 0..30 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(a.calls(), 10);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_ready_in_between_is_asked_again_as_soon_as_one_that_always_was() {
    for (ready, pause) in [(Ready::Busy, MS), (Ready::Broken, 100 * MS)] {
        let [a, b] = [Server::that_is("a", ready), Server::new("b")];
        let balance = in_turn(&services([&a, &b]));
        let call = async |times: usize| {
            for _ in 0..times {
                balance.clone().oneshot(get()).await.unwrap();
            }
        };
        for _ in 0..3 {
            call(2).await;
            tokio::time::advance(4 * pause).await;
        }
        assert_eq!(a.asked(), 3);
        a.becomes(Ready::Yes);
        call(2).await;
        assert_eq!(a.calls(), 1);
        a.becomes(ready);
        call(2).await;
        let asked = a.asked();
        tokio::time::advance(pause - MS / 2).await;
        call(2).await;
        assert_eq!(a.asked(), asked, "{ready:?}");
        tokio::time::advance(MS / 2).await;
        call(2).await;
        assert_eq!(a.asked(), asked + 1, "{ready:?}");
    }
}

/// BAL-05.
#[tokio::test(start_paused = true)]
async fn only_those_that_are_ready_are_called_while_readiness_comes_and_goes() {
    async fn check<R: Rule>(rule: R, seed: u64, least: usize) {
        let servers = servers(["a", "b", "c", "d", "e"]);
        servers[1..].iter().for_each(|server| server.becomes(Ready::Busy));
        let balance = BalanceServices::new(services(&servers)).rule(rule);
        let call = async || {
            let mut call = task::spawn(balance.clone().call(get()));
            let answer = assert_ready_ok!(call.poll());
            let server = servers.iter().find(|server| server.name == answer.body());
            assert_eq!(server.unwrap().is(), Ready::Yes);
            tokio::time::advance(2 * MS).await;
        };
        for _ in 0..200 {
            call().await;
        }
        assert_eq!(servers[0].calls(), 200, "one that is ready gets everything");
        let mut dice = fastrand::Rng::with_seed(seed);
        for _ in 0..5_000 {
            for server in &servers[1..] {
                if dice.u8(..8) == 0 {
                    server.becomes([Ready::Yes, Ready::Busy, Ready::Broken][dice.usize(..3)]);
                }
            }
            call().await;
        }
        let calls = servers.each_ref().map(|server| server.calls());
        assert!(calls.iter().all(|&calls| calls >= least), "{calls:?}");
        assert_eq!(balance.handle().total().in_flight(), 0);
    }
    check(RoundRobin::new(), 1, 20).await;
    check(Random::seeded(3), 2, 20).await;
    check(LeastLoaded::seeded(3), 3, 20).await;
    // It keeps away from those that have failed for a while.
    check(Ewma::builder().seed(3).build().unwrap(), 4, 0).await;
}

/// BAL-02.
#[tokio::test(start_paused = true)]
async fn waiting_calls_are_polled_once_each_and_no_more_while_nothing_happens() {
    let all = ["a", "b", "c"].map(|name| Server::that_is(name, Ready::Busy));
    let balance = in_turn(&services(&all))
        .ready_wait(Duration::from_secs(10))
        .unwrap();
    let asked = || all.iter().map(|server| server.asked()).sum::<usize>();
    let calls: Vec<_> = (0..100)
        .map(|_| tokio::spawn(balance.clone().oneshot(get())))
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(asked() <= 100 * 2 * 3, "{} questions", asked());
    let before = asked();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(asked(), before, "all are waited for: there is nothing to ask");
    all[1].becomes(Ready::Yes);
    for call in join_all(calls).await {
        assert_eq!(*call.unwrap().unwrap().body(), "b");
    }
    assert_eq!(all[1].calls(), 100);
    assert_eq!(all[0].instances() + all[2].instances(), 2);
}

/// BAL-02.
#[tokio::test(start_paused = true)]
async fn a_wait_for_readiness_ends_at_its_limit_to_the_millisecond_and_tells_what_was_seen() {
    let all = [
        Server::that_is("a", Ready::Busy),
        Server::that_is("b", Ready::Broken),
    ];
    let balance = in_turn(&services(&all));
    for (wait, balance) in [
        (1_000, balance.clone()),
        (250, balance.clone().ready_wait(250 * MS).unwrap()),
        (0, balance.clone().ready_wait(Duration::ZERO).unwrap()),
    ] {
        let start = Instant::now();
        let error = balance.oneshot(get()).await.unwrap_err();
        assert_eq!(start.elapsed(), wait * MS);
        let fault = tower_outbound::call::Fault::of(&*error);
        assert_eq!(fault.kind(), FaultKind::NotReady);
        let text = told(&*error);
        for part in ["none of 2", "1 are busy", "b is broken"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// RDY-10.
#[tokio::test]
async fn all_that_wait_for_one_service_are_woken_by_it_alone() {
    tokio::time::pause();
    let a = Server::that_is("a", Ready::Busy);
    let balance = in_turn(&services([&a]));
    let start = Instant::now();
    let mut calls: Vec<_> = (0..10)
        .map(|_| task::spawn(balance.clone().call(get())))
        .collect();
    calls.iter_mut().for_each(|call| assert_pending!(call.poll()));
    a.becomes(Ready::Yes);
    for call in &mut calls {
        assert!(call.is_woken());
        assert_ready_ok!(call.poll());
    }
    assert_eq!((start.elapsed(), a.calls()), (Duration::ZERO, 10));
}

#[tokio::test(start_paused = true)]
async fn when_all_have_failed_the_call_fails_or_waits_as_for_an_empty_set() {
    let all = ["a", "b"].map(|name| Server::that_is(name, Ready::Broken));
    let balance = in_turn(&services(&all));
    let start = Instant::now();
    let error = balance.clone().oneshot(get()).await.unwrap_err();
    assert!(start.elapsed().is_zero());
    assert!(
        told(&*error).contains("none of 2 after 0ms, 0 are busy, 2 have failed"),
        "{}",
        told(&*error)
    );
    let patient = balance
        .when_empty(WhenEmpty::Wait(Duration::from_secs(10)))
        .unwrap();
    let call = tokio::spawn(patient.clone().oneshot(get()));
    tokio::time::sleep(500 * MS).await;
    let asked = all[0].asked();
    assert!((2..8).contains(&asked), "{asked}");
    all[0].becomes(Ready::Yes);
    assert_eq!(*call.await.unwrap().unwrap().body(), "a");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// RDY-06.
#[tokio::test]
async fn no_readiness_is_held_but_for_a_call_that_starts() {
    let [a] = servers(["a"]);
    a.gate.forget_permits(1_000_000);
    let set = Services::new();
    set.insert(endpoint("a"), ConcurrencyLimit::new(a.service(), 1));
    let balance = BalanceServices::new(set);
    // Ready and never called; called and never polled.
    let mut idle = balance.clone();
    ServiceExt::<Req>::ready(&mut idle).await.unwrap();
    let unpolled = idle.call(get());
    let mut first = task::spawn(balance.clone().call(get()));
    assert_pending!(first.poll());
    assert_eq!(a.calls(), 1);
    let mut waits = task::spawn(balance.clone().call(get()));
    let mut waits_too = task::spawn(balance.clone().call(get()));
    assert_pending!(waits.poll());
    assert_pending!(waits_too.poll());
    assert_eq!(a.calls(), 1);
    // The place in the line is given back with the call.
    drop(waits);
    drop(first);
    assert!(waits_too.is_woken());
    assert_pending!(waits_too.poll());
    assert_eq!(a.calls(), 2);
    drop((unpolled, waits_too));
    a.gate.add_permits(1);
    balance.oneshot(get()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn services_with_a_slot_each_are_kept_busy_and_no_call_is_lost() {
    let servers = servers(["a", "b", "c"]);
    let set: Services<_> = servers
        .iter()
        .map(|server| (endpoint(server.name), ConcurrencyLimit::new(server.service(), 1)))
        .collect();
    for server in &servers {
        server.gate.forget_permits(1_000_000);
    }
    let balance = BalanceServices::new(set)
        .ready_wait(Duration::from_secs(60))
        .unwrap();
    let calls: Vec<_> = (0..300)
        .map(|_| tokio::spawn(balance.clone().oneshot(get())))
        .collect();
    tokio::time::sleep(MS).await;
    assert_eq!(balance.handle().total().in_flight(), 3);
    servers.iter().for_each(|server| server.gate.add_permits(1));
    let start = Instant::now();
    for call in join_all(calls).await {
        call.unwrap().unwrap();
    }
    assert!(
        start.elapsed().is_zero(),
        "each that becomes free is taken at once"
    );
    assert!(servers.iter().all(|server| server.calls() >= 60));
}

/// RDY-11.
#[tokio::test(start_paused = true)]
async fn a_buffer_above_survives_whatever_the_services_say() {
    let [a] = servers(["a"]);
    let set = services([&a]);
    let mut buffer = Buffer::new(in_turn(&set), 1);
    for ready in [Ready::Broken, Ready::Busy] {
        a.becomes(ready);
        for _ in 0..5 {
            let error = ServiceExt::<Req>::ready(&mut buffer)
                .await
                .unwrap()
                .call(get())
                .await
                .unwrap_err();
            let fault = tower_outbound::call::Fault::of(&*error);
            assert_eq!(fault.kind(), FaultKind::NotReady);
        }
    }
    set.remove("a");
    assert!(
        ServiceExt::<Req>::ready(&mut buffer)
            .await
            .unwrap()
            .call(get())
            .await
            .is_err()
    );
    a.becomes(Ready::Yes);
    set.insert(endpoint("a"), a.service());
    for _ in 0..5 {
        ServiceExt::<Req>::ready(&mut buffer)
            .await
            .unwrap()
            .call(get())
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_ready_is_found_among_many_that_are_not() {
    let names: Vec<&'static str> = (0..200).map(|n| &*format!("s{n}").leak()).collect();
    let all: Vec<_> = names
        .iter()
        .map(|name| Server::that_is(name, Ready::Busy))
        .collect();
    all[150].becomes(Ready::Yes);
    let balance = BalanceServices::new(services(&all)).rule(Random::seeded(5));
    let start = Instant::now();
    for _ in 0..100 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(all[150].calls(), 100);
    assert!(start.elapsed() < 500 * MS, "{:?}", start.elapsed());
    assert!(all.iter().all(|server| server.instances() == 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_ready_is_marked_until_it_is_asked_again_or_is_gone() {
    let [a, b] = [Server::that_is("a", Ready::Busy), Server::new("b")];
    let set = services([&a, &b]);
    let balance = in_turn(&set);
    balance.clone().oneshot(get()).await.unwrap();
    let marked = set.endpoints().snapshot().endpoints()[0].clone();
    assert!(marked.eligibility().is_forbidden_by(Veto::NotReady));
    tokio::time::advance(MS).await;
    balance.clone().oneshot(get()).await.unwrap();
    assert!(
        marked.eligibility().is_forbidden_by(Veto::NotReady),
        "asked again in vain"
    );
    // By who waits for it.
    b.becomes(Ready::Busy);
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(call.poll());
    a.becomes(Ready::Yes);
    assert_ready_ok!(call.poll());
    assert!(marked.eligibility().is_eligible());
    // By what ends it.
    a.becomes(Ready::Broken);
    assert_pending!(task::spawn(balance.clone().call(get())).poll());
    assert!(!marked.eligibility().is_eligible());
    set.remove("a");
    assert!(marked.eligibility().is_eligible());
    let left = set.endpoints().snapshot().endpoints()[0].clone();
    assert!(!left.eligibility().is_eligible());
    drop((set, balance, call));
    assert!(left.eligibility().is_eligible());
    assert_eq!(
        (Arc::strong_count(&a.instances), Arc::strong_count(&b.instances)),
        (1, 1)
    );
}

#[tokio::test]
async fn readiness_that_fails_is_told_with_its_source() {
    let a = Server::that_is("a", Ready::Broken);
    let error = in_turn(&services([&a])).oneshot(get()).await.unwrap_err();
    assert_eq!(
        NotReady::of(&*error).map(NotReady::layer),
        Some("BalanceServices")
    );
    assert!(tower_outbound::call::chain(&*error).any(|error| error.to_string() == "a is broken"));
}
