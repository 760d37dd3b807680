//! How many retries there may be, in proportion to calls.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::time::Instant;

use super::config::{self, ConfigError};

/// A retry costs one token. Balances are kept in thousandths of one, so that no share is rounded.
const TOKEN: u64 = 1000;

/// The burst that is always granted, unless the builder says otherwise.
const BURST: u32 = 10;

/// A retry budget: retries may be a share of calls, and a few more each second.
///
/// When a server fails for everyone, retries multiply the load on it just when it can bear least. A budget that
/// all retries of a client draw on bounds that: with 10 % and a server that fails every request, 100 calls become
/// 110 attempts.
///
/// All clones are one budget. Give clones to all layers that retry calls to the same dependency: they count a call
/// once, and each retry, of whichever layer, costs one token.
///
/// | setting | default |
/// | --- | --- |
/// | [`percent`](RetryBudgetBuilder::percent) of calls | 10 |
/// | [`floor`](RetryBudgetBuilder::floor), retries a second beyond that | 1 |
/// | [`burst`](RetryBudgetBuilder::burst), what may be saved up | 10, or what one second's calls earn if that is more |
/// | [`initial`](RetryBudgetBuilder::initial) | 10, or the burst if that is less |
/// | [`earned_by`](RetryBudgetBuilder::earned_by) | [`Earned::Calls`] |
///
/// The small burst is on purpose: what is saved up over quiet hours would all be spent in the first second of an
/// outage.
///
/// Nothing in it locks, and its arithmetic is exact: no deposit and no withdrawal is lost, and neither is a
/// fraction of a token.
///
/// ```
/// use tower_outbound::call::RetryBudget;
///
/// let budget = RetryBudget::builder().percent(20.0).floor(0).build()?;
/// budget.deposit();
/// if let Some(slot) = budget.withdraw() {
///     // A slot that is dropped gives its token back.
///     slot.spend();
/// }
/// assert_eq!((budget.granted(), budget.refused()), (1, 0));
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RetryBudget(Arc<Inner>);

struct Inner {
    /// Thousandths of a token for each deposit.
    share: u64,
    /// Tokens a second, which is thousandths of a token a millisecond.
    floor: u64,
    cap: Option<u64>,
    earned: Earned,
    base: Instant,
    /// Thousandths of a token.
    balance: AtomicU64,
    /// Up to which millisecond since `base` the floor has been put in.
    filled: AtomicI64,
    /// Deposits of the running second, and of the one before it in which there were any: see [`Second`].
    running: AtomicU64,
    before: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    /// Tokens taken out for retries that have not started yet.
    in_hand: AtomicU64,
}

/// What puts the share of a call into a [`RetryBudget`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Earned {
    /// Each call, when its first attempt starts.
    #[default]
    Calls,
    /// Each call that ended well. Retries dry up faster while the server fails for everyone.
    Successes,
}

/// A second, and how many deposits there were in it, in one word.
#[derive(Clone, Copy)]
struct Second(u64);

impl Second {
    fn new(second: u32, deposits: u32) -> Self {
        Second(u64::from(second) << 32 | u64::from(deposits))
    }

    fn of(millis: i64) -> u32 {
        // The lower bits tell neighboring seconds apart, which is all that is asked of them.
        millis.div_euclid(1000) as u32
    }

    /// How many seconds ago it was.
    fn age(self, now: u32) -> i32 {
        now.wrapping_sub((self.0 >> 32) as u32) as i32
    }

    fn deposits_if_fresh(self, now: u32) -> u64 {
        if matches!(self.age(now), -1..=1) {
            self.0 & u64::from(u32::MAX)
        } else {
            0
        }
    }
}

impl RetryBudget {
    /// Begins a budget with the defaults.
    pub fn builder() -> RetryBudgetBuilder {
        RetryBudgetBuilder::default()
    }

    /// Puts in the share of one call. A layer with this budget does so itself.
    pub fn deposit(&self) {
        self.deposit_at(Instant::now());
    }

