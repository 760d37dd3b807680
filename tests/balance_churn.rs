//! Ten thousand endpoints, of which 2,500 go and 2,500 others come each second, and the calls to them meanwhile.
//!
//! Each test makes a part of a million calls, and one change for every 40 of them: at 200,000 calls a second these are
//! 5,000 changes. `CHURN_CALLS=1000000` makes all, in 50 s in a debug build, and any other number holds as well: no call goes
//! to who has gone, nobody is lost, and after one, two or four million calls there are as many bytes as at the start, but
//! for 64 KiB. What the structures take depends on how many are in the set, and not on how many have come and gone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll},
    thread,
};

use futures_util::FutureExt;
use http::{Request, Response, Uri};
use tokio::time::{Duration, Instant};
use tower::{Layer, Service};
use tower_outbound::{
    balance::{
        AvailabilityFiltering, BalanceHandle, BestAvailable, Candidates, ConsistentHash, Ewma, LeastLoaded,
        LoadBalance, LoadBalanceLayer, Only, Picked, Picker, Random, RoundRobin, Rule, WeightedRandom,
        WeightedResponseTime, WeightedRoundRobin, ZoneAvoidance, ZoneFirst,
    },
    call::{BoxError, Endpoint, Endpoints, Services, Verdict},
};

/// In the set at any time, and known at first. Of those who come half are new.
const ENDPOINTS: usize = 10_000;
const KNOWN: usize = 2 * ENDPOINTS;

const CALLS_FOR_A_CHANGE: usize = 40;
const BETWEEN_CALLS: Duration = Duration::from_micros(5);
/// So many attempts are under way at any time: each takes as long as 25 changes.
const OPEN: usize = 1_000;
/// Seconds with one call each. Then an average of so many attempts in flight has fallen below one.
const QUIET: usize = 30;

/// By so many bytes what is kept may differ, as it depends on the order of the changes. The list of the set has room for an
/// eighth more, and for an eighth of that in gaps, of 16 bytes each: 42 KiB. The list of chunks of a balancer has from 79
/// to 313 of them, of 48 bytes each: 11 KiB. The subset of `Ewma` has from 18 to 40 members, of 40 bytes each. The counters of
/// one endpoint in four that went would be more than all that.
const SLACK: i64 = 65_536;

fn calls() -> usize {
    let asked = std::env::var("CHURN_CALLS").ok();
    asked.map_or(100_000, |calls| calls.parse().unwrap())
}

/// There are no more than that, if each who comes is new.
fn most_known() -> usize {
    KNOWN + 2 * calls() / CALLS_FOR_A_CHANGE
}

fn key(n: usize) -> String {
    format!("http://h{n}")
}

fn endpoint(n: usize) -> Endpoint {
    Endpoint::new(key(n)).unwrap()
}

fn number(host: &str) -> usize {
    host[1..].parse().unwrap()
}

enum Change {
    Insert(usize),
    Remove(usize),
}

/// Who is in the set. One goes by lot, then one comes, who was never there or has been by lot, and so on.
struct Fleet {
    endpoints: Endpoints,
    inside: Vec<usize>,
    outside: Vec<usize>,
    known: usize,
    random: u64,
}

impl Fleet {
    fn new() -> Self {
        // What the test itself keeps does not grow while bytes are counted.
        let mut outside = Vec::with_capacity(most_known());
        outside.extend(ENDPOINTS..KNOWN);
        Fleet {
            endpoints: (0..ENDPOINTS).map(endpoint).collect(),
            inside: (0..ENDPOINTS).collect(),
            outside,
            known: KNOWN,
            random: 7,
        }
    }

    fn next(&mut self) -> Change {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let drawn = (self.random >> 33) as usize;
        if self.inside.len() == ENDPOINTS {
            let n = self.inside.swap_remove(drawn % self.inside.len());
            self.outside.push(n);
            Change::Remove(n)
        } else {
            let n = if drawn % 2 == 0 {
                self.known += 1;
                self.known - 1
            } else {
                self.outside.swap_remove(drawn % self.outside.len())
            };
            self.inside.push(n);
            Change::Insert(n)
        }
    }

