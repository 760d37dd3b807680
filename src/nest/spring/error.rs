//! A value that a key cannot have.

use std::{borrow::Cow, error::Error, fmt};

/// The value of a key is none that it can have.
///
/// Spring is of two minds here: some of these keys fail the start of the application, others are silently at their
/// default. Here it is always an error, and always at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpringError {
    key: String,
    value: String,
    allowed: Cow<'static, str>,
}

impl SpringError {
    pub(super) fn new(key: &str, value: &str, allowed: impl Into<Cow<'static, str>>) -> Self {
        SpringError {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed: allowed.into(),
        }
    }

    /// The key, as it was given.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value, as it was given.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What it may be.
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}

impl fmt::Display for SpringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is `{}`: give {}", self.key, self.value, self.allowed)
    }
}

impl Error for SpringError {}
