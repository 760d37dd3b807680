//! The live set of endpoints.
//!
//! It stands on the ground floor since discovery writes it and balancers read it, and layers do not know each other.
#![expect(
    clippy::disallowed_types,
    reason = "std locks guard changes of the set; calls read what followers made of it, and take no lock"
)]

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
};

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, futures::OwnedNotified};

#[cfg(feature = "discover")]
pub(crate) use self::feed::{Edit, Feeder};
use super::{
    Endpoint,
    members::{Delta, Members, SAME_DESCRIPTION, WillDo},
};

/// A live set of endpoints. Cloning the handle is cheap, and all clones are one set.
///
/// A change is published before the method that makes it returns: from then on no balancer picks an endpoint that
/// was taken out. Endpoints keep the order in which they came. A key is in the set once; an endpoint that is put in
/// again with the same description stays the object that it was, so that vetoes on it and figures about it survive
/// a discovery that repeats itself.
///
/// # What a change costs
///
/// [`insert`](Endpoints::insert) and [`remove`](Endpoints::remove) take a few microseconds with ten thousand endpoints,
/// for each balancer over the set, and for breakers of its endpoints; that grows with the square root of their number. A
/// breaker for one that comes takes some tens of microseconds to make.
/// One in a thousand takes longer, about as long as a snapshot: then the list of the set closes its gaps. All of it is
/// paid by whoever makes the change: a pick does nothing for it and never waits for it. What is kept in memory depends on
/// how many endpoints there are, and not on how many have come and gone. [`replace`](Endpoints::replace) looks at all
/// endpoints, old and new, and is cheapest where those that stay are in their old order with the new ones behind them.
/// So is a [`snapshot`](Endpoints::snapshot), once after each change.
///
/// ```
/// use tower_outbound::call::{Endpoint, Endpoints};
///
/// let orders: Endpoints = ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]
///     .into_iter()
///     .map(Endpoint::new)
///     .collect::<Result<_, _>>()?;
/// orders.insert(Endpoint::new("http://10.0.0.3:8080")?);
/// orders.remove("http://10.0.0.1:8080");
/// assert_eq!(orders.len(), 2);
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Endpoints(Arc<Shared>);

/// The endpoints of a set as they were at one instant.
#[derive(Debug)]
pub struct Snapshot {
    endpoints: Box<[Endpoint]>,
    version: u64,
    resolved: bool,
}

/// Keeps something in step with a set.
pub(crate) trait Follower: Send + Sync {
    /// Is told of each change before the method that makes it returns, one after the other, and of nothing in the
    /// first publication of a set that is empty. The set is locked meanwhile.
    fn follow(&self, deltas: &[Delta]);
}

struct Shared {
    /// As of the time when somebody asked for it.
    snapshot: ArcSwapOption<Snapshot>,
    version: AtomicU64,
    len: AtomicUsize,
    resolved: AtomicBool,
    changed: Arc<Notify>,
    /// Held by whoever changes the set.
    state: Mutex<State>,
    #[cfg(any(feature = "discover", feature = "probe"))]
    feed: feed::Feed,
}

struct State {
    members: Members,
    followers: Vec<Weak<dyn Follower>>,
    /// Has it been changed by others than its source, since that has published?
    by_hand: bool,
}

/// Who changes a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Hand,
    #[cfg(any(feature = "discover", feature = "probe"))]
    Source,
}

impl Snapshot {
    /// The endpoints, in the order in which they came.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Which state of the set this is. Each change makes the number greater by one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Has anything ever been published? Only a set that is fed by a stream starts without that. An empty set that
    /// is resolved is empty because somebody said so.
    pub fn resolved(&self) -> bool {
        self.resolved
    }
}

impl Endpoints {
    /// An empty set, to be filled by hand.
    pub fn new() -> Self {
        Endpoints::starting(Members::default(), true)
    }

    /// An empty set of which nothing is known yet.
    #[cfg(feature = "discover")]
    pub(crate) fn unresolved() -> Self {
        Endpoints::starting(Members::default(), false)
    }

