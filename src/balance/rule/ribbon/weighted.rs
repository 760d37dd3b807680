//! The faster, the more often.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use arc_swap::ArcSwapOption;
use tokio::time::{Duration, Instant};

use super::{
    super::{Candidates, Rule, dice::Dice},
    RibbonRoundRobin, is_alive,
};

/// Draws an endpoint, those with shorter response times more often (Ribbon's `WeightedResponseTimeRule`).
///
/// The weight of an endpoint is the sum of all [mean response times](super::super::super::Figures::response_time_mean)
/// without its own: means of 10, 40, 80 and 100 ms give 220, 190, 150 and 130. One that has answered nothing yet has the
/// greatest weight. The more endpoints there are, the less the weights differ. They are worked out at the first pick, when
/// 30 s have passed since the last time, and when the set has changed; nothing runs in between. As long as there is
/// nothing to tell them apart by, as with one endpoint, it goes round as [`RibbonRoundRobin`] does.
///
/// Tripped endpoints are picked, those with a veto are not. Where nothing but endpoints of weight zero is left, Ribbon
/// draws for ever; here it goes round.
#[derive(Debug, Default)]
pub struct WeightedResponseTime {
    inner: RibbonRoundRobin,
    dice: Dice,
    weights: ArcSwapOption<Weights>,
    weighing: AtomicBool,
}

const INTERVAL: Duration = Duration::from_secs(30);
/// In milliseconds: less than this in all is nothing.
const LEAST: f64 = 0.001;

#[derive(Debug)]
struct Weights {
    /// Which state of which set they are of, and when they were worked out.
    roster: u64,
    at: Instant,
    /// For each endpoint its weight and those of all before it.
    sums: Box<[f64]>,
}

impl Weights {
    fn of(candidates: &Candidates<'_>) -> Self {
        let mean = |index| {
            let mean = candidates
                .get(index)
                .map(|candidate| candidate.figures().response_time_mean());
            mean.unwrap_or_default().as_secs_f64() * 1_000.0
        };
        let mut sums: Box<[f64]> = (0..candidates.len()).map(mean).collect();
        let total: f64 = sums.iter().sum();
        let mut so_far = 0.0;
        for sum in &mut sums {
            so_far += total - *sum;
            *sum = so_far;
        }
        Weights {
            roster: candidates.roster_id(),
            at: candidates.now(),
            sums,
        }
    }

    fn are_of(&self, candidates: &Candidates<'_>) -> bool {
        self.roster == candidates.roster_id() && self.sums.len() == candidates.len()
    }

    fn draw(&self, dice: &Dice) -> Option<usize> {
        let total = self.sums.last().copied().filter(|&total| total >= LEAST)?;
        let drawn = dice.fraction() * total;
        Some(self.sums.partition_point(|&sum| sum < drawn))
    }

    /// The same as drawing until one is alive.
    fn draw_alive(&self, dice: &Dice, candidates: &Candidates<'_>) -> Option<usize> {
        let alive = || {
            let mut before = 0.0;
            let weights = self
                .sums
                .iter()
                .map(move |&sum| sum - std::mem::replace(&mut before, sum));
            weights
                .zip(candidates.iter())
                .enumerate()
                .filter(|&(_, (_, candidate))| is_alive(candidate))
                .map(|(index, (weight, _))| (index, weight))
        };
        let total: f64 = alive().map(|(_, weight)| weight).sum();
        if total < LEAST {
            return None;
        }
        let mut left = dice.fraction() * total;
        let mut last = None;
        for (index, weight) in alive().filter(|&(_, weight)| weight > 0.0) {
            last = Some(index);
            if left <= weight {
                break;
            }
            left -= weight;
        }
        last
    }
}

impl WeightedResponseTime {
    /// With the random numbers of the thread that picks.
    pub fn new() -> Self {
        WeightedResponseTime::default()
    }

    /// With a sequence that this seed determines, for tests: it is shared by all threads.
    pub fn seeded(seed: u64) -> Self {
        WeightedResponseTime {
            dice: Dice::seeded(seed),
            ..WeightedResponseTime::default()
        }
    }

    fn draw(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let mut weights = self.weights.load();
        let is_due = weights.as_ref().is_none_or(|weights| {
            !weights.are_of(candidates) || candidates.now().saturating_duration_since(weights.at) >= INTERVAL
        });
        if is_due && self.weigh(candidates) {
            weights = self.weights.load();
        }
        let weights = weights.as_ref().filter(|weights| weights.are_of(candidates))?;
        let index = weights.draw(&self.dice)?;
        if candidates.get(index).is_some_and(is_alive) {
            return Some(index);
        }
        weights.draw_alive(&self.dice, candidates)
    }

    /// Whoever comes first does it; the others go by what there is.
    #[cold]
    fn weigh(&self, candidates: &Candidates<'_>) -> bool {
        if self.weighing.swap(true, Acquire) {
            return false;
        }
        self.weights
            .store(Some(std::sync::Arc::new(Weights::of(candidates))));
        self.weighing.store(false, Release);
        true
    }
}

impl Rule for WeightedResponseTime {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        self.draw(candidates).or_else(|| self.inner.pick(candidates))
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}
