//! The request body under a read limit: it tells when it has been sent, and stops when its call is over.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant};
use tower::BoxError;

use crate::call::RequestBodyFailed;

/// The largest piece that a body which is followed gives out at a time.
///
/// hyper takes a frame as a whole, however large, and the end of the body with it. Only pieces make "has ended" mean
/// "has nearly been written". 16 KiB is also the default frame size of HTTP/2 (RFC 9113, section 6.5.2).
const PIECE: usize = 16 * 1024;

/// Up to this size, in bytes, a body of known length is taken to be in hand and to leave in one write: it is not
/// followed.
pub(crate) const IN_HAND: u64 = 64 * 1024;

pin_project! {
    /// The body of a request below a `ReadTimeout`.
    ///
    /// Length, trailers and bytes are those of the body inside. What it adds:
    ///
    /// - It tells the read limit when it has been given to the client as a whole, so that the limit counts from
    ///   there.
    /// - Its frames of data have at most 16 KiB: without that a client would take a large frame in one go, and its
    ///   end would come long before it is written. `Bytes` are split without copying; data of another type is
    ///   copied into `Bytes`.
    /// - Once the call has been given up it ends in an error, so that the client stops uploading. hyper alone goes
    ///   on: the server would get a request that nobody waits for.
    ///
    /// A body that has already ended, and one of a known length of at most 64 KiB, is passed through as it is, and
    /// nothing is allocated for it.
    ///
    /// A client below a `ReadTimeout` sends this body: leave the body type of a client to be inferred, or write it as
    /// `HttpClient<UploadBody<B>>`. What a client asks of bodies, such as `Send` and `Unpin`, this one has if the
    /// body inside has it.
    #[derive(Debug)]
    pub struct UploadBody<B> {
        #[pin]
        body: B,
        // What is left of a frame that was too large.
        rest: Bytes,
        // There while the body is followed and has not ended.
        uploader: Option<Uploader>,
    }
}

impl<B: Body> UploadBody<B> {
    /// Wraps a body. It is followed unless its length is known to be at most `in_hand`; the other half is for the
    /// attempt that sends it. With a limit on a stall the attempt can ask when that runs out.
    pub(crate) fn new(body: B, in_hand: u64, stall: Option<Duration>) -> (Self, Option<Upload>) {
        let followed = !body.is_end_stream() && body.size_hint().exact().is_none_or(|size| size > in_hand);
        let signal = followed.then(|| Arc::new(Signal::new(stall)));
        let body = UploadBody {
            body,
            rest: Bytes::new(),
            uploader: signal.clone().map(Uploader),
        };
        (body, signal.map(Upload))
    }
}

impl<B> UploadBody<B> {
    /// The body inside.
    pub fn get_ref(&self) -> &B {
        &self.body
    }
}

impl<B> Body for UploadBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(uploader) = this.uploader.as_ref() else {
            return this.body.poll_frame(cx).map(|frame| {
                frame.map(|frame| match frame {
                    Ok(frame) => Ok(frame.map_data(into_bytes)),
                    Err(error) => Err(failed(error)),
                })
            });
        };
        if uploader.is_abandoned() {
            return Poll::Ready(Some(Err(Box::new(UploadEnded))));
        }
        if this.rest.is_empty() {
            match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => *this.rest = into_bytes(data),
                    Err(trailers) => {
                        // Nothing comes after trailers.
                        *this.uploader = None;
                        let trailers = trailers.map_data(into_bytes);
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                },
                Poll::Ready(Some(Err(error))) => {
                    *this.uploader = None;
                    return Poll::Ready(Some(Err(failed(error))));
                }
                Poll::Ready(None) => {
                    *this.uploader = None;
                    return Poll::Ready(None);
                }
                Poll::Pending if uploader.poll_abandoned(cx) => {
                    return Poll::Ready(Some(Err(Box::new(UploadEnded))));
                }
                Poll::Pending => {
                    uploader.moves(Waits::ForTheBody);
                    return Poll::Pending;
                }
            }
        }
        uploader.moves(Waits::ForTheClient);
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        if this.rest.is_empty() && this.body.is_end_stream() {
            *this.uploader = None;
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.body.size_hint();
        if self.rest.is_empty() {
            return inner;
        }
        let rest = self.rest.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// What the source of the body says must not be read as what happened to the request.
fn failed(error: impl Into<BoxError>) -> BoxError {
    Box::new(RequestBodyFailed::new(error.into()))
}

/// Of `Bytes` this is the same buffer.
fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

/// What an upload and the attempt that it belongs to have to tell each other. Each waits for one word of the other.
#[derive(Debug)]
struct Signal {
    ended: AtomicBool,
    attempt: AtomicWaker,
    abandoned: AtomicBool,
    upload: AtomicWaker,
    // There if a stall has a limit.
    progress: Option<Progress>,
}

impl Signal {
    fn new(stall: Option<Duration>) -> Self {
        Signal {
            ended: AtomicBool::new(false),
            attempt: AtomicWaker::new(),
            abandoned: AtomicBool::new(false),
            upload: AtomicWaker::new(),
            progress: stall.map(Progress::new),
        }
    }
}

/// Whom an upload waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// It has given out a piece, and the client has not come for the next.
    ForTheClient,
    /// The client has come, and the source of the body has nothing for it. That is no stall.
    ForTheBody,
}

