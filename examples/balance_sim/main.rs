//! A simulation of many clients that balance over many servers. It drives the very rules of this crate, and a model of
//! tower's balancer for comparison.
//!
//! ```text
//! cargo run --release --features balance --example balance_sim -- --scenario antag --load 0.9 --seeds 8 --rules tower,ewma
//! ```
#![allow(
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that is run by hand, and prints"
)]

mod balancers;
mod chart;
mod model;
mod scenario;

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use self::{
    balancers::balancer,
    chart::{Group, bars},
    model::{Outcome, Simulation},
    scenario::{NAMES, Scenario},
};

const USAGE: &str =
    "usage: balance_sim [--scenario antag] [--load 0.7,0.8,0.9] [--seeds 8] [--first 1] [--rules tower,ewma] [--short] [--summary] [--chart FILE.svg]
a row of CSV for each run, or with --summary one of medians for each rule; a chart shows the medians of the 99th percentile";

struct Options {
    scenarios: Vec<String>,
    loads: Vec<f64>,
    seeds: u64,
    /// The first of them.
    first: u64,
    rules: Vec<String>,
    short: bool,
    summary: bool,
    chart: Option<String>,
}

fn options() -> Option<Options> {
    let mut options = Options {
        scenarios: vec!["antag".into()],
        loads: Vec::new(),
        seeds: 8,
        first: 1,
        rules: ["tower", "ewma"].map(String::from).to_vec(),
        short: false,
        summary: false,
        chart: None,
    };
    let mut args = std::env::args().skip(1);
    let list = |value: String| value.split(',').map(String::from).collect();
    while let Some(arg) = args.next() {
        match &*arg {
            "--scenario" => options.scenarios = list(args.next()?),
            "--load" => {
                options.loads = args
                    .next()?
                    .split(',')
                    .map(|load| load.parse().ok())
                    .collect::<Option<_>>()?;
            }
            "--seeds" => options.seeds = args.next()?.parse().ok()?,
            "--first" => options.first = args.next()?.parse().ok()?,
            "--rules" => options.rules = list(args.next()?),
            "--short" => options.short = true,
            "--summary" => options.summary = true,
            "--chart" => options.chart = Some(args.next()?),
            _ => return None,
        }
    }
    if options.scenarios == ["all"] {
        options.scenarios = NAMES.map(String::from).to_vec();
    }
    Some(options)
}

struct Job {
    scenario: Scenario,
    rule: String,
    seed: u64,
}

fn jobs(options: &Options) -> Option<Vec<Job>> {
    let mut jobs = Vec::new();
    for name in &options.scenarios {
        let loads = if options.loads.is_empty() {
            Scenario::loads(name)
        } else {
            &options.loads
        };
        for &load in loads {
            for rule in &options.rules {
                balancer(rule, 0)?;
                let scenario = Scenario::new(name, load)?;
                let scenario = if options.short {
                    scenario.shortly()
                } else {
                    scenario
                };
                for seed in options.first..options.first.checked_add(options.seeds)? {
                    jobs.push(Job {
                        scenario: scenario.clone(),
                        rule: rule.clone(),
                        seed,
                    });
                }
            }
        }
    }
    Some(jobs)
}

/// In the order of the jobs, whichever ends first.
fn run(jobs: &[Job]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(number) else {
                        break;
                    };
                    let make = |seed| balancer(&job.rule, seed).expect("the name has been looked at");
                    let outcome = Simulation::new(&job.scenario, job.seed, make).run();
                    outcomes.lock().expect("nobody panics").push((number, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("nobody panics");
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

type Figure = (&'static str, fn(&Outcome) -> f64);

const FIGURES: [Figure; 13] = [
    ("calls", |outcome| outcome.calls as f64),
    ("p50_ms", |outcome| outcome.p50 * 1e3),
    ("p99_ms", |outcome| outcome.p99 * 1e3),
    ("p999_ms", |outcome| outcome.p999 * 1e3),
    ("mean_ms", |outcome| outcome.mean * 1e3),
    ("good", |outcome| outcome.good),
    ("errors", |outcome| outcome.errors),
    ("event_errors", |outcome| outcome.event_errors),
    ("event_p99_ms", |outcome| outcome.event_p99 * 1e3),
    ("event_p999_ms", |outcome| outcome.event_p999 * 1e3),
    ("share_first", |outcome| outcome.share_first),
    ("share_fifth", |outcome| outcome.share_fifth),
    ("share_after", |outcome| outcome.share_after),
];

fn row(job: &Job, seed: &str, figures: impl Iterator<Item = f64>) {
    let figures: Vec<_> = figures.map(|figure| format!("{figure:.5}")).collect();
    println!(
        "{},{},{},{seed},{}",
        job.scenario.name,
        job.scenario.load,
        job.rule,
        figures.join(",")
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

fn main() -> ExitCode {
    let Some((options, jobs)) = options().and_then(|options| jobs(&options).map(|jobs| (options, jobs)))
    else {
        eprintln!("{USAGE}\nscenarios: all, {}", NAMES.join(", "));
        return ExitCode::FAILURE;
    };
    let outcomes = run(&jobs);
    println!(
        "scenario,load,rule,seed,{}",
        FIGURES.map(|(name, _)| name).join(",")
    );
    if options.summary {
        let seeds = options.seeds as usize;
        for (jobs, outcomes) in jobs.chunks(seeds).zip(outcomes.chunks(seeds)) {
            let medians = FIGURES.map(|(_, figure)| median(outcomes.iter().map(figure).collect()));
            row(&jobs[0], "median", medians.into_iter());
        }
    } else {
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            row(
                job,
                &job.seed.to_string(),
                FIGURES.map(|(_, figure)| figure(outcome)).into_iter(),
            );
        }
    }
    if let Some(file) = &options.chart {
        let svg = bars(
            "99th percentile of the response time; medians over seeds",
            "ms",
            &groups(&options, &jobs, &outcomes),
        );
        if let Err(error) = std::fs::write(file, svg) {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// For each scenario and load a group with a bar for each rule.
fn groups(options: &Options, jobs: &[Job], outcomes: &[Outcome]) -> Vec<Group> {
    let seeds = options.seeds as usize;
    let in_group = seeds * options.rules.len();
    let groups = jobs.chunks(in_group).zip(outcomes.chunks(in_group));
    groups
        .map(|(jobs, outcomes)| Group {
            name: format!("{} {:.0} %", jobs[0].scenario.name, jobs[0].scenario.load * 100.0),
            bars: jobs
                .chunks(seeds)
                .zip(outcomes.chunks(seeds))
                .map(|(jobs, outcomes)| {
                    let p99 = outcomes.iter().map(|outcome| outcome.p99 * 1e3).collect();
                    (jobs[0].rule.clone(), median(p99))
                })
                .collect(),
        })
        .collect()
}
