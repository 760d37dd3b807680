//! From the settings of a case to the stack that is tested: Spring's own keys, and setters for what are beans.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    ServiceBuilderExt,
    balance::BalanceHandle,
    breaker::Breaker,
    call::Endpoints,
    classify::StatusPolicy,
    nest::client::Client,
    observe::RecordTrailLayer,
    retry::{Backoff, Idempotent},
};

use super::{
    recorder::{Log, Recorder},
    settings::{Decoder, ReturnType, Settings},
};
use crate::case::Case;

pub(super) type Body = Full<Bytes>;
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;
pub(super) type Stack = BoxCloneSyncService<Request<Body>, Response<AnswerBody>, BoxError>;

/// A stack, and what looks into it.
pub(super) struct Built {
    pub(super) stack: Stack,
    pub(super) balance: Option<BalanceHandle>,
    pub(super) breaker: Option<Breaker>,
    /// The causes that the fallback was handed.
    pub(super) causes: Arc<Mutex<Vec<String>>>,
}

/// On an answer that a fallback gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfFallback;

pub(super) fn build(case: &Case, addresses: &[SocketAddr], log: Log) -> Result<Built, BoxError> {
    let settings = Settings::of(case);
    let client = Client::builder()
        .connect_limit(Duration::from_millis(settings.connect))
        .most_idle_per_host(0)
        .build_http()?;
    let client = Recorder::new(client, addresses, log);
    let endpoints = Endpoints::from_list(addresses.iter().map(|address| format!("http://{address}")))?;
    let causes = Arc::default();
    let built = |stack, balance| Built {
        stack,
        balance,
        breaker: None,
        causes,
    };
    let read = Duration::from_millis(settings.read);
    match case.level() {
        "feign" => {
            let retry = match settings.retryer {
                None => Backoff::never(),
                Some(retryer) => Backoff::feign(
                    Duration::from_millis(retryer.period.max(1)),
                    Duration::from_millis(retryer.max_period.max(1)),
                    u32::try_from(retryer.max_attempts.max(1))?,
                )?,
            };
            let statuses = match settings.decoder {
                Decoder::BadRequestOn4xx => StatusPolicy::client_errors_ignored(),
                _ => StatusPolicy::feign(),
            };
            let statuses = if settings.decode404 && settings.return_type == ReturnType::Text {
                statuses.decode_404()
            } else {
                statuses
            };
            let service = ServiceBuilder::new()
                .layer(RecordTrailLayer::new().every_call(true))
                .backoff_retry(retry)
                .status_errors(statuses)
                .read_timeout(read)?
                .service(client);
            Ok(built(boxed(service), None))
        }
        "ribbon" => {
            let policy = Idempotent::ribbon();
            let balance = tower_outbound::balance::LoadBalanceLayer::new(endpoints);
            let handle = balance.handle();
            let service = ServiceBuilder::new()
                .layer(RecordTrailLayer::new().every_call(true))
                .idempotent_retry(
                    policy
                        .same_endpoint(settings.same as u32)
                        .next_endpoint(settings.next as u32),
                )
                .layer(balance)
                .read_timeout(read)?
                .service(client);
            Ok(built(boxed(service), Some(handle)))
        }
        other => Err(format!("level {other}").into()),
    }
}

fn boxed<S, B>(service: S) -> Stack
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(
        service.map_response(|response| response.map(|body| body.map_err(Into::into).boxed_unsync())),
    )
}

pub(super) fn text(text: &'static str) -> AnswerBody {
    Full::from(text)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// Did the call end with its answer's body?
pub(super) fn failed_in_body(_error: &BoxError) -> bool {
    false
}

pub(super) fn fallback_failed(_error: &BoxError) -> bool {
    false
}

pub(super) fn stats(balance: &BalanceHandle) -> Vec<super::told::Stats> {
    balance
        .endpoints()
        .iter()
        .enumerate()
        .map(|(server, endpoint)| super::told::Stats {
            server,
            failures: endpoint.figures().failures(),
            active: endpoint.figures().in_flight(),
            total: endpoint.figures().attempts(),
            tripped: false,
        })
        .collect()
}

pub(super) fn breaker(breaker: &Breaker, on: bool) -> super::told::Breaker {
    super::told::Breaker {
        circuit: on.then(|| (true, format!("{:?}", breaker.state()))),
        total: 0,
        errors: 0,
        percent: 0,
    }
}
