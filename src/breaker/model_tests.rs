//! The rules and the several probes against models that keep every outcome and recompute everything.

use std::{sync::Barrier, thread, time::Duration};

use proptest::prelude::*;

use super::{
    Breaker, Cause,
    engine::{Change, Engine, Gate, More, Settings},
    judge::Judge,
    tests::traces,
    window::BUCKETS,
    word::Word,
};
use crate::call::{CircuitState, Verdict};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const WINDOW: u64 = SECOND;
const SLEEP: u64 = 500 * MILLI;
const LEASE: u64 = 800 * MILLI;
const SLOW: u64 = 10 * MILLI;

fn settings(judge: Judge, more: More) -> Settings {
    Settings {
        judge,
        window: Duration::from_nanos(WINDOW),
        sleep_window: Duration::from_nanos(SLEEP),
        probe_lease: Duration::from_nanos(LEASE),
        enabled: true,
        hystrix: None,
        lanes: 2,
        more,
    }
}

fn admit(engine: &Engine, now: u64) -> Result<(Word, Option<Change>), Gate> {
    match engine.look(|| now) {
        Gate::Pass(word) => Ok((word, None)),
        Gate::Probe => engine.take_probe(|| now).map(|change| (change.to, Some(change))),
        reject => Err(reject),
    }
}

fn settle(engine: &Engine, word: Word, began: u64, verdict: Verdict, now: u64) -> Option<Change> {
    let step = engine.settle_since(began, word, 0, verdict, || now)?;
    engine.take(step, word, 0, now)
}

/// What may be set, as the user says it.
#[derive(Debug, Clone, Copy)]
struct Rules {
    volume: u64,
    percent: Option<u64>,
    slow_percent: Option<u64>,
    run: Option<u64>,
    by_time: bool,
}

