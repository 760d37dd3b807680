//! What shows only where layers meet: with each other, with calls around them, and with what users do to futures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{Empty, Full};
use std::{
    cell::RefCell,
    future::{Future, pending},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Nest,
    balance::{Candidates, LoadBalanceLayer, RoundRobin, Rule, WhenEmpty},
    call::{
        AttemptOutcome, Endpoint, Endpoints, Fault, FaultError, FaultKind, NotRetried, RetryBudget, Sent,
        StatusError, StatusSet, Trail, UploadBody, Veto,
    },
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer, Jitter},
    timeout::{ExecutionTimeoutLayer, ReadTimeoutLayer},
};
fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[derive(Clone)]
struct FromElsewhere {
    step: u8,
    read: Arc<tokio::sync::Semaphore>,
}
impl Body for FromElsewhere {
    type Data = Bytes;
    type Error = io::Error;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.step == 0 {
            self.step = 1;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"half of it")))));
        }
        match self.read.try_acquire() {
            Ok(p) => p.forget(),
            Err(_) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(Some(Err(io::ErrorKind::ConnectionRefused.into())))
    }
}

#[tokio::test]
async fn a_post_that_is_partly_sent_is_not_sent_again_though_the_source_of_its_body_was_refused() {
    let heads = Arc::new(AtomicUsize::new(0));
    let read = Arc::new(tokio::sync::Semaphore::new(0));
    let mut eps = vec![];
    for _ in 0..2 {
        let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        eps.push(Endpoint::new(format!("http://{}", l.local_addr().unwrap())).unwrap());
        let (heads, read) = (heads.clone(), read.clone());
        tokio::spawn(async move {
            loop {
                let (mut c, _) = l.accept().await.unwrap();
                let mut all = vec![];
                let mut buf = [0; 1024];
                loop {
                    let n = c.read(&mut buf).await.unwrap_or(0);
                    if n == 0 {
                        break;
                    }
                    all.extend_from_slice(&buf[..n]);
                    if all.windows(10).any(|w| w == b"half of it") {
                        heads.fetch_add(1, SeqCst);
                        read.add_permits(1);
                        break;
                    }
                }
                let _ = c.read(&mut buf).await;
            }
        });
    }
    let nest = Nest::builder("orders", eps.into_iter().collect())
        .build_http()
        .unwrap();
    let e = nest
        .send(Request::post("/x").body(FromElsewhere { step: 0, read }).unwrap())
        .await
        .unwrap_err();
    assert_eq!(heads.load(SeqCst), 1, "{e}");
}

#[tokio::test(start_paused = true)]
async fn a_post_that_an_earlier_attempt_may_have_sent_is_not_sent_again_after_a_later_one_was_refused() {
    let n = Arc::new(AtomicUsize::new(0));
    let c = n.clone();
    let client = service_fn(move |_: Request<Full<Bytes>>| {
        let i = c.fetch_add(1, SeqCst);
        async move {
            Err::<Response<Empty<Bytes>>, io::Error>(
                if i == 0 {
                    io::ErrorKind::ConnectionReset
                } else {
                    io::ErrorKind::ConnectionRefused
                }
                .into(),
            )
        }
    });
    let svc = ServiceBuilder::new()
        .layer(BackoffRetryLayer::new(Backoff::default()))
        .layer(IdempotentRetryLayer::new(Idempotent::ribbon()))
        .service(client);
    let e = svc
        .oneshot(Request::post("http://a/").body(Full::default()).unwrap())
        .await
        .unwrap_err();
    assert_eq!(
        n.load(SeqCst),
        2,
        "ribbon allows 2, the safe backoff must not add to a POST that may have been sent: {e}"
    );
}

