//! One after the other, the heavier the more often.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Candidates, Rule, memo::Memo, steady::Steady};

/// One candidate after the other, each as often as its [weight](crate::call::Endpoint::weight) says: of 1,000 picks,
/// weights of 5, 3 and 2 give 500, 300 and 200.
///
/// The turns of one endpoint are spread over the round, as in nginx's smooth round robin: weights of 3 and 1 give
/// a, a, b, a. A round is worked out when the set has changed, and a pick looks at one endpoint. It has as many turns as
/// the weights have in sum, after their common divisor is taken out, but no more than 65,536, or than there are
/// endpoints: beyond that weights are rounded, though each endpoint keeps a turn.
///
/// [`WeightedResponseTime`](super::WeightedResponseTime) is something else: Ribbon's rule by response times.
///
/// ```
/// use tower_outbound::balance::{LoadBalanceLayer, WeightedRoundRobin};
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// let endpoints: Endpoints = [
///     Endpoint::builder("http://10.0.0.1").weight(9).build()?,
///     Endpoint::builder("http://10.0.0.2").weight(1).build()?,
/// ]
/// .into_iter()
/// .collect();
/// let layer = LoadBalanceLayer::new(endpoints).rule(WeightedRoundRobin::new());
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug, Default)]
pub struct WeightedRoundRobin {
    next: AtomicUsize,
    round: Memo<Round>,
}

/// The turns of some candidates.
#[derive(Debug)]
struct Round {
    candidates: Steady,
    /// Whose each is.
    turns: Box<[u32]>,
}

const MOST_TURNS: usize = 65_536;

impl WeightedRoundRobin {
    /// Begins with the first turn of the round.
    pub fn new() -> Self {
        WeightedRoundRobin::default()
    }

    /// Begins with the turn at this place, counted round, so that processes which start together do not go to one
    /// server first.
    pub fn starting_at(place: usize) -> Self {
        WeightedRoundRobin {
            next: AtomicUsize::new(place),
            ..WeightedRoundRobin::default()
        }
    }
}

fn weights<'a>(candidates: &Candidates<'a>) -> impl Iterator<Item = u32> + use<'a> {
    candidates.iter().map(|candidate| candidate.endpoint().weight())
}

/// Which place has each turn.
fn turns(weights: &[u32]) -> Box<[u32]> {
    let divisor = weights.iter().fold(0, |divisor, &weight| common(divisor, weight));
    let sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let most = MOST_TURNS.max(weights.len()) as u64;
    let scale = |weight: u32| {
        if sum / u64::from(divisor.max(1)) <= most {
            u64::from(weight / divisor.max(1))
        } else {
            // A share of what is left when each has one.
            let spare = most - weights.len() as u64;
            1 + (u128::from(weight) * u128::from(spare) / u128::from(sum.max(1))) as u64
        }
    };
    let mut turns: Vec<(f64, u32)> = Vec::new();
    for (&weight, place) in weights.iter().zip(0..) {
        let scaled = scale(weight);
        // Each in the middle of its part of the round.
        turns.extend((0..scaled).map(|turn| ((turn as f64 + 0.5) / scaled as f64, place)));
    }
    turns.sort_unstable_by(|(one, place), (other, second)| one.total_cmp(other).then(place.cmp(second)));
    turns.into_iter().map(|(_, place)| place).collect()
}

/// The greatest common divisor; of zero and another the other.
fn common(mut one: u32, mut other: u32) -> u32 {
    while other != 0 {
        (one, other) = (other, one.checked_rem(other).unwrap_or(0));
    }
    one
}

impl Rule for WeightedRoundRobin {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let turn = self.next.fetch_add(1, Relaxed);
        let make = || Round {
            candidates: Steady::of(candidates),
            turns: turns(&weights(candidates).collect::<Vec<_>>()),
        };
        let picked = self
            .round
            .with(candidates, make, |round| round?.pick(turn, candidates));
        picked.or_else(|| by_looking_at_all(turn, candidates))
    }
}

impl Round {
    /// Whose turn it is; if that one has gone, who is next.
    #[inline]
    fn pick(&self, turn: usize, candidates: &Candidates<'_>) -> Option<usize> {
        let turn = turn.checked_rem(self.turns.len())?;
        let (before, after) = self.turns.split_at_checked(turn)?;
        let mut turns = after.iter().chain(before);
        turns.find_map(|&number| self.candidates.index(number as usize, candidates))
    }
}

/// These are together for one pick, or another thread is about to make the round.
#[cold]
fn by_looking_at_all(turn: usize, candidates: &Candidates<'_>) -> Option<usize> {
    let sum: u64 = weights(candidates).map(u64::from).sum();
    let mut left = (turn as u64).checked_rem(sum)?;
    weights(candidates).position(|weight| {
        let is_it = left < u64::from(weight);
        left = left.saturating_sub(weight.into());
        is_it
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn turns_are_spread_over_the_round() {
        assert_eq!(*turns(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(*turns(&[5, 1, 1]), [0, 0, 0, 1, 2, 0, 0]);
        assert_eq!(*turns(&[7, 7, 7]), [0, 1, 2], "equal weights go round");
        assert_eq!(*turns(&[4, 2]), [0, 1, 0]);
        assert!(turns(&[]).is_empty());
    }

    #[test]
    fn a_round_is_no_longer_than_it_may_be_and_nobody_is_left_out() {
        let turns = turns(&[u32::MAX, 1, u32::MAX - 1]);
        assert!(turns.len() <= MOST_TURNS, "{}", turns.len());
        let count = |place| turns.iter().filter(|&&turn| turn == place).count();
        assert_eq!(count(1), 1);
        assert!(count(0).abs_diff(count(2)) <= 1);
        let many = vec![1_000_003; 70_000];
        assert_eq!(super::turns(&many).len(), 70_000);
    }

    proptest! {
        #[test]
        fn each_has_as_many_turns_as_its_weight_says(weights in prop::collection::vec(1..50_u32, 1..20)) {
            let turns = turns(&weights);
            let sum: u32 = weights.iter().sum();
            for (&weight, place) in weights.iter().zip(0..) {
                let count = turns.iter().filter(|&&turn| turn == place).count() as u64;
                prop_assert_eq!(count * u64::from(sum), u64::from(weight) * turns.len() as u64);
            }
        }
    }
}
