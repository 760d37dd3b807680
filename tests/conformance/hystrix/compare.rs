//! What differs between two accounts of a case.

use std::collections::BTreeSet;

use serde_json::Value;

/// Messages, and what Java's classes and threads are called.
const NOT_COMPARED: [&str; 4] = ["message", "fallback_exception", "cause", "fallback_thread"];

/// How far apart two times may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Exact,
    /// As for recordings in real time.
    Measured,
}

impl Times {
    fn agree(self, recorded: u64, got: u64) -> bool {
        match self {
            Times::Exact => recorded == got,
            Times::Measured => recorded.abs_diff(got) <= (60 + recorded / 50).min(120),
        }
    }
}

/// A line for each difference.
pub(super) fn differences(recorded: &Value, got: &Value, times: Times) -> Vec<String> {
    let mut differences = Vec::new();
    compare("", recorded, got, times, &mut differences);
    differences
}

fn compare(path: &str, recorded: &Value, got: &Value, times: Times, differences: &mut Vec<String>) {
    match (recorded, got) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                if !NOT_COMPARED.contains(&&**name) {
                    let path = format!("{path}/{name}");
                    compare(&path, &recorded[name], &got[name], times, differences);
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{path}/{index}"), one, other, times, differences);
            }
        }
        _ => {
            let measured = path
                .ends_with("_ms")
                .then(|| recorded.as_u64().zip(got.as_u64()))
                .flatten();
            let agree = match measured {
                Some((recorded, got)) => times.agree(recorded, got),
                None => recorded == got,
            };
            if !agree {
                differences.push(format!("{path}: {recorded} is {got}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_is_missing_or_was_tampered_with_is_a_difference() {
        let recorded =
            json!({ "steps": [{ "t_ms": 500, "health": [2, 1, 50], "state": "OPEN", "message": "no" }] });
        let with = |pointer: &str, value: Value| {
            let mut other = recorded.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            differences(&recorded, &other, Times::Exact).len()
        };
        assert_eq!(with("/steps/0/message", json!("other words")), 0);
        assert_eq!(with("/steps/0/t_ms", json!(501)), 1);
        assert_eq!(with("/steps/0/health", json!([2, 1])), 1);
        assert_eq!(with("/steps/0/health/1", json!(2)), 1);
        assert_eq!(with("/steps/0", json!({ "t_ms": 500, "health": [2, 1, 50] })), 1);
        assert_eq!(with("/steps", json!([])), 1);
    }

    #[test]
    fn measured_times_may_be_apart_and_exact_ones_may_not() {
        let apart = |recorded: u64, got: u64, times| {
            differences(&json!({ "t_ms": recorded }), &json!({ "t_ms": got }), times).len()
        };
        assert_eq!(apart(0, 60, Times::Measured), 0);
        assert_eq!(apart(0, 61, Times::Measured), 1);
        assert_eq!(apart(1_000, 1_080, Times::Measured), 0);
        assert_eq!(apart(10_000, 10_121, Times::Measured), 1);
        assert_eq!(apart(0, 1, Times::Exact), 1);
    }
}