    /// Takes a token out, if there is one. It is given back if the slot is dropped.
    pub fn withdraw(&self) -> Option<BudgetSlot> {
        let inner = &*self.0;
        let now = inner.millis(Instant::now());
        inner.credit(inner.fill(now), inner.cap(Second::of(now)));
        let taken = inner
            .balance
            .fetch_update(Relaxed, Relaxed, |balance| balance.checked_sub(TOKEN));
        if taken.is_ok() {
            inner.in_hand.fetch_add(1, Relaxed);
            Some(BudgetSlot(Some(self.clone())))
        } else {
            inner.refused.fetch_add(1, Relaxed);
            None
        }
    }

    /// How many retries would be granted at this moment.
    pub fn available(&self) -> u64 {
        let inner = &*self.0;
        let now = inner.millis(Instant::now());
        inner.credit(inner.fill(now), inner.cap(Second::of(now)));
        inner.balance.load(Relaxed) / TOKEN
    }

    /// How many tokens were spent so far.
    pub fn granted(&self) -> u64 {
        self.0.granted.load(Relaxed)
    }

    /// How many times there was none.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// How many tokens are in the hands of retries that wait for their time: neither available nor spent.
    pub fn in_hand(&self) -> u64 {
        self.0.in_hand.load(Relaxed)
    }

    /// What tells it from other budgets, for as long as it lives. Never 0.
    #[allow(dead_code, reason = "asked by a layer that is a feature")]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    #[allow(dead_code, reason = "used by a layer that is a feature")]
    pub(crate) fn call_starts(&self, now: Instant) {
        if self.0.earned == Earned::Calls {
            self.deposit_at(now);
        }
    }

    #[allow(dead_code, reason = "used by a layer that is a feature")]
    pub(crate) fn call_succeeded(&self) {
        if self.0.earned == Earned::Successes {
            self.deposit();
        }
    }

    fn deposit_at(&self, now: Instant) {
        let inner = &*self.0;
        let now = inner.millis(now);
        let second = Second::of(now);
        if inner.cap.is_none() {
            inner.count(second);
        }
        inner.credit(inner.share.saturating_add(inner.fill(now)), inner.cap(second));
    }
}

impl Inner {
    /// Milliseconds since this budget was made; below zero where the clock of another runtime is behind.
    fn millis(&self, now: Instant) -> i64 {
        let between = |later: Instant, earlier: Instant| {
            i64::try_from(later.saturating_duration_since(earlier).as_millis()).unwrap_or(i64::MAX)
        };
        if now >= self.base {
            between(now, self.base)
        } else {
            -between(self.base, now)
        }
    }

    /// What the floor has brought since it was last asked. Of several that ask at once one gets it.
    ///
    /// Whole milliseconds since a fixed instant are counted, so what is below one is not lost but counted later.
    fn fill(&self, now: i64) -> u64 {
        if self.floor == 0 {
            return 0;
        }
        let filled = self.filled.load(Relaxed);
        // A thread may come with an older time; a clock that is a second behind is another one.
        if filled >= now && filled - now < 1000 {
            return 0;
        }
        match self.filled.compare_exchange(filled, now, Relaxed, Relaxed) {
            Ok(_) => u64::try_from(now - filled)
                .unwrap_or(0)
                .saturating_mul(self.floor),
            Err(_) => 0,
        }
    }

    /// Puts in this much, up to the cap. What was saved under a higher cap is cut as well. A full budget is not
    /// written to, so that calls on many threads do not wait for each other's stores.
    fn credit(&self, amount: u64, cap: u64) {
        let mut balance = self.balance.load(Relaxed);
        loop {
            let new = balance.saturating_add(amount).min(cap);
            if new == balance {
                return;
            }
            match self.balance.compare_exchange_weak(balance, new, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(seen) => balance = seen,
            }
        }
    }

    fn count(&self, second: u32) {
        let running = self.running.load(Relaxed);
        let same = matches!(Second(running).age(second), -1 | 0);
        let next = Second::new(second, 1).0;
        if !same
            && self
                .running
                .compare_exchange(running, next, Relaxed, Relaxed)
                .is_ok()
        {
            self.before.store(running, Relaxed);
        } else {
            self.running.fetch_add(1, Relaxed);
        }
    }

