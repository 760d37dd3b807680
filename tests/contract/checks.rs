//! The contract: what holds for every layer, and for every stack of them. Each check is a function over a
//! [`Subject`]; [`all`] lists them, and `contract!` makes each a test.
//!
//! It knows nothing of the crate under test: another package may take this file and `probe.rs` in by `#[path]`, as
//! modules next to each other.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, resume_unwind},
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tower::{
    BoxError, Service, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit, util::BoxCloneSyncService,
};

use super::probe::{
    ANSWER, Act, Ask, Gate, Inner, Says, Script, Setup, Stack, Subject, Wait, Wakes, Watch, said,
};

/// How many polls in a row may find nothing, and wake the task, while time stands still.
const RESTLESS: usize = 200;
/// How often time may be moved on before a call counts as hanging.
const PATIENCE: usize = 4_000;
const TICK: Duration = Duration::from_millis(25);

/// Every check, by its name.
macro_rules! checks {
    ($($check:ident)*) => {
        /// Every check by its name, to run a subject through them one by one.
        #[allow(dead_code, reason = "for packages that make a table of it")]
        pub(crate) fn all<S: Subject>() -> Vec<(&'static str, fn())> {
            vec![$((stringify!($check), $check::<S> as fn())),*]
        }

        /// Makes each check of each subject a test.
        #[macro_export]
        macro_rules! contract_tests {
            ($subject:ident, $module:ident) => {
                mod $module {
                    $(
                        #[test]
                        fn $check() {
                            $crate::checks::in_time($crate::checks::$check::<super::$subject>);
                        }
                    )*
                }
            };
        }
    };
}

checks! {
    every_attempt_asks_the_instance_that_it_calls
    a_thousand_calls_through_clones
    a_call_dropped_at_any_poll_leaves_nothing_behind
    a_panic_below_leaves_a_stack_that_works
    a_thousand_clones_at_once_add_up
    a_service_that_is_never_ready_is_waited_for_in_peace
    what_comes_late_wakes_the_task_once
    a_service_that_is_dead_is_an_error_and_no_wait
    readiness_that_is_dropped_is_given_back
    one_slot_below_admits_one
    slots_below_are_free_while_bodies_are_read
    a_rejection_asks_nobody_below
    a_buffer_above_and_below
    errors_keep_their_source
}

/// Runs a check, and fails where it hangs: a task that wakes itself for ever keeps a paused clock from moving.
pub(crate) fn in_time(check: fn()) {
    let (running, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _running = running;
        check();
    });
    match ended.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
    }
}

/// A runtime whose time moves only when it is told to, or when there is nothing else to do.
pub(crate) fn paused<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

/// Builds a subject over a probe.
fn build<S: Subject>(script: Script) -> (Setup<S::Request>, Watch) {
    let watch = Watch::new(script);
    (S::build(watch.inner()), watch)
}

/// Polls a call by hand, and stops at a limit.
struct Hand<'a> {
    watch: &'a Watch,
    polls: usize,
    limit: usize,
    wakes: Arc<Wakes>,
    waker: Waker,
    /// Is the call out, so that what is held below is held by the stack and not by its caller?
    called: bool,
    /// What happens when the task has found nothing to do for the third time.
    rescue: Option<&'a dyn Fn()>,
    idle: usize,
}

impl<'a> Hand<'a> {
    fn new(watch: &'a Watch) -> Self {
        let (wakes, waker) = Wakes::new();
        Hand {
            watch,
            polls: 0,
            limit: usize::MAX,
            wakes,
            waker,
            called: false,
            rescue: None,
            idle: 0,
        }
    }

