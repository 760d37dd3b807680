//! The tables of both releases, a model that keeps every outcome and judges each tick as its time comes, and threads.

#![allow(clippy::disallowed_types, reason = "a lock in a test holds nobody up")]

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::HystrixRelease::{self, V1_5_12, V1_5_18};
use crate::{
    breaker::{Breaker, BreakerBuilder, Cause, Force, Permit},
    call::{
        CircuitState::{self, Closed, ForcedClosed, ForcedOpen, HalfOpen, Open},
        Verdict::{self, Failure, Ignored, Success},
    },
};

const MILLI: u64 = 1_000_000;

/// Four outcomes are enough, and a sleep of a second; else Hystrix's defaults.
fn builder(release: HystrixRelease) -> BreakerBuilder {
    Breaker::builder("x")
        .hystrix(release)
        .volume(4)
        .sleep_window(Duration::from_secs(1))
}

fn breaker(release: HystrixRelease) -> Breaker {
    builder(release).build().unwrap()
}

async fn pass(millis: u64) {
    tokio::time::advance(Duration::from_millis(millis)).await;
}

fn end(breaker: &Breaker, calls: usize, verdict: Verdict) {
    for _ in 0..calls {
        breaker.admit().unwrap().settle(verdict);
    }
}

fn figures(breaker: &Breaker) -> (u64, u64, u64) {
    let health = breaker.health();
    (health.total(), health.errors(), health.error_percent())
}

/// Open since 500 ms, and asked then; the time is 1501 ms.
async fn until_the_trial(breaker: &Breaker) {
    end(breaker, 4, Failure);
    pass(500).await;
    assert!(breaker.admit().is_err());
    pass(1001).await;
}

/// Open, half-open with this trial out.
async fn trial(breaker: &Breaker) -> Permit {
    until_the_trial(breaker).await;
    let trial = breaker.admit().unwrap();
    assert!(trial.is_probe());
    trial
}

