//! The service and its settings.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::{Duration, Instant};
use tower_service::Service;

use super::{
    future::BalanceServicesFuture,
    view::{AnyRequest, ByHead, RequestView},
};
use crate::{
    balance::{
        BalanceHandle, Ewma, OutlierEjection, RibbonStats, Rule, WhenEmpty,
        layer::{Balance, Nowhere, Target},
        pick::Asked,
    },
    call::{BoxError, ByFault, Classify, ConfigError, Endpoint, HostHeader, Lent, NotNow, Services, config},
};

pub(super) const NAME: &str = "BalanceServices";

const READY_WAIT: Duration = Duration::from_secs(1);

/// Sends each request through one of the services of a set. See the [module](super).
///
/// It is always ready: the service is picked, and waited for, in the future of the call, when the request and what its
/// call has tried before are known. A clone shares the rotation and the figures. The setters are for before it is used:
/// they change this value and the clones that are made of it later.
///
/// # Errors
///
/// Out of the future: [`NoEndpoint`](crate::call::NoEndpoint), [`NoTimeLeft`](crate::call::NoTimeLeft),
/// [`NotReady`](crate::call::NotReady), and the errors of the services, with the endpoint that they came from.
pub struct BalanceServices<S, R = Ewma, C = ByFault, V = ByHead> {
    shared: Arc<Shared<S, R, C, V>>,
}

/// What the clones of a balancer and its calls have in common.
pub(super) struct Shared<S, R, C, V> {
    pub(super) services: Services<S>,
    pub(super) balance: Balance<R, C>,
    pub(super) ready_wait: Duration,
    pub(super) view: V,
}

/// What came of looking for a service.
pub(super) enum Look<S> {
    Ready(S, Target),
    Busy(Lent<S>, Target),
    Failed(BoxError, Target),
    /// The endpoint has no service: it has just been taken out, or was put into the set by hand.
    Vacant(Endpoint),
    /// The rule would go to one again that this attempt has passed.
    Passed,
    Nowhere(Nowhere),
}

impl<S> BalanceServices<S> {
    /// Balances over these services.
    pub fn new(services: Services<S>) -> Self {
        BalanceServices {
            shared: Arc::new(Shared {
                balance: Balance::new(services.endpoints().clone()),
                services,
                ready_wait: READY_WAIT,
                view: ByHead { write: None },
            }),
        }
    }
}

impl<S, R, C: Clone, V: Clone> BalanceServices<S, R, C, V> {
    fn with<R2, C2, V2>(
        self,
        change: impl FnOnce(Shared<S, R, C, V>) -> Shared<S, R2, C2, V2>,
    ) -> BalanceServices<S, R2, C2, V2> {
        BalanceServices {
            shared: Arc::new(change(Arc::unwrap_or_clone(self.shared))),
        }
    }

    /// The rule that chooses. Default: [`Ewma`].
    pub fn rule<R2: Rule>(self, rule: R2) -> BalanceServices<S, R2, C, V> {
        self.with(|shared| Shared {
            services: shared.services,
            balance: shared.balance.rule(rule),
            ready_wait: shared.ready_wait,
            view: shared.view,
        })
    }

    /// The [classifier](Classify) that says how attempts are booked. Default: [`ByFault`].
    pub fn classify<C2>(self, classify: C2) -> BalanceServices<S, R, C2, V> {
        self.with(|shared| Shared {
            services: shared.services,
            balance: shared.balance.classify(classify),
            ready_wait: shared.ready_wait,
            view: shared.view,
        })
    }

    /// When endpoints count as tripped or loaded, for Ribbon's rules and for [`BalanceHandle::is_tripped`]. Default:
    /// Ribbon's own settings.
    pub fn ribbon_stats(self, stats: RibbonStats) -> Self {
        self.with(|mut shared| {
            shared.balance.ribbon_stats(stats);
            shared
        })
    }

    /// Leaves endpoints alone for a time that fail more than others. Default: none is. See
    /// [there](crate::balance::outlier), and [`LoadBalanceLayer::outliers`](crate::balance::LoadBalanceLayer::outliers).
    pub fn outliers(self, outliers: OutlierEjection) -> Self {
        self.shared.balance.pool.eject(outliers);
        self
    }

    /// What happens to a call that finds the set empty, or whose rule chooses none of it, or whose services have all
    /// failed to become ready. Default: it fails at once.
    ///
    /// # Errors
    ///
    /// If the wait is zero or longer than [`LONGEST`](crate::call::LONGEST).
    pub fn when_empty(mut self, when_empty: WhenEmpty) -> Result<Self, ConfigError> {
        let mut settings = self.shared.balance.settings;
        settings.when_empty(NAME, when_empty)?;
        self = self.with(|mut shared| {
            shared.balance.settings = settings;
            shared
        });
        Ok(self)
    }

