//! The live set of services, each with the endpoint that it goes to.
//!
//! It stands on the ground floor for the reason that `Endpoints` does.
#![expect(
    clippy::disallowed_types,
    reason = "std locks guard changes of the set, and what is known of services that were not ready; a call to one that is takes none"
)]
#![cfg_attr(
    not(all(feature = "balance", feature = "discover")),
    allow(
        dead_code,
        reason = "called by a balancer and by discovery, which are features"
    )
)]

mod resting;

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use self::resting::Resting;
use super::{Endpoint, Endpoints, members::SAME_OBJECT, room::make_room};

/// A live set of services, each with the [`Endpoint`] that describes where it goes. Cloning the handle is cheap, and all
/// clones are one set.
///
/// The services are kept as they are put in, and never called: each attempt is made through a clone. So clones must share
/// what makes them ready, be it a connection, a buffer or a limit; the handles of hyper's HTTP/2, tonic's `Channel` and
/// `tower::buffer::Buffer` do. They must be `Sync`: box with `tower::util::BoxCloneSyncService`.
///
/// A change is published before the method that makes it returns. From then on no attempt starts on a service that was
/// taken out; those under way end on their clones of it, and with the last of them it is dropped. An endpoint that is
/// put in again with the same key and description stays the object that it was, with its vetoes, and goes on with
/// the new service. An [`Endpoint`] belongs to one set of services: another set takes a copy of it.
///
/// ```
/// use tower::service_fn;
/// use tower_outbound::call::{BoxError, Endpoint, Services};
///
/// let to = |name: &'static str| service_fn(move |_: http::Request<()>| async move { Ok::<_, BoxError>(name) });
/// let orders = Services::new();
/// orders.insert(Endpoint::new("http://10.0.0.1:8080")?, to("first"));
/// orders.insert(Endpoint::builder("http://10.0.0.2:8080").zone("eu-1").build()?, to("second"));
/// orders.remove("http://10.0.0.1:8080");
/// assert_eq!(orders.len(), 1);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
pub struct Services<S>(Arc<Shared<S>>);

struct Shared<S> {
    /// Tells the endpoints of this set from those of others.
    id: u64,
    endpoints: Endpoints,
    /// Held by whoever changes the set.
    members: Mutex<Members>,
    resting: Resting,
    /// Takes the service of an endpoint out. The services are attached to the endpoints.
    empty: fn(&Endpoint) -> Option<Arc<S>>,
}

/// What is published.
#[derive(Default)]
struct Members {
    by_key: HashMap<Box<str>, Endpoint>,
    /// Has the set been changed by others than its source, since that has published?
    by_hand: bool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Where the service of an endpoint is kept: attached to the endpoint, so that whoever has picked it has the service.
struct Slot<S> {
    /// The set that the endpoint belongs to.
    set: u64,
    /// None: the endpoint is not in the set.
    service: ArcSwapOption<S>,
    /// How often another one was put here.
    version: AtomicU64,
    /// How often in a row it was not ready.
    strikes: AtomicU32,
}

/// A clone of a service, to be polled and called.
#[derive(Debug)]
pub(crate) struct Lent<S> {
    pub(crate) service: S,
    version: u64,
}

/// How a service was that is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// It may be soon.
    Busy,
    /// It said that it failed.
    Failed,
}

impl<S> Slot<S> {
    /// What was there before.
    fn put(&self, service: Option<Arc<S>>) -> Option<Arc<S>> {
        let before = self.service.swap(service);
        self.version.fetch_add(1, Release);
        before
    }
}

