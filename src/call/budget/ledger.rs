//! The tokens of a budget: no lock, no clock, the time as an argument.
//!
//! Times are milliseconds since the budget was made. Of threads that come at once a time may be behind that of another.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicI64, AtomicU64};

/// A retry costs one token. Balances are kept in thousandths of one, so that no share is rounded.
pub(super) const TOKEN: u64 = 1000;

/// The burst that is always granted, unless the builder says otherwise.
pub(super) const BURST: u32 = 10;

/// A time that is further back than this is one of another clock, as where another runtime has paused its own, and no
/// longer that of a thread that was held up between reading the clock and coming here.
const ANOTHER_CLOCK: i64 = 10_000;

/// The same in seconds.
const LATE: i32 = (ANOTHER_CLOCK / 1000) as i32;

#[derive(Debug)]
pub(super) struct Ledger {
    /// Thousandths of a token for each deposit.
    share: u64,
    /// Tokens a second, which is thousandths of a token a millisecond.
    floor: u64,
    /// Where there is none, it is what the deposits of a second bring.
    cap: Option<u64>,
    /// Thousandths of a token.
    balance: AtomicU64,
    /// Up to which millisecond the floor has been put in.
    filled: AtomicI64,
    /// A [`Traffic`].
    traffic: AtomicU64,
}

impl Ledger {
    pub(super) fn new(share: u64, floor: u64, cap: Option<u64>, initial: u64) -> Self {
        Ledger {
            share,
            floor,
            cap,
            balance: AtomicU64::new(initial),
            filled: AtomicI64::new(0),
            traffic: AtomicU64::new(0),
        }
    }

