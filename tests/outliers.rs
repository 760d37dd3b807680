//! What a balancer does about endpoints that fail more than their peers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use futures_util::FutureExt;
use http::{Request, Response};
use proptest::prelude::*;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, Candidates, Ejection, EjectionCause, EndpointFigures, Ewma, LeastLoaded,
        LoadBalanceLayer, OutlierEjection, OutlierEjectionBuilder, Picked, Picker, RibbonRoundRobin,
        RoundRobin, Rule, ZoneAvoidance,
    },
    call::{BoxError, Classify, Endpoint, Endpoints, ErrorRef, LateVerdict, Verdict, Veto},
};

fn endpoint(name: &str) -> Endpoint {
    Endpoint::builder(format!("http://{name}"))
        .key(name)
        .build()
        .unwrap()
}

fn set(n: usize) -> Endpoints {
    (0..n).map(|n| endpoint(&format!("h{n}"))).collect()
}

/// The defaults, with times that can be foretold.
fn settings() -> OutlierEjectionBuilder {
    OutlierEjection::builder().jitter(0.0)
}

/// A picker with a clock that is set by hand.
struct World<R = RoundRobin> {
    set: Endpoints,
    picker: Picker<R>,
    start: Instant,
    now: Cell<Duration>,
}

const WELL: fn(&str) -> Verdict = |_| Verdict::Success;

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl World {
    fn new(n: usize, settings: OutlierEjectionBuilder) -> Self {
        World::of(set(n), RoundRobin::new(), settings)
    }
}

impl<R: Rule> World<R> {
    fn of(set: Endpoints, rule: R, settings: OutlierEjectionBuilder) -> Self {
        World {
            picker: Picker::new(set.clone(), rule).outliers(settings.build().unwrap()),
            set,
            start: Instant::now(),
            now: Cell::default(),
        }
    }

    fn pass(&self, seconds: f64) {
        self.now.set(self.now.get() + secs(seconds));
    }

    fn at(&self) -> Instant {
        self.start + self.now.get()
    }

    fn pick(&self) -> Picked {
        self.picker
            .pick(&Request::new(()), self.at())
            .expect("the set is not empty")
    }

    /// One call, which ends at once. Where it went.
    fn call(&self, verdict: impl Fn(&str) -> Verdict) -> String {
        let picked = self.pick();
        let key = picked.endpoint().key().to_owned();
        picked.end(verdict(&key), self.at());
        key
    }

    fn calls(&self, n: usize, verdict: impl Fn(&str) -> Verdict) -> Vec<String> {
        (0..n).map(|_| self.call(&verdict)).collect()
    }

    /// Calls until one has gone to this endpoint, and gives its attempt back.
    fn pick_this(&self, key: &str) -> Picked {
        (0..100)
            .map(|_| self.pick())
            .find_map(|picked| {
                if picked.endpoint().key() == key {
                    return Some(picked);
                }
                picked.end(Verdict::Success, self.at());
                None
            })
            .expect("it is picked")
    }

    fn end_at(&self, key: &str, verdict: Verdict) {
        self.pick_this(key).end(verdict, self.at());
    }

    fn fail(&self, key: &str, times: usize) {
        for _ in 0..times {
            self.end_at(key, Verdict::Failure);
        }
    }

    fn ejection(&self, key: &str) -> Option<Ejection> {
        self.picker.handle().ejection(key)
    }

    fn ejected(&self) -> Vec<String> {
        let endpoints = self.picker.handle().endpoints();
        let ejected = endpoints.iter().filter(|endpoint| endpoint.ejection().is_some());
        ejected
            .map(|endpoint| endpoint.endpoint().key().to_owned())
            .collect()
    }

    fn endpoint(&self, key: &str) -> Endpoint {
        let snapshot = self.set.snapshot();
        let mut endpoints = snapshot.endpoints().iter();
        endpoints.find(|endpoint| endpoint.key() == key).unwrap().clone()
    }

    fn has_veto(&self, key: &str) -> bool {
        self.endpoint(key).eligibility().is_forbidden_by(Veto::Outlier)
    }

    /// For how long this one is ejected from now on.
    fn time_of(&self, key: &str) -> f64 {
        (self.ejection(key).unwrap().until() - self.at()).as_secs_f64()
    }

    /// Where the next calls go, all of them well.
    fn goes_to(&self, key: &str) -> bool {
        let n = 2 * self.set.snapshot().endpoints().len();
        self.calls(n, WELL).iter().any(|went| went == key)
    }
}

fn ill(bad: &'static str) -> impl Fn(&str) -> Verdict {
    move |key| {
        if key == bad {
            Verdict::Failure
        } else {
            Verdict::Success
        }
    }
}

// ---- triggers

#[test]
fn nothing_is_ejected_unless_it_is_asked_for() {
    let set = set(3);
    let picker = Picker::new(set.clone(), RoundRobin::new());
    let now = Instant::now();
    for _ in 0..100 {
        picker
            .pick(&Request::new(()), now)
            .unwrap()
            .end(Verdict::Failure, now);
    }
    assert!(
        set.snapshot()
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.eligibility().is_eligible())
    );
    let endpoints = picker.handle().endpoints();
    assert!(
        endpoints
            .iter()
            .all(|endpoint| endpoint.ejection().is_none() && endpoint.ejections() == 0)
    );
}

