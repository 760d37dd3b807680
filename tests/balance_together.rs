//! What the rules, the vetoes and the detector of outliers promise where they meet, told the time and drawn from seeds.
#![allow(
    clippy::unwrap_used,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::{Request, Response};
use proptest::prelude::*;
use tokio::time::{Duration, Instant, advance};
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    balance::{
        Candidates, ConsistentHash, Ewma, LeastLoaded, LoadBalanceLayer, Only, OutlierEjection, Picked,
        Picker, RoundRobin, Rule, WeightedRandom, WeightedRoundRobin, ZoneFirst,
    },
    call::{
        Affinity, Attempt, AttemptOutcome, BoxError, CallScope, Classify, Endpoint, Endpoints, ErrorRef,
        LateVerdict, OpenVerdict, Verdict, Veto,
    },
};

/// A key that begins with its zone, and a weight.
fn endpoint(key: &str, weight: u32) -> Endpoint {
    Endpoint::builder(format!("http://{key}"))
        .key(key)
        .zone(&key[..2])
        .weight(weight)
        .build()
        .unwrap()
}

/// In two zones by turns: `eu0`, `us1`, `eu2` and so on.
fn key(n: usize) -> String {
    format!("{}{n}", ["eu", "us"][n % 2])
}

fn set(n: usize) -> Endpoints {
    (0..n).map(|n| endpoint(&key(n), 1)).collect()
}

fn one(endpoints: &Endpoints, key: &str) -> Endpoint {
    let snapshot = endpoints.snapshot();
    let mut all = snapshot.endpoints().iter();
    all.find(|one| one.key() == key).unwrap().clone()
}

struct Clocked<R> {
    picker: Picker<R>,
    start: Instant,
}

impl<R: Rule> Clocked<R> {
    fn new(endpoints: &Endpoints, rule: R) -> Self {
        Clocked {
            picker: Picker::new(endpoints.clone(), rule),
            start: Instant::now(),
        }
    }

    fn at(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn pick(&self, after: Duration) -> Picked {
        self.picker.pick(&Request::new(()), self.at(after)).unwrap()
    }

    /// Where attempts went that took this long, one after the other.
    fn went(&self, from: Duration, took: Duration, attempts: u32) -> BTreeMap<String, u32> {
        let mut went = BTreeMap::new();
        for n in 0..attempts {
            let picked = self.pick(from + took * n);
            *went.entry(picked.endpoint().key().to_owned()).or_default() += 1;
            picked.end(Verdict::Success, self.at(from + took * (n + 1)));
        }
        went
    }
}

const DAY: Duration = Duration::from_secs(24 * 3_600);
const MS: Duration = Duration::from_millis(1);

// ---- parts of parts

/// The one at this index, whatever is shown.
struct At(Arc<AtomicUsize>);

impl Rule for At {
    fn pick(&self, _: &Candidates<'_>) -> Option<usize> {
        Some(self.0.load(Relaxed))
    }
}

#[test]
fn a_part_of_a_part_of_a_large_set_holds_nobody_else_when_one_of_it_has_gone() {
    let set = set(600);
    let index = Arc::new(AtomicUsize::new(0));
    let is_of_many = |one: &Endpoint| one.key()[2..].parse::<usize>().is_ok_and(|n| n < 500);
    let rule = Only::new(is_of_many, ZoneFirst::new("eu", At(index.clone())));
    let clocked = Clocked::new(&set, rule);
    drop(clocked.pick(Duration::ZERO));
    set.remove("eu4");
    one(&set, "us5").eligibility().forbid(Veto::User);
    for member in 0..250 {
        index.store(member, Relaxed);
        let picked = clocked.pick(MS);
        let expected = if member == 2 { 6 } else { 2 * member };
        assert_eq!(picked.endpoint().key(), format!("eu{expected}"));
    }
}

// ---- vetoes

#[test]
fn what_is_taken_out_of_service_comes_last_in_parts_as_well() {
    let is_us = |one: &Endpoint| one.zone() == Some("us");
    let rules: [Arc<dyn Rule>; 5] = [
        Arc::new(RoundRobin::new()),
        Arc::new(ZoneFirst::new("eu", RoundRobin::new())),
        Arc::new(ZoneFirst::new("none", RoundRobin::new())),
        Arc::new(Only::new(is_us, RoundRobin::new()).or_all()),
        Arc::new(Only::live(|one| one.in_flight() < 9, RoundRobin::new())),
    ];
    for (which, rule) in rules.into_iter().enumerate() {
        let set = set(6);
        for n in 0..6 {
            let veto = if n == 1 || n == 4 {
                Veto::Breaker
            } else {
                Veto::Drain
            };
            one(&set, &key(n)).eligibility().forbid(veto);
        }
        let clocked = Clocked::new(&set, rule);
        let went = clocked.went(Duration::ZERO, MS, 60);
        assert!(
            went.keys().all(|key| key == "us1" || key == "eu4"),
            "{which}: {went:?}"
        );
        for n in 0..6 {
            one(&set, &key(n)).eligibility().forbid(Veto::Drain);
        }
        assert!(
            !clocked.went(Duration::from_secs(1), MS, 60).is_empty(),
            "{which}"
        );
    }
}

// ---- long times

#[test]
fn what_was_held_against_an_endpoint_that_was_away_for_a_month_is_forgiven() {
    for days in [1, 20, 27, 30, 40, 50, 60, 80, 100] {
        let set = set(2);
        let clocked = Clocked::new(&set, Ewma::seeded(1));
        clocked.went(Duration::ZERO, 20 * MS, 20);
        let ill = one(&set, "us1");
        one(&set, "eu0").eligibility().forbid(Veto::User);
        for n in 0..20 {
            clocked.pick(MS * n).end(Verdict::Failure, clocked.at(MS * n));
        }
        one(&set, "eu0").eligibility().allow(Veto::User);
        ill.eligibility().forbid(Veto::User);
        let later = DAY * days;
        clocked.went(later, 20 * MS, 100);
        ill.eligibility().allow(Veto::User);
        let went = clocked.went(later + Duration::from_secs(2), 20 * MS, 200);
        assert!(went.get("us1") > Some(&50), "{days} days: {went:?}");
    }
}

// ---- answers that go on

type Rsp = Response<()>;

#[derive(Clone)]
struct Late;

impl Classify<Rsp> for Late {
    fn classify(&self, _: Result<&Rsp, ErrorRef<'_>>) -> Verdict {
        Verdict::Success
    }

