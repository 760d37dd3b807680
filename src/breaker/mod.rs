//! Rejecting calls while a dependency is down.
