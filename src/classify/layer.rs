//! The layer and its settings.

use std::time::Duration;

use tower_layer::Layer;

use super::{StatusErrorClassifier, StatusPolicy};
use crate::call::{ConfigError, config};

/// The name in errors.
const LAYER: &str = "StatusErrorClassifier";

/// The most that can be kept of the body of an error: 16 MiB.
const MOST_BODY: usize = 16 * 1024 * 1024;

/// Turns answers whose status counts as an error into a [`StatusError`](crate::call::StatusError).
///
/// See the [module](super) for what it does and an example.
#[derive(Debug, Clone, Default)]
pub struct StatusErrorClassifierLayer {
    settings: Settings,
}

/// What the layer, the services and their futures have in common.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) policy: StatusPolicy,
    pub(super) max_body: usize,
    pub(super) body_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: StatusPolicy::default(),
            max_body: 16 * 1024,
            body_wait: Duration::from_secs(1),
        }
    }
}

impl StatusErrorClassifierLayer {
    /// Statuses count as this policy says. Of the body of an error 16 KiB are kept, as far as they come within one
    /// second.
    pub fn new(policy: StatusPolicy) -> Self {
        StatusErrorClassifierLayer {
            settings: Settings {
                policy,
                ..Settings::default()
            },
        }
    }

    /// Keeps this many bytes of the body of an error; 16 KiB if nothing is said.
    ///
    /// A longer body is cut there and the rest is dropped, which over HTTP/1 closes the connection. With zero the
    /// body is dropped unread.
    ///
    /// # Errors
    ///
    /// More than 16 MiB: errors are kept in memory, one for each call that fails.
    pub fn max_body(mut self, bytes: usize) -> Result<Self, ConfigError> {
        if bytes > MOST_BODY {
            return Err(ConfigError::new(
                LAYER,
                "max_body",
                bytes,
                "give at most 16 MiB (16777216); it is held in memory for each call that fails",
            ));
        }
        self.settings.max_body = bytes;
        Ok(self)
    }

    /// Waits this long, in all, for the body of an error; one second if nothing is said.
    ///
    /// When it has passed, or the deadline of the call is there, the error has the part of the body that has come.
    /// With zero nothing is waited for: the error has what came with the head. A read limit below this layer may end
    /// the wait sooner, with the same outcome.
    ///
    /// # Errors
    ///
    /// More than [ten years](crate::call::LONGEST).
    pub fn body_wait(mut self, wait: Duration) -> Result<Self, ConfigError> {
        self.settings.body_wait = config::pause(LAYER, "body_wait", wait)?;
        Ok(self)
    }

    /// What statuses count as.
    pub fn policy(&self) -> &StatusPolicy {
        &self.settings.policy
    }
}

impl<S> Layer<S> for StatusErrorClassifierLayer {
    type Service = StatusErrorClassifier<S>;

    fn layer(&self, inner: S) -> Self::Service {
        StatusErrorClassifier::with(inner, self.settings.clone())
    }
}
