//! The same endpoint for requests that belong together.

use std::fmt;

use http::HeaderName;

use super::{
    Candidate, Candidates, Rule,
    bound::{self, Loads},
    dice::Dice,
    memo::Memo,
    steady::Steady,
};
use crate::call::{Affinity, ConfigError, RequestHead};

/// Sends requests that belong together to one endpoint, as long as it is there: those of one user, session or shard.
///
/// What they have in common is their [`Affinity`], a header, or what a closure makes of the head; a request that has
/// nothing of the kind goes to any endpoint. All processes choose alike, in whatever order they know the endpoints:
/// they go by the [key](crate::call::Endpoint::key). When an endpoint goes, or gets a veto, its requests spread over the
/// others, and nobody else's move; when it comes back they return. A retry goes where the request would if the endpoints
/// that the call has tried were not there.
///
/// # How it is done
///
/// It is multi-probe consistent hashing (Appleton and O'Reilly, 2015): an endpoint is a few points on a ring, a request is
/// 21, and the shortest way to the next point counts. With four points the fullest endpoint has about 10 % more than its
/// share, and the emptiest two thirds of it. A pick looks at some 21 log n points.
///
/// [Weights](crate::call::Endpoint::weight) are respected: an endpoint of twice the weight has twice the points. For that the
/// mean weight is rounded down to a power of two, which is four points; what an endpoint has beyond whole points, or the
/// four of one that is lighter, counts for a part of the requests. So a change of one weight moves the requests that make up the difference,
/// and no others, unless it brings the mean over a power of two.
///
/// # Loads
///
/// A user or shard with much traffic can be too much for one endpoint. Two bounds are there, and what is above them goes
/// where it would if the endpoint were not there:
///
/// - an [absolute](ConsistentHash::spill_above) one, if it is known what a server can bear;
/// - one by the [mean](ConsistentHash::bounded_by) (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded
///   Loads", 2018), which adapts to the traffic.
///
/// ```
/// use tower_outbound::balance::{ConsistentHash, LoadBalanceLayer};
/// use tower_outbound::call::{Affinity, Endpoints};
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let by_user = ConsistentHash::by_header(http::HeaderName::from_static("x-user"));
/// let layer = LoadBalanceLayer::new(endpoints.clone()).rule(by_user.bounded_by(1.25)?);
/// let by_path = ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())));
/// let other = LoadBalanceLayer::new(endpoints).rule(by_path);
/// # drop((layer, other));
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct ConsistentHash {
    key: Key,
    spill_above: u64,
    /// Times the mean.
    bound: Option<f64>,
    ring: Memo<Ring>,
    dice: Dice,
}

