//! Tower middleware for calls that leave a process.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod call;

#[cfg(feature = "balance")]
pub mod balance;
#[cfg(feature = "breaker")]
pub mod breaker;
#[cfg(feature = "classify")]
pub mod classify;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "discover")]
pub mod discover;
pub mod nest;
#[cfg(feature = "trail")]
pub mod observe;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "timeout")]
pub mod timeout;
