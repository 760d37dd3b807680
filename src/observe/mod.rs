//! Seeing what happened.