enum Key {
    Affinity,
    Header(HeaderName),
    By(Box<dyn Fn(RequestHead<'_>) -> Option<Affinity> + Send + Sync>),
}

/// The points of all candidates, in order.
#[derive(Debug)]
struct Ring {
    candidates: Steady,
    points: Box<[Point]>,
    loads: Loads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: u64,
    /// Which candidate it belongs to.
    number: u32,
    /// For what part of the requests it is there, of [`WHOLE`].
    part: u32,
}

const WHOLE: u32 = u32::MAX;

const PROBES: u64 = 21;
/// Of an endpoint of mean weight. With one alone, some that stand close behind another get next to nothing.
const POINTS: u64 = 4;
/// So that points have nothing to do with how other rules rank endpoints.
const SEED: u64 = 0x52_49_4e_47;

impl Default for ConsistentHash {
    fn default() -> Self {
        ConsistentHash::new()
    }
}

impl ConsistentHash {
    /// By the [`Affinity`] of the request: of an `http::Request` it stands in the extensions.
    pub fn new() -> Self {
        ConsistentHash::going_by(Key::Affinity)
    }

    /// By the value of this header.
    pub fn by_header(name: HeaderName) -> Self {
        ConsistentHash::going_by(Key::Header(name))
    }

    /// By what this makes of the head.
    pub fn by(key: impl Fn(RequestHead<'_>) -> Option<Affinity> + Send + Sync + 'static) -> Self {
        ConsistentHash::going_by(Key::By(Box::new(key)))
    }

    fn going_by(key: Key) -> Self {
        ConsistentHash {
            key,
            spill_above: u64::MAX,
            bound: None,
            ring: Memo::default(),
            dice: Dice::default(),
        }
    }

    /// With that many attempts in flight an endpoint gets no more, as long as there is one with fewer: what belongs
    /// there goes where it would if the endpoint were not there. Default: no limit.
    #[must_use]
    pub fn spill_above(mut self, in_flight: u64) -> Self {
        self.spill_above = in_flight;
        self
    }

    /// With that many times the mean of what is in flight an endpoint gets no more, by its weight and rounded up; at 1.25
    /// with 100 attempts in flight to 10 endpoints it is 13. What belongs there goes where it would if the endpoint were
    /// not there. The nearer to 1, the more even the load, and the more requests are not where they belong. Default: no bound.
    ///
    /// The mean is over endpoints without a veto. What has started since it was worked out is added; what has ended, and
    /// vetoes, are seen to after 100 ms, or earlier, when so many picks have been made that they are an eighth of the
    /// number of endpoints. A pick looks at eight endpoints for that on average.
    ///
    /// # Errors
    ///
    /// If it is below 1.
    pub fn bounded_by(mut self, times_the_mean: f64) -> Result<Self, ConfigError> {
        if !(times_the_mean >= 1.0 && times_the_mean.is_finite()) {
            let fix = "give a number from 1 on, as 1.25";
            return Err(ConfigError::new(
                "ConsistentHash",
                "bounded_by",
                times_the_mean,
                fix,
            ));
        }
        self.bound = Some(times_the_mean);
        Ok(self)
    }

    fn key(&self, candidates: &Candidates<'_>) -> Option<Affinity> {
        match &self.key {
            Key::Affinity => candidates.affinity(),
            Key::Header(name) => candidates.request()?.headers().get(name).map(Affinity::of),
            Key::By(key) => key(candidates.request()?),
        }
    }

    fn nearest(&self, key: Affinity, ring: Option<&Ring>, candidates: &Candidates<'_>) -> Option<usize> {
        let bound = self.bound.map(|factor| {
            let mean = match ring {
                Some(ring) => ring.loads.mean(candidates),
                None => Loads::of(candidates).mean(candidates),
            };
            (factor, mean)
        });
        let is_free = |candidate: &Candidate<'_>| {
            candidate.in_flight() < self.spill_above
                && bound.is_none_or(|(factor, mean)| bound::is_below(candidate, factor, mean))
        };
        let best = |wanted: &dyn Fn(&Candidate<'_>) -> bool| match ring {
            Some(ring) => ring.nearest(key, candidates, wanted),
            None => by_looking_at_all(key, candidates, wanted),
        };
        best(&|candidate| candidate.can_be_had() && is_free(candidate))
            .or_else(|| best(&|candidate| candidate.can_be_had()))
            .or_else(|| best(&|_| true))
    }
}

/// The weight that has [`POINTS`] points, as a power of two: so that they are not many where all weights are alike.
fn weight_of_points(candidates: &Candidates<'_>) -> u32 {
    let weights = candidates.iter().map(|candidate| candidate.endpoint().weight());
    let sum: u64 = weights.map(u64::from).sum();
    let mean = sum.checked_div(candidates.len() as u64).unwrap_or(1);
    mean.checked_ilog2().unwrap_or(0)
}

/// The points of one candidate: at least [`POINTS`], and as many more as it is heavier than the mean. The last one, or all
/// of one that is lighter, are there for a part of the requests.
fn points(candidate: Candidate<'_>, number: u32, weight_of_points: u32) -> impl Iterator<Item = Point> {
    let weight = u64::from(candidate.endpoint().weight());
    let part_of = |weight: u64| ((weight * u64::from(WHOLE)) >> weight_of_points) as u32;
    let whole = (weight * POINTS) >> weight_of_points;
    let (whole, each, rest) = if whole < POINTS {
        (POINTS, part_of(weight), 0)
    } else {
        let rest = weight * POINTS - (whole << weight_of_points);
        (whole, WHOLE, part_of(rest))
    };
    let last = (rest > 0).then_some((whole, rest));
    let all = (0..whole).map(move |ordinal| (ordinal, each)).chain(last);
    all.map(move |(ordinal, part)| Point {
        at: candidate.rank(SEED.wrapping_add(ordinal)),
        number,
        part,
    })
}

impl Point {
    /// Is it there for requests that look from here?
    fn is_there(&self, from: Affinity) -> bool {
        self.part == WHOLE || ((from.with(self.at).get() >> 32) as u32) < self.part
    }
}

/// The shortest way so far, and whose point is at its end.
#[derive(Default)]
struct Shortest {
    /// To points that are there.
    best: Option<(u64, usize)>,
    /// To any: an endpoint may have nothing but a point that is not there.
    any: Option<(u64, usize)>,
}

impl Shortest {
    fn consider(&mut self, from: Affinity, point: &Point) -> bool {
        let way = (point.at.wrapping_sub(from.get()), point.number as usize);
        let shorter = |best: Option<(u64, usize)>| Some(best.map_or(way, |best| way.min(best)));
        self.any = shorter(self.any);
        let is_there = point.is_there(from);
        if is_there {
            self.best = shorter(self.best);
        }
        is_there
    }

    fn number(self) -> Option<usize> {
        let (_, number) = self.best.or(self.any)?;
        Some(number)
    }
}

impl Ring {
    fn of(candidates: &Candidates<'_>) -> Self {
        let weight = weight_of_points(candidates);
        let all = candidates.iter().zip(0..);
        let mut points: Box<[Point]> = all
            .flat_map(|(candidate, number)| points(candidate, number, weight))
            .collect();
        points.sort_unstable();
        Ring {
            candidates: Steady::of(candidates),
            points,
            loads: Loads::of(candidates),
        }
    }

    fn nearest(
        &self,
        key: Affinity,
        candidates: &Candidates<'_>,
        wanted: &dyn Fn(&Candidate<'_>) -> bool,
    ) -> Option<usize> {
        let mut shortest = Shortest::default();
        for probe in 0..PROBES {
            let from = key.with(probe);
            let first = self.points.partition_point(|point| point.at < from.get());
            let (before, after) = self.points.split_at(first);
            let mut ways = after.iter().chain(before).filter(|point| {
                let index = self.candidates.index(point.number as usize, candidates);
                let candidate = index.and_then(|index| candidates.get(index));
                candidate.is_some_and(|candidate| wanted(&candidate))
            });
            // As far as to one that is there.
            if !ways.any(|point| shortest.consider(from, point)) && shortest.any.is_none() {
                return None;
            }
        }
        self.candidates.index(shortest.number()?, candidates)
    }
}

/// The same without a ring, where these are together for one pick or it is not made yet.
#[cold]
fn by_looking_at_all(
    key: Affinity,
    candidates: &Candidates<'_>,
    wanted: &dyn Fn(&Candidate<'_>) -> bool,
) -> Option<usize> {
    let weight = weight_of_points(candidates);
    let mut shortest = Shortest::default();
    for (candidate, number) in candidates
        .iter()
        .zip(0..)
        .filter(|(candidate, _)| wanted(candidate))
    {
        for point in points(candidate, number, weight) {
            for probe in 0..PROBES {
                shortest.consider(key.with(probe), &point);
            }
        }
    }
    shortest.number()
}

impl Rule for ConsistentHash {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let Some(key) = self.key(candidates) else {
            return Some(self.dice.below(candidates.len().max(1)));
        };
        let make = || Ring::of(candidates);
        let nearest = self
            .ring
            .with(candidates, make, |ring| self.nearest(key, ring, candidates));
        // All that are on the ring may have gone.
        nearest.or_else(|| self.nearest(key, None, candidates))
    }
}

impl fmt::Debug for ConsistentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key: &dyn fmt::Debug = match &self.key {
            Key::Affinity => &"affinity",
            Key::Header(name) => name,
            Key::By(_) => &"closure",
        };
        f.debug_struct("ConsistentHash")
            .field("key", key)
            .field("spill_above", &self.spill_above)
            .field("bounded_by", &self.bound)
            .finish_non_exhaustive()
    }
}
