//! What the rules that narrow, weigh and bound a choice promise, told the time and drawn from seeds.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::Request;
use proptest::prelude::*;
use tokio::time::{Duration, Instant};
use tower_outbound::{
    balance::{
        Candidates, ConsistentHash, Ewma, LeastLoaded, Only, Picked, Picker, Random, RibbonRoundRobin,
        RoundRobin, Rule, WeightedRandom, WeightedRoundRobin, ZoneFirst, rule::from_fn,
    },
    call::{Affinity, Attempt, AttemptOutcome, CallScope, Endpoint, Endpoints, Verdict, Veto},
};

/// A key, a zone ("" is none) and a weight.
fn endpoint(key: &str, zone: &str, weight: u32) -> Endpoint {
    let builder = Endpoint::builder(format!("http://{key}"))
        .key(key)
        .weight(weight)
        .metadata("version", key.split('-').next().unwrap());
    let builder = if zone.is_empty() {
        builder
    } else {
        builder.zone(zone)
    };
    builder.build().unwrap()
}

/// Keys from 0 on behind the name of their zone.
fn zones(numbers: &[(&str, usize)]) -> Endpoints {
    let all = numbers
        .iter()
        .flat_map(|&(zone, n)| (0..n).map(move |n| (zone, n)));
    all.map(|(zone, n)| endpoint(&format!("{zone}{n}"), zone, 1))
        .collect()
}

fn many(n: usize) -> Endpoints {
    (0..n).map(|n| endpoint(&format!("h{n}"), "", 1)).collect()
}

fn weighted(weights: &[u32]) -> Endpoints {
    let weights = weights.iter().enumerate();
    weights
        .map(|(n, &weight)| endpoint(&format!("h{n}"), "", weight))
        .collect()
}

fn one(endpoints: &Endpoints, key: &str) -> Endpoint {
    let snapshot = endpoints.snapshot();
    snapshot
        .endpoints()
        .iter()
        .find(|one| one.key() == key)
        .unwrap()
        .clone()
}

fn forbid(endpoints: &Endpoints, key: &str) {
    one(endpoints, key).eligibility().forbid(Veto::User);
}

fn allow(endpoints: &Endpoints, key: &str) {
    one(endpoints, key).eligibility().allow(Veto::User);
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

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn pick(&self, millis: u64) -> Option<Picked> {
        self.picker.pick(&Request::new(()), self.at(millis))
    }

    fn pick_for(&self, user: u64, millis: u64) -> Picked {
        let request = Request::builder()
            .extension(Affinity::of(format!("user-{user}")))
            .body(());
        self.picker.pick(&request.unwrap(), self.at(millis)).unwrap()
    }

    /// Where attempts went that ended at once, one a millisecond.
    fn went(&self, from: u64, attempts: u64) -> BTreeMap<String, u64> {
        let mut went = BTreeMap::new();
        for millis in from..from + attempts {
            let picked = self.pick(millis).unwrap();
            *went.entry(picked.endpoint().key().to_owned()).or_default() += 1;
            picked.end(Verdict::Success, self.at(millis));
        }
        went
    }

    /// Where a call goes that tries one after the other.
    fn tries(&self, attempts: usize, millis: u64) -> Vec<String> {
        let mut scope = CallScope::begin();
        let mut went = Vec::new();
        for _ in 0..attempts {
            let picked = scope.enter(|| self.pick(millis)).unwrap();
            let (endpoint, now) = (picked.endpoint().clone(), self.at(millis));
            went.push(endpoint.key().to_owned());
            picked.end(Verdict::Failure, now);
            scope.record(Attempt::new(Some(endpoint), now, now, AttemptOutcome::Answered));
        }
        went
    }

    fn homes(&self, users: u64) -> Vec<String> {
        let home = |user| self.pick_for(user, 0).endpoint().key().to_owned();
        (0..users).map(home).collect()
    }
}

fn in_zone(went: &BTreeMap<String, u64>, zone: &str) -> u64 {
    let those = went.iter().filter(|(key, _)| key.starts_with(zone));
    those.map(|(_, n)| n).sum()
}

fn keys(went: &BTreeMap<String, u64>) -> Vec<&str> {
    went.keys().map(String::as_str).collect()
}

// ---- zones first

#[test]
fn calls_stay_in_the_own_zone_whose_name_is_read_without_case() {
    let set = zones(&[("eu", 3), ("us", 5), ("", 2)]);
    let clocked = Clocked::new(&set, ZoneFirst::new("EU", RoundRobin::new()).seeded(1));
    let went = clocked.went(0, 300);
    assert_eq!(
        went,
        BTreeMap::from(["eu0", "eu1", "eu2"].map(|key| (key.to_owned(), 100)))
    );
}

#[test]
fn what_is_too_much_for_the_rest_of_the_own_zone_spills_in_proportion() {
    let set = zones(&[("eu", 10), ("us", 4), ("", 1)]);
    let clocked = Clocked::new(&set, ZoneFirst::new("eu", RoundRobin::new()).seeded(1));
    let mut before = 10_000;
    for gone in 0..=10_u64 {
        if gone > 0 {
            forbid(&set, &format!("eu{}", gone - 1));
        }
        // Vetoes are seen within 100 ms.
        let went = clocked.went(20_000 * gone, 10_000);
        let stays = in_zone(&went, "eu");
        let expected = (14_000 * (10 - gone) / 10).min(10_000);
        // Five standard deviations at most.
        assert!(stays.abs_diff(expected) <= 250, "{gone}: {stays}, {expected}");
        assert!(stays <= before);
        if expected < 9_000 {
            assert_eq!(went.len() as u64, 10 - gone + 5, "to all others: {went:?}");
        }
        before = stays;
    }
    for gone in 0..10 {
        allow(&set, &format!("eu{gone}"));
    }
    assert_eq!(
        in_zone(&clocked.went(500_100, 1_000), "eu"),
        1_000,
        "and they come back"
    );
}

