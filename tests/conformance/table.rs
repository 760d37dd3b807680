//! The table of differences in the docs of `nest::spring`, made from the presets and the deviations themselves.
//!
//! `UPDATE_DIFFERENCES=1` writes it anew; without that a table that is out of date fails. Its last column comes from
//! what the levels found when they were last run so, so a change of that takes two runs.

use std::{collections::BTreeMap, env, fmt::Write, fs, sync::Mutex};

use tower_outbound::{
    Nest,
    call::Endpoints,
    nest::spring::{self, SpringConfig, SpringRelease},
};

use crate::{case, deviations::Deviation};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nest/spring/differences.md");

const UPDATE: &str = "UPDATE_DIFFERENCES";

/// How many of the recorded cases each deviation covers, as the levels found when they were last run.
const COVERED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/covered.txt");

fn spring(release: SpringRelease) -> SpringConfig {
    spring::from_pairs("orders", [("feign.hystrix.enabled", "true")])
        .unwrap()
        .release(release)
}

/// Settings side by side: the safe default, and Spring's own.
fn settings() -> String {
    let safe: Vec<_> = Nest::builder("orders", Endpoints::new()).settings().collect();
    let of = |release| -> BTreeMap<_, _> { spring(release).settings().unwrap().collect() };
    let edgware = of(SpringRelease::Edgware);
    let others = [
        ("Dalston", of(SpringRelease::Dalston)),
        ("Hoxton", of(SpringRelease::Hoxton)),
    ];
    let mut table = String::from(
        "| setting | the safe default | Spring, Edgware | other releases |\n| --- | --- | --- | --- |\n",
    );
    for (name, value) in &safe {
        let others: Vec<_> = others
            .iter()
            .filter(|(_, settings)| settings[name] != edgware[name])
            .map(|(release, settings)| format!("{release}: {}", settings[name]))
            .collect();
        let (edgware, others) = (&edgware[name], others.join("; "));
        writeln!(table, "| {name} | {value} | {edgware} | {others} |").unwrap();
    }
    assert_eq!(safe.len(), edgware.len(), "both presets have the same settings");
    table
}

fn deviations() -> String {
    let covered = covered();
    let mut table = String::from(
        "| name | what they do | what is done here | why | recorded cases |\n| --- | --- | --- | --- | --- |\n",
    );
    for deviation in Deviation::ALL {
        let cases = covered.get(deviation.name()).copied().unwrap_or_default();
        writeln!(
            table,
            "| {} | {} | {} | {} | {cases} |",
            deviation.name(),
            deviation.theirs(),
            deviation.ours(),
            deviation.why()
        )
        .unwrap();
    }
    table
}

/// The sums over the levels.
fn covered() -> BTreeMap<String, usize> {
    let mut sums = BTreeMap::new();
    for line in fs::read_to_string(COVERED).unwrap().lines() {
        let mut words = line.split(' ').skip(1);
        let name = words.next().unwrap().to_owned();
        *sums.entry(name).or_default() += words.next().unwrap().parse::<usize>().unwrap();
    }
    sums
}

/// Levels run side by side, and each rewrites its own lines.
static WRITING: Mutex<()> = Mutex::new(());

/// Holds what a level found against what the table says of it.
pub(crate) fn check_covered(level: &str, found: &BTreeMap<Deviation, usize>) {
    let (_, own) = case::folder();
    if !own {
        return;
    }
    let lines: Vec<_> = found
        .iter()
        .map(|(deviation, cases)| format!("{level} {} {cases}", deviation.name()))
        .collect();
    let of_level = |line: &&str| line.split(' ').next() == Some(level);
    let _writing = WRITING.lock();
    let text = fs::read_to_string(COVERED).unwrap();
    let written: Vec<_> = text.lines().filter(of_level).collect();
    if env::var_os(UPDATE).is_some() {
        let others = text.lines().filter(|line| !of_level(line)).map(str::to_owned);
        let mut all: Vec<_> = others.chain(lines).collect();
        all.sort();
        fs::write(COVERED, all.join("\n") + "\n").unwrap();
    } else {
        let mut lines = lines;
        lines.sort();
        assert_eq!(
            written, lines,
            "tests/conformance/covered.txt is out of date, and so is the table that is made from it: {UPDATE}=1, twice"
        );
    }
}

fn page() -> String {
    format!(
        "Settings by name, where nothing is configured:\n\n{}\nWhere this crate departs from what the libraries did, on \
         purpose. Each is a predicate on the recorded cases and a behavior that is asserted in place of the recorded \
         one:\n\n{}",
        settings(),
        deviations()
    )
}

#[test]
fn the_table_of_differences_in_the_docs_is_that_of_the_presets_and_the_deviations() {
    let page = page();
    if env::var_os(UPDATE).is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap();
    assert!(written == page, "{PAGE} is out of date: {UPDATE}=1");
}
