//! Times as people read them.

use std::{fmt, time::Duration};

/// A time in whole milliseconds, without the digits that nobody reads.
pub(crate) struct Millis(pub(crate) Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(1) {
            write!(f, "{}ms", self.0.as_millis())
        } else {
            write!(
                f,
                "{:?}",
                self.0 - Duration::from_nanos(u64::from(self.0.subsec_nanos() % 1_000_000))
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_below_a_millisecond_are_left_out() {
        for (time, text) in [
            (Duration::ZERO, "0ms"),
            (Duration::from_nanos(1_999_999), "1ms"),
            (Duration::from_micros(999_999), "999ms"),
            (Duration::from_nanos(5_000_238_053), "5s"),
            (Duration::from_nanos(1_083_044_836), "1.083s"),
        ] {
            assert_eq!(Millis(time).to_string(), text);
        }
    }
}
