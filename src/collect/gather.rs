//! A body while it is read.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes};
use http::HeaderMap;
use http_body::Body;
use pin_project_lite::pin_project;

use super::CollectedBody;
use crate::call::{AnswerTooLarge, BoxError};

/// How many frames are taken in one poll. A body that is always ready must let the thread, and the timers of the
/// layers around it, have a turn.
const FRAMES_A_POLL: usize = 32;

/// The most that is set aside because a peer has said how long its body is. More is when more has come.
const MOST_ON_TRUST: u64 = 16 * 1024;

pin_project! {
    /// Reads a body to its end.
    #[derive(Debug)]
    pub(super) struct Gather<B> {
        #[pin]
        body: B,
        data: Data,
        trailers: Option<Box<HeaderMap>>,
        most: u64,
    }
}

#[derive(Debug)]
enum Data {
    /// One frame, or none.
    OnePiece(Bytes),
    Joined(Vec<u8>),
}

impl Data {
    fn len(&self) -> u64 {
        let len = match self {
            Data::OnePiece(bytes) => bytes.len(),
            Data::Joined(bytes) => bytes.len(),
        };
        len as u64
    }

    /// `expected` more bytes may follow these.
    fn push(&mut self, mut more: impl Buf, expected: u64) {
        match self {
            Data::OnePiece(first) if first.is_empty() => *first = more.copy_to_bytes(more.remaining()),
            Data::OnePiece(first) => {
                // The cast loses nothing, as the number is small.
                let expected = expected.min(MOST_ON_TRUST) as usize;
                let mut joined = Vec::with_capacity(first.len() + more.remaining() + expected);
                joined.put(first);
                joined.put(more);
                *self = Data::Joined(joined);
            }
            Data::Joined(joined) => joined.put(more),
        }
    }

    fn take(&mut self) -> Bytes {
        match mem::replace(self, Data::OnePiece(Bytes::new())) {
            Data::OnePiece(bytes) => bytes,
            Data::Joined(bytes) => bytes.into(),
        }
    }
}

impl<B: Body> Gather<B> {
    pub(super) fn new(body: B, most: u64) -> Self {
        Gather {
            body,
            data: Data::OnePiece(Bytes::new()),
            trailers: None,
            most,
        }
    }

    /// How many bytes have been read.
    pub(super) fn len(&self) -> u64 {
        self.data.len()
    }

    /// Reads on. Ready: the whole body is there, or it never will be.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<CollectedBody<B>, BoxError>>
    where
        B::Error: Into<BoxError>,
    {
        let mut this = self.project();
        for _ in 0..FRAMES_A_POLL {
            let left = this.most.saturating_sub(this.data.len());
            let announced = this.body.size_hint().lower();
            if announced > left {
                return Poll::Ready(Err(AnswerTooLarge::new(*this.most).into()));
            }
            let frame = if this.body.is_end_stream() {
                None
            } else {
                ready!(this.body.as_mut().poll_frame(cx))
            };
            let Some(frame) = frame else {
                return Poll::Ready(Ok(CollectedBody::read(this.data.take(), this.trailers.take())));
            };
            match frame.map_err(Into::into)?.into_data() {
                Ok(data) if data.remaining() as u64 > left => {
                    return Poll::Ready(Err(AnswerTooLarge::new(*this.most).into()));
                }
                Ok(data) => this.data.push(data, this.body.size_hint().lower()),
                Err(frame) => *this.trailers = frame.into_trailers().ok().map(Box::new),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promised_length_is_not_taken_on_trust() {
        let mut data = Data::OnePiece(Bytes::new());
        data.push(&b"se"[..], u64::MAX);
        data.push(&b"ven"[..], u64::MAX);
        let Data::Joined(joined) = &data else {
            panic!("two pieces are joined");
        };
        assert!(joined.capacity() as u64 <= 5 + MOST_ON_TRUST);
        assert_eq!((data.len(), data.take()), (5, Bytes::from("seven")));
    }
}