#[test]
fn a_zone_alone_or_none_of_ones_own_is_the_whole_set_and_vetoes_on_all_others_keep_calls_at_home() {
    let set = zones(&[("eu", 2), ("us", 2)]);
    for (zone, seen) in [
        ("asia", &["eu0", "eu1", "us0", "us1"][..]),
        ("", &["eu0", "eu1", "us0", "us1"]),
    ] {
        let clocked = Clocked::new(&set, ZoneFirst::new(zone, RoundRobin::new()).seeded(1));
        assert_eq!(keys(&clocked.went(0, 100)), seen);
    }
    let home = zones(&[("eu", 2)]);
    let clocked = Clocked::new(&home, ZoneFirst::new("eu", RoundRobin::new()).seeded(1));
    assert_eq!(keys(&clocked.went(0, 100)), ["eu0", "eu1"]);
    forbid(&home, "eu0");
    assert_eq!(keys(&clocked.went(100, 100)), ["eu1"]);
    forbid(&home, "eu1");
    assert_eq!(
        keys(&clocked.went(200, 100)),
        ["eu0", "eu1"],
        "vetoes on all count for nothing"
    );
    let clocked = Clocked::new(&set, ZoneFirst::new("eu", RoundRobin::new()).seeded(1));
    for key in ["us0", "us1", "eu0"] {
        forbid(&set, key);
    }
    assert_eq!(keys(&clocked.went(0, 100)), ["eu1"]);
    forbid(&set, "eu1");
    assert_eq!(keys(&clocked.went(200, 100)), ["eu0", "eu1"]);
}

#[test]
fn a_retry_leaves_the_zone_when_it_has_tried_all_of_it_and_then_begins_anew() {
    let set = zones(&[("eu", 2), ("us", 2)]);
    for rule in [0, 1] {
        let inner: Arc<dyn Rule> = match rule {
            0 => Arc::new(RoundRobin::new()),
            _ => Arc::new(LeastLoaded::seeded(7)),
        };
        let clocked = Clocked::new(&set, ZoneFirst::new("eu", inner).seeded(1));
        for call in 0..20 {
            let went = clocked.tries(5, call);
            let firsts: BTreeSet<&str> = went[..2].iter().map(String::as_str).collect();
            let next: BTreeSet<&str> = went[2..4].iter().map(String::as_str).collect();
            assert_eq!(firsts, BTreeSet::from(["eu0", "eu1"]), "{went:?}");
            assert_eq!(next, BTreeSet::from(["us0", "us1"]), "{went:?}");
            assert!(went[4].starts_with("eu"), "{went:?}");
        }
    }
}

#[test]
fn a_zone_with_fewer_endpoints_than_asked_for_keeps_its_part_of_the_calls() {
    let set = zones(&[("eu", 1), ("us", 5)]);
    let rule = ZoneFirst::new("eu", RoundRobin::new())
        .seeded(1)
        .at_least(4)
        .unwrap();
    let clocked = Clocked::new(&set, rule);
    let stays = in_zone(&clocked.went(0, 10_000), "eu");
    assert!(stays.abs_diff(2_500) <= 250, "{stays}");
    set.insert(endpoint("eu1", "eu", 1));
    let stays = in_zone(&clocked.went(10_000, 10_000), "eu");
    assert!(stays.abs_diff(5_000) <= 250, "{stays}");
}

#[test]
fn the_load_of_the_own_zone_is_kept_where_it_is_to_be() {
    let set = zones(&[("eu", 2), ("us", 8)]);
    let rule = ZoneFirst::new("eu", LeastLoaded::seeded(1))
        .seeded(1)
        .spill_above(10.0)
        .unwrap();
    let clocked = Clocked::new(&set, rule);
    // A call a millisecond that takes 100 ms: 100 in flight, of which 20 are to stay.
    let mut open = std::collections::VecDeque::new();
    let mut loads = Vec::new();
    for millis in 0..20_000 {
        open.push_back(clocked.pick(millis).unwrap());
        if open.len() > 100 {
            open.pop_front()
                .unwrap()
                .end(Verdict::Success, clocked.at(millis));
        }
        if millis >= 10_000 {
            let at_home = open.iter().filter(|one| one.endpoint().key().starts_with("eu"));
            loads.push(at_home.count() as f64);
        }
    }
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    assert!((14.0..=26.0).contains(&mean), "{mean}");
    open.clear();
    let went = clocked.went(30_000, 10_000);
    assert!(
        in_zone(&went, "eu") > 9_000,
        "with less to do all come home: {went:?}"
    );
    assert_eq!(in_zone(&clocked.went(50_000, 1_000), "eu"), 1_000);
}

#[test]
fn settings_of_the_own_zone_that_cannot_be_are_refused_by_name() {
    let of = || ZoneFirst::new("eu", RoundRobin::new());
    assert_eq!(of().at_least(0).unwrap_err().field(), "at_least");
    for load in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(of().spill_above(load).unwrap_err().field(), "spill_above");
    }
}

// ---- only those that pass

fn is_canary(endpoint: &Endpoint) -> bool {
    endpoint.metadata("version") == Some("canary")
}

fn versions() -> Endpoints {
    ["canary-0", "canary-1", "stable-0", "stable-1", "stable-2"]
        .map(|key| endpoint(key, "", 1))
        .into_iter()
        .collect()
}