/// The error of a call is not that of its last attempt alone, also for a layer around the call that has no part in it.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_call_does_not_prove_that_nothing_was_sent_when_an_earlier_attempt_may_have_been() {
    let n = Arc::new(AtomicUsize::new(0));
    let c = n.clone();
    let client = service_fn(move |_: Request<Full<Bytes>>| {
        let kind = match c.fetch_add(1, SeqCst) {
            0 => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::ConnectionRefused,
        };
        async move { Err::<Response<Empty<Bytes>>, io::Error>(kind.into()) }
    });
    let nest = ServiceBuilder::new()
        .layer(RecordTrailLayer::new())
        .layer(IdempotentRetryLayer::new(Idempotent::ribbon()))
        .service(client);
    let around = BackoffRetryLayer::new(Backoff::default()).layer(nest.clone());
    let post = || Request::post("http://a/").body(Full::default()).unwrap();

    let e = around.oneshot(post()).await.unwrap_err();
    assert_eq!(n.swap(0, SeqCst), 2, "{e}");
    let e = nest.clone().oneshot(post()).await.unwrap_err();
    let fault = Fault::of(&*e);
    assert_eq!(
        (fault.kind(), fault.sent()),
        (FaultKind::ConnectRefused, Sent::Maybe),
        "{e}"
    );
    // All were refused.
    let e = nest.oneshot(post()).await.unwrap_err();
    assert_eq!(Fault::of(&*e).sent(), Sent::No, "{e}");
}

#[tokio::test(start_paused = true)]
async fn a_read_limit_holds_for_a_call_that_goes_on_after_the_call_around_it_has_ended() {
    let silent = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| {
        pending::<Result<Response<Full<Bytes>>, BoxError>>()
    });
    let orders = ReadTimeoutLayer::new(s(5)).unwrap().layer(silent);
    let (tx, rx) = std::sync::mpsc::channel();
    let handler = service_fn(move |_: ()| {
        let mut orders = orders.clone();
        let tx = tx.clone();
        async move {
            let audit = orders.call(Request::new(Empty::new()));
            tx.send(tokio::spawn(audit)).unwrap();
            Ok::<_, BoxError>(())
        }
    });
    let mut h = ExecutionTimeoutLayer::new(s(3)).unwrap().layer(handler);
    h.call(()).await.unwrap();
    let audit = rx.recv().unwrap();
    assert!(
        tokio::time::timeout(s(3600), audit).await.is_ok(),
        "an hour of silence under a read limit of 5 s"
    );
}

#[tokio::test(start_paused = true)]
async fn so_does_the_limit_on_the_wait_for_an_endpoint() {
    let client = service_fn(|_: Request<Empty<Bytes>>| pending::<Result<Response<Full<Bytes>>, BoxError>>());
    let lb = LoadBalanceLayer::new(Endpoints::new())
        .when_empty(WhenEmpty::Wait(s(5)))
        .unwrap()
        .layer(client);
    let (tx, rx) = std::sync::mpsc::channel();
    let handler = service_fn(move |_: ()| {
        let mut lb = lb.clone();
        let tx = tx.clone();
        async move {
            let audit = lb.call(Request::new(Empty::new()));
            // first polled within the scope, as a select! would do
            let mut audit = Box::pin(audit);
            let _ = std::future::poll_fn(|cx| Poll::Ready(audit.as_mut().poll(cx).is_ready())).await;
            tx.send(tokio::spawn(audit)).unwrap();
            Ok::<_, BoxError>(())
        }
    });
    let mut h = ExecutionTimeoutLayer::new(s(3)).unwrap().layer(handler);
    h.call(()).await.unwrap();
    let audit = rx.recv().unwrap();
    assert!(
        tokio::time::timeout(s(3600), audit).await.is_ok(),
        "an hour of waiting under a limit of 5 s"
    );
}