    fn starting(members: Members, resolved: bool) -> Self {
        Endpoints(Arc::new(Shared {
            snapshot: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            len: AtomicUsize::new(members.len()),
            resolved: AtomicBool::new(resolved),
            changed: Arc::default(),
            state: Mutex::new(State {
                members,
                followers: Vec::new(),
                by_hand: false,
            }),
            #[cfg(any(feature = "discover", feature = "probe"))]
            feed: feed::Feed::default(),
        }))
    }

    /// Puts an endpoint in, in the place of one that has the same key. If that one has the same description, it
    /// stays.
    pub fn insert(&self, endpoint: Endpoint) {
        self.insert_unless(SAME_DESCRIPTION, endpoint);
    }

    /// The same; one that is in the set stays if it will do.
    pub(super) fn insert_unless(&self, will_do: WillDo, endpoint: Endpoint) {
        self.change(By::Hand, |state| state.members.put(endpoint, will_do));
    }

    /// Takes out the endpoint with this key. Was it in?
    pub fn remove(&self, key: &str) -> bool {
        self.change(By::Hand, |state| state.members.take(key))
    }

    /// Makes these the endpoints of the set: those that are not among them go, and those that are stay the objects
    /// that they were, unless their description has changed. Of two with the same key the later one counts.
    pub fn replace(&self, endpoints: impl IntoIterator<Item = Endpoint>) {
        self.replace_unless(SAME_DESCRIPTION, endpoints);
    }

    /// The same; those that are in the set stay if they will do.
    pub(super) fn replace_unless(&self, will_do: WillDo, endpoints: impl IntoIterator<Item = Endpoint>) {
        // Drawn before the lock is taken: this runs code of the caller.
        let next: Members = endpoints.into_iter().collect();
        self.change(By::Hand, |state| state.members.become_these(next, will_do));
    }

    /// What is in the set now. The first one after a change is made when it is asked for, which costs time in
    /// proportion to the size of the set; until the next change it is the same object.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let made = || {
            let made = self.0.snapshot.load_full();
            made.filter(|snapshot| snapshot.version == self.version())
        };
        made().unwrap_or_else(|| {
            let state = lock(&self.0.state);
            // Another thread may have been faster.
            made().unwrap_or_else(|| {
                let snapshot = Arc::new(Snapshot {
                    endpoints: state
                        .members
                        .iter()
                        .map(|(_, endpoint)| endpoint.clone())
                        .collect(),
                    version: self.version(),
                    resolved: self.resolved(),
                });
                self.0.snapshot.store(Some(snapshot.clone()));
                snapshot
            })
        })
    }

    /// How many endpoints are in the set.
    pub fn len(&self) -> usize {
        self.0.len.load(Acquire)
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The version that a [snapshot](Endpoints::snapshot) taken now would have. Costs one load.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Acquire)
    }

    fn resolved(&self) -> bool {
        self.0.resolved.load(Acquire)
    }

    /// Completes at the first change that is published after this was called, whenever it is polled first.
    #[allow(dead_code, reason = "awaited by a layer that is a feature")]
    pub(crate) fn changed(&self) -> OwnedNotified {
        self.0.changed.clone().notified_owned()
    }

    /// Has those look again who wait for a change, although the set has not changed.
    pub(super) fn stir(&self) {
        self.0.changed.notify_waiters();
    }

    /// Has what this makes of the members, and of whether they are resolved, follow the set for as long as it is held.
    #[allow(dead_code, reason = "called by a layer that is a feature")]
    pub(crate) fn followed_by<F: Follower + 'static>(
        &self,
        make: impl FnOnce(&mut dyn ExactSizeIterator<Item = (u64, &Endpoint)>, bool) -> F,
    ) -> Arc<F> {
        let mut state = lock(&self.0.state);
        let follower = Arc::new(make(&mut state.members.iter(), self.resolved()));
        let weak: Weak<F> = Arc::downgrade(&follower);
        if state.followers.len() == state.followers.capacity() {
            state.followers.retain(|follower| follower.strong_count() > 0);
        }
        state.followers.push(weak);
        follower
    }

    /// Applies a change and publishes the outcome, if there is a difference, or if it is the first. Was there one?
    fn change<D>(&self, by: By, f: impl FnOnce(&mut State) -> D) -> bool
    where
        D: IntoIterator<Item = Delta>,
    {
        let mut state = lock(&self.0.state);
        let deltas: Vec<Delta> = f(&mut state).into_iter().collect();
        let is_change = !deltas.is_empty();
        state.by_hand = by == By::Hand && (state.by_hand || is_change);
        if is_change || !self.resolved() {
            self.0.len.store(state.members.len(), Release);
            self.0.resolved.store(true, Release);
            state.followers.retain(|follower| match follower.upgrade() {
                Some(follower) => {
                    follower.follow(&deltas);
                    true
                }
                None => false,
            });
            self.0.version.store(self.version().wrapping_add(1), Release);
            self.0.changed.notify_waiters();
        }
        is_change
    }
}

