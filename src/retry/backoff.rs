//! Retries with growing pauses.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::time::Duration;

use super::{Again, FailedAttempt, RetryLayer, RetryPolicy, RetryService};
use crate::call::{
    AnyAnswer, ConfigError, FaultKind, NotRetried, Overrides, ReadPhase, RetryTo, Semantics, StatusSet,
    config,
};

const LAYER: &str = "BackoffRetry";

/// gRPC's UNAVAILABLE, the one code that says "not now".
const GRPC_UNAVAILABLE: i32 = 14;

/// Retries with growing pauses. See [`Backoff`] for the policy.
///
/// ```
/// use std::time::Duration;
/// use tower::ServiceBuilder;
/// use tower_outbound::{
///     call::{RetryBudget, StatusSet},
///     retry::{Backoff, BackoffRetryLayer},
/// };
///
/// let backoff = Backoff::builder().attempts(3).base(Duration::from_millis(50)).build()?;
/// let layer = BackoffRetryLayer::new(backoff)
///     .retry_statuses(StatusSet::TRANSIENT)
///     .budget(RetryBudget::default());
///
/// # let client = tower::service_fn(|_: http::Request<String>| async {
/// #     Ok::<_, tower::BoxError>(http::Response::new(String::new()))
/// # });
/// let service = ServiceBuilder::new().layer(layer).service(client);
/// # fn check<S: tower::Service<http::Request<String>>>(_: S) {}
/// # check(service);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub type BackoffRetryLayer<A = AnyAnswer> = RetryLayer<Backoff, A>;

/// The service of [`BackoffRetryLayer`].
pub type BackoffRetry<S, A = AnyAnswer> = RetryService<S, Backoff, A>;

impl<A> RetryLayer<Backoff, A> {
    /// Retries answers with one of these statuses, and errors that carry one of them, in place of the statuses of
    /// the policy.
    ///
    /// Without it answers are not looked at: statuses are retried only where a layer below turns them into errors.
    #[must_use]
    pub fn retry_statuses(mut self, statuses: StatusSet) -> BackoffRetryLayer<StatusSet> {
        self.policy.statuses = Statuses::new(statuses);
        if self.policy.rule == Rule::FeignUndated {
            self.policy.rule = Rule::Feign;
        }
        self.read_answers(statuses)
    }
}

/// When to send a request again, and how long to pause before.
///
/// | setting | [`default()`](Backoff::default) | [`feign(..)`](Backoff::feign) |
/// | --- | --- | --- |
/// | attempts in all | 2 | as given |
/// | pause before retry `n` | up to `100 ms * 2^(n-1)`, at most 1 s, drawn evenly from zero on | `period * 1.5^n`, in whole milliseconds, at most `max_period` |
/// | faults retried | all but rejections | all before the head of the answer is complete, but no rejections |
/// | statuses retried | 408, 429, 502, 503, 504 | every error with a `Retry-After`, no other |
/// | requests retried | safe or keyed ones; others if nothing was sent | **all**, whatever the method |
/// | `Retry-After` | the pause is added to it; more than 10 s: no retry | in place of the pause, cut to `max_period` |
///
/// A request can set the number of attempts for its call alone: [`Overrides`](crate::call::Overrides).
///
/// No retry begins whose pause would not end before the deadline of the call: the error that is known is returned
/// at once.
#[derive(Debug, Clone)]
pub struct Backoff {
    attempts: u32,
    base: Duration,
    max: Duration,
    factor: f64,
    jitter: Jitter,
    max_retry_after: Duration,
    statuses: Statuses,
    rule: Rule,
    draws: Draws,
}

/// How chance changes a pause, so that clients which failed together do not come back together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Jitter {
    /// Not at all.
    None,
    /// Drawn evenly from zero to the pause.
    #[default]
    Full,
    /// Half of the pause, and as much again drawn evenly.
    Equal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Safe,
    /// As `Safe`, but requests are retried that may have been sent and are neither safe nor keyed.
    Risky,
    Feign,
    /// As `Feign`, and of the errors with one of the statuses the pause is never the server's.
    FeignUndated,
}

impl Rule {
    fn is_feign(self) -> bool {
        matches!(self, Rule::Feign | Rule::FeignUndated)
    }
}

/// Most policies have one of two sets, which cost nothing to clone; sets of one's own are shared.
#[derive(Debug, Clone)]
enum Statuses {
    None,
    Transient,
    These(Arc<StatusSet>),
}