/// When an upload last moved, and whom it has waited for since.
#[derive(Debug)]
struct Progress {
    limit: Duration,
    began: Instant,
    /// Twice the nanoseconds from `began`, and one more if it waits for the body.
    last: AtomicU64,
}

/// The request has no connection yet.
const NOT_BEGUN: u64 = u64::MAX;

impl Progress {
    fn new(limit: Duration) -> Self {
        Progress {
            limit,
            began: Instant::now(),
            last: AtomicU64::new(NOT_BEGUN),
        }
    }

    fn stamp(&self, now: Instant, waits: Waits) -> u64 {
        // Enough for 292 years.
        let nanos = now.saturating_duration_since(self.began).as_nanos() as u64;
        nanos << 1 | u64::from(waits == Waits::ForTheBody)
    }

    /// When the limit runs out if nothing moves until then.
    fn stalls_at(&self) -> Instant {
        let now = Instant::now();
        let begins = self.stamp(now, Waits::ForTheClient);
        let last = match self
            .last
            .compare_exchange(NOT_BEGUN, begins, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => begins,
            Err(last) => last,
        };
        let since = if last & 1 == 1 {
            now
        } else {
            self.began + Duration::from_nanos(last >> 1)
        };
        since + self.limit
    }
}

/// The body's side. Dropping it says that the body has ended: a client drops a body when it has sent it, or when it
/// never will.
#[derive(Debug)]
struct Uploader(Arc<Signal>);

impl Uploader {
    fn is_abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Acquire)
    }

    #[inline]
    fn moves(&self, waits: Waits) {
        if let Some(progress) = &self.0.progress {
            let stamp = progress.stamp(Instant::now(), waits);
            progress.last.store(stamp, Ordering::Release);
        }
    }

    /// Sees to it that the task is woken when the attempt ends.
    fn poll_abandoned(&self, cx: &Context<'_>) -> bool {
        self.0.upload.register(cx.waker());
        self.is_abandoned()
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.attempt.wake();
    }
}

/// The attempt's side. Dropping it ends the upload.
#[derive(Debug)]
pub(crate) struct Upload(Arc<Signal>);

impl Upload {
    /// Has the body been given to the client as a whole?
    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// As [`has_ended`](Upload::has_ended), and sees to it that the task is woken when it has.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> bool {
        self.0.attempt.register(cx.waker());
        self.has_ended()
    }

    /// The limit on a stall, and when it runs out if the client takes nothing until then. The clock stands still while
    /// the source of the body is waited for, and begins when this is first asked.
    pub(crate) fn stalls_at(&self) -> Option<(Duration, Instant)> {
        let progress = self.0.progress.as_ref()?;
        Some((progress.limit, progress.stalls_at()))
    }

    /// The request has no connection yet, so its upload cannot stall.
    pub(crate) fn has_not_begun(&self) {
        if let Some(progress) = &self.0.progress {
            progress.last.store(NOT_BEGUN, Ordering::Release);
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.0.upload.wake();
    }
}

/// What a client gets from the body of a call that was given up. The caller has left, so it is seen by nobody else.
#[derive(Debug)]
struct UploadEnded;

impl fmt::Display for UploadEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadTimeout: the call was given up, so its upload ends here")
    }
}