/// A panic elsewhere leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Endpoints {
    fn default() -> Self {
        Endpoints::new()
    }
}

/// A set of these endpoints, to be changed by hand. Of two with the same key the later one counts.
impl FromIterator<Endpoint> for Endpoints {
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        Endpoints::starting(endpoints.into_iter().collect(), true)
    }
}

impl From<Vec<Endpoint>> for Endpoints {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        endpoints.into_iter().collect()
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints")
            .field("len", &self.len())
            .field("version", &self.version())
            .field("resolved", &self.resolved())
            .finish_non_exhaustive()
    }
}

/// What runs beside a set: what keeps it up to date, and what asks its endpoints how they are. Each is one task, which
/// ends with the last handle. The first starts at the first call; the other as soon as there is a runtime.
#[cfg(any(feature = "discover", feature = "probe"))]
pub(crate) mod feed {
    use std::{
        mem,
        pin::Pin,
        sync::atomic::Ordering::Relaxed,
        task::{Context, Poll, Waker},
    };

    use tokio::{runtime::Handle, task::AbortHandle};

    use super::*;

    /// What a task runs.
    pub(crate) trait Source: Send {
        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

        /// The runtime has ended before it did: what it has of that must go. It may be polled within another one.
        fn pause(&mut self) {}
    }