impl Rules {
    fn judge(self, last: u32) -> Judge {
        let mut judge = match self.percent {
            Some(percent) => Judge::new(self.volume as u32, percent as u32),
            None => Judge::new(self.volume as u32, 100).without_error_percent(),
        };
        if let Some(percent) = self.slow_percent {
            judge = judge.with_slow_percent(percent as u32);
        }
        if let Some(run) = self.run {
            judge = judge.with_run(run as u32);
        }
        judge.with_windows(self.by_time, last > 0)
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let percent = || prop_oneof![Just(50), Just(100), 1..=100u64];
    (
        1..6u64,
        proptest::option::of(prop_oneof![6 => percent(), 1 => Just(0)]),
        proptest::option::of(percent()),
        proptest::option::of(1..5u64),
        any::<bool>(),
    )
        .prop_map(|(volume, percent, slow_percent, run, by_time)| Rules {
            volume,
            percent,
            slow_percent,
            run,
            by_time,
        })
}

#[derive(Debug, Clone, Copy)]
struct Outcome {
    at: u64,
    failed: bool,
    slow: bool,
}

/// Why the circuit has to open after these outcomes, of which the last has just come.
fn expected(rules: Rules, last: usize, outcomes: &[Outcome], now: u64) -> Option<Cause> {
    let tick = |time: u64| time / (WINDOW / BUCKETS as u64);
    let share = |part: usize, of: usize| (100 * part).checked_div(of).unwrap_or(0) as u64;
    let counts = |outcomes: &[Outcome]| {
        let failures = outcomes.iter().filter(|outcome| outcome.failed).count();
        let slow = outcomes.iter().filter(|outcome| outcome.slow).count();
        (outcomes.len(), failures, slow)
    };
    let within: Vec<Outcome> = outcomes
        .iter()
        .copied()
        .filter(|outcome| tick(outcome.at) + BUCKETS as u64 > tick(now))
        .collect();
    let (total, failures, slow) = counts(&within);
    if rules.by_time && total as u64 >= rules.volume {
        if rules
            .percent
            .is_some_and(|percent| share(failures, total) >= percent)
        {
            return Some(Cause::Tripped {
                successes: (total - failures) as u64,
                failures: failures as u64,
            });
        }
        if rules
            .slow_percent
            .is_some_and(|percent| share(slow, total) >= percent)
        {
            let (slow, total) = (slow as u64, total as u64);
            return Some(Cause::TooSlow { slow, total });
        }
    }
    let row = outcomes.iter().rev().take_while(|outcome| outcome.failed).count() as u64;
    if row > 0 && rules.run.is_some_and(|run| row >= run) {
        return Some(Cause::FailuresInARow { failures: row });
    }
    if last > 0 {
        let (total, failures, slow) = counts(&outcomes[outcomes.len().saturating_sub(last)..]);
        if total as u64 >= rules.volume.min(last as u64) {
            if rules
                .percent
                .is_some_and(|percent| share(failures, total) >= percent)
            {
                let (failures, total) = (failures as u64, total as u64);
                return Some(Cause::LastFailed { failures, total });
            }
            if rules
                .slow_percent
                .is_some_and(|percent| share(slow, total) >= percent)
            {
                let (slow, total) = (slow as u64, total as u64);
                return Some(Cause::LastTooSlow { slow, total });
            }
        }
    }
    None
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Wait(u64),
    /// Failed or not, and how long it took.
    Call(bool, u64),
    Ignored,
    Reset,
    Change(Rules),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let took = prop_oneof![Just(0), Just(SLOW), Just(SLOW + 1), 0..3 * SLOW];
    let op = prop_oneof![
        12 => (any::<bool>(), took).prop_map(|(failed, took)| Op::Call(failed, took)),
        4 => prop_oneof![Just(1), Just(MILLI), Just(100 * MILLI), Just(WINDOW), 0..2 * SECOND].prop_map(Op::Wait),
        1 => Just(Op::Ignored),
        1 => Just(Op::Reset),
        1 => rules().prop_map(Op::Change),
    ];
    proptest::collection::vec(op, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: traces(), failure_persistence: None, ..ProptestConfig::default() })]

    /// The rules change as well while calls go on, and what the windows hold stays.
    #[test]
    fn every_rule_and_every_combination_opens_as_a_list_of_all_outcomes_says(
        first in rules(),
        last in prop_oneof![Just(0u32), 1..8u32],
        ops in ops(),
    ) {
        // All that is booked is booked by each set of rules, but for a plain share of failures, which needs no more.
        let bookable = |rules: Rules| Rules { run: rules.run.or(Some(1_000)), ..rules };
        let more = More { slow_limit: Some(Duration::from_nanos(SLOW)), last, ..More::default() };
        let mut rules = bookable(first);
        let engine = Engine::new(settings(rules.judge(last), more));
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut now = 0;
        for op in ops {
            match op {
                Op::Wait(nanos) => now += nanos,
                Op::Ignored => {
                    let (word, _) = admit(&engine, now).unwrap();
                    prop_assert_eq!(settle(&engine, word, now, Verdict::Ignored, now), None);
                }
                Op::Reset => {
                    engine.reset(now);
                    outcomes.clear();
                }
                Op::Change(changed) => {
                    rules = bookable(changed);
                    engine.set(&settings(rules.judge(last), more));
                }
                Op::Call(failed, took) => {
                    let (word, _) = admit(&engine, now).unwrap();
                    let began = now;
                    now += took;
                    let verdict = if failed { Verdict::Failure } else { Verdict::Success };
                    let change = settle(&engine, word, began, verdict, now);
                    outcomes.push(Outcome { at: now, failed, slow: !failed && took > SLOW });
                    let cause = expected(rules, last as usize, &outcomes, now);
                    prop_assert_eq!(change.map(|change| change.cause), cause);
                    if cause.is_some() {
                        // Closed again, with nothing left of what was.
                        now += SLEEP + MILLI;
                        let (probe, _) = admit(&engine, now).unwrap();
                        prop_assert!(settle(&engine, probe, now, Verdict::Success, now).is_some());
                        outcomes.clear();
                    }
                }
            }
        }
    }
}

/// The end of a probe, or of its lease while it is out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Free,
    /// Those with the same end of their lease are as good as each other.
    Out {
        until: u64,
    },
    Ended(bool),
}

#[derive(Debug, Clone, Copy)]
enum ProbeOp {
    Wait(u64),
    Admit,
    Settle(usize, Option<Verdict>),
}

