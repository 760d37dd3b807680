//! The collected body, over its public API. All times are exact: tokio's clock is paused.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, pending, ready},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer, ServiceExt, service_fn, util::ServiceFn};
use tower_outbound::{
    call::{AnswerBodyFailed, AnswerTooLarge, Fault, FaultError, FaultKind, Sent, Verdict},
    collect::{CollectBody, CollectBodyLayer, CollectedBody},
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a body does, one after the other.
#[derive(Debug, Clone, Copy)]
enum Step {
    Data(&'static str),
    Trailers,
    /// The connection is closed.
    Breaks,
    /// An error that proves that nothing was sent.
    Claims,
    /// Never anything more.
    Stalls,
    /// Empty frames, for ever.
    Empty,
}

use Step::{Breaks, Claims, Data, Empty, Stalls, Trailers};

#[derive(Debug)]
struct Script {
    steps: VecDeque<Step>,
    announced: Option<u64>,
    polls: Arc<AtomicUsize>,
    alive: Arc<()>,
}

fn body(steps: &[Step]) -> Script {
    Script {
        steps: steps.iter().copied().collect(),
        announced: None,
        polls: Arc::default(),
        alive: Arc::default(),
    }
}

fn announced(length: u64, steps: &[Step]) -> Script {
    Script {
        announced: Some(length),
        ..body(steps)
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.polls.fetch_add(1, SeqCst);
        let Some(step) = self.steps.pop_front() else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match step {
            Data(data) => {
                if let Some(left) = &mut self.announced {
                    *left -= data.len() as u64;
                }
                Ok(Frame::data(Bytes::from_static(data.as_bytes())))
            }
            Trailers => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Ok(Frame::trailers(trailers))
            }
            Breaks => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Claims => {
                let fault = Fault::new(FaultKind::Reset, Sent::No);
                Err(FaultError::new(fault, "refused stream").into())
            }
            Stalls => {
                self.steps.push_front(Stalls);
                return Poll::Pending;
            }
            Empty => {
                self.steps.push_front(Empty);
                Ok(Frame::data(Bytes::new()))
            }
        }))
    }

    fn size_hint(&self) -> SizeHint {
        self.announced.map(SizeHint::with_exact).unwrap_or_default()
    }
}

type Server = ServiceFn<Box<dyn FnMut(()) -> Ready<Result<Response<Script>, Infallible>> + Send>>;

/// A server that gives this answer once.
fn server(body: Script) -> Server {
    let mut body = Some(body);
    service_fn(Box::new(move |()| {
        ready(Ok(Response::builder()
            .status(203)
            .body(body.take().expect("one call"))
            .unwrap()))
    }))
}

fn whole() -> CollectBodyLayer {
    CollectBodyLayer::new()
}

type Outcome = Result<Response<CollectedBody<Script>>, BoxError>;

/// The outcome of one call that has nothing to wait for.
fn outcome(layer: &CollectBodyLayer, body: Script) -> Outcome {
    let mut service: CollectBody<Server> = layer.layer(server(body));
    service.ready().now_or_never().unwrap().unwrap();
    tower::Service::call(&mut service, ())
        .now_or_never()
        .expect("it waits")
}

fn error(layer: &CollectBodyLayer, body: Script) -> AnswerBodyFailed {
    *outcome(layer, body).unwrap_err().downcast().unwrap()
}

mod whole_bodies {
    use super::*;

    #[test]
    fn a_body_in_one_piece_is_handed_on_as_it_is() {
        static PIECE: &str = "seven";
        let response = outcome(&whole(), body(&[Data(PIECE)])).unwrap();
        assert_eq!(response.status(), StatusCode::NON_AUTHORITATIVE_INFORMATION);
        let bytes = response.body().bytes().unwrap();
        assert_eq!(
            (&bytes[..], bytes.as_ptr()),
            (&b"seven"[..], PIECE.as_ptr()),
            "no copy"
        );
        assert_eq!(response.into_body().into_bytes().unwrap(), "seven");
    }

