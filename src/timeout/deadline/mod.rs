//! The deadline of a call, told to the next process and taken from the one before.

mod receive;
mod send;

pub use self::{
    receive::{ReceiveDeadline, ReceiveDeadlineFuture, ReceiveDeadlineLayer},
    send::{SendDeadline, SendDeadlineFuture, SendDeadlineLayer},
};
