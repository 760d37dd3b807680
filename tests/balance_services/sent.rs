//! Where calls go, and what is booked.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use http::Request;
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready_err, task};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ServiceBuilderExt,
    balance::{BalanceServices, Candidates, ConsistentHash, Random},
    call::{
        Affinity, CallScope, FaultKind, HostHeader, NoEndpoint, NoTimeLeft, RetryBudget, Sent, Services,
        Trail, Veto,
    },
    retry::{Idempotent, IdempotentRetryLayer},
};

use super::mock::*;

#[tokio::test]
async fn clones_share_one_rotation_and_the_figures() {
    let servers = servers(["a", "b", "c"]);
    let balance = in_turn(&services(&servers));
    for _ in 0..99 {
        balance.clone().oneshot(get()).await.unwrap();
        let mut clone = balance.clone();
        let ready = ServiceExt::<Req>::ready(&mut clone).await.unwrap();
        ready.call(get()).await.unwrap();
    }
    for server in &servers {
        assert_eq!(server.calls(), 66);
        let figures = balance.handle().endpoint(server.name).unwrap();
        assert_eq!((figures.successes(), figures.in_flight()), (66, 0));
    }
}

#[tokio::test]
async fn a_request_stays_as_it_is_unless_the_address_is_asked_for() {
    let [a] = servers(["a"]);
    let set = services([&a]);
    let request = || Request::get("http://orders/17?x").body(()).unwrap();
    in_turn(&set).oneshot(request()).await.unwrap();
    in_turn(&set)
        .write_address(HostHeader::OfEndpoint)
        .oneshot(request())
        .await
        .unwrap();
    in_turn(&set).any_request().oneshot("whatever").await.unwrap();
    assert_eq!(
        *a.uris.lock().unwrap(),
        ["http://orders/17?x", "http://a/17?x", "whatever"]
    );
}

#[tokio::test]
async fn a_rule_sees_the_head_and_what_requests_have_in_common() {
    let all = servers(["a", "b", "c", "d"]);
    let set = services(&all);
    let by_path = |candidates: &Candidates<'_>| {
        let head = candidates.request().unwrap();
        head.uri().path()[1..].parse().unwrap()
    };
    let balance = BalanceServices::new(set.clone()).rule(by_path);
    for place in [2, 0, 3, 2] {
        let request = Request::get(format!("/{place}")).body(()).unwrap();
        let answer = balance.clone().oneshot(request).await.unwrap();
        assert_eq!(*answer.body(), all[place].name);
    }
    let sees_none = |candidates: &Candidates<'_>| usize::from(candidates.request().is_some());
    let balance = BalanceServices::new(set.clone()).rule(sees_none).any_request();
    assert_eq!(*balance.oneshot("x").await.unwrap().body(), "a");
    let balance = BalanceServices::new(set).rule(ConsistentHash::new());
    let mut went = Vec::new();
    for _ in 0..5 {
        let request = Request::get("/")
            .extension(Affinity::of("user-17"))
            .body(())
            .unwrap();
        went.push(balance.clone().oneshot(request).await.unwrap().into_body());
    }
    went.dedup();
    assert_eq!(went.len(), 1);
}

#[tokio::test]
async fn one_with_a_veto_is_not_called() {
    let [a, b] = servers(["a", "b"]);
    let mine = endpoint("a");
    let set = services([&b]);
    set.insert(mine.clone(), a.service());
    mine.eligibility().forbid(Veto::User);
    let balance = in_turn(&set);
    for _ in 0..10 {
        balance.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!((a.calls(), b.calls()), (0, 10));
}

#[tokio::test]
async fn a_retry_goes_to_one_that_the_call_has_not_tried_or_stays_as_it_is_told() {
    let all = servers(["a", "b"]);
    *all[0].fails.lock().unwrap() = true;
    let set = services(&all);
    let moves = ServiceBuilder::new()
        .layer(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1)))
        .service(BalanceServices::new(set.clone()).rule(Random::seeded(7)));
    for _ in 0..100 {
        moves.clone().oneshot(get()).await.unwrap();
    }
    let stays = ServiceBuilder::new()
        .layer(IdempotentRetryLayer::new(
            Idempotent::default().same_endpoint(2).next_endpoint(1),
        ))
        .service(in_turn(&set));
    let before = all[0].calls();
    stays.oneshot(get()).await.unwrap();
    assert_eq!(all[0].calls() - before, 3);
}

#[tokio::test]
async fn an_error_names_the_endpoint_also_where_no_layer_keeps_a_trail() {
    let [a] = servers(["a"]);
    *a.fails.lock().unwrap() = true;
    let balance = in_turn(&services([&a]));
    let error = balance.clone().oneshot(get()).await.unwrap_err();
    let trail = Trail::of(&*error).unwrap();
    assert_eq!(trail.attempts().next().unwrap().endpoint().unwrap().key(), "a");
    let figures = balance.handle().endpoint("a").unwrap();
    assert_eq!(
        (figures.failures(), figures.successive_connection_failures()),
        (1, 1)
    );
}