    impl<F: Future<Output = ()> + Send + ?Sized> Source for Pin<Box<F>> {
        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            self.as_mut().poll(cx)
        }
    }

    /// A set has one source of each.
    #[derive(Debug, Clone, Copy)]
    enum Role {
        Discovery,
        Probes,
    }

    #[derive(Default)]
    pub(super) struct Feed {
        /// Is a source waiting for a task that runs it?
        idle: AtomicBool,
        /// May the source of discovery be polled by the call that starts the task?
        at_once: AtomicBool,
        discovery: Mutex<State>,
        probes: Mutex<State>,
    }

    #[derive(Default)]
    struct State {
        source: Option<Box<dyn Source>>,
        task: Option<AbortHandle>,
        /// How many sources there have been: one that another has replaced does not come back.
        number: u64,
    }

    impl Feed {
        fn state(&self, role: Role) -> &Mutex<State> {
            match role {
                Role::Discovery => &self.discovery,
                Role::Probes => &self.probes,
            }
        }

        /// Puts a source in the place of the one before, which ends.
        fn set(&self, role: Role, source: Option<Box<dyn Source>>) {
            let is_some = source.is_some();
            let (source, task) = {
                let mut state = lock(self.state(role));
                state.number += 1;
                (mem::replace(&mut state.source, source), state.task.take())
            };
            if is_some {
                self.idle.store(true, Release);
            }
            // Without the lock: this runs code of the user.
            drop(source);
            if let Some(task) = task {
                task.abort();
            }
        }
    }

    /// What a source has to say of the endpoint with a key.
    #[allow(dead_code, reason = "said by discovery, which is a feature")]
    #[derive(Debug)]
    pub(crate) enum Edit {
        /// It is this one.
        Put(Endpoint),
        /// There is none, as there was.
        Take(Endpoint),
    }

    /// The handle of a source on its set. It does not keep the set alive.
    #[derive(Clone)]
    pub(crate) struct Feeder(Weak<Shared>);

    #[allow(
        dead_code,
        reason = "which are used depends on the sources that are switched on"
    )]
    impl Feeder {
        /// Publishes these endpoints. False: nobody uses the set any more.
        pub(crate) fn publish(&self, endpoints: impl IntoIterator<Item = Endpoint>) -> bool {
            self.publish_unless(SAME_DESCRIPTION, endpoints)
        }

        /// The same; those that are in the set stay if they will do.
        pub(in crate::call::endpoint) fn publish_unless(
            &self,
            will_do: WillDo,
            endpoints: impl IntoIterator<Item = Endpoint>,
        ) -> bool {
            let Some(shared) = self.0.upgrade() else {
                return false;
            };
            let next: Members = endpoints.into_iter().collect();
            Endpoints(shared).change(By::Source, |state| state.members.become_these(next, will_do));
            true
        }

        /// Publishes these differences as one, or all endpoints, if others than the source have changed the set. False:
        /// nobody uses the set any more.
        pub(crate) fn publish_edits(&self, edits: Vec<Edit>, all: impl FnOnce() -> Vec<Endpoint>) -> bool {
            self.publish_edits_unless(SAME_DESCRIPTION, edits, all)
        }

        /// The same; those that are in the set stay if they will do.
        pub(in crate::call::endpoint) fn publish_edits_unless(
            &self,
            will_do: WillDo,
            edits: Vec<Edit>,
            all: impl FnOnce() -> Vec<Endpoint>,
        ) -> bool {
            let Some(shared) = self.0.upgrade() else {
                return false;
            };
            Endpoints(shared).change(By::Source, |state| {
                if state.by_hand {
                    return state.members.become_these(all().into_iter().collect(), will_do);
                }
                let members = &mut state.members;
                let edits = edits.into_iter();
                edits
                    .filter_map(|edit| match edit {
                        Edit::Put(endpoint) => members.put(endpoint, will_do),
                        Edit::Take(endpoint) => members.take(endpoint.key()),
                    })
                    .collect()
            });
            true
        }

        /// The set, to be looked at and let go of. `None`: nobody uses it any more.
        pub(crate) fn set(&self) -> Option<Endpoints> {
            self.0.upgrade().map(Endpoints)
        }
    }

    #[allow(
        dead_code,
        reason = "which are used depends on the sources that are switched on"
    )]
    impl Endpoints {
        /// Has the set kept up to date by this source, which is run by one task from the first call on.
        pub(crate) fn driven_by<F>(self, source: impl FnOnce(Feeder) -> F) -> Self
        where
            F: Future<Output = ()> + Send + 'static,
        {
            let source = Box::pin(source(Feeder(Arc::downgrade(&self.0))));
            self.0.feed.set(Role::Discovery, Some(Box::new(source)));
            self
        }

        /// The same, and what the source has to publish at the first call is published before that call is made. Only
        /// for sources that run no code of the user and have little to do.
        pub(crate) fn driven_at_once_by<F>(self, source: impl FnOnce(Feeder) -> F) -> Self
        where
            F: Future<Output = ()> + Send + 'static,
        {
            self.0.feed.at_once.store(true, Relaxed);
            self.driven_by(source)
        }

        /// Has the endpoints asked how they are by this source. It is run from now on, if this is within a runtime, and
        /// otherwise as the other one is.
        pub(crate) fn probed_by<S: Source + 'static>(&self, source: impl FnOnce(Feeder) -> S) {
            let source = source(Feeder(Arc::downgrade(&self.0)));
            self.0.feed.set(Role::Probes, Some(Box::new(source)));
            if let Ok(runtime) = Handle::try_current() {
                self.drive_one(Role::Probes, &runtime);
            }
        }

        /// They are not asked any more.
        pub(crate) fn probed_by_none(&self) {
            self.0.feed.set(Role::Probes, None);
        }

        /// Sees to it that the sources are run, if there are any and this is within a runtime. Costs one load when they
        /// are.
        #[inline]
        pub(crate) fn ensure_driven(&self) {
            if self.0.feed.idle.load(Acquire) {
                self.drive();
            }
        }

        #[cold]
        fn drive(&self) {
            let Ok(runtime) = Handle::try_current() else {
                return;
            };
            let feed = &self.0.feed;
            // Before they are taken: one that comes meanwhile says so anew.
            feed.idle.store(false, Release);
            for role in [Role::Discovery, Role::Probes] {
                self.drive_one(role, &runtime);
            }
        }

        fn drive_one(&self, role: Role, runtime: &Handle) {
            let feed = &self.0.feed;
            let (source, number) = {
                let mut state = lock(feed.state(role));
                (state.source.take(), state.number)
            };
            let Some(mut source) = source else {
                return;
            };
            if matches!(role, Role::Discovery) && feed.at_once.load(Relaxed) {
                // The task polls it anew, with a waker of its own.
                let poll = source.poll(&mut Context::from_waker(Waker::noop()));
                if poll.is_ready() {
                    return;
                }
            }
            // Without the lock: a runtime that shuts down drops the task at once, and that puts the source back.
            let task = runtime.spawn(Driver {
                set: Arc::downgrade(&self.0),
                role,
                number,
                source: Some(source),
            });
            let task = task.abort_handle();
            let mut state = lock(feed.state(role));
            if state.number == number {
                state.task = Some(task);
            } else {
                task.abort();
            }
        }
    }

    impl Drop for Feed {
        fn drop(&mut self) {
            for state in [&mut self.discovery, &mut self.probes] {
                let state = state.get_mut().unwrap_or_else(PoisonError::into_inner);
                if let Some(task) = state.task.take() {
                    task.abort();
                }
            }
        }
    }

    /// Runs a source. If its runtime ends before the source does, the source goes back to its set, and the next call
    /// within another runtime runs it on.
    struct Driver {
        set: Weak<Shared>,
        role: Role,
        number: u64,
        source: Option<Box<dyn Source>>,
    }

    impl Future for Driver {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            // Taken out, so that one which panics is not run again.
            let Some(mut source) = self.source.take() else {
                return Poll::Ready(());
            };
            let poll = source.poll(cx);
            if poll.is_pending() {
                self.source = Some(source);
            }
            poll
        }
    }

    impl Drop for Driver {
        fn drop(&mut self) {
            let Some(mut source) = self.source.take() else {
                return;
            };
            let Some(set) = self.set.upgrade() else {
                return;
            };
            source.pause();
            let mut state = lock(set.feed.state(self.role));
            if state.number == self.number {
                state.source = Some(source);
                set.feed.idle.store(true, Release);
            }
        }
    }
}

