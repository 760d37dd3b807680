//! The three limits, over their public API. All times are exact: tokio's clock is paused.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, pending, poll_fn, ready},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::{
    BodyExt, Empty, Full, StreamBody,
    channel::{Channel, Sender},
};
use proptest::prelude::*;
use tokio::time::{Duration, Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    call::{
        Attempt, AttemptOutcome, CallScope, ConfigError, DeadlineHeader, Endpoint, Fault, FaultKind, LONGEST,
        Overrides, ReadPhase, Sent, UploadBody, scope,
    },
    timeout::{
        ConnectTimedOut, ConnectTimeout, ConnectTimeoutFuture, ConnectTimeoutLayer, ExecutionTimedOut,
        ExecutionTimeout, ExecutionTimeoutFuture, ExecutionTimeoutLayer, NoTimeLeft, ReadBody, ReadTimedOut,
        ReadTimeout, ReadTimeoutFuture, ReadTimeoutLayer, ReceiveDeadlineLayer, SendDeadlineLayer,
        WriteTimedOut,
    },
};

type ChannelBody = Channel<Bytes, io::Error>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn read_timeout(limit: u64) -> ReadTimeoutLayer {
    ReadTimeoutLayer::new(ms(limit)).unwrap()
}

fn execution_timeout(limit: u64) -> ExecutionTimeoutLayer {
    ExecutionTimeoutLayer::new(ms(limit)).unwrap()
}

fn connect_timeout(limit: u64) -> ConnectTimeoutLayer {
    ConnectTimeoutLayer::new(ms(limit)).unwrap()
}

fn get() -> Request<Empty<Bytes>> {
    Request::new(Empty::new())
}

fn hello() -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from("hello")))
}

/// Counts itself as long as it lives.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Alive(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn read_phase(error: &(dyn Error + Send + Sync + 'static)) -> Option<ReadPhase> {
    error.downcast_ref::<ReadTimedOut>().map(ReadTimedOut::phase)
}

mod configuration {
    use super::*;

    fn check<T: std::fmt::Debug>(layer: &str, new: impl Fn(Duration) -> Result<T, ConfigError>) {
        for (limit, value, fix) in [
            (Duration::ZERO, "0 s", "above zero"),
            (Duration::MAX, "18446744073709551615.999999999s", "ten years"),
        ] {
            let error = new(limit).unwrap_err();
            assert_eq!(
                (error.layer(), error.field(), error.value()),
                (layer, "limit", value)
            );
            assert!(error.fix().contains(fix), "{error}");
        }
        assert!(new(Duration::from_nanos(1)).is_ok());
        assert!(new(LONGEST).is_ok());
    }

    #[test]
    fn a_limit_of_zero_or_of_ages_is_refused_with_field_value_and_fix() {
        check("ConnectTimeout", ConnectTimeoutLayer::new);
        check("ReadTimeout", ReadTimeoutLayer::new);
        check("ExecutionTimeout", ExecutionTimeoutLayer::new);
        check("ExecutionTimeout", ExecutionTimeoutLayer::hystrix);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_limit_overflows_nothing() {
        let longest = ServiceBuilder::new()
            .layer(ExecutionTimeoutLayer::new(LONGEST).unwrap())
            .layer(ReadTimeoutLayer::new(LONGEST).unwrap())
            .service_fn(|_: Request<UploadBody<Empty<Bytes>>>| async {
                sleep(ms(10)).await;
                Ok::<_, Infallible>(hello())
            });
        assert!(longest.oneshot(get()).await.is_ok());
        let connector = service_fn(|_: Uri| async {
            sleep(ms(10)).await;
            Ok::<_, Infallible>(())
        });
        let mut connector = ConnectTimeoutLayer::new(LONGEST).unwrap().layer(connector);
        assert!(connector.call(Uri::from_static("http://a")).await.is_ok());
    }

    #[test]
    fn what_should_be_is_send_sync_clone_and_unpin() {
        fn shared<T: Send + Sync + Clone + Unpin + std::fmt::Debug + 'static>() {}
        fn future<T: Send + Sync + std::fmt::Debug>() {}
        fn unpin<T: Send + Sync + Unpin>() {}
        shared::<ConnectTimeoutLayer>();
        shared::<ReadTimeoutLayer>();
        shared::<ExecutionTimeoutLayer>();
        shared::<ConnectTimeout<()>>();
        shared::<ReadTimeout<()>>();
        shared::<ExecutionTimeout<()>>();
        future::<ReadTimeoutFuture<()>>();
        future::<ExecutionTimeoutFuture<()>>();
        unpin::<ConnectTimeoutFuture<()>>();
        unpin::<UploadBody<Full<Bytes>>>();
        unpin::<ReadBody<Full<Bytes>>>();
    }

    #[test]
    fn a_service_shows_its_limit_and_what_is_inside() {
        let mut service = read_timeout(5).layer(7);
        *service.get_mut() += 1;
        assert_eq!(
            (service.limit(), *service.get_ref(), service.into_inner()),
            (ms(5), 8, 8)
        );
        let service = execution_timeout(5).layer(7);
        assert_eq!((service.limit(), service.into_inner()), (ms(5), 7));
        let service = connect_timeout(5).layer(7);
        assert_eq!((service.limit(), service.into_inner()), (ms(5), 7));
    }
}

mod ties {
    use super::*;

