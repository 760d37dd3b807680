//! How gRPC tells its status: `grpc-status` and `grpc-message`, in the headers of an answer or in its trailers.

use std::fmt;

use http::{HeaderMap, HeaderValue};

use super::verdict::Verdict;

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// How many bytes of a message are kept.
pub const MOST_OF_A_MESSAGE: usize = 4 * 1024;

/// A status code of gRPC.
///
/// There are 17 of them. Whatever else a server may send counts as [`Unknown`](GrpcCode::Unknown), as gRPC has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are gRPC's, and the table of verdicts explains them"
)]
pub enum GrpcCode {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl GrpcCode {
    /// All of them, each in the place of its number.
    pub const ALL: [GrpcCode; 17] = {
        use GrpcCode::*;
        [
            Ok,
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ]
    };

    /// The code with this number; [`Unknown`](GrpcCode::Unknown) if there is none.
    pub fn from_number(number: i32) -> GrpcCode {
        usize::try_from(number)
            .ok()
            .and_then(|place| GrpcCode::ALL.get(place).copied())
            .unwrap_or(GrpcCode::Unknown)
    }

    /// The number that goes over the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The code that these headers or trailers tell. `None`: they tell none.
    ///
    /// A value that is no number, or not one of gRPC's, is [`Unknown`](GrpcCode::Unknown). Of several lines the first
    /// counts.
    pub fn from_headers(headers: &HeaderMap) -> Option<GrpcCode> {
        headers.get(STATUS).map(GrpcCode::parse)
    }

    /// The code in a value of `grpc-status`: decimal digits, without a sign and without leading zeros.
    pub fn parse(value: &HeaderValue) -> GrpcCode {
        match *value.as_bytes() {
            [ones @ b'0'..=b'9'] => GrpcCode::from_number(i32::from(ones - b'0')),
            [b'1', ones @ b'0'..=b'6'] => GrpcCode::from_number(10 + i32::from(ones - b'0')),
            _ => GrpcCode::Unknown,
        }
    }

