//! Breakers by key and by endpoint, over their public API, and the memory that one takes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]
#![allow(clippy::print_stdout, reason = "sizes are for reading, too")]

use std::{
    borrow::Cow,
    collections::BTreeMap,
    future::pending,
    io,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::FutureExt;
use http::{Request, Response};
use tokio::time::advance;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    balance::LoadBalanceLayer,
    breaker::{
        Breaker, BreakerBuilder, Breakers, EndpointBreakerLayer, EndpointBreakers, Force, HystrixRelease,
        KeyedBreakerLayer, Route, by_authority, by_route,
    },
    call::{BoxError, CircuitOpen, CircuitState, Endpoint, Endpoints, ErrorRef, Verdict, Veto},
};

const SLEEP: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);

fn each() -> BreakerBuilder {
    Breaker::builder("each")
        .consecutive_failures(2)
        .sleep_window(SLEEP)
}

fn keyed(max_keys: u32) -> Breakers<str> {
    Breakers::builder(each())
        .max_keys(max_keys)
        .idle_after(IDLE)
        .build()
        .unwrap()
}

fn settle(breakers: &Breakers<str>, key: &str, n: usize, verdict: Verdict) {
    for _ in 0..n {
        breakers.admit(key).unwrap().unwrap().settle(verdict);
    }
}

/// A call that succeeds, so that the key is known and closed.
fn touch(breakers: &Breakers<str>, key: &str) {
    settle(breakers, key, 1, Verdict::Success);
}

