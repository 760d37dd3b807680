//! Where endpoints come from.
