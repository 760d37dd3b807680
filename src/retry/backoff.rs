//! Retries with growing pauses.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use tokio::time::Duration;

use super::{
    Again, FailedAttempt, Jitter, RetryLayer, RetryPolicy, RetryService,
    pauses::{Delay, Pauses, Rare, Scale},
    repeats::Repeats,
};
use crate::call::{
    AnyAnswer, ConfigError, FaultKind, NotRetried, Overrides, ReadPhase, RetryTo, Semantics, Sent, StatusSet,
    config,
};

const LAYER: &str = "BackoffRetry";

/// The pause before the first retry, unless another one is given.
const BASE: Duration = Duration::from_millis(100);

/// The longest wait that a server may ask for, unless another one is given.
const LONGEST_ASKED_FOR: Duration = Duration::from_secs(10);

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
/// | nothing was sent, and another endpoint can be picked | the first move there has no pause | as any other retry |
/// | faults retried | all but rejections | all before the head of the answer is complete, but no rejections |
/// | statuses retried | 408, 429, 502, 503, 504 | every error with a `Retry-After`, no other |
/// | requests retried | safe or keyed ones; others if nothing was sent | **all**, whatever the method |
/// | `Retry-After` | the pause is added to it; more than 10 s: no retry | in place of the pause, cut to `max_period` |
///
/// A request can set the number of attempts for its call alone: [`Overrides`](crate::call::Overrides). Case by case:
/// [when is a call sent again?](super::when_is_a_call_sent_again)
///
/// A pause is for the endpoint that failed. Where it is proved that nothing was sent, all attempts of the call have gone
/// to one endpoint, and a load balancer below had others to pick from, the first retry goes there at once. All later
/// ones have pauses.
///
/// No retry begins whose pause would not end before the deadline of the call: the error that is known is returned
/// at once.
#[derive(Debug, Clone)]
pub struct Backoff {
    attempts: u32,
    pauses: Pauses,
    statuses: Statuses,
    rule: Rule,
    repeats: Repeats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// This crate's.
    Own,
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
            pauses: Pauses {
                scale: Scale {
                    base: config::pause(LAYER, "period", period)?,
                    max: config::pause(LAYER, "max_period", max_period)?,
                },
                factor: 1.5,
                jitter: Jitter::None,
                as_feign: true,
                rare: None,
            },
            statuses: Statuses::None,
            rule: Rule::Feign,
            repeats: Repeats::Everything,
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
        self.longest_pauses_of(self.attempts)
    }

    /// The same for a call that takes this many attempts at most.
    pub(crate) fn longest_pauses_of(&self, attempts: u32) -> Duration {
        // A factor close to 1 takes its time to reach the cap; beyond these the cap is close enough.
        const ADDED_UP: u32 = 10_000;
        let retries = attempts.min(self.attempts).saturating_sub(1);
        let longest = |retry| self.pauses.longest_of_all(retry);
        let first: Duration = (1..=retries.min(ADDED_UP)).map(longest).sum();
        first.saturating_add(longest(retries).saturating_mul(retries.saturating_sub(ADDED_UP)))
    }

    /// The pause before this retry, the first of which is 1, without jitter or a `Retry-After`: the longest there is
    /// when the jitter is full or decorrelated. Of a [function](BackoffBuilder::delay) it is the longest pause. Any
    /// number can be asked for.
    pub fn pause(&self, retry: u32) -> Duration {
        self.pauses.longest(retry)
    }

    /// The same after a throttling answer. `None`: it is [`pause`](Backoff::pause). See
    /// [`BackoffBuilder::throttled`].
    pub fn throttled_pause(&self, retry: u32) -> Option<Duration> {
        self.pauses.longest_throttled(retry)
    }

    /// How chance changes the pauses.
    pub fn jitter(&self) -> Jitter {
        self.pauses.jitter
    }

    /// The shortest pause that decorrelated jitter draws.
    #[cfg(feature = "nest")]
    pub(crate) fn base(&self) -> Duration {
        self.pauses.scale.base
    }

    /// Are the pauses what a function says?
    #[cfg(feature = "nest")]
    pub(crate) fn pauses_by_a_function(&self) -> bool {
        self.pauses.is_a_function()
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

    /// Another endpoint is as good as a pause: nothing was sent, so no server has to be spared.
    fn moves_at_once(&self, failed: &FailedAttempt<'_>) -> bool {
        let fault = failed.fault();
        // Once: where the others are vetoed, or the rule below does not want them, the retry came back here.
        failed.attempts() == 1
            && failed.can_move_on()
            && fault.sent() == Sent::No
            && !failed.may_have_been_sent()
            && fault.retry_after().is_none()
            && !self.rule.is_feign()
            && !self.pauses.is_a_function()
    }

    fn pause_after(&self, failed: &FailedAttempt<'_>) -> Result<Duration, NotRetried> {
        if self.moves_at_once(failed) {
            return Ok(Duration::ZERO);
        }
        let undated = self.rule == Rule::FeignUndated
            && matches!(failed.fault().kind(), FaultKind::Status(status) if self.statuses.contains(status));
        let Some(asked) = failed.fault().retry_after().filter(|_| !undated) else {
            return Ok(self.pauses.after(failed));
        };
        if self.rule.is_feign() {
            return Ok(asked.min(self.pauses.scale.max));
        }
        let limit = self.pauses.longest_asked_for().unwrap_or(LONGEST_ASKED_FOR);
        if asked > limit {
            return Err(NotRetried::RetryAfterTooLong { asked, limit });
        }
        let pause = self.pauses.after(failed);
        if self.pauses.jitter == Jitter::None || self.pauses.is_a_function() {
            return Ok(asked.max(pause));
        }
        // Clients that were told the same wait must not come back together.
        Ok(asked + pause)
    }
}

