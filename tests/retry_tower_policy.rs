//! Policies written for `tower::retry`, under tower's loop and under this crate's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use std::{
    future::{Future, Pending, Ready, pending, poll_fn, ready},
    io,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{Duration, Instant, Sleep, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{
    BoxError, Layer, Service, ServiceExt,
    retry::{
        Policy, Retry,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
        budget::{Budget, TpsBudget},
    },
    service_fn,
    util::rng::HasherRng,
};
use tower_outbound::{
    call::{
        AttemptOutcome, CallScope, Event, Fault, FaultError, FaultKind, NoTimeLeft, NotReady, NotRetried,
        Rejection, RetryBudget, Sent, StatusSet, Trail, scope,
    },
    retry::{RetryLayer, TowerPolicy, TowerRetry},
};

const SECOND: Duration = Duration::from_secs(1);

fn ours<P, S>(policy: P, service: S) -> TowerRetry<S, P>
where
    P: Clone,
{
    RetryLayer::tower(policy).layer(service)
}

/// When each attempt came since a start, and with which request.
#[derive(Clone)]
struct Log<Req> {
    start: Instant,
    lines: Arc<Mutex<Vec<(Duration, Req)>>>,
}

impl<Req: Clone> Log<Req> {
    fn new() -> Self {
        Log {
            start: Instant::now(),
            lines: Arc::default(),
        }
    }

    fn push(&self, request: Req) -> usize {
        let mut lines = self.lines.lock().unwrap();
        lines.push((self.start.elapsed(), request));
        lines.len()
    }

    fn lines(&self) -> Vec<(Duration, Req)> {
        self.lines.lock().unwrap().clone()
    }

    fn count(&self) -> usize {
        self.lines().len()
    }
}

/// A service that writes down its calls and fails the first of them.
fn failing<Req: Clone>(
    first: usize,
    log: &Log<Req>,
) -> impl Service<Req, Response = usize, Error = io::Error, Future = Ready<io::Result<usize>>> + Clone + use<Req>
{
    let log = log.clone();
    service_fn(move |request| {
        let number = log.push(request);
        ready(if number > first {
            Ok(number)
        } else {
            Err(io::ErrorKind::ConnectionReset.into())
        })
    })
}

/// Polls a future within a call that has this deadline.
async fn before<F: Future>(deadline: Duration, future: F) -> F::Output {
    let mut scope = CallScope::join();
    scope.narrow(Instant::now() + deadline);
    let mut future = pin!(future);
    poll_fn(|cx| scope.enter(|| future.as_mut().poll(cx))).await
}

fn stops(error: &BoxError) -> Vec<NotRetried> {
    let trail = Trail::of(&**error).expect("a trail");
    trail.stops().map(|stop| stop.reason()).collect()
}

/// The example of tower's docs, grown up: so many retries, with a pause that doubles.
#[derive(Clone)]
struct Patient {
    retries: usize,
    backoff: ExponentialBackoff,
}

impl Patient {
    fn new(retries: usize) -> Self {
        let mut maker = ExponentialBackoffMaker::new(SECOND, 60 * SECOND, 0.0, HasherRng::default()).unwrap();
        Patient {
            retries,
            backoff: maker.make_backoff(),
        }
    }
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for Patient {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, outcome: &mut Result<Res, E>) -> Option<Sleep> {
        outcome.as_ref().err()?;
        self.retries = self.retries.checked_sub(1)?;
        Some(self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// Retries every error at once, without end.
#[derive(Clone)]
struct Stubborn;

impl<Req: Clone, Res, E> Policy<Req, Res, E> for Stubborn {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, outcome: &mut Result<Res, E>) -> Option<Ready<()>> {
        outcome.as_ref().err().map(|_| ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

// ---- as under tower ----

#[tokio::test(start_paused = true)]
async fn attempts_and_pauses_are_those_of_towers_loop() {
    for (first, retries) in [(0, 3), (2, 3), (3, 3), (9, 3), (9, 0)] {
        let theirs = Log::new();
        let by_tower = Retry::new(Patient::new(retries), failing(first, &theirs))
            .oneshot("a")
            .await;
        let own = Log::new();
        let by_us = ours(Patient::new(retries), failing(first, &own))
            .oneshot("a")
            .await;
        assert_eq!(own.lines(), theirs.lines(), "{first} {retries}");
        assert_eq!(by_us.as_ref().ok(), by_tower.as_ref().ok());
        if let (Err(by_us), Err(_)) = (by_us, by_tower) {
            assert_eq!(Fault::of(&*by_us).kind(), FaultKind::Reset);
            assert_eq!(Trail::of(&*by_us).unwrap().len(), retries + 1);
            assert_eq!(stops(&by_us), [NotRetried::NotByRule]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_has_a_policy_of_its_own() {
    let log = Log::new();
    let mut service = ours(Patient::new(1), failing(9, &log));
    for attempts in [2, 4, 6] {
        service.ready().await.unwrap().call(()).await.unwrap_err();
        assert_eq!(log.count(), attempts);
    }
}

/// Retries errors as long as a budget that all calls share has something left.
#[derive(Clone)]
struct Thrifty(Arc<TpsBudget>);

impl<Req: Clone, Res, E> Policy<Req, Res, E> for Thrifty {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, outcome: &mut Result<Res, E>) -> Option<Ready<()>> {
        match outcome {
            Ok(_) => {
                self.0.deposit();
                None
            }
            Err(_) => self.0.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_towers_gives_as_many_retries_as_under_towers_loop() {
    let thrifty = || Thrifty(Arc::new(TpsBudget::new(60 * SECOND, 0, 0.5)));
    // Every call fails once and succeeds thereafter, beginning with 6 that succeed at once.
    let script = |log: &Log<bool>| {
        let log = log.clone();
        service_fn(move |fails: bool| {
            let number = log.push(fails);
            ready(match (fails, number % 2) {
                (true, 1) => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                _ => Ok(number),
            })
        })
    };
    let (theirs, own) = (Log::new(), Log::new());
    let mut by_tower = Retry::new(thrifty(), script(&theirs));
    let mut by_us = ours(thrifty(), script(&own));
    let mut given_up = 0;
    for fails in [false; 6].into_iter().chain([true; 20]) {
        let tower = by_tower.ready().await.unwrap().call(fails).await;
        let us = by_us.ready().await.unwrap().call(fails).await;
        assert_eq!(us.is_ok(), tower.is_ok());
        given_up += usize::from(us.is_err());
    }
    assert_eq!(own.lines(), theirs.lines());
    assert!(own.count() > 26 && given_up > 0, "{} {given_up}", own.count());
}

/// Writes the number of the attempt into the request, and makes an error of the last answer.
#[derive(Clone)]
struct Counting(u32);

impl Policy<Request<String>, usize, io::Error> for Counting {
    type Future = Ready<()>;

    fn retry(&mut self, request: &mut Request<String>, outcome: &mut io::Result<usize>) -> Option<Ready<()>> {
        if self.0 == 3 {
            *outcome = Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it never became what we wait for",
            ));
            return None;
        }
        self.0 += 1;
        request.headers_mut().insert("attempt", self.0.into());
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_may_change_the_request_and_the_outcome() {
    let seen = |log: &Log<Option<u32>>| {
        let log = log.clone();
        service_fn(move |request: Request<String>| {
            let attempt = request.headers().get("attempt");
            let number = log.push(attempt.map(|attempt| attempt.to_str().unwrap().parse().unwrap()));
            ready(Ok::<_, io::Error>(number))
        })
    };
    let (theirs, own) = (Log::new(), Log::new());
    let request = Request::new("body".to_owned());
    let by_tower = Retry::new(Counting(0), seen(&theirs))
        .oneshot(request.clone())
        .await;
    let by_us = ours(Counting(0), seen(&own)).oneshot(request).await.unwrap_err();
    assert_eq!(own.lines(), theirs.lines());
    let attempts: Vec<_> = own.lines().into_iter().map(|(_, attempt)| attempt).collect();
    assert_eq!(attempts, [None, Some(1), Some(2), Some(3)]);
    assert!(
        by_us.to_string().contains(&by_tower.unwrap_err().to_string()),
        "{by_us}"
    );
    let trail = Trail::of(&*by_us).unwrap();
    assert_eq!(
        trail.len(),
        4,
        "answers that the policy would not have are in it: {trail}"
    );
}

/// Copies a request only so often.
#[derive(Clone)]
struct Copies(u32);

impl<Req: Clone, Res, E> Policy<Req, Res, E> for Copies {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, _: &mut Result<Res, E>) -> Option<Ready<()>> {
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        self.0 = self.0.checked_sub(1)?;
        Some(request.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_has_no_copy_is_not_asked() {
    for copies in [0, 1, 2] {
        let (theirs, own) = (Log::new(), Log::new());
        Retry::new(Copies(copies), failing(9, &theirs))
            .oneshot(())
            .await
            .unwrap_err();
        let error = ours(Copies(copies), failing(9, &own))
            .oneshot(())
            .await
            .unwrap_err();
        assert_eq!(
            (own.count(), theirs.count()),
            (copies as usize + 1, copies as usize + 1)
        );
        assert_eq!(stops(&error), [NotRetried::BodyNotRepeatable]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_retried_if_the_policy_says_so() {
    let log = Log::new();
    let rejecting = {
        let log = log.clone();
        service_fn(move |request: &'static str| {
            log.push(request);
            let fault = Fault::new(FaultKind::Rejected(Rejection::Breaker), Sent::No);
            ready(Err::<(), BoxError>(FaultError::new(fault, "open").into()))
        })
    };
    ours(Patient::new(2), rejecting).oneshot("a").await.unwrap_err();
    let at: Vec<_> = log.lines().into_iter().map(|(at, _)| at).collect();
    assert_eq!(
        at,
        [Duration::ZERO, SECOND, 3 * SECOND],
        "it waits for the circuit to close"
    );
}

// ---- better than under tower ----

/// Is ready only when asked, is not when cloned, and fails each call.
struct Probe {
    asked: bool,
    log: Log<bool>,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Probe {
            asked: false,
            log: self.log.clone(),
        }
    }
}

impl Service<()> for Probe {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.asked = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        self.log.push(std::mem::take(&mut self.asked));
        ready(Err("failed".into()))
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_is_asked_of_the_very_instance_before_each_attempt_and_after_the_pause() {
    let log = Log::new();
    let probe = Probe {
        asked: false,
        log: log.clone(),
    };
    let mut service = ours(Patient::new(2), probe);
    for _ in 0..2 {
        service.ready().await.unwrap().call(()).await.unwrap_err();
    }
    let asked: Vec<_> = log.lines().into_iter().map(|(_, asked)| asked).collect();
    assert_eq!(asked, [true; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_for_a_retry_ends_the_call_with_the_layer_named() {
    #[derive(Clone)]
    struct DiesAfterOne(usize);
    impl Service<()> for DiesAfterOne {
        type Response = ();
        type Error = io::Error;
        type Future = Ready<io::Result<()>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(if self.0 == 0 {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            })
        }
        fn call(&mut self, (): ()) -> Self::Future {
            self.0 += 1;
            ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }
    let error = ours(Patient::new(2), DiesAfterOne(0))
        .oneshot(())
        .await
        .unwrap_err();
    let not_ready = tower_outbound::call::chain(&*error).find_map(|error| error.downcast_ref::<NotReady>());
    assert_eq!(not_ready.map(NotReady::layer), Some("TowerRetry"));
}

#[tokio::test(start_paused = true)]
async fn a_retry_without_a_pause_starts_in_a_poll_of_its_own() {
    let log = Log::new();
    let mut call = task::spawn(ours(Stubborn, failing(2, &log)).oneshot(()));
    for attempts in [1, 2] {
        assert_pending!(call.poll());
        assert_eq!(log.count(), attempts);
        assert!(call.is_woken());
    }
    assert_eq!(assert_ready_ok!(call.poll()), 3);

    let theirs = Log::new();
    let mut call = task::spawn(Retry::new(Stubborn, failing(2, &theirs)).oneshot(()));
    assert_ready_ok!(call.poll(), "tower makes them all in one");
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_with_the_deadline_and_the_error_that_is_known_is_returned() {
    let (log, start) = (Log::new(), Instant::now());
    let call = ours(Patient::new(9), failing(9, &log)).oneshot(());
    let error = before(2 * SECOND, call).await.unwrap_err();
    assert_eq!(
        start.elapsed(),
        2 * SECOND,
        "the second pause would take until 3 s"
    );
    assert_eq!((log.count(), Fault::of(&*error).kind()), (2, FaultKind::Reset));
    let reason = NotRetried::DeadlineTooClose {
        pause: SECOND,
        left: SECOND,
    };
    assert_eq!(stops(&error), [reason]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_without_an_end_is_ended_by_the_deadline_and_lasts_without_one() {
    #[derive(Clone)]
    struct Forever;
    impl<Res> Policy<(), Res, io::Error> for Forever {
        type Future = Pending<()>;
        fn retry(&mut self, _: &mut (), _: &mut io::Result<Res>) -> Option<Pending<()>> {
            Some(pending())
        }
        fn clone_request(&mut self, (): &()) -> Option<()> {
            Some(())
        }
    }
    let mut call = task::spawn(ours(Forever, failing(9, &Log::new())).oneshot(()));
    tokio::time::advance(100 * SECOND).await;
    assert_pending!(call.poll());
    tokio::time::advance(100 * SECOND).await;
    assert_pending!(call.poll());

    // What the policy would not have is gone: nothing is known but that the time is up.
    let call = ours(Forever, failing(0, &Log::new())).oneshot(());
    let error = before(SECOND, call).await.unwrap_err();
    let cause = tower_outbound::call::chain(&*error).find_map(|error| error.downcast_ref::<NoTimeLeft>());
    assert_eq!(cause.map(NoTimeLeft::layer), Some("TowerRetry"));
}

#[tokio::test(start_paused = true)]
async fn after_the_deadline_a_policy_begins_no_pause() {
    let slow = service_fn(|(): ()| async {
        sleep(SECOND).await;
        Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset))
    });
    let error = before(SECOND, ours(Stubborn, slow).oneshot(()))
        .await
        .unwrap_err();
    let reason = NotRetried::DeadlineTooClose {
        pause: Duration::ZERO,
        left: Duration::ZERO,
    };
    assert_eq!(stops(&error), [reason]);
}

/// A body that has bytes for its reader, and says when it is dropped how many it had left.
struct Counted {
    left: usize,
    log: Log<usize>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.log.push(self.left);
    }
}

/// Retries every status from 500 on, once.
#[derive(Clone)]
struct ServerErrors(usize);

impl<B, E> Policy<(), Response<B>, E> for ServerErrors {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut (), outcome: &mut Result<Response<B>, E>) -> Option<Ready<()>> {
        if !outcome
            .as_ref()
            .is_ok_and(|answer| answer.status().is_server_error())
        {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_a_policy_throws_away_are_drained_and_one_that_it_gives_up_on_is_handed_on() {
    let busy = |log: &Log<usize>| {
        let log = log.clone();
        service_fn(move |(): ()| {
            let body = Counted {
                left: 3,
                log: log.clone(),
            };
            ready(Ok::<_, BoxError>(
                Response::builder().status(503).body(body).unwrap(),
            ))
        })
    };
    let left = |log: &Log<usize>| log.lines().into_iter().map(|(_, left)| left).collect::<Vec<_>>();

    let log = Log::new();
    let layer = RetryLayer::tower(ServerErrors(1)).read_answers(StatusSet::TRANSIENT);
    let answer = layer.layer(busy(&log)).oneshot(()).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(left(&log), [0], "the first was read to its end");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "xxx");

    let log = Log::new();
    let answer = Retry::new(ServerErrors(1), busy(&log)).oneshot(()).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), left(&log)),
        (503, vec![3]),
        "tower drops it as it is"
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_the_layer_has_the_last_word() {
    let log = Log::new();
    let budget = RetryBudget::builder().build().unwrap();
    let layer = RetryLayer::tower(Stubborn).budget(budget.clone());
    let error = layer
        .layer(failing(usize::MAX, &log))
        .oneshot(())
        .await
        .unwrap_err();
    assert_eq!(stops(&error), [NotRetried::BudgetSpent]);
    assert!(log.count() > 1);
}

#[tokio::test(start_paused = true)]
async fn the_trail_tells_each_attempt_and_each_retry() {
    let error = ours(Patient::new(1), failing(9, &Log::new()))
        .oneshot(())
        .await
        .unwrap_err();
    let trail = Trail::of(&*error).unwrap();
    let kinds: Vec<_> = trail
        .events()
        .iter()
        .map(|event| match event {
            Event::Attempt(attempt) => match attempt.outcome() {
                AttemptOutcome::Failed(fault) => fault.to_string(),
                other => other.to_string(),
            },
            Event::Retry(retry) => format!("retry by {}", retry.layer()),
            Event::Stop(stop) => format!("stop by {}", stop.layer()),
            _ => String::new(),
        })
        .collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    assert_eq!(
        (&*kinds[1], &*kinds[3]),
        ("retry by TowerRetry", "stop by TowerRetry")
    );
    assert_eq!(kinds[0], kinds[2]);
}

#[tokio::test(start_paused = true)]
async fn the_layers_below_and_the_policy_are_within_the_call() {
    #[derive(Clone)]
    struct Asks;
    impl<Res, E> Policy<(), Res, E> for Asks {
        type Future = Ready<()>;
        fn retry(&mut self, _: &mut (), _: &mut Result<Res, E>) -> Option<Ready<()>> {
            let left = scope::current(|scope| scope.remaining());
            assert_eq!(left, Some(SECOND), "a policy can ask how much time is left");
            None
        }
        fn clone_request(&mut self, (): &()) -> Option<()> {
            Some(())
        }
    }
    let service = service_fn(|(): ()| {
        assert_eq!(scope::current(|scope| scope.remaining()), Some(SECOND));
        ready(Ok::<_, BoxError>(()))
    });
    before(SECOND, ours(Asks, service).oneshot(())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_drops_the_pause() {
    #[derive(Clone)]
    struct Held(Arc<()>);
    impl<Res> Policy<(), Res, io::Error> for Held {
        type Future = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
        fn retry(&mut self, _: &mut (), _: &mut io::Result<Res>) -> Option<Self::Future> {
            let held = Arc::clone(&self.0);
            Some(Box::pin(async move {
                let _held = held;
                pending().await
            }))
        }
        fn clone_request(&mut self, (): &()) -> Option<()> {
            Some(())
        }
    }
    let held = Arc::new(());
    let mut call = task::spawn(ours(Held(Arc::clone(&held)), failing(9, &Log::new())).oneshot(()));
    assert_pending!(call.poll());
    assert!(Arc::strong_count(&held) > 1);
    drop(call);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_before_the_first_attempt_is_passed_on() {
    #[derive(Clone)]
    struct Dead;
    impl Service<()> for Dead {
        type Response = ();
        type Error = io::Error;
        type Future = Ready<io::Result<()>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }
        fn call(&mut self, (): ()) -> Self::Future {
            panic!("called though it was not ready")
        }
    }
    let mut service = ours(Stubborn, Dead);
    let mut ready = task::spawn(poll_fn(move |cx| service.poll_ready(cx)));
    let error = assert_ready_err!(ready.poll());
    assert!(error.downcast_ref::<io::Error>().is_some());
}

#[test]
fn the_policy_can_be_seen() {
    let layer = RetryLayer::tower(ServerErrors(7));
    let policy: &TowerPolicy<ServerErrors> = layer.policy();
    assert_eq!(policy.get_ref().0, 7);
}
