//! Many calls at once, and what came of them.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::BodyExt;
use tokio::{net::TcpSocket, task::JoinSet, time::Instant};
use tower::ServiceExt;
use tower_outbound::call::{BoxError, Endpoint, Endpoints};

use super::{
    client::{Detours, Observed, Told, Tracked, Wire, client},
    log::{Log, Sight},
    manner::{ByPlan, answer},
    server::{FullQueue, Protocol, Script, Servers, closed_port},
};
use crate::{
    judge::{Circumstances, Outcome, Wrong, judge},
    ledger::{Ledger, Reach, Record},
    report::Report,
    schedule::{ATTEMPTS, Act, BodyKind, Cancel, Churn, Dice, Hash, Plan},
    stacks::{AnswerBody, Budget, Built, Settings, Stack, StackKind, build},
};

pub const SETTINGS: Settings = Settings {
    connect: Duration::from_millis(50),
    read: Duration::from_millis(50),
    hurry: Duration::from_millis(120),
    tokens: 1_000_000,
};

/// How long a call may take before the run is given up: more than all pauses and limits of any stack.
const STUCK: Duration = Duration::from_secs(30);

/// How long the servers may take to hear that nobody waits any more, and to see what was on its way then.
const SOON: Duration = Duration::from_secs(2);

/// More than the sleep window of a breaker.
const WINDOW: Duration = Duration::from_secs(6);

/// Servers of each protocol that are in the sets of endpoints, and one more that comes and goes.
const HTTP1: usize = 5;
/// One connection each, so there are more.
const HTTP2: usize = 9;

/// How a run is to be.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub seed: u64,
    pub calls: u64,
    pub at_once: usize,
}

/// The plan of a call on a real socket.
pub fn plan(seed: u64, call: u64) -> Plan {
    let mut plan = Plan::of(seed, call);
    // Of a stream hyper sends nothing with these, unless it knows how long it is.
    if matches!(plan.method, Method::GET | Method::HEAD) && plan.body.is_stream() {
        plan.body = BodyKind::Full;
    }
    plan
}

fn wire_of(seed: u64, call: u64) -> Wire {
    let wire = match Dice::new(seed ^ 0x7769, call, 4).below(8) {
        0..=3 => 0,
        4 | 5 => 1,
        6 => 2,
        _ => 3,
    };
    Wire::ALL[wire]
}

/// What came of a call.
struct Done {
    outcome: Outcome,
    ended: Instant,
    /// Was the answer's body another one than was sent?
    other_answer: bool,
}

/// What there is to call.
struct Place {
    built: Built,
    others: Endpoints,
    churning: Arc<AtomicBool>,
}

impl Place {
    /// Changes the set of endpoints for a while, unless it is being changed.
    fn churn(&self, churn: Churn) {
        if self.churning.swap(true, Ordering::AcqRel) {
            return;
        }
        let set = self.built.endpoints.clone();
        let before = set.snapshot().endpoints().to_vec();
        let others = self.others.snapshot().endpoints().to_vec();
        let time = match churn {
            Churn::Leaves(time) => {
                set.remove(before[0].key());
                time
            }
            Churn::Comes(time) => {
                set.insert(others[0].clone());
                time
            }
            Churn::Replaced(time) => {
                set.replace(others);
                time
            }
            Churn::Emptied(time) => {
                set.replace([]);
                time
            }
        };
        let churning = self.churning.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            set.replace(before);
            churning.store(false, Ordering::Release);
        });
    }
}

/// Everything that callers share.
struct World {
    size: Size,
    places: HashMap<(Wire, StackKind), Place>,
    /// In place of all of them.
    instead: Option<HashMap<Wire, Stack>>,
    ledger: Arc<Ledger>,
    next: AtomicU64,
}

impl World {
    async fn caller(self: Arc<Self>) -> Vec<(u64, Done)> {
        let mut done = Vec::new();
        loop {
            let call = self.next.fetch_add(1, Ordering::Relaxed);
            if call >= self.size.calls {
                return done;
            }
            let Ok(one) = tokio::time::timeout(STUCK, self.call(call)).await else {
                panic!("call {call} hangs: {:?}", plan(self.size.seed, call));
            };
            done.push((call, one));
        }
    }

