//! The fallback, over its public API. All times are exact: tokio's clock is paused.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "helpers of tests"
)]

use std::{
    convert::Infallible,
    future::{Future, Ready, pending, ready},
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    call::{
        ErrorRef, FallbackFailed, FallbackRejected, Fault, FaultError, FaultKind, Rejection, Sent,
        StatusError, Verdict, chain,
    },
    fallback::{FallbackEnd, FallbackEvent, FallbackLayer, Substitute},
};

fn reset() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

fn status(status: u16, verdict: Verdict) -> BoxError {
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(status).unwrap();
    let wait = Some(Duration::from_secs(3));
    StatusError::new(parts, verdict, Bytes::from_static(b"no"), true, wait).into()
}

fn rejected(rejection: Rejection) -> BoxError {
    FaultError::new(
        Fault::new(FaultKind::Rejected(rejection), Sent::No),
        "turned away",
    )
    .into()
}

fn reset_fault() -> Fault {
    Fault::new(FaultKind::Reset, Sent::Maybe)
}

/// A service that fails so, or answers with its request.
fn failing(
    error: fn() -> BoxError,
) -> impl Service<u32, Response = u32, Error = BoxError, Future: Send + 'static> + Clone {
    service_fn(move |n: u32| ready(if n == 0 { Err(error()) } else { Ok(n) }))
}

/// Fallbacks that run until they are dropped.
fn for_ever() -> FallbackLayer<impl Fn(ErrorRef<'_>) -> std::future::Pending<Result<u32, BoxError>> + Clone> {
    FallbackLayer::new(|_: ErrorRef<'_>| pending())
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<FallbackEvent>>>);

impl Heard {
    fn hook(&self) -> impl Fn(&FallbackEvent) + Send + Sync + 'static {
        let heard = self.clone();
        move |event| heard.0.lock().unwrap().push(*event)
    }

    fn take(&self) -> Vec<(Fault, FallbackEnd)> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.iter().map(|event| (event.fault(), event.end())).collect()
    }
}

mod answers {
    use super::*;