    /// Polls until it is ready, moving time on while nobody wakes the task. `None`: the limit was reached.
    async fn until<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let mut restless = 0;
        loop {
            if self.polls == self.limit {
                return None;
            }
            self.polls += 1;
            self.wakes.take();
            if let Poll::Ready(value) = poll(&mut Context::from_waker(&self.waker)) {
                return Some(value);
            }
            if !self.wakes.any() {
                // Tasks of the stack get their turn, and so does what tokio has put off because its budget was spent.
                tokio::task::yield_now().await;
            }
            if self.wakes.take() > 0 {
                restless += 1;
                assert!(
                    restless < RESTLESS,
                    "it keeps waking itself while time stands still"
                );
                continue;
            }
            restless = 0;
            if self.called && self.watch.running() == 0 {
                assert_eq!(self.watch.held(), 0, "readiness is held while nothing is called");
            }
            self.idle += 1;
            assert!(self.idle < PATIENCE, "it hangs");
            if self.idle == 3 {
                self.rescue.inspect(|rescue| rescue());
            }
            tokio::time::advance(TICK).await;
        }
    }

    /// A whole call, to the end of the body. `None`: it was dropped at the limit.
    async fn play<Req: Ask>(&mut self, stack: &Stack<Req>) -> Option<Result<Bytes, BoxError>> {
        let mut stack = stack.clone();
        self.called = false;
        if let Err(error) = self.until(|cx| stack.poll_ready(cx)).await? {
            return Some(Err(error));
        }
        let mut call = stack.call(self.watch.ask());
        self.called = true;
        let response = self.until(|cx| call.as_mut().poll(cx)).await?;
        drop(call);
        let mut body = match response {
            Ok(response) => response.into_body(),
            Err(error) => return Some(Err(error)),
        };
        let mut bytes = Bytes::new();
        while let Some(frame) = self.until(|cx| Pin::new(&mut body).poll_frame(cx)).await? {
            match frame {
                Ok(frame) => bytes = frame.into_data().unwrap(),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(bytes))
    }
}

/// What the gauges show before a call.
struct Base {
    gauges: Vec<u64>,
    health: Vec<u64>,
    instances: u64,
}

impl Base {
    fn of<Req>(setup: &Setup<Req>, watch: &Watch) -> Base {
        Base {
            gauges: setup.gauges.iter().map(|(_, read)| read()).collect(),
            health: setup.health.iter().map(|(_, read)| read()).collect(),
            instances: watch.instances(),
        }
    }

    #[track_caller]
    fn is_back<Req>(&self, setup: &Setup<Req>, watch: &Watch, when: &str) {
        watch.found_no_fault();
        assert_eq!(watch.running(), 0, "calls that are out, {when}");
        assert_eq!(watch.held(), 0, "instances held ready, {when}");
        assert_eq!(watch.work(), 0, "requests, calls and bodies, {when}");
        assert_eq!(
            watch.instances(),
            self.instances,
            "instances of the service, {when}"
        );
        for ((name, read), before) in setup.gauges.iter().zip(&self.gauges) {
            assert_eq!(read(), *before, "{name}, {when}");
        }
    }

    /// And it still works.
    async fn is_well<Req: Ask>(&self, setup: &Setup<Req>, watch: &Watch, when: &str) {
        watch.plays(Script::default());
        answers(&setup.stack, watch, when).await;
        self.is_back(setup, watch, when);
        for ((name, read), before) in setup.health.iter().zip(&self.health) {
            assert_eq!(read(), *before, "{name}, {when}");
        }
    }
}

/// A call that is to succeed.
async fn answers<Req: Ask>(stack: &Stack<Req>, watch: &Watch, when: &str) {
    let call = async {
        let response = stack.clone().oneshot(watch.ask()).await?;
        response.into_body().collect().await
    };
    let outcome = tokio::time::timeout(Duration::from_secs(1_000), call)
        .await
        .unwrap_or_else(|_| panic!("a call hangs, {when}"));
    let body = outcome.unwrap_or_else(|error| panic!("a call fails, {when}: {error}"));
    assert_eq!(body.to_bytes(), ANSWER, "{when}");
}

/// The last attempt answers, those before break.
fn at_last<S: Subject>() -> impl Fn(usize) -> Act + Send + Clone + 'static {
    move |n| {
        if n + 1 < S::CAN.attempts {
            Act::Break
        } else {
            Act::Answer(200)
        }
    }
}

