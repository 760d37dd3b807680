//! The own zone first.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use tokio::time::{Duration, Instant};

use super::{
    super::demand::Demand,
    Candidates, Rule,
    dice::Dice,
    memo::Memo,
    part::{Choice, Due, Part, count, pick, pick_of},
};
use crate::call::{ConfigError, config};

const NAME: &str = "ZoneFirst";

/// So much more than its part may go to an endpoint before others are asked to help (Envoy's overprovisioning factor).
const SPARE: f32 = 1.4;
/// The own zone keeps so much, to be seen to have recovered.
const LEAST_ADMITTED: f32 = 0.01;

/// Shows another rule the endpoints of the own zone, as long as enough of them may be picked, and sends what is too much
/// for them to the other zones. Elsewhere it is called zone-aware routing, zone preference or locality.
///
/// There is no cliff: with ten endpoints in the own zone all calls stay there as long as eight of them have no
/// [veto](crate::call::Veto), with five 70 % do, and with one 14 %, since none is to get more than 1.4 times its
/// part (Envoy's rule). What spills goes to all other endpoints alike, with or without a zone; the rule chooses among
/// them. If none of those may be picked, all calls stay. More may be asked for: a [number](ZoneFirst::at_least) of endpoints,
/// a [load](ZoneFirst::spill_above) that is not exceeded.
///
/// It knows of trouble by vetoes alone. Without [outliers](super::super::LoadBalanceLayer::outliers), probes or breakers of
/// endpoints a zone of which all servers are dead keeps all calls, and so do their retries until the call has tried all of it.
///
/// It does not know how many callers share the zone: where zones have fewer endpoints for each caller than others, say
/// what load they can bear. How many have no veto, and what is in flight, is looked at ten times a second. A pick looks
/// at as many endpoints as the rule within does. Names of zones that differ in upper and lower case alone are one.
///
/// It [chooses alone](Rule::chooses_alone): an endpoint with a veto, or that the call has tried, is passed over as long as
/// there is another one, so that a retry leaves the zone when the call has tried all of it. If the rule within chooses none
/// of the own zone, it is asked for one of the others. A set that has nothing but the own zone, or nothing of it, is
/// shown as a whole.
///
/// [`ZoneAware`](super::ZoneAware) is something else: Ribbon's way to keep out of bad zones, wherever the caller is.
///
/// ```
/// use tower_outbound::balance::{Ewma, LoadBalanceLayer, ZoneFirst};
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// let endpoints: Endpoints = [
///     Endpoint::builder("http://10.0.0.1").zone("eu-1a").build()?,
///     Endpoint::builder("http://10.0.0.2").zone("eu-1b").build()?,
/// ]
/// .into_iter()
/// .collect();
/// let layer = LoadBalanceLayer::new(endpoints).rule(ZoneFirst::new("eu-1a", Ewma::new()));
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct ZoneFirst<R> {
    zone: Box<str>,
    at_least: u32,
    most: Option<f32>,
    rule: R,
    /// The share of the calls that the load of the own zone lets stay, as `f32`.
    admitted: AtomicU32,
    /// When that is looked at; changes of the set may come more often.
    weighed: OnceLock<Due>,
    dice: Dice,
    zones: Memo<Zones>,
}

/// Those in the own zone and the others.
#[derive(Debug)]
struct Zones {
    own: Part,
    others: Part,
    look: Due,
    /// The share of the calls that stays, as `f32`; above one: not worked out yet.
    share: AtomicU32,
}

impl<R: Rule> ZoneFirst<R> {
    /// From a caller in this zone, by this rule.
    pub fn new(zone: impl Into<String>, rule: R) -> Self {
        ZoneFirst {
            zone: zone.into().into(),
            at_least: 1,
            most: None,
            rule,
            admitted: AtomicU32::new(1_f32.to_bits()),
            weighed: OnceLock::new(),
            dice: Dice::default(),
            zones: Memo::default(),
        }
    }

