//! One attempt on the wire, and the body of its answer.

use std::{rc::Rc, time::Duration};

use tokio::time::sleep;

use super::World;
use crate::http::{
    script::{Answer, RESET_AFTER, Server, ShortEnd, Step, step},
    settings::Transport,
    told::Arrival,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    ConnectRefused,
    ConnectTimeout,
    ReadTimeout,
    ConnectionReset,
    /// Closed before any byte of an answer.
    UnexpectedEof,
    /// Closed before the end of the body.
    PrematureEof,
    /// The JDK's client knows no PATCH.
    ProtocolError,
}

impl Failure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Failure::ConnectRefused => "connect_refused",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::ReadTimeout => "read_timeout",
            Failure::ConnectionReset => "connection_reset",
            Failure::UnexpectedEof => "unexpected_eof",
            Failure::PrematureEof => "premature_eof",
            Failure::ProtocolError => "protocol_error",
        }
    }

    /// Is it one of Java's socket exceptions? An early close is one to the JDK, and of another type in Apache's client.
    pub(super) fn is_socket(self, world: &World) -> bool {
        match self {
            Failure::ConnectRefused | Failure::ConnectionReset => true,
            Failure::UnexpectedEof => world.settings.transport != Transport::Apache || world.ways.not_java,
            _ => false,
        }
    }

    /// Does Ribbon count it against the server?
    pub(super) fn counts(self, world: &World) -> bool {
        self.is_socket(world) || matches!(self, Failure::ConnectTimeout | Failure::ReadTimeout)
    }
}

/// The head of an answer, and what is to come of its body.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) retry_after: Option<String>,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Whole(String),
    Short(String, ShortEnd),
}

/// Sends the request once, or as often as the transport does of its own accord.
pub(super) async fn send(world: &Rc<World>, server: usize) -> Result<Head, Failure> {
    let running = world.begin_attempt(server);
    let sent = exchange(world, server).await;
    running.end(match &sent {
        Ok(head) => format!("status({})", head.status),
        Err(failure) => failure.name().to_owned(),
    });
    sent
}

async fn exchange(world: &World, server: usize) -> Result<Head, Failure> {
    let transport = world.settings.transport;
    let method = world.calls.method.as_str();
    if transport == Transport::Jdk && method == "PATCH" && !world.ways.not_java {
        return Err(Failure::ProtocolError);
    }
    let without_body = matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS");
    let resends = match transport {
        _ if world.ways.no_resends || !without_body => 0,
        Transport::Plain => 0,
        Transport::Jdk => 1,
        Transport::Apache => 3,
    };
    let mut sent = once(world, server).await;
    for _ in 0..resends {
        if !matches!(sent, Err(Failure::ConnectionReset | Failure::UnexpectedEof)) {
            break;
        }
        sent = once(world, server).await;
    }
    sent
}

async fn once(world: &World, server: usize) -> Result<Head, Failure> {
    let read = world.settings.read;
    let script = match &world.servers[server] {
        Server::Refuses => return Err(Failure::ConnectRefused),
        Server::Blackhole => {
            sleep(Duration::from_millis(world.settings.connect)).await;
            return Err(Failure::ConnectTimeout);
        }
        Server::Listens(script) => script,
    };
    let step = {
        let accepted = &mut world.accepted.borrow_mut()[server];
        *accepted += 1;
        step(script, *accepted - 1)
    };
    world.told.borrow_mut().arrivals.push(Arrival {
        server,
        method: match step {
            Step::CloseBeforeRead => "?".to_owned(),
            _ => world.calls.method.clone(),
        },
        at: world.now(),
        after_return: false,
    });
    match step {
        Step::Hang => {
            sleep(Duration::from_millis(read)).await;
            Err(Failure::ReadTimeout)
        }
        Step::CloseBeforeRead | Step::ResetAfterRead => Err(Failure::ConnectionReset),
        Step::CloseAfterRead => Err(Failure::UnexpectedEof),
        Step::Respond { answer, delay } => {
            sleep(Duration::from_millis(*delay.min(&read))).await;
            if *delay >= read {
                return Err(Failure::ReadTimeout);
            }
            Ok(head(world, answer, Body::Whole(answer.body.clone())))
        }
        Step::ShortBody { answer, end, .. } => {
            Ok(head(world, answer, Body::Short(answer.body.clone(), *end)))
        }
    }
}

fn head(world: &World, answer: &Answer, body: Body) -> Head {
    // An answer to HEAD has no body, and one with such a status neither.
    let none = world.calls.method == "HEAD" || matches!(answer.status, 204 | 304);
    Head {
        status: answer.status,
        retry_after: answer
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
            .map(|(_, value)| value.clone()),
        body: if none { Body::Whole(String::new()) } else { body },
    }
}

/// Reads the body to its end.
pub(super) async fn read(world: &World, head: &Head) -> Result<String, Failure> {
    let (text, end) = match &head.body {
        Body::Whole(text) => return Ok(text.clone()),
        Body::Short(text, end) => (text, end),
    };
    match end {
        // The JDK's client does not notice.
        ShortEnd::Closes if world.settings.transport == Transport::Jdk && !world.ways.short_bodies => {
            Ok(text.clone())
        }
        ShortEnd::Closes => Err(Failure::PrematureEof),
        ShortEnd::Stalls => {
            sleep(Duration::from_millis(world.settings.read)).await;
            Err(Failure::ReadTimeout)
        }
        ShortEnd::Resets => {
            let wait = RESET_AFTER.min(world.settings.read);
            sleep(Duration::from_millis(wait)).await;
            Err(if wait < RESET_AFTER {
                Failure::ReadTimeout
            } else {
                Failure::ConnectionReset
            })
        }
    }
}
