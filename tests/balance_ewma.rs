//! What the default rule goes by, however large or small the numbers are.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use http::{Method, Request, Response};
use proptest::prelude::*;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, advance},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    balance::{Candidate, Candidates, Ewma, LoadBalanceLayer, Picked, Picker, Rule},
    call::{
        Attempt, AttemptOutcome, BoxError, CallScope, Classify, Endpoint, Endpoints, ErrorRef, LONGEST,
        LateVerdict, OpenVerdict, Verdict, Veto,
    },
};

const MS: Duration = Duration::from_millis(1);

fn key(n: usize) -> String {
    format!("h{n}")
}

fn weighted(weights: &[u32]) -> Endpoints {
    let weights = weights.iter().enumerate();
    let endpoint = |(n, &weight): (usize, &u32)| {
        let builder = Endpoint::builder(format!("http://{}", key(n))).key(key(n));
        builder.weight(weight).build().unwrap()
    };
    weights.map(endpoint).collect()
}

// ---- what it expects

/// What is worked out is good for so long, as far as that is time that attempts have waited.
const GOOD_FOR: Duration = Duration::from_micros(2_098);

/// In seconds and by weight, as it is said in the documentation of the rule: the least that it may be taken for, and the most.
fn expected(one: &Candidate<'_>) -> Option<(f64, f64)> {
    let response_time = one.response_time()?;
    let attempts = (one.in_flight() + 1) as f64 / f64::from(one.endpoint().weight());
    let cost = |waiting: Duration| response_time.max(waiting).as_secs_f64() * attempts;
    Some((cost(one.waiting().saturating_sub(GOOD_FOR)), cost(one.waiting())))
}

/// Sees to it that of all that are drawn the best is chosen.
struct Checked(Ewma);

impl Rule for Checked {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let all: Option<Vec<(f64, f64)>> = candidates.iter().map(|one| expected(&one)).collect();
        let picked = self.0.pick(candidates)?;
        let Some(all) = all else { return Some(picked) };
        let least = all.iter().map(|&(_, most)| most).fold(f64::INFINITY, f64::min);
        // Times are shown in whole nanoseconds.
        let attempts = candidates.get(picked)?.in_flight() + 1;
        let most = least * 1.0001 + 2e-9 * attempts as f64;
        assert!(all[picked].0 <= most, "{picked} of {all:?}");
        Some(picked)
    }

    fn decay(&self) -> Duration {
        self.0.decay()
    }
}

fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0..1_000_u64).prop_map(Duration::from_nanos),
        (0..50_000_u64).prop_map(Duration::from_micros),
        (0..50_000_u64).prop_map(Duration::from_millis),
        (0..500_u64).prop_map(|hours| Duration::from_secs(3_600 * hours)),
    ]
}

