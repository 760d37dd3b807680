//! The frames of HTTP/2 on a connection, as far as they tell which streams the server has left alone.
//!
//! A GOAWAY names the last stream that the server may act on (RFC 9113, section 6.8). That a request's stream is beyond
//! it cannot be read off its error: hyper gives the error of the connection to a request whose stream it has opened
//! just before, too, and that one the server may have taken. The frames tell: where the last stream that is not left
//! alone was opened before an attempt began, the stream of that attempt is beyond it.

use std::collections::VecDeque;

/// What each HTTP/2 connection begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

/// The flag of the last frame of a block of fields.
const END_HEADERS: u8 = 4;

/// The shortest GOAWAY there is. An h2 client ends the connection by itself on a shorter one.
const GOAWAY_LENGTH: usize = 8;

/// The head of a frame, and the first field of a GOAWAY.
const HEAD: usize = 9;
const HEAD_AND_LAST: usize = HEAD + 4;

/// How many of the streams opened last are remembered. Of older ones it is held that they were opened with the oldest of
/// these, which can only make a proof fail.
const REMEMBERED: usize = 256;

/// Which protocol a connection speaks, by the first bytes that are written to it.
#[derive(Debug)]
pub(super) enum Protocol {
    /// So many bytes of the preface have been seen, and nothing else.
    Unknown(usize),
    Http2(Box<Streams>),
    Other,
}

impl Protocol {
    pub(super) fn new() -> Self {
        Protocol::Unknown(0)
    }

    /// The streams, if it speaks HTTP/2.
    #[inline]
    pub(super) fn streams(&mut self) -> Option<&mut Streams> {
        match self {
            Protocol::Http2(streams) => Some(streams),
            Protocol::Unknown(_) | Protocol::Other => None,
        }
    }

    /// These bytes were written at this time.
    #[inline]
    pub(super) fn written(&mut self, bytes: &[u8], now: u64) {
        match self {
            Protocol::Other => {}
            Protocol::Unknown(_) | Protocol::Http2(_) => self.follow(bytes, now),
        }
    }

    fn follow(&mut self, mut bytes: &[u8], now: u64) {
        if let Protocol::Unknown(seen) = self {
            let rest = &PREFACE[*seen..];
            let part = rest.len().min(bytes.len());
            if rest[..part] != bytes[..part] {
                *self = Protocol::Other;
                return;
            }
            *seen += part;
            bytes = &bytes[part..];
            if *seen < PREFACE.len() {
                return;
            }
            *self = Protocol::Http2(Box::default());
        }
        if let Protocol::Http2(streams) = self {
            streams.written(bytes, now);
        }
    }
}

/// The streams of a connection, opened by this side alone.
#[derive(Debug, Default)]
pub(super) struct Streams {
    outbound: Frames,
    inbound: Frames,
    /// Numbers of streams and when they were opened, in the order of both.
    opened: VecDeque<(u32, u64)>,
    /// The number of the latest one.
    latest: u32,
    /// Have some been forgotten?
    forgotten: bool,
}

/// What a GOAWAY says of the streams of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftAlone {
    /// It tells nothing: a stream that is not written yet may be one that the server will act on.
    Unknown,
    /// All.
    All,
    /// Those opened after this time.
    After(u64),
}

impl Streams {
    fn written(&mut self, bytes: &[u8], now: u64) {
        let Streams {
            outbound,
            opened,
            latest,
            forgotten,
            ..
        } = self;
        outbound.follow(bytes, |frame| {
            // Trailers come in such a frame as well; their stream has been opened.
            if let Frame::Headers(stream) = frame {
                if stream > *latest {
                    *latest = stream;
                    if opened.len() == REMEMBERED {
                        opened.pop_front();
                        *forgotten = true;
                    }
                    opened.push_back((stream, now));
                }
            }
        });
    }

