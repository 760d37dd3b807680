//! Retries at once, on the same endpoint and on the next ones.

use super::{Again, FailedAttempt, RetryLayer, RetryPolicy, RetryService, repeats::Repeats};
use crate::call::{
    AnyAnswer, FaultKind, NotRetried, Overrides, RetryTo, Semantics, StatusSet, is_socket_fault,
};

use std::fmt;

use tokio::time::Duration;

const LAYER: &str = "IdempotentRetry";

/// Retries at once, on the same endpoint and then on the next ones. See [`Idempotent`] for the policy.
///
/// ```
/// use tower::ServiceBuilder;
/// use tower_outbound::{call::RetryBudget, retry::{Idempotent, IdempotentRetryLayer}};
///
/// let policy = Idempotent::default().same_endpoint(1).next_endpoint(2);
/// assert_eq!(policy.total_attempts(), 6);
/// let layer = IdempotentRetryLayer::new(policy).budget(RetryBudget::default());
///
/// # let client = tower::service_fn(|_: http::Request<String>| async {
/// #     Ok::<_, tower::BoxError>(http::Response::new(String::new()))
/// # });
/// let service = ServiceBuilder::new().layer(layer).service(client);
/// # fn check<S: tower::Service<http::Request<String>>>(_: S) {}
/// # check(service);
/// ```
pub type IdempotentRetryLayer<A = AnyAnswer> = RetryLayer<Idempotent, A>;

/// The service of [`IdempotentRetryLayer`].
pub type IdempotentRetry<S, A = AnyAnswer> = RetryService<S, Idempotent, A>;

impl<A> RetryLayer<Idempotent, A> {
    /// Retries answers with one of these statuses, by the rule on methods that holds for faults. Default: none.
    ///
    /// Errors that carry a status, made by a layer below, are not retried.
    #[must_use]
    pub fn retry_statuses(self, statuses: StatusSet) -> IdempotentRetryLayer<StatusSet> {
        self.read_answers(statuses)
    }
}

/// What to send again at once, and how often to which endpoint.
///
/// Each endpoint gets one attempt and up to [`same_endpoint`](Idempotent::same_endpoint) more; then the next one has
/// its turn, up to [`next_endpoint`](Idempotent::next_endpoint) times. The two multiply: see
/// [`total_attempts`](Idempotent::total_attempts). There are no pauses. Without a load balancer below a retry just
/// goes again.
///
/// | | [`default()`](Idempotent::default) | [`ribbon()`](Idempotent::ribbon) | [`ribbon_spring_retry()`](Idempotent::ribbon_spring_retry) |
/// | --- | --- | --- | --- |
/// | same endpoint | 0 | 0 | 0 |
/// | next endpoint | 1 | 1 | 1 |
/// | safe methods, or an idempotency key | any fault | GET: any fault; others as below | GET alone: any fault |
/// | other methods | only if nothing was sent | refused, no route, **reset, early close** | none |
/// | next endpoint | one not tried, if there is one | whatever the rule picks | whatever the rule picks |
///
/// [`ribbon_default_handler()`](Idempotent::ribbon_default_handler) is a fourth, without regard to methods. To each can
/// be added [idempotent methods](Idempotent::idempotent_methods) or
/// [all](Idempotent::ok_to_retry_on_all_operations), on any fault. Case by case:
/// [when is a call sent again?](super::when_is_a_call_sent_again)
///
/// A request can set both counts for its call alone: [`Overrides`](crate::call::Overrides).
///
/// An endpoint that asked to be left alone (`Retry-After`) gets no further attempt under the default rule; the next
/// one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idempotent {
    same: u32,
    next: u32,
    rule: Rule,
    repeats: Repeats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Safe,
    Ribbon,
    SpringRetry,
    RibbonDefaultHandler,
}

/// One retry, on the next endpoint, of safe or keyed requests and of those that were not sent.
impl Default for Idempotent {
    fn default() -> Self {
        Idempotent::with(Rule::Safe)
    }
}

impl Idempotent {
    fn with(rule: Rule) -> Self {
        Idempotent {
            same: 0,
            next: 1,
            rule,
            repeats: Repeats::AsTheRule,
        }
    }

