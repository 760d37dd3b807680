//! From a plan, what the servers saw and what the caller got to what was right and wrong with it.

use std::fmt;

use http::Response;
use tower_outbound::call::{BoxError, Fault, FaultKind, NotRetried, Rejection, Sent, Trail};

use crate::{
    ledger::{Reach, Record},
    report::Report,
    rules::{is_lax, predict},
    schedule::{Hash, Plan},
    stacks::{Budget, StackKind},
};

/// What the caller got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An answer with this status.
    Answered {
        status: u16,
        /// Was the request not sent again because the endpoint asked for a wait, and there was no other?
        left_alone: bool,
    },
    Failed {
        kind: FaultKind,
        /// What the error proves.
        sent: Sent,
        stops: Stops,
    },
    /// It left before.
    Left,
}

/// Why retries were not made, as the error says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stops {
    /// How many times the budget was spent.
    pub budget: u32,
    pub deadline: bool,
}

impl Outcome {
    /// Of what a stack gave.
    pub fn of<B>(result: &Result<Response<B>, BoxError>) -> Outcome {
        match result {
            Ok(answer) => {
                let left_alone =
                    |reason| matches!(reason, NotRetried::RetryAfterTooLong { limit, .. } if limit.is_zero());
                let mut stops = Trail::on(answer).into_iter().flat_map(Trail::stops);
                Outcome::Answered {
                    status: answer.status().as_u16(),
                    left_alone: stops.any(|stop| left_alone(stop.reason())),
                }
            }
            Err(error) => {
                let mut stops = Stops::default();
                for stop in Trail::of(&**error).into_iter().flat_map(Trail::stops) {
                    match stop.reason() {
                        NotRetried::BudgetSpent => stops.budget += 1,
                        NotRetried::DeadlineTooClose { .. } => stops.deadline = true,
                        _ => {}
                    }
                }
                let fault = Fault::of(&**error);
                Outcome::Failed {
                    kind: fault.kind(),
                    sent: fault.sent(),
                    stops,
                }
            }
        }
    }
}

/// What is wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wrong {
    /// An unsafe request without a key was sent again though a server may have seen it, and no rule of its stack says
    /// so.
    Duplicate,
    /// It was sent more often than the docs of its stack say.
    TooOften,
    /// It provably reached no server, and was given up though it could have been sent again.
    Lost,
    /// It was given up though the docs of its stack say that it is sent again.
    GivenUp,
    /// The caller was told that nothing was sent, and an attempt may have reached a server.
    FalseProof,
    /// The caller got another outcome than the last attempt had.
    OtherOutcome,
    /// An attempt started when the caller had left.
    Late,
    /// An attempt was alive when the caller had left or when the next one started, or its body was read on.
    Outlives,
    /// A server got other bytes than the caller gave.
    Body,
    /// A server got another key than the caller gave, or none.
    Key,
    /// A slot, a permit or a count did not come back. Not of one call but of a stack.
    Leak,
}

impl Wrong {
    pub const ALL: [Wrong; 11] = [
        Wrong::Duplicate,
        Wrong::TooOften,
        Wrong::Lost,
        Wrong::GivenUp,
        Wrong::FalseProof,
        Wrong::OtherOutcome,
        Wrong::Late,
        Wrong::Outlives,
        Wrong::Body,
        Wrong::Key,
        Wrong::Leak,
    ];
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the judge has to know of the run.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// Is it exact how much of a stream the client takes? On a real socket it is not.
    pub exact_bodies: bool,
    /// Can a time limit be missed by chance, as on a real clock? Then such a limit excuses.
    pub real_time: bool,
    /// Was there a moment in which the call could have found no endpoint?
    pub could_be_without_endpoint: bool,
}