    fn make(&self, change: &Change) {
        match change {
            Change::Insert(n) => self.endpoints.insert(endpoint(*n)),
            Change::Remove(n) => assert!(self.endpoints.remove(&key(*n))),
        }
    }

    /// As at first.
    fn restore(&mut self) {
        for &n in self.inside.iter().filter(|&&n| n >= ENDPOINTS) {
            self.endpoints.remove(&key(n));
        }
        for n in 0..ENDPOINTS {
            self.endpoints.insert(endpoint(n));
        }
        self.inside.clear();
        self.inside.extend(0..ENDPOINTS);
        self.outside.clear();
        self.outside.extend(ENDPOINTS..self.known);
    }
}

/// The rule that is tested, and then one that comes to each endpoint in turn.
struct Then<R> {
    rule: R,
    in_turn: RoundRobin,
    is_in_turn: Arc<AtomicBool>,
}

impl<R: Rule> Rule for Then<R> {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        if self.is_in_turn.load(Relaxed) {
            self.in_turn.pick(candidates)
        } else {
            self.rule.pick(candidates)
        }
    }
}

fn then<R>(rule: R) -> (Then<R>, Arc<AtomicBool>) {
    let is_in_turn = Arc::new(AtomicBool::new(false));
    let rule = Then {
        rule,
        in_turn: RoundRobin::new(),
        is_in_turn: is_in_turn.clone(),
    };
    (rule, is_in_turn)
}

/// In the end each endpoint of the set is picked, and no other, and nothing is under way.
fn nothing_is_lost(fleet: &Fleet, handle: &BalanceHandle, mut picked: Vec<usize>) {
    let mut expected = fleet.inside.clone();
    expected.sort_unstable();
    picked.sort_unstable();
    assert!(picked == expected, "each is picked once");
    let snapshot = fleet.endpoints.snapshot();
    let figures = handle.endpoints();
    let of_figures = figures.iter().map(|one| one.endpoint());
    assert!(
        of_figures.eq(snapshot.endpoints()),
        "the set and the roster agree"
    );
    assert_eq!(handle.total().in_flight(), 0);
}

/// Calls and changes by turns, so that each call is known to be after the changes before it, and each byte is counted.
struct Turns<R> {
    fleet: Fleet,
    picker: Picker<R>,
    is_inside: Vec<bool>,
    open: VecDeque<Picked>,
    now: Instant,
    ended_after_removal: usize,
}

impl<R: Rule> Turns<R> {
    fn new(rule: R) -> Self {
        let fleet = Fleet::new();
        let picker = Picker::new(fleet.endpoints.clone(), rule);
        Turns {
            fleet,
            picker,
            is_inside: (0..most_known()).map(|n| n < ENDPOINTS).collect(),
            open: VecDeque::with_capacity(OPEN + 1),
            now: Instant::now(),
            ended_after_removal: 0,
        }
    }

    fn pick(&mut self, after: Duration) -> (usize, Picked) {
        self.now += after;
        let picked = self.picker.pick(&Request::new(()), self.now).unwrap();
        let n = number(picked.endpoint().authority().host());
        assert!(self.is_inside[n], "h{n} is not in the set");
        (n, picked)
    }

    fn end_one(&mut self) {
        let picked = self.open.pop_front().unwrap();
        let n = number(picked.endpoint().authority().host());
        self.ended_after_removal += usize::from(!self.is_inside[n]);
        picked.end(Verdict::Success, self.now);
    }

