//! What travels with a call between the layers of a stack: down, the deadline and the wish for the next pick; up,
//! the endpoint that was picked and the trail of attempts.
//!
//! A scope is put on the thread around each `call` and each `poll` of the layers below, and taken off afterwards.
//! That costs a few moves of a small struct, no allocation, works for any request type, and passes through foreign
//! layers in between. It is lost where a stack goes on in another task: below a `tower::buffer::Buffer` or a
//! `tokio::spawn` the deadline, the wish and the trail of the layers above are not seen.
//!
//! # Where a call begins
//!
//! Which attempts belong to one call is decided by the layer that owns the trail: [`begin`](CallScope::begin) makes
//! a new one, whatever is around it, and [`join_or_begin`](CallScope::join_or_begin) does so only where there is
//! none. `RecordTrailLayer`, at the top of each nest, begins one; so does a retry layer that stands alone. The deadline
//! goes on into a new call: a call made while another is served must not outlive it.

use std::{cell::RefCell, mem};

use tokio::time::{Duration, Instant};
use tower::BoxError;

use super::{
    endpoint::Endpoint,
    fault::{Fault, Sent},
    trail::{Attempt, AttemptOutcome, CallFailed, Event, Trail},
};

thread_local! {
    static CURRENT: RefCell<CallScope> = const { RefCell::new(CallScope::NOWHERE) };
}

/// What travels with a call. A layer keeps one for each call, and [enters](CallScope::enter) it around whatever it
/// calls and polls.
#[derive(Debug)]
pub struct CallScope {
    deadline: Option<Instant>,
    stay: Option<Endpoint>,
    /// May the next pick be one of the endpoints that were tried, as any other?
    reuses_tried: bool,
    picked: Option<Endpoint>,
    /// The number in the trail of the attempt that is under way, if a layer below has written it down, or 0.
    written: usize,
    /// How many attempts the whole call may take.
    most_attempts: u32,
    /// Were there others to pick from than the one that was picked?
    had_a_choice: bool,
    /// Has an attempt failed that may have reached a server?
    may_have_been_sent: bool,
    /// The retry budget that has counted this call, or 0.
    counted_by: usize,
    journal: Journal,
    /// Does the trail end with this scope, or belong to one around it?
    owner: bool,
    /// False for the ground that a thread stands on when no call is being polled.
    within_a_call: bool,
}

#[derive(Debug)]
enum Journal {
    /// Nobody would read it.
    Closed,
    /// Written from the first failure on, so that a call without one allocates nothing.
    Open(Option<Box<Trail>>),
}

impl CallScope {
    /// No limit on the attempts of a call.
    pub(crate) const ANY_NUMBER: u32 = u32::MAX;

    const NOWHERE: CallScope = CallScope {
        deadline: None,
        stay: None,
        reuses_tried: false,
        picked: None,
        written: 0,
        most_attempts: CallScope::ANY_NUMBER,
        had_a_choice: false,
        may_have_been_sent: false,
        counted_by: 0,
        journal: Journal::Closed,
        owner: false,
        within_a_call: false,
    };

    /// A new call, with a trail of its own. The deadline of a call around it holds for it too.
    pub fn begin() -> CallScope {
        CallScope::after(deadline())
    }

    /// A part of the call that is being made, if there is one: deadline and trail are that call's, and a wish for
    /// the next pick goes on to the layers below.
    pub fn join() -> CallScope {
        current(CallScope::part)
    }

    /// A part of the call that is being made, or a new call where none keeps a trail.
    pub fn join_or_begin() -> CallScope {
        current(|around| {
            if around.keeps_trail() {
                around.part()
            } else {
                CallScope::after(around.deadline)
            }
        })
    }

    fn part(&mut self) -> CallScope {
        CallScope {
            deadline: self.deadline,
            stay: self.stay.take(),
            reuses_tried: self.reuses_tried,
            most_attempts: self.most_attempts,
            may_have_been_sent: self.may_have_been_sent,
            counted_by: self.counted_by,
            within_a_call: true,
            ..CallScope::NOWHERE
        }
    }

