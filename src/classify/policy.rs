//! What each status counts as.

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header::RETRY_AFTER};

use super::verdicts::Verdicts;
use crate::call::{Classify, ErrorRef, LateVerdict, StatusSet, Verdict, retry_after};

/// What each status counts as, and which `Retry-After` is understood.
///
/// Given to a [`StatusErrorClassifierLayer`](super::StatusErrorClassifierLayer) it turns every answer but a
/// [`Success`](Verdict::Success) into an error. It is also a [`Classify`] itself, for a layer that is to give
/// verdicts on answers which stay answers: a circuit breaker without a classifier below it. The two never disagree,
/// as an error that was given its verdict keeps it.
///
/// The presets are tabled in the [module](super). Cloning is cheap: it allocates nothing, and no reference is
/// counted unless more than eight single statuses were set.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_outbound::{
///     call::{Classify, Verdict},
///     classify::StatusPolicy,
/// };
///
/// let policy = StatusPolicy::default()
///     .success(StatusCode::NOT_FOUND) // "no such order" is an answer
///     .failure(StatusCode::CONFLICT);
/// assert_eq!(policy.verdict(StatusCode::NOT_FOUND), Verdict::Success);
///
/// let answer = Response::builder().status(409).body(())?;
/// assert_eq!(policy.classify(Ok(&answer)), Verdict::Failure);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusPolicy {
    verdicts: Verdicts,
    waits: Waits,
}

/// Which `Retry-After` is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// All that RFC 9110 allows, fractions too, on every error.
    Http,
    /// What Feign's `RetryAfterDecoder` reads, on failures alone: what is ignored comes from an error decoder of the
    /// user's own there, which reads none.
    Feign,
}

impl Default for StatusPolicy {
    /// 5xx, 408 and 429 are failures, other 4xx are ignored, all below 400 are successes.
    ///
    /// 408 and 429 tell of the server's state and not of the request; the other 4xx are the caller's fault. A status
    /// of 600 or more counts as a 5xx (RFC 9110, section 15). All of [`StatusSet::TRANSIENT`] are failures.
    ///
    /// `Retry-After` is read on every error, as [`retry_after::from_headers`] does.
    ///
    /// [`StatusSet::TRANSIENT`]: crate::call::StatusSet::TRANSIENT
    fn default() -> Self {
        use Verdict::{Failure, Ignored, Success};
        StatusPolicy {
            verdicts: Verdicts::by_class([Success, Success, Success, Ignored, Failure], Failure),
            waits: Waits::Http,
        }
        .failure(StatusCode::REQUEST_TIMEOUT)
        .failure(StatusCode::TOO_MANY_REQUESTS)
    }
}

impl StatusPolicy {
    /// As Feign's default error decoder (feign 9.5.0, `ErrorDecoder.Default`): all but 2xx is a failure.
    ///
    /// `Retry-After` is read as Feign reads it: digits alone are seconds, and of the dates the first form of RFC
    /// 9110, section 5.6.7, is understood (`Sun, 06 Nov 1994 08:49:37 GMT`; a day of one digit will do, and what
    /// follows `GMT` does not matter). Fractions and everything else are as if the header were not there.
    ///
    /// Three things differ: the date is read in GMT, where Feign reads it in the zone of the machine; a number too
    /// large is the longest duration, where Feign fails; and a date whose day of the week is wrong is none.
    pub fn feign() -> Self {
        use Verdict::{Failure, Success};
        StatusPolicy {
            verdicts: Verdicts::by_class([Failure, Success, Failure, Failure, Failure], Failure),
            waits: Waits::Feign,
        }
    }

    /// As the error decoder that most Feign users write: all 4xx are ignored, and so do not open a circuit; the rest
    /// is as in [`feign`](StatusPolicy::feign).
    ///
    /// All means 408 and 429 as well; `Retry-After` is not read on any of them.
    pub fn client_errors_ignored() -> Self {
        use Verdict::{Failure, Ignored, Success};
        StatusPolicy {
            verdicts: Verdicts::by_class([Failure, Success, Failure, Ignored, Failure], Failure),
            waits: Waits::Feign,
        }
    }

    /// No status is an error: each answer stays one, as with Feign's return type `Response`.
    pub fn answers() -> Self {
        StatusPolicy {
            verdicts: Verdicts::by_class([Verdict::Success; 5], Verdict::Success),
            waits: Waits::Feign,
        }
    }

