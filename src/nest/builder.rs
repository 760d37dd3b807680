//! The standard stack from a few settings.

use std::time::Duration;

#[cfg(feature = "client")]
use http::uri::Scheme;

use super::{
    plan::{Finding, Plan},
    service::{Nest, NestHandle},
    settings::Parts,
};
use crate::{
    balance::{Ewma, LoadBalanceLayer, OutlierEjection, RoundRobin, Rule, WhenEmpty},
    breaker::{Breaker, CircuitBreakerLayer},
    call::{
        ByFault, ByTrailers, CallScope, ConfigError, Endpoints, HostHeader, LONGEST, RetryBudget, StatusSet,
        config,
    },
    classify::{StatusErrorClassifierLayer, StatusPolicy},
    observe::RecordTrailLayer,
    retry::{Backoff, BackoffRetryLayer, Idempotent, IdempotentRetryLayer},
    timeout::{ExecutionTimeoutLayer, ReadTimeoutLayer},
};

/// How long a probe may take before another one goes out, where the execution limit is not longer.
const LEASE: Duration = Duration::from_secs(30);

/// How long the body of an error answer is waited for.
const ERROR_BODY: Duration = Duration::from_secs(1);

/// Settings of a [`Nest`]. Defaults:
///
/// | setting | default |
/// | --- | --- |
/// | [`connect_limit`](NestBuilder::connect_limit) | 1 s |
/// | [`read_limit`](NestBuilder::read_limit) | 5 s |
/// | [`idempotent`](NestBuilder::idempotent) | the next endpoint once, where that is safe |
/// | [`backoff`](NestBuilder::backoff) | 2 attempts with a pause of at most 100 ms (full jitter) between them, where that is safe |
/// | [`budget`](NestBuilder::budget) | retries for 10 % of the traffic and 1/s, with a burst of 10, shared by both retry layers |
/// | [`attempts_in_call`](NestBuilder::attempts_in_call) | none: the retry layers multiply, and make 4 at most |
/// | [`execution_limit`](NestBuilder::execution_limit) | 30 s; the [plan](NestBuilder::plan) takes 26.1 s at most |
/// | [`statuses`](NestBuilder::statuses) | 5xx, 408 and 429 are failures, other 4xx the caller's fault |
/// | [`breaker`](NestBuilder::breaker) | 50 % of at least 20 calls in 10 s; a probe after 5 s |
/// | [`outliers`](NestBuilder::outliers) | none is ejected; the rule keeps away from what fails |
/// | [`host_header`](NestBuilder::host_header) | the endpoint's |
/// | [`when_empty`](NestBuilder::when_empty) | a call without an endpoint fails at once |
#[derive(Debug)]
#[must_use]
pub struct NestBuilder<R = Ewma> {
    name: String,
    endpoints: Endpoints,
    connect_limit: Duration,
    read_limit: Duration,
    execution_limit: Option<Duration>,
    idempotent: Idempotent,
    backoff: Backoff,
    budget: Option<RetryBudget>,
    attempts_in_call: Option<u32>,
    statuses: StatusPolicy,
    breaker: Option<Breaker>,
    rule: R,
    outliers: Option<OutlierEjection>,
    host_header: HostHeader,
    when_empty: WhenEmpty,
    record_every_call: bool,
    accepts_cut_short: bool,
}

impl NestBuilder {
    pub(super) fn new(name: String, endpoints: Endpoints) -> Self {
        NestBuilder {
            name,
            endpoints,
            connect_limit: Duration::from_secs(1),
            read_limit: Duration::from_secs(5),
            execution_limit: Some(Duration::from_secs(30)),
            idempotent: Idempotent::default(),
            backoff: Backoff::default(),
            budget: Some(RetryBudget::default()),
            attempts_in_call: None,
            statuses: StatusPolicy::default(),
            breaker: None,
            rule: Ewma::new(),
            outliers: None,
            host_header: HostHeader::default(),
            when_empty: WhenEmpty::default(),
            record_every_call: false,
            accepts_cut_short: false,
        }
    }
}

impl<R: Rule> NestBuilder<R> {
    /// The limit on the connect phase. [`build_http`](NestBuilder::build_http) puts it into the client; for a client
    /// of your own it says what that client's limit is, so that the [plan](NestBuilder::plan) is right.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How long a server may be silent: before the head of its answer, and in any gap of the body.
    pub fn read_limit(mut self, limit: Duration) -> Self {
        self.read_limit = limit;
        self
    }