#[test]
fn only_those_that_pass_are_picked_each_in_its_turn() {
    let set = versions();
    let clocked = Clocked::new(&set, Only::new(is_canary, RoundRobin::new()));
    let went = clocked.went(0, 200);
    assert_eq!(keys(&went), ["canary-0", "canary-1"]);
    assert_eq!(went["canary-0"], 100);
    set.remove("canary-0");
    set.insert(endpoint("canary-2", "", 1));
    assert_eq!(keys(&clocked.went(200, 200)), ["canary-1", "canary-2"]);
    forbid(&set, "canary-1");
    assert_eq!(keys(&clocked.went(400, 200)), ["canary-2"]);
    // Vetoes on all of them count for nothing, and a retry has nowhere else to go.
    forbid(&set, "canary-2");
    assert_eq!(keys(&clocked.went(600, 200)), ["canary-1", "canary-2"]);
    allow(&set, "canary-2");
    assert_eq!(clocked.tries(3, 900), ["canary-2", "canary-2", "canary-2"]);
    set.remove("canary-1");
    set.remove("canary-2");
    assert!(clocked.pick(1_000).is_none(), "nothing else was allowed");
}

#[test]
fn where_too_few_pass_the_next_are_asked_and_then_all() {
    let set = versions();
    let few = |endpoint: &Endpoint| endpoint.key().ends_with("-0");
    let rule = Only::new(is_canary, RoundRobin::new())
        .or(few)
        .or_all()
        .at_least(2)
        .unwrap();
    let clocked = Clocked::new(&set, rule);
    assert_eq!(keys(&clocked.went(0, 100)), ["canary-0", "canary-1"]);
    forbid(&set, "canary-1");
    assert_eq!(keys(&clocked.went(200, 100)), ["canary-0", "stable-0"]);
    forbid(&set, "canary-0");
    assert_eq!(
        keys(&clocked.went(400, 100)),
        ["stable-0", "stable-1", "stable-2"]
    );
    allow(&set, "canary-0");
    allow(&set, "canary-1");
    assert_eq!(keys(&clocked.went(600, 100)), ["canary-0", "canary-1"]);
    let went: BTreeSet<_> = clocked.tries(5, 800).into_iter().collect();
    assert_eq!(
        went.len(),
        5,
        "a retry goes on to the next, and then to any: {went:?}"
    );
}

#[test]
fn if_nobody_has_enough_the_first_that_has_any_will_do() {
    let set = versions();
    let rule = Only::new(is_canary, RoundRobin::new()).or(|one| !is_canary(one));
    let clocked = Clocked::new(&set, rule.at_least_share(0.8).unwrap());
    assert_eq!(keys(&clocked.went(0, 100)), ["canary-0", "canary-1"]);
    let rule = Only::new(is_canary, RoundRobin::new()).or(|one| !is_canary(one));
    let clocked = Clocked::new(&set, rule.at_least_share(0.6).unwrap());
    assert_eq!(keys(&clocked.went(0, 100)), ["stable-0", "stable-1", "stable-2"]);
}

#[test]
fn live_figures_are_asked_at_each_pick() {
    for set in [versions(), many(200)] {
        let idle = Only::live(|one| one.in_flight() < 2, RoundRobin::new()).or_all();
        let clocked = Clocked::new(&set, idle);
        let n = set.len() as u64;
        let open: Vec<_> = (0..2 * n).map(|_| clocked.pick(0).unwrap()).collect();
        let total = clocked.picker.handle().total().in_flight();
        assert_eq!(total, 2 * n);
        for one in clocked.picker.handle().endpoints() {
            assert_eq!(one.figures().in_flight(), 2, "no one more while another has less");
        }
        assert!(clocked.pick(0).is_some(), "or all");
        drop(open);
    }
}

#[test]
fn parts_within_parts_are_those_that_pass_both() {
    let set: Endpoints = [
        ("canary-0", "eu"),
        ("canary-1", "us"),
        ("stable-0", "eu"),
        ("stable-1", "us"),
    ]
    .map(|(key, zone)| endpoint(key, zone, 1))
    .into_iter()
    .collect();
    let seen = |rule: Arc<dyn Rule>| {
        let clocked = Clocked::new(&set, rule);
        let went = clocked.went(0, 100);
        went.into_keys().collect::<Vec<_>>()
    };
    let inner = || Only::new(is_canary, WeightedRoundRobin::new());
    assert_eq!(
        seen(Arc::new(ZoneFirst::new("us", inner()).seeded(1))),
        ["canary-1"]
    );
    let near = ZoneFirst::new("us", WeightedRoundRobin::new()).seeded(1);
    assert_eq!(seen(Arc::new(Only::new(is_canary, near))), ["canary-1"]);
    let live = Only::live(|one| one.in_flight() < 9, inner());
    assert_eq!(seen(Arc::new(live)), ["canary-0", "canary-1"]);
    let none_near = ZoneFirst::new("asia", inner()).seeded(1);
    assert_eq!(seen(Arc::new(none_near)), ["canary-0", "canary-1"]);
    // A rule that picks nothing of the own zone is asked for the others.
    set.remove("canary-1");
    assert_eq!(
        seen(Arc::new(ZoneFirst::new("us", inner()).seeded(1))),
        ["canary-0"]
    );
}

#[test]
fn ribbons_rules_choose_alone_within_a_part() {
    let set = versions();
    forbid(&set, "canary-0");
    let clocked = Clocked::new(&set, Only::new(is_canary, RibbonRoundRobin::new()));
    assert_eq!(keys(&clocked.went(0, 100)), ["canary-1"]);
    assert_eq!(
        clocked.tries(3, 200),
        ["canary-1"; 3],
        "what was tried is nothing to them"
    );
}

