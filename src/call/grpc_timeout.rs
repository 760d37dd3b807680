//! gRPC's `grpc-timeout` header: a number of at most eight digits, and a unit.
//!
//! ```text
//! Timeout      → "grpc-timeout" TimeoutValue TimeoutUnit
//! TimeoutValue → {positive integer as ASCII string of at most 8 digits}
//! TimeoutUnit  → "H" / "M" / "S" / "m" / "u" / "n"
//! ```
//!
//! Source: gRPC over HTTP/2, section "Requests".
//!
//! ```
//! use std::time::Duration;
//! use tower_outbound::call::grpc_timeout;
//!
//! assert_eq!(grpc_timeout::parse(b"250m"), Some(Duration::from_millis(250)));
//! assert_eq!(grpc_timeout::parse(b"250ms"), None);
//! assert_eq!(grpc_timeout::format(Duration::from_secs(5)).as_deref(), Some("5000000u"));
//! ```

use http::HeaderName;
use tokio::time::Duration;

/// The name of the header.
pub const NAME: HeaderName = HeaderName::from_static("grpc-timeout");

/// The most that eight digits can say.
const MOST: u128 = 99_999_999;

/// From the finest unit on: its letter, and its length in nanoseconds.
const UNITS: [(char, u64); 6] = [
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60 * 1_000_000_000),
    ('H', 60 * 60 * 1_000_000_000),
];

/// The time that a value of the header says. `None`: it is no such value.
///
/// A value of zero is one, since programs send it; more than eight digits, a sign, a blank or another unit are not.
pub fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) {
        return None;
    }
    let mut number = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    let (_, nanos) = UNITS
        .into_iter()
        .find(|(letter, _)| *letter == char::from(*unit))?;
    // The largest, 99,999,999 hours, does not fit into nanoseconds.
    let whole = nanos / 1_000_000_000;
    Some(if whole > 0 {
        Duration::from_secs(number * whole)
    } else {
        Duration::from_nanos(number * nanos)
    })
}

/// The value of the header that says this time, in the finest unit whose digits suffice. What is left over is left out,
/// so that it never says more than that. `None`: there is no time to tell of.
///
/// Times of more than 99,999,999 hours are told as so many.
pub fn format(time: Duration) -> Option<String> {
    let time = time.as_nanos();
    if time == 0 {
        return None;
    }
    let told = UNITS
        .into_iter()
        .map(|(letter, nanos)| (letter, time / u128::from(nanos)))
        .find(|(_, number)| *number <= MOST);
    let (letter, number) = told.unwrap_or(('H', MOST));
    Some(format!("{number}{letter}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_of_the_specification_are_read() {
        for (value, time) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
            ("0S", Duration::ZERO),
            ("00000001S", Duration::from_secs(1)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(parse(value.as_bytes()), Some(time), "{value}");
        }
        for value in [
            "",
            "S",
            "1",
            "1s",
            "1h",
            "1ms",
            "123456789S",
            "-1S",
            "+1S",
            "1.5S",
            " 1S",
            "1S ",
            "1 S",
            "0x1S",
            "١S",
        ] {
            assert_eq!(parse(value.as_bytes()), None, "{value:?}");
        }
    }

    #[test]
    fn the_finest_unit_that_fits_is_used() {
        for (time, value) in [
            (Duration::from_nanos(1), "1n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_999), "100000u"),
            (Duration::from_secs(30), "30000000u"),
            (Duration::from_nanos(99_999_999_999), "99999999u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::from_secs(100_000_000), "1666666M"),
            (Duration::from_secs(6_000_000_000), "1666666H"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(format(time).as_deref(), Some(value), "{time:?}");
        }
        assert_eq!(format(Duration::ZERO), None);
    }

    proptest! {
        #[test]
        fn what_is_told_is_never_more_than_is_left_and_nearly_that(
            // Evenly over the magnitudes, up to 99,999,999 hours.
            time in (0_u32..68).prop_flat_map(|bits| 1_u128 << bits..2_u128 << bits),
        ) {
            let time = Duration::new((time / 1_000_000_000) as u64, (time % 1_000_000_000) as u32);
            let value = format(time).unwrap();
            prop_assert!(value.len() <= 9);
            let told = parse(value.as_bytes()).unwrap();
            prop_assert!(told <= time);
            // With a unit to a factor of 1000 at most there are five digits.
            prop_assert!(time - told <= time / 99_999, "{value}");
        }

        #[test]
        fn hours_are_told_to_the_hour(secs in 6_000_000_000..99_999_999_u64 * 3600) {
            let time = Duration::from_secs(secs);
            let told = parse(format(time).unwrap().as_bytes()).unwrap();
            prop_assert!(told <= time && time - told < Duration::from_secs(3600));
        }

        #[test]
        fn garbage_is_no_value_and_no_panic(value in prop::collection::vec(any::<u8>(), 0..16)) {
            if let Some(time) = parse(&value) {
                prop_assert!(value.len() <= 9 && time <= Duration::from_secs(99_999_999 * 3600));
            }
        }

        #[test]
        fn what_looks_like_a_value_is_read_by_its_grammar(value in "[0-9]{0,10}[HMSmunxs]") {
            let digits = &value[..value.len() - 1];
            let fits = (1..=8).contains(&digits.len()) && !value.ends_with(['x', 's']);
            prop_assert_eq!(parse(value.as_bytes()).is_some(), fits);
        }
    }
}
