//! The endpoints that may be picked, each with its counters.
//!
//! A roster is a list of chunks, which the next one shares but for those that a change is about. Whoever changes the set
//! makes it; a pick reads the latest.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    mem,
    ops::Deref,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, Guard};

use super::{
    figures::{Counters, Epoch, Moment},
    in_flight::Counted,
    outlier::{Hub, OutlierEjection},
    scarce::{SMALL, Scarce},
    stats::RibbonStats,
    subset::Subset,
};
use crate::call::{Affinity, Delta, Endpoint, Endpoints, Follower, Index, Member};

/// What a layer and all its services share: the set, and the roster made from it.
#[derive(Debug)]
pub(super) struct Pool {
    endpoints: Endpoints,
    rosters: Arc<Rosters>,
    pub(super) stats: RibbonStats,
}

/// Follows the set.
#[derive(Debug)]
struct Rosters {
    latest: ArcSwap<Latest>,
    epoch: Epoch,
    outliers: Arc<Hub>,
}

/// The latest state of the set, and what its rule draws from.
#[derive(Debug)]
pub(super) struct Latest {
    roster: Arc<Roster>,
    subset: Option<Arc<Subset>>,
}

impl Drop for Rosters {
    fn drop(&mut self) {
        // Attempts that are still under way keep no veto.
        self.outliers.switch_off();
    }
}

/// One state of the set, with the counters of its endpoints.
#[derive(Debug)]
pub(super) struct Roster {
    id: u64,
    pool: u64,
    resolved: bool,
    /// Has anybody looked at it?
    seen: AtomicBool,
    /// How many have come since somebody looked.
    newcomers: usize,
    /// The state since which few have gone or moved at once: seats of states before it are of little use.
    settled: u64,
    len: usize,
    links: Box<[Link]>,
    /// The numbers of the endpoints, by the hashes of their keys, from the first one on that is looked for by its key.
    keys: OnceLock<Index<u64>>,
    /// In which chunk every so manieth place is: see [`STRIDE`].
    signposts: Box<[u32]>,
    zones: OnceLock<Zones>,
    scarce: Scarce,
}

/// A chunk in the list.
#[derive(Debug, Clone)]
struct Link {
    /// The place of its first.
    start: usize,
    /// The number of its first.
    first: u64,
    chunk: Chunk,
}

/// Some endpoints that stand one after the other; at least one.
type Chunk = Arc<[Entry]>;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) endpoint: Endpoint,
    /// Made when somebody looks: of a large set many are never looked at.
    counted: OnceLock<Arc<Counted>>,
    /// The order of the set is that of the numbers.
    number: u64,
    /// Of its key.
    pub(super) hash: Affinity,
    /// Did most of the others come before it?
    pub(super) late: bool,
}

/// Which endpoints are in which zone. Those without one share one.
#[derive(Debug)]
struct Zones {
    /// Of the endpoint at each place.
    of: Box<[u32]>,
    /// The places of the endpoints of each, in the order in which the zones occur.
    places: Box<[Box<[usize]>]>,
}

/// An endpoint of a pool, to be found again in its later rosters.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    /// Its place, and above it the lower half of the id of the roster in which it was looked up last.
    known: AtomicU64,
}

/// So many endpoints are in a chunk at most. A change copies one, and the list of all: with ten thousand both take
/// about as long.
const MOST: usize = if cfg!(test) { 8 } else { 128 };
/// One with fewer takes in its neighbor, unless it is the last.
const LEAST: usize = MOST / 4;
const STRIDE: usize = MOST / 2;
/// So many of a large set, from anywhere, are looked at before all.
const LOOKS: u64 = 64;
/// A change by which more than one in so many lose their seats leaves nothing of what was worked out before.
const UPHEAVAL: usize = 8;

