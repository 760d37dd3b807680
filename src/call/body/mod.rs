//! Bodies, as far as more than one layer needs them.

mod drain;
mod once;
#[cfg(feature = "classify")]
mod prefix;
mod repeat;

#[cfg(feature = "classify")]
pub(crate) use self::prefix::Prefix;
pub use self::{drain::DrainBody, once::OnceBody, repeat::RepeatBody};
