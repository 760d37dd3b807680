//! How often a request can be sent at most, and how long that can take.

use std::{fmt, time::Duration};

/// The worst case of a nest: every attempt fails as late as it can.
///
/// attempts = backoff attempts x (same endpoint + 1) x (next endpoint + 1), or the
/// [limit on them](super::NestBuilder::attempts_in_call) if that is less; each takes at most the connect and the
/// read limit, and the wait for an endpoint where there is one; each backoff attempt may wait for the body of an error
/// answer; between them lie the longest pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    passes: u32,
    attempts_per_pass: u64,
    most_attempts: Option<u32>,
    attempt_limit: Duration,
    error_body: Duration,
    pauses: Duration,
    execution_limit: Option<Duration>,
}

impl Plan {
    pub(super) fn new(
        passes: u32,
        attempts_per_pass: u64,
        attempt_limit: Duration,
        error_body: Duration,
        pauses: Duration,
        execution_limit: Option<Duration>,
    ) -> Self {
        Plan {
            passes,
            attempts_per_pass,
            most_attempts: None,
            attempt_limit,
            error_body,
            pauses,
            execution_limit,
        }
    }

    /// With a limit on the attempts of the whole call. `passes` and `pauses` are those of a call that keeps to it.
    pub(super) fn limited(mut self, most_attempts: Option<u32>) -> Self {
        self.most_attempts = most_attempts;
        self
    }

    fn unlimited_attempts(&self) -> u64 {
        u64::from(self.passes).saturating_mul(self.attempts_per_pass)
    }

    /// How often one call is sent at most.
    pub fn attempts(&self) -> u64 {
        let most = self.most_attempts.map_or(u64::MAX, u64::from);
        self.unlimited_attempts().min(most)
    }

    /// How long one call takes at most, if nothing ends it from outside. The body of the response is not in it.
    pub fn longest(&self) -> Duration {
        let nanos = self
            .attempt_limit
            .as_nanos()
            .saturating_mul(self.attempts().into());
        let attempts = u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos);
        attempts
            .saturating_add(self.error_body.saturating_mul(self.passes))
            .saturating_add(self.pauses)
    }

    /// What contradicts itself.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(limit) = self.execution_limit.filter(|limit| *limit < self.longest()) {
            findings.push(Finding::PlanExceedsExecutionLimit {
                plan: self.longest(),
                limit,
            });
        }
        findings
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at most {} x {} = {} attempts{} of at most {:?}, {:?} for the body of an error {} times, and {:?} of pauses: \
             {:?} in all",
            self.passes,
            self.attempts_per_pass,
            self.unlimited_attempts(),
            if self.attempts() < self.unlimited_attempts() {
                format!(", but {} by their limit,", self.attempts())
            } else {
                String::new()
            },
            self.attempt_limit,
            self.error_body,
            self.passes,
            self.pauses,
            self.longest()
        )
    }
}

/// A contradiction in a plan. A nest with one is not built unless it is [accepted](super::NestBuilder::accept_cut_short).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The execution limit ends calls before their retries are through, so some retries are never made.
    PlanExceedsExecutionLimit {
        /// What the attempts and pauses come to.
        plan: Duration,
        /// The execution limit.
        limit: Duration,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::PlanExceedsExecutionLimit { plan, limit } => {
                write!(
                    f,
                    "attempts and pauses can take {plan:?}, and the execution limit ends a call after {limit:?}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_attempts_bounds_the_plan_and_is_told() {
        let second = Duration::from_secs(1);
        let plan = Plan::new(2, 3, second, Duration::ZERO, second, None);
        assert_eq!((plan.attempts(), plan.longest()), (6, 7 * second));
        assert!(plan.to_string().starts_with("at most 2 x 3 = 6 attempts of"));
        let limited = plan.limited(Some(4));
        assert_eq!((limited.attempts(), limited.longest()), (4, 5 * second));
        assert!(
            limited
                .to_string()
                .starts_with("at most 2 x 3 = 6 attempts, but 4 by their limit, of at most 1s"),
            "{limited}"
        );
        assert_eq!(plan.limited(Some(9)).attempts(), 6);
    }
}
