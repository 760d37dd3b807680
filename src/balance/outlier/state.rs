//! Who is ejected, and what becomes of them. All of it happens under one lock, so that vetoes, words and counts agree.

use std::{ptr, sync::Arc};

use fastrand::Rng;
use indexmap::IndexMap;
use tokio::time::{Duration, Instant};

use super::{
    EjectionCause, OutlierEjection,
    rates::{Rate, outliers},
    watch::{Phase, Sign, Ticket, Watch, nanos},
};
use crate::{
    balance::{
        figures::Counters,
        roster::{Entry, Roster},
    },
    call::Endpoint,
};

/// While any endpoint is ejected the set is surveyed that often, for the vetoes of others, in nanoseconds; ...
const LOOK_AGAIN: u64 = 1_000_000_000;
/// ... and after changes as soon as this allows, as there may be thousands in a second.
const KEEP_UP: u64 = 100_000_000;

/// Times are in nanoseconds since the first look.
#[derive(Debug)]
pub(super) struct State {
    settings: Arc<OutlierEjection>,
    /// By where their watch is.
    ejected: IndexMap<usize, Ejected>,
    /// Of the set, at the last look.
    size: usize,
    /// The roster that was surveyed last, unless something has changed since that a survey is about; and when that was.
    surveyed: Option<u64>,
    surveyed_at: Option<u64>,
    panicking: bool,
    /// Up to here the rates have been compared.
    swept: u64,
    probes: u32,
    lots: Rng,
    news: Vec<News>,
}

/// One that is ejected, or about to return.
#[derive(Debug)]
pub(super) struct Ejected {
    watch: Arc<Watch>,
    counters: Arc<Counters>,
    endpoint: Endpoint,
    /// Is our veto on the endpoint?
    vetoed: bool,
    pub(super) cause: EjectionCause,
    pub(super) since: u64,
    pub(super) until: u64,
    probe: Option<Probe>,
    /// Probes that have succeeded since.
    succeeded: u32,
    /// The roster that it was last found in.
    seen_in: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    number: u32,
    /// When another may go out.
    until: u64,
}

/// What is to be told of.
#[derive(Debug)]
pub(super) enum News {
    Ejected {
        endpoint: Endpoint,
        cause: EjectionCause,
        time: Duration,
        in_a_row: u32,
    },
    Returned {
        endpoint: Endpoint,
    },
    /// Ejections are disregarded, or not any more.
    Panic {
        begins: bool,
        usable: usize,
        size: usize,
    },
}

impl Ejected {
    /// The veto stands unless all are disregarded, or the next call is a probe.
    fn show(&mut self, panicking: bool) {
        let phase = self.watch.word().phase();
        let veto = !panicking && matches!(phase, Phase::Out | Phase::Taken);
        if veto != self.vetoed {
            self.vetoed = veto;
            if veto {
                self.endpoint.eligibility().eject();
            } else {
                self.endpoint.eligibility().readmit();
            }
        }
    }

    fn enter(&mut self, phase: Phase, panicking: bool) {
        self.watch.set(self.watch.word().now(phase));
        self.show(panicking);
    }
}

impl Drop for Ejected {
    fn drop(&mut self) {
        if self.vetoed {
            self.endpoint.eligibility().readmit();
        }
    }
}

/// How one is found that is ejected.
pub(super) fn key(watch: &Watch) -> usize {
    ptr::from_ref(watch) as usize
}

impl State {
    pub(super) fn new(settings: OutlierEjection) -> Self {
        State {
            ejected: IndexMap::new(),
            size: 0,
            surveyed: None,
            surveyed_at: None,
            panicking: false,
            swept: 0,
            probes: 0,
            lots: settings.seed.map_or_else(Rng::new, Rng::with_seed),
            news: Vec::new(),
            settings: Arc::new(settings),
        }
    }

