//! Ribbon's statistics about servers and its rules, seen from outside. What was recorded of the real ones is replayed in
//! `conformance`; this is about what no recording shows.
#![allow(
    clippy::disallowed_types,
    reason = "tests write down what they have seen behind a std lock"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what stands beside the test functions is test as well"
)]

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tokio::time::{Duration, Instant, advance, sleep};
use tower::{Layer, Service};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, BalanceHandle, BestAvailable, Candidates, Figures, LoadBalance,
        LoadBalanceLayer, Random, RibbonRoundRobin, RibbonRule, RibbonStats, RoundRobin, Rule,
        WeightedResponseTime, WhenEmpty, ZoneAvoidance, ZoneAware,
    },
    call::{BoxError, CallScope, Endpoint, Endpoints, ErrorRef, FaultKind, NoEndpoint, Trail, Verdict, Veto},
};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// What a request meets: so long, and then this.
#[derive(Clone, Copy)]
enum Then {
    Answers(Duration),
    Fails(Duration, io::ErrorKind),
    NeverAnswers,
}

const REFUSED: Then = Then::Fails(Duration::ZERO, io::ErrorKind::ConnectionRefused);
const ANSWERED: Then = Then::Answers(Duration::ZERO);

#[derive(Clone)]
struct Client {
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
        self.sent
            .lock()
            .unwrap()
            .push(request.uri().host().unwrap().to_owned());
        let then = *self.then.lock().unwrap();
        async move {
            match then {
                Then::Answers(after) => {
                    if !after.is_zero() {
                        sleep(after).await;
                    }
                    Ok(Response::new(()))
                }
                Then::Fails(after, kind) => {
                    sleep(after).await;
                    Err(io::Error::from(kind).into())
                }
                Then::NeverAnswers => std::future::pending().await,
            }
        }
        .boxed()
    }
}

type Open<R> = Pin<Box<<LoadBalance<Client, R> as Service<Request<()>>>::Future>>;

/// A balancer over scripted servers. `a` is the host and the key of the first.
struct World<R: Rule> {
    set: Endpoints,
    handle: BalanceHandle,
    stack: LoadBalance<Client, R>,
    client: Client,
    open: Vec<Open<R>>,
}

fn endpoint(name: &str) -> Endpoint {
    // `a@z`: in the zone z.
    let (name, zone) = name.split_once('@').unwrap_or((name, ""));
    let endpoint = Endpoint::builder(format!("http://{name}")).key(name);
    let endpoint = if zone.is_empty() {
        endpoint
    } else {
        endpoint.zone(zone)
    };
    endpoint.build().unwrap()
}

fn world<R: Rule>(names: &[&str], rule: R) -> World<R> {
    world_with(names, rule, RibbonStats::default(), WhenEmpty::FailAtOnce)
}

fn world_with<R: Rule>(names: &[&str], rule: R, stats: RibbonStats, when_empty: WhenEmpty) -> World<R> {
    let set: Endpoints = names.iter().map(|name| endpoint(name)).collect();
    let client = Client {
        then: Arc::new(Mutex::new(ANSWERED)),
        sent: Arc::default(),
    };
    let layer = LoadBalanceLayer::new(set.clone())
        .ribbon_stats(stats)
        .rule(rule)
        .when_empty(when_empty)
        .unwrap();
    World {
        set,
        handle: layer.handle(),
        stack: layer.layer(client.clone()),
        client,
        open: Vec::new(),
    }
}

impl<R: Rule> World<R> {
    fn endpoint(&self, key: &str) -> Endpoint {
        let set = self.set.snapshot();
        set.endpoints()
            .iter()
            .find(|one| one.key() == key)
            .unwrap()
            .clone()
    }

    fn forbid(&self, key: &str, veto: Veto) {
        self.endpoint(key).eligibility().forbid(veto);
    }

    fn begin_at(&mut self, key: &str, then: Then) -> Open<R> {
        *self.client.then.lock().unwrap() = then;
        let mut scope = CallScope::begin();
        scope.wish_to_stay(Some(self.endpoint(key)));
        scope.enter(|| Box::pin(self.stack.call(Request::new(()))))
    }

    /// An attempt at this one, past the rule.
    async fn at(&mut self, key: &str, then: Then) {
        let _ = self.begin_at(key, then).await;
    }