#[tokio::test]
async fn an_execution_limit_ends_work_that_uses_up_its_cooperative_budget() {
    let work = service_fn(|_: ()| async {
        let start = Instant::now();
        while start.elapsed() < s(2) {
            tokio::task::consume_budget().await;
        }
        Ok::<_, BoxError>(())
    });
    let start = Instant::now();
    let svc = ExecutionTimeoutLayer::new(Duration::from_millis(50))
        .unwrap()
        .layer(work);
    let r = svc.oneshot(()).await;
    assert!(
        r.is_err(),
        "limit of 50 ms, and it went on for {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_within_another_writes_nothing_into_the_trail_of_that_one() {
    let silent = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| {
        pending::<Result<Response<Empty<Bytes>>, io::Error>>()
    });
    let b = Nest::builder("b", Endpoints::from_list(["http://inner:1"]).unwrap())
        .build(silent)
        .unwrap();
    let outer = service_fn(move |_: Request<Empty<Bytes>>| {
        let b = b.clone();
        async move {
            tokio::select! {
                _ = b.send(Request::get("/").body(Empty::new()).unwrap()) => {}
                () = tokio::time::sleep(s(1)) => {}
            }
            Err::<Response<Empty<Bytes>>, io::Error>(io::ErrorKind::ConnectionReset.into())
        }
    });
    let svc = ServiceBuilder::new()
        .layer(RecordTrailLayer::new())
        .layer(IdempotentRetryLayer::new(
            Idempotent::default().next_endpoint(0).same_endpoint(1),
        ))
        .service(outer);
    let e = svc
        .oneshot(Request::get("http://outer/").body(Empty::new()).unwrap())
        .await
        .unwrap_err();
    let trail = Trail::of(&*e).unwrap();
    assert!(
        trail
            .attempts()
            .all(|a| a.endpoint().is_none() && matches!(a.outcome(), AttemptOutcome::Failed(_))),
        "{trail}"
    );
}

#[tokio::test(start_paused = true)]
async fn where_a_call_within_another_went_is_not_told_to_that_one() {
    let ok = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| async {
        Ok::<_, io::Error>(Response::new(Empty::<Bytes>::new()))
    });
    let b = Nest::builder("b", Endpoints::from_list(["http://inner:1"]).unwrap())
        .build(ok)
        .unwrap();
    let outer = service_fn(move |_: Request<Empty<Bytes>>| {
        let b = b.clone();
        async move {
            b.send(Request::get("/").body(Empty::new()).unwrap())
                .await
                .unwrap();
            Err::<Response<Empty<Bytes>>, io::Error>(io::ErrorKind::ConnectionReset.into())
        }
    });
    let svc = ServiceBuilder::new()
        .layer(RecordTrailLayer::new())
        .layer(IdempotentRetryLayer::new(Idempotent::default()))
        .service(outer);
    let e = svc
        .oneshot(Request::get("http://outer/").body(Empty::new()).unwrap())
        .await
        .unwrap_err();
    let trail = Trail::of(&*e).unwrap();
    assert!(trail.attempts().all(|a| a.endpoint().is_none()), "{trail}");
}

