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

    /// What the libraries do.
    pub(crate) fn theirs(self) -> &'static str {
        match self {
            Deviation::WorkStopsWithItsCaller => {
                "after Hystrix's timeout attempts and retries go on; an interrupt makes Feign 9.5.0 skip its pauses"
            }
            Deviation::CallerLeavesAtTheDeadline => {
                "under SEMAPHORE isolation the timeout is booked at the deadline, and the caller waits on for its function"
            }
            Deviation::ProbeSlotIsFreed => {
                "a trial that is unsubscribed, or turned away by the semaphore, leaves 1.5.12 half-open for good"
            }
            Deviation::LateResultsDecideNothing => {
                "the end of any call, begun before the circuit opened or not, closes or re-opens it, and counts in the \
                 window of a circuit that has closed since"
            }
            Deviation::BystandersDoNotReopen => {
                "in 1.5.13 a call that is turned away while a trial is out re-opens the circuit"
            }
            Deviation::NoHiddenResends => {
                "where a connection ends without an answer the JDK's client sends again once, Apache's three times"
            }
            Deviation::ShortBodiesAreErrors => {
                "the JDK's client hands on a body that is shorter than announced"
            }
            Deviation::HttpDatesAreGmt => {
                "Feign reads the date of a Retry-After in the time zone of its machine"
            }
            Deviation::JavaOnly => {
                "the JDK's client refuses PATCH; a number too large for a long fails in the decoder; a stack overflow \
                 skips the fallback"
            }
            Deviation::AttemptsAreBookedWhereTheyWent => {
                "with spring-retry Ribbon books one attempt, with the final result, on the server chosen first, and \
                 chooses one server more than it uses"
            }
        }
    }

    /// What this crate does.
    pub(crate) fn ours(self) -> &'static str {
        match self {
            Deviation::WorkStopsWithItsCaller => "attempts, retries and pauses end with the call",
            Deviation::CallerLeavesAtTheDeadline => "the caller has its answer at the deadline",
            Deviation::ProbeSlotIsFreed => {
                "a trial that is given up hands its place to the next call; one that was turned away re-opens the circuit"
            }
            Deviation::LateResultsDecideNothing => {
                "only a trial decides; an older call counts as long as its window lasts"
            }
            Deviation::BystandersDoNotReopen => "a call that is turned away changes nothing",
            Deviation::NoHiddenResends => "an attempt is one sending",
            Deviation::ShortBodiesAreErrors => "it is an error",
            Deviation::HttpDatesAreGmt => "it is read in GMT",
            Deviation::JavaOnly => "PATCH is sent; such a number is a long wait; a panic passes through",
            Deviation::AttemptsAreBookedWhereTheyWent => {
                "each attempt is booked on the server that it went to, and each choice is used"
            }
        }
    }

    /// Why.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Deviation::WorkStopsWithItsCaller => {
                "nobody waits for that work: it piles up in an outage, and carries out writes whose caller was told \
                 that they failed"
            }
            Deviation::CallerLeavesAtTheDeadline => "a limit that does not limit the caller is none",
            Deviation::ProbeSlotIsFreed => "a circuit must not stay half-open for want of an outcome",
            Deviation::LateResultsDecideNothing => "they tell of a time that is over",
            Deviation::BystandersDoNotReopen => "they say nothing about the server",
            Deviation::NoHiddenResends => {
                "a write must not be carried out twice behind the back of the retry rules"
            }
            Deviation::ShortBodiesAreErrors => "half an answer is none",
            Deviation::HttpDatesAreGmt => "RFC 9110, section 5.6.7",
            Deviation::JavaOnly => "there is no such thing here",
            Deviation::AttemptsAreBookedWhereTheyWent => {
                "a bad server that is booked as good whenever another one helps out is never left alone"
            }
        }
    }
}

#[test]
fn there_are_at_most_twelve_deviations_each_with_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = Deviation::ALL.iter().map(|one| one.name()).collect();
    assert_eq!(names.len(), Deviation::ALL.len());
    assert!(names.len() <= 12);
}