pub(crate) fn every_attempt_asks_the_instance_that_it_calls<S: Subject>() {
    paused(async {
        for act in [Act::Answer(200), Act::Break] {
            let (setup, watch) = build::<S>(Script::slow(1, move |_| act));
            let outcome = Hand::new(&watch).play(&setup.stack).await.unwrap();
            assert_eq!(outcome.is_ok(), act != Act::Break);
            let attempts = if act == Act::Break { S::CAN.attempts } else { 1 };
            assert_eq!(watch.calls(), attempts);
            watch.found_no_fault();
            assert!(watch.ready_polls() >= attempts);
        }
        let (setup, watch) = build::<S>(Script::slow(1, at_last::<S>()));
        assert_eq!(
            Hand::new(&watch).play(&setup.stack).await.unwrap().unwrap(),
            ANSWER
        );
        assert_eq!(watch.calls(), S::CAN.attempts);
        watch.found_no_fault();
        // One instance for call after call, and one slot below: an instance that kept it would wait for itself.
        let watch = Watch::new(Script::slow(1, at_last::<S>()));
        let limit = ConcurrencyLimit::new(watch.probe(), 1);
        let mut setup = S::build(BoxCloneSyncService::new(limit));
        for _ in 0..5 {
            let mut hand = Hand::new(&watch);
            hand.until(|cx| setup.stack.poll_ready(cx))
                .await
                .unwrap()
                .unwrap();
            let mut call = setup.stack.call(watch.ask());
            hand.until(|cx| call.as_mut().poll(cx)).await.unwrap().unwrap();
        }
        watch.found_no_fault();
    });
}

pub(crate) fn a_thousand_calls_through_clones<S: Subject>() {
    paused(async {
        let (setup, watch) = build::<S>(Script::default());
        let base = Base::of(&setup, &watch);
        for _ in 0..1_000 {
            answers(&setup.stack, &watch, "one after the other").await;
        }
        assert_eq!(watch.calls(), 1_000);
        base.is_back(&setup, &watch, "after a thousand calls");
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    });
}

/// A kind of call that is dropped at each of its polls.
struct Scene {
    name: String,
    act: fn(usize, usize) -> Act,
    state: Option<usize>,
    rejects: bool,
    stalls: bool,
}

fn scenes<Req>(setup: &Setup<Req>) -> Vec<Scene> {
    let scene = |name: &str, act: fn(usize, usize) -> Act| Scene {
        name: name.to_owned(),
        act,
        state: None,
        rejects: false,
        stalls: false,
    };
    let good = |_, _| Act::Answer(200);
    let bad = |_, _| Act::Break;
    let mut scenes = vec![
        scene("a call that succeeds", good),
        scene("a call whose attempts break", bad),
        scene("a call whose last attempt answers", |n, attempts| {
            if n + 1 < attempts {
                Act::Break
            } else {
                Act::Answer(200)
            }
        }),
        scene("a call whose answers are errors", |_, _| Act::Answer(503)),
    ];
    for (state, (name, ..)) in setup.states.iter().enumerate() {
        for (what, act) in [("succeeds", good as fn(usize, usize) -> Act), ("breaks", bad)] {
            scenes.push(Scene {
                state: Some(state),
                ..scene(&format!("a call that {what}, {name}"), act)
            });
        }
    }
    if setup.reject.is_some() {
        scenes.push(Scene {
            rejects: true,
            ..scene("a call that is rejected", good)
        });
    }
    if setup.stall.is_some() {
        scenes.push(Scene {
            stalls: true,
            ..scene("a call that has to wait", good)
        });
    }
    scenes
}