    /// The limit on the whole call.
    pub fn execution_limit(mut self, limit: Duration) -> Self {
        self.execution_limit = Some(limit);
        self
    }

    /// No limit on the whole call: the [plan](NestBuilder::plan) is all that bounds it.
    pub fn no_execution_limit(mut self) -> Self {
        self.execution_limit = None;
        self
    }

    /// Retries at once, on the same and on the next endpoint.
    pub fn idempotent(mut self, policy: Idempotent) -> Self {
        self.idempotent = policy;
        self
    }

    /// Retries after a pause.
    pub fn backoff(mut self, policy: Backoff) -> Self {
        self.backoff = policy;
        self
    }

    /// What both retry layers may spend. Give one to several nests to share it.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// No budget: every retry that is safe and in time is made.
    pub fn no_budget(mut self) -> Self {
        self.budget = None;
        self
    }

    /// How often a call is sent at most, over both retry layers. Without it their counts multiply.
    pub fn attempts_in_call(mut self, attempts: u32) -> Self {
        self.attempts_in_call = Some(attempts);
        self
    }

    /// Which statuses are errors, and whose fault they are. Breaker, balancer and retries go by it alike.
    pub fn statuses(mut self, policy: StatusPolicy) -> Self {
        self.statuses = policy;
        self
    }

    /// The circuit breaker. Default: a new one with the nest's name.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// How an endpoint is chosen. Default: [`Ewma`], the one of a few that is likely to answer soonest.
    pub fn rule<R2: Rule>(self, rule: R2) -> NestBuilder<R2> {
        NestBuilder {
            rule,
            name: self.name,
            endpoints: self.endpoints,
            connect_limit: self.connect_limit,
            read_limit: self.read_limit,
            execution_limit: self.execution_limit,
            idempotent: self.idempotent,
            backoff: self.backoff,
            budget: self.budget,
            attempts_in_call: self.attempts_in_call,
            statuses: self.statuses,
            breaker: self.breaker,
            outliers: self.outliers,
            host_header: self.host_header,
            when_empty: self.when_empty,
            record_every_call: self.record_every_call,
            accepts_cut_short: self.accepts_cut_short,
        }
    }

    /// Leaves endpoints alone for a time that fail more than others, by the [statuses](NestBuilder::statuses). Default: none.
    pub fn outliers(mut self, outliers: OutlierEjection) -> Self {
        self.outliers = Some(outliers);
        self
    }

    /// Which `Host` header the requests carry.
    pub fn host_header(mut self, host: HostHeader) -> Self {
        self.host_header = host;
        self
    }

    /// What becomes of a call when there is no endpoint.
    pub fn when_empty(mut self, when_empty: WhenEmpty) -> Self {
        self.when_empty = when_empty;
        self
    }

    /// Puts a [`Trail`](crate::call::Trail) on every outcome, and not only where an attempt failed. Default: no.
    pub fn record_every_call(mut self, yes: bool) -> Self {
        self.record_every_call = yes;
        self
    }

    /// Accepts that the execution limit cuts the plan short, so that some retries are never made.
    pub fn accept_cut_short(mut self) -> Self {
        self.accepts_cut_short = true;
        self
    }

    /// How often a call is sent at most, and how long that can take.
    ///
    /// Not in it: a wait that a server asks for by `Retry-After`, since one that does not fit before the execution
    /// limit is not begun; the wait for a discovery stream that has never given anything; the body of the response.
    pub fn plan(&self) -> Plan {
        let for_an_endpoint = match self.when_empty {
            WhenEmpty::Wait(wait) => wait,
            _ => Duration::ZERO,
        };
        let most = self.attempts_in_call.unwrap_or(CallScope::ANY_NUMBER);
        Plan::new(
            self.backoff.max_attempts().min(most),
            self.idempotent.total_attempts(),
            for_an_endpoint
                .saturating_add(self.connect_limit)
                .saturating_add(self.read_limit),
            ERROR_BODY,
            self.backoff.longest_pauses_of(most),
            self.execution_limit,
        )
        .limited(self.attempts_in_call)
    }

