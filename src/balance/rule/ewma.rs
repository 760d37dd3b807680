//! The one that seems to answer soonest, of a few.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use arc_swap::{ArcSwapOption, Guard};
use tokio::time::Duration;

use super::{Candidate, Candidates, Rule, dice::Dice};
use crate::{
    balance::{
        figures::Counters,
        load::{Load, Open},
        roster::{Roster, Seat},
    },
    call::{ConfigError, Endpoint, config},
};

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
/// Nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000_000;
/// If one of them has gone, or is described anew.
const MAKE_AGAIN: u64 = 20_000_000;
const MOST_LOOKS: usize = 512;

/// Draws ten candidates and takes the one that is likely to answer soonest. It is the default.
///
/// What it expects of an endpoint is the mean of its [response times](Candidate::response_time) of late, or the [time that
/// its attempts in flight have waited](Candidate::waiting), if that is longer, times their number and one. So it keeps
/// away from servers that are slow, loaded, silent, or failing:
///
/// - A response time is forgotten within a [second](EwmaBuilder::decay), and peaks are remembered no longer than others.
/// - A [failure](super::super#what-is-booked) counts as a slow answer, so that a server which fails at once does not draw the
///   calls of all others.
/// - What is held against an endpoint that is asked no more is forgiven after a [while](EwmaBuilder::recovery). It is
///   asked by one call then; the next ones wait for how that ends.
/// - A new endpoint is taken for what its peers are on average, and gets little at [first](EwmaBuilder::slow_start).
/// - Looking at an endpoint changes nothing, so it does not matter how often it is looked at.
/// - What it expects is divided by the endpoint's [weight](Endpoint::weight): one with a weight of three is taken until its
///   answers take three times as long, or as many more attempts are in flight to it. That is its part under load. If
///   next to nothing is in flight, the heaviest gets nearly all; to give each its part then as well, take
///   [`WeightedRoundRobin`](super::WeightedRoundRobin).
///
/// With one call at a time, and servers that are alike, one of them gets nearly all for a second or so. Under load it is even;
/// for turns take [`RoundRobin`](super::RoundRobin). One rule belongs to one layer: shared by two over different sets, in an
/// `Arc`, it makes its subset anew at nearly every pick.
///
/// # Subset
///
/// Where many clients call many servers, each client sends a server few calls, and knows little of it. So of a set with
/// more than 20 endpoints only a part is drawn from: 20, or two for each attempt that is in flight on average, if that is
/// more, or all, if it would be two thirds of them. The part is looked at once a second; it grows at once, and shrinks
/// when less than half of it would do. An endpoint with a [veto](crate::call::Veto) does not count as one of them; once
/// more than a quarter of the part has one, others take their place. Which they are is determined by a seed and the keys of
/// the endpoints (rendezvous hashing): when the set has changed, the part changes by no more than that, within a second, and
/// a larger part holds the smaller one. The seed is drawn, so that clients have different parts; about ten clients for each
/// server, or as much traffic as the rule for the size asks for, keep servers evenly loaded. If a few clients with little
/// traffic share a large set, and must reach all of it, take the [whole set](EwmaBuilder::whole_set).
///
/// # How good that is
///
/// In the simulation `examples/balance_sim` 50 clients call 100 servers, each of which is slow one fifth of the time. At
/// 70, 80 and 90 % load the 99th percentile is 55, 58 and 65 ms; tower's balancer (two choices by peak EWMA) has 156, 222
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
    /// One by the seconds.
    per_recovery: f32,
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
    /// In nanoseconds, as the counters have it.
    made: u64,
    /// When they were looked at last.
    at: u64,
    /// Has one been drawn that is no more?
    has_lost: AtomicBool,
    /// How many attempts are in flight to them, on average.
    in_flight: f32,
    wanted: usize,
    /// None: it is the whole set. They stay through changes of it.
    members: Option<Arc<[Member]>>,
}

/// What is looked at of one of them is held here, so that it need not be looked for in the set.
#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    counters: Arc<Counters>,
    seat: Seat,
    per_weight: f32,
    late: bool,
}

/// A candidate, as far as it is looked at.
struct Seen<'a> {
    endpoint: &'a Endpoint,
    counters: &'a Counters,
    /// One by its weight.
    per_weight: f32,
    /// Has it come into a set that others were in before?
    late: bool,
}

/// One by its weight.
#[inline]
fn per_weight(endpoint: &Endpoint) -> f32 {
    1.0 / i64::from(endpoint.weight()) as f32
}