impl Statuses {
    fn new(statuses: StatusSet) -> Self {
        if statuses.is_empty() {
            Statuses::None
        } else if statuses == StatusSet::TRANSIENT {
            Statuses::Transient
        } else {
            Statuses::These(Arc::new(statuses))
        }
    }

    fn contains(&self, status: http::StatusCode) -> bool {
        match self {
            Statuses::None => false,
            Statuses::Transient => StatusSet::TRANSIENT.contains(status),
            Statuses::These(statuses) => statuses.contains(status),
        }
    }
}

/// Where chance comes from: the thread, or a seed that all clones share.
#[derive(Debug, Clone)]
enum Draws {
    Thread,
    Seeded(Arc<AtomicU64>),
}

impl Draws {
    /// From 0 to 1, without 1.
    fn draw(&self) -> f64 {
        match self {
            Draws::Thread => fastrand::f64(),
            Draws::Seeded(seed) => fastrand::Rng::with_seed(seed.fetch_add(1, Relaxed)).f64(),
        }
    }
}

/// 2 attempts in all, full jitter up to 100 ms, safe requests and those that were not sent.
impl Default for Backoff {
    fn default() -> Self {
        Backoff::builder().made()
    }
}

impl Backoff {
    /// Begins a policy with the defaults.
    pub fn builder() -> BackoffBuilder {
        BackoffBuilder::default()
    }

    /// Retries nothing. Calls go straight through, without a copy or a look at the clock.
    pub fn never() -> Self {
        Backoff {
            attempts: 1,
            ..Backoff::default()
        }
    }

    /// Retries as `Retryer.Default` of Feign 9.5 does, of which the defaults are 100 ms, 1 s and 5 attempts: pauses
    /// of 150, 225, 337 and 506 ms.
    ///
    /// **A risk:** it sends again whatever the method is. A POST that a server carried out before its answer was
    /// lost is carried out twice.
    ///
    /// Retried are all faults before the head of the answer is complete, and error statuses with a `Retry-After`,
    /// which then takes the place of the pause, cut to `max_period`; a time that has passed means at once. Faults
    /// in the body and statuses without it are not. A `max_period` below `period` is the pause. Unlike Feign it
    /// does not retry rejections by a layer below, and heeds the deadline of the call.
    ///
    /// Sources: Feign's `Retryer`, `SynchronousMethodHandler` and `ErrorDecoder`.
    ///
    /// # Errors
    ///
    /// If `max_attempts`, which counts the first attempt, is zero; if a period is longer than
    /// [`LONGEST`](crate::call::LONGEST).
    pub fn feign(period: Duration, max_period: Duration, max_attempts: u32) -> Result<Self, ConfigError> {
        Ok(Backoff {
            attempts: config::at_least_one(LAYER, "max_attempts", max_attempts)?,
            base: config::pause(LAYER, "period", period)?,
            max: config::pause(LAYER, "max_period", max_period)?,
            factor: 1.5,
            jitter: Jitter::None,
            max_retry_after: max_period,
            statuses: Statuses::None,
            rule: Rule::Feign,
            draws: Draws::Thread,
        })
    }

    /// For [`feign`](Backoff::feign): retries errors with these statuses too, after the usual pause, whatever their
    /// `Retry-After` says. It is what an error decoder does that makes a `RetryableException` without a date of them.
    ///
    /// Any other policy it leaves as it is: see [`BackoffBuilder::statuses`].
    #[must_use]
    pub fn retry_undated(mut self, statuses: StatusSet) -> Self {
        if self.rule.is_feign() {
            self.statuses = Statuses::new(statuses);
            self.rule = Rule::FeignUndated;
        }
        self
    }

    /// How many attempts there are at most, the first included.
    pub fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// What the pauses of a call come to at most, if no server asks for a longer one.
    pub fn longest_pauses(&self) -> Duration {
        // A factor close to 1 takes its time to reach the cap; beyond these the cap is close enough.
        const ADDED_UP: u32 = 10_000;
        let retries = self.attempts.saturating_sub(1);
        let first: Duration = (1..=retries.min(ADDED_UP)).map(|retry| self.pause(retry)).sum();
        first.saturating_add(self.max.saturating_mul(retries.saturating_sub(ADDED_UP)))
    }