    /// As Feign's `decode404`: a 404 is a success, whether it has a `Retry-After` or not.
    ///
    /// It is the same as `.success(StatusCode::NOT_FOUND)`.
    #[must_use]
    pub fn decode_404(self) -> Self {
        self.success(StatusCode::NOT_FOUND)
    }

    /// This status is a success: such an answer stays an answer.
    #[must_use]
    pub fn success(self, status: StatusCode) -> Self {
        self.with([status], Verdict::Success)
    }

    /// This status is a failure of the server: such an answer becomes an error, and counts.
    #[must_use]
    pub fn failure(self, status: StatusCode) -> Self {
        self.with([status], Verdict::Failure)
    }

    /// This status is the caller's fault, or nobody's: such an answer becomes an error, and never counts.
    #[must_use]
    pub fn ignored(self, status: StatusCode) -> Self {
        self.with([status], Verdict::Ignored)
    }

    /// All these statuses have this verdict. Of several words on a status the last one counts.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_outbound::{call::Verdict, classify::StatusPolicy};
    ///
    /// let redirects = (300..400).flat_map(StatusCode::from_u16);
    /// let policy = StatusPolicy::default()
    ///     .with(redirects, Verdict::Failure)
    ///     .success(StatusCode::NOT_MODIFIED);
    /// assert_eq!(policy.verdict(StatusCode::FOUND), Verdict::Failure);
    /// assert_eq!(policy.verdict(StatusCode::NOT_MODIFIED), Verdict::Success);
    /// ```
    #[must_use]
    pub fn with(mut self, statuses: impl IntoIterator<Item = StatusCode>, verdict: Verdict) -> Self {
        self.verdicts.set(statuses, verdict);
        self
    }

    /// What this status counts as.
    #[inline]
    pub fn verdict(&self, status: StatusCode) -> Verdict {
        self.verdicts.of(status)
    }

    /// How long an answer with this status and these headers asks to be left alone, as far as this policy reads it.
    pub fn retry_after(&self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        match (self.waits, self.verdict(status)) {
            (_, Verdict::Success) | (Waits::Feign, Verdict::Ignored) => None,
            (Waits::Http, _) => retry_after::from_headers(headers),
            (Waits::Feign, Verdict::Failure) => {
                let value = feign_form(headers.get(RETRY_AFTER)?)?;
                retry_after::parse(&value, retry_after::wall_clock)
            }
        }
    }
}

/// The value, if Feign would read it, in the form that everyone reads.
fn feign_form(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.clone());
    }
    let (weekday, rest) = text.split_once(", ")?;
    let (day, rest) = rest.split_once(' ')?;
    let (month_and_time, _) = rest.split_once(" GMT")?;
    // The other form that names a month has the weekday in full.
    if weekday.len() != 3 {
        return None;
    }
    HeaderValue::from_str(&format!("{weekday}, {day:0>2} {month_and_time} GMT")).ok()
}

/// Which statuses are errors: `failures 408, 429, 500-999; ignored 400-407, ...`.
impl fmt::Display for StatusPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |verdict| -> StatusSet {
            let statuses = (100..1000).filter_map(|code| StatusCode::from_u16(code).ok());
            statuses
                .filter(|status| self.verdict(*status) == verdict)
                .collect()
        };
        let (failures, ignored) = (with(Verdict::Failure), with(Verdict::Ignored));
        match (failures.is_empty(), ignored.is_empty()) {
            (true, true) => f.write_str("none"),
            (false, true) => write!(f, "failures {failures}"),
            (true, false) => write!(f, "ignored {ignored}"),
            (false, false) => write!(f, "failures {failures}; ignored {ignored}"),
        }
    }
}

impl<B> Classify<Response<B>> for StatusPolicy {
    #[inline]
    fn classify(&self, outcome: Result<&Response<B>, ErrorRef<'_>>) -> Verdict {
        match outcome {
            Ok(response) => self.verdict(response.status()),
            Err(error) => Verdict::of(error),
        }
    }

