//! What can be cloned, sent and shared, as the compiler sees it. RDY-04.

use std::{error::Error, fmt::Debug};

use http::{Request, Uri};
use tower::Service;
use tower_outbound::{
    Nest,
    balance::{BalanceHandle, BalanceServices, LoadBalance, LoadBalanceLayer},
    breaker::{
        Breaker, Breakers, CircuitBreaker, CircuitBreakerLayer, EndpointBreaker, EndpointBreakerLayer,
        EndpointBreakers, KeyedBreaker, KeyedBreakerLayer, Permit, Transitions,
    },
    bulkhead::{Bulkhead, BulkheadLayer, BulkheadService, Slot},
    call::{
        AnswerBodyFailed, AnswerTooLarge, BoxError, BudgetSlot, BulkheadFull, CallFailed, CircuitOpen,
        ConfigError, ConnectTimedOut, DeadlineHeader, Endpoint, Endpoints, ErrorRef, ExecutionTimedOut,
        FallbackFailed, FallbackRejected, FaultError, GrpcError, LateVerdict, NoEndpoint, NoTimeLeft,
        NotReady, OpenVerdict, Overrides, PerRequest, ReadTimedOut, RetryBudget, Services, StatusError,
        TlsName, UploadBody,
    },
    classify::{
        GrpcBody, GrpcErrorClassifier, GrpcErrorClassifierLayer, GrpcPolicy, StatusErrorClassifier,
        StatusErrorClassifierLayer, StatusPolicy,
    },
    collect::{CollectBody, CollectBodyLayer, CollectedBody},
    fallback::{Fallback, FallbackLayer},
    nest::{
        NestBuilder, NestHandle, Plan,
        client::{NotSent, NotSentLayer},
        spring::{
            Feign, FeignLayer, FeignUrl, FeignUrlLayer, Hystrix, HystrixLayer, Ribbon, RibbonLayer,
            SpringConfig, SpringError, SpringHandle, SpringNest, SpringNestBuilder,
        },
    },
    observe::{RecordTrail, RecordTrailLayer},
    retry::{Backoff, BackoffRetry, BackoffRetryLayer, Idempotent, IdempotentRetry, IdempotentRetryLayer},
    timeout::{
        ConnectTimeout, ConnectTimeoutLayer, ExecutionTimeout, ExecutionTimeoutLayer, ReadBody, ReadTimeout,
        ReadTimeoutLayer, ReceiveDeadline, ReceiveDeadlineLayer, SendDeadline, SendDeadlineLayer,
        WriteTimedOut,
    },
};

use super::{
    probe::{Probe, ScriptedBody},
    subjects::{Get, Upload},
};

/// What a server keeps in its state and hands to each of its tasks.
fn shared<T: Clone + Send + Sync + Debug + 'static>() {}

/// A service, over one that is all this too, and the future of its calls.
fn service<S, Req>()
where
    S: Service<Req, Error: Into<tower_outbound::call::BoxError>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
}

fn sent<T: Send + 'static>() {}

fn error<T: Error + Send + Sync + 'static>() {}

/// A way to read a key that has a name.
type Host = fn(&Get) -> Option<std::borrow::Cow<'_, str>>;