    #[tokio::test]
    async fn a_call_that_fails_gets_the_answer_of_the_fallback_and_no_other_call_does() {
        let heard = Heard::default();
        let layer = FallbackLayer::new(|error: ErrorRef<'_>| {
            assert_eq!(Fault::of(error), reset_fault());
            ready(Ok(99))
        });
        let service = layer.on_fallback(heard.hook()).layer(failing(reset));
        assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
        assert!(heard.take().is_empty());
        assert_eq!(service.oneshot(0).await.unwrap(), 99);
        assert_eq!(heard.take(), [(reset_fault(), FallbackEnd::Answered)]);
    }

    #[tokio::test]
    async fn rejections_of_layers_below_are_answered() {
        for error in [
            || rejected(Rejection::Breaker),
            || rejected(Rejection::Bulkhead),
            || FaultError::new(Fault::new(FaultKind::NoEndpoint, Sent::No), "empty").into(),
            || FaultError::new(Fault::new(FaultKind::ExecutionTimeout, Sent::Maybe), "late").into(),
            || status(503, Verdict::Failure),
        ] {
            let service = FallbackLayer::new(|_: ErrorRef<'_>| ready(Ok(99))).layer(failing(error));
            assert_eq!(service.oneshot(0).await.unwrap(), 99, "{}", error());
        }
    }

    #[tokio::test]
    async fn an_error_that_was_classified_as_the_callers_fault_passes_by() {
        let heard = Heard::default();
        let service = for_ever().on_fallback(heard.hook());
        let service = service.layer(failing(|| status(404, Verdict::Ignored)));
        let error = service
            .oneshot(0)
            .now_or_never()
            .expect("the fallback runs")
            .unwrap_err();
        let kept = error.downcast_ref::<StatusError>().expect("as it was");
        assert_eq!(kept.status(), StatusCode::NOT_FOUND);
        // Also below another layer's wrapper.
        let wrapped = || io::Error::other(status(404, Verdict::Ignored)).into();
        let outcome = for_ever().layer(failing(wrapped)).oneshot(0).now_or_never();
        assert!(StatusError::of(&*outcome.expect("the fallback runs").unwrap_err()).is_some());
        assert!(heard.take().is_empty());
    }

    #[tokio::test]
    async fn what_a_closure_took_from_the_request_comes_back_with_the_error() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        let layer = FallbackLayer::with_request(
            move |n: &u32| {
                counted.fetch_add(1, SeqCst);
                *n + 40
            },
            |taken: u32, error: ErrorRef<'_>| {
                let fault = Fault::of(error);
                async move {
                    assert_eq!(fault, reset_fault());
                    Ok(taken)
                }
            },
        );
        let service = layer.layer(failing(reset));
        assert_eq!(service.clone().oneshot(0).await.unwrap(), 40);
        assert_eq!(service.oneshot(7).await.unwrap(), 7);
        assert_eq!(looks.load(SeqCst), 2, "before it is known how the call ends");
    }

    #[tokio::test]
    async fn the_head_of_a_request_is_there_for_its_fallback_although_the_request_was_sent() {
        type Head = (Method, Uri, HeaderMap);
        let layer = FallbackLayer::with_request(
            |request: &Request<Bytes>| {
                let headers = request.headers().clone();
                (request.method().clone(), request.uri().clone(), headers)
            },
            |(method, uri, headers): Head, error: ErrorRef<'_>| {
                let fault = Fault::of(error);
                async move {
                    assert_eq!(fault, reset_fault());
                    Ok(format!("{method} {} for {:?}", uri.path(), headers["tenant"]))
                }
            },
        );
        // The request is gone when the call fails.
        let service = layer.layer(service_fn(|request: Request<Bytes>| async move {
            drop(request);
            Err::<String, _>(reset())
        }));
        let call = |method, path| {
            let request = Request::builder().method(method).uri(path).header("tenant", "7");
            service.clone().oneshot(request.body(Bytes::new()).unwrap())
        };
        assert_eq!(call("GET", "/orders").await.unwrap(), "GET /orders for \"7\"");
        assert_eq!(call("PUT", "/orders/8").await.unwrap(), "PUT /orders/8 for \"7\"");
    }

    #[tokio::test]
    async fn a_type_of_ones_own_has_a_name() {
        #[derive(Clone)]
        struct Yesterday(u32);

        impl Substitute<u32, u32> for Yesterday {
            type Taken = u32;
            type Future = Ready<Result<u32, BoxError>>;

            fn take(&self, n: &u32) -> u32 {
                *n
            }

            fn answer(&self, n: u32, _: ErrorRef<'_>) -> Self::Future {
                ready(Ok(n + self.0))
            }
        }

        let layer: FallbackLayer<Yesterday> = FallbackLayer::of(Yesterday(9));
        assert_eq!(layer.layer(failing(reset)).oneshot(0).await.unwrap(), 9);
        let layer: FallbackLayer<Arc<Yesterday>> = FallbackLayer::of(Arc::new(Yesterday(9)));
        assert_eq!(layer.layer(failing(reset)).oneshot(0).await.unwrap(), 9);
    }
}

mod failures {
    use super::*;

