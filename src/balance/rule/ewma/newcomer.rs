//! What is expected of an endpoint that is new.

use super::{
    Ewma,
    source::{Seen, Source},
};
use crate::balance::{load::Load, rule::Candidates};

/// What its cost is divided by at first.
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

impl Ewma {
    /// When an attempt that is sent there now is likely to be answered, in seconds, where nothing has been answered, or had
    /// not been for long.
    #[cold]
    pub(super) fn cost_of_newcomer(&self, candidates: &Candidates<'_>, seen: &Seen<'_>) -> f32 {
        let (load, nanos) = (seen.counters.load(), candidates.nanos());
        let open = load.open(nanos);
        let since = load.since_joined(nanos);
        let answers = match load.estimate(nanos) {
            None => self.suppose(candidates, load, seen.late),
            Some((estimate, idle)) if idle < RECENT || open.waiting > 0 => estimate,
            Some((estimate, idle)) => estimate * (-idle / FORGIVEN).exp(),
        };
        let cost = open.cost(answers);
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
    fn suppose(&self, candidates: &Candidates<'_>, load: &Load, late: bool) -> f32 {
        let nanos = candidates.nanos();
        let subset = self.subset(candidates).filter(|_| candidates.are_all());
        let members = subset.and_then(|subset| subset.members.as_ref());
        let estimate = match members {
            None => self.of_peers(candidates, nanos),
            Some(members) => self.of_peers(members, nanos),
        };
        let Some(estimate) = estimate else {
            return UNKNOWN;
        };
        load.suppose(estimate, nanos);
        if late {
            load.join(nanos);
        }
        estimate
    }

    /// The median of those that have no veto, or what is next below: of a few peers one may fail, and the mean would be made
    /// by that one.
    fn of_peers(&self, peers: &impl Source, nanos: u64) -> Option<f32> {
        let mut estimates = [0.0; PEERS];
        let mut known = 0;
        for _ in 0..PEERS {
            let peer = peers.seen(self.dice.below(peers.len()));
            let peer = peer.filter(|peer| peer.endpoint.eligibility().is_eligible());
            let estimate = peer.and_then(|peer| peer.counters.load().estimate(nanos));
            if let (Some((estimate, _)), Some(place)) = (estimate, estimates.get_mut(known)) {
                *place = estimate;
                known += 1;
            }
        }
        let known = estimates.get_mut(..known)?;
        known.sort_unstable_by(f32::total_cmp);
        known.get(known.len().checked_sub(1)? / 2).copied()
    }
}
