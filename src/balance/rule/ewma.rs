//! The one that seems to answer soonest, of a few.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use arc_swap::{ArcSwapOption, Guard};
use tokio::time::{Duration, Instant};

use super::{
    super::roster::{Roster, Seat},
    Candidate, Candidates, Rule,
    dice::Dice,
};
use crate::call::{ConfigError, config};

const NAME: &str = "Ewma";

const CHOICES: usize = 10;
const MOST_CHOICES: usize = 16;
const DECAY: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(10);
const SLOW_START: Duration = Duration::from_secs(4);
/// To this part of its traffic at first.
const LEAST_SHARE: f32 = 0.1;
/// For how long, in seconds, what is held against a newcomer is forgotten within `FORGIVEN`: it may have been cold.
const NEW: f32 = 10.0;
const FORGIVEN: f32 = 1.0;
/// Seconds. What was asked no longer ago than this is as it was.
const RECENT: f32 = 0.1;

/// Seconds: what an endpoint without an answer is taken for where there is none that has one.
const UNKNOWN: f32 = 0.001;
/// How many peers are asked for what a new one is supposed to be like.
const PEERS: usize = 16;

const SUBSET: usize = 20;
/// So many endpoints are wanted for each attempt in flight.
const FOR_EACH_IN_FLIGHT: f32 = 2.0;
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// If one of them has gone.
const MAKE_AGAIN: Duration = Duration::from_millis(20);
const MOST_LOOKS: usize = 512;

/// Draws ten candidates and takes the one that is likely to answer soonest. It is the default.
///
/// What it expects of an endpoint is the mean of its [response times](Candidate::response_time) of late, or the [time that
/// its attempts in flight have waited](Candidate::waiting), if that is longer, times their number and one. So it keeps
/// away from servers that are slow, loaded, silent, or failing:
///
/// - A response time is forgotten within a [second](EwmaBuilder::decay), and peaks are remembered no longer than others.
/// - A failure counts as a slow answer, so that a server which fails at once does not draw the calls of all others.
/// - What is held against an endpoint that is asked no more is forgiven after a [while](EwmaBuilder::recovery). It is
///   asked by one call then; the next ones wait for how that ends.
/// - A new endpoint is taken for what its peers are on average, and gets little at [first](EwmaBuilder::slow_start).
/// - Looking at an endpoint changes nothing, so it does not matter how often it is looked at.
///
/// # Subset
///
/// Where many clients call many servers, each client sends a server few calls, and knows little of it. So of a set with
/// more than 20 endpoints only a part is drawn from: 20, or two for each attempt that is in flight on average, if that is
/// more, or all, if it would be two thirds of them. The part is looked at once a second; it grows at once, and shrinks
/// when half of it would do. An endpoint with a [veto](crate::call::Veto) does not count as one of them; once a quarter
/// of the part has one, others take their place. Which they are is determined by a seed and the keys of the endpoints
/// (rendezvous hashing): when the set changes, the part changes by no more than that, and a larger part holds the
/// smaller one. The seed is drawn, so that clients have different parts; about ten clients for each server, or as much
/// traffic as the rule for the size asks for, keep servers evenly loaded. If a few clients with little traffic share a
/// large set, and must reach all of it, take the [whole set](EwmaBuilder::whole_set).
///
/// # How good that is
///
/// In the simulation `examples/balance_sim` 50 clients call 100 servers, each of which is slow one fifth of the time. At
/// 70, 80 and 90 % load the 99th percentile is 56, 58 and 64 ms; tower's balancer (two choices by peak EWMA) has 156, 222
/// and 314 ms. With five servers that fail at once 0.03 % of the calls fail, instead of 8.3 %. That is where the
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
    recovery: f32,
    slow_start: f32,
    seed: u64,
    dice: Dice,
    subset: ArcSwapOption<Subset>,
    making: AtomicBool,
}

