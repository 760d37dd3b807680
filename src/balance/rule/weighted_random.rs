//! Any one, the heavier the more often.

use super::{Candidates, Rule, dice::Dice, memo::Memo, steady::Steady};

/// Any candidate, each as likely as its [weight](crate::call::Endpoint::weight) says.
///
/// Over few calls it is less even than [`WeightedRoundRobin`](super::WeightedRoundRobin), but callers that start together, or
/// that make few calls each, do not walk in step. A table is worked out when the set has changed, and a pick looks at two
/// endpoints of it (Vose, "A Linear Algorithm for Generating Random Numbers with a Given Distribution", 1991).
///
/// ```
/// use tower_outbound::balance::{LoadBalanceLayer, WeightedRandom};
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// let endpoints: Endpoints = [
///     Endpoint::builder("http://10.0.0.1").weight(9).build()?,
///     Endpoint::builder("http://10.0.0.2").weight(1).build()?,
/// ]
/// .into_iter()
/// .collect();
/// let layer = LoadBalanceLayer::new(endpoints).rule(WeightedRandom::new());
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug, Default)]
pub struct WeightedRandom {
    dice: Dice,
    table: Memo<Table>,
}

#[derive(Debug)]
struct Table {
    candidates: Steady,
    columns: Box<[Column]>,
}

/// If one has gone it is drawn again.
const DRAWS: usize = 8;

/// One of as many as there are endpoints, each as likely as another.
#[derive(Debug, Clone, Copy)]
struct Column {
    /// How likely it is its own endpoint.
    own: f64,
    /// Whose it is otherwise.
    other: u32,
}

impl WeightedRandom {
    /// With the random numbers of the thread that picks.
    pub fn new() -> Self {
        WeightedRandom::default()
    }

    /// With a sequence that this seed determines, for tests: it is shared by all threads.
    pub fn seeded(seed: u64) -> Self {
        WeightedRandom {
            dice: Dice::seeded(seed),
            ..WeightedRandom::default()
        }
    }

    fn draw(&self, table: &Table, candidates: &Candidates<'_>) -> Option<usize> {
        (0..DRAWS).find_map(|_| {
            let column = self.dice.below(table.columns.len().max(1));
            let Column { own, other } = *table.columns.get(column)?;
            // Most sets have equal weights.
            let is_own = own >= 1.0 || self.dice.fraction() < own;
            table
                .candidates
                .index(if is_own { column } else { other as usize }, candidates)
        })
    }
}

impl Table {
    fn of(candidates: &Candidates<'_>) -> Self {
        let weights = candidates.iter().map(|candidate| candidate.endpoint().weight());
        Table {
            columns: columns(&weights.collect::<Vec<_>>()),
            candidates: Steady::of(candidates),
        }
    }
}

fn columns(weights: &[u32]) -> Box<[Column]> {
    let n = weights.len() as f64;
    let sum: f64 = weights.iter().copied().map(f64::from).sum();
    let mut columns: Box<[Column]> = weights
        .iter()
        .zip(0..)
        .map(|(&weight, other)| Column {
            own: f64::from(weight) * n / sum,
            other,
        })
        .collect();
    // What is missing in one column is filled by one that has too much, which may then miss something itself.
    let (mut low, mut high): (Vec<usize>, Vec<usize>) =
        (0..columns.len()).partition(|&index| columns.get(index).is_some_and(|column| column.own < 1.0));
    while let (Some(less), Some(&more)) = (low.pop(), high.last()) {
        let Some(column) = columns.get_mut(less) else {
            continue;
        };
        let missing = 1.0 - column.own;
        column.other = more as u32;
        if let Some(column) = columns.get_mut(more) {
            column.own -= missing;
            if column.own < 1.0 {
                high.pop();
                low.push(more);
            }
        }
    }
    columns
}

impl Rule for WeightedRandom {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        if candidates.len() < 2 {
            return Some(0);
        }
        let make = || Table::of(candidates);
        let drawn = self
            .table
            .with(candidates, make, |table| self.draw(table?, candidates));
        drawn.or_else(|| self.draw(&Table::of(candidates), candidates))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_is_as_likely_as_its_weight_says(weights in prop::collection::vec(1..1_000_u32, 1..50)) {
            let columns = columns(&weights);
            let n = weights.len() as f64;
            let sum: f64 = weights.iter().copied().map(f64::from).sum();
            let mut likely = vec![0.0; weights.len()];
            for (index, column) in columns.iter().enumerate() {
                let own = column.own.min(1.0);
                likely[index] += own / n;
                likely[column.other as usize] += (1.0 - own) / n;
            }
            for (&weight, likely) in weights.iter().zip(likely) {
                prop_assert!((f64::from(weight) / sum - likely).abs() < 1e-9);
            }
        }
    }
}