    /// The pause before this retry, the first of which is 1, without jitter or a `Retry-After`: the longest there is
    /// when the jitter is full. Any number can be asked for.
    pub fn pause(&self, retry: u32) -> Duration {
        let retry = retry.max(1);
        let power = i32::try_from(retry).unwrap_or(i32::MAX);
        let power = if self.rule.is_feign() { power } else { power - 1 };
        if self.base.is_zero() {
            // Zero times infinity is no number.
            return Duration::ZERO;
        }
        let (unit, base) = if self.rule.is_feign() {
            (1_000_000_u32, self.base.as_nanos() as f64 / 1e6)
        } else {
            (1, self.base.as_nanos() as f64)
        };
        let pause = base * self.factor.powi(power);
        if pause < self.max.as_nanos() as f64 / f64::from(unit) {
            // At most the cap, ten years, which a u64 holds in nanoseconds.
            Duration::from_nanos(pause as u64 * u64::from(unit)).min(self.max)
        } else {
            self.max
        }
    }

    /// How chance changes the pauses.
    pub fn jitter(&self) -> Jitter {
        self.jitter
    }

    fn jittered(&self, pause: Duration) -> Duration {
        let part = |pause: Duration| {
            let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos((nanos as f64 * self.draws.draw()) as u64).min(pause)
        };
        match self.jitter {
            Jitter::None => pause,
            Jitter::Full => part(pause),
            Jitter::Equal => pause / 2 + part(pause - pause / 2),
        }
    }

    fn is_transient(&self, failed: &FailedAttempt<'_>) -> bool {
        let feign = self.rule.is_feign();
        let fault = failed.fault();
        match fault.kind() {
            // What the reader of answers finds is there to be retried.
            _ if failed.error().is_none() => true,
            FaultKind::Status(status) => {
                self.statuses.contains(status) || feign && fault.retry_after().is_some()
            }
            FaultKind::Grpc(code) => {
                !feign && code == GRPC_UNAVAILABLE || feign && fault.retry_after().is_some()
            }
            FaultKind::ReadTimeout(ReadPhase::Body) => !feign,
            _ => true,
        }
    }

    fn pause_after(&self, failed: &FailedAttempt<'_>) -> Result<Duration, NotRetried> {
        let retry = u32::try_from(failed.attempts()).unwrap_or(u32::MAX);
        let pause = || self.pause(retry);
        let undated = self.rule == Rule::FeignUndated
            && matches!(failed.fault().kind(), FaultKind::Status(status) if self.statuses.contains(status));
        let Some(asked) = failed.fault().retry_after().filter(|_| !undated) else {
            return Ok(self.jittered(pause()));
        };
        if self.rule.is_feign() {
            return Ok(asked.min(self.max));
        }
        if asked > self.max_retry_after {
            let limit = self.max_retry_after;
            return Err(NotRetried::RetryAfterTooLong { asked, limit });
        }
        if self.jitter == Jitter::None {
            return Ok(asked.max(pause()));
        }
        // Clients that were told the same wait must not come back together.
        Ok(asked + self.jittered(pause()))
    }
}

/// What is sent again.
impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attempts <= 1 {
            return f.write_str("nothing");
        }
        f.write_str(match self.rule {
            Rule::Safe => "safe and keyed requests, others if nothing was sent; on any fault but a rejection",
            Rule::Risky => "any request; on any fault but a rejection",
            Rule::Feign | Rule::FeignUndated => {
                "any request; on any fault before the head of the answer, on any error with a Retry-After"
            }
        })?;
        match &self.statuses {
            Statuses::None => Ok(()),
            Statuses::Transient => write!(f, ", on {}", StatusSet::TRANSIENT),
            Statuses::These(statuses) => write!(f, ", on {statuses}"),
        }
    }
}

impl RetryPolicy for Backoff {
    fn name(&self) -> &'static str {
        LAYER
    }

    #[inline]
    fn never_retries(&self) -> bool {
        self.attempts <= 1
    }

    #[inline]
    fn may_retry(&self, _: Semantics) -> bool {
        self.attempts > 1
    }

    fn prefers_untried(&self) -> bool {
        !self.rule.is_feign()
    }

    fn overridden(&self, overrides: &Overrides) -> Option<Self> {
        let attempts = overrides.attempts()?;
        Some(Backoff {
            attempts,
            ..self.clone()
        })
    }

    fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried> {
        if !self.is_transient(failed) {
            return Err(NotRetried::NotTransient);
        }
        if self.rule == Rule::Safe && !failed.is_safe_to_repeat() {
            return Err(NotRetried::MayHaveBeenSent);
        }
        if failed.attempts() >= self.attempts.into() {
            let limit = self.attempts;
            return Err(NotRetried::AttemptsUsedUp { limit });
        }
        Ok(Again::new(RetryTo::Anywhere, self.pause_after(failed)?))
    }
}

