//! What has a status.

use http::Response;
use http_body::Body;

/// An answer that has a status: `http::Response`, and nothing else.
///
/// It is the bound of [`StatusErrorClassifier`](super::StatusErrorClassifier), so that the compiler says what is
/// missing where it does not hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `http::Response` with a body, and has no status to classify",
    label = "answers of type `{Self}` have no status",
    note = "does a layer below change the response? Statuses are classified below the layers that do"
)]
pub trait HttpAnswer {
    /// The body of the response.
    type Body: Body;

    /// The response.
    fn into_response(self) -> Response<Self::Body>;
}

impl<B: Body> HttpAnswer for Response<B> {
    type Body = B;

    #[inline]
    fn into_response(self) -> Response<B> {
        self
    }
}
