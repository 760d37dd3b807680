//! Seeing what happened.
//!
//! [`RecordTrail`] marks where a call begins and ends: attempts below it belong to this call and to no other. It puts
//! the [`Trail`](crate::call::Trail) of the call on its final error and, where there was more than one attempt, on
//! the response.

mod record;

pub use self::record::{RecordTrail, RecordTrailFuture, RecordTrailLayer};