    /// One that stays in flight.
    fn keep_at(&mut self, key: &str) {
        let open = self.begin_at(key, Then::NeverAnswers);
        self.open.push(open);
    }

    /// Where the rule sends a call. It is given up there, so that no figure moves.
    fn pick(&mut self) -> Option<String> {
        *self.client.then.lock().unwrap() = Then::NeverAnswers;
        let before = self.client.sent.lock().unwrap().len();
        let call = self.stack.call(Request::new(()));
        let _ = call.now_or_never();
        self.client.sent.lock().unwrap().get(before).cloned()
    }

    fn picks(&mut self, n: usize) -> String {
        (0..n)
            .map(|_| self.pick().unwrap_or_else(|| "-".to_owned()))
            .collect()
    }

    fn count(&mut self, key: &str, of: usize) -> usize {
        (0..of).filter(|_| self.pick().as_deref() == Some(key)).count()
    }

    fn figures(&self, key: &str) -> Figures {
        self.handle.endpoint(key).unwrap()
    }

    fn failures(&self, key: &str) -> u32 {
        self.figures(key).successive_connection_failures()
    }
}

// ---- the statistics

#[tokio::test(start_paused = true)]
async fn connection_failures_in_a_row_are_counted_and_any_other_end_begins_anew() {
    use io::ErrorKind as Io;
    let mut world = world(&["a"], RoundRobin::new());
    let failing = [
        Io::ConnectionRefused,
        Io::ConnectionReset,
        Io::UnexpectedEof,
        Io::HostUnreachable,
        Io::TimedOut,
    ];
    for (n, kind) in failing.into_iter().enumerate() {
        world.at("a", Then::Fails(MS, kind)).await;
        assert_eq!(world.failures("a"), n as u32 + 1, "{kind:?}");
    }
    let open = world.begin_at("a", Then::NeverAnswers);
    drop(open);
    assert_eq!(world.failures("a"), 5, "what is abandoned says nothing");
    world.at("a", ANSWERED).await;
    assert_eq!(world.failures("a"), 0);
    world.at("a", REFUSED).await;
    world.at("a", Then::Fails(MS, Io::InvalidData)).await;
    assert_eq!(world.failures("a"), 0, "an error of another family");
}

#[tokio::test(start_paused = true)]
async fn the_verdict_of_a_classifier_has_no_part_in_it() {
    let client = Client {
        then: Arc::new(Mutex::new(REFUSED)),
        sent: Arc::default(),
    };
    let nobodys_fault = |_: Result<&Response<()>, ErrorRef<'_>>| Verdict::Ignored;
    let layer = LoadBalanceLayer::new([endpoint("a")].into_iter().collect()).classify(nobodys_fault);
    let mut stack = layer.layer(client);
    for _ in 0..3 {
        stack.call(Request::new(())).await.unwrap_err();
    }
    let figures = layer.handle().total();
    assert_eq!(
        (figures.ignored(), figures.successive_connection_failures()),
        (3, 3)
    );
    assert!(layer.handle().is_tripped("a"));
}

#[tokio::test(start_paused = true)]
async fn a_trip_lasts_longer_with_each_failure_and_an_answer_forgets_it() {
    let mut world = world(&["a"], RoundRobin::new());
    for _ in 0..2 {
        world.at("a", REFUSED).await;
    }
    assert!(!world.handle.is_tripped("a"), "two do not trip it");
    for seconds in [10, 20, 30, 30] {
        world.at("a", REFUSED).await;
        advance(seconds * S - MS).await;
        assert!(world.handle.is_tripped("a"), "{seconds} s are not over");
        assert!(world.handle.endpoints()[0].is_tripped());
        advance(MS).await;
        assert!(!world.handle.is_tripped("a"), "{seconds} s are over");
    }
    world.at("a", REFUSED).await;
    assert!(world.handle.is_tripped("a"));
    world.at("a", ANSWERED).await;
    assert!(!world.handle.is_tripped("a") && !world.handle.is_tripped("nobody"));
    for _ in 0..3 {
        world.at("a", REFUSED).await;
    }
    advance(10 * S).await;
    assert!(!world.handle.is_tripped("a"), "it is the first trip again");
}

