//! Bodies, as far as more than one layer needs them.

mod once;
#[cfg(feature = "classify")]
mod prefix;
mod repeat;

#[cfg(feature = "classify")]
pub(crate) use self::prefix::Prefix;
pub use self::{once::OnceBody, repeat::RepeatBody};