    fn drive(&mut self, calls: usize) {
        for call in 0..calls {
            if call % CALLS_FOR_A_CHANGE == 0 {
                let change = self.fleet.next();
                self.fleet.make(&change);
                match change {
                    Change::Insert(n) => self.is_inside[n] = true,
                    Change::Remove(n) => self.is_inside[n] = false,
                }
            }
            let (_, picked) = self.pick(BETWEEN_CALLS);
            self.open.push_back(picked);
            if self.open.len() > OPEN {
                self.end_one();
            }
        }
    }

    /// The same set as at first, and what a rule keeps for so much traffic is no more needed. `Ewma` draws from as many as
    /// there are in flight, a third of which it forgets within a second of calls, and those of its subset that have gone
    /// stay there until it is called.
    fn restore(&mut self) {
        while !self.open.is_empty() {
            self.end_one();
        }
        self.fleet.restore();
        let is_inside = (0..).map(|n| n < ENDPOINTS);
        self.is_inside
            .iter_mut()
            .zip(is_inside)
            .for_each(|(is, should)| *is = should);
        for _ in 0..QUIET {
            let (_, picked) = self.pick(Duration::from_secs(1));
            picked.end(Verdict::Success, self.now);
        }
        // All counters are there.
        drop(self.picker.handle().endpoints());
    }
}

fn by_turns<R: Rule>(rule: R) {
    let (rule, is_in_turn) = then(rule);
    let mut turns = Turns::new(rule);
    let handle = turns.picker.handle();
    // What is kept for all endpoints is there from now on, and what grows for a while has grown.
    turns.drive(calls() / 10);
    turns.restore();
    let counted = allocation_counter::measure(|| {
        turns.drive(calls());
        turns.restore();
    });
    assert!(
        counted.bytes_current.abs() < SLACK,
        "{} bytes more than before",
        counted.bytes_current
    );
    assert!(
        turns.ended_after_removal > 0,
        "attempts to where they went before the removal go on"
    );
    is_in_turn.store(true, Relaxed);
    let in_turn = (0..ENDPOINTS).map(|_| {
        let (n, picked) = turns.pick(BETWEEN_CALLS);
        picked.end(Verdict::Success, turns.now);
        n
    });
    let in_turn = in_turn.collect();
    nothing_is_lost(&turns.fleet, &handle, in_turn);
}

/// Says where it was called.
#[derive(Clone)]
struct Client;

impl Service<Request<()>> for Client {
    type Response = Response<Uri>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<Uri>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_parts().0.uri)))
    }
}

fn call<R: Rule>(stack: &mut LoadBalance<Client, R>) -> usize {
    let response = stack.call(Request::new(())).now_or_never().unwrap().unwrap();
    number(response.body().host().unwrap())
}

/// What the threads know of each other.
struct Board {
    calls: AtomicUsize,
    changes: AtomicUsize,
    /// How many removals have been published.
    removals: AtomicU64,
    /// By which of them each has gone. `u64::MAX`: it is in the set, or about to be.
    gone_by: Vec<AtomicU64>,
}

/// More calls, or changes, than anybody waits for.
const MANY: usize = usize::MAX / 1_000;

/// If one of them fails, the others are to end.
struct Ends<'a>(&'a Board);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.calls.store(MANY, SeqCst);
            self.0.changes.store(MANY, SeqCst);
        }
    }
}

