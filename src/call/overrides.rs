//! What one request wants otherwise than its stack is set.

use http::Request;
use tokio::time::{Duration, Instant};

use super::config::{self, ConfigError};

const LAYER: &str = "Overrides";

/// Settings for one call alone. They go into the extensions of its request, and hold in place of the settings of the
/// layers that read them:
///
/// | setting | read by |
/// | --- | --- |
/// | [`execution_limit`](Overrides::execution_limit), [`deadline`](Overrides::deadline) | an `ExecutionTimeout` that was told to: [`per_request()`](crate::timeout::ExecutionTimeoutLayer::per_request). The one of the [`nest`](crate::nest) is |
/// | [`read_limit`](Overrides::read_limit), [`body_limit`](Overrides::body_limit) | `ReadTimeout` |
/// | [`attempts`](Overrides::attempts) | `BackoffRetry` |
/// | [`same_endpoint`](Overrides::same_endpoint), [`next_endpoint`](Overrides::next_endpoint) | `IdempotentRetry` |
///
/// What is not set holds as it was. How often a request is sent is all that can be changed about retries: whether that
/// is safe is still for the rule of the layer to say. An override is for this call alone, so nothing checks that the
/// limits fit into one another.
///
/// Each layer reads the extension from the request that comes to it, so it works for a layer that stands alone, and
/// below a buffer or in another task; a layer that makes a new request in between has to carry it over. A request type
/// of one's own can carry overrides as well: [`OutboundRequest::overrides`](super::OutboundRequest::overrides) and
/// [`CarriesOverrides`].
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::call::Overrides;
///
/// let mut report = http::Request::get("/reports/2024").body(())?;
/// let patient = Overrides::new().with_read_limit(Duration::from_secs(60))?.with_attempts(1)?;
/// report.extensions_mut().insert(patient);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    execution: Option<Duration>,
    deadline: Option<Instant>,
    read: Option<Duration>,
    body: Option<Duration>,
    attempts: Option<u32>,
    same: Option<u32>,
    next: Option<u32>,
}

impl Overrides {
    /// The most that a count can be set to. A number may come from outside, as with a gateway, and each retry is work
    /// for a server.
    pub const MOST: u32 = 100;

    /// Nothing is otherwise.
    pub const fn new() -> Self {
        Overrides {
            execution: None,
            deadline: None,
            read: None,
            body: None,
            attempts: None,
            same: None,
            next: None,
        }
    }

    /// The limit on the whole call. It may be longer than the one that it takes the place of.
    ///
    /// # Errors
    ///
    /// If it is zero, or longer than [`LONGEST`](super::LONGEST).
    pub fn with_execution_limit(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.execution = Some(config::limit(LAYER, "execution_limit", limit)?);
        Ok(self)
    }

    /// When the call must have ended, whatever its limit is. If that has passed, nothing is sent.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The longest silence of the server: before the head, and before each frame of the body.
    ///
    /// # Errors
    ///
    /// If it is zero, or longer than [`LONGEST`](super::LONGEST).
    pub fn with_read_limit(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.read = Some(config::limit(LAYER, "read_limit", limit)?);
        Ok(self)
    }

    /// The limit on the whole body of the answer.
    ///
    /// # Errors
    ///
    /// If it is zero, or longer than [`LONGEST`](super::LONGEST).
    pub fn with_body_limit(mut self, limit: Duration) -> Result<Self, ConfigError> {
        self.body = Some(config::limit(LAYER, "body_limit", limit)?);
        Ok(self)
    }

    /// How many attempts a backoff makes at most, the first included.
    ///
    /// # Errors
    ///
    /// If there is none, or more than [`MOST`](Overrides::MOST).
    pub fn with_attempts(mut self, attempts: u32) -> Result<Self, ConfigError> {
        config::at_least_one(LAYER, "attempts", attempts)?;
        self.attempts = Some(at_most("attempts", attempts)?);
        Ok(self)
    }

    /// How many more attempts each endpoint gets at once.
    ///
    /// # Errors
    ///
    /// If there are more than [`MOST`](Overrides::MOST).
    pub fn with_same_endpoint(mut self, retries: u32) -> Result<Self, ConfigError> {
        self.same = Some(at_most("same_endpoint", retries)?);
        Ok(self)
    }