#[test]
fn an_endpoint_is_ejected_after_failures_in_a_row_and_a_success_ends_the_row() {
    let world = World::new(3, settings());
    world.fail("h1", 4);
    world.end_at("h1", Verdict::Success);
    world.fail("h1", 4);
    assert!(world.ejection("h1").is_none());
    world.fail("h1", 1);
    let ejection = world.ejection("h1").unwrap();
    assert_eq!(ejection.cause(), EjectionCause::FailuresInARow { failures: 5 });
    assert_eq!(
        (ejection.since(), ejection.until()),
        (world.at(), world.at() + secs(30.0))
    );
    assert_eq!((ejection.in_a_row(), ejection.is_probing()), (1, false));
    assert!(world.has_veto("h1") && !world.goes_to("h1"));
    let figures = world.picker.handle().endpoints();
    let ejections: Vec<u64> = figures.iter().map(EndpointFigures::ejections).collect();
    assert_eq!(ejections, [0, 1, 0]);
    assert_eq!(figures[1].ejection(), Some(&ejection));
}

#[test]
fn what_is_ignored_neither_counts_nor_ends_a_row() {
    let world = World::new(2, settings());
    world.fail("h0", 4);
    for _ in 0..10 {
        world.end_at("h0", Verdict::Ignored);
    }
    assert!(world.ejection("h0").is_none());
    world.fail("h0", 1);
    assert!(world.ejection("h0").is_some());
}

#[test]
fn what_is_given_up_counts_as_a_failure_after_it_has_waited() {
    let give_up = |world: &World, waited: f64| {
        for _ in 0..5 {
            let picked = world.pick_this("h0");
            world.pass(waited);
            picked.abandon(world.at());
        }
    };
    let world = World::new(2, settings());
    give_up(&world, 0.999);
    assert!(world.ejection("h0").is_none(), "its callers lost their patience");
    give_up(&world, 1.0);
    assert!(world.ejection("h0").is_some(), "it has fallen silent");
    let world = World::new(2, settings().ignore_abandoned());
    give_up(&world, 1_000.0);
    assert!(world.ejection("h0").is_none());
}

#[test]
fn failures_in_a_row_can_be_switched_off() {
    let world = World::new(2, settings().no_consecutive_failures());
    world.fail("h0", 50);
    assert!(world.ejection("h0").is_none());
}

#[test]
fn a_success_rate_far_below_that_of_the_peers_ejects_at_the_end_of_the_interval() {
    let world = World::new(6, settings());
    let n = Cell::new(0);
    // Every third fails: never two in a row.
    world.calls(600, |key| {
        n.set(n.get() + usize::from(key == "h2"));
        if key == "h2" && n.get() % 3 == 0 {
            Verdict::Failure
        } else {
            Verdict::Success
        }
    });
    world.pass(9.9);
    world.call(WELL);
    assert!(world.ejected().is_empty());
    world.pass(0.1);
    world.call(WELL);
    assert_eq!(world.ejected(), ["h2"]);
    let cause = EjectionCause::SuccessRate {
        successes: 67,
        failures: 33,
    };
    assert_eq!(world.ejection("h2").unwrap().cause(), cause);
}

#[test]
fn success_rates_of_one_interval_are_not_added_to_those_of_the_next() {
    let every_third = |world: &World| {
        let n = Cell::new(0);
        world.calls(6 * 60, |key| {
            n.set(n.get() + usize::from(key == "h2"));
            if key == "h2" && n.get() % 3 == 0 {
                Verdict::Failure
            } else {
                Verdict::Success
            }
        });
        world.pass(10.0);
        world.call(WELL);
    };
    let world = World::new(6, settings());
    every_third(&world);
    every_third(&world);
    assert!(world.ejected().is_empty(), "60 attempts say nothing");
    let world = World::new(6, settings().success_rate_volume(60, 5));
    every_third(&world);
    assert_eq!(world.ejected(), ["h2"]);
    let world = World::new(6, settings().success_rate_volume(60, 5).no_success_rate());
    every_third(&world);
    assert!(world.ejected().is_empty());
}

#[test]
fn a_failure_percentage_ejects_if_it_is_given() {
    let often = |key: &str, n: &Cell<usize>| {
        n.set(n.get() + usize::from(key <= "h2"));
        if key <= "h2" && n.get() % 10 != 0 {
            Verdict::Failure
        } else {
            Verdict::Success
        }
    };
    for (given, ejected) in [(None, 0), (Some(95.0), 0), (Some(85.0), 3)] {
        // Three of six fail: by the success rate none of them stands out.
        let builder = settings().no_consecutive_failures();
        let world = World::new(
            6,
            given
                .into_iter()
                .fold(builder, OutlierEjectionBuilder::failure_percentage),
        );
        let n = Cell::new(0);
        world.calls(6 * 50, |key| often(key, &n));
        world.pass(10.0);
        world.call(WELL);
        assert_eq!(world.ejected().len(), ejected, "{given:?}");
    }
}

