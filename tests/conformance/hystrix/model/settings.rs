//! The settings of a case as the reference model reads them. The product reads its own, by `nest::spring`.

use std::cell::RefCell;

use serde_json::Value;

use crate::case::Case;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// The half-open state machine.
    V12,
    /// The same, with a clean-up that any call turned away sets off.
    V13,
    /// The older logic: one test call for each sleep window. 1.5.14 to 1.5.18.
    V18,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    Semaphore { permits: usize },
    Thread { threads: usize, queue: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    Missing,
    Answers,
    Throws,
}

impl Fallback {
    pub(super) fn read(name: &str) -> Fallback {
        match name {
            "none" => Fallback::Missing,
            "ok" => Fallback::Answers,
            "throws" => Fallback::Throws,
            other => panic!("no fallback is {other}"),
        }
    }
}

/// All times are in milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) release: Release,
    pub(super) enabled: bool,
    pub(super) force_open: bool,
    pub(super) force_closed: bool,
    pub(super) volume: u64,
    pub(super) percent: u64,
    pub(super) sleep_window: u64,
    pub(super) window: u64,
    pub(super) snapshot: u64,
    /// None: no timer.
    pub(super) timeout: Option<u64>,
    pub(super) interrupt_on_timeout: bool,
    pub(super) isolation: Isolation,
    pub(super) fallback: Fallback,
    pub(super) fallback_enabled: bool,
    pub(super) fallback_permits: usize,
}

impl Settings {
    pub(super) fn of(case: &Case) -> Settings {
        let config = Config {
            case,
            known: RefCell::default(),
        };
        config.text("clock");
        let release = match config.text("hystrix_version") {
            Some("1.5.12") => Release::V12,
            Some("1.5.13") => Release::V13,
            Some("1.5.18") => Release::V18,
            other => panic!("{}: no model of {other:?}", case.id()),
        };
        let permits = config.command("execution.isolation.semaphore.maxConcurrentRequests", 10);
        let threads = config.number("hystrix.threadpool.default.coreSize", 10);
        // -1 is no queue; the threshold is in force only where there is one.
        let longest = config.number("hystrix.threadpool.default.maxQueueSize", -1);
        let threshold = config.number("hystrix.threadpool.default.queueSizeRejectionThreshold", 5);
        let isolation = match config.text("hystrix.command.default.execution.isolation.strategy") {
            Some("SEMAPHORE") => Isolation::Semaphore {
                permits: permits as usize,
            },
            None | Some("THREAD") => Isolation::Thread {
                threads: threads as usize,
                queue: longest.min(threshold).max(0) as usize,
            },
            Some(other) => panic!("{}: no isolation is {other}", case.id()),
        };
        let limit = config.command("execution.isolation.thread.timeoutInMilliseconds", 1_000);
        let settings = Settings {
            release,
            enabled: config.flag("circuitBreaker.enabled", true),
            force_open: config.flag("circuitBreaker.forceOpen", false),
            force_closed: config.flag("circuitBreaker.forceClosed", false),
            volume: config.command("circuitBreaker.requestVolumeThreshold", 20),
            percent: config.command("circuitBreaker.errorThresholdPercentage", 50),
            sleep_window: config.command("circuitBreaker.sleepWindowInMilliseconds", 5_000),
            window: config.command("metrics.rollingStats.timeInMilliseconds", 10_000),
            snapshot: config.command("metrics.healthSnapshot.intervalInMilliseconds", 500),
            timeout: config.flag("execution.timeout.enabled", true).then_some(limit),
            interrupt_on_timeout: config.flag("execution.isolation.thread.interruptOnTimeout", true),
            isolation,
            fallback: Fallback::read(config.text("fallback").unwrap_or("none")),
            fallback_enabled: config.flag("fallback.enabled", true),
            fallback_permits: config.command("fallback.isolation.semaphore.maxConcurrentRequests", 10)
                as usize,
        };
        config.no_other();
        settings
    }
}

struct Config<'a> {
    case: &'a Case,
    known: RefCell<Vec<String>>,
}

impl<'a> Config<'a> {
    fn value(&self, key: &str) -> &'a Value {
        self.known.borrow_mut().push(key.to_owned());
        self.case.setting(key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        let value = self.value(key);
        assert!(value.is_null() || value.is_string(), "{}: {key}", self.case.id());
        value.as_str()
    }

    fn number(&self, key: &str, default: i64) -> i64 {
        match self.value(key) {
            Value::Null => default,
            value => value
                .as_i64()
                .unwrap_or_else(|| panic!("{}: {key}", self.case.id())),
        }
    }

    fn command(&self, key: &str, default: u64) -> u64 {
        match self.value(&format!("hystrix.command.default.{key}")) {
            Value::Null => default,
            value => value
                .as_u64()
                .unwrap_or_else(|| panic!("{}: {key}", self.case.id())),
        }
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        match self.value(&format!("hystrix.command.default.{key}")) {
            Value::Null => default,
            value => value
                .as_bool()
                .unwrap_or_else(|| panic!("{}: {key}", self.case.id())),
        }
    }

    /// A setting that the model would pass over is a mistake.
    fn no_other(&self) {
        let known = self.known.borrow();
        for key in self.case.config().as_object().unwrap().keys() {
            assert!(
                known.contains(key),
                "{}: the model does not know {key}",
                self.case.id()
            );
        }
    }
}
