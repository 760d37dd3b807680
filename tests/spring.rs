//! A stack configured by Spring's own names: keys, precedence, mistakes, and what the stack then does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod spring {
    mod eight_seconds;
    mod keys;
    mod mock;
    mod nest;
    mod shells;
}
