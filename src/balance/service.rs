//! The service.

use std::{
    fmt,
    task::{Context, Poll},
};

use tokio::time::Duration;
use tower_service::Service;

use super::{
    future::LoadBalanceFuture,
    handle::BalanceHandle,
    layer::{Balance, Start},
    rule::{Ewma, Rule},
    wait::Waiting,
};
use crate::call::{Addressed, BoxError, ByFault, Classify};

/// Sends each request to an endpoint that it picks. Made by a [`LoadBalanceLayer`](super::LoadBalanceLayer); see the
/// [module](super).
///
/// It is ready when the service below is. The endpoint is picked in `call`, when the request, and what its call has
/// tried before, are known.
///
/// # Errors
///
/// Out of the future: [`NoEndpoint`](crate::call::NoEndpoint), [`NoTimeLeft`](crate::call::NoTimeLeft),
/// [`NotReady`](crate::call::NotReady) (only after a wait for an endpoint), and the errors of the service below, with
/// the endpoint that they came from.
pub struct LoadBalance<S, R = Ewma, C = ByFault> {
    inner: S,
    balance: Balance<R, C>,
}

impl<S, R, C> LoadBalance<S, R, C> {
    pub(super) fn new(inner: S, balance: Balance<R, C>) -> Self {
        LoadBalance { inner, balance }
    }

    /// A handle to the figures about the endpoints.
    pub fn handle(&self) -> BalanceHandle {
        BalanceHandle::new(self.balance.pool.clone())
    }

    crate::macros::inner_service!(S);
}

impl<S, Req, R, C> Service<Req> for LoadBalance<S, R, C>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
    Req: Addressed,
    R: Rule,
    C: Classify<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = LoadBalanceFuture<S, Req, R, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.balance.pool.endpoints().ensure_driven();
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        match self.balance.start(&mut self.inner, request) {
            Start::Calling(future, in_flight) => {
                LoadBalanceFuture::calling(future, in_flight, self.balance.classify.clone())
            }
            Start::TooLate(error) => {
                self.release();
                LoadBalanceFuture::refused(error)
            }
            Start::Nowhere { request, why } => {
                self.release();
                if self.balance.settings.wait(why).is_zero() {
                    return LoadBalanceFuture::refused(Box::new(why.error(Duration::ZERO)));
                }
                let waiting = Waiting::new(self.inner.clone(), request, self.balance.clone(), why);
                LoadBalanceFuture::waiting(waiting)
            }
        }
    }
}

impl<S: Clone, R, C> LoadBalance<S, R, C> {
    /// Gives back what the service below holds for a call that is not made now.
    #[cold]
    fn release(&mut self) {
        self.inner = self.inner.clone();
    }
}

impl<S: Clone, R, C: Clone> Clone for LoadBalance<S, R, C> {
    fn clone(&self) -> Self {
        LoadBalance {
            inner: self.inner.clone(),
            balance: self.balance.clone(),
        }
    }
}

impl<S: fmt::Debug, R, C> fmt::Debug for LoadBalance<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadBalance")
            .field("inner", &self.inner)
            .field("balance", &self.balance)
            .finish()
    }
}