#[tokio::test(start_paused = true)]
async fn at_threshold_zero_one_that_has_ever_failed_is_tripped_and_no_other() {
    let stats = RibbonStats::builder().connection_failures(0).build().unwrap();
    let mut world = world_with(&["a", "b"], RoundRobin::new(), stats, WhenEmpty::FailAtOnce);
    world.at("b", ANSWERED).await;
    world.at("a", REFUSED).await;
    assert!(world.handle.is_tripped("a") && !world.handle.is_tripped("b"));
    world.at("a", ANSWERED).await;
    advance(10 * S - MS).await;
    assert!(world.handle.is_tripped("a"), "the time of the failure stands");
    advance(MS).await;
    assert!(!world.handle.is_tripped("a"));
}

#[tokio::test(start_paused = true)]
async fn the_mean_response_time_is_over_all_that_ended_with_an_answer_or_an_error() {
    let mut world = world(&["a", "b"], RoundRobin::new());
    assert_eq!(world.figures("a").response_time_mean(), Duration::ZERO);
    world.at("a", Then::Answers(10 * MS)).await;
    world
        .at("a", Then::Fails(30 * MS, io::ErrorKind::ConnectionReset))
        .await;
    world.at("a", Then::Fails(50 * MS, io::ErrorKind::Other)).await;
    let open = world.begin_at("a", Then::NeverAnswers);
    advance(S).await;
    drop(open);
    let figures = world.figures("a");
    assert_eq!(
        (figures.completed(), figures.abandoned(), figures.in_flight()),
        (3, 1, 0)
    );
    assert_eq!(figures.response_time_mean(), 30 * MS);
    world.at("b", Then::Answers(70 * MS)).await;
    assert_eq!(world.handle.total().response_time_mean(), 40 * MS);
}

#[tokio::test(start_paused = true)]
async fn the_settings_belong_to_the_layer_and_the_figures_are_shared() {
    let set: Endpoints = [endpoint("a")].into_iter().collect();
    let layer = LoadBalanceLayer::new(set);
    let before = layer.handle();
    let strict = RibbonStats::builder().connection_failures(1).build().unwrap();
    let layer = layer.ribbon_stats(strict);
    let client = Client {
        then: Arc::new(Mutex::new(REFUSED)),
        sent: Arc::default(),
    };
    layer.layer(client).call(Request::new(())).await.unwrap_err();
    assert!(layer.handle().is_tripped("a") && !before.is_tripped("a"));
    assert_eq!(before.total(), layer.handle().total());
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_count_as_none_when_nothing_has_changed_for_the_window() {
    let mut world = world(&["a", "b"], BestAvailable::new());
    world.keep_at("a");
    world.keep_at("b");
    world.keep_at("b");
    advance(300 * S).await;
    world.keep_at("a");
    world.keep_at("a");
    assert_eq!(world.picks(2), "bb");
    // The attempts that were picked and given up have ended then.
    advance(300 * S).await;
    assert_eq!(world.picks(1), "b", "not a moment too early");
    advance(300 * S + MS).await;
    assert_eq!(world.picks(1), "a", "that of a is older than 600 s");
    assert_eq!(world.figures("a").in_flight(), 3, "and still there");
}

// ---- a rule that chooses alone

struct Alone<F>(F);

impl<F: Fn(&Candidates<'_>) -> Option<usize>> Rule for Alone<F> {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        (self.0)(candidates)
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_rule_that_chooses_alone_picks_is_final() {
    let asked = AtomicUsize::new(0);
    let mut world = world(
        &["a", "b", "c"],
        Arc::new(Alone(move |candidates: &Candidates<'_>| {
            assert_eq!(candidates.len(), 3, "all are shown");
            assert_eq!(candidates.now(), Instant::now());
            Some(4 + asked.fetch_add(1, SeqCst))
        })),
    );
    world.forbid("b", Veto::Breaker);
    assert_eq!(world.picks(4), "bcab", "asked once for each, vetoes or not");
    *world.client.then.lock().unwrap() = REFUSED;
    let mut scope = CallScope::begin();
    for _ in 0..4 {
        let call = scope.enter(|| world.stack.call(Request::new(())));
        let mut call = Box::pin(call);
        let ended = std::future::poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx))).await;
        ended.unwrap_err();
    }
    let trail = scope.take_trail().unwrap();
    let tried: String = trail
        .attempts()
        .map(|one| one.endpoint().unwrap().key())
        .collect();
    assert_eq!(
        tried, "cabc",
        "what the call has tried is its own business as well"
    );
}