#[test]
fn settings_of_parts_that_cannot_be_are_refused_by_name() {
    let of = || Only::new(is_canary, RoundRobin::new());
    assert_eq!(of().at_least(0).unwrap_err().field(), "at_least");
    for share in [-0.1, 1.1, f64::NAN] {
        assert_eq!(of().at_least_share(share).unwrap_err().field(), "at_least_share");
    }
}

/// Counts how often something is worked out for candidates that a rule has not seen.
struct Cached(std::sync::atomic::AtomicU64, Arc<AtomicUsize>);

impl Rule for Cached {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let id = candidates.id().unwrap();
        if self.0.swap(id, Relaxed) != id {
            self.1.fetch_add(1, Relaxed);
        }
        Some(0)
    }
}

#[test]
fn a_part_is_the_same_until_the_set_changes() {
    let set = versions();
    let made = Arc::new(AtomicUsize::new(0));
    let cached = Cached(u64::MAX.into(), made.clone());
    let clocked = Clocked::new(&set, Only::new(is_canary, ZoneFirst::new("eu", cached)));
    clocked.went(0, 100);
    assert_eq!(made.load(Relaxed), 1);
    set.remove("stable-0");
    clocked.went(100, 100);
    assert_eq!(made.load(Relaxed), 2);
}

proptest! {
    #[test]
    fn whatever_is_vetoed_a_choice_is_made_as_long_as_there_is_one(
        near in 0..4_usize,
        far in 0..4_usize,
        vetoes in any::<u8>(),
        tried in 0..8_usize,
        rule in 0..4,
    ) {
        let set = zones(&[("eu", near), ("us", far)]);
        let all = set.snapshot();
        for (n, one) in all.endpoints().iter().enumerate() {
            if vetoes >> n & 1 == 1 {
                one.eligibility().forbid(Veto::User);
            }
        }
        let own = |one: &Endpoint| one.zone() == Some("eu");
        let rule: Arc<dyn Rule> = match rule {
            0 => Arc::new(ZoneFirst::new("eu", RoundRobin::new()).seeded(1)),
            1 => Arc::new(Only::new(own, Random::seeded(1)).or_all()),
            2 => Arc::new(Only::live(|one| one.endpoint().zone() == Some("eu"), RoundRobin::new()).or_all()),
            _ => Arc::new(ZoneFirst::new("eu", Only::new(|_| true, Ewma::seeded(1))).seeded(1)),
        };
        let clocked = Clocked::new(&set, rule);
        if set.is_empty() {
            prop_assert!(clocked.pick(0).is_none());
            return Ok(());
        }
        let eligible: BTreeSet<&str> = all.endpoints().iter()
            .filter(|one| one.eligibility().is_eligible())
            .map(Endpoint::key)
            .collect();
        let went = clocked.tries(tried + 1, 0);
        let (last, before) = went.split_last().unwrap();
        if eligible.is_empty() {
            let untried = before.len() < all.endpoints().len();
            prop_assert!(!untried || !before.contains(last), "{:?}", went);
        } else {
            prop_assert!(eligible.contains(last.as_str()), "{:?}", went);
            prop_assert!(before.len() >= eligible.len() || !before.contains(last), "{:?}", went);
        }
    }
}

// ---- the same one for what belongs together

