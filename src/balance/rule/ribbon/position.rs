//! Where a rotation stands.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::super::{Candidate, Candidates};

/// A place in a list whose length may change. Like Ribbon's it is kept within the length that it was last used with.
#[derive(Debug, Default)]
pub(super) struct Position(AtomicUsize);

impl Position {
    /// One further in a list of `n`, which are not none: where it stands now.
    pub(super) fn step(&self, n: usize) -> usize {
        let next = |place: usize| (place.wrapping_add(1)).checked_rem(n);
        let before = self.0.fetch_update(Relaxed, Relaxed, next).unwrap_or(0);
        next(before).unwrap_or(0)
    }

    /// Where it stands, if that is within a list of `n`, which are not none; it goes one further. A place beyond the
    /// list is stepped over.
    fn take(&self, n: usize) -> usize {
        loop {
            let place = self.0.load(Relaxed);
            let next = (place.wrapping_add(1)).checked_rem(n).unwrap_or(0);
            let moved = self.0.compare_exchange_weak(place, next, Relaxed, Relaxed);
            if moved.is_ok() && place < n {
                return place;
            }
        }
    }

    /// The one whose turn it is among the wanted: the place counts those alone. None: nothing is wanted.
    pub(super) fn among(
        &self,
        candidates: &Candidates<'_>,
        wanted: impl Fn(Candidate<'_>) -> bool,
    ) -> Option<usize> {
        let n = candidates.iter().filter(|&candidate| wanted(candidate)).count();
        if n == 0 {
            return None;
        }
        let turn = self.take(n);
        if n == candidates.len() {
            return Some(turn);
        }
        // What is wanted may have changed since it was counted: then the last one that still is.
        let mut wanted = candidates
            .iter()
            .enumerate()
            .filter(|&(_, candidate)| wanted(candidate))
            .map(|(index, _)| index);
        let mut last = None;
        for index in wanted.by_ref().take(turn + 1) {
            last = Some(index);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepping_goes_first_and_then_takes() {
        let position = Position::default();
        let steps: Vec<_> = (0..5).map(|_| position.step(3)).collect();
        assert_eq!(steps, [1, 2, 0, 1, 2]);
        assert_eq!(position.step(2), 1, "3 is odd, so that it is 1 of 2");
        assert_eq!(position.step(1), 0);
    }

    #[test]
    fn taking_goes_on_from_where_it_stands_and_steps_over_what_is_beyond_the_list() {
        let position = Position::default();
        let taken: Vec<_> = (0..5).map(|_| position.take(3)).collect();
        assert_eq!(taken, [0, 1, 2, 0, 1]);
        assert_eq!(
            position.take(2),
            1,
            "2 is beyond the list: it is stepped over, to 1"
        );
    }
}
