//! The last outcomes, however old.

use super::{
    judge::Figures,
    run::is_later,
    sync::{AtomicU64, SeqCst},
};

const GENERATION: u32 = 48;
const BELOW: u64 = (1 << GENERATION) - 1;
const SLOW: u32 = 24;
const SUM_MASK: u64 = (1 << SLOW) - 1;

/// In a place: there is an outcome.
const TAKEN: u64 = 1;
const FAILED: u64 = 2;
const TOOK_LONG: u64 = 4;

/// A ring of the last outcomes, with their sums beside it. All its words carry their generation in the upper 16 bits; one
/// of another generation is empty, so a circuit that has closed begins anew without a write.
///
/// An outcome takes the place of the one that many outcomes before it, and the sums go by what was really there, so they
/// are those of the ring whichever thread is held up. All is sequentially consistent: of outcomes that end at the same
/// moment, the last one to be counted sees all.
#[derive(Debug)]
pub(super) struct Last {
    places: Box<[AtomicU64]>,
    /// How many outcomes there were in this generation.
    count: AtomicU64,
    /// `failures: 24 | slow: 24`, each modulo its range.
    sums: AtomicU64,
}

impl Last {
    pub(super) fn new(length: u32) -> Self {
        Last {
            places: (0..length).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            sums: AtomicU64::new(0),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.places.len() as u64
    }

    /// Adds an outcome, and tells what the ring holds then. `None`: its generation is over.
    pub(super) fn add(&self, generation: u16, failed: bool, slow: bool) -> Option<Figures> {
        let stamp = u64::from(generation) << GENERATION;
        let counted = renew(&self.count, generation, |count| count + 1)?;
        let outcome = TAKEN | if failed { FAILED } else { 0 } | if slow { TOOK_LONG } else { 0 };
        let position = (counted & BELOW).wrapping_sub(1).checked_rem(self.length())?;
        let before = self.places.get(position as usize)?.swap(stamp | outcome, SeqCst);
        if is_later(before >> GENERATION, generation) {
            // The generation ended while this thread was held up: what came since stays.
            let place = self.places.get(position as usize)?;
            if place
                .compare_exchange(stamp | outcome, before, SeqCst, SeqCst)
                .is_err()
            {
                self.book((before >> GENERATION) as u16, 0, before);
            }
            return None;
        }
        let gone = if before & !BELOW == stamp { before } else { 0 };
        self.book(generation, outcome, gone)?;
        self.figures(generation)
    }

    /// One outcome has come into the ring, and another has left it. A thread may book that one has left before another
    /// books that it came, so a sum may be below zero for a moment.
    fn book(&self, generation: u16, come: u64, gone: u64) -> Option<u64> {
        renew(&self.sums, generation, |sums| {
            let sum = |at: u32, which| {
                (sums >> at)
                    .wrapping_add(flag(come, which))
                    .wrapping_sub(flag(gone, which))
                    & SUM_MASK
            };
            sum(SLOW, FAILED) << SLOW | sum(0, TOOK_LONG)
        })
    }

    /// What the ring holds. `None`: that generation is over, or has not begun.
    pub(super) fn figures(&self, generation: u16) -> Option<Figures> {
        let of = |word: &AtomicU64| {
            let seen = word.load(SeqCst);
            (seen >> GENERATION == u64::from(generation)).then_some(seen & BELOW)
        };
        let sums = of(&self.sums)?;
        let total = of(&self.count)?.min(self.length());
        let sum = |at: u32| match sums >> at & SUM_MASK {
            below_zero if below_zero > SUM_MASK / 2 => 0,
            sum => sum.min(total),
        };
        let failures = sum(SLOW);
        Some(Figures {
            successes: total - failures,
            failures,
            slow: sum(0),
        })
    }
}

fn flag(outcome: u64, flag: u64) -> u64 {
    u64::from(outcome & flag != 0)
}

/// Changes what a word of this generation holds, which is 0 where it is of an earlier one. The word that it becomes.
fn renew(word: &AtomicU64, generation: u16, next: impl Fn(u64) -> u64) -> Option<u64> {
    let stamp = u64::from(generation) << GENERATION;
    let mut seen = word.load(SeqCst);
    loop {
        let held = if seen & !BELOW == stamp {
            seen & BELOW
        } else if is_later(seen >> GENERATION, generation) {
            return None;
        } else {
            0
        };
        let new = stamp | next(held) & BELOW;
        match word.compare_exchange_weak(seen, new, SeqCst, SeqCst) {
            Ok(_) => return Some(new),
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;

    fn add(last: &Last, generation: u16, failed: bool, slow: bool) -> Option<(u64, u64, u64)> {
        last.add(generation, failed, slow)
            .map(|figures| (figures.successes, figures.failures, figures.slow))
    }

    #[test]
    fn an_outcome_leaves_when_as_many_came_after_it_as_the_ring_is_long() {
        let last = Last::new(3);
        assert_eq!(add(&last, 0, true, false), Some((0, 1, 0)));
        assert_eq!(add(&last, 0, false, true), Some((1, 1, 1)));
        assert_eq!(add(&last, 0, false, false), Some((2, 1, 1)));
        assert_eq!(add(&last, 0, false, false), Some((3, 0, 1)));
        assert_eq!(add(&last, 0, false, false), Some((3, 0, 0)));
    }

    #[test]
    fn a_new_generation_begins_with_an_empty_ring_and_a_late_thread_does_it_no_harm() {
        let last = Last::new(2);
        for _ in 0..5 {
            add(&last, 7, true, true);
        }
        assert_eq!(last.figures(8), None);
        assert_eq!(add(&last, 8, false, false), Some((1, 0, 0)));
        assert_eq!(add(&last, 7, true, true), None);
        assert_eq!(add(&last, 8, true, false), Some((1, 1, 0)));
        assert_eq!(add(&last, 8, true, false), Some((0, 2, 0)));
    }

    #[test]
    fn a_thread_that_was_held_up_puts_back_what_a_later_generation_has_left_in_its_place() {
        let last = Last::new(1);
        add(&last, 7, false, false);
        // Taken by the next generation after this one was counted.
        let later = 8 << GENERATION | TAKEN | FAILED;
        last.places[0].store(later, SeqCst);
        assert_eq!(add(&last, 7, false, false), None);
        assert_eq!(last.places[0].load(SeqCst), later);
        // One of an earlier generation makes place.
        last.places[0].store(6 << GENERATION | TAKEN | FAILED, SeqCst);
        assert_eq!(add(&last, 7, false, false), Some((1, 0, 0)));
    }

    #[test]
    fn a_failure_that_is_booked_as_gone_before_it_is_booked_as_come_is_no_failure() {
        let last = Last::new(2);
        add(&last, 0, false, false);
        last.book(0, 0, TAKEN | FAILED);
        assert_eq!(last.figures(0).map(|figures| figures.failures), Some(0));
        last.book(0, TAKEN | FAILED, 0);
        assert_eq!(add(&last, 0, true, false), Some((1, 1, 0)));
    }

    #[test]
    fn the_sums_of_many_threads_are_those_of_the_ring() {
        let last = Last::new(7);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let last = &last;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        last.add(3, (n + thread) % 3 == 0, (n + thread) % 5 == 1);
                    }
                });
            }
        });
        let held: Vec<u64> = last.places.iter().map(|place| place.load(SeqCst)).collect();
        let sum = |which| held.iter().filter(|outcome| **outcome & which != 0).count() as u64;
        let figures = last.figures(3).unwrap();
        assert_eq!((figures.failures, figures.slow), (sum(FAILED), sum(TOOK_LONG)));
        assert_eq!(figures.successes + figures.failures, 7);
    }
}
