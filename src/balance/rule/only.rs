//! Only those that pass.

use std::fmt;

use tokio::time::Duration;

use super::{
    super::demand::Demand,
    Candidate, Candidates, Rule,
    memo::Memo,
    part::{Choice, Part, Standing, pick, pick_of},
};
use crate::call::{ConfigError, Endpoint, config};

const NAME: &str = "Only";

/// Shows another rule only the candidates that pass, and others if those are too few (as Ribbon's `CompositePredicate`,
/// but an endpoint that does not pass is not drawn in the first place).
///
/// What is asked of the [description](Only::new) of an endpoint (its zone, its weight, its metadata) is worked out when
/// the set has changed, and a pick looks at no more endpoints than the rule within does. What is asked of
/// [live figures](Only::live) is asked of all endpoints at each pick, in one go: that is for sets of some hundreds at most.
///
/// If fewer pass than [needed](Only::at_least), those that pass what is named [next](Only::or) are shown; then [all](Only::or_all), if
/// that is said. If nobody has enough, the first that has any will do. If nobody has any, none is chosen, and the call ends,
/// or waits, as on an [empty set](super::super::WhenEmpty).
///
/// It [chooses alone](Rule::chooses_alone): endpoints with a [veto](crate::call::Veto), and those that the call has
/// tried, do not pass as long as there is another one among all that are named here. So a retry leaves those that pass only
/// where the chain leads elsewhere; so it does if the rule within chooses alone, and has chosen one of those. How many have no
/// veto is counted ten times a second.
///
/// ```
/// use tower_outbound::balance::{Ewma, LoadBalanceLayer, Only};
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// # fn main() -> Result<(), tower_outbound::call::ConfigError> {
/// // Those of the next version, or, if there is none left of it, those in our zone, or any.
/// let canary = |endpoint: &Endpoint| endpoint.metadata("version") == Some("canary");
/// let near = |endpoint: &Endpoint| endpoint.zone() == Some("eu-1");
/// let rule = Only::new(canary, Ewma::new()).or(near).or_all();
/// let layer = LoadBalanceLayer::new(Endpoints::new()).rule(rule);
///
/// // Ours, and of those the ones with little to do, if there are two at least.
/// let idle = Only::live(|candidate| candidate.in_flight() < 10, Ewma::new()).or_all().at_least(2)?;
/// let other = LoadBalanceLayer::new(Endpoints::new()).rule(Only::new(near, idle));
/// # drop((layer, other));
/// # Ok(())
/// # }
/// ```
pub struct Only<R> {
    tiers: Vec<Wanted>,
    at_least: usize,
    share: f64,
    rule: R,
    parts: Memo<Parts>,
}

