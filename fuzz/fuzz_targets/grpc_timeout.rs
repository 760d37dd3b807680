//! `grpc-timeout`: any value is a time or none, and a time that is written is read as no more than it was.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tower_outbound::call::grpc_timeout;

fuzz_target!(|data: &[u8]| {
    if let Some(time) = grpc_timeout::parse(data) {
        assert!((2..=9).contains(&data.len()));
        if let Some(text) = grpc_timeout::format(time) {
            assert_eq!(grpc_timeout::parse(text.as_bytes()), Some(time));
        }
    }
    if let Ok(bytes) = <[u8; 8]>::try_from(data) {
        let time = Duration::from_nanos(u64::from_le_bytes(bytes));
        if let Some(text) = grpc_timeout::format(time) {
            let read = grpc_timeout::parse(text.as_bytes());
            assert!(
                read.is_some_and(|read| read <= time),
                "{time:?} as {text:?} is {read:?}"
            );
        }
    }
});
