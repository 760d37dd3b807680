//! Bodies, as far as more than one layer needs them.

mod drain;
mod once;
#[cfg(feature = "classify")]
mod prefix;
mod repeat;
#[cfg(feature = "retry")]
mod replay;
#[cfg(feature = "timeout")]
mod upload;

#[cfg(feature = "classify")]
pub(crate) use self::prefix::Prefix;
#[cfg(feature = "retry")]
pub use self::replay::{KeptReplay, ReplayBody};
#[cfg(feature = "timeout")]
pub use self::upload::UploadBody;
#[cfg(feature = "timeout")]
pub(crate) use self::upload::{IN_HAND, Upload};
pub use self::{drain::DrainBody, once::OnceBody, repeat::RepeatBody};
