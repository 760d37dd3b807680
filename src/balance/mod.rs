//! Choosing the endpoint of each attempt.
