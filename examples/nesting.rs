//! Hystrix around feign around ribbon, against real servers that refuse, stall, reset and answer 503.
//!
//! ```text
//! cargo run --example nesting --all-features
//! ```
//!
//! With no arguments it starts its own servers on loopback and tells a story in four parts. Each server counts the
//! requests that reach it; at the end of each part the counts are held against what the nest says it has sent, and
//! the example fails if they differ.
//!
//! With `--url http://host:port`, once or several times, it sends calls to a service of yours:
//!
//! ```text
//! --url URL        an endpoint, without a path; may be given several times
//! --path PATH      what to ask for                                 /
//! --method METHOD  GET, POST, ...                                  GET
//! --calls N        how many calls, one after the other             5
//! --connect MS     the connect limit                               1000
//! --read MS        the read limit                                  5000
//! --next N         retries on the next endpoint                    1
//! ```

#![allow(clippy::print_stderr, reason = "a program that prints")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/show.rs"]
mod show;

use std::{process::ExitCode, time::Duration};

use backends::{Backend, Manner};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use show::{Outcome, Show};
use tokio::{sync::mpsc, time::Instant};
use tower::discover::Change;
use tower_outbound::{
    Nest,
    balance::RoundRobin,
    breaker::Breaker,
    call::{BoxError, Endpoint, Endpoints},
    nest::HttpNest,
    retry::{Backoff, Idempotent},
};

const FLAGS: &str =
    "flags: --url URL [--url URL ...] --path PATH --method METHOD --calls N --connect MS --read MS --next N";