    /// Retries as Ribbon 2.2 does under Feign: GET on any fault; every other method when the connection was refused,
    /// had no route, was reset, or was closed early.
    ///
    /// **A risk:** a server may have carried out a POST before the connection was reset or closed; it is sent again
    /// all the same. On the other hand HEAD, PUT and DELETE are not retried on timeouts, and no method but GET is
    /// after a connect timeout, though nothing was sent.
    ///
    /// Sources: ribbon's `RequestSpecificRetryHandler`, spring-cloud-netflix' `FeignLoadBalancer`.
    pub fn ribbon() -> Self {
        Idempotent::with(Rule::Ribbon)
    }

    /// Retries as Ribbon does when spring-retry is on the class path: GET alone, on any fault; add statuses by
    /// `retry_statuses` of the layer. No other method is retried, not even on a refused connection.
    ///
    /// Source: spring-cloud-netflix' `RibbonLoadBalancedRetryPolicy`.
    pub fn ribbon_spring_retry() -> Self {
        Idempotent::with(Rule::SpringRetry)
    }

    /// Retries as Ribbon does by its `DefaultLoadBalancerRetryHandler`, which Spring does not use: requests of all
    /// methods, on the same endpoint when the connection was refused or a connect or read limit ran out, on the next
    /// endpoint on any fault.
    ///
    /// **A risk:** every request is sent again whatever its method, also one that a server may have carried out.
    ///
    /// Source: ribbon's `DefaultLoadBalancerRetryHandler`, with retries enabled; without, it is
    /// `same_endpoint(0).next_endpoint(0)`.
    pub fn ribbon_default_handler() -> Self {
        Idempotent::with(Rule::RibbonDefaultHandler)
    }

    /// How many further attempts each endpoint gets (ribbon's `MaxAutoRetries`). Default: 0.
    #[must_use]
    pub fn same_endpoint(mut self, retries: u32) -> Self {
        self.same = retries;
        self
    }

    /// How many further endpoints get their turn (ribbon's `MaxAutoRetriesNextServer`). Default: 1.
    #[must_use]
    pub fn next_endpoint(mut self, endpoints: u32) -> Self {
        self.next = endpoints;
        self
    }

    /// Retries requests of all methods as GETs are (ribbon's `OkToRetryOnAllOperations`).
    ///
    /// **A risk:** a POST that a server carried out before its answer was lost is carried out twice. Say so only if
    /// all servers behind this service can take it.
    #[must_use]
    pub fn ok_to_retry_on_all_operations(mut self) -> Self {
        self.repeats = Repeats::Everything;
        self
    }

    /// Retries requests with an idempotent method (PUT and DELETE, besides the safe ones) on any fault, whether or
    /// not a server may have carried them out. Default: no.
    ///
    /// Doing such a request twice leaves the server as doing it once does. It is not the same to others, though: the
    /// second PUT may undo what somebody else has written in between, and the second DELETE is answered by 404.
    ///
    /// After [`ok_to_retry_on_all_operations`](Idempotent::ok_to_retry_on_all_operations) it changes nothing.
    ///
    /// Source: RFC 9110, section 9.2.2.
    #[must_use]
    pub fn idempotent_methods(mut self) -> Self {
        if self.repeats == Repeats::AsTheRule {
            self.repeats = Repeats::IdempotentMethods;
        }
        self
    }

    /// How many further attempts each endpoint gets.
    pub fn same_endpoint_retries(&self) -> u32 {
        self.same
    }

    /// How many further endpoints get their turn.
    pub fn next_endpoint_retries(&self) -> u32 {
        self.next
    }

    /// How many attempts a call may take: `(same + 1) * (next + 1)`.
    pub fn total_attempts(&self) -> u64 {
        (u64::from(self.same) + 1).saturating_mul(u64::from(self.next) + 1)
    }

    /// May it go to the same endpoint again, if it may go anywhere?
    fn may_stay(&self, fault: FaultKind) -> bool {
        self.rule != Rule::RibbonDefaultHandler
            || matches!(
                fault,
                FaultKind::ConnectRefused | FaultKind::ConnectTimeout | FaultKind::ReadTimeout(_)
            )
    }

    fn check(&self, failed: &FailedAttempt<'_>) -> Result<(), NotRetried> {
        let semantics = failed.semantics();
        if failed.is_answer() && failed.error().is_some() {
            return Err(NotRetried::NotTransient);
        }
        let granted = self.repeats.grants(semantics)
            || match self.rule {
                Rule::Safe => failed.is_safe_to_repeat(),
                Rule::Ribbon => {
                    let error = failed.error().map(|error| error as _);
                    semantics.is_get() || is_socket_fault(&failed.fault(), error)
                }
                Rule::RibbonDefaultHandler => true,
                Rule::SpringRetry => semantics.is_get(),
            };
        match (granted, failed.may_have_been_sent()) {
            (true, _) => Ok(()),
            (false, true) => Err(NotRetried::MayHaveBeenSent),
            (false, false) => Err(NotRetried::NotByRule),
        }
    }
}

