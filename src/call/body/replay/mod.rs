//! Streams that are sent again: what has been read of them is kept, up to a cap.

mod claims;
mod record;

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;
use try_lock::TryLock;

use self::{
    claims::{Claims, Loss, NoBeginning, Standing},
    record::Record,
};
use super::RepeatBody;
use crate::call::{NotRetried, RequestBodyFailed};

/// Any body, as one that can be sent again: what an attempt has read of it is kept for the next one, up to a cap.
///
/// It is for streams, and for every other body that is not `Clone`. Wrap it when the request is made, or for all
/// requests of a stack above the layers that retry:
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{Empty, combinators::BoxBody};
/// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
/// use tower_outbound::{
///     call::ReplayBody,
///     retry::{Backoff, BackoffRetryLayer},
/// };
///
/// type Stream = BoxBody<Bytes, BoxError>;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// # let client = service_fn(|_: Request<ReplayBody<Stream>>| async { Ok::<_, BoxError>(Response::new(())) });
/// let service = ServiceBuilder::new()
///     .map_request(|request: Request<Stream>| request.map(ReplayBody::new))
///     .layer(BackoffRetryLayer::new(Backoff::default()))
///     .service(client);
/// # let stream = Stream::new(http_body_util::BodyExt::map_err(Empty::new(), |never| match never {}));
/// service.oneshot(Request::put("http://orders/7").body(stream)?).await?;
/// # Ok(())
/// # }
/// ```
///
/// # What a further attempt sends
///
/// What has been read so far, from the first byte on and with the frames it came in, and then the rest of the stream,
/// which is kept in its turn. Trailers are sent once, at the end. Its length is that of the whole body, if the stream
/// says it, or has come to its end by then without trailers.
///
/// - A body that no attempt has read is handed on whole, whatever its size.
/// - **Beyond the cap** nothing is kept, and what was is dropped. The attempt that reads on is not disturbed, but no
///   other one follows: the call ends as that attempt does, and its trail has
///   [`BodyBeyondCap`](NotRetried::BodyBeyondCap). If the stream says beforehand that it is longer than the cap,
///   nothing is ever kept.
/// - Nothing is kept either when no retry can follow: with no layer above that retries, and after its call has ended.
/// - A stream that fails ends its attempt with
///   [`RequestBodyFailed`](crate::call::RequestBodyFailed), and is not sent again.
///
/// # Attempts that overlap
///
/// A client may hold the body of an attempt for longer than the attempt takes: when the server has answered before it
/// has read all of it, or when the attempt was given up. Then:
///
/// - While a retry waits for its time, such an upload goes on, so that its connection can be used again. If it
///   reads beyond the cap the retry is given up, and the error that is known is returned at once. It does not go on if
///   an answer was thrown away for the retry, since that could not be returned any more.
/// - When the next attempt starts, it has all that was read and the stream. The upload before ends in an
///   error, and so does its connection or its HTTP/2 stream; it is never taken for one that is complete.
/// - When the call has ended without one, the upload of an earlier attempt ends too, and the stream is dropped.
///
/// # What it costs
///
/// Two allocations for each request, and one for the list of frames; a few atomic operations for each frame. Data is
/// kept as `Bytes` and not copied (data of another type is copied into `Bytes`); a body in more than 256 frames is
/// joined now and then. At most the cap and one frame are kept.
pub struct ReplayBody<B> {
    shared: Arc<Shared<B>>,
    reader: u64,
    begun: bool,
    /// It has given all there is, or an error.
    ended: bool,
    /// How long what follows is.
    lower: u64,
    upper: Option<u64>,
}

/// What is kept of a [`ReplayBody`] for a further attempt.
pub struct KeptReplay<B>(Arc<Shared<B>>);

struct Shared<B> {
    claims: Claims,
    /// Whoever is within `poll_frame` has it. It is only ever tried, and nobody waits for it: that another one is
    /// in there at the same time takes two attempts that overlap.
    record: TryLock<Record<B>>,
    cap: usize,
    /// What the body says of itself before it is read.
    hint: SizeHint,
    empty: bool,
    /// The task of the upload that has begun last.
    upload: AtomicWaker,
    /// The task of a call that waits to send it again.
    call: AtomicWaker,
}