fn keys(breakers: &Breakers<str>) -> Vec<String> {
    let mut keys: Vec<String> = breakers.all().into_iter().map(|(key, _)| key).collect();
    keys.sort();
    keys
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_circuit_of_its_own() {
    let breakers = keyed(10);
    settle(&breakers, "a", 2, Verdict::Failure);
    touch(&breakers, "b");
    let rejection = breakers.admit("a").unwrap_err();
    assert_eq!((rejection.name(), rejection.retry_in()), ("each[a]", Some(SLEEP)));
    assert!(breakers.admit("b").is_ok());
    assert_eq!(breakers.known("a").unwrap().state(), CircuitState::Open);
    assert!(breakers.known("c").is_none());
    assert_eq!(
        (breakers.len(), keys(&breakers)),
        (2, vec!["a".to_owned(), "b".to_owned()])
    );
}

fn answering<B>(
    by: &'static str,
) -> impl Service<Request<B>, Response = &'static str, Error = io::Error> + Clone {
    service_fn(move |request: Request<B>| {
        let down = request.uri().host() == Some("down");
        async move {
            if down {
                Err(io::Error::other("down"))
            } else {
                Ok(by)
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_layer_reads_the_key_from_the_request_and_lets_those_without_one_through() {
    let hosts = keyed(10);
    let layer = KeyedBreakerLayer::new(hosts.clone(), by_authority::<()>);
    let mut service = layer.layer(answering("host"));
    let to = |uri: &str| Request::get(uri).body(()).unwrap();
    for _ in 0..2 {
        service
            .ready()
            .await
            .unwrap()
            .call(to("http://down:1/x"))
            .await
            .unwrap_err();
    }
    let error = service
        .ready()
        .await
        .unwrap()
        .call(to("http://down:1/y"))
        .await
        .unwrap_err();
    assert_eq!(CircuitOpen::of(&*error).unwrap().name(), "each[down:1]");
    service
        .ready()
        .await
        .unwrap()
        .call(to("http://down:2/y"))
        .await
        .unwrap_err();
    service
        .ready()
        .await
        .unwrap()
        .call(to("http://up/y"))
        .await
        .unwrap();
    service.ready().await.unwrap().call(to("/nowhere")).await.unwrap();
    assert_eq!(keys(&hosts), ["down:1", "down:2", "up"]);

    let routes = keyed(10);
    let mut service = KeyedBreakerLayer::new(routes.clone(), by_route::<()>).layer(answering("route"));
    let mut request = to("http://down/orders/7");
    request.extensions_mut().insert(Route::new("GET /orders/{id}"));
    for _ in 0..2 {
        service
            .ready()
            .await
            .unwrap()
            .call(request.clone())
            .await
            .unwrap_err();
    }
    let error = service.ready().await.unwrap().call(request).await.unwrap_err();
    assert!(CircuitOpen::of(&*error).is_some());
    assert_eq!(keys(&routes), ["GET /orders/{id}"]);

    let tenants: Breakers<u64> = Breakers::new(each()).unwrap();
    let layer = KeyedBreakerLayer::new(tenants.clone(), |tenant: &u64| Some(Cow::Owned(tenant / 10)));
    let mut service = layer
        .classify(|_: Result<&u64, ErrorRef<'_>>| Verdict::Failure)
        .layer(service_fn(
            |tenant: u64| async move { Ok::<_, io::Error>(tenant) },
        ));
    for tenant in [70, 71] {
        service.ready().await.unwrap().call(tenant).await.unwrap();
    }
    service.ready().await.unwrap().call(79).await.unwrap_err();
    service.ready().await.unwrap().call(80).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_not_used_for_long_is_dropped_when_a_key_comes_unless_it_is_not_plainly_closed() {
    let breakers = keyed(100);
    for key in ["idle", "used", "open", "half-open", "forced", "busy", "held"] {
        touch(&breakers, key);
    }
    settle(&breakers, "half-open", 2, Verdict::Failure);
    advance(SLEEP).await;
    let probe = breakers.admit("half-open").unwrap().unwrap();
    assert!(probe.is_probe());
    drop(probe);
    settle(&breakers, "open", 2, Verdict::Failure);
    breakers.breaker("forced").unwrap().force(Force::Closed);
    let call = breakers.admit("busy").unwrap();
    let handle = breakers.known("held");
    for _ in 0..20 {
        advance(IDLE / 4).await;
        touch(&breakers, "used");
        touch(&breakers, "another");
        breakers.drop_idle();
    }
    touch(&breakers, "new");
    assert_eq!(
        keys(&breakers),
        [
            "another",
            "busy",
            "forced",
            "half-open",
            "held",
            "new",
            "open",
            "used"
        ]
    );
    drop((call, handle));
    breakers.breaker("forced").unwrap().force(Force::None);
    for key in ["open", "half-open"] {
        settle(&breakers, key, 1, Verdict::Success);
    }
    // Once to see that they were used, once for each half of the time.
    for _ in 0..4 {
        advance(IDLE / 2).await;
        touch(&breakers, &format!("{:?}", tokio::time::Instant::now()));
    }
    assert!(
        !keys(&breakers)
            .iter()
            .any(|key| ["busy", "held", "forced", "open"].contains(&&**key))
    );
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_room_the_one_that_was_not_used_for_longest_goes_and_an_open_one_never() {
    let breakers = keyed(3);
    settle(&breakers, "open", 2, Verdict::Failure);
    for key in ["a", "b", "c", "d"] {
        advance(Duration::from_millis(1)).await;
        touch(&breakers, key);
    }
    assert_eq!(keys(&breakers), ["c", "d", "open"]);
    for key in ["c", "d"] {
        settle(&breakers, key, 2, Verdict::Failure);
    }
    // All are open: a new key goes uncounted, and nothing is forgotten.
    for _ in 0..5 {
        assert!(breakers.admit("e").unwrap().is_none());
    }
    assert!(breakers.breaker("e").is_none());
    assert_eq!((breakers.unkept(), breakers.len()), (5, 3));
    for key in ["open", "c", "d"] {
        assert!(breakers.admit(key).is_err());
    }
    let layer = KeyedBreakerLayer::new(breakers.clone(), |key: &String| Some(Cow::Owned(key.clone())));
    let mut service = layer.layer(service_fn(|_: String| async { Ok::<_, io::Error>(()) }));
    service.ready().await.unwrap().call("e".to_owned()).await.unwrap();
    // One has come back, so there is room again.
    advance(SLEEP).await;
    touch(&breakers, "c");
    touch(&breakers, "e");
    assert_eq!(keys(&breakers), ["d", "e", "open"]);
}

#[test]
fn any_number_of_keys_takes_the_room_of_the_most_that_there_can_be() {
    let breakers = keyed(50);
    for n in 0..5_000 {
        touch(&breakers, &n.to_string());
        assert!(breakers.len() <= 50);
    }
    assert_eq!((breakers.len(), breakers.all().len()), (50, 50));
}

#[test]
fn threads_that_meet_a_key_at_the_same_time_share_one_breaker() {
    const THREADS: usize = 8;
    let breakers = keyed(1_000);
    for round in 0..200 {
        let key = round.to_string();
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    touch(&breakers, &key);
                });
            }
        });
        assert_eq!(breakers.known(&key).unwrap().counts().successes(), THREADS as u64);
    }
    assert_eq!(breakers.len(), 200);
}

#[tokio::test(start_paused = true)]
async fn settings_change_for_all_keys_and_for_those_to_come() {
    let breakers = keyed(10);
    touch(&breakers, "a");
    let error = breakers.change(|settings| settings.probes(7)).unwrap_err();
    assert_eq!(error.field(), "probes");
    breakers
        .change(|settings| settings.consecutive_failures(1))
        .unwrap();
    for key in ["a", "b"] {
        settle(&breakers, key, 1, Verdict::Failure);
        assert_eq!(breakers.admit(key).unwrap_err().name(), format!("each[{key}]"));
    }
}

#[test]
fn mistakes_in_the_settings_are_found_before_a_key_comes() {
    let field = |builder: tower_outbound::breaker::BreakersBuilder<str>| builder.build().unwrap_err().field();
    assert_eq!(field(Breakers::builder(each().volume(0))), "volume");
    assert_eq!(field(Breakers::builder(each()).max_keys(0)), "max_keys");
    assert_eq!(field(Breakers::builder(each()).max_keys(100_001)), "max_keys");
    assert_eq!(
        field(Breakers::builder(each()).idle_after(Duration::from_secs(9))),
        "idle_after"
    );
    assert_eq!(
        EndpointBreakers::new(Endpoints::new(), each().volume(0))
            .unwrap_err()
            .field(),
        "volume"
    );
}

type Sent = Arc<Mutex<Vec<String>>>;

/// Endpoints `a`, `b` and `c`, each of which can be down or never answer, with a balancer over breakers over them.
struct Fleet {
    endpoints: Endpoints,
    breakers: EndpointBreakers,
    down: BTreeMap<&'static str, Arc<AtomicBool>>,
    hangs: Arc<AtomicBool>,
    sent: Sent,
}

impl Fleet {
    fn new() -> Self {
        let endpoints = Endpoints::from_list(["a:1", "b:1", "c:1"]).unwrap();
        let each = each().window(Duration::from_secs(10));
        Fleet {
            breakers: EndpointBreakers::new(endpoints.clone(), each).unwrap(),
            endpoints,
            down: ["a", "b", "c"].map(|name| (name, Arc::default())).into(),
            hangs: Arc::default(),
            sent: Sent::default(),
        }
    }

    fn client(&self) -> impl Service<Request<()>, Response = Response<()>, Error = BoxError> + Clone {
        let (down, sent, hangs) = (self.down.clone(), self.sent.clone(), self.hangs.clone());
        ServiceBuilder::new()
            .layer(
                LoadBalanceLayer::new(self.endpoints.clone())
                    .rule(tower_outbound::balance::RoundRobin::new()),
            )
            .layer(EndpointBreakerLayer::new(self.breakers.clone()))
            .service(service_fn(move |request: Request<()>| {
                let host = request.uri().host().unwrap().to_owned();
                let is_down = down.get(&*host).is_some_and(|down| down.load(SeqCst));
                let hangs = hangs.load(SeqCst) && is_down;
                sent.lock().unwrap().push(host);
                async move {
                    if hangs {
                        pending::<()>().await;
                    }
                    if is_down {
                        return Err(io::Error::other("down"));
                    }
                    Ok(Response::new(()))
                }
            }))
    }

    fn set_down(&self, name: &str, down: bool) {
        self.down[name].store(down, SeqCst);
    }

    /// Where so many calls went, and how many failed.
    async fn calls(&self, n: usize) -> (BTreeMap<String, usize>, usize) {
        let mut client = self.client();
        self.sent.lock().unwrap().clear();
        let mut failed = 0;
        for _ in 0..n {
            let request = Request::get("http://orders/").body(()).unwrap();
            let outcome = client.ready().await.unwrap().call(request).await;
            failed += usize::from(outcome.is_err());
        }
        let mut sent = BTreeMap::new();
        for host in self.sent.lock().unwrap().drain(..) {
            *sent.entry(host).or_default() += 1;
        }
        (sent, failed)
    }

    fn state(&self, place: usize) -> CircuitState {
        self.breakers.states()[place].1
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_whose_circuit_is_open_is_not_picked_until_a_probe_may_go_there() {
    let fleet = Fleet::new();
    fleet.set_down("a", true);
    let (_, failed) = fleet.calls(30).await;
    assert_eq!(
        failed, 2,
        "two failures in a row open its circuit, and no caller is rejected"
    );
    assert_eq!(fleet.state(0), CircuitState::Open);
    let (sent, failed) = fleet.calls(30).await;
    assert_eq!((sent.get("a"), failed), (None, 0));

    // One call finds out that it is still down, and it sleeps on.
    for _ in 0..3 {
        advance(SLEEP).await;
        let (sent, failed) = fleet.calls(30).await;
        assert_eq!((sent.get("a"), failed), (Some(&1), 1));
    }
    // It is back.
    fleet.set_down("a", false);
    advance(SLEEP).await;
    let (sent, failed) = fleet.calls(30).await;
    assert!(sent["a"] >= 8 && failed == 0, "{sent:?}");
    assert_eq!(fleet.state(0), CircuitState::Closed);
    assert!(
        fleet.endpoints.snapshot().endpoints()[0]
            .eligibility()
            .is_eligible()
    );
}

#[tokio::test(start_paused = true)]
async fn when_all_are_open_calls_go_to_all_of_them_and_each_gets_its_probe() {
    let fleet = Fleet::new();
    for name in ["a", "b", "c"] {
        fleet.set_down(name, true);
    }
    fleet.calls(30).await;
    assert!((0..3).all(|place| fleet.state(place) == CircuitState::Open));
    let (sent, failed) = fleet.calls(30).await;
    assert_eq!((sent.len(), failed), (3, 30), "none is rejected");
    for name in ["a", "b", "c"] {
        fleet.set_down(name, false);
    }
    // That they answer again decides nothing before the sleep windows have ended.
    let (_, failed) = fleet.calls(30).await;
    assert_eq!(failed, 0);
    assert!((0..3).all(|place| fleet.state(place) == CircuitState::Open));
    advance(SLEEP).await;
    fleet.calls(30).await;
    assert!((0..3).all(|place| fleet.state(place) == CircuitState::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_probe_to_an_endpoint_that_is_given_up_is_followed_by_another() {
    let fleet = Fleet::new();
    fleet.set_down("a", true);
    fleet.calls(30).await;
    advance(SLEEP).await;
    fleet.hangs.store(true, SeqCst);
    let mut client = fleet.client();
    let mut probe = None;
    for _ in 0..6 {
        let request = Request::get("http://orders/").body(()).unwrap();
        let mut call = Box::pin(client.ready().await.unwrap().call(request));
        if (&mut call).now_or_never().is_none() {
            probe = Some(call);
        }
    }
    assert!(probe.is_some());
    let (sent, failed) = fleet.calls(30).await;
    assert_eq!((sent.get("a"), failed), (None, 0), "the probe is out");
    drop(probe);
    fleet.hangs.store(false, SeqCst);
    fleet.set_down("a", false);
    advance(Duration::from_millis(100)).await;
    let (sent, _) = fleet.calls(30).await;
    assert!(sent["a"] > 1, "{sent:?}");
    assert_eq!(fleet.state(0), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_lives_as_long_as_its_endpoint_and_takes_its_veto_along() {
    let fleet = Fleet::new();
    fleet.set_down("a", true);
    fleet.calls(30).await;
    let old = fleet.endpoints.snapshot().endpoints()[0].clone();
    assert!(old.eligibility().is_forbidden_by(Veto::Breaker));
    let breaker = fleet.breakers.breaker(&old).unwrap();
    assert_eq!(breaker.name(), "each[http://a:1]");
    drop(breaker);
    fleet.endpoints.remove(old.key());
    assert_eq!(fleet.breakers.states().len(), 2);
    assert!(old.eligibility().is_eligible());
    fleet.endpoints.insert(Endpoint::new("a:1").unwrap());
    let (sent, _) = fleet.calls(3).await;
    assert_eq!(sent.get("a"), Some(&1), "a new endpoint begins anew");
    // Those that stay keep their circuits.
    fleet
        .breakers
        .change(|settings| settings.consecutive_failures(1))
        .unwrap();
    fleet.set_down("b", true);
    fleet.calls(6).await;
    let states: BTreeMap<String, CircuitState> = fleet
        .breakers
        .states()
        .into_iter()
        .map(|(endpoint, state)| (endpoint.authority().host().to_owned(), state))
        .collect();
    assert_eq!(states["b"], CircuitState::Open);
    fleet.endpoints.insert(Endpoint::new("d:1").unwrap());
    assert!(
        fleet
            .breakers
            .states()
            .iter()
            .any(|(_, state)| *state == CircuitState::Open)
    );
}

#[tokio::test(start_paused = true)]
async fn the_veto_stands_as_soon_as_the_circuit_opens_and_goes_as_soon_as_it_closes() {
    let fleet = Fleet::new();
    let a = fleet.endpoints.snapshot().endpoints()[0].clone();
    let breaker = fleet.breakers.breaker(&a).unwrap();
    for _ in 0..2 {
        assert!(a.eligibility().is_eligible());
        breaker.admit().unwrap().settle(Verdict::Failure);
    }
    assert!(a.eligibility().is_forbidden_by(Veto::Breaker));
    breaker.reset();
    assert!(a.eligibility().is_eligible());
    breaker.force(Force::Open);
    let (sent, _) = fleet.calls(30).await;
    assert_eq!(sent.get("a"), None, "by hand as well");
    breaker.force(Force::None);
    assert!(a.eligibility().is_eligible());
}

/// There are so many that not all are looked at when one is due.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_open_follows_its_endpoint_to_another_address_and_gets_its_probe_there() {
    for number in 0..8 {
        let fleet = Fleet::new();
        for other in 0..100 {
            fleet
                .endpoints
                .insert(Endpoint::new(format!("other{other}:1")).unwrap());
        }
        fleet.set_down("a", true);
        fleet.calls(300).await;
        assert_eq!(fleet.state(0), CircuitState::Open);
        let key = fleet.endpoints.snapshot().endpoints()[0].key().to_owned();
        let host = format!("moved{number}");
        let moved = Endpoint::builder(format!("{host}:1")).key(key).build().unwrap();
        fleet.endpoints.insert(moved.clone());
        assert!(moved.eligibility().is_forbidden_by(Veto::Breaker));
        let (sent, _) = fleet.calls(300).await;
        assert_eq!(sent.get(&host), None);
        advance(SLEEP).await;
        let (sent, _) = fleet.calls(300).await;
        assert!(sent.get(&host) > Some(&1), "it is well: {:?}", sent.get(&host));
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_differ_in_their_scheme_have_circuits_of_their_own() {
    let endpoints = Endpoints::from_list(["http://down:1", "https://down:1"]).unwrap();
    let breakers = EndpointBreakers::new(endpoints, each()).unwrap();
    let layer = EndpointBreakerLayer::new(breakers.clone());
    let mut service = layer.layer(answering("host"));
    for _ in 0..2 {
        let request = Request::get("https://down:1/").body(()).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap_err();
    }
    let states: Vec<CircuitState> = breakers.states().into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, [CircuitState::Closed, CircuitState::Open]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_outlives_its_endpoint_leaves_no_veto() {
    let fleet = Fleet::new();
    let a = fleet.endpoints.snapshot().endpoints()[0].clone();
    let breaker = fleet.breakers.breaker(&a).unwrap();
    let calls = [(); 2].map(|()| breaker.admit().unwrap());
    fleet.endpoints.remove(a.key());
    fleet.breakers.states();
    for call in calls {
        call.settle(Verdict::Failure);
    }
    assert_eq!(breaker.unforced_state(), CircuitState::Open);
    assert!(a.eligibility().is_eligible());
    fleet.endpoints.insert(a);
    let (sent, _) = fleet.calls(3).await;
    assert_eq!(sent.get("a"), Some(&1));
}

/// What a breaker takes: a part for the whole, and a part for each thread that can count without waiting.
#[test]
fn the_memory_of_a_breaker_is_the_same_after_ten_and_after_ten_million_calls() {
    let mut breaker = None;
    let built = allocation_counter::measure(|| {
        breaker = Some(Breaker::builder("orders").volume(10_000_000).build().unwrap());
    });
    let breaker = breaker.unwrap();
    let calls = |successes: u32, failures: u32| {
        allocation_counter::measure(|| {
            for (n, verdict) in [(successes, Verdict::Success), (failures, Verdict::Failure)] {
                for _ in 0..n {
                    breaker.admit().unwrap().settle(verdict);
                }
            }
        })
    };
    let few = calls(5, 5);
    let many = calls(9_990_000, 10_000);
    assert_eq!((few.count_total, many.count_total), (0, 0));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = (2 * cores).next_power_of_two().clamp(2, 16);
    println!("{} bytes, for {lanes} threads", built.bytes_current);
    let most = 1_900 + 420 * i64::try_from(lanes).unwrap();
    assert!(built.bytes_current <= most, "{} of {most}", built.bytes_current);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_a_tick_has_opened_unnoticed_is_not_dropped() {
    for release in [HystrixRelease::V1_5_12, HystrixRelease::V1_5_18] {
        let each = Breaker::builder("each").volume(2).hystrix(release);
        let breakers: Breakers<str> = Breakers::builder(each).max_keys(1).build().unwrap();
        settle(&breakers, "down", 2, Verdict::Failure);
        advance(Duration::from_secs(1)).await;
        assert!(breakers.admit("other").unwrap().is_none(), "there is no room");
        assert!(breakers.admit("down").is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_veto_that_came_too_late_is_taken_back_by_the_next_look() {
    let fleet = Fleet::new();
    let c = fleet.endpoints.snapshot().endpoints()[2].clone();
    fleet.set_down("a", true);
    // As a thread does that looked while the probe to it was out, and was held up until it had succeeded.
    c.eligibility().forbid(Veto::Breaker);
    fleet.calls(30).await;
    assert_eq!(fleet.state(0), CircuitState::Open);
    assert!(c.eligibility().is_eligible());
}

#[test]
fn a_key_by_host_holds_no_password() {
    for (uri, key) in [
        ("http://user:secret@a.example:81/", Some("a.example:81")),
        ("http://a.example/", Some("a.example")),
        ("/orders", None),
    ] {
        let request = Request::get(uri).body(()).unwrap();
        assert_eq!(by_authority(&request).as_deref(), key);
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_stays_with_the_key_of_its_endpoint_and_its_veto_goes_over_to_a_new_description() {
    let fleet = Fleet::new();
    fleet.set_down("a", true);
    fleet.calls(30).await;
    let old = fleet.endpoints.snapshot().endpoints()[0].clone();
    assert!(old.eligibility().is_forbidden_by(Veto::Breaker));
    let heavier = || Endpoint::builder("a:1").weight(7).build().unwrap();
    fleet.endpoints.insert(heavier());
    let new = fleet.endpoints.snapshot().endpoints()[0].clone();
    assert_eq!(fleet.state(0), CircuitState::Open);
    assert!(new.eligibility().is_forbidden_by(Veto::Breaker) && old.eligibility().is_eligible());
    assert!(fleet.breakers.breaker(&old).is_none() && fleet.breakers.breaker(&new).is_some());
    // In another place as well.
    let all = ["c:1", "a:1", "b:1"].map(|uri| Endpoint::builder(uri).weight(7).build().unwrap());
    fleet.endpoints.replace(all);
    let states = fleet.breakers.states();
    let hosts = states.iter().map(|(endpoint, _)| endpoint.authority().host());
    assert!(hosts.eq(["c", "a", "b"]), "the order of the set");
    assert_eq!(states[1].1, CircuitState::Open);
    assert!(
        new.eligibility().is_forbidden_by(Veto::Breaker),
        "it is still the same"
    );
    let (sent, _) = fleet.calls(30).await;
    assert_eq!(sent.get("a"), None);
    fleet.set_down("a", false);
    advance(SLEEP).await;
    let (sent, failed) = fleet.calls(30).await;
    assert!(sent["a"] >= 8 && failed == 0, "the probe comes: {sent:?}");
    assert!(new.eligibility().is_eligible());
}

fn numbered(n: usize) -> Endpoint {
    let [_, high, mid, low] = u32::try_from(n).unwrap().to_be_bytes();
    Endpoint::new(format!("10.{high}.{mid}.{low}:80")).unwrap()
}

/// What a table made anew would take, by each change or by the first call after it, is 80 kB and more.
#[tokio::test]
async fn of_ten_thousand_endpoints_a_change_costs_little_the_next_call_nothing_and_nothing_is_kept_of_who_went()
 {
    const N: usize = 10_000;
    let endpoints: Endpoints = (0..N).map(numbered).collect();
    let breakers = EndpointBreakers::new(endpoints.clone(), each()).unwrap();
    let client = service_fn(|_: Request<()>| std::future::ready(Ok::<_, BoxError>(Response::new(()))));
    let mut service = EndpointBreakerLayer::new(breakers.clone()).layer(client);
    let mut call = |to: &Endpoint| {
        let uri = format!("http://{}/", to.authority());
        let request = Request::get(uri).body(()).unwrap();
        let allocated = allocation_counter::measure(|| {
            service.call(request).now_or_never().unwrap().unwrap();
        });
        assert_eq!(allocated.count_total, 0);
    };
    let first = numbered(0);
    call(&first);
    let mut most = 0;
    let all = allocation_counter::measure(|| {
        for n in N..N + 500 {
            let new = numbered(n);
            let came = allocation_counter::measure(|| endpoints.insert(new.clone()));
            call(&new);
            call(&first);
            assert_eq!(
                breakers.breaker(&new).unwrap().name(),
                format!("each[{}]", new.key())
            );
            let went = allocation_counter::measure(|| assert!(endpoints.remove(new.key())));
            call(&first);
            assert!(breakers.breaker(&new).is_none());
            most = most.max(came.bytes_total).max(went.bytes_total);
        }
    });
    println!(
        "{most} bytes for a change at most, {} left in the end",
        all.bytes_current
    );
    assert!(most < 40_000, "{most}");
    assert!(all.bytes_current < 20_000, "{}", all.bytes_current);
    assert_eq!(breakers.states().len(), N);
}

/// So many nearly fill a table for a thousand: one that is not cleared of those that have gone soon has to be larger, by 17 KiB
/// or more. The lists of the set and of the breakers have room for an eighth more or less, of 16 bytes each, and so have
/// the buckets in which breakers are looked up.
#[test]
fn breakers_of_endpoints_that_come_and_go_leave_nothing_behind() {
    const N: usize = 780;
    // Their names are as long as one another.
    let endpoint = |n: usize| Endpoint::new(format!("10.0.0.1:{}", 10_000 + n)).unwrap();
    let endpoints: Endpoints = (0..N).map(endpoint).collect();
    let breakers = EndpointBreakers::new(endpoints.clone(), each()).unwrap();
    let mut inside: Vec<usize> = (0..N).collect();
    let mut dice = fastrand::Rng::with_seed(1);
    let counted = allocation_counter::measure(|| {
        for n in N..20_000 {
            let gone = std::mem::replace(&mut inside[dice.usize(..N)], n);
            assert!(endpoints.remove(endpoint(gone).key()));
            endpoints.insert(endpoint(n));
        }
    });
    let left = counted.bytes_current;
    assert!(left.abs() < 12_288, "{left} bytes more than before");
    assert_eq!(breakers.states().len(), N);
}

#[tokio::test(start_paused = true)]
async fn of_many_endpoints_each_that_is_open_gets_its_probe_in_time() {
    let endpoints: Endpoints = (0..1_000).map(numbered).collect();
    let breakers = EndpointBreakers::new(endpoints.clone(), each()).unwrap();
    let client = service_fn(|_: Request<()>| std::future::ready(Ok::<_, BoxError>(Response::new(()))));
    let mut service = EndpointBreakerLayer::new(breakers.clone()).layer(client);
    let all = endpoints.snapshot();
    let (open, healthy) = all.endpoints().split_at(300);
    let mut look = || {
        let uri = format!("http://{}/", healthy[0].authority());
        service
            .call(Request::get(uri).body(()).unwrap())
            .now_or_never()
            .unwrap()
            .unwrap();
    };
    for (n, endpoint) in open.iter().enumerate() {
        for _ in 0..2 {
            let permit = breakers.breaker(endpoint).unwrap().admit().unwrap();
            permit.settle(Verdict::Failure);
        }
        look();
        assert!(endpoint.eligibility().is_forbidden_by(Veto::Breaker), "{n}");
        advance(Duration::from_millis(1)).await;
    }
    advance(SLEEP - Duration::from_millis(300)).await;
    for (n, endpoint) in open.iter().enumerate() {
        assert!(!endpoint.eligibility().is_eligible(), "{n}");
        look();
        assert!(endpoint.eligibility().is_eligible(), "{n}");
        advance(Duration::from_millis(1)).await;
    }
}

#[test]
fn vetoes_go_with_the_breakers() {
    let endpoints: Endpoints = (0..3).map(numbered).collect();
    let breakers = EndpointBreakers::new(endpoints.clone(), each()).unwrap();
    let one = endpoints.snapshot().endpoints()[1].clone();
    breakers.breaker(&one).unwrap().force(Force::Open);
    assert!(one.eligibility().is_forbidden_by(Veto::Breaker));
    drop(breakers);
    assert!(one.eligibility().is_eligible());
    endpoints.insert(numbered(4));
}
