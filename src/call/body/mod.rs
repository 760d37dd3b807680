//! Bodies, as far as more than one layer needs them.

mod drain;
mod once;
mod repeat;

pub use self::{drain::DrainBody, once::OnceBody, repeat::RepeatBody};
