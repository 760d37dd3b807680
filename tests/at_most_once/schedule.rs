//! From a seed and the number of a call to all that is done to it. A plan depends on nothing else, so that each call
//! can be looked at alone.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request};
use tower_outbound::call::IDEMPOTENCY_KEY;

use crate::{body::CallBody, stacks::StackKind};

/// In which header the number of a call goes to the server.
pub const CALL: HeaderName = HeaderName::from_static("x-call");

/// For how many attempts a plan has an act; every further one is answered. No stack makes more attempts.
pub const ATTEMPTS: usize = 12;

/// What a `ReplayBody` of these calls keeps.
pub const CAP: usize = 1024;

/// What becomes of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Act {
    /// 200 with a body.
    Answer,
    /// Nobody listens.
    Refuse,
    /// The connect gets no answer.
    StallConnect,
    /// The connection is closed before the request is written.
    CloseUnused,
    /// An idle connection had been closed, and the request was written into it: nobody read it, and nobody knows.
    CloseUnread,
    /// Closed when the head, and perhaps a piece of the body, had been read.
    CloseAfterHead,
    /// Reset within the body of the request.
    CloseMidBody,
    /// Closed when the request had been read and carried out.
    CloseAfterRequest,
    /// Reset when the request had been read and carried out.
    ResetAfterRequest,
    /// Carried out, and never answered.
    StallBeforeHead,
    /// Carried out; the connection is closed within the answer.
    CloseMidResponse,
    /// Carried out; the answer stalls in its body.
    StallMidResponse,
    /// 503.
    Unavailable,
    /// 503 with `Retry-After: 0`.
    UnavailableNow,
    /// 503 with `Retry-After: 1`.
    UnavailableSoon,
    /// 429 with `Retry-After: 20`, which is longer than most grant.
    TooManyForLong,
    /// 503 as soon as the head, and perhaps a piece of the body, has been read. The client may go on with the body.
    EarlyUnavailable,
    /// 429.
    TooMany,
    /// 500.
    Broken,
    /// HTTP/2: REFUSED_STREAM.
    RefusedStream,
    /// HTTP/2: the stream is reset when the request had been carried out.
    ResetStream,
    /// HTTP/2: GOAWAY, whose last stream is before this one.
    GoAwayExcluding,
    /// HTTP/2: GOAWAY that includes this stream, which was carried out, and then the end of the connection.
    GoAwayIncluding,
}

impl Act {
    pub const ALL: [Act; 23] = [
        Act::Answer,
        Act::Refuse,
        Act::StallConnect,
        Act::CloseUnused,
        Act::CloseUnread,
        Act::CloseAfterHead,
        Act::CloseMidBody,
        Act::CloseAfterRequest,
        Act::ResetAfterRequest,
        Act::StallBeforeHead,
        Act::CloseMidResponse,
        Act::StallMidResponse,
        Act::Unavailable,
        Act::UnavailableNow,
        Act::UnavailableSoon,
        Act::EarlyUnavailable,
        Act::TooManyForLong,
        Act::TooMany,
        Act::Broken,
        Act::RefusedStream,
        Act::ResetStream,
        Act::GoAwayExcluding,
        Act::GoAwayIncluding,
    ];

    /// Can the client prove that nobody acted on the request?
    pub fn proves_unsent(self) -> bool {
        matches!(
            self,
            Act::Refuse | Act::StallConnect | Act::CloseUnused | Act::RefusedStream | Act::GoAwayExcluding
        )
    }

    /// Is it something that only HTTP/2 knows?
    pub fn is_http2(self) -> bool {
        matches!(
            self,
            Act::RefusedStream | Act::ResetStream | Act::GoAwayExcluding | Act::GoAwayIncluding
        )
    }

    /// The status, and the seconds of `Retry-After`, if the attempt is answered.
    pub fn status(self) -> Option<(u16, Option<u64>)> {
        match self {
            Act::Answer | Act::CloseMidResponse | Act::StallMidResponse => Some((200, None)),
            Act::Unavailable | Act::EarlyUnavailable => Some((503, None)),
            Act::UnavailableNow => Some((503, Some(0))),
            Act::UnavailableSoon => Some((503, Some(1))),
            Act::TooManyForLong => Some((429, Some(20))),
            Act::TooMany => Some((429, None)),
            Act::Broken => Some((500, None)),
            _ => None,
        }
    }

    /// How many pieces of a streamed body the client takes at most. `None`: all.
    pub fn pieces_taken(self) -> Option<usize> {
        match self {
            Act::Refuse | Act::StallConnect | Act::CloseUnused => Some(0),
            Act::CloseAfterHead | Act::RefusedStream => Some(1),
            Act::CloseMidBody | Act::GoAwayExcluding => Some(2),
            _ => None,
        }
    }
}

/// The body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyKind {
    None,
    /// In hand, and `Clone`.
    Full,
    /// A stream in a `ReplayBody`, shorter than the cap.
    Replayed,
    /// The same, longer than the cap.
    BeyondCap,
    /// A stream that is sent at most once.
    Once,
}

impl BodyKind {
    pub const ALL: [BodyKind; 5] = [
        BodyKind::None,
        BodyKind::Full,
        BodyKind::Replayed,
        BodyKind::BeyondCap,
        BodyKind::Once,
    ];

    /// How many pieces there are, and how long each is.
    pub fn pieces(self) -> (usize, usize) {
        match self {
            BodyKind::None => (0, 0),
            BodyKind::Full => (1, 64),
            BodyKind::Replayed | BodyKind::Once => (3, 100),
            BodyKind::BeyondCap => (4, 600),
        }
    }