/// By round robin, so that it can be told who is called next: the default rule would soon avoid the bad servers.
type HttpClientNest = HttpNest<Full<Bytes>, RoundRobin>;
type Changes = mpsc::UnboundedSender<Change<String, Endpoint>>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        eprintln!("without arguments it tells its story; {FLAGS}");
        return ExitCode::SUCCESS;
    }
    let told = if arguments.is_empty() {
        tell_the_story().await
    } else {
        call_a_service(arguments).await
    };
    match told {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("\nwhat was sent and what was received differ, or a call did not end as told");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn tell_the_story() -> Result<bool, BoxError> {
    let mut show = Show::new();
    let began = Instant::now();
    let one = each_kind_of_server(&mut show).await?;
    let two = an_outage(&mut show).await?;
    let three = the_eight_seconds(&mut show).await?;
    let four = nothing_afterwards(&mut show).await?;
    show.text(&format!("\ntold in {:.1} s", began.elapsed().as_secs_f64()));
    Ok(one && two && three && four)
}

/// A discovery stream, and the end at which changes are put in.
fn discovery() -> (Changes, Endpoints) {
    let (changes, receiver) = mpsc::unbounded_channel();
    let stream = stream::unfold(receiver, |mut receiver| async move {
        let change = receiver.recv().await?;
        Some((Ok::<_, BoxError>(change), receiver))
    });
    (changes, Endpoints::from_stream(stream))
}

fn join(changes: &Changes, backend: &Backend) -> Result<(), BoxError> {
    changes.send(Change::Insert(backend.uri(), Endpoint::new(backend.uri())?))?;
    Ok(())
}

/// Sends one call, reads the answer to its end, and tells how long it took.
async fn send(nest: &HttpClientNest, method: &Method, path: &str) -> Result<(Outcome, Duration), BoxError> {
    let body = if *method == Method::GET {
        Bytes::new()
    } else {
        Bytes::from_static(b"one order, please\n")
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Full::new(body))?;
    let began = Instant::now();
    let outcome = match nest.send(request).await {
        Ok(response) => {
            let (head, body) = response.into_parts();
            body.collect().await.map(|_| http::Response::from_parts(head, ()))
        }
        Err(error) => Err(error),
    };
    Ok((outcome, began.elapsed()))
}

async fn each_kind_of_server(show: &mut Show) -> Result<bool, BoxError> {
    show.title("1. A GET and a POST to each kind of server, with a healthy one as the next endpoint");
    show.text(
        "   Connect and read limits are equal here, 500 ms, and still each error names the right one. A GET goes on\n   \
         to the healthy server. A POST does so only when it is proved that nothing of it was sent. Below, \"sent\" is\n   \
         what the nest says may have reached a server, and \"received\" what the server has counted.",
    );
    // What a GET and a POST must come to: requests that reach this server, those that reach the next one, and whether
    // the call is answered.
    let (here, moved, failed) = ((1, 0, true), (0, 1, true), (1, 0, false));
    let both = (1, 1, true);
    let kinds = [
        ("healthy", Manner::Answers(200), here, here),
        ("slow", Manner::Sleeps(Duration::from_secs(3)), both, failed),
        ("refuses", Manner::Refuses, moved, moved),
        ("full accept queue", Manner::QueueFull, moved, moved),
        ("resets after reading", Manner::ResetsAfterReading, both, failed),
        (
            "503, retry after 1 s",
            Manner::Unavailable { retry_after: 1 },
            both,
            failed,
        ),
        ("404", Manner::Answers(404), failed, failed),
    ];
    let mut as_told = true;
    let mut ledger = Vec::new();
    for (name, manner, get, post) in kinds {
        let server = Backend::start(name, manner).await?;
        let next = Backend::start("next", Manner::Answers(200)).await?;
        show.name(server.address(), name);
        show.name(next.address(), "healthy (next)");
        let (mut sent, mut sent_next) = (0, 0);
        for (method, expected) in [(Method::GET, get), (Method::POST, post)] {
            // A nest of its own for each call, so that the rotation begins with this server.
            let (changes, endpoints) = discovery();
            join(&changes, &server)?;
            join(&changes, &next)?;
            let nest = Nest::builder("orders", endpoints)
                .rule(RoundRobin::new())
                .connect_limit(Duration::from_millis(500))
                .read_limit(Duration::from_millis(500))
                .execution_limit(Duration::from_secs(10))
                .record_every_call(true)
                .build_http()?;
            let before = (server.received(), next.received());
            let (outcome, took) = send(&nest, &method, "/orders").await?;
            let breaker = format!("breaker {}", nest.handle().breaker().state());
            show.call(
                &format!("{method} /orders to \"{name}\""),
                &outcome,
                took,
                &breaker,
            );
            let seen = (
                server.received() - before.0,
                next.received() - before.1,
                outcome.is_ok(),
            );
            if seen != expected {
                show.text(&format!("    <- not as told: {seen:?} in place of {expected:?}"));
                as_told = false;
            }
            sent += show::sent_to(&outcome, &server.address().to_string());
            sent_next += show::sent_to(&outcome, &next.address().to_string());
        }
        ledger.push((name, sent, server.received()));
        ledger.push(("  and its healthy next", sent_next, next.received()));
    }
    Ok(show.ledger(&ledger) && as_told)
}

async fn an_outage(show: &mut Show) -> Result<bool, BoxError> {
    show.title(
        "2. An outage: two of three servers fail, the circuit opens; they leave the stream, it recovers",
    );
    show.text(
        "   There are no retries in this stack, so that the outage shows. The circuit opens when at least half of at\n   \
         least 10 outcomes are failures, whichever outcome it is that completes them.",
    );
    let sleep_window = Duration::from_secs(2);
    let good = Backend::start("healthy", Manner::Answers(200)).await?;
    let resets = Backend::start("resets", Manner::ResetsAfterReading).await?;
    let refuses = Backend::start("refuses", Manner::Refuses).await?;
    let servers = [&good, &resets, &refuses];
    let (changes, endpoints) = discovery();
    for server in servers {
        show.name(server.address(), server.name());
        join(&changes, server)?;
    }
    let breaker = Breaker::builder("orders")
        .volume(10)
        .error_percent(50)
        .sleep_window(sleep_window)
        .build()?;
    let nest: HttpClientNest = Nest::builder("orders", endpoints)
        .rule(RoundRobin::new())
        .breaker(breaker.clone())
        // The next endpoint may be the other bad one; without it the outage shows at once.
        .idempotent(Idempotent::default().next_endpoint(0))
        .backoff(Backoff::never())
        .record_every_call(true)
        .build_http()?;

    let mut outcomes = Vec::new();
    let mut rejected = 0;
    for n in 1..=20 {
        let (outcome, took) = send(&nest, &Method::POST, "/orders").await?;
        let counts = breaker.counts();
        let state = format!(
            "breaker {} ({} of {} failed)",
            breaker.state(),
            counts.failures(),
            counts.total()
        );
        if show::trail(&outcome).is_none() {
            rejected += 1;
        }
        if n <= 3 || (8..=12).contains(&n) {
            show.call(&format!("POST /orders, call {n}"), &outcome, took, &state);
        } else if n == 4 || n == 13 {
            show.text("\n  ...");
        }
        outcomes.push(outcome);
    }
    let opened = breaker.state() == tower_outbound::call::CircuitState::Open;
    show.text(&format!(
        "\n    {rejected} of 20 calls were rejected without a word to any server"
    ));

    for server in [&resets, &refuses] {
        changes.send(Change::Remove(server.uri()))?;
    }
    show.text(&format!(
        "\n  The two leave the stream. After a sleep window of {} s one call goes out as a probe:",
        sleep_window.as_secs()
    ));
    tokio::time::sleep(sleep_window + Duration::from_millis(100)).await;
    for asked in ["POST /orders, the probe", "POST /orders"] {
        let before = breaker.state();
        let (outcome, took) = send(&nest, &Method::POST, "/orders").await?;
        show.call(
            asked,
            &outcome,
            took,
            &format!("breaker {before} before, {} after", breaker.state()),
        );
        outcomes.push(outcome);
    }
    let recovered = breaker.state() == tower_outbound::call::CircuitState::Closed;
    let ledger = servers.map(|server| {
        let address = server.address().to_string();
        let sent = outcomes
            .iter()
            .map(|outcome| show::sent_to(outcome, &address))
            .sum();
        (server.name(), sent, server.received())
    });
    Ok(show.ledger(&ledger) && opened && recovered && rejected > 0)
}

async fn the_eight_seconds(show: &mut Show) -> Result<bool, BoxError> {
    show.title(
        "3. The well-known case: read limit 1 s, retryer (1000 ms, 1000 ms, 3), a server that sleeps 2 s",
    );
    let slow = Backend::start("sleeps 2 s", Manner::Sleeps(Duration::from_secs(2))).await?;
    show.name(slow.address(), slow.name());
    let nest = |next| {
        let (changes, endpoints) = discovery();
        join(&changes, &slow)?;
        let second = Duration::from_secs(1);
        let nest: HttpClientNest = Nest::builder("slow", endpoints)
            .rule(RoundRobin::new())
            .read_limit(second)
            .backoff(Backoff::feign(second, second, 3)?)
            .idempotent(Idempotent::ribbon().next_endpoint(next))
            .no_execution_limit()
            .no_budget()
            .record_every_call(true)
            .build_http()?;
        Ok::<_, BoxError>((changes, nest))
    };
    // Both at once, to save the reader's time.
    let ((_changes, one), (_changes_too, two)) = (nest(0)?, nest(1)?);
    let (without, with) = tokio::join!(
        send(&one, &Method::GET, "/slow"),
        send(&two, &Method::GET, "/slow")
    );
    let ((without, five), (with, eight)) = (without?, with?);
    let expected = |nest: &HttpClientNest, seconds| {
        format!(
            "{seconds} s expected; breaker {}",
            nest.handle().breaker().state()
        )
    };
    show.call(
        "GET /slow, without a retry on the next server",
        &without,
        five,
        &expected(&one, 5),
    );
    show.text("    3 attempts of 1 s each, and 2 pauses of 1 s between them");
    show.call(
        "GET /slow, with one retry on the next server, ribbon's default",
        &with,
        eight,
        &expected(&two, 8),
    );
    show.text("    each of feign's 3 attempts is 2 attempts of ribbon: 6 of 1 s each, and 2 pauses of 1 s");
    let address = slow.address().to_string();
    let sent = show::sent_to(&without, &address) + show::sent_to(&with, &address);
    let about = |took: Duration, seconds: u64| took.as_millis().abs_diff(1000 * u128::from(seconds)) < 500;
    Ok(show.ledger(&[(slow.name(), sent, slow.received())]) && about(five, 5) && about(eight, 8))
}

async fn nothing_afterwards(show: &mut Show) -> Result<bool, BoxError> {
    show.title("4. When the execution limit ends a call, nothing more arrives anywhere");
    let slow = Backend::start("sleeps 2 s", Manner::Sleeps(Duration::from_secs(2))).await?;
    let other = Backend::start("sleeps 3 s", Manner::Sleeps(Duration::from_secs(3))).await?;
    let (changes, endpoints) = discovery();
    for server in [&slow, &other] {
        show.name(server.address(), server.name());
        join(&changes, server)?;
    }
    let second = Duration::from_secs(1);
    let nest: HttpClientNest = Nest::builder("slow", endpoints)
        .rule(RoundRobin::new())
        .read_limit(second)
        .backoff(Backoff::feign(second, second, 3)?)
        .execution_limit(Duration::from_millis(1500))
        .accept_cut_short()
        .record_every_call(true)
        .build_http()?;
    let (outcome, took) = send(&nest, &Method::GET, "/slow").await?;
    show.call(
        "GET /slow, execution limit 1.5 s",
        &outcome,
        took,
        &format!("1.5 s expected; breaker {}", nest.handle().breaker().state()),
    );
    let at_the_end = slow.received() + other.received();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let later = slow.received() + other.received();
    show.text(&format!(
        "    received when the call ended: {at_the_end}; three seconds later: {later}"
    ));
    let ledger = [&slow, &other].map(|server| {
        (
            server.name(),
            show::sent_to(&outcome, &server.address().to_string()),
            server.received(),
        )
    });
    Ok(show.ledger(&ledger) && at_the_end == later && took < Duration::from_millis(1900))
}

/// The other way to run it: calls to a service of the reader's.
async fn call_a_service(arguments: Vec<String>) -> Result<bool, BoxError> {
    let (mut urls, mut path, mut method) = (Vec::new(), "/".to_owned(), Method::GET);
    let (mut calls, mut connect, mut read, mut next) = (5_u32, 1000, 5000, 1);
    let mut arguments = arguments.into_iter();
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value; {FLAGS}"))?;
        match name.as_str() {
            "--url" => urls.push(Endpoint::new(value)?),
            "--path" => path = format!("/{}", value.trim_start_matches('/')),
            "--method" => method = value.parse()?,
            "--calls" => calls = value.parse()?,
            "--connect" => connect = value.parse()?,
            "--read" => read = value.parse()?,
            "--next" => next = value.parse()?,
            _ => return Err(format!("{name} is not known; {FLAGS}").into()),
        }
    }
    if urls.is_empty() {
        return Err("give --url at least once".into());
    }
    let show = Show::new();
    let nest: HttpClientNest = Nest::builder("service", Endpoints::from_iter(urls))
        .rule(RoundRobin::new())
        .connect_limit(Duration::from_millis(connect))
        .read_limit(Duration::from_millis(read))
        .idempotent(Idempotent::default().next_endpoint(next))
        .accept_cut_short()
        .record_every_call(true)
        .build_http()?;
    for n in 1..=calls {
        let (outcome, took) = send(&nest, &method, &path).await?;
        let breaker = format!("breaker {}", nest.handle().breaker().state());
        show.call(
            &format!("{method} {path}, call {n} of {calls}"),
            &outcome,
            took,
            &breaker,
        );
    }
    Ok(true)
}