    /// How often the next endpoint has its turn.
    ///
    /// # Errors
    ///
    /// If it is more often than [`MOST`](Overrides::MOST).
    pub fn with_next_endpoint(mut self, retries: u32) -> Result<Self, ConfigError> {
        self.next = Some(at_most("next_endpoint", retries)?);
        Ok(self)
    }

    /// The limit on the whole call, if it is set.
    pub const fn execution_limit(&self) -> Option<Duration> {
        self.execution
    }

    /// When the call must have ended, if that is set.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The longest silence of the server, if it is set.
    pub const fn read_limit(&self) -> Option<Duration> {
        self.read
    }

    /// The limit on the whole body of the answer, if it is set.
    pub const fn body_limit(&self) -> Option<Duration> {
        self.body
    }

    /// How many attempts a backoff makes at most, if that is set.
    pub const fn attempts(&self) -> Option<u32> {
        self.attempts
    }

    /// How many more attempts each endpoint gets at once, if that is set.
    pub const fn same_endpoint(&self) -> Option<u32> {
        self.same
    }

    /// How often the next endpoint has its turn, if that is set.
    pub const fn next_endpoint(&self) -> Option<u32> {
        self.next
    }
}

fn at_most(field: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value > Overrides::MOST {
        return Err(ConfigError::new(LAYER, field, value, "give 100 or less"));
    }
    Ok(value)
}

/// A request that can carry [`Overrides`]. `http::Request` does, in its extensions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no request that carries `Overrides`",
    label = "carries no `Overrides`",
    note = "`http::Request` does; implement `CarriesOverrides` for a type of your own, or leave out `per_request()`"
)]
pub trait CarriesOverrides {
    /// What this request wants otherwise.
    fn overrides(&self) -> Option<&Overrides>;
}

impl<B> CarriesOverrides for Request<B> {
    #[inline]
    fn overrides(&self) -> Option<&Overrides> {
        self.extensions().get()
    }
}

/// How a layer that takes requests of any type looks for [`Overrides`].
pub trait ReadOverrides<Req> {
    /// What this request wants otherwise.
    fn overrides<'a>(&self, request: &'a Req) -> Option<&'a Overrides>;
}

/// Takes requests of any type, and looks for [`Overrides`] in none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnyRequest;

impl<Req> ReadOverrides<Req> for AnyRequest {
    #[inline]
    fn overrides<'a>(&self, _: &'a Req) -> Option<&'a Overrides> {
        None
    }
}

/// Takes requests that can carry [`Overrides`], and heeds them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerRequest;

impl<Req: CarriesOverrides> ReadOverrides<Req> for PerRequest {
    #[inline]
    fn overrides<'a>(&self, request: &'a Req) -> Option<&'a Overrides> {
        request.overrides()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::LONGEST;

    #[test]
    fn what_cannot_be_right_is_refused_when_it_is_said() {
        let new = Overrides::new;
        let nano = Duration::from_nanos(1);
        for (error, field) in [
            (new().with_execution_limit(Duration::ZERO), "execution_limit"),
            (new().with_execution_limit(LONGEST + nano), "execution_limit"),
            (new().with_read_limit(Duration::ZERO), "read_limit"),
            (new().with_read_limit(Duration::MAX), "read_limit"),
            (new().with_body_limit(Duration::ZERO), "body_limit"),
            (new().with_body_limit(Duration::MAX), "body_limit"),
            (new().with_attempts(0), "attempts"),
            (new().with_attempts(Overrides::MOST + 1), "attempts"),
            (new().with_same_endpoint(u32::MAX), "same_endpoint"),
            (new().with_next_endpoint(Overrides::MOST + 1), "next_endpoint"),
        ] {
            let error = error.unwrap_err();
            assert_eq!((error.layer(), error.field()), ("Overrides", field));
        }
        let edges = new()
            .with_execution_limit(LONGEST)
            .and_then(|edges| edges.with_read_limit(nano))
            .and_then(|edges| edges.with_attempts(Overrides::MOST))
            .and_then(|edges| edges.with_same_endpoint(0))
            .and_then(|edges| edges.with_next_endpoint(Overrides::MOST))
            .unwrap();
        assert_eq!((edges.attempts(), edges.same_endpoint()), (Some(100), Some(0)));
    }
}
