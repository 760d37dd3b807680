//! Bodies that can be sent again.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use super::OnceBody;
use crate::call::NotRetried;

/// A body that may be able to give a copy of itself, to be sent with a further attempt.
///
/// | body | further attempts send |
/// | --- | --- |
/// | every one that is `Clone`: empty ones, `Full<Bytes>`, strings | a clone |
/// | `ReplayBody` around any other one, such as a stream | what has been read of it, up to a cap, and then the rest |
/// | [`OnceBody`] around any other one | nothing: it is sent at most once |
///
/// Two methods make it, for a body of your own as well; the others have something to say only where the copies of a
/// body depend on each other.
#[diagnostic::on_unimplemented(
    message = "the body `{Self}` cannot be copied for a retry",
    label = "not a `RepeatBody`",
    note = "a body that is `Clone` can be; wrap another one in `ReplayBody`, or in `OnceBody`, which is sent at most once",
    note = "if it is `UploadBody`: the read limit belongs below all layers that retry"
)]
pub trait RepeatBody: Sized {
    /// What is kept while an attempt is under way.
    type Kept;

    /// Keeps what a further attempt needs. `None`: this body can be sent only once.
    fn keep_body(&self) -> Option<Self::Kept>;

    /// The body of a further attempt. `None`: it cannot be sent another time after all.
    fn restore_body(kept: &Self::Kept) -> Option<Self>;

    /// Could [`restore_body`](RepeatBody::restore_body) give a body now?
    ///
    /// # Errors
    ///
    /// The reason why not.
    fn check_body(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }

    /// Ready when [`check_body`](RepeatBody::check_body) has come to fail while a retry is waited for.
    fn poll_body_lost(_kept: &Self::Kept, _cx: &mut Context<'_>) -> Poll<NotRetried> {
        Poll::Pending
    }

    /// The attempt with the body last restored starts: all others are read no further.
    ///
    /// # Errors
    ///
    /// If it cannot be sent after all, the reason.
    fn take_over_body(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl<B: Clone> RepeatBody for B {
    type Kept = B;

    #[inline]
    fn keep_body(&self) -> Option<B> {
        Some(self.clone())
    }

    #[inline]
    fn restore_body(kept: &B) -> Option<B> {
        Some(kept.clone())
    }
}

impl<B> RepeatBody for OnceBody<B> {
    type Kept = Infallible;

    fn keep_body(&self) -> Option<Infallible> {
        None
    }

    fn restore_body(kept: &Infallible) -> Option<Self> {
        match *kept {}
    }
}
