//! What `BalanceServices` and the live set of services promise, seen from outside.
#![allow(
    clippy::disallowed_types,
    reason = "tests write down what they have seen behind a std lock"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what stands beside the test functions is test as well"
)]

mod changes;
mod held;
mod mock;
mod readiness;
mod real;
mod sent;