fn counts(homes: &[String]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for home in homes {
        *counts.entry(home.clone()).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn homes_go_by_weight_and_a_change_of_one_weight_moves_its_share_alone(
        mut weights in prop::collection::vec(1..9_u32, 4..12),
        which in 0..4_usize,
        next in 1..9_u32,
    ) {
        let mean_of = |weights: &[u32]| weights.iter().sum::<u32>() / weights.len() as u32;
        let before = Clocked::new(&weighted(&weights), ConsistentHash::new()).homes(4_000);
        let counts = counts(&before);
        let sum: u32 = weights.iter().sum();
        for (n, &weight) in weights.iter().enumerate() {
            let share = 4_000.0 * f64::from(weight) / f64::from(sum);
            let count = counts.get(&format!("h{n}")).copied().unwrap_or(0) as f64;
            // The way around a point is by chance; less so where there are more.
            prop_assert!((count - share).abs() <= 0.4 * share + 30.0, "{n}: {count} {share} {weights:?}");
        }
        let (mean, old) = (mean_of(&weights), weights[which]);
        weights[which] = next;
        if mean.ilog2() != mean_of(&weights).ilog2() {
            return Ok(());
        }
        let after = Clocked::new(&weighted(&weights), ConsistentHash::new()).homes(4_000);
        let it = format!("h{which}");
        for (before, after) in before.iter().zip(&after).filter(|(before, after)| before != after) {
            if next > old {
                prop_assert_eq!(after, &it, "from {}", before);
            } else {
                prop_assert_eq!(before, &it, "to {}", after);
            }
        }
    }

    #[test]
    fn an_endpoint_that_goes_moves_no_one_elses_requests_be_weights_what_they_may(
        weights in prop::collection::vec(4..7_u32, 4..12),
        which in 0..4_usize,
    ) {
        let set = weighted(&weights);
        let before = Clocked::new(&set, ConsistentHash::new()).homes(1_000);
        set.remove(&format!("h{which}"));
        let after = Clocked::new(&set, ConsistentHash::new()).homes(1_000);
        for (before, after) in before.iter().zip(&after).filter(|(before, after)| before != after) {
            prop_assert_eq!(before, &format!("h{which}"), "to {}", after);
        }
    }

    #[test]
    fn nobody_has_more_than_so_many_times_the_mean(
        weights in prop::collection::vec(1..5_u32, 1..40),
        hundredths in 100..200_u32,
        users in 1..20_u64,
    ) {
        let factor = f64::from(hundredths) / 100.0;
        let set = weighted(&weights);
        let clocked = Clocked::new(&set, ConsistentHash::new().bounded_by(factor).unwrap());
        let sum = f64::from(weights.iter().sum::<u32>());
        let mut open = Vec::new();
        for n in 1..=300_u64 {
            let picked = clocked.pick_for(n % users, 0);
            let weight = f64::from(picked.endpoint().weight());
            let load = clocked.picker.handle().endpoint(picked.endpoint().key()).unwrap().in_flight();
            // What is exactly whole may be a little more.
            let bound = (factor * n as f64 * weight / sum + 1e-9).ceil();
            prop_assert!(load as f64 <= bound, "{load} at {n}: {bound}");
            open.push(picked);
        }
    }
}

#[test]
fn within_the_bound_everyone_is_at_home_and_with_one_user_it_spreads_evenly() {
    let set = many(100);
    let free = Clocked::new(&set, ConsistentHash::new()).homes(100);
    let clocked = Clocked::new(&set, ConsistentHash::new().bounded_by(1.25).unwrap());
    let went: Vec<_> = (0..100)
        .map(|user| {
            let picked = clocked.pick_for(user, user);
            let key = picked.endpoint().key().to_owned();
            picked.end(Verdict::Success, clocked.at(user));
            key
        })
        .collect();
    assert_eq!(went, free);
    let open: Vec<_> = (0..1_000).map(|_| clocked.pick_for(1, 1_000)).collect();
    let loads = clocked.picker.handle().endpoints();
    assert!(
        loads.iter().all(|one| one.figures().in_flight() <= 13),
        "{loads:?}"
    );
    drop(open);
    // What has ended is seen to soon.
    assert_eq!(clocked.pick_for(1, 1_200).endpoint().key(), free[1]);
}

#[test]
fn a_bound_counts_those_that_may_be_picked() {
    let set = many(10);
    for n in 0..8 {
        forbid(&set, &format!("h{n}"));
    }
    let clocked = Clocked::new(&set, ConsistentHash::new().bounded_by(1.0).unwrap());
    let open: Vec<_> = (0..100).map(|_| clocked.pick_for(1, 0)).collect();
    let count = |key: &str| open.iter().filter(|one| one.endpoint().key() == key).count();
    assert_eq!((count("h8"), count("h9")), (50, 50));
    for factor in [0.9, f64::NAN, f64::INFINITY] {
        let error = ConsistentHash::new().bounded_by(factor).unwrap_err();
        assert_eq!(error.field(), "bounded_by");
    }
}

/// Shows the rule within the same candidates, put together for the pick.
fn shown_anew(rule: ConsistentHash) -> impl Rule {
    Only::live(|_| true, rule)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn without_a_ring_homes_are_the_same(weights in prop::collection::vec(1..9_u32, 1..12)) {
        let set = weighted(&weights);
        let by_ring = Clocked::new(&set, ConsistentHash::new()).homes(200);
        let without = Clocked::new(&set, shown_anew(ConsistentHash::new())).homes(200);
        prop_assert_eq!(by_ring, without);
    }
}

// ---- loads and weights

#[test]
fn of_idle_ones_each_is_as_likely_as_another_however_many_are_drawn() {
    for (n, choices) in [(2, 2), (10, 2), (10, 3), (17, 16), (3, 8)] {
        let rule = LeastLoaded::seeded(1).choices(choices).unwrap();
        let went = Clocked::new(&many(n), rule).went(0, 1_000 * n as u64);
        assert_eq!(went.len(), n);
        // Within six standard deviations of 32.
        assert!(
            went.values().all(|&count| count.abs_diff(1_000) < 190),
            "{n}, {choices}: {went:?}"
        );
    }
}

#[test]
fn of_more_choices_the_least_loaded_is_taken() {
    let set = many(8);
    let most_in_flight = |choices| {
        let clocked = Clocked::new(&set, LeastLoaded::seeded(1).choices(choices).unwrap());
        let open: Vec<_> = (0..80).map(|_| clocked.pick(0).unwrap()).collect();
        let loads = clocked.picker.handle().endpoints();
        drop(open);
        loads.iter().map(|one| one.figures().in_flight()).max().unwrap()
    };
    assert!(most_in_flight(1) > 12);
    assert_eq!(most_in_flight(8), 10, "of all the least loaded");
    assert_eq!(most_in_flight(16), 10);
    for choices in [0, 17] {
        let error = LeastLoaded::new().choices(choices).unwrap_err();
        assert_eq!(error.field(), "choices");
    }
}

#[test]
fn a_weighted_draw_goes_by_weight_and_follows_the_set() {
    let set = weighted(&[5, 3, 2]);
    let clocked = Clocked::new(&set, WeightedRandom::seeded(1));
    let is_about = |went: &BTreeMap<String, u64>, key: &str, n: u64| went[key].abs_diff(n) < 300;
    let went = clocked.went(0, 10_000);
    assert!(
        is_about(&went, "h0", 5_000) && is_about(&went, "h1", 3_000),
        "{went:?}"
    );
    set.insert(endpoint("h0", "", 15));
    let went = clocked.went(10_000, 10_000);
    assert!(
        is_about(&went, "h0", 7_500) && is_about(&went, "h2", 1_000),
        "{went:?}"
    );
    set.remove("h0");
    assert_eq!(keys(&clocked.went(20_000, 100)), ["h1", "h2"]);
}

#[test]
fn turns_go_by_weight_within_a_zone_and_among_the_others() {
    let set: Endpoints = [("a", "eu", 3), ("b", "eu", 1), ("c", "us", 3), ("d", "us", 1)]
        .map(|(key, zone, weight)| endpoint(key, zone, weight))
        .into_iter()
        .collect();
    let rule = ZoneFirst::new("eu", WeightedRoundRobin::new())
        .seeded(1)
        .at_least(4)
        .unwrap();
    let went = Clocked::new(&set, rule).went(0, 10_000);
    let is_about = |key: &str, n: u64| went[key].abs_diff(n) < 250;
    assert!(is_about("a", 3_750) && is_about("b", 1_250), "{went:?}");
    assert!(is_about("c", 3_750) && is_about("d", 1_250), "{went:?}");
}

// ---- large sets that change all the time

fn all_rules() -> Vec<Arc<dyn Rule>> {
    let is_even = |one: &Endpoint| one.key().ends_with(['0', '2', '4', '6', '8']);
    vec![
        Arc::new(WeightedRoundRobin::new()),
        Arc::new(WeightedRandom::seeded(1)),
        Arc::new(ConsistentHash::new()),
        Arc::new(ConsistentHash::new().bounded_by(1.25).unwrap()),
        Arc::new(ZoneFirst::new("eu", WeightedRoundRobin::new()).seeded(1)),
        Arc::new(ZoneFirst::new("eu", ConsistentHash::new()).seeded(1)),
        Arc::new(Only::new(is_even, RoundRobin::new()).or_all()),
        Arc::new(Only::new(is_even, ZoneFirst::new("us", LeastLoaded::seeded(1)).seeded(1)).or_all()),
        Arc::new(ZoneFirst::new("us", Only::new(is_even, WeightedRandom::seeded(1))).seeded(1)),
    ]
}

#[test]
fn through_changes_of_a_large_set_none_that_has_gone_is_picked_and_newcomers_are_soon() {
    for (which, rule) in all_rules().into_iter().enumerate() {
        let set = zones(&[("eu", 300), ("us", 300)]);
        let clocked = Clocked::new(&set, rule);
        let mut present: BTreeSet<String> = set
            .snapshot()
            .endpoints()
            .iter()
            .map(|one| one.key().to_owned())
            .collect();
        let mut seen = BTreeSet::new();
        for n in 0..3_000_usize {
            let key = format!("{}{}", ["eu", "us"][n % 2], n / 2 % 300);
            if present.remove(&key) {
                set.remove(&key);
            }
            let zone = ["eu", "us"][n % 3 % 2];
            let next = format!("{zone}{}", 300 + n);
            present.insert(next.clone());
            set.insert(endpoint(&next, zone, 1));
            for user in 0..3 {
                // 2 ms for 100 changes.
                let picked = clocked.pick_for(n as u64 * 3 + user, n as u64 / 50);
                let key = picked.endpoint().key();
                assert!(present.contains(key), "{which}: {key} at {n}");
                seen.insert(key.to_owned());
            }
        }
        // With 3,600 in it what was worked out holds for 72 ms.
        for millis in 200..9_200 {
            seen.insert(clocked.pick_for(millis, millis).endpoint().key().to_owned());
        }
        let newcomers = |zone: &str| {
            seen.iter()
                .filter(|key| key.starts_with(zone) && key.len() > 5)
                .count()
        };
        assert!(newcomers("eu") + newcomers("us") > 300, "{which}");
    }
}

/// As a user may write it: there is one at least.
fn last_of_some(candidates: &Candidates<'_>) -> usize {
    assert!(!candidates.is_empty());
    let indexes = (0..candidates.len()).filter(|&index| candidates.get(index).is_some());
    let last = indexes.max().unwrap();
    assert!(candidates.iter().count() > 0);
    last
}

/// Where everything has changed its place, or has gone, at once.
#[test]
fn a_large_set_in_another_order_or_of_others_loses_no_call_and_no_home() {
    const MANY: usize = 300;
    let zoned = |prefix: &str, n: usize| endpoint(&format!("{prefix}-{n}"), ["x", "y"][n % 2], 1);
    let all = |prefix: &str| -> Vec<Endpoint> { (0..MANY).map(|n| zoned(prefix, n)).collect() };
    let own: Vec<Arc<dyn Rule>> = vec![
        Arc::new(ZoneFirst::new("x", last_of_some)),
        Arc::new(Only::new(|one| one.zone() == Some("x"), last_of_some).or_all()),
        Arc::new(Only::new(|one| one.zone() == Some("x"), ZoneFirst::new("x", last_of_some)).or_all()),
        Arc::new(ZoneFirst::new("x", ConsistentHash::new())),
    ];
    for rule in all_rules().into_iter().chain(own) {
        let endpoints: Endpoints = all("old").into_iter().collect();
        let clocked = Clocked::new(&endpoints, rule.clone());
        let homes = |millis| -> Vec<String> {
            let homes = (0..200).map(|user| clocked.pick_for(user, millis).endpoint().key().to_owned());
            homes.collect()
        };
        let before = homes(0);
        let mut other = all("old");
        other.reverse();
        endpoints.replace(other);
        let after = homes(1);
        // At once as widely as before.
        let spread = |homes: &[String]| homes.iter().collect::<BTreeSet<_>>().len();
        assert!(
            spread(&after) * 3 >= spread(&before),
            "{} {}",
            spread(&before),
            spread(&after)
        );
        endpoints.replace(all("new"));
        assert!(spread(&homes(2)) * 3 >= spread(&before));
        // One by one, so that what was worked out is used on.
        for n in (0..MANY).step_by(2) {
            endpoints.remove(&format!("new-{n}"));
            endpoints.insert(zoned("newer", n));
            let _ = clocked.pick_for(n as u64, 2);
        }
        for n in (1..MANY).step_by(2) {
            endpoints.remove(&format!("new-{n}"));
        }
        assert!(homes(2).iter().all(|home| home.starts_with("newer")));
    }
    let endpoints: Endpoints = all("old").into_iter().collect();
    let clocked = Clocked::new(&endpoints, ConsistentHash::new());
    let homes = |millis| -> Vec<String> {
        let homes = (0..200).map(|user| clocked.pick_for(user, millis).endpoint().key().to_owned());
        homes.collect()
    };
    let before = homes(0);
    endpoints.replace(all("old").into_iter().rev());
    assert_eq!(before, homes(1));
}

#[test]
fn a_part_of_a_large_set_whose_last_member_is_replaced_is_looked_for_anew() {
    let set = many(1_000);
    set.insert(endpoint("canary-0", "", 1));
    let clocked = Clocked::new(&set, Only::new(is_canary, WeightedRoundRobin::new()));
    for n in 0..100 {
        let picked = clocked.pick(n / 50).unwrap();
        assert_eq!(picked.endpoint().key(), format!("canary-{n}"));
        set.insert(endpoint(&format!("canary-{}", n + 1), "", 1));
        set.remove(&format!("canary-{n}"));
    }
    set.remove("canary-100");
    assert!(clocked.pick(2).is_none());
}

#[test]
fn what_a_rule_keeps_for_a_part_of_a_large_set_is_worked_out_now_and_then() {
    let set = zones(&[("eu", 500), ("us", 500)]);
    let made = Arc::new(AtomicUsize::new(0));
    let cached = Cached(u64::MAX.into(), made.clone());
    let clocked = Clocked::new(&set, ZoneFirst::new("eu", cached));
    for millis in 0..1_000 {
        set.remove(&format!("us{}", millis % 500));
        set.insert(endpoint(&format!("us{}", millis % 500), "us", 1));
        clocked.pick(millis);
    }
    let times = made.load(Relaxed);
    assert!((45..=51).contains(&times), "every 20 ms: {times}");
    // After a while without a change the next one is seen at once.
    set.remove("eu0");
    clocked.pick(2_000);
    assert_eq!(made.load(Relaxed), times + 1);
}

#[test]
fn until_it_is_worked_out_anew_what_was_worked_out_is_about_the_same_endpoints() {
    let set = many(600);
    let clocked = Clocked::new(&set, ConsistentHash::new());
    let before = clocked.homes(2_000);
    set.remove("h0");
    for (before, after) in before.iter().zip(clocked.homes(2_000)) {
        assert!(*before == after || before == "h0", "{before} {after}");
    }
    let rules: [Arc<dyn Rule>; 2] = [
        Arc::new(WeightedRoundRobin::new()),
        Arc::new(WeightedRandom::seeded(1)),
    ];
    for rule in rules {
        let set = many(600);
        set.insert(endpoint("heavy", "", 200));
        let clocked = Clocked::new(&set, rule);
        let heavy = || {
            let picked = (0..8_000).map(|_| clocked.pick(0).unwrap());
            picked.filter(|one| one.endpoint().key() == "heavy").count()
        };
        assert!(heavy().abs_diff(2_000) < 200);
        set.remove("h0");
        assert!(heavy().abs_diff(2_000) < 200);
    }
}

#[test]
fn a_pick_allocates_nothing_be_the_set_as_it_was_or_changed_a_moment_ago() {
    let small: [Arc<dyn Rule>; 2] = [
        Arc::new(Only::live(|one| one.in_flight() < 1_000, LeastLoaded::seeded(1))),
        Arc::new(LeastLoaded::seeded(1).choices(5).unwrap()),
    ];
    let large = all_rules().into_iter().map(|rule| (300, rule));
    for (n, rule) in large.chain(small.map(|rule| (30, rule))) {
        let set = zones(&[("eu", n), ("us", n)]);
        let clocked = Clocked::new(&set, rule);
        let requests: Vec<_> = (0..200)
            .map(|user| {
                let request = Request::builder().extension(Affinity::of(format!("user-{user}")));
                request.body(()).unwrap()
            })
            .collect();
        let picks = || {
            allocation_counter::measure(|| {
                for request in &requests {
                    drop(clocked.picker.pick(request, clocked.at(1)));
                }
            })
        };
        // Counters are made when they are looked at.
        assert_eq!(clocked.picker.handle().endpoints().len(), 2 * n);
        picks();
        assert_eq!(picks().count_total, 0);
        set.remove("us0");
        if n == 300 {
            assert_eq!(picks().count_total, 0);
        }
    }
}

/// Counts how often the rule is asked.
struct Counted<'a, R>(R, &'a AtomicUsize);