    pub fn is_stream(self) -> bool {
        matches!(self, BodyKind::Replayed | BodyKind::BeyondCap | BodyKind::Once)
    }
}

/// When the caller leaves before there is an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    Never,
    /// After so many polls. 0: the call is dropped without any.
    AtPoll(u32),
    /// After this time.
    After(Duration),
}

/// What happens to the set of endpoints while the call is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Churn {
    /// One goes, and comes back after this time.
    Leaves(Duration),
    /// A new one comes, and goes after this time.
    Comes(Duration),
    /// All are replaced by others, and after this time by those that were there.
    Replaced(Duration),
    /// There is none for this time.
    Emptied(Duration),
}

/// All that is done to one call.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub call: u64,
    pub method: Method,
    /// With an `Idempotency-Key`?
    pub keyed: bool,
    pub body: BodyKind,
    pub stack: StackKind,
    pub acts: [Act; ATTEMPTS],
    pub cancel: Cancel,
    pub churn: Option<Churn>,
    /// Does the caller read the body of the answer? Otherwise it drops it.
    pub reads_answer: bool,
    /// Where its latencies are drawn from: the number of the call, unless two calls are to have the same.
    pub chance: u64,
}

impl Plan {
    /// The plan of this call under this seed.
    pub fn of(seed: u64, call: u64) -> Plan {
        let mut dice = Dice::new(seed, call, 0);
        let method = METHODS[dice.below(METHODS.len() as u64) as usize].clone();
        let keyed = dice.below(4) == 0;
        let body = match dice.below(10) {
            0..=3 => BodyKind::None,
            4..=6 => BodyKind::Full,
            7 => BodyKind::Replayed,
            8 => BodyKind::BeyondCap,
            _ => BodyKind::Once,
        };
        let stack = StackKind::ALL[dice.below(StackKind::ALL.len() as u64) as usize];
        // The first attempts fail more often than not, or there would be little to see.
        let acts = std::array::from_fn(|_| match dice.below(3) {
            0 => Act::Answer,
            _ => Act::ALL[dice.below(Act::ALL.len() as u64) as usize],
        });
        let cancel = match dice.below(6) {
            0 => Cancel::AtPoll(dice.below(8) as u32),
            1 => Cancel::After(Duration::from_millis(dice.below(120))),
            _ => Cancel::Never,
        };
        let time = Duration::from_millis(1 + dice.below(40));
        let churn = match dice.below(200) {
            0 => Some(Churn::Leaves(time)),
            1 => Some(Churn::Comes(time)),
            2 => Some(Churn::Replaced(time)),
            3 if dice.below(4) == 0 => Some(Churn::Emptied(time)),
            _ => None,
        };
        Plan {
            seed,
            call,
            method,
            keyed,
            body,
            stack,
            acts,
            cancel,
            churn,
            reads_answer: dice.below(4) != 0,
            chance: call,
        }
    }

    /// What becomes of this attempt, the first of which is 0.
    pub fn act(&self, attempt: usize) -> Act {
        self.acts.get(attempt).copied().unwrap_or(Act::Answer)
    }

    /// How long this step of this attempt takes: most take no time, some up to 50 ms.
    pub fn latency(&self, attempt: usize, step: u64) -> Duration {
        let mut dice = Dice::new(self.seed ^ 0x6c61, self.chance, attempt as u64 * 16 + step);
        match dice.below(3) {
            0 => Duration::from_millis(1 + dice.below(50)),
            _ => Duration::ZERO,
        }
    }

    /// May it be sent again whoever has seen it: GET, HEAD, OPTIONS, TRACE, or with a key?
    pub fn is_repeatable(&self) -> bool {
        self.is_safe() || self.keyed
    }

    pub fn is_safe(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE")
    }

    /// The value of its `Idempotency-Key`.
    pub fn key(&self) -> Option<String> {
        self.keyed.then(|| format!("key-{}-{}", self.seed, self.call))
    }

    /// All bytes of its body.
    pub fn bytes(&self) -> Bytes {
        let (pieces, length) = self.body.pieces();
        let mut dice = Dice::new(self.seed ^ 0x626f, self.call, 1);
        let mut bytes = Vec::with_capacity(pieces * length + 8);
        while bytes.len() < pieces * length {
            bytes.extend_from_slice(&dice.next().to_le_bytes());
        }
        bytes.truncate(pieces * length);
        bytes.into()
    }

    /// The request, for a path: the balancer adds the endpoint.
    pub fn request(&self) -> Request<CallBody> {
        let mut request = Request::new(CallBody::new(self.body, self.bytes()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = http::Uri::from_static("/at-most-once");
        request.headers_mut().insert(CALL, self.call.into());
        if let Some(key) = self.key() {
            let key = key.try_into().unwrap();
            request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        }
        request
    }
}

static METHODS: std::sync::LazyLock<Vec<Method>> = std::sync::LazyLock::new(|| {
    let lock = Method::from_bytes(b"LOCK").unwrap();
    vec![
        Method::GET,
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::POST,
        Method::POST,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        lock,
    ]
});

/// Numbers that look like chance, from the place where they are drawn (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, call: u64, of: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for part in [call, of] {
            dice.0 = dice.next() ^ part.wrapping_mul(0xd134_2543_de82_ef95);
        }
        dice
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 to below this.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// A hash of bytes that can be fed piece by piece (FNV-1a).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Hash {
    pub fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn of(bytes: &[u8]) -> Hash {
        let mut hash = Hash::new();
        hash.feed(bytes);
        hash
    }
}