    /// What spills is drawn by a sequence that this seed determines, for tests: it is shared by all threads.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.dice = Dice::seeded(seed);
        self
    }

    /// So many endpoints in the own zone must be without a veto for all calls to stay there; of half as many half the calls
    /// do. Default: 1. (Ribbon: `zoneAffinity.minAvailableServers`, 2.)
    ///
    /// # Errors
    ///
    /// If it is zero.
    pub fn at_least(mut self, endpoints: u32) -> Result<Self, ConfigError> {
        self.at_least = config::at_least_one(NAME, "at_least", endpoints)?;
        Ok(self)
    }

    /// With more attempts in flight than this to each endpoint of the own zone on average, through this layer, fewer calls
    /// stay: as many as keep it there, and a hundredth at least. It takes some seconds to settle. Default: no limit.
    /// (Ribbon: `zoneAffinity.maxLoadPerServer`, 0.6.)
    ///
    /// # Errors
    ///
    /// If it is not above zero.
    pub fn spill_above(mut self, in_flight: f32) -> Result<Self, ConfigError> {
        if !(in_flight > 0.0 && in_flight.is_finite()) {
            let fix = "give a number above 0";
            return Err(ConfigError::new(NAME, "spill_above", in_flight, fix));
        }
        self.most = Some(in_flight);
        Ok(self)
    }

    fn sort(&self, candidates: &Candidates<'_>, kept: bool) -> Zones {
        let is_own = |zone: Option<&str>| zone.is_some_and(|zone| zone.eq_ignore_ascii_case(&self.zone));
        Zones {
            own: Part::of(candidates, kept, |one| is_own(one.endpoint().zone())),
            others: Part::of(candidates, kept, |one| !is_own(one.endpoint().zone())),
            look: Due::new(candidates.now()),
            share: AtomicU32::new(f32::INFINITY.to_bits()),
        }
    }

    #[inline]
    fn choose(&self, zones: &Zones, candidates: &Candidates<'_>) -> Option<usize> {
        let (own, others) = (&zones.own, &zones.others);
        if own.is_empty() || others.is_empty() {
            return self.choose_of_all(candidates);
        }
        let stays = match self.share(zones, candidates) {
            share if share >= 1.0 => true,
            share => self.dice.fraction() < f64::from(share),
        };
        let (first, second) = if stays { (own, others) } else { (others, own) };
        let mut second_best = None;
        for part in [first, second] {
            match part.pick(&self.rule, candidates) {
                Some(choice) if choice.can_be_had() => return Some(choice.index),
                other => second_best = Choice::better(second_best, other),
            }
        }
        match second_best {
            Some(choice) => Some(choice.index),
            None => self.make_do(zones, candidates),
        }
    }

    /// There is one zone.
    fn choose_of_all(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let choice = pick(&self.rule, candidates).map(|choice| choice.index);
        if choice.is_some() || self.rule.chooses_alone() {
            return choice;
        }
        let mut all = Demand::IN_TURN.into_iter();
        all.find_map(|demand| pick_of(&self.rule, candidates, 1, |one| one.meets(demand)))
    }

    /// None is without a veto and untried.
    #[cold]
    fn make_do(&self, zones: &Zones, candidates: &Candidates<'_>) -> Option<usize> {
        if self.rule.chooses_alone() {
            return None;
        }
        let of = |demand: Demand, part: &Part| part.pick_of(&self.rule, candidates, demand);
        let mut all = Demand::IN_TURN.into_iter();
        all.find_map(|demand| of(demand, &zones.own).or_else(|| of(demand, &zones.others)))
    }

    /// All that were sorted before may have gone.
    #[cold]
    fn choose_after_all(&self, zones: &Zones, candidates: &Candidates<'_>) -> Option<usize> {
        let is_old = zones.own.is_old(candidates);
        is_old.then(|| self.choose(&self.sort(candidates, false), candidates))?
    }

    /// What share of the calls stays.
    #[inline]
    fn share(&self, zones: &Zones, candidates: &Candidates<'_>) -> f32 {
        let share = f32::from_bits(zones.share.load(Relaxed));
        if share <= 1.0 && !zones.look.is_due(candidates.now()) {
            return share;
        }
        self.look(zones, candidates)
    }

    #[cold]
    fn look(&self, zones: &Zones, candidates: &Candidates<'_>) -> f32 {
        let (eligible, in_flight) = count(&zones.own.shown(candidates));
        let (others, _) = count(&zones.others.shown(candidates));
        let share = if others == 0 {
            1.0
        } else {
            let eligible = eligible as f32;
            let by_number = (SPARE * eligible / zones.own.len() as f32).min(eligible / self.at_least as f32);
            by_number
                .min(self.admitted(eligible, in_flight, candidates.now()))
                .min(1.0)
        };
        zones.share.store(share.to_bits(), Relaxed);
        share
    }

    /// What share the load lets stay: less, if it is too much, and more, if there is room.
    fn admitted(&self, eligible: f32, in_flight: u64, now: Instant) -> f32 {
        let before = f32::from_bits(self.admitted.load(Relaxed));
        let Some(most) = self.most.filter(|_| eligible > 0.0) else {
            return before;
        };
        if !self.weighed.get_or_init(|| Due::new(now)).is_due(now) {
            return before;
        }
        let load = in_flight as f32 / eligible;
        // The root, since what is in flight follows with a delay.
        let step = (most / load).sqrt().clamp(0.5, 1.2);
        let admitted = (before * step).clamp(LEAST_ADMITTED, 1.0);
        self.admitted.store(admitted.to_bits(), Relaxed);
        admitted
    }
}

impl<R: Rule> Rule for ZoneFirst<R> {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let sort = || self.sort(candidates, true);
        self.zones.with(candidates, sort, |zones| match zones {
            Some(zones) => self
                .choose(zones, candidates)
                .or_else(|| self.choose_after_all(zones, candidates)),
            None => self.choose(&self.sort(candidates, false), candidates),
        })
    }

    fn chooses_alone(&self) -> bool {
        true
    }

    fn decay(&self) -> Duration {
        self.rule.decay()
    }
}

impl<R: fmt::Debug> fmt::Debug for ZoneFirst<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneFirst")
            .field("zone", &self.zone)
            .field("at_least", &self.at_least)
            .field("spill_above", &self.most)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}