// ---- how many

#[test]
fn at_most_half_of_the_set_is_ejected_and_one_of_two_and_never_the_only_one() {
    for (n, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (9, 4), (10, 5)] {
        let world = World::new(n, settings());
        world.calls(20 * n, |_| Verdict::Failure);
        assert_eq!(world.ejected().len(), most, "of {n}");
        let vetoes = world
            .set
            .snapshot()
            .endpoints()
            .iter()
            .filter(|one| !one.eligibility().is_eligible())
            .count();
        assert_eq!(vetoes, most, "of {n}");
        assert!(!world.picker.handle().disregards_ejections());
    }
}

#[test]
fn the_share_is_what_it_is_set_to_but_one_always_may_be() {
    for (percent, most) in [(10.0, 1), (30.0, 3), (100.0, 9)] {
        let world = World::new(10, settings().max_ejected(percent).panic_threshold(0.0));
        world.calls(200, |_| Verdict::Failure);
        assert_eq!(world.ejected().len(), most, "{percent} %");
    }
}

#[test]
fn one_that_was_spared_is_ejected_when_there_is_room() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    world.fail("h1", 7);
    assert_eq!(world.ejected(), ["h0"]);
    world.pass(0.1);
    assert!(world.set.remove("h0"));
    world.set.insert(endpoint("h3"));
    world.fail("h1", 3);
    assert_eq!(world.ejected(), ["h1"], "ten in a row");
}

#[test]
fn the_worst_success_rates_are_ejected_first() {
    let world = World::new(20, settings().no_consecutive_failures().max_ejected(10.0));
    let n = Cell::new(0);
    world.calls(20 * 100, |key| {
        n.set(n.get() + 1);
        let fails = match key {
            "h3" => n.get() / 20 % 3 != 0,
            "h7" | "h11" => n.get() / 20 % 4 != 0,
            _ => false,
        };
        if fails { Verdict::Failure } else { Verdict::Success }
    });
    world.pass(10.0);
    world.call(WELL);
    assert_eq!(world.ejected(), ["h7", "h11"]);
}

#[test]
fn a_set_that_becomes_smaller_gets_back_those_that_are_too_many() {
    let world = World::new(10, settings().panic_threshold(0.0));
    world.calls(100, |_| Verdict::Failure);
    let ejected = world.ejected();
    assert_eq!(ejected.len(), 5);
    let others: Vec<String> = (0..10)
        .map(|n| format!("h{n}"))
        .filter(|key| !ejected.contains(key))
        .collect();
    for key in &others[1..] {
        assert!(world.set.remove(key));
    }
    world.pass(0.1);
    world.call(WELL);
    assert_eq!(world.ejected().len(), 3, "of six");
}

#[test]
fn in_a_panic_ejections_are_disregarded_and_the_vetoes_of_others_stay() {
    let world = World::new(10, settings());
    for key in ["h0", "h1", "h2"] {
        world.fail(key, 5);
    }
    world.call(WELL);
    let by_user = ["h4", "h5", "h6"].map(|key| world.endpoint(key));
    for one in &by_user {
        one.eligibility().forbid(Veto::User);
    }
    assert!(!world.goes_to("h0"), "it is looked at once a second");
    world.pass(1.0);
    assert!(world.goes_to("h0") && world.goes_to("h1") && world.goes_to("h2"));
    assert!(!world.goes_to("h4"));
    assert!(world.picker.handle().disregards_ejections());
    assert_eq!(world.ejected(), ["h0", "h1", "h2"], "they have not returned");
    by_user[0].eligibility().allow(Veto::User);
    world.pass(1.0);
    assert!(!world.goes_to("h0") && world.has_veto("h0"), "five are half");
    assert!(!world.picker.handle().disregards_ejections());
}

#[test]
fn an_ejection_begins_a_panic_and_a_return_ends_it_at_once() {
    let world = World::new(12, settings());
    world.fail("h0", 5);
    world.call(WELL);
    for key in ["h2", "h3", "h4", "h5", "h6"] {
        world.endpoint(key).eligibility().forbid(Veto::User);
    }
    let panics = || {
        world.pass(0.1);
        world.call(WELL);
        world.picker.handle().disregards_ejections()
    };
    world.pass(1.0);
    assert!(!panics(), "six of twelve");
    world.fail("h1", 5);
    assert!(panics(), "five");
    world.pass(29.0);
    assert!(panics());
    for _ in 0..3 {
        world.end_at("h0", Verdict::Success);
    }
    assert!(!panics(), "six again");
}

#[test]
fn what_an_endpoint_does_in_a_panic_decides_nothing_before_its_time_is_over() {
    let world = World::new(4, settings());
    world.fail("h0", 5);
    world.fail("h1", 5);
    world.endpoint("h2").eligibility().forbid(Veto::User);
    world.pass(1.0);
    world.call(WELL);
    assert!(world.picker.handle().disregards_ejections());
    let until = world.ejection("h0").unwrap().until();
    world.fail("h0", 10);
    world.calls(20, WELL);
    assert_eq!(world.ejection("h0").unwrap().until(), until);
    world.pass(29.0);
    for _ in 0..3 {
        world.end_at("h0", Verdict::Success);
    }
    assert!(world.ejection("h0").is_none(), "its calls were probes");
}