    #[test]
    fn pieces_are_joined_and_trailers_are_kept() {
        let steps = [Data(""), Data("se"), Data("ve"), Data(""), Data("n"), Trailers];
        for script in [body(&steps), announced(5, &steps)] {
            let response = outcome(&whole(), script).unwrap();
            assert_eq!(response.body().bytes().unwrap(), "seven");
            assert_eq!(response.body().trailers().unwrap()["grpc-status"], "0");

            let mut body = response.into_body();
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
            let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "seven");
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), false));
            let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
            assert_eq!(frame.into_trailers().unwrap()["grpc-status"], "0");
            assert!(body.is_end_stream());
            assert!(body.frame().now_or_never().unwrap().is_none());
        }
    }

    #[test]
    fn an_empty_body_is_a_body() {
        let response = outcome(&whole(), body(&[])).unwrap();
        assert_eq!(response.body().bytes().unwrap(), "");
        assert!(response.body().is_end_stream() && response.body().trailers().is_none());
    }

    #[test]
    fn a_known_end_is_not_asked_for() {
        let response = Response::new(Full::new(Bytes::from("seven")));
        let mut response = Some(response);
        let client = service_fn(move |()| ready(Ok::<_, Infallible>(response.take().unwrap())));
        let response = whole().layer(client).oneshot(()).now_or_never().unwrap().unwrap();
        assert_eq!(response.body().bytes().unwrap(), "seven");
    }

    #[test]
    fn a_body_of_16_mib_is_read_and_a_byte_more_is_an_error() {
        let most = 16 * 1024 * 1024;
        let text: &'static str = String::leak("x".repeat(most));
        assert!(outcome(&whole(), body(&[Data(text)])).is_ok());
        let error = error(&CollectBodyLayer::default(), body(&[Data(text), Data("x")]));
        assert_eq!(error.read(), most as u64);
    }
}

mod bounds {
    use super::*;

    #[test]
    fn a_body_up_to_the_bound_is_read_and_a_byte_more_is_an_error() {
        let layer = whole().max_body(5);
        let response = outcome(&layer, body(&[Data("se"), Data("ven")])).unwrap();
        assert_eq!(response.body().bytes().unwrap(), "seven");

        let script = body(&[Data("se"), Data("venty"), Stalls]);
        let alive = script.alive.clone();
        let error = error(&layer, script);
        assert_eq!((error.status().as_u16(), error.read()), (203, 2));
        let too_large = std::error::Error::source(&error).unwrap();
        assert_eq!(too_large.downcast_ref::<AnswerTooLarge>().unwrap().limit(), 5);
        assert_eq!(Fault::of(&error), Fault::new(FaultKind::Other, Sent::Maybe));
        assert_eq!(
            error.to_string(),
            "CollectBody: the server answered 203 Non Authoritative Information, and after 2 bytes the body failed: \
             the body has more than the 5 bytes that are read; raise `max_body`, or do not collect such bodies"
        );
        assert_eq!(Arc::strong_count(&alive), 1, "the body is gone");
    }

    #[test]
    fn a_body_that_is_announced_as_too_long_is_not_read_at_all() {
        let script = announced(6, &[Data("seven")]);
        let polls = script.polls.clone();
        assert_eq!(error(&whole().max_body(5), script).read(), 0);
        assert_eq!(polls.load(SeqCst), 0);
        assert!(outcome(&whole().max_body(5), announced(5, &[Data("seven")])).is_ok());
    }

    #[test]
    fn with_a_bound_of_zero_empty_bodies_alone_are_read() {
        let layer = whole().max_body(0);
        assert!(outcome(&layer, body(&[])).is_ok());
        assert!(outcome(&layer, body(&[Data(""), Trailers])).is_ok());
        assert_eq!(error(&layer, body(&[Data("s")])).read(), 0);
    }

    #[test]
    fn a_body_that_is_always_ready_does_not_hold_the_thread() {
        let mut call = task::spawn(whole().layer(server(body(&[Empty]))).oneshot(()));
        assert_pending!(call.poll());
        assert!(call.is_woken(), "it asks for another turn");
    }
}

mod failures {
    use super::*;