fn probe_ops() -> impl Strategy<Value = Vec<ProbeOp>> {
    let verdict = prop_oneof![
        4 => Just(Some(Verdict::Success)),
        3 => Just(Some(Verdict::Failure)),
        1 => Just(Some(Verdict::Ignored)),
        1 => Just(None),
    ];
    let op = prop_oneof![
        5 => Just(ProbeOp::Admit),
        4 => (any::<usize>(), verdict).prop_map(|(n, verdict)| ProbeOp::Settle(n, verdict)),
        2 => prop_oneof![Just(1), Just(MILLI), Just(LEASE / 2), Just(LEASE), Just(SLEEP)].prop_map(ProbeOp::Wait),
    ];
    proptest::collection::vec(op, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: traces(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_probes_go_out_and_decide_as_a_list_of_places_says(
        probes in 2..5u32,
        percent in 1..=100u32,
        ops in probe_ops(),
    ) {
        let more = More { probes, success_percent: percent, ..More::default() };
        let engine = Engine::new(settings(Judge::new(1, 50), more));
        let needed = (probes * percent).div_ceil(100).max(1) as usize;
        let up = |now: u64| now.div_ceil(MILLI) * MILLI;
        // `None`: closed. The time: open until then. The places: a round.
        let (mut open, mut round): (Option<u64>, Option<Vec<Place>>) = (None, None);
        let mut permits: Vec<(u64, Word)> = Vec::new();
        let mut now = 0;
        for op in ops {
            match op {
                ProbeOp::Wait(nanos) => now += nanos,
                ProbeOp::Admit => {
                    if open.is_none() && round.is_none() {
                        let (word, _) = admit(&engine, now).unwrap();
                        let change = settle(&engine, word, now, Verdict::Failure, now);
                        prop_assert!(change.is_some(), "one failure opens it");
                        open = Some(up(now) + SLEEP);
                        continue;
                    }
                    if open.is_some_and(|until| now >= until) {
                        open = None;
                        round = Some(vec![Place::Free; probes as usize]);
                    }
                    let free = round.as_mut().and_then(|places| {
                        let places = places.iter_mut().filter_map(|place| match *place {
                            Place::Free => Some((0, place)),
                            Place::Out { until } if now >= until => Some((until, place)),
                            _ => None,
                        });
                        places.min_by_key(|(out_until, _)| *out_until).map(|(_, place)| place)
                    });
                    match (admit(&engine, now), free) {
                        (Ok((word, change)), Some(place)) => {
                            prop_assert!(word.is_probe() && change.is_some());
                            *place = Place::Out { until: up(now) + LEASE };
                            permits.push((up(now) + LEASE, word));
                        }
                        (Err(Gate::Reject { .. }), None) => {}
                        (got, expected) => {
                            return Err(TestCaseError::fail(format!("{got:?} with {expected:?}")));
                        }
                    }
                }
                ProbeOp::Settle(..) if permits.is_empty() => {}
                ProbeOp::Settle(n, verdict) => {
                    let (until, word) = permits.swap_remove(n % permits.len());
                    let place = round.as_mut().and_then(|places| {
                        places
                            .iter_mut()
                            .find(|place| **place == Place::Out { until })
                    });
                    if let Some(place) = place {
                        *place = match verdict {
                            None | Some(Verdict::Ignored) => Place::Free,
                            Some(verdict) => Place::Ended(verdict == Verdict::Success),
                        };
                    }
                    let change = match verdict {
                        Some(verdict) => settle(&engine, word, now, verdict, now),
                        None => {
                            engine.cancel(word, 0);
                            None
                        }
                    };
                    let ended = |succeeded| {
                        let places = round.iter().flatten();
                        places.filter(|place| **place == Place::Ended(succeeded)).count()
                    };
                    let (good, bad) = (ended(true), ended(false));
                    let (successes, failures) = (good as u64, bad as u64);
                    let expected = if good >= needed {
                        round = None;
                        Some(Cause::ProbesSucceeded { successes, failures })
                    } else if bad > probes as usize - needed {
                        round = None;
                        open = Some(up(now) + SLEEP);
                        Some(Cause::ProbesFailed { successes, failures })
                    } else {
                        None
                    };
                    prop_assert_eq!(change.map(|change| change.cause), expected);
                }
            }
            let state = match (open, &round) {
                (Some(until), _) if now < until => CircuitState::Open,
                (Some(_), _) | (_, Some(_)) => CircuitState::HalfOpen,
                _ => CircuitState::Closed,
            };
            prop_assert_eq!(engine.state(|| now), state);
        }
    }
}

/// RAC-03, for more than one probe.
#[test]
fn of_many_threads_that_ask_for_probes_exactly_as_many_get_one_as_there_are() {
    const THREADS: usize = 8;
    const PROBES: usize = 3;
    let breaker = Breaker::builder("x")
        .volume(1)
        .probes(PROBES as u32)
        .sleep_window(Duration::from_nanos(SLEEP))
        .build()
        .unwrap();
    let shard = breaker.shard();
    shard
        .admit_at(true, || 0)
        .unwrap()
        .settle_at(Verdict::Failure, || 0);
    for round in 1..=300 {
        let now = round * SLEEP;
        let barrier = Barrier::new(THREADS);
        let ask = || {
            barrier.wait();
            [(); 2].map(|()| breaker.shard().admit_at(true, || now).ok())
        };
        let admitted: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .flatten()
                .collect()
        });
        assert_eq!(admitted.len(), PROBES, "round {round}");
        // One failure decides, so all but one of them come too late.
        thread::scope(|scope| {
            for permit in admitted {
                scope.spawn(move || permit.settle_at(Verdict::Failure, || now));
            }
        });
        let open = shard.admit_at(true, || now).unwrap_err();
        assert_eq!(open.state(), CircuitState::Open);
    }
}
