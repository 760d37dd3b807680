//! Was the machine late? A case that went wrong may be played again only if it was.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

const EVERY: Duration = Duration::from_millis(5);

/// A machine that wakes a task up this late is busy. Some cases turn on a few milliseconds: a call that comes just before
/// its sleep window has ended, a failure just before a tick of the circuit.
const LATE: Duration = Duration::from_millis(10);

/// A task that does nothing but wake up, and writes down when it was woken late.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl Watch {
    /// Begins to watch, for as long as the runtime lives.
    pub(super) fn begin() -> Watch {
        let watch = Watch::default();
        let late = Arc::clone(&watch.late);
        tokio::spawn(async move {
            loop {
                let due = Instant::now() + EVERY;
                sleep_until(due).await;
                let by = due.elapsed();
                if by > LATE {
                    late.lock().unwrap().push((Instant::now(), by));
                }
            }
        });
        watch
    }

    /// By how much it was late at most, if it was, in this time.
    pub(super) fn late_within(&self, from: Instant, until: Instant) -> Option<Duration> {
        let late = self.late.lock().unwrap();
        let within = late.iter().filter(|(at, by)| *at >= from && *at - *by <= until);
        within.map(|(_, by)| *by).max()
    }
}