    #[test]
    fn a_body_that_breaks_off_is_the_failure_of_the_call() {
        let script = body(&[Data("se"), Data("v"), Breaks, Stalls]);
        let alive = script.alive.clone();
        let error = error(&whole(), script);
        assert_eq!((error.status().as_u16(), error.read()), (203, 3));
        assert_eq!(Fault::of(&error), Fault::new(FaultKind::Closed, Sent::Maybe));
        assert_eq!(Verdict::of(&error), Verdict::Failure);
        let wrapped = io::Error::other(error);
        assert!(AnswerBodyFailed::of(&wrapped).is_some());
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn after_an_answer_nothing_proves_that_nothing_was_sent() {
        let error = error(&whole(), body(&[Claims]));
        assert_eq!(Fault::of(&error), Fault::new(FaultKind::Reset, Sent::Maybe));
    }

    #[test]
    fn an_error_of_the_service_passes_as_it_is() {
        let refused = || {
            ready(Err::<Response<Script>, _>(io::Error::from(
                io::ErrorKind::ConnectionRefused,
            )))
        };
        let outcome = whole()
            .layer(service_fn(move |()| refused()))
            .oneshot(())
            .now_or_never();
        assert!(outcome.unwrap().unwrap_err().is::<io::Error>());
    }

    #[test]
    fn dropping_the_call_drops_the_body() {
        let script = body(&[Data("se"), Stalls]);
        let alive = script.alive.clone();
        let mut call = task::spawn(whole().layer(server(script)).oneshot(()));
        assert_pending!(call.poll());
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(call);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

mod known_lengths {
    use super::*;

    #[test]
    fn a_body_that_is_announced_as_short_is_read_and_fails_if_it_is_shorter() {
        let layer = whole().known_up_to(5);
        let response = outcome(&layer, announced(5, &[Data("se"), Data("ven")])).unwrap();
        assert_eq!(response.body().bytes().unwrap(), "seven");
        assert_eq!(error(&layer, announced(5, &[Data("se"), Breaks])).read(), 2);
    }

    #[tokio::test]
    async fn other_bodies_are_handed_over_as_they_are() {
        let layer = whole().known_up_to(5);
        for (script, length) in [
            (announced(6, &[Data("seven"), Breaks]), Some(6)),
            (body(&[Data("seven"), Breaks]), None),
        ] {
            let polls = script.polls.clone();
            let mut body = outcome(&layer, script).unwrap().into_body();
            assert_eq!((polls.load(SeqCst), body.size_hint().exact()), (0, length));
            assert!(body.bytes().is_none() && body.trailers().is_none() && !body.is_end_stream());
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "seven");
            let error = body.frame().await.unwrap().unwrap_err();
            assert!(error.is::<io::Error>(), "as it was");
            assert!(body.into_bytes().is_err());
        }
        let mut body = outcome(&layer, body(&[Trailers])).unwrap().into_body();
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
    }
}

mod unread_bodies {
    use super::*;

    #[test]
    fn the_call_succeeds_and_the_body_is_dropped() {
        for script in [body(&[Breaks]), announced(1_000, &[Stalls])] {
            let (polls, alive) = (script.polls.clone(), script.alive.clone());
            let response = outcome(&whole().unread(), script).unwrap();
            assert_eq!(
                (response.status().as_u16(), response.body().bytes().unwrap()),
                (203, &Bytes::new())
            );
            assert!(response.body().is_end_stream());
            assert_eq!((polls.load(SeqCst), Arc::strong_count(&alive)), (0, 1));
        }
    }

    #[test]
    fn one_status_can_be_left_unread_and_others_are_read_as_before() {
        let status = |code| http::StatusCode::from_u16(code).unwrap();
        let unread = || {
            whole()
                .max_body(3)
                .unread_status(status(404))
                .unread_status(status(203))
        };
        let response = outcome(&unread(), body(&[Breaks])).unwrap();
        assert_eq!(response.body().bytes().unwrap(), &Bytes::new());
        let read = whole().unread_status(status(404));
        assert!(outcome(&read, body(&[Breaks])).is_err());
        assert!(
            outcome(&unread().max_body(4), body(&[Breaks])).is_ok(),
            "a bound changes nothing of it"
        );
        assert!(outcome(&unread().unread(), body(&[Breaks])).is_ok());
    }
}

#[cfg(feature = "nest")]
mod in_a_stack {
    use http::Request;
    use http_body_util::{Channel, Empty as NoBody, channel::Sender};
    use tower::ServiceBuilder;
    use tower_outbound::{
        ServiceBuilderExt,
        breaker::Breaker,
        call::{AttemptOutcome, CircuitState, Endpoints, ReadPhase, Trail},
        retry::Backoff,
        timeout::{ExecutionTimedOut, UploadBody},
    };

    use super::*;

    type Get = Request<NoBody<Bytes>>;

    fn get() -> Get {
        Request::get("http://a/").body(NoBody::new()).unwrap()
    }

    /// What the body of each answer does, by the number of the call; `None` is no answer.
    type Bodies = fn(usize) -> Option<&'static [Step]>;

    type Answer = Ready<Result<Response<Script>, BoxError>>;

    /// A service that answers so, and how often it was called.
    fn answers<Req>(bodies: Bodies) -> (ServiceFn<impl FnMut(Req) -> Answer + Clone>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let service = service_fn(move |_: Req| {
            ready(match bodies(counted.fetch_add(1, SeqCst)) {
                Some(steps) => Ok(Response::new(body(steps))),
                None => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            })
        });
        (service, calls)
    }

    /// What the trail says of each attempt: where it went, and its fault.
    fn attempts(error: &BoxError) -> Vec<(Option<String>, AttemptOutcome)> {
        let attempts = Trail::of(&**error).unwrap().attempts();
        attempts
            .map(|attempt| (attempt.endpoint().map(ToString::to_string), attempt.outcome()))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_breaker_above_counts_a_broken_body_and_a_retry_below_does_not_repeat_it() {
        let breaker = Breaker::builder("orders").volume(2).build().unwrap();
        let (client, calls) = answers(|_| Some(&[Data("se"), Breaks]));
        let stack = ServiceBuilder::new()
            .circuit_breaker(breaker.clone())
            .collect_body()
            .backoff_retry(Backoff::default())
            .service(client);
        for _ in 0..2 {
            assert!(
                stack
                    .clone()
                    .oneshot(get())
                    .await
                    .unwrap_err()
                    .is::<AnswerBodyFailed>()
            );
        }
        assert_eq!((calls.load(SeqCst), breaker.state()), (2, CircuitState::Open));
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_above_sends_a_get_again() {
        let (client, calls) = answers(|n| Some(if n == 0 { &[Breaks] } else { &[Data("seven")] }));
        let stack = ServiceBuilder::new()
            .record_trail()
            .backoff_retry(Backoff::default())
            .collect_body();
        let response = stack.service(client).oneshot(get()).await.unwrap();
        assert_eq!(
            (response.body().bytes().unwrap(), calls.load(SeqCst)),
            (&Bytes::from("seven"), 2)
        );
        let trail = Trail::on(&response).unwrap();
        let closed = AttemptOutcome::Failed(Fault::new(FaultKind::Closed, Sent::Maybe));
        let outcomes: Vec<_> = trail.attempts().map(|attempt| attempt.outcome()).collect();
        assert_eq!(outcomes, [closed, AttemptOutcome::Answered], "each once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_attempt_whose_answer_broke_off_has_failed_in_the_trail() {
        let closed = AttemptOutcome::Failed(Fault::new(FaultKind::Closed, Sent::Maybe));
        let refused = AttemptOutcome::Failed(Fault::new(FaultKind::ConnectRefused, Sent::No));
        let cases: [(Bodies, Vec<AttemptOutcome>); 2] = [
            (|_| Some(&[Breaks]), vec![closed]),
            (|n| (n > 0).then_some(&[Breaks]), vec![refused, closed]),
        ];
        for (bodies, expected) in cases {
            let (client, _) = answers(bodies);
            let stack = ServiceBuilder::new()
                .record_trail()
                .collect_body()
                .backoff_retry(Backoff::default())
                .load_balance(Endpoints::from_list(["a:1"]).unwrap())
                .service(client);
            let error = stack.oneshot(get()).await.unwrap_err();
            let expected: Vec<_> = expected
                .into_iter()
                .map(|outcome| (Some("a:1".to_owned()), outcome))
                .collect();
            assert_eq!(attempts(&error), expected, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_a_read_timeout_that_ends_the_call() {
        let (client, _) = answers::<Request<UploadBody<NoBody<Bytes>>>>(|_| Some(&[Data("se"), Stalls]));
        let stack = ServiceBuilder::new()
            .record_trail()
            .execution_timeout(ms(5_000))
            .unwrap()
            .collect_body()
            .read_timeout(ms(700))
            .unwrap()
            .service(client);
        let start = Instant::now();
        let error = stack.oneshot(get()).await.unwrap_err();
        assert_eq!(start.elapsed(), ms(700));
        assert_eq!(AnswerBodyFailed::of(&*error).unwrap().read(), 2);
        let stalled = FaultKind::ReadTimeout(ReadPhase::Body);
        assert_eq!(Fault::of(&*error), Fault::new(stalled, Sent::Maybe));
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_on_the_execution_covers_the_body_and_the_trail_tells_of_the_attempt() {
        let (client, _) = answers(|_| Some(&[Data("se"), Stalls]));
        let stack = ServiceBuilder::new()
            .record_trail()
            .execution_timeout(ms(500))
            .unwrap()
            .collect_body()
            .load_balance(Endpoints::from_list(["a:1"]).unwrap())
            .service(client);
        let start = Instant::now();
        let error = stack.oneshot(get()).await.unwrap_err();
        assert_eq!(start.elapsed(), ms(500));
        assert!(tower_outbound::call::chain(&*error).any(|error| error.is::<ExecutionTimedOut>()));
        assert_eq!(
            attempts(&error),
            [(Some("a:1".to_owned()), AttemptOutcome::Abandoned)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_in_time_is_whole() {
        let (mut sender, body) = Channel::<Bytes, io::Error>::new(1);
        let mut body = Some(body);
        let client =
            service_fn(move |_: Get| ready(Ok::<_, Infallible>(Response::new(body.take().unwrap()))));
        let call = tokio::spawn(whole().layer(client).oneshot(get()));
        send(&mut sender, "se").await;
        send(&mut sender, "ven").await;
        assert!(!call.is_finished());
        drop(sender);
        assert_eq!(
            call.await.unwrap().unwrap().into_body().into_bytes().unwrap(),
            "seven"
        );
    }

    async fn send(sender: &mut Sender<Bytes, io::Error>, data: &'static str) {
        tokio::time::sleep(ms(100)).await;
        sender.send_data(Bytes::from(data)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_the_call_is_known_to_the_body_that_is_read() {
        struct Asks;
        impl Body for Asks {
            type Data = Bytes;
            type Error = Infallible;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                assert!(tower_outbound::call::scope::deadline().is_some());
                Poll::Ready(None)
            }
        }
        let client = service_fn(|()| ready(Ok::<_, Infallible>(Response::new(Asks))));
        let stack = ServiceBuilder::new()
            .execution_timeout(ms(500))
            .unwrap()
            .collect_body();
        stack.service(client).oneshot(()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_of_a_bulkhead_above_is_held_until_the_body_is_read() {
        use tower_outbound::bulkhead::Bulkhead;
        let bulkhead = Bulkhead::new("orders").unwrap();
        let (client, _) = answers::<()>(|_| Some(&[Stalls]));
        let stack = ServiceBuilder::new()
            .bulkhead(bulkhead.clone())
            .collect_body()
            .service(client);
        let mut call = task::spawn(stack.oneshot(()));
        assert_pending!(call.poll());
        assert_eq!(bulkhead.in_flight(), 1);
    }

    /// As it was before the answer: nothing of the body's is said.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_before_its_answer_leaves_the_trail_alone() {
        let stack = ServiceBuilder::new()
            .record_trail()
            .execution_timeout(ms(500))
            .unwrap()
            .collect_body()
            .service(service_fn(|()| pending::<Result<Response<Script>, BoxError>>()));
        let error = stack.oneshot(()).await.unwrap_err();
        assert!(Trail::of(&*error).is_none(), "{error}");
    }
}

#[cfg(feature = "client")]
mod over_sockets {
    use http::Request;
    use http_body_util::Empty as NoBody;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tower_outbound::nest::client::Client;

    use super::*;

    /// One answer of a server that closes the connection after it.
    async fn answer(head: &'static str) -> Result<Bytes, BoxError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let serves = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(head.as_bytes()).await.unwrap();
        };
        let client = Client::builder().build_http::<NoBody<Bytes>>().unwrap();
        let call = whole()
            .layer(client)
            .oneshot(Request::get(uri).body(NoBody::new()).unwrap());
        let ((), outcome) = tokio::join!(serves, call);
        outcome.map(|response| response.into_body().into_bytes().expect("it was read"))
    }

    #[tokio::test]
    async fn a_body_shorter_than_it_was_announced_is_an_error() {
        let whole = answer("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nseven").await;
        assert_eq!(whole.unwrap(), "seven");
        let chunked =
            answer("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nse\r\n3\r\nven\r\n0\r\n\r\n")
                .await;
        assert_eq!(chunked.unwrap(), "seven");
        for short in [
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nseven",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nseven\r\n",
        ] {
            let error = answer(short).await.unwrap_err();
            assert_eq!(error.downcast_ref::<AnswerBodyFailed>().unwrap().read(), 5);
            assert_eq!(
                Fault::of(&*error),
                Fault::new(FaultKind::Closed, Sent::Maybe),
                "{error}"
            );
        }
    }
}
