//! The bulkhead, over its public API. All times are exact: tokio's clock is paused.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use futures_util::FutureExt;
use tokio::time::{Duration, Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_outbound::{
    bulkhead::{Bulkhead, BulkheadBuilder, BulkheadLayer},
    call::{
        BulkheadFull, ByFault, CallScope, Classify, Fault, FaultKind, NoTimeLeft, NotReady, Rejection, Sent,
        Verdict,
    },
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn orders() -> BulkheadBuilder {
    Bulkhead::builder("orders")
}

/// A bulkhead with this many slots and places, around a service that takes as many milliseconds as it is asked for.
macro_rules! sleeping {
    ($bulkhead:expr) => {
        BulkheadLayer::new($bulkhead.clone()).layer(service_fn(|millis: u64| async move {
            sleep(ms(millis)).await;
            Ok::<_, Infallible>(millis)
        }))
    };
}

/// A call that has been made, as `oneshot` makes it.
macro_rules! begin {
    ($service:expr, $request:expr) => {{
        let mut call = task::spawn($service.clone().oneshot($request));
        assert_pending!(call.poll());
        call
    }};
}

mod slots {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_calls_go_through_at_once_and_the_eleventh_is_turned_away_at_once() {
        let bulkhead = Bulkhead::new("orders").unwrap();
        let service = sleeping!(bulkhead);
        let mut calls: Vec<_> = (0..10).map(|_| begin!(service, 100)).collect();
        assert_eq!(
            (bulkhead.in_flight(), bulkhead.waiting(), bulkhead.rejected()),
            (10, 0, 0)
        );

        let error = service.clone().oneshot(1).now_or_never().unwrap().unwrap_err();
        let full = error.downcast_ref::<BulkheadFull>().unwrap();
        assert_eq!((full.name(), full.waited()), ("orders", ms(0)));
        assert_eq!((full.in_flight(), full.max_concurrent()), (10, 10));
        assert_eq!((full.waiting(), full.max_waiting()), (0, 0));
        assert_eq!(bulkhead.rejected(), 1);

        advance(ms(100)).await;
        for call in &mut calls {
            assert_eq!(assert_ready_ok!(call.poll()), 100);
        }
        assert_eq!(bulkhead.in_flight(), 0, "although the futures are still held");
        assert_eq!(service.oneshot(5).await.unwrap(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn layers_and_services_of_one_bulkhead_share_its_slots() {
        let bulkhead = orders().max_concurrent(2).build().unwrap();
        let (one, other) = (sleeping!(bulkhead), sleeping!(bulkhead));
        let _calls = (begin!(one, 1), begin!(other, 1));
        assert!(one.oneshot(1).await.unwrap_err().is::<BulkheadFull>());
        assert_eq!(bulkhead.in_flight(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn with_no_slot_every_call_is_turned_away_whatever_may_wait() {
        for waiting in [0, 5] {
            let bulkhead = orders().max_concurrent(0).max_waiting(waiting).build().unwrap();
            let outcome = sleeping!(bulkhead).oneshot(1).now_or_never();
            let error = outcome.expect("it waits for what will never be").unwrap_err();
            assert_eq!(
                error.to_string(),
                "Bulkhead \"orders\": rejected, as `max_concurrent` is 0"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_free_however_the_call_ends() {
        let bulkhead = orders().max_concurrent(1).build().unwrap();
        let layer = BulkheadLayer::new(bulkhead.clone());

        let failing = layer.layer(service_fn(|()| ready(Err::<(), _>(io::Error::other("down")))));
        let error = failing.oneshot(()).await.unwrap_err();
        assert!(error.is::<io::Error>(), "as it was");
        assert_eq!(bulkhead.in_flight(), 0);

        let never = layer.layer(service_fn(|()| pending::<Result<(), Infallible>>()));
        let call = begin!(never, ());
        assert_eq!(bulkhead.in_flight(), 1);
        drop(call);
        assert_eq!(bulkhead.in_flight(), 0);

        let mut unpolled = layer.layer(service_fn(|()| pending::<Result<(), Infallible>>()));
        let call = unpolled.ready().await.unwrap().call(());
        assert_eq!(bulkhead.in_flight(), 1);
        drop(call);
        assert_eq!(bulkhead.in_flight(), 0);

        let in_call = layer.layer(service_fn(|()| -> Ready<Result<(), Infallible>> {
            panic!("as planned")
        }));
        let in_poll = layer.layer(service_fn(|()| async {
            if true {
                panic!("as planned")
            } else {
                Ok::<_, Infallible>(())
            }
        }));
        assert!(
            AssertUnwindSafe(in_call.oneshot(()))
                .catch_unwind()
                .await
                .is_err()
        );
        assert_eq!(bulkhead.in_flight(), 0);
        assert!(
            AssertUnwindSafe(in_poll.oneshot(()))
                .catch_unwind()
                .await
                .is_err()
        );
        assert_eq!(bulkhead.in_flight(), 0);
    }

    #[test]
    fn a_slot_taken_by_hand_counts_like_a_call() {
        let bulkhead = orders().max_concurrent(1).build().unwrap();
        let slot = bulkhead.enter().unwrap();
        assert_eq!(bulkhead.enter().unwrap_err().in_flight(), 1);
        assert_eq!((bulkhead.in_flight(), bulkhead.rejected()), (1, 1));
        drop(slot);
        assert_eq!(bulkhead.in_flight(), 0);
    }
}

mod waits {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slots_go_to_calls_in_the_order_in_which_they_came() {
        let bulkhead = orders().max_concurrent(1).max_waiting(3).build().unwrap();
        let service = sleeping!(bulkhead);
        let ended = Arc::new(AtomicUsize::new(0));
        let mut calls = Vec::new();
        for n in 0..4 {
            let (service, ended) = (service.clone(), ended.clone());
            calls.push(tokio::spawn(async move {
                service.oneshot(100).await.unwrap();
                assert_eq!(ended.fetch_add(1, SeqCst), n);
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 3));

        let error = service.clone().oneshot(100).now_or_never().unwrap().unwrap_err();
        let full = BulkheadFull::of(&*error).unwrap();
        assert_eq!((full.waiting(), full.max_waiting()), (3, 3));
        assert_eq!(
            full.to_string(),
            "Bulkhead \"orders\": rejected, 1 of 1 calls are in flight and 3 of 3 wait; \
             is what it calls slow, or `max_concurrent` too low?"
        );

        let start = Instant::now();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(start.elapsed(), ms(400));
        assert_eq!(
            (bulkhead.in_flight(), bulkhead.waiting(), bulkhead.rejected()),
            (0, 0, 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_has_a_limit_and_the_place_is_free_after_it() {
        let bulkhead = orders()
            .max_concurrent(1)
            .max_waiting(1)
            .max_wait(ms(200))
            .build()
            .unwrap();
        let service = sleeping!(bulkhead);
        let _holds = begin!(service, 10_000);
        let start = Instant::now();
        let mut call = Box::pin(service.clone().oneshot(1));
        let error = call.as_mut().await.unwrap_err();
        assert_eq!(start.elapsed(), ms(200));
        let full = error.downcast_ref::<BulkheadFull>().unwrap();
        assert_eq!((full.waited(), full.in_flight()), (ms(200), 1));
        assert!(full.to_string().contains("no slot within 200ms"), "{full}");
        assert_eq!(
            (bulkhead.waiting(), bulkhead.rejected()),
            (0, 1),
            "although the future is held"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_of_which_nothing_is_said_ends_after_a_second() {
        let bulkhead = orders().max_concurrent(1).max_waiting(1).build().unwrap();
        let service = sleeping!(bulkhead);
        let _holds = begin!(service, 10_000);
        let start = Instant::now();
        assert!(service.oneshot(1).await.unwrap_err().is::<BulkheadFull>());
        assert_eq!(start.elapsed(), ms(1_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_on_the_tick_of_the_limit_is_taken() {
        let bulkhead = orders()
            .max_concurrent(1)
            .max_waiting(1)
            .max_wait(ms(200))
            .build()
            .unwrap();
        let service = sleeping!(bulkhead);
        let mut holds = begin!(service, 200);
        let mut waits = begin!(service, 1);
        advance(ms(200)).await;
        assert_ready_ok!(holds.poll());
        assert!(waits.is_woken());
        assert_pending!(waits.poll());
        advance(ms(1)).await;
        assert_ready_ok!(waits.poll());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_comes_while_others_wait_does_not_overtake_them() {
        let bulkhead = orders().max_concurrent(1).max_waiting(2).build().unwrap();
        let service = sleeping!(bulkhead);
        let holds = begin!(service, 100);
        let mut first = begin!(service, 100);
        drop(holds);
        // The slot is the first one's already, though it has not been polled.
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 0));
        assert!(bulkhead.enter().is_err());
        let mut second = begin!(service, 100);
        assert_eq!(bulkhead.waiting(), 1);
        assert!(first.is_woken() && !second.is_woken());
        assert_pending!(first.poll());
        advance(ms(100)).await;
        assert_ready_ok!(first.poll());
        assert!(second.is_woken());
        assert_pending!(second.poll());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_given_up_leaves_its_place_or_its_slot_to_the_next() {
        let bulkhead = orders().max_concurrent(1).max_waiting(3).build().unwrap();
        let service = sleeping!(bulkhead);
        let holds = begin!(service, 100);
        let [first, second, mut third] = [(); 3].map(|()| begin!(service, 100));
        drop(second);
        assert_eq!(bulkhead.waiting(), 2);
        drop(holds);
        assert!(first.is_woken() && !third.is_woken());
        // It has the slot, and does not know.
        drop(first);
        assert!(third.is_woken());
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 0));
        assert_pending!(third.poll());
        drop(third);
        assert_eq!(
            (bulkhead.in_flight(), bulkhead.waiting(), bulkhead.rejected()),
            (0, 0, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_its_deadline_no_call_waits_and_the_owner_of_the_deadline_ends_it() {
        let bulkhead = orders()
            .max_concurrent(1)
            .max_waiting(1)
            .max_wait(ms(200))
            .build()
            .unwrap();
        let service = sleeping!(bulkhead);
        let _holds = begin!(service, 10_000);
        let mut scope = CallScope::begin();
        scope.narrow(Instant::now() + ms(50));
        let mut call = task::spawn(service.clone().oneshot(1));
        assert_pending!(scope.enter(|| call.poll()));
        advance(ms(500)).await;
        assert!(!call.is_woken());
        drop(call);
        assert_eq!((bulkhead.waiting(), bulkhead.rejected()), (0, 0));

        // It has come, or has passed: nobody waits at all.
        let mut now = CallScope::begin();
        now.narrow(Instant::now());
        for mut scope in [now, scope] {
            let mut call = task::spawn(service.clone().oneshot(1));
            assert!(assert_ready_err!(scope.enter(|| call.poll())).is::<NoTimeLeft>());
            assert_eq!((bulkhead.waiting(), bulkhead.rejected()), (0, 0));
        }
    }

    #[cfg(feature = "timeout")]
    #[tokio::test(start_paused = true)]
    async fn the_limit_of_the_execution_covers_the_wait() {
        use tower_outbound::timeout::{ExecutionTimedOut, ExecutionTimeoutLayer};
        let new: [fn(Duration) -> _; 2] = [ExecutionTimeoutLayer::new, ExecutionTimeoutLayer::hystrix];
        for new in new {
            let bulkhead = orders()
                .max_concurrent(1)
                .max_waiting(1)
                .max_wait(ms(500))
                .build()
                .unwrap();
            let _slot = bulkhead.enter().unwrap();
            let start = Instant::now();
            let mut call = Box::pin(new(ms(50)).unwrap().layer(sleeping!(bulkhead)).oneshot(1));
            assert!(call.as_mut().await.unwrap_err().is::<ExecutionTimedOut>());
            assert_eq!((start.elapsed(), bulkhead.waiting()), (ms(50), 0));
        }
    }
}

mod readiness {
    use super::*;

    /// Notes how often any instance was asked, is ready after so many polls, and knows whether it was.
    #[derive(Debug)]
    struct Picky {
        asked: Arc<AtomicUsize>,
        polls: usize,
        after: usize,
        ready: bool,
    }

    impl Picky {
        fn new(after: usize) -> (Picky, Arc<AtomicUsize>) {
            let asked = Arc::new(AtomicUsize::new(0));
            let picky = Picky {
                asked: asked.clone(),
                polls: 0,
                after,
                ready: false,
            };
            (picky, asked)
        }
    }

    impl Clone for Picky {
        fn clone(&self) -> Self {
            Picky {
                asked: self.asked.clone(),
                polls: 0,
                after: self.after,
                ready: false,
            }
        }
    }

    impl Service<u64> for Picky {
        type Response = u64;
        type Error = io::Error;
        type Future = futures_util::future::BoxFuture<'static, io::Result<u64>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.asked.fetch_add(1, SeqCst);
            if self.after == usize::MAX {
                return Poll::Ready(Err(io::Error::other("dead")));
            }
            if self.polls < self.after {
                self.polls += 1;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, millis: u64) -> Self::Future {
            assert!(
                std::mem::take(&mut self.ready),
                "an instance that was not ready is called"
            );
            self.polls = 0;
            Box::pin(async move {
                sleep(ms(millis)).await;
                Ok(millis)
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_instance_that_was_polled_ready_is_the_one_that_is_called() {
        for after in [0, 2] {
            let bulkhead = orders().max_concurrent(1).max_waiting(5).build().unwrap();
            let (picky, _) = Picky::new(after);
            let mut service = BulkheadLayer::new(bulkhead.clone()).layer(picky);
            for _ in 0..3 {
                assert_eq!(service.ready().await.unwrap().call(7).await.unwrap(), 7);
            }
            // One has to wait for a slot, and one was told that there is none, and then there is.
            let calls = (0..3).map(|_| service.clone().oneshot(7));
            let mut late = service.clone();
            let slot = bulkhead.enter().unwrap();
            late.ready().await.unwrap();
            drop(slot);
            for outcome in futures_util::future::join_all(calls).await {
                assert_eq!(outcome.unwrap(), 7);
            }
            assert_eq!(late.call(7).await.unwrap(), 7);
            assert_eq!(bulkhead.in_flight(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_taken_by_the_call_and_not_by_readiness() {
        let bulkhead = orders().max_concurrent(1).build().unwrap();
        let (mut first, mut second) = (sleeping!(bulkhead), sleeping!(bulkhead));
        for _ in 0..3 {
            first.ready().await.unwrap();
            second.ready().await.unwrap();
        }
        assert_eq!(bulkhead.in_flight(), 0, "however many are ready");
        let call = second.call(7);
        assert_eq!(bulkhead.in_flight(), 1, "before it is polled");
        assert!(first.call(7).await.unwrap_err().is::<BulkheadFull>());
        assert_eq!(call.await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_free_slot_nobody_below_is_asked() {
        let bulkhead = orders().max_concurrent(1).max_waiting(1).build().unwrap();
        let (picky, asked) = Picky::new(0);
        let service = BulkheadLayer::new(bulkhead.clone()).layer(picky);
        let slot = bulkhead.enter().unwrap();
        let mut waits = begin!(service, 7);
        assert!(service.clone().oneshot(7).await.unwrap_err().is::<BulkheadFull>());
        assert_eq!(asked.load(SeqCst), 0);
        drop(slot);
        assert_pending!(waits.poll());
        assert_eq!(asked.load(SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_or_is_turned_away_holds_no_slot_of_what_is_below() {
        let bulkhead = orders().max_concurrent(1).max_waiting(1).build().unwrap();
        let one = ConcurrencyLimit::new(service_fn(|()| ready(Ok::<_, Infallible>(()))), 1);
        let layer = BulkheadLayer::new(bulkhead.clone());
        let (mut waits, mut rejected) = (layer.layer(one.clone()), layer.layer(one.clone()));
        // A clone of its own, gone by the end.
        let is_free = || one.clone().ready().now_or_never().is_some();

        waits.ready().await.unwrap();
        assert!(!is_free());
        let slot = bulkhead.enter().unwrap();
        let mut wait = task::spawn(waits.call(()));
        assert_pending!(wait.poll());
        assert!(is_free(), "it is held by a call that waits");
        drop(slot);
        assert_ready_ok!(wait.poll());

        rejected.ready().await.unwrap();
        let _slot = bulkhead.enter().unwrap();
        let _place = begin!(
            layer.layer(service_fn(|()| pending::<Result<(), Infallible>>())),
            ()
        );
        assert!(rejected.call(()).await.unwrap_err().is::<BulkheadFull>());
        assert!(is_free(), "it is held by a rejection");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_turns_out_dead_frees_the_slot_although_the_future_is_held() {
        let bulkhead = orders().max_concurrent(1).max_waiting(1).build().unwrap();
        let (picky, _) = Picky::new(usize::MAX);
        let service = BulkheadLayer::new(bulkhead.clone()).layer(picky);
        let slot = bulkhead.enter().unwrap();
        let mut call = begin!(service, 7);
        drop(slot);
        let error = assert_ready_err!(call.poll());
        assert_eq!(error.downcast_ref::<NotReady>().unwrap().layer(), "Bulkhead");
        assert_eq!(bulkhead.in_flight(), 0);
        // With a free slot it comes out of `poll_ready`.
        let mut service = service;
        assert!(service.ready().await.unwrap_err().is::<io::Error>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_below_its_slot_for_as_long_as_the_service_is_not_ready() {
        let bulkhead = orders()
            .max_concurrent(1)
            .max_waiting(1)
            .max_wait(ms(10))
            .build()
            .unwrap();
        let (picky, _) = Picky::new(3);
        let slot = bulkhead.enter().unwrap();
        let mut call = begin!(BulkheadLayer::new(bulkhead.clone()).layer(picky), 7);
        drop(slot);
        assert_pending!(call.poll());
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 0));
        drop(call);
        assert_eq!(bulkhead.in_flight(), 0);
    }
}

mod rejections {
    use super::*;

    fn rejection() -> BoxError {
        let full = orders().max_concurrent(0).build().unwrap();
        full.enter().unwrap_err().into()
    }

    #[test]
    fn nothing_was_sent_and_no_server_has_failed() {
        let error = rejection();
        let fault = Fault::of(&*error);
        assert_eq!(
            fault,
            Fault::new(FaultKind::Rejected(Rejection::Bulkhead), Sent::No)
        );
        assert!(fault.is_rejection());
        assert_eq!(Classify::<()>::classify(&ByFault, Err(&*error)), Verdict::Ignored);
    }

    #[cfg(feature = "retry")]
    #[tokio::test(start_paused = true)]
    async fn they_are_not_retried() {
        use http::Request;
        use http_body_util::Empty;
        use std::sync::atomic::AtomicUsize;
        use tower_outbound::{
            call::{NotRetried, Trail},
            retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
        };

        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let full = orders().max_concurrent(0).build().unwrap();
        let below = BulkheadLayer::new(full.clone()).layer(service_fn(|_: Request<Empty<bytes::Bytes>>| {
            ready(Ok::<_, Infallible>(()))
        }));
        let below = below.map_request(move |request| {
            counted.fetch_add(1, SeqCst);
            request
        });
        let get = || Request::get("http://a/").body(Empty::new()).unwrap();
        let backoff = BackoffRetryLayer::new(Backoff::default()).layer(below.clone());
        let feign = Backoff::feign(ms(100), ms(100), 5).unwrap();
        let feign = BackoffRetryLayer::new(feign).layer(below.clone());
        let idempotent =
            IdempotentRetryLayer::new(Idempotent::default().same_endpoint(3)).layer(below.clone());
        let ribbon = Idempotent::ribbon()
            .same_endpoint(3)
            .ok_to_retry_on_all_operations();
        let ribbon = IdempotentRetryLayer::new(ribbon).layer(below);
        for outcome in [
            backoff.oneshot(get()).await,
            feign.oneshot(get()).await,
            idempotent.oneshot(get()).await,
            ribbon.oneshot(get()).await,
        ] {
            let error = outcome.unwrap_err();
            assert!(BulkheadFull::of(&*error).is_some());
            let reason = Trail::of(&*error).unwrap().stops().next().unwrap().reason();
            assert_eq!(reason, NotRetried::Rejected);
        }
        assert_eq!(calls.load(SeqCst), 4);
    }
}

mod config {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_told() {
        let bulkhead = orders()
            .max_concurrent(3)
            .max_waiting(5)
            .max_wait(ms(7))
            .build()
            .unwrap();
        assert_eq!((bulkhead.name(), bulkhead.max_concurrent()), ("orders", 3));
        assert_eq!((bulkhead.max_waiting(), bulkhead.max_wait()), (5, ms(7)));
        let standard = Bulkhead::new("orders").unwrap();
        assert_eq!((standard.max_concurrent(), standard.max_waiting()), (10, 0));
    }

    #[test]
    fn a_wait_for_which_there_is_no_place_is_a_mistake() {
        let error = orders().max_wait(ms(7)).build().unwrap_err();
        assert_eq!(
            (error.layer(), error.field(), error.value()),
            ("Bulkhead", "max_waiting", "0")
        );
        assert_eq!(
            orders()
                .max_waiting(1)
                .max_wait(ms(0))
                .build()
                .unwrap_err()
                .field(),
            "max_wait"
        );
        assert_eq!(Bulkhead::new(" ").unwrap_err().field(), "name");
    }
}

/// On many threads, in real time, with calls that are dropped wherever they are.
#[test]
fn under_load_there_are_never_more_calls_than_slots_and_none_is_forgotten() {
    const SLOTS: u32 = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let bulkhead = orders()
            .max_concurrent(SLOTS)
            .max_waiting(10_000)
            .max_wait(Duration::from_secs(600))
            .build()
            .unwrap();
        let inside = Arc::new(AtomicU32::new(0));
        let counted = inside.clone();
        let service = BulkheadLayer::new(bulkhead.clone()).layer(service_fn(move |n: u32| {
            let inside = counted.clone();
            async move {
                assert!(inside.fetch_add(1, SeqCst) < SLOTS);
                for _ in 0..n % 4 {
                    tokio::task::yield_now().await;
                }
                inside.fetch_sub(1, SeqCst);
                Ok::<_, Infallible>(n)
            }
        }));
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..4_000_u32 {
            let service = service.clone();
            calls.spawn(async move {
                if n % 3 == 0 {
                    // Dropped after a few polls, but never while it is inside.
                    let mut call = Box::pin(service.oneshot(0));
                    for _ in 0..n % 5 {
                        if call.as_mut().now_or_never().is_some() {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                } else {
                    assert_eq!(service.oneshot(n).await.unwrap(), n);
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), calls.join_all());
        assert_eq!(all.await.expect("a call was forgotten").len(), 4_000);
        assert_eq!(
            (bulkhead.in_flight(), bulkhead.waiting(), bulkhead.rejected()),
            (0, 0, 0)
        );
        assert_eq!(inside.load(SeqCst), 0);
    });
}