/// What is sent again.
impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attempts <= 1 {
            return f.write_str("nothing");
        }
        match self.rule {
            Rule::Own => write!(f, "{}; on any fault but a rejection", self.repeats.beyond_safe()),
            Rule::Feign | Rule::FeignUndated => f.write_str(
                "any request; on any fault before the head of the answer, on any error with a Retry-After",
            ),
        }?;
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
        if !self.repeats.grants_beyond_safe(failed) {
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
    base: Option<Duration>,
    max: Duration,
    factor: Option<f64>,
    jitter: Option<Jitter>,
    throttled: Option<Scale>,
    delay: Option<Delay>,
    max_retry_after: Option<Duration>,
    statuses: StatusSet,
    repeats: Repeats,
    seed: Option<u64>,
}

impl Default for BackoffBuilder {
    fn default() -> Self {
        BackoffBuilder {
            attempts: 2,
            base: None,
            max: Duration::from_secs(1),
            factor: None,
            jitter: None,
            throttled: None,
            delay: None,
            max_retry_after: None,
            statuses: StatusSet::TRANSIENT,
            repeats: Repeats::AsTheRule,
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
        self.base = Some(base);
        self
    }

    /// The longest pause. Default: 1 s. A wait that the server asks for has a limit of its own.
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// What each pause is multiplied with to give the next. Default: 2.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = Some(factor);
        self
    }

    /// How chance changes the pauses. Default: [`Jitter::Full`].
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// Other pauses after a throttling answer: from `base`, and at most `max`, by the same factor and jitter. Default:
    /// the same pauses as after any other failure.
    ///
    /// An answer throttles if its status is 429, or 503 with a `Retry-After`, or gRPC's RESOURCE_EXHAUSTED. A 503 alone
    /// does not: proxies give it where a server is gone. They have to be ones that are retried at all.
    /// What the server asks for is waited for first, as ever.
    ///
    /// Sources: RFC 6585, section 4; "Retry behavior" in the reference guide of AWS' SDKs, which pause longer after
    /// throttling than after other errors.
    pub fn throttled(mut self, base: Duration, max: Duration) -> Self {
        self.throttled = Some(Scale { base, max });
        self
    }

