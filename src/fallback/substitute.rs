//! Where the second-best answer comes from.

use std::{fmt, future::Future, sync::Arc};

use crate::call::{BoxError, ErrorRef};

/// Gives an answer in place of the error of a call.
///
/// A closure `Fn(ErrorRef<'_>) -> Fut` is one, where `Fut` gives a `Result<Response, BoxError>`. Implement it for a type
/// of your own where the type has to have a name; it goes into [`FallbackLayer::of`](super::FallbackLayer::of).
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no answers of type `{Res}` in place of errors",
    label = "no fallback for answers `{Res}`",
    note = "a closure `Fn(ErrorRef<'_>) -> Fut` is one, if `Fut` gives a `Result<{Res}, BoxError>`"
)]
pub trait Substitute<Req, Res> {
    /// What is taken from a request before it is sent.
    type Taken;
    /// The fallback.
    type Future: Future<Output = Result<Res, BoxError>>;

    /// Looks at a request. It runs for every call, so it should take little.
    fn take(&self, request: &Req) -> Self::Taken;

    /// Begins the fallback. What it needs of the error it has to take now.
    fn answer(&self, taken: Self::Taken, error: ErrorRef<'_>) -> Self::Future;
}

#[diagnostic::do_not_recommend]
impl<F, Fut, Req, Res> Substitute<Req, Res> for F
where
    F: Fn(ErrorRef<'_>) -> Fut,
    Fut: Future<Output = Result<Res, BoxError>>,
{
    type Taken = ();
    type Future = Fut;

    #[inline]
    fn take(&self, _: &Req) {}

    fn answer(&self, (): (), error: ErrorRef<'_>) -> Fut {
        self(error)
    }
}

#[diagnostic::do_not_recommend]
impl<S: Substitute<Req, Res> + ?Sized, Req, Res> Substitute<Req, Res> for Arc<S> {
    type Taken = S::Taken;
    type Future = S::Future;

    fn take(&self, request: &Req) -> S::Taken {
        (**self).take(request)
    }

    fn answer(&self, taken: S::Taken, error: ErrorRef<'_>) -> S::Future {
        (**self).answer(taken, error)
    }
}

/// A fallback that takes something from the request. Made by
/// [`FallbackLayer::with_request`](super::FallbackLayer::with_request).
#[derive(Clone, Copy)]
pub struct WithRequest<T, F> {
    pub(super) take: T,
    pub(super) answer: F,
}

impl<T, F, Taken, Fut, Req, Res> Substitute<Req, Res> for WithRequest<T, F>
where
    T: Fn(&Req) -> Taken,
    F: Fn(Taken, ErrorRef<'_>) -> Fut,
    Fut: Future<Output = Result<Res, BoxError>>,
{
    type Taken = Taken;
    type Future = Fut;

    #[inline]
    fn take(&self, request: &Req) -> Taken {
        (self.take)(request)
    }

    fn answer(&self, taken: Taken, error: ErrorRef<'_>) -> Fut {
        (self.answer)(taken, error)
    }
}

impl<T, F> fmt::Debug for WithRequest<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithRequest").finish_non_exhaustive()
    }
}
