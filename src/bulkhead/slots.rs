//! The slots, and the line of calls that wait for one.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;

#[expect(
    clippy::disallowed_types,
    reason = "taken only by calls that wait and by those that hand a slot to one, never while a slot is free"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// How many slots are taken, and how many calls wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) taken: u32,
    pub(super) waiting: u32,
}

impl Load {
    fn of(word: u64) -> Load {
        // The casts take the halves of the word apart.
        Load {
            taken: word as u32,
            waiting: (word >> 32) as u32,
        }
    }
}

const ONE_TAKEN: u64 = 1;
const ONE_WAITING: u64 = 1 << 32;

/// A number of slots, which are given out in the order in which they were asked for.
///
/// A slot that is given back while calls wait goes to the first of them without being free in between, so nobody can
/// overtake. The number of waiting calls changes under the lock alone, and is the length of the line.
pub(super) struct Slots {
    most: u32,
    most_waiting: u32,
    /// A [`Load`].
    word: AtomicU64,
    line: Mutex<VecDeque<Arc<Ticket>>>,
}

/// A place in the line.
#[derive(Default)]
pub(super) struct Ticket {
    /// It has a slot.
    served: AtomicBool,
    waker: AtomicWaker,
}

impl Ticket {
    /// Ready: whoever holds it has a slot.
    pub(super) fn poll_served(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        // Looked at after the task was registered, so that no slot can slip through.
        if self.served.load(Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// What came of asking for a slot.
pub(super) enum Asked {
    Taken,
    Waits(Arc<Ticket>),
    Full(Load),
}

impl Slots {
    pub(super) fn new(most: u32, most_waiting: u32) -> Self {
        Slots {
            most,
            // Nobody waits for a slot that there will never be.
            most_waiting: if most == 0 { 0 } else { most_waiting },
            word: AtomicU64::new(0),
            line: Mutex::default(),
        }
    }

    pub(super) fn most(&self) -> u32 {
        self.most
    }

    pub(super) fn most_waiting(&self) -> u32 {
        self.most_waiting
    }

    #[inline]
    pub(super) fn load(&self) -> Load {
        Load::of(self.word.load(Acquire))
    }

    /// Would a call get a slot now? While others wait for one, all are taken.
    #[inline]
    fn has_room(&self, load: Load) -> bool {
        load.taken < self.most
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        !self.has_room(self.load())
    }

    /// Takes a slot if one is free.
    #[inline]
    pub(super) fn take(&self) -> Result<(), Load> {
        let taken = self.word.fetch_update(AcqRel, Acquire, |word| {
            self.has_room(Load::of(word)).then_some(word + ONE_TAKEN)
        });
        taken.map(drop).map_err(Load::of)
    }

    /// Takes a slot if one is free, or else a place in the line if there is one.
    pub(super) fn take_or_wait(&self) -> Asked {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.word.fetch_update(AcqRel, Acquire, |word| {
            let load = Load::of(word);
            if self.has_room(load) {
                Some(word + ONE_TAKEN)
            } else if load.waiting < self.most_waiting {
                Some(word + ONE_WAITING)
            } else {
                None
            }
        });
        match before.map(Load::of) {
            Ok(load) if self.has_room(load) => Asked::Taken,
            Ok(_) => {
                let ticket = Arc::<Ticket>::default();
                line.push_back(ticket.clone());
                Asked::Waits(ticket)
            }
            Err(word) => Asked::Full(Load::of(word)),
        }
    }

    /// Gives a slot back.
    #[inline]
    pub(super) fn give_back(&self) {
        let freed = self.word.fetch_update(AcqRel, Acquire, |word| {
            (Load::of(word).waiting == 0).then_some(word - ONE_TAKEN)
        });
        if freed.is_err() {
            self.hand_over();
        }
    }

    /// A slot that is given back goes to the first who waits.
    #[cold]
    fn hand_over(&self) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        match line.pop_front() {
            Some(next) => {
                self.word.fetch_sub(ONE_WAITING, AcqRel);
                next.served.store(true, Release);
                drop(line);
                next.waker.wake();
            }
            // The last of them has left meanwhile.
            None => {
                self.word.fetch_sub(ONE_TAKEN, AcqRel);
            }
        }
    }

    /// One who waited does so no more.
    pub(super) fn leave(&self, ticket: &Arc<Ticket>) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if ticket.served.load(Acquire) {
            // It left too late, and has a slot.
            drop(line);
            self.give_back();
        } else {
            line.retain(|other| !Arc::ptr_eq(other, ticket));
            self.word.fetch_sub(ONE_WAITING, AcqRel);
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { taken, waiting } = self.load();
        f.debug_struct("Slots")
            .field("most", &self.most)
            .field("most_waiting", &self.most_waiting)
            .field("taken", &taken)
            .field("waiting", &waiting)
            .finish()
    }
}