    /// TMO-13 in all its tests: what is inside completes at `after`, the limit is 100 ms.
    async fn all_three(after: u64) -> [Result<(), BoxError>; 3] {
        let read = read_timeout(100).layer(service_fn(
            move |_: Request<UploadBody<Empty<Bytes>>>| async move {
                sleep(ms(after)).await;
                Ok::<_, Infallible>(hello())
            },
        ));
        let execution = execution_timeout(100).layer(service_fn(move |()| async move {
            sleep(ms(after)).await;
            Ok::<_, Infallible>(())
        }));
        let connect = connect_timeout(100).layer(service_fn(move |_: Uri| async move {
            sleep(ms(after)).await;
            Ok::<_, Infallible>(())
        }));
        [
            read.oneshot(get()).await.map(|_| ()),
            execution.oneshot(()).await,
            connect.oneshot(Uri::from_static("http://a")).await,
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_on_the_tick_of_the_limit_wins() {
        for result in all_three(100).await {
            assert!(result.is_ok(), "{result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_one_tick_later_comes_too_late() {
        let [read, execution, connect] = all_three(101).await;
        assert!(read.unwrap_err().is::<ReadTimedOut>());
        assert!(execution.unwrap_err().is::<ExecutionTimedOut>());
        assert!(connect.unwrap_err().is::<ConnectTimedOut>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_is_there_wins_even_if_the_task_is_polled_late() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let mut told = Some(told);
        let mut service = execution_timeout(100).layer(service_fn(move |()| told.take().unwrap()));
        let mut call = task::spawn(service.call(()));
        assert_pending!(call.poll());
        advance(ms(50)).await;
        tell.send(()).unwrap();
        advance(ms(500)).await;
        assert_ready_ok!(call.poll());
    }
}

/// `ExecutionTimeoutLayer::hystrix`.
mod as_hystrix {
    use super::*;

    fn hystrix(limit: u64) -> ExecutionTimeoutLayer {
        ExecutionTimeoutLayer::hystrix(ms(limit)).unwrap()
    }

    /// A call that would take so long: how it ends, and after how long.
    async fn taking(after: u64) -> (Result<(), BoxError>, Duration) {
        let start = Instant::now();
        let service = hystrix(100).layer(service_fn(move |()| async move {
            sleep(ms(after)).await;
            Ok::<_, Infallible>(())
        }));
        (service.oneshot(()).await, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_exactly_the_limit_has_timed_out() {
        let (outcome, took) = taking(99).await;
        assert!(outcome.is_ok() && took == ms(99));
        for after in [100, 101, 1000] {
            let (outcome, took) = taking(after).await;
            let error = outcome.unwrap_err();
            assert_eq!(
                error.downcast_ref::<ExecutionTimedOut>().unwrap().limit(),
                ms(100)
            );
            assert_eq!(took, ms(100), "{after}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_below_is_polled_from_the_limit_on() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let mut service = hystrix(100).layer(service_fn(move |()| {
            let polls = counted.clone();
            poll_fn(move |_| {
                polls.fetch_add(1, Ordering::Relaxed);
                Poll::<Result<(), Infallible>>::Pending
            })
        }));
        let mut call = task::spawn(service.call(()));
        assert_pending!(call.poll());
        advance(ms(100)).await;
        assert!(assert_ready_err!(call.poll()).is::<ExecutionTimedOut>());
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_for_which_time_went_by_within_the_poll_has_timed_out() {
        // As one that blocks its thread.
        let mut service = hystrix(100).layer(service_fn(|()| {
            let mut moves = Box::pin(advance(ms(100)));
            poll_fn(move |cx| {
                let _ = moves.as_mut().poll(cx);
                Poll::Ready(Ok::<_, Infallible>(()))
            })
        }));
        let mut call = task::spawn(service.call(()));
        assert!(assert_ready_err!(call.poll()).is::<ExecutionTimedOut>());
        assert_pending!(call.poll(), "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_below_is_told_of_a_deadline_but_one_from_above_is_passed_on() {
        let seen = |_: ()| ready(Ok::<_, Infallible>(scope::deadline()));
        let alone = hystrix(100).layer(service_fn(seen));
        assert_eq!(alone.clone().oneshot(()).await.unwrap(), None);
        let due = Instant::now() + ms(500);
        let below = execution_timeout(500).layer(alone);
        assert_eq!(below.clone().oneshot(()).await.unwrap(), Some(due));
        let mut passed = CallScope::begin();
        passed.narrow(Instant::now());
        let call = passed.enter(|| below.into_inner().call(()));
        assert!(call.await.unwrap_err().is::<NoTimeLeft>());
    }

    #[tokio::test(start_paused = true)]
    async fn the_work_below_ends_with_the_limit_and_not_with_its_caller() {
        let alive = Arc::new(AtomicUsize::new(0));
        let held = alive.clone();
        let mut service = hystrix(100).layer(service_fn(move |()| {
            let guard = Alive::new(&held);
            async move {
                let _guard = guard;
                pending::<Result<(), Infallible>>().await
            }
        }));
        let mut call = Box::pin(service.call(()));
        call.as_mut().await.unwrap_err();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "the future is still held");
    }
}

mod happy_path {
    use super::*;

    // tokio's timers panic outside a runtime, so these tests prove that none is made.

    #[test]
    fn an_answer_that_is_there_at_once_makes_no_timer() {
        let mut service = ServiceBuilder::new()
            .layer(execution_timeout(100))
            .layer(read_timeout(100))
            .service_fn(|_: Request<UploadBody<Full<Bytes>>>| ready(Ok::<_, Infallible>(hello())));
        let request = Request::new(Full::new(Bytes::from("body")));
        let response = assert_ready_ok!(task::spawn(service.call(request)).poll());
        let body = assert_ready_ok!(task::spawn(response.into_body().collect()).poll());
        assert_eq!(body.to_bytes(), "hello");
    }

    #[test]
    fn a_connection_that_is_there_at_once_makes_no_timer() {
        let mut connector = connect_timeout(100).layer(service_fn(|_: Uri| ready(Ok::<_, Infallible>(()))));
        assert_ready_ok!(task::spawn(connector.call(Uri::from_static("http://a"))).poll());
    }

    /// RDY-13.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_calls_that_have_ended_whatever_their_limit() {
        let alive = Arc::new(AtomicUsize::new(0));
        let limit = Duration::from_secs(1_000_000);
        let counted = alive.clone();
        let mut service = ServiceBuilder::new()
            .layer(ExecutionTimeoutLayer::new(limit).unwrap())
            .layer(ReadTimeoutLayer::new(limit).unwrap())
            .service_fn(move |_: Request<UploadBody<Full<Bytes>>>| {
                let guard = Alive::new(&counted);
                async move {
                    // Pending once, so that both timers are made.
                    tokio::task::yield_now().await;
                    drop(guard);
                    Ok::<_, Infallible>(hello())
                }
            });
        for n in 0..10_000 {
            let size = if n % 2 == 0 { 10 } else { 100_000 };
            let request = Request::new(Full::new(Bytes::from(vec![0; size])));
            service.call(request).await.unwrap();
        }
        assert_eq!(alive.load(Ordering::Relaxed), 0);
        let metrics = tokio::runtime::Handle::current().metrics();
        assert_eq!(metrics.num_alive_tasks(), 0);
        // A timer that was left behind would be the next thing to happen, and a paused clock would jump to it.
        let start = Instant::now();
        sleep(limit * 2).await;
        assert_eq!(start.elapsed(), limit * 2);
    }

    /// RDY-12.
    #[test]
    fn a_call_that_is_never_polled_leaves_nothing_behind() {
        let alive = Arc::new(AtomicUsize::new(0));
        let counted = alive.clone();
        let mut service = ServiceBuilder::new()
            .layer(execution_timeout(100))
            .layer(read_timeout(100))
            .service_fn(move |request: Request<UploadBody<ChannelBody>>| {
                let guard = Alive::new(&counted);
                async move {
                    let _held = (guard, request);
                    pending::<Result<Response<Full<Bytes>>, Infallible>>().await
                }
            });
        for _ in 0..1_000 {
            let (sender, body) = ChannelBody::new(1);
            drop(service.call(Request::new(body)));
            assert_eq!(alive.load(Ordering::Relaxed), 0);
            drop(sender);
        }
    }
}

mod readiness {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_instance_that_was_polled_ready_is_the_one_that_is_called() {
        /// Ready once it was asked, and only this instance.
        struct Asked(bool);
        impl Clone for Asked {
            fn clone(&self) -> Self {
                Asked(false)
            }
        }
        impl<T> Service<T> for Asked {
            type Response = Response<Full<Bytes>>;
            type Error = Infallible;
            type Future = std::future::Ready<Result<Self::Response, Infallible>>;
            fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
                self.0 = true;
                Poll::Ready(Ok(()))
            }
            fn call(&mut self, _: T) -> Self::Future {
                assert!(std::mem::take(&mut self.0), "called without having been asked");
                ready(Ok(hello()))
            }
        }
        let service = ServiceBuilder::new()
            .layer(execution_timeout(100))
            .layer(read_timeout(100))
            .service(Asked(false));
        for mut service in [service.clone(), service] {
            for _ in 0..3 {
                let service = ServiceExt::<Request<Empty<Bytes>>>::ready(&mut service)
                    .await
                    .unwrap();
                service.call(get()).await.unwrap();
            }
        }
        let mut connector = connect_timeout(100).layer(Asked(false));
        connector
            .ready()
            .await
            .unwrap()
            .call(Uri::from_static("http://a"))
            .await
            .unwrap();
    }

    #[test]
    fn waiting_and_failing_to_be_ready_come_from_the_service_inside() {
        let (mock, mut handle) =
            tower_test::mock::pair::<Request<UploadBody<Empty<Bytes>>>, Response<Full<Bytes>>>();
        handle.allow(0);
        let service = ServiceBuilder::new()
            .layer(execution_timeout(100))
            .layer(read_timeout(100))
            .service(mock);
        let mut service = tower_test::mock::Spawn::new(service);
        assert_pending!(service.poll_ready());
        handle.send_error("broken");
        assert_eq!(assert_ready_err!(service.poll_ready()).to_string(), "broken");
    }
}

mod connect {
    use super::*;

    /// A connector that tries the addresses of a host one after the other. `None`: packets are swallowed.
    fn scripted(
        addresses: &'static [Option<u64>],
        race_after: u64,
    ) -> impl Service<
        Uri,
        Response = usize,
        Error = io::Error,
        Future = impl Future<Output = io::Result<usize>>,
    > + Clone {
        service_fn(move |_: Uri| async move {
            // As happy eyeballs do: the next address joins in after a while.
            let mut tries: futures_util::stream::FuturesUnordered<_> = addresses
                .iter()
                .enumerate()
                .map(|(n, takes)| async move {
                    sleep(ms(race_after * n as u64)).await;
                    match takes {
                        Some(takes) => sleep(ms(*takes)).await,
                        None => pending().await,
                    }
                    n
                })
                .collect();
            futures_util::StreamExt::next(&mut tries)
                .await
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    /// TMO-08, first run.
    #[tokio::test(start_paused = true)]
    async fn two_dead_addresses_do_not_keep_the_third_from_answering() {
        let start = Instant::now();
        let mut connector = connect_timeout(900).layer(scripted(&[None, None, Some(50)], 250));
        assert_eq!(connector.call(Uri::from_static("http://host")).await.unwrap(), 2);
        assert_eq!(start.elapsed(), ms(550));
    }

    /// TMO-08, second run.
    #[tokio::test(start_paused = true)]
    async fn the_limit_is_one_for_all_addresses() {
        let start = Instant::now();
        let mut connector = connect_timeout(900).layer(scripted(&[None, None, None], 250));
        let uri = Uri::from_static("http://user:password@host:81/path?query");
        let error = connector.call(uri).await.unwrap_err();
        assert_eq!(start.elapsed(), ms(900));

        let timed_out = error.downcast_ref::<ConnectTimedOut>().unwrap();
        assert_eq!((timed_out.limit(), timed_out.target()), (ms(900), "host:81"));
        assert!(!error.to_string().contains("password"));
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ConnectTimeout, Sent::No)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_not_a_timeout_and_comes_through_unchanged() {
        let mut connector = connect_timeout(900).layer(service_fn(|_: Uri| async {
            sleep(ms(10)).await;
            Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused))
        }));
        let error = connector.call(Uri::from_static("http://host")).await.unwrap_err();
        assert_eq!(
            error.downcast_ref::<io::Error>().unwrap().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    /// A client that connects, and then answers after a while.
    fn client<B: Send + 'static>(
        limit: u64,
        connect: Option<u64>,
        answer: Option<u64>,
    ) -> impl Service<
        Request<UploadBody<B>>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > {
        service_fn(move |request: Request<UploadBody<B>>| {
            let mut connector = connect_timeout(limit).layer(service_fn(move |_: Uri| async move {
                match connect {
                    Some(takes) => sleep(ms(takes)).await,
                    None => pending().await,
                }
                Ok::<_, Infallible>(())
            }));
            async move {
                connector.call(request.uri().clone()).await?;
                match answer {
                    Some(takes) => sleep(ms(takes)).await,
                    None => pending().await,
                }
                Ok(hello())
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connect_phase_longer_than_the_read_limit_is_no_read_timeout() {
        let start = Instant::now();
        let mut service = read_timeout(100).layer(client(1000, Some(700), Some(90)));
        service.call(get()).await.unwrap();
        assert_eq!(start.elapsed(), ms(790));
    }

    #[tokio::test(start_paused = true)]
    async fn the_read_limit_counts_from_the_connection() {
        let start = Instant::now();
        let mut service = read_timeout(100).layer(client(1000, Some(700), None));
        let error = service.call(get()).await.unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Head));
        assert_eq!(start.elapsed(), ms(800));
    }

    #[tokio::test(start_paused = true)]
    async fn equal_limits_on_a_host_that_swallows_packets_give_the_connect_timeout() {
        let start = Instant::now();
        let mut service = read_timeout(1000).layer(client(1000, None, None));
        let error = service.call(get()).await.unwrap_err();
        assert!(error.is::<ConnectTimedOut>(), "{error}");
        assert_eq!(start.elapsed(), ms(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_connect_for_the_same_request_starts_the_clock_anew() {
        let start = Instant::now();
        // As when a pooled connection turns out to be dead, 80 ms on: the client connects again.
        let mut service =
            read_timeout(100).layer(service_fn(|request: Request<UploadBody<Empty<Bytes>>>| async {
                sleep(ms(80)).await;
                client(1000, Some(500), Some(90)).call(request).await
            }));
        service.call(get()).await.unwrap();
        assert_eq!(start.elapsed(), ms(670));
    }

    #[cfg(feature = "hyper")]
    #[test]
    fn hyper_util_takes_it_as_a_connector() {
        use hyper_util::client::legacy::connect::{Connect, HttpConnector};
        fn takes(_: impl Connect + Clone + Send + Sync + 'static) {}
        let _ = |connector: HttpConnector| takes(connect_timeout(1).layer(connector));
    }
}

mod upload {
    use super::*;

    /// A client that takes the whole upload, as slowly as it comes, and answers after a while. The number of bytes is
    /// in the answer's extensions.
    fn draining(
        answer: Option<u64>,
    ) -> impl Service<
        Request<UploadBody<ChannelBody>>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > + Clone {
        service_fn(move |request: Request<UploadBody<ChannelBody>>| async move {
            let uploaded = request.into_body().collect().await?.to_bytes().len();
            match answer {
                Some(takes) => sleep(ms(takes)).await,
                None => pending().await,
            }
            let mut response = hello();
            response.extensions_mut().insert(uploaded);
            Ok(response)
        })
    }

    async fn five_chunks_200_ms_apart(mut sender: Sender<Bytes, io::Error>) {
        for _ in 0..5 {
            sleep(ms(200)).await;
            sender.send_data(Bytes::from("chunk")).await.unwrap();
        }
    }

    /// TMO-04.
    #[tokio::test(start_paused = true)]
    async fn a_slow_upload_does_not_trip_the_limit() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(five_chunks_200_ms_apart(sender));
        let mut service = read_timeout(300).layer(draining(Some(50)));
        let response = service.call(Request::new(body)).await.unwrap();
        assert_eq!(response.extensions().get(), Some(&25_usize));
        assert_eq!(start.elapsed(), ms(1050));
    }

    /// TMO-04.
    #[tokio::test(start_paused = true)]
    async fn the_limit_counts_from_the_end_of_the_upload() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(five_chunks_200_ms_apart(sender));
        let mut service = read_timeout(300).layer(draining(None));
        let error = service.call(Request::new(body)).await.unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Head));
        assert_eq!(start.elapsed(), ms(1300));
    }

    /// hyper takes a frame in one go: only in pieces does a large one show when it has been written.
    #[tokio::test(start_paused = true)]
    async fn one_large_frame_that_is_written_slowly_does_not_trip_the_limit() {
        let start = Instant::now();
        let mut service =
            read_timeout(300).layer(service_fn(|request: Request<UploadBody<Full<Bytes>>>| async {
                let mut body = request.into_body();
                while let Some(frame) = body.frame().await {
                    // One byte a microsecond.
                    let len = frame?.into_data().unwrap().len();
                    sleep(Duration::from_micros(len as u64)).await;
                }
                sleep(ms(200)).await;
                Ok::<_, BoxError>(hello())
            }));
        let upload = Full::new(Bytes::from(vec![0; 1_000_000]));
        service.call(Request::new(upload)).await.unwrap();
        assert!(start.elapsed() >= ms(1200));
    }

    fn write_limit(limit: u64) -> ReadTimeoutLayer {
        read_timeout(300).write_limit(ms(limit)).unwrap()
    }

    /// A client that takes a piece of the upload in so many milliseconds each, and then answers; the last one may
    /// take for ever.
    fn taking<B>(
        pieces: &'static [Option<u64>],
    ) -> impl Service<
        Request<UploadBody<B>>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > + Clone
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        service_fn(move |request: Request<UploadBody<B>>| async move {
            let mut body = request.into_body();
            for takes in pieces {
                let _piece = body.frame().await.transpose()?;
                match takes {
                    Some(takes) => sleep(ms(*takes)).await,
                    None => pending().await,
                }
            }
            while body.frame().await.transpose()?.is_some() {}
            Ok(hello())
        })
    }

    fn large() -> Request<Full<Bytes>> {
        Request::new(Full::new(Bytes::from(vec![0; 100_000])))
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_nobody_takes_ends_at_the_write_limit_after_its_last_piece() {
        let start = Instant::now();
        let mut service = write_limit(200).layer(taking(&[Some(150), Some(190), Some(10), None]));
        let mut call = Box::pin(service.call(large()));
        let error = call.as_mut().await.unwrap_err();
        assert_eq!(start.elapsed(), ms(150 + 190 + 10 + 200));
        assert_eq!(error.downcast_ref::<WriteTimedOut>().unwrap().limit(), ms(200));
        assert_eq!(Fault::of(&*error), Fault::new(FaultKind::Write, Sent::Maybe));
        assert!(error.to_string().contains("request body"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_goes_on_slowly_is_within_the_write_limit_and_the_read_limit_counts_after_it() {
        let start = Instant::now();
        let mut service = write_limit(200).layer(taking(&[Some(200); 7]));
        service.call(large()).await.unwrap();
        assert_eq!(start.elapsed(), ms(1400));
        // 100 KB are seven pieces; with the last of them the upload has ended.
        let start = Instant::now();
        let pieces = &[
            Some(100),
            Some(100),
            Some(100),
            Some(100),
            Some(100),
            Some(100),
            None,
        ];
        let error = write_limit(200)
            .layer(taking(pieces))
            .call(large())
            .await
            .unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Head));
        assert_eq!(start.elapsed(), ms(900));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_takes_its_time_is_no_stall_and_what_comes_after_it_has_its_whole_limit() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(five_chunks_200_ms_apart(sender));
        // Four pieces are taken at once, though they come slowly; the fifth, at 1 s, is not done with.
        let pieces = &[Some(0), Some(0), Some(0), Some(0), None];
        let mut service = write_limit(150).layer(taking(pieces));
        let error = service.call(Request::new(body)).await.unwrap_err();
        assert!(error.is::<WriteTimedOut>(), "{error}");
        assert_eq!(start.elapsed(), ms(1150));
    }

    #[tokio::test(start_paused = true)]
    async fn nor_is_it_one_for_a_client_that_sends_in_a_task_of_its_own() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(five_chunks_200_ms_apart(sender));
        // As hyper, which looks at the body only when there is something in it.
        let mut service =
            write_limit(150).layer(service_fn(|request: Request<UploadBody<ChannelBody>>| async {
                let upload = tokio::spawn(async {
                    let mut body = request.into_body();
                    while body.frame().await.transpose()?.is_some() {}
                    Ok::<_, BoxError>(())
                });
                upload.await??;
                Ok::<_, BoxError>(hello())
            }));
        service.call(Request::new(body)).await.unwrap();
        assert_eq!(start.elapsed(), ms(1000));
    }

    /// When a write limit of 200 ms ends an upload to a client that waits so long, for a pooled connection, say, then
    /// connects within 700 ms, and takes nothing.
    async fn stalled_after(wait: u64) -> Duration {
        let start = Instant::now();
        let mut service = write_limit(200).layer(service_fn(
            move |request: Request<UploadBody<Full<Bytes>>>| async move {
                if wait > 0 {
                    sleep(ms(wait)).await;
                }
                let mut connector = connect_timeout(1000).layer(service_fn(|_: Uri| async {
                    sleep(ms(700)).await;
                    Ok::<_, Infallible>(())
                }));
                connector.call(Uri::from_static("http://a")).await?;
                let _request = request;
                pending::<Result<Response<Full<Bytes>>, BoxError>>().await
            },
        ));
        let error = service.call(large()).await.unwrap_err();
        assert!(error.is::<WriteTimedOut>(), "{error}");
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connect_phase_is_no_stall_and_one_that_never_takes_anything_is() {
        assert_eq!(stalled_after(0).await, ms(900));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_counts_from_the_connection_also_where_the_client_waited_before_it_connected() {
        assert_eq!(stalled_after(100).await, ms(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_limit_at_or_after_the_deadline_leaves_the_call_to_its_owner() {
        for (limit, is_write) in [(99, true), (100, false), (5000, false)] {
            let mut service = execution_timeout(100).layer(write_limit(limit).layer(taking(&[None])));
            let mut call = task::spawn(service.call(large()));
            assert_pending!(call.poll());
            advance(ms(10_000)).await;
            let error = assert_ready_err!(call.poll());
            assert_eq!(error.is::<WriteTimedOut>(), is_write, "{limit}: {error}");
            assert_eq!(error.is::<ExecutionTimedOut>(), !is_write);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_upload_ends_with_its_call() {
        let (ended, mut upload) = tokio::sync::mpsc::unbounded_channel();
        let mut service =
            write_limit(200).layer(service_fn(move |request: Request<UploadBody<Full<Bytes>>>| {
                let ended = ended.clone();
                // As hyper, in a task of its own, that is blocked for a second.
                tokio::spawn(async move {
                    let mut body = request.into_body();
                    assert!(body.frame().await.unwrap().is_ok());
                    sleep(ms(1000)).await;
                    let _ = ended.send(
                        body.frame()
                            .await
                            .unwrap()
                            .map(|_| ())
                            .map_err(|error| error.to_string()),
                    );
                });
                pending::<Result<Response<Full<Bytes>>, BoxError>>()
            }));
        let error = service.call(large()).await.unwrap_err();
        assert!(error.is::<WriteTimedOut>());
        assert!(end_of(&mut upload).await.unwrap_err().contains("given up"));
    }

    /// A body that is in hand as far as its length tells, but comes slowly.
    struct SlowlyKnown(std::pin::Pin<Box<tokio::time::Sleep>>, bool);

    impl Body for SlowlyKnown {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.1 {
                return Poll::Ready(None);
            }
            std::task::ready!(self.0.as_mut().poll(cx));
            self.1 = true;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from("late")))))
        }
        fn is_end_stream(&self) -> bool {
            self.1
        }
        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(if self.1 { 0 } else { 4 })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_bodies_of_known_length_are_followed_on_request() {
        let client = service_fn(|request: Request<UploadBody<SlowlyKnown>>| async {
            request.into_body().collect().await?;
            Ok::<_, BoxError>(hello())
        });
        let slow = || Request::new(SlowlyKnown(Box::pin(sleep(ms(200))), false));
        let error = read_timeout(100).layer(client).oneshot(slow()).await;
        assert!(error.unwrap_err().is::<ReadTimedOut>());
        let answered = read_timeout(100).in_hand(0).layer(client).oneshot(slow()).await;
        assert!(answered.is_ok());
    }

    /// A client as hyper is one: it uploads in a task of its own, which the end of the call does not end. What the
    /// upload ended in goes to the channel.
    fn uploading_alone(
        answer: Option<u64>,
        ended: tokio::sync::mpsc::UnboundedSender<Result<(), String>>,
    ) -> impl Service<
        Request<UploadBody<ChannelBody>>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > {
        service_fn(move |request: Request<UploadBody<ChannelBody>>| {
            let ended = ended.clone();
            tokio::spawn(async move {
                let result = request.into_body().collect().await;
                let _ = ended.send(result.map(|_| ()).map_err(|error| error.to_string()));
            });
            async move {
                match answer {
                    Some(takes) => sleep(ms(takes)).await,
                    None => pending().await,
                }
                Ok(hello())
            }
        })
    }

    async fn end_of(
        upload: &mut tokio::sync::mpsc::UnboundedReceiver<Result<(), String>>,
    ) -> Result<(), String> {
        let ended = tokio::time::timeout(ms(60_000), upload.recv()).await;
        ended.expect("the upload ends").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_upload_ends_when_the_caller_has_left() {
        let (ended, mut upload) = tokio::sync::mpsc::unbounded_channel();
        let (_sender, body) = ChannelBody::new(1);
        let mut service = read_timeout(300).layer(uploading_alone(None, ended));
        let call = service.call(Request::new(body));
        assert!(tokio::time::timeout(ms(10), call).await.is_err());
        let error = end_of(&mut upload).await.unwrap_err();
        assert!(error.contains("given up"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_upload_ends_with_an_outer_limit_while_the_future_is_still_held() {
        let (ended, mut upload) = tokio::sync::mpsc::unbounded_channel();
        let (_sender, body) = ChannelBody::new(1);
        let mut service = ServiceBuilder::new()
            .layer(execution_timeout(50))
            .layer(read_timeout(300))
            .service(uploading_alone(None, ended));
        let mut call = Box::pin(service.call(Request::new(body)));
        assert!(call.as_mut().await.unwrap_err().is::<ExecutionTimedOut>());
        assert!(end_of(&mut upload).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_answer_is_returned_and_the_upload_goes_on_until_its_body_is_dropped() {
        let start = Instant::now();
        let (ended, mut upload) = tokio::sync::mpsc::unbounded_channel();
        let (mut sender, body) = ChannelBody::new(1);
        let mut service = read_timeout(300).layer(uploading_alone(Some(20), ended));
        let response = service.call(Request::new(body)).await.unwrap();
        assert_eq!(start.elapsed(), ms(20));
        for _ in 0..10 {
            sleep(ms(100)).await;
            sender.send_data(Bytes::from("more")).await.unwrap();
        }
        assert!(upload.try_recv().is_err(), "it goes on");
        drop(response);
        assert!(end_of(&mut upload).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_may_end_by_itself_after_an_early_answer() {
        let (ended, mut upload) = tokio::sync::mpsc::unbounded_channel();
        let (sender, body) = ChannelBody::new(1);
        let mut service = read_timeout(300).layer(uploading_alone(Some(20), ended));
        let response = service.call(Request::new(body)).await.unwrap();
        drop(sender);
        assert_eq!(end_of(&mut upload).await, Ok(()));
        drop(response);
    }
}

mod read {
    use super::*;

    /// A client that answers at once, with a body that is fed by the test.
    fn feeding(
        body: ChannelBody,
    ) -> impl Service<
        Request<UploadBody<Empty<Bytes>>>,
        Response = Response<ChannelBody>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<ChannelBody>, Infallible>>,
    > {
        let mut body = Some(body);
        service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| ready(Ok(Response::new(body.take().unwrap()))))
    }

    async fn feed(mut sender: Sender<Bytes, io::Error>, gaps: impl IntoIterator<Item = u64>) {
        for gap in gaps {
            sleep(ms(gap)).await;
            if sender.send_data(Bytes::from("chunk")).await.is_err() {
                return;
            }
        }
    }

    /// TMO-05, a.
    #[tokio::test(start_paused = true)]
    async fn a_long_body_with_short_gaps_is_whole() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(feed(sender, [400; 10]));
        let response = read_timeout(500).layer(feeding(body)).call(get()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((body.len(), start.elapsed()), (50, ms(4000)));
    }

    /// TMO-05, b. The timer of one gap is used for the next, so a gap that begins late in it must have its whole time.
    #[tokio::test(start_paused = true)]
    async fn a_gap_longer_than_the_limit_ends_the_body_that_long_after_its_last_frame() {
        for before in [0, 1, 250, 499] {
            let start = Instant::now();
            let (sender, body) = ChannelBody::new(1);
            tokio::spawn(feed(sender, [before, before, 600]));
            let response = read_timeout(500).layer(feeding(body)).call(get()).await.unwrap();
            let mut body = response.into_body();
            for _ in 0..2 {
                assert!(body.frame().await.unwrap().is_ok());
            }
            let error = body.frame().await.unwrap().unwrap_err();
            assert_eq!(read_phase(&*error), Some(ReadPhase::Body));
            assert_eq!(start.elapsed(), ms(2 * before + 500));
            assert!(body.frame().await.is_none() && body.is_end_stream());
        }
    }

    /// TMO-05, c.
    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_passes_for_ever_and_only_a_limit_on_the_whole_ends_it() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(feed(sender, std::iter::repeat(400)));
        let response = read_timeout(500).layer(feeding(body)).call(get()).await.unwrap();
        let whole = tokio::time::timeout(ms(3000), response.into_body().collect()).await;
        assert!(whole.is_err());
        assert_eq!(start.elapsed(), ms(3000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_says_of_its_length_and_its_end_what_the_one_inside_says() {
        for (text, ended) in [("", true), ("hello", false)] {
            let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
                ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text)))))
            });
            let response = read_timeout(500).layer(service).call(get()).await.unwrap();
            let mut body = response.into_body();
            assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
            assert_eq!(body.is_end_stream(), ended);
            let _ = body.frame().await;
            assert!(body.is_end_stream());
        }
    }

    /// TMO-05, c, with a limit of this layer's.
    #[tokio::test(start_paused = true)]
    async fn a_limit_on_the_whole_body_ends_one_whose_gaps_are_short() {
        let start = Instant::now();
        let (sender, body) = ChannelBody::new(1);
        tokio::spawn(feed(sender, std::iter::repeat(400)));
        let layer = read_timeout(500).body_limit(ms(3000)).unwrap();
        let response = layer.layer(feeding(body)).call(get()).await.unwrap();
        let mut body = response.into_body();
        for _ in 0..7 {
            assert!(body.frame().await.unwrap().is_ok());
        }
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(start.elapsed(), ms(3000));
        let timed_out = error.downcast_ref::<ReadTimedOut>().unwrap();
        assert!(timed_out.is_of_whole_body());
        assert_eq!(
            (timed_out.limit(), timed_out.phase()),
            (ms(3000), ReadPhase::Body)
        );
        assert!(error.to_string().contains("not complete within 3s"), "{error}");
        assert!(body.frame().await.is_none() && body.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_gap_and_the_whole_the_limit_that_runs_out_first_ends_the_body() {
        for (whole, ends, is_whole) in [(499, 499, true), (500, 500, true), (501, 500, false)] {
            let start = Instant::now();
            let (_sender, body) = ChannelBody::new(1);
            let layer = read_timeout(500).body_limit(ms(whole)).unwrap();
            let response = layer.layer(feeding(body)).call(get()).await.unwrap();
            let error = response.into_body().frame().await.unwrap().unwrap_err();
            let timed_out = error.downcast_ref::<ReadTimedOut>().unwrap();
            assert_eq!(
                (start.elapsed(), timed_out.is_of_whole_body()),
                (ms(ends), is_whole)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_always_there_and_never_ends_meets_its_limit_and_an_end_in_hand_wins() {
        let endless =
            || futures_util::stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from("more"))));
        let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
            ready(Ok::<_, Infallible>(Response::new(StreamBody::new(endless()))))
        });
        let layer = read_timeout(500).body_limit(ms(1000)).unwrap();
        let mut body = layer.layer(service).oneshot(get()).await.unwrap().into_body();
        assert!(body.frame().await.unwrap().is_ok());
        advance(ms(1000)).await;
        assert!(body.frame().await.unwrap().is_ok(), "on the tick it is in time");
        advance(ms(1)).await;
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.downcast_ref::<ReadTimedOut>().unwrap().is_of_whole_body());
        assert!(body.frame().await.is_none());

        let short = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| ready(Ok::<_, Infallible>(hello())));
        let response = layer.layer(short).oneshot(get()).await.unwrap();
        advance(ms(5000)).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    }

    /// TMO-06.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_begins_is_a_read_timeout_in_the_body() {
        let start = Instant::now();
        let (_sender, body) = ChannelBody::new(1);
        let mut answering = feeding(body);
        let mut service =
            read_timeout(3000).layer(service_fn(|request: Request<UploadBody<Empty<Bytes>>>| {
                let answer = answering.call(request);
                async {
                    sleep(ms(10)).await;
                    answer.await
                }
            }));
        let response = service.call(get()).await.unwrap();
        assert_eq!(start.elapsed(), ms(10));
        let error = response.into_body().collect().await.unwrap_err();
        assert_eq!(start.elapsed(), ms(3010));
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ReadTimeout(ReadPhase::Body), Sent::Maybe)
        );
        assert!(error.to_string().contains("response body"), "{error}");
    }

    /// TMO-10.
    #[tokio::test(start_paused = true)]
    async fn a_limit_on_an_attempt_is_over_with_the_head() {
        let start = Instant::now();
        let calls = AtomicUsize::new(0);
        let (mut sender, body) = ChannelBody::new(1);
        let mut answering = feeding(body);
        let mut service = ServiceBuilder::new()
            .layer(execution_timeout(100))
            // The limit on each attempt.
            .layer(execution_timeout(50))
            .layer(read_timeout(45))
            .service_fn(|request: Request<UploadBody<Empty<Bytes>>>| {
                calls.fetch_add(1, Ordering::Relaxed);
                let answer = answering.call(request);
                async {
                    sleep(ms(40)).await;
                    answer.await
                }
            });
        let response = service.call(get()).await.unwrap();
        tokio::spawn(async move {
            sleep(ms(40)).await;
            sender.send_data(Bytes::from("body")).await.unwrap();
        });
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "body");
        assert_eq!((start.elapsed(), calls.load(Ordering::Relaxed)), (ms(80), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_its_time_is_not_the_servers_fault() {
        let (mut sender, body) = ChannelBody::new(1);
        let response = read_timeout(100).layer(feeding(body)).call(get()).await.unwrap();
        let mut body = response.into_body();
        sleep(ms(1000)).await;
        sender.send_data(Bytes::from("first")).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        sleep(ms(1000)).await;
        let start = Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Body));
        assert_eq!(start.elapsed(), ms(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_on_the_tick_of_the_limit_wins() {
        for (gap, frames) in [(100, 3), (101, 0)] {
            let slow = futures_util::stream::unfold((), move |()| async move {
                sleep(ms(gap)).await;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from("chunk"))), ()))
            });
            let mut body = Some(StreamBody::new(Box::pin(slow)));
            let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
                ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
            });
            let response = read_timeout(100).layer(service).oneshot(get()).await.unwrap();
            let mut body = response.into_body();
            for _ in 0..frames {
                assert!(body.frame().await.unwrap().is_ok());
            }
            if frames == 0 {
                assert!(body.frame().await.unwrap().is_err());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_trailers_length_and_errors_of_the_body_pass() {
        let (mut sender, body) = ChannelBody::new(8);
        sender.send_data(Bytes::from("data")).await.unwrap();
        let trailers = http::HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        sender.send_trailers(trailers).await.unwrap();
        drop(sender);
        let response = read_timeout(100).layer(feeding(body)).call(get()).await.unwrap();
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["etag"], "x");
        assert_eq!(collected.to_bytes(), "data");

        let (sender, body) = ChannelBody::new(8);
        sender.abort(io::Error::other("broken"));
        let response = read_timeout(100).layer(feeding(body)).call(get()).await.unwrap();
        let error = response.into_body().collect().await.unwrap_err();
        assert_eq!(error.to_string(), "broken");

        let service = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| ready(Ok::<_, Infallible>(hello())));
        let response = read_timeout(100).layer(service).oneshot(get()).await.unwrap();
        assert_eq!(response.body().size_hint().exact(), Some(5));
        assert!(!response.body().is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_the_client_comes_through_unchanged() {
        let service = service_fn(|_: Request<UploadBody<Empty<Bytes>>>| {
            ready(Err::<Response<Full<Bytes>>, _>(io::Error::from(
                io::ErrorKind::ConnectionReset,
            )))
        });
        let error = read_timeout(100).layer(service).oneshot(get()).await.unwrap_err();
        assert_eq!(
            error.downcast_ref::<io::Error>().unwrap().kind(),
            io::ErrorKind::ConnectionReset
        );
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_attempt_ends_though_its_future_is_still_held() {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut service = read_timeout(100).layer(service_fn(|_: Request<UploadBody<Empty<Bytes>>>| {
            let guard = Alive::new(&alive);
            async move {
                let _guard = guard;
                pending::<Result<Response<Full<Bytes>>, Infallible>>().await
            }
        }));
        let mut call = Box::pin(service.call(get()));
        let error = call.as_mut().await.unwrap_err();
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ReadTimeout(ReadPhase::Head), Sent::Maybe)
        );
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}

mod deadline {
    use super::*;

    /// A service that never answers, counts its calls, and holds a guard.
    fn silent<Req>(
        calls: &Arc<AtomicUsize>,
        alive: &Arc<AtomicUsize>,
    ) -> impl Service<
        Req,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > + Clone {
        let (calls, alive) = (calls.clone(), alive.clone());
        service_fn(move |_: Req| {
            calls.fetch_add(1, Ordering::Relaxed);
            let guard = Alive::new(&alive);
            async move {
                let _guard = guard;
                pending().await
            }
        })
    }

    fn counters() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
        Default::default()
    }

    /// TMO-01: two attempts of 5 s each would be made by what is below.
    #[tokio::test(start_paused = true)]
    async fn the_work_below_ends_with_the_call() {
        let start = Instant::now();
        let (calls, alive) = counters();
        let attempts = read_timeout(5000).layer(silent(&calls, &alive));
        let mut service = execution_timeout(1000).layer(service_fn(move |()| {
            let mut attempts = attempts.clone();
            async move {
                let _first = attempts.call(get()).await;
                attempts.call(get()).await
            }
        }));
        let mut call = Box::pin(service.call(()));
        let error = call.as_mut().await.unwrap_err();
        assert_eq!(start.elapsed(), ms(1000));
        assert_eq!(
            error.downcast_ref::<ExecutionTimedOut>().unwrap().limit(),
            ms(1000)
        );
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ExecutionTimeout, Sent::Maybe)
        );
        // At once, although the future is still held.
        assert_eq!(alive.load(Ordering::Relaxed), 0);
        sleep(ms(19_000)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_at_the_limit_is_in_the_trail_of_the_call() {
        /// An attempt that writes down how it ended, as a balancer does.
        struct Recorded(Instant);
        impl Drop for Recorded {
            fn drop(&mut self) {
                let attempt = Attempt::new(None, self.0, Instant::now(), AttemptOutcome::Abandoned);
                scope::current(|scope| scope.record(attempt));
            }
        }
        let mut service = execution_timeout(100).layer(service_fn(|()| {
            let attempt = Recorded(Instant::now());
            async move {
                let _attempt = attempt;
                pending::<Result<(), BoxError>>().await
            }
        }));
        let mut scope = CallScope::begin();
        let mut call = std::pin::pin!(scope.enter(|| service.call(())));
        let result = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
        assert!(result.unwrap_err().is::<ExecutionTimedOut>());
        let attempts: Vec<_> = scope.trail().unwrap().attempts().collect();
        assert_eq!(attempts.len(), 1);
        assert_eq!(
            (attempts[0].outcome(), attempts[0].took()),
            (AttemptOutcome::Abandoned, ms(100))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn below_it_the_nearest_deadline_is_seen_in_call_and_in_poll() {
        let start = Instant::now();
        let seen = || scope::deadline().unwrap() - start;
        let inside = service_fn(move |()| {
            let in_call = seen();
            async move {
                let in_poll = seen();
                Ok::<_, Infallible>((in_call, in_poll))
            }
        });
        for (outer, inner, deadline) in [(100, 300, 100), (300, 100, 100)] {
            let mut nested = execution_timeout(outer).layer(execution_timeout(inner).layer(inside));
            assert_eq!(nested.call(()).await.unwrap(), (ms(deadline), ms(deadline)));
        }
        assert_eq!(scope::deadline(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_nearer_outer_limit_ends_the_call() {
        let start = Instant::now();
        let (calls, alive) = counters();
        let mut nested = execution_timeout(100).layer(execution_timeout(300).layer(silent(&calls, &alive)));
        let error = nested.call(()).await.unwrap_err();
        let limit = error.downcast_ref::<ExecutionTimedOut>().unwrap().limit();
        assert_eq!((limit, start.elapsed()), (ms(100), ms(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn without_time_left_nothing_is_sent() {
        let (calls, alive) = counters();
        let mut execution = execution_timeout(100).layer(silent(&calls, &alive));
        let mut read = read_timeout(100).layer(silent(&calls, &alive));
        let mut scope = CallScope::begin();
        scope.narrow(Instant::now());
        let (execution, read) = scope.enter(|| (execution.call(()), read.call(get())));
        for (error, layer) in [
            (
                assert_ready_err!(task::spawn(execution).poll()),
                "ExecutionTimeout",
            ),
            (assert_ready_err!(task::spawn(read).poll()), "ReadTimeout"),
        ] {
            assert_eq!(error.downcast_ref::<NoTimeLeft>().unwrap().layer(), layer);
            assert_eq!(
                Fault::of(&*error),
                Fault::new(FaultKind::ExecutionTimeout, Sent::No)
            );
        }
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_limit_at_or_after_the_deadline_does_not_hide_which_limit_ran_out() {
        for read in [100, 101, 5000] {
            let (calls, alive) = counters();
            let mut service = execution_timeout(100).layer(read_timeout(read).layer(silent(&calls, &alive)));
            // Polled late, both timers would have gone off.
            let mut call = task::spawn(service.call(get()));
            assert_pending!(call.poll());
            advance(ms(10_000)).await;
            let error = assert_ready!(call.poll()).unwrap_err();
            assert!(error.is::<ExecutionTimedOut>(), "{read}: {error}");
        }
        let (calls, alive) = counters();
        let mut service = execution_timeout(100).layer(read_timeout(99).layer(silent(&calls, &alive)));
        assert!(service.call(get()).await.unwrap_err().is::<ReadTimedOut>());
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_is_compared_with_when_the_read_limit_would_run_out_not_with_its_length() {
        // 60 ms to connect; then 50 ms of silence would end 10 ms after the deadline.
        let mut connector = connect_timeout(90).layer(service_fn(|_: Uri| async {
            sleep(ms(60)).await;
            Ok::<_, Infallible>(())
        }));
        let mut service = execution_timeout(100).layer(read_timeout(50).layer(service_fn(
            move |_: Request<UploadBody<Empty<Bytes>>>| {
                let connected = connector.call(Uri::from_static("http://a"));
                async move {
                    connected.await?;
                    pending::<Result<Response<Full<Bytes>>, BoxError>>().await
                }
            },
        )));
        assert!(service.call(get()).await.unwrap_err().is::<ExecutionTimedOut>());
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_the_call_does_not_cut_the_body() {
        let (mut sender, body) = ChannelBody::new(1);
        let mut body = Some(body);
        let mut service = execution_timeout(100).layer(read_timeout(300).layer(service_fn(
            move |_: Request<UploadBody<Empty<Bytes>>>| {
                ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
            },
        )));
        let mut body = service.call(get()).await.unwrap().into_body();
        tokio::spawn(async move {
            sleep(ms(200)).await;
            sender.send_data(Bytes::from("late")).await.unwrap();
            pending::<()>().await;
        });
        assert!(body.frame().await.unwrap().is_ok());
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Body));
    }

    #[tokio::test(start_paused = true)]
    async fn the_endpoint_of_the_attempt_given_up_is_told_above() {
        /// Tells where it went when it ends, as a balancer does.
        struct Attempting(Endpoint);
        impl Drop for Attempting {
            fn drop(&mut self) {
                scope::current(|scope| scope.set_picked(&self.0));
            }
        }
        let endpoint = |uri| Endpoint::new(uri).unwrap();
        let (first, second) = (endpoint("http://a:1"), endpoint("http://b:1"));
        let attempts = [first, second.clone()];
        let mut service = execution_timeout(100).layer(service_fn(move |()| {
            let [first, second] = attempts.clone().map(Attempting);
            async move {
                drop(first);
                let _second = second;
                pending::<Result<(), Infallible>>().await
            }
        }));
        let mut scope = CallScope::begin();
        let mut call = Box::pin(scope.enter(|| service.call(())));
        let timed_out = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
        assert!(timed_out.is_err());
        assert_eq!(scope.picked(), Some(&second));
    }
}

/// `Overrides` in the extensions of a request.
mod per_request {
    use super::*;

    fn with(overrides: Overrides) -> Request<Empty<Bytes>> {
        let mut request = get();
        request.extensions_mut().insert(overrides);
        request
    }

    /// Never answers.
    fn silent<Req>() -> impl Service<
        Req,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Full<Bytes>>, BoxError>>,
    > + Clone {
        service_fn(|_: Req| pending())
    }

    #[tokio::test(start_paused = true)]
    async fn an_execution_limit_of_the_request_takes_the_place_of_that_of_the_layer() {
        for layer in [
            execution_timeout(100),
            ExecutionTimeoutLayer::hystrix(ms(100)).unwrap(),
        ] {
            for limit in [10, 5000] {
                let start = Instant::now();
                let overrides = Overrides::new().with_execution_limit(ms(limit)).unwrap();
                let error = layer
                    .clone()
                    .per_request()
                    .layer(silent())
                    .oneshot(with(overrides))
                    .await;
                let error = error.unwrap_err();
                assert_eq!(
                    error.downcast_ref::<ExecutionTimedOut>().unwrap().limit(),
                    ms(limit)
                );
                assert_eq!(start.elapsed(), ms(limit));
            }
        }
    }

    /// From a millisecond to ten years, and deadlines from now to the end of the clock.
    fn spans() -> impl Strategy<Value = Duration> {
        let longest = LONGEST.as_secs() * 1000;
        prop_oneof![1..100_u64, 1..=longest, Just(longest)].prop_map(ms)
    }

    fn deadlines() -> impl Strategy<Value = Duration> {
        prop_oneof![spans(), any::<u64>().prop_map(ms), Just(Duration::ZERO)]
    }

    proptest! {
        #[test]
        fn a_call_ends_at_the_nearest_of_its_limits_to_the_millisecond_and_the_nearest_around_is_seen_below(
            limit in spans(),
            wanted in prop::option::of(spans()),
            of_request in prop::option::of(deadlines()),
            around in prop::option::of(deadlines()),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            let own = wanted.unwrap_or(limit).min(of_request.unwrap_or(Duration::MAX));
            let nearest = own.min(around.unwrap_or(Duration::MAX));
            runtime.block_on(async {
                let start = Instant::now();
                let mut overrides = Overrides::new();
                if let Some(wanted) = wanted {
                    overrides = overrides.with_execution_limit(wanted).unwrap();
                }
                if let Some(deadline) = of_request.and_then(|after| start.checked_add(after)) {
                    overrides = overrides.with_deadline(deadline);
                }
                let mut scope = CallScope::begin();
                if let Some(deadline) = around.and_then(|after| start.checked_add(after)) {
                    scope.narrow(deadline);
                }
                let service = ExecutionTimeoutLayer::new(limit).unwrap().per_request().layer(service_fn(
                    move |_: Request<Empty<Bytes>>| async move {
                        assert_eq!(scope::deadline(), Some(start + nearest));
                        pending::<Result<(), BoxError>>().await
                    },
                ));
                let mut call = Box::pin(service.oneshot(with(overrides)));
                let error = poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await.unwrap_err();
                if nearest.is_zero() {
                    assert!(error.is::<NoTimeLeft>());
                    assert_eq!(start.elapsed(), Duration::ZERO);
                } else {
                    // The deadline around is for whoever has set it.
                    let told = error.downcast_ref::<ExecutionTimedOut>().unwrap().limit();
                    assert_eq!((start.elapsed(), told), (own, own));
                }
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_overrides_and_where_they_are_not_asked_for_the_limit_of_the_layer_holds() {
        let start = Instant::now();
        let overrides = Overrides::new().with_execution_limit(ms(10)).unwrap();
        for (request, asked) in [
            (get(), true),
            (with(Overrides::new()), true),
            (with(overrides), false),
        ] {
            let start = Instant::now();
            let layer = execution_timeout(100);
            let outcome = if asked {
                layer.per_request().layer(silent()).oneshot(request).await
            } else {
                layer.layer(silent()).oneshot(request).await
            };
            assert!(outcome.unwrap_err().is::<ExecutionTimedOut>());
            assert_eq!(start.elapsed(), ms(100));
        }
        assert_eq!(start.elapsed(), ms(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_of_the_request_ends_the_call_if_it_comes_before_the_limit_and_is_seen_below() {
        for (deadline, ends) in [(40, 40), (100, 100), (4000, 100)] {
            let start = Instant::now();
            let service = execution_timeout(100).per_request().layer(service_fn(
                move |_: Request<Empty<Bytes>>| async move {
                    assert_eq!(scope::deadline(), Some(start + ms(ends)));
                    pending::<Result<(), BoxError>>().await
                },
            ));
            let overrides = Overrides::new().with_deadline(start + ms(deadline));
            let error = service.oneshot(with(overrides)).await.unwrap_err();
            assert_eq!(
                error.downcast_ref::<ExecutionTimedOut>().unwrap().limit(),
                ms(ends)
            );
            assert_eq!(start.elapsed(), ms(ends));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_after_a_deadline_of_the_request() {
        advance(ms(10)).await;
        let now = Instant::now();
        for deadline in [now, now - ms(5)] {
            let service = execution_timeout(100).per_request().layer(service_fn(
                |_: Request<Empty<Bytes>>| -> std::future::Ready<Result<(), BoxError>> { unreachable!() },
            ));
            let error = service
                .oneshot(with(Overrides::new().with_deadline(deadline)))
                .await;
            assert!(error.unwrap_err().is::<NoTimeLeft>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_limit_of_the_request_holds_for_head_and_body() {
        for limit in [10, 5000] {
            let overrides = Overrides::new().with_read_limit(ms(limit)).unwrap();
            let start = Instant::now();
            let error = read_timeout(100)
                .layer(silent())
                .oneshot(with(overrides))
                .await
                .unwrap_err();
            assert_eq!(error.downcast_ref::<ReadTimedOut>().unwrap().limit(), ms(limit));
            assert_eq!(start.elapsed(), ms(limit));

            let (_sender, body) = ChannelBody::new(1);
            let mut body = Some(body);
            let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
                ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
            });
            let start = Instant::now();
            let response = read_timeout(100)
                .layer(service)
                .oneshot(with(overrides))
                .await
                .unwrap();
            assert!(response.into_body().frame().await.unwrap().is_err());
            assert_eq!(start.elapsed(), ms(limit));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_limit_of_the_request_holds_with_and_without_one_of_the_layer() {
        for layer in [
            read_timeout(5000),
            read_timeout(5000).body_limit(ms(3000)).unwrap(),
        ] {
            let (_sender, body) = ChannelBody::new(1);
            let mut body = Some(body);
            let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
                ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
            });
            let overrides = Overrides::new().with_body_limit(ms(70)).unwrap();
            let start = Instant::now();
            let response = layer.layer(service).oneshot(with(overrides)).await.unwrap();
            let error = response.into_body().frame().await.unwrap().unwrap_err();
            assert!(error.downcast_ref::<ReadTimedOut>().unwrap().is_of_whole_body());
            assert_eq!(start.elapsed(), ms(70));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_request_says_nothing_of_holds_as_the_layer_has_it() {
        let (_sender, body) = ChannelBody::new(1);
        let mut body = Some(body);
        let service = service_fn(move |_: Request<UploadBody<Empty<Bytes>>>| {
            ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
        });
        let layer = read_timeout(100).body_limit(ms(300)).unwrap();
        let overrides = Overrides::new().with_read_limit(ms(5000)).unwrap();
        let start = Instant::now();
        let response = layer.layer(service).oneshot(with(overrides)).await.unwrap();
        let error = response.into_body().frame().await.unwrap().unwrap_err();
        assert!(error.downcast_ref::<ReadTimedOut>().unwrap().is_of_whole_body());
        assert_eq!(start.elapsed(), ms(300));
    }
}

/// The deadline of a call, told from process to process.
mod propagation {
    use super::*;

    fn millis() -> DeadlineHeader {
        DeadlineHeader::millis(http::HeaderName::from_static("x-time-left"))
    }

    /// A client that answers with the header it got.
    fn telling(
        header: &DeadlineHeader,
    ) -> impl Service<
        Request<Empty<Bytes>>,
        Response = Option<String>,
        Error = BoxError,
        Future = std::future::Ready<Result<Option<String>, BoxError>>,
    > + Clone
    + use<> {
        let name = header.name().clone();
        service_fn(move |request: Request<Empty<Bytes>>| {
            let value = request.headers().get(&name);
            ready(Ok(value.map(|value| value.to_str().unwrap().to_owned())))
        })
    }

    async fn told(header: DeadlineHeader, left: u64, margin: u64) -> Result<Option<String>, BoxError> {
        let client = telling(&header);
        let send = SendDeadlineLayer::new(header).margin(ms(margin)).unwrap();
        execution_timeout(left)
            .layer(send.layer(client))
            .oneshot(get())
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn each_attempt_tells_of_the_time_that_is_left_by_then() {
        for (header, values) in [
            (DeadlineHeader::GRPC, ["1000000u", "700000u"]),
            (millis(), ["1000", "700"]),
        ] {
            let mut client = SendDeadlineLayer::new(header.clone()).layer(telling(&header));
            let two_attempts = service_fn(move |()| {
                let first = client.call(get());
                let mut client = client.clone();
                async move {
                    let first = first.await?;
                    sleep(ms(300)).await;
                    let second = client.call(get()).await?;
                    Ok::<_, BoxError>([first.unwrap(), second.unwrap()])
                }
            });
            assert_eq!(
                execution_timeout(1000)
                    .layer(two_attempts)
                    .oneshot(())
                    .await
                    .unwrap(),
                values
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_margin_is_kept_and_what_cannot_be_told_is_not_sent() {
        assert_eq!(told(millis(), 1000, 100).await.unwrap().as_deref(), Some("900"));
        assert_eq!(told(millis(), 100, 99).await.unwrap().as_deref(), Some("1"));
        for margin in [100, 101, 5000] {
            for header in [millis(), DeadlineHeader::GRPC] {
                let error = told(header, 100, margin).await.unwrap_err();
                assert_eq!(
                    error.downcast_ref::<NoTimeLeft>().unwrap().layer(),
                    "SendDeadline"
                );
                assert_eq!(Fault::of(&*error).sent(), Sent::No);
            }
        }
        let part = Duration::from_micros(1900);
        let send = SendDeadlineLayer::new(millis())
            .margin(Duration::from_micros(1000))
            .unwrap();
        let limit = ExecutionTimeoutLayer::new(part).unwrap();
        let error = limit
            .layer(send.layer(telling(&millis())))
            .oneshot(get())
            .await
            .unwrap_err();
        assert!(error.is::<NoTimeLeft>(), "less than a millisecond is none");
    }

    #[tokio::test(start_paused = true)]
    async fn without_time_left_a_header_that_says_so_already_is_not_sent_on() {
        let send = SendDeadlineLayer::new(millis()).margin(ms(100)).unwrap();
        let mut request = get();
        request
            .headers_mut()
            .insert("x-time-left", http::HeaderValue::from_static("0"));
        let stack = execution_timeout(100).layer(send.layer(telling(&millis())));
        assert!(stack.oneshot(request).await.unwrap_err().is::<NoTimeLeft>());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_deadline_a_request_goes_out_as_it_is_and_a_shorter_time_of_its_own_is_kept() {
        let client = SendDeadlineLayer::new(millis()).layer(telling(&millis()));
        assert_eq!(client.clone().oneshot(get()).await.unwrap(), None);
        for (own, value) in [("200", "200"), ("4000", "1000")] {
            let request = Request::get("/")
                .header("x-time-left", own)
                .body(Empty::new())
                .unwrap();
            assert_eq!(
                client.clone().oneshot(request.clone()).await.unwrap().as_deref(),
                Some(own)
            );
            let limited = execution_timeout(1000).layer(client.clone());
            assert_eq!(limited.oneshot(request).await.unwrap().as_deref(), Some(value));
        }
    }

    fn incoming(name: &str, value: &str) -> Request<Empty<Bytes>> {
        Request::get("/").header(name, value).body(Empty::new()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_made_while_a_request_is_served_has_its_deadline_and_tells_the_next() {
        let client = execution_timeout(30_000).layer(
            SendDeadlineLayer::new(millis())
                .margin(ms(20))
                .unwrap()
                .layer(telling(&millis())),
        );
        let handler = service_fn(move |_: Request<Empty<Bytes>>| {
            let client = client.clone();
            async move {
                sleep(ms(100)).await;
                let told = client.oneshot(get()).await.unwrap();
                Ok::<_, Infallible>(Response::new(told.unwrap()))
            }
        });
        let server = ReceiveDeadlineLayer::new(DeadlineHeader::GRPC)
            .margin(ms(50))
            .unwrap()
            .layer(handler);
        let response = server.oneshot(incoming("grpc-timeout", "500m")).await.unwrap();
        assert_eq!(response.body(), "330");
        assert_eq!(scope::deadline(), None);
    }

    /// A handler that never answers.
    fn endless(
        alive: &Arc<AtomicUsize>,
    ) -> impl Service<
        Request<Empty<Bytes>>,
        Response = Response<String>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<String>, Infallible>>,
    > + Clone {
        let alive = alive.clone();
        service_fn(move |_: Request<Empty<Bytes>>| {
            let guard = Alive::new(&alive);
            async move {
                let _guard = guard;
                pending().await
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_deadline_the_work_ends_and_the_answer_says_so_in_the_form_of_the_header() {
        let alive = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let mut server = ReceiveDeadlineLayer::new(millis()).layer(endless(&alive));
        let mut call = Box::pin(server.call(incoming("x-time-left", "250")));
        let response = call.as_mut().await.unwrap();
        assert_eq!((response.status().as_u16(), start.elapsed()), (504, ms(250)));
        assert_eq!(
            alive.load(Ordering::Relaxed),
            0,
            "although the future is still held"
        );

        let server = ReceiveDeadlineLayer::new(DeadlineHeader::GRPC).layer(endless(&alive));
        let response = server.oneshot(incoming("grpc-timeout", "250m")).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["grpc-status"], "4");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(start.elapsed(), ms(500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_time_is_not_served_and_one_whose_header_says_nothing_is() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let handler = service_fn(move |_: Request<Empty<Bytes>>| {
            counted.fetch_add(1, Ordering::Relaxed);
            ready(Ok::<_, Infallible>(Response::new(
                scope::deadline().is_some().to_string(),
            )))
        });
        let server = ReceiveDeadlineLayer::new(millis())
            .margin(ms(10))
            .unwrap()
            .layer(handler);
        for none in ["0", "9", "10"] {
            let response = server
                .clone()
                .oneshot(incoming("x-time-left", none))
                .await
                .unwrap();
            assert_eq!(response.status().as_u16(), 504);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        for (name, value, has_deadline) in [
            ("x-time-left", "11", "true"),
            ("x-time-left", "soon", "false"),
            ("x-time-left", "", "false"),
            ("x-other", "0", "false"),
            ("x-time-left", "99999999999999999999999999", "true"),
        ] {
            let response = server.clone().oneshot(incoming(name, value)).await.unwrap();
            assert_eq!(response.body(), has_deadline, "{name}: {value}");
        }
    }

    /// Writes down, when it is dropped, where the call went and which deadline it had.
    struct LastWord(Arc<std::sync::OnceLock<Instant>>);

    impl Drop for LastWord {
        fn drop(&mut self) {
            scope::current(|scope| scope.set_picked(&Endpoint::new("http://a:1").unwrap()));
            if let Some(deadline) = scope::deadline() {
                self.0.get_or_init(|| deadline);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_at_the_deadline_can_still_tell_of_it() {
        let start = Instant::now();
        let deadline = Arc::<std::sync::OnceLock<Instant>>::default();
        let word = deadline.clone();
        let handler = service_fn(move |_: Request<Empty<Bytes>>| {
            let word = LastWord(word.clone());
            async move {
                let _word = word;
                pending::<Result<Response<String>, Infallible>>().await
            }
        });
        let mut served = CallScope::begin();
        let server = ReceiveDeadlineLayer::new(millis()).layer(handler);
        let mut call = Box::pin(server.oneshot(incoming("x-time-left", "100")));
        let response = poll_fn(|cx| served.enter(|| call.as_mut().poll(cx))).await;
        assert_eq!(response.unwrap().status().as_u16(), 504);
        assert_eq!(deadline.get(), Some(&(start + ms(100))));
        assert!(served.picked().is_some(), "and what is around it hears of it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_no_header_tells_of_is_for_whoever_has_set_it() {
        let handler =
            service_fn(|_: Request<Empty<Bytes>>| pending::<Result<Response<String>, Infallible>>());
        let server = ReceiveDeadlineLayer::new(millis()).layer(handler);
        let outcome = execution_timeout(100).layer(server).oneshot(get()).await;
        assert!(outcome.unwrap_err().is::<ExecutionTimedOut>());
    }

    /// TMO-13.
    #[tokio::test(start_paused = true)]
    async fn an_answer_on_the_tick_of_the_deadline_wins() {
        for (takes, status) in [(100, 200), (101, 504)] {
            let handler = service_fn(move |_: Request<Empty<Bytes>>| async move {
                sleep(ms(takes)).await;
                Ok::<_, Infallible>(Response::new(String::new()))
            });
            let server = ReceiveDeadlineLayer::new(millis()).layer(handler);
            let response = server.oneshot(incoming("x-time-left", "100")).await.unwrap();
            assert_eq!(response.status().as_u16(), status);
        }
    }
}

/// The same with hyper's own client, over pipes in memory, so that the times are still exact.
#[cfg(feature = "client")]
mod over_hyper {
    use std::{
        pin::Pin,
        task::{Context, ready},
    };

    use hyper_util::{
        client::legacy::{
            Client,
            connect::{Connected, Connection},
        },
        rt::{TokioExecutor, TokioIo},
    };
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

    use super::*;

    const UPLOAD: usize = 4_000_000;

    struct Pipe(DuplexStream);

    impl Connection for Pipe {
        fn connected(&self) -> Connected {
            Connected::new()
        }
    }

    impl AsyncRead for Pipe {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Pipe {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, buf)
        }
        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }
        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            ready!(Pin::new(&mut self.0).poll_flush(cx))?;
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    #[derive(Clone, Copy)]
    struct Server {
        /// `None`: packets are swallowed.
        connects_in: Option<u64>,
        /// It answers when it has read this much of a body.
        answers_after: usize,
        answers_in: u64,
    }

    const PROMPT: Server = Server {
        connects_in: Some(0),
        answers_after: 0,
        answers_in: 0,
    };

    impl Server {
        /// Reads 40 KB every 10 ms, and counts the bytes of the body, until the connection ends.
        async fn serve(self, mut pipe: DuplexStream, read: &AtomicUsize) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match pipe.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => return,
                }
            }
            let (mut answered, mut chunk) = (false, vec![0; 40_000]);
            loop {
                if read.load(Ordering::Relaxed) >= self.answers_after && !answered {
                    answered = true;
                    sleep(ms(self.answers_in)).await;
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                    pipe.write_all(answer).await.unwrap();
                }
                match pipe.read(&mut chunk).await {
                    Ok(0) | Err(_) => return,
                    Ok(n) => read.fetch_add(n, Ordering::Relaxed),
                };
                // The pipe holds 40 KB.
                sleep(ms(10)).await;
            }
        }
    }

    /// A call through the limits and hyper's client, and the number of bytes that the server has read.
    fn call(
        server: Server,
        connect: u64,
        read: u64,
        body: Full<Bytes>,
    ) -> (
        impl Future<Output = Result<Response<ReadBody<hyper::body::Incoming>>, BoxError>>,
        Arc<AtomicUsize>,
    ) {
        let count = Arc::new(AtomicUsize::new(0));
        let counting = count.clone();
        let connector = service_fn(move |_: Uri| {
            let count = counting.clone();
            Box::pin(async move {
                match server.connects_in {
                    Some(takes) => sleep(ms(takes)).await,
                    None => pending().await,
                }
                let (near, far) = tokio::io::duplex(40_000);
                tokio::spawn(async move { server.serve(far, &count).await });
                Ok::<_, io::Error>(TokioIo::new(Pipe(near)))
            })
        });
        let client = Client::builder(TokioExecutor::new()).build(connect_timeout(connect).layer(connector));
        let request = Request::post("http://orders/").body(body).unwrap();
        (read_timeout(read).layer(client).oneshot(request), count)
    }

    fn upload() -> Full<Bytes> {
        Full::new(Bytes::from(vec![7; UPLOAD]))
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_connect_is_no_read_timeout() {
        let start = Instant::now();
        let server = Server {
            connects_in: Some(700),
            answers_in: 90,
            ..PROMPT
        };
        let (call, _) = call(server, 1000, 100, Full::default());
        let response = call.await.unwrap();
        assert_eq!(start.elapsed(), ms(790));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    }

    #[tokio::test(start_paused = true)]
    async fn equal_limits_give_the_connect_timeout() {
        let start = Instant::now();
        let server = Server {
            connects_in: None,
            ..PROMPT
        };
        let (call, _) = call(server, 1000, 1000, Full::default());
        let error = call.await.unwrap_err();
        assert_eq!(start.elapsed(), ms(1000));
        assert_eq!(
            Fault::of(&*error),
            Fault::new(FaultKind::ConnectTimeout, Sent::No)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn silence_after_the_connect_is_a_read_timeout() {
        let start = Instant::now();
        let server = Server {
            connects_in: Some(700),
            answers_in: 5000,
            ..PROMPT
        };
        let (call, _) = call(server, 1000, 100, Full::default());
        let error = call.await.unwrap_err();
        assert_eq!(read_phase(&*error), Some(ReadPhase::Head));
        assert_eq!(start.elapsed(), ms(800));
    }

    /// TMO-04: the upload takes a second, the limit is 300 ms.
    #[tokio::test(start_paused = true)]
    async fn a_large_upload_does_not_trip_the_limit() {
        let start = Instant::now();
        let server = Server {
            answers_after: UPLOAD,
            answers_in: 100,
            ..PROMPT
        };
        let (call, read) = call(server, 1000, 300, upload());
        assert!(call.await.is_ok());
        assert!(start.elapsed() > ms(900));
        assert_eq!(read.load(Ordering::Relaxed), UPLOAD);
    }

    #[tokio::test(start_paused = true)]
    async fn the_upload_ends_when_the_caller_leaves() {
        let server = Server {
            answers_after: UPLOAD,
            ..PROMPT
        };
        let (call, read) = call(server, 1000, 300, upload());
        assert!(tokio::time::timeout(ms(100), call).await.is_err());
        sleep(ms(5000)).await;
        // What was read by then, and what hyper had in its buffer.
        let read = read.load(Ordering::Relaxed);
        assert!((300_000..1_000_000).contains(&read), "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_answer_lets_the_upload_go_on_while_its_body_is_held() {
        for held in [true, false] {
            let server = Server {
                answers_after: 40_000,
                ..PROMPT
            };
            let (call, read) = call(server, 1000, 300, upload());
            let mut response = call.await.unwrap();
            assert!(response.body_mut().frame().await.unwrap().is_ok());
            let held = held.then_some(response);
            sleep(ms(5000)).await;
            let read = read.load(Ordering::Relaxed);
            assert_eq!(read == UPLOAD, held.is_some(), "{read}");
            assert!(held.is_some() || read < 1_000_000, "{read}");
        }
    }
}