#[cfg(not(any(feature = "discover", feature = "probe")))]
impl Endpoints {
    /// Nothing runs beside a set.
    #[allow(dead_code, reason = "called by a layer that is a feature")]
    #[inline]
    pub(crate) fn ensure_driven(&self) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::Veto;

    fn endpoint(key: &str) -> Endpoint {
        Endpoint::new(key).unwrap()
    }

    fn keys(set: &Endpoints) -> Vec<String> {
        let snapshot = set.snapshot();
        snapshot
            .endpoints()
            .iter()
            .map(|endpoint| endpoint.key().to_owned())
            .collect()
    }

    #[test]
    fn a_change_is_seen_through_all_handles_at_once_and_order_is_kept() {
        let set = Endpoints::new();
        let other = set.clone();
        for key in ["http://a", "http://b", "http://c"] {
            set.insert(endpoint(key));
        }
        assert_eq!(keys(&other), ["http://a", "http://b", "http://c"]);
        assert!(other.remove("http://a"));
        assert!(!set.remove("http://a"));
        assert_eq!(keys(&set), ["http://b", "http://c"]);
        assert_eq!(set.version(), set.snapshot().version());
    }

    #[test]
    fn an_equal_description_keeps_the_object_and_publishes_nothing() {
        let set: Endpoints = [endpoint("http://a"), endpoint("http://b")].into_iter().collect();
        set.snapshot().endpoints()[0].eligibility().forbid(Veto::Breaker);
        let version = set.version();
        set.insert(endpoint("http://a"));
        set.replace([endpoint("http://a"), endpoint("http://b")]);
        assert_eq!(set.version(), version);
        set.replace([endpoint("http://b"), endpoint("http://a")]);
        assert_eq!(keys(&set), ["http://b", "http://a"]);
        assert!(!set.snapshot().endpoints()[1].eligibility().is_eligible());
        let heavier = Endpoint::builder("http://a").weight(2).build().unwrap();
        set.insert(heavier.clone());
        assert_eq!(keys(&set), ["http://b", "http://a"], "it keeps its place");
        assert_eq!(set.snapshot().endpoints()[1], heavier);
    }

