//! A breaker for each endpoint below a balancer: it rejects nothing, but keeps its endpoint from being picked.

mod layer;
mod service;
mod table;

use std::{fmt, sync::Arc};

use http::Uri;

use self::table::Shared;
pub use self::{layer::EndpointBreakerLayer, service::EndpointBreaker};
use super::{Breaker, BreakerBuilder, Permit};
use crate::call::{CircuitState, ConfigError, Endpoint, Endpoints};

/// Breakers for the endpoints of a set, for one server of many that is not well. A handle that is cheap to clone.
///
/// Its [layer](EndpointBreakerLayer) stands right below `LoadBalance`. There is a breaker for each endpoint, in
/// [shadow mode](BreakerBuilder::shadow): no caller is rejected because of one server. While the circuit of an endpoint
/// is open it has the veto [`Veto::Breaker`](crate::call::Veto::Breaker), and the balancer picks others. When its
/// sleep window has ended the veto is taken back, so that a call is sent there: the probe. From then on the veto stands
/// again until the probe has ended.
///
/// One set has one of these: two would take back each other's vetoes.
///
/// # When all are open
///
/// It fails open: where every endpoint has a veto, the balancer picks among all of them, and the calls go through, as
/// when there were no breakers. What rejects calls when the dependency as a whole is down is a
/// [`CircuitBreaker`](super::CircuitBreaker) above the balancer. The outcomes of calls to an open endpoint decide
/// nothing; its probes do.
///
/// # What it costs
///
/// The breaker of an endpoint is found without a lock. It lives as long as the key of its endpoint is in the set, under
/// whatever description, and takes its veto along. A change of the set takes some microseconds more with ten thousand
/// endpoints, which whoever makes it pays, and for each endpoint that comes the time to make a breaker. No task runs: it
/// is calls to any of the endpoints that look for sleep windows which have ended, and they do so only while a circuit is
/// not closed. Of many endpoints such a call looks at a few. After a probe that was given up or ignored that look comes
/// within 100 ms.
///
/// ```
/// use tower_outbound::{
///     breaker::{Breaker, EndpointBreakerLayer, EndpointBreakers},
///     call::Endpoints,
/// };
///
/// let endpoints = Endpoints::from_list(["10.0.0.1:80", "10.0.0.2:80"])?;
/// let each = Breaker::builder("orders").consecutive_failures(5);
/// let breakers = EndpointBreakers::new(endpoints.clone(), each)?;
/// let layer = EndpointBreakerLayer::new(breakers.clone());
/// // ServiceBuilder::new().layer(LoadBalanceLayer::new(endpoints)).layer(layer).service(client)
/// assert_eq!(breakers.states().len(), 2);
/// # Ok::<_, tower_outbound::call::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct EndpointBreakers {
    shared: Arc<Shared>,
}

impl EndpointBreakers {
    /// For the endpoints of this set, with these settings for each breaker. Its name is theirs, with the key of the
    /// endpoint in brackets.
    ///
    /// # Errors
    ///
    /// Those of [`BreakerBuilder::build`].
    pub fn new(endpoints: Endpoints, each: BreakerBuilder) -> Result<Self, ConfigError> {
        // Its mistakes are found now, not when an endpoint comes.
        each.clone().build()?;
        Ok(EndpointBreakers {
            shared: Shared::following(&endpoints, each),
        })
    }

    /// The breaker of this endpoint, as long as it is in the set.
    pub fn breaker(&self, endpoint: &Endpoint) -> Option<Breaker> {
        self.shared.breaker(endpoint)
    }

    /// The endpoints with the states of their circuits, in the order of the set.
    pub fn states(&self) -> Vec<(Endpoint, CircuitState)> {
        self.shared
            .all(|endpoint, breaker| (endpoint.clone(), breaker.unforced_state()))
    }

    /// Changes the settings of all, those to come included, as [`Breaker::change`] does. They stay in shadow mode.
    ///
    /// # Errors
    ///
    /// Those of [`Breaker::change`]. Nothing has changed then.
    pub fn change(&self, change: impl Fn(BreakerBuilder) -> BreakerBuilder) -> Result<(), ConfigError> {
        self.shared.change(change)
    }

    /// The permission to make a call to this address. `None`: no endpoint has it.
    #[inline]
    fn admit(&self, to: &Uri) -> Option<Permit> {
        self.shared.admit(to)
    }
}

impl fmt::Debug for EndpointBreakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointBreakers")
            .field("states", &self.states())
            .finish_non_exhaustive()
    }
}