    fn after(deadline: Option<Instant>) -> CallScope {
        CallScope {
            deadline,
            journal: Journal::Open(None),
            owner: true,
            within_a_call: true,
            ..CallScope::NOWHERE
        }
    }

    /// The instant after which nobody waits for the call any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Moves the deadline nearer. A later one than there is changes nothing.
    pub fn narrow(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// How much time is left: none without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Wishes that the next pick stays on this endpoint; `None` takes the wish back.
    pub fn wish_to_stay(&mut self, endpoint: Option<Endpoint>) {
        self.stay = endpoint;
    }

    /// The wish of a layer above, if there is one. It holds for one pick.
    pub fn take_wish(&mut self) -> Option<Endpoint> {
        self.stay.take()
    }

    /// Says whether picks should prefer endpoints that this call has not [tried](CallScope::tried). They do unless
    /// a layer says otherwise.
    pub fn prefer_untried(&mut self, prefer: bool) {
        self.reuses_tried = !prefer;
    }

    /// Should a pick prefer endpoints that this call has not [tried](CallScope::tried)?
    pub fn prefers_untried(&self) -> bool {
        !self.reuses_tried
    }

    /// Has this budget not counted the call yet? It has from now on, so that layers which share a budget count a
    /// call once.
    #[allow(dead_code, reason = "asked by a layer that is a feature")]
    pub(crate) fn first_counted_by(&mut self, budget: usize) -> bool {
        mem::replace(&mut self.counted_by, budget) != budget
    }

    /// The endpoint of the latest attempt that has ended.
    pub fn picked(&self) -> Option<&Endpoint> {
        self.picked.as_ref()
    }

    /// Takes it away, so that the next attempt is not held to have gone there if it goes nowhere.
    pub fn take_picked(&mut self) -> Option<Endpoint> {
        self.picked.take()
    }

    /// Says to the layers above where the attempt went. Nobody is told outside of a call.
    pub fn set_picked(&mut self, endpoint: &Endpoint) {
        if self.within_a_call {
            self.picked = Some(endpoint.clone());
        }
    }

    /// Says to the layers above whether there were others to pick from than the one that is picked.
    pub fn set_had_a_choice(&mut self, had_a_choice: bool) {
        self.had_a_choice = had_a_choice && self.within_a_call;
    }

    /// Have all attempts of this call, as far as the trail tells, gone to one endpoint, and were there others to pick
    /// from?
    pub fn can_move_on(&self) -> bool {
        self.had_a_choice()
            && self
                .picked
                .as_ref()
                .is_some_and(|picked| self.tried().all(|tried| tried.key() == picked.key()))
    }

    /// Were there others to pick from than the endpoint that was picked? Not if none was.
    pub fn had_a_choice(&self) -> bool {
        self.had_a_choice && self.picked.is_some()
    }

    /// Limits how many attempts the whole call may take, counted at the innermost level: each sending of the request
    /// is one. Of several limits the narrowest holds, whichever layer says it.
    pub fn limit_attempts(&mut self, most: u32) {
        self.most_attempts = self.most_attempts.min(most);
    }

    /// The limit on the attempts of the whole call, if they have been made.
    pub fn attempts_used_up(&self) -> Option<u32> {
        let most = self.most_attempts;
        // The trail is looked at only where there is a limit.
        let used_up =
            most != CallScope::ANY_NUMBER && self.attempts() >= usize::try_from(most).unwrap_or(usize::MAX);
        used_up.then_some(most)
    }

    /// The endpoints that attempts of this call have gone to, as far as the trail tells: an attempt is in it once a
    /// first one has failed.
    pub fn tried(&self) -> impl Iterator<Item = &Endpoint> {
        self.trail()
            .into_iter()
            .flat_map(Trail::attempts)
            .filter_map(Attempt::endpoint)
    }

    /// The trail, from the first failure on.
    pub fn trail(&self) -> Option<&Trail> {
        match &self.journal {
            Journal::Open(trail) => trail.as_deref(),
            Journal::Closed => None,
        }
    }

    /// Starts the trail before anything has failed, so that a call that succeeds at once is written down as well.
    pub fn start_trail(&mut self) {
        if let Journal::Open(trail) = &mut self.journal {
            trail.get_or_insert_default();
        }
    }

    /// Is there somebody who reads what is [recorded](CallScope::record)?
    pub fn keeps_trail(&self) -> bool {
        matches!(self.journal, Journal::Open(_))
    }

    /// How many attempts have been written down.
    pub fn attempts(&self) -> usize {
        self.trail().map_or(0, Trail::len)
    }

    /// Has an attempt of this call failed that may have reached a server? A later one that provably did not changes
    /// nothing about that.
    pub fn may_have_been_sent(&self) -> bool {
        self.may_have_been_sent
    }

    /// Writes into the trail, starting it if need be. Nothing happens where nobody would read it.
    pub fn record(&mut self, event: impl Into<Event>) {
        if let Journal::Open(trail) = &mut self.journal {
            let event = event.into();
            // Nobody says of an attempt that was given up how far it came.
            self.may_have_been_sent |= matches!(
                &event,
                Event::Attempt(attempt) if attempt.outcome() == AttemptOutcome::Abandoned
            );
            let attempt = trail.get_or_insert_default().push(event);
            self.written = attempt.unwrap_or(self.written);
        }
    }

    /// Writes a successful attempt into the trail, if an earlier attempt has started it.
    pub fn record_answer(&mut self, attempt: Attempt) {
        if let Journal::Open(Some(_)) = &self.journal {
            self.record(attempt);
        }
    }

    /// An attempt starts: nothing has been written of it.
    pub fn attempt_starts(&mut self) {
        self.written = 0;
    }

    /// Has a layer below written down the attempt that is under way?
    pub fn is_written(&self) -> bool {
        self.written != 0
    }

    /// Sees to it that the attempt under way is in the trail as failed, whether or not a layer below has written it
    /// down, as failed or as answered.
    pub fn record_failure(&mut self, started: Instant, fault: Fault) {
        self.may_have_been_sent |= fault.sent() == Sent::Maybe;
        match (self.written, &mut self.journal) {
            (attempt @ 1.., Journal::Open(Some(trail))) => trail.blame(attempt, fault),
            // Turned away on this side: that was no attempt.
            _ if fault.is_rejection() => {}
            _ => {
                let outcome = AttemptOutcome::Failed(fault);
                self.record(Attempt::new(
                    self.picked.clone(),
                    started,
                    Instant::now(),
                    outcome,
                ));
            }
        }
    }

    /// Puts this scope on the thread while `f` runs. Whatever the layers below have written is in it afterwards.
    #[inline]
    pub fn enter<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let entered = Entered::new(self);
        let result = f();
        drop(entered);
        result
    }

