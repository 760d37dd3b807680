//! A balancer picks by a rule.

use tower_outbound::{balance::LoadBalanceLayer, call::Endpoints};

struct Fastest;

fn main() {
    let endpoints = Endpoints::from_list(["http://10.0.0.1"]).unwrap();
    let _ = LoadBalanceLayer::new(endpoints).rule(Fastest);
}