    /// All settings, a name and a value each, as they are now. The names are those that
    /// [`SpringConfig::settings`](super::spring::SpringConfig::settings) has, so the two can be compared.
    ///
    /// ```
    /// use tower_outbound::{Nest, call::Endpoints};
    ///
    /// let builder = Nest::builder("orders", Endpoints::new());
    /// let mut settings = builder.settings();
    /// assert_eq!(settings.find(|(name, _)| *name == "read limit"), Some(("read limit", "5s".to_owned())));
    /// ```
    ///
    /// A rule is told by the name of its type, without generics:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_outbound::{Nest, balance::{Ewma, Random, RibbonRule, RoundRobin, Rule}, call::Endpoints};
    ///
    /// fn told<R: Rule>(rule: R) -> [String; 2] {
    ///     let settings: Vec<_> = Nest::builder("orders", Endpoints::new()).rule(rule).settings().collect();
    ///     ["rule", "tripped endpoint"].map(|row| {
    ///         settings.iter().find(|(name, _)| *name == row).map_or(String::new(), |(_, value)| value.clone())
    ///     })
    /// }
    /// let any: Arc<dyn Rule + Send + Sync> = Arc::new(Random::default());
    /// assert_eq!(told(Ewma::default()), ["Ewma", "avoided while it fails"]);
    /// assert_eq!(told(RoundRobin::default()), ["RoundRobin", "picked like any other"]);
    /// assert_eq!(told(any), ["a rule of its own", "as the rule says"]);
    /// assert_eq!(told(RibbonRule::ZoneAvoidance.zone_aware()), ["ZoneAware", "as the rule says"]);
    /// ```
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, String)> + use<R> {
        let rule = pointee(std::any::type_name::<R>());
        let tripped = if rule == std::any::type_name::<RoundRobin>() {
            "picked like any other"
        } else if rule == std::any::type_name::<Ewma>() {
            "avoided while it fails"
        } else {
            "as the rule says"
        };
        let breaker = match &self.breaker {
            Some(breaker) => breaker.settings(),
            None => Breaker::builder(self.name.as_str()).settings(),
        };
        Parts {
            connect: self.connect_limit,
            read: self.read_limit,
            execution: self.execution_limit,
            deadline_is_told: true,
            idempotent: self.idempotent,
            retried_answers: StatusSet::EMPTY,
            backoff: &self.backoff,
            budget: self.budget.as_ref(),
            attempts_in_call: self.attempts_in_call,
            statuses: &self.statuses,
            breaker: Some(breaker),
            breaker_counts: "failures of the server",
            bulkhead: None,
            fallbacks: None,
            rule: rule_name(rule),
            tripped: tripped.to_owned(),
            outliers: self.outliers.is_some(),
            when_empty: self.when_empty,
            plan: self.plan(),
        }
        .rows()
    }

    /// Builds the nest over this client: any `Service<http::Request<UploadBody<B>>>` that answers with
    /// `http::Response`. The body is wrapped, so that an upload ends with its call.
    ///
    /// For reqwest there is `ReqwestClient`, with the feature `reqwest`.
    ///
    /// # Errors
    ///
    /// If the name is empty, a limit is zero or longer than ten years, the execution limit is shorter than the
    /// [plan](NestBuilder::plan) and that is not [accepted](NestBuilder::accept_cut_short), or a breaker of yours has a
    /// probe lease that is shorter than a call can take.
    pub fn build<C>(self, client: C) -> Result<Nest<C, R>, ConfigError> {
        let plan = self.plan();
        let findings = if self.accepts_cut_short {
            Vec::new()
        } else {
            plan.findings()
        };
        config::name("Nest", "name", &self.name)?;
        if let Some(attempts) = self.attempts_in_call {
            config::at_least_one("Nest", "attempts_in_call", attempts)?;
        }
        config::limit("Nest", "connect_limit", self.connect_limit)?;
        let read = config::limit("Nest", "read_limit", self.read_limit)?;
        let execution = config::limit("Nest", "execution_limit", self.execution_limit.unwrap_or(LONGEST))?;
        let mut balance = LoadBalanceLayer::new(self.endpoints.clone())
            .rule(self.rule)
            .classify(self.statuses.clone())
            .host_header(self.host_header)
            .when_empty(self.when_empty)?;
        if let Some(outliers) = self.outliers {
            balance = balance.outliers(outliers);
        }
        if let Some(finding) = findings.first() {
            let Finding::PlanExceedsExecutionLimit { plan: longest, limit } = finding;
            let fix = format!(
                "attempts and pauses can take {longest:?} ({plan}): raise it, lower the other limits or the retries, or \
                 say accept_cut_short()"
            );
            return Err(ConfigError::new(
                "Nest",
                "execution_limit",
                format_args!("{limit:?}"),
                fix,
            ));
        }
        let longest = self.execution_limit.unwrap_or(plan.longest());
        let breaker = match self.breaker {
            // A probe that is still within its limit must not be given up for lost.
            Some(breaker) if breaker.probe_lease() < longest => {
                let lease = format!("one with a probe lease of {:?}", breaker.probe_lease());
                let fix =
                    format!("a call can take {longest:?}: build it with a probe_lease() of that or more");
                return Err(ConfigError::new("Nest", "breaker", lease, fix));
            }
            Some(breaker) => breaker,
            None => Breaker::builder(self.name)
                .probe_lease(longest.clamp(LEASE, LONGEST))
                .build()?,
        };
        let (mut backoff, mut idempotent) = (
            BackoffRetryLayer::new(self.backoff),
            IdempotentRetryLayer::new(self.idempotent),
        );
        if let Some(budget) = &self.budget {
            backoff = backoff.budget(budget.clone());
            idempotent = idempotent.budget(budget.clone());
        }
        if let Some(attempts) = self.attempts_in_call {
            backoff = backoff.attempts_in_call(attempts)?;
            idempotent = idempotent.attempts_in_call(attempts)?;
        }
        let handle = NestHandle::new(breaker.clone(), self.endpoints, balance.handle(), self.budget);
        let stack = tower::ServiceBuilder::new()
            .layer(RecordTrailLayer::new().every_call(self.record_every_call))
            .layer(CircuitBreakerLayer::new(breaker).classify(ByTrailers(ByFault)))
            .layer(ExecutionTimeoutLayer::new(execution)?.per_request())
            .layer(backoff)
            .layer(StatusErrorClassifierLayer::new(self.statuses).body_wait(ERROR_BODY)?)
            .layer(idempotent)
            .layer(balance)
            .layer(ReadTimeoutLayer::new(read)?)
            .service(client);
        Ok(Nest::new(stack, handle))
    }

    /// Builds the nest over a [`Client`](super::client::Client) for plain `http`, with this nest's connect limit.
    ///
    /// It speaks plain `http` alone; for TLS give a client over a TLS connector to [`build`](NestBuilder::build):
    /// `Client::builder().build(connector)`.
    ///
    /// # Errors
    ///
    /// As [`build`](NestBuilder::build), and if an endpoint that is in the set by now has another scheme than `http`.
    #[cfg(feature = "client")]
    #[cfg_attr(docsrs, doc(cfg(feature = "client")))]
    pub fn build_http<B>(self) -> Result<super::HttpNest<B, R>, ConfigError>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send,
        B::Error: Into<tower::BoxError>,
    {
        let limit = config::limit("Nest", "connect_limit", self.connect_limit)?;
        only_http("Nest", &self.endpoints)?;
        let client = super::client::Client::builder()
            .connect_limit(limit)
            .build_http()?;
        self.build(client)
    }
}