    #[inline]
    fn late(&self, answer: &Response<B>) -> Option<LateVerdict> {
        let late = LateVerdict::on(answer.extensions())?;
        (self.verdict(answer.status()) == Verdict::Success).then(|| late.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn wait(policy: &StatusPolicy, status: u16, value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.append(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
        headers.append(RETRY_AFTER, HeaderValue::from_static("77"));
        policy.retry_after(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn seconds_are_read_by_all_presets_and_fractions_by_the_default_alone() {
        let (plain, feign) = (StatusPolicy::default(), StatusPolicy::feign());
        let secs = |policy: &StatusPolicy, value: &str| wait(policy, 503, value).map(|wait| wait.as_secs());
        for (value, by_default, by_feign) in [
            ("0", Some(0), Some(0)),
            ("2", Some(2), Some(2)),
            (" 2 ", Some(2), Some(2)),
            ("1.5", Some(2), None),
            ("2.", Some(2), None),
            ("99999999999999999999", Some(u64::MAX), Some(u64::MAX)),
            ("-1", None, None),
            ("+1", None, None),
            ("soon", None, None),
            ("", None, None),
            ("2 s", None, None),
            ("GMT", None, None),
            (", 1 GMT", None, None),
        ] {
            assert_eq!(secs(&plain, value), by_default, "default: {value:?}");
            assert_eq!(secs(&feign, value), by_feign, "feign: {value:?}");
        }
    }

    #[test]
    fn feign_reads_one_form_of_date_and_the_default_all_three() {
        let (plain, feign) = (StatusPolicy::default(), StatusPolicy::feign());
        let past = Some(Duration::ZERO);
        for (value, by_default, by_feign) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", past, past),
            ("Sun, 6 Nov 1994 08:49:37 GMT", None, past),
            ("Sun, 06 Nov 1994 08:49:37 GMT and more", None, past),
            ("Sun, 06 Nov 1994 08:49:37 CET", None, None),
            ("Mon, 06 Nov 1994 08:49:37 GMT", None, None),
            ("Sun, 06 Nov 1994 08:49:37 +0000", None, None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", past, None),
            ("Sun Nov  6 08:49:37 1994", past, None),
        ] {
            assert_eq!(wait(&plain, 503, value), by_default, "default: {value:?}");
            assert_eq!(wait(&feign, 503, value), by_feign, "feign: {value:?}");
        }
    }

    #[test]
    fn it_says_which_statuses_are_errors() {
        let said = |policy: StatusPolicy| policy.to_string();
        assert_eq!(
            said(StatusPolicy::default()),
            "failures 408, 429, 500-999; ignored 400-407, 409-428, 430-499"
        );
        assert_eq!(said(StatusPolicy::feign()), "failures 100-199, 300-999");
        assert_eq!(said(StatusPolicy::answers()), "none");
        let missing = StatusPolicy::answers().ignored(StatusCode::NOT_FOUND);
        assert_eq!(said(missing), "ignored 404");
    }

    #[test]
    fn with_answers_no_status_is_an_error() {
        let policy = StatusPolicy::answers();
        for code in [100, 200, 304, 404, 503, 999] {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(policy.verdict(status), Verdict::Success, "{code}");
            assert_eq!(wait(&policy, code, "1"), None, "{code}");
        }
    }

    #[test]
    fn a_date_to_come_is_read_in_gmt() {
        #[expect(
            clippy::disallowed_methods,
            reason = "a date to come is later than the wall clock"
        )]
        let soon = SystemTime::now() + Duration::from_secs(60);
        let value = httpdate::fmt_http_date(soon);
        for policy in [StatusPolicy::default(), StatusPolicy::feign()] {
            let wait = wait(&policy, 503, &value).unwrap().as_secs();
            assert!((50..=60).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn where_retry_after_is_read_depends_on_the_preset() {
        let two = Some(Duration::from_secs(2));
        for (policy, status, expected) in [
            (StatusPolicy::default(), 503, two),
            (StatusPolicy::default(), 429, two),
            (StatusPolicy::default(), 404, two),
            (StatusPolicy::default(), 301, None),
            (StatusPolicy::default(), 200, None),
            (StatusPolicy::feign(), 301, two),
            (StatusPolicy::feign(), 400, two),
            (StatusPolicy::feign(), 404, two),
            (StatusPolicy::feign(), 500, two),
            (StatusPolicy::feign().decode_404(), 404, None),
            (StatusPolicy::feign(), 200, None),
            (StatusPolicy::client_errors_ignored(), 429, None),
            (StatusPolicy::client_errors_ignored(), 503, two),
        ] {
            assert_eq!(wait(&policy, status, "2"), expected, "{status} {policy:?}");
        }
    }

    #[test]
    fn only_the_first_retry_after_counts() {
        assert_eq!(wait(&StatusPolicy::default(), 503, "soon"), None);
        assert_eq!(wait(&StatusPolicy::feign(), 503, "soon"), None);
    }
}