impl<S: Send + Sync + 'static> Services<S> {
    /// An empty set, to be filled by hand.
    pub fn new() -> Self {
        Services(Arc::new(Shared::over(Endpoints::new())))
    }

    /// Puts a service in, in the place of one whose endpoint has the same key.
    pub fn insert(&self, endpoint: Endpoint, service: S) {
        let mut members = self.0.members();
        members.by_hand = true;
        let mut gone = Gone::default();
        let now = self.0.put(&mut members, endpoint, Arc::new(service), &mut gone);
        self.0.endpoints.insert_unless(SAME_OBJECT, now);
        self.0.settle(members, gone);
    }

    /// Takes out the service whose endpoint has this key. Was it in?
    pub fn remove(&self, key: &str) -> bool {
        let mut members = self.0.members();
        members.by_hand = true;
        let removed = members.by_key.remove(key);
        let was_in = removed.is_some();
        if was_in {
            self.0.endpoints.remove(key);
        }
        let gone = Gone {
            endpoints: removed.into_iter().collect(),
            ..Gone::default()
        };
        self.0.settle(members, gone);
        was_in
    }

    /// Makes these the services of the set. Of two with the same key the later one counts.
    pub fn replace(&self, services: impl IntoIterator<Item = (Endpoint, S)>) {
        // Drawn before the lock is taken: this runs code of the caller.
        let services: Vec<_> = services
            .into_iter()
            .map(|(endpoint, service)| (endpoint, Arc::new(service)))
            .collect();
        let mut members = self.0.members();
        members.by_hand = true;
        self.0.become_these(members, services, |all| {
            self.0.endpoints.replace_unless(SAME_OBJECT, all);
        });
    }
}

impl<S> Services<S> {
    /// The endpoints of the set, for those who look at them or put vetoes on them. What is put in there has no service,
    /// and is passed. What is taken out there gets no calls, and its service is kept until it is taken out here.
    pub fn endpoints(&self) -> &Endpoints {
        &self.0.endpoints
    }

    /// How many services are in the set.
    pub fn len(&self) -> usize {
        self.0.endpoints.len()
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.0.endpoints.is_empty()
    }
}

/// What a balancer does with them.
impl<S: 'static> Services<S> {
    /// A clone of the service that goes to this endpoint. `None`: it is not in the set.
    #[inline]
    pub(crate) fn lend(&self, endpoint: &Endpoint) -> Option<Lent<S>>
    where
        S: Clone,
    {
        let slot = endpoint.attached::<Slot<S>>()?;
        let version = slot.version.load(Acquire);
        let service = slot.service.load();
        Some(Lent {
            service: S::clone(service.as_ref()?),
            version,
        })
    }

    /// Is this still a clone of the one that goes to this endpoint?
    pub(crate) fn is_current(&self, endpoint: &Endpoint, lent: &Lent<S>) -> bool {
        let slot = endpoint.attached::<Slot<S>>();
        slot.is_some_and(|slot| slot.version.load(Acquire) == lent.version)
    }

    /// It was asked and is ready.
    #[inline]
    pub(crate) fn is_ready(&self, endpoint: &Endpoint) {
        if let Some(slot) = endpoint.attached::<Slot<S>>() {
            if slot.strikes.load(Relaxed) != 0 {
                self.0.well_again(endpoint, slot);
            }
        }
    }

    /// It was asked and is not ready: for a while it is asked only where no other is left.
    #[cold]
    pub(crate) fn is_not_ready(&self, endpoint: &Endpoint, how: NotNow, now: Instant) {
        if let Some(slot) = endpoint.attached::<Slot<S>>() {
            self.0.resting.rest(endpoint, &slot.strikes, how, now);
        }
    }

    /// Those that have rested may be asked again. Costs one load when there is none.
    #[inline]
    pub(crate) fn wake(&self, now: Instant) {
        self.0.resting.wake(now);
    }

    /// When the next one of those that rest may be asked again.
    pub(crate) fn next_to_wake(&self) -> Option<Instant> {
        self.0.resting.next()
    }
}

