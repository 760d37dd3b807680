//! The outcomes of the last while, by the health tick that ends their interval.

use std::ops::Range;

use super::super::{
    figures::Health,
    sync::{AtomicU64, Relaxed, SeqCst},
    window::{COUNT, COUNT_MASK, ROUND, ROUND_MASK, Totals, count, stamp},
};

const IN_LINE: usize = 16;

/// How far a bucket may be ahead of a thread that was held up: hours with the defaults, and seconds where buckets are
/// few and of a millisecond.
const ROUNDS_AHEAD: u64 = 4096;
const GENERATIONS_AHEAD: u64 = 64;

/// Aligned so that two rows share no cache line, nor the pair of lines that is fetched at once.
#[derive(Debug)]
#[repr(align(128))]
struct Line([AtomicU64; IN_LINE]);

#[derive(Debug)]
#[repr(align(128))]
struct Apart(Totals);

/// Buckets of one interval each, numbered from the beginning of their generation: bucket `n` ends with tick `n + 1`,
/// so tick `t` shows the buckets from `t - length` to `t - 1`.
///
/// There is a place for each bucket that a tick shows and for the running one. As in the default window a bucket
/// carries its generation and round, so that time and a new generation empty it without a write.
#[derive(Debug)]
pub(super) struct Ticks {
    /// How many buckets a tick shows.
    length: u64,
    places: u64,
    lines_in_row: usize,
    /// A row of failures, which are rare or a sign of trouble; then a row of successes for each lane.
    lines: Box<[Line]>,
    totals: Box<[Apart]>,
}

/// What some buckets hold; not whole if one of them has made place for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) health: Health,
    pub(super) whole: bool,
}

