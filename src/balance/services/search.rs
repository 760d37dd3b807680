//! A call that has not found a service that is ready at once.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant};
use tower_service::Service;

use super::{
    future::Found,
    service::{Look, NAME, Shared},
    view::RequestView,
};
use crate::{
    balance::{
        Rule,
        figures::End,
        future::{book_failure, with_trail},
        layer::{Nowhere, Target},
        pick::Asked,
        wait::{ASK_AGAIN, Watch, sooner},
    },
    call::{
        Attempt, BoxError, Classify, Endpoint, Fault, Lent, NoTimeLeft, NotNow, NotReady, Veto,
        millis::Millis,
    },
};

/// How many services one look asks at most, and how many that are busy are waited for at once.
const MOST: usize = 16;

pin_project! {
    /// Looks for another service while those that were asked are not ready, and takes the first that is.
    pub(super) struct Search<S, Req> {
        request: Option<Req>,
        seen: Seen<S>,
        // Those that are waited for were asked in this very poll.
        begins: bool,
        // Is there reason to look further?
        looks: bool,
        // There is from then on.
        again: Option<Instant>,
        #[pin]
        watch: Watch,
    }
}

/// What a search has come across.
struct Seen<S> {
    /// Those that are waited for. Each has this task's waker.
    held: Vec<(Lent<S>, Target)>,
    /// Those that were asked, the ones that are waited for among them.
    passed: Vec<Endpoint>,
    /// The rule has chosen none, and is asked again then.
    refused_until: Option<Instant>,
    /// How often one has failed, and how the last one did.
    failures: usize,
    failure: Option<BoxError>,
    /// Where nobody above keeps a trail.
    unheard: Vec<Attempt>,
    /// The set, as the latest look has seen it.
    set: Nowhere,
}

impl<S, Req> Search<S, Req> {
    /// Of a call that came to this at its first look.
    #[cold]
    pub(super) fn after<R, C, V>(
        look: Look<S>,
        shared: &Shared<S, R, C, V>,
        request: Req,
        now: Instant,
    ) -> Self
    where
        S: Service<Req>,
        R: Rule,
        C: Classify<S::Response>,
    {
        let watch = Watch::over(shared.services.endpoints());
        let mut seen = Seen {
            held: Vec::new(),
            passed: Vec::new(),
            refused_until: None,
            failures: 0,
            failure: None,
            unheard: Vec::new(),
            set: Nowhere::of(&shared.balance.pool.roster()),
        };
        seen.note(look, shared, now);
        Search {
            request: Some(request),
            seen,
            begins: true,
            looks: true,
            again: None,
            watch,
        }
    }