impl<R: Rule> Rule for Counted<'_, R> {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        self.1.fetch_add(1, Relaxed);
        self.0.pick(candidates)
    }
}

/// All but so many have a veto.
fn forbid_all_but(endpoints: &Endpoints, left: usize) {
    let snapshot = endpoints.snapshot();
    let step = snapshot.endpoints().len() / left.max(1);
    for (n, endpoint) in snapshot.endpoints().iter().enumerate() {
        if left == 0 || n % step != step - 1 {
            endpoint.eligibility().forbid(Veto::User);
        }
    }
}

#[test]
fn where_all_or_nearly_all_have_a_veto_a_rule_is_hardly_ever_asked_in_vain_and_a_rotation_stays_even() {
    for (n, left, picks) in [
        (6, 0, 60),
        (130, 0, 1_300),
        (1_000, 0, 3_000),
        (1_000, 1, 100),
        (1_000, 4, 2_000),
        (1_000, 13, 2_600),
    ] {
        let (endpoints, asked) = (many(n), AtomicUsize::new(0));
        let world = Clocked::new(&endpoints, Counted(RoundRobin::new(), &asked));
        forbid_all_but(&endpoints, left);
        let mut went = BTreeMap::new();
        for _ in 0..picks {
            *went
                .entry(world.pick(0).unwrap().endpoint().key().to_owned())
                .or_insert(0) += 1;
        }
        let share = picks / if left == 0 { n } else { left };
        assert_eq!(went.len() * share, picks, "of {n} {left}: {went:?}");
        assert!(
            went.values().all(|&count| count == share),
            "of {n} {left}: {went:?}"
        );
        let in_vain = asked.load(Relaxed) - picks;
        assert!(
            in_vain <= if n == 1_000 { 64 } else { 0 },
            "of {n} {left}: {in_vain} in vain"
        );
    }
}