#[tokio::test(start_paused = true)]
async fn calls_that_run_side_by_side_in_one_trail_do_not_blame_each_other() {
    fn part(
        name: &'static str,
        fails: bool,
        after: u64,
    ) -> impl Future<Output = Result<Response<Empty<Bytes>>, BoxError>> {
        let client = service_fn(move |_: Request<Empty<Bytes>>| async move {
            tokio::time::sleep(s(after)).await;
            if fails {
                Err::<Response<Empty<Bytes>>, io::Error>(io::ErrorKind::ConnectionReset.into())
            } else {
                Ok(Response::new(Empty::new()))
            }
        });
        let svc = ServiceBuilder::new()
            .layer(IdempotentRetryLayer::new(
                Idempotent::default().next_endpoint(0).same_endpoint(1),
            ))
            .layer(LoadBalanceLayer::new(Endpoints::from_list([name]).unwrap()))
            .service(client);
        svc.oneshot(
            Request::post(format!("http://{name}/"))
                .body(Empty::new())
                .unwrap(),
        )
    }
    // b has no balancer, so its failure is written down by the retry layer
    let outer = service_fn(move |_: Request<Empty<Bytes>>| async move {
        let client = service_fn(|_: Request<Empty<Bytes>>| async {
            tokio::time::sleep(s(3)).await;
            Err::<Response<Empty<Bytes>>, io::Error>(io::ErrorKind::ConnectionReset.into())
        });
        let mut b = ServiceBuilder::new()
            .layer(IdempotentRetryLayer::new(Idempotent::default()))
            .service(client);
        let (_, _, b) = tokio::join!(
            part("first:1", true, 1),
            part("good:1", false, 2),
            b.call(Request::post("http://b/").body(Empty::new()).unwrap())
        );
        b
    });
    let svc = ServiceBuilder::new()
        .layer(RecordTrailLayer::new())
        .service(outer);
    let e = svc
        .oneshot(Request::get("http://outer/").body(Empty::new()).unwrap())
        .await
        .unwrap_err();
    let trail = Trail::of(&*e).unwrap();
    let good = trail
        .attempts()
        .find(|a| a.endpoint().is_some_and(|e| e.key() == "http://good:1"))
        .unwrap();
    assert_eq!(good.outcome(), AttemptOutcome::Answered, "{trail}");
}

#[tokio::test(start_paused = true)]
async fn a_budget_with_a_high_floor_survives_a_long_time_without_calls() {
    let budget = RetryBudget::builder().floor(u32::MAX).build().unwrap();
    tokio::time::advance(s(60 * 24 * 3600)).await;
    budget.deposit();
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_put_together_again_does_not_claim_its_old_length() {
    let client = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| async {
        Ok::<_, io::Error>(
            Response::builder()
                .status(500)
                .header("content-length", "100000")
                .body(Full::new(Bytes::from(vec![b'x'; 100_000])))
                .unwrap(),
        )
    });
    let nest = Nest::builder("a", Endpoints::from_list(["http://a:1"]).unwrap())
        .build(client)
        .unwrap();
    let e = nest
        .send(Request::get("/").body(Empty::new()).unwrap())
        .await
        .unwrap_err();
    let s = tower_outbound::call::chain(&*e)
        .find_map(|e| e.downcast_ref::<StatusError>())
        .unwrap()
        .clone();
    let r = s.into_response();
    assert!(
        r.headers()
            .get("content-length")
            .is_none_or(|l| l.to_str().unwrap() == r.body().len().to_string()),
        "{:?} {}",
        r.headers(),
        r.body().len()
    );
}

#[test]
fn the_plan_knows_the_wait_for_an_endpoint() {
    let b = || Nest::builder("a", Endpoints::new()).when_empty(WhenEmpty::Wait(s(3600)));
    assert!(!b().plan().findings().is_empty(), "{}", b().plan());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_counted_once_by_a_budget_that_only_the_lower_layer_has() {
    let budget = RetryBudget::builder()
        .percent(100.0)
        .floor(0)
        .burst(100)
        .initial(0)
        .build()
        .unwrap();
    let client = service_fn(|_: Request<Full<Bytes>>| async {
        Err::<Response<Empty<Bytes>>, io::Error>(io::ErrorKind::ConnectionReset.into())
    });
    let svc = ServiceBuilder::new()
        .layer(BackoffRetryLayer::new(
            Backoff::builder().attempts(5).build().unwrap(),
        ))
        .layer(IdempotentRetryLayer::new(Idempotent::default()).budget(budget.clone()))
        .service(client);
    let _ = svc
        .oneshot(Request::get("http://a/").body(Full::default()).unwrap())
        .await;
    assert_eq!(budget.granted(), 1, "one call earned one retry");
}

thread_local! { static HOLD: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>> = const { RefCell::new(None) }; }

#[test]
fn child_that_drops_a_call_as_its_thread_ends() {
    if std::env::var_os("TOWER_OUTBOUND_TEST_CHILD").is_none() {
        return;
    }
    std::thread::spawn(|| {
        HOLD.with(|h| *h.borrow_mut() = None);
        let silent =
            service_fn(|_: Request<Empty<Bytes>>| pending::<Result<Response<Empty<Bytes>>, io::Error>>());
        let mut lb = LoadBalanceLayer::new(Endpoints::from_list(["http://a:1"]).unwrap()).layer(silent);
        let call = lb.call(Request::get("/").body(Empty::new()).unwrap());
        HOLD.with(|h| {
            *h.borrow_mut() = Some(Box::pin(async move {
                let _ = call.await;
            }))
        });
    })
    .join()
    .unwrap();
}

#[test]
fn a_call_that_is_dropped_as_its_thread_ends_does_not_abort_the_process() {
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_drops_a_call_as_its_thread_ends",
            "--nocapture",
        ])
        .env("TOWER_OUTBOUND_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{:?} {}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
}

