//! A case through the layers, on tokio's paused clock, with what they gave in the fields of the recordings.
//!
//! Cases with threads too: there is nothing in them but time, so that real time would only make them slow and vague.

mod call;
mod calls;
mod ending;
mod stack;
mod steps;

use std::future::Future;

use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    task::yield_now,
    time::{Duration, Instant, sleep_until},
};
use tower_outbound::{
    breaker::{Breaker, Force},
    call::CircuitState,
};

use self::stack::Stack;
use crate::case::Case;

/// `until`: when to look at the breaker for the last time, in a case with threads.
pub(super) fn replay(case: &Case, until: u64) -> Value {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let command = Command::new(case);
        if case.part("calls").is_null() {
            steps::replay(command, case).await
        } else {
            calls::replay(command, case, until).await
        }
    })
}

/// A stack with its clock.
#[derive(Debug, Clone)]
struct Command {
    stack: Stack,
    began: Instant,
    release: String,
    switched_on: bool,
    force_open: bool,
    force_closed: bool,
}

impl Command {
    fn new(case: &Case) -> Command {
        let flag = |name: &str| {
            case.setting(&format!("hystrix.command.default.circuitBreaker.{name}"))
                .as_bool()
        };
        Command {
            stack: Stack::of(case),
            began: Instant::now(),
            release: case.setting("hystrix_version").as_str().unwrap().to_owned(),
            switched_on: flag("enabled") != Some(false),
            force_open: flag("forceOpen") == Some(true),
            force_closed: flag("forceClosed") == Some(true),
        }
    }

    fn breaker(&self) -> &Breaker {
        &self.stack.breaker
    }

    fn set_property(&mut self, key: &str, value: &Value) {
        let value = value.as_bool().unwrap();
        match key {
            "hystrix.command.default.circuitBreaker.forceOpen" => self.force_open = value,
            "hystrix.command.default.circuitBreaker.forceClosed" => self.force_closed = value,
            other => panic!("{other} cannot be changed"),
        }
        // Open wins, as where both are set from the beginning.
        self.breaker().force(match (self.force_open, self.force_closed) {
            (true, _) => Force::Open,
            (false, true) => Force::Closed,
            (false, false) => Force::None,
        });
    }

    fn has_states(&self) -> bool {
        self.release != "1.5.18"
    }

    /// What Hystrix calls so.
    fn is_open(&self) -> bool {
        let state = self.breaker().state();
        if self.has_states() {
            matches!(
                state,
                CircuitState::Open | CircuitState::HalfOpen | CircuitState::ForcedOpen
            )
        } else {
            self.is_tripped()
        }
    }

    fn is_tripped(&self) -> bool {
        matches!(
            self.breaker().unforced_state(),
            CircuitState::Open | CircuitState::HalfOpen
        )
    }

    /// Null where there is none.
    fn state(&self) -> Value {
        if !self.has_states() || !self.switched_on {
            return Value::Null;
        }
        json!(match self.breaker().unforced_state() {
            CircuitState::Closed => "CLOSED",
            CircuitState::Open => "OPEN",
            CircuitState::HalfOpen => "HALF_OPEN",
            other => panic!("{other:?} is no state of a breaker that nobody forces"),
        })
    }

    fn health(&self) -> Value {
        let health = self.breaker().health();
        json!([health.total(), health.errors(), health.error_percent()])
    }

    fn millis(&self, at: Instant) -> u64 {
        let time = at - self.began;
        assert_eq!(time.subsec_nanos() % 1_000_000, 0, "times are whole milliseconds");
        u64::try_from(time.as_millis()).unwrap()
    }

    fn now(&self) -> u64 {
        self.millis(Instant::now())
    }

    fn at(&self, millis: u64) -> Instant {
        self.began + Duration::from_millis(millis)
    }

    /// Each timer fires at its own instant, and all that comes of it is done.
    async fn advance(&self, to: u64) {
        if to > self.now() {
            sleep_until(self.at(to)).await;
        }
        settle().await;
    }
}

/// Lets all tasks go as far as they can without the clock.
async fn settle() {
    for _ in 0..32 {
        yield_now().await;
    }
}

/// Null fields are left out.
fn fields(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Boxed, as steps are nested.
type Nested<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;
