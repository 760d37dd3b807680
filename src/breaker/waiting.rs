//! A wait for the circuit to change.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::futures::OwnedNotified;

use super::shard::Shard;

/// A wait for the next change of the circuit; begun only where the service below is not ready.
#[derive(Debug, Default)]
pub(super) struct Waiting(Option<Pin<Box<OwnedNotified>>>);

impl Waiting {
    #[inline]
    pub(super) fn stop(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }

    /// Registers for the next change. Ready: there was one since the wait began, look again.
    pub(super) fn poll_changed(&mut self, shard: &Shard, cx: &mut Context<'_>) -> Poll<()> {
        let waiting = self
            .0
            .get_or_insert_with(|| Box::pin(shard.core.changed.clone().notified_owned()));
        let changed = waiting.as_mut().poll(cx);
        if changed.is_ready() {
            self.0 = None;
        }
        changed
    }
}