pub(crate) fn a_call_dropped_at_any_poll_leaves_nothing_behind<S: Subject>() {
    const SLOW: usize = 2;
    paused(async {
        for scene in scenes(&build::<S>(Script::default()).0) {
            let mut limit = usize::MAX;
            let mut last = usize::MAX;
            loop {
                let act = scene.act;
                let (setup, watch) = build::<S>(Script::slow(SLOW, move |n| act(n, S::CAN.attempts)));
                let base = Base::of(&setup, &watch);
                if let Some(state) = scene.state {
                    let (_, enter, after) = &setup.states[state];
                    enter();
                    tokio::time::advance(*after).await;
                }
                let mut hand = Hand::new(&watch);
                hand.limit = limit;
                if let Some((begin, _)) = setup.reject.as_ref().filter(|_| scene.rejects) {
                    begin();
                }
                if let Some((begin, end)) = setup.stall.as_ref().filter(|_| scene.stalls) {
                    begin();
                    hand.rescue = Some(end);
                }
                let outcome = hand.play(&setup.stack).await;
                let polls = hand.polls;
                let when = format!("{} is dropped after poll {polls} of {last}", scene.name);
                assert_eq!(outcome.is_some(), limit == usize::MAX, "{when}");
                // A result that is not dropped may hold something.
                drop(outcome);
                if let Some((_, end)) = setup.reject.as_ref().filter(|_| scene.rejects) {
                    end();
                }
                if let Some((_, end)) = setup.stall.as_ref().filter(|_| scene.stalls) {
                    end();
                }
                base.is_back(&setup, &watch, &when);
                if scene.state.is_some() && limit == usize::MAX {
                    // It ended in that state, and may have changed it.
                } else {
                    base.is_well(&setup, &watch, &when).await;
                }
                if limit == usize::MAX {
                    assert!(scene.rejects || polls > SLOW, "{}: {polls} polls", scene.name);
                    last = polls;
                    limit = polls;
                }
                if limit == 0 {
                    break;
                }
                limit -= 1;
            }
        }
        // And while it waits for what does not come, which a task that it has left behind would go on doing.
        for (stage, name) in STAGES.into_iter().enumerate() {
            for at in [0, S::CAN.attempts - 1] {
                let (script, gate) = gated::<S>(stage, at);
                let (setup, watch) = build::<S>(script);
                let base = Base::of(&setup, &watch);
                let (stack, request) = (setup.stack.clone(), watch.ask());
                let mut call = Box::pin(async move {
                    let response = stack.oneshot(request).await?;
                    response.into_body().collect().await
                });
                let mut hand = Hand::new(&watch);
                let reached = hand.until(|cx| {
                    let polled = call.as_mut().poll(cx);
                    assert!(polled.is_pending(), "{name} was not waited for");
                    if gate.waiting() > 0 {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                });
                reached.await.unwrap();
                drop(call);
                let when = format!("a call is dropped that waits for {name}, attempt {at}");
                base.is_back(&setup, &watch, &when);
                base.is_well(&setup, &watch, &when).await;
            }
        }
    });
}

pub(crate) fn a_panic_below_leaves_a_stack_that_works<S: Subject>() {
    fn readiness(panics: usize) -> Script {
        Script {
            ready: Box::new(move |n| if n == panics { Wait::Panic } else { Wait::None }),
            ..Script::at_once(move |n| if n < panics { Act::Break } else { Act::Answer(200) })
        }
    }
    fn call(panics: usize) -> Script {
        Script::slow(1, move |n| if n < panics { Act::Break } else { Act::PanicInCall })
    }
    fn poll(panics: usize) -> Script {
        Script::slow(1, move |n| if n < panics { Act::Break } else { Act::PanicInPoll })
    }
    fn body(panics: usize) -> Script {
        Script {
            body: Box::new(|_| Wait::Panic),
            ..Script::slow(1, move |n| if n < panics { Act::Break } else { Act::Answer(200) })
        }
    }
    type Scripts = [(&'static str, fn(usize) -> Script); 4];
    let scripts: Scripts = [
        ("poll_ready", readiness),
        ("call", call),
        ("poll", poll),
        ("poll_frame", body),
    ];
    paused(async {
        for (name, script) in scripts {
            for attempt in 0..S::CAN.attempts {
                let (setup, watch) = build::<S>(script(attempt));
                let base = Base::of(&setup, &watch);
                let mut hand = Hand::new(&watch);
                let played = AssertUnwindSafe(hand.play(&setup.stack)).catch_unwind().await;
                let when = format!("after a panic in {name} of attempt {attempt}");
                assert!(played.is_err(), "no panic came through, {when}");
                drop(played);
                base.is_back(&setup, &watch, &when);
                for _ in 0..10 {
                    base.is_well(&setup, &watch, &when).await;
                }
            }
        }
    });
}

pub(crate) fn a_thousand_clones_at_once_add_up<S: Subject>() {
    const CLONES: usize = 1_000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (setup, watch) = build::<S>(Script::slow(1, |_| Act::Answer(200)));
        let base = Base::of(&setup, &watch);
        let mut calls = JoinSet::new();
        for _ in 0..CLONES {
            let (stack, request) = (setup.stack.clone(), watch.ask());
            calls.spawn(async move {
                let response = stack.oneshot(request).await.unwrap();
                assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), ANSWER);
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(60), calls.join_all());
        assert_eq!(all.await.expect("they hang").len(), CLONES);
        assert_eq!(watch.calls(), CLONES);
        base.is_back(&setup, &watch, "after all");
    });
}

/// What a call waits for, one after the other.
const STAGES: [&str; 3] = ["readiness", "the answer", "the body"];

/// A script in which one stage waits at a gate, before the attempt with this number.
fn gated<S: Subject>(stage: usize, at: usize) -> (Script, Gate) {
    let gate = Gate::default();
    let wait = {
        let gate = gate.clone();
        move |is: usize, n: usize| {
            if is == stage && n == at {
                Wait::Gate(gate.clone())
            } else {
                Wait::None
            }
        }
    };
    let act = move |n: usize| if n < at { Act::Break } else { Act::Answer(200) };
    let (ready, answer, body) = (wait.clone(), wait.clone(), wait);
    let script = Script {
        ready: Box::new(move |n| ready(0, n)),
        answer: Box::new(move |n| (answer(1, n), act(n))),
        body: Box::new(move |n| body(2, n)),
    };
    (script, gate)
}

pub(crate) fn a_service_that_is_never_ready_is_waited_for_in_peace<S: Subject>() {
    if !S::CAN.passes_readiness_on {
        return;
    }
    paused(async {
        let (script, _shut) = gated::<S>(0, 0);
        let (setup, watch) = build::<S>(script);
        let base = Base::of(&setup, &watch);
        let mut stack = setup.stack.clone();
        let (wakes, waker) = Wakes::new();
        let mut cx = Context::from_waker(&waker);
        assert!(stack.poll_ready(&mut cx).is_pending());
        let asked = watch.ready_polls();
        assert!(asked <= 2, "asked {asked} times in one poll");
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(wakes.take(), 0, "woken, and nothing had happened");
        assert_eq!(watch.ready_polls(), asked, "asked by nobody");
        // A poll that nobody has asked for changes nothing.
        assert!(stack.poll_ready(&mut cx).is_pending());
        assert_eq!((wakes.take(), watch.calls()), (0, 0));
        drop(stack);
        base.is_back(&setup, &watch, "after a wait that was given up");
        base.is_well(&setup, &watch, "after a wait that was given up")
            .await;
    });
}

pub(crate) fn what_comes_late_wakes_the_task_once<S: Subject>() {
    paused(async {
        for (stage, name) in STAGES.into_iter().enumerate() {
            // Before a first attempt, and before the last where there are several.
            for at in [0, S::CAN.attempts - 1] {
                let (script, gate) = gated::<S>(stage, at);
                let (setup, watch) = build::<S>(script);
                let base = Base::of(&setup, &watch);
                let stack = setup.stack.clone();
                let (wakes, waker) = Wakes::new();
                let request = watch.ask();
                let mut call = Box::pin(async move {
                    let response = stack.oneshot(request).await?;
                    response.into_body().collect().await
                });
                // Up to the gate: pauses are waited for, and no poll finds nothing for long.
                let mut polls = 0;
                loop {
                    wakes.take();
                    let polled = call.as_mut().poll(&mut Context::from_waker(&waker));
                    assert!(polled.is_pending(), "{name} was not waited for");
                    polls += 1;
                    assert!(polls < RESTLESS, "polled {polls} times, and {name} is not there");
                    if wakes.take() > 0 {
                        continue;
                    }
                    if gate.waiting() > 0 {
                        break;
                    }
                    tokio::time::advance(TICK).await;
                }
                let before = (watch.ready_polls(), watch.answer_polls());
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(wakes.take(), 0, "woken while it waits for {name}");
                gate.open();
                // A task of the stack may be what waits for it.
                tokio::task::yield_now().await;
                assert_eq!(wakes.take(), 1, "{name} came, attempt {at}");
                let mut polls = 0;
                let body = loop {
                    polls += 1;
                    match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(outcome) => break outcome.unwrap().to_bytes(),
                        Poll::Pending => {
                            tokio::task::yield_now().await;
                            assert!(wakes.take() > 0 && polls < 5, "{name} came, and it waits");
                        }
                    }
                };
                assert_eq!(body, ANSWER);
                let after = (watch.ready_polls(), watch.answer_polls());
                assert!(
                    after.0 - before.0 <= 2 && after.1 - before.1 <= 2,
                    "{before:?} {after:?}"
                );
                drop(call);
                base.is_back(&setup, &watch, name);
            }
        }
    });
}