/// Judges a call and counts it.
pub fn judge(
    plan: &Plan,
    record: &Record,
    outcome: Outcome,
    around: Circumstances,
    report: &mut Report,
) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let seen = record.sendings.len();
    let predicted = predict(plan, around.exact_bodies);
    let unsafe_and_unkeyed = !plan.is_repeatable();

    report.calls += 1;
    report.attempts += seen as u64;
    for attempt in 0..seen {
        report.act(plan.act(attempt));
    }

    // Sent again.
    let duplicates = duplicates(plan, record);
    let resent = (0..seen.saturating_sub(1)).any(|attempt| !plan.act(attempt).proves_unsent());
    if unsafe_and_unkeyed && (duplicates > 0 || resent) {
        // Exactly as the docs say, or not at all.
        if is_lax(plan.stack) && seen <= predicted.most {
            report.allowed += duplicates;
        } else {
            report.duplicates += duplicates.max(1);
            wrong.push(Wrong::Duplicate);
        }
    }
    if seen > predicted.most {
        wrong.push(Wrong::TooOften);
    }

    // Not sent again.
    let unsent = (0..seen).all(|attempt| plan.act(attempt).proves_unsent());
    if unsent && outcome != Outcome::Left {
        report.unsent += u64::from(seen > 0);
    }
    if seen > 1 && (0..seen - 1).all(|attempt| plan.act(attempt).proves_unsent()) {
        report.recovered += 1;
    }
    if outcome == Outcome::Left {
        report.left += 1;
    } else {
        let excuse = if seen < predicted.most {
            excuse(plan, record, outcome, around)
        } else {
            None
        };
        match excuse {
            Some(Excuse::Budget) => report.held_by_budget += 1,
            Some(Excuse::Rejected) => report.rejected += 1,
            Some(Excuse::Deadline) => report.held_by_deadline += 1,
            Some(Excuse::NoEndpoint) => report.without_endpoint += 1,
            None if seen >= predicted.least => {
                report.held_by_body += u64::from(predicted.held_by_body);
                if !is_outcome_of_last(plan, seen, outcome, around) {
                    wrong.push(Wrong::OtherOutcome);
                }
            }
            None if unsent => wrong.push(Wrong::Lost),
            None => wrong.push(Wrong::GivenUp),
        }
    }
    let may_have_been = (0..seen).any(|attempt| !plan.act(attempt).proves_unsent());
    if matches!(outcome, Outcome::Failed { sent: Sent::No, .. }) && may_have_been {
        wrong.push(Wrong::FalseProof);
    }

    // Going on.
    if record.sendings.iter().any(|sending| sending.late) {
        wrong.push(Wrong::Late);
    }
    let outlives = record.alive_at_close + record.alive() + record.late_pieces + record.overlaps;
    if outlives > 0 {
        wrong.push(Wrong::Outlives);
    }

    // What came.
    let bytes = plan.bytes();
    let key = plan.key().map(|key| Hash::of(key.as_bytes()));
    let arrivals = record.sendings.iter().filter_map(|sending| sending.arrival);
    let (mut body_is_wrong, mut key_is_wrong) = (false, false);
    for arrival in arrivals.filter(|arrival| arrival.reach > Reach::Nothing) {
        let came = bytes.get(..arrival.body as usize);
        let whole = arrival.reach < Reach::Whole || arrival.body == bytes.len() as u64;
        body_is_wrong |= !whole || came.map(Hash::of) != Some(arrival.hash);
        key_is_wrong |= arrival.key != key;
    }
    if body_is_wrong {
        wrong.push(Wrong::Body);
    }
    if key_is_wrong {
        wrong.push(Wrong::Key);
    }

    for wrong in &wrong {
        report.wrong(*wrong, plan.call);
    }
    if !wrong.is_empty() {
        report.tell(|| format!("{wrong:?}: {outcome:?}, {predicted:?}\n    {plan:?}\n    {record:?}"));
    }
    wrong
}

/// How often it was sent when a server had seen it already.
fn duplicates(plan: &Plan, record: &Record) -> u64 {
    if plan.is_repeatable() {
        return 0;
    }
    let mut reached = false;
    let mut duplicates = 0;
    for attempt in 0..record.sendings.len() {
        duplicates += u64::from(reached);
        reached |= record.reach(attempt) >= Reach::Partly;
    }
    duplicates
}

enum Excuse {
    Budget,
    Rejected,
    Deadline,
    NoEndpoint,
}

fn excuse(plan: &Plan, record: &Record, outcome: Outcome, around: Circumstances) -> Option<Excuse> {
    let seen = record.sendings.len();
    let hurried = plan.stack.is_hurried() || around.real_time;
    let Outcome::Failed { kind, stops, .. } = outcome else {
        // An endpoint that asked to be left alone is, where the set had no other at the time, which is not known here.
        let last = seen.checked_sub(1).and_then(|last| plan.act(last).status());
        let asked = matches!(last, Some((_, Some(wait))) if wait > 0);
        let left_alone = matches!(outcome, Outcome::Answered { left_alone: true, .. });
        let alone = asked && left_alone && plan.stack == StackKind::IdempotentStatuses;
        return alone.then_some(Excuse::NoEndpoint);
    };
    match kind {
        FaultKind::Rejected(Rejection::Breaker | Rejection::Bulkhead) => {
            return (seen == 0 && plan.stack == StackKind::NestHurried).then_some(Excuse::Rejected);
        }
        FaultKind::NoEndpoint => return around.could_be_without_endpoint.then_some(Excuse::NoEndpoint),
        FaultKind::ExecutionTimeout => return hurried.then_some(Excuse::Deadline),
        _ => {}
    }
    if stops.budget > 0 && plan.stack.budget() != Budget::None {
        Some(Excuse::Budget)
    } else if stops.deadline && hurried {
        Some(Excuse::Deadline)
    } else {
        None
    }
}

/// Is it what the last attempt ended with?
fn is_outcome_of_last(plan: &Plan, seen: usize, outcome: Outcome, around: Circumstances) -> bool {
    if seen == 0 {
        return true;
    }
    let last = plan.act(seen - 1);
    match (outcome, last.status()) {
        (Outcome::Left, _) => true,
        (Outcome::Answered { status: got, .. }, Some((status, _))) => got == status,
        (Outcome::Answered { .. }, None) => false,
        (
            Outcome::Failed {
                kind: FaultKind::Status(got),
                ..
            },
            Some((status, _)),
        ) => got.as_u16() == status,
        (
            Outcome::Failed {
                kind: FaultKind::Status(_),
                ..
            },
            None,
        ) => false,
        (Outcome::Failed { kind, .. }, Some(_)) => {
            // Shells of Feign read the body before the call ends; limits may run out.
            matches!(
                kind,
                FaultKind::Closed | FaultKind::Reset | FaultKind::ReadTimeout(_)
            ) || kind == FaultKind::ExecutionTimeout && (plan.stack.is_hurried() || around.real_time)
        }
        (Outcome::Failed { .. }, None) => true,
    }
}
