//! What the docs say each stack sends again, written down once more. Nothing here asks a policy of the crate.

use crate::{
    schedule::{Act, BodyKind, CAP, Plan},
    stacks::StackKind,
};

/// A rule on what is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Safe or keyed requests on any fault, others if nothing was sent.
    Safe,
    /// As `Safe`, and PUT and DELETE on any fault.
    IdempotentMethods,
    /// GET on any fault; others when the connection was refused, reset or closed early.
    Ribbon,
    /// GET alone, on any fault.
    SpringRetry,
    /// All; on the same endpoint if the connection was refused or a limit ran out.
    DefaultHandler,
    /// All, on all faults, and an endpoint that asks to be left alone is.
    AllOperations,
    /// All, on all faults.
    RibbonAllOperations,
    /// All, on all faults before the head; of statuses those with a `Retry-After`.
    Feign,
    /// As Feign, and every 5xx.
    FeignDecoder,
    /// All, on all faults.
    Risky,
}

impl Rule {
    /// Does it reproduce a laxer library, or name a risk? No other may send an unsafe request twice.
    pub fn is_lax(self) -> bool {
        !matches!(self, Rule::Safe | Rule::SpringRetry)
    }
}

/// Retries at once.
#[derive(Debug, Clone, Copy)]
pub struct AtOnce {
    pub rule: Rule,
    pub same: usize,
    pub next: usize,
    /// Which answers are retried.
    pub statuses: &'static [u16],
}

/// Retries after a pause.
#[derive(Debug, Clone, Copy)]
pub struct Paused {
    pub rule: Rule,
    pub attempts: usize,
    /// Which statuses are retried.
    pub statuses: &'static [u16],
    /// Are answers read, and not errors of a classifier below?
    pub reads_answers: bool,
    /// Is the body of an answer read below, so that one which breaks off is a fault?
    pub over_bodies: bool,
}

const NONE: &[u16] = &[];
/// Of those that occur.
const TRANSIENT: &[u16] = &[429, 503];
const SERVER_ERRORS: &[u16] = &[500, 503];

/// The longest `Retry-After` that `Backoff` grants by default, in seconds.
const LONGEST_WAIT: u64 = 10;

/// What a stack is documented to do.
pub fn documented(kind: StackKind) -> (Option<Paused>, Option<AtOnce>) {
    let at_once = |rule, same, next, statuses| {
        Some(AtOnce {
            rule,
            same,
            next,
            statuses,
        })
    };
    let paused = |rule, attempts, statuses, reads_answers| {
        Some(Paused {
            rule,
            attempts,
            statuses,
            reads_answers,
            over_bodies: kind == StackKind::AroundSpring,
        })
    };
    let safe = |attempts| paused(Rule::Safe, attempts, TRANSIENT, false);
    let feign = paused(Rule::Feign, 5, NONE, false);
    match kind {
        StackKind::NestDefault | StackKind::NestHurried => (safe(2), at_once(Rule::Safe, 0, 1, NONE)),
        StackKind::NestUnlimited | StackKind::Nested => (safe(3), at_once(Rule::Safe, 1, 1, NONE)),
        StackKind::NestNever => (None, None),
        StackKind::IdempotentDefault => (None, at_once(Rule::Safe, 0, 1, NONE)),
        StackKind::IdempotentStatuses => (None, at_once(Rule::Safe, 1, 2, TRANSIENT)),
        StackKind::Ribbon => (None, at_once(Rule::Ribbon, 0, 1, NONE)),
        StackKind::RibbonStatuses => (None, at_once(Rule::Ribbon, 1, 1, TRANSIENT)),
        StackKind::RibbonSpringRetry => (None, at_once(Rule::SpringRetry, 0, 1, NONE)),
        StackKind::RibbonDefaultHandler => (None, at_once(Rule::DefaultHandler, 1, 1, NONE)),
        StackKind::AllOperations => (None, at_once(Rule::AllOperations, 0, 1, NONE)),
        StackKind::RibbonAllOperations => (None, at_once(Rule::RibbonAllOperations, 0, 1, NONE)),
        StackKind::BackoffDefault => (safe(3), None),
        StackKind::BackoffStatuses => (paused(Rule::Safe, 3, TRANSIENT, true), None),
        StackKind::BackoffFeign => (feign, None),
        StackKind::BackoffRisky => (paused(Rule::Risky, 3, TRANSIENT, false), None),
        StackKind::SpringNest => (None, at_once(Rule::Ribbon, 0, 1, NONE)),
        StackKind::SpringFeign => (feign, at_once(Rule::Ribbon, 0, 1, NONE)),
        StackKind::SpringDecoder => (
            paused(Rule::FeignDecoder, 5, SERVER_ERRORS, false),
            at_once(Rule::Ribbon, 0, 1, NONE),
        ),
        StackKind::SpringRetry => (None, at_once(Rule::SpringRetry, 1, 1, &[503])),
        StackKind::RibbonShell => (None, at_once(Rule::Ribbon, 1, 1, NONE)),
        StackKind::FeignShell => (feign, None),
        StackKind::AroundSpring => (safe(2), at_once(Rule::Ribbon, 0, 1, NONE)),
        StackKind::IdempotentMethods => (
            paused(Rule::IdempotentMethods, 3, TRANSIENT, false),
            at_once(Rule::IdempotentMethods, 1, 1, NONE),
        ),
        StackKind::NestOfThree => (safe(3), at_once(Rule::Safe, 1, 1, NONE)),
        StackKind::BackoffOverRibbon => (safe(3), at_once(Rule::Ribbon, 0, 1, NONE)),
    }
}

