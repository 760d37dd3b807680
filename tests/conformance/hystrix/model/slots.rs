//! The permits of a semaphore, or the threads of a pool.

use super::{Id, Refusal, settings::Isolation};

/// The permits or threads that functions hold.
#[derive(Debug, Default)]
pub(super) struct Slots {
    taken: Vec<Id>,
    queue: Vec<Id>,
}

/// What became of a call that asked for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Taken,
    Queued,
    None(Refusal),
}

impl Slots {
    pub(super) fn ask(&mut self, id: Id, isolation: Isolation) -> Slot {
        let (slots, queue, refusal) = match isolation {
            Isolation::Semaphore { permits } => (permits, 0, Refusal::Semaphore),
            Isolation::Thread { threads, queue } => (threads, queue, Refusal::Pool),
        };
        if self.taken.len() < slots {
            self.taken.push(id);
            Slot::Taken
        } else if self.queue.len() < queue {
            self.queue.push(id);
            Slot::Queued
        } else {
            Slot::None(refusal)
        }
    }

    /// Gives its slot, or its place in the queue, back. Told is who has the slot now.
    pub(super) fn give_back(&mut self, id: Id) -> Option<Id> {
        self.queue.retain(|other| *other != id);
        let held = self.taken.len();
        self.taken.retain(|other| *other != id);
        if self.taken.len() == held || self.queue.is_empty() {
            return None;
        }
        let next = self.queue.remove(0);
        self.taken.push(next);
        Some(next)
    }
}
