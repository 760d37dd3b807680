//! Cases that nobody recorded: the layers have to give what the model says by our rules, whatever the script.

use proptest::{prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{
    compare::{Times, differences},
    departures::Expected,
    replay::replay,
};
use crate::case::Case;

fn config() -> impl Strategy<Value = Map<String, Value>> {
    let command = "hystrix.command.default";
    let numbers = [
        ("circuitBreaker.requestVolumeThreshold", &[0, 1, 2, 3, 4, 5][..]),
        (
            "circuitBreaker.errorThresholdPercentage",
            &[0, 1, 33, 50, 66, 75, 100, 101],
        ),
        (
            "circuitBreaker.sleepWindowInMilliseconds",
            &[0, 100, 300, 1_000, 2_500],
        ),
        ("metrics.healthSnapshot.intervalInMilliseconds", &[100, 250, 500]),
        (
            "metrics.rollingStats.timeInMilliseconds",
            &[1_000, 1_050, 2_000, 5_000],
        ),
        (
            "execution.isolation.thread.timeoutInMilliseconds",
            &[100, 150, 300, 5_000, 60_000],
        ),
    ];
    let numbers = numbers.map(|(key, values)| {
        let key = format!("{command}.{key}");
        select(values).prop_map(move |value| (key.clone(), json!(value)))
    });
    let numbers: Vec<_> = numbers.into_iter().collect();
    let rarely = |key: &str, value: bool| {
        let key = format!("{command}.{key}");
        prop::option::weighted(0.03, Just((key, json!(value))))
    };
    let flags = (
        rarely("circuitBreaker.enabled", false),
        rarely("circuitBreaker.forceOpen", true),
        rarely("circuitBreaker.forceClosed", true),
        rarely("fallback.enabled", false),
        rarely("execution.timeout.enabled", false),
    );
    let version = select(&["1.5.12", "1.5.12", "1.5.13", "1.5.18"][..]);
    (numbers, flags, version).prop_map(|(numbers, flags, version)| {
        let (enabled, open, closed, fallback, timeout) = flags;
        let flags = [enabled, open, closed, fallback, timeout].into_iter().flatten();
        let version = [("hystrix_version".to_owned(), json!(version))];
        numbers.into_iter().chain(flags).chain(version).collect()
    })
}

fn outcome() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        5 => Just("success"),
        5 => Just("failure"),
        2 => Just("bad_request"),
        1 => Just("error"),
        1 => Just("unrecoverable_error"),
    ]
}

fn time() -> impl Strategy<Value = u64> {
    select(
        &[
            0, 1, 10, 30, 50, 99, 100, 101, 150, 170, 250, 299, 300, 301, 499, 500, 1_000, 1_001, 2_000,
            31_000,
        ][..],
    )
}

fn call() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => outcome().prop_map(|outcome| json!({ "call": outcome })),
        4 => (outcome(), time()).prop_map(|(outcome, time)| json!({ "call": outcome, "duration_ms": time })),
        1 => (outcome(), 2..6_u64).prop_map(|(outcome, times)| json!({ "call": outcome, "repeat": times })),
    ]
}

fn step() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        6 => call(),
        5 => time().prop_map(|time| json!({ "advance_ms": time })),
        1 => Just(json!({ "probe": "is_open" })),
        1 => (select(&["forceOpen", "forceClosed"][..]), prop::bool::weighted(0.2)).prop_map(|(which, value)| {
            let key = format!("hystrix.command.default.circuitBreaker.{which}");
            json!({ "set_property": key, "value": value })
        }),
    ]
    .boxed();
    let nested = (outcome(), prop::collection::vec(plain.clone(), 1..4));
    prop_oneof![
        12 => plain,
        // Each is to be ended, so its place in the script is chosen apart.
        3 => outcome().prop_map(|outcome| json!({ "begin": "", "outcome": outcome })),
        3 => any::<prop::sample::Index>().prop_map(|which| json!({ "end": which.index(1 << 16) })),
        1 => nested.prop_map(|(outcome, steps)| json!({ "call": outcome, "during": steps })),
    ]
}

