//! Ribbon's client: the choice of a server, its retries in both variants of the glue, and the books of each server.

use std::{rc::Rc, time::Duration};

use super::{
    World,
    wire::{self, Failure, Head},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Error {
    Failed(Failure),
    NoServer,
}

/// What Ribbon knows of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Books {
    pub(super) failures: u64,
    pub(super) active: u64,
    pub(super) total: u64,
    failed_at: u64,
}

const TRIPS_AT: u64 = 3;
const TRIP_FACTOR: Duration = Duration::from_secs(10);
const LONGEST_TRIP: Duration = Duration::from_secs(30);

impl Books {
    pub(super) fn tripped(&self, now: u64) -> bool {
        if self.failures < TRIPS_AT {
            return false;
        }
        let grown = TRIP_FACTOR * 2_u32.pow(u32::try_from((self.failures - TRIPS_AT).min(16)).unwrap());
        let blackout: u64 = grown.min(LONGEST_TRIP).as_millis().try_into().unwrap();
        now < self.failed_at + blackout
    }

    fn fail(&mut self, now: u64) {
        self.failures += 1;
        self.failed_at = now;
    }
}

/// A request that a server's books have as active. Dropped before its end it is taken back, and nothing is booked.
struct Active {
    world: Rc<World>,
    server: usize,
}

impl Active {
    fn begin(world: &Rc<World>, server: usize) -> Active {
        world.books.borrow_mut()[server].active += 1;
        Active {
            world: Rc::clone(world),
            server,
        }
    }

    fn end(self, result: Result<(), Failure>) {
        let now = self.world.now();
        let books = &mut self.world.books.borrow_mut()[self.server];
        books.total += 1;
        match result {
            Err(failure) if failure.counts(&self.world) => books.fail(now),
            _ => books.failures = 0,
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.world.books.borrow_mut()[self.server].active -= 1;
    }
}

/// A call of the client alone: kind, chain and value.
pub(super) async fn call(world: &Rc<World>) -> (String, Vec<String>, Option<String>) {
    match execute(world).await {
        Ok(head) => {
            let body = match wire::read(world, &head).await {
                Ok(body) => body,
                Err(failure) => format!("(body read failed: {})", failure.name()),
            };
            let value = format!("response status={} body={body}", head.status);
            ("success".to_owned(), Vec::new(), Some(value))
        }
        Err(Error::Failed(failure)) => (failure.name().to_owned(), vec![failure.name().to_owned()], None),
        Err(Error::NoServer) => (
            "no_available_server".to_owned(),
            vec!["runtime".to_owned(), "ribbon_client(GENERAL)".to_owned()],
            None,
        ),
    }
}

/// What Feign asks of Ribbon's client.
pub(super) async fn execute(world: &Rc<World>) -> Result<Head, Error> {
    if world.settings.spring_retry {
        with_spring_retry(world).await
    } else {
        plain(world).await
    }
}

/// Writes down with which error Ribbon's client ended.
fn ends_with(world: &World, label: &str, failure: Failure) -> Error {
    let mut chain = vec![format!("ribbon_client({label})")];
    if label == "GENERAL" {
        chain.push("runtime".to_owned());
    }
    chain.push(failure.name().to_owned());
    world.told.borrow_mut().ribbon_error = Some(chain);
    Error::Failed(failure)
}

fn no_server(world: &World) -> Error {
    world.told.borrow_mut().ribbon_error = Some(vec!["ribbon_client(GENERAL)".to_owned()]);
    Error::NoServer
}

fn choose(world: &World) -> Option<usize> {
    world.choice.borrow_mut().next(&world.books.borrow(), world.now())
}

fn retries_all(world: &World) -> bool {
    world.calls.method == "GET" || world.settings.retry_all
}

async fn plain(world: &Rc<World>) -> Result<Head, Error> {
    let settings = &world.settings;
    let retried = |failure: Failure| retries_all(world) || failure.is_socket(world);
    let mut choices = 0;
    loop {
        let server = choose(world).ok_or_else(|| no_server(world))?;
        choices += 1;
        let mut tries = 0;
        let failure = loop {
            let active = Active::begin(world, server);
            let sent = wire::send(world, server).await;
            active.end(sent.as_ref().map(|_| ()).map_err(|failure| *failure));
            tries += 1;
            match sent {
                Ok(head) => return Ok(head),
                Err(failure) if tries <= settings.same && retried(failure) => {}
                Err(failure) => break failure,
            }
        };
        if choices <= settings.next && retried(failure) {
            continue;
        }
        let label = if settings.next > 0 && choices == settings.next + 1 {
            "NUMBEROF_RETRIES_NEXTSERVER_EXCEEDED"
        } else if settings.same > 0 && tries == settings.same + 1 {
            "NUMBEROF_RETRIES_EXEEDED"
        } else {
            "GENERAL"
        };
        return Err(ends_with(world, label, failure));
    }
}

/// Why an attempt is to be made again.
enum Again {
    Failure(Failure),
    /// The status is one to be retried. The body has been read.
    Status(Head),
}

async fn with_spring_retry(world: &Rc<World>) -> Result<Head, Error> {
    let settings = &world.settings;
    let ours = world.ways.booked_there;
    let may = retries_all(world);
    let mut server = choose(world).ok_or_else(|| no_server(world))?;
    // Ribbon's own books have one request, on the server that was chosen first.
    let whole = (!ours).then(|| Active::begin(world, server));
    let mut on_first = true;
    let (mut same, mut next) = (0, 0);
    let (result, last) = loop {
        let active = ours.then(|| Active::begin(world, server));
        let sent = wire::send(world, server).await;
        if let Some(active) = active {
            active.end(sent.as_ref().map(|_| ()).map_err(|failure| *failure));
        }
        let again = match sent {
            Err(failure) => Again::Failure(failure),
            Ok(head) if settings.retryable_statuses.contains(&head.status) => {
                // Read into memory, so that its connection is free.
                match wire::read(world, &head).await {
                    Ok(_) => Again::Status(head),
                    Err(failure) => Again::Failure(failure),
                }
            }
            Ok(head) => break (Ok(head), None),
        };
        if let (Again::Failure(failure), false, false) = (&again, ours, on_first) {
            // The policy books on servers that it chose itself.
            if failure.counts(world) {
                let now = world.now();
                world.books.borrow_mut()[server].fail(now);
            }
        }
        let exhausted = if may && same < settings.same {
            same += 1;
            false
        } else {
            let left = may && next < settings.next;
            // In Java the next server is chosen before it is known whether there is a try left for it.
            if left || (may && !ours) {
                if let Some(chosen) = choose(world) {
                    server = chosen;
                    on_first = false;
                }
            }
            same = 0;
            next += 1;
            !left
        };
        if exhausted {
            match again {
                Again::Failure(failure) => break (Err(ends_with(world, "GENERAL", failure)), Some(failure)),
                // The last answer is handed on.
                Again::Status(head) => break (Ok(head), None),
            }
        }
    };
    if let Some(whole) = whole {
        whole.end(last.map_or(Ok(()), Err));
    }
    result
}
