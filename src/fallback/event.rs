//! What a listener is told.

use std::sync::Arc;

use crate::call::Fault;

/// A call has failed, and its fallback has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FallbackEvent {
    fault: Fault,
    end: FallbackEnd,
}

/// How a fallback ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallbackEnd {
    /// With an answer.
    Answered,
    /// With an error.
    Failed,
    /// It did not begin, since as many as may be were running.
    Rejected,
}

impl FallbackEvent {
    pub(super) fn new(fault: Fault, end: FallbackEnd) -> Self {
        FallbackEvent { fault, end }
    }

    /// What went wrong with the call.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// How the fallback ended.
    pub fn end(&self) -> FallbackEnd {
        self.end
    }
}

pub(super) type Hook = Arc<dyn Fn(&FallbackEvent) + Send + Sync>;