    fn cap(&self, second: u32) -> u64 {
        self.cap.unwrap_or_else(|| {
            let deposits = |of: &AtomicU64| Second(of.load(Relaxed)).deposits_if_fresh(second) * self.share;
            (u64::from(BURST) * TOKEN)
                .max(deposits(&self.running))
                .max(deposits(&self.before))
        })
    }

    fn give_back(&self) {
        // A drop may come at any time, so no clock is asked: the cap of the latest deposit holds.
        let second = (self.running.load(Relaxed) >> 32) as u32;
        self.credit(TOKEN, self.cap(second));
    }
}

/// 10 % of calls and one retry a second, with a burst of 10.
impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudgetBuilder::default().made(100)
    }
}

/// What it is made of: `10 % of calls and 1 a second`.
impl fmt::Display for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let of = match inner.earned {
            Earned::Calls => "calls",
            Earned::Successes => "successes",
        };
        write!(
            f,
            "{} % of {of} and {} a second",
            inner.share as f64 / 10.0,
            inner.floor
        )
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("percent", &(self.0.share as f64 / 10.0))
            .field("floor", &self.0.floor)
            .field("burst", &self.0.cap.map(|cap| cap / TOKEN))
            .field("earned", &self.0.earned)
            .field("tokens", &(self.0.balance.load(Relaxed) as f64 / TOKEN as f64))
            .field("granted", &self.granted())
            .field("refused", &self.refused())
            .field("in_hand", &self.in_hand())
            .finish()
    }
}

/// A token taken out of a [`RetryBudget`] for a retry that has not started yet. Dropped, it gives the token back.
#[derive(Debug)]
#[must_use = "a slot that is dropped gives its token back"]
pub struct BudgetSlot(Option<RetryBudget>);

