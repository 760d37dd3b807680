//! What asks the endpoints of a set, and puts and takes back vetoes.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use fastrand::Rng;
use futures_util::{
    FutureExt, StreamExt,
    future::{Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use tokio::{
    sync::futures::OwnedNotified,
    time::{Duration, Instant, Sleep, sleep_until, timeout},
};

use super::{
    Probe,
    ask::NotWell,
    members::{Asked, Members},
    settings::ActiveProbes,
};
use crate::call::{Endpoint, Feeder, Source, timer::poll_timer};

/// The set is looked at again after so much time for each of its endpoints: looking takes a hundredth of that, so that a
/// set which changes all the time does not keep its thread.
const LOOK: Duration = Duration::from_micros(20);

/// How many probes are begun before other tasks have their turn.
const BATCH: usize = 256;

type Check = dyn Fn(Endpoint) -> BoxFuture<'static, Result<(), NotWell>> + Send + Sync;
type Running = Abortable<BoxFuture<'static, (Asked, Result<(), NotWell>)>>;

pub(super) struct Prober {
    check: Box<Check>,
    at_once: usize,
    set: Feeder,
    members: Members,
    running: FuturesUnordered<Running>,
    /// Made when the set is looked at first.
    changed: Option<Pin<Box<OwnedNotified>>>,
    /// Has the set changed since it was looked at?
    is_behind: bool,
    /// When it may be looked at again.
    look_at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Prober {
    pub(super) fn new<P>(settings: ActiveProbes, probe: Arc<P>, set: Feeder) -> Self
    where
        P: Probe + Send + Sync + 'static,
    {
        let limit = settings.timeout;
        Prober {
            check: Box::new(move |endpoint| ask(probe.clone(), endpoint, limit).boxed()),
            at_once: settings.at_once.try_into().unwrap_or(usize::MAX),
            set,
            members: Members::new(settings, Rng::new()),
            running: FuturesUnordered::new(),
            changed: None,
            is_behind: true,
            look_at: None,
            timer: None,
        }
    }

    /// False: nobody uses the set any more.
    fn look(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let is_told = |changed: &mut Pin<Box<OwnedNotified>>| changed.as_mut().poll(cx).is_ready();
        if self.changed.as_mut().is_some_and(is_told) {
            self.is_behind = true;
            self.changed = None;
        }
        if !self.is_behind || self.look_at.is_some_and(|at| at > now) {
            return true;
        }
        let Some(set) = self.set.set() else {
            return false;
        };
        // Before the look, so that no change is missed.
        let mut changed = Box::pin(set.changed());
        let is_behind = changed.as_mut().poll(cx).is_ready();
        let snapshot = set.snapshot();
        drop(set);
        self.is_behind = is_behind;
        self.changed = (!is_behind).then_some(changed);
        let count = snapshot.endpoints().len();
        self.look_at = now.checked_add(LOOK.saturating_mul(count.try_into().unwrap_or(u32::MAX)));
        self.members.follow(snapshot.endpoints().iter(), now);
        true
    }

    /// Begins what is due. How many probes that are.
    fn begin(&mut self, now: Instant) -> usize {
        let mut begun = 0;
        while self.running.len() < self.at_once {
            let Some(question) = self.members.ask(now) else {
                break;
            };
            let (asked, answer) = (question.who, (self.check)(question.endpoint));
            let probe = async move { (asked, answer.await) }.boxed();
            self.running.push(Abortable::new(probe, question.registration));
            begun += 1;
        }
        begun
    }

    /// When there is something to do, apart from what says so itself.
    fn next(&self) -> Option<Instant> {
        let look = self.look_at.filter(|_| self.is_behind);
        let ask = self.members.next().filter(|_| self.running.len() < self.at_once);
        look.into_iter().chain(ask).min()
    }
}

impl Source for Prober {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut begun = 0;
        loop {
            let now = Instant::now();
            if !self.look(cx, now) {
                return Poll::Ready(());
            }
            while let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(cx) {
                // If not, its endpoint has gone.
                if let Ok((asked, answer)) = ended {
                    self.members.hear(&asked, answer, Instant::now());
                }
            }
            let more = self.begin(Instant::now());
            begun += more;
            if begun > BATCH {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if more > 0 {
                continue;
            }
            let Some(next) = self.next() else {
                self.timer = None;
                return Poll::Pending;
            };
            let timer = match &mut self.timer {
                Some(timer) if timer.deadline() == next => timer,
                timer => timer.insert(Box::pin(sleep_until(next))),
            };
            if poll_timer(timer.as_mut(), cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }

    fn pause(&mut self) {
        // They have sockets and timers of the runtime that has ended.
        self.running = FuturesUnordered::new();
        self.timer = None;
        self.members.ask_again(Instant::now());
    }
}

async fn ask<P: Probe>(probe: Arc<P>, endpoint: Endpoint, limit: Duration) -> Result<(), NotWell> {
    // The call of a closure is within too.
    let asked = AssertUnwindSafe(async { probe.ask(endpoint).await }).catch_unwind();
    match timeout(limit, asked).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(NotWell::Said(error)),
        Ok(Err(_)) => Err(NotWell::Panicked),
        Err(_) => Err(NotWell::TimedOut),
    }
}