#[tokio::test(start_paused = true)]
async fn a_rule_may_choose_none_and_the_error_says_so() {
    async fn error<R: Rule>(rule: R) -> BoxError {
        let mut world = world(&["a", "b"], rule);
        let error = world.stack.call(Request::new(())).await.unwrap_err();
        assert!(world.client.sent.lock().unwrap().is_empty());
        assert_eq!(world.handle.total().attempts(), 0);
        error
    }
    struct Nobody;
    impl Rule for Nobody {
        fn pick(&self, _: &Candidates<'_>) -> Option<usize> {
            None
        }
    }
    for error in [error(Nobody).await, error(Alone(|_: &Candidates<'_>| None)).await] {
        let none: &NoEndpoint = error.downcast_ref().unwrap();
        assert_eq!(
            (none.endpoints(), none.resolved(), none.waited()),
            (2, true, Duration::ZERO)
        );
        assert!(
            error.to_string().contains("the rule chose none of the 2"),
            "{error}"
        );
        assert!(Trail::of(&*error).is_none());
        assert_eq!(
            tower_outbound::call::Fault::of(&*error).kind(),
            FaultKind::NoEndpoint
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_rule_chooses_none_waits_and_asks_again_now_and_then() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = asked.clone();
    let rule = Alone(move |candidates: &Candidates<'_>| {
        counting.fetch_add(1, SeqCst);
        RibbonRoundRobin::new().pick(candidates)
    });
    let stats = RibbonStats::default();
    let mut world = world_with(&["a"], rule, stats, RibbonRule::Retry.when_empty());
    world.forbid("a", Veto::Probe);
    let began = Instant::now();
    let error = world.stack.call(Request::new(())).await.unwrap_err();
    let none: &NoEndpoint = error.downcast_ref().unwrap();
    assert_eq!((none.waited(), began.elapsed()), (500 * MS, 500 * MS));
    let times = asked.swap(0, SeqCst);
    assert!((50..=52).contains(&times), "asked {times} times");

    let veto = world.endpoint("a");
    let began = Instant::now();
    let (answer, ()) = tokio::join!(world.stack.call(Request::new(())), async {
        sleep(95 * MS).await;
        veto.eligibility().allow(Veto::Probe);
    });
    answer.unwrap();
    assert_eq!(
        began.elapsed(),
        100 * MS,
        "an endpoint that comes back is found within 10 ms"
    );

    world.forbid("a", Veto::Probe);
    let began = Instant::now();
    let set = world.set.clone();
    let (answer, ()) = tokio::join!(world.stack.call(Request::new(())), async {
        sleep(95 * MS).await;
        set.insert(endpoint("b"));
    });
    answer.unwrap();
    assert_eq!(began.elapsed(), 95 * MS, "a new one at once");

    world.forbid("b", Veto::Probe);
    let mut scope = CallScope::begin();
    scope.narrow(Instant::now() + 25 * MS);
    let call = scope.enter(|| world.stack.call(Request::new(())));
    let mut call = Box::pin(call);
    let began = Instant::now();
    let call = std::future::poll_fn(|cx| scope.enter(|| call.as_mut().poll(cx)));
    let _ = tokio::time::timeout(400 * MS, call).await;
    assert_eq!(
        began.elapsed(),
        400 * MS,
        "beyond the deadline it is for whoever has set it to end the call"
    );
}

#[tokio::test(start_paused = true)]
async fn a_set_that_becomes_empty_while_a_rule_chooses_none_is_said_to_be_empty() {
    let rule = RibbonRoundRobin::new();
    let wait = WhenEmpty::Wait(100 * MS);
    let mut world = world_with(&["a"], rule, RibbonStats::default(), wait);
    world.forbid("a", Veto::Probe);
    let set = world.set.clone();
    let (error, _) = tokio::join!(world.stack.call(Request::new(())), async {
        sleep(50 * MS).await;
        set.remove("a")
    });
    let error = error.unwrap_err();
    let none: &NoEndpoint = error.downcast_ref().unwrap();
    assert_eq!((none.endpoints(), none.waited()), (0, 100 * MS));
}

// ---- the rules

#[tokio::test(start_paused = true)]
async fn ribbons_round_robin_steps_first_and_gives_up_after_ten() {
    let mut three = world(&["a", "b", "c"], RibbonRoundRobin::new());
    assert_eq!(three.picks(4), "bcab");
    three.forbid("c", Veto::User);
    assert_eq!(three.picks(4), "abab", "any veto");
    let names: Vec<String> = ('a'..='l').map(String::from).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut twelve = world(&names, RibbonRoundRobin::new());
    for name in &names[..11] {
        twelve.forbid(name, Veto::Probe);
    }
    assert_eq!(twelve.picks(6), "-l-l-l", "l is the eleventh step");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_of_ribbon_goes_on_within_a_list_that_has_become_shorter() {
    let mut world = world(&["a", "b", "c", "d"], RibbonRoundRobin::new());
    assert_eq!(world.picks(3), "bcd");
    world.set.remove("d");
    assert_eq!(world.picks(3), "bca", "from place 3, which is 0 of 3");
    world.set.remove("b");
    assert_eq!(world.picks(2), "ca");
}

#[tokio::test(start_paused = true)]
async fn availability_filtering_passes_over_tripped_and_full_ones_and_vetoes() {
    let stats = RibbonStats::builder().active_limit(1).build().unwrap();
    let names = ["a", "b", "c", "d", "e"];
    let mut world = world_with(&names, AvailabilityFiltering::new(), stats, WhenEmpty::FailAtOnce);
    assert_eq!(world.picks(5), "bcdea");
    for _ in 0..3 {
        world.at("b", REFUSED).await;
    }
    world.keep_at("c");
    world.forbid("d", Veto::Probe);
    assert_eq!(world.picks(4), "eaea");
    advance(10 * S).await;
    assert_eq!(world.picks(3), "bea", "the trip is over");
    world.open.clear();
    assert_eq!(world.picks(4), "bcea");
}

#[tokio::test(start_paused = true)]
async fn availability_filtering_goes_round_all_if_all_are_tripped_and_then_on_from_the_twelfth_step() {
    let mut world = world(&["a", "b", "c"], AvailabilityFiltering::new());
    for key in ["a", "b", "c"].repeat(3) {
        world.at(key, REFUSED).await;
    }
    assert_eq!(world.picks(1), "a");
    advance(10 * S).await;
    assert_eq!(world.picks(3), "bca");
}

#[tokio::test(start_paused = true)]
async fn zone_avoidance_counts_its_place_among_those_that_are_left() {
    let mut world = world(&["a", "b", "c"], ZoneAvoidance::new());
    assert_eq!(world.picks(1), "a");
    for _ in 0..3 {
        world.at("a", REFUSED).await;
    }
    assert_eq!(world.picks(4), "cbcb", "place 1 of b and c is c");
    world.forbid("b", Veto::Probe);
    assert_eq!(world.picks(2), "cb", "a probe is not looked at");
    world.forbid("b", Veto::Drain);
    assert_eq!(world.picks(2), "cc", "other vetoes are");
    world.forbid("c", Veto::User);
    assert_eq!(
        world.picks(2),
        "aa",
        "rather one that is tripped than one with a veto"
    );
    world.forbid("a", Veto::User);
    let all = world.picks(3);
    assert!("abcabc".contains(&all), "if nothing is left, all: {all}");
}

#[tokio::test(start_paused = true)]
async fn best_available_takes_the_first_of_those_with_the_fewest_in_flight() {
    let mut world = world(&["a", "b", "c"], BestAvailable::new());
    assert_eq!(world.picks(2), "aa");
    world.keep_at("a");
    assert_eq!(world.picks(2), "bb");
    world.forbid("b", Veto::Probe);
    assert_eq!(world.picks(1), "b", "a probe is not looked at");
    world.forbid("b", Veto::Breaker);
    assert_eq!(world.picks(2), "cc");
    for _ in 0..3 {
        world.at("c", REFUSED).await;
    }
    assert_eq!(world.picks(2), "aa", "it has more in flight, but is not tripped");
}

/// Three times the deviation that `n` draws with this share have.
fn is_near(count: usize, n: usize, share: f64) -> bool {
    let (count, n) = (count as f64, n as f64);
    (count - n * share).abs() <= 3.0 * (n * share * (1.0 - share)).sqrt()
}

#[tokio::test(start_paused = true)]
async fn weights_are_worked_out_at_first_and_when_thirty_seconds_have_passed() {
    let mut world = world(&["a", "b", "c"], WeightedResponseTime::seeded(7));
    assert_eq!(world.picks(4), "bcab", "nothing is known: round robin");
    for (key, millis) in [("a", 10), ("b", 20), ("c", 30)] {
        world.at(key, Then::Answers(millis * MS)).await;
    }
    advance(30 * S - 61 * MS).await;
    assert_eq!(world.picks(3), "cab", "not before");
    advance(MS).await;
    // 50, 40 and 30 of 120.
    for (key, share) in [("a", 50.0 / 120.0), ("b", 40.0 / 120.0), ("c", 30.0 / 120.0)] {
        let count = world.count(key, 6_000);
        assert!(is_near(count, 6_000, share), "{key}: {count}");
    }
    world.set.insert(endpoint("d"));
    // 50, 40, 30 and 60 of 180: one of which nothing is known has the greatest weight.
    let count = world.count("d", 6_000);
    assert!(
        is_near(count, 6_000, 60.0 / 180.0),
        "a change of the set is seen at once: {count}"
    );
    world.forbid("d", Veto::Probe);
    world.forbid("b", Veto::Probe);
    let count = world.count("a", 6_000);
    assert!(
        is_near(count, 6_000, 50.0 / 80.0),
        "one with a veto is not drawn: {count}"
    );
}

#[tokio::test(start_paused = true)]
async fn where_only_weights_of_zero_are_left_it_goes_round_and_round_no_longer_than_ten_times() {
    let mut world = world(&["a", "b"], WeightedResponseTime::seeded(7));
    world.at("a", Then::Answers(10 * MS)).await;
    assert_eq!(world.picks(20), "b".repeat(20), "the weight of a is zero");
    world.forbid("b", Veto::Probe);
    assert_eq!(world.picks(3), "aaa");
    world.forbid("a", Veto::Probe);
    assert_eq!(world.pick(), None);
}

// ---- zones

#[tokio::test(start_paused = true)]
async fn the_most_loaded_zone_is_left_out_and_another_drawn_by_its_size() {
    let names = ["a@x", "b@x", "c@y", "d@y", "e@y", "f@Z"];
    let mut world = world(&names, ZoneAware::seeded(3, ZoneAvoidance::new));
    assert_eq!(world.picks(7), "abcdefa", "no zone is loaded");
    world.keep_at("a");
    // x has a load of 1/2. y is three times as large as z.
    let n = 4_000;
    let mut seen: Vec<usize> = vec![0; 6];
    for pick in world.picks(n).bytes() {
        seen[usize::from(pick - b'a')] += 1;
    }
    assert_eq!(&seen[..2], [0, 0]);
    assert!(is_near(seen[5], n, 0.25), "{seen:?}");
    assert!(
        seen[2].abs_diff(seen[3]) <= 1 && seen[3].abs_diff(seen[4]) <= 1,
        "each zone has a rotation of its own: {seen:?}"
    );
    world.open.clear();
    assert_eq!(world.picks(5), "bcdef", "the rotation over all has waited");
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_a_zone_goes_with_the_zone() {
    let made = Arc::new(AtomicUsize::new(0));
    let counting = made.clone();
    let rule = ZoneAware::seeded(3, move || {
        counting.fetch_add(1, SeqCst);
        RibbonRoundRobin::new()
    });
    let mut world = world(&["a@x", "b@y", "c@y", "d@y", "e@z"], rule);
    world.keep_at("a");
    world.picks(100);
    assert_eq!(made.load(SeqCst), 3, "one for all, one for y, one for z");
    world.set.remove("e");
    world.set.insert(endpoint("f@w"));
    world.picks(100);
    world.set.remove("f");
    world.set.insert(endpoint("e@Z"));
    world.picks(100);
    assert_eq!(made.load(SeqCst), 5, "that of z was not kept");
}

#[tokio::test(start_paused = true)]
async fn a_zone_of_tripped_endpoints_takes_the_most_loaded_of_the_others_with_it() {
    let mut world = world(&["a@x", "b@y", "c@z"], ZoneAware::seeded(3, ZoneAvoidance::new));
    for _ in 0..3 {
        world.at("a", REFUSED).await;
    }
    world.keep_at("b");
    assert_eq!(
        world.picks(20),
        "c".repeat(20),
        "x is tripped, y is the most loaded"
    );
    let names = ["a@x", "b@y", "c@y", "d@y", "e@y", "f@y", "g@y", "h@z"];
    let mut other = self::world(&names, ZoneAware::seeded(3, ZoneAvoidance::new));
    other.keep_at("b");
    assert_eq!(other.picks(8), "abcdefgh", "a load of 1/6 is none");
    for _ in 0..3 {
        other.at("a", REFUSED).await;
    }
    assert_eq!(other.picks(20), "h".repeat(20), "unless there is a worse zone");

    world.open.clear();
    let picks = world.picks(400);
    assert!(!picks.contains('a'));
    let b = picks.matches('b').count();
    assert!(is_near(b, 400, 0.5), "y and z have the same load: by lot, {b}");
}

#[tokio::test(start_paused = true)]
async fn without_the_choice_in_front_the_rule_leaves_out_bad_zones_by_itself() {
    let mut world = world(&["a@x", "b", "c@y", "d@z"], ZoneAvoidance::seeded(3));
    world.keep_at("c");
    assert_eq!(world.picks(3), "abd", "y is loaded");
    world.keep_at("b");
    world.keep_at("b");
    world.open.swap_remove(0);
    // The ones without a zone are a zone to be the most loaded one, but are not left out.
    assert_eq!(world.picks(4), "abcd");
}

#[tokio::test(start_paused = true)]
async fn a_zone_whose_rule_chooses_none_leaves_it_to_the_rule_for_all() {
    let mut world = world(
        &["a@x", "b@y", "c@x"],
        ZoneAware::seeded(3, RibbonRoundRobin::new),
    );
    world.keep_at("a");
    assert_eq!(world.picks(3), "bbb");
    world.forbid("b", Veto::Probe);
    assert_eq!(world.picks(3), "cac");
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_does_not_choose_alone_keeps_its_vetoes_behind_a_choice_of_zones() {
    let mut world = world(&["a@x", "b@y", "c@y"], ZoneAware::seeded(3, || Random::seeded(1)));
    world.keep_at("a");
    world.forbid("b", Veto::User);
    assert_eq!(world.picks(30), "c".repeat(30));
}

#[tokio::test(start_paused = true)]
async fn many_zones_are_told_apart() {
    let names: Vec<String> = (b'a'..=b't')
        .map(|one| format!("{0}@{0}", char::from(one)))
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut world = world(&names, ZoneAvoidance::seeded(3));
    world.keep_at("t");
    assert_eq!(world.picks(20), "abcdefghijklmnopqrsa");
}

// ---- any of them

#[tokio::test(start_paused = true)]
async fn each_rule_of_ribbon_can_be_had_by_name() {
    for rule in RibbonRule::ALL {
        let mut world = world(&["a", "b", "c"], rule.zone_aware());
        let first = world.pick().unwrap();
        match rule {
            RibbonRule::ZoneAvoidance | RibbonRule::BestAvailable => assert_eq!(first, "a", "{rule}"),
            RibbonRule::Random => assert!("abc".contains(&first)),
            _ => assert_eq!(first, "b", "{rule}"),
        }
        assert!(rule.to_string().ends_with("Rule"));
        assert_eq!(
            rule.when_empty() == WhenEmpty::FailAtOnce,
            rule != RibbonRule::Retry
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rules_stay_within_the_set_while_it_changes_and_calls_race() {
    for rule in RibbonRule::ALL {
        let set: Endpoints = ["a@x", "b@y", "c@z", "d@x"].map(endpoint).into_iter().collect();
        let client = Client {
            then: Arc::new(Mutex::new(ANSWERED)),
            sent: Arc::default(),
        };
        let layer = LoadBalanceLayer::new(set.clone()).rule(rule.zone_aware());
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let mut stack = layer.layer(client.clone());
                tokio::spawn(async move {
                    for _ in 0..500 {
                        stack.call(Request::new(())).await.unwrap();
                    }
                })
            })
            .collect();
        for n in 0..100 {
            set.insert(endpoint(&format!("e{n}@x")));
            tokio::task::yield_now().await;
            set.remove(&format!("e{n}"));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(layer.handle().total().in_flight(), 0, "{rule}");
    }
}
