//! The body that is handed over.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::call::BoxError;

pin_project! {
    /// The body of an answer above a [`CollectBody`](super::CollectBody): one that has been read, or one that is as it was.
    #[derive(Debug)]
    pub struct CollectedBody<B> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<B> {
        // The trailers in a box, since there are hardly ever any.
        Read { data: Bytes, trailers: Option<Box<HeaderMap>> },
        AsItWas {
            #[pin]
            body: B,
        },
    }
}

impl<B> CollectedBody<B> {
    pub(super) fn read(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        CollectedBody {
            state: State::Read { data, trailers },
        }
    }

    pub(super) fn as_it_was(body: B) -> Self {
        CollectedBody {
            state: State::AsItWas { body },
        }
    }

    /// All of its data, if it has been read; of one that was dropped unread, none. Data that has been taken as a frame is
    /// not there any more.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.state {
            State::Read { data, .. } => Some(data),
            State::AsItWas { .. } => None,
        }
    }

    /// Its trailers, if it has been read and had any.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        match &self.state {
            State::Read { trailers, .. } => trailers.as_deref(),
            State::AsItWas { .. } => None,
        }
    }

    /// All of its data.
    ///
    /// # Errors
    ///
    /// The body as it was, if it has not been read.
    pub fn into_bytes(self) -> Result<Bytes, B> {
        match self.state {
            State::Read { data, .. } => Ok(data),
            State::AsItWas { body } => Err(body),
        }
    }
}

/// As if it had been read: for a fallback, which answers with one of its own.
impl<B> From<Bytes> for CollectedBody<B> {
    fn from(data: Bytes) -> Self {
        CollectedBody::read(data, None)
    }
}

impl<B> Body for CollectedBody<B>
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
        match self.project().state.project() {
            StateProj::Read { data, trailers } => Poll::Ready(if data.is_empty() {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            } else {
                Some(Ok(Frame::data(mem::take(data))))
            }),
            StateProj::AsItWas { body } => body.poll_frame(cx).map(|frame| {
                frame.map(|frame| {
                    // Of `Bytes` this is no copy.
                    let frame = frame.map_err(Into::into)?;
                    Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
                })
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Read { data, trailers } => data.is_empty() && trailers.is_none(),
            State::AsItWas { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Read { data, .. } => SizeHint::with_exact(data.len() as u64),
            State::AsItWas { body } => body.size_hint(),
        }
    }
}