    /// Ends the part of the call that this scope stands for: the scope around it learns where the last attempt
    /// went, and an error takes the trail with it, if the trail ends here.
    pub fn finish<T>(&mut self, result: Result<T, BoxError>) -> Result<T, BoxError> {
        // What belongs to this call alone is not told to one around it.
        if !self.owner {
            current(|around| self.tell(around));
        }
        result.map_err(|error| match self.take_trail() {
            Some(trail) if !trail.events().is_empty() => Box::new(CallFailed::new(trail, error)),
            _ => error,
        })
    }

    fn tell(&mut self, around: &mut CallScope) {
        if around.within_a_call {
            if let Some(picked) = self.picked.take() {
                around.picked = Some(picked);
                around.had_a_choice = self.had_a_choice;
            }
            around.most_attempts = around.most_attempts.min(self.most_attempts);
            if self.written != 0 {
                around.written = self.written;
            }
            around.may_have_been_sent |= self.may_have_been_sent;
            around.counted_by = self.counted_by;
        }
    }

    /// The trail, if this scope owns one and an attempt has failed.
    pub fn take_trail(&mut self) -> Option<Box<Trail>> {
        match &mut self.journal {
            Journal::Open(trail) if self.owner => trail.take(),
            _ => None,
        }
    }
}