// ---- for how long

#[test]
fn the_time_grows_with_each_ejection_in_a_row_up_to_its_maximum() {
    let world = World::new(2, settings().probe_successes(1));
    let mut times = Vec::new();
    world.fail("h0", 5);
    for _ in 0..11 {
        let time = world.time_of("h0");
        times.push(time as u64);
        world.pass(time);
        world.fail("h0", 1);
        assert_eq!(world.ejection("h0").unwrap().cause(), EjectionCause::ProbeFailed);
    }
    assert_eq!(times, [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300]);
    assert_eq!(world.ejection("h0").unwrap().in_a_row(), 12);
}

#[test]
fn for_each_interval_in_which_it_was_well_its_next_time_is_shorter_again() {
    let ejected_again_after = |seconds: f64, picks: bool| {
        let world = World::new(2, settings().probe_successes(1));
        world.call(WELL);
        world.pass(5.0);
        world.fail("h0", 5);
        for _ in 0..3 {
            world.pass(world.time_of("h0"));
            world.fail("h0", 1);
        }
        assert_eq!(world.time_of("h0"), 120.0);
        world.pass(120.0);
        world.end_at("h0", Verdict::Success);
        assert!(world.ejection("h0").is_none());
        if picks {
            for _ in 0..seconds as usize {
                world.pass(1.0);
                world.calls(2, WELL);
            }
        } else {
            world.pass(seconds);
        }
        world.fail("h0", 5);
        world.time_of("h0")
    };
    // Ejected at 5, 35, 95 and 185 s, it returns at 305 s; intervals end at 310, 320 and 330 s.
    for picks in [true, false] {
        assert_eq!(ejected_again_after(14.0, picks), 150.0);
        assert_eq!(ejected_again_after(15.0, picks), 120.0);
        assert_eq!(ejected_again_after(25.0, picks), 90.0);
        assert_eq!(ejected_again_after(1_000.0, picks), 30.0);
    }
}

#[test]
fn a_seed_determines_by_how_much_times_are_shorter() {
    let times = |seed| {
        let world = World::new(20, OutlierEjection::builder().seeded(seed));
        world.calls(100, |_| Verdict::Failure);
        let keys = world.ejected();
        keys.iter().map(|key| world.time_of(key)).collect::<Vec<_>>()
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
    assert_eq!(times(1).len(), 10);
    assert!(
        times(1).iter().all(|time| (24.0..=30.0).contains(time)),
        "{:?}",
        times(1)
    );
    assert!(times(1).iter().any(|&time| time < 27.0));
}

// ---- the way back

#[test]
fn after_its_time_one_call_at_a_time_goes_there_and_three_successes_bring_it_back() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    world.pass(29.9);
    assert!(!world.goes_to("h0"));
    world.pass(0.1);
    for _ in 0..3 {
        assert!(world.ejection("h0").is_some());
        let probe = world.pick_this("h0");
        assert!(world.ejection("h0").unwrap().is_probing());
        assert!(!world.goes_to("h0") && world.has_veto("h0"), "one at a time");
        probe.end(Verdict::Success, world.at());
    }
    assert!(world.ejection("h0").is_none() && !world.has_veto("h0"));
    let open = [world.pick_this("h0"), world.pick_this("h0")];
    drop(open);
}

#[test]
fn a_probe_that_fails_ejects_it_again_and_the_successes_before_it_are_forgotten() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    world.pass(30.0);
    world.end_at("h0", Verdict::Success);
    world.end_at("h0", Verdict::Success);
    world.fail("h0", 1);
    assert_eq!(world.time_of("h0"), 60.0);
    assert!(!world.goes_to("h0"));
    world.pass(60.0);
    world.end_at("h0", Verdict::Success);
    world.end_at("h0", Verdict::Success);
    assert!(world.ejection("h0").is_some());
    world.end_at("h0", Verdict::Success);
    assert!(world.ejection("h0").is_none());
}

#[test]
fn a_probe_that_says_nothing_lets_the_next_one_go_at_once() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    world.pass(30.0);
    drop(world.pick_this("h0"));
    world.pick_this("h0").abandon(world.at());
    world.end_at("h0", Verdict::Ignored);
    assert!(world.ejection("h0").unwrap().is_probing());
    let silent = world.pick_this("h0");
    world.pass(1.0);
    silent.abandon(world.at());
    assert_eq!(world.ejection("h0").unwrap().cause(), EjectionCause::ProbeFailed);
}

#[test]
fn a_probe_that_never_ends_lets_another_go_after_the_base_time_and_both_count() {
    let world = World::new(3, settings().probe_successes(2));
    world.fail("h0", 5);
    world.pass(30.0);
    let first = world.pick_this("h0");
    world.pass(29.9);
    assert!(!world.goes_to("h0"));
    world.pass(0.1);
    let second = world.pick_this("h0");
    assert!(!world.goes_to("h0"));
    first.end(Verdict::Success, world.at());
    assert!(!world.goes_to("h0"), "the second one is still out");
    second.end(Verdict::Success, world.at());
    assert!(world.ejection("h0").is_none());
}