/// No two rosters of a process have the same number, be they of one set or not. Nor have pools.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Pool {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        let rosters = endpoints.followed_by(|members, resolved| {
            let entries = members.map(|(number, endpoint)| Entry::new(endpoint.clone(), number, false));
            Rosters {
                latest: ArcSwap::from_pointee(Latest {
                    roster: Arc::new(Roster::new(entries, resolved)),
                    subset: None,
                }),
                epoch: Epoch::default(),
                outliers: Arc::default(),
            }
        });
        Pool {
            endpoints,
            rosters,
            stats: RibbonStats::default(),
        }
    }

    /// The same set and the same counters, read in another way.
    pub(super) fn with(&self, stats: RibbonStats) -> Self {
        Pool {
            endpoints: self.endpoints.clone(),
            rosters: self.rosters.clone(),
            stats,
        }
    }

    /// Ejects outliers from now on, by these settings.
    pub(super) fn eject(&self, outliers: OutlierEjection) {
        self.rosters.outliers.switch_on(outliers);
    }

    #[inline]
    pub(super) fn outliers(&self) -> &Arc<Hub> {
        &self.rosters.outliers
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// What the times of the counters are counted from.
    pub(super) fn epoch(&self) -> &Epoch {
        &self.rosters.epoch
    }

    /// The roster of the latest state of the set that was published before this call.
    #[inline]
    pub(super) fn roster(&self) -> Guard<Arc<Latest>> {
        let latest = self.rosters.latest.load();
        if !latest.seen.load(Relaxed) {
            latest.seen.store(true, Relaxed);
        }
        latest
    }

    /// From now on a rule draws from this one, in place of the one that it saw, if that has not been replaced meanwhile.
    pub(super) fn keep_subset(&self, seen: Option<&Subset>, subset: &Arc<Subset>) {
        // The set may change meanwhile.
        self.rosters.latest.rcu(|latest| {
            if latest.other_subset(seen).is_some() {
                return latest.clone();
            }
            Arc::new(Latest {
                roster: latest.roster.clone(),
                subset: subset.for_set_of(latest.len()),
            })
        });
    }
}

impl Follower for Rosters {
    fn follow(&self, deltas: &[Delta]) {
        let next = Arc::new(self.latest.load().after(deltas));
        // The subset may be made anew meanwhile.
        self.latest.rcu(|latest| Latest {
            roster: next.clone(),
            subset: latest
                .subset
                .as_ref()
                .and_then(|subset| subset.for_set_of(next.len())),
        });
        self.outliers.set_changed();
    }
}

impl Latest {
    #[inline]
    pub(super) fn subset(&self) -> Option<&Subset> {
        self.subset.as_deref()
    }

    /// The subset, if it is another than this one.
    pub(super) fn other_subset(&self, seen: Option<&Subset>) -> Option<&Arc<Subset>> {
        let is_other = self.subset().map(ptr::from_ref) != seen.map(ptr::from_ref);
        self.subset.as_ref().filter(|_| is_other)
    }

    pub(super) fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }
}

impl Deref for Latest {
    type Target = Roster;

    #[inline]
    fn deref(&self) -> &Roster {
        &self.roster
    }
}

impl Roster {
    fn new(entries: impl ExactSizeIterator<Item = Entry>, resolved: bool) -> Self {
        let newcomers = entries.len();
        let mut links = Links::default();
        links.add(entries);
        let pool = NEXT_ID.fetch_add(1, Relaxed);
        Roster::of(links, None, pool, resolved, newcomers, None)
    }

    /// `keys`: if they are known. `settled`: none, if it is only now.
    fn of(
        links: Links,
        keys: Option<Index<u64>>,
        pool: u64,
        resolved: bool,
        newcomers: usize,
        settled: Option<u64>,
    ) -> Self {
        let Links { links, len } = links;
        let mut signposts = Vec::new();
        if links.len() > 1 {
            let next_starts = links.iter().skip(1).map(|next| next.start).chain([len]);
            for (index, next_start) in (0..).zip(next_starts) {
                signposts.resize(next_start.div_ceil(STRIDE), index);
            }
        }
        let id = NEXT_ID.fetch_add(1, Relaxed);
        Roster {
            id,
            pool,
            resolved,
            seen: AtomicBool::new(false),
            newcomers,
            settled: settled.unwrap_or(id),
            len,
            links: links.into(),
            keys: keys.map(OnceLock::from).unwrap_or_default(),
            signposts: signposts.into(),
            zones: OnceLock::new(),
            scarce: Scarce::default(),
        }
    }

