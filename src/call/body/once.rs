//! Bodies that are sent at most once.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// Any body, as one that is sent at most once: a stream, or a body of another library that is not `Clone`.
    ///
    /// A call with such a body is never retried; its trail says why. With `ReplayBody` in its place it can be.
    #[derive(Debug)]
    pub struct OnceBody<B> {
        #[pin]
        body: B,
    }
}

impl<B> OnceBody<B> {
    /// This body is sent at most once.
    pub fn new(body: B) -> Self {
        OnceBody { body }
    }

    /// The body inside.
    pub fn into_inner(self) -> B {
        self.body
    }
}

impl<B: Body> Body for OnceBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