    /// The pauses are what this function says, up to the [longest](BackoffBuilder::max). It takes the place of base,
    /// factor, jitter and throttled pauses, and is asked after each attempt that is followed by another one.
    ///
    /// A `Retry-After` is heeded all the same: the pause is never shorter. A panic in it is one in the call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{call::FaultKind, retry::Backoff};
    ///
    /// let backoff = Backoff::builder()
    ///     .attempts(4)
    ///     .max(Duration::from_secs(2))
    ///     .delay(|failed| match failed.fault().kind() {
    ///         FaultKind::ConnectRefused => Duration::from_millis(10),
    ///         _ => Duration::from_millis(200) * failed.attempts() as u32,
    ///     })
    ///     .build()?;
    /// # let _ = backoff;
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn delay(mut self, delay: impl Fn(&FailedAttempt<'_>) -> Duration + Send + Sync + 'static) -> Self {
        self.delay = Some(Delay::new(delay));
        self
    }

    /// The longest wait that a server may ask for by `Retry-After`. When it asks for more the error is returned at
    /// once. Default: 10 s. No retry comes sooner than asked; jitter is added on top.
    pub fn max_retry_after(mut self, max: Duration) -> Self {
        self.max_retry_after = Some(max);
        self
    }

    /// The statuses that are retried when they come as errors. Default: [`StatusSet::TRANSIENT`]. For statuses of
    /// answers see [`RetryLayer::retry_statuses`].
    pub fn statuses(mut self, statuses: StatusSet) -> Self {
        self.statuses = statuses;
        self
    }

    /// Retries requests with an idempotent method (PUT and DELETE, besides the safe ones), whether or not a server may
    /// have carried them out. Default: no.
    ///
    /// Doing such a request twice leaves the server as doing it once does. It is not the same to others, though: the
    /// second PUT may undo what somebody else has written in between, and the second DELETE is answered by 404.
    ///
    /// Source: RFC 9110, section 9.2.2.
    pub fn idempotent_methods(mut self) -> Self {
        if self.repeats == Repeats::AsTheRule {
            self.repeats = Repeats::IdempotentMethods;
        }
        self
    }

    /// Retries requests that may have reached a server and are neither safe nor keyed, such as a POST whose answer
    /// was lost.
    ///
    /// **A risk:** the server may carry them out twice. Say so only if all servers behind this service can take it.
    pub fn retry_unsafe_that_may_have_been_sent(mut self) -> Self {
        self.repeats = Repeats::Everything;
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
    /// If there is no attempt, a base is zero or above the longest pause, the factor is below 1 or no number, a pause
    /// is longer than [`LONGEST`](crate::call::LONGEST), or settings are given that exclude each other: a factor with
    /// decorrelated jitter, and a function with anything that it takes the place of.
    pub fn build(self) -> Result<Backoff, ConfigError> {
        config::at_least_one(LAYER, "attempts", self.attempts)?;
        config::limit(LAYER, "max", self.max)?;
        if let Some(asked) = self.max_retry_after {
            config::pause(LAYER, "max_retry_after", asked)?;
        }
        if self.delay.is_some() {
            self.check_that_the_function_is_alone()?;
        } else {
            let base = self.base.unwrap_or(BASE);
            check_scale("base", Scale { base, max: self.max }, "`max`")?;
        }
        if let Some(throttled) = self.throttled {
            check_scale("throttled", throttled, "its `max`")?;
        }
        if let Some(factor) = self
            .factor
            .filter(|factor| !(*factor >= 1.0 && factor.is_finite()))
        {
            let fix = "give a number of at least 1; 1 keeps all pauses alike";
            return Err(ConfigError::new(LAYER, "factor", factor, fix));
        }
        if let (Some(factor), Some(Jitter::Decorrelated)) = (self.factor, self.jitter) {
            let fix = "decorrelated jitter grows from the pause before; leave the factor out, or take another jitter";
            return Err(ConfigError::new(LAYER, "factor", factor, fix));
        }
        Ok(self.made())
    }

    fn check_that_the_function_is_alone(&self) -> Result<(), ConfigError> {
        let others = [
            ("base", self.base.is_some()),
            ("factor", self.factor.is_some()),
            ("jitter", self.jitter.is_some()),
            ("throttled", self.throttled.is_some()),
        ];
        match others.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((other, _)) => {
                let fix = format!("it takes the place of `{other}`: leave one of them out");
                Err(ConfigError::new(LAYER, "delay", "a function", fix))
            }
        }
    }

    fn made(self) -> Backoff {
        let rare = Rare {
            seed: self.seed.map(AtomicU64::new),
            throttled: self.throttled,
            delay: self.delay,
            longest_asked_for: self.max_retry_after,
        };
        Backoff {
            attempts: self.attempts,
            pauses: Pauses {
                scale: Scale {
                    base: self.base.unwrap_or(BASE),
                    max: self.max,
                },
                factor: self.factor.unwrap_or(2.0),
                jitter: self.jitter.unwrap_or_default(),
                as_feign: false,
                rare: if rare.is_empty() {
                    None
                } else {
                    Some(Arc::new(rare))
                },
            },
            statuses: Statuses::new(self.statuses),
            rule: Rule::Own,
            repeats: self.repeats,
        }
    }
}

fn check_scale(field: &'static str, scale: Scale, max: &str) -> Result<(), ConfigError> {
    config::limit(LAYER, field, scale.base)?;
    config::limit(LAYER, field, scale.max)?;
    if scale.base > scale.max {
        let base = format!("{:?}", scale.base);
        let fix = format!("give at most the longest pause, {:?}, or raise {max}", scale.max);
        return Err(ConfigError::new(LAYER, field, base, fix));
    }
    Ok(())
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
        prop_oneof![
            Just(Jitter::None),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            Just(Jitter::Decorrelated)
        ]
    }

