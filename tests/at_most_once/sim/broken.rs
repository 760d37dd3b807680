//! Layers that are broken on purpose: what the harness is there to see, it sees.

use std::{
    future::Future,
    io, mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    balance::LoadBalanceLayer,
    call::{BoxError, Endpoints, Fault, FaultError, FaultKind, IDEMPOTENCY_KEY, OutboundRequest, chain},
    timeout::ReadTimeoutLayer,
};

use super::{
    transport::Transport,
    world::{Build, run, sound},
};
use crate::{
    body::CallBody,
    judge::Wrong,
    report::Report,
    schedule::{BodyKind, Plan},
    stacks::{self, AnswerBody, Built, Settings, Stack, StackKind, shell},
};

const CALLS: u64 = 3000;

/// What is seen of calls that are to go through this stack when it is built like this.
fn seen(kind: StackKind, build: Build<'_>) -> Report {
    let plans = (0..CALLS).map(|call| Plan {
        stack: kind,
        churn: None,
        ..Plan::of(crate::seed(), call)
    });
    run(plans.collect(), build).report
}

/// Is all of this seen?
fn check(report: &Report, wrongs: &[Wrong]) {
    for wrong in wrongs {
        assert!(report.count(*wrong) > 0, "{wrong} is not seen:\n{report}");
    }
}

/// The sound stack, with this around it.
fn around<S>(
    kind: StackKind,
    settings: Settings,
    endpoints: Endpoints,
    client: Transport,
    layer: impl FnOnce(&Built) -> S,
) -> Result<Built, BoxError>
where
    S: Service<Request<CallBody>, Response = Response<AnswerBody>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let mut built = sound(kind, settings, endpoints, client)?;
    built.service = BoxCloneSyncService::new(layer(&built));
    Ok(built)
}

/// A balancer and a read limit, and nothing that sends again.
fn once(settings: Settings, endpoints: &Endpoints, client: Transport) -> Stack {
    let stack = ServiceBuilder::new()
        .layer(LoadBalanceLayer::new(endpoints.clone()))
        .layer(ReadTimeoutLayer::new(settings.read).unwrap())
        .service(client);
    shell(stack)
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, BoxError>> + Send>>;

/// Retries as many a project does: three times on any error of io.
#[derive(Clone)]
struct AnyIoError {
    inner: Stack,
    change: fn(&mut Request<CallBody>),
}

impl Service<Request<CallBody>> for AnyIoError {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<CallBody>) -> Answering {
        let this = self.clone();
        Box::pin(async move {
            let kept = request.keep();
            let mut result = this.inner.clone().oneshot(request).await;
            for _ in 0..2 {
                let Err(error) = &result else { break };
                if !chain(&**error).any(|level| level.is::<io::Error>()) {
                    break;
                }
                let Some(mut again) = kept.as_ref().and_then(Request::restore) else {
                    break;
                };
                (this.change)(&mut again);
                result = this.inner.clone().oneshot(again).await;
            }
            result
        })
    }
}

fn retrying_any_io_error(kind: StackKind, change: fn(&mut Request<CallBody>)) -> Report {
    seen(kind, &|kind, settings, endpoints, client| {
        let inner = once(settings, &endpoints, client.clone());
        around(kind, settings, endpoints, client, |_| AnyIoError {
            inner,
            change,
        })
    })
}

#[test]
fn a_retry_of_any_io_error_is_seen_to_send_twice() {
    let report = retrying_any_io_error(StackKind::IdempotentDefault, |_| {});
    check(&report, &[Wrong::Duplicate, Wrong::TooOften, Wrong::GivenUp]);
    assert!(report.duplicates > 100, "{report}");
    assert_eq!(report.count(Wrong::Body), 0, "{report}");
}

/// hyper's error says no more than that the connection was closed before the answer was complete.
#[test]
fn taking_an_incomplete_message_for_one_that_was_not_sent_is_seen_to_send_twice() {
    let report = seen(StackKind::NestUnlimited, &|kind, settings, endpoints, client| {
        let client = client.map_err(|error: BoxError| -> BoxError {
            match Fault::of(&*error).kind() {
                FaultKind::Closed => Box::new(FaultError::unsent(error)),
                _ => error,
            }
        });
        stacks::build(kind, settings, endpoints, client)
    });
    check(&report, &[Wrong::Duplicate, Wrong::TooOften]);
    assert!(report.duplicates > 100, "{report}");
}

