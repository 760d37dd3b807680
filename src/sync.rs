//! The atomics, and the locks beside them, of what threads share and `scripts/loom` checks: std's, or those of
//! [loom](https://docs.rs/loom), which runs a test in every order that its threads may have.
//!
//! Switched by a `cfg` of this crate, as tokio goes by loom's own.

#[cfg(not(all(test, outbound_loom)))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64};

#[cfg(all(test, outbound_loom))]
pub(crate) use self::by_loom::{AtomicI64, AtomicU64, Mutex, explore, threads};

#[allow(dead_code, reason = "locked by a layer that is a feature")]
#[cfg(not(all(test, outbound_loom)))]
#[expect(
    clippy::disallowed_types,
    reason = "who locks says why it is off the way of a call"
)]
pub(crate) type Mutex<T> = std::sync::Mutex<T>;

#[cfg(all(test, outbound_loom))]
mod by_loom {
    use std::sync::{
        Arc,
        atomic::{
            AtomicU64 as Count,
            Ordering::{self, Relaxed, SeqCst},
        },
    };

    pub(crate) use loom::sync::Mutex;
    use loom::{model, sync::atomic, thread};

    /// Runs a test in every order that its threads may have, as far as they are interrupted at most so many times, and
    /// with every number that they may read. The environment has the last word: `LOOM_MAX_PREEMPTIONS`. Tokio's clock
    /// stands still.
    pub(crate) fn explore(interruptions: usize, test: impl Fn() + Send + Sync + 'static) {
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let _stands_still = clock.enter();
        let mut model = model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(interruptions));
        let orders = Arc::new(Count::new(0));
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

    /// Two threads beside this one.
    pub(crate) fn threads<T: Sync + Send + 'static>(
        shared: &Arc<T>,
        first: impl FnOnce(&T) + Send + 'static,
        second: impl FnOnce(&T) + Send + 'static,
        here: impl FnOnce(&T),
    ) {
        let (one, two) = (shared.clone(), shared.clone());
        let threads = [
            thread::spawn(move || first(&one)),
            thread::spawn(move || second(&two)),
        ];
        here(shared);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    /// Loom takes sequential consistency for acquire and release, which a fence before each such access makes up for. As
    /// it orders more than need be, what is checked of other accesses around them is less than the language allows.
    fn ordered<R>(orderings: [Ordering; 2], access: impl FnOnce() -> R) -> R {
        if orderings.contains(&SeqCst) {
            atomic::fence(SeqCst);
        }
        access()
    }

    macro_rules! atomics {
        ($($atomic:ident: $number:ty)*) => { $(
            /// Of those who have read a number loom knows the latest alone, and so would not try the order in which another
            /// of them comes after a thread that has read and then written. Each access takes a turn first, which is a write,
            /// and orders nothing else.
            #[derive(Debug)]
            pub(crate) struct $atomic {
                number: atomic::$atomic,
                turn: atomic::AtomicU64,
            }

            #[allow(dead_code, reason = "not each of them is used in each way")]
            impl $atomic {
                pub(crate) fn new(number: $number) -> Self {
                    $atomic {
                        number: atomic::$atomic::new(number),
                        turn: atomic::AtomicU64::new(0),
                    }
                }

                fn access<R>(&self, orderings: [Ordering; 2], access: impl FnOnce(&atomic::$atomic) -> R) -> R {
                    self.turn.fetch_add(0, Relaxed);
                    ordered(orderings, || access(&self.number))
                }

                pub(crate) fn load(&self, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.load(ordering))
                }

                pub(crate) fn store(&self, number: $number, ordering: Ordering) {
                    self.access([ordering; 2], |at| at.store(number, ordering));
                }

                pub(crate) fn swap(&self, number: $number, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.swap(number, ordering))
                }

                pub(crate) fn fetch_min(&self, number: $number, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.fetch_min(number, ordering))
                }

                pub(crate) fn fetch_add(&self, number: $number, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.fetch_add(number, ordering))
                }

                pub(crate) fn fetch_sub(&self, number: $number, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.fetch_sub(number, ordering))
                }

                pub(crate) fn fetch_max(&self, number: $number, ordering: Ordering) -> $number {
                    self.access([ordering; 2], |at| at.fetch_max(number, ordering))
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $number,
                    to: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.access([success, failure], |at| at.compare_exchange(from, to, success, failure))
                }

                pub(crate) fn compare_exchange_weak(
                    &self,
                    from: $number,
                    to: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.compare_exchange(from, to, success, failure)
                }

                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut next: impl FnMut($number) -> Option<$number>,
                ) -> Result<$number, $number> {
                    let mut seen = self.load(failure);
                    while let Some(number) = next(seen) {
                        match self.compare_exchange_weak(seen, number, success, failure) {
                            Ok(before) => return Ok(before),
                            Err(now) => seen = now,
                        }
                    }
                    Err(seen)
                }
            }

            impl Default for $atomic {
                fn default() -> Self {
                    $atomic::new(0)
                }
            }
        )* };
    }

    atomics! {
        AtomicU64: u64
        AtomicI64: i64
    }
}