    /// These bytes were read. Of several GOAWAYs the last one counts.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<LeftAlone> {
        let mut last = None;
        self.inbound.follow(bytes, |frame| {
            if let Frame::GoAway(stream) = frame {
                last = Some(stream);
            }
        });
        last.map(|last| self.left_alone(last))
    }

    fn left_alone(&self, last: u32) -> LeftAlone {
        // Requests may wait to be written. Only where the last stream is one that has been are theirs beyond it. A server
        // that shuts down gently names the highest there is first.
        if last > self.latest {
            return LeftAlone::Unknown;
        }
        let included = self.opened.iter().rev().find(|(stream, _)| *stream <= last);
        match (included, self.opened.front()) {
            (Some((_, opened)), _) => LeftAlone::After(*opened),
            (None, Some((_, oldest))) if self.forgotten && last > 0 => LeftAlone::After(*oldest),
            (None, _) => LeftAlone::All,
        }
    }
}

/// A frame that is of interest.
enum Frame {
    /// Of this stream.
    Headers(u32),
    /// With this last stream.
    GoAway(u32),
}

/// One direction of a connection, cut into frames as its bytes come.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; HEAD_AND_LAST],
    filled: usize,
    /// What is left of the payload of the frame whose head was read.
    rest: usize,
    /// Is a block of fields under way? Only more of it may come until its end.
    in_block: bool,
}

impl Frames {
    fn follow(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let wanted = if self.filled < HEAD { HEAD } else { HEAD_AND_LAST };
            let part = (wanted - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
            self.filled += part;
            bytes = &bytes[part..];
            if self.filled == wanted {
                self.head_is_read(&mut found);
            }
        }
    }

    fn head_is_read(&mut self, found: &mut impl FnMut(Frame)) {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3, last @ ..] = self.head;
        let stream = number([s0, s1, s2, s3]);
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let field = HEAD_AND_LAST - HEAD;
        if self.filled == HEAD_AND_LAST {
            found(Frame::GoAway(number(last)));
            self.rest = length - field;
        } else if kind == GOAWAY && length >= GOAWAY_LENGTH && stream == 0 && !self.in_block {
            // Its last stream is still to be read. One that is not as it has to be proves nothing.
            return;
        } else {
            if kind == HEADERS {
                found(Frame::Headers(stream));
            }
            if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
                self.in_block = flags & END_HEADERS == 0;
            }
            self.rest = length;
        }
        self.filled = 0;
    }
}

