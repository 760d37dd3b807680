//! Some thousands of calls through all stacks at once, on one thread and a clock that does not wait.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::Future,
    panic::resume_unwind,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use http_body_util::BodyExt;
use tokio::{
    task::LocalSet,
    time::{Instant, Sleep, sleep},
};
use tower::ServiceExt;
use tower_outbound::call::{BoxError, Endpoint, Endpoints};

use super::transport::Transport;
use crate::{
    judge::{Circumstances, Outcome, Stops, Wrong, judge},
    ledger::Ledger,
    report::Report,
    schedule::{Cancel, Churn, Plan},
    stacks::{self, Budget, Built, Settings, Stack, StackKind},
};

/// How many calls are under way at once.
const LANES: usize = 256;

/// How long everything has to come to its end when the last caller has its outcome.
const SETTLES: Duration = Duration::from_secs(180);

/// How a stack is made. A broken one is made by a test of the harness.
pub type Build<'a> =
    &'a (dyn Fn(StackKind, Settings, Endpoints, Transport) -> Result<Built, BoxError> + Sync);

/// As it should be.
pub fn sound(
    kind: StackKind,
    settings: Settings,
    endpoints: Endpoints,
    client: Transport,
) -> Result<Built, BoxError> {
    stacks::build(kind, settings, endpoints, client)
}

/// What a run has come to.
pub struct Run {
    pub report: Report,
    /// How often each call was polled.
    pub polls: Vec<u32>,
}

/// A stack, and when it had no endpoint.
struct Place {
    built: Built,
    homes: Vec<Endpoint>,
    /// From when to when. `None`: it still has none.
    empty: RefCell<Vec<(Instant, Option<Instant>)>>,
}

impl Place {
    fn note(&self) {
        let now = Instant::now();
        let mut empty = self.empty.borrow_mut();
        let is_empty = self.built.endpoints.is_empty();
        match empty.last_mut() {
            Some((_, end @ None)) if !is_empty => *end = Some(now),
            Some((_, None)) => {}
            _ if is_empty => empty.push((now, None)),
            _ => {}
        }
    }

    fn was_empty(&self, from: Instant, to: Instant) -> bool {
        let empty = self.empty.borrow();
        empty
            .iter()
            .any(|(begin, end)| *begin <= to && end.is_none_or(|end| end >= from))
    }

    async fn churn(&self, call: u64, churn: Churn) {
        let endpoints = &self.built.endpoints;
        let other = || Endpoint::new(format!("http://other-{call}.test:80")).unwrap();
        let one = &self.homes[call as usize % self.homes.len()];
        let time = match churn {
            Churn::Leaves(time) => {
                endpoints.remove(one.key());
                time
            }
            Churn::Comes(time) => {
                endpoints.insert(other());
                time
            }
            Churn::Replaced(time) => {
                endpoints.replace([other()]);
                time
            }
            Churn::Emptied(time) => {
                endpoints.replace([]);
                time
            }
        };
        self.note();
        sleep(time).await;
        match churn {
            Churn::Leaves(_) => endpoints.insert(one.clone()),
            Churn::Comes(_) => {
                endpoints.remove(other().key());
            }
            Churn::Replaced(_) | Churn::Emptied(_) => endpoints.replace(self.homes.clone()),
        }
        self.note();
    }
}

/// What a caller noted.
#[derive(Clone, Copy)]
struct Noted {
    outcome: Outcome,
    polls: u32,
    from: Instant,
    to: Instant,
}

struct World {
    plans: Arc<Vec<Plan>>,
    ledger: Arc<Ledger>,
    places: HashMap<StackKind, Place>,
    noted: RefCell<Vec<Option<Noted>>>,
    next: Cell<usize>,
}

/// Makes these calls, which are numbered in a row. A thread of their own has no random numbers from before.
pub fn run(plans: Vec<Plan>, build: Build<'_>) -> Run {
    thread::scope(|scope| scope.spawn(|| run_here(plans, build)).join())
        .unwrap_or_else(|panic| resume_unwind(panic))
}

fn run_here(plans: Vec<Plan>, build: Build<'_>) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let seed = plans.first().map_or(0, |plan| plan.seed ^ plan.call);
    fastrand::seed(seed);
    let run = runtime.block_on(LocalSet::new().run_until(world(plans, build)));
    // What is left of it, if a stack is broken, goes here.
    drop(runtime);
    run
}

