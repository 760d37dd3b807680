//! The body: judges the trailers.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::GrpcPolicy;
use crate::call::{GrpcCode, OpenVerdict, Verdict};

pin_project! {
    /// The body of an answer of a [`GrpcErrorClassifier`](super::GrpcErrorClassifier): passes everything on, and gives the
    /// verdict on the call when its end shows it.
    ///
    /// Dropped before its end it gives none.
    #[derive(Debug)]
    pub struct GrpcBody<B> {
        // Dropped first: what waits for the verdict hears of the end when it is there.
        #[pin]
        body: B,
        open: Option<OpenVerdict>,
        policy: GrpcPolicy,
    }
}

impl<B> GrpcBody<B> {
    pub(super) fn new(body: B, open: OpenVerdict, policy: GrpcPolicy) -> Self {
        GrpcBody {
            body,
            open: Some(open),
            policy,
        }
    }

    /// The verdict is known, or somebody else's business.
    pub(super) fn of_known_end(body: B) -> Self {
        GrpcBody {
            body,
            open: None,
            policy: GrpcPolicy::default(),
        }
    }

    /// The body within. No verdict is given on it any more.
    pub fn into_inner(self) -> B {
        self.body
    }
}

impl<B: Body> Body for GrpcBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if this.open.is_some() {
            let verdict = match &frame {
                Some(Ok(frame)) => match frame.trailers_ref().map(GrpcCode::from_headers) {
                    Some(code) => Some(this.policy.verdict(code.unwrap_or(GrpcCode::Unknown))),
                    // Whoever reads it may stop here.
                    None if this.body.is_end_stream() => Some(this.policy.verdict(GrpcCode::Unknown)),
                    None => None,
                },
                Some(Err(_)) => Some(Verdict::Failure),
                None => Some(this.policy.verdict(GrpcCode::Unknown)),
            };
            if let Some(verdict) = verdict {
                if let Some(open) = this.open.take() {
                    open.give(verdict);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
