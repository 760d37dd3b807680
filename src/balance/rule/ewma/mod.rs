//! The one that seems to answer soonest, of a few.

mod choice;
mod draw;
mod newcomer;
mod source;
mod subset;

use std::sync::{Arc, atomic::AtomicBool};

use tokio::time::Duration;

use self::{draw::MOST_CHOICES, subset::SUBSET};
use super::{Candidates, Rule, dice::Dice};
use crate::{
    balance::pick::Shortcut,
    call::{ConfigError, config},
};

const NAME: &str = "Ewma";

const CHOICES: usize = 14;
const DECAY: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(10);
const SLOW_START: Duration = Duration::from_secs(4);

/// Draws fourteen candidates and takes the one that is likely to answer soonest. It is the default.
///
/// What it expects of an endpoint is the mean of its [response times](super::Candidate::response_time) of late, or the
/// [time that its attempts in flight have waited](super::Candidate::waiting), if that is longer, times their number and
/// one. So it keeps away from servers that are slow, loaded, silent, or failing:
///
/// - A response time is forgotten within a [second](EwmaBuilder::decay), and peaks are remembered no longer than others.
/// - A [failure](super::super#what-is-booked) counts as a slow answer, so that a server which fails at once does not draw the
///   calls of all others.
/// - What is held against an endpoint that is asked no more is forgiven after a [while](EwmaBuilder::recovery). It is
///   asked by one call then; the next ones wait for how that ends.
/// - A new endpoint is taken for the median of its peers, and gets little at [first](EwmaBuilder::slow_start).
/// - Looking at an endpoint changes nothing of what is expected of it, so it does not matter how often it is looked at.
/// - What it expects is divided by the endpoint's [weight](crate::call::Endpoint::weight): one with a weight of three is
///   taken until its answers take three times as long, or as many more attempts are in flight to it. That is its part under
///   load. If next to nothing is in flight, the heaviest gets nearly all; to give each its part then as well, take
///   [`WeightedRoundRobin`](super::WeightedRoundRobin).
///
/// With one call at a time, and servers that are alike, one of them gets nearly all for a second or so. Under load it is even;
/// for turns take [`RoundRobin`](super::RoundRobin).
///
/// What it expects is worked out when an attempt begins or ends, and when it is looked at after more than a millisecond or two:
/// so a pick is a few loads for each endpoint that it looks at, and the time that attempts have waited is that much behind at
/// most.
///
/// # Subset
///
/// Where many clients call many servers, each client sends a server few calls, and knows little of it. So of a set with
/// more than 18 endpoints only a part is drawn from: 18, or two for each attempt that is in flight on average, if that is
/// more, or all, if it would be two thirds of them. The part is looked at once a second; it grows at once, and shrinks
/// when less than half of it would do. An endpoint with a [veto](crate::call::Veto) does not count as one of them; once
/// more than a quarter of the part has one, others take their place. Which they are is determined by a seed and the keys of
/// the endpoints (rendezvous hashing): when the set has changed, the part changes by no more than that, within a second, and
/// a larger part holds the smaller one. The seed is drawn, so that clients have different parts; about ten clients for each
/// server, or as much traffic as the rule for the size asks for, keep servers evenly loaded. If a few clients with little
/// traffic share a large set, and must reach all of it, take the [whole set](EwmaBuilder::whole_set).
///
/// There is one for each set of figures: a layer, its services, and what is cloned from them share it. Several layers that share a
/// rule, in an `Arc`, have a part each. Of several of these rules over one, as where a rule of your own asks them in turn, the first
/// has the part, and the others draw from the whole set; once it has not been asked for ten seconds, or has gone, another has it.
///
/// # How good that is
///
/// In the simulation `examples/balance_sim` 50 clients call 100 servers, each of which is slow one fifth of the time. At
/// 70, 80 and 90 % load the 99th percentile is 55, 58 and 63 ms; tower's balancer (two choices by peak EWMA) has 156, 222
/// and 314 ms. With five servers that fail at once 0.02 % of the calls fail, instead of 8.3 %. That is where the
/// defaults are from: fewer choices are worse at high load, and more hardly better.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::balance::{Ewma, LoadBalanceLayer};
/// use tower_outbound::call::Endpoints;
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let rule = Ewma::builder().slow_start(Duration::from_secs(30)).whole_set().build()?;
/// let layer = LoadBalanceLayer::new(endpoints).rule(rule);
/// # drop(layer);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Ewma {
    settings: EwmaBuilder,
    /// One by the seconds.
    per_recovery: f32,
    slow_start: f32,
    seed: u64,
    dice: Dice,
    /// What a subset knows it by.
    id: Arc<()>,
    making: AtomicBool,
}

/// Sets up [`Ewma`].
///
/// | setting | default |
/// | --- | --- |
/// | [`choices`](EwmaBuilder::choices) | 14 |
/// | [`decay`](EwmaBuilder::decay) | 1 s |
/// | [`recovery`](EwmaBuilder::recovery) | 10 s |
/// | [`slow_start`](EwmaBuilder::slow_start) | 4 s |
/// | [`subset`](EwmaBuilder::subset), [`whole_set`](EwmaBuilder::whole_set) | as large as [needed](Ewma#subset), from 18 on |
/// | [`seed`](EwmaBuilder::seed) | drawn |
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct EwmaBuilder {
    choices: usize,
    decay: Duration,
    recovery: Duration,
    slow_start: Duration,
    size: Size,
    seed: Option<u64>,
    draws: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    AsNeeded,
    All,
    Fixed(usize),
}