impl Member {
    #[inline]
    fn seen(&self) -> Seen<'_> {
        Seen {
            endpoint: &self.endpoint,
            counters: &self.counters,
            per_weight: self.per_weight,
            late: self.late,
        }
    }
}

impl Subset {
    /// Where a member is now. None: it has gone, or is described anew.
    #[inline]
    fn place(&self, member: &Member, roster: &Roster) -> Option<usize> {
        let place = member.seat.place(roster);
        let is_same = |&place: &usize| {
            roster
                .get(place)
                .is_some_and(|entry| entry.endpoint == member.endpoint)
        };
        let place = place.filter(is_same);
        if place.is_none() {
            self.has_lost.store(true, Relaxed);
        }
        place
    }
}

impl<'a> Seen<'a> {
    #[inline]
    fn of(candidate: Candidate<'a>) -> Self {
        Seen {
            endpoint: candidate.endpoint(),
            counters: candidate.counters(),
            per_weight: per_weight(candidate.endpoint()),
            late: candidate.is_late(),
        }
    }
}

/// What an endpoint costs, the turn in which it was drawn, and its index: numbers that are not negative are in the order of
/// their bits, so that the least of several of these is the best, and of equal ones any.
#[inline]
fn ranked(cost: f32, turn: usize, index: u32) -> u64 {
    u64::from(cost.to_bits()) << 32 | (turn as u64) << INDEX_BITS | u64::from(index)
}

/// There are no more endpoints than that.
const INDEX_BITS: u32 = 27;

#[inline]
fn index(ranked: u64) -> usize {
    (ranked & ((1 << INDEX_BITS) - 1)) as usize
}

/// So many attempts, after one another.
#[inline]
fn cost(answers: f32, open: Open) -> f32 {
    // As a step of the processor; neither is no number.
    let longer = if answers > open.age { answers } else { open.age };
    longer * (open.count as i32 + 1) as f32
}