    /// The first service that is ready.
    pub(super) fn poll<R, C, V>(
        self: Pin<&mut Self>,
        shared: &Shared<S, R, C, V>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Found<S, Req>, BoxError>>
    where
        S: Service<Req> + Clone + 'static,
        S::Error: Into<BoxError>,
        R: Rule,
        C: Classify<S::Response>,
        V: RequestView<Req>,
    {
        let mut this = self.project();
        let seen = this.seen;
        loop {
            let Some(request) = this.request.as_ref() else {
                // Polled again after its end.
                return Poll::Pending;
            };
            let now = Instant::now();
            shared.services.wake(now);
            if this.again.is_some_and(|again| again <= now) {
                *this.looks = true;
            }
            let mut found = None;
            if !std::mem::take(this.begins) {
                found = seen.poll_held(shared, this.looks, now, cx);
            }
            if found.is_none() && std::mem::take(this.looks) {
                *this.again = None;
                found = seen.look_further(shared, request, now, cx);
            }
            if let Some((service, target)) = found {
                if Asked::read().deadline.is_some_and(|deadline| deadline <= now) {
                    return Poll::Ready(Err(Box::new(NoTimeLeft::new(NAME))));
                }
                return Poll::Ready(match this.request.take() {
                    Some(request) => Ok(Found {
                        service,
                        target,
                        request,
                        before: std::mem::take(&mut seen.unheard),
                    }),
                    None => return Poll::Pending,
                });
            }
            let since = this.watch.since();
            let until = since.checked_add(seen.patience(shared));
            if until.is_some_and(|until| until <= now) {
                *this.request = None;
                let waited = now.saturating_duration_since(since);
                return Poll::Ready(Err(seen.error(waited)));
            }
            if this.watch.as_mut().poll_changed(shared.services.endpoints(), cx) {
                *this.looks = true;
                continue;
            }
            // Whoever rested may have been found well by another call, and is still to be looked for then.
            *this.again = sooner(*this.again, seen.again(shared));
            ready!(this.watch.as_mut().poll_until(sooner(until, *this.again), cx));
        }
    }
}

impl<S> Seen<S> {
    /// One that is waited for, and is ready now. `looks`: one is not waited for any more that may be asked anew.
    fn poll_held<Req, R, C, V>(
        &mut self,
        shared: &Shared<S, R, C, V>,
        looks: &mut bool,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Option<(S, Target)>
    where
        S: Service<Req> + 'static,
        S::Error: Into<BoxError>,
        R: Rule,
        C: Classify<S::Response>,
    {
        let mut place = 0;
        while let Some((lent, target)) = self.held.get_mut(place) {
            let is_current = shared.services.is_current(target.endpoint(), lent);
            let poll = if is_current && shared.balance.is_in_the_set(target) {
                lent.service.poll_ready(cx).map(Some)
            } else {
                // It was taken out, or there is another one in its place, to be asked anew.
                Poll::Ready(None)
            };
            let Poll::Ready(outcome) = poll else {
                place += 1;
                continue;
            };
            let (lent, target) = self.held.remove(place);
            match outcome {
                Some(Ok(())) => {
                    shared.services.is_ready(target.endpoint());
                    if shared.balance.is_drained(&target) {
                        *looks = true;
                        continue;
                    }
                    return Some((lent.service, target));
                }
                Some(Err(error)) => {
                    shared
                        .services
                        .is_not_ready(target.endpoint(), NotNow::Failed, now);
                    self.failed(error.into(), target, shared, now);
                }
                None => {
                    self.passed.retain(|passed| *passed != *target.endpoint());
                    *looks = true;
                }
            }
        }
        None
    }

    /// One that has not been asked, or may be asked again, and is ready.
    fn look_further<Req, R, C, V>(
        &mut self,
        shared: &Shared<S, R, C, V>,
        request: &Req,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Option<(S, Target)>
    where
        S: Service<Req> + Clone + 'static,
        S::Error: Into<BoxError>,
        R: Rule,
        C: Classify<S::Response>,
        V: RequestView<Req>,
    {
        self.refused_until = None;
        // Before the looks, so that what comes after it is heard of as a change.
        self.set = Nowhere::of(&shared.balance.pool.roster());
        let held = &self.held;
        self.passed.retain(|passed| {
            held.iter().any(|(_, target)| target.endpoint() == passed)
                || passed.eligibility().is_forbidden_by(Veto::NotReady)
        });
        for _ in 0..MOST {
            // Anew each time, since what has failed is in the trail.
            let asked = Asked::read();
            match shared.look(request, &asked, &self.passed, now, cx) {
                Look::Ready(service, target) => return Some((service, target)),
                look @ (Look::Busy(..) | Look::Failed(..) | Look::Vacant(_)) => self.note(look, shared, now),
                look @ (Look::Passed | Look::Nowhere(_)) => {
                    self.note(look, shared, now);
                    break;
                }
            }
        }
        None
    }

    /// Remembers what came of a look that has found none.
    fn note<Req, R, C, V>(&mut self, look: Look<S>, shared: &Shared<S, R, C, V>, now: Instant)
    where
        S: Service<Req>,
        R: Rule,
        C: Classify<S::Response>,
    {
        match look {
            Look::Busy(lent, target) => {
                self.passed.push(target.endpoint().clone());
                if self.held.len() == MOST {
                    // So that of many each is asked some time.
                    self.held.remove(0);
                }
                self.held.push((lent, target));
            }
            Look::Failed(error, target) => {
                self.passed.push(target.endpoint().clone());
                self.failed(error, target, shared, now);
            }
            Look::Vacant(endpoint) => self.passed.push(endpoint),
            Look::Nowhere(set) => {
                self.set = set;
                self.refused_until = set.is_choice().then(|| now + ASK_AGAIN);
            }
            Look::Passed | Look::Ready(..) => {}
        }
    }

    /// A service that fails to become ready is a server that was not reached.
    fn failed<Req, R, C, V>(
        &mut self,
        error: BoxError,
        target: Target,
        shared: &Shared<S, R, C, V>,
        now: Instant,
    ) where
        S: Service<Req>,
        R: Rule,
        C: Classify<S::Response>,
    {
        let error = NotReady::new(NAME, error);
        let verdict = shared.balance.classify.classify(Err(&error));
        let mut in_flight = shared.balance.begin(target, now);
        let fault = Fault::of(&error);
        self.unheard.extend(book_failure(
            &mut in_flight,
            verdict,
            End::ConnectionFailed,
            fault,
        ));
        self.failures += 1;
        self.failure = Some(Box::new(error));
    }

    /// How long to look, all in all.
    fn patience<R, C, V>(&self, shared: &Shared<S, R, C, V>) -> Duration {
        if self.held.is_empty() {
            shared.balance.settings.wait(self.set)
        } else {
            shared.ready_wait
        }
    }

    /// When to look again, if none of those that are waited for becomes ready before.
    fn again<R, C, V>(&self, shared: &Shared<S, R, C, V>) -> Option<Instant>
    where
        S: 'static,
    {
        let rested = if self.set.among() > self.held.len() {
            shared.services.next_to_wake()
        } else {
            None
        };
        sooner(self.refused_until, rested)
    }

    fn error(&mut self, waited: Duration) -> BoxError {
        let set = self.set;
        let unheard = std::mem::take(&mut self.unheard);
        let asked_none = self.passed.is_empty() && self.failures == 0;
        if !set.is_choice() || asked_none {
            return with_trail(unheard, Box::new(set.error(waited)));
        }
        let none = NoneReady {
            endpoints: set.among(),
            busy: self.held.len(),
            failures: self.failures,
            failure: self.failure.take(),
            waited,
        };
        with_trail(unheard, Box::new(NotReady::new(NAME, Box::new(none))))
    }
}

/// What a call has seen that found no service that was ready.
#[derive(Debug)]
struct NoneReady {
    endpoints: usize,
    busy: usize,
    failures: usize,
    failure: Option<BoxError>,
    waited: Duration,
}

impl fmt::Display for NoneReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoneReady {
            endpoints,
            busy,
            failures,
            ..
        } = self;
        write!(
            f,
            "none of {endpoints} after {}, {busy} are busy, {failures} have failed",
            Millis(self.waited)
        )?;
        match &self.failure {
            Some(failure) => write!(f, ", the last one so: {failure}"),
            None => Ok(()),
        }
    }
}

impl Error for NoneReady {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.failure.as_deref().map(|failure| failure as _)
    }
}