impl Default for Ewma {
    fn default() -> Self {
        Ewma::new()
    }
}

impl Ewma {
    /// With the defaults, and the random numbers of the thread that picks.
    pub fn new() -> Self {
        let settings = Ewma::builder();
        Ewma::with(settings, fastrand::u64(..), Dice::default())
    }

    /// With the defaults, and with draws and a subset that this seed determines, for tests: they are shared by all
    /// threads.
    pub fn seeded(seed: u64) -> Self {
        Ewma::with(Ewma::builder(), seed, Dice::seeded(seed))
    }

    /// Begins with the defaults.
    pub fn builder() -> EwmaBuilder {
        EwmaBuilder {
            choices: CHOICES,
            decay: DECAY,
            recovery: RECOVERY,
            slow_start: SLOW_START,
            size: Size::AsNeeded,
            seed: None,
            draws: None,
        }
    }

    fn with(settings: EwmaBuilder, seed: u64, dice: Dice) -> Self {
        Ewma {
            per_recovery: settings.recovery.as_secs_f32().recip(),
            slow_start: settings.slow_start.as_secs_f32(),
            settings,
            seed,
            dice,
            id: Arc::default(),
            making: AtomicBool::new(false),
        }
    }
}

impl Rule for Ewma {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let n = candidates.len();
        if n < 2 {
            return Some(0);
        }
        if n > self.size(SUBSET) && candidates.are_all() {
            let is_due = self.is_due(candidates);
            let renewed = if is_due { self.renew(candidates) } else { None };
            let subset = renewed.as_deref().or_else(|| self.subset(candidates));
            let part = subset.and_then(|subset| Some((subset, subset.members.as_ref()?)));
            if let Some((subset, members)) = part {
                let best = self
                    .choose(candidates, members)
                    .and_then(|best| members.get(best));
                let place = best
                    .and_then(|best| subset.place(best, candidates.roster()))
                    .or_else(|| self.choose_present(candidates, subset, members));
                if place.is_some() {
                    return place;
                }
            }
        }
        self.choose(candidates, candidates)
            .or_else(|| Some(self.dice.below(n)))
    }

    #[inline]
    fn shortcut(&self, candidates: &Candidates<'_>) -> Option<Shortcut> {
        let subset = self.subset(candidates)?;
        let members = subset.members.as_ref()?;
        if self.is_due(candidates) {
            return None;
        }
        let member = self.choose_kept(candidates, members)?;
        subset.place(members.get(member)?, candidates.roster())?;
        Some(Shortcut { member })
    }

    fn decay(&self) -> Duration {
        self.settings.decay
    }
}

impl EwmaBuilder {
    /// How many are drawn, 1 to 16. More come closer to the best there is, and to all clients storming it.
    pub fn choices(mut self, choices: usize) -> Self {
        self.choices = choices;
        self
    }

    /// Within what time response times are [forgotten](Rule::decay). Shorter than the time between two answers of an
    /// endpoint it makes the last one all that counts.
    pub fn decay(mut self, decay: Duration) -> Self {
        self.decay = decay;
        self
    }

    /// After what time without a call what is held against an endpoint has fallen to 36 %. Before, little is forgiven, and
    /// soon after nearly all: to 78 % after half of it, and to 1 % after twice as long.
    pub fn recovery(mut self, recovery: Duration) -> Self {
        self.recovery = recovery;
        self
    }

    /// For how long an endpoint that comes into a set gets less than its part: it is taken for ten times as slow as it is at first,
    /// and then less and less. So it gets a tenth where much is in flight, and next to nothing where little is. Zero: all at once. Where most of a set is new, nothing of it begins slowly.
    pub fn slow_start(mut self, slow_start: Duration) -> Self {
        self.slow_start = slow_start;
        self
    }

    /// Draws from a [part](Ewma#subset) of this size, or from all, if that would be two thirds of them.
    pub fn subset(mut self, endpoints: usize) -> Self {
        self.size = Size::Fixed(endpoints);
        self
    }

    /// Draws from all endpoints, however many there are.
    pub fn whole_set(mut self) -> Self {
        self.size = Size::All;
        self
    }

    /// What determines the part that is drawn from. With a number that stays with the process, as that of a replica,
    /// it is the same part after a restart.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// With draws and a part that this seed determines, for tests: they are shared by all threads.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.draws = Some(seed);
        self.seed(seed)
    }

    /// The rule.
    ///
    /// # Errors
    ///
    /// If the choices are none or more than 16, the decay or the recovery is zero, a time is longer than
    /// [`LONGEST`](crate::call::LONGEST), or the subset is empty.
    pub fn build(self) -> Result<Ewma, ConfigError> {
        if !(1..=MOST_CHOICES).contains(&self.choices) {
            let fix = "give a number from 1 to 16";
            return Err(ConfigError::new(NAME, "choices", self.choices, fix));
        }
        config::limit(NAME, "decay", self.decay)?;
        config::limit(NAME, "recovery", self.recovery)?;
        config::pause(NAME, "slow_start", self.slow_start)?;
        if self.size == Size::Fixed(0) {
            return Err(ConfigError::new(
                NAME,
                "subset",
                0,
                "give a number from 1 on, or take whole_set()",
            ));
        }
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let dice = self.draws.map_or_else(Dice::default, Dice::seeded);
        Ok(Ewma::with(self, seed, dice))
    }
}