impl Ticks {
    pub(super) fn new(length: u64, lanes: usize) -> Self {
        let places = length + 1;
        let lines_in_row = places.div_ceil(IN_LINE as u64) as usize;
        Ticks {
            length,
            places,
            lines_in_row,
            lines: (0..lines_in_row * (1 + lanes))
                .map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            totals: (0..lanes).map(|_| Apart(Totals::default())).collect(),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The buckets that a tick shows.
    pub(super) fn shown_at(&self, tick: u64) -> Range<u64> {
        tick.saturating_sub(self.length)..tick
    }

    #[inline]
    fn place(&self, row: usize, position: u64) -> Option<&AtomicU64> {
        let position = position as usize;
        let line = self.lines.get(row * self.lines_in_row + position / IN_LINE)?;
        line.0.get(position % IN_LINE)
    }

    #[inline]
    fn add(&self, row: usize, generation: u16, bucket: u64) {
        if let Some(place) = self.place(row, bucket % self.places) {
            count(place, stamp(generation, bucket / self.places), is_ahead);
        }
    }

    #[inline]
    pub(super) fn success(&self, lane: usize, generation: u16, bucket: u64) {
        self.add(1 + lane, generation, bucket);
    }

    pub(super) fn failure(&self, generation: u16, bucket: u64) {
        self.add(0, generation, bucket);
    }

    fn sum(&self, row: usize, generation: u16, buckets: Range<u64>) -> (u64, bool) {
        let (mut sum, mut whole) = (0, true);
        let (mut position, mut round) = (buckets.start % self.places, buckets.start / self.places);
        for _ in buckets {
            let value = self.place(row, position).map_or(0, |place| place.load(SeqCst));
            let stamp = stamp(generation, round);
            if value & !COUNT_MASK == stamp {
                sum += value & COUNT_MASK;
            } else if is_ahead(value, stamp) {
                whole = false;
            }
            position += 1;
            if position == self.places {
                (position, round) = (0, round + 1);
            }
        }
        (sum, whole)
    }

    pub(super) fn failures(&self, generation: u16, buckets: Range<u64>) -> (u64, bool) {
        self.sum(0, generation, buckets)
    }

    pub(super) fn figures(&self, generation: u16, buckets: Range<u64>) -> Figures {
        let (failures, mut whole) = self.failures(generation, buckets.clone());
        let mut successes = 0;
        for lane in 0..self.totals.len() {
            let (of_lane, is_whole) = self.sum(1 + lane, generation, buckets.clone());
            successes += of_lane;
            whole &= is_whole;
        }
        let health = Health { successes, failures };
        Figures { health, whole }
    }

    pub(super) fn note(&self, lane: usize, which: impl FnOnce(&Totals) -> &AtomicU64) {
        if let Some(Apart(totals)) = self.totals.get(lane) {
            which(totals).fetch_add(1, Relaxed);
        }
    }

    pub(super) fn noted(&self, which: impl Fn(&Totals) -> &AtomicU64) -> u64 {
        self.totals
            .iter()
            .map(|Apart(totals)| which(totals).load(Relaxed))
            .sum()
    }
}

/// Is the bucket's stamp of a later generation, or of a later round of the same? Rounds begin anew with each
/// generation. Both wrap, and a bucket can lie untouched for long, so only a little ahead is ahead.
fn is_ahead(seen: u64, stamp: u64) -> bool {
    let generations = (seen >> (ROUND + COUNT)).wrapping_sub(stamp >> (ROUND + COUNT)) & 0xffff;
    let rounds = (seen >> COUNT).wrapping_sub(stamp >> COUNT) & ROUND_MASK;
    match generations {
        0 => (1..=ROUNDS_AHEAD).contains(&rounds),
        _ => generations <= GENERATIONS_AHEAD,
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;

    fn health(ticks: &Ticks, generation: u16, tick: u64) -> (u64, u64, bool) {
        let Figures { health, whole } = ticks.figures(generation, ticks.shown_at(tick));
        (health.total(), health.errors(), whole)
    }

    #[test]
    fn an_outcome_is_shown_by_as_many_ticks_as_the_window_has_buckets_from_the_end_of_its_own_on() {
        let ticks = Ticks::new(3, 2);
        ticks.success(0, 7, 4);
        ticks.success(1, 7, 4);
        assert_eq!(
            health(&ticks, 7, 4),
            (0, 0, true),
            "the running bucket is not shown"
        );
        assert_eq!(health(&ticks, 7, 5), (2, 0, true));
        ticks.success(0, 7, 5);
        ticks.failure(7, 5);
        assert_eq!(health(&ticks, 7, 6), (4, 1, true));
        assert_eq!(health(&ticks, 7, 7), (4, 1, true));
        assert_eq!(health(&ticks, 7, 8), (2, 1, true));
        assert_eq!(health(&ticks, 7, 9), (0, 0, true));
        assert_eq!(health(&ticks, 8, 6), (0, 0, true), "another generation");
    }

    #[test]
    fn a_new_generation_takes_its_places_over_although_its_rounds_begin_anew() {
        let ticks = Ticks::new(3, 1);
        ticks.failure(7, 30);
        ticks.failure(8, 2);
        assert_eq!(health(&ticks, 8, 3), (1, 1, true));
        ticks.failure(7, 30);
        assert_eq!(health(&ticks, 8, 3), (1, 1, true), "a thread that was held up");
        let ticks = Ticks::new(3, 1);
        ticks.failure(u16::MAX, 2);
        ticks.failure(0, 2);
        assert_eq!(health(&ticks, 0, 3), (1, 1, true), "generations wrap");
    }

    #[test]
    fn a_tick_whose_buckets_have_made_place_for_later_ones_is_not_whole() {
        let ticks = Ticks::new(3, 1);
        ticks.failure(7, 2);
        ticks.success(0, 7, 2);
        assert_eq!(health(&ticks, 7, 5), (2, 1, true));
        ticks.success(0, 7, 6);
        assert_eq!(health(&ticks, 7, 5), (1, 1, false));
        assert_eq!(health(&ticks, 7, 6), (0, 0, true));
        assert_eq!(health(&ticks, 7, 7), (1, 0, true));
    }
}
