//! What it costs to get ten thousand endpoints, and that they change.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use criterion::{BatchSize, BenchmarkId, Criterion};
use futures_util::stream::{self, Stream};
use http::Request;
use tower::{
    BoxError, Layer, Service, ServiceExt,
    balance::p2c::Balance,
    discover::{Change, ServiceList},
    load::PeakEwma,
};
use tower_outbound::{
    balance::{Ewma, LoadBalanceLayer, RoundRobin, Rule},
    call::{Endpoint, Endpoints},
};

use crate::{
    cpu_time::CpuTime,
    subjects::{Client, clients, endpoints, once, peak, peak_ewma},
};

pub const MANY: usize = 10_000;

pub fn growth(criterion: &mut Criterion<CpuTime>) {
    first_call(criterion);
    changes(criterion);
}

/// From a list that is there to the end of the first call.
fn first_call(criterion: &mut Criterion<CpuTime>) {
    let mut group = criterion.benchmark_group("the first call");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    let list = endpoints(MANY);
    group.bench_function(BenchmarkId::new("Ewma", MANY), |bencher| {
        bencher.iter_batched(
            || list.clone(),
            |list| first(LoadBalanceLayer::new(Endpoints::from(list)).layer(Client)),
            BatchSize::PerIteration,
        );
    });
    group.bench_function(BenchmarkId::new("RoundRobin", MANY), |bencher| {
        bencher.iter_batched(
            || list.clone(),
            |list| {
                let layer = LoadBalanceLayer::new(Endpoints::from(list)).rule(RoundRobin::new());
                first(layer.layer(Client))
            },
            BatchSize::PerIteration,
        );
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    group.bench_function(BenchmarkId::new("Ewma, from a stream", MANY), |bencher| {
        bencher.iter_batched(
            || list.clone().into_iter().enumerate(),
            |list| {
                let changes = list.map(|(n, endpoint)| Ok::<_, BoxError>(Change::Insert(n, endpoint)));
                runtime.block_on(async {
                    let set = Endpoints::from_stream(stream::iter(changes));
                    let mut service = LoadBalanceLayer::new(set).layer(Client);
                    let response = (&mut service).oneshot(Request::new(())).await;
                    (response.unwrap(), service)
                })
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function(BenchmarkId::new("tower PeakEwma", MANY), |bencher| {
        bencher.iter_batched(
            || clients(MANY),
            |clients| first(Balance::<_, Request<()>>::new(peak_ewma(clients))),
            BatchSize::PerIteration,
        );
    });
    group.bench_function(
        BenchmarkId::new("tower PeakEwma, wrapped before", MANY),
        |bencher| {
            bencher.iter_batched(
                || (0..MANY).map(|_| peak(Client)).collect(),
                |services: Vec<_>| first(Balance::new(ServiceList::new::<Request<()>>(services))),
                BatchSize::PerIteration,
            );
        },
    );
    group.finish();
}

/// The service comes out, too, so that its end is not measured.
fn first<S: Service<Request<()>, Error = BoxError>>(mut service: S) -> (S::Response, S) {
    (once(&mut service), service)
}

/// A change and the call after it: one endpoint goes, or comes back.
fn changes(criterion: &mut Criterion<CpuTime>) {
    let mut group = criterion.benchmark_group("a change and a call");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    let mut ours = ours(Ewma::new());
    group.bench_function(BenchmarkId::new("Ewma", MANY), |bencher| bencher.iter(&mut ours));
    let mut ours = self::ours(RoundRobin::new());
    group.bench_function(BenchmarkId::new("RoundRobin", MANY), |bencher| {
        bencher.iter(&mut ours)
    });
    let mut tower = tower();
    group.bench_function(BenchmarkId::new("tower PeakEwma", MANY), |bencher| {
        bencher.iter(&mut tower)
    });
    group.finish();
}

/// Which one goes, all over the set.
fn places() -> impl Iterator<Item = usize> {
    (0..MANY).cycle().map(|n| n * 7_919 % MANY)
}

fn ours(rule: impl Rule + 'static) -> impl FnMut() -> http::Response<()> {
    let list = endpoints(MANY);
    let set = Endpoints::from(list.clone());
    let mut service = LoadBalanceLayer::new(set.clone()).rule(rule).layer(Client);
    let mut places = places();
    let mut gone: Option<Endpoint> = None;
    move || {
        match gone.take() {
            Some(endpoint) => set.insert(endpoint),
            None => {
                let next = list[places.next().unwrap()].clone();
                assert!(set.remove(next.key()));
                gone = Some(next);
            }
        }
        once::<_, Request<()>>(&mut service)
    }
}

type Changed = Change<usize, PeakEwma<Client>>;

/// Changes that somebody has sent.
#[derive(Clone, Default)]
struct Sent(Rc<RefCell<VecDeque<Changed>>>);

impl Stream for Sent {
    type Item = Result<Changed, BoxError>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0.borrow_mut().pop_front() {
            Some(change) => Poll::Ready(Some(Ok(change))),
            None => Poll::Pending,
        }
    }
}

fn tower() -> impl FnMut() -> http::Response<()> {
    let sent = Sent::default();
    let send = {
        let sent = sent.clone();
        move |change| sent.0.borrow_mut().push_back(change)
    };
    (0..MANY).for_each(|n| send(Change::Insert(n, peak(Client))));
    let mut service = Balance::<_, Request<()>>::new(sent);
    let mut places = places();
    let mut gone = None;
    move || {
        match gone.take() {
            Some(place) => send(Change::Insert(place, peak(Client))),
            None => {
                gone = places.next();
                send(Change::Remove(gone.unwrap()));
            }
        }
        once::<_, Request<()>>(&mut service)
    }
}