    #[tokio::test]
    async fn a_fallback_that_fails_leaves_what_went_wrong_first_to_be_found() {
        let heard = Heard::default();
        let layer = FallbackLayer::new(|_: ErrorRef<'_>| ready(Err("cache is cold".into())));
        let service = layer
            .on_fallback(heard.hook())
            .layer(failing(|| status(503, Verdict::Failure)));
        let error = service.oneshot(0).await.unwrap_err();
        let failed = error.downcast_ref::<FallbackFailed>().unwrap();
        assert_eq!(failed.fallback().to_string(), "cache is cold");
        assert!(failed.original().is::<StatusError>());
        assert_eq!(
            failed.to_string(),
            "Fallback: failed as well: cache is cold. It was to answer for: \
             StatusErrorClassifier: the server answered 503 Service Unavailable and asks to be left alone for 3s"
        );
        let fault = Fault::of(&*error);
        assert_eq!(fault.kind(), FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(fault.retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(Verdict::of(&*error), Verdict::Failure);
        assert_eq!(heard.take(), [(fault, FallbackEnd::Failed)]);
        let wrapped = io::Error::other(error);
        assert!(FallbackFailed::of(&wrapped).is_some());
        let error = wrapped
            .into_inner()
            .unwrap()
            .downcast::<FallbackFailed>()
            .unwrap();
        assert!(error.into_original().is::<StatusError>());
    }

    #[tokio::test]
    async fn the_eleventh_fallback_at_once_is_turned_away_and_the_first_error_is_its_source() {
        let heard = Heard::default();
        let service = for_ever().on_fallback(heard.hook()).layer(failing(reset));
        assert_eq!(service.max_concurrent(), 10);
        let mut running: Vec<_> = (0..10).map(|_| task::spawn(service.clone().oneshot(0))).collect();
        running.iter_mut().for_each(|call| {
            assert_pending!(call.poll());
        });
        assert_eq!(service.running(), 10);

        let outcome = service.clone().oneshot(0).now_or_never();
        let error = outcome.expect("an eleventh one runs").unwrap_err();
        let rejected = error.downcast_ref::<FallbackRejected>().unwrap();
        assert_eq!(rejected.limit(), 10);
        assert!(rejected.original().is::<io::Error>());
        assert!(chain(&*error).nth(1).unwrap().is::<io::Error>());
        let fault = Fault::of(&*error);
        assert_eq!(
            fault,
            Fault::new(FaultKind::Rejected(Rejection::Fallback), Sent::Maybe)
        );
        assert!(!fault.is_rejection(), "the call was not turned away");
        assert_eq!(Verdict::of(&*error), Verdict::Failure);
        assert!(
            error
                .to_string()
                .starts_with("Fallback: rejected, 10 are running"),
            "{error}"
        );
        assert_eq!(heard.take(), [(reset_fault(), FallbackEnd::Rejected)]);

        // Calls that succeed need no place, and one that is dropped gives its own back.
        assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
        running.pop();
        assert_eq!(service.running(), 9);
        let mut call = task::spawn(service.clone().oneshot(0));
        assert_pending!(call.poll());
    }

    #[tokio::test]
    async fn a_rejected_fallback_tells_of_the_call_whether_it_was_sent_and_what_it_counts_as() {
        let error = || rejected(Rejection::Breaker);
        let service = for_ever().max_concurrent(0).layer(failing(error));
        let error = service.oneshot(0).now_or_never().expect("it runs").unwrap_err();
        assert_eq!(Fault::of(&*error).sent(), Sent::No);
        assert_eq!(Verdict::of(&*error), Verdict::Ignored);
        assert!(error.to_string().contains("`max_concurrent` is 0"), "{error}");

        let busy = || status(503, Verdict::Failure);
        let error = for_ever()
            .max_concurrent(0)
            .layer(failing(busy))
            .oneshot(0)
            .now_or_never()
            .expect("it runs")
            .unwrap_err();
        assert_eq!(Fault::of(&*error).retry_after(), Some(Duration::from_secs(3)));
        let original = error.downcast::<FallbackRejected>().unwrap().into_original();
        assert!(original.is::<StatusError>());
    }

    #[tokio::test]
    async fn all_services_of_a_layer_share_its_limit() {
        let layer = for_ever().max_concurrent(1);
        let (one, other) = (layer.layer(failing(reset)), layer.clone().layer(failing(reset)));
        let mut call = task::spawn(one.oneshot(0));
        assert_pending!(call.poll());
        assert_eq!((layer.running(), other.running()), (1, 1));
        let outcome = other.oneshot(0).now_or_never().expect("a second one runs");
        assert!(outcome.unwrap_err().is::<FallbackRejected>());
    }

    #[tokio::test]
    async fn a_place_is_free_however_the_fallback_ends() {
        let ok = |_: ErrorRef<'_>| ready(Ok(1));
        let bad = |_: ErrorRef<'_>| ready(Err::<u32, _>(reset()));
        let mut call = task::spawn(FallbackLayer::new(ok).layer(failing(reset)).oneshot(0));
        assert_ready_ok!(call.poll());
        let layer = FallbackLayer::new(bad).max_concurrent(1);
        for _ in 0..3 {
            let mut call = task::spawn(layer.layer(failing(reset)).oneshot(0));
            assert!(assert_ready_err!(call.poll()).is::<FallbackFailed>());
            assert_eq!(layer.running(), 0, "although the future is held");
        }
        // In the closure, and in its future.
        let in_closure =
            FallbackLayer::new(|_: ErrorRef<'_>| -> Ready<Result<u32, BoxError>> { panic!("as planned") });
        let in_future = FallbackLayer::new(|_: ErrorRef<'_>| async { panic!("as planned") });
        async fn panics<F, Fut>(layer: FallbackLayer<F>)
        where
            F: Fn(ErrorRef<'_>) -> Fut + Clone,
            Fut: Future<Output = Result<u32, BoxError>>,
        {
            let call = layer.layer(failing(reset)).oneshot(0);
            assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
            assert_eq!(layer.running(), 0);
        }
        panics(in_closure).await;
        panics(in_future).await;
    }

    #[tokio::test]
    async fn a_panic_of_the_call_comes_through() {
        let service = FallbackLayer::new(|_: ErrorRef<'_>| ready(Ok(99)));
        let in_call = service.layer(service_fn(|_: u32| -> Ready<Result<u32, BoxError>> {
            panic!("as planned")
        }));
        assert!(AssertUnwindSafe(in_call.oneshot(0)).catch_unwind().await.is_err());
        let in_poll = service.layer(service_fn(|n: u32| async move {
            if n == 0 {
                panic!("as planned")
            } else {
                Ok::<_, Infallible>(n)
            }
        }));
        assert!(AssertUnwindSafe(in_poll.oneshot(0)).catch_unwind().await.is_err());
    }
}

mod readiness {
    use super::*;

    struct Dead;

    impl Service<u32> for Dead {
        type Response = u32;
        type Error = BoxError;
        type Future = Ready<Result<u32, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("dead".into()))
        }

        fn call(&mut self, _: u32) -> Self::Future {
            panic!("it is dead")
        }
    }

    #[tokio::test]
    async fn an_error_of_readiness_passes_by() {
        let mut service = FallbackLayer::new(|_: ErrorRef<'_>| ready(Ok(99))).layer(Dead);
        let mut ready = task::spawn(std::future::poll_fn(|cx| service.poll_ready(cx)));
        assert_eq!(assert_ready!(ready.poll()).unwrap_err().to_string(), "dead");
    }
}

mod in_a_stack {
    use super::*;

    /// The call has ended, with all it holds, when the fallback begins.
    #[tokio::test]
    async fn the_fallback_begins_when_the_call_is_gone() {
        struct Held(Arc<AtomicUsize>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        impl Future for Held {
            type Output = Result<u32, BoxError>;
            fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
                Poll::Ready(Err(reset()))
            }
        }
        let held = Arc::new(AtomicUsize::new(0));
        let (seen, holds) = (held.clone(), held.clone());
        let service = FallbackLayer::new(move |_: ErrorRef<'_>| {
            let seen = seen.load(SeqCst);
            ready(Ok(u32::try_from(seen).unwrap()))
        })
        .layer(service_fn(move |_: u32| {
            holds.fetch_add(1, SeqCst);
            Held(holds.clone())
        }));
        assert_eq!(service.oneshot(0).await.unwrap(), 0);
        assert_eq!(held.load(SeqCst), 0);
    }

    #[cfg(all(feature = "retry", feature = "trail"))]
    #[tokio::test(start_paused = true)]
    async fn a_retry_above_does_not_retry_a_rejected_fallback_and_the_trail_tells_of_the_attempt() {
        use http::Request;
        use http_body_util::Empty;
        use tower::ServiceBuilder;
        use tower_outbound::{
            ServiceBuilderExt,
            call::{NotRetried, Trail},
            retry::Backoff,
        };

        let stack = ServiceBuilder::new()
            .record_trail()
            .backoff_retry(Backoff::default())
            .layer(FallbackLayer::new(|_: ErrorRef<'_>| pending()).max_concurrent(0))
            .service(service_fn(|_: Request<Empty<Bytes>>| {
                ready(Err::<Response<()>, _>(reset()))
            }));
        let get = Request::get("http://a/").body(Empty::new()).unwrap();
        let error = stack.oneshot(get).now_or_never().expect("it runs").unwrap_err();
        let trail = Trail::of(&*error).unwrap();
        assert_eq!((trail.len(), trail.stops().count()), (1, 1));
        assert_eq!(trail.stops().next().unwrap().reason(), NotRetried::Rejected);
        assert!(FallbackRejected::of(&*error).is_some());
    }

    #[cfg(all(feature = "breaker", feature = "trail"))]
    #[tokio::test(start_paused = true)]
    async fn an_open_circuit_is_answered_and_the_circuit_counts_how_calls_end_without_the_fallback() {
        use tower::ServiceBuilder;
        use tower_outbound::{ServiceBuilderExt, breaker::Breaker, call::CircuitState};

        let breaker = Breaker::builder("orders").volume(2).build().unwrap();
        let stack = ServiceBuilder::new()
            .record_trail()
            .fallback(|_: ErrorRef<'_>| ready(Ok(Response::new("yesterday's"))))
            .circuit_breaker(breaker.clone())
            .service(service_fn(|(): ()| ready(Err::<Response<&str>, _>(reset()))));
        for _ in 0..3 {
            assert_eq!(
                stack.clone().oneshot(()).await.unwrap().into_body(),
                "yesterday's"
            );
        }
        assert_eq!(breaker.state(), CircuitState::Open);
    }
}
