//! A hyper-util client, set up right.
