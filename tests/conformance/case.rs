//! The recorded cases.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

/// One recorded case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    whole: Value,
}

impl Case {
    /// One that is written by hand.
    pub(crate) fn new(whole: Value) -> Case {
        Case { whole }
    }

    pub(crate) fn id(&self) -> &str {
        self.text("id")
    }

    pub(crate) fn level(&self) -> &str {
        self.text("level")
    }

    pub(crate) fn config(&self) -> &Value {
        &self.whole["config"]
    }

    /// A setting; null where the case leaves it at its default.
    pub(crate) fn setting(&self, key: &str) -> &Value {
        &self.whole["config"][key]
    }

    pub(crate) fn observed(&self) -> &Value {
        &self.whole["observed"]
    }

    /// Another part of the case: `request`, `servers`, `steps`, `calls`, `picks` ...
    pub(crate) fn part(&self, name: &str) -> &Value {
        &self.whole[name]
    }

    /// The names of all its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.whole
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| &**name)
    }

    fn text(&self, name: &str) -> &str {
        self.whole[name].as_str().expect("a case has an id and a level")
    }
}

/// The folder of the cases, and whether it is the one that belongs to these tests.
pub(crate) fn folder() -> (PathBuf, bool) {
    match env::var_os("CONFORMANCE_CASES") {
        Some(other) => (other.into(), false),
        None => {
            let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/cases");
            (own.into(), true)
        }
    }
}

/// All cases of these levels, in the order of their files' names and lines.
pub(crate) fn of_levels(levels: &[&str]) -> Vec<Case> {
    let (folder, _) = folder();
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("the cases in {}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            serde_json::from_str::<Vec<Value>>(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        })
        .map(|whole| Case { whole })
        .filter(|case| levels.contains(&case.level()))
        .collect()
}

/// No case is left out: each level that occurs is one that is replayed.
#[test]
fn every_case_belongs_to_a_level_that_is_replayed() {
    const REPLAYED: [&str; 6] = ["feign", "ribbon", "nest", "hystrix", "lb", "retryer"];
    let (folder, _) = folder();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for case in cases {
            let level = case["level"].as_str().unwrap();
            assert!(REPLAYED.contains(&level), "{}: {level}", case["id"]);
        }
    }
}
