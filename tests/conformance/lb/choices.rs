//! Which servers a rule chooses, one after the other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;
use tower_outbound::{
    balance::{Random, RibbonRule, WeightedResponseTime, ZoneAware},
    call::Veto,
};

use super::{
    compare, rule_of,
    servers::{Servers, SharedRule, Then, refused, stats_of},
};
use crate::{
    case::Case,
    hystrix::{only, only_parts},
};

/// How much later than recorded choices that wait may be over.
const TOLERANCE_MS: u128 = 60;

pub(super) async fn differences(case: &Case) -> Vec<String> {
    only_parts(case, &["servers", "picks", "pinged", "load_balancer"]);
    only(case.observed(), &["picks", "distribution", "total_ms"]);
    let stats = match stats_of(case.config()) {
        Ok(stats) => stats,
        Err(unknown) => return unknown,
    };
    let servers = case.part("servers").as_array().unwrap();
    let zones: Vec<_> = servers.iter().map(|server| server["zone"].as_str()).collect();
    let rule = rule_of(case.setting("ribbon.NFLoadBalancerRuleClassName"));
    let is_zone_aware = match case.part("load_balancer").as_str() {
        Some("BaseLoadBalancer") => false,
        Some("ZoneAwareLoadBalancer") => true,
        other => panic!("no load balancer is named {other:?}"),
    };
    let shared: SharedRule = if is_zone_aware {
        Arc::new(ZoneAware::seeded(1, move || seeded(rule)))
    } else {
        seeded(rule)
    };
    let mut world = Servers::new(&zones, shared, stats, rule.when_empty());
    for (place, server) in servers.iter().enumerate() {
        only(
            server,
            &[
                "successive_connection_failures",
                "active_requests",
                "alive",
                "response_times_ms",
                "zone",
            ],
        );
        plant(&mut world, place, server).await;
    }
    let mut differences = Vec::new();
    for (place, server) in servers.iter().enumerate() {
        let figures = world.handle().endpoint(world.endpoint(place).key()).unwrap();
        let planted = (
            u64::from(figures.successive_connection_failures()),
            figures.in_flight(),
        );
        let wanted = (
            server["successive_connection_failures"].as_u64().unwrap(),
            server["active_requests"].as_u64().unwrap(),
        );
        compare(
            &mut differences,
            &format!("figures of server {place}"),
            wanted,
            planted,
        );
        if !server["alive"].as_bool().expect("alive or not") {
            world.endpoint(place).eligibility().forbid(Veto::Probe);
        }
    }
    let began = Instant::now();
    let mut picks = Vec::new();
    for _ in 0..case.part("picks").as_u64().unwrap() {
        picks.push(world.choose().await);
    }
    let took = began.elapsed().as_millis();
    let observed = case.observed();
    if let Some(recorded) = observed["picks"].as_array() {
        assert!(
            observed["distribution"].is_null(),
            "both picks and a distribution"
        );
        let recorded: Vec<_> = recorded
            .iter()
            .map(|pick| match pick.as_u64() {
                Some(pick) => Some(pick as usize),
                None if pick == "none" => None,
                None => panic!("no pick: {pick}"),
            })
            .collect();
        compare(&mut differences, "picks", recorded, picks);
    } else {
        assert!(observed["picks"].is_null(), "no picks: {observed}");
        let recorded = observed["distribution"].as_object().expect("a distribution");
        differences.extend(distribution(recorded, &picks));
    }
    if let Some(recorded) = observed["total_ms"].as_u64() {
        if took.abs_diff(recorded.into()) > TOLERANCE_MS {
            differences.push(format!("total: recorded {recorded} ms, seen {took} ms"));
        }
    } else if !observed["total_ms"].is_null() {
        differences.push(format!("no total: {}", observed["total_ms"]));
    } else if took > 0 {
        differences.push(format!("choosing took {took} ms"));
    }
    differences
}

/// The rules that draw by lot get one that is the same in every run.
fn seeded(rule: RibbonRule) -> SharedRule {
    match rule {
        RibbonRule::Random => Arc::new(Random::seeded(1)),
        RibbonRule::WeightedResponseTime => Arc::new(WeightedResponseTime::seeded(1)),
        rule => rule.rule(),
    }
}

/// Makes the figures about a server what the case says, by attempts that end so.
async fn plant(world: &mut Servers, place: usize, server: &Value) {
    let times: Vec<Duration> = server["response_times_ms"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|time| Duration::from_secs_f64(time.as_f64().unwrap() / 1_000.0))
        .collect();
    for &time in &times {
        world.attempt_at(place, Then::Answers(time)).await;
    }
    // Failures take as long as answers, so that the mean is what it was.
    let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
    for _ in 0..server["successive_connection_failures"].as_u64().unwrap() {
        world.attempt_at(place, Then::Fails(mean, refused)).await;
    }
    for _ in 0..server["active_requests"].as_u64().unwrap() {
        world.keep_open_at(place);
    }
}

/// Both are drawn: they may be apart by three standard deviations of what either is expected to be.
fn distribution(recorded: &serde_json::Map<String, Value>, picks: &[Option<usize>]) -> Vec<String> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for pick in picks {
        let name = pick.map_or_else(|| "none".to_owned(), |pick| pick.to_string());
        *seen.entry(name).or_default() += 1;
    }
    let names = recorded.keys().cloned().chain(seen.keys().cloned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    let picked = picks.len() as u64;
    let counts: Option<Vec<u64>> = recorded.values().map(Value::as_u64).collect();
    let Some(counts) = counts else {
        return vec![format!("no counts: {recorded:?}")];
    };
    let sum = counts
        .iter()
        .try_fold(0_u64, |sum, count| sum.checked_add(*count));
    if sum != Some(picked) {
        return vec![format!("no {picked} picks: {recorded:?}")];
    }
    let n = picked as f64;
    let differs = |name: &String| {
        let recorded = recorded.get(name).and_then(Value::as_u64).unwrap_or(0);
        let seen = seen.get(name).copied().unwrap_or(0);
        let share = recorded as f64 / n;
        let apart = recorded.abs_diff(seen) as f64;
        let most = 3.0 * (2.0 * n * share * (1.0 - share)).sqrt();
        (recorded > picked || most.is_nan() || apart > most)
            .then(|| format!("server {name}: recorded {recorded} of {n}, seen {seen}"))
    };
    names.iter().filter_map(differs).collect()
}