    /// The state that follows. An endpoint that stays, if under another description or in another place, keeps its
    /// counters; those of the others go with the old roster.
    fn after(&self, deltas: &[Delta]) -> Self {
        let came = deltas
            .iter()
            .filter(|delta| matches!(delta, Delta::Came(_)))
            .count();
        let went = deltas
            .iter()
            .filter(|delta| matches!(delta, Delta::Went(_)))
            .count();
        let newcomers = came
            + if self.seen.load(Relaxed) {
                0
            } else {
                self.newcomers
            };
        let moves = |delta: &&Delta| match delta {
            Delta::Became(number, now) => *number != now.number,
            Delta::Came(_) | Delta::Went(_) => false,
        };
        let lost = went + deltas.iter().filter(moves).count();
        let settled = (lost * UPHEAVAL <= self.len).then_some(self.settled);
        let late = newcomers * 2 <= (self.len + came).saturating_sub(went);
        let mut draft = Draft::new(&self.links);
        let mut keys = self.keys.get().cloned();
        for delta in deltas {
            match delta {
                Delta::Came(Member { number, endpoint }) => {
                    let entry = Entry::new(endpoint.clone(), *number, late);
                    if let Some(keys) = &mut keys {
                        keys.insert(entry.hash.get(), *number);
                    }
                    draft.append(entry);
                }
                Delta::Went(number) => {
                    if let (Some(old), Some(keys)) = (draft.take(*number), &mut keys) {
                        keys.remove(old.hash.get(), |one| one == number);
                    }
                }
                Delta::Became(number, now) if *number == now.number => {
                    if let Some(entry) = draft.get_mut(*number) {
                        entry.become_this(&now.endpoint);
                    }
                }
                Delta::Became(number, now) => {
                    if let Some(mut entry) = draft.take(*number) {
                        if let Some(keys) = &mut keys {
                            keys.remove(entry.hash.get(), |one| one == number);
                            keys.insert(entry.hash.get(), now.number);
                        }
                        entry.become_this(&now.endpoint);
                        entry.number = now.number;
                        draft.append(entry);
                    }
                }
            }
        }
        Roster::of(draft.into_links(), keys, self.pool, true, newcomers, settled)
    }

    /// Is there another endpoint than this one that may be picked? Mostly one of the first two is.
    #[inline]
    pub(super) fn has_another_than(&self, entry: &Entry, now: &Moment) -> bool {
        let first = self.links.first().map(|link| link.chunk.iter().take(2));
        let mut first = first.into_iter().flatten();
        first.any(|other| other.is_a_choice_beside(entry)) || self.has_one_further_on(entry, now)
    }

    /// Where the first have vetoes many of those behind them may have some as well, so that a few from anywhere are
    /// looked at before all.
    #[cold]
    fn has_one_further_on(&self, entry: &Entry, now: &Moment) -> bool {
        let is_one = |other: &Entry| other.is_a_choice_beside(entry);
        if let Some(few) = self.scarce.known(now) {
            return few.iter().filter_map(|&place| self.get(place)).any(is_one);
        }
        let looks = if self.len > SMALL { LOOKS } else { 0 };
        let anywhere = (0..looks).filter_map(|number| {
            let place = entry.hash.with(number).get().checked_rem(self.len as u64)?;
            self.get(place as usize)
        });
        anywhere.chain(self.iter()).any(is_one)
    }

    /// The places of those that have no veto, if it has been seen a short while ago that they are few.
    #[inline]
    pub(super) fn known_few(&self, now: &Moment) -> Option<Arc<Vec<usize>>> {
        self.scarce.known(now)
    }

    /// Looks whether those that have no veto are few. `None`: they are not.
    pub(super) fn find_few(&self, now: &Moment) -> Option<Arc<Vec<usize>>> {
        let all = self.iter().enumerate();
        let eligible = all.filter(|(_, entry)| entry.endpoint.eligibility().is_eligible());
        self.scarce.keep(eligible.map(|(place, _)| place), self.len, now)
    }

