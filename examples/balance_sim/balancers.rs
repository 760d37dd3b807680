//! The rules of the crate, and a model of tower's balancer.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use http::Request;
use tokio::time::Instant;
use tower_outbound::{
    balance::{Ewma, LeastLoaded, Picked, Picker, Random, RibbonRule, RoundRobin, Rule},
    call::{Endpoint, Endpoints, Verdict},
};

/// What a client balances by.
pub(crate) trait Balancer: Send {
    /// These servers are there from the beginning.
    fn start(&mut self, servers: &[usize]);
    /// These have joined.
    fn join(&mut self, servers: &[usize], now: Duration);
    fn pick(&mut self, now: Duration) -> (usize, Ticket);
    fn end(&mut self, ticket: Ticket, failed: bool, now: Duration);
}

/// An attempt that is under way.
pub(crate) enum Ticket {
    Ours(Picked),
    Tower { server: usize, started: Duration },
}

/// By name, for one client, with all chance from the seed.
pub(crate) fn balancer(name: &str, seed: u64) -> Option<Box<dyn Balancer>> {
    let rule: Arc<dyn Rule + Send + Sync> = match name {
        "tower" => return Some(Box::new(Tower::new(seed))),
        "round-robin" => Arc::new(RoundRobin::starting_at(seed as usize)),
        "random" => Arc::new(Random::seeded(seed)),
        "least-loaded" => Arc::new(LeastLoaded::seeded(seed)),
        "ewma" => Arc::new(Ewma::seeded(seed)),
        "best-available" => RibbonRule::BestAvailable.rule(),
        // With another number of choices: `ewma3`; over the whole set: `ewma3@all`; over a part of this size: `ewma3@30`.
        other => {
            let settings = other.strip_prefix("ewma")?;
            let (choices, part) = settings.split_once('@').unwrap_or((settings, ""));
            let builder = Ewma::builder().choices(choices.parse().ok()?).seeded(seed);
            let builder = match part {
                "" => builder,
                "all" => builder.whole_set(),
                size => builder.subset(size.parse().ok()?),
            };
            Arc::new(builder.build().ok()?)
        }
    };
    Some(Box::new(Ours::new(rule)))
}

/// The code that [`LoadBalance`](tower_outbound::balance::LoadBalance) runs.
struct Ours {
    picker: Picker<Arc<dyn Rule + Send + Sync>>,
    endpoints: Endpoints,
    request: Request<()>,
    began: Instant,
}

impl Ours {
    fn new(rule: Arc<dyn Rule + Send + Sync>) -> Self {
        let endpoints = Endpoints::new();
        Ours {
            picker: Picker::new(endpoints.clone(), rule),
            endpoints,
            request: Request::new(()),
            began: Instant::now(),
        }
    }
}

fn endpoint(server: usize) -> Endpoint {
    let built = Endpoint::builder(format!("http://s{server}"))
        .key(server.to_string())
        .build();
    built.expect("the address is well formed")
}

impl Balancer for Ours {
    fn start(&mut self, servers: &[usize]) {
        self.endpoints.replace(servers.iter().copied().map(endpoint));
    }

    fn join(&mut self, servers: &[usize], _: Duration) {
        let mut all = self.endpoints.snapshot().endpoints().to_vec();
        all.extend(servers.iter().copied().map(endpoint));
        self.endpoints.replace(all);
    }

    fn pick(&mut self, now: Duration) -> (usize, Ticket) {
        let picked = self.picker.pick(&self.request, self.began + now);
        let picked = picked.expect("the set is not empty");
        let server = picked.endpoint().key().parse().expect("the key is a number");
        (server, Ticket::Ours(picked))
    }

    fn end(&mut self, ticket: Ticket, failed: bool, now: Duration) {
        let verdict = if failed {
            Verdict::Failure
        } else {
            Verdict::Success
        };
        if let Ticket::Ours(picked) = ticket {
            picked.end(verdict, self.began + now);
        }
    }
}

/// `tower::balance::p2c` over `tower::load::PeakEwma`, as in tower 0.5, with a decay of 10 s and a first estimate of
/// 30 ms: two servers are drawn, the one with the lower `estimate * (pending + 1)` is taken, and looking at an
/// estimate lets it fall, as if an answer in no time had come. A failure counts as any answer.
struct Tower {
    rng: Rng,
    set: Vec<usize>,
    loads: Vec<PeakEwma>,
}

#[derive(Clone, Copy)]
struct PeakEwma {
    pending: u32,
    estimate: f64,
    at: Duration,
}

const TOWERS_DECAY: f64 = 10.0;
const TOWERS_FIRST: f64 = 0.030;

impl Tower {
    fn new(seed: u64) -> Self {
        Tower {
            rng: Rng::with_seed(seed),
            set: Vec::new(),
            loads: Vec::new(),
        }
    }
}

impl PeakEwma {
    fn weight_of_before(&mut self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        (-since / TOWERS_DECAY).exp()
    }

    fn look(&mut self, now: Duration) -> f64 {
        self.estimate *= self.weight_of_before(now);
        self.estimate * f64::from(self.pending + 1)
    }

    fn sample(&mut self, took: f64, now: Duration) {
        let before = self.weight_of_before(now);
        self.estimate = if took > self.estimate {
            took
        } else {
            self.estimate * before + took * (1.0 - before)
        };
    }
}

impl Balancer for Tower {
    fn start(&mut self, servers: &[usize]) {
        self.join(servers, Duration::ZERO);
    }

    fn join(&mut self, servers: &[usize], now: Duration) {
        let new = PeakEwma {
            pending: 0,
            estimate: TOWERS_FIRST,
            at: now,
        };
        let most = servers.iter().max().map_or(0, |most| most + 1);
        self.loads.resize(self.loads.len().max(most), new);
        for &server in servers {
            self.loads[server] = new;
        }
        self.set.extend(servers);
    }

    fn pick(&mut self, now: Duration) -> (usize, Ticket) {
        let n = self.set.len();
        let one = self.rng.usize(..n);
        let other = (one + 1 + self.rng.usize(..n - 1)) % n;
        let (one, other) = (self.set[one], self.set[other]);
        let server = if self.loads[other].look(now) < self.loads[one].look(now) {
            other
        } else {
            one
        };
        self.loads[server].pending += 1;
        (server, Ticket::Tower { server, started: now })
    }

    fn end(&mut self, ticket: Ticket, _: bool, now: Duration) {
        if let Ticket::Tower { server, started } = ticket {
            let load = &mut self.loads[server];
            load.pending -= 1;
            load.sample((now - started).as_secs_f64(), now);
        }
    }
}
