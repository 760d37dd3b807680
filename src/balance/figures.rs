//! What is counted about an endpoint.

use std::sync::{
    Arc, OnceLock,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::{Duration, Instant},
};

use super::{
    load::{Load, Sample},
    outlier::{Hub, Outcome, Ticket, Watch},
};
use crate::call::{Endpoint, Verdict};

/// What the times of a pool are counted from, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Epoch(OnceLock<Instant>);

/// So long before the pool was first asked for the time. A clock that stands still in a test may be behind another.
const BEFORE: Duration = Duration::from_secs(24 * 3_600);

/// An instant, and how the counters of a pool have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) instant: Instant,
    pub(super) nanos: u64,
}

impl Epoch {
    #[inline]
    pub(super) fn moment(&self, instant: Instant) -> Moment {
        Moment {
            instant,
            nanos: nanos_between(self.get(instant), instant),
        }
    }

    #[inline]
    fn get(&self, now: Instant) -> Instant {
        *self.0.get_or_init(|| now.checked_sub(BEFORE).unwrap_or(now))
    }
}

/// It is enough for five hundred years.
#[inline]
fn nanos_between(from: Instant, to: Instant) -> u64 {
    let between = to.into_std().saturating_duration_since(from.into_std());
    let whole = between.as_secs().wrapping_mul(1_000_000_000);
    whole.wrapping_add(between.subsec_nanos().into())
}

/// The live counters of one endpoint. What a call looks at and changes comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Counters {
    /// What is in flight: a guard takes back what it has added, so that it cannot drift.
    load: Load,
    /// The connection failures in a row, and when the last one of all was, in one word: they are read together.
    troubles: AtomicU64,
    /// When an attempt started or ended last.
    changed: AtomicU64,
    successes: AtomicU64,
    /// The sum over the attempts that ended with an answer or an error.
    response_nanos: AtomicU64,
    /// That of the pool, from the first attempt on.
    epoch: Epoch,
    failures: AtomicU64,
    ignored: AtomicU64,
    abandoned: AtomicU64,
    /// Where outliers are ejected.
    watch: OnceLock<Arc<Watch>>,
    /// How many wait for the last attempt to end.
    awaited: AtomicU32,
}

/// The last attempt at an endpoint has ended, and somebody awaits that. It is so seldom that all of them share one, and
/// look whether it was theirs: an endpoint need not carry its own.
static ENDED: Notify = Notify::const_new();

/// Somebody waits for the last attempt to end, while this lives.
#[derive(Debug)]
pub(super) struct AwaitLast<'a>(&'a Counters);

impl AwaitLast<'_> {
    /// Completes when nothing is in flight, if that comes after this was called. There may be other reasons.
    pub(super) fn ended(&self) -> Notified<'static> {
        ENDED.notified()
    }

    /// What is still in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.0.load.in_flight_now()
    }
}

impl Drop for AwaitLast<'_> {
    fn drop(&mut self) {
        self.0.awaited.fetch_sub(1, SeqCst);
    }
}

/// The lower bits of [`Counters::troubles`] are the count. The others are the time, in microseconds, plus one: zero is
/// never. They hold eight years.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const LATEST: u64 = u64::MAX >> COUNT_BITS;

/// How an attempt ended, apart from what its outcome counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With an answer.
    Answered,
    /// The server, or somebody on the way, had something else to say.
    Met,
    /// The server was not reached, or fell silent, or broke the connection.
    ConnectionFailed,
}