/// The name of a rule's type, without the pointer around it.
fn pointee(of_type: &str) -> &str {
    let inner = of_type
        .strip_prefix("alloc::sync::Arc<")
        .and_then(|rest| rest.strip_suffix('>'));
    inner.map_or(of_type, pointee)
}

/// What a rule of this type is called: the last segment of its path, without generics.
fn rule_name(of_type: &str) -> String {
    let path = of_type.split('<').next().unwrap_or(of_type);
    let name = path.rsplit("::").next().unwrap_or(path);
    let is_word = |name: &str| {
        name.chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    // A closure, or any rule there is, says nothing by its type.
    if path.starts_with("dyn ") || !is_word(name) {
        "a rule of its own".to_owned()
    } else {
        name.to_owned()
    }
}

/// `build_http` speaks plain `http`.
#[cfg(feature = "client")]
pub(super) fn only_http(nest: &'static str, endpoints: &Endpoints) -> Result<(), ConfigError> {
    let set = endpoints.snapshot();
    let other = set
        .endpoints()
        .iter()
        .find(|endpoint| *endpoint.scheme() != Scheme::HTTP);
    match other {
        Some(other) => Err(ConfigError::new(
            nest,
            "endpoints",
            other.key(),
            "build_http() speaks plain http; give build() a client over a TLS connector",
        )),
        None => Ok(()),
    }
}