    async fn call(&self, call: u64) -> Done {
        let plan = plan(self.size.seed, call);
        let wire = wire_of(self.size.seed, call);
        let place = &self.places[&(wire, plan.stack)];
        if let Some(churn) = plan.churn {
            place.churn(churn);
        }
        let stack = match &self.instead {
            Some(stacks) => stacks[&wire].clone(),
            None => place.built.service.clone(),
        };
        let expected = (plan.reads_answer && plan.method != Method::HEAD).then(|| answer(plan.seed, call));
        let mut future = Box::pin(received(stack, &plan, expected));
        let got = match plan.cancel {
            Cancel::Never => Some(future.as_mut().await),
            Cancel::After(time) => tokio::time::timeout(time, future.as_mut()).await.ok(),
            Cancel::AtPoll(polls) => polled(future.as_mut(), polls).await,
        };
        drop(future);
        let ended = Instant::now();
        self.ledger.close(call);
        let (outcome, other_answer) = got.unwrap_or((Outcome::Left, false));
        Done {
            outcome,
            ended,
            other_answer,
        }
    }
}

/// Calls, and reads the answer if one is expected. True: and it was another one.
fn received(
    stack: Stack,
    plan: &Plan,
    expected: Option<Bytes>,
) -> impl Future<Output = (Outcome, bool)> + use<> {
    let request = plan.request();
    async move {
        let result: Result<Response<AnswerBody>, BoxError> = stack.oneshot(request).await;
        let outcome = Outcome::of(&result);
        let mut other = false;
        if let (Ok(answer), Some(expected)) = (result, expected) {
            if let Ok(body) = answer.into_body().collect().await {
                other = body.to_bytes() != expected;
            }
        }
        (outcome, other)
    }
}

/// Polls so many times, and no more.
async fn polled<F: Future + Unpin>(mut future: F, polls: u32) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match std::pin::Pin::new(&mut future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// What was seen in a run on sockets.
#[derive(Debug, Default)]
pub struct Seen {
    pub report: Report,
    pub connections: u64,
    /// How long after the end of its call a server saw that the client had left.
    pub leaving: Vec<Duration>,
    /// The same for requests that were on their way when the call ended.
    pub late: Vec<Duration>,
    /// Attempts whose client was told that no server saw them, though one did.
    pub false_proofs: Vec<String>,
    /// Attempts that came twice.
    pub hidden: Vec<u64>,
    /// Servers that still wait for a client to leave.
    pub not_told: Vec<u64>,
    /// Answers that were others than those sent.
    pub other_answers: Vec<u64>,
    /// Attempts that no server read a byte of, and whose client could not know.
    pub unread: u64,
    /// Attempts of which it is proved that no server saw them.
    pub proved: u64,
    told: usize,
    /// Slots, permits and counts that did not come back.
    pub leaks: Vec<String>,
}

impl Seen {
    fn judge(
        &mut self,
        size: Size,
        call: u64,
        done: &Done,
        mut record: Record,
        told: &[Option<Told>],
        sights: &[Sight],
    ) {
        let mut plan = plan(size.seed, call);
        let wire = wire_of(size.seed, call);
        // What happened, in place of what was tried.
        plan.acts = [Act::Answer; ATTEMPTS];
        for attempt in 0..record.sendings.len() {
            let told = told.get(attempt).and_then(Option::as_ref);
            let act = told.map_or(Act::StallBeforeHead, |told| told.act);
            plan.acts[attempt] = act;
            let reach = record.reach(attempt);
            if act.proves_unsent() {
                self.proved += 1;
                let most = match wire.protocol {
                    Protocol::Http1 => Reach::Nothing,
                    Protocol::Http2 => Reach::Disclaimed,
                };
                if reach > most {
                    let told = told.and_then(|told| told.proof.clone()).unwrap_or_default();
                    let said = format!(
                        "call {call}, attempt {attempt} over {wire:?}: {told}, but {reach:?}, {sights:?}"
                    );
                    self.false_proofs.push(said);
                }
            } else if reach == Reach::Nothing {
                self.unread += 1;
            }
        }
        for sending in &mut record.sendings {
            if let Some(arrival) = sending
                .arrival
                .as_mut()
                .filter(|arrival| arrival.reach == Reach::Partly)
            {
                // Of a part of a head the key need not be there.
                if arrival.key.is_none() {
                    arrival.key = plan.key().map(|key| Hash::of(key.as_bytes()));
                }
            }
        }
        let around = Circumstances {
            exact_bodies: false,
            real_time: true,
            could_be_without_endpoint: true,
        };
        let wrongs = judge(&plan, &record, done.outcome, around, &mut self.report);
        if wrongs.iter().any(|wrong| *wrong != Wrong::Lost) && self.told < 3 {
            self.told += 1;
            println!(
                "{wrongs:?}: {:?} {plan:?}\n  {record:?}\n  {sights:?}",
                done.outcome
            );
        }
        if done.other_answer {
            self.other_answers.push(call);
        }
        for (nth, sight) in sights.iter().enumerate() {
            let again = |other: &Sight| other.attempt == sight.attempt && !other.refused;
            if !sight.refused && sights[..nth].iter().any(again) {
                self.hidden.push(call);
            }
            if sight.at > done.ended {
                self.late.push(sight.at - done.ended);
            }
            match sight.left {
                Some(left) if sight.waits => self.leaving.push(left.saturating_duration_since(done.ended)),
                None if sight.waits => self.not_told.push(call),
                _ => {}
            }
        }
    }

    /// Fails if anything is wrong that no clock can excuse.
    pub fn check(&self) {
        let report = &self.report;
        assert!(
            self.false_proofs.is_empty(),
            "said to be unsent, and seen:\n{}",
            self.false_proofs.join("\n")
        );
        assert!(
            self.hidden.is_empty(),
            "sent twice by the client itself: {:?}",
            self.hidden
        );
        assert!(
            self.not_told.is_empty(),
            "servers still wait: {:?}",
            self.not_told
        );
        assert!(
            self.other_answers.is_empty(),
            "other answers: {:?}",
            self.other_answers
        );
        assert!(self.leaks.is_empty(), "{}", self.leaks.join("\n"));
        for wrong in Wrong::ALL.into_iter().filter(|wrong| *wrong != Wrong::Lost) {
            assert_eq!(report.count(wrong), 0, "{wrong}: {report}");
        }
        // One in a thousand.
        assert!(report.count(Wrong::Lost) * 1000 <= report.calls, "{report}");
        let late = self.late.iter().max().copied().unwrap_or_default();
        assert!(late < SOON, "a request came {late:?} after its call had ended");
        let leaving = self.leaving.iter().max().copied().unwrap_or_default();
        assert!(
            leaving < SOON,
            "a server was told {leaving:?} after the call had ended"
        );
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort();
            let at = |percent: usize| {
                times
                    .get((times.len() * percent).div_ceil(100).saturating_sub(1))
                    .copied()
            };
            format!(
                "{} (p50 {:?}, p99 {:?}, max {:?})",
                times.len(),
                at(50).unwrap_or_default(),
                at(99).unwrap_or_default(),
                at(100).unwrap_or_default()
            )
        };
        writeln!(
            f,
            "{} connections; proved unsent {}, unread and not known {}; left while a server waited {}; on its way when \
             the call ended {}",
            self.connections,
            self.proved,
            self.unread,
            of(&self.leaving),
            of(&self.late)
        )?;
        write!(f, "{}", self.report)
    }
}

