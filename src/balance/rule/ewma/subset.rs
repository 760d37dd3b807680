//! The part of a large set that is drawn from.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    Ewma, Size,
    draw::MOST_CHOICES,
    source::{Seen, Source},
};
use crate::balance::{
    roster::Roster,
    rule::{Candidates, memo::Making},
    subset::{Member, Members, Subset},
};

/// So many, if no more are needed.
pub(super) const SUBSET: usize = 18;
/// So many endpoints are wanted for each attempt in flight.
const FOR_EACH_IN_FLIGHT: f32 = 2.0;
/// Nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000_000;
/// If one of them has gone, or is described anew.
const MAKE_AGAIN: u64 = 20_000_000;
/// If another rule has not looked for so long after its subset, it is given up.
const LEFT_ALONE: u64 = 10 * LOOK_AGAIN;
/// Such a share of the set is no part of it.
const NEARLY_ALL: f32 = 0.9;
const MOST_LOOKS: usize = 512;

impl Source for Members {
    #[inline(always)]
    fn len(&self) -> usize {
        Members::len(self)
    }

    #[inline(always)]
    fn seen(&self, index: usize) -> Option<Seen<'_>> {
        self.get(index).map(Seen::member)
    }
}

/// Would so many be a part of so many?
fn is_part(size: usize, n: usize) -> bool {
    size.saturating_mul(3) / 2 < n
}

impl<'a> Seen<'a> {
    #[inline(always)]
    pub(super) fn member(member: &'a Member) -> Self {
        Seen {
            endpoint: &member.entry().endpoint,
            counters: member.counters(),
            late: member.entry().late,
        }
    }
}

