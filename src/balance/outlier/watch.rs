//! What picks and ends of attempts look at: a few words for each endpoint.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use tokio::time::{Duration, Instant};

use super::{hub::Hub, rates::Rate};
use crate::{
    balance::figures::Counters,
    call::{Endpoint, Verdict},
};

/// What is watched of one endpoint. It belongs to its counters, and is there from the first pick on that finds the
/// detector switched on.
#[derive(Debug)]
pub(in crate::balance) struct Watch {
    hub: Arc<Hub>,
    /// Written under the lock of the hub alone, as are those after the tally.
    word: AtomicU32,
    /// Failures since the last success.
    row: AtomicU32,
    /// Of this interval: successes in the lower half, failures in the upper one.
    tally: AtomicU64,
    /// Ejections in a row, and all of them.
    in_a_row: AtomicU32,
    ejections: AtomicU64,
    /// When the last one was over.
    returned: AtomicU64,
}

const FAILURE: u64 = 1 << 32;

/// A round and a phase. A round begins when an endpoint is ejected and when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u32);

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is picked like any other.
    In,
    /// It is ejected, and its time is not over.
    Out,
    /// The next call is a probe.
    Free,
    /// A probe is out.
    Taken,
}

/// What an attempt was admitted as. None at all by default: its end decides nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::balance) struct Ticket {
    /// The word then. Zero: none.
    word: u32,
    /// Which probe it is. Zero: it is none.
    probe: u32,
}

/// How an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::balance) enum Outcome {
    Verdict(Verdict),
    /// It was given up after so many nanoseconds.
    GivenUp(u64),
}

/// What that says of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Well,
    Ill,
    Nothing,
}

impl Word {
    /// The zeroth round is for none.
    const FIRST: Word = Word(4);

    pub(super) fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::In,
            1 => Phase::Out,
            2 => Phase::Free,
            _ => Phase::Taken,
        }
    }

    fn round(self) -> u32 {
        self.0 >> 2
    }

    /// The same round in another phase.
    pub(super) fn now(self, phase: Phase) -> Word {
        Word(self.0 & !3 | phase as u32)
    }

    /// A new round, which begins in this phase.
    pub(super) fn next(self, phase: Phase) -> Word {
        let round = (self.round() + 1) & (u32::MAX >> 2);
        Word(round.max(1) << 2).now(phase)
    }
}

impl Ticket {
    const NONE: Ticket = Ticket { word: 0, probe: 0 };

    pub(super) fn probe(word: Word, number: u32) -> Ticket {
        Ticket {
            word: word.0,
            probe: number,
        }
    }

    pub(super) fn number(self) -> u32 {
        self.probe
    }

    /// Was it given in the round of this word?
    pub(super) fn is_of(self, word: Word) -> bool {
        Word(self.word).round() == word.round()
    }
}

impl Watch {
    pub(in crate::balance) fn new(hub: Arc<Hub>) -> Self {
        Watch {
            hub,
            word: AtomicU32::new(Word::FIRST.0),
            row: AtomicU32::new(0),
            tally: AtomicU64::new(0),
            in_a_row: AtomicU32::new(0),
            ejections: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Relaxed))
    }

    /// Under the lock of the hub. What was counted before says nothing in another round.
    pub(super) fn set(&self, word: Word) {
        if word.round() != self.word().round() {
            self.row.store(0, Relaxed);
            self.tally.store(0, Relaxed);
        }
        self.word.store(word.0, Relaxed);
    }

    /// It is ejected: the so many-th time in a row.
    pub(super) fn one_more(&self) -> u32 {
        self.ejections.fetch_add(1, Relaxed);
        let in_a_row = self.in_a_row().saturating_add(1);
        self.in_a_row.store(in_a_row, Relaxed);
        in_a_row
    }

    /// It is in again, with a new round.
    pub(super) fn come_back(&self, now: u64) {
        self.returned.store(now, Relaxed);
        self.set(self.word().next(Phase::In));
    }

    /// It was well for so many intervals.
    pub(super) fn forgive(&self, intervals: u64) {
        let in_a_row = self.in_a_row();
        if in_a_row != 0 && intervals != 0 && self.word().phase() == Phase::In {
            let left = u64::from(in_a_row).saturating_sub(intervals);
            self.in_a_row.store(u32::try_from(left).unwrap_or(0), Relaxed);
        }
    }

    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Relaxed)
    }

    pub(super) fn returned(&self) -> u64 {
        self.returned.load(Relaxed)
    }

    /// How often it has been ejected since it came into the set.
    pub(in crate::balance) fn ejections(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    pub(super) fn take_tally(&self) -> Rate {
        let tally = self.tally.swap(0, Relaxed);
        Rate {
            successes: tally & (FAILURE - 1),
            failures: tally / FAILURE,
        }
    }

    /// What the attempt that starts now is. `None`: none may start, look for another endpoint.
    #[inline]
    pub(super) fn admit(&self, endpoint: &Endpoint, now: Instant) -> Option<Ticket> {
        let word = self.word();
        if word.phase() == Phase::In {
            return Some(Ticket {
                word: word.0,
                probe: 0,
            });
        }
        self.admit_probe(word, endpoint, now)
    }

    #[cold]
    fn admit_probe(&self, word: Word, endpoint: &Endpoint, now: Instant) -> Option<Ticket> {
        match word.phase() {
            Phase::Free => self.hub.take_probe(self, now),
            // It is picked although it has a veto: that may be meant so, or the veto has come since it was chosen.
            Phase::Taken if endpoint.eligibility().is_ejected() => None,
            _ => Some(Ticket::NONE),
        }
    }

    /// An attempt has ended.
    #[inline]
    pub(in crate::balance) fn end(
        &self,
        ticket: Ticket,
        counters: &Arc<Counters>,
        endpoint: &Endpoint,
        outcome: Outcome,
        now: Instant,
    ) {
        if !ticket.is_of(self.word()) {
            return;
        }
        let sign = match outcome {
            Outcome::Verdict(Verdict::Success) => Sign::Well,
            Outcome::Verdict(Verdict::Failure) => Sign::Ill,
            Outcome::GivenUp(waited) if waited >= self.hub.abandoned_after() => Sign::Ill,
            Outcome::Verdict(Verdict::Ignored) | Outcome::GivenUp(_) => Sign::Nothing,
        };
        if ticket.probe != 0 {
            self.hub.probe_ended(self, ticket, sign, now);
            return;
        }
        match sign {
            Sign::Well => {
                self.tally.fetch_add(1, Relaxed);
                if self.row.load(Relaxed) != 0 {
                    self.row.store(0, Relaxed);
                }
            }
            Sign::Ill => {
                self.tally.fetch_add(FAILURE, Relaxed);
                let row = self.row.fetch_add(1, Relaxed).saturating_add(1);
                // If it is spared it is not asked for again at each failure.
                if row.checked_rem(self.hub.in_a_row()) == Some(0) {
                    self.hub.too_many_in_a_row(ticket, counters, endpoint, row, now);
                }
            }
            Sign::Nothing => {}
        }
    }
}

/// The longest wait, in the nanoseconds of the counters.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