#[test]
fn who_is_left_where_nearly_all_have_a_veto_is_looked_for_again_after_a_while() {
    let (endpoints, asked) = (many(1_000), AtomicUsize::new(0));
    let world = Clocked::new(&endpoints, Counted(RoundRobin::new(), &asked));
    let keys = |millis| -> BTreeSet<String> {
        let picks = (0..20).map(|_| world.pick(millis).unwrap().endpoint().key().to_owned());
        picks.collect()
    };
    let set = |keys: &[&str]| -> BTreeSet<String> { keys.iter().map(|key| (*key).to_owned()).collect() };
    forbid_all_but(&endpoints, 2);
    assert_eq!(keys(0), set(&["h499", "h999"]));
    forbid(&endpoints, "h499");
    assert_eq!(keys(0), set(&["h999"]), "a veto counts at once");
    allow(&endpoints, "h7");
    // A microsecond for each endpoint of the set.
    assert_eq!(keys(2), set(&["h7", "h999"]));
    forbid(&endpoints, "h7");
    forbid(&endpoints, "h999");
    allow(&endpoints, "h8");
    assert_eq!(
        keys(2),
        set(&["h8"]),
        "where all that were left have a veto all are looked at"
    );
    let before = asked.load(Relaxed);
    (0..20).for_each(|_| assert_eq!(keys(2), set(&["h8"])));
    assert!(
        asked.load(Relaxed) - before < 500,
        "and what was known is not tried again"
    );
    endpoints.remove("h8");
    endpoints.insert(endpoint("new", "", 1));
    assert_eq!(keys(2), set(&["new"]), "and after a change");
}

