//! What there is to know of an ejection.

use std::fmt;

use tokio::time::Instant;

/// Why an endpoint was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EjectionCause {
    /// So many attempts have failed with no success in between.
    FailuresInARow {
        /// How many.
        failures: u32,
    },
    /// In an interval its share of successes was too far below that of its peers.
    SuccessRate {
        /// Successes in the interval.
        successes: u64,
        /// Failures in the interval.
        failures: u64,
    },
    /// In an interval its share of failures was too large.
    FailurePercentage {
        /// Successes in the interval.
        successes: u64,
        /// Failures in the interval.
        failures: u64,
    },
    /// It had been ejected before, and the call that was to show whether it is well again failed.
    ProbeFailed,
}

impl fmt::Display for EjectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EjectionCause::FailuresInARow { failures } => write!(f, "{failures} failures in a row"),
            EjectionCause::SuccessRate { successes, failures } => write!(
                f,
                "{successes} successes and {failures} failures are a success rate far below that of its peers"
            ),
            EjectionCause::FailurePercentage { successes, failures } => {
                write!(f, "{failures} failures beside {successes} successes")
            }
            EjectionCause::ProbeFailed => f.write_str("a probe failed"),
        }
    }
}

/// An endpoint that is ejected, or about to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    pub(super) cause: EjectionCause,
    pub(super) since: Instant,
    pub(super) until: Instant,
    pub(super) in_a_row: u32,
    pub(super) probing: bool,
}

impl Ejection {
    /// Why.
    pub fn cause(&self) -> EjectionCause {
        self.cause
    }

    /// When it was ejected; after a failed probe, when that failed.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// When it gets a probe: by the first pick from then on.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// How often it has been ejected in a row, this time included. Its time is multiplied by this.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Is its time over, and are calls sent there one at a time?
    pub fn is_probing(&self) -> bool {
        self.probing
    }
}

/// `ejected for 29.4s more (5 failures in a row)`: for how long from when this is written, and why.
impl fmt::Display for Ejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.until.saturating_duration_since(Instant::now());
        if self.probing {
            f.write_str("ejected and being probed")?;
        } else if left.is_zero() {
            f.write_str("ejected until the next pick")?;
        } else {
            write!(f, "ejected for {left:.1?} more")?;
        }
        write!(f, " ({})", self.cause)
    }
}
