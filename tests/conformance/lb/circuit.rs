//! How long a server is tripped.

use std::time::Duration;

use tokio::time::advance;
use tower_outbound::balance::{RibbonRule, WhenEmpty};

use super::{
    compare,
    servers::{Servers, Then, refused, stats_of},
};
use crate::{
    case::Case,
    hystrix::{only, only_parts},
};

const MS_BEFORE: &str = "tripped_at_blackout_minus_1ms";
const EXACTLY: &str = "tripped_at_blackout_exactly";

pub(super) async fn differences(case: &Case) -> Vec<String> {
    only_parts(case, &["successive_connection_failures"]);
    only(case.observed(), &["blackout_seconds", MS_BEFORE, EXACTLY]);
    let stats = match stats_of(case.config()) {
        Ok(stats) => stats,
        Err(unknown) => return unknown,
    };
    let rule = RibbonRule::ZoneAvoidance.rule();
    let mut servers = Servers::new(&[None], rule, stats, WhenEmpty::FailAtOnce);
    for _ in 0..case.part("successive_connection_failures").as_u64().unwrap() {
        servers.attempt_at(0, Then::Fails(Duration::ZERO, refused)).await;
    }
    let observed = case.observed();
    let blackout = Duration::from_secs(observed["blackout_seconds"].as_u64().unwrap());
    let mut differences = Vec::new();
    compare(
        &mut differences,
        "tripped at once",
        !blackout.is_zero(),
        servers.is_tripped(0),
    );
    if blackout.is_zero() {
        for name in [MS_BEFORE, EXACTLY] {
            assert!(observed[name].is_null(), "{name} of no blackout");
        }
    } else {
        let flag = |name: &str| observed[name].as_bool().unwrap_or_else(|| panic!("no {name}"));
        let recorded = flag(MS_BEFORE);
        advance(blackout - Duration::from_millis(1)).await;
        compare(
            &mut differences,
            "tripped 1 ms before",
            recorded,
            servers.is_tripped(0),
        );
        advance(Duration::from_millis(1)).await;
        let recorded = flag(EXACTLY);
        compare(
            &mut differences,
            "tripped at the end",
            recorded,
            servers.is_tripped(0),
        );
    }
    differences
}