async fn world(plans: Vec<Plan>, build: Build<'_>) -> Run {
    let first = plans.first().map_or(0, |plan| plan.call);
    let count = plans.len();
    let settings = Settings {
        connect: Duration::from_millis(100),
        read: Duration::from_millis(200),
        hurry: Duration::from_millis(250),
        tokens: count as u32 / 64 + 10,
    };
    let plans = Arc::new(plans);
    let ledger = Ledger::new(first, count);
    let transport = Transport::new(plans.clone(), ledger.clone(), settings.connect);
    let mut places = HashMap::new();
    for plan in plans.iter() {
        places.entry(plan.stack).or_insert_with(|| {
            let homes: Vec<_> = (1..=3)
                .map(|n| Endpoint::new(format!("http://server-{n}.test:80")).unwrap())
                .collect();
            let endpoints: Endpoints = homes.iter().cloned().collect();
            Place {
                built: build(plan.stack, settings, endpoints, transport.clone()).unwrap(),
                homes,
                empty: RefCell::default(),
            }
        });
    }
    let world = Rc::new(World {
        plans,
        ledger,
        places,
        noted: RefCell::new(vec![None; count]),
        next: Cell::new(0),
    });
    let lanes: Vec<_> = (0..LANES.min(count))
        .map(|_| tokio::task::spawn_local(world.clone().lane()))
        .collect();
    for lane in lanes {
        lane.await.unwrap();
    }
    let mut leaks = world.leaks_at_once(settings);
    sleep(SETTLES).await;
    leaks.extend(world.leaks_in_the_end());
    let mut report = Report::default();
    let records = world.ledger.take();
    let mut stops: HashMap<StackKind, u64> = HashMap::new();
    let mut polls = Vec::with_capacity(count);
    for ((plan, record), noted) in world.plans.iter().zip(&records).zip(world.noted.borrow().iter()) {
        let noted = noted.unwrap();
        polls.push(noted.polls);
        let around = Circumstances {
            exact_bodies: true,
            real_time: false,
            could_be_without_endpoint: world.places[&plan.stack].was_empty(noted.from, noted.to),
        };
        if let Outcome::Failed {
            stops: Stops { budget, .. },
            ..
        } = noted.outcome
        {
            *stops.entry(plan.stack).or_default() += u64::from(budget);
        }
        judge(plan, record, noted.outcome, around, &mut report);
    }
    // A budget that is said to be spent has said so.
    for (kind, place) in &world.places {
        let refused = place.built.budget.as_ref().map_or(0, |budget| budget.refused());
        if stops.get(kind).is_some_and(|stops| *stops > refused) {
            leaks.push(*kind);
        }
    }
    for _ in leaks {
        report.wrong(Wrong::Leak, first);
    }
    Run { report, polls }
}

impl World {
    async fn lane(self: Rc<Self>) {
        loop {
            let next = self.next.get();
            let Some(plan) = self.plans.get(next) else { return };
            self.next.set(next + 1);
            let place = &self.places[&plan.stack];
            if let Some(churn) = plan.churn {
                let (world, call, stack) = (self.clone(), plan.call, plan.stack);
                tokio::task::spawn_local(async move { world.places[&stack].churn(call, churn).await });
            }
            let from = Instant::now();
            let (outcome, polls) = Caller::new(plan, place.built.service.clone()).await;
            self.ledger.close(plan.call);
            self.noted.borrow_mut()[next] = Some(Noted {
                outcome,
                polls,
                from,
                to: Instant::now(),
            });
        }
    }

    /// What must be back as soon as the last caller has gone.
    fn leaks_at_once(&self, settings: Settings) -> Vec<StackKind> {
        let mut leaks = Vec::new();
        for (kind, place) in &self.places {
            let built = &place.built;
            let tokens = built
                .budget
                .as_ref()
                .is_some_and(|budget| budget.available() + budget.granted() != u64::from(settings.tokens));
            let slots = built
                .bulkhead
                .as_ref()
                .is_some_and(|bulkhead| bulkhead.in_flight() > 0 || bulkhead.waiting() > 0);
            let in_flight = built.balance.total().in_flight() > 0;
            if kind.budget() == Budget::Counted && tokens || slots || in_flight || self.lost_permits(*kind) {
                leaks.push(*kind);
            }
        }
        leaks
    }

    /// Has each permit of a breaker that never opens been settled or dropped?
    fn lost_permits(&self, kind: StackKind) -> bool {
        if !matches!(
            kind,
            StackKind::NestDefault | StackKind::NestUnlimited | StackKind::NestOfThree | StackKind::NestNever
        ) {
            return false;
        }
        let Some(breaker) = &self.places[&kind].built.breaker else {
            return false;
        };
        let asked = |plan: &&Plan| plan.stack == kind && plan.cancel != Cancel::AtPoll(0);
        let calls = self.plans.iter().filter(asked).count() as u64;
        let counts = breaker.counts();
        counts.total() + counts.ignored() + counts.cancelled() != calls
    }

    /// Does a breaker that has opened let a probe through when it has waited?
    fn leaks_in_the_end(&self) -> Vec<StackKind> {
        let wedged = |place: &Place| {
            let breaker = place.built.breaker.as_ref();
            breaker.is_some_and(|breaker| breaker.admit().is_err())
        };
        let places = self.places.iter();
        places
            .filter(|(_, place)| wedged(place))
            .map(|(kind, _)| *kind)
            .collect()
    }
}

/// A caller that leaves when its plan says so.
struct Caller {
    call: Option<Pin<Box<dyn Future<Output = Outcome>>>>,
    polls: u32,
    most: Option<u32>,
    limit: Option<Pin<Box<Sleep>>>,
}

impl Caller {
    fn new(plan: &Plan, stack: Stack) -> Caller {
        let request = plan.request();
        let reads = plan.reads_answer;
        let call = async move {
            let result = stack.oneshot(request).await;
            let outcome = Outcome::of(&result);
            if let (Ok(mut answer), true) = (result, reads) {
                while let Some(Ok(_)) = answer.frame().await {}
            }
            outcome
        };
        Caller {
            call: Some(Box::pin(call)),
            polls: 0,
            most: match plan.cancel {
                Cancel::AtPoll(most) => Some(most),
                _ => None,
            },
            limit: match plan.cancel {
                Cancel::After(time) => Some(Box::pin(sleep(time))),
                _ => None,
            },
        }
    }
}

impl Future for Caller {
    /// And how often the call was polled.
    type Output = (Outcome, u32);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.most == Some(0) {
            self.call = None;
            return Poll::Ready((Outcome::Left, 0));
        }
        let call = self.call.as_mut().unwrap().as_mut();
        let polled = call.poll(cx);
        self.polls += 1;
        let left = self.most.is_some_and(|most| self.polls >= most)
            || self
                .limit
                .as_mut()
                .is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
        let outcome = match polled {
            Poll::Ready(outcome) => outcome,
            Poll::Pending if left => Outcome::Left,
            Poll::Pending => return Poll::Pending,
        };
        self.call = None;
        Poll::Ready((outcome, self.polls))
    }
}