    /// What has happened since this was asked last.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(super) fn is_panicking(&self) -> bool {
        self.panicking
    }

    pub(super) fn get(&self, watch: &Watch) -> Option<&Ejected> {
        self.ejected.get(&key(watch))
    }

    /// Does all that is due now, by a roster of the set. What comes back is when to look again.
    pub(super) fn look(&mut self, roster: &Roster, now: u64) -> u64 {
        self.size = roster.len();
        self.sweep(roster, now);
        for ejected in self.ejected.values_mut() {
            let phase = ejected.watch.word().phase();
            if phase == Phase::Out && ejected.until <= now {
                ejected.enter(Phase::Free, self.panicking);
            } else if ejected.probe.is_some_and(|probe| probe.until <= now) {
                ejected.probe = None;
                ejected.enter(Phase::Free, self.panicking);
            }
        }
        let survey = self.survey(roster, now);
        self.next().min(survey)
    }

    fn next(&self) -> u64 {
        let mut next = self.swept.saturating_add(nanos(self.settings.interval));
        for ejected in self.ejected.values() {
            let phase = ejected.watch.word().phase();
            let until = match ejected.probe {
                Some(probe) => probe.until,
                None if phase == Phase::Out => ejected.until,
                None => continue,
            };
            next = next.min(until);
        }
        next
    }

    /// Looks through the set, while any is ejected: where those are that are, and how many may be picked. What comes back
    /// is when to do so again.
    fn survey(&mut self, roster: &Roster, now: u64) -> u64 {
        if self.ejected.is_empty() {
            self.panic(false, roster.len(), roster.len());
            return u64::MAX;
        }
        let id = roster.id();
        let wait = if self.surveyed == Some(id) {
            LOOK_AGAIN
        } else {
            KEEP_UP
        };
        let due = self.surveyed_at.map_or(0, |at| at.saturating_add(wait));
        if now < due {
            return due;
        }
        self.surveyed = Some(id);
        self.surveyed_at = Some(now);
        let mut usable = 0;
        for entry in roster.iter() {
            let watch = entry.counters().watch();
            match watch.filter(|watch| watch.word().phase() != Phase::In) {
                Some(watch) => self.find(watch, &entry.endpoint, id),
                None => usable += usize::from(entry.endpoint.eligibility().is_eligible()),
            }
        }
        // Those that are dropped take their vetoes along.
        self.ejected.retain(|_, ejected| ejected.seen_in == Some(id));
        self.keep_to_the_most(now);
        self.panic(self.settings.is_panic(usable, self.size), usable, self.size);
        now.saturating_add(if self.surveyed.is_some() {
            LOOK_AGAIN
        } else {
            KEEP_UP
        })
    }

    /// One that is ejected is in the set, as this endpoint.
    fn find(&mut self, watch: &Watch, endpoint: &Endpoint, roster: u64) {
        let Some(ejected) = self.ejected.get_mut(&key(watch)) else {
            return;
        };
        ejected.seen_in = Some(roster);
        if ejected.endpoint != *endpoint {
            if ejected.vetoed {
                ejected.endpoint.eligibility().readmit();
                ejected.vetoed = false;
            }
            ejected.endpoint = endpoint.clone();
            ejected.show(self.panicking);
        }
    }

    /// After the set has become smaller.
    fn keep_to_the_most(&mut self, now: u64) {
        while self.ejected.len() > self.settings.most_of(self.size) {
            let first = self.ejected.iter().min_by_key(|(_, ejected)| ejected.until);
            let Some(watch) = first.map(|(_, ejected)| ejected.watch.clone()) else {
                return;
            };
            self.let_in(&watch, now);
        }
    }

    /// Are ejections to be disregarded?
    fn panic(&mut self, panicking: bool, usable: usize, size: usize) {
        if panicking == self.panicking {
            return;
        }
        self.panicking = panicking;
        for ejected in self.ejected.values_mut() {
            ejected.show(panicking);
        }
        self.news.push(News::Panic {
            begins: panicking,
            usable,
            size,
        });
    }

    /// Compares the rates of an interval that has ended, and forgives.
    fn sweep(&mut self, roster: &Roster, now: u64) {
        let interval = nanos(self.settings.interval);
        let before = self.swept;
        let intervals = now.saturating_sub(before).checked_div(interval).unwrap_or(0);
        if intervals == 0 {
            return;
        }
        self.swept = before.saturating_add(intervals.saturating_mul(interval));
        let settings = self.settings.clone();
        if settings.compares() {
            let watched = roster.iter().filter_map(|entry| {
                let watch = entry.counters().watch()?;
                let tally = watch.take_tally();
                let counts = watch.word().phase() == Phase::In && tally.successes + tally.failures > 0;
                counts.then_some((tally, entry))
            });
            let (rates, entries): (Vec<Rate>, Vec<&Entry>) = watched.unzip();
            for (index, cause) in outliers(&settings, roster.len(), &rates) {
                if let Some((entry, watch)) = entries
                    .get(index)
                    .and_then(|entry| Some((entry, entry.counters().watch()?)))
                {
                    self.eject(watch, entry.counters(), &entry.endpoint, cause, now);
                }
            }
        }
        for entry in roster.iter() {
            if let Some(watch) = entry.counters().watch() {
                let clean = self.swept.saturating_sub(watch.returned().max(before));
                watch.forgive(clean.checked_div(interval).unwrap_or(0));
            }
        }
    }

    /// Ejects one that is in, if there is room.
    pub(super) fn eject(
        &mut self,
        watch: &Arc<Watch>,
        counters: &Arc<Counters>,
        endpoint: &Endpoint,
        cause: EjectionCause,
        now: u64,
    ) -> bool {
        let is_in = watch.word().phase() == Phase::In;
        if !is_in || self.ejected.len() >= self.settings.most_of(self.size) {
            return false;
        }
        let ejected = Ejected {
            watch: watch.clone(),
            counters: counters.clone(),
            endpoint: endpoint.clone(),
            vetoed: false,
            cause,
            since: now,
            until: now,
            probe: None,
            succeeded: 0,
            seen_in: None,
        };
        self.ejected.insert(key(watch), ejected);
        self.send_out(watch, cause, now);
        // It may have gone, or have another description, since the attempt was made; and there is one less to be picked.
        self.surveyed = None;
        true
    }

    /// One that is ejected begins its time.
    fn send_out(&mut self, watch: &Watch, cause: EjectionCause, now: u64) {
        let Some(ejected) = self.ejected.get_mut(&key(watch)) else {
            return;
        };
        let in_a_row = watch.one_more();
        let time = self.settings.time(in_a_row, self.lots.f64());
        ejected.cause = cause;
        ejected.since = now;
        ejected.until = now.saturating_add(nanos(time));
        ejected.probe = None;
        ejected.succeeded = 0;
        watch.set(watch.word().next(Phase::Out));
        ejected.show(self.panicking);
        self.news.push(News::Ejected {
            endpoint: ejected.endpoint.clone(),
            cause,
            time,
            in_a_row,
        });
    }

    /// It is picked like any other again.
    fn let_in(&mut self, watch: &Watch, now: u64) {
        let Some(ejected) = self.ejected.swap_remove(&key(watch)) else {
            return;
        };
        watch.come_back(now);
        self.surveyed = None;
        self.news.push(News::Returned {
            endpoint: ejected.endpoint.clone(),
        });
    }

    /// `None`: another probe was faster, or nothing is probed any more.
    /// With it comes when to look for its end.
    pub(super) fn take_probe(&mut self, watch: &Watch, now: u64) -> Option<(Ticket, u64)> {
        let word = watch.word();
        let ejected = self.ejected.get_mut(&key(watch))?;
        if word.phase() != Phase::Free {
            return None;
        }
        self.probes = self.probes.wrapping_add(1).max(1);
        let until = now.saturating_add(nanos(self.settings.base));
        ejected.probe = Some(Probe {
            number: self.probes,
            until,
        });
        ejected.enter(Phase::Taken, self.panicking);
        Some((Ticket::probe(word, self.probes), until))
    }

    /// What comes back is when to look again.
    pub(super) fn probe_ended(
        &mut self,
        watch: &Watch,
        ticket: Ticket,
        sign: Sign,
        now: u64,
        at: Instant,
    ) -> Option<u64> {
        let ejected = self.ejected.get_mut(&key(watch))?;
        if !ticket.is_of(watch.word()) {
            return None;
        }
        match sign {
            Sign::Ill => {
                self.send_out(watch, EjectionCause::ProbeFailed, now);
                return self.get(watch).map(|ejected| ejected.until);
            }
            Sign::Well => ejected.succeeded += 1,
            Sign::Nothing => {}
        }
        if ejected.succeeded >= self.settings.probe_successes {
            ejected.counters.begin_slowly(at);
            self.let_in(watch, now);
            // It may be the one that there were too few of.
            return Some(now);
        }
        if ejected.probe.is_some_and(|probe| probe.number == ticket.number()) {
            ejected.probe = None;
            ejected.enter(Phase::Free, self.panicking);
        }
        None
    }

    /// Nobody is ejected any more.
    pub(super) fn close(&mut self, now: u64) {
        for (_, ejected) in self.ejected.drain(..) {
            ejected.watch.come_back(now);
        }
    }
}