/// Sets up [`Ewma`].
///
/// | setting | default |
/// | --- | --- |
/// | [`choices`](EwmaBuilder::choices) | 10 |
/// | [`decay`](EwmaBuilder::decay) | 1 s |
/// | [`recovery`](EwmaBuilder::recovery) | 10 s |
/// | [`slow_start`](EwmaBuilder::slow_start) | 4 s |
/// | [`subset`](EwmaBuilder::subset), [`whole_set`](EwmaBuilder::whole_set) | as large as [needed](Ewma#subset), from 20 on |
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

/// Those of a large set that are drawn from.
#[derive(Debug)]
struct Subset {
    /// Of which pool they are, and of which state of the set they are the first.
    pool: u64,
    roster: u64,
    made: Instant,
    /// When they were looked at last.
    at: Instant,
    /// Has one been drawn that is no more?
    has_lost: AtomicBool,
    /// How many attempts are in flight to them, on average.
    in_flight: f32,
    wanted: usize,
    /// None: it is the whole set. They stay through changes of it.
    seats: Option<Arc<[Seat]>>,
}

impl Subset {
    /// Where one of the seats is now.
    #[inline]
    fn place(&self, seat: Option<&Seat>, roster: &Roster) -> Option<usize> {
        let place = seat?.place(roster);
        if place.is_none() {
            self.has_lost.store(true, Relaxed);
        }
        place
    }
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
            recovery: settings.recovery.as_secs_f32(),
            slow_start: settings.slow_start.as_secs_f32(),
            settings,
            seed,
            dice,
            subset: ArcSwapOption::empty(),
            making: AtomicBool::new(false),
        }
    }

    /// The best of a few of these, which are `n`. None: none of those that were drawn can be had.
    #[inline]
    fn choose(&self, candidates: &Candidates<'_>, n: usize, at: impl Fn(usize) -> usize) -> Option<usize> {
        let mut best = None;
        let mut least = f32::INFINITY;
        let mut look = |index: usize| {
            let Some(candidate) = candidates.get(index).filter(Candidate::can_be_had) else {
                return false;
            };
            let cost = self.cost(candidates, candidate, least);
            if cost < least || best.is_none() {
                least = cost;
                best = Some(index);
            }
            true
        };
        let choices = self.settings.choices;
        if n <= choices {
            let first = self.dice.below(n);
            for turn in first..first + n {
                look(at(turn.checked_rem(n)?));
            }
            return best;
        }
        let mut seen = [usize::MAX; MOST_CHOICES];
        let mut found = 0;
        for _ in 0..4 * choices {
            let index = at(self.dice.below(n));
            let (drawn, rest) = seen.split_at_mut(found);
            if drawn.contains(&index) || !look(index) {
                continue;
            }
            if let Some(next) = rest.first_mut() {
                *next = index;
            }
            found += 1;
            if found == choices {
                break;
            }
        }
        best
    }

    /// When an attempt that is sent there now is likely to be answered, in seconds; more than the least so far, if it
    /// would be more.
    #[inline]
    fn cost(&self, candidates: &Candidates<'_>, candidate: Candidate<'_>, least: f32) -> f32 {
        let (load, nanos) = candidate.load();
        let open = load.open(nanos);
        let new_since = load.since_joined(nanos);
        let answers = match load.estimate(nanos) {
            None => self.suppose(candidates, candidate),
            // One call at a time asks what is long not known.
            Some((estimate, idle)) if idle < RECENT || open.count > 0 => estimate,
            Some((estimate, idle)) if new_since.is_some() => estimate * (-idle / FORGIVEN).exp(),
            Some((estimate, idle)) => {
                // Nearly nothing at first, and then nearly all.
                let idle = idle / self.recovery;
                let square = idle * idle;
                if estimate * (1.0 - square) > least {
                    // That is no more than what is worked out below at some cost.
                    return estimate;
                }
                estimate * (-square).exp()
            }
        };
        let cost = answers.max(open.age) * (open.count + 1) as f32;
        match new_since {
            None => cost,
            Some(since) if since < self.slow_start => {
                // An idle one would cost next to nothing, whatever it is divided by.
                (cost + UNKNOWN) / (since / self.slow_start).max(LEAST_SHARE)
            }
            Some(since) if since < NEW => cost,
            Some(_) => {
                load.settle();
                cost
            }
        }
    }

    /// A new one is supposed to be like its peers.
    #[cold]
    fn suppose(&self, candidates: &Candidates<'_>, candidate: Candidate<'_>) -> f32 {
        let subset = self.subset.load();
        let subset = subset
            .as_ref()
            .filter(|subset| candidates.are_all() && subset.pool == candidates.roster().pool());
        let part = subset.and_then(|subset| Some((subset, subset.seats.as_deref()?)));
        let (mut sum, mut known) = (0.0, 0.0);
        for _ in 0..PEERS {
            let index = match part {
                None => Some(self.dice.below(candidates.len())),
                Some((subset, seats)) => {
                    let seat = seats.get(self.dice.below(seats.len()));
                    subset.place(seat, candidates.roster())
                }
            };
            let Some(peer) = index.and_then(|index| candidates.get(index)) else {
                continue;
            };
            let (load, nanos) = peer.load();
            if let Some((estimate, _)) = load.estimate(nanos) {
                sum += estimate;
                known += 1.0;
            }
        }
        if known == 0.0 {
            return UNKNOWN;
        }
        let (load, nanos) = candidate.load();
        load.suppose(sum / known, nanos);
        if candidate.is_late() {
            load.join(nanos);
        }
        sum / known
    }

    /// The subset, after it has been seen to that it is one of this set, and large enough.
    #[inline]
    fn looked_after(&self, candidates: &Candidates<'_>) -> Guard<Option<Arc<Subset>>> {
        let subset = self.subset.load();
        let is_due = subset.as_ref().is_none_or(|subset| {
            subset.pool != candidates.roster().pool()
                || candidates.now().saturating_duration_since(subset.at) >= LOOK_AGAIN
                || (subset.has_lost.load(Relaxed)
                    && candidates.now().saturating_duration_since(subset.made) >= MAKE_AGAIN)
        });
        if !is_due {
            return subset;
        }
        self.renew(candidates);
        self.subset.load()
    }

    /// Whoever comes first does it; the others go by what there is.
    #[cold]
    fn renew(&self, candidates: &Candidates<'_>) {
        if self.making.swap(true, Acquire) {
            return;
        }
        let now = candidates.now();
        let subset = match self.subset.load().as_deref() {
            Some(old) if old.pool != candidates.roster().pool() => {
                self.make(candidates, now, old.in_flight, old.wanted)
            }
            Some(old) if now.saturating_duration_since(old.at) >= LOOK_AGAIN => {
                self.look_again(candidates, old)
            }
            Some(old) => self.make(candidates, old.at, old.in_flight, old.wanted),
            None => self.make(candidates, now, 0.0, SUBSET),
        };
        self.subset.store(Some(Arc::new(subset)));
        self.making.store(false, Release);
    }

    /// Is it still as large as it should be?
    fn look_again(&self, candidates: &Candidates<'_>, old: &Subset) -> Subset {
        let (mut in_flight, mut eligible) = (0, 0);
        let seats = old.seats.as_deref();
        let n = seats.map_or(candidates.len(), <[Seat]>::len);
        // Of very many some will do.
        let step = n.div_ceil(MOST_LOOKS);
        for index in (0..n).step_by(step.max(1)) {
            let place = match seats {
                None => Some(index),
                Some(seats) => old.place(seats.get(index), candidates.roster()),
            };
            if let Some(candidate) = place.and_then(|place| candidates.get(place)) {
                in_flight += step as u64 * candidate.in_flight();
                eligible += step * usize::from(candidate.endpoint().eligibility().is_eligible());
            }
        }
        let in_flight = old.in_flight + 0.3 * (in_flight as f32 - old.in_flight);
        let enough = ((in_flight * FOR_EACH_IN_FLIGHT).ceil() as usize).max(SUBSET);
        let wanted = if enough > old.wanted || enough < old.wanted / 2 {
            enough
        } else {
            old.wanted
        };
        let size = self.size(wanted);
        let fits = old.roster == candidates.roster_id()
            && (seats.is_none() || (eligible * 4 >= size * 3 && eligible * 3 <= size * 4));
        if wanted == old.wanted && fits {
            return Subset {
                at: candidates.now(),
                in_flight,
                has_lost: AtomicBool::new(false),
                seats: old.seats.clone(),
                ..*old
            };
        }
        self.make(candidates, candidates.now(), in_flight, wanted)
    }

    fn size(&self, wanted: usize) -> usize {
        match self.settings.size {
            Size::AsNeeded => wanted,
            Size::All => usize::MAX,
            Size::Fixed(size) => size,
        }
    }

    fn make(&self, candidates: &Candidates<'_>, at: Instant, in_flight: f32, wanted: usize) -> Subset {
        let size = self.size(wanted);
        let is_part = size.saturating_mul(3) / 2 < candidates.len();
        Subset {
            pool: candidates.roster().pool(),
            roster: candidates.roster_id(),
            made: candidates.now(),
            at,
            has_lost: AtomicBool::new(false),
            in_flight,
            wanted,
            seats: is_part.then(|| self.first(candidates.roster(), size)),
        }
    }

    /// Those that rank first with this seed: so many as may be picked, and those between them which may not.
    fn first(&self, roster: &Roster, size: usize) -> Arc<[Seat]> {
        // Twice as many as needed are below this, on average, so that few have to be sorted.
        let part = (u64::MAX).checked_div(roster.len() as u64).unwrap_or(u64::MAX);
        let mut limit = part.saturating_mul(2 * size as u64);
        loop {
            let ranks = roster.iter().map(|entry| entry.hash.with(self.seed).get());
            let mut ranked: Vec<(u64, u32)> = ranks.zip(0..).filter(|&(rank, _)| rank <= limit).collect();
            ranked.sort_unstable();
            let is_eligible = |place: u32| {
                let entry = roster.get(place as usize);
                entry.is_some_and(|entry| entry.endpoint.eligibility().is_eligible())
            };
            let last = ranked
                .iter()
                .enumerate()
                .filter(|&(_, &(_, place))| is_eligible(place))
                .nth(size - 1);
            let last = last.map(|(last, _)| last);
            if last.is_some() || limit == u64::MAX {
                ranked.truncate(last.map_or(usize::MAX, |last| last + 1));
                let seats = ranked.into_iter();
                return seats
                    .filter_map(|(_, place)| roster.seat(place as usize))
                    .collect();
            }
            limit = limit.saturating_mul(4);
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
        let smallest = self.size(SUBSET);
        if n > smallest && candidates.are_all() {
            let subset = self.looked_after(candidates);
            let subset = subset
                .as_ref()
                .filter(|subset| subset.pool == candidates.roster().pool());
            if let Some((subset, seats)) = subset.and_then(|subset| Some((subset, subset.seats.as_deref()?)))
            {
                // One that has gone is at no place.
                let at = |index| {
                    let place = subset.place(seats.get(index), candidates.roster());
                    place.unwrap_or(usize::MAX)
                };
                let best = self.choose(candidates, seats.len(), at);
                if best.is_some() {
                    return best;
                }
            }
        }
        self.choose(candidates, n, |index| index)
            .or_else(|| Some(self.dice.below(n)))
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

    /// After what time without a call what is held against an endpoint has fallen to 37 % (1/e). Before, little is
    /// forgiven, and soon after nearly all: to 78 % after half of it, and to 2 % after twice as long.
    pub fn recovery(mut self, recovery: Duration) -> Self {
        self.recovery = recovery;
        self
    }

    /// For how long an endpoint that comes into a set gets less than its part: a tenth at first, then more and more. Zero:
    /// all at once. Where most of a set is new, nothing of it begins slowly.
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
