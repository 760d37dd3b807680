//! The atomics of what threads share and `scripts/loom` checks: std's, or those of [loom](https://docs.rs/loom), which
//! runs a test in every order that its threads may have.
//!
//! Switched by a `cfg` of this crate, as tokio goes by loom's own.

#[cfg(not(all(test, outbound_loom)))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64};

#[cfg(all(test, outbound_loom))]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64};

/// Runs a test in every order that its threads may have, or in those in which a thread is interrupted at most `bound`
/// times. The environment has the last word: `LOOM_MAX_PREEMPTIONS`.
#[cfg(all(test, outbound_loom))]
pub(crate) fn explore(bound: Option<usize>, test: impl Fn() + Send + Sync + 'static) {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(bound);
    let orders = Arc::new(AtomicU64::new(0));
    let counted = orders.clone();
    model.check(move || {
        counted.fetch_add(1, Relaxed);
        test();
    });
    eprintln!(
        "{}: {} orders",
        std::thread::current().name().unwrap_or_default(),
        orders.load(Relaxed)
    );
}
