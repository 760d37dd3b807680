//! Where this crate does better than what was recorded, on purpose.
//!
//! Each deviation has a name, a predicate on a case (at the level that it occurs on), and a behavior that is asserted
//! in place of the recorded one. There is none that would cover whatever differs.

/// The named deviations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deviation {
    /// Attempts and pauses end when the caller has its answer.
    WorkStopsWithItsCaller,
    /// A caller under semaphore isolation leaves at the deadline too.
    CallerLeavesAtTheDeadline,
    /// A trial that is cancelled or turned away gives its place to the next call.
    ProbeSlotIsFreed,
    /// Results of calls from before the circuit opened or closed change no state.
    LateResultsDecideNothing,
    /// A call turned away while half-open changes nothing (1.5.13).
    BystandersDoNotReopen,
    /// The transport sends what it is told to send, once.
    NoHiddenResends,
    /// A body shorter than announced is an error.
    ShortBodiesAreErrors,
    /// Dates of `Retry-After` are in GMT.
    HttpDatesAreGmt,
    /// What only Java has: its error types, the methods that its client refuses.
    JavaOnly,
    /// Each attempt is booked on the server that it went to (spring-retry books one).
    AttemptsAreBookedWhereTheyWent,
}

impl Deviation {
    pub(crate) const ALL: [Deviation; 10] = [
        Deviation::WorkStopsWithItsCaller,
        Deviation::CallerLeavesAtTheDeadline,
        Deviation::ProbeSlotIsFreed,
        Deviation::LateResultsDecideNothing,
        Deviation::BystandersDoNotReopen,
        Deviation::NoHiddenResends,
        Deviation::ShortBodiesAreErrors,
        Deviation::HttpDatesAreGmt,
        Deviation::JavaOnly,
        Deviation::AttemptsAreBookedWhereTheyWent,
    ];

    /// The name in the summary and in the docs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Deviation::WorkStopsWithItsCaller => "work-stops-with-its-caller",
            Deviation::CallerLeavesAtTheDeadline => "caller-leaves-at-the-deadline",
            Deviation::ProbeSlotIsFreed => "probe-slot-is-freed",
            Deviation::LateResultsDecideNothing => "late-results-decide-nothing",
            Deviation::BystandersDoNotReopen => "bystanders-do-not-reopen",
            Deviation::NoHiddenResends => "no-hidden-resends",
            Deviation::ShortBodiesAreErrors => "short-bodies-are-errors",
            Deviation::HttpDatesAreGmt => "http-dates-are-gmt",
            Deviation::JavaOnly => "java-only",
            Deviation::AttemptsAreBookedWhereTheyWent => "attempts-are-booked-where-they-went",
        }
    }
}

#[test]
fn there_are_at_most_twelve_deviations_each_with_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = Deviation::ALL.iter().map(|one| one.name()).collect();
    assert_eq!(names.len(), Deviation::ALL.len());
    assert!(names.len() <= 12);
}
