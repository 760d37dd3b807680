//! What the rules, the vetoes and the detector of outliers promise where they meet, told the time and drawn from seeds.
#![allow(
    clippy::unwrap_used,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use http::{Request, Response};
use proptest::prelude::*;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, advance},
};
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

type AnyRule = Arc<dyn Rule + Send + Sync>;

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
    let rules: [AnyRule; 5] = [
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
    let (opened, mut all) = mpsc::unbounded_channel();
    let stack = layer.layer(service_fn(move |request: Request<bool>| {
        let mut response = Response::new(());
        if *request.body() {
            let (open, late) = LateVerdict::open();
            response.extensions_mut().insert(late);
            opened.send(open).unwrap();
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
    let streams: Vec<OpenVerdict> = (0..15).map(|_| all.try_recv().unwrap()).collect();
    while let Ok(open) = all.try_recv() {
        drop(open);
    }
    for _ in 0..300 {
        call(false).await.unwrap();
    }
    let both = successes().into_iter().zip(went);
    assert!(
        both.into_iter().all(|(now, before)| now > before + 40),
        "{:?}",
        successes()
    );
    // And yet they are load.
    let one = |key: &str| one(layer.handle().set(), key);
    let others = [one("us1"), one("eu2")];
    others
        .iter()
        .for_each(|other| other.eligibility().forbid(Veto::User));
    for _ in 0..30 {
        call(true).await.unwrap();
    }
    others
        .iter()
        .for_each(|other| other.eligibility().allow(Veto::User));
    let before = successes();
    for _ in 0..100 {
        call(false).await.unwrap();
    }
    assert!(successes()[0] < before[0] + 10, "{before:?} {:?}", successes());
    drop(streams);
    all.close();
    while all.try_recv().is_ok() {}
    assert_eq!(layer.handle().total().in_flight(), 0);
}

// ---- weights

/// Keeps so many in flight, each for as long as another, and says how many are where in the end.
fn under_load<R: Rule>(clocked: &Clocked<R>, in_flight: u32) -> BTreeMap<String, u32> {
    let mut open = std::collections::VecDeque::new();
    for n in 0..20 * in_flight {
        let now = MS * n;
        open.push_back(clocked.pick(now));
        if open.len() > in_flight as usize {
            open.pop_front().unwrap().end(Verdict::Success, clocked.at(now));
        }
    }
    let mut all = BTreeMap::new();
    for picked in open {
        *all.entry(picked.endpoint().key().to_owned()).or_default() += 1;
    }
    all
}

#[test]
fn under_load_ewma_gives_each_its_part_by_weight_be_it_of_a_subset_or_not() {
    for n in [4, 60] {
        let set: Endpoints = (0..n).map(|n| endpoint(&key(n), [1, 4][n % 2])).collect();
        let rule = Ewma::builder().subset(20).seeded(1);
        let all = under_load(&Clocked::new(&set, rule.build().unwrap()), 500);
        let of = |zone: &str| -> (u32, u32) {
            let those = all.iter().filter(|(key, _)| key.starts_with(zone));
            those.fold((0, 0), |(n, sum), (_, in_flight)| (n + 1, sum + in_flight))
        };
        let ((light, of_light), (heavy, of_heavy)) = (of("eu"), of("us"));
        let times = f64::from(of_heavy) / f64::from(heavy) / (f64::from(of_light) / f64::from(light));
        assert!((2.8..5.2).contains(&times), "{n}: {times} {all:?}");
    }
}

#[test]
fn an_endpoint_of_three_times_the_weight_is_taken_until_it_is_three_times_as_slow() {
    for (took, expected, is_retry) in [
        (25, "us1", false),
        (35, "eu0", false),
        (25, "us1", true),
        (35, "eu0", true),
    ] {
        let all = [endpoint("eu0", 1), endpoint("us1", 3), endpoint("eu2", 1)];
        let set: Endpoints = all.into_iter().collect();
        one(&set, "eu2").eligibility().forbid(Veto::User);
        let clocked = Clocked::new(&set, Ewma::seeded(1));
        let mut now = Duration::ZERO;
        let mut scope = CallScope::begin();
        if is_retry {
            let (at, tried) = (clocked.at(now), one(&set, "eu2"));
            scope.record(Attempt::new(Some(tried), at, at, AttemptOutcome::Answered));
        }
        let mut went = BTreeMap::<String, u32>::new();
        for n in 0..300 {
            let picked = scope.enter(|| clocked.pick(now));
            let is_heavy = picked.endpoint().key() == "us1";
            // One that has not been asked is taken for what the other is.
            if n == 10 {
                one(&set, "us1").eligibility().forbid(Veto::User);
            } else if n == 100 {
                one(&set, "us1").eligibility().allow(Veto::User);
            } else if n > 100 {
                *went.entry(picked.endpoint().key().to_owned()).or_default() += 1;
            }
            now += MS * if is_heavy { took } else { 10 };
            picked.end(Verdict::Success, clocked.at(now));
        }
        assert!(went.get(expected) > Some(&170), "{took}: {went:?}");
    }
}

// ---- whatever happens

const KEYS: usize = 40;

fn rules(seed: u64) -> Vec<AnyRule> {
    let is_few = |one: &Endpoint| one.key().ends_with(['0', '1', '2']);
    let is_many = |one: &Endpoint| !one.key().ends_with('9');
    let inner = move |n: usize| -> AnyRule {
        match n {
            0 => Arc::new(Ewma::seeded(seed)),
            1 => Arc::new(Ewma::builder().subset(5).seeded(seed).build().unwrap()),
            2 => Arc::new(LeastLoaded::seeded(seed).choices(3).unwrap()),
            3 => Arc::new(RoundRobin::new()),
            4 => Arc::new(WeightedRoundRobin::new()),
            5 => Arc::new(WeightedRandom::seeded(seed)),
            _ => Arc::new(ConsistentHash::new().bounded_by(1.0).unwrap()),
        }
    };
    let around = move |n: usize| -> [AnyRule; 6] {
        let zone = ZoneFirst::new("eu", inner(n)).seeded(seed).at_least(2).unwrap();
        let spills = ZoneFirst::new("us", inner(n))
            .seeded(seed)
            .spill_above(1.5)
            .unwrap();
        let only = Only::new(is_few, inner(n))
            .or(is_many)
            .or_all()
            .at_least(2)
            .unwrap();
        let live = Only::live(|one| one.in_flight() < 3, inner(n)).or_all();
        [
            inner(n),
            Arc::new(spills),
            Arc::new(Only::new(is_many, zone).or_all()),
            Arc::new(ZoneFirst::new("eu", only).seeded(seed)),
            Arc::new(ZoneFirst::new("us", Only::new(is_few, live).or_all()).seeded(seed)),
            Arc::new(
                Only::live(
                    |one| !one.was_tried(),
                    ZoneFirst::new("eu", Only::new(is_many, inner(n)).or_all()),
                )
                .or_all(),
            ),
        ]
    };
    (0..7).flat_map(around).collect()
}

#[derive(Debug, Clone)]
enum Step {
    /// A call of so many attempts for this user; all but the last one fail.
    Call(u8, u8),
    Start(u8),
    End(usize, u8),
    /// Microseconds. The clock of who comes next may be somewhat behind.
    Pass(u32),
    Back(u32),
    Remove(u8),
    Insert(u8, u32),
    Size(u8),
    Veto(u8, u8, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let weight = prop_oneof![Just(1_u32), 1..9_u32, Just(u32::MAX)];
    let size = prop::sample::select(vec![0_u8, 1, 2, 19, 20, 21, 30, 31, 40]);
    prop_oneof![
        3 => (any::<u8>(), 1..5_u8).prop_map(|(user, attempts)| Step::Call(user, attempts)),
        6 => any::<u8>().prop_map(Step::Start),
        5 => (any::<usize>(), 0..6_u8).prop_map(|(which, how)| Step::End(which, how)),
        3 => (0..2_000_000_u32).prop_map(Step::Pass),
        1 => (0..500_u32).prop_map(Step::Back),
        2 => (0..KEYS as u8).prop_map(Step::Remove),
        2 => (0..KEYS as u8, weight).prop_map(|(key, weight)| Step::Insert(key, weight)),
        1 => size.prop_map(Step::Size),
        2 => (0..KEYS as u8, 0..5_u8, any::<bool>()).prop_map(|(key, veto, on)| Step::Veto(key, veto, on)),
    ]
}

struct Whole {
    set: Endpoints,
    present: BTreeSet<String>,
    picker: Picker<AnyRule>,
    now: Instant,
}

impl Whole {
    fn pick(&self, user: u8) -> Result<Option<Picked>, TestCaseError> {
        let request = Request::builder()
            .extension(Affinity::of([user]))
            .body(())
            .unwrap();
        let picked = self.picker.pick(&request, self.now);
        prop_assert_eq!(picked.is_none(), self.present.is_empty());
        if let Some(picked) = &picked {
            prop_assert!(
                self.present.contains(picked.endpoint().key()),
                "{:?}",
                picked.endpoint()
            );
            self.has_no_better_than(picked.endpoint(), |_| false)?;
        }
        Ok(picked)
    }

    fn has_no_better_than(
        &self,
        picked: &Endpoint,
        tried: impl Fn(&str) -> bool,
    ) -> Result<(), TestCaseError> {
        let worth = |one: &Endpoint| {
            let is_drained = one.eligibility().is_forbidden_by(Veto::Drain);
            let is_eligible = one.eligibility().is_eligible();
            (is_eligible, !is_drained, !tried(one.key()))
        };
        // One that is about to return is probed by who picks it, and may be vetoed since.
        let may_have_changed = self.picker.handle().ejection(picked.key()).is_some();
        let snapshot = self.set.snapshot();
        let best = snapshot.endpoints().iter().map(worth).max();
        prop_assert!(
            may_have_changed || Some(worth(picked)) == best,
            "{:?} {:?}",
            picked,
            best
        );
        Ok(())
    }

    fn holds(&self, most: impl Fn(usize) -> usize) -> Result<(), TestCaseError> {
        let all = self.picker.handle().endpoints();
        let ejected = all.iter().filter(|one| one.ejection().is_some()).count();
        let n = self.present.len();
        prop_assert_eq!(all.len(), n);
        prop_assert!(ejected <= most(n), "{} of {}", ejected, n);
        Ok(())
    }
}

fn end(picked: Picked, how: u8, now: Instant) {
    match how {
        0 => picked.connection_failed(now),
        1 => picked.abandon(now),
        2 => picked.end(Verdict::Ignored, now),
        3 => picked.end(Verdict::Success, now),
        _ => picked.end(Verdict::Failure, now),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_happens_the_best_that_is_there_is_picked_and_nothing_is_left_over(
        which in 0..42_usize,
        seed in any::<u64>(),
        days in prop::sample::select(vec![0_u32, 27, 60, 100]),
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let outliers = OutlierEjection::builder().consecutive_failures(2).panic_threshold(0.0).seeded(seed);
        let set = set(25);
        let picker = Picker::new(set.clone(), rules(seed).swap_remove(which)).outliers(outliers.build().unwrap());
        let present = (0..25).map(key).collect();
        let mut whole = Whole { set, present, picker, now: Instant::now() };
        drop(whole.pick(0)?);
        whole.now += DAY * days;
        let mut open: Vec<Picked> = Vec::new();
        for step in steps {
            match step {
                Step::Start(user) => open.extend(whole.pick(user)?),
                Step::Call(user, attempts) => {
                    let mut scope = CallScope::begin();
                    let mut tried = BTreeSet::new();
                    for _ in 0..attempts {
                        let request = Request::builder().extension(Affinity::of([user])).body(()).unwrap();
                        let picked = scope.enter(|| whole.picker.pick(&request, whole.now));
                        let Some(picked) = picked else { break };
                        let endpoint = picked.endpoint().clone();
                        prop_assert!(whole.present.contains(endpoint.key()));
                        whole.has_no_better_than(&endpoint, |key| tried.contains(key))?;
                        tried.insert(endpoint.key().to_owned());
                        picked.end(Verdict::Failure, whole.now);
                        scope.record(Attempt::new(Some(endpoint), whole.now, whole.now, AttemptOutcome::Answered));
                    }
                }
                Step::End(which, how) if !open.is_empty() => {
                    end(open.swap_remove(which % open.len()), how, whole.now);
                }
                Step::End(..) => {}
                Step::Pass(micros) => whole.now += Duration::from_micros(micros.into()),
                Step::Back(micros) => whole.now -= Duration::from_micros(micros.into()),
                Step::Remove(n) => {
                    whole.present.remove(&key(n.into()));
                    whole.set.remove(&key(n.into()));
                }
                Step::Insert(n, weight) => {
                    whole.present.insert(key(n.into()));
                    whole.set.insert(endpoint(&key(n.into()), weight));
                }
                Step::Size(n) => {
                    whole.present = (0..n.into()).map(key).collect();
                    whole.set.replace((0..n.into()).map(|n| endpoint(&key(n), 1)));
                }
                Step::Veto(n, veto, on) => {
                    let veto = [Veto::Breaker, Veto::Probe, Veto::Drain, Veto::User, Veto::NotReady][usize::from(veto)];
                    let snapshot = whole.set.snapshot();
                    if let Some(one) = snapshot.endpoints().iter().find(|one| one.key() == key(n.into())) {
                        if on { one.eligibility().forbid(veto) } else { one.eligibility().allow(veto) }
                    }
                }
            }
            // The set is looked through within 100 ms of a change.
            whole.now += Duration::from_millis(101);
            let most = |n: usize| (n / 2).max(1).min(n.saturating_sub(1));
            open.extend(whole.pick(0)?);
            whole.holds(most)?;
        }
        for picked in open.drain(..) {
            end(picked, 3, whole.now);
        }
        prop_assert_eq!(whole.picker.handle().total().in_flight(), 0);
        // None is wedged: with no veto and no failures all come back.
        let snapshot = whole.set.snapshot();
        for one in snapshot.endpoints() {
            for veto in [Veto::Breaker, Veto::Probe, Veto::Drain, Veto::User, Veto::NotReady] {
                one.eligibility().allow(veto);
            }
        }
        whole.now += Duration::from_secs(400);
        for n in 0..2_000_u32 {
            whole.now += Duration::from_millis(100);
            if let Some(picked) = whole.pick(n as u8)? {
                picked.end(Verdict::Success, whole.now);
            }
        }
        let eligible = snapshot.endpoints().iter().filter(|one| one.eligibility().is_eligible()).count();
        prop_assert_eq!(eligible, snapshot.endpoints().len());
    }
}

#[test]
fn in_all_threads_none_that_has_gone_is_picked_and_nothing_is_left_over() {
    for rule in rules(1).into_iter().take(12) {
        let set = set(400);
        let outliers = OutlierEjection::builder().consecutive_failures(2).seeded(1);
        let picker = Picker::new(set.clone(), rule).outliers(outliers.build().unwrap());
        // Those below this have gone.
        let (gone, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let (picker, gone, ended) = (picker.clone(), &gone, &ended);
                scope.spawn(move || {
                    let mut open = std::collections::VecDeque::new();
                    for n in 0..1_500_u32 {
                        let now = start + MS * n;
                        let before = gone.load(SeqCst);
                        let request = Request::builder().extension(Affinity::of([n as u8])).body(());
                        let picked = picker.pick(&request.unwrap(), now).unwrap();
                        let number: usize = picked.endpoint().key()[2..].parse().unwrap();
                        assert!(number >= before, "{number} of {before}");
                        open.push_back(picked);
                        if open.len() > 10 {
                            let how = if number % 5 == 0 {
                                4
                            } else {
                                3 + thread % 2 * u8::from(n % 7 == 0)
                            };
                            end(open.pop_front().unwrap(), how, now);
                        }
                    }
                    ended.fetch_add(1, SeqCst);
                });
            }
            let mut n = 0;
            while ended.load(SeqCst) < 3 {
                set.insert(endpoint(&key(400 + n), 1));
                set.remove(&key(n));
                n += 1;
                gone.store(n, SeqCst);
                std::thread::yield_now();
            }
        });
        assert_eq!(picker.handle().total().in_flight(), 0);
        let most = set.len() / 2;
        let all = picker.handle().endpoints();
        assert!(all.iter().filter(|one| one.ejection().is_some()).count() <= most);
    }
}
