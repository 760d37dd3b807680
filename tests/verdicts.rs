//! What statuses do to breaker, balancer and retries together: CLS-01, CLS-05, CLS-08 and CLS-09. And what the body of an
//! error costs its connection, on real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails it by a panic"
)]
#![allow(
    clippy::disallowed_types,
    reason = "locks of tests are not on the path of a call"
)]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Full, combinators::BoxBody};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    Nest, ServiceBuilderExt,
    balance::LoadBalanceLayer,
    breaker::{Breaker, CircuitBreakerLayer},
    call::{CircuitState, Classify, Endpoints, ErrorRef, StatusError, StatusSet, Trail},
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    nest::client::{Client, HttpClient},
    retry::{Backoff, Idempotent},
};

type Get = Request<Full<Bytes>>;

fn get() -> Get {
    Request::new(Full::default())
}

fn answer(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

// CLS-01
#[tokio::test(start_paused = true)]
async fn cls_01_thirty_missing_pages_open_no_circuit_and_are_not_counted() {
    let hits = Arc::<AtomicUsize>::default();
    let counts = hits.clone();
    let server = service_fn(move |_: Request<_>| {
        let status = if counts.fetch_add(1, Ordering::Relaxed) < 30 {
            404
        } else {
            200
        };
        std::future::ready(Ok::<_, BoxError>(answer(status)))
    });
    let breaker = Breaker::builder("orders")
        .volume(20)
        .error_percent(50)
        .window(Duration::from_secs(10))
        .build()
        .unwrap();
    let nest = Nest::builder("orders", Endpoints::from_list(["a:1", "b:1"]).unwrap())
        .breaker(breaker.clone())
        .build(server)
        .unwrap();
    for _ in 0..30 {
        let error = nest.send(get()).await.unwrap_err();
        assert_eq!(StatusError::of(&*error).unwrap().status(), StatusCode::NOT_FOUND);
        assert_eq!(breaker.state(), CircuitState::Closed);
    }
    assert!(nest.send(get()).await.is_ok());
    let figures = breaker.counts();
    assert_eq!((figures.total(), figures.failures()), (1, 0));
    assert_eq!(hits.load(Ordering::Relaxed), 31, "nothing was sent again");
}

/// Tells when it is dropped.
#[derive(Debug)]
struct Told {
    body: Full<Bytes>,
    name: &'static str,
    log: Arc<Mutex<Vec<String>>>,
}

impl Body for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.log
            .lock()
            .unwrap()
            .push(format!("body of {} dropped", self.name));
    }
}

// CLS-05
#[tokio::test(start_paused = true)]
async fn cls_05_the_last_of_two_busy_servers_is_told_with_its_whole_body() {
    let log = Arc::<Mutex<Vec<String>>>::default();
    let writes = log.clone();
    let server = service_fn(move |request: Get| {
        let name = if request.uri().host() == Some("a") {
            "a"
        } else {
            "b"
        };
        writes.lock().unwrap().push(format!("hit {name}"));
        let body = Told {
            body: Full::from(name.repeat(1024)),
            name,
            log: writes.clone(),
        };
        std::future::ready(Response::builder().status(503).body(body))
    });
    let stack = ServiceBuilder::new()
        .status_errors(StatusPolicy::default())
        .layer(
            tower_outbound::retry::IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1))
                .retry_statuses(StatusSet::TRANSIENT),
        )
        .layer(LoadBalanceLayer::new(
            Endpoints::from_list(["http://a:1", "http://b:1"]).unwrap(),
        ))
        .service(server);
    let error = stack.oneshot(get()).await.unwrap_err();
    let error = StatusError::of(&*error).unwrap();
    assert!(error.complete());
    let log = log.lock().unwrap();
    let (first, second) = if log[0] == "hit a" { ("a", "b") } else { ("b", "a") };
    assert_eq!(
        *log,
        [
            format!("hit {first}"),
            format!("body of {first} dropped"),
            format!("hit {second}"),
            format!("body of {second} dropped")
        ]
    );
    assert_eq!(error.body(), &second.repeat(1024));
}

