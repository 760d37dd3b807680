//! The body, and what has been read of it.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tower::BoxError;

use super::{
    UploadOver,
    claims::{Claims, Loss},
};
use crate::call::RequestBodyFailed;

/// Beyond that many frames they are joined, so that a body in tiny frames does not cost many times its size.
const FRAMES: usize = 256;

#[derive(Debug)]
pub(super) struct Record<B> {
    source: Source<B>,
    frames: VecDeque<Bytes>,
    /// How many bytes of data they have.
    bytes: usize,
    trailers: Option<HeaderMap>,
    /// What the reader that has begun last gets next.
    next: usize,
    trailers_given: bool,
}

#[derive(Debug)]
enum Source<B> {
    Open(Pin<Box<B>>),
    Ended,
    Gone,
}

impl<B> Record<B> {
    pub(super) fn new(body: B) -> Self {
        Record {
            source: Source::Open(Box::pin(body)),
            frames: VecDeque::new(),
            bytes: 0,
            trailers: None,
            next: 0,
            trailers_given: false,
        }
    }

    /// A new reader begins.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
        self.trailers_given = false;
    }

    /// Does nothing follow what the reader has got?
    pub(super) fn is_at_the_end(&self) -> bool {
        matches!(self.source, Source::Ended)
            && self.next >= self.frames.len()
            && (self.trailers_given || self.trailers.is_none())
    }

    /// The length of the body, if it was read to its end and has no trailers: over HTTP/1 those cannot follow a
    /// body whose length was said.
    pub(super) fn length(&self) -> Option<u64> {
        let known = matches!(self.source, Source::Ended) && self.trailers.is_none();
        known.then_some(self.bytes as u64)
    }

    /// Takes out all there is, to be dropped elsewhere.
    pub(super) fn empty(&mut self) -> Self {
        let gone = Record {
            source: Source::Gone,
            frames: VecDeque::new(),
            bytes: 0,
            trailers: None,
            next: 0,
            trailers_given: false,
        };
        mem::replace(self, gone)
    }

    fn forget(&mut self) {
        self.frames = VecDeque::new();
        self.trailers = None;
        self.bytes = 0;
        self.next = 0;
    }

    fn size(&self) -> usize {
        let trailers = self.trailers.as_ref().map_or(0, size_of_trailers);
        self.bytes.saturating_add(trailers)
    }

    fn replayed(&mut self, reader: u64, claims: &Claims) -> Option<Frame<Bytes>> {
        if self.next < self.frames.len() {
            if claims.keeps(reader) {
                let data = self.frames.get(self.next).cloned();
                self.next += 1;
                return data.map(Frame::data);
            }
            // No further reader comes: what this one has got is dropped.
            self.frames.drain(..self.next);
            self.next = 0;
            return self.frames.pop_front().map(Frame::data);
        }
        if mem::replace(&mut self.trailers_given, true) {
            return None;
        }
        self.trailers.clone().map(Frame::trailers)
    }
}

impl<B> Record<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// The next frame for the reader that has begun last: what was read before, then the rest, which is kept.
    pub(super) fn poll(
        &mut self,
        reader: u64,
        claims: &Claims,
        cap: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.replayed(reader, claims) {
            return Poll::Ready(Some(Ok(frame)));
        }
        let body = match &mut self.source {
            Source::Open(body) => body,
            Source::Ended => return Poll::Ready(None),
            Source::Gone => return Poll::Ready(Some(Err(UploadOver::SourceFailed.failed()))),
        };
        let frame = match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                self.source = Source::Gone;
                // A younger reader finds out by itself.
                let _ = claims.lose(reader, Loss::Failed);
                return Poll::Ready(Some(Err(Box::new(RequestBodyFailed::new(error.into())))));
            }
            None => {
                self.source = Source::Ended;
                return Poll::Ready(None);
            }
        };
        let to_come = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if body.is_end_stream() {
            self.source = Source::Ended;
        }
        let frame = frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        if let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) {
            if self.has_room(reader, claims, cap, data.len().saturating_add(to_come)) {
                self.push(data.clone());
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            // Nothing comes after trailers.
            self.source = Source::Ended;
            if self.has_room(reader, claims, cap, size_of_trailers(trailers)) {
                self.trailers = Some(trailers.clone());
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Is what this reader has just read to be kept? If there is no room for it, and for what is known to follow, all
    /// is forgotten.
    fn has_room(&mut self, reader: u64, claims: &Claims, cap: usize, more: usize) -> bool {
        let keep = claims.keeps(reader)
            && (self.size().saturating_add(more) <= cap || claims.lose(reader, Loss::BeyondCap).is_err());
        if !keep {
            self.forget();
        }
        keep
    }

    fn push(&mut self, data: Bytes) {
        self.bytes += data.len();
        if self.frames.len() >= FRAMES {
            let mut joined = BytesMut::with_capacity(self.bytes);
            self.frames
                .iter()
                .for_each(|frame| joined.extend_from_slice(frame));
            joined.extend_from_slice(&data);
            self.frames.clear();
            self.frames.push_back(joined.freeze());
        } else {
            self.frames.push_back(data);
        }
        self.next = self.frames.len();
    }
}

fn size_of_trailers(trailers: &HeaderMap) -> usize {
    trailers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[test]
    fn a_body_in_tiny_frames_is_joined_and_replayed_to_the_byte() {
        let claims = Claims::new();
        assert!(claims.copy_kept());
        let mut record = Record::new(Full::new(Bytes::new()));
        let expected: Vec<u8> = (0..2_000).map(|n| n as u8).collect();
        for byte in &expected {
            record.push(Bytes::copy_from_slice(&[*byte]));
            assert!(record.next == record.frames.len() && record.frames.len() <= FRAMES);
        }
        record.rewind();
        let mut got = Vec::new();
        while let Some(frame) = record.replayed(0, &claims) {
            got.extend_from_slice(frame.data_ref().unwrap());
        }
        assert_eq!(got, expected);
    }
}
