//! The budget with its threads in every order, by `scripts/loom`.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::time::{Duration, Instant};

use super::{
    BudgetSlot, RetryBudget,
    ledger::{Ledger, TOKEN},
};
use crate::sync::{explore, threads};

/// A deposit brings a token.
fn ledger(cap: Option<u64>, initial: u64) -> Arc<Ledger> {
    Arc::new(Ledger::new(1000, 0, cap.map(|cap| cap * TOKEN), initial * TOKEN))
}

/// How many tokens the threads got. Not among the steps that are put into every order.
#[derive(Default)]
struct Granted(std::sync::atomic::AtomicU64);

impl Granted {
    fn count(&self, granted: bool) {
        self.0.fetch_add(granted.into(), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[test]
fn loom_deposits_and_withdrawals_are_all_booked() {
    explore(3, || {
        let shared = Arc::new((Ledger::new(1000, 0, Some(9 * TOKEN), TOKEN), Granted::default()));
        threads(
            &shared,
            |(ledger, granted)| {
                ledger.deposit(0);
                granted.count(ledger.withdraw(0));
            },
            |(ledger, granted)| {
                granted.count(ledger.withdraw(0));
                ledger.deposit(0);
            },
            |(ledger, _)| ledger.deposit(0),
        );
        let (ledger, granted) = &*shared;
        assert_eq!(ledger.balance() + granted.get() * TOKEN, 4 * TOKEN);
        assert!(granted.get() >= 1);
    });
}

#[test]
fn loom_as_many_are_granted_as_there_are_tokens() {
    explore(3, || {
        let shared = Arc::new((Ledger::new(0, 0, Some(9 * TOKEN), 2 * TOKEN), Granted::default()));
        let ask = |(ledger, granted): &(Ledger, Granted)| granted.count(ledger.withdraw(0));
        threads(&shared, ask, ask, ask);
        assert_eq!((shared.1.get(), shared.0.balance()), (2, 0));
    });
}

#[test]
fn loom_no_thread_sees_more_than_the_cap() {
    explore(3, || {
        let ledger = ledger(Some(2), 1);
        let within = |ledger: &Ledger| assert!(ledger.balance() <= 2 * TOKEN);
        threads(
            &ledger,
            move |ledger| {
                ledger.deposit(0);
                within(ledger);
            },
            move |ledger| {
                ledger.give_back();
                within(ledger);
            },
            move |ledger| {
                ledger.deposit(0);
                within(ledger);
            },
        );
        assert_eq!(ledger.balance(), 2 * TOKEN);
    });
}

#[test]
fn loom_a_slot_that_is_dropped_gives_back_one_token_and_one_that_is_spent_none() {
    explore(3, || {
        let budget = RetryBudget::builder()
            .percent(0.0)
            .floor(0)
            .burst(5)
            .initial(2)
            .build()
            .unwrap();
        let now = Instant::now();
        let budget = Arc::new(budget);
        threads(
            &budget,
            move |budget| drop(budget.withdraw_at(now)),
            move |budget| drop(budget.withdraw_at(now)),
            move |budget| {
                let _ = budget.withdraw_at(now).map(BudgetSlot::spend);
            },
        );
        let (granted, refused) = (budget.granted(), budget.refused());
        assert_eq!(budget.0.ledger.balance(), (2 - granted) * TOKEN);
        // Two may hold both tokens while the third asks.
        assert!(refused <= 1 && granted <= 1 && granted + refused >= 1);
    });
}

#[test]
fn loom_the_floor_of_a_while_comes_once() {
    explore(3, || {
        let ledger = Arc::new(Ledger::new(0, 100, Some(99 * TOKEN), 0));
        threads(
            &ledger,
            |ledger| assert!(ledger.available(10) <= 2 * TOKEN),
            |ledger| assert!(ledger.available(20) <= 2 * TOKEN),
            |ledger| {
                // A thread that was held up.
                ledger.available(10);
            },
        );
        assert_eq!(ledger.available(20), 2 * TOKEN);
        assert_eq!(ledger.available(30), 3 * TOKEN);
    });
}

#[test]
fn loom_the_floor_is_spent_once() {
    explore(2, || {
        let budget = RetryBudget::builder()
            .percent(0.0)
            .floor(100)
            .initial(0)
            .build()
            .unwrap();
        let late = budget.0.base + Duration::from_millis(20);
        let budget = Arc::new(budget);
        let ask = move |budget: &RetryBudget| {
            let _ = budget.withdraw_at(late).map(BudgetSlot::spend);
        };
        threads(&budget, ask, ask, ask);
        // Who comes between the taking and the putting in goes without, and leaves it to the next.
        assert_eq!(budget.0.ledger.balance() + budget.granted() * TOKEN, 2 * TOKEN);
    });
}

#[test]
fn loom_a_cap_that_grows_with_the_deposits_cuts_none_of_them() {
    explore(2, || {
        let ledger = ledger(None, 0);
        (0..10).for_each(|_| ledger.deposit(0));
        threads(
            &ledger,
            |ledger| ledger.deposit(0),
            |ledger| ledger.deposit(0),
            |ledger| ledger.deposit(0),
        );
        assert_eq!(ledger.balance(), 13 * TOKEN);
    });
}

#[test]
fn loom_a_token_that_is_given_back_does_not_cut_what_others_put_in() {
    explore(3, || {
        let ledger = ledger(None, 0);
        (0..10).for_each(|_| ledger.deposit(0));
        assert!(ledger.withdraw(0));
        threads(&ledger, Ledger::give_back, |ledger| ledger.deposit(0), |_| {});
        assert_eq!(ledger.balance(), 11 * TOKEN);
    });
}

#[test]
fn loom_a_new_second_forgets_nothing_of_the_one_before() {
    explore(3, || {
        let ledger = ledger(None, 0);
        (0..12).for_each(|_| ledger.deposit(999));
        let all_are_there = |ledger: &Ledger| assert!(ledger.available(1000) == 12 * TOKEN);
        threads(
            &ledger,
            |ledger| ledger.deposit(1000),
            |ledger| ledger.deposit(1001),
            all_are_there,
        );
        all_are_there(&ledger);
        assert_eq!(ledger.counted(), (2, 12));
    });
}

#[test]
fn loom_deposits_around_the_end_of_a_second_are_all_counted() {
    explore(2, || {
        let ledger = ledger(None, 0);
        ledger.deposit(0);
        threads(
            &ledger,
            |ledger| ledger.deposit(999),
            |ledger| ledger.deposit(1000),
            |ledger| ledger.deposit(1000),
        );
        let (running, before) = ledger.counted();
        // The one that is late counts for either.
        assert!(running >= 2 && running + before == 4, "{running}, {before}");
    });
}
