//! A verdict that comes after the answer: with the end of its body.

#![allow(
    clippy::disallowed_types,
    reason = "locked by calls alone whose verdict comes late, a few times each and never across an await"
)]

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Extensions;

use super::verdict::Verdict;

/// The promise of a verdict that comes with the end of an answer's body, as gRPC tells its status in trailers.
///
/// It is put on the answer, into its extensions, by the layer that will know. A layer further up which counts outcomes
/// finds it by [`Classify::late`](super::Classify::late), and does not settle the call by its head but
/// [then](LateVerdict::then). If the body is dropped before its end there is no verdict, and the call counts as given up.
///
/// The answer has been handed over by then, so nothing can be retried.
///
/// ```
/// use std::sync::mpsc;
/// use tower_outbound::call::{LateVerdict, Verdict};
///
/// let (open, late) = LateVerdict::open();
/// let (told, hears) = mpsc::channel();
/// late.then(move |verdict| drop(told.send(verdict)));
/// assert!(hears.try_recv().is_err());
///
/// open.give(Verdict::Failure);
/// assert_eq!(hears.recv(), Ok(Verdict::Failure));
/// ```
#[derive(Clone)]
pub struct LateVerdict {
    shared: Arc<Shared>,
}

/// The duty to [give](OpenVerdict::give) the verdict that a [`LateVerdict`] promises. Dropping it says that there will be
/// none.
#[must_use = "dropping it says that there will be no verdict"]
pub struct OpenVerdict {
    shared: Arc<Shared>,
}

type Listener = Box<dyn FnOnce(Verdict) + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

enum State {
    /// In the order in which they asked: from the inside out.
    Open(Vec<Listener>),
    Given(Verdict),
    Never,
}

impl Default for State {
    fn default() -> Self {
        State::Open(Vec::new())
    }
}

impl LateVerdict {
    /// A promise, and the duty to keep it.
    pub fn open() -> (OpenVerdict, LateVerdict) {
        let shared = Arc::<Shared>::default();
        let open = OpenVerdict {
            shared: shared.clone(),
        };
        (open, LateVerdict { shared })
    }

    /// The promise on an answer, if there is one.
    pub fn on(extensions: &Extensions) -> Option<&LateVerdict> {
        extensions.get()
    }

    /// Runs this when the verdict is there; at once if it is already. If there never will be one it is dropped, with
    /// whatever it holds.
    pub fn then(&self, settle: impl FnOnce(Verdict) + Send + 'static) {
        let mut state = self.shared.lock();
        match &mut *state {
            State::Open(listeners) => listeners.push(Box::new(settle)),
            State::Given(verdict) => {
                let verdict = *verdict;
                // It runs, or is dropped, without the lock: it may do anything.
                drop(state);
                settle(verdict);
            }
            State::Never => drop(state),
        }
    }
}

impl OpenVerdict {
    /// Gives the verdict to all who asked, the innermost first.
    pub fn give(self, verdict: Verdict) {
        for listener in self.shared.end(State::Given(verdict)) {
            listener(verdict);
        }
    }
}

impl Drop for OpenVerdict {
    fn drop(&mut self) {
        drop(self.shared.end(State::Never));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first end counts. Those who wait for it come back.
    fn end(&self, end: State) -> Vec<Listener> {
        let mut state = self.lock();
        match &mut *state {
            State::Open(listeners) => {
                let listeners = mem::take(listeners);
                *state = end;
                listeners
            }
            _ => Vec::new(),
        }
    }
}

impl fmt::Debug for LateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.describe("LateVerdict", f)
    }
}

impl fmt::Debug for OpenVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.describe("OpenVerdict", f)
    }
}

impl Shared {
    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple(name);
        match &*self.lock() {
            State::Open(_) => tuple.field(&format_args!("open")),
            State::Given(verdict) => tuple.field(verdict),
            State::Never => tuple.field(&format_args!("never")),
        };
        tuple.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was told, and a token that lives as long as somebody could be told.
    fn listen(late: &LateVerdict) -> (Arc<Mutex<Vec<Verdict>>>, std::sync::Weak<()>) {
        let told = Arc::<Mutex<Vec<Verdict>>>::default();
        let token = Arc::new(());
        let weak = Arc::downgrade(&token);
        let teller = told.clone();
        late.then(move |verdict| {
            teller.lock().unwrap().push(verdict);
            drop(token);
        });
        (told, weak)
    }

    #[test]
    fn all_who_asked_are_told_once_and_who_asks_later_at_once() {
        let (open, late) = LateVerdict::open();
        let before = [listen(&late), listen(&late.clone())];
        assert_eq!(
            format!("{late:?} {open:?}"),
            "LateVerdict(open) OpenVerdict(open)"
        );
        open.give(Verdict::Ignored);
        let after = listen(&late);
        for (told, held) in before.into_iter().chain([after]) {
            assert_eq!(*told.lock().unwrap(), [Verdict::Ignored]);
            assert!(held.upgrade().is_none());
        }
        assert_eq!(format!("{late:?}"), "LateVerdict(Ignored)");
    }

    #[test]
    fn without_a_verdict_whatever_waits_for_one_is_dropped() {
        let (open, late) = LateVerdict::open();
        let before = listen(&late);
        assert!(before.1.upgrade().is_some());
        drop(open);
        for (told, held) in [before, listen(&late)] {
            assert!(told.lock().unwrap().is_empty());
            assert!(held.upgrade().is_none());
        }
        assert_eq!(format!("{late:?}"), "LateVerdict(never)");
    }

    #[test]
    fn who_is_told_may_ask_again() {
        let (open, late) = LateVerdict::open();
        let (again, told) = (late.clone(), Arc::new(Mutex::new(None)));
        let teller = told.clone();
        late.then(move |_| again.then(move |verdict| *teller.lock().unwrap() = Some(verdict)));
        open.give(Verdict::Success);
        assert_eq!(*told.lock().unwrap(), Some(Verdict::Success));
    }
}