    #[test]
    fn a_set_made_by_hand_is_resolved_even_when_it_is_empty() {
        assert!(Endpoints::new().snapshot().resolved());
        assert!(Endpoints::from(Vec::new()).snapshot().resolved());
    }

    #[cfg(feature = "discover")]
    #[test]
    fn the_first_publication_resolves_a_set_even_when_it_is_empty() {
        let set = Endpoints::unresolved();
        assert!(!set.snapshot().resolved());
        set.replace([]);
        assert!(set.snapshot().resolved());
    }

    #[test]
    fn a_change_between_asking_for_it_and_waiting_is_not_missed() {
        let set = Endpoints::new();
        let changed = set.changed();
        set.insert(endpoint("http://a"));
        assert!(tokio_test::task::spawn(changed).poll().is_ready());
        assert!(tokio_test::task::spawn(set.changed()).poll().is_pending());
    }

    #[cfg(feature = "discover")]
    #[tokio::test]
    async fn a_source_that_panics_is_run_once() {
        use std::{
            sync::atomic::{AtomicU32, Ordering::SeqCst},
            task::Poll,
        };

        let polls = Arc::new(AtomicU32::new(0));
        let counted = polls.clone();
        let set = Endpoints::new().driven_by(|_| {
            std::future::poll_fn(move |_| -> Poll<()> {
                counted.fetch_add(1, SeqCst);
                panic!("a broken source");
            })
        });
        for _ in 0..3 {
            set.ensure_driven();
            tokio::task::yield_now().await;
        }
        assert_eq!(polls.load(SeqCst), 1);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u8, u32),
        Remove(u8),
        Replace(Vec<(u8, u32)>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let one = || (0..5_u8, 1..3_u32);
        prop_oneof![
            one().prop_map(|(key, weight)| Op::Insert(key, weight)),
            (0..5_u8).prop_map(Op::Remove),
            prop::collection::vec(one(), 0..5).prop_map(Op::Replace),
        ]
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map_whatever_is_done(ops in prop::collection::vec(op(), 0..40)) {
            let make = |key: u8, weight| Endpoint::builder(format!("http://h{key}")).weight(weight).build().unwrap();
            let put = |model: &mut Vec<(u8, u32)>, key, weight| {
                match model.iter_mut().find(|(k, _)| *k == key) {
                    Some(old) => old.1 = weight,
                    None => model.push((key, weight)),
                }
            };
            let set = Endpoints::new();
            let mut model = Vec::new();
            for op in ops {
                let before = (set.version(), model.clone());
                match op {
                    Op::Insert(key, weight) => {
                        set.insert(make(key, weight));
                        put(&mut model, key, weight);
                    }
                    Op::Remove(key) => {
                        let removed = set.remove(&format!("http://h{key}"));
                        prop_assert_eq!(removed, model.iter().any(|(k, _)| *k == key));
                        model.retain(|(k, _)| *k != key);
                    }
                    Op::Replace(all) => {
                        set.replace(all.iter().map(|&(key, weight)| make(key, weight)));
                        model.clear();
                        all.into_iter().for_each(|(key, weight)| put(&mut model, key, weight));
                    }
                }
                let seen: Vec<_> = set.snapshot().endpoints().iter()
                    .map(|e| (e.authority().host()[1..].parse::<u8>().unwrap(), e.weight())).collect();
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(set.version(), before.0 + u64::from(before.1 != model));
            }
        }
    }
}
