//! Reading a fault off an answer, so that the request can be sent again.

use std::future::{Future, Ready};

use http::{Response, StatusCode};
use http_body::Body;

use super::{
    body::DrainBody,
    fault::{Fault, FaultKind, Sent},
    retry_after,
    status::StatusSet,
};

/// Reads a fault off an answer, so that a layer which retries can retry it.
///
/// [`AnyAnswer`] finds none. [`StatusSet`] finds one on `http::Response`s with a status in the set. A closure
/// `Fn(&Response) -> Option<Fault>` is one of your own; what it discards is dropped at once.
///
/// ```
/// use tower_outbound::call::{Fault, FaultKind, ReadAnswer, Sent};
///
/// struct Reply {
///     busy: bool,
/// }
///
/// let reader = |reply: &Reply| reply.busy.then(|| Fault::new(FaultKind::Other, Sent::No));
/// assert!(reader.fault(&Reply { busy: true }).is_some());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` reads no faults off answers of type `{Response}`",
    label = "reads no faults off `{Response}`",
    note = "a `StatusSet` needs `http::Response` with a body: does a layer below change the response?",
    note = "a closure `Fn(&{Response}) -> Option<Fault>` reads faults"
)]
pub trait ReadAnswer<Response> {
    /// Empties an answer that is thrown away.
    type Drain: Future<Output = ()>;

    /// What is wrong with this answer. `None`: nothing.
    fn fault(&self, answer: &Response) -> Option<Fault>;

    /// Begins to empty an answer that is thrown away, so that its connection can be used again. `None`: there is
    /// nothing to wait for, and the answer was dropped.
    fn drain(&self, answer: Response) -> Option<Self::Drain>;
}

/// Finds no fault in any answer, whatever its type: only errors are retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnyAnswer;

impl<Response> ReadAnswer<Response> for AnyAnswer {
    type Drain = Ready<()>;

    #[inline]
    fn fault(&self, _: &Response) -> Option<Fault> {
        None
    }

    fn drain(&self, _: Response) -> Option<Ready<()>> {
        None
    }
}

/// An answer with a status in the set is a fault: the status, with the wait that `Retry-After` asks for. The server
/// saw the request, so it is [`Sent::Maybe`].
impl<B: Body> ReadAnswer<Response<B>> for StatusSet {
    type Drain = DrainBody<B>;

    #[inline]
    fn fault(&self, answer: &Response<B>) -> Option<Fault> {
        let status: StatusCode = answer.status();
        self.contains(status).then(|| {
            Fault::new(FaultKind::Status(status), Sent::Maybe)
                .with_retry_after(retry_after::from_headers(answer.headers()))
        })
    }

    fn drain(&self, answer: Response<B>) -> Option<DrainBody<B>> {
        DrainBody::new(answer.into_body())
    }
}

#[diagnostic::do_not_recommend]
impl<F, Response> ReadAnswer<Response> for F
where
    F: Fn(&Response) -> Option<Fault>,
{
    type Drain = Ready<()>;

    #[inline]
    fn fault(&self, answer: &Response) -> Option<Fault> {
        self(answer)
    }

    fn drain(&self, _: Response) -> Option<Ready<()>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    #[test]
    fn a_status_in_the_set_is_a_fault_with_its_wait() {
        let answer = |status: u16| {
            let response = Response::builder().status(status).header("retry-after", "3");
            response.body(Full::new(Bytes::new())).unwrap()
        };
        let fault = StatusSet::TRANSIENT.fault(&answer(503)).unwrap();
        assert_eq!(fault.kind(), FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(fault.sent(), Sent::Maybe);
        assert_eq!(fault.retry_after(), Some(Duration::from_secs(3)));
        assert!(StatusSet::TRANSIENT.fault(&answer(500)).is_none());
        assert!(AnyAnswer.fault(&answer(503)).is_none());
    }
}
