//! Runs checks that may fail, and says how.

use std::{fmt::Write, panic::catch_unwind};

use crate::{
    checks,
    probe::{Script, Subject, Watch},
};

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// The check asks for what the subject has not got: it cannot be made to reject, or is a queue.
    Idle,
    Fault(String),
}

/// A subject, and what came of each check.
pub(crate) struct Row {
    name: &'static str,
    outcomes: Vec<(&'static str, Outcome)>,
}

/// Runs a subject through all checks.
pub(crate) fn row<S: Subject>(name: &'static str) -> Row {
    let rejects = checks::paused(async { S::build(Watch::new(Script::default()).inner()).reject.is_some() });
    let outcomes = checks::all::<S>()
        .into_iter()
        .map(|(check, run)| {
            let idle = match check {
                "a_rejection_asks_nobody_below" => !rejects,
                "a_service_that_is_never_ready_is_waited_for_in_peace"
                | "readiness_that_is_dropped_is_given_back"
                | "one_slot_below_admits_one" => !S::CAN.passes_readiness_on,
                _ => false,
            };
            let outcome = if idle { Outcome::Idle } else { outcome(run) };
            (check, outcome)
        })
        .collect();
    Row { name, outcomes }
}

/// What comes of one check.
pub(crate) fn outcome(check: fn()) -> Outcome {
    let Err(panic) = catch_unwind(|| checks::in_time(check)) else {
        return Outcome::Pass;
    };
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    Outcome::Fault(in_a_line(message.unwrap_or("a panic that says nothing")))
}

/// `assert_eq!` tells in three lines what fits into one.
fn in_a_line(message: &str) -> String {
    let mut lines = message.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first
        .strip_prefix("assertion `left == right` failed")
        .map_or(first, |rest| rest.trim_start_matches(": "));
    let mut parts = vec![first.to_owned()];
    for line in lines {
        if let Some(left) = line.strip_prefix("left: ") {
            parts.push(format!("found {}", once(left)));
        } else if let Some(right) = line.strip_prefix("right: ") {
            parts.push(format!("expected {right}"));
        } else {
            parts.push(line.to_owned());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}

/// A list of one fault over and over, as one.
fn once(list: &str) -> &str {
    let Some(items) = list.strip_prefix("[\"").and_then(|list| list.strip_suffix("\"]")) else {
        return list;
    };
    let mut items = items.split("\", \"");
    let first = items.next().unwrap_or_default();
    if items.all(|item| item == first) {
        first
    } else {
        list
    }
}

/// All rows as a table in markdown, and below it what each fault is.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = "\
# The contract over layers of other crates

`ok`: passes. `-`: not asked, for the layer has nothing to do with it. `FAULT`: breaks the contract, as told below;
the first breach of a check ends it. Some are on purpose: the tests in `tests/foreign.rs` say which.
\"Unwrapped\": what is inside the layer's own error is taken out before the checks see it.

"
    .to_owned();
    let checks: Vec<_> = rows[0].outcomes.iter().map(|(check, _)| *check).collect();
    for (n, check) in checks.iter().enumerate() {
        writeln!(text, "{}. `{check}`", n + 1).unwrap();
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap();
    write!(text, "\n| {:width$} |", "").unwrap();
    for n in 1..=checks.len() {
        write!(text, " {n:^5} |").unwrap();
    }
    write!(text, "\n|{:-<1$}|", "", width + 2).unwrap();
    text.push_str(&"-------|".repeat(checks.len()));
    text.push('\n');
    for row in rows {
        write!(text, "| {:width$} |", row.name).unwrap();
        for (_, outcome) in &row.outcomes {
            let cell = match outcome {
                Outcome::Pass => "ok",
                Outcome::Idle => "-",
                Outcome::Fault(_) => "FAULT",
            };
            write!(text, " {cell:^5} |").unwrap();
        }
        text.push('\n');
    }
    for row in rows {
        let mut title = Some(row.name);
        for (n, (_, outcome)) in row.outcomes.iter().enumerate() {
            if let Outcome::Fault(fault) = outcome {
                if let Some(title) = title.take() {
                    writeln!(text, "\n## {title}\n").unwrap();
                }
                writeln!(text, "- {}: {fault}", n + 1).unwrap();
            }
        }
    }
    text
}
