//! The response body under a read limit.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tower::BoxError;

use crate::call::{ReadPhase, ReadTimedOut, Upload, timer::poll_timer};

pin_project! {
    /// The body of a response below a [`ReadTimeout`](super::ReadTimeout): each gap between two of its frames has the
    /// read limit.
    ///
    /// A gap begins when a frame is asked for and none is there: a reader that takes its time is not the server's
    /// fault. It ends in [`ReadTimedOut`] with [`ReadPhase::Body`], after which the body has ended. The response is
    /// with its caller by then, so nobody sends the request again.
    ///
    /// With a [limit on the whole](super::ReadTimeoutLayer::body_limit) the body must have ended by then as well,
    /// however slowly it is read.
    ///
    /// Dropping it ends an upload that is still going on; see [`ReadTimeout`](super::ReadTimeout).
    #[derive(Debug)]
    pub struct ReadBody<R> {
        #[pin]
        body: R,
        limit: Duration,
        // When the gap that is now ends.
        due: Option<Instant>,
        // One for all gaps: a frame that comes moves nothing; a timer that goes off too early is set to the end of the
        // gap that is then. In a box, so that the body stays `Unpin` and the response small for all who pass it up.
        sleep: Option<Pin<Box<Sleep>>>,
        timed_out: bool,
        // The limit on the whole body, and when it runs out. In a box, since most bodies have none.
        whole: Option<Box<(Duration, Instant)>>,
        upload: Option<Upload>,
    }
}

impl<R> ReadBody<R> {
    /// The head has just come.
    pub(super) fn new(body: R, limit: Duration, whole: Option<Duration>, upload: Option<Upload>) -> Self {
        ReadBody {
            body,
            limit,
            due: None,
            sleep: None,
            timed_out: false,
            whole: whole.map(|limit| Box::new((limit, Instant::now() + limit))),
            upload,
        }
    }

    /// The body inside.
    pub fn get_ref(&self) -> &R {
        &self.body
    }
}

impl<R> Body for ReadBody<R>
where
    R: Body,
    R::Error: Into<BoxError>,
{
    type Data = R::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, BoxError>>> {
        let mut this = self.project();
        if *this.timed_out {
            return Poll::Ready(None);
        }
        let whole = this.whole.as_deref().copied();
        if let Poll::Ready(frame) = this.body.as_mut().poll_frame(cx) {
            *this.due = None;
            // Frames that keep coming must not keep the limit from being looked at. The last one has come in time.
            let goes_on = matches!(frame, Some(Ok(_))) && !this.body.is_end_stream();
            let overdue = whole.filter(|(_, due)| goes_on && Instant::now() > *due);
            if let Some((limit, _)) = overdue {
                *this.timed_out = true;
                *this.sleep = None;
                return Poll::Ready(Some(Err(Box::new(ReadTimedOut::of_whole_body(limit)))));
            }
            if !matches!(frame, Some(Ok(_))) {
                *this.sleep = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = *this.limit;
        let gap = *this.due.get_or_insert_with(|| Instant::now() + limit);
        let whole = whole.filter(|(_, due)| *due <= gap);
        let due = whole.map_or(gap, |(_, due)| due);
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        ready!(poll_timer(sleep.as_mut(), cx));
        if sleep.deadline() < due {
            sleep.as_mut().reset(due);
            ready!(poll_timer(sleep.as_mut(), cx));
        }
        *this.timed_out = true;
        *this.sleep = None;
        let error = match whole {
            Some((limit, _)) => ReadTimedOut::of_whole_body(limit),
            None => ReadTimedOut::new(limit, ReadPhase::Body),
        };
        Poll::Ready(Some(Err(Box::new(error))))
    }

    fn is_end_stream(&self) -> bool {
        self.timed_out || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