#[test]
fn of_two_probes_the_one_that_ends_after_the_other_has_failed_decides_nothing() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    world.pass(30.0);
    let probes = [world.pick_this("h0"), {
        world.pass(30.0);
        world.pick_this("h0")
    }];
    for probe in probes {
        probe.end(Verdict::Failure, world.at());
    }
    let ejection = world.ejection("h0").unwrap();
    assert_eq!((ejection.in_a_row(), ejection.is_probing()), (2, false));
}

#[test]
fn attempts_that_started_before_an_ejection_decide_nothing_after_it() {
    let world = World::new(2, settings());
    let late: Vec<Picked> = (0..30).map(|_| world.pick_this("h0")).collect();
    let mut late = late.into_iter();
    world.fail("h0", 5);
    let before = world.ejection("h0");
    for picked in late.by_ref().take(10) {
        picked.end(Verdict::Failure, world.at());
    }
    assert_eq!(world.ejection("h0"), before);
    world.pass(30.0);
    world.call(WELL);
    for picked in late.by_ref().take(5) {
        picked.end(Verdict::Success, world.at());
    }
    for picked in late.by_ref().take(5) {
        picked.end(Verdict::Failure, world.at());
    }
    assert_eq!(world.ejection("h0").unwrap().in_a_row(), 1);
    for _ in 0..3 {
        world.end_at("h0", Verdict::Success);
    }
    assert!(world.ejection("h0").is_none());
    for picked in late.take(7) {
        picked.end(Verdict::Failure, world.at());
    }
    assert!(world.ejection("h0").is_none());
    world.fail("h0", 4);
    assert!(world.ejection("h0").is_none(), "the row begins with the return");
    world.fail("h0", 1);
    assert!(world.ejection("h0").is_some());
}

#[test]
fn one_that_comes_back_gets_less_than_its_part_at_first() {
    let world = World::of(set(4), Ewma::seeded(1), settings().consecutive_failures(2));
    let drive = |seconds: f64, bad: &'static str| {
        let mut went = 0;
        for _ in 0..(seconds * 100.0) as usize {
            world.pass(0.01);
            let picked = world.pick();
            let key = picked.endpoint().key().to_owned();
            went += usize::from(key == "h0");
            picked.end(ill(bad)(&key), world.at() + secs(0.005));
        }
        went
    };
    drive(5.0, "none");
    for _ in 0..200 {
        drive(0.1, "h0");
    }
    assert!(world.ejection("h0").is_some());
    drive(world.time_of("h0").max(0.0), "none");
    let start = world.now.get();
    while world.ejection("h0").is_some() {
        drive(0.01, "none");
        assert!(world.now.get() - start < secs(60.0), "it is wedged");
    }
    let (first, later) = (drive(1.0, "none"), {
        drive(30.0, "none");
        drive(10.0, "none")
    });
    assert!(
        first * 10 * 2 < later,
        "{first} in the first second, {later} in ten later on"
    );
}

/// Chooses the first that may be picked; but once, before it says so, somebody else sends a call.
struct Overtaken {
    by: OnceCell<Picker<Arc<dyn Rule>>>,
    armed: Cell<bool>,
    sent: RefCell<Option<Picked>>,
    now: Instant,
}

impl Rule for Overtaken {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let eligible = |at: usize| {
            let endpoint = candidates.get(at).unwrap().endpoint();
            endpoint.eligibility().is_eligible()
        };
        let first = (0..candidates.len()).find(|&at| eligible(at));
        if self.armed.take() {
            let other = self.by.get().unwrap();
            self.sent.replace(other.pick(&Request::new(()), self.now));
        }
        first
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}

#[test]
fn a_pick_whose_endpoint_has_got_its_probe_meanwhile_goes_elsewhere() {
    let begun = Instant::now();
    let now = begun + secs(30.0);
    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "rules are shared so, and this one stays on its thread"
    )]
    let rule = Arc::new(Overtaken {
        by: OnceCell::new(),
        armed: Cell::new(false),
        sent: RefCell::default(),
        now,
    });
    let shared: Arc<dyn Rule> = rule.clone();
    let picker = Picker::new(set(3), shared).outliers(settings().build().unwrap());
    assert!(rule.by.set(picker.clone()).is_ok());
    let pick = |at| picker.pick(&Request::new(()), at).unwrap();
    for _ in 0..5 {
        pick(begun).end(Verdict::Failure, begun);
    }
    rule.armed.set(true);
    let picked = pick(now);
    let probe = rule.sent.take().unwrap();
    assert_eq!((probe.endpoint().key(), picked.endpoint().key()), ("h0", "h1"));
}

// ---- the set changes