    /// What a call that ends so counts as, unless somebody says otherwise.
    ///
    /// A failure is what tells of the server: that it broke (`INTERNAL`, `UNKNOWN`, `DATA_LOSS`), cannot be reached
    /// (`UNAVAILABLE`), has too much to do (`RESOURCE_EXHAUSTED`) or took too long (`DEADLINE_EXCEEDED`). All else tells
    /// of the request, of who sent it or of the state that it met, and is ignored. So is `UNIMPLEMENTED`: servers send
    /// it for a method that they do not have, as an HTTP server would send 404.
    ///
    /// Source of what the codes mean: gRPC's guide on status codes, and its list of those that the libraries
    /// themselves make (`doc/statuscodes.md` in grpc/grpc).
    pub const fn verdict(self) -> Verdict {
        match self {
            GrpcCode::Ok => Verdict::Success,
            GrpcCode::Unknown
            | GrpcCode::DeadlineExceeded
            | GrpcCode::ResourceExhausted
            | GrpcCode::Internal
            | GrpcCode::Unavailable
            | GrpcCode::DataLoss => Verdict::Failure,
            GrpcCode::Cancelled
            | GrpcCode::InvalidArgument
            | GrpcCode::NotFound
            | GrpcCode::AlreadyExists
            | GrpcCode::PermissionDenied
            | GrpcCode::FailedPrecondition
            | GrpcCode::Aborted
            | GrpcCode::OutOfRange
            | GrpcCode::Unimplemented
            | GrpcCode::Unauthenticated => Verdict::Ignored,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            GrpcCode::Ok => "OK",
            GrpcCode::Cancelled => "CANCELLED",
            GrpcCode::Unknown => "UNKNOWN",
            GrpcCode::InvalidArgument => "INVALID_ARGUMENT",
            GrpcCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            GrpcCode::NotFound => "NOT_FOUND",
            GrpcCode::AlreadyExists => "ALREADY_EXISTS",
            GrpcCode::PermissionDenied => "PERMISSION_DENIED",
            GrpcCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            GrpcCode::FailedPrecondition => "FAILED_PRECONDITION",
            GrpcCode::Aborted => "ABORTED",
            GrpcCode::OutOfRange => "OUT_OF_RANGE",
            GrpcCode::Unimplemented => "UNIMPLEMENTED",
            GrpcCode::Internal => "INTERNAL",
            GrpcCode::Unavailable => "UNAVAILABLE",
            GrpcCode::DataLoss => "DATA_LOSS",
            GrpcCode::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// As gRPC writes it: `UNAVAILABLE`.
impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The message in these headers or trailers, empty if there is none. See [`message`].
pub(crate) fn message_in(headers: &HeaderMap) -> String {
    headers.get(MESSAGE).map(message).unwrap_or_default()
}

/// The text in a value of `grpc-message`: percent-encoded UTF-8.
///
/// As gRPC asks of those who read it, nothing is an error: what is not percent-encoded right stays as it is, and bytes
/// that are not UTF-8 become replacement characters. At most [`MOST_OF_A_MESSAGE`] bytes are kept.
pub fn message(value: &HeaderValue) -> String {
    let mut rest = value.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len().min(MOST_OF_A_MESSAGE));
    while bytes.len() < MOST_OF_A_MESSAGE {
        let (byte, after) = match *rest {
            [b'%', high, low, ..] => match (hex(high), hex(low)) {
                (Some(high), Some(low)) => (high << 4 | low, &rest[3..]),
                _ => (b'%', &rest[1..]),
            },
            [byte, ..] => (byte, &rest[1..]),
            [] => break,
        };
        bytes.push(byte);
        rest = after;
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    // A replacement is longer than what it replaces.
    let mut end = text.len().min(MOST_OF_A_MESSAGE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

fn hex(digit: u8) -> Option<u8> {
    // The digit is below 16.
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(bytes: &[u8]) -> HeaderValue {
        HeaderValue::from_bytes(bytes).unwrap()
    }

    /// Bytes that a header may have.
    fn anything() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'%'), Just(b'e'), Just(b'2'), 32..=126_u8, 128..=255_u8];
        prop::collection::vec(byte, 0..200)
    }

    /// As gRPC has those do it who send a message.
    fn encode(text: &str) -> Vec<u8> {
        let encoded = |byte: u8| match byte {
            b' '..=b'~' if byte != b'%' => vec![byte],
            _ => format!("%{byte:02X}").into_bytes(),
        };
        text.bytes().flat_map(encoded).collect()
    }

    proptest! {
        #[test]
        fn any_status_is_a_code_and_only_what_is_written_right_is_not_unknown(bytes in anything()) {
            let code = GrpcCode::parse(&value(&bytes));
            let right = code.number().to_string().into_bytes() == bytes;
            prop_assert!(right || code == GrpcCode::Unknown);
        }

        #[test]
        fn any_message_is_read_and_bounded(bytes in anything(), times in 1_usize..40) {
            let text = message(&value(&bytes.repeat(times)));
            prop_assert!(text.len() <= MOST_OF_A_MESSAGE);
        }

        #[test]
        fn a_message_comes_out_as_it_went_in(text in any::<String>()) {
            prop_assert_eq!(message(&value(&encode(&text))), text);
        }
    }

    #[test]
    fn each_code_is_read_by_its_number() {
        for (number, code) in (0..).zip(GrpcCode::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(GrpcCode::from_number(number), code);
            assert_eq!(GrpcCode::parse(&value(number.to_string().as_bytes())), code);
        }
        for number in [-1, 17, i32::MAX, i32::MIN] {
            assert_eq!(GrpcCode::from_number(number), GrpcCode::Unknown);
        }
        for text in ["", " 0", "00", "014", "+1", "-1", "17", "1x", "OK", "4294967296"] {
            assert_eq!(
                GrpcCode::parse(&value(text.as_bytes())),
                GrpcCode::Unknown,
                "{text:?}"
            );
        }
        assert_eq!(GrpcCode::DeadlineExceeded.to_string(), "DEADLINE_EXCEEDED");
    }

    #[test]
    fn what_is_encoded_wrong_stays_as_it_is() {
        for (bytes, text) in [
            (&b"100%"[..], "100%"),
            (b"100%2", "100%2"),
            (b"%zz%41", "%zzA"),
            (b"%%41", "%A"),
            (b"%c3%A4", "\u{e4}"),
            (b"%ff!", "\u{fffd}!"),
            (b"\xc3\xa4", "\u{e4}"),
        ] {
            assert_eq!(message(&value(bytes)), text);
        }
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let long = message(&value(&encode(&"\u{20ac}".repeat(2_000))));
        assert_eq!(long.len(), MOST_OF_A_MESSAGE - 1 - 3 + 3, "{}", long.len());
    }

    #[test]
    fn headers_without_a_status_tell_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(GrpcCode::from_headers(&headers), None);
        assert_eq!(message_in(&headers), "");
        headers.append(STATUS, HeaderValue::from_static("14"));
        headers.append(STATUS, HeaderValue::from_static("0"));
        headers.append(MESSAGE, HeaderValue::from_static("down%20for%20repair"));
        assert_eq!(GrpcCode::from_headers(&headers), Some(GrpcCode::Unavailable));
        assert_eq!(message_in(&headers), "down for repair");
    }
}