// ---- a rule by a closure

/// The one with the fewest attempts in flight, if that has no more than one.
fn with_room() -> impl Rule + Send + Sync + 'static {
    from_fn(|candidates| {
        let load = candidates.iter().map(|candidate| candidate.in_flight());
        let (index, load) = load.enumerate().min_by_key(|&(_, load)| load)?;
        (load < 2).then_some(index)
    })
}

#[test]
fn a_rule_by_a_closure_picks_what_that_says_and_none_where_it_says_so() {
    let endpoints = many(3);
    let world = Clocked::new(&endpoints, with_room());
    forbid(&endpoints, "h1");
    let mut open: Vec<_> = (0..4).map(|_| world.pick(0).unwrap()).collect();
    let keys: Vec<_> = open.iter().map(|picked| picked.endpoint().key()).collect();
    assert_eq!(keys, ["h0", "h2", "h0", "h2"], "one with a veto is left out");
    assert!(world.pick(0).is_none());
    open.swap_remove(1).end(Verdict::Success, world.at(1));
    assert_eq!(world.pick(1).unwrap().endpoint().key(), "h2");
}

#[test]
fn a_rule_by_a_closure_goes_wherever_a_rule_goes() {
    let shared: Arc<dyn Rule + Send + Sync> = Arc::new(with_room());
    let zoned = Clocked::new(&zones(&[("eu", 2), ("us", 1)]), ZoneFirst::new("us", shared));
    assert_eq!(zoned.pick(0).unwrap().endpoint().key(), "us0");
    let only = Clocked::new(&many(2), Only::new(|one| one.key() == "h1", with_room()));
    assert_eq!(only.pick(0).unwrap().endpoint().key(), "h1");
}

/// One that answers in 10 ms, and three that take 2 s and have been found ill.
#[test]
fn a_newcomer_is_taken_for_like_those_that_are_well() {
    for seed in 0..10 {
        let rule = Ewma::builder().slow_start(Duration::ZERO).seed(seed);
        let endpoints = many(4);
        let picker = Picker::new(endpoints.clone(), rule.build().unwrap());
        let begin = Instant::now();
        let pick = |at| picker.pick(&Request::new(()), at).unwrap();
        let open: Vec<_> = (0..4).map(|_| pick(begin)).collect();
        let well = open[0].endpoint().clone();
        let mut now = begin;
        for (one, took) in open.into_iter().zip([10, 2_000, 2_000, 2_000]) {
            now = begin + Duration::from_millis(took);
            if *one.endpoint() != well {
                one.endpoint().eligibility().forbid(Veto::Probe);
            }
            one.end(Verdict::Success, now);
        }
        let under_way = [pick(now), pick(now)];
        assert!(under_way.iter().all(|one| *one.endpoint() == well));
        endpoints.insert(endpoint("new", "", 1));
        // At the other one it would be the third.
        assert_eq!(pick(now).endpoint().key(), "new", "with seed {seed}");
    }
}
