//! What is a bean in Spring, and so has no key.

use std::time::Duration;

use crate::{
    call::{ConfigError, LONGEST, StatusSet, config},
    classify::StatusPolicy,
    retry::Backoff,
};

/// Feign's retryer. Default: [`Never`](Retryer::Never), as in Spring Cloud.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retryer {
    /// Spring's `Retryer.NEVER_RETRY`.
    #[default]
    Never,
    /// Feign's `Retryer.Default`, with the arguments of its constructor. See [`Backoff::feign`] for what it does.
    ///
    /// **A risk:** it sends every method again, POST too.
    Default {
        /// Two thirds of the first pause.
        period: Duration,
        /// The longest pause.
        max_period: Duration,
        /// How many attempts there are, the first included. 0 is as 1.
        max_attempts: u32,
    },
}

impl Retryer {
    /// Feign's `new Retryer.Default()`: 100 ms, 1 s, 5 attempts.
    pub const FEIGN: Retryer = Retryer::Default {
        period: Duration::from_millis(100),
        max_period: Duration::from_secs(1),
        max_attempts: 5,
    };

    pub(super) fn backoff(self, decoder: ErrorDecoder) -> Result<Backoff, ConfigError> {
        match self {
            Retryer::Never => Ok(Backoff::never()),
            Retryer::Default {
                period,
                max_period,
                max_attempts,
            } => {
                let backoff = Backoff::feign(period, max_period, max_attempts.max(1))?;
                Ok(match decoder {
                    ErrorDecoder::ServerErrorsRetryable => backoff.retry_undated(server_errors()),
                    _ => backoff,
                })
            }
        }
    }
}

fn server_errors() -> StatusSet {
    (500..600)
        .filter_map(|code| http::StatusCode::from_u16(code).ok())
        .collect()
}

/// Feign's error decoder: what becomes of an answer that is not 2xx.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorDecoder {
    /// Feign's own: each is an error, which the breaker counts, and one with a `Retry-After` is retried by the
    /// [`Retryer`].
    #[default]
    Default,
    /// 4xx are a `HystrixBadRequestException`, which the breaker does not count and no fallback answers; the rest as by
    /// default. It is the decoder that most users write.
    ClientErrorsAsBadRequests,
    /// 5xx are a `RetryableException` without a date: the [`Retryer`] sends again after its usual pause, whatever
    /// `Retry-After` says; the rest as by default.
    ServerErrorsRetryable,
}

/// What the method of the client gives back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReturnType {
    /// Something made of the body: the call ends with the whole body, and fails with it.
    #[default]
    Body,
    /// Nothing: an answer of 2xx is a success with its head.
    Void,
    /// Feign's `Response`: no status is an error, and a body whose length is told and at most 8 KiB is read before the
    /// call ends.
    Response,
}

/// A connect and a read limit: Feign's `Request.Options`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// On the connect phase.
    pub connect: Duration,
    /// On the server's silence: until the head of the answer, and in any gap of its body.
    pub read: Duration,
}

impl Limits {
    /// Feign's own, where nobody says otherwise: 10 s, 60 s.
    pub const FEIGN: Limits = Limits {
        connect: Duration::from_secs(10),
        read: Duration::from_secs(60),
    };

    /// Zero is no limit, as in Java.
    pub(super) fn from_millis(connect: u32, read: u32) -> Self {
        let limit = |millis| match millis {
            0 => LONGEST,
            millis => Duration::from_millis(u64::from(millis)),
        };
        Limits {
            connect: limit(connect),
            read: limit(read),
        }
    }

    pub(super) fn check(self) -> Result<Self, ConfigError> {
        config::limit("Spring", "connect", self.connect)?;
        config::limit("Spring", "read", self.read)?;
        Ok(self)
    }
}

/// All of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beans {
    pub(super) retryer: Retryer,
    pub(super) decoder: ErrorDecoder,
    pub(super) return_type: ReturnType,
    pub(super) options: Option<Limits>,
    pub(super) decode_404: bool,
    pub(super) max_body: u64,
    pub(super) record_every_call: bool,
}

impl Default for Beans {
    fn default() -> Self {
        Beans {
            retryer: Retryer::default(),
            decoder: ErrorDecoder::default(),
            return_type: ReturnType::default(),
            options: None,
            decode_404: false,
            max_body: 16 * 1024 * 1024,
            record_every_call: false,
        }
    }
}

/// Which statuses are errors.
pub(super) fn statuses(decoder: ErrorDecoder, decode_404: bool, return_type: ReturnType) -> StatusPolicy {
    let policy = match (return_type, decoder) {
        (ReturnType::Response, _) => return StatusPolicy::answers(),
        (_, ErrorDecoder::ClientErrorsAsBadRequests) => StatusPolicy::client_errors_ignored(),
        _ => StatusPolicy::feign(),
    };
    // Feign decodes nothing for a method without a result.
    if decode_404 && return_type == ReturnType::Body {
        policy.decode_404()
    } else {
        policy
    }
}
