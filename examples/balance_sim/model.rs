//! Clients, servers and the time between them.
//!
//! Each client has a balancer of its own and sees nothing but its own calls. Each server is one queue in front of a
//! few workers. Service times are log-normal; arrivals are Poisson.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use fastrand::Rng;

use crate::{
    balancers::{Balancer, Ticket},
    scenario::Scenario,
};

/// Mean service time at full speed, in seconds, and the sigma of its logarithm.
const SERVICE: f64 = 0.010;
const SIGMA: f64 = 0.8;
/// One way, in seconds.
const NETWORK: f64 = 0.000_25;
const WORKERS: usize = 4;
const QUEUE: usize = 300;
/// A server that fails answers within this, in seconds.
const FAILS_WITHIN: f64 = 0.001;
/// What a call that has failed counts as in the latencies, in seconds.
const FAILED: f32 = 2.0;
/// Good is what is answered within this, in seconds.
const GOOD: f32 = 0.200;

/// Events begin after a quarter of the measuring, last half of it, ...
const EVENT_FROM: f64 = 0.25;
const EVENT_LASTS: f64 = 0.5;
/// ... except for the seconds in which a join is looked at.
const JOIN_LASTS: f64 = 5.0;

/// What one run has shown. Times are in seconds.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) calls: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) mean: f64,
    /// The share of calls that were answered well and in time.
    pub(crate) good: f64,
    pub(crate) errors: f64,
    /// The same while the event of the scenario lasts.
    pub(crate) event_errors: f64,
    pub(crate) event_p99: f64,
    pub(crate) event_p999: f64,
    /// What the servers that have joined get of what would be fair, in the first and in the fifth second.
    pub(crate) share_first: f64,
    pub(crate) share_fifth: f64,
    /// What the servers that were slow or failing get of what would be fair, from the third second after that on.
    pub(crate) share_after: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { client: u32 },
    AtServer { call: u32 },
    Done { server: u32, call: u32 },
    Answer { call: u32 },
    Antagonist { server: u32 },
    SlowFrom,
    SlowTo,
    Join,
    Warm,
}

struct Server {
    speed: f64,
    antagonist: f64,
    busy: usize,
    queue: VecDeque<u32>,
}

struct Call {
    client: u32,
    server: u32,
    started: f64,
    failed: bool,
    ticket: Option<Ticket>,
}

pub(crate) struct Simulation<'a> {
    scenario: &'a Scenario,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pushed: u64,
    servers: Vec<Server>,
    clients: Vec<Box<dyn Balancer>>,
    calls: Vec<Call>,
    free: Vec<u32>,
    latencies: Vec<f32>,
    in_event: Vec<f32>,
    errors: usize,
    event_errors: usize,
    /// To the servers of the event, and to all: in the first second after a join, in the fifth, and after the event.
    shares: [[usize; 2]; 3],
}

impl<'a> Simulation<'a> {
    /// `balancer` makes that of the client with this number.
    pub(crate) fn new(
        scenario: &'a Scenario,
        seed: u64,
        mut balancer: impl FnMut(u64) -> Box<dyn Balancer>,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        let servers = (0..scenario.servers)
            .map(|server| Server {
                speed: scenario.speed(server),
                antagonist: 1.0,
                busy: 0,
                queue: VecDeque::new(),
            })
            .collect();
        let joining = scenario.joining;
        let clients = (0..scenario.clients)
            .map(|_| {
                let mut balancer = balancer(rng.u64(..));
                let mut first: Vec<usize> = (joining..scenario.servers).collect();
                rng.shuffle(&mut first);
                balancer.start(&first);
                balancer
            })
            .collect();
        Simulation {
            scenario,
            rng,
            now: 0,
            events: BinaryHeap::new(),
            pushed: 0,
            servers,
            clients,
            calls: Vec::new(),
            free: Vec::new(),
            latencies: Vec::new(),
            in_event: Vec::new(),
            errors: 0,
            event_errors: 0,
            shares: [[0; 2]; 3],
        }
    }

