//! What active probes promise, seen from outside.
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
    collections::HashMap,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{Duration, Instant, sleep},
};
use tower::{Layer, Service, ServiceExt, discover::Change, service_fn, util::BoxCloneService};
use tower_outbound::{
    balance::{LoadBalanceLayer, RoundRobin},
    call::{BoxError, Endpoint, Endpoints, StatusSet, Veto},
    nest::client::Client,
    probe::{ActiveProbes, ActiveProbesBuilder, HttpProbe, Probe},
};

const SECOND: Duration = Duration::from_secs(1);

type Stack = BoxCloneService<Request<()>, String, BoxError>;

fn endpoint(name: &str) -> Endpoint {
    Endpoint::builder(format!("http://{name}"))
        .key(name)
        .build()
        .unwrap()
}

fn set<const N: usize>(names: [&str; N]) -> Endpoints {
    names.map(endpoint).into_iter().collect()
}

/// By turns; the answer is the host.
fn balancer(endpoints: &Endpoints) -> Stack {
    let client = service_fn(|request: Request<()>| async move {
        Ok::<_, BoxError>(request.uri().host().unwrap().to_owned())
    });
    let layer = LoadBalanceLayer::new(endpoints.clone()).rule(RoundRobin::new());
    BoxCloneService::new(layer.layer(client))
}

async fn call(stack: &Stack) -> String {
    stack.clone().oneshot(Request::new(())).await.unwrap()
}

/// Each second, without chance but for the phases.
fn each_second() -> ActiveProbesBuilder {
    ActiveProbes::builder()
        .interval(SECOND)
        .jitter(0.0)
        .timeout(SECOND / 2)
}

/// From one failure on they are vetoed.
fn ask_each_second(endpoints: &Endpoints, log: &Log) {
    each_second()
        .failures(1)
        .build()
        .unwrap()
        .attach(endpoints, log.probe());
}