impl Counters {
    #[inline]
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        self.epoch.moment(now).nanos
    }

    /// The connection failures in a row; when the last one was, in a row or not.
    #[inline]
    pub(super) fn troubles(&self) -> (u32, Option<u64>) {
        let troubles = self.troubles.load(Relaxed);
        let last = (troubles >> COUNT_BITS)
            .checked_sub(1)
            .map(|micros| micros * 1_000);
        ((troubles & COUNT) as u32, last)
    }

    /// When an attempt started or ended last.
    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Relaxed)
    }

    /// What is watched of it, if outliers are ejected.
    pub(super) fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.get()
    }

    #[inline]
    pub(super) fn watched_by(&self, hub: &Arc<Hub>) -> &Watch {
        self.watch.get_or_init(|| Arc::new(Watch::new(hub.clone())))
    }

    /// What was admitted with this has ended, for the detector of outliers.
    #[inline]
    pub(super) fn unwatch(
        self: &Arc<Self>,
        ticket: Ticket,
        endpoint: &Endpoint,
        outcome: Outcome,
        now: Instant,
    ) {
        if ticket == Ticket::default() {
            return;
        }
        if let Some(watch) = self.watch() {
            watch.end(ticket, self, endpoint, outcome, now);
        }
    }

    /// It has come back to the others, and is to get less than its part at first.
    pub(super) fn begin_slowly(&self, now: Instant) {
        self.load.settle();
        self.load.join(self.nanos(now));
    }

    /// Counts time as the pool does. It is to be said before the first attempt.
    #[inline]
    pub(super) fn count_from(&self, epoch: &Epoch, now: &Moment) {
        self.epoch.0.get_or_init(|| epoch.get(now.instant));
    }

    #[inline]
    pub(super) fn begin(&self, now: &Moment) {
        self.load.begin(now.nanos);
        self.changed.store(now.nanos, Relaxed);
    }

    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.load.in_flight()
    }

    /// How loaded it seems.
    #[inline]
    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    /// From here on the last one that ends says so.
    ///
    /// An attempt ends and then looks whether it is awaited; who awaits it says so and then looks what is in flight. As
    /// these four are in one order, one of the two sees the other.
    pub(super) fn await_last(&self) -> AwaitLast<'_> {
        self.awaited.fetch_add(1, SeqCst);
        AwaitLast(self)
    }

    #[inline]
    fn say_that_one_has_ended(&self) {
        if self.awaited.load(SeqCst) != 0 && self.load.in_flight_now() == 0 {
            ENDED.notify_waiters();
        }
    }

    pub(super) fn read(&self) -> Figures {
        Figures {
            in_flight: self.load.in_flight(),
            successes: self.successes.load(Relaxed),
            failures: self.failures.load(Relaxed),
            ignored: self.ignored.load(Relaxed),
            abandoned: self.abandoned.load(Relaxed),
            connection_failures: (self.troubles.load(Relaxed) & COUNT) as u32,
            response_nanos: self.response_nanos.load(Relaxed),
        }
    }

    #[inline]
    pub(super) fn end(&self, verdict: Verdict, end: End, started: u64, took: u64, nanos: u64, decay: f32) {
        self.load.end(started);
        self.book(verdict, end, took, nanos, decay);
    }

    #[inline]
    fn book(&self, verdict: Verdict, end: End, took: u64, nanos: u64, decay: f32) {
        let sample = match (verdict, end) {
            (Verdict::Failure, _) => Sample::Failed,
            (Verdict::Success, _) | (Verdict::Ignored, End::Answered) => Sample::Took,
            // It may have been rejected before it came to a server.
            (Verdict::Ignored, _) => Sample::Nothing,
        };
        self.load.sample(sample, took, nanos, decay);
        self.response_nanos.fetch_add(took, Relaxed);
        self.changed.store(nanos, Relaxed);
        if end == End::ConnectionFailed {
            let time = (nanos / 1_000 + 1).min(LATEST);
            let one_more = |troubles: u64| {
                let count = (troubles & COUNT) + 1;
                Some(time << COUNT_BITS | count.min(COUNT))
            };
            let _ = self.troubles.fetch_update(Relaxed, Relaxed, one_more);
        } else if self.troubles.load(Relaxed) & COUNT != 0 {
            self.troubles.fetch_and(!COUNT, Relaxed);
        }
        let counter = match verdict {
            Verdict::Success => &self.successes,
            Verdict::Failure => &self.failures,
            Verdict::Ignored => &self.ignored,
        };
        counter.fetch_add(1, Relaxed);
        self.say_that_one_has_ended();
    }

    pub(super) fn abandon(&self, started: u64, now: Instant, decay: f32) {
        let nanos = self.nanos(now);
        self.load.end(started);
        self.book_abandoned(Sample::AtLeast, nanos.saturating_sub(started), nanos, decay);
    }

    /// One has its answer, and goes on.
    pub(super) fn answered(&self, started: u64, nanos: u64) {
        self.load.answered(started, nanos);
    }

    /// One that had its answer has ended.
    pub(super) fn end_answered(&self, verdict: Verdict, took: u64, now: Instant, decay: f32) {
        self.load.end_answered();
        self.book(verdict, End::Answered, took, self.nanos(now), decay);
    }

    /// One that had its answer was given up.
    pub(super) fn abandon_answered(&self, took: u64, now: Instant, decay: f32) {
        self.load.end_answered();
        self.book_abandoned(Sample::Took, took, self.nanos(now), decay);
    }

    fn book_abandoned(&self, sample: Sample, took: u64, nanos: u64, decay: f32) {
        self.load.sample(sample, took, nanos, decay);
        self.changed.store(nanos, Relaxed);
        self.abandoned.fetch_add(1, Relaxed);
        self.say_that_one_has_ended();
    }
}