#[test]
fn an_endpoint_that_is_taken_out_takes_no_veto_along_and_comes_back_as_a_new_one() {
    let world = World::new(4, settings());
    let open = world.pick_this("h0");
    world.fail("h0", 5);
    world.fail("h1", 5);
    let same = world.endpoint("h0");
    assert!(world.set.remove("h0"));
    world.pass(1.0);
    world.call(WELL);
    assert!(same.eligibility().is_eligible());
    world.set.insert(same);
    world.pass(1.0);
    assert!(world.ejection("h0").is_none() && world.goes_to("h0"));
    open.end(Verdict::Failure, world.at());
    world.fail("h0", 4);
    assert!(world.ejection("h0").is_none());
    assert_eq!(world.ejected(), ["h1"]);
    let figures = world.picker.handle().endpoints();
    let again = figures
        .iter()
        .find(|figures| figures.endpoint().key() == "h0")
        .unwrap();
    assert_eq!(again.ejections(), 0);
}

#[test]
fn an_endpoint_that_has_gone_takes_up_no_room() {
    let world = World::new(4, settings());
    let open: Vec<Picked> = (0..5).map(|_| world.pick_this("h0")).collect();
    assert!(world.set.remove("h0"));
    world.call(WELL);
    for picked in open {
        picked.end(Verdict::Failure, world.at());
    }
    world.fail("h1", 5);
    assert_eq!(world.ejected(), ["h1"]);
}

#[test]
fn with_another_description_it_stays_ejected() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    let before = world.endpoint("h0");
    world.pass(1.0);
    world.call(WELL);
    world.pass(0.1);
    world.set.insert(
        Endpoint::builder("http://h0")
            .key("h0")
            .weight(7)
            .build()
            .unwrap(),
    );
    assert!(!world.goes_to("h0") && world.has_veto("h0"));
    assert!(before.eligibility().is_eligible());
    world.pass(29.0);
    for _ in 0..3 {
        world.end_at("h0", Verdict::Success);
    }
    assert!(!world.has_veto("h0") && world.ejection("h0").is_none());
}

// ---- layers

#[test]
fn two_pickers_over_one_set_take_back_their_own_vetoes_alone() {
    let set = set(4);
    let one = World::of(set.clone(), RoundRobin::new(), settings());
    let other = World::of(
        set.clone(),
        RoundRobin::new(),
        settings().ejection_time(secs(100.0)),
    );
    one.fail("h0", 5);
    assert!(!other.goes_to("h0") && other.ejection("h0").is_none());
    let h1: Vec<Picked> = (0..5).map(|_| other.pick_this("h1")).collect();
    one.fail("h1", 5);
    for picked in h1 {
        picked.end(Verdict::Failure, other.at());
    }
    assert!(one.has_veto("h1"));
    one.pass(30.0);
    other.pass(30.0);
    for _ in 0..3 {
        one.end_at("h0", Verdict::Success);
    }
    assert!(!one.has_veto("h0") && other.goes_to("h0"));
    assert!(
        one.ejection("h1").unwrap().is_probing() && one.has_veto("h1"),
        "the other one's veto"
    );
    other.pass(70.0);
    for _ in 0..3 {
        other.end_at("h1", Verdict::Success);
    }
    assert!(one.goes_to("h1"));
}

#[test]
fn a_picker_that_is_dropped_takes_its_vetoes_along() {
    let world = World::new(3, settings());
    let open = world.pick_this("h1");
    world.fail("h0", 5);
    let (set, now) = (world.set.clone(), world.at());
    let handle = world.picker.handle();
    drop(world);
    assert!(handle.ejection("h0").is_some(), "a handle keeps it");
    drop(handle);
    assert!(
        set.snapshot()
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.eligibility().is_eligible())
    );
    open.end(Verdict::Failure, now);
}

#[test]
fn given_again_it_begins_anew_and_for_all_clones() {
    let world = World::new(3, settings());
    world.fail("h0", 5);
    let other = world
        .picker
        .clone()
        .outliers(settings().consecutive_failures(2).build().unwrap());
    assert!(!world.has_veto("h0") && world.ejection("h0").is_none());
    world.fail("h0", 2);
    assert!(other.handle().ejection("h0").is_some());
}

#[test]
fn rules_that_choose_alone_respect_an_ejection() {
    fn check<R: Rule>(rule: R) {
        let world = World::of(set(3), rule, settings());
        let name = std::any::type_name::<R>();
        world.fail("h1", 5);
        assert!(!world.goes_to("h1"), "{name}");
        world.pass(30.0);
        for _ in 0..3 {
            world.end_at("h1", Verdict::Success);
        }
        assert!(world.ejection("h1").is_none(), "{name}");
    }
    check(RibbonRoundRobin::new());
    check(AvailabilityFiltering::new());
    check(ZoneAvoidance::new());
    check(LeastLoaded::seeded(1));
}

type Rsp = Response<String>;