/// Gives names to the calls that are begun, and ends those that are there to be ended.
fn named(steps: Vec<Value>) -> Vec<Value> {
    let (mut named, mut begun) = (Vec::new(), Vec::new());
    for (number, mut step) in steps.into_iter().enumerate() {
        if step.get("begin").is_some() {
            let name = format!("b{number}");
            step["begin"] = json!(name);
            begun.push(name);
        } else if let Some(which) = step.get("end").and_then(Value::as_u64) {
            if begun.is_empty() {
                continue;
            }
            let name = begun.remove(which as usize % begun.len());
            step = json!({ "end": name });
        }
        named.push(step);
    }
    named
}

fn steps() -> impl Strategy<Value = Case> {
    let more = (select(&[0, 1, 2, 10][..]), select(&["none", "ok", "throws"][..]));
    (config(), more, prop::collection::vec(step(), 5..60)).prop_map(
        |(mut config, (permits, fallback), steps)| {
            let execution = "hystrix.command.default.execution.isolation";
            config.insert("clock".into(), json!("virtual"));
            config.insert("fallback".into(), json!(fallback));
            config.insert(format!("{execution}.strategy"), json!("SEMAPHORE"));
            config.insert(
                format!("{execution}.semaphore.maxConcurrentRequests"),
                json!(permits),
            );
            Case::new(json!({ "id": "random", "level": "hystrix", "config": config, "steps": named(steps) }))
        },
    )
}

fn caller() -> impl Strategy<Value = Value> {
    let given_up = prop::option::weighted(0.15, 1..400_u64);
    let fallback = (
        select(&["none", "none", "ok", "throws"][..]),
        select(&[0, 7, 350][..]),
    );
    (0..4_000_u64, 1..700_u64, outcome(), given_up, fallback).prop_map(
        |(at, run, outcome, given_up, fallback)| {
            let mut call = json!({ "name": "a", "at_ms": at, "run_ms": run, "outcome": outcome });
            if let Some(after) = given_up {
                call["mode"] = json!("unsubscribe");
                call["cancel_after_ms"] = json!(after);
            }
            if fallback.0 != "none" {
                call["fallback"] = json!(fallback.0);
                call["fallback_ms"] = json!(fallback.1);
            }
            call
        },
    )
}

fn threads() -> impl Strategy<Value = Case> {
    let pool = (
        select(&[1, 1, 2, 10][..]),
        select(&[-1, -1, 1, 5][..]),
        any::<bool>(),
    );
    (config(), pool, prop::collection::vec(caller(), 1..20)).prop_map(|(mut config, pool, mut calls)| {
        let (threads, queue, semaphore) = pool;
        config.insert("clock".into(), json!("real"));
        config.insert("hystrix.threadpool.default.coreSize".into(), json!(threads));
        config.insert("hystrix.threadpool.default.maxQueueSize".into(), json!(queue));
        if semaphore {
            let strategy = "hystrix.command.default.execution.isolation.strategy";
            config.insert(strategy.into(), json!("SEMAPHORE"));
        }
        calls.sort_by_key(|call| call["at_ms"].as_u64());
        Case::new(json!({ "id": "random", "level": "hystrix", "config": config, "calls": calls }))
    })
}

fn is_as_the_model_says(case: &Case) -> Result<(), TestCaseError> {
    let expected = Expected::of(case);
    prop_assume!(!expected.tied);
    let got = replay(case, expected.until);
    let found = differences(&expected.ours, &got, Times::Exact);
    prop_assert!(found.is_empty(), "{found:#?}");
    Ok(())
}

/// `CONFORMANCE_RANDOM` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("CONFORMANCE_RANDOM").ok();
    asked.map_or(256, |cases| cases.parse().expect("a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_global_rejects: 1 << 20, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn random_steps_give_what_the_model_says(case in steps()) {
        is_as_the_model_says(&case)?;
    }

    #[test]
    fn random_calls_with_threads_give_what_the_model_says(case in threads()) {
        is_as_the_model_says(&case)?;
    }
}