    /// How long a call waits for a set that its source has never published. Zero: it fails at once. Default: 1 s.
    ///
    /// It holds in place of [`when_empty`](BalanceServices::when_empty) until the source has said something.
    ///
    /// # Errors
    ///
    /// If it is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn first_wait(mut self, wait: Duration) -> Result<Self, ConfigError> {
        let mut settings = self.shared.balance.settings;
        settings.first_wait(NAME, wait)?;
        self = self.with(|mut shared| {
            shared.balance.settings = settings;
            shared
        });
        Ok(self)
    }

    /// How long a call waits where there are services, and none of them is ready. Zero: it fails at once. Default: 1 s.
    ///
    /// # Errors
    ///
    /// If it is longer than [`LONGEST`](crate::call::LONGEST).
    pub fn ready_wait(self, wait: Duration) -> Result<Self, ConfigError> {
        let ready_wait = config::pause(NAME, "ready_wait", wait)?;
        Ok(self.with(|shared| Shared { ready_wait, ..shared }))
    }

    /// Takes requests of any type. The rule sees nothing of them.
    pub fn any_request(self) -> BalanceServices<S, R, C, AnyRequest> {
        self.with(|shared| Shared {
            services: shared.services,
            balance: shared.balance,
            ready_wait: shared.ready_wait,
            view: AnyRequest(()),
        })
    }
}

impl<S, R, C: Clone> BalanceServices<S, R, C, ByHead> {
    /// Writes the address of the endpoint into each request, with this `Host` header, as
    /// [`LoadBalance`](crate::balance::LoadBalance) does. Default: requests stay as they are. A tonic channel writes its
    /// own address; a connection of hyper's HTTP/2 needs one in the request.
    pub fn write_address(self, host: HostHeader) -> Self {
        self.with(|shared| Shared {
            view: ByHead { write: Some(host) },
            ..shared
        })
    }
}

impl<S, R, C, V> BalanceServices<S, R, C, V> {
    /// A handle to the figures about the endpoints.
    pub fn handle(&self) -> BalanceHandle {
        BalanceHandle::new(self.shared.balance.pool.clone())
    }

    /// The set that it balances over.
    pub fn services(&self) -> &Services<S> {
        &self.shared.services
    }
}

impl<S, Req, R, C, V> Service<Req> for BalanceServices<S, R, C, V>
where
    S: Service<Req> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    R: Rule,
    C: Classify<S::Response>,
    V: RequestView<Req>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BalanceServicesFuture<S, Req, R, C, V>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.shared.services.endpoints().ensure_driven();
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        BalanceServicesFuture::new(self.shared.clone(), request)
    }
}

impl<S, R: Rule, C, V> Shared<S, R, C, V> {
    /// Picks a service and asks it for readiness. `passed`: those that this attempt has been to.
    #[inline]
    pub(super) fn look<Req>(
        &self,
        request: &Req,
        asked: &Asked,
        passed: &[Endpoint],
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Look<S>
    where
        S: Service<Req> + Clone + 'static,
        S::Error: Into<BoxError>,
        V: RequestView<Req>,
    {
        let target = match self.balance.target(self.view.shown(request), asked, passed, now) {
            Ok(target) => target,
            Err(why) => return Look::Nowhere(why),
        };
        if passed
            .iter()
            .any(|passed| passed.key() == target.endpoint().key())
        {
            return Look::Passed;
        }
        let Some(mut lent) = self.services.lend(target.endpoint()) else {
            return Look::Vacant(target.endpoint().clone());
        };
        match lent.service.poll_ready(cx) {
            Poll::Ready(Ok(())) => {
                self.services.is_ready(target.endpoint());
                Look::Ready(lent.service, target)
            }
            Poll::Ready(Err(error)) => {
                self.services.is_not_ready(target.endpoint(), NotNow::Failed, now);
                Look::Failed(error.into(), target)
            }
            Poll::Pending => {
                self.services.is_not_ready(target.endpoint(), NotNow::Busy, now);
                Look::Busy(lent, target)
            }
        }
    }
}

impl<S, R, C: Clone, V: Clone> Clone for Shared<S, R, C, V> {
    fn clone(&self) -> Self {
        Shared {
            services: self.services.clone(),
            balance: self.balance.clone(),
            ready_wait: self.ready_wait,
            view: self.view.clone(),
        }
    }
}

impl<S, R, C, V> Clone for BalanceServices<S, R, C, V> {
    fn clone(&self) -> Self {
        BalanceServices {
            shared: self.shared.clone(),
        }
    }
}

impl<S, R, C, V> fmt::Debug for BalanceServices<S, R, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalanceServices")
            .field("services", &self.shared.services)
            .field("balance", &self.shared.balance)
            .field("ready_wait", &self.shared.ready_wait)
            .finish()
    }
}