    fn late(&self, answer: &Rsp) -> Option<LateVerdict> {
        LateVerdict::on(answer.extensions()).cloned()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_answers_go_on_for_hours_is_not_taken_for_silent() {
    let layer = LoadBalanceLayer::new(set(3)).rule(Ewma::seeded(1)).classify(Late);
    let open = Arc::new(Mutex::new(Vec::<OpenVerdict>::new()));
    let opened = open.clone();
    let stack = layer.layer(service_fn(move |request: Request<bool>| {
        let mut response = Response::new(());
        if *request.body() {
            let (open, late) = LateVerdict::open();
            response.extensions_mut().insert(late);
            opened.lock().unwrap().push(open);
        }
        async move {
            tokio::time::sleep(10 * MS).await;
            Ok::<_, BoxError>(response)
        }
    }));
    let call = |is_stream| {
        let request = Request::get("http://orders/").body(is_stream).unwrap();
        stack.clone().oneshot(request)
    };
    for _ in 0..30 {
        call(true).await.unwrap();
        advance(Duration::from_secs(120)).await;
    }
    let total = layer.handle().total();
    assert_eq!(total.in_flight(), 30, "as long as there is no verdict");
    let successes = || -> Vec<u64> {
        let all = layer.handle().endpoints();
        all.iter().map(|one| one.figures().successes()).collect()
    };
    for _ in 0..300 {
        call(false).await.unwrap();
    }
    let went = successes();
    assert!(went.iter().all(|&n| n > 40), "{went:?}");
    // Callers have had enough of some.
    open.lock().unwrap().truncate(15);
    for _ in 0..300 {
        call(false).await.unwrap();
    }
    let all = successes().into_iter().zip(went);
    assert!(
        all.into_iter().all(|(now, before)| now > before + 40),
        "{:?}",
        successes()
    );
    for open in open.lock().unwrap().drain(..) {
        open.give(Verdict::Success);
    }
    assert_eq!(layer.handle().total().in_flight(), 0);
}