/// How many attempts a call may have, whatever the counts of its layers come to.
fn attempts_in_call(kind: StackKind) -> usize {
    match kind {
        StackKind::NestOfThree => 3,
        _ => usize::MAX,
    }
}

/// Does any rule of this stack reproduce a laxer library, or name a risk?
pub fn is_lax(kind: StackKind) -> bool {
    let (paused, at_once) = documented(kind);
    paused.is_some_and(|paused| paused.rule.is_lax()) || at_once.is_some_and(|at_once| at_once.rule.is_lax())
}

/// What an attempt ended with, as a rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Status(u16, Option<u64>),
    Refused,
    ConnectTimeout,
    ReadTimeout,
    /// Reset or closed.
    Broken,
}

fn ended(act: Act) -> Ended {
    if let Some((status, wait)) = act.status() {
        return Ended::Status(status, wait);
    }
    match act {
        Act::Refuse => Ended::Refused,
        Act::StallConnect => Ended::ConnectTimeout,
        Act::StallBeforeHead => Ended::ReadTimeout,
        _ => Ended::Broken,
    }
}

/// How often the request of this plan is sent, if there is always an endpoint, time and a budget, and nobody leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// At least, and at most: how much a client takes of a stream that is longer than the cap can be open.
    pub least: usize,
    pub most: usize,
    /// Would there be one more if its body could be sent again?
    pub held_by_body: bool,
}

/// How much is taken of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// As much as could be as soon as an attempt has begun with it.
    Most,
    /// What the act says.
    AsSaid,
    /// As little as can be.
    Least,
}

/// What the docs say of this plan. If bodies are not exact, as on a real socket, much is open.
pub fn predict(plan: &Plan, exact_bodies: bool) -> Prediction {
    let (said, held_by_body) = predict_with(plan, Taken::AsSaid);
    let early = plan.acts.contains(&Act::EarlyUnavailable);
    if plan.body != BodyKind::BeyondCap || exact_bodies && !early {
        return Prediction {
            least: said,
            most: said,
            held_by_body,
        };
    }
    Prediction {
        least: if exact_bodies {
            said
        } else {
            predict_with(plan, Taken::Most).0
        },
        most: predict_with(plan, Taken::Least).0,
        held_by_body,
    }
}

fn predict_with(plan: &Plan, taken: Taken) -> (usize, bool) {
    let (paused, at_once) = documented(plan.stack);
    let mut call = Call {
        plan,
        attempts: 0,
        may_have_been_sent: false,
        body_is_lost: plan.body == BodyKind::Once,
        taken,
    };
    let mut passes = 0;
    let mut held_by_body = false;
    loop {
        passes += 1;
        // One pass of the retries at once.
        let (mut here, mut moves) = (0, 0);
        let last = loop {
            let act = call.send();
            here += 1;
            let Some(at_once) = at_once else { break act };
            if call.attempts >= attempts_in_call(plan.stack) {
                break act;
            }
            match call.again_at_once(at_once, act, here, moves) {
                None => break act,
                Some(_) if call.body_is_lost => {
                    held_by_body = true;
                    break act;
                }
                Some(true) => {}
                Some(false) => {
                    moves += 1;
                    here = 0;
                }
            }
        };
        let Some(paused) = paused else { break };
        if call.attempts >= attempts_in_call(plan.stack) {
            break;
        }
        if !call.again_after_a_pause(paused, last, passes) {
            break;
        }
        if call.body_is_lost {
            held_by_body = true;
            break;
        }
    }
    (call.attempts, held_by_body)
}

