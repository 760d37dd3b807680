//! Bodies that can be sent again.

/// A body that may be able to give a copy of itself, to be sent with a further attempt.
///
/// Every body that is `Clone` can: empty ones, `Full<Bytes>`, strings. [`OnceBody`](super::OnceBody) makes any other
/// body one that cannot.
#[diagnostic::on_unimplemented(
    message = "the body `{Self}` cannot be copied for a retry",
    label = "not a `RepeatBody`",
    note = "a body that is `Clone` can be; wrap another one in `OnceBody`, which is sent at most once",
    note = "if it is `UploadBody`: the read limit belongs below all layers that retry"
)]
pub trait RepeatBody: Sized {
    /// A copy. `None`: this body can be sent only once.
    fn repeat(&self) -> Option<Self>;
}

#[diagnostic::do_not_recommend]
impl<B: Clone> RepeatBody for B {
    #[inline]
    fn repeat(&self) -> Option<Self> {
        Some(self.clone())
    }
}