enum Wanted {
    Endpoint(Box<dyn Fn(&Endpoint) -> bool + Send + Sync>),
    Candidate(Box<dyn Fn(&Candidate<'_>) -> bool + Send + Sync>),
    All,
}

/// For each tier that goes by descriptions those which pass.
type Parts = Box<[Option<Part>]>;

impl<R: Rule> Only<R> {
    /// Those whose description passes, of which this rule chooses one.
    pub fn new(wanted: impl Fn(&Endpoint) -> bool + Send + Sync + 'static, rule: R) -> Self {
        Only::first(Wanted::Endpoint(Box::new(wanted)), rule)
    }

    /// Those that pass as they are now: by what is in flight to them, or by other figures. All are asked at each pick.
    pub fn live(wanted: impl Fn(&Candidate<'_>) -> bool + Send + Sync + 'static, rule: R) -> Self {
        Only::first(Wanted::Candidate(Box::new(wanted)), rule)
    }

    fn first(wanted: Wanted, rule: R) -> Self {
        Only {
            tiers: vec![wanted],
            at_least: 1,
            share: 0.0,
            rule,
            parts: Memo::default(),
        }
    }

    /// If too few have passed so far: those whose description passes this.
    #[must_use]
    pub fn or(self, wanted: impl Fn(&Endpoint) -> bool + Send + Sync + 'static) -> Self {
        self.then(Wanted::Endpoint(Box::new(wanted)))
    }

    /// If too few have passed so far: those that pass this now. All are asked at each pick that comes to it.
    #[must_use]
    pub fn or_live(self, wanted: impl Fn(&Candidate<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.then(Wanted::Candidate(Box::new(wanted)))
    }

    /// If too few have passed so far: all.
    #[must_use]
    pub fn or_all(self) -> Self {
        self.then(Wanted::All)
    }

    fn then(mut self, wanted: Wanted) -> Self {
        self.tiers.push(wanted);
        self
    }

    /// So many must pass, without those that have a veto, or it goes on with the next. Default: 1.
    ///
    /// # Errors
    ///
    /// If it is zero.
    pub fn at_least(mut self, endpoints: u32) -> Result<Self, ConfigError> {
        self.at_least = config::at_least_one(NAME, "at_least", endpoints)? as usize;
        Ok(self)
    }

    /// Such a share of all endpoints must pass, 0 to 1, without those that have a veto, or it goes on with the next.
    /// Default: 0.
    ///
    /// # Errors
    ///
    /// If it is no number from 0 to 1.
    pub fn at_least_share(mut self, share: f64) -> Result<Self, ConfigError> {
        if !(0.0..=1.0).contains(&share) {
            let fix = "give a share from 0 to 1";
            return Err(ConfigError::new(NAME, "at_least_share", share, fix));
        }
        self.share = share;
        Ok(self)
    }

    fn make(&self, candidates: &Candidates<'_>, kept: bool) -> Parts {
        let part = |wanted: &Wanted| match wanted {
            Wanted::Endpoint(wanted) => Some(Part::of(candidates, kept, |one| wanted(one.endpoint()))),
            Wanted::Candidate(_) | Wanted::All => None,
        };
        self.tiers.iter().map(part).collect()
    }

    #[inline]
    fn choose(&self, parts: &Parts, candidates: &Candidates<'_>) -> Option<usize> {
        let share = (self.share * candidates.len() as f64).ceil() as usize;
        let enough = self.at_least.max(share);
        let tiers = || self.tiers.iter().zip(parts);
        let mut second_best = None;
        // If nobody has as many as are needed, one will do.
        let least = (enough > 1).then_some(1);
        for enough in std::iter::once(enough).chain(least) {
            for tier in tiers() {
                match self.choose_in(tier, candidates, enough) {
                    Some(choice) if choice.can_be_had() => return Some(choice.index),
                    other => second_best = Choice::better(second_best, other),
                }
            }
        }
        match second_best {
            Some(choice) => Some(choice.index),
            None => self.make_do(parts, candidates),
        }
    }

    /// There may be newcomers that pass.
    #[cold]
    fn choose_after_all(&self, parts: &Parts, candidates: &Candidates<'_>) -> Option<usize> {
        let is_old = parts.iter().flatten().any(|part| part.is_old(candidates));
        is_old.then(|| self.choose(&self.make(candidates, false), candidates))?
    }

    /// Of those that are named here none is without a veto and untried.
    #[cold]
    fn make_do(&self, parts: &Parts, candidates: &Candidates<'_>) -> Option<usize> {
        let tiers = || self.tiers.iter().zip(parts);
        Demand::IN_TURN
            .into_iter()
            .find_map(|demand| tiers().find_map(|tier| self.choose_all_the_same(demand, tier, candidates)))
    }

    #[inline]
    fn choose_in(
        &self,
        (wanted, part): (&Wanted, &Option<Part>),
        candidates: &Candidates<'_>,
        enough: usize,
    ) -> Option<Choice> {
        match (wanted, part) {
            (_, Some(part)) if part.eligible(candidates) < enough => None,
            (_, Some(part)) => part.pick(&self.rule, candidates),
            (Wanted::Candidate(wanted), None) => {
                let passes = |one: &Candidate<'_>| one.can_be_had() && wanted(one);
                let index = pick_of(&self.rule, candidates, enough, passes)?;
                Some(Choice {
                    index,
                    standing: Standing::CanBeHad,
                })
            }
            (_, None) => pick(&self.rule, candidates),
        }
    }

    fn choose_all_the_same(
        &self,
        demand: Demand,
        (wanted, part): (&Wanted, &Option<Part>),
        candidates: &Candidates<'_>,
    ) -> Option<usize> {
        match (wanted, part) {
            (_, Some(part)) => part.pick_of(&self.rule, candidates, demand),
            (Wanted::Candidate(wanted), None) => {
                pick_of(&self.rule, candidates, 1, |one| one.meets(demand) && wanted(one))
            }
            (_, None) => pick_of(&self.rule, candidates, 1, |one| one.meets(demand)),
        }
    }
}

impl<R: Rule> Rule for Only<R> {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let make = || self.make(candidates, true);
        self.parts.with(candidates, make, |parts| match parts {
            Some(parts) => self
                .choose(parts, candidates)
                .or_else(|| self.choose_after_all(parts, candidates)),
            None => self.choose(&self.make(candidates, false), candidates),
        })
    }

    fn chooses_alone(&self) -> bool {
        true
    }

    fn decay(&self) -> Duration {
        self.rule.decay()
    }
}

impl<R: fmt::Debug> fmt::Debug for Only<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Only")
            .field("tiers", &self.tiers)
            .field("at_least", &self.at_least)
            .field("at_least_share", &self.share)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wanted::Endpoint(_) => "by description",
            Wanted::Candidate(_) => "live",
            Wanted::All => "all",
        })
    }
}