/// A balancer over two endpoints: one answers, and the other does what it is told.
fn over_two(
    bad: impl Fn() -> futures_util::future::BoxFuture<'static, Result<Rsp, BoxError>> + Clone + Send + 'static,
) -> (
    tower_outbound::balance::BalanceHandle,
    impl tower::Service<Request<()>, Response = Rsp, Error = BoxError, Future: Send> + Clone,
) {
    let layer = LoadBalanceLayer::new(set(2))
        .rule(RoundRobin::new())
        .outliers(settings().build().unwrap());
    let client = service_fn(move |request: Request<()>| {
        let bad = (request.uri().host() == Some("h0")).then(&bad);
        async move {
            match bad {
                Some(bad) => bad.await,
                None => Ok(Response::new("h1".to_owned())),
            }
        }
    });
    (layer.handle(), layer.layer(client))
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_fallen_silent_under_an_outer_limit_is_ejected() {
    let (handle, stack) = over_two(|| pending().boxed());
    for _ in 0..10 {
        let call = stack
            .clone()
            .oneshot(Request::get("http://orders/").body(()).unwrap());
        let _ = timeout(Duration::from_secs(2), call).await;
    }
    assert!(handle.ejection("h0").is_some());
    for _ in 0..4 {
        let call = stack
            .clone()
            .oneshot(Request::get("http://orders/").body(()).unwrap());
        assert_eq!(
            timeout(Duration::from_secs(2), call)
                .await
                .unwrap()
                .unwrap()
                .body(),
            "h1"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn errors_eject_and_answers_bring_it_back_through_the_layer() {
    static WELL: AtomicU64 = AtomicU64::new(0);
    let (handle, stack) = over_two(|| {
        async {
            if WELL.load(Relaxed) == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
            }
            Ok(Response::new("h0".to_owned()))
        }
        .boxed()
    });
    let call = || {
        stack
            .clone()
            .oneshot(Request::get("http://orders/").body(()).unwrap())
    };
    let mut errors = 0;
    for _ in 0..100 {
        errors += usize::from(call().await.is_err());
    }
    assert_eq!((errors, handle.ejection("h0").is_some()), (5, true));
    tokio::time::advance(Duration::from_secs(30)).await;
    WELL.store(1, Relaxed);
    for _ in 0..10 {
        call().await.unwrap();
    }
    assert!(handle.ejection("h0").is_none());
}

/// All verdicts are left to the test.
#[derive(Clone)]
struct Late;

impl Classify<Rsp> for Late {
    fn classify(&self, result: Result<&Rsp, ErrorRef<'_>>) -> Verdict {
        if result.is_ok() {
            Verdict::Success
        } else {
            Verdict::Failure
        }
    }

    fn late(&self, answer: &Rsp) -> Option<LateVerdict> {
        LateVerdict::on(answer.extensions()).cloned()
    }
}

#[tokio::test(start_paused = true)]
async fn verdicts_that_come_late_count_when_they_come() {
    let layer = LoadBalanceLayer::new(set(2))
        .rule(RoundRobin::new())
        .classify(Late)
        .outliers(settings().build().unwrap());
    let (opened, mut all) = mpsc::unbounded_channel();
    let stack = layer.layer(service_fn(move |request: Request<()>| {
        let mut response = Response::new(request.uri().host().unwrap().to_owned());
        let (open, late) = LateVerdict::open();
        response.extensions_mut().insert(late);
        opened.send((response.body().clone(), open)).unwrap();
        async move { Ok::<_, BoxError>(response) }
    }));
    let handle = layer.handle();
    for _ in 0..10 {
        stack
            .clone()
            .oneshot(Request::get("http://orders/").body(()).unwrap())
            .await
            .unwrap();
    }
    assert!(handle.ejection("h0").is_none());
    while let Ok((host, open)) = all.try_recv() {
        open.give(if host == "h0" {
            Verdict::Failure
        } else {
            Verdict::Success
        });
    }
    assert!(handle.ejection("h0").is_some() && handle.ejection("h1").is_none());
}

// ---- whatever happens

#[derive(Debug, Clone)]
enum Step {
    Start,
    End(usize, u8),
    Pass(u32),
    Remove(u8),
    Insert(u8, u8),
    Veto(u8, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Start),
        4 => (any::<usize>(), 0..6_u8).prop_map(|(which, how)| Step::End(which, how)),
        2 => (0..40_000_u32).prop_map(Step::Pass),
        1 => (0..8_u8).prop_map(Step::Remove),
        1 => (0..8_u8, 1..4_u8).prop_map(|(key, weight)| Step::Insert(key, weight)),
        1 => (0..8_u8, any::<bool>()).prop_map(|(key, veto)| Step::Veto(key, veto)),
    ]
}

fn end(world: &World, picked: Picked, how: u8) {
    match how {
        0..3 => picked.end(Verdict::Failure, world.at()),
        3 => picked.end(Verdict::Success, world.at()),
        4 => picked.end(Verdict::Ignored, world.at()),
        _ => picked.abandon(world.at()),
    }
}

proptest! {
    #[test]
    fn ejections_and_vetoes_agree_never_pass_their_bounds_and_all_come_back(
        steps in prop::collection::vec(step(), 1..200),
        in_a_row in 1..3_u32,
        panic in prop_oneof![Just(0.0), Just(50.0)],
    ) {
        let settings = OutlierEjection::builder().consecutive_failures(in_a_row).panic_threshold(panic).seeded(1);
        let world = World::of((0..6).map(|n| endpoint(&format!("h{n}"))).collect(), RoundRobin::new(), settings);
        let mut open: Vec<Picked> = Vec::new();
        let mut all: Vec<Endpoint> = world.set.snapshot().endpoints().to_vec();
        for step in steps {
            match step {
                Step::Start => open.extend(world.picker.pick(&Request::new(()), world.at())),
                Step::End(which, how) if !open.is_empty() => {
                    let picked = open.swap_remove(which % open.len());
                    end(&world, picked, how);
                }
                Step::End(..) => {}
                Step::Pass(millis) => world.pass(f64::from(millis) / 1e3),
                Step::Remove(key) => {
                    world.set.remove(&format!("h{key}"));
                }
                Step::Insert(key, weight) => {
                    let name = format!("h{key}");
                    let builder = Endpoint::builder(format!("http://{name}")).key(name).weight(weight.into());
                    all.push(builder.clone().build().unwrap());
                    world.set.insert(all.last().unwrap().clone());
                }
                Step::Veto(key, veto) => {
                    for one in world.set.snapshot().endpoints() {
                        match veto {
                            true if one.key() == format!("h{key}") => one.eligibility().forbid(Veto::User),
                            _ => one.eligibility().allow(Veto::User),
                        }
                    }
                }
            }
            // So that what may be put off for a moment is done.
            world.pass(1.0);
            let size = world.set.snapshot().endpoints().len();
            if let Some(picked) = world.picker.pick(&Request::new(()), world.at()) {
                picked.abandon(world.at());
            }
            let handle = world.picker.handle();
            let endpoints = handle.endpoints();
            let ejected = endpoints.iter().filter(|one| one.ejection().is_some()).count();
            let most = (size / 2).max(1).min(size.saturating_sub(1));
            prop_assert!(ejected <= most, "{ejected} of {size}");
            for one in &endpoints {
                let veto = one.endpoint().eligibility().is_forbidden_by(Veto::Outlier);
                match one.ejection() {
                    None => prop_assert!(!veto),
                    Some(_) if handle.disregards_ejections() => prop_assert!(!veto),
                    Some(ejection) => prop_assert!(veto || ejection.is_probing()),
                }
            }
            let usable = endpoints.iter().filter(|one| one.endpoint().eligibility().is_eligible()).count();
            let users = endpoints.iter().filter(|one| one.endpoint().eligibility().is_forbidden_by(Veto::User)).count();
            if panic > 0.0 && users == 0 {
                prop_assert!(usable * 2 >= size, "{usable} of {size}");
            }
            for one in &all {
                let eligibility = one.eligibility();
                let is_in = endpoints.iter().any(|member| member.endpoint() == one);
                prop_assert!(is_in || !eligibility.is_forbidden_by(Veto::Outlier), "it has gone");
            }
        }
        drop(open);
        for one in &all {
            one.eligibility().allow(Veto::User);
        }
        world.pass(1_000.0);
        for _ in 0..200 {
            if let Some(picked) = world.picker.pick(&Request::new(()), world.at()) {
                picked.end(Verdict::Success, world.at());
            }
        }
        prop_assert!(world.ejected().is_empty(), "wedged");
        prop_assert!(all.iter().all(|one| one.eligibility().is_eligible()));
    }
}

#[test]
fn many_threads_leave_no_veto_behind() {
    let set = set(10);
    let picker = Picker::new(set.clone(), RoundRobin::new()).outliers(
        OutlierEjection::builder()
            .interval(Duration::from_millis(50))
            .build()
            .unwrap(),
    );
    let start = Instant::now();
    let millis = AtomicU64::new(0);
    let most = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..4 {
            let (picker, set, millis, most) = (&picker, &set, &millis, &most);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut open = Vec::new();
                for n in 0..20_000 {
                    let now = start + Duration::from_millis(millis.fetch_add(rng.u64(0..20), Relaxed));
                    open.extend(picker.pick(&Request::new(()), now));
                    if open.len() > 4 {
                        let picked: Picked = open.swap_remove(rng.usize(..open.len()));
                        let bad = picked.endpoint().key() < "h7" && n < 15_000;
                        match rng.u8(..8) {
                            0 => drop(picked),
                            1 => picked.end(Verdict::Ignored, now),
                            _ if bad => picked.end(Verdict::Failure, now),
                            _ => picked.end(Verdict::Success, now),
                        }
                    }
                    if n % 100 == 0 && n < 10_000 {
                        let snapshot = set.snapshot();
                        let ejected = snapshot
                            .endpoints()
                            .iter()
                            .filter(|one| one.eligibility().is_forbidden_by(Veto::Outlier));
                        most.fetch_max(ejected.count() as u64, Relaxed);
                    }
                    if n % 1_000 == 0 {
                        set.remove("h9");
                        set.insert(endpoint("h9"));
                    }
                }
            });
        }
    });
    assert_eq!(most.load(Relaxed), 5, "half of them, and no more");
    let now = start + Duration::from_millis(millis.load(Relaxed)) + secs(1_000.0);
    for _ in 0..200 {
        picker
            .pick(&Request::new(()), now)
            .unwrap()
            .end(Verdict::Success, now);
    }
    assert!(
        set.snapshot()
            .endpoints()
            .iter()
            .all(|one| one.eligibility().is_eligible())
    );
    assert!(
        picker
            .handle()
            .endpoints()
            .iter()
            .all(|one| one.ejection().is_none())
    );
    assert_eq!(picker.handle().total().in_flight(), 0);
}