#[test]
fn a_call_that_is_given_up_too_soon_is_seen_as_lost() {
    let report = seen(
        StackKind::IdempotentDefault,
        &|kind, settings, endpoints, client| {
            let inner = once(settings, &endpoints, client.clone());
            around(kind, settings, endpoints, client, |_| inner)
        },
    );
    check(&report, &[Wrong::Lost, Wrong::GivenUp]);
    assert_eq!(report.duplicates, 0, "{report}");
}

#[test]
fn an_attempt_that_outlives_its_caller_is_seen() {
    let report = seen(StackKind::NestUnlimited, &|kind, settings, endpoints, client| {
        around(kind, settings, endpoints, client, |built| {
            let inner = built.service.clone();
            tower::service_fn(move |request| {
                // A task goes on when nobody waits for it any more.
                let task = tokio::spawn(inner.clone().oneshot(request));
                async move { task.await? }
            })
        })
    });
    check(&report, &[Wrong::Late, Wrong::Outlives]);
}

#[test]
fn attempts_that_run_side_by_side_are_seen() {
    let report = seen(
        StackKind::IdempotentDefault,
        &|kind, settings, endpoints, client| {
            let inner = once(settings, &endpoints, client.clone());
            around(kind, settings, endpoints, client, |_| {
                tower::service_fn(move |request: Request<CallBody>| {
                    let inner = inner.clone();
                    async move {
                        let kept = request.keep();
                        let first = inner.clone().oneshot(request);
                        let second = async {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                            match kept.as_ref().and_then(Request::restore) {
                                Some(request) => inner.oneshot(request).await,
                                None => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            answer = first => answer,
                            answer = second => answer,
                        }
                    }
                })
            })
        },
    );
    check(&report, &[Wrong::Outlives, Wrong::Duplicate]);
}

#[test]
fn a_token_that_does_not_come_back_is_seen() {
    let report = seen(StackKind::Nested, &|kind, settings, endpoints, client| {
        around(kind, settings, endpoints, client, |built| {
            let budget = built.budget.clone().unwrap();
            built.service.clone().map_request(move |request| {
                mem::forget(budget.withdraw());
                request
            })
        })
    });
    check(&report, &[Wrong::Leak]);
}

#[test]
fn a_slot_that_does_not_come_back_is_seen() {
    let report = seen(StackKind::NestHurried, &|kind, settings, endpoints, client| {
        around(kind, settings, endpoints, client, |built| {
            let bulkhead = built.bulkhead.clone().unwrap();
            built.service.clone().map_request(move |request| {
                mem::forget(bulkhead.enter());
                request
            })
        })
    });
    check(&report, &[Wrong::Leak]);
}

/// A call whose future is never dropped.
struct Kept(Option<Answering>);

impl Future for Kept {
    type Output = Result<Response<AnswerBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().unwrap().as_mut().poll(cx)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        mem::forget(self.0.take());
    }
}

#[test]
fn a_permit_and_a_count_that_do_not_come_back_are_seen() {
    let report = seen(StackKind::NestDefault, &|kind, settings, endpoints, client| {
        around(kind, settings, endpoints, client, |built| {
            let inner = built.service.clone();
            tower::service_fn(move |request| Kept(Some(Box::pin(inner.clone().oneshot(request)))))
        })
    });
    check(&report, &[Wrong::Leak, Wrong::Outlives]);
}

#[test]
fn a_body_that_changes_from_one_attempt_to_the_next_is_seen() {
    let report = retrying_any_io_error(StackKind::AllOperations, |again| {
        *again.body_mut() = CallBody::new(BodyKind::Full, Bytes::from_static(b"something else"));
    });
    check(&report, &[Wrong::Body]);
    assert_eq!(report.count(Wrong::Key), 0, "{report}");
}

#[test]
fn a_key_that_is_not_on_each_attempt_is_seen() {
    let report = retrying_any_io_error(StackKind::AllOperations, |again| {
        again.headers_mut().remove(IDEMPOTENCY_KEY);
    });
    check(&report, &[Wrong::Key]);
    assert_eq!(report.count(Wrong::Body), 0, "{report}");
}

#[test]
fn an_outcome_that_no_attempt_had_is_seen() {
    let report = seen(StackKind::Ribbon, &|kind, settings, endpoints, client| {
        around(kind, settings, endpoints, client, |built| {
            let layer = tower::layer::layer_fn(|inner: Stack| {
                inner.map_response(|mut answer: Response<AnswerBody>| {
                    *answer.status_mut() = StatusCode::NO_CONTENT;
                    answer
                })
            });
            layer.layer(built.service.clone())
        })
    });
    check(&report, &[Wrong::OtherOutcome]);
}
