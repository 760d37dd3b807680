//! Counts, and the line at the end.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{judge::Wrong, schedule::Act};

/// How many numbers of wrong calls are kept of each kind.
const KEPT: usize = 8;

/// What was seen in a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub calls: u64,
    pub attempts: u64,
    /// Attempts by what became of them.
    pub acts: BTreeMap<Act, u64>,
    /// Unsafe requests that were sent again after a server had seen them, by a rule that says so.
    pub allowed: u64,
    /// The same, and no rule says so.
    pub duplicates: u64,
    /// Calls that provably reached no server at first and were sent again.
    pub recovered: u64,
    /// Calls that provably reached no server in the end.
    pub unsent: u64,
    /// Calls whose caller left.
    pub left: u64,
    pub held_by_budget: u64,
    pub held_by_deadline: u64,
    pub held_by_body: u64,
    pub without_endpoint: u64,
    pub rejected: u64,
    /// What was wrong, how often, and the numbers of some of the calls.
    pub wrongs: BTreeMap<Wrong, (u64, Vec<u64>)>,
    /// The first wrong calls with all that is known of them.
    pub told: Vec<String>,
}

impl Report {
    /// An attempt had this act.
    pub fn act(&mut self, act: Act) {
        *self.acts.entry(act).or_default() += 1;
    }

    /// This was wrong with this call.
    pub fn wrong(&mut self, wrong: Wrong, call: u64) {
        let (count, calls) = self.wrongs.entry(wrong).or_default();
        *count += 1;
        if calls.len() < KEPT {
            calls.push(call);
        }
    }

    /// All that is known of a wrong call, if it is one of the first.
    pub fn tell(&mut self, call: impl FnOnce() -> String) {
        if self.told.len() < KEPT {
            self.told.push(call());
        }
    }

    /// How often this was wrong.
    pub fn count(&self, wrong: Wrong) -> u64 {
        self.wrongs.get(&wrong).map_or(0, |(count, _)| *count)
    }

    /// Is nothing wrong?
    pub fn is_clean(&self) -> bool {
        self.wrongs.is_empty()
    }

    /// Adds what another run has seen.
    pub fn merge(&mut self, other: Report) {
        self.calls += other.calls;
        self.attempts += other.attempts;
        for (act, count) in other.acts {
            *self.acts.entry(act).or_default() += count;
        }
        self.allowed += other.allowed;
        self.duplicates += other.duplicates;
        self.recovered += other.recovered;
        self.unsent += other.unsent;
        self.left += other.left;
        self.held_by_budget += other.held_by_budget;
        self.held_by_deadline += other.held_by_deadline;
        self.held_by_body += other.held_by_body;
        self.without_endpoint += other.without_endpoint;
        self.rejected += other.rejected;
        for (wrong, (count, calls)) in other.wrongs {
            let (sum, kept) = self.wrongs.entry(wrong).or_default();
            *sum += count;
            kept.extend(calls);
            kept.truncate(KEPT);
        }
        self.told.extend(other.told);
        self.told.truncate(KEPT);
    }

    /// The last line of a run.
    pub fn line(&self, part: &str, seed: u64, took: Duration) -> String {
        let acts: Vec<_> = self
            .acts
            .iter()
            .map(|(act, count)| format!("{act:?} {count}"))
            .collect();
        format!(
            "at most once, {part}: {} calls, {} attempts ({}); duplicates {} (allowed by a laxer rule {}); lost {}; \
             late {}; sent at last {} of {}; seed {seed}; {:.1} s",
            self.calls,
            self.attempts,
            acts.join(", "),
            self.duplicates,
            self.allowed,
            self.count(Wrong::Lost),
            self.count(Wrong::Late) + self.count(Wrong::Outlives),
            self.recovered,
            self.recovered + self.count(Wrong::Lost),
            took.as_secs_f64(),
        )
    }
}

/// What was wrong, a line each.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "left {}, unsent to the end {}, held by budget {}, deadline {}, body {}, without endpoint {}, rejected {}",
            self.left,
            self.unsent,
            self.held_by_budget,
            self.held_by_deadline,
            self.held_by_body,
            self.without_endpoint,
            self.rejected
        )?;
        for wrong in Wrong::ALL {
            if let Some((count, calls)) = self.wrongs.get(&wrong) {
                writeln!(f, "{wrong}: {count}, as in the calls {calls:?}")?;
            }
        }
        for told in &self.told {
            writeln!(f, "{told}")?;
        }
        Ok(())
    }
}
