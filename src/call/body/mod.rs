//! Bodies, as far as more than one layer needs them.

mod once;
mod repeat;

pub use self::{once::OnceBody, repeat::RepeatBody};
