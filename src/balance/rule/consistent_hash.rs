//! The same endpoint for requests that belong together.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use arc_swap::ArcSwapOption;
use http::HeaderName;

use super::{Candidate, Candidates, Rule, dice::Dice};
use crate::call::{Affinity, RequestHead};

/// Sends requests that belong together to one endpoint, as long as it is there: those of one user, session or shard.
///
/// What they have in common is their [`Affinity`], a header, or what a closure makes of the head; a request that has
/// nothing of the kind goes to any endpoint. All processes choose alike, in whatever order they know the endpoints:
/// they go by the [key](crate::call::Endpoint::key). When an endpoint goes, or gets a veto, its requests spread over the
/// others, and nobody else's move; when it comes back they return. A retry goes where the request would if the endpoints
/// that the call has tried were not there.
///
/// It is multi-probe consistent hashing (Appleton and O'Reilly, 2015): each endpoint is one point on a ring, a request is
/// 21, and the shortest way to the next endpoint counts. The fullest endpoint has about 10 % more than its share. A pick
/// looks at some 21 log n points. [Weights](crate::call::Endpoint::weight) are not looked at.
///
/// ```
/// use tower_outbound::balance::{ConsistentHash, LoadBalanceLayer};
/// use tower_outbound::call::{Affinity, Endpoints};
///
/// let endpoints = Endpoints::from_list(["http://10.0.0.1", "http://10.0.0.2"])?;
/// let by_user = ConsistentHash::by_header(http::HeaderName::from_static("x-user"));
/// let layer = LoadBalanceLayer::new(endpoints.clone()).rule(by_user.spill_above(50));
/// let by_path = ConsistentHash::by(|head| Some(Affinity::of(head.uri().path())));
/// let other = LoadBalanceLayer::new(endpoints).rule(by_path);
/// # drop((layer, other));
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct ConsistentHash {
    key: Key,
    spill_above: u64,
    ring: ArcSwapOption<Ring>,
    making: AtomicBool,
    dice: Dice,
}

enum Key {
    Affinity,
    Header(HeaderName),
    By(Box<dyn Fn(RequestHead<'_>) -> Option<Affinity> + Send + Sync>),
}

/// The points of one state of one set, and whose they are.
#[derive(Debug)]
struct Ring {
    roster: u64,
    points: Box<[(u64, u32)]>,
}

const PROBES: u64 = 21;
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
            ring: ArcSwapOption::empty(),
            making: AtomicBool::new(false),
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

    fn key(&self, candidates: &Candidates<'_>) -> Option<Affinity> {
        match &self.key {
            Key::Affinity => candidates.affinity(),
            Key::Header(name) => candidates.request()?.headers().get(name).map(Affinity::of),
            Key::By(key) => key(candidates.request()?),
        }
    }

    /// Whoever comes first does it.
    #[cold]
    fn make(&self, candidates: &Candidates<'_>) {
        if self.making.swap(true, Acquire) {
            return;
        }
        let points = candidates.iter().map(|candidate| candidate.rank(SEED));
        let mut points: Box<[(u64, u32)]> = points.zip(0..).collect();
        points.sort_unstable();
        self.ring.store(Some(Arc::new(Ring {
            roster: candidates.roster_id(),
            points,
        })));
        self.making.store(false, Release);
    }

    fn nearest(&self, key: Affinity, candidates: &Candidates<'_>) -> Option<usize> {
        let is_free = |candidate: &Candidate<'_>| candidate.in_flight() < self.spill_above;
        let best = |key: Affinity, wanted: &dyn Fn(&Candidate<'_>) -> bool| {
            let ring = self.ring.load();
            match ring
                .as_ref()
                .filter(|ring| ring.roster == candidates.roster_id() && candidates.are_all())
            {
                Some(ring) => ring.nearest(key, candidates, wanted),
                None => by_looking_at_all(key, candidates, wanted),
            }
        };
        best(key, &|candidate| candidate.can_be_had() && is_free(candidate))
            .or_else(|| best(key, &|candidate| candidate.can_be_had()))
            .or_else(|| best(key, &|_| true))
    }
}

impl Ring {
    fn nearest(
        &self,
        key: Affinity,
        candidates: &Candidates<'_>,
        wanted: &dyn Fn(&Candidate<'_>) -> bool,
    ) -> Option<usize> {
        let mut best = None;
        for probe in 0..PROBES {
            let from = key.with(probe).get();
            let first = self.points.partition_point(|&(point, _)| point < from);
            let (before, after) = self.points.split_at(first);
            let next = after.iter().chain(before).find_map(|&(point, place)| {
                let candidate = candidates.get(place as usize)?;
                wanted(&candidate).then(|| (point.wrapping_sub(from), place as usize))
            })?;
            best = Some(best.map_or(next, |best| next.min(best)));
        }
        best.map(|(_, place)| place)
    }
}

/// The same without a ring, where some are left out or it is not made yet.
#[cold]
fn by_looking_at_all(
    key: Affinity,
    candidates: &Candidates<'_>,
    wanted: &dyn Fn(&Candidate<'_>) -> bool,
) -> Option<usize> {
    let candidates = candidates.iter().enumerate();
    let ways = candidates
        .filter(|(_, candidate)| wanted(candidate))
        .filter_map(|(index, candidate)| {
            let point = candidate.rank(SEED);
            let ways = (0..PROBES).map(|probe| point.wrapping_sub(key.with(probe).get()));
            Some((ways.min()?, index))
        });
    ways.min().map(|(_, index)| index)
}

impl Rule for ConsistentHash {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let Some(key) = self.key(candidates) else {
            return Some(self.dice.below(candidates.len().max(1)));
        };
        let ring = self.ring.load();
        let is_there = |ring: &Arc<Ring>| ring.roster == candidates.roster_id();
        if candidates.are_all() && !ring.as_ref().is_some_and(is_there) {
            self.make(candidates);
        }
        drop(ring);
        self.nearest(key, candidates)
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
            .finish_non_exhaustive()
    }
}