impl<S> Shared<S> {
    fn over(endpoints: Endpoints) -> Self
    where
        S: 'static,
    {
        Shared {
            id: NEXT_ID.fetch_add(1, Relaxed),
            endpoints,
            members: Mutex::default(),
            resting: Resting::default(),
            empty: |endpoint| endpoint.attached::<Slot<S>>()?.put(None),
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // A panic elsewhere leaves nothing half done behind it.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn well_again(&self, endpoint: &Endpoint, slot: &Slot<S>) {
        slot.strikes.store(0, Relaxed);
        self.resting.forget(endpoint);
    }
}

/// What a change has thrown out.
struct Gone<S> {
    /// They are not in the set any more. Their services are taken from them once that is published.
    endpoints: Vec<Endpoint>,
    services: Vec<Arc<S>>,
    /// Has an endpoint that stays got another service?
    stirred: bool,
}

impl<S> Default for Gone<S> {
    fn default() -> Self {
        Gone {
            endpoints: Vec::new(),
            services: Vec::new(),
            stirred: false,
        }
    }
}

impl<S: Send + Sync + 'static> Shared<S> {
    /// Puts it among the members. What comes back is the endpoint that is one now, to be published.
    fn put(
        &self,
        members: &mut Members,
        endpoint: Endpoint,
        service: Arc<S>,
        gone: &mut Gone<S>,
    ) -> Endpoint {
        let before = members.by_key.get(endpoint.key());
        let now = self.slot(before, endpoint, service, gone);
        if before != Some(&now) {
            make_room(&mut members.by_key);
            let before = members.by_key.insert(now.key().into(), now.clone());
            gone.endpoints.extend(before);
        }
        now
    }

    /// Makes these the members.
    fn become_these(
        &self,
        mut members: MutexGuard<'_, Members>,
        services: Vec<(Endpoint, Arc<S>)>,
        publish: impl FnOnce(Vec<Endpoint>),
    ) {
        let mut gone = Gone::default();
        let mut old = mem::take(&mut members.by_key);
        let mut all = Vec::new();
        for (endpoint, service) in services {
            if let Some((key, before)) = old.remove_entry(endpoint.key()) {
                members.by_key.insert(key, before);
            }
            let now = self.put(&mut members, endpoint, service, &mut gone);
            all.push(now);
        }
        publish(all);
        gone.endpoints.extend(old.into_values());
        self.settle(members, gone);
    }

    /// Gives the service its place: with the endpoint that was there before, if that is described as this one is.
    fn slot(
        &self,
        before: Option<&Endpoint>,
        endpoint: Endpoint,
        service: Arc<S>,
        gone: &mut Gone<S>,
    ) -> Endpoint {
        let endpoint = before
            .filter(|before| before.describes_the_same(&endpoint))
            .cloned()
            .unwrap_or(endpoint);
        let new = || Slot::<S> {
            set: self.id,
            service: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            strikes: AtomicU32::new(0),
        };
        endpoint.attach(new);
        let slot = endpoint.attached::<Slot<S>>();
        let endpoint = if slot.is_some_and(|slot| slot.set == self.id) {
            endpoint
        } else {
            let copy = endpoint.copy();
            copy.attach(new);
            copy
        };
        if let Some(slot) = endpoint.attached::<Slot<S>>() {
            let same = slot
                .service
                .load()
                .as_ref()
                .is_some_and(|before| Arc::ptr_eq(before, &service));
            if !same {
                gone.stirred |= before == Some(&endpoint);
                gone.services.extend(slot.put(Some(service)));
                self.well_again(&endpoint, slot);
            }
        }
        endpoint
    }

    /// A change has been published. What it has thrown out is dropped without a lock, since that runs code of the user.
    fn settle(&self, members: MutexGuard<'_, Members>, mut gone: Gone<S>) {
        for endpoint in mem::take(&mut gone.endpoints) {
            // Put back by the same change?
            if members.by_key.get(endpoint.key()) == Some(&endpoint) {
                continue;
            }
            if let Some(slot) = endpoint.attached::<Slot<S>>() {
                gone.services.extend(slot.put(None));
                self.well_again(&endpoint, slot);
            }
        }
        drop(members);
        if gone.stirred {
            self.endpoints.stir();
        }
        drop(gone);
    }
}

/// Endpoints may be kept for longer, by a handle or an error. Their services go with the set.
impl<S> Drop for Shared<S> {
    fn drop(&mut self) {
        let members = self.members.get_mut().unwrap_or_else(PoisonError::into_inner);
        let endpoints = mem::take(&mut members.by_key);
        let services: Vec<Arc<S>> = endpoints.values().filter_map(self.empty).collect();
        self.resting.clear();
        // Last, since it runs code of the user: one that panics keeps none of the others.
        drop(services);
    }
}