impl RetryPolicy for Idempotent {
    fn name(&self) -> &'static str {
        LAYER
    }

    #[inline]
    fn never_retries(&self) -> bool {
        self.same == 0 && self.next == 0
    }

    #[inline]
    fn may_retry(&self, semantics: Semantics) -> bool {
        self.rule != Rule::SpringRetry || self.repeats.grants(semantics) || semantics.is_get()
    }

    fn prefers_untried(&self) -> bool {
        self.rule == Rule::Safe
    }

    fn overridden(&self, overrides: &Overrides) -> Option<Self> {
        Some(Idempotent {
            same: overrides.same_endpoint().unwrap_or(self.same),
            next: overrides.next_endpoint().unwrap_or(self.next),
            ..*self
        })
    }

    fn again(&self, failed: &FailedAttempt<'_>) -> Result<Again, NotRetried> {
        self.check(failed)?;
        let asked = failed.fault().retry_after().filter(|_| self.rule == Rule::Safe);
        let asked = asked.filter(|asked| !asked.is_zero());
        let stays = failed.attempts_here() <= self.same.into() && self.may_stay(failed.fault().kind());
        let to = if stays && asked.is_none() {
            RetryTo::SameEndpoint
        } else if failed.moves() < self.next.into() && (asked.is_none() || failed.had_a_choice()) {
            RetryTo::NextEndpoint
        } else if let Some(asked) = asked.filter(|_| stays || failed.moves() < self.next.into()) {
            let limit = Duration::ZERO;
            return Err(NotRetried::RetryAfterTooLong { asked, limit });
        } else if failed.attempts_here() <= self.same.into() && !self.may_stay(failed.fault().kind()) {
            return Err(NotRetried::NotByRule);
        } else {
            let limit = u32::try_from(self.total_attempts()).unwrap_or(u32::MAX);
            return Err(NotRetried::AttemptsUsedUp { limit });
        };
        Ok(Again::new(to, Duration::ZERO))
    }
}

/// What is sent again.
impl fmt::Display for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.never_retries() {
            return f.write_str("nothing");
        }
        let gets = match self.repeats {
            Repeats::AsTheRule => "GET",
            Repeats::IdempotentMethods => "idempotent methods",
            Repeats::Everything => "any request",
        };
        match self.rule {
            _ if self.repeats == Repeats::Everything => f.write_str("any request; on any fault"),
            Rule::Safe => write!(f, "{}; on any fault", self.repeats.beyond_safe()),
            Rule::Ribbon => write!(
                f,
                "{gets}; on any fault; others if the connection was refused, had no route, was reset or closed early"
            ),
            Rule::SpringRetry => write!(f, "{gets}; on any fault"),
            Rule::RibbonDefaultHandler => {
                f.write_str("any request; on any fault, on the same endpoint if nobody answered")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_says_what_it_sends_again() {
        let said = |policy: Idempotent| policy.to_string();
        assert_eq!(said(Idempotent::ribbon().next_endpoint(0)), "nothing");
        assert_eq!(said(Idempotent::ribbon_spring_retry()), "GET; on any fault");
        assert_eq!(
            said(Idempotent::ribbon().ok_to_retry_on_all_operations()),
            "any request; on any fault"
        );
        assert_eq!(
            said(Idempotent::default().idempotent_methods()),
            "idempotent and keyed requests, others if nothing was sent; on any fault"
        );
        assert_eq!(
            said(Idempotent::ribbon_spring_retry().idempotent_methods()),
            "idempotent methods; on any fault"
        );
        let policy = Idempotent::default().same_endpoint(3);
        assert_eq!(
            (policy.same_endpoint_retries(), policy.next_endpoint_retries()),
            (3, 1)
        );
    }

    #[test]
    fn attempts_multiply_and_do_not_overflow() {
        let total = |same, next| {
            Idempotent::default()
                .same_endpoint(same)
                .next_endpoint(next)
                .total_attempts()
        };
        assert_eq!(total(0, 1), 2);
        assert_eq!(total(2, 3), 12);
        assert_eq!(total(0, 0), 1);
        assert_eq!(total(u32::MAX, u32::MAX), u64::MAX);
    }
}
