//! The shared state, as seen from outside.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    BulkheadBuilder,
    slots::{Asked, Load, Slots, Ticket},
};
use crate::call::{BulkheadFull, ConfigError};

/// A number of slots for calls that are in flight, and a line for those that wait.
///
/// It is made first, and given to a [`BulkheadLayer`](super::BulkheadLayer). A clone is the same bulkhead. See the
/// [module](super) for an example.
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<Shared>,
}

struct Shared {
    name: Arc<str>,
    slots: Slots,
    max_wait: Duration,
    rejected: AtomicU64,
}

/// A call asked to be let in.
pub(super) enum Entry {
    In(Slot),
    InLine(Place),
    Full(BulkheadFull),
}

impl Bulkhead {
    /// With the [defaults](super#defaults): 10 calls at once, and none waits.
    ///
    /// # Errors
    ///
    /// The name is empty.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, ConfigError> {
        Bulkhead::builder(name).build()
    }

    /// A bulkhead of this name, which appears in its errors, with settings of its own.
    pub fn builder(name: impl Into<Arc<str>>) -> BulkheadBuilder {
        BulkheadBuilder::new(name.into())
    }

    pub(super) fn with(name: Arc<str>, slots: Slots, max_wait: Duration) -> Self {
        Bulkhead {
            shared: Arc::new(Shared {
                name,
                slots,
                max_wait,
                rejected: AtomicU64::new(0),
            }),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How many calls may be in flight at once.
    pub fn max_concurrent(&self) -> u32 {
        self.shared.slots.most()
    }

    /// How many further calls may wait.
    pub fn max_waiting(&self) -> u32 {
        self.shared.slots.most_waiting()
    }

    /// How long a call may wait.
    pub fn max_wait(&self) -> Duration {
        self.shared.max_wait
    }

    /// How many slots are taken now.
    pub fn in_flight(&self) -> u32 {
        self.shared.slots.load().taken
    }

    /// How many calls wait for a slot now.
    pub fn waiting(&self) -> u32 {
        self.shared.slots.load().waiting
    }

    /// How many calls have been turned away so far, be it at once or after a wait.
    pub fn rejected(&self) -> u64 {
        self.shared.rejected.load(Relaxed)
    }

    /// Takes a slot for work that is no call through a layer. It does not wait, and does not overtake calls that do.
    ///
    /// # Errors
    ///
    /// No slot is free, or others wait for one.
    ///
    /// ```
    /// use tower_outbound::bulkhead::Bulkhead;
    ///
    /// let bulkhead = Bulkhead::builder("reports").max_concurrent(1).build()?;
    /// let slot = bulkhead.enter()?;
    /// assert!(bulkhead.enter().is_err());
    /// drop(slot);
    /// assert!(bulkhead.enter().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn enter(&self) -> Result<Slot, BulkheadFull> {
        self.try_enter().map_err(|load| self.refuse(load, Duration::ZERO))
    }

    #[inline]
    fn try_enter(&self) -> Result<Slot, Load> {
        self.shared.slots.take().map(|()| self.slot())
    }

    /// Takes a slot, or waits for one where that is allowed.
    #[inline]
    pub(super) fn enter_or_wait(&self) -> Entry {
        match self.try_enter() {
            Ok(slot) => Entry::In(slot),
            Err(load) => self.stand_in_line(load),
        }
    }

    #[cold]
    fn stand_in_line(&self, load: Load) -> Entry {
        if self.max_waiting() == 0 {
            return Entry::Full(self.refuse(load, Duration::ZERO));
        }
        match self.shared.slots.take_or_wait() {
            Asked::Taken => Entry::In(self.slot()),
            Asked::Waits(ticket) => Entry::InLine(Place {
                bulkhead: self.clone(),
                ticket: Some(ticket),
            }),
            Asked::Full(load) => Entry::Full(self.refuse(load, Duration::ZERO)),
        }
    }

    fn slot(&self) -> Slot {
        Slot {
            bulkhead: self.clone(),
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.shared.slots.is_full()
    }

    #[cold]
    fn refuse(&self, load: Load, waited: Duration) -> BulkheadFull {
        self.shared.rejected.fetch_add(1, Relaxed);
        BulkheadFull::new(
            self.shared.name.clone(),
            [load.taken, self.max_concurrent()],
            [load.waiting, self.max_waiting()],
            waited,
        )
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead")
            .field("name", &self.shared.name)
            .field("slots", &self.shared.slots)
            .field("max_wait", &self.shared.max_wait)
            .field("rejected", &self.rejected())
            .finish()
    }
}

/// A slot of a [`Bulkhead`]. Dropping it gives it back.
#[must_use = "a slot that is dropped is free again"]
pub struct Slot {
    bulkhead: Bulkhead,
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        self.bulkhead.shared.slots.give_back();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.bulkhead.name()).finish()
    }
}

/// A place in the line. Dropping it gives it up.
pub(super) struct Place {
    bulkhead: Bulkhead,
    /// Until it has become a slot.
    ticket: Option<Arc<Ticket>>,
}

impl Place {
    /// Waits for its turn.
    pub(super) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Slot> {
        let Some(ticket) = &self.ticket else {
            return Poll::Pending;
        };
        ready!(ticket.poll_served(cx));
        self.ticket = None;
        Poll::Ready(self.bulkhead.slot())
    }

    /// The wait has been too long.
    pub(super) fn refuse(&self, waited: Duration) -> BulkheadFull {
        let load = self.bulkhead.shared.slots.load();
        self.bulkhead.refuse(load, waited)
    }

    pub(super) fn max_wait(&self) -> Duration {
        self.bulkhead.max_wait()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.bulkhead.shared.slots.leave(ticket);
        }
    }
}
