//! A zone first, then an endpoint of it.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use tokio::time::Duration;

use super::{
    super::{Candidates, Rule, dice::Dice},
    zones::Survey,
};

/// Chooses a zone first where one is bad, and then an endpoint of it by a rule (Ribbon's `ZoneAwareLoadBalancer`, which
/// Spring has before every rule).
///
/// Which zones are bad is told at [`ZoneAvoidance`](super::ZoneAvoidance). If one is, one of the others is drawn, by
/// the numbers of their endpoints, and a rule of its own, made by the closure, chooses among its endpoints. If none is
/// bad, or all are, or that rule chooses none, one more rule chooses among all endpoints. Endpoints without a zone are in
/// one together; with fewer than two zones it does nothing.
///
/// ```
/// use tower_outbound::balance::{LoadBalanceLayer, ZoneAvoidance, ZoneAware};
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// let endpoints: Endpoints = [
///     Endpoint::builder("http://10.0.0.1").zone("a").build()?,
///     Endpoint::builder("http://10.0.0.2").zone("b").build()?,
/// ]
/// .into_iter()
/// .collect();
/// let layer = LoadBalanceLayer::new(endpoints).rule(ZoneAware::new(ZoneAvoidance::new));
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct ZoneAware<R> {
    make: Box<dyn Fn() -> R + Send + Sync>,
    all: R,
    /// For each zone that has been chosen and is still there.
    zones: ArcSwap<Vec<ZoneRule<R>>>,
    dice: Dice,
}

struct ZoneRule<R> {
    zone: Option<Box<str>>,
    rule: Arc<R>,
}

impl<R: Rule> ZoneAware<R> {
    /// With rules that are made by this closure, for each zone one.
    pub fn new(make: impl Fn() -> R + Send + Sync + 'static) -> Self {
        ZoneAware {
            all: make(),
            make: Box::new(make),
            zones: ArcSwap::default(),
            dice: Dice::default(),
        }
    }

    /// With draws that this seed determines, for tests: they are shared by all threads.
    pub fn seeded(seed: u64, make: impl Fn() -> R + Send + Sync + 'static) -> Self {
        ZoneAware {
            dice: Dice::seeded(seed),
            ..ZoneAware::new(make)
        }
    }

    fn pick_in(&self, zone: usize, candidates: &Candidates<'_>) -> Option<usize> {
        if candidates.are_all() {
            let places = candidates.zones().get(zone)?;
            return places.get(self.pick_at(places, candidates)?).copied();
        }
        // A rule that does not choose alone, after some have been left out.
        let in_zone = candidates.iter().enumerate();
        let in_zone = in_zone.filter(|(_, candidate)| candidate.zone() == zone);
        let (indexes, places): (Vec<_>, Vec<_>) = in_zone
            .filter_map(|(index, _)| Some((index, candidates.place(index)?)))
            .unzip();
        indexes.get(self.pick_at(&places, candidates)?).copied()
    }

    /// Which of these, which are the candidates in one zone.
    fn pick_at(&self, places: &[usize], candidates: &Candidates<'_>) -> Option<usize> {
        let within = candidates.at(places);
        let name = within.get(0)?.endpoint().zone();
        let pick = |zones: &[ZoneRule<R>]| {
            let found = zones.iter().find(|known| is_same(known.zone.as_deref(), name));
            found.map(|found| found.rule.pick(&within))
        };
        let picked = pick(&self.zones.load()).or_else(|| {
            self.add(name, candidates);
            pick(&self.zones.load())
        });
        picked??.checked_rem(places.len())
    }

    #[cold]
    fn add(&self, name: Option<&str>, candidates: &Candidates<'_>) {
        let rule = Arc::new((self.make)());
        self.zones.rcu(|zones| {
            let is_there = |zone: Option<&str>| {
                candidates
                    .iter()
                    .any(|candidate| is_same(candidate.endpoint().zone(), zone))
            };
            let mut zones: Vec<_> = zones
                .iter()
                .filter(|known| is_there(known.zone.as_deref()))
                .cloned()
                .collect();
            // Another thread may have been faster.
            if !zones.iter().any(|known| is_same(known.zone.as_deref(), name)) {
                zones.push(ZoneRule {
                    zone: name.map(Box::from),
                    rule: rule.clone(),
                });
            }
            zones
        });
    }
}

fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
        (one, other) => one == other,
    }
}

impl<R: Rule> Rule for ZoneAware<R> {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        Survey::of(candidates, &self.dice)
            .filter(Survey::has_dropped)
            .and_then(|survey| survey.draw_one_left(&self.dice))
            .and_then(|zone| self.pick_in(zone, candidates))
            .or_else(|| self.all.pick(candidates))
    }

    fn chooses_alone(&self) -> bool {
        self.all.chooses_alone()
    }

    fn decay(&self) -> Duration {
        self.all.decay()
    }
}

impl<R> Clone for ZoneRule<R> {
    fn clone(&self) -> Self {
        ZoneRule {
            zone: self.zone.clone(),
            rule: self.rule.clone(),
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for ZoneAware<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneAware")
            .field("rule", &self.all)
            .finish_non_exhaustive()
    }
}