/// Sets that are fed by a stream.
#[cfg(feature = "discover")]
mod feed {
    use std::sync::Weak;

    use super::*;
    use crate::call::endpoint::set::{Edit, Feeder};

    /// The handle of a source on its set. It does not keep the set alive.
    pub(crate) struct ServicesFeeder<S> {
        shared: Weak<Shared<S>>,
        endpoints: Feeder,
    }

    /// A service, and where it goes, as what a stream of endpoints names.
    struct Named<S> {
        endpoint: Endpoint,
        service: Arc<S>,
    }

    impl<S: Send + Sync + 'static> Services<S> {
        /// A set of which nothing is known yet, kept up to date by this source, which is run by one task from the first
        /// call on.
        pub(crate) fn driven_by<F>(source: impl FnOnce(ServicesFeeder<S>) -> F) -> Self
        where
            F: Future<Output = ()> + Send + 'static,
        {
            Services(Arc::new_cyclic(|shared| {
                let shared = shared.clone();
                let endpoints = Endpoints::unresolved()
                    .driven_by(|endpoints| source(ServicesFeeder { shared, endpoints }));
                Shared::over(endpoints)
            }))
        }

        /// What stands for this service in a stream of endpoints.
        pub(crate) fn named(endpoint: Endpoint, service: S) -> Endpoint {
            let name = endpoint.copy();
            name.attach(|| Named {
                endpoint,
                service: Arc::new(service),
            });
            name
        }
    }

    fn named<S: Send + Sync + 'static>(name: &Endpoint) -> Option<(Endpoint, Arc<S>)> {
        let Named { endpoint, service } = name.attached::<Named<S>>()?;
        Some((endpoint.clone(), service.clone()))
    }

    impl<S: Send + Sync + 'static> ServicesFeeder<S> {
        /// Publishes these differences, of [names](Services::named), as one. False: nobody uses the set any more.
        pub(crate) fn publish_edits(&self, edits: Vec<Edit>, all: &dyn Fn() -> Vec<Endpoint>) -> bool {
            let Some(shared) = self.shared.upgrade() else {
                return false;
            };
            let mut members = shared.members();
            if mem::take(&mut members.by_hand) {
                let services = all().iter().filter_map(named).collect();
                shared.become_these(members, services, |all| {
                    self.endpoints.publish_unless(SAME_OBJECT, all);
                });
                return true;
            }
            let mut gone = Gone::default();
            // They stay until there is no lock: a name may be the last that has a service.
            let changes: Vec<Edit> = edits
                .iter()
                .filter_map(|edit| match edit {
                    Edit::Put(name) => {
                        let (endpoint, service) = named(name)?;
                        let now = shared.put(&mut members, endpoint, service, &mut gone);
                        Some(Edit::Put(now))
                    }
                    Edit::Take(name) => {
                        let endpoint = members.by_key.remove(name.key())?;
                        gone.endpoints.push(endpoint.clone());
                        Some(Edit::Take(endpoint))
                    }
                })
                .collect();
            let all = || {
                let all = all();
                let members = all.iter().filter_map(|name| members.by_key.get(name.key()));
                members.cloned().collect()
            };
            self.endpoints.publish_edits_unless(SAME_OBJECT, changes, all);
            shared.settle(members, gone);
            true
        }
    }
}

impl<S: Send + Sync + 'static> Default for Services<S> {
    fn default() -> Self {
        Services::new()
    }
}

/// A set of these services, to be changed by hand. Of two with the same key the later one counts.
impl<S: Send + Sync + 'static> FromIterator<(Endpoint, S)> for Services<S> {
    fn from_iter<I: IntoIterator<Item = (Endpoint, S)>>(services: I) -> Self {
        let set = Services::new();
        set.replace(services);
        set
    }
}

impl<S> Clone for Services<S> {
    fn clone(&self) -> Self {
        Services(self.0.clone())
    }
}

impl<S> fmt::Debug for Services<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("endpoints", &self.0.endpoints)
            .finish_non_exhaustive()
    }
}
