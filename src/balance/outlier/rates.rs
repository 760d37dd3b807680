//! Comparing what endpoints have done in an interval.

use super::{EjectionCause, OutlierEjection};

/// What an endpoint has done in an interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    pub(super) successes: u64,
    pub(super) failures: u64,
}

impl Rate {
    fn total(self) -> u64 {
        self.successes + self.failures
    }

    fn success(self) -> f64 {
        self.successes as f64 / self.total() as f64
    }
}

/// The ones that stand out, the worst first, in a set of this size.
pub(super) fn outliers(
    settings: &OutlierEjection,
    size: usize,
    rates: &[Rate],
) -> Vec<(usize, EjectionCause)> {
    let bound = lowest(settings, rates);
    let percent = settings
        .failure_percentage
        .filter(|_| size >= settings.percentage_volume.endpoints as usize);
    let cause = |rate: Rate| {
        let Rate { successes, failures } = rate;
        let enough = |requests: u32| rate.total() >= u64::from(requests);
        let is_low = |bound: &f64| enough(settings.rate_volume.requests) && rate.success() < *bound;
        let is_high = |percent: &f64| {
            enough(settings.percentage_volume.requests)
                && failures as f64 * 100.0 >= percent * rate.total() as f64
        };
        if bound.as_ref().is_some_and(is_low) {
            Some(EjectionCause::SuccessRate { successes, failures })
        } else if percent.as_ref().is_some_and(is_high) {
            Some(EjectionCause::FailurePercentage { successes, failures })
        } else {
            None
        }
    };
    let mut found: Vec<(usize, EjectionCause)> = rates
        .iter()
        .enumerate()
        .filter_map(|(index, &rate)| Some((index, cause(rate)?)))
        .collect();
    let success = |index: usize| rates.get(index).map_or(1.0, |rate| rate.success());
    found.sort_by(|&(left, _), &(right, _)| success(left).total_cmp(&success(right)));
    found
}

/// The success rate below which one stands out. `None`: there is too little to compare.
fn lowest(settings: &OutlierEjection, rates: &[Rate]) -> Option<f64> {
    let deviations = settings.success_rate?;
    let volume = settings.rate_volume;
    let shares = || {
        let known = rates
            .iter()
            .filter(|rate| rate.total() >= u64::from(volume.requests));
        known.map(|rate| rate.success())
    };
    let n = shares().count();
    if n < volume.endpoints as usize {
        return None;
    }
    let mean = shares().sum::<f64>() / n as f64;
    let variance = shares().map(|share| (share - mean) * (share - mean)).sum::<f64>() / n as f64;
    Some(mean - deviations * variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(successes: u64, failures: u64) -> Rate {
        Rate { successes, failures }
    }

    fn found(settings: &OutlierEjection, size: usize, rates: &[Rate]) -> Vec<usize> {
        outliers(settings, size, rates)
            .into_iter()
            .map(|(index, _)| index)
            .collect()
    }

    #[test]
    fn a_success_rate_stands_out_below_the_mean_less_so_many_deviations() {
        let default = OutlierEjection::default();
        // Mean 0.98, deviation 0.04: 0.904.
        let mut rates = vec![rate(100, 0); 4];
        rates.push(rate(90, 10));
        assert_eq!(found(&default, 5, &rates), [4]);
        // Mean 0.95, deviation 0.05: 0.855.
        let rates = [
            rate(100, 0),
            rate(90, 10),
            rate(100, 0),
            rate(90, 10),
            rate(90, 10),
            rate(100, 0),
        ];
        assert!(found(&default, 6, &rates).is_empty());
        assert!(found(&default, 5, &[rate(0, 100); 5]).is_empty(), "all alike");
    }

    #[test]
    fn too_few_attempts_and_too_few_endpoints_say_nothing() {
        let default = OutlierEjection::default();
        let mut rates = vec![rate(100, 0); 4];
        rates.push(rate(0, 99));
        assert!(found(&default, 5, &rates).is_empty(), "99 attempts");
        rates[4] = rate(0, 100);
        assert_eq!(found(&default, 5, &rates), [4]);
        rates.remove(0);
        assert!(found(&default, 5, &rates).is_empty(), "four endpoints");
    }

    #[test]
    fn a_failure_percentage_is_looked_at_alone_and_the_worst_come_first() {
        let settings = OutlierEjection::builder()
            .no_success_rate()
            .failure_percentage(85.0);
        let settings = settings.build().unwrap();
        let rates = [rate(50, 0), rate(15, 85), rate(16, 84), rate(0, 49), rate(1, 60)];
        let found = outliers(&settings, 5, &rates);
        let causes = [
            (
                4,
                EjectionCause::FailurePercentage {
                    successes: 1,
                    failures: 60,
                },
            ),
            (
                1,
                EjectionCause::FailurePercentage {
                    successes: 15,
                    failures: 85,
                },
            ),
        ];
        assert_eq!(found, causes);
        assert!(outliers(&settings, 4, &rates).is_empty(), "a set of four");
    }
}
