//! `grpc-status` and `grpc-message`: any value is read, a code is what is written there, and a message is bounded.

#![no_main]

use http::HeaderValue;
use libfuzzer_sys::fuzz_target;
use tower_outbound::call::{
    GrpcCode,
    grpc::{MOST_OF_A_MESSAGE, message},
};

fuzz_target!(|data: &[u8]| {
    let Ok(value) = HeaderValue::from_bytes(data) else {
        return;
    };
    let code = GrpcCode::parse(&value);
    assert!(code.number().to_string().as_bytes() == data || code == GrpcCode::Unknown);

    let text = message(&value);
    assert!(text.len() <= MOST_OF_A_MESSAGE);
    if data.len() <= MOST_OF_A_MESSAGE && data.is_ascii() && !data.contains(&b'%') {
        assert_eq!(text.as_bytes(), data);
    }

    // And there and back, as gRPC has a server write it.
    let encoded: String = text
        .bytes()
        .map(|byte| match byte {
            b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    let value = HeaderValue::from_str(&encoded).expect("it is ASCII that can be seen");
    assert_eq!(message(&value), text);
});
