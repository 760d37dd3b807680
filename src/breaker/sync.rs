//! The atomics of the state word and of the window, in one place, so that a model checker's can take theirs.

pub(super) use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};
