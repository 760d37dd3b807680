//! The balancers, as calls that are ready to be made.

use std::{
    fmt,
    future::{Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use tower::{
    BoxError, Layer, Service, ServiceExt,
    balance::p2c::Balance,
    buffer::Buffer,
    discover::{Discover, ServiceList},
    load::{CompleteOnResponse, Load, PeakEwma, PeakEwmaDiscover, PendingRequestsDiscover},
};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, BestAvailable, ConsistentHash, Ewma, LeastLoaded, LoadBalance,
        LoadBalanceLayer, Random, RibbonRoundRobin, RoundRobin, Rule, WeightedResponseTime,
        WeightedRoundRobin, ZoneAvoidance, ZoneAware,
    },
    call::{Addressed, Affinity, Endpoint, Endpoints, HostHeader},
};

use crate::at_once;

/// Answers at once.
#[derive(Debug, Clone, Copy)]
pub struct Client;

impl Service<Request<()>> for Client {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = Ready<Result<Response<()>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        black_box(request.uri());
        ready(Ok(Response::new(())))
    }
}

/// A request that costs next to nothing, as making an `http::Request` and writing an address into it does not. In place of
/// an address it gets a number of the endpoint; with tower's there is nothing to write.
#[derive(Debug, Default)]
pub struct Small {
    to: u64,
}

impl Addressed for Small {
    fn send_to(&mut self, endpoint: &Endpoint, _: HostHeader) {
        self.to = endpoint.weight().into();
    }
}

impl Service<Small> for Client {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Small) -> Self::Future {
        black_box(&request.to);
        ready(Ok(()))
    }
}

/// One call.
pub type Call = Box<dyn FnMut()>;

/// Over so many endpoints.
pub type Build = fn(usize) -> Call;

pub const SUBJECTS: &[(&str, Build)] = &[
    ("no balancer", |_| calls::<Request<()>>(Client)),
    ("RoundRobin", |n| ours(n, RoundRobin::new())),
    ("Random", |n| ours(n, Random::new())),
    ("WeightedRoundRobin", |n| ours(n, WeightedRoundRobin::new())),
    ("LeastLoaded", |n| ours(n, LeastLoaded::new())),
    ("Ewma", |n| ours(n, Ewma::new())),
    ("Ewma of 3", |n| {
        ours(n, Ewma::builder().choices(3).build().unwrap())
    }),
    ("Ewma, whole set", |n| {
        ours(n, Ewma::builder().whole_set().build().unwrap())
    }),
    ("ConsistentHash", |n| {
        ours(
            n,
            ConsistentHash::by(|head| Some(Affinity::of(head.uri().path()))),
        )
    }),
    ("RibbonRoundRobin", |n| ours(n, RibbonRoundRobin::new())),
    ("AvailabilityFiltering", |n| ours(n, AvailabilityFiltering::new())),
    ("BestAvailable", |n| ours(n, BestAvailable::new())),
    ("WeightedResponseTime", |n| ours(n, WeightedResponseTime::new())),
    ("ZoneAvoidance", |n| ours(n, ZoneAvoidance::new())),
    ("ZoneAvoidance, zone aware", |n| {
        ours(n, ZoneAware::new(ZoneAvoidance::new))
    }),
    ("tower PeakEwma", |n| {
        theirs::<Request<()>, _>(peak_ewma(clients(n)))
    }),
    ("tower PendingRequests", |n| {
        theirs::<Request<()>, _>(pending(clients(n)))
    }),
    ("no balancer, small requests", |_| calls::<Small>(Client)),
    ("RoundRobin, small requests", |n| small(n, RoundRobin::new())),
    ("Ewma, small requests", |n| small(n, Ewma::new())),
    ("tower PeakEwma, small requests", |n| {
        theirs::<Small, _>(peak_ewma(clients(n)))
    }),
];

pub fn endpoint(n: usize) -> Endpoint {
    let address = format!("http://10.0.{}.{}:8080", n / 250, n % 250);
    Endpoint::builder(address)
        .zone(["a", "b", "c"][n % 3])
        .build()
        .unwrap()
}

pub fn endpoints(n: usize) -> Vec<Endpoint> {
    (0..n).map(endpoint).collect()
}

pub fn clients(n: usize) -> Vec<Client> {
    vec![Client; n]
}

/// As tower's documentation has it.
pub fn peak_ewma(clients: Vec<Client>) -> PeakEwmaDiscover<ServiceList<Vec<Client>>> {
    let list = ServiceList::new::<Request<()>>(clients);
    PeakEwmaDiscover::new::<Request<()>>(list, RTT, DECAY, CompleteOnResponse::default())
}

pub fn peak(client: Client) -> PeakEwma<Client> {
    PeakEwma::new(
        client,
        RTT,
        DECAY.as_nanos() as f64,
        CompleteOnResponse::default(),
    )
}

const RTT: Duration = Duration::from_millis(30);
const DECAY: Duration = Duration::from_secs(10);

fn pending(clients: Vec<Client>) -> PendingRequestsDiscover<ServiceList<Vec<Client>>> {
    let list = ServiceList::new::<Request<()>>(clients);
    PendingRequestsDiscover::new::<Request<()>>(list, CompleteOnResponse::default())
}

fn balance<R: Rule>(n: usize, rule: R) -> LoadBalance<Client, R> {
    LoadBalanceLayer::new(Endpoints::from(endpoints(n)))
        .rule(rule)
        .layer(Client)
}

fn ours(n: usize, rule: impl Rule + 'static) -> Call {
    calls::<Request<()>>(balance(n, rule))
}

fn small(n: usize, rule: impl Rule + 'static) -> Call {
    calls::<Small>(balance(n, rule))
}

fn theirs<Req, D>(discover: D) -> Call
where
    Req: Default + 'static,
    D: Discover<Key = usize, Error: Into<BoxError>> + Unpin + 'static,
    D::Service: Service<Req, Error = BoxError> + Load<Metric: fmt::Debug>,
{
    calls::<Req>(Balance::new(discover))
}

fn calls<Req: Default>(mut service: impl Service<Req, Error = BoxError> + 'static) -> Call {
    Box::new(move || {
        black_box(once(&mut service));
    })
}

/// Readiness, the call, and its end, all of which are there at once. The future stays where it is made: what moving it costs is
/// not the balancer's.
#[inline]
pub fn once<S: Service<Req, Error = BoxError>, Req: Default>(service: &mut S) -> S::Response {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
    let future = pin!(service.call(black_box(Req::default())));
    match future.poll(&mut cx) {
        Poll::Ready(response) => response.unwrap(),
        Poll::Pending => panic!("it is answered at once"),
    }
}

async fn so_many(mut service: impl Service<Request<()>, Error = BoxError>, calls: u64) {
    for _ in 0..calls {
        let ready = service.ready().await.unwrap();
        black_box(ready.call(black_box(Request::new(()))).await.unwrap());
    }
}

/// How long it takes until each of the tasks has made so many calls.
pub async fn buffered(n: usize, tasks: usize, calls: u64) -> Duration {
    let (buffer, worker) = Buffer::pair(Balance::new(peak_ewma(clients(n))), 1_024);
    tokio::spawn(worker);
    so_many(buffer.clone(), 1).await;
    at_once((0..tasks).map(|_| so_many(buffer.clone(), calls))).await
}

/// The same with this crate's, which needs no buffer.
pub async fn shared(n: usize, tasks: usize, calls: u64) -> Duration {
    let service = balance(n, Ewma::new());
    so_many(service.clone(), 1).await;
    at_once((0..tasks).map(|_| so_many(service.clone(), calls))).await
}
