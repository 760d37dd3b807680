//! What differs between two tales of a case.
//!
//! A recording is held against the oracle with its switches as in Java, in everything that was recorded. What this
//! crate's stack did is held against the oracle with its switches as they are here, in everything but Java's wrapper
//! classes; that is the recording where no switch changes anything.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    script::{Server, Step},
    settings::{Settings, Transport},
    told::{Call, Told},
};

/// How far times may be apart, in milliseconds, besides 2 % of the time that has passed.
pub(super) const APART: u64 = 60;

/// The same on a machine that was busy, as the one of the recordings was at times: a first call there may have had
/// classes to load.
pub(super) const APART_WHEN_BUSY: u64 = 120;

/// Collects differences.
#[derive(Default)]
struct Differences {
    all: Vec<String>,
}

impl Differences {
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, seen: &T, told: &T) {
        if seen != told {
            self.all.push(format!("{what}: {seen:?} in place of {told:?}"));
        }
    }

    fn close(&mut self, what: &str, seen: u64, told: u64, apart: u64) {
        if seen.abs_diff(told) > apart + told / 50 {
            self.all
                .push(format!("{what}: at {seen} ms in place of {told} ms"));
        }
    }
}

/// With the transports of Java the name of a broken connection differs from run to run.
fn alike(transport: Transport, name: &str) -> &str {
    match name {
        "unexpected_eof" | "io_error" if transport != Transport::Plain => "connection_reset",
        other => other,
    }
}

/// The links of a chain; Apache's client wraps some of its errors into another of the same kind.
fn links(transport: Transport, chain: &[String]) -> Vec<&str> {
    let mut links: Vec<_> = chain.iter().map(|link| alike(transport, link)).collect();
    if transport != Transport::Plain {
        links.dedup();
    }
    links
}

/// What each server saw, and whether it saw it after the return.
fn by_server(told: &Told) -> BTreeMap<usize, Vec<(&str, bool)>> {
    let mut by_server: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for arrival in &told.arrivals {
        let seen = (arrival.method.as_str(), arrival.after_return);
        by_server.entry(arrival.server).or_default().push(seen);
    }
    by_server
}

/// Where a recording is not what the oracle tells of Java.
pub(super) fn recording(
    settings: &Settings,
    servers: &[Server],
    gap: u64,
    recorded: &Told,
    java: &Told,
) -> Vec<String> {
    let transport = settings.transport;
    let mut differences = Differences::default();
    let names = |told: &Told| -> Vec<_> {
        let attempts = told.attempts.iter();
        attempts
            .map(|attempt| {
                let outcome = alike(transport, &attempt.outcome).to_owned();
                let limits = (attempt.connect, attempt.read);
                (
                    attempt.server,
                    attempt.method.clone(),
                    outcome,
                    limits,
                    attempt.after_return,
                )
            })
            .collect()
    };
    differences.same("recorded attempts", &names(recorded), &names(java));
    recorded_times(&mut differences, recorded, java);
    if transport == Transport::Jdk && servers.iter().any(resets) {
        // How often the JDK's client sends again after a reset is a matter of chance: up to once.
        let connected = recorded.attempts.iter().filter(|attempt| {
            let nobody = ["connect_refused", "connect_timeout", "protocol_error"];
            !nobody.contains(&attempt.outcome.as_str())
        });
        let connected = connected.count();
        if !(connected..=2 * connected).contains(&recorded.arrivals.len()) {
            differences.same(
                "recorded number of arrivals",
                &recorded.arrivals.len(),
                &connected,
            );
        }
        let kinds = |told: &Told| -> BTreeSet<_> {
            let arrivals = told.arrivals.iter();
            arrivals
                .map(|arrival| (arrival.server, arrival.method.clone()))
                .collect()
        };
        differences.same("recorded arrivals", &kinds(recorded), &kinds(java));
    } else {
        differences.same("recorded arrivals", &by_server(recorded), &by_server(java));
    }
    differences.same(
        "recorded number of calls",
        &recorded.calls.len(),
        &java.calls.len(),
    );
    for (n, (recorded, java)) in recorded.calls.iter().zip(&java.calls).enumerate() {
        let what = |what: &str| format!("recorded call {n}, {what}");
        let kind = |call: &Call| alike(transport, &call.kind).to_owned();
        differences.same(&what("kind"), &kind(recorded), &kind(java));
        differences.same(
            &what("chain"),
            &links(transport, &recorded.chain),
            &links(transport, &java.chain),
        );
        differences.same(&what("value"), &recorded.value, &java.value);
        differences.same(
            &what("attempts"),
            &recorded.attempts_during,
            &java.attempts_during,
        );
        differences.same(&what("breaker"), &recorded.open_after, &java.open_after);
        differences.close(&what("begin"), recorded.started, java.started, APART_WHEN_BUSY);
        differences.close(&what("return"), recorded.returned, java.returned, APART_WHEN_BUSY);
    }
    for calls in recorded.calls.windows(2) {
        differences.close(
            "recorded gap to a next call",
            calls[1].started,
            calls[0].returned + gap,
            APART,
        );
    }
    if let Some(last) = recorded.calls.last() {
        differences.close("recorded total", recorded.total, last.returned, 2);
    }
    differences.same("recorded sleeps", &recorded.sleeps, &java.sleeps);
    differences.same("recorded server stats", &recorded.stats, &java.stats);
    let ends = |told: &Told| -> Vec<String> {
        let chain = told.ribbon_error.clone().unwrap_or_default();
        links(transport, &chain).into_iter().map(str::to_owned).collect()
    };
    differences.same("recorded error of Ribbon", &ends(recorded), &ends(java));
    differences.same("recorded breaker", &recorded.breaker, &java.breaker);
    differences.same("recorded causes", &recorded.causes, &java.causes);
    let events = |told: &Told| -> Vec<_> { told.executions.iter().map(|one| one.events.clone()).collect() };
    differences.same("recorded executions", &events(recorded), &events(java));
    for (recorded, java) in recorded.executions.iter().zip(&java.executions) {
        differences.close("recorded execution", recorded.at, java.at, APART_WHEN_BUSY);
    }
    for (execution, call) in recorded.executions.iter().zip(&recorded.calls) {
        // A timeout is booked at the deadline, wherever the caller is then.
        if !execution.events.iter().any(|event| event == "TIMEOUT") {
            differences.close("recorded execution", execution.at, call.returned, APART);
        }
    }
    differences.all
}

