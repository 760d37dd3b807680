//! Limits on how long things may take.