proptest! {
    #[test]
    fn of_all_that_are_drawn_it_takes_the_one_that_answers_soonest_be_numbers_what_they_may(
        weights in prop::collection::vec(prop_oneof![Just(1_u32), 1..9_u32, Just(u32::MAX)], 2..=16),
        steps in prop::collection::vec((any_time(), 0..4_u8, any::<usize>(), 1..200_usize), 1..80),
    ) {
        // Nothing is forgiven.
        let rule = Ewma::builder().choices(16).recovery(LONGEST).seeded(1).build().unwrap();
        let rule = Checked(rule);
        let picker = Picker::new(weighted(&weights), rule);
        let mut now = Instant::now();
        let mut open: Vec<Picked> = Vec::new();
        for (time, what, which, times) in steps {
            match what {
                0 => now += time,
                1 => open.extend((0..times).map(|_| picker.pick(&Request::new(()), now).unwrap())),
                _ if open.is_empty() => {}
                what => {
                    let picked = open.swap_remove(which % open.len());
                    now += time;
                    let verdict = if what == 2 { Verdict::Success } else { Verdict::Failure };
                    picked.end(verdict, now);
                }
            }
            // A clock that was read before.
            let _ = picker.pick(&Request::new(()), now.checked_sub(MS).unwrap());
        }
        open.clear();
        prop_assert_eq!(picker.handle().total().in_flight(), 0);
    }

    #[test]
    fn whatever_is_drawn_one_that_can_be_had_is_picked_as_long_as_there_is_one(
        n in 1..40_usize,
        choices in 1..=16_usize,
        size in prop_oneof![Just(None), (1..40_usize).prop_map(Some)],
        vetoes in any::<u64>(),
        tried in any::<u64>(),
        more_vetoes in any::<u64>(),
        is_asked in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let endpoints = weighted(&vec![1; n]);
        let builder = Ewma::builder().choices(choices).seeded(seed);
        let rule = size.map_or(builder.whole_set(), |size| builder.subset(size)).build().unwrap();
        let picker = Picker::new(endpoints.clone(), rule);
        let start = Instant::now();
        let pick = |millis: u32| picker.pick(&Request::new(()), start + MS * millis).unwrap();
        if is_asked {
            (0..200).for_each(|millis| pick(millis).end(Verdict::Success, start + MS * (millis + 1)));
        }
        let is_set = |bits: u64, n: usize| bits >> n & 1 == 1;
        let mut scope = CallScope::begin();
        for (n, one) in endpoints.snapshot().endpoints().iter().enumerate() {
            if is_set(vetoes | more_vetoes, n) {
                one.eligibility().forbid(Veto::User);
            }
            if is_set(tried, n) {
                scope.record(Attempt::new(Some(one.clone()), start, start, AttemptOutcome::Answered));
            }
        }
        let good: Vec<String> = (0..n).filter(|&n| !is_set(vetoes | more_vetoes | tried, n)).map(key).collect();
        for millis in 300..310 {
            let picked = scope.enter(|| pick(millis));
            let picked_key = picked.endpoint().key().to_owned();
            prop_assert!(good.is_empty() || good.contains(&picked_key), "{} of {:?}", picked_key, good);
        }
    }
}

// ---- the part of a large set

/// One for what is read, and one for all else.
struct ByMethod(Ewma, Ewma);

impl Rule for ByMethod {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        match candidates.request()?.method() {
            &Method::GET => self.0.pick(candidates),
            _ => self.1.pick(candidates),
        }
    }
}

/// Ten at a time are in flight.
fn keys_picked<R: Rule>(picker: &Picker<R>, method: &Method, start: Instant, calls: u32) -> BTreeSet<String> {
    let request = Request::builder().method(method).body(()).unwrap();
    let mut open = VecDeque::new();
    let mut keys = BTreeSet::new();
    for call in 0..calls {
        let now = start + MS * call;
        let picked = picker.pick(&request, now).unwrap();
        keys.insert(picked.endpoint().key().to_owned());
        open.push_back(picked);
        if open.len() > 10 {
            open.pop_front().unwrap().end(Verdict::Success, now);
        }
    }
    keys
}

/// Two for each in flight, and two for those who rank with them for a moment.
const PART: usize = 2 * 11 + 2;

#[test]
fn layers_that_share_a_rule_have_a_part_of_their_set_each() {
    let rule = Arc::new(Ewma::seeded(1));
    let pickers = [100, 200].map(|n| Picker::new(weighted(&vec![1; n]), rule.clone()));
    let start = Instant::now();
    let mut all = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..200 {
        for (picker, all) in pickers.iter().zip(&mut all) {
            all.extend(keys_picked(picker, &Method::GET, start + 20 * MS * round, 20));
        }
    }
    let sizes = all.map(|keys| keys.len());
    assert!(sizes.iter().all(|&size| (11..=PART).contains(&size)), "{sizes:?}");
}

#[test]
fn of_two_rules_in_one_layer_the_first_has_a_part_until_it_is_asked_no_more() {
    let picker = Picker::new(weighted(&[1; 100]), ByMethod(Ewma::seeded(1), Ewma::seeded(2)));
    let start = Instant::now();
    let mut all = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..200 {
        for (method, all) in [Method::GET, Method::POST].iter().zip(&mut all) {
            all.extend(keys_picked(&picker, method, start + 20 * MS * round, 20));
        }
    }
    let [first, other] = all.map(|keys| keys.len());
    assert!(
        (11..=PART).contains(&first) && other > 2 * PART,
        "{first} {other}"
    );
    let later = start + Duration::from_secs(15);
    let alone = keys_picked(&picker, &Method::POST, later, 4_000).len();
    assert!((11..=PART).contains(&alone), "{alone}");
}

