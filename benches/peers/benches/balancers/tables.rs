//! Criterion's results as tables.

use std::{collections::HashMap, fmt::Write as _, fs, path::PathBuf};

use serde_json::Value;

use crate::{SIZES, among, growth::MANY, subjects::SUBJECTS};

const PEER: &str = "tower PeakEwma";
const DEFAULT: &str = "Ewma";
const FROM_A_SET: &str = "Ewma, from a set";
/// With such a name the requests are not those of `http`.
const SMALL: &str = ", small requests";

/// All of them. The file has an instruction count in a line, after the number of endpoints and the name; there need be none.
pub fn tables(instructions: &str) -> String {
    let mut out = String::new();
    per_call(&mut out);
    counted(&mut out, &fs::read_to_string(instructions).unwrap_or_default());
    shared(&mut out);
    among_other_work(&mut out);
    growth(&mut out);
    wanted(&mut out);
    out
}

/// The median of this bench in nanoseconds, if it was run.
fn nanos(group: &str, name: &str, n: usize) -> Option<f64> {
    let binary = std::env::current_exe().ok()?;
    // target/release/deps/balancers-…
    let target = binary.ancestors().nth(3)?;
    let path: PathBuf = [group, name, &n.to_string(), "new", "estimates.json"]
        .iter()
        .collect();
    let text = fs::read_to_string(target.join("criterion").join(path)).ok()?;
    let estimates: Value = serde_json::from_str(&text).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

fn call(name: &str, n: usize) -> Option<f64> {
    nanos("balancers", name, n)
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}

fn ratio(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    Some(left? / right?)
}

/// The most by the least.
fn spread(name: &str) -> Option<f64> {
    let times: Vec<f64> = SIZES.iter().filter_map(|n| call(name, *n)).collect();
    let most = times.iter().copied().reduce(f64::max);
    ratio(most, times.iter().copied().reduce(f64::min))
}

fn per_call(out: &mut String) {
    out.push_str(
        "| nanoseconds a call | 3 endpoints | 100 | 1,000 | 10,000 | most / least | of tower's at 10,000 |\n",
    );
    out.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    for (name, _) in SUBJECTS {
        let _ = write!(out, "| {name} |");
        for n in SIZES {
            let _ = write!(out, " {} |", cell(call(name, n), 0));
        }
        let of_peer = ratio(call(name, MANY), call(&peer_of(name), MANY));
        let _ = writeln!(out, " {} | {} |", cell(spread(name), 1), cell(of_peer, 2));
    }
    out.push('\n');
}

fn counted(out: &mut String, counts: &str) {
    let counts: HashMap<(&str, usize), &str> = counts
        .lines()
        .filter_map(|line| {
            let (count, line) = line.split_once(' ')?;
            let (n, name) = line.split_once(' ')?;
            Some(((name, n.parse().ok()?), count))
        })
        .collect();
    if counts.is_empty() {
        return;
    }
    out.push_str(
        "| instructions a call | 3 endpoints | 100 | 1,000 | 10,000 |\n| --- | --- | --- | --- | --- |\n",
    );
    for (name, _) in SUBJECTS {
        let _ = write!(out, "| {name} |");
        for n in SIZES {
            let _ = write!(out, " {} |", counts.get(&(*name, n)).unwrap_or(&""));
        }
        out.push('\n');
    }
    out.push('\n');
}

fn shared(out: &mut String) {
    out.push_str(
        "| nanoseconds until each task has made a call, on the wall | 3 endpoints | 10,000 |\n| --- | --- | --- |\n",
    );
    for name in [
        "Ewma, two tasks",
        "tower PeakEwma in a Buffer",
        "tower PeakEwma in a Buffer, two tasks",
    ] {
        let [few, many] = [3, MANY].map(|n| cell(nanos("tasks", name, n), 0));
        let _ = writeln!(out, "| {name} | {few} | {many} |");
    }
    out.push('\n');
}

fn among_other_work(out: &mut String) {
    out.push_str("| nanoseconds a call at 10,000, on the wall, when other memory was written to |");
    for kilobytes in among::TOUCHED {
        let _ = write!(out, " {kilobytes} KB | of tower's |");
    }
    out.push_str("\n| --- |");
    out.push_str(&" --- | --- |".repeat(among::TOUCHED.len()));
    out.push('\n');
    for name in among::NAMES {
        let _ = write!(out, "| {name} |");
        for kilobytes in among::TOUCHED {
            let time = |name: &str| nanos(among::GROUP, name, kilobytes);
            let of_peer = ratio(time(name), time(&peer_of(name)));
            let _ = write!(out, " {} | {} |", cell(time(name), 0), cell(of_peer, 2));
        }
        out.push('\n');
    }
    out.push('\n');
}

/// tower's with the same requests.
fn peer_of(name: &str) -> String {
    if name.ends_with(SMALL) {
        format!("{PEER}{SMALL}")
    } else {
        PEER.to_owned()
    }
}

/// What a change costs beyond the call after it.
fn change(name: &str) -> Option<f64> {
    Some(nanos("a change and a call", name, MANY)? - call(name, MANY)?)
}

fn growth(out: &mut String) {
    let first = |name| nanos("the first call", name, MANY);
    out.push_str("| from a list of 10,000 to the end of the first call | microseconds | of tower's |\n| --- | --- | --- |\n");
    for name in [
        FROM_A_SET,
        DEFAULT,
        "RoundRobin",
        "Ewma, from a stream",
        PEER,
        "tower PeakEwma, wrapped before",
    ] {
        let micros = first(name).map(|nanos| nanos / 1e3);
        let of_peer = ratio(first(name), first(PEER));
        let _ = writeln!(out, "| {name} | {} | {} |", cell(micros, 0), cell(of_peer, 2));
    }
    out.push_str(
        "\n| a change at 10,000 | microseconds | of a core, at 1,000 a second |\n| --- | --- | --- |\n",
    );
    for name in ["Ewma", "RoundRobin", PEER] {
        let micros = change(name).map(|nanos| nanos / 1e3);
        let percent = cell(micros.map(|micros| micros / 10.0), 2);
        let _ = writeln!(out, "| {name} | {} | {percent} % |", cell(micros, 1));
    }
    out.push('\n');
}

/// What is wanted of it, and what it is.
fn wanted(out: &mut String) {
    out.push_str("| what | at most | is |\n| --- | --- | --- |\n");
    let mut row = |what: &str, most: f64, is: Option<f64>| {
        let _ = writeln!(out, "| {what} | {most} | {} |", cell(is, 2));
    };
    for name in ["RoundRobin", "Random", "LeastLoaded", DEFAULT] {
        row(&format!("{name}: most / least over the sizes"), 2.0, spread(name));
    }
    for requests in ["", SMALL] {
        let [ours, peer] = [DEFAULT, PEER].map(|name| call(&format!("{name}{requests}"), MANY));
        let what = format!("a call by the default at 10,000, of tower's{requests}");
        row(&what, 0.25, ratio(ours, peer));
    }
    let first = |name| nanos("the first call", name, MANY);
    for (what, ours) in [("over a set", FROM_A_SET), ("from a list", DEFAULT)] {
        row(
            &format!("the first call at 10,000, {what}, of tower's"),
            0.15,
            ratio(first(ours), first(PEER)),
        );
    }
    row(
        "1,000 changes a second at 10,000, percent of a core",
        2.0,
        change(DEFAULT).map(|nanos| nanos / 1e4),
    );
}
