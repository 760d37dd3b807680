//! Statuses turned into errors and verdicts.
