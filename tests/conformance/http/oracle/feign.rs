//! Feign's retry loop, its error decoder and its retryer.

use std::{rc::Rc, time::Duration};

use tokio::time::sleep;

use super::{
    Interrupt, World, ribbon,
    wire::{self, Failure, Head},
};
use crate::http::settings::{Decoder, Retryer, ReturnType};

/// How a call of Feign ended.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Value(String),
    Failed(Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Error {
    /// Retried, if the retryer has attempts left.
    Retryable {
        date: Option<Date>,
        cause: Cause,
    },
    /// The body failed.
    Body(Failure),
    Status(u16),
    BadRequest,
    /// Ribbon had no server.
    NoServer,
    /// The number of seconds does not fit into 64 bits.
    NumberFormat,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    Failure(Failure),
    Status(u16),
    /// The error decoder made it of nothing.
    None,
}

/// A point in time that is this many milliseconds from now, give or take what real time adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Date {
    pub(super) earliest: i64,
    pub(super) latest: i64,
}

impl Outcome {
    /// Kind, chain and value.
    pub(super) fn told(&self) -> (String, Vec<String>, Option<String>) {
        match self {
            Outcome::Value(value) => ("success".to_owned(), Vec::new(), Some(value.clone())),
            Outcome::Failed(error) => (error.kind(), error.chain(), None),
        }
    }
}

impl Error {
    /// From what the caller catches to the root.
    pub(super) fn chain(&self) -> Vec<String> {
        match self {
            Error::Retryable { date, cause } => {
                let own = if date.is_some() {
                    "feign_retryable(retry_after)"
                } else {
                    "feign_retryable"
                };
                let mut chain = vec![own.to_owned()];
                match cause {
                    Cause::Failure(failure) => chain.push(failure.name().to_owned()),
                    Cause::Status(status) => chain.push(format!("status({status})")),
                    Cause::None => {}
                }
                chain
            }
            Error::Body(failure) => vec!["feign_error".to_owned(), failure.name().to_owned()],
            Error::Status(status) => vec![format!("status({status})")],
            Error::BadRequest => vec!["bad_request".to_owned()],
            Error::NoServer => vec!["runtime".to_owned(), "ribbon_client(GENERAL)".to_owned()],
            Error::NumberFormat => vec!["number_format".to_owned()],
        }
    }

    pub(super) fn kind(&self) -> String {
        match self {
            Error::NoServer => "no_available_server".to_owned(),
            other => other.chain().pop().unwrap_or_default(),
        }
    }
}

pub(super) async fn call(world: &Rc<World>, interrupt: &Interrupt) -> Outcome {
    let mut n = 1;
    loop {
        let error = match attempt(world).await {
            Ok(value) => return Outcome::Value(value),
            Err(error) => error,
        };
        let Error::Retryable { date, .. } = error else {
            return Outcome::Failed(error);
        };
        let Some(retryer) = world.settings.retryer else {
            return Outcome::Failed(error);
        };
        let used_up = n >= retryer.max_attempts;
        n += 1;
        if used_up || !pause(world, interrupt, &retryer, n, date).await {
            return Outcome::Failed(error);
        }
    }
}

/// False: the thread was interrupted, and the retryer gives up.
async fn pause(world: &World, interrupt: &Interrupt, retryer: &Retryer, n: u64, date: Option<Date>) -> bool {
    let pause = match date {
        Some(date) => {
            let cap = i64::try_from(retryer.max_period).unwrap();
            let earliest = date.earliest.clamp(0, cap);
            let latest = date.latest.clamp(0, cap);
            let given = {
                let done = world.told.borrow().sleeps.len();
                world
                    .given
                    .sleeps
                    .get(done)
                    .map_or(latest, |given| i64::try_from(*given).unwrap())
            };
            u64::try_from(given.clamp(earliest, latest)).unwrap()
        }
        None => interval(retryer, n),
    };
    // A date that is past is no pause, and no place to be interrupted at.
    let past = date.is_some_and(|date| date.latest < 0);
    if past {
        world.told.borrow_mut().sleeps.push(0);
        return true;
    }
    // Where an interrupt ends the call, the recordings have pauses once they are over.
    let afterwards = world.settings.interrupted_pauses_throw && !world.ways.work_stops;
    if !afterwards {
        world.told.borrow_mut().sleeps.push(pause);
    }
    let interrupted = tokio::select! {
        biased;
        () = async {
            if !interrupt.on.get() {
                interrupt.notify.notified().await;
            }
        } => true,
        () = sleep(Duration::from_millis(pause)) => false,
    };
    if world.settings.interrupted_pauses_throw && interrupted {
        return false;
    }
    if afterwards {
        world.told.borrow_mut().sleeps.push(pause);
    }
    true
}