    /// What is known of the few does not hold any more.
    pub(super) fn forget_few(&self) {
        self.scarce.forget();
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Is what was worked out for this state of the set of some use still? If not, most may have lost their seats.
    pub(super) fn has_settled_since(&self, roster: u64) -> bool {
        self.settled <= roster
    }

    /// Which pool this is a state of.
    pub(super) fn pool(&self) -> u64 {
        self.pool
    }

    /// The places of the endpoints of each zone.
    pub(super) fn zones(&self) -> &[Box<[usize]>] {
        &self.sorted_into_zones().places
    }

    /// The zone of the one at this place.
    pub(super) fn zone(&self, place: usize) -> usize {
        let zone = self.sorted_into_zones().of.get(place);
        zone.map_or(usize::MAX, |&zone| zone as usize)
    }

    fn sorted_into_zones(&self) -> &Zones {
        self.zones
            .get_or_init(|| Zones::of(self.iter().map(|entry| &entry.endpoint)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All, in the order of the set.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.links.iter().flat_map(|link| link.chunk.iter())
    }

    /// The one at this place.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&Entry> {
        if let [only] = &*self.links {
            return only.chunk.get(place);
        }
        let signpost = *self.signposts.get(place / STRIDE)? as usize;
        let mut rest = self.links.get(signpost..)?.iter();
        let mut link = rest.next()?;
        // There are at least some in each chunk, so it is one of the next few.
        for next in rest {
            if next.start > place {
                break;
            }
            link = next;
        }
        link.chunk.get(place - link.start)
    }

    /// The endpoint at this place, to be found again.
    pub(super) fn seat(&self, place: usize) -> Option<Seat> {
        Some(Seat {
            number: self.get(place)?.number,
            known: AtomicU64::new(self.known(place)),
        })
    }

    /// Where the one with this number is. None: it has gone.
    fn place_of(&self, number: u64) -> Option<usize> {
        let after = self.links.partition_point(|link| link.first <= number);
        let link = self.links.get(after.checked_sub(1)?)?;
        let found = link.chunk.binary_search_by_key(&number, |entry| entry.number);
        Some(link.start + found.ok()?)
    }

    /// Is this one in it, by this very description?
    pub(super) fn has(&self, number: u64, endpoint: &Endpoint) -> bool {
        let entry = self.place_of(number).and_then(|place| self.get(place));
        entry.is_some_and(|entry| entry.endpoint == *endpoint)
    }

    /// A place, and that it is one of this roster.
    fn known(&self, place: usize) -> u64 {
        self.id << 32 | (place as u64).min(NOWHERE)
    }

    pub(super) fn resolved(&self) -> bool {
        self.resolved
    }

    fn keys(&self) -> &Index<u64> {
        self.keys.get_or_init(|| {
            let numbers = self.iter().map(|entry| (entry.hash.get(), entry.number));
            numbers.collect()
        })
    }

    /// The entry of this endpoint, or of the one that has its key now. It is for retries, not for each call.
    pub(super) fn find(&self, endpoint: &Endpoint) -> Option<&Entry> {
        self.find_by(endpoint.affinity(), endpoint.key())
    }

    pub(super) fn find_key(&self, key: &str) -> Option<&Entry> {
        self.find_by(Affinity::of(key), key)
    }

    fn find_by(&self, hash: Affinity, key: &str) -> Option<&Entry> {
        let numbers = self.keys().find(hash.get());
        let mut entries = numbers.filter_map(|&number| self.get(self.place_of(number)?));
        entries.find(|entry| entry.endpoint.key() == key)
    }
}

/// As a place: it has gone.
const NOWHERE: u64 = u32::MAX as u64;

impl Seat {
    /// Where it is in this roster, which is one of its pool. None: it has gone. It is looked up once for each roster.
    #[inline]
    pub(super) fn place(&self, roster: &Roster) -> Option<usize> {
        self.find(roster, |_| true)
    }

    /// The same, and gone is as well what is described anew. All questions about one seat are to be of one kind.
    #[inline]
    pub(super) fn place_as(&self, endpoint: &Endpoint, roster: &Roster) -> Option<usize> {
        self.find(roster, |entry| entry.endpoint == *endpoint)
    }

    #[inline(always)]
    fn find(&self, roster: &Roster, is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
        let mut known = self.known.load(Relaxed);
        if known >> 32 != roster.id & NOWHERE {
            known = self.look_up(roster, &is_it);
        }
        match known & NOWHERE {
            NOWHERE => None,
            place => Some(place as usize),
        }
    }

    #[cold]
    fn look_up(&self, roster: &Roster, is_it: &dyn Fn(&Entry) -> bool) -> u64 {
        let place = roster.place_of(self.number);
        let place = place.filter(|&place| roster.get(place).is_some_and(is_it));
        let known = roster.known(place.unwrap_or(usize::MAX));
        self.known.store(known, Relaxed);
        known
    }
}

impl Entry {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn new(endpoint: Endpoint, number: u64, late: bool) -> Self {
        Entry {
            hash: endpoint.affinity(),
            endpoint,
            counted: OnceLock::new(),
            number,
            late,
        }
    }

    #[inline]
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counted().counters
    }

    #[inline]
    pub(super) fn counted(&self) -> &Arc<Counted> {
        match self.counted.get() {
            Some(counted) => counted,
            None => self.begin_to_count(),
        }
    }

    /// Where several threads come at once, what one has made counts; none waits for another.
    #[cold]
    fn begin_to_count(&self) -> &Arc<Counted> {
        let counted = Arc::new(Counted::new(self.endpoint.clone(), Arc::default()));
        self.counted.get_or_init(|| counted)
    }

    /// From now on it is described like this. The counters stay.
    fn become_this(&mut self, endpoint: &Endpoint) {
        if let Some(counted) = self.counted.take() {
            let counted = Counted::new(endpoint.clone(), counted.counters.clone());
            self.counted = OnceLock::from(Arc::new(counted));
        }
        self.endpoint = endpoint.clone();
    }

    #[inline]
    fn is_a_choice_beside(&self, picked: &Entry) -> bool {
        self.number != picked.number && self.endpoint.eligibility().is_eligible()
    }
}

/// For the next roster. It must have the same counters, so that they are made now at the latest.
impl Clone for Entry {
    fn clone(&self) -> Self {
        Entry {
            endpoint: self.endpoint.clone(),
            counted: OnceLock::from(self.counted().clone()),
            ..*self
        }
    }
}

/// The list of a new roster, from its beginning.
#[derive(Default)]
struct Links {
    links: Vec<Link>,
    len: usize,
}

impl Links {
    /// Chunks of these, about as large as one another.
    fn add(&mut self, mut entries: impl ExactSizeIterator<Item = Entry>) {
        let mut chunks = entries.len().div_ceil(MOST);
        while let Some(size) = entries.len().checked_div(chunks) {
            let chunk: Chunk = entries.by_ref().take(size).collect();
            if let Some(first) = chunk.first().map(|entry| entry.number) {
                self.push(first, chunk);
            }
            chunks -= 1;
        }
    }

