//! What a budget is made of, and the mistakes that there can be in it.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Earned, Inner, RetryBudget,
    ledger::{BURST, Ledger, TOKEN},
};
use crate::{
    call::config::{self, ConfigError},
    sync::AtomicU64,
};

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

    pub(super) fn made(self, share: u64) -> RetryBudget {
        let initial = self
            .initial
            .unwrap_or_else(|| self.cap.unwrap_or(BURST).min(BURST));
        let cap = self.cap.map(|cap| u64::from(cap) * TOKEN);
        RetryBudget(Arc::new(Inner {
            ledger: Ledger::new(share, self.floor.into(), cap, u64::from(initial) * TOKEN),
            earned: self.earned,
            base: Instant::now(),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            in_hand: AtomicU64::new(0),
        }))
    }
}