/// Stacks over the client of a wire and a set of endpoints, in place of those of the plans.
pub type Instead = fn(Tracked, Endpoints) -> Result<Stack, BoxError>;

/// Makes all calls and judges them.
pub fn run(size: Size, instead: Option<Instead>) -> Seen {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // A watchdog over all of it: calls have limits of their own.
    let limit = 2 * STUCK + Duration::from_millis(20) * u32::try_from(size.calls).unwrap();
    runtime.block_on(async {
        tokio::time::timeout(limit, make(size, instead))
            .await
            .expect("the run hangs")
    })
}

async fn make(size: Size, instead: Option<Instead>) -> Seen {
    let Size { seed, calls, at_once } = size;
    let ledger = Ledger::new(0, calls as usize);
    let log = Log::new(&ledger, calls as usize);
    let observed = Observed::new(calls as usize);
    let mut protocols = vec![Protocol::Http1; HTTP1 + 1];
    protocols.extend(vec![Protocol::Http2; HTTP2 + 1]);
    let doors = protocols.len();
    protocols.extend([Protocol::Http1, Protocol::Http2]);
    let script: Arc<dyn Script> = Arc::new(ByPlan {
        seed,
        protocols: protocols.clone(),
        doors,
    });
    let servers = Arc::new(Servers::start(&protocols, &script, &log).unwrap());
    let (closed, _closed): (_, TcpSocket) = closed_port().unwrap();
    let full = FullQueue::new().await.unwrap();
    let uris: Vec<_> = servers
        .addresses()
        .map(|address| format!("http://{address}"))
        .collect();
    let endpoints = |range: std::ops::Range<usize>| {
        let endpoints = uris[range].iter().map(|uri| Endpoint::new(uri.clone()).unwrap());
        endpoints.collect::<Endpoints>()
    };

    let mut places = HashMap::new();
    let mut stacks = HashMap::new();
    for wire in Wire::ALL {
        let is_http2 = wire.protocol == Protocol::Http2;
        let (first, count) = if is_http2 { (HTTP1 + 1, HTTP2) } else { (0, HTTP1) };
        let authority = |uri: &str| uri.trim_start_matches("http://").parse().unwrap();
        let tracked = Tracked {
            client: client(wire, SETTINGS.connect).unwrap(),
            seed,
            ledger: ledger.clone(),
            observed: observed.clone(),
            detours: Arc::new(Detours {
                closed: authority(&closed.to_string()),
                full: authority(&full.address.to_string()),
                doors: authority(&uris[doors + usize::from(is_http2)]),
            }),
        };
        if let Some(instead) = instead {
            let set = endpoints(first..first + count);
            stacks.insert(wire, instead(tracked.clone(), set).unwrap());
        }
        for kind in StackKind::ALL {
            let set = endpoints(first..first + count);
            let built = build(kind, SETTINGS, set, tracked.clone()).unwrap();
            let place = Place {
                built,
                others: endpoints(first + count..first + count + 1),
                churning: Arc::default(),
            };
            places.insert((wire, kind), place);
        }
    }
    let world = Arc::new(World {
        size,
        places,
        instead: instead.map(|_| stacks),
        ledger: ledger.clone(),
        next: AtomicU64::new(0),
    });

    let churning = tokio::spawn(listeners_come_and_go(servers.clone(), seed, doors));
    let mut callers = JoinSet::new();
    for _ in 0..at_once {
        callers.spawn(world.clone().caller());
    }
    let mut dones: Vec<Option<Done>> = std::iter::repeat_with(|| None).take(calls as usize).collect();
    while let Some(done) = callers.join_next().await {
        for (call, done) in done.unwrap() {
            dones[call as usize] = Some(done);
        }
    }
    churning.abort();

    // What is on its way arrives, and who waits is told.
    let until = Instant::now() + 2 * SOON;
    tokio::time::sleep(SOON / 10).await;
    while log.is_waiting() && Instant::now() < until {
        tokio::time::sleep(SOON / 100).await;
    }
    let mut leaks = leaks(&world);
    leaks.extend(wedged(&world).await);
    let mut seen = Seen {
        connections: servers.connections(),
        leaks,
        ..Seen::default()
    };
    let (sights, observed) = (log.sights(), observed.take());
    for (call, done) in dones.into_iter().enumerate() {
        let done = done.expect("each call was made");
        let record = ledger.record(call as u64);
        seen.judge(size, call as u64, &done, record, &observed[call], &sights[call]);
    }
    seen
}