/// One to the base of 1/e, but for two hundredths, in a few steps.
#[inline]
fn falling(by: f32) -> f32 {
    let root = 1.0 - by * (1.0 / 16.0);
    let root = if root > 0.0 { root } else { 0.0 };
    let root = root * root;
    let root = root * root;
    let root = root * root;
    root * root
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
            subset: ArcSwapOption::empty(),
            making: AtomicBool::new(false),
        }
    }

    /// The best of a few of these, which are `n`. None: none of those that were drawn can be had.
    #[inline]
    fn choose<'a>(
        &self,
        candidates: &Candidates<'_>,
        n: usize,
        at: impl Fn(usize) -> Option<Seen<'a>>,
    ) -> Option<usize> {
        let drawn = self.draw(n);
        let nanos = candidates.nanos();
        let mut best = u64::MAX;
        // A bit for each that is another case, so that this goes through without a branch. A processor cannot guess how
        // loaded the next one is, and to guess wrong costs more than all the rest.
        let mut others = 0_u32;
        for (turn, &index) in drawn.iter().enumerate().take(self.settings.choices.min(n)) {
            let Some(seen) = at(index as usize) else {
                break;
            };
            let load = seen.counters.load();
            let (cost, is_known) = self.cost(load, nanos);
            let is_another = u8::from(!is_known) | u8::from(!seen.endpoint.eligibility().is_eligible());
            others |= u32::from(is_another) << turn;
            best =
                best.min(ranked(cost * seen.per_weight, turn, index) | u64::from(is_another).wrapping_neg());
        }
        if others != 0 || !candidates.tried().is_nothing() {
            best = self.choose_among_others(candidates, n, (&drawn, others), best, &at);
        }
        (best != u64::MAX).then(|| index(best))
    }

    /// The same where some may not be picked, or are new.
    #[cold]
    fn choose_among_others<'a>(
        &self,
        candidates: &Candidates<'_>,
        n: usize,
        (drawn, others): (&[u32; MOST_CHOICES], u32),
        best: u64,
        at: &dyn Fn(usize) -> Option<Seen<'a>>,
    ) -> u64 {
        let (tried, nanos) = (candidates.tried(), candidates.nanos());
        let look = |turn: usize, index: u32| {
            let seen = at(index as usize)?;
            if !seen.endpoint.eligibility().is_eligible() || tried.contains(seen.endpoint) {
                return None;
            }
            let load = seen.counters.load();
            let cost = match self.cost(load, nanos) {
                (cost, true) => cost,
                (_, false) => self.cost_of_newcomer(candidates, load, seen.late, nanos),
            };
            Some(ranked(cost * seen.per_weight, turn, index))
        };
        let (mut best, others) = if tried.is_nothing() {
            (best, others)
        } else {
            (u64::MAX, u32::MAX)
        };
        let choices = self.settings.choices.min(n);
        let mut missing = 0;
        for (turn, &index) in drawn.iter().enumerate().take(choices) {
            if others & (1 << turn) != 0 {
                match look(turn, index) {
                    Some(one) => best = best.min(one),
                    None => missing += 1,
                }
            }
        }
        if missing > 0 && choices < n {
            let draws = 0..3 * choices;
            let found = draws
                .filter_map(|_| look(choices, self.dice.below(n) as u32))
                .take(missing);
            best = found.fold(best, u64::min);
        }
        best
    }

    /// The same where the best has gone: for a short time until the subset is made anew.
    #[cold]
    fn choose_present(
        &self,
        candidates: &Candidates<'_>,
        subset: &Subset,
        members: &[Member],
    ) -> Option<usize> {
        let present = |index| {
            let member = members.get(index)?;
            subset.place(member, candidates.roster())?;
            Some(member.seen())
        };
        let n = members.len();
        let best = self.choose_among_others(candidates, n, (&self.draw(n), u32::MAX), u64::MAX, &present);
        let best = members.get(index(best))?;
        subset.place(best, candidates.roster())
    }

    /// So many as are to be chosen from, of `n`, or all: one of each tenth, so that none is drawn twice. Where the tenths
    /// begin is drawn as well.
    #[inline(always)]
    fn draw(&self, n: usize) -> [u32; MOST_CHOICES] {
        let mut drawn = [u32::MAX; MOST_CHOICES];
        let mut rng = self.dice.several();
        let n = n as u64;
        let choices = (self.settings.choices as u64).min(n);
        let tenth = (n << 16).checked_div(choices).unwrap_or_default();
        let mut bits = rng.u64(..);
        let first = ((bits >> 32) * n) >> 32;
        let (mut from, mut end, mut left) = (first, first << 16, 2);
        for drawn in drawn.iter_mut().take(choices as usize) {
            if left == 0 {
                (bits, left) = (rng.u64(..), 4);
            }
            end += tenth;
            let to = end >> 16;
            let index = from + (((to - from) * (bits & 0xffff)) >> 16);
            // Less n, if it is not below it.
            let beyond = index.wrapping_sub(n) as i64;
            *drawn = (beyond + (n as i64 & (beyond >> 63))) as u32;
            (from, bits, left) = (to, bits >> 16, left - 1);
        }
        drawn
    }

    /// When an attempt that is sent there now is likely to be answered, in seconds. False: it is new, and this says nothing.
    #[inline]
    fn cost(&self, load: &Load, nanos: u64) -> (f32, bool) {
        let open = load.open(nanos);
        let (estimate, idle) = load.estimate_or_zero(nanos);
        // One call at a time asks what is long not known.
        let asks = u32::from(open.waiting == 0).wrapping_neg();
        let idle = f32::from_bits(idle.to_bits() & asks);
        // Nearly nothing at first, and then nearly all.
        let idle = idle * self.per_recovery;
        let is_known = estimate > 0.0;
        let cost = cost(estimate * falling(idle * idle), open);
        (cost, is_known & !load.has_joined())
    }

    /// The same where nothing has been answered, or had not been for long.
    fn cost_of_newcomer(&self, candidates: &Candidates<'_>, load: &Load, late: bool, nanos: u64) -> f32 {
        let open = load.open(nanos);
        let since = load.since_joined(nanos);
        let answers = match load.estimate(nanos) {
            None => self.suppose(candidates, load, late, nanos),
            Some((estimate, idle)) if idle < RECENT || open.waiting > 0 => estimate,
            Some((estimate, idle)) => estimate * (-idle / FORGIVEN).exp(),
        };
        let cost = cost(answers, open);
        match since {
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
    fn suppose(&self, candidates: &Candidates<'_>, load: &Load, late: bool, nanos: u64) -> f32 {
        let subset = self.subset.load();
        let members = subset
            .as_ref()
            .filter(|subset| candidates.are_all() && subset.pool == candidates.roster().pool())
            .and_then(|subset| subset.members.as_deref())
            .unwrap_or_default();
        let (mut sum, mut known) = (0.0, 0.0);
        for _ in 0..PEERS {
            let peer = match members.len() {
                0 => candidates.get(self.dice.below(candidates.len())).map(Seen::of),
                n => members.get(self.dice.below(n)).map(Member::seen),
            };
            if let Some((estimate, _)) = peer.and_then(|peer| peer.counters.load().estimate(nanos)) {
                sum += estimate;
                known += 1.0;
            }
        }
        if known == 0.0 {
            return UNKNOWN;
        }
        load.suppose(sum / known, nanos);
        if late {
            load.join(nanos);
        }
        sum / known
    }

    /// The subset, after it has been seen to that it is one of this set, and large enough.
    #[inline]
    fn looked_after(&self, candidates: &Candidates<'_>) -> Guard<Option<Arc<Subset>>> {
        let subset = self.subset.load();
        let is_due = subset.as_ref().is_none_or(|subset| {
            let since = |then| candidates.nanos().saturating_sub(then);
            subset.pool != candidates.roster().pool()
                || since(subset.at) >= LOOK_AGAIN
                || (subset.has_lost.load(Relaxed) && since(subset.made) >= MAKE_AGAIN)
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
        let now = candidates.nanos();
        let subset = match self.subset.load().as_deref() {
            Some(old) if old.pool != candidates.roster().pool() => {
                self.make(candidates, now, old.in_flight, old.wanted)
            }
            Some(old) if now.saturating_sub(old.at) >= LOOK_AGAIN => self.look_again(candidates, old),
            Some(old) => self.make(candidates, old.at, old.in_flight, old.wanted),
            None => self.make(candidates, now, 0.0, SUBSET),
        };
        self.subset.store(Some(Arc::new(subset)));
        self.making.store(false, Release);
    }

    /// Is it still as large as it should be?
    fn look_again(&self, candidates: &Candidates<'_>, old: &Subset) -> Subset {
        let (mut in_flight, mut eligible) = (0, 0);
        let members = old.members.as_deref();
        let n = members.map_or(candidates.len(), <[Member]>::len);
        // Of very many some will do.
        let step = n.div_ceil(MOST_LOOKS);
        for index in (0..n).step_by(step.max(1)) {
            let seen = match members {
                None => candidates.get(index).map(Seen::of),
                Some(members) => members.get(index).map(Member::seen),
            };
            if let Some(seen) = seen {
                in_flight += step as u64 * seen.counters.in_flight();
                eligible += step * usize::from(seen.endpoint.eligibility().is_eligible());
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
            && (members.is_none() || (eligible * 4 >= size * 3 && eligible * 3 <= size * 4));
        if wanted == old.wanted && fits {
            return Subset {
                at: candidates.nanos(),
                in_flight,
                has_lost: AtomicBool::new(false),
                members: old.members.clone(),
                ..*old
            };
        }
        self.make(candidates, candidates.nanos(), in_flight, wanted)
    }

    fn size(&self, wanted: usize) -> usize {
        match self.settings.size {
            Size::AsNeeded => wanted,
            Size::All => usize::MAX,
            Size::Fixed(size) => size,
        }
    }

    fn make(&self, candidates: &Candidates<'_>, at: u64, in_flight: f32, wanted: usize) -> Subset {
        let size = self.size(wanted);
        let is_part = size.saturating_mul(3) / 2 < candidates.len();
        Subset {
            pool: candidates.roster().pool(),
            roster: candidates.roster_id(),
            made: candidates.nanos(),
            at,
            has_lost: AtomicBool::new(false),
            in_flight,
            wanted,
            members: is_part.then(|| self.first(candidates.roster(), size)),
        }
    }

    /// Those that rank first with this seed: so many as may be picked, and those between them which may not.
    fn first(&self, roster: &Roster, size: usize) -> Arc<[Member]> {
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
                let member = |(_, place): (u64, u32)| {
                    let entry = roster.get(place as usize)?;
                    Some(Member {
                        endpoint: entry.endpoint.clone(),
                        counters: Arc::clone(&entry.counters),
                        seat: roster.seat(place as usize)?,
                        per_weight: per_weight(&entry.endpoint),
                        late: entry.late,
                    })
                };
                return ranked.into_iter().filter_map(member).collect();
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
            if let Some((subset, members)) =
                subset.and_then(|subset| Some((subset, subset.members.as_deref()?)))
            {
                let best = self.choose(candidates, members.len(), |index| {
                    members.get(index).map(Member::seen)
                });
                let place = |index| subset.place(members.get(index)?, candidates.roster());
                let place = best
                    .and_then(place)
                    .or_else(|| self.choose_present(candidates, subset, members));
                if place.is_some() {
                    return place;
                }
            }
        }
        self.choose(candidates, n, |index| candidates.get(index).map(Seen::of))
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

    /// After what time without a call what is held against an endpoint has fallen to 36 %. Before, little is forgiven, and
    /// soon after nearly all: to 78 % after half of it, and to 1 % after twice as long.
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