// ---- newcomers

#[test]
fn a_newcomer_is_taken_for_one_of_most_however_badly_one_of_its_peers_does() {
    let endpoints = weighted(&[1; 10]);
    let picker = Picker::new(endpoints.clone(), Ewma::seeded(1));
    let start = Instant::now();
    let mut now = start;
    let mut pick = |ends: Verdict, took: Duration, pause: Duration| {
        let picked = picker.pick(&Request::new(()), now).unwrap();
        let picked_key = picked.endpoint().key().to_owned();
        picked.end(ends, now + took);
        now += took + pause;
        picked_key
    };
    let snapshot = endpoints.snapshot();
    let (bad, well) = snapshot.endpoints().split_first().unwrap();
    for _ in 0..100 {
        pick(Verdict::Success, 10 * MS, 10 * MS);
    }
    well.iter().for_each(|one| one.eligibility().forbid(Veto::User));
    for _ in 0..10 {
        assert_eq!(pick(Verdict::Failure, MS, 1_000 * MS), bad.key());
    }
    well.iter().for_each(|one| one.eligibility().allow(Veto::User));
    for _ in 0..100 {
        pick(Verdict::Success, 10 * MS, 10 * MS);
    }
    endpoints.insert(Endpoint::new("http://new").unwrap());
    let calls = (0..125).map(|_| pick(Verdict::Success, 10 * MS, 10 * MS));
    let first = calls
        .into_iter()
        .position(|picked_key| picked_key.contains("new"));
    assert!(first > Some(10), "it begins slowly: {first:?}");
}

// ---- what goes on

#[derive(Clone)]
struct Late;

impl Classify<Response<()>> for Late {
    fn classify(&self, _: Result<&Response<()>, ErrorRef<'_>>) -> Verdict {
        Verdict::Success
    }

    fn late(&self, answer: &Response<()>) -> Option<LateVerdict> {
        LateVerdict::on(answer.extensions()).cloned()
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_go_on_are_load_however_long_ago_one_ended() {
    let endpoints = weighted(&[1, 1]);
    let rule = Ewma::seeded(1);
    let layer = LoadBalanceLayer::new(endpoints.clone()).rule(rule).classify(Late);
    let (opened, mut streams) = mpsc::unbounded_channel::<OpenVerdict>();
    let stack = layer.layer(service_fn(move |_: Request<()>| {
        let (open, late) = LateVerdict::open();
        let mut response = Response::new(());
        response.extensions_mut().insert(late);
        opened.send(open).unwrap();
        async move {
            tokio::time::sleep(10 * MS).await;
            Ok::<_, BoxError>(response)
        }
    }));
    let call = || {
        stack
            .clone()
            .oneshot(Request::get("http://orders/").body(()).unwrap())
    };
    let snapshot = endpoints.snapshot();
    let [one, other] = snapshot.endpoints() else {
        panic!("two")
    };
    for (keeps_away, times) in [(one, 1), (other, 30)] {
        keeps_away.eligibility().forbid(Veto::User);
        call().await.unwrap();
        streams.recv().await.unwrap().give(Verdict::Success);
        for _ in 1..times {
            call().await.unwrap();
        }
        keeps_away.eligibility().allow(Veto::User);
    }
    // None ends meanwhile, and what is held against both is forgiven.
    advance(Duration::from_secs(60)).await;
    for _ in 0..20 {
        call().await.unwrap();
    }
    let all = layer.handle().endpoints();
    let in_flight: BTreeMap<_, _> = all
        .iter()
        .map(|one| (one.endpoint().key().to_owned(), one.figures().in_flight()))
        .collect();
    assert_eq!(in_flight[&key(0)], 29, "{in_flight:?}");
}
