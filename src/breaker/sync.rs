//! The atomics of the state word and of the window: what `scripts/loom` puts into every order.

pub(super) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

pub(super) use crate::sync::{AtomicU64, Mutex};
