//! What the services and calls of a layer have in common.

use std::sync::{
    Arc,
    atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire},
    },
};

use super::{FallbackEnd, FallbackEvent, event::Hook};
use crate::call::{ErrorRef, Fault, StatusError, Verdict};

/// The settings, and how many fallbacks are running.
#[derive(Clone)]
pub(super) struct Shared<F> {
    pub(super) substitute: F,
    pub(super) max_concurrent: u32,
    pub(super) hook: Option<Hook>,
    pub(super) running: Arc<AtomicU32>,
}

impl<F> Shared<F> {
    /// Lets a fallback begin.
    pub(super) fn begin(&self) -> Option<Turn> {
        let begun = self.running.fetch_update(AcqRel, Acquire, |running| {
            (running < self.max_concurrent).then_some(running + 1)
        });
        begun.is_ok().then(|| Turn {
            running: self.running.clone(),
        })
    }

    /// Tells the listener, if there is one.
    pub(super) fn tell(&self, error: ErrorRef<'_>, end: FallbackEnd) {
        if let Some(hook) = &self.hook {
            hook(&FallbackEvent::new(Fault::of(error), end));
        }
    }
}

/// One running fallback. Dropping it lets another one begin.
pub(super) struct Turn {
    running: Arc<AtomicU32>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.running.fetch_sub(1, AcqRel);
    }
}

/// Was it classified as the caller's own fault? A rejection, which is nobody's, was not.
pub(super) fn is_the_callers(error: ErrorRef<'_>) -> bool {
    StatusError::of(error).is_some_and(|status| status.verdict() == Verdict::Ignored)
}
