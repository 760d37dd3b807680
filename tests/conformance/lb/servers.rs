//! Scripted servers behind a real balancer.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use serde_json::Value;
use tower::{Layer, Service};
use tower_outbound::{
    balance::{BalanceHandle, LoadBalance, LoadBalanceLayer, RibbonStats, Rule, WhenEmpty},
    call::{BoxError, CallScope, Endpoint, Endpoints, NoEndpoint},
};

pub(crate) type SharedRule = Arc<dyn Rule + Send + Sync>;
type Balanced = LoadBalance<Client, SharedRule>;
type Call = Pin<Box<<Balanced as Service<Request<()>>>::Future>>;

/// What the next request meets.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    Answers(Duration),
    Fails(Duration, fn() -> BoxError),
    NeverAnswers,
}

/// Sends nothing: it keeps the host that each request was for.
#[derive(Clone)]
pub(crate) struct Client {
    then: Arc<Mutex<Then>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Service<Request<()>> for Client {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<()>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let host = request.uri().host().unwrap().to_owned();
        self.sent.lock().unwrap().push(host);
        let then = *self.then.lock().unwrap();
        async move {
            match then {
                Then::Answers(after) => {
                    tokio::time::sleep(after).await;
                    Ok(Response::new(()))
                }
                Then::Fails(after, error) => {
                    tokio::time::sleep(after).await;
                    Err(error())
                }
                Then::NeverAnswers => std::future::pending().await,
            }
        }
        .boxed()
    }
}

pub(crate) fn refused() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionRefused).into()
}

/// The balancer of a case. Its servers are named by their places.
pub(crate) struct Servers {
    endpoints: Vec<Endpoint>,
    places: HashMap<String, usize>,
    stack: Balanced,
    client: Client,
    open: Vec<Call>,
}

impl Servers {
    pub(crate) fn new(
        zones: &[Option<&str>],
        rule: SharedRule,
        stats: RibbonStats,
        when_empty: WhenEmpty,
    ) -> Self {
        let endpoints: Vec<Endpoint> = zones
            .iter()
            .enumerate()
            .map(|(place, zone)| {
                let endpoint = Endpoint::builder(format!("http://server{place}"));
                match zone {
                    Some(zone) => endpoint.zone(*zone),
                    None => endpoint,
                }
                .build()
                .unwrap()
            })
            .collect();
        let set: Endpoints = endpoints.iter().cloned().collect();
        let client = Client {
            then: Arc::new(Mutex::new(Then::NeverAnswers)),
            sent: Arc::default(),
        };
        let stack = LoadBalanceLayer::new(set)
            .ribbon_stats(stats)
            .rule(rule)
            .when_empty(when_empty)
            .unwrap()
            .layer(client.clone());
        let places = (0..zones.len())
            .map(|place| (format!("server{place}"), place))
            .collect();
        Servers {
            endpoints,
            places,
            stack,
            client,
            open: Vec::new(),
        }
    }

    pub(crate) fn endpoint(&self, place: usize) -> &Endpoint {
        &self.endpoints[place]
    }

    pub(crate) fn handle(&self) -> BalanceHandle {
        self.stack.handle()
    }

    pub(crate) fn is_tripped(&self, place: usize) -> bool {
        self.handle().is_tripped(self.endpoint(place).key())
    }

    /// Begins an attempt at this server. The rule is not asked.
    fn begin_at(&mut self, place: usize, then: Then) -> Call {
        *self.client.then.lock().unwrap() = then;
        let mut scope = CallScope::begin();
        scope.wish_to_stay(Some(self.endpoints[place].clone()));
        let call = scope.enter(|| Box::pin(self.stack.call(Request::new(()))));
        *self.client.then.lock().unwrap() = Then::NeverAnswers;
        call
    }

    pub(crate) async fn attempt_at(&mut self, place: usize, then: Then) {
        let _ = self.begin_at(place, then).await;
    }

    pub(crate) fn keep_open_at(&mut self, place: usize) {
        let call = self.begin_at(place, Then::NeverAnswers);
        self.open.push(call);
    }

    /// Where a call goes. It is given up there, so that nothing is booked.
    pub(crate) async fn choose(&mut self) -> Option<usize> {
        let before = self.client.sent.lock().unwrap().len();
        let mut call = self.stack.call(Request::new(())).boxed();
        let sent = self.client.sent.clone();
        let sent_to = poll_fn(move |cx| match call.poll_unpin(cx) {
            Poll::Ready(Err(error)) => {
                assert!(error.is::<NoEndpoint>(), "{error}");
                Poll::Ready(None)
            }
            Poll::Ready(Ok(_)) => panic!("nobody answers"),
            Poll::Pending => match sent.lock().unwrap().get(before) {
                Some(host) => Poll::Ready(Some(host.clone())),
                None => Poll::Pending,
            },
        })
        .await;
        sent_to.map(|host| self.places[&host])
    }
}

/// The settings of a case, and what of them is not understood.
pub(crate) fn stats_of(config: &Value) -> Result<RibbonStats, Vec<String>> {
    let mut stats = RibbonStats::builder();
    let mut unknown = Vec::new();
    let none = serde_json::Map::new();
    for (key, value) in config.as_object().unwrap_or(&none) {
        let number = || value.as_u64().unwrap();
        let last = key.rsplit('.').next().unwrap();
        stats = match last {
            "NFLoadBalancerRuleClassName" => stats,
            "ActiveConnectionsLimit" => stats.active_limit(number()),
            "filterCircuitTripped" => stats.filter_tripped(value.as_bool().unwrap()),
            "connectionFailureCountThreshold" => stats.connection_failures(number().try_into().unwrap()),
            "circuitTripTimeoutFactorSeconds" => stats.trip_factor(Duration::from_secs(number())),
            "circuitTripMaxTimeoutSeconds" => stats.trip_max(Duration::from_secs(number())),
            _ => {
                unknown.push(format!("no setting is named {key}"));
                stats
            }
        };
    }
    if unknown.is_empty() {
        Ok(stats.build().unwrap())
    } else {
        Err(unknown)
    }
}