/// The pause before attempt n.
fn interval(retryer: &Retryer, n: u64) -> u64 {
    let exponent = i32::try_from(n - 1).unwrap();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "as Java does it"
    )]
    let grown = (retryer.period as f64 * 1.5_f64.powi(exponent)) as u64;
    grown.min(retryer.max_period)
}

async fn attempt(world: &Rc<World>) -> Result<String, Error> {
    let failed = |failure| Error::Retryable {
        date: None,
        cause: Cause::Failure(failure),
    };
    let head = if world.level == "feign" {
        wire::send(world, 0).await.map_err(failed)?
    } else {
        ribbon::execute(world).await.map_err(|error| match error {
            ribbon::Error::Failed(failure) => failed(failure),
            ribbon::Error::NoServer => Error::NoServer,
        })?
    };
    decode(world, &head).await
}

async fn decode(world: &World, head: &Head) -> Result<String, Error> {
    let settings = &world.settings;
    let void = settings.return_type == ReturnType::Void;
    if settings.return_type == ReturnType::Response {
        // All bodies of these cases are known to be short, so they are read first.
        let body = wire::read(world, head).await.map_err(Error::Body)?;
        return Ok(format!("response status={} body={body}", head.status));
    }
    match head.status {
        200..=299 if void => Ok("(void)".to_owned()),
        // The default decoder gives what is empty for the type, and reads nothing.
        204 => Ok("(null)".to_owned()),
        404 if settings.decode404 && !void => Ok("(null)".to_owned()),
        200..=299 => wire::read(world, head).await.map_err(Error::Body),
        status => Err(decode_error(world, head, status).await),
    }
}

async fn decode_error(world: &World, head: &Head, status: u16) -> Error {
    match (world.settings.decoder, status) {
        (Decoder::BadRequestOn4xx, 400..=499) => return Error::BadRequest,
        (Decoder::RetryableOn5xx, 500..=599) => {
            return Error::Retryable {
                date: None,
                cause: Cause::None,
            };
        }
        _ => {}
    }
    // Into the message, as far as it comes.
    let _ = wire::read(world, head).await;
    match head.retry_after.as_deref().map(|value| read_date(value, world)) {
        Some(RetryAfter::Date(date)) => Error::Retryable {
            date: Some(date),
            cause: Cause::Status(status),
        },
        Some(RetryAfter::TooLong) => Error::NumberFormat,
        Some(RetryAfter::Unusable) | None => Error::Status(status),
    }
}

enum RetryAfter {
    Date(Date),
    Unusable,
    TooLong,
}

fn read_date(value: &str, world: &World) -> RetryAfter {
    // A date that is read in a zone west of Greenwich lies later.
    let west = if world.ways.gmt {
        0
    } else {
        -world.settings.zone * 60_000
    };
    let value = value.trim_matches([' ', '\t']);
    if let Some(after) = value
        .strip_prefix("{http_date:+")
        .and_then(|rest| rest.strip_suffix('}'))
    {
        let after: i64 = after.parse().unwrap();
        // Whole seconds, cut.
        return RetryAfter::Date(Date {
            earliest: after - 1020 + west,
            latest: after + west,
        });
    }
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return match value.parse::<i64>() {
            Ok(seconds) => {
                let after = seconds.saturating_mul(1000);
                RetryAfter::Date(Date {
                    earliest: after.saturating_sub(20),
                    latest: after,
                })
            }
            // Ours is the longest there is.
            Err(_) if world.ways.not_java => RetryAfter::Date(Date {
                earliest: i64::MAX,
                latest: i64::MAX,
            }),
            Err(_) => RetryAfter::TooLong,
        };
    }
    match gmt(value) {
        Some(past) => {
            let far = if past { i64::MIN } else { i64::MAX };
            RetryAfter::Date(Date {
                earliest: far,
                latest: far,
            })
        }
        None => RetryAfter::Unusable,
    }
}

/// Is this date, in the one form that Feign reads, past? Dates of the cases are years away or written relative to now.
fn gmt(value: &str) -> Option<bool> {
    let mut words = value.split(' ').filter(|word| !word.is_empty());
    let weekday = words.next()?.strip_suffix(',')?;
    let weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let day: u32 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let year: u32 = words.next()?.parse().ok()?;
    let time: Vec<u32> = words
        .next()?
        .split(':')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let known = weekdays.contains(&weekday)
        && months.contains(&month)
        && (1..=31).contains(&day)
        && time.len() == 3
        && words.next()?.starts_with("GMT");
    known.then_some(year < 2025)
}

#[test]
fn intervals_are_cut_and_capped() {
    let retryer = Retryer {
        period: 100,
        max_period: 400,
        max_attempts: 5,
    };
    let all: Vec<_> = (2..=5).map(|n| interval(&retryer, n)).collect();
    assert_eq!(all, [150, 225, 337, 400]);
}