fn resets(server: &Server) -> bool {
    let Server::Listens(script) = server else {
        return false;
    };
    script
        .iter()
        .any(|step| matches!(step, Step::CloseBeforeRead | Step::ResetAfterRead))
}

/// Each attempt began, and took, about as long as it had to; and no step from one to the next is off by more than a
/// calm machine allows.
fn recorded_times(differences: &mut Differences, recorded: &Told, java: &Told) {
    let pairs: Vec<_> = recorded.attempts.iter().zip(&java.attempts).collect();
    for (n, (recorded, java)) in pairs.iter().enumerate() {
        differences.close(
            &format!("recorded attempt {n}"),
            recorded.start,
            java.start,
            APART_WHEN_BUSY,
        );
        let took = |start: u64, end: Option<u64>| end.map(|end| end.saturating_sub(start));
        match (took(recorded.start, recorded.end), took(java.start, java.end)) {
            (Some(recorded), Some(java)) => {
                differences.close(
                    &format!("recorded end of attempt {n} after"),
                    recorded,
                    java,
                    APART,
                );
            }
            (recorded, java) => differences.same(&format!("recorded end of attempt {n}"), &recorded, &java),
        }
    }
    for (n, pair) in pairs.windows(2).enumerate() {
        let step = |from: u64, to: u64| to.saturating_sub(from);
        differences.close(
            &format!("recorded attempt {} after the one before", n + 1),
            step(pair[0].0.start, pair[1].0.start),
            step(pair[0].1.start, pair[1].1.start),
            APART,
        );
    }
    for (recorded, java) in recorded.arrivals.iter().zip(&java.arrivals) {
        differences.close("recorded arrival", recorded.at, java.at, APART_WHEN_BUSY);
    }
}

/// Where two tales differ in more than their times.
pub(super) fn otherwise(one: &Told, other: &Told) -> bool {
    !played(one, other, u64::MAX / 2).is_empty()
}

/// With the times of each call counted from its own beginning, as calls without a gap shift those after them; and with
/// one name for a broken connection with the transports of Java.
pub(super) fn call_by_call(transport: Transport, told: &Told) -> Told {
    let mut by_call = told.clone();
    let mut attempts = by_call.attempts.iter_mut();
    for call in &told.calls {
        for attempt in attempts.by_ref().take(call.attempts_during.unwrap_or(usize::MAX)) {
            attempt.start = attempt.start.saturating_sub(call.started);
            attempt.end = attempt.end.map(|end| end.saturating_sub(call.started));
            attempt.outcome = alike(transport, &attempt.outcome).to_owned();
        }
    }
    for call in &mut by_call.calls {
        call.returned -= call.started;
        call.kind = alike(transport, &call.kind).to_owned();
    }
    by_call
}

/// Where this crate's stack did something else than is told of it, with its times further apart than this.
pub(super) fn played(played: &Told, told: &Told, apart: u64) -> Vec<String> {
    let mut differences = Differences::default();
    let names = |told: &Told| -> Vec<_> {
        let attempts = told.attempts.iter();
        attempts
            .map(|attempt| {
                (
                    attempt.server,
                    attempt.method.clone(),
                    attempt.outcome.clone(),
                    attempt.after_return,
                )
            })
            .collect()
    };
    differences.same("attempts", &names(played), &names(told));
    for (n, (played, told)) in played.attempts.iter().zip(&told.attempts).enumerate() {
        differences.close(&format!("attempt {n}"), played.start, told.start, apart);
        if let (Some(played), Some(told)) = (played.end, told.end) {
            differences.close(&format!("end of attempt {n}"), played, told, apart);
        }
    }
    differences.same("arrivals", &by_server(played), &by_server(told));
    for (n, (played, told)) in played.calls.iter().zip(&told.calls).enumerate() {
        let what = |what: &str| format!("call {n}, {what}");
        differences.same(&what("kind"), &played.kind, &told.kind);
        differences.same(
            &what("Hystrix' type"),
            &played.hystrix_type(),
            &told.hystrix_type(),
        );
        differences.same(&what("value"), &played.value, &told.value);
        differences.same(&what("attempts"), &played.attempts_during, &told.attempts_during);
        differences.same(&what("breaker"), &played.open_after, &told.open_after);
        differences.close(&what("return"), played.returned, told.returned, apart);
    }
    differences.same("sleeps", &played.sleeps, &told.sleeps);
    differences.same("server stats", &played.stats, &told.stats);
    differences.same("breaker", &played.breaker, &told.breaker);
    differences.same("causes", &played.causes, &told.causes);
    let events = |told: &Told| -> Vec<_> { told.executions.iter().map(|one| one.events.clone()).collect() };
    differences.same("executions", &events(played), &events(told));
    differences.all
}
