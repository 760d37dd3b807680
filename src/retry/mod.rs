//! Sending a request again.
