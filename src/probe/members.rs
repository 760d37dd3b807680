//! Who is asked when, and what has been heard. Time and dice come from outside.

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;
use futures_util::future::{AbortHandle, AbortRegistration};
use tokio::time::Instant;

use super::{ask::NotWell, settings::ActiveProbes};
use crate::call::{Endpoint, Veto, make_room};

/// Within which share of the interval a new endpoint is asked for the first time.
const SOON: f64 = 0.1;

/// The endpoints of the set, as far as it has been looked at. Dropping it takes all vetoes back.
#[derive(Debug)]
pub(super) struct Members {
    settings: ActiveProbes,
    dice: Rng,
    known: HashMap<Box<str>, Member>,
    /// Who is to be asked next. The second number tells those apart that are due at one time.
    due: BTreeMap<(Instant, u64), Endpoint>,
    /// How many members there have been.
    numbers: u64,
    /// How often the set has been looked at.
    looks: u64,
}

#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    number: u64,
    next: Next,
    /// Has its phase been drawn?
    in_phase: bool,
    failures: u32,
    successes: u32,
    forbidden: bool,
    /// The look that it was seen at last.
    seen: u64,
}

#[derive(Debug)]
enum Next {
    /// It is asked at this time.
    At(Instant),
    /// It is being asked.
    Now(AbortHandle),
}

/// A probe to be made.
pub(super) struct Question {
    pub(super) endpoint: Endpoint,
    pub(super) who: Asked,
    pub(super) registration: AbortRegistration,
}

/// Which probe it was.
#[derive(Debug)]
pub(super) struct Asked {
    key: Box<str>,
    number: u64,
    started: Instant,
}

impl Members {
    pub(super) fn new(settings: ActiveProbes, dice: Rng) -> Self {
        Members {
            settings,
            dice,
            known: HashMap::new(),
            due: BTreeMap::new(),
            numbers: 0,
            looks: 0,
        }
    }

    /// These are the endpoints now.
    pub(super) fn follow<'a>(&mut self, endpoints: impl Iterator<Item = &'a Endpoint>, now: Instant) {
        self.looks += 1;
        let mut count = 0;
        for endpoint in endpoints {
            count += 1;
            match self.known.get_mut(endpoint.key()) {
                Some(member) if member.endpoint == *endpoint => member.seen = self.looks,
                Some(member) if is_at_the_same_place(&member.endpoint, endpoint) => {
                    // The same server by another description. What is known of it holds.
                    if member.forbidden {
                        endpoint.eligibility().forbid(Veto::Probe);
                        member.endpoint.eligibility().allow(Veto::Probe);
                    }
                    member.endpoint = endpoint.clone();
                    member.seen = self.looks;
                    if let Next::At(at) = member.next {
                        self.due.insert((at, member.number), endpoint.clone());
                    }
                }
                Some(_) => {
                    if let Some(old) = self.known.remove(endpoint.key()) {
                        old.leave(&mut self.due);
                    }
                    self.join(endpoint, now);
                }
                None => self.join(endpoint, now),
            }
        }
        if self.known.len() > count {
            let (looks, due) = (self.looks, &mut self.due);
            self.known.retain(|_, member| {
                let stays = member.seen == looks;
                if !stays {
                    member.leave(due);
                }
                stays
            });
        }
    }

    fn join(&mut self, endpoint: &Endpoint, now: Instant) {
        let at = now + self.settings.interval.mul_f64(self.dice.f64() * SOON);
        self.numbers += 1;
        self.due.insert((at, self.numbers), endpoint.clone());
        let member = Member {
            endpoint: endpoint.clone(),
            number: self.numbers,
            next: Next::At(at),
            in_phase: false,
            failures: 0,
            successes: 0,
            forbidden: false,
            seen: self.looks,
        };
        make_room(&mut self.known);
        self.known.insert(endpoint.key().into(), member);
    }

    /// When the next one is to be asked.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|(&(at, _), _)| at)
    }

    /// One that is to be asked now.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Question> {
        let first = self.due.first_entry().filter(|first| first.key().0 <= now)?;
        let (_, number) = *first.key();
        let endpoint = first.remove();
        let (handle, registration) = AbortHandle::new_pair();
        let member = self.known.get_mut(endpoint.key())?;
        member.next = Next::Now(handle);
        Some(Question {
            who: Asked {
                key: endpoint.key().into(),
                number,
                started: now,
            },
            endpoint,
            registration,
        })
    }

    /// What one has answered.
    pub(super) fn hear(&mut self, asked: &Asked, answer: Result<(), NotWell>, now: Instant) {
        let Some(member) = self.known.get_mut(&asked.key) else {
            return;
        };
        if member.number != asked.number {
            return;
        }
        member.hear(answer, &self.settings);
        let interval = self.settings.interval;
        let pause = if member.in_phase {
            interval.mul_f64(1.0 + self.settings.jitter * (2.0 * self.dice.f64() - 1.0))
        } else {
            // From here on it has a phase of its own.
            member.in_phase = true;
            interval.mul_f64(self.dice.f64())
        };
        let at = (asked.started + pause).max(now);
        member.next = Next::At(at);
        self.due.insert((at, member.number), member.endpoint.clone());
    }

    /// What is being asked has come to nothing. It is asked anew.
    pub(super) fn ask_again(&mut self, now: Instant) {
        for member in self.known.values_mut() {
            if let Next::Now(_) = member.next {
                member.next = Next::At(now);
                self.due.insert((now, member.number), member.endpoint.clone());
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.known.len(), self.due.len())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in self.known.values() {
            member.take_back();
        }
    }
}