impl BudgetSlot {
    /// The retry starts: the token is spent.
    pub fn spend(mut self) {
        if let Some(budget) = self.0.take() {
            budget.0.in_hand.fetch_sub(1, Relaxed);
            budget.0.granted.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for BudgetSlot {
    fn drop(&mut self) {
        if let Some(budget) = &self.0 {
            budget.0.in_hand.fetch_sub(1, Relaxed);
            budget.0.give_back();
        }
    }
}

/// What is said of a [`RetryBudget`] before it is one.
#[derive(Debug, Clone)]
pub struct RetryBudgetBuilder {
    percent: f64,
    floor: u32,
    cap: Option<u32>,
    initial: Option<u32>,
    earned: Earned,
}

impl Default for RetryBudgetBuilder {
    fn default() -> Self {
        RetryBudgetBuilder {
            percent: 10.0,
            floor: 1,
            cap: None,
            initial: None,
            earned: Earned::Calls,
        }
    }
}

impl RetryBudgetBuilder {
    /// How many retries 100 calls earn, from 0 to 100, in steps of 0.1. Default: 10.
    pub fn percent(mut self, percent: f64) -> Self {
        self.percent = percent;
        self
    }

    /// How many retries each second brings, whatever the traffic, so that a client with little of it can retry at
    /// all. Default: 1. It counts for each process: of 50 clients each brings its own.
    pub fn floor(mut self, per_second: u32) -> Self {
        self.floor = per_second;
        self
    }

    /// How many retries may be saved up. Default: 10, or what the calls of one second earn if that is more.
    pub fn burst(mut self, retries: u32) -> Self {
        self.cap = Some(retries);
        self
    }

    /// How many retries there are at the start. Default: 10, or the burst if that is less.
    pub fn initial(mut self, retries: u32) -> Self {
        self.initial = Some(retries);
        self
    }

    /// What puts a call's share in. Default: [`Earned::Calls`].
    pub fn earned_by(mut self, earned: Earned) -> Self {
        self.earned = earned;
        self
    }

    /// The budget.
    ///
    /// # Errors
    ///
    /// If the percentage is not from 0 to 100 or no multiple of 0.1, if the burst is zero, or if there is more at the
    /// start than may be saved up.
    pub fn build(self) -> Result<RetryBudget, ConfigError> {
        const LAYER: &str = "RetryBudget";
        config::percent(LAYER, "percent", self.percent)?;
        let share = (self.percent * 10.0).round();
        if (share - self.percent * 10.0).abs() > 1e-9 {
            return Err(ConfigError::new(
                LAYER,
                "percent",
                self.percent,
                "give a multiple of 0.1, which is kept exactly",
            ));
        }
        if let Some(cap) = self.cap {
            config::at_least_one(LAYER, "burst", cap)?;
        }
        let most = self.cap.unwrap_or(BURST);
        if let Some(initial) = self.initial.filter(|initial| *initial > most) {
            return Err(ConfigError::new(
                LAYER,
                "initial",
                initial,
                format!("give at most the burst, {most}, or set a higher burst"),
            ));
        }
        Ok(self.made(share as u64))
    }

    fn made(self, share: u64) -> RetryBudget {
        let initial = self
            .initial
            .unwrap_or_else(|| self.cap.unwrap_or(BURST).min(BURST));
        let never = Second::new(u32::MAX / 2, 0).0;
        RetryBudget(Arc::new(Inner {
            share,
            floor: self.floor.into(),
            cap: self.cap.map(|cap| u64::from(cap) * TOKEN),
            earned: self.earned,
            base: Instant::now(),
            balance: AtomicU64::new(u64::from(initial) * TOKEN),
            filled: AtomicI64::new(0),
            running: AtomicU64::new(never),
            before: AtomicU64::new(never),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            in_hand: AtomicU64::new(0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;
    use tokio::time::{Duration, advance};

    use super::*;

    fn spend(budget: &RetryBudget) -> bool {
        budget.withdraw().map(BudgetSlot::spend).is_some()
    }

    fn spend_all(budget: &RetryBudget) -> usize {
        std::iter::repeat_with(|| spend(budget))
            .take_while(|spent| *spent)
            .count()
    }

    #[test]
    fn without_refill_the_initial_tokens_are_all_there_are() {
        let budget = RetryBudget::builder().percent(0.0).floor(0).build().unwrap();
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(spend_all(&budget), 10);
        assert_eq!(
            (budget.granted(), budget.refused(), budget.available()),
            (10, 1, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn ten_percent_of_calls_are_exactly_ten_percent() {
        let budget = RetryBudget::builder().floor(0).initial(0).build().unwrap();
        let mut spent = 0;
        for _ in 0..100_000 {
            budget.deposit();
            spent += usize::from(spend(&budget));
        }
        assert_eq!(spent, 10_000);
    }

    /// RET-17.
    #[test]
    fn a_drained_budget_fills_up_again_and_never_beyond_its_cap() {
        let budget = RetryBudget::builder()
            .percent(100.0)
            .floor(0)
            .burst(10)
            .build()
            .unwrap();
        assert_eq!(spend_all(&budget), 10);
        (0..10).for_each(|_| budget.deposit());
        assert_eq!(budget.available(), 10);
        (0..10).for_each(|_| budget.deposit());
        assert_eq!(spend_all(&budget), 10);
    }

    /// RAC-07, the refill.
    #[tokio::test(start_paused = true)]
    async fn the_floor_comes_with_time_and_no_fraction_of_it_is_lost() {
        let budget = RetryBudget::builder().floor(3).initial(0).build().unwrap();
        let mut spent = 0;
        // 10 s in steps that are no whole milliseconds, asked at each.
        for _ in 0..10_000_000 / 700 {
            advance(Duration::from_micros(700)).await;
            spent += usize::from(spend(&budget));
        }
        assert_eq!(spent, 29, "9.9995 s bring 29.99 tokens");
        advance(Duration::from_micros(500)).await;
        assert!(spend(&budget), "and 10 s bring 30");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_hour_saves_up_no_more_than_the_burst() {
        let budget = RetryBudget::default();
        advance(Duration::from_secs(3600)).await;
        assert_eq!(budget.available(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn the_cap_is_what_one_second_earns_and_falls_with_the_traffic() {
        let budget = RetryBudget::builder().floor(0).initial(0).build().unwrap();
        for _ in 0..3 {
            (0..1000).for_each(|_| budget.deposit());
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(budget.available(), 100, "300 were earned, 100 in one second");
        advance(Duration::from_secs(2)).await;
        assert_eq!(budget.available(), 10, "the traffic is gone");
    }

    #[test]
    fn a_slot_that_is_dropped_gives_its_token_back() {
        let budget = RetryBudget::builder().floor(0).burst(1).build().unwrap();
        let slot = budget.withdraw();
        assert!(slot.is_some() && budget.withdraw().is_none());
        assert_eq!((budget.available(), budget.in_hand()), (0, 1));
        drop(slot);
        assert_eq!(
            (budget.available(), budget.granted(), budget.in_hand()),
            (1, 0, 0)
        );
        assert!(spend(&budget) && budget.withdraw().is_none());
        assert_eq!((budget.granted(), budget.in_hand()), (1, 0));
    }

    /// RAC-07.
    #[test]
    fn threads_lose_neither_deposits_nor_withdrawals() {
        let budget = RetryBudget::builder()
            .percent(100.0)
            .floor(0)
            .burst(10_000)
            .initial(1000)
            .build()
            .unwrap();
        let spent: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..8_usize)
                .map(|thread| {
                    let budget = &budget;
                    scope.spawn(move || {
                        (0..12_500)
                            .filter(|n| {
                                if thread < 5 && *n < 100 {
                                    budget.deposit();
                                }
                                // Some are given back in between.
                                if n % 7 == 0 {
                                    drop(budget.withdraw());
                                }
                                spend(budget)
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(spent + spend_all(&budget), 1500);
    }

    #[tokio::test(start_paused = true)]
    async fn threads_that_fill_at_once_fill_once() {
        let budget = RetryBudget::builder()
            .floor(7)
            .burst(1000)
            .initial(0)
            .build()
            .unwrap();
        advance(Duration::from_secs(10)).await;
        // The clock of a thread outside of the runtime runs on, so the time is handed in.
        let now = budget.0.millis(Instant::now());
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| budget.0.credit(budget.0.fill(now), 1_000_000));
            }
        });
        assert_eq!(budget.0.balance.load(Relaxed), 70 * TOKEN);
    }

    #[test]
    fn a_clock_that_is_behind_does_not_stop_the_floor() {
        let budget = RetryBudget::builder().burst(1000).initial(0).build().unwrap();
        assert_eq!(budget.0.fill(1_000_000), 1_000_000);
        assert_eq!(budget.0.fill(-5_000), 0, "another clock");
        assert_eq!(budget.0.fill(-4_000), 1000);
    }

    #[test]
    fn mistakes_are_found_when_it_is_built() {
        let field = |builder: RetryBudgetBuilder| builder.build().unwrap_err().field();
        for percent in [-0.1, 100.1, f64::NAN, f64::INFINITY, 0.05] {
            assert_eq!(
                field(RetryBudget::builder().percent(percent)),
                "percent",
                "{percent}"
            );
        }
        for percent in [0.1, 0.3, 33.3, 99.9] {
            assert!(
                RetryBudget::builder().percent(percent).build().is_ok(),
                "{percent}"
            );
        }
        assert_eq!(field(RetryBudget::builder().burst(0)), "burst");
        assert_eq!(field(RetryBudget::builder().initial(11)), "initial");
        assert!(RetryBudget::builder().initial(11).burst(11).build().is_ok());
    }

    proptest! {
        /// The balance is what a plain model of it says, whatever is done in whatever order.
        #[test]
        fn it_does_as_a_plain_model_does(
            share in 0_u64..=1000,
            cap in 1_u32..50,
            steps in prop::collection::vec(0_u8..3, 0..500),
        ) {
            let budget = RetryBudget::builder()
                .percent(share as f64 / 10.0).floor(0).burst(cap).initial(0).build().unwrap();
            let (mut model, most) = (0_u64, u64::from(cap) * TOKEN);
            let mut held = Vec::new();
            for step in steps {
                match step {
                    0 => { budget.deposit(); model = (model + share).min(most); }
                    1 => {
                        let slot = budget.withdraw();
                        prop_assert_eq!(slot.is_some(), model >= TOKEN);
                        if slot.is_some() { model -= TOKEN; }
                        held.extend(slot);
                    }
                    _ => if held.pop().is_some() { model = (model + TOKEN).min(most); },
                }
                prop_assert_eq!(budget.0.balance.load(Relaxed), model);
            }
        }
    }
}