/// What has been counted about one endpoint, or about several.
///
/// While calls are made, the numbers are read one after the other: they may be apart by the attempts that start or
/// end in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    in_flight: u64,
    successes: u64,
    failures: u64,
    ignored: u64,
    abandoned: u64,
    connection_failures: u32,
    response_nanos: u64,
}

impl Figures {
    /// Attempts that have been sent and have neither an answer, nor an error, nor been given up. A body that is still
    /// being read is not in flight, unless the [verdict comes with its end](crate::call::LateVerdict).
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// All attempts, those in flight included: how often the endpoint was picked.
    pub fn attempts(&self) -> u64 {
        let begun = self.in_flight.saturating_add(self.abandoned);
        begun.saturating_add(self.completed())
    }

    /// Attempts that ended in a success.
    pub fn successes(&self) -> u64 {
        self.successes
    }

    /// Attempts that ended in a failure.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Attempts that ended in what counts as neither.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Attempts that were given up before they ended, by a limit or by the caller, or that panicked.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Attempts that ended with an answer or an error (Ribbon's total requests): successes, failures and what counts
    /// as neither.
    pub fn completed(&self) -> u64 {
        let judged = self.successes.saturating_add(self.failures);
        judged.saturating_add(self.ignored)
    }

    /// How many attempts in a row have failed to reach the server, or to hear from it: connect refused, no route,
    /// reset, early close, connect and read timeouts. Any answer, and any other error, sets it to zero; an abandoned
    /// attempt leaves it as it is. Counted up to 65,535.
    ///
    /// This is what Ribbon trips a server by, whatever the [classifier](super::LoadBalanceLayer::classify) says. Of
    /// several endpoints: the most.
    pub fn successive_connection_failures(&self) -> u32 {
        self.connection_failures
    }

    /// The mean time from the start of an attempt to its answer (the head) or error, over all that
    /// [completed](Figures::completed) since the endpoint came into the set. Zero if none did.
    pub fn response_time_mean(&self) -> Duration {
        let nanos = self.response_nanos.checked_div(self.completed());
        Duration::from_nanos(nanos.unwrap_or(0))
    }

    pub(super) fn plus(self, other: Figures) -> Figures {
        Figures {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            successes: self.successes.saturating_add(other.successes),
            failures: self.failures.saturating_add(other.failures),
            ignored: self.ignored.saturating_add(other.ignored),
            abandoned: self.abandoned.saturating_add(other.abandoned),
            connection_failures: self.connection_failures.max(other.connection_failures),
            response_nanos: self.response_nanos.saturating_add(other.response_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::in_flight::{Counted, InFlight};

    #[test]
    fn the_end_of_the_last_attempt_is_told_while_somebody_awaits_it() {
        let counters = Arc::new(Counters::default());
        let to = Arc::new(Counted::new(Endpoint::new("http://a").unwrap(), counters.clone()));
        let now = Epoch::default().moment(Instant::now());
        let begin = || InFlight::begin(&to, &now, Duration::from_secs(1), false);
        let (one, two) = (begin(), begin());
        let watch = counters.await_last();
        let mut ended = tokio_test::task::spawn(watch.ended());
        drop(one);
        assert_eq!(watch.in_flight(), 1);
        drop(two);
        assert!(ended.poll().is_ready());
        drop(watch);
        assert_eq!(counters.awaited.load(Relaxed), 0);
    }

    #[test]
    fn a_sum_adds_each_figure_to_its_like() {
        let figures = |n: u32| {
            let in_flight = n.into();
            Figures {
                in_flight,
                successes: 10 * in_flight,
                failures: 100 * in_flight,
                ignored: 1_000 * in_flight,
                abandoned: 10_000 * in_flight,
                connection_failures: n,
                response_nanos: 100_000 * in_flight,
            }
        };
        let sum = figures(2).plus(figures(3));
        let most = Figures {
            connection_failures: 3,
            ..figures(5)
        };
        assert_eq!(sum, most);
        assert_eq!((sum.ignored(), sum.abandoned()), (5_000, 50_000));
    }
    #[test]
    fn figures_as_large_as_can_be_are_added_and_shown() {
        let most = Figures {
            in_flight: u64::MAX,
            successes: u64::MAX,
            failures: u64::MAX,
            ignored: u64::MAX,
            abandoned: u64::MAX,
            connection_failures: u32::MAX,
            response_nanos: u64::MAX,
        };
        assert_eq!(most.plus(most), most);
        assert_eq!((most.attempts(), most.completed()), (u64::MAX, u64::MAX));
        assert!(most.to_string().contains("18446744073709551615 in flight"));
        let slow = Figures {
            successes: 1,
            response_nanos: u64::MAX,
            ..Figures::default()
        };
        assert!(slow.to_string().ends_with("mean 18446744073.7s"), "{slow}");
    }
}
