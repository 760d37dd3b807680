//! The layer.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use tower_layer::Layer;

use super::{Fallback, FallbackEvent, WithRequest, shared::Shared};
use crate::call::{BoxError, ErrorRef};

/// Puts a [`Fallback`] around a service.
///
/// All services made by it, and by its clones, share one limit. See the [module](super) for an example.
#[derive(Clone)]
pub struct FallbackLayer<F> {
    shared: Shared<F>,
}

impl<F> FallbackLayer<F> {
    /// With this closure, which gets the error and begins the fallback.
    ///
    /// What the fallback needs of the error the closure has to take before it begins the future:
    ///
    /// ```
    /// use tower_outbound::{call::{ErrorRef, Fault}, fallback::FallbackLayer};
    ///
    /// let layer = FallbackLayer::new(|error: ErrorRef<'_>| {
    ///     let fault = Fault::of(error);
    ///     async move { Ok(format!("sorry, {fault}")) }
    /// });
    /// # let _ = layer;
    /// ```
    pub fn new<Fut, Res>(fallback: F) -> Self
    where
        F: Fn(ErrorRef<'_>) -> Fut,
        Fut: Future<Output = Result<Res, BoxError>>,
    {
        FallbackLayer::of(fallback)
    }

    /// With a [`Substitute`](super::Substitute) of your own.
    pub fn of(substitute: F) -> Self {
        FallbackLayer {
            shared: Shared {
                substitute,
                max_concurrent: 10,
                hook: None,
                running: Arc::new(AtomicU32::new(0)),
            },
        }
    }

    /// How many fallbacks may run at once; 10 by default. Further ones are turned away with
    /// [`FallbackRejected`](crate::call::FallbackRejected). With 0 each is.
    ///
    /// Hystrix: `fallback.isolation.semaphore.maxConcurrentRequests`.
    #[must_use]
    pub fn max_concurrent(mut self, fallbacks: u32) -> Self {
        self.shared.max_concurrent = fallbacks;
        self
    }

    /// Called once for each fallback, when it has ended; a second hook replaces the first.
    ///
    /// It runs on the task of the call, which waits for it. A fallback that is dropped is not told of.
    ///
    /// ```
    /// use tower_outbound::{call::ErrorRef, fallback::{FallbackEnd, FallbackLayer}};
    ///
    /// let layer = FallbackLayer::new(|_: ErrorRef<'_>| async { Ok("yesterday's") })
    ///     .on_fallback(|event| println!("{}, and the fallback {:?}", event.fault(), event.end()));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn on_fallback(mut self, hook: impl Fn(&FallbackEvent) + Send + Sync + 'static) -> Self {
        self.shared.hook = Some(Arc::new(hook));
        self
    }

    /// How many fallbacks are running now.
    pub fn running(&self) -> u32 {
        self.shared.running.load(Relaxed)
    }
}

impl<T, F> FallbackLayer<WithRequest<T, F>> {
    /// With a closure that takes something from each request before it is sent, and one that gets it back, together
    /// with the error, should the call fail.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, Uri};
    /// use http_body_util::Full;
    /// use tower_outbound::{call::ErrorRef, fallback::FallbackLayer};
    ///
    /// let layer = FallbackLayer::with_request(
    ///     |request: &Request<Full<Bytes>>| request.uri().clone(),
    ///     |uri: Uri, _: ErrorRef<'_>| async move { Ok(Response::new(format!("{uri} as of yesterday"))) },
    /// );
    /// # let _ = layer;
    /// ```
    pub fn with_request<Req, Taken, Fut, Res>(take: T, fallback: F) -> Self
    where
        T: Fn(&Req) -> Taken,
        F: Fn(Taken, ErrorRef<'_>) -> Fut,
        Fut: Future<Output = Result<Res, BoxError>>,
    {
        FallbackLayer::of(WithRequest {
            take,
            answer: fallback,
        })
    }
}

impl<S, F: Clone> Layer<S> for FallbackLayer<F> {
    type Service = Fallback<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Fallback::new(inner, Arc::new(self.shared.clone()))
    }
}

impl<F> fmt::Debug for FallbackLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackLayer")
            .field("max_concurrent", &self.shared.max_concurrent)
            .field("running", &self.running())
            .field("on_fallback", &self.shared.hook.is_some())
            .finish_non_exhaustive()
    }
}