pub(crate) fn a_service_that_is_dead_is_an_error_and_no_wait<S: Subject>() {
    paused(async {
        for at in 0..S::CAN.attempts {
            let (setup, watch) = build::<S>(Script {
                ready: Box::new(move |n| if n == at { Wait::Error } else { Wait::None }),
                ..Script::at_once(move |_| Act::Break)
            });
            let base = Base::of(&setup, &watch);
            let error = Hand::new(&watch).play(&setup.stack).await.unwrap().unwrap_err();
            assert_eq!(said(&*error), Some(Says::Dead), "attempt {at}: {error}");
            assert_eq!(watch.calls(), at);
            drop(error);
            base.is_back(&setup, &watch, "after it was found dead");
            base.is_well(&setup, &watch, "after it was found dead").await;
        }
    });
}

pub(crate) fn readiness_that_is_dropped_is_given_back<S: Subject>() {
    if !S::CAN.passes_readiness_on {
        return;
    }
    paused(async {
        let watch = Watch::new(Script::default());
        let limit = ConcurrencyLimit::new(watch.probe(), 1);
        let setup = S::build(BoxCloneSyncService::new(limit));
        let base = Base::of(&setup, &watch);
        let (mut idle, mut other) = (setup.stack.clone(), setup.stack.clone());
        let (wakes, waker) = Wakes::new();
        let mut cx = Context::from_waker(&waker);
        assert!(idle.poll_ready(&mut cx).is_ready());
        assert!(other.poll_ready(&mut cx).is_pending());
        assert_eq!((wakes.take(), watch.calls()), (0, 0));
        drop(idle);
        assert_eq!(wakes.take(), 1, "the slot is free, and nobody says so");
        assert!(other.poll_ready(&mut cx).is_ready());
        let response = other.call(watch.ask()).await.unwrap();
        drop((response, other));
        base.is_back(&setup, &watch, "after all");
    });
}