mod both {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_done_since_the_last_tick_is_seen() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            end(&breaker, 200, Failure);
            pass(499).await;
            end(&breaker, 100, Failure);
            assert_eq!((breaker.state(), figures(&breaker)), (Closed, (0, 0, 0)));
            pass(1).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Open, (300, 300, 100)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_recovers_before_the_tick_never_opened() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            end(&breaker, 4, Failure);
            end(&breaker, 5, Success);
            pass(500).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Closed, (9, 4, 44)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_is_seen_from_the_tick_after_it_for_the_length_of_the_window() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = Breaker::builder("x").hystrix(release).build().unwrap();
            end(&breaker, 10, Failure);
            for (millis, seen) in [(499, 0), (1, 10), (9999, 10), (1, 0)] {
                pass(millis).await;
                assert_eq!(breaker.health().errors(), seen);
            }
            end(&breaker, 10, Failure);
            pass(500).await;
            assert_eq!(breaker.state(), Closed, "20 in eleven seconds, never 20 in ten");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_holds_whole_snapshots_only() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = builder(release)
                .window(Duration::from_millis(1050))
                .health_snapshot(Duration::from_millis(100))
                .build()
                .unwrap();
            end(&breaker, 2, Failure);
            pass(1099).await;
            assert_eq!(breaker.health().total(), 2);
            pass(1).await;
            assert_eq!(breaker.health().total(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn volume_and_percentage_may_be_nothing_or_out_of_reach() {
        for release in [V1_5_12, V1_5_18] {
            let none = builder(release).volume(0).build().unwrap();
            let no_failure = builder(release).error_percent(0).build().unwrap();
            let never = builder(release).error_percent(101).build().unwrap();
            end(&none, 1, Failure);
            end(&no_failure, 4, Success);
            end(&never, 9, Failure);
            pass(500).await;
            assert_eq!((none.state(), figures(&none)), (Open, (1, 1, 100)));
            assert_eq!((no_failure.state(), figures(&no_failure)), (Open, (4, 0, 0)));
            assert_eq!((never.state(), figures(&never)), (Closed, (9, 9, 100)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejections_ignored_and_given_up_calls_are_not_in_the_figures() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            end(&breaker, 5, Ignored);
            drop(breaker.admit());
            end(&breaker, 4, Failure);
            pass(500).await;
            assert!(breaker.admit().is_err());
            pass(500).await;
            assert_eq!(figures(&breaker), (4, 4, 100));
            let counts = breaker.counts();
            assert_eq!(
                (counts.ignored(), counts.cancelled(), counts.rejected()),
                (5, 1, 1)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_counts_show_the_running_interval_too() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            end(&breaker, 1, Success);
            pass(500).await;
            end(&breaker, 2, Failure);
            let counts = breaker.counts();
            assert_eq!((counts.successes(), counts.failures()), (1, 2));
            assert_eq!(figures(&breaker), (1, 0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_sleep_window_must_be_over_by_a_millisecond_and_the_wait_is_told() {
        for release in [V1_5_12, V1_5_18] {
            for sleep in [0, 1000] {
                let sleep = Duration::from_millis(sleep);
                let breaker = builder(release).sleep_window(sleep).build().unwrap();
                end(&breaker, 4, Failure);
                pass(500).await;
                let wait = breaker.admit().unwrap_err().retry_in().unwrap();
                assert_eq!(wait, sleep + Duration::from_millis(1));
                tokio::time::advance(wait - Duration::from_nanos(1)).await;
                assert!(breaker.admit().is_err());
                assert_eq!(breaker.state(), Open);
                tokio::time::advance(Duration::from_nanos(1)).await;
                assert_eq!(breaker.state(), Open, "until a call comes");
                assert!(breaker.admit().unwrap().is_probe());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_success_of_the_trial_closes_wipes_the_window_and_starts_the_ticks_anew() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            trial(&breaker).await.settle(Success);
            assert_eq!((breaker.state(), figures(&breaker)), (Closed, (0, 0, 0)));
            end(&breaker, 3, Failure);
            pass(499).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Closed, (0, 0, 0)));
            pass(1).await;
            // The success of the trial is the fourth.
            assert_eq!((breaker.state(), figures(&breaker)), (Open, (4, 3, 75)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_late_is_booked_while_the_circuit_is_open_and_decides_nothing() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            let [good, bad, ignored, during, after] = std::array::from_fn(|_| breaker.admit().unwrap());
            until_the_trial(&breaker).await;
            good.settle(Success);
            bad.settle(Failure);
            assert_eq!(breaker.state(), Open);
            let trial = breaker.admit().unwrap();
            let state = breaker.state();
            during.settle(Success);
            ignored.settle(Ignored);
            assert_eq!(breaker.state(), state);
            pass(500).await;
            assert_eq!(figures(&breaker), (7, 5, 71));
            trial.settle(Success);
            after.settle(Failure);
            pass(500).await;
            assert_eq!(figures(&breaker), (1, 0, 0), "of an older window");
            assert_eq!((breaker.state(), breaker.counts().stale()), (Closed, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_circuit_stays_open_though_its_window_has_emptied() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = builder(release)
                .sleep_window(Duration::from_secs(60))
                .build()
                .unwrap();
            end(&breaker, 4, Failure);
            pass(500).await;
            assert_eq!(breaker.state(), Open);
            pass(20_000).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Open, (0, 0, 0)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_closes_and_starts_a_new_window() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            until_the_trial(&breaker).await;
            breaker.reset();
            end(&breaker, 3, Failure);
            pass(500).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Closed, (3, 3, 100)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn windows_are_told_apart_after_more_resets_than_there_are_numbers_for() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            for _ in 0..40_000 {
                breaker.reset();
            }
            let running = breaker.admit().unwrap();
            until_the_trial(&breaker).await;
            running.settle(Success);
            pass(500).await;
            assert_eq!((breaker.state(), figures(&breaker)), (Open, (5, 4, 80)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_breaker_that_is_switched_off_lets_all_pass_and_counts_on_whatever_is_forced() {
        for release in [V1_5_12, V1_5_18] {
            let breaker = builder(release).disabled().build().unwrap();
            breaker.force(Force::Open);
            end(&breaker, 9, Failure);
            pass(500).await;
            assert_eq!(breaker.state(), CircuitState::Disabled);
            assert_eq!(breaker.unforced_state(), CircuitState::Disabled);
            assert_eq!(figures(&breaker), (9, 9, 100));
            breaker.set_enabled(true);
            assert_eq!((breaker.state(), figures(&breaker)), (ForcedOpen, (0, 0, 0)));
        }
    }
}

mod v1_5_12 {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_sleep_window_counts_from_the_tick_that_opened_not_from_whoever_noticed() {
        let breaker = breaker(V1_5_12);
        end(&breaker, 4, Failure);
        pass(700).await;
        assert_eq!(
            breaker.admit().unwrap_err().retry_in(),
            Some(Duration::from_millis(801))
        );
        pass(801).await;
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_that_nobody_looked_at_are_judged_in_order_as_successes_may_leave_first() {
        let breaker = builder(V1_5_12)
            .window(Duration::from_millis(200))
            .health_snapshot(Duration::from_millis(100))
            .build()
            .unwrap();
        end(&breaker, 6, Success);
        pass(100).await;
        end(&breaker, 4, Failure);
        // At 200 ms 40 %, at 300 ms 100 %, and by now nothing.
        pass(1100).await;
        assert_eq!(breaker.health().total(), 0);
        assert_eq!(
            breaker.admit().unwrap_err().retry_in(),
            Some(Duration::from_millis(101))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_trial_is_out_others_are_rejected_however_long_it_takes() {
        let breaker = breaker(V1_5_12);
        let _trial = trial(&breaker).await;
        for _ in 0..3 {
            pass(600_000).await;
            let rejection = breaker.admit().unwrap_err();
            assert_eq!((rejection.state(), rejection.retry_in()), (HalfOpen, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_is_lost_is_replaced_once_its_lease_has_ended_and_decides_no_more() {
        let breaker = builder(V1_5_12)
            .probe_lease(Duration::from_secs(2))
            .build()
            .unwrap();
        let lost = trial(&breaker).await;
        pass(2000).await;
        assert!(breaker.admit().is_err());
        pass(1).await;
        let second = breaker.admit().unwrap();
        lost.settle(Success);
        assert_eq!(breaker.state(), HalfOpen);
        pass(500).await;
        assert_eq!(figures(&breaker), (5, 4, 80), "it is booked");
        second.settle(Success);
        assert_eq!(breaker.state(), Closed);
    }

    /// CBR-02, as Hystrix has it: an ignored trial opens it again.
    #[tokio::test(start_paused = true)]
    async fn a_trial_that_fails_or_is_ignored_opens_for_a_full_sleep_window_from_its_end() {
        for (verdict, booked) in [(Failure, 5), (Ignored, 4)] {
            let breaker = breaker(V1_5_12);
            let trial = trial(&breaker).await;
            pass(300).await;
            trial.settle(verdict);
            assert_eq!(breaker.state(), Open);
            assert_eq!(
                breaker.admit().unwrap_err().retry_in(),
                Some(Duration::from_millis(1001))
            );
            pass(1000).await;
            assert_eq!(breaker.health().errors(), booked);
            assert!(breaker.admit().is_err());
            pass(1).await;
            assert!(breaker.admit().unwrap().is_probe());
        }
    }

    /// CBR-01.
    #[tokio::test(start_paused = true)]
    async fn a_trial_that_was_given_up_makes_the_next_call_the_trial() {
        let breaker = breaker(V1_5_12);
        drop(trial(&breaker).await);
        assert_eq!(breaker.state(), HalfOpen);
        let next = breaker.admit().unwrap();
        assert!(next.is_probe() && breaker.admit().is_err());
        next.settle(Success);
        assert_eq!(breaker.state(), Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn forced_closed_all_pass_while_it_trips_inside_and_released_it_is_open_at_once() {
        let breaker = breaker(V1_5_12);
        breaker.force(Force::Closed);
        end(&breaker, 10, Failure);
        pass(500).await;
        assert_eq!((breaker.state(), breaker.unforced_state()), (ForcedClosed, Open));
        end(&breaker, 1, Success);
        assert_eq!(breaker.unforced_state(), Open);
        breaker.force(Force::None);
        assert_eq!(breaker.state(), Open);
        assert!(breaker.admit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn forced_open_the_machine_below_goes_on() {
        let breaker = breaker(V1_5_12);
        let running = [(); 4].map(|()| breaker.admit().unwrap());
        breaker.force(Force::Open);
        assert!(breaker.admit().is_err());
        assert_eq!((breaker.state(), breaker.unforced_state()), (ForcedOpen, Closed));
        running.into_iter().for_each(|permit| permit.settle(Failure));
        pass(500).await;
        assert_eq!((breaker.state(), breaker.unforced_state()), (ForcedOpen, Open));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_that_nobody_saw_is_told_before_what_is_done_by_hand() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let breaker = builder(V1_5_12)
            .on_transition(move |transition| log.lock().unwrap().push((transition.from(), transition.to())))
            .build()
            .unwrap();
        end(&breaker, 4, Failure);
        pass(700).await;
        breaker.force(Force::Closed);
        assert_eq!(*told.lock().unwrap(), [(Closed, Open), (Open, ForcedClosed)]);
    }
}

mod v1_5_18 {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_sleep_window_counts_from_whoever_asked_first_not_from_the_tick() {
        let breaker = breaker(V1_5_18);
        end(&breaker, 4, Failure);
        pass(700).await;
        assert_eq!(breaker.unforced_state(), Closed, "which is no question");
        assert_eq!(
            breaker.admit().unwrap_err().retry_in(),
            Some(Duration::from_millis(1001))
        );
        assert_eq!(breaker.unforced_state(), Open);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_latest_tick_is_judged() {
        let breaker = builder(V1_5_18)
            .window(Duration::from_millis(200))
            .health_snapshot(Duration::from_millis(100))
            .build()
            .unwrap();
        end(&breaker, 9, Failure);
        pass(300).await;
        assert_eq!(breaker.state(), Closed, "nobody asked in time");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_asks_nothing() {
        let breaker = breaker(V1_5_18);
        let running = breaker.admit().unwrap();
        end(&breaker, 4, Failure);
        pass(700).await;
        running.settle(Failure);
        assert_eq!(breaker.unforced_state(), Closed);
        assert_eq!(format!("{breaker:?}").matches("Closed").count(), 1);
        assert_eq!(breaker.unforced_state(), Closed, "nor does printing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_goes_out_in_each_sleep_window_from_the_start_of_the_one_before() {
        for ended in [Some(Failure), Some(Ignored), None] {
            let breaker = breaker(V1_5_18);
            let first = trial(&breaker).await;
            pass(300).await;
            match ended {
                Some(verdict) => first.settle(verdict),
                None => drop(first),
            }
            assert_eq!(breaker.state(), Open);
            assert_eq!(
                breaker.admit().unwrap_err().retry_in(),
                Some(Duration::from_millis(701))
            );
            pass(701).await;
            assert!(breaker.admit().unwrap().is_probe());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_that_takes_longer_than_the_sleep_window_gets_company_and_any_of_them_closes() {
        for first_wins in [true, false] {
            let breaker = breaker(V1_5_18);
            let first = trial(&breaker).await;
            pass(1001).await;
            let second = breaker.admit().unwrap();
            assert!(second.is_probe());
            let (winner, other) = if first_wins {
                (first, second)
            } else {
                (second, first)
            };
            winner.settle(Success);
            assert_eq!(breaker.state(), Closed);
            other.settle(Failure);
            pass(500).await;
            assert_eq!(figures(&breaker), (1, 0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn asked_for_its_state_it_judges_whatever_is_forced_and_a_call_that_is_turned_away_by_force_does_not()
     {
        let breaker = breaker(V1_5_18);
        end(&breaker, 4, Failure);
        breaker.force(Force::Open);
        pass(500).await;
        assert!(breaker.admit().is_err());
        assert_eq!(breaker.unforced_state(), Closed);
        assert_eq!(breaker.state(), ForcedOpen);
        assert_eq!(breaker.unforced_state(), Open);
    }

    #[tokio::test(start_paused = true)]
    async fn forced_closed_a_call_trips_it_inside_and_its_success_resets() {
        let breaker = breaker(V1_5_18);
        breaker.force(Force::Closed);
        end(&breaker, 10, Failure);
        pass(500).await;
        assert_eq!(breaker.unforced_state(), Closed);
        end(&breaker, 1, Failure);
        assert_eq!(breaker.unforced_state(), Open);
        end(&breaker, 1, Success);
        assert_eq!((breaker.unforced_state(), figures(&breaker)), (Closed, (0, 0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn tests_are_no_transitions() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let breaker = builder(V1_5_18)
            .on_transition(move |transition| log.lock().unwrap().push(transition.cause()))
            .build()
            .unwrap();
        trial(&breaker).await.settle(Failure);
        pass(1001).await;
        breaker.admit().unwrap().settle(Success);
        let tripped = Cause::Tripped {
            successes: 0,
            failures: 4,
        };
        assert_eq!(*told.lock().unwrap(), [tripped, Cause::ProbeSucceeded]);
    }
}

mod model {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    struct Numbers {
        release: HystrixRelease,
        volume: u32,
        percent: u32,
        interval: u64,
        length: u64,
        rest: u64,
        sleep: u64,
        lease: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Machine {
        Closed,
        Open { at: u64 },
        Trial { since: u64 },
        Vacant,
    }

    /// All times are milliseconds. Each tick of 1.5.12 is judged when its time has come, not when somebody asks.
    struct Model {
        numbers: Numbers,
        machine: Machine,
        /// How often a trial went out or the machine changed: a trial decides as long as this stays.
        turn: u64,
        window: u64,
        origin: u64,
        outcomes: Vec<(u64, bool)>,
        force: Force,
        enabled: bool,
        seen: CircuitState,
        told: Vec<(CircuitState, CircuitState)>,
        totals: [u64; 4],
    }

    const REJECTED: usize = 0;
    const IGNORED: usize = 1;
    const CANCELLED: usize = 2;
    const STALE: usize = 3;

    #[derive(Debug, Clone, Copy)]
    struct Ticket {
        window: u64,
        turn: u64,
        trial: bool,
        under_open: bool,
        /// Was the breaker on?
        judged: bool,
    }

    impl Model {
        fn new(numbers: Numbers) -> Self {
            let mut model = Model {
                numbers,
                machine: Machine::Closed,
                turn: 0,
                window: 0,
                origin: 0,
                outcomes: Vec::new(),
                force: Force::None,
                enabled: true,
                seen: Closed,
                told: Vec::new(),
                totals: [0; 4],
            };
            model.first_tick(0);
            model
        }

        fn ours(&self) -> bool {
            self.numbers.release == V1_5_12
        }

        fn unforced(&self) -> CircuitState {
            match self.machine {
                _ if !self.enabled => CircuitState::Disabled,
                Machine::Closed => Closed,
                Machine::Open { .. } => Open,
                Machine::Trial { .. } | Machine::Vacant => HalfOpen,
            }
        }

        fn visible(&self) -> CircuitState {
            match self.force {
                _ if !self.enabled => CircuitState::Disabled,
                Force::Open => ForcedOpen,
                Force::Closed => ForcedClosed,
                Force::None => self.unforced(),
            }
        }

        fn tell(&mut self) {
            let now = self.visible();
            if now != self.seen {
                self.told.push((self.seen, now));
                self.seen = now;
            }
        }

        fn go(&mut self, machine: Machine) {
            self.machine = machine;
            self.turn += 1;
            self.tell();
        }

        fn bucket(&self, time: u64) -> u64 {
            (time - self.origin) / self.numbers.interval
        }

        /// Successes and failures in the buckets from the first one shown at this tick up to, but not including, `end`.
        fn shown(&self, tick: u64, end: u64) -> (u64, u64) {
            let within = |good| {
                self.outcomes
                    .iter()
                    .filter(|(time, was)| {
                        let bucket = self.bucket(*time);
                        *was == good && bucket + self.numbers.length >= tick && bucket < end
                    })
                    .count() as u64
            };
            (within(true), within(false))
        }

        fn judge_tick(&mut self, tick: u64, opened: u64) {
            let (good, bad) = self.shown(tick, tick);
            let total = good + bad;
            let percent = (bad * 100).checked_div(total).unwrap_or(0);
            if self.enabled
                && self.machine == Machine::Closed
                && total >= self.numbers.volume.into()
                && percent >= self.numbers.percent.into()
            {
                self.go(Machine::Open { at: opened });
            }
        }

        fn ask(&mut self, now: u64) {
            if !self.ours() {
                self.judge_tick(self.bucket(now), now);
            }
        }

        fn pass(&mut self, from: u64, to: u64) {
            for time in from + 1..=to {
                if self.ours() && (time - self.origin) % self.numbers.interval == 0 {
                    self.judge_tick(self.bucket(time), time);
                }
            }
        }

        fn begin(&mut self, now: u64) {
            self.window += 1;
            self.origin = now;
            self.outcomes.clear();
            self.go(Machine::Closed);
        }

        /// The first tick is as old as the window.
        fn first_tick(&mut self, now: u64) {
            if self.ours() {
                self.judge_tick(0, now);
            }
        }

        fn admit(&mut self, now: u64) -> Option<Ticket> {
            if self.enabled && self.force != Force::Open {
                self.ask(now);
            }
            let numbers = self.numbers;
            let trial = match (self.visible(), self.machine) {
                (CircuitState::Disabled | ForcedClosed, _) | (_, Machine::Closed)
                    if self.visible() != ForcedOpen =>
                {
                    false
                }
                (Open | HalfOpen, Machine::Vacant) => true,
                (Open | HalfOpen, Machine::Open { at }) if now > at + numbers.sleep => true,
                (Open | HalfOpen, Machine::Trial { since }) if now > since + numbers.lease => true,
                _ => {
                    self.totals[REJECTED] += 1;
                    return None;
                }
            };
            if trial {
                self.go(if self.ours() {
                    Machine::Trial { since: now }
                } else {
                    Machine::Open { at: now }
                });
            }
            Some(Ticket {
                window: self.window,
                turn: self.turn,
                trial,
                under_open: matches!(self.machine, Machine::Open { .. }),
                judged: self.enabled,
            })
        }

        fn settle(&mut self, ticket: Ticket, verdict: Option<Verdict>, now: u64) {
            if !ticket.judged && verdict.is_none() {
                return;
            }
            let ours = self.ours();
            let is_open = matches!(self.machine, Machine::Open { .. });
            let decides = ticket.judged
                && ticket.window == self.window
                && if ours {
                    ticket.trial && ticket.turn == self.turn
                } else {
                    ticket.under_open && is_open
                };
            match verdict {
                None => {
                    self.totals[CANCELLED] += 1;
                    if ours && decides {
                        self.go(Machine::Vacant);
                    }
                    return;
                }
                Some(_) if ticket.window != self.window => {
                    self.totals[STALE] += 1;
                    return;
                }
                Some(Success) if decides => {
                    self.begin(now);
                    self.outcomes.push((now, true));
                    self.first_tick(now);
                    return;
                }
                Some(Ignored) => self.totals[IGNORED] += 1,
                Some(verdict) => self.outcomes.push((now, verdict == Success)),
            }
            if ours && decides {
                self.go(Machine::Open { at: now });
            }
        }

        fn retry_in(&self, now: u64) -> Option<Duration> {
            match (self.visible(), self.machine) {
                (Open, Machine::Open { at }) => Some(Duration::from_nanos(
                    ((at + self.numbers.sleep + 1) * MILLI).saturating_sub(now),
                )),
                _ => None,
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Pass(u64),
        Admit,
        Settle(usize, Verdict),
        Drop(usize),
        Ask,
        Reset,
        Force(Force),
        Enable(bool),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let verdict = prop_oneof![6 => Just(Failure), 5 => Just(Success), 1 => Just(Ignored)];
        let nanos = prop_oneof![
            Just(1),
            Just(MILLI),
            Just(9 * MILLI),
            Just(10 * MILLI),
            Just(25 * MILLI),
            0..20 * MILLI,
            0..200 * MILLI,
        ];
        let op = prop_oneof![
            12 => Just(Op::Admit),
            12 => (any::<usize>(), verdict).prop_map(|(n, verdict)| Op::Settle(n, verdict)),
            2 => any::<usize>().prop_map(Op::Drop),
            8 => nanos.prop_map(Op::Pass),
            1 => Just(Op::Ask),
            1 => prop_oneof![
                3 => Just(Op::Reset),
                4 => prop_oneof![Just(Force::None), Just(Force::Open), Just(Force::Closed)].prop_map(Op::Force),
                1 => any::<bool>().prop_map(Op::Enable),
            ],
        ];
        proptest::collection::vec(op, 1..300)
    }

    fn numbers() -> impl Strategy<Value = Numbers> {
        (
            prop_oneof![Just(V1_5_12), Just(V1_5_18)],
            0..6u32,
            prop_oneof![Just(50), Just(0), Just(100), Just(101), 0..=100u32],
            prop_oneof![Just(1), Just(10), 1..30u64],
            1..6u64,
            any::<u64>(),
            prop_oneof![Just(0), Just(25), 1..60u64],
            prop_oneof![Just(10_000), 1..60u64],
        )
            .prop_map(
                |(release, volume, percent, interval, length, rest, sleep, lease)| Numbers {
                    release,
                    volume,
                    percent,
                    interval,
                    length,
                    rest: rest % interval,
                    sleep,
                    lease,
                },
            )
    }

    /// Runs the operations on a breaker and on the model; an error says where they part.
    async fn compare(numbers: Numbers, ops: Vec<Op>) -> Result<(), TestCaseError> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let breaker = Breaker::builder("x")
            .hystrix(numbers.release)
            .volume(numbers.volume)
            .error_percent(numbers.percent)
            .window(Duration::from_millis(
                numbers.interval * numbers.length + numbers.rest,
            ))
            .health_snapshot(Duration::from_millis(numbers.interval))
            .sleep_window(Duration::from_millis(numbers.sleep))
            .probe_lease(Duration::from_millis(numbers.lease))
            .on_transition(move |transition| log.lock().unwrap().push((transition.from(), transition.to())))
            .build()
            .unwrap();
        let mut model = Model::new(numbers);
        let mut out: Vec<(Permit, Ticket)> = Vec::new();
        let mut nanos = 0;
        for op in ops {
            let now = nanos / MILLI;
            match op {
                Op::Pass(more) => {
                    tokio::time::advance(Duration::from_nanos(more)).await;
                    nanos += more;
                    model.pass(now, nanos / MILLI);
                    // Nobody looks yet: whatever comes next has to find out what has passed.
                    continue;
                }
                Op::Admit => match (breaker.admit(), model.admit(now)) {
                    (Ok(permit), Some(ticket)) => {
                        prop_assert_eq!(permit.is_probe(), ticket.trial);
                        out.push((permit, ticket));
                    }
                    (Err(rejection), None) => {
                        prop_assert_eq!(rejection.state(), model.visible());
                        prop_assert_eq!(rejection.retry_in(), model.retry_in(nanos));
                    }
                    (got, expected) => {
                        return Err(TestCaseError::fail(format!("{got:?} instead of {expected:?}")));
                    }
                },
                Op::Settle(n, verdict) if !out.is_empty() => {
                    let (permit, ticket) = out.swap_remove(n % out.len());
                    model.settle(ticket, Some(verdict), now);
                    permit.settle(verdict);
                }
                Op::Drop(n) if !out.is_empty() => {
                    let (permit, ticket) = out.swap_remove(n % out.len());
                    model.settle(ticket, None, now);
                    drop(permit);
                }
                Op::Settle(..) | Op::Drop(_) => {}
                Op::Ask => {
                    model.ask(now);
                    prop_assert_eq!(breaker.state(), model.visible());
                }
                Op::Reset => {
                    model.force = Force::None;
                    model.begin(now);
                    model.first_tick(now);
                    breaker.reset();
                }
                Op::Force(force) => {
                    model.force = force;
                    model.tell();
                    breaker.force(force);
                }
                Op::Enable(enabled) => {
                    if enabled && !model.enabled {
                        model.enabled = true;
                        model.begin(now);
                        model.first_tick(now);
                    }
                    model.enabled = enabled;
                    model.tell();
                    breaker.set_enabled(enabled);
                }
            }
            prop_assert_eq!(breaker.unforced_state(), model.unforced(), "after {:?}", op);
            let tick = model.bucket(now);
            let (health, counts) = (breaker.health(), breaker.counts());
            let (good, bad) = model.shown(tick, tick);
            prop_assert_eq!(
                (health.total(), health.errors()),
                (good + bad, bad),
                "after {:?}",
                op
            );
            prop_assert_eq!(
                (counts.successes(), counts.failures()),
                model.shown(tick, tick + 1)
            );
            prop_assert_eq!(
                [
                    counts.rejected(),
                    counts.ignored(),
                    counts.cancelled(),
                    counts.stale()
                ],
                model.totals
            );
            prop_assert_eq!(&*told.lock().unwrap(), &model.told, "after {:?}", op);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: crate::breaker::tests::traces(), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_machines_equal_a_model_that_judges_each_tick_in_time_by_all_outcomes(
            numbers in numbers(),
            ops in ops(),
        ) {
            tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap()
                .block_on(compare(numbers, ops))?;
        }
    }
}

mod threads {
    use super::*;

    #[test]
    fn outcomes_of_many_threads_are_all_counted_and_the_tick_trips_once() {
        const THREADS: u64 = 8;
        const EACH: u64 = 500;
        for release in [V1_5_12, V1_5_18] {
            for round in 0..20 {
                let told = Arc::new(Mutex::new(Vec::new()));
                let log = told.clone();
                let breaker = builder(release)
                    .on_transition(move |transition| log.lock().unwrap().push(transition.cause()))
                    .build()
                    .unwrap();
                let barrier = Barrier::new(THREADS as usize);
                thread::scope(|scope| {
                    for thread in 0..THREADS {
                        let (breaker, barrier) = (&breaker, &barrier);
                        scope.spawn(move || {
                            barrier.wait();
                            for n in 0..EACH {
                                let permit = breaker.shard().admit_at(true, || 0).unwrap();
                                let verdict = if (n + thread) % 2 == 0 { Success } else { Failure };
                                permit.settle_at(verdict, || 0);
                            }
                            barrier.wait();
                            assert!(breaker.shard().admit_at(true, || 700 * MILLI).is_err());
                        });
                    }
                });
                let half = THREADS * EACH / 2;
                let tripped = Cause::Tripped {
                    successes: half,
                    failures: half,
                };
                assert_eq!(*told.lock().unwrap(), [tripped], "round {round}");
            }
        }
    }

    #[test]
    fn threads_that_ask_as_the_sleep_window_ends_get_one_trial() {
        const THREADS: usize = 16;
        const ROUNDS: u64 = 500;
        const SLEEP: u64 = 1001 * MILLI;
        for release in [V1_5_12, V1_5_18] {
            let breaker = breaker(release);
            for _ in 0..4 {
                let permit = breaker.shard().admit_at(true, || 0).unwrap();
                permit.settle_at(Failure, || 0);
            }
            assert!(breaker.shard().admit_at(true, || 500 * MILLI).is_err());
            for round in 1..=ROUNDS {
                let now = 500 * MILLI + round * SLEEP;
                let barrier = Barrier::new(THREADS);
                let admitted: Vec<Permit> = thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS)
                        .map(|_| {
                            scope.spawn(|| {
                                barrier.wait();
                                breaker.shard().admit_at(true, || now).ok()
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .filter_map(|thread| thread.join().unwrap())
                        .collect()
                });
                assert_eq!(admitted.len(), 1, "round {round}");
                for permit in admitted {
                    permit.settle_at(Failure, || now);
                }
            }
        }
    }

    /// Nobody may judge by a window that others write over meanwhile: every bucket is half good, so no tick is bad.
    #[test]
    fn threads_that_run_ahead_make_no_tick_look_worse_than_it_is() {
        const THREADS: u64 = 4;
        const STEPS: u64 = 3_000;
        for release in [V1_5_12, V1_5_18] {
            let breaker = Breaker::builder("x")
                .hystrix(release)
                .volume(1)
                .error_percent(51)
                .window(Duration::from_millis(2))
                .health_snapshot(Duration::from_millis(1))
                .build()
                .unwrap();
            let clock = AtomicU64::new(0);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..STEPS {
                            let now = clock.fetch_add(MILLI / 2, Ordering::SeqCst);
                            // A thread that is behind may be turned away by nobody: nothing has tripped.
                            let permits = [(); 2].map(|()| breaker.shard().admit_at(true, || now).unwrap());
                            let [good, bad] = permits;
                            // Successes first: a tick in between sees them alone.
                            good.settle_at(Success, || now);
                            bad.settle_at(Failure, || now);
                        }
                    });
                }
            });
            assert_eq!(breaker.unforced_state(), Closed);
        }
    }

    #[test]
    fn threads_that_trip_close_give_up_and_reset_at_once_tell_a_chain_of_transitions() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 5_000;
        for release in [V1_5_12, V1_5_18] {
            let told = Arc::new(Mutex::new(Vec::new()));
            let log = told.clone();
            let breaker = Breaker::builder("x")
                .hystrix(release)
                .volume(1)
                .window(Duration::from_millis(4))
                .health_snapshot(Duration::from_millis(2))
                .sleep_window(Duration::from_millis(3))
                .on_transition(move |transition| {
                    log.lock().unwrap().push((transition.from(), transition.to()))
                })
                .build()
                .unwrap();
            let clock = AtomicU64::new(0);
            let tick = || clock.fetch_add(MILLI / 3, Ordering::Relaxed);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (breaker, tick) = (&breaker, &tick);
                    scope.spawn(move || {
                        for call in 0..CALLS {
                            if let Ok(permit) = breaker.shard().admit_at(true, tick) {
                                match (call + thread) % 4 {
                                    0 => permit.settle_at(Success, tick),
                                    1 => permit.settle_at(Failure, tick),
                                    _ => drop(permit),
                                }
                            }
                            if call % 64 == thread {
                                breaker.reset();
                            }
                        }
                    });
                }
            });
            let told = told.lock().unwrap();
            assert!(told.len() > 100, "{}", told.len());
            assert_eq!(told[0].0, Closed);
            assert!(told.iter().all(|(from, to)| from != to));
            assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0));
        }
    }
}