    fn retries() -> impl Strategy<Value = u32> {
        prop_oneof![1_u32..5000, any::<u32>(), Just(u32::MAX)]
    }

    proptest! {
        /// BKO-08. However often, however long, however fast they grow.
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
            let builder = Backoff::builder().base(base).max(max).jitter(jitter).seed(seed);
            let backoff = match jitter {
                Jitter::Decorrelated => builder.build().unwrap(),
                _ => builder.factor(factor).build().unwrap(),
            };
            let pause = backoff.pause(retry);
            prop_assert!(pause > Duration::ZERO && pause <= max);
            prop_assert!(backoff.pause(retry.saturating_add(1)) >= pause);
            let jittered = backoff.pauses.jittered(backoff.pauses.scale, pause, Duration::ZERO);
            prop_assert!(jittered <= pause);
            match jitter {
                Jitter::None => prop_assert_eq!(jittered, pause),
                Jitter::Equal => prop_assert!(jittered >= pause / 2),
                Jitter::Full => {}
                Jitter::Decorrelated => prop_assert!(jittered >= base && jittered <= max),
            }
        }

        /// However long the pause before was, on whichever scale.
        #[test]
        fn decorrelated_jitter_stays_between_the_base_and_three_times_the_pause_before(
            nanos in 1_u64..=LONGEST.as_nanos() as u64,
            span in 0_u64..=LONGEST.as_nanos() as u64,
            before in 0_u64..=u64::MAX,
            seed in any::<u64>(),
        ) {
            let base = Duration::from_nanos(nanos);
            let max = (base + Duration::from_nanos(span)).min(LONGEST);
            let backoff = Backoff::builder()
                .base(base).max(max).jitter(Jitter::Decorrelated).seed(seed).build().unwrap();
            let before = Duration::from_nanos(before);
            let pause = backoff.pauses.jittered(backoff.pauses.scale, max, before);
            prop_assert!(pause >= base && pause <= max);
            prop_assert!(pause <= before.max(base) * 3);
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
            let sum: Duration = (0..10_000)
                .map(|_| {
                    backoff
                        .pauses
                        .jittered(backoff.pauses.scale, ms(100), Duration::ZERO)
                })
                .sum();
            sum / 10_000
        };
        assert!((ms(48)..ms(52)).contains(&mean(Jitter::Full)));
        assert!((ms(73)..ms(77)).contains(&mean(Jitter::Equal)));
    }

    #[test]
    fn decorrelated_jitter_walks_from_the_pause_before_and_a_seed_repeats_the_walk() {
        let walk = |seed| {
            let builder = Backoff::builder().attempts(50).jitter(Jitter::Decorrelated);
            let backoff = builder.seed(seed).build().unwrap();
            let mut before = Duration::ZERO;
            let pauses = (0..50).map(|_| {
                let error = failed(FaultKind::Reset, None, None);
                before = backoff.pauses.after(&FailedAttempt {
                    paused: before,
                    ..error
                });
                before
            });
            pauses.collect::<Vec<_>>()
        };
        assert_eq!(walk(1), walk(1));
        assert_ne!(walk(1), walk(2));
        let firsts: Vec<_> = (0..200).map(|seed| walk(seed)[0]).collect();
        assert!(firsts.iter().all(|first| (ms(100)..=ms(300)).contains(first)));
        assert!(
            firsts.iter().any(|first| *first > ms(280)),
            "up to three times the base"
        );
        assert!(
            walk(1).iter().any(|pause| *pause == ms(1000)),
            "it comes to the longest"
        );
        assert!(walk(1).windows(2).any(|pair| pair[1] < pair[0]), "and down again");
        let backoff = Backoff::builder().attempts(4).jitter(Jitter::Decorrelated);
        let backoff = backoff.build().unwrap();
        assert_eq!(millis(&backoff, 4), [300, 900, 1000, 1000]);
        assert_eq!(backoff.longest_pauses(), ms(2200));
    }

    #[test]
    fn a_throttling_answer_has_pauses_of_its_own_if_they_are_given() {
        let error: BoxError = "an answer".into();
        let wait = Some(ms(500));
        let status = |code| FaultKind::Status(StatusCode::from_u16(code).unwrap());
        let plain = || Backoff::builder().attempts(3).jitter(Jitter::None);
        let throttled = plain().throttled(ms(1000), ms(4000)).build().unwrap();
        let plain = plain().build().unwrap();
        for (kind, asked, without, with) in [
            (status(429), None, 100, 1000),
            (status(429), wait, 500, 1000),
            (status(503), None, 100, 100),
            (status(503), wait, 500, 1000),
            (status(502), wait, 500, 500),
            (FaultKind::Grpc(GRPC_UNAVAILABLE), None, 100, 100),
            (FaultKind::Reset, None, 100, 100),
        ] {
            let pause = |policy: &Backoff| policy.again(&failed(kind, asked, Some(&*error))).unwrap().pause();
            assert_eq!(pause(&plain), ms(without), "{kind:?}, {asked:?}");
            assert_eq!(pause(&throttled), ms(with), "{kind:?}, {asked:?}");
        }
        let exhausted = failed(FaultKind::Grpc(8), None, None);
        assert_eq!(throttled.again(&exhausted).unwrap().pause(), ms(1000));
        assert_eq!(
            (plain.throttled_pause(1), throttled.throttled_pause(3)),
            (None, Some(ms(4000)))
        );
        assert_eq!(throttled.longest_pauses(), ms(3000));
        let seeded = Backoff::builder()
            .throttled(ms(1000), ms(4000))
            .seed(3)
            .build()
            .unwrap();
        let of_seed = seeded
            .again(&failed(status(429), None, Some(&*error)))
            .unwrap()
            .pause();
        assert!(of_seed <= ms(1000));
    }

    #[test]
    fn a_function_of_the_users_is_the_pause_up_to_the_longest_and_no_wait_is_cut_short_by_it() {
        let backoff = Backoff::builder()
            .attempts(10)
            .max(ms(700))
            .delay(|failed| match failed.fault().kind() {
                FaultKind::ConnectRefused => Duration::ZERO,
                FaultKind::Reset => Duration::MAX,
                _ => ms(50) * failed.attempts() as u32,
            })
            .build()
            .unwrap();
        for (kind, attempts, asked, pause) in [
            (FaultKind::ConnectRefused, 1, None, Ok(ms(0))),
            (FaultKind::Reset, 1, None, Ok(ms(700))),
            (FaultKind::Closed, 1, None, Ok(ms(50))),
            (FaultKind::Closed, 3, None, Ok(ms(150))),
            (FaultKind::Closed, 3, Some(ms(900)), Ok(ms(900))),
            (FaultKind::Reset, 3, Some(ms(300)), Ok(ms(700))),
        ] {
            let failed = FailedAttempt {
                attempts,
                can_move_on: true,
                may_have_been_sent: false,
                ..failed(kind, asked, None)
            };
            let again = backoff.again(&failed).map(|again| again.pause());
            assert_eq!(again, pause, "{kind:?}, {attempts}, {asked:?}");
        }
        assert_eq!((backoff.pause(1), backoff.longest_pauses()), (ms(700), ms(6300)));
    }

    #[test]
    fn the_longest_pauses_hold_where_decorrelated_jitter_changes_between_its_scales() {
        let backoff = Backoff::builder()
            .attempts(3)
            .base(ms(10))
            .max(ms(60_000))
            .throttled(ms(1000), ms(2000))
            .jitter(Jitter::Decorrelated)
            .seed(7)
            .build()
            .unwrap();
        let throttled = failed(FaultKind::Status(StatusCode::TOO_MANY_REQUESTS), None, None);
        let longest = (0..1000)
            .map(|_| {
                let first = backoff.pause_after(&throttled).unwrap();
                let reset = FailedAttempt {
                    attempts: 2,
                    paused: first,
                    ..failed(FaultKind::Reset, None, None)
                };
                first + backoff.pause_after(&reset).unwrap()
            })
            .max();
        assert!(longest.unwrap() > ms(7000) && longest.unwrap() <= backoff.longest_pauses());
    }

    #[test]
    fn settings_that_exclude_each_other_are_refused() {
        let builder = Backoff::builder;
        let none = |_: &FailedAttempt<'_>| Duration::ZERO;
        for (builder, field) in [
            (builder().delay(none).base(ms(1)), "delay"),
            (builder().delay(none).factor(2.0), "delay"),
            (builder().delay(none).jitter(Jitter::Full), "delay"),
            (builder().delay(none).throttled(ms(1), ms(1)), "delay"),
            (builder().jitter(Jitter::Decorrelated).factor(2.0), "factor"),
            (builder().throttled(ms(0), ms(1)), "throttled"),
            (builder().throttled(ms(2), ms(1)), "throttled"),
            (builder().throttled(ms(2), Duration::MAX), "throttled"),
        ] {
            assert_eq!(builder.build().unwrap_err().field(), field);
        }
        assert!(
            builder().delay(none).max(ms(1)).build().is_ok(),
            "there is no base"
        );
    }

    #[test]
    fn the_first_move_to_another_endpoint_has_no_pause_where_nothing_was_sent() {
        let refused = |can_move_on| {
            let fault = Fault::new(FaultKind::ConnectRefused, Sent::No);
            FailedAttempt {
                fault,
                can_move_on,
                may_have_been_sent: false,
                ..failed(FaultKind::Reset, None, None)
            }
        };
        let own = Backoff::builder()
            .attempts(3)
            .jitter(Jitter::None)
            .build()
            .unwrap();
        let pause = |policy: &Backoff, failed: &FailedAttempt<'_>| policy.again(failed).unwrap().pause();
        assert_eq!(pause(&own, &refused(true)), Duration::ZERO);
        assert_eq!(
            pause(&own, &refused(false)),
            ms(100),
            "there is nowhere else, or it has been there"
        );
        let mut second = refused(true);
        second.attempts = 2;
        assert_eq!(
            pause(&own, &second),
            ms(200),
            "the retry came back to where it failed"
        );
        let mut maybe = refused(true);
        maybe.may_have_been_sent = true;
        assert_eq!(pause(&own, &maybe), ms(100), "by an attempt before");
        let mut told = refused(true);
        told.fault = told.fault.with_retry_after(Some(ms(300)));
        assert_eq!(pause(&own, &told), ms(300));
        assert_eq!(
            pause(&feign(), &refused(true)),
            ms(150),
            "Feign knows of no endpoints"
        );
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
            paused: Duration::ZERO,
            can_move_on: false,
            had_a_choice: false,
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
            builder().idempotent_methods(),
            builder().throttled(ms(1), ms(1)),
            builder().delay(|_| ms(1)),
        ] {
            assert_eq!(builder.build().unwrap().max_attempts(), 7);
        }
    }
}