/// BAL-13.
#[tokio::test(start_paused = true)]
async fn each_attempt_is_booked_on_the_server_that_it_went_to_and_none_on_the_one_that_was_chosen_first() {
    let client = service_fn(|request: Request<UploadBody<Empty<Bytes>>>| async move {
        if request.uri().host() == Some("a") {
            pending::<()>().await;
        }
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
    });
    let balance = LoadBalanceLayer::new(Endpoints::from_list(["http://a", "http://b"]).unwrap())
        .rule(RoundRobin::new());
    let figures = balance.handle();
    let svc = ServiceBuilder::new()
        .layer(IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1)))
        .layer(balance)
        .layer(ReadTimeoutLayer::new(s(1)).unwrap())
        .service(client);
    for _ in 0..5 {
        let answer = svc.clone().oneshot(Request::new(Empty::new())).await;
        assert!(answer.is_ok());
    }
    let of = |key| {
        let figures = figures.endpoint(key).unwrap();
        (figures.failures(), figures.successes())
    };
    assert_eq!((of("http://a"), of("http://b")), ((5, 0), (0, 5)));
}

/// BAL-08.
#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_costs_no_call_and_next_to_no_retry() {
    let client = service_fn(|request: Request<Empty<Bytes>>| async move {
        if request.uri().host() == Some("a") {
            return Err(BoxError::from(io::Error::from(io::ErrorKind::ConnectionRefused)));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(Response::new(Full::<Bytes>::default()))
    });
    let calls = async |retry: bool, probed: bool| {
        let endpoints = Endpoints::from_list(["http://a", "http://b"]).unwrap();
        if probed {
            // By something that connects first.
            endpoints.snapshot().endpoints()[0]
                .eligibility()
                .forbid(Veto::Probe);
        }
        let balance = LoadBalanceLayer::new(endpoints);
        let figures = balance.handle();
        let next = Idempotent::default().next_endpoint(u32::from(retry));
        let svc = ServiceBuilder::new()
            .layer(IdempotentRetryLayer::new(next))
            .layer(balance)
            .service(client);
        let mut answered = 0;
        for _ in 0..100 {
            answered += u32::from(svc.clone().oneshot(Request::new(Empty::new())).await.is_ok());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (answered, figures.endpoint("http://a").unwrap().attempts())
    };
    assert_eq!(
        calls(false, true).await,
        (100, 0),
        "it is not one of those that are ready"
    );
    let (answered, wasted) = calls(true, false).await;
    assert_eq!(answered, 100);
    assert!(
        wasted <= 1,
        "{wasted} retries in 3 s, which are less than the time to recover"
    );
    // The other one is taken for no better until it has answered.
    let (answered, _) = calls(false, false).await;
    assert!(answered >= 98, "{answered}");
}

fn two_endpoints() -> Endpoints {
    ["a", "b"]
        .map(|name| Endpoint::new(name).unwrap())
        .into_iter()
        .collect()
}

/// A rule that wants the first, whatever became of it.
struct First;

impl Rule for First {
    fn pick(&self, _: &Candidates<'_>) -> Option<usize> {
        Some(0)
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}

fn steady(attempts: u32) -> Backoff {
    let builder = Backoff::builder().attempts(attempts).jitter(Jitter::None);
    builder.build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_endpoint_that_is_picked_over_and_over_is_left_alone_for_the_pauses() {
    let start = Instant::now();
    let (tell, told) = std::sync::mpsc::channel();
    let refuses = service_fn(move |_: Request<Full<Bytes>>| {
        tell.send(start.elapsed().as_millis()).unwrap();
        async {
            Err::<Response<Full<Bytes>>, BoxError>(io::Error::from(io::ErrorKind::ConnectionRefused).into())
        }
    });
    let service = ServiceBuilder::new()
        .layer(BackoffRetryLayer::new(steady(4)))
        .layer(LoadBalanceLayer::new(two_endpoints()).rule(First))
        .service(refuses);
    let request = Request::get("/").body(Full::default()).unwrap();
    assert!(service.oneshot(request).await.is_err());
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 0, 200, 600]);
}

/// A server that asks to be left alone for 30 s, and counts how often it was called.
fn asks_for_a_wait(
    calls: &Arc<AtomicUsize>,
) -> impl Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = BoxError, Future: Send> + Clone
{
    let calls = Arc::clone(calls);
    service_fn(move |_: Request<Full<Bytes>>| {
        calls.fetch_add(1, SeqCst);
        let answer = Response::builder().status(503).header("retry-after", "30");
        async { Ok::<_, BoxError>(answer.body(Full::<Bytes>::default()).unwrap()) }
    })
}

#[tokio::test]
async fn an_endpoint_that_asks_to_be_left_alone_is_where_there_is_no_other() {
    let calls = Arc::new(AtomicUsize::new(0));
    let asks = asks_for_a_wait(&calls);
    let retries = || {
        let policy = Idempotent::default().same_endpoint(1).next_endpoint(2);
        IdempotentRetryLayer::new(policy).retry_statuses(StatusSet::TRANSIENT)
    };
    let get = || Request::get("/").body(Full::default()).unwrap();
    let one: Endpoints = [Endpoint::new("a").unwrap()].into_iter().collect();
    let balanced = ServiceBuilder::new()
        .layer(RecordTrailLayer::new())
        .layer(retries())
        .layer(LoadBalanceLayer::new(one))
        .service(asks.clone());
    let answer = balanced.oneshot(get()).await.unwrap();
    assert_eq!((answer.status().as_u16(), calls.swap(0, SeqCst)), (503, 1));
    let reasons: Vec<_> = Trail::on(&answer)
        .unwrap()
        .stops()
        .map(|stop| stop.reason())
        .collect();
    assert_eq!(
        reasons,
        [NotRetried::RetryAfterTooLong {
            asked: s(30),
            limit: s(0)
        }]
    );
    let alone = retries().layer(asks);
    assert_eq!(alone.oneshot(get()).await.unwrap().status(), 503);
    assert_eq!(calls.load(SeqCst), 1);
}

/// By a limit between two layers that retry, of somebody else's.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_given_up_in_its_pause_is_no_attempt() {
    let calls = Arc::new(AtomicUsize::new(0));
    let refuses = {
        let calls = Arc::clone(&calls);
        service_fn(move |_: Request<Full<Bytes>>| {
            calls.fetch_add(1, SeqCst);
            async {
                Err::<Response<Full<Bytes>>, BoxError>(
                    io::Error::from(io::ErrorKind::ConnectionRefused).into(),
                )
            }
        })
    };
    let slow = Backoff::builder()
        .base(s(5))
        .max(s(5))
        .jitter(Jitter::None)
        .build()
        .unwrap();
    let below = BackoffRetryLayer::new(slow).layer(refuses);
    let service = ServiceBuilder::new()
        .layer(BackoffRetryLayer::new(steady(3)).attempts_in_call(2).unwrap())
        .service(service_fn(move |request| {
            let call = below.clone().oneshot(request);
            async {
                tokio::time::timeout(s(1), call)
                    .await
                    .unwrap_or_else(|elapsed| Err(elapsed.into()))
            }
        }));
    let request = Request::get("/").body(Full::<Bytes>::default()).unwrap();
    let error = service.oneshot(request).await.unwrap_err();
    assert_eq!(calls.load(SeqCst), 2, "{error}");
    assert_eq!(Trail::of(&*error).unwrap().len(), 2, "{error}");
}

