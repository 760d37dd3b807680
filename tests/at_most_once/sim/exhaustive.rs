//! Each caller leaves once at each point at which it waits, or could.

use http::Method;

use super::world::{run, sound};
use crate::{
    report::Report,
    schedule::{ATTEMPTS, Act, BodyKind, Cancel, Plan},
    stacks::StackKind,
};

/// What follows the first attempt, if one does.
const SECOND: [Act; 5] = [
    Act::Answer,
    Act::Refuse,
    Act::CloseAfterRequest,
    Act::StallBeforeHead,
    Act::UnavailableSoon,
];

/// Each stack under each fault, then under some as the second one, for a request of each class.
fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for stack in StackKind::ALL {
        for first in Act::ALL {
            for second in SECOND {
                for (method, keyed) in [(Method::GET, false), (Method::POST, false), (Method::POST, true)] {
                    let call = plans.len() as u64;
                    let mut acts = [Act::Answer; ATTEMPTS];
                    acts[..2].copy_from_slice(&[first, second]);
                    plans.push(Plan {
                        seed: crate::seed(),
                        call,
                        method,
                        keyed,
                        // Each body with each of the rest.
                        body: BodyKind::ALL[(call + call / 15) as usize % BodyKind::ALL.len()],
                        stack,
                        acts,
                        cancel: Cancel::Never,
                        churn: None,
                        reads_answer: true,
                        chance: call,
                    });
                }
            }
        }
    }
    plans
}

/// Makes the calls, a few thousand at once, and tells how often each was polled.
fn make(plans: &[Plan], report: &mut Report) -> Vec<u32> {
    let mut polls = Vec::new();
    for plans in plans.chunks(4096) {
        let run = run(plans.to_vec(), &sound);
        report.merge(run.report);
        polls.extend(run.polls);
    }
    polls
}

#[test]
fn a_caller_can_leave_at_every_point() {
    let mut report = Report::default();
    let plans = plans();
    let polls = make(&plans, &mut report);
    let mut leaving = Vec::new();
    for (plan, polls) in plans.iter().zip(polls) {
        for poll in 0..polls {
            leaving.push(Plan {
                call: leaving.len() as u64,
                cancel: Cancel::AtPoll(poll),
                ..plan.clone()
            });
        }
    }
    make(&leaving, &mut report);
    println!(
        "{} calls, of which {} were left, each at another point",
        report.calls, report.left
    );
    assert!(report.is_clean(), "{report}");
    // Not each: in company a call may take a poll less.
    assert!(report.left as usize > leaving.len() * 9 / 10, "{report}");
}
