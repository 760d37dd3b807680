//! One contract over every layer, over pairs of them and over the whole nest: readiness, cancellation, panics,
//! clones, wakers and errors. What is checked stands in `checks.rs`, what it is checked with in `probe.rs`, and what is
//! built in `subjects.rs`; a new layer is a line there and a line here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::disallowed_types,
    reason = "locks of tests are not on the path of a call"
)]

#[macro_use]
mod checks;
mod config;
mod probe;
mod scenarios;
mod subjects;
mod types;

/// Runs each line through all checks, and keeps the list of the layers that have a line.
macro_rules! contract {
    ($($module:ident: $subject:ident [$($layer:ident)*];)*) => {
        $(
            use subjects::$subject;
            contract_tests!($subject, $module);
        )*

        /// The layers that have a line of their own.
        const LISTED: &[&[&str]] = &[$(&[$(stringify!($layer)),*]),*];
    };
}

contract! {
    connect_timeout: OfConnectTimeout [ConnectTimeoutLayer];
    read_timeout: OfReadTimeout [ReadTimeoutLayer];
    execution_timeout: OfExecutionTimeout [ExecutionTimeoutLayer];
    send_deadline: OfSendDeadline [SendDeadlineLayer];
    receive_deadline: OfReceiveDeadline [ReceiveDeadlineLayer];
    receive_deadline_over_send_deadline: ReceiveOverSend [ReceiveDeadlineLayer SendDeadlineLayer];
    status_error_classifier: OfStatusErrorClassifier [StatusErrorClassifierLayer];
    grpc_error_classifier: OfGrpcErrorClassifier [GrpcErrorClassifierLayer];
    backoff_retry: OfBackoffRetry [BackoffRetryLayer];
    idempotent_retry: OfIdempotentRetry [IdempotentRetryLayer];
    tower_retry: OfTowerRetry [TowerRetryLayer];
    load_balance: OfLoadBalance [LoadBalanceLayer];
    balance_services: OfBalanceServices [];
    idempotent_over_balance_services: IdempotentOverBalanceServices [];
    circuit_breaker: OfCircuitBreaker [CircuitBreakerLayer];
    keyed_breaker: OfKeyedBreaker [KeyedBreakerLayer];
    endpoint_breaker: OfEndpointBreaker [EndpointBreakerLayer];
    bulkhead: OfBulkhead [BulkheadLayer];
    fallback: OfFallback [FallbackLayer];
    collect_body: OfCollectBody [CollectBodyLayer];
    record_trail: OfRecordTrail [RecordTrailLayer];
    not_sent: OfNotSent [NotSentLayer];
    fallback_over_breaker: FallbackOverBreaker [FallbackLayer CircuitBreakerLayer];
    breaker_over_execution_timeout: BreakerOverExecution [CircuitBreakerLayer ExecutionTimeoutLayer];
    bulkhead_with_a_line: BulkheadWithALine [];
    execution_timeout_over_bulkhead: ExecutionOverBulkhead [ExecutionTimeoutLayer BulkheadLayer];
    execution_timeout_over_backoff: ExecutionOverBackoff [ExecutionTimeoutLayer BackoffRetryLayer];
    bulkhead_over_collect_body: BulkheadOverCollect [BulkheadLayer CollectBodyLayer];
    collect_body_over_backoff: CollectOverBackoff [CollectBodyLayer BackoffRetryLayer];
    backoff_over_classifier: BackoffOverClassifier [BackoffRetryLayer StatusErrorClassifierLayer];
    backoff_that_reads_answers: BackoffThatReadsAnswers [];
    backoff_over_idempotent: BackoffOverIdempotent [BackoffRetryLayer IdempotentRetryLayer];
    idempotent_over_balance: IdempotentOverBalance [IdempotentRetryLayer LoadBalanceLayer];
    balance_over_read_timeout: BalanceOverRead [LoadBalanceLayer ReadTimeoutLayer];
    balance_over_grpc: BalanceOverGrpc [LoadBalanceLayer GrpcErrorClassifierLayer];
    balance_over_breaker: BalanceOverBreaker [LoadBalanceLayer CircuitBreakerLayer];
    balance_over_endpoint_breaker: BalanceOverEndpointBreaker [LoadBalanceLayer EndpointBreakerLayer];
    nest: TheNest [];
    hystrix_shell: HystrixShell [HystrixLayer];
    feign_shell: FeignShell [FeignLayer];
    feign_shell_with_url: FeignShellWithUrl [FeignUrlLayer];
    ribbon_shell: RibbonShell [RibbonLayer];
    spring_nest: TheSpringNest [];
}

/// The layers that `src` has: what `Layer` is implemented for, and for a layer that is used by the names of its
/// policies those names.
fn layers_in_source() -> Vec<String> {
    fn files(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    fn name(text: &str) -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    }
    let mut texts = Vec::new();
    files(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut texts,
    );
    // A head may be broken into lines, and the trait may be written with its path.
    let mut layers: Vec<_> = texts
        .iter()
        .flat_map(|text| text.split("\nimpl").skip(1))
        .filter_map(|implementation| implementation.split_once('{'))
        .map(|(head, _)| head.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter_map(|head| {
            let (head, layer) = head.split_once("> for ")?;
            let (before, _) = head.rsplit_once("Layer<")?;
            before.ends_with([' ', ':']).then(|| name(layer))
        })
        .collect();
    let aliases: Vec<_> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("pub type ")?.rsplit_once(" = "))
        .map(|(alias, of)| (name(alias), name(of)))
        .filter(|(_, of)| layers.contains(of))
        .collect();
    layers.retain(|layer| !aliases.iter().any(|(_, of)| of == layer));
    layers.extend(aliases.into_iter().map(|(alias, _)| alias));
    layers.sort();
    layers
}

#[test]
fn every_layer_has_a_line() {
    let mut listed: Vec<_> = LISTED
        .iter()
        .filter(|layers| layers.len() == 1)
        .map(|layers| layers[0].to_owned())
        .collect();
    listed.sort();
    assert_eq!(layers_in_source(), listed);
}