/// Calls from two threads while a third changes the set, each as fast as it can, but for their ratio.
fn at_once<R: Rule + Send + Sync + 'static>(rule: R) {
    let (rule, is_in_turn) = then(rule);
    let mut fleet = Fleet::new();
    let stack = LoadBalanceLayer::new(fleet.endpoints.clone())
        .rule(rule)
        .layer(Client);
    let gone_by = |n: usize| if n < ENDPOINTS { u64::MAX } else { 0 };
    let board = Board {
        calls: AtomicUsize::new(0),
        changes: AtomicUsize::new(0),
        removals: AtomicU64::new(0),
        gone_by: (0..most_known()).map(gone_by).map(AtomicU64::new).collect(),
    };
    let calls = calls();
    thread::scope(|threads| {
        for _ in 0..2 {
            let (mut stack, board) = (stack.clone(), &board);
            threads.spawn(move || {
                let _ends = Ends(board);
                while board.calls.fetch_add(1, SeqCst) < calls {
                    let published = board.removals.load(SeqCst);
                    let n = call(&mut stack);
                    let gone_by = board.gone_by[n].load(SeqCst);
                    assert!(gone_by > published, "h{n} was called after it had gone");
                    while board.calls.load(SeqCst) > (board.changes.load(SeqCst) + 2) * CALLS_FOR_A_CHANGE {
                        thread::yield_now();
                    }
                }
            });
        }
        while board.calls.load(SeqCst) < calls {
            if board.changes.load(SeqCst) * CALLS_FOR_A_CHANGE > board.calls.load(SeqCst) {
                thread::yield_now();
                continue;
            }
            let change = fleet.next();
            if let Change::Insert(n) = change {
                board.gone_by[n].store(u64::MAX, SeqCst);
            }
            fleet.make(&change);
            if let Change::Remove(n) = change {
                let removal = board.removals.load(SeqCst) + 1;
                board.gone_by[n].store(removal, SeqCst);
                board.removals.store(removal, SeqCst);
            }
            board.changes.fetch_add(1, SeqCst);
        }
        // Nobody waits for a change that is not going to come.
        board.changes.store(MANY, SeqCst);
    });
    is_in_turn.store(true, Relaxed);
    let mut stack = stack;
    let in_turn = (0..fleet.inside.len()).map(|_| call(&mut stack)).collect();
    nothing_is_lost(&fleet, &stack.handle(), in_turn);
}

#[test]
fn changes_between_calls_lose_nothing_and_leave_nothing_behind_in_turn() {
    by_turns(RoundRobin::new());
}

#[test]
fn changes_between_calls_lose_nothing_and_leave_nothing_behind_with_two_choices() {
    by_turns(LeastLoaded::seeded(1));
}

#[test]
fn changes_between_calls_lose_nothing_and_leave_nothing_behind_with_ewma() {
    by_turns(Ewma::seeded(1));
}

#[test]
fn changes_during_calls_send_none_to_who_has_gone_in_turn() {
    at_once(RoundRobin::new());
}

#[test]
fn changes_during_calls_send_none_to_who_has_gone_with_two_choices() {
    at_once(LeastLoaded::new());
}

#[test]
fn changes_during_calls_send_none_to_who_has_gone_with_ewma() {
    at_once(Ewma::new());
}

/// So many nearly fill a table for a thousand: one that is not cleared of those that have gone soon has to be larger. A
/// table of twice the size would be 25 KiB more; the list of the set has room for an eighth more or less, of 16 bytes each.
#[test]
fn services_that_come_and_go_leave_nothing_behind() {
    // Their names are as long as one another.
    const FIRST: usize = 100_000;
    const SERVICES: usize = 780;
    let services = Services::new();
    let mut inside: Vec<usize> = (FIRST..FIRST + SERVICES).collect();
    inside.iter().for_each(|&n| services.insert(endpoint(n), ()));
    let mut dice = fastrand::Rng::with_seed(1);
    let counted = allocation_counter::measure(|| {
        for n in FIRST + SERVICES..FIRST + 20_000 {
            let gone = std::mem::replace(&mut inside[dice.usize(..SERVICES)], n);
            assert!(services.remove(&key(gone)));
            services.insert(endpoint(n), ());
        }
    });
    assert!(
        counted.bytes_current.abs() < 8_192,
        "{} bytes more than before",
        counted.bytes_current
    );
}