    pub(super) fn percent(&self) -> f64 {
        self.share as f64 / 10.0
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn cap_set(&self) -> Option<u64> {
        self.cap
    }

    /// What there is, in thousandths, without what the floor has brought since somebody came.
    pub(super) fn balance(&self) -> u64 {
        self.balance.load(Relaxed)
    }

    /// What there is at this time, in thousandths.
    pub(super) fn available(&self, now: i64) -> u64 {
        self.credit(self.fill(now), Some(now));
        self.balance()
    }

    /// Puts in the share of one call.
    pub(super) fn deposit(&self, now: i64) {
        if self.cap.is_none() {
            self.count(now);
        }
        self.credit(self.share.saturating_add(self.fill(now)), Some(now));
    }

    /// Takes a token out, if there is one.
    pub(super) fn withdraw(&self, now: i64) -> bool {
        self.credit(self.fill(now), Some(now));
        self.balance
            .fetch_update(Relaxed, Relaxed, |balance| balance.checked_sub(TOKEN))
            .is_ok()
    }

    /// Puts a token back. This may be at any time, so no clock is asked: the cap of the latest deposit holds.
    pub(super) fn give_back(&self) {
        self.credit(TOKEN, None);
    }

    /// What the floor has brought since it was last asked. Of several that ask at once one gets it; until it has put
    /// it in, the others go without.
    ///
    /// Whole milliseconds since a fixed instant are counted, so what is below one is not lost but counted later.
    fn fill(&self, now: i64) -> u64 {
        if self.floor == 0 {
            return 0;
        }
        let filled = self.filled.load(Relaxed);
        if filled >= now && filled.saturating_sub(now) < ANOTHER_CLOCK {
            return 0;
        }
        match self.filled.compare_exchange(filled, now, Relaxed, Relaxed) {
            Ok(_) => u64::try_from(now.saturating_sub(filled))
                .unwrap_or(0)
                .saturating_mul(self.floor),
            Err(_) => 0,
        }
    }

    /// Puts in this much, up to the cap. What was saved under a higher cap is cut as well. A full budget is not
    /// written to, so that calls on many threads do not wait for each other's stores.
    fn credit(&self, amount: u64, now: Option<i64>) {
        let mut balance = self.balance.load(Acquire);
        loop {
            // The cap is looked up after the balance was: it must not be older, or what another thread has put in
            // under a higher cap would be cut.
            let new = balance.saturating_add(amount).min(self.cap(now));
            if new == balance {
                return;
            }
            match self.balance.compare_exchange_weak(balance, new, Release, Acquire) {
                Ok(_) => return,
                Err(seen) => balance = seen,
            }
        }
    }

    /// The deposits of the running second and of the one before.
    #[cfg(all(test, outbound_loom))]
    pub(super) fn counted(&self) -> (u64, u64) {
        let traffic = Traffic(self.traffic.load(Relaxed));
        (traffic.running(), traffic.before())
    }

    fn cap(&self, now: Option<i64>) -> u64 {
        self.cap.unwrap_or_else(|| {
            let traffic = Traffic(self.traffic.load(Relaxed));
            let deposits = match now {
                Some(now) => traffic.deposits(Traffic::second(now)),
                None => traffic.latest_deposits(),
            };
            (u64::from(BURST) * TOKEN).max(deposits * self.share)
        })
    }

    /// Counts a deposit for the cap. Relaxed, as its thread goes on to put something into the balance.
    fn count(&self, now: i64) {
        let second = Traffic::second(now);
        let mut seen = self.traffic.load(Relaxed);
        loop {
            let traffic = Traffic(seen);
            if traffic.is_of(second) {
                if traffic.has_room() {
                    self.traffic.fetch_add(1, Relaxed);
                }
                return;
            }
            let next = traffic.followed_by(second).0;
            match self.traffic.compare_exchange_weak(seen, next, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// How many deposits there were in a second and in the one before it: `second: 20 | before: 22 | running: 22`, from the
/// top. In one word, as a thread that saw the one without the other would take the traffic to be gone.
///
/// The lower bits of a second tell neighboring seconds apart, which is all that is asked of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Traffic(u64);

const COUNT: u32 = 22;
const COUNT_MASK: u64 = (1 << COUNT) - 1;
const SECOND_AT: u32 = 2 * COUNT;
const SECOND_BITS: u32 = u64::BITS - SECOND_AT;

/// Four million deposits a second are counted. There is room above for each thread that is about to add one.
const MOST: u64 = COUNT_MASK - (1 << 16);

impl Traffic {
    fn second(millis: i64) -> u32 {
        millis.div_euclid(1000) as u32 & ((1 << SECOND_BITS) - 1)
    }

    fn running(self) -> u64 {
        self.0 & COUNT_MASK
    }

    fn before(self) -> u64 {
        self.0 >> COUNT & COUNT_MASK
    }

    /// How many seconds ago its second was.
    fn age(self, second: u32) -> i32 {
        let unused = u32::BITS - SECOND_BITS;
        let age = second.wrapping_sub((self.0 >> SECOND_AT) as u32) << unused;
        age as i32 >> unused
    }

    /// Does a deposit in this second count for the running one? A thread may be late.
    fn is_of(self, second: u32) -> bool {
        (-LATE..=0).contains(&self.age(second))
    }

    fn has_room(self) -> bool {
        self.running() < MOST
    }

    /// With the first deposit in this second.
    fn followed_by(self, second: u32) -> Self {
        let before = if self.age(second) == 1 { self.running() } else { 0 };
        Traffic(u64::from(second) << SECOND_AT | before << COUNT | 1)
    }

    /// The deposits of this second or of the one before, whichever had more.
    fn deposits(self, second: u32) -> u64 {
        if self.is_of(second) {
            self.latest_deposits()
        } else if self.age(second) == 1 {
            self.running()
        } else {
            0
        }
    }

    fn latest_deposits(self) -> u64 {
        self.running().max(self.before())
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use std::{collections::HashMap, thread};

    use proptest::prelude::*;

    use super::*;

    fn with_floor(floor: u64) -> Ledger {
        Ledger::new(100, floor, Some(1_000_000), 0)
    }

    #[test]
    fn threads_that_fill_at_once_fill_once() {
        let ledger = with_floor(7);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| ledger.available(10_000));
            }
        });
        assert_eq!(ledger.balance(), 70 * TOKEN);
    }

    #[test]
    fn a_clock_that_is_behind_does_not_stop_the_floor() {
        let ledger = with_floor(1);
        assert_eq!(ledger.fill(1_000_000), 1_000_000);
        assert_eq!(ledger.fill(-5_000), 0, "another clock");
        assert_eq!(ledger.fill(-4_000), 1000);
    }

    #[test]
    fn a_thread_that_was_held_up_for_seconds_brings_no_floor_twice_and_ends_no_traffic() {
        let ledger = with_floor(1);
        assert_eq!(ledger.available(20_000), 20 * TOKEN);
        assert_eq!(ledger.available(11_000), 20 * TOKEN);
        assert_eq!(ledger.available(20_000), 20 * TOKEN);

        let ledger = Ledger::new(1000, 0, None, 0);
        (0..50).for_each(|_| ledger.deposit(20_000));
        ledger.deposit(11_000);
        assert_eq!(ledger.available(20_000), 51 * TOKEN);
    }

    #[test]
    fn a_clock_that_is_behind_begins_its_own_seconds() {
        let ledger = Ledger::new(1000, 0, None, 0);
        (0..50).for_each(|_| ledger.deposit(1_000_000));
        (0..20).for_each(|_| ledger.deposit(-5_000));
        assert_eq!(ledger.available(-5_000), 20 * TOKEN);
    }

    #[test]
    fn more_deposits_than_are_counted_spill_into_nothing() {
        let ledger = Ledger::new(1, 0, None, 0);
        let full = Traffic(5 << SECOND_AT | 3 << COUNT | (MOST - 1));
        ledger.traffic.store(full.0, Relaxed);
        (0..3).for_each(|_| ledger.deposit(5_000));
        let traffic = Traffic(ledger.traffic.load(Relaxed));
        assert_eq!((traffic.running(), traffic.before()), (MOST, 3));
        assert_eq!(traffic.age(5), 0);
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Wait(i64),
        Deposit(u8),
        Withdraw,
        GiveBack,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let wait = prop_oneof![
            4 => 0..20_i64,
            4 => 0..3000_i64,
            1 => 0..100_000_000_i64,
            1 => 0..i64::MAX / 1000,
        ];
        let step = prop_oneof![
            2 => wait.prop_map(Step::Wait),
            4 => any::<u8>().prop_map(Step::Deposit),
            4 => Just(Step::Withdraw),
            1 => Just(Step::GiveBack),
        ];
        prop::collection::vec(step, 0..500)
    }

    /// A number of tokens, as a fraction: exact, and with no bound in reach.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Tokens(u128);

    impl Tokens {
        const WHOLE: u128 = 1_000_000;

        fn new(numerator: u128, denominator: u128) -> Self {
            assert_eq!(numerator * Self::WHOLE % denominator, 0);
            Tokens(numerator * Self::WHOLE / denominator)
        }

        fn plus(self, other: Tokens, most: Tokens) -> Self {
            Tokens((self.0 + other.0).min(most.0))
        }
    }

    /// What a budget says of itself, in its words: the deposits of each second are kept.
    struct Model {
        share: u128,
        floor: u128,
        cap: Option<u128>,
        tokens: Tokens,
        filled: i64,
        deposits: HashMap<i64, u128>,
        latest: i64,
    }

    impl Model {
        fn cap(&self, second: i64) -> Tokens {
            let of = |second| self.deposits.get(&second).copied().unwrap_or(0);
            let earned = of(second).max(of(second - 1)) * self.share;
            match self.cap {
                Some(cap) => Tokens::new(cap, 1),
                None => Tokens(Tokens::new(10, 1).0.max(Tokens::new(earned, 1000).0)),
            }
        }

        fn fill(&mut self, now: i64) {
            let millis = (now - std::mem::replace(&mut self.filled, now)) as u128;
            let brought = Tokens::new(millis * self.floor, 1000);
            self.tokens = self.tokens.plus(brought, self.cap(now.div_euclid(1000)));
        }

        fn deposit(&mut self, now: i64) {
            self.latest = now.div_euclid(1000);
            *self.deposits.entry(self.latest).or_default() += 1;
            let share = Tokens::new(self.share, 1000);
            self.tokens = self.tokens.plus(share, Tokens(u128::MAX));
            self.fill(now);
        }

        fn withdraw(&mut self, now: i64) -> bool {
            self.fill(now);
            let left = self.tokens.0.checked_sub(Tokens::WHOLE);
            self.tokens = left.map_or(self.tokens, Tokens);
            left.is_some()
        }

        fn give_back(&mut self) {
            self.tokens = self.tokens.plus(Tokens::new(1, 1), self.cap(self.latest));
        }
    }

    proptest! {
        /// To the thousandth, whatever is done in whatever order, at whatever time.
        #[test]
        fn it_does_as_a_model_in_exact_fractions_does(
            share in 0_u64..=1000,
            floor in prop_oneof![Just(0), 0_u64..100, 0..=u64::from(u32::MAX)],
            cap in prop_oneof![Just(None), (1_u64..50).prop_map(Some), (1..=u64::from(u32::MAX)).prop_map(Some)],
            initial in 0_u64..=10,
            steps in steps(),
        ) {
            let initial = cap.map_or(initial, |cap| initial.min(cap));
            let ledger = Ledger::new(share, floor, cap.map(|cap| cap * TOKEN), initial * TOKEN);
            let mut model = Model {
                share: share.into(),
                floor: floor.into(),
                cap: cap.map(Into::into),
                tokens: Tokens::new(initial.into(), 1),
                filled: 0,
                deposits: HashMap::new(),
                latest: 0,
            };
            let mut now = 0_i64;
            for step in steps {
                match step {
                    Step::Wait(millis) => now = now.saturating_add(millis),
                    Step::Deposit(calls) => for _ in 0..calls {
                        ledger.deposit(now);
                        model.deposit(now);
                    },
                    Step::Withdraw => prop_assert_eq!(ledger.withdraw(now), model.withdraw(now)),
                    Step::GiveBack => {
                        ledger.give_back();
                        model.give_back();
                    }
                }
                prop_assert_eq!(Tokens::new(ledger.balance().into(), 1000), model.tokens, "{:?}", step);
            }
        }

        /// Threads that are late, clocks that jump, and the ends of all numbers.
        #[test]
        fn no_time_and_no_setting_overflows_or_goes_beyond_the_cap(
            share in 0_u64..=1000,
            floor in 0..=u64::from(u32::MAX),
            cap in prop_oneof![Just(None), (1..=u64::from(u32::MAX)).prop_map(Some)],
            times in prop::collection::vec((any::<i64>(), -20_000..20_000_i64, 0_u8..4), 1..100),
            jumps in any::<bool>(),
        ) {
            let ledger = Ledger::new(share, floor, cap.map(|cap| cap * TOKEN), TOKEN);
            let most = cap.map_or(100 * 1000, |cap| cap * TOKEN);
            for (far, near, what) in times {
                let now = if jumps { far } else { near };
                match what {
                    0 => ledger.deposit(now),
                    1 => ledger.give_back(),
                    2 => { ledger.available(now); }
                    _ => {
                        let before = ledger.available(now);
                        prop_assert_eq!(ledger.withdraw(now), before >= TOKEN);
                    }
                }
                prop_assert!(ledger.balance() <= most);
            }
        }

        /// A year of calls, in whatever portions: what a fraction says they have earned is what can be spent.
        #[test]
        fn what_is_granted_is_what_was_earned_to_the_token(
            share in 0_u64..=1000,
            floor in 0_u64..1000,
            portions in prop::collection::vec((0_u32..200, 0_i64..1_000_000_000), 1..30),
        ) {
            let ledger = Ledger::new(share, floor, Some(u64::MAX), 0);
            let (mut now, mut deposits) = (0, 0);
            for (calls, millis) in portions {
                (0..calls).for_each(|_| ledger.deposit(now));
                now += millis;
                deposits += u128::from(calls);
            }
            let earned = (deposits * u128::from(share) + now as u128 * u128::from(floor)) / 1000;
            prop_assert_eq!(u128::from(ledger.available(now) / TOKEN), earned);
        }
    }
}