    fn push(&mut self, first: u64, chunk: Chunk) {
        let start = self.len;
        self.len += chunk.len();
        self.links.push(Link { start, first, chunk });
    }
}

/// A roster while it is changed.
struct Draft<'a> {
    links: &'a [Link],
    /// What became of each of these, and then what has come behind the last.
    pieces: Vec<Piece<'a>>,
}

#[derive(Default)]
struct Piece<'a> {
    /// As it was; none, if it has been opened.
    link: Option<&'a Link>,
    entries: Vec<Entry>,
}

impl Piece<'_> {
    fn len(&self) -> usize {
        self.link.map_or(self.entries.len(), |link| link.chunk.len())
    }

    fn open(&mut self) -> &mut Vec<Entry> {
        if let Some(link) = self.link.take() {
            // One more may be on its way.
            self.entries.reserve_exact(link.chunk.len() + 1);
            self.entries.extend(link.chunk.iter().cloned());
        }
        &mut self.entries
    }
}

impl<'a> Draft<'a> {
    fn new(links: &'a [Link]) -> Self {
        let piece = |link| Piece {
            link: Some(link),
            entries: Vec::new(),
        };
        Draft {
            links,
            pieces: links.iter().map(piece).collect(),
        }
    }

    /// Puts it behind all others. Its number is above theirs.
    fn append(&mut self, entry: Entry) {
        if self.pieces.last().is_none_or(|last| last.len() >= MOST) {
            self.pieces.push(Piece::default());
        }
        if let Some(last) = self.pieces.last_mut() {
            last.open().push(entry);
        }
    }

    fn find(&mut self, number: u64) -> Option<(&mut Vec<Entry>, usize)> {
        let after = self.links.partition_point(|link| link.first <= number);
        let (old, new) = self.pieces.split_at_mut_checked(self.links.len())?;
        let old = after.checked_sub(1).and_then(|index| old.get_mut(index));
        old.into_iter().chain(new).find_map(|part| {
            let entries = part.open();
            let at = entries.binary_search_by_key(&number, |entry| entry.number).ok()?;
            Some((entries, at))
        })
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        let (entries, at) = self.find(number)?;
        Some(entries.remove(at))
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let (entries, at) = self.find(number)?;
        entries.get_mut(at)
    }

    fn into_links(self) -> Links {
        let mut links = Links::default();
        links.links.reserve_exact(self.pieces.len());
        // What is too little for a chunk goes to the next.
        let mut little = Vec::new();
        for mut part in self.pieces {
            match part.link {
                Some(link) if little.is_empty() => links.push(link.first, link.chunk.clone()),
                _ if little.is_empty() => little = mem::take(part.open()),
                _ => little.append(part.open()),
            }
            if little.len() >= LEAST {
                links.add(mem::take(&mut little).into_iter());
            }
        }
        links.add(little.into_iter());
        links
    }
}