// CLS-08: a policy that turns common sense around, and three layers that ask it.
#[tokio::test(start_paused = true)]
async fn cls_08_retry_balancer_and_breaker_go_by_one_verdict() {
    let policy = StatusPolicy::default()
        .failure(StatusCode::NOT_FOUND)
        .success(StatusCode::SERVICE_UNAVAILABLE);
    for (status, fails) in [(404, true), (503, false)] {
        let hits = Arc::<AtomicUsize>::default();
        let counts = hits.clone();
        let asked = <[Arc<AtomicUsize>; 2]>::default();
        // Each layer that counts asks once: the balancer of each attempt, the breaker of the call.
        let counted = |n: usize, policy: StatusPolicy| {
            let asked = asked[n].clone();
            move |outcome: Result<&Response<Full<Bytes>>, ErrorRef<'_>>| {
                asked.fetch_add(1, Ordering::Relaxed);
                policy.classify(outcome)
            }
        };
        // Of an error the breaker takes the verdict that came with it, whatever its own policy says.
        let contrary = policy.clone().ignored(StatusCode::NOT_FOUND);
        let breaker = Breaker::builder("orders")
            .volume(1)
            .error_percent(1)
            .build()
            .unwrap();
        let balance = LoadBalanceLayer::new(Endpoints::from_list(["a:1"]).unwrap())
            .classify(counted(0, policy.clone()));
        let figures = balance.handle();
        let backoff = Backoff::builder()
            .attempts(2)
            .statuses(StatusSet::EMPTY.with(StatusCode::NOT_FOUND))
            .build()
            .unwrap();
        let stack = ServiceBuilder::new()
            .layer(CircuitBreakerLayer::new(breaker.clone()).classify(counted(1, contrary)))
            .backoff_retry(backoff)
            .layer(StatusErrorClassifierLayer::new(policy.clone()))
            .layer(balance)
            .service(service_fn(move |_: Get| {
                counts.fetch_add(1, Ordering::Relaxed);
                std::future::ready(Ok::<_, BoxError>(answer(status)))
            }));
        let outcome = stack.oneshot(get()).await;
        assert_eq!(outcome.is_err(), fails, "{status}");
        let attempts = if fails { 2 } else { 1 };
        assert_eq!(hits.load(Ordering::Relaxed), attempts, "{status}: retry");
        let total = figures.total();
        let expected = if fails { (0, 2) } else { (1, 0) };
        assert_eq!(
            (total.successes(), total.failures()),
            expected,
            "{status}: balancer"
        );
        let open = breaker.state() == CircuitState::Open;
        assert_eq!(open, fails, "{status}: breaker");
        let asked = asked.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(asked, [attempts, 1], "{status}");
    }
}

// CLS-09, over the nest: what is transient is sent again, and nothing else.
#[tokio::test(start_paused = true)]
async fn cls_09_a_get_is_sent_again_after_the_transient_statuses_and_no_other() {
    let mut again = Vec::new();
    for code in [
        200, 301, 400, 401, 404, 408, 409, 422, 425, 429, 500, 501, 502, 503, 504, 505,
    ] {
        let hits = Arc::<AtomicUsize>::default();
        let counts = hits.clone();
        let server = service_fn(move |_: Request<_>| {
            counts.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<_, BoxError>(answer(code)))
        });
        let nest = Nest::builder("orders", Endpoints::from_list(["a:1"]).unwrap())
            .build(server)
            .unwrap();
        let outcome = nest.send(get()).await;
        let attempts = outcome
            .as_ref()
            .err()
            .and_then(|error| Trail::of(&**error))
            .map_or(1, Trail::len);
        assert_eq!(attempts, hits.load(Ordering::Relaxed), "{code}");
        if attempts > 1 {
            again.push(code);
        }
    }
    assert_eq!(again, [408, 429, 502, 503, 504]);
}

/// Answers 503 with a body of this size to each request on each connection, and counts connections.
async fn busy_server(body: usize) -> (String, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let (connections, closed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (opened, ended) = (connections.clone(), closed.clone());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::SeqCst);
            let ended = ended.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                let mut buffer = [0; 1024];
                'connection: loop {
                    while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                        match socket.read(&mut buffer).await {
                            Ok(read @ 1..) => seen.extend_from_slice(&buffer[..read]),
                            _ => break 'connection,
                        }
                    }
                    seen.clear();
                    let head = format!("HTTP/1.1 503 Busy\r\ncontent-length: {body}\r\n\r\n");
                    if socket.write_all(head.as_bytes()).await.is_err()
                        || socket.write_all(&vec![b'x'; body]).await.is_err()
                    {
                        break;
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    (uri, connections, closed)
}

async fn two_errors(uri: &str) -> [StatusError; 2] {
    let client: HttpClient<BoxBody<Bytes, Infallible>> = Client::builder().build_http().unwrap();
    let mut errors = Vec::new();
    for _ in 0..2 {
        let stack = ServiceBuilder::new()
            .status_errors(StatusPolicy::default())
            .service(client.clone());
        let request = Request::get(uri).body(BoxBody::new(Full::default())).unwrap();
        let error = stack.oneshot(request).await.unwrap_err();
        errors.push(StatusError::of(&*error).unwrap().clone());
        // The client takes the connection back in a task of its own.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    errors.try_into().unwrap()
}

#[tokio::test]
async fn a_small_body_of_an_error_leaves_its_connection_to_the_next_call() {
    for size in [0, 100, 16 * 1024] {
        let (uri, connections, _) = busy_server(size).await;
        for error in two_errors(&uri).await {
            assert!(error.complete());
            assert_eq!(error.body().len(), size);
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1, "{size} bytes");
    }
}

#[tokio::test]
async fn a_huge_body_of_an_error_is_dropped_with_its_connection() {
    let (uri, connections, closed) = busy_server(100_000_000).await;
    let begun = tokio::time::Instant::now();
    for error in two_errors(&uri).await {
        assert!(!error.complete());
        assert_eq!(error.body().len(), 16 * 1024, "no more than that is kept");
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "nobody reads 100 MB");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    let closes = async {
        while closed.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), closes)
        .await
        .expect("the server learns of it");
}