/// A fallback that has a name.
type Answer = fn(ErrorRef<'_>) -> std::future::Ready<Result<http::Response<ScriptedBody>, BoxError>>;

type SpringAnswer =
    fn(
        ErrorRef<'_>,
    ) -> std::future::Ready<Result<http::Response<CollectedBody<ReadBody<ScriptedBody>>>, BoxError>>;

#[test]
fn services_and_their_futures_go_to_other_threads_if_those_below_do() {
    service::<ConnectTimeout<Probe>, Uri>();
    service::<ReadTimeout<Probe>, Get>();
    service::<ExecutionTimeout<Probe>, Get>();
    service::<ExecutionTimeout<Probe, PerRequest>, Get>();
    service::<SendDeadline<Probe>, Get>();
    service::<ReceiveDeadline<Probe>, Get>();
    service::<StatusErrorClassifier<Probe>, Get>();
    service::<GrpcErrorClassifier<Probe>, Get>();
    service::<BackoffRetry<Probe>, Get>();
    service::<IdempotentRetry<Probe>, Get>();
    service::<LoadBalance<Probe>, Get>();
    service::<BalanceServices<Probe>, Get>();
    service::<CircuitBreaker<Probe>, Get>();
    service::<KeyedBreaker<Probe, str, Host>, Get>();
    service::<EndpointBreaker<Probe>, Get>();
    service::<BulkheadService<Probe>, Get>();
    service::<Fallback<Probe, Answer>, Get>();
    service::<CollectBody<Probe>, Get>();
    service::<RecordTrail<Probe>, Get>();
    service::<NotSent<Probe>, Get>();
    service::<Nest<Probe>, Get>();
    service::<Hystrix<Probe>, Get>();
    service::<Feign<Probe>, Get>();
    service::<FeignUrl<Probe>, Get>();
    service::<Ribbon<Probe>, Get>();
    service::<SpringNest<Probe>, Get>();
    service::<SpringNest<Probe, SpringAnswer>, Get>();
}

#[test]
fn a_body_that_is_sent_but_not_shared_is_enough() {
    type Unshared = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::io::Error>;
    type Once = Request<tower_outbound::call::OnceBody<Unshared>>;
    service::<Nest<Probe>, Once>();
    service::<Nest<Probe>, Request<tower_outbound::call::ReplayBody<Unshared>>>();
    sent::<tower_outbound::call::KeptReplay<Unshared>>();
    sent::<UploadBody<Unshared>>();
    sent::<ReadBody<Unshared>>();
    sent::<CollectedBody<Unshared>>();
    sent::<GrpcBody<Unshared>>();
}

#[test]
fn layers_handles_and_settings_are_kept_where_all_tasks_see_them() {
    shared::<ConnectTimeoutLayer>();
    shared::<ReadTimeoutLayer>();
    shared::<ExecutionTimeoutLayer>();
    shared::<ExecutionTimeoutLayer<PerRequest>>();
    shared::<SendDeadlineLayer>();
    shared::<ReceiveDeadlineLayer>();
    shared::<DeadlineHeader>();
    shared::<Overrides>();
    shared::<StatusErrorClassifierLayer>();
    shared::<GrpcErrorClassifierLayer>();
    shared::<BackoffRetryLayer>();
    shared::<IdempotentRetryLayer>();
    shared::<LoadBalanceLayer>();
    shared::<CircuitBreakerLayer>();
    shared::<KeyedBreakerLayer<str, Host>>();
    shared::<EndpointBreakerLayer>();
    shared::<Breakers<str>>();
    shared::<EndpointBreakers>();
    shared::<BulkheadLayer>();
    shared::<Bulkhead>();
    shared::<FallbackLayer<Answer>>();
    shared::<CollectBodyLayer>();
    shared::<RecordTrailLayer>();
    shared::<NotSentLayer>();
    shared::<TlsName>();
    shared::<BalanceHandle>();
    shared::<Breaker>();
    shared::<Endpoint>();
    shared::<Endpoints>();
    shared::<BalanceServices<Probe>>();
    shared::<Services<Probe>>();
    shared::<RetryBudget>();
    shared::<NestHandle>();
    shared::<Plan>();
    shared::<StatusPolicy>();
    shared::<GrpcPolicy>();
    shared::<LateVerdict>();
    shared::<Backoff>();
    shared::<Idempotent>();
    shared::<HystrixLayer>();
    shared::<FeignLayer>();
    shared::<FeignUrlLayer>();
    shared::<RibbonLayer>();
    shared::<SpringConfig>();
    shared::<SpringHandle>();
    sent::<SpringNestBuilder>();
    sent::<NestBuilder>();
    sent::<Permit>();
    sent::<Transitions>();
    sent::<Slot>();
    sent::<BudgetSlot>();
    sent::<ReadBody<ScriptedBody>>();
    sent::<CollectedBody<ScriptedBody>>();
    sent::<GrpcBody<ScriptedBody>>();
    sent::<OpenVerdict>();
    sent::<Upload>();
}

#[test]
fn errors_can_be_boxed_as_tower_boxes_them() {
    error::<AnswerBodyFailed>();
    error::<AnswerTooLarge>();
    error::<BulkheadFull>();
    error::<CallFailed>();
    error::<CircuitOpen>();
    error::<ConfigError>();
    error::<ConnectTimedOut>();
    error::<ExecutionTimedOut>();
    error::<FallbackFailed>();
    error::<FallbackRejected>();
    error::<FaultError>();
    error::<GrpcError>();
    error::<NoEndpoint>();
    error::<NoTimeLeft>();
    error::<NotReady>();
    error::<ReadTimedOut>();
    error::<SpringError>();
    error::<StatusError>();
    error::<WriteTimedOut>();
}
