//! What is answered in place of an error, and how much of a body belongs to the call.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Full, StreamBody};
use tower::{BoxError, ServiceExt, service_fn};
use tower_outbound::{
    call::{ErrorRef, Fault, FaultKind, ReadPhase, Rejection, StatusError},
    collect::CollectedBody,
    fallback::FallbackLayer,
    nest::spring::{self, ErrorDecoder, ReturnType, SpringConfig},
    timeout::ReadBody,
};

use super::mock::{Answer, Upload, client, config, endpoints, get, status, text};

type Whole = Response<CollectedBody<ReadBody<Full<Bytes>>>>;

/// The text of the answer, or what went wrong.
async fn call(config: SpringConfig, answer: fn() -> Answer) -> Result<String, FaultKind> {
    let (client, _) = client(move |_| async move { answer() });
    let fallback = FallbackLayer::new(|error: ErrorRef<'_>| {
        let answer = Fault::of(error).kind();
        async move { Ok(Whole::new(Bytes::from(answer.to_string()).into())) }
    });
    let nest = config
        .nest(endpoints(&["a"]))
        .fallback(fallback)
        .build(client)
        .unwrap();
    match nest.send(get()).await {
        Ok(response) => Ok(text(response).await),
        Err(error) => Err(Fault::of(&*error).kind()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_fallback_answers_for_all_but_bad_requests() {
    let bad_requests = || config([]).error_decoder(ErrorDecoder::ClientErrorsAsBadRequests);
    assert_eq!(call(config([]), || status(200)).await, Ok("ok-200".to_owned()));
    assert!(call(config([]), || status(404)).await.unwrap().contains("404"));
    let not_found = FaultKind::Status(http::StatusCode::NOT_FOUND);
    assert_eq!(call(bad_requests(), || status(404)).await, Err(not_found));
    assert!(
        call(bad_requests(), || status(503))
            .await
            .unwrap()
            .contains("503")
    );
    let open = config([("hystrix.command.default.circuitBreaker.forceOpen", "true")]);
    assert!(call(open, || status(200)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_fallback_is_switched_off_with_its_key() {
    let off = config([("hystrix.command.default.fallback.enabled", "false")]);
    assert!(matches!(
        call(off, || status(503)).await,
        Err(FaultKind::Status(_))
    ));
}

#[test]
fn a_fallback_without_hystrix_is_refused() {
    let none: [(&str, &str); 0] = [];
    let (client, _) = client(|_| async { status(503) });
    let fallback = FallbackLayer::new(|_: ErrorRef<'_>| async { Ok(Whole::new(Bytes::new().into())) });
    let nest = spring::from_pairs("orders", none)
        .unwrap()
        .nest(endpoints(&["a"]))
        .fallback(fallback);
    let error = nest.build(client).unwrap_err().to_string();
    assert!(error.contains("`feign.hystrix.enabled`"), "{error}");
}

#[test]
fn a_client_without_a_name_is_refused() {
    for name in ["", " \t"] {
        // The command and the pool have names of their own.
        let pairs = [
            ("feign.hystrix.enabled", "true"),
            ("hystrix.command.A#b().threadPoolKeyOverride", "pool"),
        ];
        let config = spring::from_pairs(name, pairs).unwrap().command_key("A#b()");
        let (client, _) = client(|_| async { status(200) });
        let error = config.nest(endpoints(&["a"])).build(client).unwrap_err();
        assert_eq!(error.field(), "client", "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_fallbacks_run_at_once_than_the_key_says() {
    let limit = (
        "hystrix.command.orders.fallback.isolation.semaphore.maxConcurrentRequests",
        "1",
    );
    let (client, _) = client(|_| async { status(503) });
    let fallback = FallbackLayer::new(|_: ErrorRef<'_>| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Whole::new(Bytes::new().into()))
    });
    let nest = config([limit])
        .nest(endpoints(&["a"]))
        .fallback(fallback)
        .build(client)
        .unwrap();
    let (first, second) = tokio::join!(nest.send(get()), nest.send(get()));
    assert!(first.is_ok());
    let kind = Fault::of(&*second.unwrap_err()).kind();
    assert_eq!(kind, FaultKind::Rejected(Rejection::Fallback));
    assert_eq!(nest.fallback().unwrap().running(), 0);
}

/// Sends half of an answer and is silent.
async fn half(request: Request<Upload>) -> Result<Response<Half>, BoxError> {
    let code = request.uri().path().trim_start_matches('/').parse::<u16>()?;
    let frames = futures_util::stream::unfold(false, |sent| async move {
        if sent {
            std::future::pending::<()>().await;
        }
        let frame = http_body::Frame::data(Bytes::from("half"));
        Some((Ok::<_, BoxError>(frame), true))
    });
    let body: Half = http_body_util::BodyExt::boxed_unsync(StreamBody::new(frames));
    Ok(Response::builder().status(code).body(body)?)
}

type Half = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

#[tokio::test(start_paused = true)]
async fn how_much_of_a_body_is_part_of_the_call_depends_on_the_return_type() {
    let pairs = [
        ("ribbon.ReadTimeout", "200"),
        (
            "hystrix.command.default.execution.isolation.thread.timeoutInMilliseconds",
            "5000",
        ),
    ];
    let config = config(pairs);
    let decode = config.clone().decode_404(true);
    let void = config.clone().return_type(ReturnType::Void);
    let response = config.clone().return_type(ReturnType::Response);
    let stalled = Some(FaultKind::ReadTimeout(ReadPhase::Body));
    let status = |code| Some(FaultKind::Status(http::StatusCode::from_u16(code).unwrap()));
    for (name, config, code, error, millis) in [
        ("a body", &config, 200, stalled, 200),
        ("the body of an error", &config, 500, status(500), 200),
        ("none of a 404 that is decoded", &decode, 404, None, 0),
        ("but others", &decode, 200, stalled, 200),
        ("none for void", &void, 200, None, 0),
        ("an error all the same", &void, 404, status(404), 200),
        ("one of unknown length", &response, 200, None, 0),
        ("with any status", &response, 500, None, 0),
    ] {
        let nest = config
            .clone()
            .nest(endpoints(&["a"]))
            .build(service_fn(half))
            .unwrap();
        let start = tokio::time::Instant::now();
        let request = Request::get(format!("/{code}")).body(Full::default()).unwrap();
        let found = match nest.oneshot(request).await {
            Ok(_) => None,
            Err(error) => {
                if let Some(status) = StatusError::of(&*error) {
                    assert_eq!(&status.body()[..], b"half");
                }
                Some(Fault::of(&*error).kind())
            }
        };
        assert_eq!((found, start.elapsed().as_millis()), (error, millis), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_of_an_error_is_waited_for_as_long_as_one_read() {
    let pairs = [
        ("ribbon.ReadTimeout", "3000"),
        ("hystrix.command.default.execution.timeout.enabled", "false"),
    ];
    let nest = config(pairs)
        .nest(endpoints(&["a"]))
        .build(service_fn(half))
        .unwrap();
    let start = tokio::time::Instant::now();
    let request = Request::get("/503").body(Full::default()).unwrap();
    let error = nest.send(request).await.unwrap_err();
    assert!(StatusError::of(&*error).is_some());
    assert_eq!(start.elapsed().as_millis(), 3000);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_cut_short_by_its_bound_is_an_error() {
    let (client, _) = client(|_| async { status(200) });
    let nest = config([])
        .max_body(5)
        .nest(endpoints(&["a"]))
        .build(client)
        .unwrap();
    assert!(nest.send(get()).await.is_err());
}