struct Call<'a> {
    plan: &'a Plan,
    attempts: usize,
    may_have_been_sent: bool,
    body_is_lost: bool,
    taken: Taken,
}

impl Call<'_> {
    fn send(&mut self) -> Act {
        let act = self.plan.act(self.attempts);
        self.attempts += 1;
        let (pieces, length) = self.plan.body.pieces();
        let said = act.pieces_taken().unwrap_or(pieces).min(pieces);
        let taken = match (act, self.taken) {
            (Act::EarlyUnavailable, Taken::Least) => 1,
            (_, Taken::AsSaid) => said,
            (Act::Refuse | Act::StallConnect, _) => 0,
            (_, Taken::Most) => pieces,
            (_, Taken::Least) => 0,
        };
        if self.plan.body == BodyKind::BeyondCap && taken * length > CAP {
            self.body_is_lost = true;
        }
        act
    }

    /// A fault: from now on it is known that the request may have been sent, unless it is proved that it was not.
    fn failed(&mut self, act: Act) {
        self.may_have_been_sent |= !act.proves_unsent();
    }

    fn is_safe_to_repeat(&self) -> bool {
        !self.may_have_been_sent || self.plan.is_repeatable()
    }

    fn is_idempotent(&self) -> bool {
        matches!(self.plan.method.as_str(), "PUT" | "DELETE")
    }

    /// To the same endpoint: true. To the next one: false.
    fn again_at_once(&mut self, at_once: AtOnce, act: Act, here: usize, moves: usize) -> Option<bool> {
        let ended = ended(act);
        if let Ended::Status(status, _) = ended {
            if !at_once.statuses.contains(&status) {
                return None;
            }
        }
        self.failed(act);
        let is_get = self.plan.method == http::Method::GET;
        let granted = match at_once.rule {
            Rule::Safe => self.is_safe_to_repeat(),
            Rule::IdempotentMethods => self.is_safe_to_repeat() || self.is_idempotent(),
            Rule::Ribbon => is_get || matches!(ended, Ended::Refused | Ended::Broken),
            Rule::SpringRetry => is_get,
            _ => true,
        };
        if !granted {
            return None;
        }
        let leave_alone = matches!(
            at_once.rule,
            Rule::Safe | Rule::IdempotentMethods | Rule::AllOperations
        ) && matches!(ended, Ended::Status(_, Some(1..)));
        let may_stay = at_once.rule != Rule::DefaultHandler
            || matches!(ended, Ended::Refused | Ended::ConnectTimeout | Ended::ReadTimeout);
        if here <= at_once.same && may_stay && !leave_alone {
            Some(true)
        } else if moves < at_once.next {
            Some(false)
        } else {
            None
        }
    }

    fn again_after_a_pause(&mut self, paused: Paused, act: Act, passes: usize) -> bool {
        let ended = match act {
            Act::CloseMidResponse | Act::StallMidResponse if paused.over_bodies => Ended::Broken,
            _ => ended(act),
        };
        let feign = matches!(paused.rule, Rule::Feign | Rule::FeignDecoder);
        if let Ended::Status(status, wait) = ended {
            // An answer that nobody counts as an error.
            if status == 200 || paused.reads_answers && !paused.statuses.contains(&status) {
                return false;
            }
            self.failed(act);
            if !(paused.statuses.contains(&status) || feign && wait.is_some()) {
                return false;
            }
            if !feign && wait.is_some_and(|wait| wait > LONGEST_WAIT) {
                return false;
            }
        } else {
            self.failed(act);
        }
        let granted = match paused.rule {
            Rule::Safe => self.is_safe_to_repeat(),
            Rule::IdempotentMethods => self.is_safe_to_repeat() || self.is_idempotent(),
            _ => true,
        };
        granted && passes < paused.attempts
    }
}
