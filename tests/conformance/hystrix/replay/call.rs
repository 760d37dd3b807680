//! One call through the layers: what its function and its fallback do, and what was seen of them.

use std::{
    io, mem,
    panic::resume_unwind,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::Full;
use tokio::{
    sync::{Notify, oneshot},
    time::{Duration, Instant, sleep},
};
use tower_outbound::call::BoxError;

use super::ending::Cause;

pub(super) type Response = http::Response<Full<Bytes>>;
pub(super) type Answer = Result<Response, BoxError>;

/// It is the request itself.
#[derive(Debug, Clone)]
pub(super) struct Call(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    fallback: Option<Fallback>,
    seen: Mutex<Seen>,
}

/// What the function does.
#[derive(Debug)]
pub(super) enum Work {
    /// Until the script says how it ends.
    Until(oneshot::Receiver<String>),
    For(Duration, String),
    Done,
}

/// What the fallback does.
#[derive(Debug)]
pub(super) struct Fallback {
    pub(super) answers: bool,
    pub(super) takes: Duration,
    /// It waits until the script lets it go on.
    pub(super) held: Option<Held>,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) entered: Notify,
    pub(super) leave: Notify,
}

/// When what happened.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    pub(super) run_started: Option<Instant>,
    pub(super) run_interrupted: Option<Instant>,
    pub(super) run_ended: Option<Instant>,
    pub(super) fallback_started: Option<Instant>,
    /// What the fallback was asked for.
    pub(super) cause: Option<Cause>,
}

impl Call {
    pub(super) fn new(work: Work, fallback: Option<Fallback>) -> Call {
        Call(Arc::new(Shared {
            work: Mutex::new(work),
            fallback,
            seen: Mutex::default(),
        }))
    }

    pub(super) fn seen(&self) -> Seen {
        *self.0.seen.lock().unwrap()
    }

    fn saw(&self, what: impl FnOnce(&mut Seen)) {
        what(&mut self.0.seen.lock().unwrap());
    }

    /// The function at the bottom of the stack.
    pub(super) async fn run(self) -> Answer {
        self.saw(|seen| seen.run_started = Some(Instant::now()));
        let running = Running(Some(self.clone()));
        let work = mem::replace(&mut *self.0.work.lock().unwrap(), Work::Done);
        let outcome = match work {
            Work::Until(end) => end.await?,
            Work::For(time, outcome) => {
                sleep(time).await;
                outcome
            }
            Work::Done => panic!("a function runs once"),
        };
        running.ends();
        let status = match &*outcome {
            "success" => 200,
            "failure" => 500,
            "bad_request" => 400,
            "error" => return Err(io::Error::other("an error without a status").into()),
            "unrecoverable_error" => resume_unwind(Box::new("a stack overflow")),
            other => panic!("no function ends as {other}"),
        };
        Ok(http::Response::builder().status(status).body(Full::default())?)
    }

    /// The fallback at its top.
    pub(super) async fn fall_back(self, cause: Cause) -> Answer {
        self.saw(|seen| {
            seen.fallback_started = Some(Instant::now());
            seen.cause = Some(cause);
        });
        let fallback = self.0.fallback.as_ref().expect("it is asked only if it is there");
        if !fallback.takes.is_zero() {
            sleep(fallback.takes).await;
        }
        if let Some(held) = &fallback.held {
            held.entered.notify_one();
            held.leave.notified().await;
        }
        if fallback.answers {
            Ok(http::Response::new(Full::default()))
        } else {
            Err("the fallback throws".into())
        }
    }

    pub(super) fn has_fallback(&self) -> bool {
        self.0.fallback.is_some()
    }

    /// Where its fallback waits for the script.
    pub(super) fn held(&self) -> Option<&Held> {
        self.0.fallback.as_ref()?.held.as_ref()
    }
}

/// A function that is dropped was interrupted.
struct Running(Option<Call>);

impl Running {
    fn ends(mut self) {
        if let Some(call) = self.0.take() {
            call.saw(|seen| seen.run_ended = Some(Instant::now()));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.saw(|seen| {
                seen.run_interrupted = Some(Instant::now());
                seen.run_ended = Some(Instant::now());
            });
        }
    }
}