impl Member {
    fn hear(&mut self, answer: Result<(), NotWell>, settings: &ActiveProbes) {
        match answer {
            Ok(()) => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                if self.forbidden && self.successes >= settings.successes {
                    self.forbidden = false;
                    self.endpoint.eligibility().allow(Veto::Probe);
                    tracing::info!(
                        endpoint = self.endpoint.key(),
                        "probes say that an endpoint is well"
                    );
                }
            }
            Err(why) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                if self.failures >= settings.failures {
                    if !self.forbidden {
                        let endpoint = self.endpoint.key();
                        tracing::warn!(endpoint, %why, "probes say that an endpoint is not well");
                    }
                    self.forbidden = true;
                    // Each time: somebody else may have taken it back.
                    self.endpoint.eligibility().forbid(Veto::Probe);
                }
            }
        }
    }

    fn leave(&self, due: &mut BTreeMap<(Instant, u64), Endpoint>) {
        match &self.next {
            Next::At(at) => {
                due.remove(&(*at, self.number));
            }
            Next::Now(probe) => probe.abort(),
        }
        self.take_back();
    }

    fn take_back(&self) {
        if self.forbidden {
            self.endpoint.eligibility().allow(Veto::Probe);
        }
    }
}

fn is_at_the_same_place(one: &Endpoint, other: &Endpoint) -> bool {
    one.authority() == other.authority() && one.scheme() == other.scheme()
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use proptest::prelude::*;
    use tokio::time::Duration;

    use super::*;

    #[derive(Debug, Clone)]
    enum Op {
        /// The set holds these, some of them by another description.
        Follow(Vec<(u8, u32)>),
        /// So many milliseconds pass, and up to so many are asked.
        Ask(u64, usize),
        /// One of those being asked answers.
        Hear(prop::sample::Index, bool),
        Pause,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            prop::collection::vec((0..6_u8, 1..3_u32), 0..6).prop_map(Op::Follow),
            (0..20_000_u64, 0..4_usize).prop_map(|(millis, most)| Op::Ask(millis, most)),
            (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, well)| Op::Hear(which, well)),
            Just(Op::Pause),
        ]
    }

    proptest! {
        #[test]
        fn each_is_due_or_being_asked_and_no_veto_is_left_of_those_that_have_gone(
            ops in prop::collection::vec(op(), 0..60),
            seed in any::<u64>(),
        ) {
            let make = |key: u8, weight: u32| Endpoint::builder(format!("http://h{key}")).weight(weight).build().unwrap();
            let veto = |endpoint: &Endpoint| endpoint.eligibility().is_forbidden_by(Veto::Probe);
            let settings = ActiveProbes::builder().failures(2).successes(2).build().unwrap();
            let mut members = Members::new(settings, Rng::with_seed(seed));
            let (mut now, mut set, mut gone) = (Instant::now(), Vec::<Endpoint>::new(), Vec::new());
            let mut open: Vec<Asked> = Vec::new();
            for op in ops {
                match op {
                    Op::Follow(next) => {
                        let mut after: Vec<Endpoint> = Vec::new();
                        for (key, weight) in next {
                            let one = make(key, weight);
                            if after.iter().all(|other| other.key() != one.key()) {
                                let same = set.iter().find(|old| old.describes_the_same(&one));
                                after.push(same.cloned().unwrap_or(one));
                            }
                        }
                        let before: Vec<_> = set.iter().map(|one| (one.key().to_owned(), veto(one))).collect();
                        gone.extend(set.into_iter().filter(|old| !after.contains(old)));
                        set = after;
                        members.follow(set.iter(), now);
                        for one in &set {
                            let was = before.iter().find(|(key, _)| *key == one.key()).is_some_and(|(_, veto)| *veto);
                            prop_assert_eq!(veto(one), was, "a veto follows its server");
                        }
                    }
                    Op::Ask(millis, most) => {
                        now += Duration::from_millis(millis);
                        for _ in 0..most {
                            let Some(question) = members.ask(now) else { break };
                            prop_assert!(set.contains(&question.endpoint), "none is asked that has gone");
                            open.push(question.who);
                        }
                    }
                    Op::Hear(which, well) => {
                        if !open.is_empty() {
                            let asked = open.swap_remove(which.index(open.len()));
                            let answer = if well { Ok(()) } else { Err(NotWell::Panicked) };
                            members.hear(&asked, answer, now);
                        }
                    }
                    Op::Pause => {
                        open.clear();
                        members.ask_again(now);
                    }
                }
                open.retain(|asked| {
                    members.known.get(&asked.key).is_some_and(|member| member.number == asked.number)
                });
                prop_assert_eq!(members.len(), (set.len(), set.len() - open.len()));
                prop_assert!(!gone.iter().any(veto));
                let latest = now + Duration::from_secs(11);
                prop_assert!(members.due.keys().all(|&(at, _)| at <= latest));
            }
            drop(members);
            prop_assert!(!set.iter().any(veto));
        }
    }

    #[test]
    fn however_many_come_and_go_no_more_room_is_kept_for_them() {
        let endpoint = |n: usize| Endpoint::new(format!("http://h{n}")).unwrap();
        let settings = ActiveProbes::builder().build().unwrap();
        let mut members = Members::new(settings, Rng::with_seed(1));
        let now = Instant::now();
        let mut set: Vec<Endpoint> = (0..80).map(endpoint).collect();
        members.follow(set.iter(), now);
        let before = members.known.capacity();
        let mut dice = Rng::with_seed(2);
        for n in 80..5_000 {
            let lot = dice.usize(..set.len());
            set[lot] = endpoint(n);
            members.follow(set.iter(), now);
            assert!(members.known.capacity() <= before, "after {n}");
        }
        assert_eq!(members.len(), (set.len(), set.len()));
    }
}