/// What is said of a [`Backoff`] before it is one.
#[derive(Debug, Clone)]
pub struct BackoffBuilder {
    attempts: u32,
    base: Duration,
    max: Duration,
    factor: f64,
    jitter: Jitter,
    max_retry_after: Duration,
    statuses: StatusSet,
    risky: bool,
    seed: Option<u64>,
}

impl Default for BackoffBuilder {
    fn default() -> Self {
        BackoffBuilder {
            attempts: 2,
            base: Duration::from_millis(100),
            max: Duration::from_secs(1),
            factor: 2.0,
            jitter: Jitter::Full,
            max_retry_after: Duration::from_secs(10),
            statuses: StatusSet::TRANSIENT,
            risky: false,
            seed: None,
        }
    }
}

impl BackoffBuilder {
    /// How many attempts there are at most, the first included. Default: 2.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The pause before the first retry. Default: 100 ms.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// The longest pause. Default: 1 s. A wait that the server asks for has a limit of its own.
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// What each pause is multiplied with to give the next. Default: 2.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// How chance changes the pauses. Default: [`Jitter::Full`].
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// The longest wait that a server may ask for by `Retry-After`. When it asks for more the error is returned at
    /// once. Default: 10 s. No retry comes sooner than asked; jitter is added on top.
    pub fn max_retry_after(mut self, max: Duration) -> Self {
        self.max_retry_after = max;
        self
    }

    /// The statuses that are retried when they come as errors. Default: [`StatusSet::TRANSIENT`]. For statuses of
    /// answers see [`RetryLayer::retry_statuses`].
    pub fn statuses(mut self, statuses: StatusSet) -> Self {
        self.statuses = statuses;
        self
    }

    /// Retries requests that may have reached a server and are neither safe nor keyed, such as a POST whose answer
    /// was lost.
    ///
    /// **A risk:** the server may carry them out twice. Say so only if all servers behind this service can take it.
    pub fn retry_unsafe_that_may_have_been_sent(mut self) -> Self {
        self.risky = true;
        self
    }

