//! Sets of status codes, and the table of transient ones.

use std::fmt;

use http::StatusCode;

const WORDS: usize = 1000_usize.div_ceil(64);

/// A set of status codes. Copying it allocates nothing; asking it is one look at one bit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StatusSet {
    bits: [u64; WORDS],
}

impl StatusSet {
    /// No status at all.
    pub const EMPTY: StatusSet = StatusSet { bits: [0; WORDS] };

    /// Statuses that say "not now" and not "no": 408, 429, 502, 503 and 504.
    ///
    /// 500 is not among them: it tells of a fault in the server's handling of this very request, which tends to
    /// come back.
    pub const TRANSIENT: StatusSet = StatusSet::EMPTY
        .with(StatusCode::REQUEST_TIMEOUT)
        .with(StatusCode::TOO_MANY_REQUESTS)
        .with(StatusCode::BAD_GATEWAY)
        .with(StatusCode::SERVICE_UNAVAILABLE)
        .with(StatusCode::GATEWAY_TIMEOUT);

    /// The same set and this status.
    #[must_use]
    pub const fn with(mut self, status: StatusCode) -> Self {
        let code = status.as_u16() as usize;
        self.bits[code / 64] |= 1 << (code % 64);
        self
    }

    /// The same set without this status.
    #[must_use]
    pub const fn without(mut self, status: StatusCode) -> Self {
        let code = status.as_u16() as usize;
        self.bits[code / 64] &= !(1 << (code % 64));
        self
    }

    /// Is this status in the set?
    #[inline]
    pub const fn contains(&self, status: StatusCode) -> bool {
        let code = status.as_u16() as usize;
        self.bits[code / 64] & (1 << (code % 64)) != 0
    }

    /// Is there no status in the set?
    pub const fn is_empty(&self) -> bool {
        let mut word = 0;
        while word < WORDS {
            if self.bits[word] != 0 {
                return false;
            }
            word += 1;
        }
        true
    }

    /// The statuses of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = StatusCode> + '_ {
        (100..1000)
            .filter_map(|code| StatusCode::from_u16(code).ok())
            .filter(|status| self.contains(*status))
    }
}

impl FromIterator<StatusCode> for StatusSet {
    fn from_iter<I: IntoIterator<Item = StatusCode>>(statuses: I) -> Self {
        statuses.into_iter().fold(StatusSet::EMPTY, StatusSet::with)
    }
}

/// In spans: `408, 429, 502-504`.
impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut statuses = self.iter().map(|status| status.as_u16()).peekable();
        let mut comma = "";
        while let Some(first) = statuses.next() {
            let mut last = first;
            while let Some(next) = statuses.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ", ";
        }
        Ok(())
    }
}

impl fmt::Debug for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|status| status.as_u16()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_spans() {
        assert_eq!(StatusSet::TRANSIENT.to_string(), "408, 429, 502-504");
        assert_eq!(StatusSet::EMPTY.to_string(), "");
        let ends = [100, 101, 998, 999].map(|code| StatusCode::from_u16(code).unwrap());
        assert_eq!(
            ends.into_iter().collect::<StatusSet>().to_string(),
            "100-101, 998-999"
        );
    }

    #[test]
    fn the_transient_statuses_are_408_429_502_503_and_504() {
        let codes: Vec<_> = StatusSet::TRANSIENT
            .iter()
            .map(|status| status.as_u16())
            .collect();
        assert_eq!(codes, [408, 429, 502, 503, 504]);
    }

    #[test]
    fn the_first_and_the_last_code_can_be_put_in_and_taken_out() {
        let (first, last) = (
            StatusCode::from_u16(100).unwrap(),
            StatusCode::from_u16(999).unwrap(),
        );
        let both: StatusSet = [first, last].into_iter().collect();
        assert!(both.contains(first) && both.contains(last) && !both.contains(StatusCode::OK));
        assert!(both.without(first).without(last).is_empty());
        assert_eq!(format!("{both:?}"), "{100, 999}");
    }
}