/// Comes, goes, is described anew, and is replaced with all others, while three threads call.
fn whatever_changes<R: Rule + Send + Sync + 'static>(rule: R) {
    const SOME: usize = 400;
    let described = |n: usize, weight: u32| {
        Endpoint::builder(format!("http://h{n}"))
            .key(key(n))
            .zone(["x", "y"][n % 2])
            .weight(weight)
            .build()
            .unwrap()
    };
    let endpoints: Endpoints = (0..SOME).map(|n| described(n, 1)).collect();
    let stack = LoadBalanceLayer::new(endpoints.clone()).rule(rule).layer(Client);
    let removals = AtomicU64::new(0);
    let gone_by: Vec<_> = (0..SOME).map(|_| AtomicU64::new(u64::MAX)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let mut stack = stack.clone();
                let (removals, gone_by, stop) = (&removals, &gone_by, &stop);
                threads.spawn(move || {
                    while !stop.load(SeqCst) {
                        let published = removals.load(SeqCst);
                        let n = call(&mut stack);
                        let gone_by = gone_by[n].load(SeqCst);
                        assert!(gone_by > published, "h{n} was called after it had gone");
                    }
                })
            })
            .collect();
        let mut dice = fastrand::Rng::with_seed(5);
        let mut inside = [true; SOME];
        let go = |gone: &[usize]| {
            let removal = removals.load(SeqCst) + 1;
            gone.iter().for_each(|&n| gone_by[n].store(removal, SeqCst));
            removals.store(removal, SeqCst);
        };
        for _ in 0..300 {
            if callers.iter().any(|caller| caller.is_finished()) {
                break;
            }
            let n = dice.usize(..SOME);
            let others = inside.iter().filter(|&&is_in| is_in).count();
            match dice.u8(..20) {
                0 => {
                    let next: Vec<usize> = (0..SOME).filter(|_| dice.u8(..10) < 8).collect();
                    next.iter().for_each(|&n| gone_by[n].store(u64::MAX, SeqCst));
                    let all = next.iter().map(|&n| described(n, dice.u32(1..3)));
                    let mut all: Vec<_> = all.collect();
                    if dice.bool() {
                        dice.shuffle(&mut all);
                    }
                    endpoints.replace(all);
                    let before = std::mem::replace(&mut inside, [false; SOME]);
                    next.iter().for_each(|&n| inside[n] = true);
                    let gone: Vec<usize> = (0..SOME).filter(|&n| before[n] && !inside[n]).collect();
                    go(&gone);
                }
                1..10 if others > 10 => {
                    endpoints.remove(&key(n));
                    if std::mem::replace(&mut inside[n], false) {
                        go(&[n]);
                    }
                }
                _ => {
                    gone_by[n].store(u64::MAX, SeqCst);
                    endpoints.insert(described(n, dice.u32(1..3)));
                    inside[n] = true;
                }
            }
        }
        stop.store(true, SeqCst);
    });
    let total = stack.handle().total();
    assert_eq!(total.in_flight(), 0);
    let listed = stack.handle().endpoints();
    assert_eq!(listed.len(), endpoints.len());
}

#[test]
fn whatever_changes_during_calls_none_goes_to_who_has_gone_and_no_rule_minds() {
    whatever_changes(RoundRobin::new());
    whatever_changes(Random::new());
    whatever_changes(WeightedRandom::new());
    whatever_changes(WeightedRoundRobin::new());
    whatever_changes(LeastLoaded::new());
    whatever_changes(Ewma::new());
    whatever_changes(ConsistentHash::by(|_| None));
    whatever_changes(ZoneFirst::new("x", Ewma::new()));
    whatever_changes(Only::new(|one| one.weight() == 1, Ewma::new()).or_all());
    whatever_changes(Only::new(|one| one.weight() == 1, ZoneFirst::new("y", RoundRobin::new())).or_all());
    whatever_changes(Only::live(|one| one.in_flight() < 3, Random::new()).or_all());
    whatever_changes(WeightedResponseTime::new());
    whatever_changes(AvailabilityFiltering::new());
    whatever_changes(BestAvailable::new());
    whatever_changes(ZoneAvoidance::new());
}
