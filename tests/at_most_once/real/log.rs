//! What the servers on sockets have seen: the ledger's arrivals, and what only a clock on the server's side can tell.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::{
    ledger::{Arrival, Ledger, Reach},
    schedule::Hash,
};

/// One request as a server saw it.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// Which attempt it is, as the client's side numbers them.
    pub attempt: usize,
    /// When its head was there, or as much of it as came.
    pub at: Instant,
    /// Said not to have been looked at: REFUSED_STREAM, or a GOAWAY.
    pub refused: bool,
    /// Does the server wait for the client to leave?
    pub waits: bool,
    /// When it was seen to have left.
    pub left: Option<Instant>,
}

/// All sights, by call.
#[derive(Debug)]
pub struct Log {
    ledger: Arc<Ledger>,
    sights: Mutex<Vec<Vec<Sight>>>,
}

impl Log {
    pub fn new(ledger: &Arc<Ledger>, calls: usize) -> Arc<Self> {
        Arc::new(Log {
            ledger: ledger.clone(),
            sights: Mutex::new(vec![Vec::new(); calls]),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Sight>>> {
        self.sights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, in the order of their coming.
    pub fn sights(&self) -> Vec<Vec<Sight>> {
        self.lock().clone()
    }

    /// Does a server still wait for a client to leave?
    pub fn is_waiting(&self) -> bool {
        self.lock()
            .iter()
            .flatten()
            .any(|sight| sight.waits && sight.left.is_none())
    }

    /// A request has come. `None`: no call has this number.
    pub fn arrives(self: &Arc<Self>, call: u64, attempt: usize, key: Option<&[u8]>) -> Option<Visit> {
        let mut log = self.lock();
        let sights = log.get_mut(usize::try_from(call).ok()?)?;
        sights.push(Sight {
            attempt,
            at: Instant::now(),
            refused: false,
            waits: false,
            left: None,
        });
        let visit = Visit {
            log: self.clone(),
            call,
            attempt,
            nth: sights.len() - 1,
            arrival: Arrival {
                reach: Reach::Partly,
                body: 0,
                hash: Hash::new(),
                key: key.map(Hash::of),
                executed: false,
            },
        };
        drop(log);
        visit.tell();
        Some(visit)
    }
}

/// A request that a server has before it.
#[derive(Debug)]
pub struct Visit {
    log: Arc<Log>,
    pub call: u64,
    pub attempt: usize,
    nth: usize,
    arrival: Arrival,
}

impl Visit {
    fn tell(&self) {
        self.log.ledger.arrived(self.call, self.attempt, self.arrival);
    }

    fn note(&self, note: impl FnOnce(&mut Sight)) {
        // The log is asked for all sights at the end, but not emptied.
        note(&mut self.log.lock()[self.call as usize][self.nth]);
    }

    /// More of the body.
    pub fn read(&mut self, bytes: &[u8]) {
        self.arrival.body += bytes.len() as u64;
        self.arrival.hash.feed(bytes);
        self.tell();
    }

    /// All of it was read, and it is carried out.
    pub fn whole(&mut self) {
        self.arrival.reach = Reach::Whole;
        self.arrival.executed = true;
        self.tell();
    }

    /// The client is told that nobody looks at it.
    pub fn refused(&mut self) {
        self.arrival.reach = Reach::Disclaimed;
        self.tell();
        self.note(|sight| sight.refused = true);
    }

    /// From here on the server waits for the client to leave.
    pub fn waits(&self) {
        self.note(|sight| sight.waits = true);
    }

    /// It does not any more.
    pub fn waits_no_more(&self) {
        self.note(|sight| sight.waits = false);
    }

    pub fn left(&self) {
        self.note(|sight| sight.left = Some(Instant::now()));
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // Another stream had the connection ended, on this side: there is nothing to be seen any more.
        self.note(|sight| sight.waits &= sight.left.is_some());
    }
}