/// While it lives, a scope is on the thread, and the one around it is in its place; a panic puts both back as well.
struct Entered<'a> {
    scope: &'a mut CallScope,
}

impl<'a> Entered<'a> {
    #[inline]
    fn new(scope: &'a mut CallScope) -> Self {
        current(|on_thread| {
            mem::swap(scope, on_thread);
            if !on_thread.owner {
                mem::swap(&mut scope.journal, &mut on_thread.journal);
            }
        });
        Entered { scope }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        current(|on_thread| {
            if !on_thread.owner {
                mem::swap(&mut self.scope.journal, &mut on_thread.journal);
            }
            mem::swap(self.scope, on_thread);
        });
    }
}

/// Looks at, or writes into, the scope that is on the thread. `f` must not poll anything: within it no scope is.
#[inline]
pub fn current<R>(f: impl FnOnce(&mut CallScope) -> R) -> R {
    // Calls may be dropped by a thread that is ending, when its scope is gone already.
    if CURRENT.try_with(|_| ()).is_err() {
        return nowhere(f);
    }
    CURRENT.with(|current| match current.try_borrow_mut() {
        Ok(mut scope) => f(&mut scope),
        Err(_) => nowhere(f),
    })
}

#[cold]
fn nowhere<R>(f: impl FnOnce(&mut CallScope) -> R) -> R {
    let mut nowhere = CallScope::NOWHERE;
    f(&mut nowhere)
}

