//! What became of the cases of a level, in one line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{case::Case, deviations::Deviation, table};

/// How one case went.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// As recorded in everything that is compared.
    Equal,
    /// These deviations cover the case, and what they promise in its place was seen.
    Deviates(BTreeSet<Deviation>),
    /// Neither: what differs.
    Differs(Vec<String>),
}

impl Outcome {
    /// Of a comparison that found these differences, after these deviations were taken into account.
    pub(crate) fn of(deviations: BTreeSet<Deviation>, differences: Vec<String>) -> Outcome {
        if !differences.is_empty() {
            Outcome::Differs(differences)
        } else if deviations.is_empty() {
            Outcome::Equal
        } else {
            Outcome::Deviates(deviations)
        }
    }
}

/// The cases of one level.
#[derive(Debug)]
pub(crate) struct Report {
    level: &'static str,
    outcomes: Vec<(String, Outcome)>,
}

impl Report {
    pub(crate) fn new(level: &'static str) -> Report {
        Report {
            level,
            outcomes: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, case: &Case, outcome: Outcome) {
        self.outcomes.push((case.id().to_owned(), outcome));
    }

    /// How many cases each deviation covers.
    pub(crate) fn deviations(&self) -> BTreeMap<Deviation, usize> {
        let mut counts = BTreeMap::new();
        for (_, outcome) in &self.outcomes {
            if let Outcome::Deviates(deviations) = outcome {
                for deviation in deviations {
                    *counts.entry(*deviation).or_default() += 1;
                }
            }
        }
        counts
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.outcomes
            .iter()
            .filter(|(_, outcome)| wanted(outcome))
            .count()
    }

    /// Prints the line, and fails with all that differs.
    pub(crate) fn conclude(&self) {
        println!("{self}");
        table::check_covered(self.level, &self.deviations());
        let failures: Vec<_> = self
            .outcomes
            .iter()
            .filter_map(|(id, outcome)| match outcome {
                Outcome::Differs(differences) => Some(format!("{id}\n    {}", differences.join("\n    "))),
                _ => None,
            })
            .collect();
        assert!(
            failures.is_empty(),
            "{self}\n{} of {} cases differ:\n{}",
            failures.len(),
            self.outcomes.len(),
            failures.join("\n")
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deviating = self.count(|outcome| matches!(outcome, Outcome::Deviates(_)));
        write!(
            f,
            "conformance {}: {} cases, {} equal, {deviating} asserted deviations",
            self.level,
            self.outcomes.len(),
            self.count(|outcome| matches!(outcome, Outcome::Equal)),
        )?;
        let names: Vec<_> = self
            .deviations()
            .iter()
            .map(|(deviation, cases)| format!("{} {cases}", deviation.name()))
            .collect();
        if !names.is_empty() {
            write!(f, " ({})", names.join(", "))?;
        }
        write!(
            f,
            ", {} failures",
            self.count(|outcome| matches!(outcome, Outcome::Differs(_)))
        )
    }
}
