//! When is a window bad enough to open the circuit?

/// Hystrix's test (`HystrixCircuitBreaker`): enough outcomes, and a share of failures that is too high. Both bounds
/// are inclusive, and the share is cut to a whole percentage first, so 100 of 201 are 49 %.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge {
    volume: u64,
    percent: u64,
}

impl Judge {
    pub(super) fn new(volume: u32, percent: u32) -> Self {
        Judge {
            volume: volume.into(),
            percent: percent.into(),
        }
    }

    /// The volume and the percentage.
    pub(super) fn bounds(&self) -> (u32, u32) {
        let bound = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX);
        (bound(self.volume), bound(self.percent))
    }

    pub(super) fn trips(&self, successes: u64, failures: u64) -> bool {
        let total = successes + failures;
        total >= self.volume && error_percent(successes, failures) >= self.percent
    }

    /// Can a window without any failure trip? Only at 0 %.
    #[inline]
    pub(super) fn trips_without_failures(&self) -> bool {
        self.percent == 0
    }

    /// With more successes than these beside them, so many failures do not trip.
    pub(super) fn most_successes(&self, failures: u64) -> u64 {
        match (failures * 100).checked_div(self.percent) {
            // A whole percentage is reached by the cut share if and only if it is by the exact one.
            Some(total) => total - failures,
            None => u64::MAX,
        }
    }
}

/// The share of failures in whole percent, cut; 0 where there is no outcome at all.
pub(super) fn error_percent(successes: u64, failures: u64) -> u64 {
    (failures * 100).checked_div(successes + failures).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_are_inclusive_and_the_share_is_cut_to_whole_percents() {
        let judge = Judge::new(20, 50);
        assert!(judge.trips(10, 10));
        assert!(!judge.trips(9, 10), "19 are below the volume");
        assert!(!judge.trips(11, 10), "47 %");
        assert!(!judge.trips(101, 100), "100 of 201 are 49 %");
        assert!(Judge::new(1, 0).trips(1, 0), "0 % opens without a failure");
        assert!(Judge::new(1, 100).trips(0, 1));
        assert!(!Judge::new(1, 100).trips(1, 1_000_000));
    }

    #[test]
    fn the_bound_on_successes_is_exact() {
        for percent in 0..=100 {
            let judge = Judge::new(1, percent);
            for failures in 1..50 {
                for successes in 0..200 {
                    assert_eq!(
                        judge.trips(successes, failures),
                        successes <= judge.most_successes(failures),
                        "{percent} % of {successes} + {failures}"
                    );
                }
            }
        }
    }
}