    pub(crate) fn run(mut self) -> Outcome {
        let scenario = self.scenario;
        let speed: f64 = self.servers.iter().map(|server| server.speed).sum();
        let capacity = speed * scenario.antagonist_speed() * WORKERS as f64 / SERVICE;
        let between = scenario.clients as f64 / (scenario.load * capacity);
        for client in 0..scenario.clients as u32 {
            let first = self.exponential(between);
            self.push(first, Event::Arrival { client });
        }
        if let Some((slow, well, ill)) = scenario.antagonists {
            for server in 0..scenario.servers {
                let is_slow = self.rng.f64() < ill / (well + ill);
                if is_slow {
                    self.servers[server].antagonist = slow;
                }
                let next = self.exponential(if is_slow { ill } else { well });
                self.push(
                    next,
                    Event::Antagonist {
                        server: server as u32,
                    },
                );
            }
        }
        if scenario.slow.is_some() {
            self.push(scenario.warm_up + self.event_from(), Event::SlowFrom);
            self.push(
                scenario.warm_up + self.event_from() + self.event_lasts(),
                Event::SlowTo,
            );
        }
        if scenario.joining > 0 {
            let at = scenario.warm_up + self.event_from();
            self.push(at, Event::Join);
            self.push(at + scenario.cold_for, Event::Warm);
        }
        let end = scenario.warm_up + scenario.measured;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            if self.seconds() > end + 5.0 {
                break;
            }
            match event {
                Event::Arrival { client } if self.seconds() < end => {
                    let next = self.exponential(between);
                    self.push(next, Event::Arrival { client });
                    self.call(client);
                }
                Event::Arrival { .. } => {}
                Event::AtServer { call } => self.at_server(call),
                Event::Done { server, call } => self.done(server as usize, call),
                Event::Answer { call } => self.answer(call),
                Event::Antagonist { server } => self.antagonist(server as usize),
                Event::SlowFrom => self.change_speed(|scenario, speed| speed * scenario.slow_speed()),
                Event::SlowTo => self.change_speed(|scenario, speed| speed / scenario.slow_speed()),
                Event::Join => {
                    let joining: Vec<usize> = (0..scenario.joining).collect();
                    for &server in &joining {
                        self.servers[server].speed *= scenario.cold_speed;
                    }
                    let since = self.since();
                    for client in &mut self.clients {
                        client.join(&joining, since);
                    }
                }
                Event::Warm => {
                    for server in &mut self.servers[..scenario.joining] {
                        server.speed /= scenario.cold_speed;
                    }
                }
            }
        }
        self.outcome()
    }

    fn outcome(mut self) -> Outcome {
        let calls = self.latencies.len();
        let good = self.latencies.iter().filter(|&&latency| latency <= GOOD).count();
        let sum: f64 = self.latencies.iter().map(|&latency| f64::from(latency)).sum();
        let fair = |[some, all]: [usize; 2]| {
            some as f64 / all as f64 * self.scenario.servers as f64 / self.scenario.in_event() as f64
        };
        Outcome {
            calls,
            p50: quantile(&mut self.latencies, 0.5),
            p99: quantile(&mut self.latencies, 0.99),
            p999: quantile(&mut self.latencies, 0.999),
            mean: sum / calls as f64,
            good: good as f64 / calls as f64,
            errors: self.errors as f64 / calls as f64,
            event_errors: self.event_errors as f64 / self.in_event.len() as f64,
            event_p99: quantile(&mut self.in_event, 0.99),
            event_p999: quantile(&mut self.in_event, 0.999),
            share_first: fair(self.shares[0]),
            share_fifth: fair(self.shares[1]),
            share_after: fair(self.shares[2]),
        }
    }

    fn seconds(&self) -> f64 {
        self.now as f64 * 1e-9
    }

    /// Since the start, as the balancers are told it.
    fn since(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn push(&mut self, after: f64, event: Event) {
        self.pushed += 1;
        let at = self.now + (after * 1e9) as u64;
        self.events.push(Reverse((at, self.pushed, event)));
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.f64()).ln()
    }

    fn service_time(&mut self) -> f64 {
        let (one, other) = (1.0 - self.rng.f64(), self.rng.f64());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        SERVICE * (SIGMA * normal - SIGMA * SIGMA / 2.0).exp()
    }

    fn call(&mut self, client: u32) {
        let since = self.since();
        let (server, ticket) = self.clients[client as usize].pick(since);
        self.count_share(server);
        let call = Call {
            client,
            server: server as u32,
            started: self.seconds(),
            failed: false,
            ticket: Some(ticket),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.calls[number as usize] = call;
                number
            }
            None => {
                self.calls.push(call);
                self.calls.len() as u32 - 1
            }
        };
        self.push(NETWORK, Event::AtServer { call: number });
    }

    fn count_share(&mut self, server: usize) {
        let scenario = self.scenario;
        let after = self.seconds() - scenario.warm_up - self.event_from();
        let which = if scenario.joining > 0 {
            match after {
                0.0..1.0 => 0,
                4.0..5.0 => 1,
                _ => return,
            }
        } else if after >= self.event_lasts() + 2.0 && self.seconds() < scenario.warm_up + scenario.measured {
            2
        } else {
            return;
        };
        self.shares[which][0] += usize::from(scenario.is_in_event(server));
        self.shares[which][1] += 1;
    }

    fn at_server(&mut self, call: u32) {
        let server = self.calls[call as usize].server as usize;
        let fails = self.scenario.failing > 0 && self.in_event() && self.scenario.is_in_event(server);
        if fails {
            self.calls[call as usize].failed = true;
            self.push(FAILS_WITHIN + NETWORK, Event::Answer { call });
        } else if self.servers[server].busy < WORKERS {
            self.begin(server, call);
        } else if self.servers[server].queue.len() < QUEUE {
            self.servers[server].queue.push_back(call);
        } else {
            self.calls[call as usize].failed = true;
            self.push(NETWORK, Event::Answer { call });
        }
    }

    fn begin(&mut self, server: usize, call: u32) {
        let takes = self.service_time();
        let one = &mut self.servers[server];
        one.busy += 1;
        let takes = takes / (one.speed * one.antagonist);
        let server = server as u32;
        self.push(takes, Event::Done { server, call });
    }

    fn done(&mut self, server: usize, call: u32) {
        self.servers[server].busy -= 1;
        self.push(NETWORK, Event::Answer { call });
        if let Some(next) = self.servers[server].queue.pop_front() {
            self.begin(server, next);
        }
    }

    fn answer(&mut self, number: u32) {
        let since = self.since();
        let call = &mut self.calls[number as usize];
        let (started, failed, client) = (call.started, call.failed, call.client as usize);
        if let Some(ticket) = call.ticket.take() {
            self.clients[client].end(ticket, failed, since);
        }
        self.free.push(number);
        if started < self.scenario.warm_up {
            return;
        }
        let latency = if failed {
            FAILED
        } else {
            (self.seconds() - started) as f32
        };
        self.latencies.push(latency);
        self.errors += usize::from(failed);
        if self.in_event() {
            self.in_event.push(latency);
            self.event_errors += usize::from(failed);
        }
    }

    fn in_event(&self) -> bool {
        let from = self.event_from();
        (from..from + self.event_lasts()).contains(&(self.seconds() - self.scenario.warm_up))
    }

    fn event_from(&self) -> f64 {
        EVENT_FROM * self.scenario.measured
    }

    fn event_lasts(&self) -> f64 {
        if self.scenario.joining > 0 {
            JOIN_LASTS
        } else {
            EVENT_LASTS * self.scenario.measured
        }
    }

    fn antagonist(&mut self, server: usize) {
        let Some((slow, well, ill)) = self.scenario.antagonists else {
            return;
        };
        let becomes_slow = self.servers[server].antagonist == 1.0;
        self.servers[server].antagonist = if becomes_slow { slow } else { 1.0 };
        let next = self.exponential(if becomes_slow { ill } else { well });
        let server = server as u32;
        self.push(next, Event::Antagonist { server });
    }

    fn change_speed(&mut self, change: impl Fn(&Scenario, f64) -> f64) {
        for server in 0..self.servers.len() {
            if self.scenario.is_in_event(server) {
                let speed = self.servers[server].speed;
                self.servers[server].speed = change(self.scenario, speed);
            }
        }
    }
}

fn quantile(values: &mut [f32], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let place = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len()) - 1;
    let (_, &mut value, _) = values.select_nth_unstable_by(place, f32::total_cmp);
    f64::from(value)
}