#[tokio::test]
async fn however_a_call_ends_nothing_stays_in_flight() {
    let [a, b] = [Server::new("a"), Server::that_is("b", Ready::Busy)];
    a.gate.forget_permits(1_000_000);
    let balance = in_turn(&services([&a, &b]));
    let in_flight = || balance.handle().total().in_flight();
    // Never polled; under way; looking on.
    drop(balance.clone().call(get()));
    let mut under_way = task::spawn(balance.clone().call(get()));
    assert_pending!(under_way.poll());
    assert_eq!(in_flight(), 1);
    drop(under_way);
    assert_eq!(in_flight(), 0);
    assert_eq!(balance.handle().endpoint("a").unwrap().abandoned(), 1);
    a.becomes(Ready::Busy);
    let mut looking = task::spawn(balance.clone().call(get()));
    assert_pending!(looking.poll());
    assert_eq!(in_flight(), 0);
    drop(looking);
    assert_eq!(balance.handle().total().attempts(), 1);
    assert_eq!((a.instances(), b.instances()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_when_the_deadline_has_passed() {
    let [a] = servers(["a"]);
    let balance = in_turn(&services([&a]));
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now());
    let mut call = pin!(balance.clone().call(get()));
    let error = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx)))
        .await
        .unwrap_err();
    assert!(error.is::<NoTimeLeft>(), "{error}");
    // Found ready at the deadline, after a wait.
    a.becomes(Ready::Busy);
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now() + Duration::from_millis(500));
    let mut call = task::spawn(balance.clone().call(get()));
    assert_pending!(scope.enter(|| call.poll()));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_pending!(scope.enter(|| call.poll()));
    a.becomes(Ready::Yes);
    let error = assert_ready_err!(scope.enter(|| call.poll()));
    assert!(error.is::<NoTimeLeft>(), "{error}");
    assert_eq!(a.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_above_ends_a_wait() {
    let a = Server::that_is("a", Ready::Busy);
    let stack = ServiceBuilder::new()
        .execution_timeout(Duration::from_millis(300))
        .unwrap()
        .service(in_turn(&services([&a])));
    let start = Instant::now();
    let error = stack.oneshot(get()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_millis(300));
    assert_eq!(
        tower_outbound::call::Fault::of(&*error).kind(),
        FaultKind::ExecutionTimeout
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_set_is_an_error_and_no_wait() {
    let balance = in_turn(&Services::new());
    let start = Instant::now();
    let error = balance.clone().oneshot(get()).await.unwrap_err();
    assert!(error.is::<NoEndpoint>() && start.elapsed().is_zero(), "{error}");
    let error = balance.clone().first_wait(Duration::MAX).unwrap_err();
    assert_eq!((error.layer(), error.field()), ("BalanceServices", "first_wait"));
    assert!(balance.ready_wait(Duration::MAX).is_err());
}

/// CLS-10.
#[tokio::test]
async fn a_post_moves_on_from_one_whose_readiness_fails_since_nothing_was_sent() {
    let [a, b] = [Server::that_is("a", Ready::Broken), Server::new("b")];
    let budget = RetryBudget::builder()
        .percent(0.0)
        .floor(0)
        .burst(10)
        .initial(10)
        .build()
        .unwrap();
    let stack = |set: &Services<To>| {
        ServiceBuilder::new()
            .layer(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1)).budget(budget.clone()))
            .service(in_turn(set))
    };
    let set = services([&a, &b]);
    assert_eq!(*stack(&set).oneshot(post()).await.unwrap().body(), "b");
    assert_eq!((a.calls(), b.calls()), (0, 1));
    assert_eq!(budget.available(), 10, "it was no retry");
    set.remove("b");
    let error = stack(&set).oneshot(post()).await.unwrap_err();
    let fault = tower_outbound::call::Fault::of(&*error);
    assert_eq!((fault.kind(), fault.sent()), (FaultKind::NotReady, Sent::No));
    assert!(a.asked() > 2, "and it was tried again, as nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn one_whose_readiness_fails_counts_as_a_failed_connection_and_is_in_the_trail() {
    let all = [
        Server::that_is("a", Ready::Broken),
        Server::that_is("b", Ready::Broken),
        Server::new("c"),
    ];
    *all[2].fails.lock().unwrap() = true;
    let balance = in_turn(&services(&all));
    let tell = |error: tower_outbound::call::BoxError| {
        let trail = Trail::of(&*error).unwrap();
        let attempts = trail
            .attempts()
            .map(|attempt| attempt.endpoint().unwrap().key().to_owned());
        (attempts.collect::<Vec<_>>().join(" "), trail.may_have_been_sent())
    };
    // With a trail above and without.
    let error = balance.clone().oneshot(get()).await.unwrap_err();
    assert_eq!(tell(error), ("a b c".to_owned(), true));
    tokio::time::advance(Duration::from_secs(1)).await;
    let traced = ServiceBuilder::new().record_trail().service(balance.clone());
    let error = traced.oneshot(get()).await.unwrap_err();
    assert_eq!(tell(error), ("a b c".to_owned(), true));
    for name in ["a", "b"] {
        let figures = balance.handle().endpoint(name).unwrap();
        assert_eq!(
            (figures.failures(), figures.successive_connection_failures()),
            (2, 2)
        );
        assert_eq!(figures.in_flight(), 0);
    }
    all[2].becomes(Ready::Broken);
    let error = balance.clone().oneshot(get()).await.unwrap_err();
    let text = told(&*error);
    for part in ["none of 3", "3 have failed", "is broken"] {
        assert!(text.contains(part), "{text}");
    }
    let (attempts, sent) = tell(error);
    assert_eq!((attempts.split(' ').count(), sent), (3, false));
    assert!(Arc::strong_count(&all[0]) >= 1 && all[0].calls.load(SeqCst) == 0);
}
