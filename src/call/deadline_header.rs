//! How the time that a call has left is told from one process to the next.

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Duration;

use super::{config::LONGEST, grpc_timeout};

/// The header that tells the next process how much time is left: its name, and how the time is written.
///
/// A time and not an instant, since the clocks of two machines differ.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderName};
/// use tower_outbound::call::DeadlineHeader;
///
/// let header = DeadlineHeader::millis(HeaderName::from_static("x-time-left"));
/// let mut headers = HeaderMap::new();
/// assert!(header.write(&mut headers, Duration::from_millis(1500)));
/// assert_eq!(headers["x-time-left"], "1500");
/// assert_eq!(header.read(&headers), Some(Duration::from_millis(1500)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlineHeader {
    name: HeaderName,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Grpc,
    Millis,
}

impl DeadlineHeader {
    /// gRPC's own: [`grpc_timeout`].
    pub const GRPC: DeadlineHeader = DeadlineHeader {
        name: grpc_timeout::NAME,
        form: Form::Grpc,
    };

    /// A header with this name, whose value is a number of whole milliseconds.
    pub const fn millis(name: HeaderName) -> Self {
        DeadlineHeader {
            name,
            form: Form::Millis,
        }
    }

    /// Its name.
    pub const fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Is it gRPC's?
    pub const fn is_grpc(&self) -> bool {
        matches!(self.form, Form::Grpc)
    }

    /// The time that these headers tell of, at most [`LONGEST`]. `None`: there is no such header, or one that cannot
    /// be read. Of several the first counts.
    pub fn read(&self, headers: &HeaderMap) -> Option<Duration> {
        let value = headers.get(&self.name)?.as_bytes().trim_ascii();
        let time = match self.form {
            Form::Grpc => grpc_timeout::parse(value),
            Form::Millis => millis(value),
        };
        time.map(|time| time.min(LONGEST))
    }

    /// Writes this time into the headers, in place of what they told of, and rounded down. It is never lengthened: where
    /// they tell of less already, they are left as they are.
    ///
    /// False: it is less than can be told, and nothing was written.
    #[must_use]
    pub fn write(&self, headers: &mut HeaderMap, time: Duration) -> bool {
        if self.read(headers).is_some_and(|told| told <= time) {
            return true;
        }
        let value = match self.form {
            Form::Grpc => grpc_timeout::format(time),
            Form::Millis => Some(time.as_millis())
                .filter(|millis| *millis > 0)
                .map(|millis| millis.to_string()),
        };
        // Digits and a letter always are a value.
        let value = value.and_then(|value| HeaderValue::try_from(value).ok());
        match value {
            Some(value) => {
                headers.insert(&self.name, value);
                true
            }
            None => false,
        }
    }
}

/// A number of milliseconds, in decimal digits. More than there is room for is as much as there is.
fn millis(value: &[u8]) -> Option<Duration> {
    if value.is_empty() {
        return None;
    }
    let mut number = 0_u64;
    for digit in value {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    }
    Some(Duration::from_millis(number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> DeadlineHeader {
        DeadlineHeader::millis(HeaderName::from_static("x-time-left"))
    }

    fn told(header: &DeadlineHeader, value: &[u8]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(header.name(), HeaderValue::from_bytes(value).ok()?);
        header.read(&headers)
    }

    #[test]
    fn both_forms_are_read_and_what_is_none_is_passed_over() {
        assert_eq!(told(&DeadlineHeader::GRPC, b"2S"), Some(Duration::from_secs(2)));
        assert_eq!(told(&DeadlineHeader::GRPC, b"99999999H"), Some(LONGEST));
        assert_eq!(told(&own(), b"2000"), Some(Duration::from_secs(2)));
        assert_eq!(told(&own(), b" 7 "), Some(Duration::from_millis(7)));
        assert_eq!(told(&own(), &[b'9'; 60]), Some(LONGEST));
        assert_eq!(told(&own(), b"0"), Some(Duration::ZERO));
        for value in ["", "2S", "1.5", "-1", "1e3", "soon"] {
            assert_eq!(told(&own(), value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(own().read(&HeaderMap::new()), None);
    }

    #[test]
    fn a_header_that_tells_of_less_is_kept_and_one_that_tells_of_more_is_not() {
        let second = Duration::from_secs(1);
        for (before, after) in [("500m", "500m"), ("5S", "1000000u"), ("soon", "1000000u")] {
            let mut headers = HeaderMap::new();
            headers.insert(grpc_timeout::NAME, HeaderValue::from_static(before));
            assert!(DeadlineHeader::GRPC.write(&mut headers, second));
            assert_eq!(headers[grpc_timeout::NAME], after);
            assert_eq!(headers.len(), 1);
        }
    }

    #[test]
    fn less_than_can_be_told_is_not_written() {
        let mut headers = HeaderMap::new();
        assert!(!own().write(&mut headers, Duration::from_micros(999)));
        assert!(!DeadlineHeader::GRPC.write(&mut headers, Duration::ZERO));
        assert!(headers.is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_and_never_longer(nanos in 1_000_000..=u64::MAX / 60) {
            let time = Duration::from_nanos(nanos);
            for header in [own(), DeadlineHeader::GRPC] {
                let mut headers = HeaderMap::new();
                prop_assert!(header.write(&mut headers, time));
                let told = header.read(&headers).unwrap();
                prop_assert!(told <= time && time - told <= Duration::from_millis(1).max(time / 9_999));
            }
        }

        /// Each process takes some time, and tells of what is left in whichever way.
        #[test]
        fn from_process_to_process_less_is_told_of_and_never_more(
            (secs, nanos) in prop_oneof![(0..100_u64, 0..1_000_000_000_u32), (any::<u64>(), 0..1_000_000_000_u32)],
            hops in prop::collection::vec((any::<bool>(), 0..=2_000_000_u64), 1..8),
        ) {
            let mut left = Duration::new(secs, nanos);
            for (grpc, taken) in hops {
                let header = if grpc { DeadlineHeader::GRPC } else { own() };
                let mut headers = HeaderMap::new();
                if !header.write(&mut headers, left) {
                    prop_assert!(left < Duration::from_millis(1) && headers.is_empty());
                    break;
                }
                let told = header.read(&headers).unwrap();
                let most = left.min(LONGEST);
                prop_assert!(told <= most && most - told <= Duration::from_millis(1).max(left / 9_999));
                left = told.saturating_sub(Duration::from_micros(taken));
            }
        }

        #[test]
        fn garbage_never_panics(value in prop::collection::vec(any::<u8>(), 0..40)) {
            for header in [own(), DeadlineHeader::GRPC] {
                prop_assert!(told(&header, &value).is_none_or(|time| time <= LONGEST));
            }
        }
    }
}
