//! `Retry-After`, as each policy reads it: any value is read or passed over, and what is read is what was asked.

#![no_main]

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};
use libfuzzer_sys::fuzz_target;
use tower_outbound::{call::retry_after, classify::StatusPolicy};

fuzz_target!(|data: &[u8]| {
    let Ok(value) = HeaderValue::from_bytes(data) else {
        return;
    };
    let wait = retry_after::parse(&value, || SystemTime::UNIX_EPOCH);
    if let Some(seconds) = std::str::from_utf8(data)
        .ok()
        .and_then(|text| text.parse::<u64>().ok())
    {
        // Rust reads a plus as well.
        let signed = data.starts_with(b"+");
        assert_eq!(wait, (!signed).then(|| Duration::from_secs(seconds)));
    }
    if value.to_str().is_err() {
        assert_eq!(wait, None);
    }
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, value);
    let of = |policy: StatusPolicy| policy.retry_after(StatusCode::SERVICE_UNAVAILABLE, &headers);
    let (by_default, by_feign) = (of(StatusPolicy::default()), of(StatusPolicy::feign()));
    assert_eq!(by_default.is_some(), wait.is_some());
    // Feign reads some dates that others do not, but no other numbers.
    if data.iter().all(u8::is_ascii_digit) {
        assert_eq!(by_feign, by_default);
    }
});
