//! Keys that do nothing.

use std::fmt;

use super::SpringRelease;

/// A key that does nothing in this nest, and why. See [`SpringConfig::remarks`](super::SpringConfig::remarks).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    key: String,
    value: String,
    reason: Reason,
}

/// Why a key does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Spring acts on it; here that is somebody else's business, or nobody's, as it says.
    NotActedOn(&'static str),
    /// It would do something, if another setting were different, which it says. Spring does nothing by it either.
    WithoutEffect(&'static str),
    /// It is close to a key that would do something. Spring reads keys of this family by their exact names too.
    Misspelled {
        /// The name that is read.
        name: String,
    },
    /// It is about another client.
    OtherClient,
    /// It is about another command, or another thread pool.
    OtherCommand,
    /// This release does not read it.
    NotInRelease(SpringRelease),
    /// Nothing is known of it.
    Unknown,
}

impl Remark {
    pub(super) fn new(key: &str, value: &str, reason: Reason) -> Self {
        Remark {
            key: key.to_owned(),
            value: value.to_owned(),
            reason,
        }
    }

    /// The key, as it was given.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its value, as it was given.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Why it does nothing.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` does nothing: {}", self.key, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotActedOn(why) | Reason::WithoutEffect(why) => f.write_str(why),
            Reason::Misspelled { name } => write!(f, "the name that is read is `{name}`"),
            Reason::OtherClient => f.write_str("it is about another client"),
            Reason::OtherCommand => f.write_str("it is about another command or thread pool"),
            Reason::NotInRelease(release) => write!(f, "{release} does not read it"),
            Reason::Unknown => f.write_str("nothing is known of it"),
        }
    }
}