pub(crate) fn one_slot_below_admits_one<S: Subject>() {
    if !S::CAN.passes_readiness_on {
        return;
    }
    paused(async {
        let watch = Watch::new(Script::default());
        let limit = ConcurrencyLimit::new(watch.probe(), 1);
        let setup = S::build(BoxCloneSyncService::new(limit));
        let base = Base::of(&setup, &watch);
        let mut clones: Vec<_> = (0..32).map(|_| (setup.stack.clone(), Wakes::new())).collect();
        let mut ready = Vec::new();
        for (n, (stack, (_, waker))) in clones.iter_mut().enumerate() {
            if stack.poll_ready(&mut Context::from_waker(waker)).is_ready() {
                ready.push(n);
            }
        }
        assert_eq!(ready, [0]);
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(
            clones.iter().all(|(_, (wakes, _))| wakes.take() == 0),
            "one wakes itself"
        );
        clones.remove(0);
        let woken = clones.iter().filter(|(_, (wakes, _))| wakes.take() > 0).count();
        assert_eq!(woken, 1, "one slot is free");
        drop(clones);
        // Before, at and after the first poll.
        watch.plays(Script::slow(2, |_| Act::Answer(200)));
        for n in 0..1_000 {
            let mut hand = Hand::new(&watch);
            hand.limit = 3 + n % 3;
            assert!(hand.play(&setup.stack).await.is_none());
        }
        base.is_back(&setup, &watch, "after a thousand calls that were dropped");
        base.is_well(&setup, &watch, "after a thousand calls that were dropped")
            .await;
    });
}

