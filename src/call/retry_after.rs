//! How long a server asks its clients to stay away.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};

/// Reads `Retry-After` off a response's headers: how long from now, zero for a time that has passed.
///
/// Seconds, with fractions rounded up so that no wait is shorter than asked, or any of the three date forms of
/// HTTP (RFC 9110, sections 5.6.7 and 10.2.3). Of several lines the first counts. Anything else is as if the
/// header were not there; a number too large for a duration is the longest duration.
pub fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(RETRY_AFTER)?, wall_clock)
}

/// As [`from_headers`], for one value, with the wall clock that dates are held against.
pub fn parse(value: &HeaderValue, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    if text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains(':') {
        return seconds(text);
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now()).unwrap_or(Duration::ZERO))
}

fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // The text is digits alone, so the only way to fail is to be too large.
    let whole = whole.parse().unwrap_or(u64::MAX);
    let round_up = u64::from(fraction.bytes().any(|byte| byte != b'0'));
    Some(Duration::from_secs(whole.saturating_add(round_up)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "an HTTP date is a point of wall time, which no other clock knows"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_value_is_read_or_passed_over(bytes in prop::collection::vec(prop_oneof![32..=126_u8, 128..=255_u8], 0..60)) {
            let wait = parse(&HeaderValue::from_bytes(&bytes).unwrap(), || SystemTime::UNIX_EPOCH);
            prop_assert!(wait.is_none() || bytes.is_ascii());
        }

        #[test]
        fn any_number_of_seconds_is_that_wait(whole: u64, fraction in "(\\.[0-9]{0,30})?") {
            let more = u64::from(fraction.contains(|digit| ('1'..='9').contains(&digit)));
            let expected = Duration::from_secs(whole.saturating_add(more));
            prop_assert_eq!(at(&format!("{whole}{fraction}"), SystemTime::UNIX_EPOCH), Some(expected));
        }

        #[test]
        fn any_date_is_the_wait_until_then(secs in 0..253_402_300_800_u64, ago in 0..100_000_u64) {
            let date = SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
            let value = httpdate::fmt_http_date(date);
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(secs.saturating_sub(ago));
            prop_assert_eq!(at(&value, now), Some(Duration::from_secs(ago.min(secs))));
        }
    }

    fn at(value: &str, now: SystemTime) -> Option<Duration> {
        parse(&HeaderValue::from_str(value).unwrap(), || now)
    }

    /// BKO-02, BKO-04.
    #[test]
    fn seconds_are_read_and_fractions_are_rounded_up() {
        let secs = |value| at(value, SystemTime::UNIX_EPOCH).map(|wait| wait.as_secs());
        assert_eq!(secs("0"), Some(0));
        assert_eq!(secs("2"), Some(2));
        assert_eq!(secs(" 2 "), Some(2));
        assert_eq!(secs("2.0"), Some(2));
        assert_eq!(secs("2."), Some(2));
        assert_eq!(secs("2.5"), Some(3));
        assert_eq!(secs("299.997"), Some(300));
        assert_eq!(secs("99999999999999999999"), Some(u64::MAX));
        assert_eq!(secs("18446744073709551615.5"), Some(u64::MAX));
        assert_eq!(secs("18446744073709551615000"), Some(u64::MAX));
    }

    /// BKO-02.
    #[test]
    fn garbage_is_as_if_the_header_were_not_there() {
        for value in [
            "",
            "+2",
            "-1",
            "abc",
            "2s",
            "1.2.3",
            "1e3",
            ".5",
            "0x10",
            "soon",
            "2 3",
            "Sun, 06 Nov",
        ] {
            assert_eq!(at(value, SystemTime::UNIX_EPOCH), None, "{value:?}");
        }
        assert_eq!(
            parse(&HeaderValue::from_bytes(b"\xff2").unwrap(), || {
                SystemTime::UNIX_EPOCH
            }),
            None
        );
    }

    /// BKO-07.
    #[test]
    fn all_three_date_forms_are_read_and_a_past_one_is_zero() {
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for value in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(
                at(value, date - Duration::from_secs(5)),
                Some(Duration::from_secs(5)),
                "{value}"
            );
            assert_eq!(
                at(value, date + Duration::from_secs(60)),
                Some(Duration::ZERO),
                "{value}"
            );
        }
    }

    /// BKO-02.
    #[test]
    fn of_several_lines_the_first_counts() {
        let mut headers = HeaderMap::new();
        headers.append(RETRY_AFTER, HeaderValue::from_static("3"));
        headers.append(RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(from_headers(&headers), Some(Duration::from_secs(3)));
        assert_eq!(from_headers(&HeaderMap::new()), None);
    }
}