    /// Draws the jitter from this seed, so that a test sees the same pauses each time. Default: another one each
    /// time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// If there is no attempt, the base is zero or above the longest pause, the factor is below 1 or no number, or
    /// a pause is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn build(self) -> Result<Backoff, ConfigError> {
        config::at_least_one(LAYER, "attempts", self.attempts)?;
        config::limit(LAYER, "base", self.base)?;
        config::limit(LAYER, "max", self.max)?;
        config::pause(LAYER, "max_retry_after", self.max_retry_after)?;
        if self.base > self.max {
            let base = format!("{:?}", self.base);
            let fix = format!("give at most the longest pause, {:?}, or raise `max`", self.max);
            return Err(ConfigError::new(LAYER, "base", base, fix));
        }
        if !(self.factor >= 1.0 && self.factor.is_finite()) {
            let fix = "give a number of at least 1; 1 keeps all pauses alike";
            return Err(ConfigError::new(LAYER, "factor", self.factor, fix));
        }
        Ok(self.made())
    }

    fn made(self) -> Backoff {
        Backoff {
            attempts: self.attempts,
            base: self.base,
            max: self.max,
            factor: self.factor,
            jitter: self.jitter,
            max_retry_after: self.max_retry_after,
            statuses: Statuses::new(self.statuses),
            rule: if self.risky { Rule::Risky } else { Rule::Safe },
            draws: match self.seed {
                Some(seed) => Draws::Seeded(Arc::new(AtomicU64::new(seed))),
                None => Draws::Thread,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::*;

    use super::*;
    use crate::call::{BoxError, ErrorRef, Fault, LONGEST, Sent};

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn millis(backoff: &Backoff, retries: u32) -> Vec<u128> {
        (1..=retries)
            .map(|retry| backoff.pause(retry).as_millis())
            .collect()
    }

    #[test]
    fn pauses_double_from_the_base_to_the_longest() {
        let backoff = Backoff::default();
        assert_eq!(millis(&backoff, 6), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.pause(0), backoff.pause(1), "the first retry is number 1");
        assert_eq!(backoff.longest_pauses(), ms(100), "2 attempts pause once");
    }

    #[test]
    fn feign_pauses_as_its_source_says() {
        let feign = |period, max| Backoff::feign(ms(period), ms(max), 5).unwrap();
        assert_eq!(millis(&feign(100, 1000), 6), [150, 225, 337, 506, 759, 1000]);
        assert_eq!(feign(100, 1000).longest_pauses(), ms(1218));
        assert_eq!(millis(&feign(1000, 1000), 2), [1000, 1000]);
        assert_eq!(millis(&feign(1000, 10), 2), [10, 10]);
        assert_eq!(millis(&feign(0, 1000), 2), [0, 0]);
        assert_eq!(feign(0, 1000).pause(u32::MAX), Duration::ZERO);
        assert_eq!(feign(1, 1000).pause(1), ms(1), "1.5 ms are cut to whole ones");
    }

    #[test]
    fn the_pauses_of_any_number_of_attempts_can_be_added_up() {
        let all = Backoff::builder()
            .attempts(u32::MAX)
            .factor(1.0)
            .base(LONGEST)
            .max(LONGEST)
            .build()
            .unwrap();
        assert!(all.longest_pauses() >= LONGEST * 10_000);
        assert_eq!(Backoff::never().longest_pauses(), Duration::ZERO);
    }

    fn jitters() -> impl Strategy<Value = Jitter> {
        prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal)]
    }

    fn retries() -> impl Strategy<Value = u32> {
        prop_oneof![1_u32..5000, any::<u32>(), Just(u32::MAX)]
    }

    proptest! {
        /// However often, however long, however fast they grow.
        #[test]
        fn a_pause_is_never_zero_nor_above_the_longest_nor_shorter_than_the_one_before(
            nanos in prop_oneof![1_u64..1000, 1_u64..=LONGEST.as_nanos() as u64],
            span in 0_u64..=LONGEST.as_nanos() as u64,
            factor in prop_oneof![Just(1.0), 1.01..10.0, 1.01..1e300],
            jitter in jitters(),
            retry in retries(),
            seed in any::<u64>(),
        ) {
            let base = Duration::from_nanos(nanos);
            let max = (base + Duration::from_nanos(span)).min(LONGEST);
            let backoff = Backoff::builder()
                .base(base).max(max).factor(factor).jitter(jitter).seed(seed).build().unwrap();
            let pause = backoff.pause(retry);
            prop_assert!(pause > Duration::ZERO && pause <= max);
            prop_assert!(backoff.pause(retry.saturating_add(1)) >= pause);
            let jittered = backoff.jittered(pause);
            prop_assert!(jittered <= pause);
            match jitter {
                Jitter::None => prop_assert_eq!(jittered, pause),
                Jitter::Equal => prop_assert!(jittered >= pause / 2),
                Jitter::Full => {}
            }
        }

        #[test]
        fn feigns_pause_is_never_above_the_longest(
            period in 0_u64..=LONGEST.as_millis() as u64,
            max in 0_u64..=LONGEST.as_millis() as u64,
            retry in retries(),
        ) {
            let pause = Backoff::feign(ms(period), ms(max), 5).unwrap().pause(retry);
            prop_assert!(pause <= ms(max));
            prop_assert!(pause >= ms(period.min(max)));
        }
    }

    #[test]
    fn full_jitter_is_even_and_equal_jitter_fills_the_upper_half() {
        let mean = |jitter| {
            let backoff = Backoff::builder().jitter(jitter).seed(1).build().unwrap();
            let sum: Duration = (0..10_000).map(|_| backoff.jittered(ms(100))).sum();
            sum / 10_000
        };
        assert!((ms(48)..ms(52)).contains(&mean(Jitter::Full)));
        assert!((ms(73)..ms(77)).contains(&mean(Jitter::Equal)));
    }

    fn feign() -> Backoff {
        Backoff::feign(ms(100), ms(1000), 5).unwrap()
    }

    fn failed(kind: FaultKind, asked: Option<Duration>, error: Option<ErrorRef<'_>>) -> FailedAttempt<'_> {
        FailedAttempt {
            semantics: Semantics::READ,
            fault: Fault::new(kind, Sent::Maybe).with_retry_after(asked),
            may_have_been_sent: true,
            error,
            attempts: 1,
            here: 1,
            moves: 0,
        }
    }

    #[test]
    fn of_failed_answers_each_policy_retries_its_own() {
        let error: BoxError = "an answer".into();
        let wait = Some(Duration::from_secs(1));
        let unavailable = FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE);
        let conflict = FaultKind::Status(StatusCode::CONFLICT);
        for (kind, asked, by_default, by_feign) in [
            (unavailable, None, true, false),
            (unavailable, wait, true, true),
            (conflict, None, false, false),
            (conflict, wait, false, true),
            (FaultKind::Grpc(GRPC_UNAVAILABLE), None, true, false),
            (FaultKind::Grpc(GRPC_UNAVAILABLE), wait, true, true),
            (FaultKind::Grpc(5), None, false, false),
            (FaultKind::Grpc(5), wait, false, true),
            (FaultKind::ReadTimeout(ReadPhase::Head), None, true, true),
            (FaultKind::ReadTimeout(ReadPhase::Body), None, true, false),
        ] {
            for (policy, retried) in [(Backoff::default(), by_default), (feign(), by_feign)] {
                let again = policy.again(&failed(kind, asked, Some(&*error)));
                assert_eq!(again.is_ok(), retried, "{kind:?}, {asked:?}: {policy:?}");
                let of_a_reader = policy.again(&failed(kind, asked, None));
                assert!(of_a_reader.is_ok(), "what a reader of answers finds is retried");
            }
        }
    }

    #[test]
    fn what_a_decoder_of_feign_makes_retryable_without_a_date_has_the_usual_pause() {
        let error: BoxError = "an answer".into();
        let wait = Some(Duration::from_secs(1));
        let unavailable = FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE);
        let conflict = FaultKind::Status(StatusCode::CONFLICT);
        let policy = feign().retry_undated(StatusSet::TRANSIENT);
        for (kind, asked, pause) in [
            (unavailable, None, Some(150)),
            (unavailable, wait, Some(150)),
            (conflict, None, None),
            (conflict, wait, Some(1000)),
            (FaultKind::Reset, None, Some(150)),
        ] {
            let again = policy.again(&failed(kind, asked, Some(&*error))).ok();
            assert_eq!(
                again.map(|again| again.pause()),
                pause.map(ms),
                "{kind:?}, {asked:?}"
            );
        }
        assert_eq!(policy.longest_pauses(), ms(1218));
        assert!(!policy.prefers_untried());
        let other = Backoff::default().retry_undated(StatusSet::EMPTY);
        assert!(other.again(&failed(unavailable, None, Some(&*error))).is_ok());
    }

    #[test]
    fn a_policy_says_what_it_sends_again() {
        assert_eq!(Backoff::never().to_string(), "nothing");
        assert_eq!(
            Backoff::default().to_string(),
            "safe and keyed requests, others if nothing was sent; on any fault but a rejection, on 408, 429, 502-504"
        );
        let feign =
            "any request; on any fault before the head of the answer, on any error with a Retry-After";
        assert_eq!(self::feign().to_string(), feign);
        let decoded = self::feign().retry_undated(StatusSet::EMPTY.with(StatusCode::CONFLICT));
        assert_eq!(decoded.to_string(), format!("{feign}, on 409"));
    }

    #[test]
    fn the_longest_wait_that_is_granted_is_granted() {
        let limit = Duration::from_secs(3);
        let policy = Backoff::builder()
            .max_retry_after(limit)
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let at = |asked| policy.pause_after(&failed(FaultKind::Reset, Some(asked), None));
        assert_eq!(at(limit), Ok(limit));
        let asked = limit + Duration::from_nanos(1);
        assert_eq!(at(asked), Err(NotRetried::RetryAfterTooLong { asked, limit }));
    }

    #[test]
    fn only_the_library_that_does_not_mind_goes_where_it_has_been() {
        assert!(Backoff::default().prefers_untried());
        assert!(!feign().prefers_untried());
    }

    #[test]
    fn a_setting_leaves_the_others_as_they_are() {
        let builder = || Backoff::builder().attempts(7);
        for builder in [
            builder().statuses(StatusSet::EMPTY),
            builder().retry_unsafe_that_may_have_been_sent(),
        ] {
            assert_eq!(builder.build().unwrap().max_attempts(), 7);
        }
    }
}
