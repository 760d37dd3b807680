//! Printing what happened in a call, for a person to read.

#![allow(
    unreachable_pub,
    clippy::print_stdout,
    reason = "a part of an example, which prints"
)]

use std::{
    collections::HashMap,
    io::{IsTerminal, stdout},
    time::Duration,
};

use tower_outbound::call::{Attempt, AttemptOutcome, BoxError, Event, Fault, FaultKind, Sent, Trail};

/// How a call ended, without its body.
pub type Outcome = Result<http::Response<()>, BoxError>;

/// Knows the names of the servers, and whether colors are wanted.
pub struct Show {
    names: HashMap<String, &'static str>,
    colors: bool,
}

impl Show {
    pub fn new() -> Show {
        Show {
            names: HashMap::new(),
            colors: stdout().is_terminal(),
        }
    }

    /// Calls the server at this address by a name.
    pub fn name(&mut self, address: impl ToString, name: &'static str) {
        self.names.insert(address.to_string(), name);
    }

    pub fn title(&self, title: &str) {
        println!("\n{}", self.paint("1", title));
    }

    pub fn text(&self, text: &str) {
        println!("{text}");
    }

    /// One call: what was asked, each attempt and what followed from it, how it ended.
    pub fn call(&self, asked: &str, outcome: &Outcome, took: Duration, after: &str) {
        println!("\n  {}", self.paint("1", asked));
        if let Some(trail) = trail(outcome) {
            self.trail(trail);
        }
        let end = match outcome {
            Ok(response) => self.paint("32", &response.status().to_string()),
            Err(error) => self.paint("31", &failure(error)),
        };
        println!("    = {end}, after {}; {after}", millis(took));
    }

    fn trail(&self, trail: &Trail) {
        let Some(began) = trail.started() else { return };
        let mut ordinal = 0;
        for event in trail.events() {
            match event {
                Event::Attempt(attempt) => {
                    ordinal += 1;
                    let at = attempt.started().duration_since(began);
                    println!(
                        "    {ordinal}. {:<22} at {:>7}  took {:>7}  {}",
                        self.place(attempt),
                        millis(at),
                        millis(attempt.took()),
                        self.outcome(attempt.outcome()),
                    );
                }
                Event::Retry(retry) => println!("       {}", self.paint("2", &retry.to_string())),
                Event::Stop(stop) => println!("       {}", self.paint("2", &stop.to_string())),
                _ => {}
            }
        }
    }

    fn place(&self, attempt: &Attempt) -> String {
        let Some(endpoint) = attempt.endpoint() else {
            return "nowhere".into();
        };
        let address = endpoint.authority().to_string();
        self.names
            .get(&address)
            .map_or(address, |name| (*name).to_owned())
    }

    fn outcome(&self, outcome: AttemptOutcome) -> String {
        let color = match outcome {
            AttemptOutcome::Answered => "32",
            AttemptOutcome::Failed(fault) if fault.sent() == Sent::No => "33",
            _ => "31",
        };
        self.paint(color, &outcome.to_string())
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colors {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// What was sent and what was received, server by server. True if they agree everywhere.
    pub fn ledger(&self, lines: &[(&'static str, usize, usize)]) -> bool {
        println!("\n    {:<22} {:>9} {:>9}", "server", "sent", "received");
        let mut agree = true;
        for (name, sent, received) in lines {
            agree &= sent == received;
            let note = if sent == received { "" } else { "  <- these differ" };
            println!("    {name:<22} {sent:>9} {received:>9}{}", self.paint("31", note));
        }
        agree
    }
}

/// The trail of a call, be it on the response or on the error.
pub fn trail(outcome: &Outcome) -> Option<&Trail> {
    match outcome {
        Ok(response) => Trail::on(response),
        Err(error) => Trail::of(&**error),
    }
}

/// How many attempts of a call went to this address and may have reached the server there.
pub fn sent_to(outcome: &Outcome, address: &str) -> usize {
    let reached = |attempt: &&Attempt| match attempt.outcome() {
        AttemptOutcome::Failed(fault) => fault.sent() == Sent::Maybe,
        _ => true,
    };
    let here = |attempt: &&Attempt| {
        attempt
            .endpoint()
            .is_some_and(|endpoint| endpoint.authority() == address)
    };
    trail(outcome)
        .into_iter()
        .flat_map(Trail::attempts)
        .filter(here)
        .filter(reached)
        .count()
}

fn failure(error: &BoxError) -> String {
    let fault = Fault::of(&**error);
    match fault.kind() {
        FaultKind::Status(status) => format!("error: status {status}"),
        kind => format!("error: {kind}"),
    }
}

/// Whole milliseconds up to ten seconds, so that columns stay aligned.
pub fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