/// Below, a limit of somebody else's that takes what it gave up for not sent.
#[tokio::test(start_paused = true)]
async fn a_post_whose_attempt_was_given_up_is_not_sent_again_whatever_is_said_of_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let stalls = {
        let calls = Arc::clone(&calls);
        service_fn(move |_: Request<Full<Bytes>>| {
            calls.fetch_add(1, SeqCst);
            pending::<Result<Response<Full<Bytes>>, BoxError>>()
        })
    };
    let below = LoadBalanceLayer::new(two_endpoints()).layer(stalls);
    let service = BackoffRetryLayer::new(steady(3)).layer(service_fn(move |request| {
        let call = below.clone().oneshot(request);
        async {
            let limited = tokio::time::timeout(s(1), call).await;
            limited.unwrap_or_else(|elapsed| Err(FaultError::unsent(elapsed).into()))
        }
    }));
    let request = Request::post("/").body(Full::<Bytes>::default()).unwrap();
    let error = service.oneshot(request).await.unwrap_err();
    assert_eq!((calls.load(SeqCst), Fault::of(&*error).sent()), (1, Sent::Maybe));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_may_not_be_picked_is_no_other_to_go_to() {
    let endpoints: Vec<_> = ["a", "b"].map(|name| Endpoint::new(name).unwrap()).into();
    endpoints[1].eligibility().forbid(Veto::User);
    let calls = Arc::new(AtomicUsize::new(0));
    let asks = asks_for_a_wait(&calls);
    let service = ServiceBuilder::new()
        .layer(IdempotentRetryLayer::new(Idempotent::default()).retry_statuses(StatusSet::TRANSIENT))
        .layer(LoadBalanceLayer::new(endpoints.iter().cloned().collect()))
        .service(asks);
    let get = || Request::get("/").body(Full::default()).unwrap();
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 503);
    assert_eq!(calls.swap(0, SeqCst), 1);
    endpoints[1].eligibility().allow(Veto::User);
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 503);
    assert_eq!(calls.load(SeqCst), 2);
}

/// A service that is ready once.
#[derive(Clone, Default)]
struct ReadyOnce(Arc<AtomicUsize>);

impl Service<Request<Full<Bytes>>> for ReadyOnce {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(match self.0.load(SeqCst) {
            0 => Ok(()),
            _ => Err("not any more".into()),
        })
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        self.0.fetch_add(1, SeqCst);
        std::future::ready(Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_ended_holds_no_token_however_long_its_future_is_kept() {
    let budget = RetryBudget::default();
    let retries = BackoffRetryLayer::new(steady(2)).budget(budget.clone());
    let request = Request::get("/").body(Full::default()).unwrap();
    let mut service = retries.layer(ReadyOnce::default());
    let mut call = std::pin::pin!(service.ready().await.unwrap().call(request));
    let error = call.as_mut().await.unwrap_err();
    assert!(
        Trail::of(&*error)
            .unwrap()
            .stops()
            .any(|stop| stop.reason() == NotRetried::NotReady)
    );
    assert_eq!(
        (budget.in_hand(), budget.granted(), budget.available()),
        (0, 0, 10)
    );
}
