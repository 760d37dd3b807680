//! What the servers saw of each call, and what is still going on.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::schedule::Hash;

/// How far a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// No server read a byte of it.
    Nothing,
    /// A server read of it, and told the client that it does not act on it: REFUSED_STREAM, GOAWAY.
    Disclaimed,
    /// A server read a part of it.
    Partly,
    /// A server read all of it.
    Whole,
}

/// A request at a server.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub reach: Reach,
    /// How many bytes of its body came.
    pub body: u64,
    /// Of these bytes.
    pub hash: Hash,
    /// Of its `Idempotency-Key`.
    pub key: Option<Hash>,
    /// Did the server carry it out?
    pub executed: bool,
}

/// One attempt.
#[derive(Debug, Clone, Copy)]
pub struct Sending {
    pub started: Instant,
    /// `None`: it is alive.
    pub ended: Option<Instant>,
    /// `None`: no server saw it.
    pub arrival: Option<Arrival>,
    /// Did it start when its caller had left?
    pub late: bool,
}

/// All that is known of a call.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub sendings: Vec<Sending>,
    /// Has its caller got an outcome, or left?
    pub closed: bool,
    /// How many attempts were alive then.
    pub alive_at_close: usize,
    /// How many pieces of its body were taken after that.
    pub late_pieces: usize,
    /// How many attempts started while another one was alive, and how many pieces of the body were taken by an attempt
    /// that another one had followed.
    pub overlaps: usize,
}

impl Record {
    /// How many attempts are alive.
    pub fn alive(&self) -> usize {
        self.sendings
            .iter()
            .filter(|sending| sending.ended.is_none())
            .count()
    }

    /// How far the attempt came.
    pub fn reach(&self, attempt: usize) -> Reach {
        self.sendings
            .get(attempt)
            .and_then(|sending| sending.arrival)
            .map_or(Reach::Nothing, |arrival| arrival.reach)
    }
}

/// The records of the calls of one run. It is shared by callers and servers.
#[derive(Debug)]
pub struct Ledger {
    first: u64,
    records: Mutex<Vec<Record>>,
}

impl Ledger {
    /// For so many calls, from this one on.
    pub fn new(first: u64, calls: usize) -> Arc<Ledger> {
        Arc::new(Ledger {
            first,
            records: Mutex::new(vec![Record::default(); calls]),
        })
    }

    fn with<R>(&self, call: u64, f: impl FnOnce(&mut Record) -> R) -> R {
        let mut records = self.records.lock().unwrap();
        f(&mut records[(call - self.first) as usize])
    }

    /// An attempt starts, as seen by what stands next to the client. It is alive as long as the guard is.
    pub fn attempt(self: &Arc<Self>, call: u64) -> Alive {
        let started = Instant::now();
        let ordinal = self.with(call, |record| {
            record.overlaps += usize::from(record.alive() > 0);
            record.sendings.push(Sending {
                started,
                ended: None,
                arrival: None,
                late: record.closed,
            });
            record.sendings.len() - 1
        });
        Alive {
            ledger: self.clone(),
            call,
            ordinal,
        }
    }

    /// A server saw this attempt. Of several times the last counts.
    pub fn arrived(&self, call: u64, ordinal: usize, arrival: Arrival) {
        self.with(call, |record| record.sendings[ordinal].arrival = Some(arrival));
    }

    /// The client takes a piece of the body.
    pub fn piece(&self, call: u64) {
        self.with(call, |record| record.late_pieces += usize::from(record.closed));
    }

    /// Has this attempt no claim to the body any more: its caller has left, or the next one has started?
    pub fn is_over(&self, call: u64, ordinal: usize) -> bool {
        self.with(call, |record| {
            record.closed || ordinal + 1 < record.sendings.len()
        })
    }

    /// The same, of this attempt: it has no claim to the body any more when the next one has started.
    pub fn piece_of(&self, call: u64, ordinal: usize) {
        self.with(call, |record| {
            record.late_pieces += usize::from(record.closed);
            record.overlaps += usize::from(ordinal + 1 < record.sendings.len());
        });
    }

    /// The caller has its outcome and has dropped what was left of it, or has left.
    pub fn close(&self, call: u64) {
        self.with(call, |record| {
            record.closed = true;
            record.alive_at_close = record.alive();
        });
    }

    pub fn record(&self, call: u64) -> Record {
        self.with(call, |record| record.clone())
    }

    /// All records, in the order of the calls. To be asked when everything has had its time to come to an end.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock().unwrap())
    }
}

/// An attempt that is alive.
#[derive(Debug)]
pub struct Alive {
    ledger: Arc<Ledger>,
    call: u64,
    ordinal: usize,
}

impl Alive {
    /// Which attempt of its call it is, from 0 on.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub fn arrived(&self, arrival: Arrival) {
        self.ledger.arrived(self.call, self.ordinal, arrival);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut records = self.ledger.records.lock().unwrap();
        // Gone, if the records have been taken.
        if let Some(record) = records.get_mut((self.call - self.ledger.first) as usize) {
            record.sendings[self.ordinal].ended = Some(now);
        }
    }
}