fn is_vetoed(endpoints: &Endpoints, key: &str) -> bool {
    let snapshot = endpoints.snapshot();
    let mut all = snapshot.endpoints().iter();
    let one = all.find(|one| one.key() == key).unwrap();
    one.eligibility().is_forbidden_by(Veto::Probe)
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Who was asked, and when after the beginning.
#[derive(Clone)]
struct Log {
    began: Instant,
    asked: Arc<Mutex<Vec<(String, Duration)>>>,
    ill: Arc<Mutex<Vec<&'static str>>>,
}

impl Log {
    fn new() -> Self {
        Log {
            began: Instant::now(),
            asked: Arc::default(),
            ill: Arc::default(),
        }
    }

    fn probe(&self) -> impl Probe + Send + Sync + 'static {
        let log = self.clone();
        move |endpoint: Endpoint| {
            let key = endpoint.key().to_owned();
            let is_well = !log.ill.lock().unwrap().iter().any(|ill| *ill == key);
            log.asked.lock().unwrap().push((key, log.began.elapsed()));
            async move { is_well }
        }
    }

    fn ill(&self, keys: &[&'static str]) {
        *self.ill.lock().unwrap() = keys.to_vec();
    }

    fn of(&self, key: &str) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap();
        let of_it = asked.iter().filter(|(asked, _)| asked == key);
        of_it.map(|(_, at)| *at).collect()
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn without_probes_nothing_is_asked_and_no_task_runs() {
    let endpoints = set(["a", "b"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(100 * SECOND).await;
    assert_eq!(alive_tasks(), 0);
    assert!(!is_vetoed(&endpoints, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_row_of_failures_forbids_an_endpoint_and_a_row_of_successes_allows_it() {
    let (endpoints, log) = (set(["a", "b"]), Log::new());
    let probes = each_second().failures(3).successes(2).build().unwrap();
    probes.attach(&endpoints, log.probe());
    log.ill(&["a"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    let asked = |n: usize| {
        let log = log.clone();
        async move {
            while log.of("a").len() < n {
                sleep(Duration::from_millis(1)).await;
            }
            settle().await;
        }
    };
    asked(2).await;
    assert!(!is_vetoed(&endpoints, "a"), "two are not three");
    log.ill(&[]);
    asked(3).await;
    log.ill(&["a"]);
    asked(5).await;
    assert!(!is_vetoed(&endpoints, "a"), "not in a row");
    asked(6).await;
    assert!(is_vetoed(&endpoints, "a") && !is_vetoed(&endpoints, "b"));
    for _ in 0..10 {
        assert_eq!(call(&stack).await, "b");
    }
    log.ill(&[]);
    asked(7).await;
    assert!(is_vetoed(&endpoints, "a"), "one is not two");
    log.ill(&["a"]);
    asked(8).await;
    log.ill(&[]);
    asked(9).await;
    assert!(is_vetoed(&endpoints, "a"), "not in a row");
    asked(10).await;
    assert!(!is_vetoed(&endpoints, "a"));
    let heard = [call(&stack).await, call(&stack).await];
    assert!(heard.contains(&"a".to_owned()), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn when_all_have_failed_their_probes_all_are_picked() {
    let (endpoints, log) = (set(["a", "b"]), Log::new());
    ask_each_second(&endpoints, &log);
    log.ill(&["a", "b"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(2 * SECOND).await;
    assert!(is_vetoed(&endpoints, "a") && is_vetoed(&endpoints, "b"));
    let mut heard = [call(&stack).await, call(&stack).await];
    heard.sort();
    assert_eq!(heard, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn each_endpoint_is_asked_soon_and_then_at_a_phase_of_its_own() {
    let names: Vec<_> = (0..200).map(|n| format!("h{n}")).collect();
    let endpoints: Endpoints = names.iter().map(|name| endpoint(name)).collect();
    let log = Log::new();
    each_second().build().unwrap().attach(&endpoints, log.probe());
    call(&balancer(&endpoints)).await;
    let stack = balancer(&endpoints);
    sleep(6 * SECOND).await;
    let mut first = Vec::new();
    let mut phases = Vec::new();
    for name in &names {
        let asked = log.of(name);
        first.push(asked[0]);
        phases.push(asked[1] - asked[0]);
        for pair in asked[1..].windows(2) {
            // A tick of the timer is a millisecond.
            let off = (pair[1] - pair[0]).abs_diff(SECOND);
            assert!(off <= Duration::from_millis(2), "{name}: {asked:?}");
        }
        assert!(asked.len() >= 6, "{name}: {asked:?}");
    }
    assert!(
        first
            .iter()
            .all(|at| *at <= SECOND / 10 + Duration::from_millis(2))
    );
    assert!(first.iter().any(|at| *at < SECOND / 50) && first.iter().any(|at| *at > SECOND / 12));
    for tenth in 0..10 {
        let from = SECOND / 10 * tenth;
        let within = phases
            .iter()
            .filter(|phase| (from..from + SECOND / 10).contains(phase));
        let count = within.count();
        assert!((5..=45).contains(&count), "{count} of 200 in tenth {tenth}");
    }
    drop(stack);
}

#[tokio::test(start_paused = true)]
async fn jitter_makes_each_pause_longer_or_shorter_by_its_share() {
    let (endpoints, log) = (set(["a"]), Log::new());
    each_second()
        .jitter(0.2)
        .build()
        .unwrap()
        .attach(&endpoints, log.probe());
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(100 * SECOND).await;
    let asked = log.of("a");
    let pauses: Vec<_> = asked[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
    let tick = Duration::from_millis(2);
    assert!(
        *least >= SECOND * 8 / 10 - tick && *most <= SECOND * 12 / 10 + tick,
        "{least:?} {most:?}"
    );
    assert!(
        *least < SECOND * 87 / 100 && *most > SECOND * 113 / 100,
        "{least:?} {most:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_fails_at_its_timeout_and_is_dropped() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let endpoints = set(["a", "b"]);
    let dropped = Arc::new(AtomicUsize::new(0));
    let guards = dropped.clone();
    each_second()
        .failures(1)
        .build()
        .unwrap()
        .attach(&endpoints, move |endpoint: Endpoint| {
            let guard = Guard(guards.clone());
            async move {
                let _guard = guard;
                if endpoint.key() == "a" {
                    pending::<()>().await;
                }
                Ok::<(), BoxError>(())
            }
        });
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(SECOND / 10 + SECOND / 3).await;
    let before = dropped.load(SeqCst);
    assert!(!is_vetoed(&endpoints, "a"));
    sleep(SECOND / 5).await;
    assert!(is_vetoed(&endpoints, "a") && !is_vetoed(&endpoints, "b"));
    assert!(dropped.load(SeqCst) > before);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_so_many_are_asked_at_once_and_none_is_left_out() {
    let endpoints: Endpoints = (0..100).map(|n| endpoint(&format!("h{n}"))).collect();
    let (now, most, done) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        Mutex::new(HashMap::new()),
    );
    let seen = Arc::new((now, most, done));
    let counts = seen.clone();
    let probes = each_second().timeout(SECOND).at_once(7).build().unwrap();
    probes.attach(&endpoints, move |endpoint: Endpoint| {
        let counts = counts.clone();
        async move {
            let (now, most, done) = &*counts;
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(SECOND / 2).await;
            now.fetch_sub(1, SeqCst);
            *done.lock().unwrap().entry(endpoint.key().to_owned()).or_insert(0) += 1;
            true
        }
    });
    let stack = balancer(&endpoints);
    call(&stack).await;
    // Of 100 probes with half a second each, 14 are made in a second.
    sleep(30 * SECOND).await;
    assert_eq!(seen.1.load(SeqCst), 7);
    let done = seen.2.lock().unwrap();
    assert_eq!(done.len(), 100);
    assert!(done.values().all(|times| (3..=5).contains(times)), "{done:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_probe_and_the_others_go_on() {
    let endpoints = set(["at-once", "later", "well"]);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let probe = move |endpoint: Endpoint| {
        let key = endpoint.key().to_owned();
        assert_ne!(key, "at-once", "in the call");
        let counted = counted.clone();
        async move {
            assert_ne!(key, "later", "in the future");
            counted.fetch_add(1, SeqCst);
            true
        }
    };
    each_second()
        .failures(2)
        .build()
        .unwrap()
        .attach(&endpoints, probe);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(10 * SECOND).await;
    assert!(is_vetoed(&endpoints, "at-once") && is_vetoed(&endpoints, "later"));
    assert!(!is_vetoed(&endpoints, "well"));
    assert!(asked.load(SeqCst) >= 9);
    assert_eq!(alive_tasks(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probe_may_change_the_set_and_take_its_own_endpoint_out_or_itself_away() {
    let endpoints = set(["a", "b", "c"]);
    let asked = Arc::new(AtomicUsize::new(0));
    // It would keep the set for good, if the probe held it.
    let handle = Arc::new(Mutex::new(Some(endpoints.clone())));
    let (counted, held) = (asked.clone(), handle.clone());
    let probe = move |one: Endpoint| {
        let (n, held) = (counted.fetch_add(1, SeqCst), held.clone());
        async move {
            let set = held.lock().unwrap().clone().unwrap();
            match n {
                0..20 => {
                    set.remove(one.key());
                    set.insert(one);
                }
                20..40 => set.replace([one.clone(), endpoint("d"), endpoint(["x", "y"][n % 2])]),
                40 => ActiveProbes::detach(&set),
                _ => {}
            }
            n % 3 > 0
        }
    };
    each_second()
        .failures(1)
        .build()
        .unwrap()
        .attach(&endpoints, probe);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(60 * SECOND).await;
    assert_eq!(asked.load(SeqCst), 41);
    settle().await;
    assert_eq!(alive_tasks(), 0);
    let snapshot = endpoints.snapshot();
    assert!(
        snapshot
            .endpoints()
            .iter()
            .all(|one| one.eligibility().is_eligible())
    );
    call(&stack).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_of_the_set_may_be_dropped_by_its_probe() {
    for never_ends in [true, false] {
        let endpoints = set(["a", "b"]);
        let handle = Arc::new(Mutex::new(None));
        let held = handle.clone();
        let probe = move |_: Endpoint| {
            let held = held.clone();
            async move {
                sleep(SECOND / 4).await;
                drop(held.lock().unwrap().take());
                if never_ends {
                    std::future::pending::<()>().await;
                }
                false
            }
        };
        each_second()
            .failures(1)
            .build()
            .unwrap()
            .attach(&endpoints, probe);
        let kept = endpoints.snapshot();
        call(&balancer(&endpoints)).await;
        *handle.lock().unwrap() = Some(endpoints);
        sleep(3 * SECOND).await;
        settle().await;
        assert_eq!((alive_tasks(), Arc::strong_count(&handle)), (0, 1));
        assert!(kept.endpoints().iter().all(|one| one.eligibility().is_eligible()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_comes_is_picked_at_once_and_asked_soon_and_one_that_goes_is_not_asked_any_more() {
    let (endpoints, log) = (set(["a", "b"]), Log::new());
    ask_each_second(&endpoints, &log);
    log.ill(&["a", "new"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(3 * SECOND).await;
    assert!(is_vetoed(&endpoints, "a"));
    endpoints.insert(endpoint("new"));
    let came = log.began.elapsed();
    let heard = [call(&stack).await, call(&stack).await, call(&stack).await];
    assert!(heard.contains(&"new".to_owned()), "{heard:?}");
    let a = endpoints.snapshot().endpoints()[0].clone();
    endpoints.remove("a");
    settle().await;
    assert!(
        !a.eligibility().is_forbidden_by(Veto::Probe),
        "nobody would take it back later"
    );
    let before = log.of("a").len();
    sleep(SECOND / 5).await;
    assert!(log.of("new")[0] - came <= SECOND / 10 + Duration::from_millis(2));
    assert!(is_vetoed(&endpoints, "new"));
    sleep(5 * SECOND).await;
    assert_eq!(log.of("a").len(), before);
    assert!(log.of("b").len() >= 7);
}

#[tokio::test(start_paused = true)]
async fn another_description_of_a_server_keeps_what_is_known_of_it_and_another_address_does_not() {
    let (endpoints, log) = (set(["a", "b"]), Log::new());
    ask_each_second(&endpoints, &log);
    log.ill(&["a"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(3 * SECOND).await;
    let old = endpoints.snapshot().endpoints()[0].clone();
    let heavier = Endpoint::builder("http://a").key("a").weight(2).build().unwrap();
    endpoints.insert(heavier);
    settle().await;
    assert!(is_vetoed(&endpoints, "a"));
    assert!(!old.eligibility().is_forbidden_by(Veto::Probe));
    let moved = Endpoint::builder("http://elsewhere").key("a").build().unwrap();
    endpoints.insert(moved);
    settle().await;
    assert!(!is_vetoed(&endpoints, "a"));
    sleep(SECOND / 5).await;
    assert!(is_vetoed(&endpoints, "a"), "and it is asked soon");
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_an_endpoint_that_goes_is_dropped_and_frees_its_place() {
    let endpoints = set(["hangs"]);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, dropped) = (asked.clone(), Arc::new(AtomicBool::new(false)));
    struct Guard(Arc<AtomicBool>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let guard = dropped.clone();
    let probes = ActiveProbes::builder()
        .timeout(10 * SECOND)
        .at_once(1)
        .build()
        .unwrap();
    probes.attach(&endpoints, move |endpoint: Endpoint| {
        log.lock().unwrap().push(endpoint.key().to_owned());
        let guard = (endpoint.key() == "hangs").then(|| Guard(guard.clone()));
        async move {
            if let Some(_guard) = guard {
                pending::<()>().await;
            }
            true
        }
    });
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(SECOND + SECOND / 10).await;
    endpoints.insert(endpoint("waits"));
    sleep(2 * SECOND).await;
    assert_eq!(*asked.lock().unwrap(), ["hangs"]);
    endpoints.remove("hangs");
    settle().await;
    assert!(dropped.load(SeqCst));
    assert_eq!(*asked.lock().unwrap(), ["hangs", "waits"]);
}

#[tokio::test(start_paused = true)]
async fn within_a_runtime_the_first_round_begins_when_a_probe_is_attached() {
    let (endpoints, log) = (set(["ill", "well"]), Log::new());
    log.ill(&["ill"]);
    ask_each_second(&endpoints, &log);
    sleep(SECOND / 10 + Duration::from_millis(2)).await;
    assert!(!log.of("ill").is_empty() && !log.of("well").is_empty());
    assert!(is_vetoed(&endpoints, "ill") && !is_vetoed(&endpoints, "well"));
    // It is never called, from the first call on.
    let stack = balancer(&endpoints);
    for _ in 0..4 {
        assert_eq!(call(&stack).await, "well");
    }
    assert_eq!(alive_tasks(), 1);
}

#[test]
fn without_a_runtime_the_first_call_within_one_begins_the_first_round() {
    let endpoints = set(["a", "b"]);
    let log = Log::new();
    ask_each_second(&endpoints, &log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let stack = balancer(&endpoints);
        sleep(5 * SECOND).await;
        assert_eq!((alive_tasks(), log.count()), (0, 0), "not before the first call");
        call(&stack).await;
        sleep(SECOND / 2).await;
        assert!(log.count() >= 2);
    });
}

#[tokio::test(start_paused = true)]
async fn a_set_that_a_stream_fills_is_asked_from_the_first_call_on() {
    let log = Log::new();
    let names = ["a", "b"].map(|name| Ok::<_, BoxError>(Change::Insert(name, endpoint(name))));
    let endpoints = Endpoints::from_stream(stream::iter(names).chain(stream::pending()));
    ask_each_second(&endpoints, &log);
    sleep(5 * SECOND).await;
    assert_eq!(
        (alive_tasks(), log.count()),
        (1, 0),
        "the stream has not been polled"
    );
    call(&balancer(&endpoints)).await;
    sleep(SECOND / 5).await;
    assert!(log.count() >= 2);
    assert_eq!(alive_tasks(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_task_asks_all_and_ends_with_the_last_handle_and_its_vetoes_go() {
    let (endpoints, log) = (set(["a", "b"]), Log::new());
    ask_each_second(&endpoints, &log);
    log.ill(&["a"]);
    let a = endpoints.snapshot().endpoints()[0].clone();
    let stack = balancer(&endpoints);
    for _ in 0..3 {
        call(&stack).await;
    }
    sleep(5 * SECOND).await;
    assert_eq!(alive_tasks(), 1);
    a.eligibility().forbid(Veto::User);
    drop(endpoints);
    sleep(SECOND).await;
    assert_eq!(alive_tasks(), 1, "a balancer is a handle as well");
    assert!(a.eligibility().is_forbidden_by(Veto::Probe));
    drop(stack);
    settle().await;
    assert_eq!(alive_tasks(), 0);
    assert!(!a.eligibility().is_forbidden_by(Veto::Probe));
    assert!(
        a.eligibility().is_forbidden_by(Veto::User),
        "another's is not touched"
    );
    let count = log.count();
    sleep(5 * SECOND).await;
    assert_eq!(log.count(), count);
}

#[tokio::test(start_paused = true)]
async fn detaching_ends_it_and_attaching_another_takes_its_place() {
    let (endpoints, one, two) = (set(["a", "b"]), Log::new(), Log::new());
    let probes = each_second().failures(1).build().unwrap();
    probes.attach(&endpoints, one.probe());
    one.ill(&["a"]);
    two.ill(&["b"]);
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(3 * SECOND).await;
    assert!(is_vetoed(&endpoints, "a"));
    probes.attach(&endpoints, two.probe());
    settle().await;
    assert!(!is_vetoed(&endpoints, "a"));
    let count = one.count();
    call(&stack).await;
    sleep(3 * SECOND).await;
    assert_eq!(one.count(), count);
    assert!(is_vetoed(&endpoints, "b") && !is_vetoed(&endpoints, "a"));
    assert_eq!(alive_tasks(), 1);
    ActiveProbes::detach(&endpoints);
    settle().await;
    assert!(!is_vetoed(&endpoints, "b"));
    call(&stack).await;
    settle().await;
    assert_eq!(alive_tasks(), 0);
}

#[test]
fn another_runtime_goes_on_where_the_first_has_ended() {
    let endpoints = set(["a", "b"]);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let probes = each_second().timeout(SECOND).failures(2).build().unwrap();
    probes.attach(&endpoints, move |endpoint: Endpoint| {
        counted.fetch_add(1, SeqCst);
        async move {
            // A timer of the runtime that it is asked in, which outlives that.
            sleep(SECOND * 9 / 10).await;
            endpoint.key() == "b"
        }
    });
    let stack = balancer(&endpoints);
    let within = |time: Duration| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            call(&stack).await;
            sleep(time).await;
        });
    };
    for round in 1..=3 {
        // Each of the clocks that stand still begins where the machine's is, which is before the end of the last one.
        within(SECOND / 5 * round);
        assert_eq!(
            asked.load(SeqCst),
            2 * round as usize,
            "what was under way is asked anew"
        );
    }
    assert!(!is_vetoed(&endpoints, "a"));
    within(10 * SECOND);
    assert!(is_vetoed(&endpoints, "a") && !is_vetoed(&endpoints, "b"));
}

fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

#[test]
fn probes_attached_in_a_runtime_that_ends_before_they_begin_begin_in_that_of_the_next_call() {
    let endpoints = set(["a", "b"]);
    let log = Log::new();
    let first = paused_runtime();
    first.block_on(async { ask_each_second(&endpoints, &log) });
    drop(first);
    assert_eq!(log.count(), 0);
    paused_runtime().block_on(async {
        call(&balancer(&endpoints)).await;
        sleep(SECOND / 2).await;
        assert!(log.count() >= 2);
        assert_eq!(alive_tasks(), 1);
        drop(endpoints);
        sleep(SECOND).await;
        assert_eq!(alive_tasks(), 0);
    });
}

#[test]
fn probes_attached_while_a_runtime_ends_begin_in_that_of_the_next_call() {
    /// Attaches as it is dropped.
    struct AtTheEnd(Endpoints, Log);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            ask_each_second(&self.0, &self.1);
        }
    }

    let endpoints = set(["a", "b"]);
    let log = Log::new();
    let first = paused_runtime();
    first.block_on(async {
        let at_the_end = AtTheEnd(endpoints.clone(), log.clone());
        tokio::spawn(async move {
            pending::<()>().await;
            drop(at_the_end);
        });
        settle().await;
    });
    drop(first);
    paused_runtime().block_on(async {
        call(&balancer(&endpoints)).await;
        sleep(SECOND / 2).await;
        assert!(log.count() >= 2);
        assert_eq!(alive_tasks(), 1);
    });
}

#[test]
fn probes_that_several_runtimes_attach_at_once_are_one_task_in_the_end() {
    for _ in 0..100 {
        let endpoints = set(["a", "b"]);
        let log = Log::new();
        let runtimes: Vec<_> = (0..3)
            .map(|_| {
                tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_time()
                    .build()
                    .unwrap()
            })
            .collect();
        std::thread::scope(|threads| {
            for runtime in &runtimes {
                threads.spawn(|| runtime.block_on(async { ask_each_second(&endpoints, &log) }));
            }
        });
        let alive = || -> usize {
            let alive = runtimes.iter().map(|one| one.metrics().num_alive_tasks());
            alive.sum()
        };
        // Those that were replaced end in their own runtimes.
        while alive() != 1 {
            std::thread::yield_now();
        }
        drop(endpoints);
        while alive() != 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn probes_that_were_never_begun_go_with_the_set() {
    let endpoints = set(["a"]);
    let kept = Arc::new(());
    let held = kept.clone();
    let probes = each_second().build().unwrap();
    probes.attach(&endpoints, move |_: Endpoint| {
        let _ = &held;
        async { true }
    });
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(endpoints);
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_endpoints_are_asked_each_once_in_an_interval() {
    let endpoints: Endpoints = (0..10_000).map(|n| endpoint(&format!("h{n}"))).collect();
    let log = Log::new();
    ActiveProbes::builder()
        .jitter(0.0)
        .build()
        .unwrap()
        .attach(&endpoints, log.probe());
    let stack = balancer(&endpoints);
    call(&stack).await;
    sleep(61 * SECOND).await;
    let asked = log.asked.lock().unwrap();
    let mut times = HashMap::new();
    for (key, _) in asked.iter() {
        *times.entry(key.as_str()).or_insert(0_u32) += 1;
    }
    assert_eq!(times.len(), 10_000);
    assert!(times.values().all(|times| (6..=8).contains(times)));
}

#[tokio::test(start_paused = true)]
async fn others_have_their_turn_while_many_are_asked() {
    let endpoints: Endpoints = (0..10_000).map(|n| endpoint(&format!("h{n}"))).collect();
    let log = Log::new();
    let probes = each_second().at_once(100).build().unwrap();
    probes.attach(&endpoints, log.probe());
    let stack = balancer(&endpoints);
    call(&stack).await;
    settle().await;
    let (mut before, mut most, mut turns) = (log.count(), 0, 0);
    // Comes back to the end of the line each time.
    let other = std::future::poll_fn(move |cx| {
        most = most.max(log.count() - before);
        before = log.count();
        turns += 1;
        if turns == 1_000 {
            return Poll::Ready((before, most));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let other = tokio::spawn(other);
    tokio::time::advance(SECOND / 5).await;
    let (before, most) = other.await.unwrap();
    assert!(before >= 10_000, "only {before} were asked");
    assert!(most < 1_000, "{most} were asked in one turn");
}

#[tokio::test]
async fn an_http_probe_expects_a_status_and_if_wanted_a_body() {
    async fn outcome(probe: &HttpProbe<Server, String>) -> Result<(), String> {
        let asked = probe.ask(Endpoint::new("https://10.0.0.1:81").unwrap());
        asked.await.map_err(|error| error.to_string())
    }
    let get = |status, body| HttpProbe::get(Server { status, body }, "/health?deep").unwrap();
    assert_eq!(outcome(&get(200, "all is well")).await, Ok(()));
    assert!(outcome(&get(204, "")).await.unwrap_err().contains("204"));
    assert!(outcome(&get(503, "")).await.unwrap_err().contains("503"));
    let both: StatusSet = [StatusCode::OK, StatusCode::NO_CONTENT].into_iter().collect();
    assert_eq!(outcome(&get(204, "").statuses(both)).await, Ok(()));
    assert_eq!(outcome(&get(200, "UP").content("UP")).await, Ok(()));
    assert!(outcome(&get(200, "U").content("UP")).await.is_err());
    assert!(outcome(&get(200, "UPS").content("UP")).await.is_err());
    assert!(outcome(&get(200, "").content("UP")).await.is_err());
    assert!(outcome(&get(503, "UP").content("UP")).await.is_err());
    for path in ["", "health", "http://a/health", "/a b"] {
        let error = HttpProbe::<_, String>::get((), path).unwrap_err();
        assert_eq!((error.layer(), error.field()), ("HttpProbe", "path"));
    }
}

/// Answers with this, if it is asked for the right thing.
#[derive(Clone)]
struct Server {
    status: u16,
    body: &'static str,
}

impl Service<Request<String>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert_eq!(request.uri(), "https://10.0.0.1:81/health?deep");
        assert_eq!(request.method(), http::Method::GET);
        let answer = Response::builder().status(self.status);
        let answer = answer.body(Full::from(self.body)).unwrap();
        Box::pin(async { Ok(answer) })
    }
}

#[tokio::test]
async fn on_sockets_a_server_that_says_no_is_left_out_until_it_says_yes() {
    /// Says 200 while it is well, and 503 to its health check otherwise. To all else it answers with its name.
    async fn serve(listener: TcpListener, name: &'static str, well: Arc<AtomicBool>) {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let well = well.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                let mut buffer = [0; 1024];
                while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                    seen.extend_from_slice(&buffer[..read]);
                    if seen.ends_with(b"\r\n\r\n") {
                        let ok = !seen.starts_with(b"GET /health ") || well.load(SeqCst);
                        let status = if ok { "200 OK" } else { "503 Service Unavailable" };
                        let answer = format!(
                            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{name}",
                            name.len()
                        );
                        socket.write_all(answer.as_bytes()).await.unwrap();
                        seen.clear();
                    }
                }
            });
        }
    }
    let wells = [Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true))];
    let mut addresses = Vec::new();
    for (name, well) in ["a", "b"].into_iter().zip(&wells) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap().to_string());
        tokio::spawn(serve(listener, name, well.clone()));
    }
    let endpoints = Endpoints::from_list(&addresses).unwrap();
    let client = Client::builder().build_http::<Full<Bytes>>().unwrap();
    let probes = ActiveProbes::builder()
        .interval(Duration::from_millis(20))
        .timeout(Duration::from_millis(20))
        .failures(2);
    probes
        .build()
        .unwrap()
        .attach(&endpoints, HttpProbe::get(client.clone(), "/health").unwrap());
    let mut stack = LoadBalanceLayer::new(endpoints.clone())
        .rule(RoundRobin::new())
        .layer(client);
    let mut call = async || {
        let request = Request::get("/").body(Full::<Bytes>::default()).unwrap();
        let answer = stack.ready().await.unwrap().call(request).await.unwrap();
        answer.into_body().collect().await.unwrap().to_bytes()
    };
    let a = endpoints.snapshot().endpoints()[0].clone();
    let until = async |vetoed: bool| {
        while a.eligibility().is_forbidden_by(Veto::Probe) != vetoed {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let limit = 20 * SECOND;
    call().await;
    wells[0].store(false, SeqCst);
    tokio::time::timeout(limit, until(true)).await.unwrap();
    for _ in 0..10 {
        assert_eq!(call().await, "b");
    }
    wells[0].store(true, SeqCst);
    tokio::time::timeout(limit, until(false)).await.unwrap();
    let heard = [call().await, call().await];
    assert!(heard.contains(&Bytes::from("a")), "{heard:?}");
}

#[test]
fn settings_that_cannot_be_are_refused_by_name_and_ribbons_are_its_own() {
    let field = |builder: ActiveProbesBuilder| {
        let error = builder.build().unwrap_err();
        assert_eq!(error.layer(), "ActiveProbes");
        error.field()
    };
    let new = ActiveProbes::builder;
    assert_eq!(field(new().interval(Duration::ZERO)), "interval");
    assert_eq!(field(new().interval(Duration::MAX)), "interval");
    assert_eq!(field(new().timeout(Duration::ZERO)), "timeout");
    assert_eq!(field(new().timeout(11 * SECOND)), "timeout");
    for jitter in [-0.1, 1.1, f64::NAN] {
        assert_eq!(field(new().jitter(jitter)), "jitter");
    }
    assert_eq!(field(new().failures(0)), "failures");
    assert_eq!(field(new().successes(0)), "successes");
    assert_eq!(field(new().at_once(0)), "at_once");
    assert_eq!(new().build().unwrap(), ActiveProbes::default());
    let ribbon = new()
        .interval(30 * SECOND)
        .jitter(0.0)
        .timeout(2 * SECOND)
        .failures(1)
        .at_once(1);
    assert_eq!(ActiveProbes::ribbon().build().unwrap(), ribbon.build().unwrap());
}
