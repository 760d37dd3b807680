//! A stack by the names and the rules of Spring Cloud.

mod beans;
mod config;
mod entries;
mod error;
mod keys;
mod release;
mod remark;
mod rule;
mod value;

use self::beans::Beans;
pub use self::{
    beans::{ErrorDecoder, Limits, Retryer, ReturnType},
    config::{SpringConfig, from_pairs},
    error::SpringError,
    release::SpringRelease,
    remark::{Reason, Remark},
    rule::RibbonRule,
};
/// Stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HystrixRelease {
    /// a
    V1_5_12,
    /// b
    V1_5_18,
}