impl Zones {
    fn of<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Self {
        let mut by_name: HashMap<Zone<'_>, u32> = HashMap::new();
        let mut places: Vec<Vec<usize>> = Vec::new();
        let mut of = Vec::new();
        for (place, endpoint) in endpoints.enumerate() {
            let next = places.len() as u32;
            let zone = *by_name.entry(Zone(endpoint.zone())).or_insert(next);
            if zone == next {
                places.push(Vec::new());
            }
            if let Some(places) = places.get_mut(zone as usize) {
                places.push(place);
            }
            of.push(zone);
        }
        Zones {
            of: of.into(),
            places: places.into_iter().map(Vec::into_boxed_slice).collect(),
        }
    }
}

/// The name of a zone, or that there is none. As in Ribbon names that differ in upper and lower case alone are one.
struct Zone<'a>(Option<&'a str>);

impl PartialEq for Zone<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
            (one, other) => one == other,
        }
    }
}

impl Eq for Zone<'_> {}

impl Hash for Zone<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.0.map_or(0, |name| name.len() + 1));
        for byte in self.0.unwrap_or_default().bytes() {
            state.write_u8(byte.to_ascii_lowercase());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::{balance::in_flight::InFlight, call::Veto};

    fn endpoint(key: &str) -> Endpoint {
        Endpoint::new(key).unwrap()
    }

    #[test]
    fn counters_stay_with_the_key_and_go_with_it() {
        let set: Endpoints = ["http://a", "http://b"].map(endpoint).into_iter().collect();
        let pool = Pool::new(set.clone());
        let open: Vec<_> = pool
            .roster()
            .iter()
            .map(|entry| {
                let now = pool.epoch().moment(Instant::now());
                entry.counters().count_from(pool.epoch(), &now);
                InFlight::begin(entry.counted(), &now, tokio::time::Duration::from_secs(1), false)
            })
            .collect();
        let in_flight = || -> Vec<u64> {
            let roster = pool.roster();
            roster.iter().map(|entry| entry.counters().in_flight()).collect()
        };
        set.insert(endpoint("http://c"));
        set.insert(Endpoint::builder("http://b").weight(7).build().unwrap());
        assert_eq!(in_flight(), [1, 1, 0], "a new description is the same endpoint");
        let gone = Arc::downgrade(pool.roster().get(0).unwrap().counters());
        set.remove("http://a");
        assert_eq!(in_flight(), [1, 0]);
        drop(open);
        assert!(
            gone.upgrade().is_none(),
            "nothing is kept of an endpoint that has gone"
        );
        set.insert(endpoint("http://a"));
        assert_eq!(in_flight(), [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn counters_follow_their_keys_through_any_change(
            before in Just((0..8_u8).collect::<Vec<_>>()).prop_shuffle(),
            left_out in 0..8_usize,
            after in Just((0..10_u8).collect::<Vec<_>>()).prop_shuffle(),
            kept in 0..10_usize,
            new_description in any::<u16>(),
        ) {
            let make = |key: u8| endpoint(&format!("http://h{key}"));
            let set: Endpoints = before[left_out..].iter().copied().map(make).collect();
            let pool = Pool::new(set.clone());
            let old: Vec<Entry> = pool.roster().iter().cloned().collect();
            set.replace(after[..kept].iter().map(|&key| {
                let heavier = 1 + u32::from(new_description >> key & 1);
                Endpoint::builder(format!("http://h{key}")).weight(heavier).build().unwrap()
            }));
            for entry in pool.roster().iter() {
                match old.iter().find(|old| old.endpoint.key() == entry.endpoint.key()) {
                    Some(old) => prop_assert!(Arc::ptr_eq(old.counters(), entry.counters())),
                    None => prop_assert!(old.iter().all(|old| !Arc::ptr_eq(old.counters(), entry.counters()))),
                }
            }
        }
    }

    #[test]
    fn a_roster_without_a_change_is_the_same_object() {
        let set: Endpoints = [endpoint("http://a")].into_iter().collect();
        let pool = Pool::new(set.clone());
        let before = pool.roster().roster.clone();
        set.insert(endpoint("http://a"));
        assert!(Arc::ptr_eq(&before, &pool.roster().roster));
        set.insert(endpoint("http://b"));
        assert!(!Arc::ptr_eq(&before, &pool.roster().roster));
    }

    /// Whatever is made of it, a roster is a list.
    fn check(roster: &Roster, expected: &[Endpoint]) {
        assert!(roster.iter().map(|entry| &entry.endpoint).eq(expected));
        assert!(
            roster
                .iter()
                .all(|entry| entry.hash == Affinity::of(entry.endpoint.key()))
        );
        let describes = |entry: &Entry| match entry.counted.get() {
            Some(counted) => counted.endpoint == entry.endpoint,
            None => true,
        };
        assert!(
            roster.iter().all(describes),
            "attempts go by the latest description"
        );
        assert_eq!(
            (roster.len(), roster.is_empty()),
            (expected.len(), expected.is_empty())
        );
        for place in 0..expected.len() + 2 * MOST {
            let found = roster.get(place).map(|entry| &entry.endpoint);
            assert_eq!(found, expected.get(place), "at {place}");
            if let Some(seat) = roster.seat(place) {
                assert_eq!(
                    (seat.place(roster), roster.place_of(seat.number)),
                    (Some(place), Some(place))
                );
            }
        }
        let place_of = |entry: &Entry| roster.place_of(entry.number);
        for (place, endpoint) in expected.iter().enumerate() {
            assert_eq!(roster.find(endpoint).and_then(place_of), Some(place));
            assert_eq!(roster.find_key(endpoint.key()).and_then(place_of), Some(place));
        }
        assert_eq!(roster.keys().len(), expected.len(), "and no others");
        let sizes: Vec<_> = roster.links.iter().map(|link| link.chunk.len()).collect();
        let all_but_the_last = sizes.iter().rev().skip(1);
        assert!(all_but_the_last.copied().all(|size| size >= LEAST), "{sizes:?}");
        assert!(sizes.iter().all(|size| (1..=MOST).contains(size)), "{sizes:?}");
    }

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u8, u32),
        Remove(u8),
        RemoveRange(u8, u8),
        Replace(Vec<u8>),
        Look(usize),
        LookAtAll,
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = || 0..60_u8;
        prop_oneof![
            8 => (key(), 1..3_u32).prop_map(|(key, weight)| Op::Insert(key, weight)),
            8 => key().prop_map(Op::Remove),
            1 => (key(), key()).prop_map(|(from, to)| Op::RemoveRange(from, to)),
            1 => prop::collection::vec(key(), 0..60).prop_map(Op::Replace),
            6 => any::<prop::sample::Index>().prop_map(|place| Op::Look(place.index(60))),
            1 => Just(Op::LookAtAll),
        ]
    }

    proptest! {
        #[test]
        fn a_roster_is_the_list_that_the_set_is_and_counters_follow_keys(
            first in prop::collection::vec(0..60_u8, 0..60),
            ops in prop::collection::vec(op(), 0..60),
        ) {
            let make = |key: u8, weight| {
                Endpoint::builder(format!("http://h{key}")).weight(weight).build().unwrap()
            };
            let set: Endpoints = first.into_iter().map(|key| make(key, 1)).collect();
            let pool = Pool::new(set.clone());
            // What has been seen, and where the first of each was found.
            let mut counters: HashMap<String, Arc<Counters>> = HashMap::new();
            let mut seats: HashMap<String, Seat> = HashMap::new();
            for op in ops {
                match op {
                    Op::Insert(key, weight) => set.insert(make(key, weight)),
                    Op::Remove(key) => {
                        set.remove(&format!("http://h{key}"));
                    }
                    Op::RemoveRange(from, to) => {
                        for key in from..to {
                            set.remove(&format!("http://h{key}"));
                        }
                    }
                    Op::Replace(keys) => {
                        // Numbers go by the order, so that seats are for changes that leave it alone.
                        seats.clear();
                        set.replace(keys.into_iter().map(|key| make(key, 1)));
                    }
                    Op::Look(place) => {
                        let roster = pool.roster();
                        if let Some(entry) = roster.get(place) {
                            let key = entry.endpoint.key().to_owned();
                            let known = counters.entry(key.clone()).or_insert_with(|| Arc::clone(entry.counters()));
                            prop_assert!(Arc::ptr_eq(known, entry.counters()));
                            seats.entry(key).or_insert_with(|| roster.seat(place).unwrap());
                        }
                    }
                    Op::LookAtAll => {
                        for entry in pool.roster().iter() {
                            let known = counters.entry(entry.endpoint.key().to_owned());
                            let known = known.or_insert_with(|| Arc::clone(entry.counters()));
                            prop_assert!(Arc::ptr_eq(known, entry.counters()));
                        }
                    }
                }
                let snapshot = set.snapshot();
                let roster = pool.roster();
                check(&roster, snapshot.endpoints());
                let place_of = |key: &str| snapshot.endpoints().iter().position(|one| one.key() == key);
                for (key, seat) in &seats {
                    prop_assert_eq!(seat.place(&roster), place_of(key));
                }
                seats.retain(|key, _| place_of(key).is_some());
                counters.retain(|key, known| {
                    let stays = place_of(key).is_some();
                    assert!(stays || Arc::strong_count(known) == 1, "nothing is kept of {key}");
                    stays
                });
            }
            drop(pool);
            prop_assert!(counters.values().all(|known| Arc::strong_count(known) == 1));
        }
    }

    #[test]
    fn a_change_leaves_all_chunks_but_one_alone() {
        let set: Endpoints = (0..100).map(|n| endpoint(&format!("http://h{n}"))).collect();
        let pool = Pool::new(set.clone());
        let chunks = || -> Vec<_> {
            pool.roster()
                .links
                .iter()
                .map(|link| link.chunk.clone())
                .collect()
        };
        let before = chunks();
        set.remove("http://h50");
        let after = chunks();
        let is_new = |chunk: &&Chunk| !before.iter().any(|old| Arc::ptr_eq(old, chunk));
        assert_eq!(after.iter().filter(is_new).count(), 1);
        assert_eq!(after.len(), before.len());
        let made = |chunk: &&Chunk| chunk.iter().any(|entry| entry.counted.get().is_some());
        assert_eq!(
            after.iter().filter(made).count(),
            1,
            "the others have not even counters yet"
        );
    }

    #[test]
    fn there_is_a_choice_as_long_as_any_other_has_no_veto() {
        for n in [3, 300, 1_000] {
            let set: Endpoints = (0..n).map(|n| endpoint(&format!("http://h{n}"))).collect();
            let pool = Pool::new(set.clone());
            let roster = pool.roster();
            let now = pool.epoch().moment(Instant::now());
            let (first, last) = (roster.get(0).unwrap(), roster.get(n - 1).unwrap());
            let choice = |entry: &Entry| roster.has_another_than(entry, &now);
            assert!(choice(first) && choice(last));
            let all_but_the_last = roster.iter().take(n - 1);
            all_but_the_last.for_each(|entry| entry.endpoint.eligibility().forbid(Veto::Probe));
            assert!(choice(first) && !choice(last));
            if n > SMALL {
                assert_eq!(*roster.find_few(&now).unwrap(), [n - 1]);
                assert!(choice(first) && !choice(last), "and when that is known");
            }
            last.endpoint.eligibility().forbid(Veto::Probe);
            assert!(!choice(first) && !choice(last));
        }
    }

    #[test]
    fn who_comes_before_anybody_has_looked_does_not_come_late() {
        let set = Endpoints::new();
        let pool = Pool::new(set.clone());
        let late = || -> Vec<bool> { pool.roster().iter().map(|entry| entry.late).collect() };
        for key in ["http://a", "http://b", "http://c"] {
            set.insert(endpoint(key));
        }
        assert_eq!(late(), [false; 3]);
        set.insert(endpoint("http://d"));
        assert_eq!(late(), [false, false, false, true]);
    }

    #[test]
    fn zones_are_sorted_when_they_are_asked_for_and_their_letters_may_be_large_or_small() {
        let zoned = |key: &str, zone: &str| Endpoint::builder(key).zone(zone).build().unwrap();
        let set: Endpoints = [
            zoned("a:1", "eu"),
            endpoint("b:1"),
            zoned("c:1", "EU"),
            zoned("d:1", "us"),
        ]
        .into_iter()
        .collect();
        let pool = Pool::new(set.clone());
        assert!(pool.roster().zones.get().is_none());
        let zones =
            || -> Vec<Vec<usize>> { pool.roster().zones().iter().map(|zone| zone.to_vec()).collect() };
        assert_eq!(zones(), [vec![0, 2], vec![1], vec![3]]);
        let roster = pool.roster();
        assert_eq!([0, 1, 2, 3].map(|place| roster.zone(place)), [0, 1, 0, 2]);
        set.remove("http://a:1");
        assert_eq!(zones(), [vec![0], vec![1], vec![2]]);
    }
}
