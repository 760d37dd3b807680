//! How many retries there may be, in proportion to calls.

mod builder;
mod ledger;

#[cfg(all(test, outbound_loom))]
mod loom_tests;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::time::Instant;

pub use self::builder::RetryBudgetBuilder;
use self::ledger::{Ledger, TOKEN};
use crate::sync::AtomicU64;

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
    ledger: Ledger,
    earned: Earned,
    base: Instant,
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
        self.withdraw_at(Instant::now())
    }

    /// How many retries would be granted at this moment.
    pub fn available(&self) -> u64 {
        let inner = &*self.0;
        inner.ledger.available(inner.millis(Instant::now())) / TOKEN
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
        inner.ledger.deposit(inner.millis(now));
    }

    fn withdraw_at(&self, now: Instant) -> Option<BudgetSlot> {
        let inner = &*self.0;
        if inner.ledger.withdraw(inner.millis(now)) {
            inner.in_hand.fetch_add(1, Relaxed);
            Some(BudgetSlot(Some(self.clone())))
        } else {
            inner.refused.fetch_add(1, Relaxed);
            None
        }
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
}

/// 10 % of calls and one retry a second, with a burst of 10.
impl Default for RetryBudget {
    fn default() -> Self {
        RetryBudget::builder().made(100)
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
            inner.ledger.percent(),
            inner.ledger.floor()
        )
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("percent", &self.0.ledger.percent())
            .field("floor", &self.0.ledger.floor())
            .field("burst", &self.0.ledger.cap_set().map(|cap| cap / TOKEN))
            .field("earned", &self.0.earned)
            .field("tokens", &(self.0.ledger.balance() as f64 / TOKEN as f64))
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
            budget.0.ledger.give_back();
        }
    }
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use std::thread;

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
}
