//! A stack configured by Spring's own names: keys, precedence, mistakes, and what the stack then does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    reason = "what tests and their helpers may do"
)]

mod spring {
    mod eight_seconds;
    mod fallback;
    mod keys;
    mod mock;
    mod nest;
    mod shells;
}
