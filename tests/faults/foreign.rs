//! Faults of tower, tokio, reqwest and tonic.

use std::time::Duration;

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::call::{BoxError, Fault, FaultError, FaultKind, Rejection, Sent};

const LIMIT: Duration = Duration::from_millis(200);

fn fault(error: impl Into<BoxError>) -> Fault {
    Fault::of(&*error.into())
}

async fn never(_: ()) -> Result<(), BoxError> {
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn limits_of_tower_and_of_tokio_are_limits_on_the_whole_of_what_is_inside() {
    let limit = Fault::new(FaultKind::ExecutionTimeout, Sent::Maybe);
    let stack = ServiceBuilder::new().timeout(LIMIT).service(service_fn(never));
    assert_eq!(fault(stack.oneshot(()).await.unwrap_err()), limit);
    let elapsed = tokio::time::timeout(LIMIT, never(())).await.unwrap_err();
    assert_eq!(fault(elapsed), limit);
}

#[tokio::test]
async fn axums_errors_and_boxes_around_known_types_hide_nothing() {
    use std::{io, sync::Arc};

    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let unsent = Fault::new(FaultKind::ConnectRefused, Sent::No);
    assert_eq!(fault(axum_core::Error::new(refused())), unsent);
    let nested: BoxError = Box::new(axum_core::Error::new(axum_core::Error::new(Box::new(refused()))));
    assert_eq!(fault(nested), unsent);
    assert_eq!(fault(Arc::new(refused())), unsent);
    let proved = FaultError::new(unsent, "no matter what");
    assert_eq!(fault(axum_core::Error::new(Arc::new(proved))), unsent);
}

#[tokio::test]
async fn a_call_that_tower_sheds_is_rejected_here() {
    let stack = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(1)
        .service(service_fn(never));
    let mut first = stack.clone();
    let _under_way = first.ready().await.unwrap().call(());
    let shed = Fault::new(FaultKind::Rejected(Rejection::Limit), Sent::No);
    assert_eq!(fault(stack.oneshot(()).await.unwrap_err()), shed);
}

#[tokio::test]
async fn a_buffer_whose_service_is_dead_has_sent_nothing_and_one_whose_worker_is_gone_perhaps() {
    #[derive(Clone)]
    struct Dead;
    impl Service<()> for Dead {
        type Response = ();
        type Error = BoxError;
        type Future = std::future::Ready<Result<(), BoxError>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
            std::task::Poll::Ready(Err("dead".into()))
        }
        fn call(&mut self, (): ()) -> Self::Future {
            panic!("called without being ready")
        }
    }
    let dead = ServiceBuilder::new().buffer(1).service(Dead);
    let unsent = Fault::new(FaultKind::NotReady, Sent::No);
    assert_eq!(fault(dead.oneshot(()).await.unwrap_err()), unsent);

    let panics =
        service_fn(|(): ()| async { Ok::<(), BoxError>(()) }).map_request(|(): ()| panic!("on purpose"));
    let gone = ServiceBuilder::new().buffer(1).service(panics);
    let error = gone.oneshot(()).await.unwrap_err();
    assert_eq!(fault(error), Fault::new(FaultKind::NotReady, Sent::Maybe));
}

#[cfg(feature = "reqwest")]
mod reqwest_client {
    use bytes::Bytes;
    use http::{Request, StatusCode};
    use http_body_util::{BodyExt, Full};
    use tower::ServiceExt;
    use tower_outbound::{
        Nest,
        call::{BoxError, Endpoint, Fault, FaultError, FaultKind, ReadPhase, Sent},
        nest::ReqwestClient,
        retry::{Backoff, Idempotent},
    };

    use super::LIMIT;
    use crate::{
        backends::{Backend, Manner},
        matrix::run,
        server::{
            Act::{Answer, Raw, Read},
            Protocol, Server, Transport,
        },
    };