/// Closes a port, and opens it again, now here and now there.
async fn listeners_come_and_go(servers: Arc<Servers>, seed: u64, doors: usize) {
    let mut dice = Dice::new(seed ^ 0x6c69, 0, 5);
    loop {
        let server = servers.get(dice.below(doors as u64) as usize);
        tokio::time::sleep(Duration::from_millis(5 + dice.below(40))).await;
        server.set_up(false);
        tokio::time::sleep(Duration::from_millis(1 + dice.below(20))).await;
        server.set_up(true);
    }
}

/// What has not come back.
fn leaks(world: &World) -> Vec<String> {
    let mut leaks = Vec::new();
    for ((wire, kind), place) in &world.places {
        let built = &place.built;
        let mut check = |what: &str, left: u64| {
            if left != 0 {
                leaks.push(format!("{kind:?} over {wire:?}: {left} {what}"));
            }
        };
        check("in flight at the balancer", built.balance.total().in_flight());
        if let Some(bulkhead) = &built.bulkhead {
            check("in the bulkhead", bulkhead.in_flight().into());
            check("waiting for the bulkhead", bulkhead.waiting().into());
        }
        if let (Some(breaker), true) = (&built.breaker, lets_all_in(*kind)) {
            let (seed, calls) = (world.size.seed, 0..world.size.calls);
            let asked = calls.map(|call| (call, plan(seed, call))).filter(|(call, plan)| {
                (wire_of(seed, *call), plan.stack) == (*wire, *kind) && plan.cancel != Cancel::AtPoll(0)
            });
            let counts = breaker.counts();
            let settled = counts.total() + counts.ignored() + counts.cancelled();
            check("permits of the breaker", (asked.count() as u64).abs_diff(settled));
        }
        if let (Some(budget), Budget::Counted) = (&built.budget, kind.budget()) {
            let there = budget.available() + budget.granted();
            check("tokens of the budget", u64::from(SETTINGS.tokens).abs_diff(there));
        }
    }
    leaks
}

/// Has it a breaker that never opens?
fn lets_all_in(kind: StackKind) -> bool {
    matches!(
        kind,
        StackKind::NestDefault | StackKind::NestUnlimited | StackKind::NestNever
    )
}

/// Breakers that let no probe through when they have waited.
async fn wedged(world: &World) -> Vec<String> {
    let until = Instant::now() + WINDOW;
    let mut wedged = Vec::new();
    for ((wire, kind), place) in &world.places {
        let Some(breaker) = &place.built.breaker else {
            continue;
        };
        while breaker.admit().is_err() {
            if Instant::now() > until {
                wedged.push(format!(
                    "{kind:?} over {wire:?}: the breaker lets no probe through"
                ));
                break;
            }
            tokio::time::sleep(SOON / 100).await;
        }
    }
    wedged
}
