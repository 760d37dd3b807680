//! What went wrong, and could a server have seen it: read off errors that really happened, on real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has counted"
)]
#![allow(dead_code, unreachable_pub, reason = "shared with the same tests over TLS")]
#![allow(clippy::disallowed_types, reason = "the lock is not on the path of a call")]

#[path = "../../examples/support/backends.rs"]
mod backends;
mod foreign;
mod matrix;
mod proof;
mod server;
mod stack;

use server::Transport;

#[test]
fn every_fault_in_the_docs_is_what_happens_without_tls() {
    matrix::check(&Transport::cleartext());
}
