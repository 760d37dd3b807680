//! The body of a call, of any kind, as one type.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tower_outbound::call::{BoxError, KeptReplay, NotRetried, OnceBody, RepeatBody, ReplayBody};

use crate::schedule::{BodyKind, CAP};

/// A body that comes piece by piece and does not say how long it is.
#[derive(Debug)]
pub struct Pieces {
    left: Bytes,
    length: usize,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.length.min(self.left.len());
        let piece = self.left.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// The body of a call.
pub enum CallBody {
    Full(Full<Bytes>),
    Replayed(ReplayBody<Pieces>),
    Once(OnceBody<Pieces>),
}

/// What is kept of it.
pub enum Kept {
    Full(Full<Bytes>),
    Replayed(KeptReplay<Pieces>),
}

impl CallBody {
    pub fn new(kind: BodyKind, bytes: Bytes) -> CallBody {
        let (_, length) = kind.pieces();
        let pieces = |left| Pieces { left, length };
        match kind {
            BodyKind::None | BodyKind::Full => CallBody::Full(Full::new(bytes)),
            BodyKind::Replayed | BodyKind::BeyondCap => {
                CallBody::Replayed(ReplayBody::with_cap(pieces(bytes), CAP))
            }
            BodyKind::Once => CallBody::Once(OnceBody::new(pieces(bytes))),
        }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            CallBody::Full(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            CallBody::Replayed(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            CallBody::Once(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            CallBody::Full(body) => body.is_end_stream(),
            CallBody::Replayed(body) => body.is_end_stream(),
            CallBody::Once(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            CallBody::Full(body) => body.size_hint(),
            CallBody::Replayed(body) => body.size_hint(),
            CallBody::Once(body) => body.size_hint(),
        }
    }
}

impl RepeatBody for CallBody {
    type Kept = Kept;

    fn keep_body(&self) -> Option<Kept> {
        match self {
            CallBody::Full(body) => body.keep_body().map(Kept::Full),
            CallBody::Replayed(body) => body.keep_body().map(Kept::Replayed),
            CallBody::Once(body) => body.keep_body().map(|never| match never {}),
        }
    }

    fn restore_body(kept: &Kept) -> Option<Self> {
        match kept {
            Kept::Full(kept) => Full::restore_body(kept).map(CallBody::Full),
            Kept::Replayed(kept) => ReplayBody::restore_body(kept).map(CallBody::Replayed),
        }
    }

    fn check_body(kept: &Kept) -> Result<(), NotRetried> {
        match kept {
            Kept::Full(kept) => Full::check_body(kept),
            Kept::Replayed(kept) => ReplayBody::check_body(kept),
        }
    }

    fn poll_body_lost(kept: &Kept, cx: &mut Context<'_>) -> Poll<NotRetried> {
        match kept {
            Kept::Full(kept) => Full::poll_body_lost(kept, cx),
            Kept::Replayed(kept) => ReplayBody::poll_body_lost(kept, cx),
        }
    }

    fn take_over_body(kept: &Kept) -> Result<(), NotRetried> {
        match kept {
            Kept::Full(kept) => Full::take_over_body(kept),
            Kept::Replayed(kept) => ReplayBody::take_over_body(kept),
        }
    }
}