impl Error for UploadEnded {}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::HeaderMap;
    use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
    use proptest::prelude::*;
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::call::{Fault, FaultKind, Sent};

    /// A body with these frames, whose length is known or not.
    struct Script {
        frames: VecDeque<Frame<Bytes>>,
        exact: bool,
        knows_its_end: bool,
    }

    impl Body for Script {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(self.frames.pop_front().map(Ok))
        }

        fn is_end_stream(&self) -> bool {
            self.knows_its_end && self.frames.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let left = self
                .frames
                .iter()
                .filter_map(Frame::data_ref)
                .map(Bytes::len)
                .sum::<usize>() as u64;
            if self.exact {
                SizeHint::with_exact(left)
            } else {
                let mut hint = SizeHint::new();
                hint.set_lower(left / 2);
                hint
            }
        }
    }

    fn full(len: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![7; len]))
    }

    fn channel() -> (
        http_body_util::channel::Sender<Bytes, BoxError>,
        BoxBody<Bytes, BoxError>,
    ) {
        let (sender, body) = http_body_util::channel::Channel::new(8);
        (sender, body.boxed())
    }

    #[test]
    fn only_bodies_that_are_not_in_hand_are_followed() {
        let followed = |body: BoxBody<Bytes, BoxError>| UploadBody::new(body, IN_HAND, None).1.is_some();
        let known = |len| full(len).map_err(Into::into).boxed();
        assert!(!followed(Empty::new().map_err(Into::into).boxed()));
        assert!(!followed(known(0)));
        assert!(!followed(known(IN_HAND as usize)));
        assert!(followed(known(IN_HAND as usize + 1)));
        assert!(followed(channel().1));
    }

    proptest! {
        #[test]
        fn splitting_keeps_bytes_length_and_trailers(
            sizes in prop::collection::vec(
                prop_oneof![Just(0), 1..64_usize, PIECE - 1..PIECE + 2, 0..5 * PIECE],
                0..6,
            ),
            trailers in any::<bool>(),
            exact in any::<bool>(),
            knows_its_end in any::<bool>(),
            in_hand in prop_oneof![Just(0), Just(IN_HAND)],
        ) {
            let mut whole = Vec::new();
            let mut frames = VecDeque::new();
            for (n, size) in sizes.iter().enumerate() {
                let data: Vec<u8> = (0..*size).map(|at| (at + n) as u8).collect();
                whole.extend_from_slice(&data);
                frames.push_back(Frame::data(Bytes::from(data)));
            }
            if trailers {
                let mut map = HeaderMap::new();
                map.insert("grpc-status", "0".parse().unwrap());
                frames.push_back(Frame::trailers(map));
            }
            let lower = if exact { whole.len() } else { whole.len() / 2 } as u64;
            let (body, upload) = UploadBody::new(Script { frames, exact, knows_its_end }, in_hand, None);
            prop_assert_eq!(body.size_hint().lower(), lower);
            prop_assert_eq!(body.size_hint().exact(), exact.then_some(whole.len() as u64));

            let mut body = task::spawn(body);
            let (mut seen, mut seen_trailers) = (Vec::new(), false);
            let mut ended_by_flag = body.is_end_stream();
            while let Some(frame) = assert_ready!(body.enter(|cx, body| body.poll_frame(cx))) {
                prop_assert!(!ended_by_flag, "a body that had ended gave a frame");
                match frame.unwrap().into_data() {
                    Ok(data) => {
                        prop_assert!(upload.is_none() || data.len() <= PIECE);
                        seen.extend_from_slice(&data);
                    }
                    Err(frame) => {
                        prop_assert_eq!(&frame.into_trailers().unwrap()["grpc-status"], "0");
                        seen_trailers = true;
                    }
                }
                let left = (whole.len() - seen.len()) as u64;
                prop_assert!(body.size_hint().lower() <= left);
                if exact {
                    prop_assert_eq!(body.size_hint().exact(), Some(left));
                }
                ended_by_flag = body.is_end_stream();
                if ended_by_flag && still_going(&upload) {
                    prop_assert!(false, "at its end a body says so");
                }
            }
            prop_assert_eq!(&seen, &whole);
            prop_assert_eq!(seen_trailers, trailers);
            prop_assert!(!still_going(&upload));
            prop_assert!(body.size_hint().lower() == 0);
        }
    }

    fn still_going(upload: &Option<Upload>) -> bool {
        upload.as_ref().is_some_and(|upload| !upload.has_ended())
    }

    #[test]
    fn bytes_are_split_without_copying() {
        let bytes = Bytes::from(vec![7; IN_HAND as usize + 1]);
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let (body, _upload) = UploadBody::new(Full::new(bytes), IN_HAND, None);
        let mut body = task::spawn(body);
        while let Some(frame) = assert_ready!(body.enter(|cx, body| body.poll_frame(cx))) {
            let piece = frame.unwrap().into_data().unwrap();
            assert!((start..end).contains(&(piece.as_ptr() as usize)));
        }
    }

    #[test]
    fn data_that_is_not_bytes_passes_as_well() {
        let data: &[u8] = &[7; 3 * PIECE];
        for in_hand in [0, IN_HAND] {
            let (body, _upload) = UploadBody::new(Full::new(data), in_hand, None);
            let mut collected = task::spawn(body.collect());
            let bytes = assert_ready!(collected.poll()).unwrap().to_bytes();
            assert_eq!(bytes, data);
        }
    }

    #[test]
    fn the_attempt_is_woken_when_the_last_piece_is_out_and_not_before() {
        let (body, upload) = UploadBody::new(full(4 * PIECE + 1), IN_HAND, None);
        let upload = upload.unwrap();
        let mut attempt = task::spawn(());
        assert!(!attempt.enter(|cx, _| upload.poll_ended(cx)));
        let mut body = task::spawn(body);
        for _ in 0..4 {
            let _ = assert_ready!(body.enter(|cx, body| body.poll_frame(cx)));
            assert!(!upload.has_ended() && !attempt.is_woken());
        }
        let _ = assert_ready!(body.enter(|cx, body| body.poll_frame(cx)));
        assert!(upload.has_ended() && attempt.is_woken());
    }

    #[test]
    fn a_body_that_is_dropped_or_fails_has_ended() {
        let (body, upload) = UploadBody::new(full(100_000), IN_HAND, None);
        drop(body);
        assert!(upload.unwrap().has_ended());

        let failing = StreamBody::new(futures_util::stream::iter([Err::<Frame<Bytes>, _>("broken")]));
        let (body, upload) = UploadBody::new(failing, IN_HAND, None);
        let mut body = task::spawn(body);
        let error = assert_ready!(body.enter(|cx, body| body.poll_frame(cx)))
            .unwrap()
            .unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "broken");
        let fault = Fault::new(FaultKind::Write, Sent::Maybe);
        assert_eq!(Fault::of(&*error), fault, "whatever the source of the body says");
        assert!(upload.unwrap().has_ended());
    }

    #[test]
    fn an_upload_that_waits_is_woken_and_ends_in_an_error_when_the_attempt_is_dropped() {
        let (_sender, body) = channel();
        let (body, upload) = UploadBody::new(body, IN_HAND, None);
        let mut body = task::spawn(body);
        assert_pending!(body.enter(|cx, body| body.poll_frame(cx)));
        drop(upload);
        assert!(body.is_woken());
        for _ in 0..2 {
            // And stays so: an end would look like a whole body.
            let frame = assert_ready!(body.enter(|cx, body| body.poll_frame(cx)));
            assert!(frame.unwrap().is_err());
        }
    }

    #[test]
    fn an_upload_in_the_middle_of_a_frame_ends_when_the_attempt_is_dropped() {
        let (body, upload) = UploadBody::new(full(100_000), IN_HAND, None);
        let mut body = task::spawn(body);
        assert!(
            assert_ready!(body.enter(|cx, body| body.poll_frame(cx)))
                .unwrap()
                .is_ok()
        );
        drop(upload);
        assert!(
            assert_ready!(body.enter(|cx, body| body.poll_frame(cx)))
                .unwrap()
                .is_err()
        );
        assert!(!body.is_end_stream());
    }

    #[test]
    fn an_upload_that_has_ended_stays_whole_when_the_attempt_is_dropped() {
        let (body, upload) = UploadBody::new(full(IN_HAND as usize + 1), IN_HAND, None);
        let mut body = task::spawn(body);
        while !body.is_end_stream() {
            let _ = assert_ready!(body.enter(|cx, body| body.poll_frame(cx)));
        }
        drop(upload);
        assert!(assert_ready!(body.enter(|cx, body| body.poll_frame(cx))).is_none());
    }
}