impl<B: Body> ReplayBody<B> {
    /// How many bytes are kept unless something else is said: 64 KiB.
    pub const CAP: usize = 64 * 1024;

    /// Keeps up to [64 KiB](Self::CAP).
    pub fn new(body: B) -> Self {
        Self::with_cap(body, Self::CAP)
    }

    /// Keeps up to so many bytes, of data and trailers. With 0 the body is sent again only as long as no attempt has
    /// read any of it.
    pub fn with_cap(body: B, cap: usize) -> Self {
        let (hint, empty) = (body.size_hint(), body.is_end_stream());
        let shared = Shared {
            claims: Claims::new(),
            record: TryLock::new(Record::new(body)),
            cap,
            hint,
            empty,
            upload: AtomicWaker::new(),
            call: AtomicWaker::new(),
        };
        ReplayBody::reader(Arc::new(shared), 0)
    }
}

impl<B> ReplayBody<B> {
    fn reader(shared: Arc<Shared<B>>, reader: u64) -> Self {
        let length = shared.record.try_lock().and_then(|record| record.length());
        // What was forgotten had another length. It is lost first and forgotten then.
        let length = length.filter(|_| shared.claims.loss().is_none());
        let (lower, upper, ended) = match length {
            Some(length) => (length, Some(length), length == 0),
            None => (shared.hint.lower(), shared.hint.upper(), shared.empty),
        };
        ReplayBody {
            shared,
            reader,
            begun: false,
            ended,
            lower,
            upper,
        }
    }
}

impl<B> Shared<B> {
    fn begin(&self, first: Result<bool, NoBeginning>) -> Result<(), NoBeginning> {
        if first? {
            // So that it sees that it may read no further.
            self.upload.wake();
        }
        Ok(())
    }

    /// The body is of no use to anybody. Whoever is reading it now sees that, and comes here afterwards.
    fn clear(&self) {
        let body = self.record.try_lock().map(|mut record| record.empty());
        drop(body);
        self.upload.wake();
    }

    fn reason(&self, loss: Loss) -> NotRetried {
        match loss {
            Loss::BeyondCap => NotRetried::BodyBeyondCap { cap: self.cap },
            Loss::Spent | Loss::Failed => NotRetried::BodyNotRepeatable,
        }
    }
}

impl<B> ReplayBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn poll_shared(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let shared = &*self.shared;
        let Some(mut record) = shared.record.try_lock() else {
            // The attempt before is in there, for one poll.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        let before = shared.claims.loss();
        let may = if self.begun {
            shared.claims.reads(self.reader)
        } else {
            shared.begin(shared.claims.begin(self.reader)).map(|()| {
                record.rewind();
                self.begun = true;
            })
        };
        let polled = match may {
            Ok(()) => record.poll(self.reader, &shared.claims, shared.cap, cx),
            Err(no) => Poll::Ready(Some(Err(UploadOver::from(no).failed()))),
        };
        if polled.is_pending() {
            shared.upload.register(cx.waker());
        }
        let ended = record.is_at_the_end();
        drop(record);
        if before.is_none() && shared.claims.loss().is_some() {
            shared.call.wake();
        }
        // Whoever came meanwhile found the record taken.
        match shared.claims.standing(self.reader) {
            Standing::Reads => {
                self.ended = ended;
                return polled;
            }
            Standing::Refused => {}
            Standing::Over => shared.clear(),
        }
        Poll::Ready(Some(Err(UploadOver::TakenOver.failed())))
    }
}

impl<B> Body for ReplayBody<B>
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
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let polled = this.poll_shared(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                this.lower = this.lower.saturating_sub(length);
                this.upper = this.upper.map(|upper| upper.saturating_sub(length));
            }
            Poll::Ready(_) => this.ended = true,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.lower);
        if let Some(upper) = self.upper {
            hint.set_upper(upper.max(self.lower));
        }
        hint
    }
}

