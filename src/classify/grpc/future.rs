//! The future: judges the head.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::BoxError;

use super::{GrpcBody, GrpcPolicy};
use crate::{
    call::{GrpcCode, GrpcError, LateVerdict, Verdict},
    classify::HttpAnswer,
};

pin_project! {
    /// The future of a [`GrpcErrorClassifier`](super::GrpcErrorClassifier).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct GrpcErrorClassifierFuture<F> {
        #[pin]
        inner: F,
        policy: GrpcPolicy,
    }
}

impl<F> GrpcErrorClassifierFuture<F> {
    pub(super) fn new(inner: F, policy: GrpcPolicy) -> Self {
        GrpcErrorClassifierFuture { inner, policy }
    }
}

impl<F, A, B, E> Future for GrpcErrorClassifierFuture<F>
where
    F: Future<Output = Result<A, E>>,
    A: HttpAnswer<Body = B>,
    E: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<GrpcBody<B>>, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx)).map_err(Into::into)?;
        Poll::Ready(judge(answer.into_response(), *this.policy))
    }
}

fn judge<B: Body>(mut answer: Response<B>, policy: GrpcPolicy) -> Result<Response<GrpcBody<B>>, BoxError> {
    let code = match GrpcCode::from_headers(answer.headers()) {
        Some(code) => code,
        None if !is_grpc(&answer) => return Ok(answer.map(GrpcBody::of_known_end)),
        // Neither here nor to come.
        None if answer.body().is_end_stream() => GrpcCode::Unknown,
        None => {
            let (open, late) = LateVerdict::open();
            answer.extensions_mut().insert(late);
            return Ok(answer.map(|body| GrpcBody::new(body, open, policy)));
        }
    };
    match policy.verdict(code) {
        Verdict::Success => Ok(answer.map(GrpcBody::of_known_end)),
        verdict => {
            let (head, _) = answer.into_parts();
            Err(GrpcError::new(code, head.headers, verdict).into())
        }
    }
}

/// Is it an answer whose status stands in the trailers, if it is not in the headers?
fn is_grpc<B>(answer: &Response<B>) -> bool {
    answer.status() == StatusCode::OK && is_grpc_type(answer.headers())
}

/// `application/grpc`, with or without the format of the messages, but not `application/grpc-web`.
fn is_grpc_type(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some(value) = headers.get(CONTENT_TYPE).map(|value| value.as_bytes()) else {
        return false;
    };
    match value.split_at_checked(TYPE.len()) {
        Some((start, rest)) => {
            start.eq_ignore_ascii_case(TYPE) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        }
        None => false,
    }
}