pub(crate) fn slots_below_are_free_while_bodies_are_read<S: Subject>() {
    paused(async {
        let watch = Watch::new(Script::default());
        let limit = ConcurrencyLimit::new(watch.probe(), 2);
        let setup = S::build(BoxCloneSyncService::new(limit));
        let base = Base::of(&setup, &watch);
        let mut unread = Vec::new();
        for _ in 0..3 {
            let call = setup.stack.clone().oneshot(watch.ask());
            let response = tokio::time::timeout(Duration::from_secs(1), call).await;
            unread.push(response.expect("a body that is not read holds a slot").unwrap());
            for ((name, read), before) in setup.gauges.iter().zip(&base.gauges) {
                assert_eq!(read(), *before, "{name} while bodies are read");
            }
        }
        drop(unread);
        base.is_back(&setup, &watch, "after all");
    });
}

pub(crate) fn a_rejection_asks_nobody_below<S: Subject>() {
    paused(async {
        // It would never be ready.
        let (script, _shut) = gated::<S>(0, 0);
        let (setup, watch) = build::<S>(script);
        let Some((begin, end)) = &setup.reject else {
            return;
        };
        let base = Base::of(&setup, &watch);
        begin();
        for _ in 0..5 {
            let mut stack = setup.stack.clone();
            let (wakes, waker) = Wakes::new();
            let mut cx = Context::from_waker(&waker);
            let Poll::Ready(ready) = stack.poll_ready(&mut cx) else {
                panic!("what rejects makes its callers wait");
            };
            ready.expect("a rejection belongs into the outcome of the call");
            let outcome = stack
                .call(watch.ask())
                .now_or_never()
                .expect("a rejection takes no time");
            outcome.expect_err("it rejects");
            assert_eq!(wakes.take(), 0);
        }
        assert_eq!((watch.calls(), watch.ready_polls()), (0, 0));
        end();
        base.is_back(&setup, &watch, "after rejections");
        base.is_well(&setup, &watch, "after rejections").await;
        // Through a buffer, which an error of `poll_ready` would end.
        let buffer = Buffer::new(setup.stack.clone(), 1);
        for _ in 0..2 {
            begin();
            for _ in 0..5 {
                let call = buffer.clone().oneshot(watch.ask());
                let error = tokio::time::timeout(Duration::from_secs(1), call)
                    .await
                    .unwrap()
                    .unwrap_err();
                let closed = error.downcast_ref::<tower::buffer::error::ServiceError>();
                assert!(closed.is_none(), "the buffer is dead: {error}");
            }
            end();
            for _ in 0..5 {
                buffer.clone().oneshot(watch.ask()).await.unwrap();
            }
        }
    });
}

pub(crate) fn a_buffer_above_and_below<S: Subject>() {
    paused(async {
        let (setup, watch) = build::<S>(Script::slow(1, |_| Act::Answer(200)));
        let buffer = Buffer::new(setup.stack.clone(), 4);
        for _ in 0..20 {
            answers_boxed(buffer.clone(), &watch).await;
        }
        watch.found_no_fault();

        let watch = Watch::new(Script::slow(1, at_last::<S>()));
        let below: Inner<S::Below> = BoxCloneSyncService::new(Buffer::new(watch.probe(), 1));
        let setup = S::build(below);
        for _ in 0..20 {
            answers(&setup.stack, &watch, "over a buffer").await;
        }
        assert_eq!(watch.calls(), 19 + S::CAN.attempts);
        watch.found_no_fault();
        // Ready and not called: the place in the buffer is given back with the clone.
        let mut idle: Vec<_> = (0..3).map(|_| setup.stack.clone()).collect();
        for stack in &mut idle {
            let _ = poll_fn(|cx| Poll::Ready(stack.poll_ready(cx))).await;
        }
        drop(idle);
        answers(&setup.stack, &watch, "after idle clones").await;
    });
}

async fn answers_boxed<T, Req>(service: T, watch: &Watch)
where
    T: Service<Req, Response = http::Response<super::probe::AnyBody>, Error = BoxError>,
    T: Clone + Send + Sync + 'static,
    T::Future: Send + 'static,
    Req: Ask,
{
    answers(&BoxCloneSyncService::new(service), watch, "through a buffer").await;
}

pub(crate) fn errors_keep_their_source<S: Subject>() {
    paused(async {
        let (setup, watch) = build::<S>(Script::at_once(|_| Act::Break));
        let error = Hand::new(&watch).play(&setup.stack).await.unwrap().unwrap_err();
        assert_eq!(said(&*error), Some(Says::Broken), "{error}");
    });
}