impl<B> RepeatBody for ReplayBody<B> {
    type Kept = KeptReplay<B>;

    fn keep_body(&self) -> Option<KeptReplay<B>> {
        let shared = Arc::clone(&self.shared);
        shared.claims.copy_kept().then(|| KeptReplay(shared))
    }

    fn restore_body(kept: &KeptReplay<B>) -> Option<Self> {
        let reader = kept.0.claims.reader_made()?;
        Some(ReplayBody::reader(Arc::clone(&kept.0), reader))
    }

    fn check_body(kept: &KeptReplay<B>) -> Result<(), NotRetried> {
        match kept.0.claims.loss() {
            Some(loss) => Err(kept.0.reason(loss)),
            None => Ok(()),
        }
    }

    fn poll_body_lost(kept: &KeptReplay<B>, cx: &mut Context<'_>) -> Poll<NotRetried> {
        kept.0.call.register(cx.waker());
        match Self::check_body(kept) {
            Err(reason) => Poll::Ready(reason),
            Ok(()) => Poll::Pending,
        }
    }

    fn take_over_body(kept: &KeptReplay<B>) -> Result<(), NotRetried> {
        kept.0
            .begin(kept.0.claims.begin_youngest())
            .map_err(|no| match no {
                NoBeginning::Lost(loss) => kept.0.reason(loss),
                NoBeginning::Refused => NotRetried::BodyNotRepeatable,
            })
    }
}

impl<B> Drop for ReplayBody<B> {
    fn drop(&mut self) {
        if self.shared.claims.reader_dropped(self.reader) {
            self.shared.clear();
        }
    }
}

impl<B> Drop for KeptReplay<B> {
    fn drop(&mut self) {
        if self.0.claims.copy_dropped() {
            self.0.clear();
        }
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("cap", &self.shared.cap)
            .field("attempt", &self.reader)
            .field("begun", &self.begun)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for KeptReplay<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptReplay")
            .field("cap", &self.0.cap)
            .finish_non_exhaustive()
    }
}

/// What a client gets from a body that gives no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadOver {
    TakenOver,
    NotKept,
    SourceFailed,
}

impl UploadOver {
    /// It is no word on what happened to the request.
    fn failed(self) -> BoxError {
        Box::new(RequestBodyFailed::new(Box::new(self)))
    }
}

impl From<NoBeginning> for UploadOver {
    fn from(no: NoBeginning) -> Self {
        match no {
            NoBeginning::Refused => UploadOver::TakenOver,
            NoBeginning::Lost(_) => UploadOver::NotKept,
        }
    }
}

impl fmt::Display for UploadOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UploadOver::TakenOver => "ReplayBody: another attempt sends it, or its call has ended",
            UploadOver::NotKept => "ReplayBody: what an earlier attempt has read was not kept",
            UploadOver::SourceFailed => "ReplayBody: it failed in an earlier attempt",
        })
    }
}

impl Error for UploadOver {}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tokio_test::{assert_ready, task};

    use super::*;

    #[test]
    fn a_reader_that_is_made_while_the_body_is_lost_does_not_take_it_for_an_empty_one() {
        let body = ReplayBody::with_cap(Full::new(Bytes::from_static(b"an order")), 3);
        let kept = body.keep_body().unwrap();
        // On another thread the attempt before reads beyond the cap, between the two steps of `restore_body`.
        let number = kept.0.claims.reader_made().unwrap();
        let mut first = task::spawn(body);
        while let Some(frame) = assert_ready!(first.enter(|cx, body| body.poll_frame(cx))) {
            frame.unwrap();
        }
        let further = ReplayBody::reader(Arc::clone(&kept.0), number);
        assert_eq!((further.is_end_stream(), further.size_hint().lower()), (false, 8));
        let mut further = task::spawn(further);
        let frame = assert_ready!(further.enter(|cx, body| body.poll_frame(cx)));
        assert!(frame.unwrap().is_err());
    }
}