    fn settings() -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .connect_timeout(LIMIT)
            .timeout(2 * LIMIT)
    }

    async fn raw(uri: &str) -> Fault {
        let client = settings().build().unwrap();
        let error = match client.post(uri).send().await {
            Ok(response) => response.bytes().await.unwrap_err(),
            Err(error) => error,
        };
        Fault::of(&error)
    }

    async fn once(uri: &str) -> Fault {
        let client = ReqwestClient::new(settings()).unwrap();
        let request = Request::post(uri).body(Full::<Bytes>::default()).unwrap();
        let error: BoxError = match client.oneshot(request).await {
            Ok(response) => response.into_body().collect().await.unwrap_err().into(),
            Err(error) => error,
        };
        Fault::of(&*error)
    }

    #[tokio::test]
    async fn kinds_are_read_and_only_a_client_that_sends_once_proves_that_nothing_was_sent() {
        for (manner, kind, sent) in [
            (Manner::Refuses, FaultKind::ConnectRefused, Sent::No),
            (Manner::QueueFull, FaultKind::ConnectTimeout, Sent::No),
            (Manner::ClosesAfterReading, FaultKind::Closed, Sent::Maybe),
            (Manner::ResetsAfterReading, FaultKind::Reset, Sent::Maybe),
            (
                Manner::Sleeps(LIMIT * 20),
                FaultKind::ReadTimeout(ReadPhase::Head),
                Sent::Maybe,
            ),
            (
                Manner::StallsInTheBody,
                FaultKind::ReadTimeout(ReadPhase::Body),
                Sent::Maybe,
            ),
        ] {
            let server = Backend::start("server", manner).await.unwrap();
            assert_eq!(
                (raw(&server.uri()).await, once(&server.uri()).await),
                (Fault::new(kind, Sent::Maybe), Fault::new(kind, sent)),
                "{manner:?}"
            );
        }
    }

    #[test]
    fn a_post_that_was_carried_out_before_a_redirect_to_a_dead_server_is_not_said_to_be_unsent() {
        // Done, and the result is to be had at a place where nobody listens.
        const DONE: &[u8] =
            b"HTTP/1.1 303 See Other\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let server = Server::start(
            &Transport::cleartext(),
            Protocol::Http1,
            vec![vec![Read, Raw(DONE), Read, Answer]],
        );
        let uri = format!("http://{}/", server.address);
        run(async {
            let fault = raw(&uri).await;
            assert_eq!(fault, Fault::new(FaultKind::ConnectRefused, Sent::Maybe));
            let client = ReqwestClient::new(settings()).unwrap();
            let request = Request::post(&uri).body(Full::<Bytes>::default()).unwrap();
            let answer = client.oneshot(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        });
    }

    #[tokio::test]
    async fn what_reqwest_cannot_send_was_not_sent() {
        assert_eq!(raw("no address").await, Fault::new(FaultKind::Other, Sent::No));
        let mut request = Request::post("https://127.0.0.1:1/")
            .body(Full::<Bytes>::default())
            .unwrap();
        let endpoint = Endpoint::builder("https://127.0.0.1:1")
            .tls_name("orders.example")
            .build();
        tower_outbound::call::Addressed::send_to(
            &mut request,
            &endpoint.unwrap(),
            tower_outbound::call::HostHeader::OfEndpoint,
        );
        let client = ReqwestClient::new(settings()).unwrap();
        let error = client.oneshot(request).await.unwrap_err();
        assert!(error.is::<FaultError>());
        assert_eq!(Fault::of(&*error), Fault::new(FaultKind::Connect, Sent::No));
    }

    #[tokio::test]
    async fn a_post_moves_on_from_a_dead_endpoint_in_a_nest_over_reqwest() {
        let refuses = Backend::start("refuses", Manner::Refuses).await.unwrap();
        let good = Backend::start("good", Manner::Answers(200)).await.unwrap();
        let endpoints = [&refuses, &good].map(|server| Endpoint::new(server.uri()).unwrap());
        let nest = Nest::builder("orders", endpoints.into_iter().collect())
            .rule(tower_outbound::balance::RoundRobin::new())
            .idempotent(Idempotent::default())
            .backoff(Backoff::never())
            .build(ReqwestClient::new(settings()).unwrap())
            .unwrap();
        let request = Request::post("/").body(Full::<Bytes>::default()).unwrap();
        let answer = nest.send(request).await.unwrap();
        assert_eq!((answer.status(), good.received()), (StatusCode::OK, 1));
    }
}

#[cfg(feature = "tonic")]
mod tonic_channel {
    use http::Request;
    use tonic::{Code, Status, body::Body, transport::Channel};
    use tower::ServiceExt;
    use tower_outbound::call::{Fault, FaultKind, Sent};

    use super::LIMIT;
    use crate::{
        backends::{Backend, Manner},
        matrix::run,
        server::{
            Act::{Close, GoAway, Read, ResetStream, Stall},
            Protocol, Server, Transport,
        },
    };

    /// What the channel says, and what a generated client makes of it.
    async fn faults(uri: String) -> [Fault; 2] {
        let endpoint = Channel::from_shared(uri)
            .unwrap()
            .connect_timeout(LIMIT)
            .timeout(2 * LIMIT);
        let request = || Request::post("http://orders/list").body(Body::empty()).unwrap();
        let channel = endpoint.connect_lazy();
        let error = channel.clone().oneshot(request()).await.unwrap_err();
        let channel = endpoint.connect_lazy();
        let again = channel.oneshot(request()).await.unwrap_err();
        [Fault::of(&error), Fault::of(&Status::from_error(again.into()))]
    }

    #[test]
    fn faults_of_a_channel_are_read_as_those_of_any_client_also_out_of_a_status() {
        let script = |acts: &[crate::server::Act]| {
            Server::start(&Transport::cleartext(), Protocol::Http2, vec![acts.to_vec()])
        };
        for (acts, kind, sent) in [
            (vec![Read, ResetStream(7)], FaultKind::Reset, Sent::No),
            (vec![Read, ResetStream(2)], FaultKind::Reset, Sent::Maybe),
            // Which streams it leaves alone is known to none but a counting connection.
            (
                vec![Read, GoAway { last: 0, reason: 0 }],
                FaultKind::Reset,
                Sent::Maybe,
            ),
            (vec![Read, Close], FaultKind::Closed, Sent::Maybe),
            (vec![Read, Stall], FaultKind::ExecutionTimeout, Sent::Maybe),
        ] {
            let server = script(&acts);
            let faults = run(faults(format!("http://{}", server.address)));
            assert_eq!(faults, [Fault::new(kind, sent); 2], "{acts:?}");
        }
    }

    #[tokio::test]
    async fn what_fails_while_a_channel_connects_was_not_sent() {
        for (manner, kind) in [
            (Manner::Refuses, FaultKind::ConnectRefused),
            (Manner::QueueFull, FaultKind::ConnectTimeout),
        ] {
            let server = Backend::start("server", manner).await.unwrap();
            assert_eq!(
                faults(server.uri()).await,
                [Fault::new(kind, Sent::No); 2],
                "{manner:?}"
            );
        }
    }

    #[test]
    fn a_status_of_the_server_is_its_code_and_proves_nothing() {
        let status = Status::new(Code::Unavailable, "later");
        assert_eq!(Fault::of(&status), Fault::new(FaultKind::Grpc(14), Sent::Maybe));
    }
}