impl Ewma {
    /// The subset, if there is one and it is of this rule.
    #[inline]
    pub(super) fn subset<'a>(&self, candidates: &Candidates<'a>) -> Option<&'a Subset> {
        candidates.subset().filter(|subset| self.owns(subset))
    }

    #[inline]
    fn owns(&self, subset: &Subset) -> bool {
        ptr::eq(subset.owner.as_ptr(), Arc::as_ptr(&self.id))
    }

    /// Should it be made, or looked at again? A set has one subset: if that is another rule's, there is none for this one,
    /// as long as the other comes to look after its own.
    #[inline]
    pub(super) fn is_due(&self, candidates: &Candidates<'_>) -> bool {
        let since = |then| candidates.nanos().saturating_sub(then);
        match candidates.subset() {
            None => true,
            Some(subset) if self.owns(subset) => {
                since(subset.at) >= LOOK_AGAIN
                    || (subset.has_lost.load(Relaxed) && since(subset.made) >= MAKE_AGAIN)
            }
            Some(other) => since(other.at) >= LEFT_ALONE || other.owner.strong_count() == 0,
        }
    }

    /// Whoever comes first does it; the others go by what there is.
    #[cold]
    pub(super) fn renew(&self, candidates: &Candidates<'_>) -> Option<Arc<Subset>> {
        let _making = Making::begin(&self.making)?;
        // A pick may ask several times, and others have come before.
        if let Some(newer) = candidates.newer_subset() {
            // One of a later state of the set may have members that this pick does not know.
            let is_of_it = newer.roster == candidates.roster_id();
            return Some(newer).filter(|newer| is_of_it && self.owns(newer));
        }
        let now = candidates.nanos();
        let subset = match self.subset(candidates) {
            Some(old) if now.saturating_sub(old.at) >= LOOK_AGAIN => self.look_again(candidates, old),
            Some(old) => self.make(candidates, old.at, old.in_flight, old.wanted),
            None => self.make(candidates, now, 0.0, SUBSET),
        };
        let subset = Arc::new(subset);
        candidates.keep_subset(&subset);
        Some(subset)
    }

    /// Is it still as large as it should be?
    fn look_again(&self, candidates: &Candidates<'_>, old: &Subset) -> Subset {
        let (mut in_flight, mut eligible) = (0, 0);
        let members = old.members.as_ref();
        let n = members.map_or(candidates.len(), Members::len);
        // Of very many some will do.
        let step = n.div_ceil(MOST_LOOKS);
        for index in (0..n).step_by(step.max(1)) {
            let seen = match members {
                None => candidates.seen(index),
                Some(members) => members.get(index).map(Seen::member),
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
        let (are_enough, are_few) = (
            eligible * 4 >= size.saturating_mul(3),
            eligible * 3 <= size.saturating_mul(4),
        );
        // All are drawn from where hardly more than so many can be had.
        let fits = old.roster == candidates.roster_id()
            && match members {
                None => are_few || !is_part(size, n),
                Some(_) => are_enough && are_few,
            };
        if wanted == old.wanted && fits {
            return Subset {
                at: candidates.nanos(),
                in_flight,
                has_lost: AtomicBool::new(false),
                owner: old.owner.clone(),
                members: old.members.clone(),
                ..*old
            };
        }
        self.make(candidates, candidates.nanos(), in_flight, wanted)
    }

    pub(super) fn size(&self, wanted: usize) -> usize {
        match self.settings.size {
            Size::AsNeeded => wanted,
            Size::All => usize::MAX,
            Size::Fixed(size) => size,
        }
    }

    fn make(&self, candidates: &Candidates<'_>, at: u64, in_flight: f32, wanted: usize) -> Subset {
        let size = self.size(wanted);
        let n = candidates.len();
        let members = is_part(size, n).then(|| self.first(candidates.roster(), size));
        Subset {
            owner: Arc::downgrade(&self.id),
            roster: candidates.roster_id(),
            made: candidates.nanos(),
            at,
            has_lost: AtomicBool::new(false),
            in_flight,
            wanted,
            // With those that may not be picked they may be nearly all. That is below what makes it be made anew.
            members: members.filter(|members| members.len() as f32 <= NEARLY_ALL * n as f32),
        }
    }

    /// Those that rank first with this seed: so many as may be picked, and those between them which may not.
    fn first(&self, roster: &Roster, size: usize) -> Members {
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
                let places = ranked.iter().map(|&(_, place)| place as usize);
                return Members::of(roster, places, MOST_CHOICES);
            }
            limit = limit.saturating_mul(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use http::Request;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        balance::{
            figures::Counters,
            pick::{Asked, pick},
            roster::Pool,
            rule::Rule,
        },
        call::{Endpoint, Endpoints, Veto},
    };

    fn endpoints(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Endpoint> {
        numbers.map(|n| Endpoint::new(format!("http://h{n}")).unwrap())
    }

    fn picked(pool: &Pool, rule: &impl Rule) -> Weak<Counters> {
        let now = pool.epoch().moment(Instant::now());
        let (latest, request) = (pool.roster(), Request::new(()));
        let (entry, _) = pick(rule, pool, &latest, &request, &Asked::read(), &[], &now).unwrap();
        Arc::downgrade(entry.counters())
    }

    #[test]
    fn nothing_is_kept_of_endpoints_that_have_gone_however_small_the_set_has_become() {
        for left in [0, 1, 3, 18] {
            let set: Endpoints = endpoints(0..100).collect();
            let pool = Pool::new(set.clone());
            let rule = Ewma::seeded(1);
            let gone = picked(&pool, &rule);
            assert!(pool.roster().subset().is_some() && gone.upgrade().is_some());
            set.replace(endpoints(100..100 + left));
            assert!(gone.upgrade().is_none(), "{left}");
        }
    }

    #[test]
    fn a_part_goes_with_its_rule_and_another_rule_has_one_then() {
        let set: Endpoints = endpoints(0..100).collect();
        let pool = Pool::new(set.clone());
        let (first, second) = (Ewma::seeded(1), Ewma::seeded(2));
        let is_of = |rule: &Ewma| pool.roster().subset().is_some_and(|subset| rule.owns(subset));
        picked(&pool, &first);
        picked(&pool, &second);
        assert!(is_of(&first));
        drop(first);
        picked(&pool, &second);
        assert!(is_of(&second));
        drop(second);
        set.remove("http://h1");
        assert!(pool.roster().subset().is_none());
    }

    /// Does something with what a rule is shown.
    struct Shown<F>(F);

    impl<F: Fn(&Candidates<'_>)> Rule for Shown<F> {
        fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
            (self.0)(candidates);
            Some(0)
        }
    }

    #[test]
    fn a_pick_that_asks_several_times_makes_a_part_once() {
        let pool = Pool::new(endpoints(0..100).collect());
        let rule = Ewma::seeded(1);
        let shown = Shown(|candidates: &Candidates<'_>| {
            let made = [(); 2].map(|()| rule.renew(candidates).unwrap());
            assert!(Arc::ptr_eq(&made[0], &made[1]));
        });
        picked(&pool, &shown);
    }

    #[test]
    fn how_many_are_wanted_is_known_still_where_a_set_has_become_smaller_than_the_part() {
        let set: Endpoints = endpoints(0..400).collect();
        let pool = Pool::new(set.clone());
        let rule = Ewma::seeded(1);
        let shown = Shown(|candidates: &Candidates<'_>| {
            let part = rule.make(candidates, candidates.nanos(), 120.0, 240);
            candidates.keep_subset(&Arc::new(part));
        });
        let gone = picked(&pool, &shown);
        let members = || pool.roster().subset().unwrap().members.as_ref().map(Members::len);
        assert_eq!(members(), Some(240));
        set.replace(endpoints(200..400));
        assert_eq!(members(), None);
        assert_eq!(pool.roster().subset().unwrap().wanted, 240);
        assert!(gone.upgrade().is_none());
    }

    #[test]
    fn all_are_drawn_from_where_a_part_would_be_nearly_all_for_their_vetoes() {
        let set: Endpoints = endpoints(0..100).collect();
        let pool = Pool::new(set.clone());
        let rule = Ewma::seeded(1);
        let forbid = |endpoint: &Endpoint| endpoint.eligibility().forbid(Veto::User);
        set.snapshot().endpoints().iter().skip(10).for_each(forbid);
        picked(&pool, &rule);
        assert!(pool.roster().subset().unwrap().members.is_none());
    }

    #[test]
    fn however_many_have_a_veto_a_part_is_not_made_anew_at_each_look() {
        for n in [28, 40, 100] {
            for vetoes in 0..n {
                let set: Endpoints = endpoints(0..n).collect();
                let forbid = |endpoint: &Endpoint| endpoint.eligibility().forbid(Veto::User);
                let snapshot = set.snapshot();
                snapshot.endpoints().iter().take(vetoes as usize).for_each(forbid);
                let pool = Pool::new(set.clone());
                let rule = Ewma::seeded(1);
                let looked_again = Shown(|candidates: &Candidates<'_>| {
                    if !candidates.are_all() {
                        return;
                    }
                    let made = rule.make(candidates, candidates.nanos(), 0.0, SUBSET);
                    let later = Candidates {
                        now: &pool
                            .epoch()
                            .moment(candidates.now() + tokio::time::Duration::from_secs(1)),
                        ..*candidates
                    };
                    let again = rule.look_again(&later, &made);
                    assert_eq!(again.made, made.made, "{vetoes} of {n}");
                });
                picked(&pool, &looked_again);
            }
        }
    }
}