/// The highest bit is reserved.
fn number(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & (u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        flagged(kind, END_HEADERS, stream, payload)
    }

    fn flagged(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn headers(stream: u32) -> Vec<u8> {
        frame(HEADERS, stream, b"fields")
    }

    fn go_away(last: u32) -> Vec<u8> {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend([0; 4]);
        payload.extend(b"a reason");
        frame(GOAWAY, 0, &payload)
    }

    /// A connection that has opened these streams at these times.
    fn speaks(opened: &[(u32, u64)]) -> Protocol {
        let mut protocol = Protocol::new();
        protocol.written(PREFACE, 0);
        protocol.written(&frame(4, 0, &[0; 12]), 0);
        for (stream, at) in opened {
            protocol.written(&headers(*stream), *at);
        }
        protocol
    }

    fn told(protocol: &mut Protocol, last: u32) -> LeftAlone {
        protocol.streams().unwrap().read(&go_away(last)).unwrap()
    }

    #[test]
    fn streams_are_left_alone_from_the_last_one_that_is_not() {
        let mut protocol = speaks(&[(1, 10), (3, 20), (5, 30)]);
        assert_eq!(told(&mut protocol, 5), LeftAlone::After(30));
        assert_eq!(told(&mut protocol, 4), LeftAlone::After(20));
        assert_eq!(told(&mut protocol, 3), LeftAlone::After(20));
        assert_eq!(told(&mut protocol, 0), LeftAlone::All);
        assert_eq!(told(&mut speaks(&[]), 0), LeftAlone::All, "nothing was opened");
    }

    #[test]
    fn a_last_stream_that_is_not_opened_yet_tells_nothing() {
        let mut protocol = speaks(&[(1, 10)]);
        assert_eq!(told(&mut protocol, 3), LeftAlone::Unknown);
        assert_eq!(told(&mut protocol, u32::MAX >> 1), LeftAlone::Unknown);
        protocol.written(&headers(3), 20);
        assert_eq!(
            told(&mut protocol, 3),
            LeftAlone::After(20),
            "the second one counts"
        );
    }

    #[test]
    fn trailers_open_nothing() {
        let mut protocol = speaks(&[(1, 10), (3, 20), (1, 30)]);
        assert_eq!(told(&mut protocol, 1), LeftAlone::After(10));
    }

    #[test]
    fn streams_that_are_forgotten_count_as_the_oldest_that_is_not() {
        let opened: Vec<_> = (0..300).map(|n| (2 * n + 1, u64::from(n))).collect();
        let mut protocol = speaks(&opened);
        assert_eq!(told(&mut protocol, 1), LeftAlone::After(300 - REMEMBERED as u64));
        assert_eq!(told(&mut protocol, 0), LeftAlone::All);
        assert_eq!(told(&mut protocol, 599), LeftAlone::After(299));
    }

    #[test]
    fn what_does_not_begin_with_the_preface_is_not_followed() {
        for begin in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/1.1\r\n"] {
            let mut protocol = Protocol::new();
            protocol.written(begin, 0);
            protocol.written(PREFACE, 0);
            assert!(protocol.streams().is_none());
        }
        let mut protocol = Protocol::new();
        protocol.written(&PREFACE[..10], 0);
        assert!(protocol.streams().is_none(), "not yet");
    }

    #[test]
    fn a_goaway_that_is_not_as_it_has_to_be_is_passed_over() {
        let mut protocol = speaks(&[(1, 10)]);
        let streams = protocol.streams().unwrap();
        assert_eq!(streams.read(&frame(GOAWAY, 0, &[0; 3])), None);
        assert_eq!(streams.read(&frame(GOAWAY, 0, &[0; 7])), None, "no code");
        assert_eq!(streams.read(&frame(GOAWAY, 1, &[0; 8])), None, "of a stream");
        assert_eq!(streams.read(&flagged(HEADERS, 0, 1, b"fields")), None);
        assert_eq!(streams.read(&go_away(0)), None, "amid the fields of an answer");
        assert_eq!(streams.read(&frame(CONTINUATION, 1, b"more")), None);
        assert_eq!(streams.read(&go_away(1)), Some(LeftAlone::After(10)));
    }

    proptest! {
        /// However the bytes come in pieces.
        #[test]
        fn cutting_the_bytes_changes_nothing(cuts in prop::collection::vec(1_usize..40, 1..40), last in 0_u32..6) {
            let mut sent = PREFACE.to_vec();
            sent.extend(frame(4, 0, &[0; 18]));
            sent.extend(headers(1));
            sent.extend(frame(0, 1, &[7; 300]));
            sent.extend(headers(3));
            let mut received = frame(4, 0, &[]);
            received.extend(frame(HEADERS, 1, &[GOAWAY; 20]));
            received.extend(go_away(last));
            let pieces = |mut bytes: &[u8]| {
                let mut pieces = Vec::new();
                let mut cuts = cuts.iter().cycle();
                while !bytes.is_empty() {
                    let at = cuts.next().unwrap().min(&bytes.len()).to_owned();
                    pieces.push(bytes[..at].to_vec());
                    bytes = &bytes[at..];
                }
                pieces
            };
            let mut protocol = Protocol::new();
            for piece in pieces(&sent) {
                protocol.written(&piece, 5);
            }
            let streams = protocol.streams().unwrap();
            let told: Vec<_> = pieces(&received).iter().filter_map(|piece| streams.read(piece)).collect();
            let expected = match last {
                0 => LeftAlone::All,
                1..=3 => LeftAlone::After(5),
                _ => LeftAlone::Unknown,
            };
            prop_assert_eq!(told, vec![expected]);
        }

        #[test]
        fn any_bytes_are_survived(sent in any::<Vec<u8>>(), received in any::<Vec<u8>>()) {
            let mut protocol = speaks(&[(1, 1)]);
            protocol.written(&sent, 2);
            let _ = protocol.streams().unwrap().read(&received);
        }
    }
}