/// The deadline of the call that is being made.
pub fn deadline() -> Option<Instant> {
    current(|scope| scope.deadline)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::prelude::*;

    use super::*;
    use crate::call::{FaultKind, NotRetried, Sent, Stop};

    fn fault() -> Fault {
        Fault::new(FaultKind::Reset, Sent::Maybe)
    }

    fn attempt(endpoint: &Endpoint) -> Attempt {
        let now = Instant::now();
        Attempt::new(Some(endpoint.clone()), now, now, AttemptOutcome::Failed(fault()))
    }

    fn endpoint(uri: &str) -> Endpoint {
        Endpoint::new(uri).unwrap()
    }

    #[test]
    fn the_nearest_deadline_holds_and_ends_with_its_scope() {
        let now = Instant::now();
        let (near, far) = (now + Duration::from_secs(1), now + Duration::from_secs(9));
        let mut outer = CallScope::begin();
        outer.narrow(near);
        outer.enter(|| {
            let mut inner = CallScope::join();
            inner.narrow(far);
            inner.enter(|| assert_eq!(deadline(), Some(near)));
        });
        assert_eq!(deadline(), None);
    }

    #[test]
    fn a_trail_written_below_is_owned_above_and_goes_out_with_the_error() {
        let (a, b) = (endpoint("http://a"), endpoint("http://b"));
        let mut call = CallScope::begin();
        for (n, endpoint) in [&a, &b].into_iter().enumerate() {
            call.enter(|| {
                let mut part = CallScope::join_or_begin();
                part.enter(|| {
                    current(|scope| {
                        assert_eq!(scope.tried().count(), n, "the part before is known to the next");
                        scope.record(attempt(endpoint));
                    });
                });
                assert!(
                    part.finish(Err::<(), _>("failed".into()))
                        .unwrap_err()
                        .downcast::<CallFailed>()
                        .is_err()
                );
            });
        }
        let error = call.finish(Err::<(), _>("failed".into())).unwrap_err();
        assert_eq!(Trail::of(&*error).unwrap().len(), 2);
    }

    #[test]
    fn a_call_within_a_call_keeps_a_trail_of_its_own() {
        let a = endpoint("http://a");
        let mut served = CallScope::begin();
        served.enter(|| {
            let mut made = CallScope::begin();
            made.enter(|| current(|scope| scope.record(attempt(&a))));
            assert_eq!(made.attempts(), 1);
        });
        assert_eq!(served.attempts(), 0);
    }

    #[test]
    fn the_endpoint_picked_is_told_level_by_level() {
        let a = endpoint("http://a");
        let mut outer = CallScope::begin();
        outer.enter(|| {
            let mut inner = CallScope::join();
            inner.enter(|| current(|scope| scope.set_picked(&a)));
            assert_eq!(inner.picked(), Some(&a));
            let _ = inner.finish(Ok(()));
        });
        assert_eq!(outer.picked(), Some(&a));
        let _ = outer.finish(Ok(()));
        current(|ground| assert!(ground.picked().is_none(), "nothing is left on the thread"));
    }

    #[test]
    fn a_wish_and_a_preference_pass_through_the_layers_in_between_but_not_into_a_new_call() {
        let a = endpoint("http://a");
        let mut outer = CallScope::begin();
        outer.wish_to_stay(Some(a.clone()));
        outer.prefer_untried(false);
        outer.enter(|| {
            let mut other = CallScope::begin();
            assert!(other.prefers_untried() && other.take_wish().is_none());
            let mut between = CallScope::join();
            between.enter(|| {
                current(|scope| {
                    assert_eq!((scope.prefers_untried(), scope.take_wish()), (false, Some(a)));
                });
            });
        });
        assert!(outer.take_wish().is_none(), "it holds for one pick");
    }

    #[test]
    fn a_failure_is_written_down_once_whichever_layer_saw_it_first() {
        let now = Instant::now();
        let mut scope = CallScope::begin();
        scope.record_failure(now, fault());
        assert_eq!(scope.attempts(), 1);
        scope.record_failure(now, fault());
        assert_eq!(scope.attempts(), 1, "a layer below had it");
        scope.attempt_starts();
        scope.record_answer(Attempt::new(None, now, now, AttemptOutcome::Answered));
        scope.record_failure(now, fault());
        let last = scope.trail().unwrap().attempts().last().unwrap().outcome();
        assert_eq!(
            (scope.attempts(), last),
            (2, AttemptOutcome::Failed(fault())),
            "the answer was a failure"
        );
    }

    #[test]
    fn what_may_have_been_sent_stays_so_for_the_whole_call_and_for_no_other() {
        let now = Instant::now();
        let unsent = Fault::new(FaultKind::ConnectRefused, Sent::No);
        let mut call = CallScope::begin();
        for (fault, may_have_been_sent) in [(unsent, false), (fault(), true), (unsent, true)] {
            call.enter(|| {
                let mut part = CallScope::join();
                part.record_failure(now, fault);
                let _ = part.finish(Ok(()));
                let mut other = CallScope::begin();
                assert!(!other.may_have_been_sent());
                other.set_picked(&endpoint("http://other"));
                let _ = other.finish(Ok(()));
            });
            assert_eq!(call.may_have_been_sent(), may_have_been_sent);
            assert!(
                call.picked().is_none(),
                "another call says nothing of where it went"
            );
        }
    }

    #[test]
    fn the_narrowest_limit_on_attempts_holds_for_the_whole_call_and_for_no_other() {
        let now = Instant::now();
        let mut call = CallScope::begin();
        call.limit_attempts(3);
        call.enter(|| {
            let mut part = CallScope::join();
            part.limit_attempts(9);
            part.enter(|| {
                current(|scope| {
                    assert_eq!(scope.attempts_used_up(), None);
                    scope.attempt_starts();
                    scope.record_failure(now, fault());
                });
                let mut other = CallScope::begin();
                assert!(other.attempts_used_up().is_none());
                other.limit_attempts(1);
                let _ = other.finish(Ok(()));
            });
            let mut narrower = CallScope::join();
            narrower.limit_attempts(2);
            let _ = narrower.finish(Ok(()));
            let _ = part.finish(Ok(()));
        });
        call.record_failure(now, fault());
        call.enter(|| current(|scope| assert_eq!(scope.attempts_used_up(), None, "1 is written")));
        call.attempt_starts();
        call.record_failure(now, fault());
        assert_eq!(call.attempts_used_up(), Some(2), "the narrower one was told");
    }

    #[test]
    fn a_call_can_move_on_from_the_only_endpoint_it_has_been_to_if_there_were_others() {
        let (a, b) = (endpoint("http://a"), endpoint("http://b"));
        let mut call = CallScope::begin();
        let visit = |call: &mut CallScope, endpoint: &Endpoint, had_a_choice| {
            call.enter(|| {
                current(|scope| {
                    scope.record(attempt(endpoint));
                    scope.set_picked(endpoint);
                    scope.set_had_a_choice(had_a_choice);
                });
            });
            call.can_move_on()
        };
        assert!(!call.can_move_on(), "it has been nowhere");
        assert!(!visit(&mut call, &a, false));
        assert!(visit(&mut call, &a, true));
        assert!(!visit(&mut call, &b, true), "it has moved on");
    }

    #[test]
    fn an_answer_without_an_earlier_failure_starts_no_trail() {
        let now = Instant::now();
        let mut scope = CallScope::begin();
        scope.record_answer(Attempt::new(None, now, now, AttemptOutcome::Answered));
        assert!(scope.trail().is_none());
    }

    #[test]
    fn a_call_can_be_dropped_by_a_thread_that_is_ending() {
        struct AtTheEnd;
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                current(|scope| scope.record(Stop::new("test", NotRetried::Rejected)));
            }
        }
        thread_local! {
            static KEPT: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
        }
        let thread = std::thread::spawn(|| {
            // Made first, so that it is dropped after the scope.
            KEPT.with(|kept| *kept.borrow_mut() = Some(AtTheEnd));
            let mut scope = CallScope::begin();
            scope.enter(|| ());
        });
        assert!(thread.join().is_ok());
    }

    #[test]
    fn a_panic_below_leaves_the_thread_clean() {
        let mut scope = CallScope::begin();
        scope.narrow(Instant::now());
        let panicked = catch_unwind(AssertUnwindSafe(|| scope.enter(|| panic!("below"))));
        assert!(panicked.is_err());
        assert_eq!(deadline(), None);
        assert!(scope.deadline().is_some(), "and the scope is whole");
    }

    /// Goes down through scopes, of which each may have a deadline of its own; the last of them waits.
    fn descend(scopes: &[(u8, Option<Instant>)], nearest: Option<Instant>, now: Instant) {
        let Some(((kind, own), below)) = scopes.split_first() else {
            return;
        };
        let mut scope = match kind {
            0 => CallScope::begin(),
            1 => CallScope::join(),
            _ => CallScope::join_or_begin(),
        };
        assert_eq!(scope.deadline(), nearest, "that of the call around holds");
        own.iter().for_each(|own| scope.narrow(*own));
        let nearest = nearest.into_iter().chain(*own).min();
        let left = nearest.map(|nearest| nearest.checked_duration_since(now).unwrap_or_default());
        assert_eq!((scope.deadline(), scope.remaining()), (nearest, left));
        scope.enter(|| {
            assert_eq!(deadline(), nearest);
            descend(below, nearest, now);
        });
        assert_eq!(
            scope.deadline(),
            nearest,
            "one that was narrowed below is no nearer above"
        );
    }

    /// From long ago to the end of the clock.
    fn instants() -> impl Strategy<Value = Duration> {
        prop_oneof![
            0..200_u64,
            0..=crate::call::LONGEST.as_secs() * 1000,
            any::<u64>(),
            Just(u64::MAX),
        ]
        .prop_map(Duration::from_millis)
    }

    proptest! {
        #[test]
        fn of_any_deadlines_in_any_scopes_the_nearest_holds_and_never_is_less_than_nothing_left(
            scopes in prop::collection::vec((0_u8..3, prop::option::of(instants())), 0..8),
            passed in 0_u64..400,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let base = Instant::now();
                let scopes: Vec<_> = scopes
                    .into_iter()
                    .map(|(kind, after)| (kind, after.and_then(|after| base.checked_add(after))))
                    .collect();
                tokio::time::advance(Duration::from_millis(passed)).await;
                descend(&scopes, None, base + Duration::from_millis(passed));
            });
            prop_assert_eq!(deadline(), None);
        }
    }
}
