//! Word from the connector to the read limit: "no connection yet".
//!
//! A read limit counts from the moment a request has a connection; how long that takes is the connect limit's
//! business. An HTTP client polls the connector inside the future of the request that waits for it, so the two can
//! talk through a flag on the thread, which costs a store and no allocation. Where a client connects in a task of
//! its own the flag stays down, and the read limit counts from the call.

use std::cell::Cell;

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Says that the call now being polled still has no connection. `ConnectTimeout` does so at each poll of a connect.
pub fn mark() {
    SEEN.set(true);
}

/// Runs `poll` and tells whether a connector within it was still connecting.
#[allow(dead_code, reason = "asked by a layer that is a feature")]
pub(crate) fn observe<R>(poll: impl FnOnce() -> R) -> (R, bool) {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            // What was seen below has been seen from above as well.
            SEEN.set(SEEN.get() || self.0);
        }
    }
    let restore = Restore(SEEN.replace(false));
    let result = poll();
    let seen = SEEN.get();
    drop(restore);
    (result, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen_at_every_level_around_it_and_nowhere_else() {
        let ((_, inner), outer) = observe(|| observe(mark));
        assert!(inner && outer);
        SEEN.set(false);
        let ((_, before), _) = observe(|| {
            mark();
            observe(|| ())
        });
        assert!(!before);
        SEEN.set(false);
    }
}
