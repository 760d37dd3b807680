//! Several probes at once, whose outcomes decide together.

use super::{
    sync::{AtomicU64, SeqCst},
    word::{State, Word},
};

/// The probes of a half-open circuit that lets more than one go out.
///
/// There is a place for each. It holds the word that its probe was admitted under and, once that has ended, the same
/// word with the state `Closed` for a success or `Open` for a failure. A round of probes begins with the word of the
/// circuit; what is of another generation or older than the round is an empty place, so a new round is begun without
/// a write. Two probes with equal words have equal leases, so it does not matter whose place is whose.
#[derive(Debug)]
pub(super) struct Probes {
    /// None where there is but one probe: the word of the circuit says all of it.
    places: Box<[AtomicU64]>,
    /// How many of them must succeed.
    needed: AtomicU64,
}

/// How the probes of a round have ended so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) successes: u64,
    pub(super) failures: u64,
}

impl Probes {
    pub(super) fn new(probes: u32, success_percent: u32) -> Self {
        let places = if probes > 1 { probes } else { 0 };
        let probes = Probes {
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
            needed: AtomicU64::new(0),
        };
        probes.set(success_percent);
        probes
    }

    pub(super) fn set(&self, success_percent: u32) {
        let all = self.places.len() as u64;
        let needed = (all * u64::from(success_percent)).div_ceil(100);
        self.needed.store(needed.clamp(1, all.max(1)), SeqCst);
    }

    #[inline]
    pub(super) fn are_many(&self) -> bool {
        !self.places.is_empty()
    }

    /// Can a probe go out in the round of this word? `left` tells what is left of the lease of a probe.
    pub(super) fn have_room(&self, round: Word, left: impl Fn(Word) -> u64) -> bool {
        self.places
            .iter()
            .any(|place| is_free(Word(place.load(SeqCst)), round, &left))
    }

    /// Takes a place in the round, if there is one: an empty one, or else that of the probe which has been out longest.
    /// `false` as well where another thread was faster.
    pub(super) fn take(&self, probe: Word, round: Word, left: impl Fn(Word) -> u64) -> bool {
        let free = self.places.iter().filter_map(|place| {
            let held = Word(place.load(SeqCst));
            is_free(held, round, &left).then_some((place, held))
        });
        let chosen = free.min_by_key(|(_, held)| (is_of(*held, round), held.time()));
        chosen.is_some_and(|(place, held)| place.compare_exchange(held.0, probe.0, SeqCst, SeqCst).is_ok())
    }

    /// Gives the place of this probe back. `false`: it has none any more.
    pub(super) fn give_back(&self, probe: Word) -> bool {
        self.replace(probe, Word(0))
    }

    /// Notes how this probe ended. `false`: its place is another's by now.
    pub(super) fn note(&self, probe: Word, succeeded: bool) -> bool {
        let state = if succeeded { State::Closed } else { State::Open };
        self.replace(probe, Word::new(state, probe.generation(), probe.time(), 0))
    }

    fn replace(&self, probe: Word, with: Word) -> bool {
        self.places.iter().any(|place| {
            place.load(SeqCst) == probe.0 && place.compare_exchange(probe.0, with.0, SeqCst, SeqCst).is_ok()
        })
    }

    /// The outcomes of a round.
    pub(super) fn tally(&self, round: Word) -> Tally {
        let mut tally = Tally {
            successes: 0,
            failures: 0,
        };
        for place in &self.places {
            let held = Word(place.load(SeqCst));
            match held.state() {
                _ if !is_of(held, round) => {}
                State::Closed => tally.successes += 1,
                State::Open => tally.failures += 1,
                State::Probing | State::Vacant => {}
            }
        }
        tally
    }

    /// What so many outcomes say, whatever the others will be. `None`: it is still open.
    pub(super) fn decision(&self, tally: Tally) -> Option<bool> {
        let needed = self.needed.load(SeqCst);
        let may_fail = self.places.len() as u64 - needed;
        if tally.successes >= needed {
            Some(true)
        } else {
            (tally.failures > may_fail).then_some(false)
        }
    }
}

fn is_of(held: Word, round: Word) -> bool {
    held.generation() == round.generation() && held.time() >= round.time()
}

fn is_free(held: Word, round: Word, left: impl Fn(Word) -> u64) -> bool {
    !is_of(held, round) || held.state() == State::Probing && left(held) == 0
}
