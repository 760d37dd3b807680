//! What the text after a key says.

use http::StatusCode;

use crate::{balance::RibbonRule, call::StatusSet};

/// Where Ribbon's rules are.
const RULES: &str = "com.netflix.loadbalancer.";

/// The largest number that Java's `int` holds.
const LARGEST: i64 = i32::MAX as i64;

/// What kind of value a key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From this number on.
    Number {
        least: i64,
    },
    /// Zero or more, with a fraction.
    Decimal,
    Flag,
    /// HTTP statuses, between commas.
    Statuses,
    /// Names or addresses, between commas.
    List,
    Text,
    /// The class of a Ribbon rule.
    Rule,
    /// THREAD or SEMAPHORE.
    Isolation,
}

/// A value, read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(i64),
    Decimal(f64),
    Flag(bool),
    Statuses(StatusSet),
    List(Vec<String>),
    Text(String),
    Rule(RibbonRule),
    Isolation(Isolation),
}

/// Hystrix's `execution.isolation.strategy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Isolation {
    #[default]
    Thread,
    Semaphore,
}

impl Kind {
    /// Reads the text, or says what is allowed.
    pub(super) fn read(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match self {
            Kind::Number { least } => match text.parse() {
                Ok(number) if (least..=LARGEST).contains(&number) => Ok(Value::Number(number)),
                _ => Err(format!("a whole number from {least} to {LARGEST}")),
            },
            Kind::Decimal => match text.parse() {
                Ok(number) if (0.0..f64::INFINITY).contains(&number) => Ok(Value::Decimal(number)),
                _ => Err("a number from 0 on, as in `0.2`".to_owned()),
            },
            Kind::Flag => match text {
                _ if text.eq_ignore_ascii_case("true") => Ok(Value::Flag(true)),
                _ if text.eq_ignore_ascii_case("false") => Ok(Value::Flag(false)),
                _ => Err("true or false".to_owned()),
            },
            Kind::Statuses => parts(text)
                .map(|part| part.parse::<StatusCode>().ok())
                .collect::<Option<StatusSet>>()
                .map(Value::Statuses)
                .ok_or_else(|| "HTTP statuses between commas, as in `502,503`".to_owned()),
            Kind::List => Ok(Value::List(parts(text).map(str::to_owned).collect())),
            Kind::Text if text.is_empty() => Err("a text that is not empty".to_owned()),
            Kind::Text => Ok(Value::Text(text.to_owned())),
            Kind::Rule => rule(text).map(Value::Rule).ok_or_else(|| {
                let classes = RibbonRule::ALL.map(|rule| format!("{RULES}{rule}"));
                format!("one of {}", classes.join(", "))
            }),
            Kind::Isolation => match text {
                _ if text.eq_ignore_ascii_case("thread") => Ok(Value::Isolation(Isolation::Thread)),
                _ if text.eq_ignore_ascii_case("semaphore") => Ok(Value::Isolation(Isolation::Semaphore)),
                _ => Err("THREAD or SEMAPHORE".to_owned()),
            },
        }
    }
}

/// The rule of this class, written with its package as Java wants it.
fn rule(class: &str) -> Option<RibbonRule> {
    let name = class.strip_prefix(RULES)?;
    RibbonRule::ALL.into_iter().find(|rule| rule.to_string() == name)
}

/// What is between the commas.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_reads_what_it_allows_and_names_it_otherwise() {
        let count = Kind::Number { least: 0 };
        assert_eq!(count.read(" 7 "), Ok(Value::Number(7)));
        assert_eq!(Kind::Number { least: -1 }.read("-1"), Ok(Value::Number(-1)));
        for wrong in ["-1", "1.5", "", "1s", "2147483648", "1_000"] {
            assert_eq!(
                count.read(wrong),
                Err("a whole number from 0 to 2147483647".to_owned()),
                "{wrong}"
            );
        }
        assert_eq!(Kind::Decimal.read("0.2"), Ok(Value::Decimal(0.2)));
        for wrong in ["-0.1", "NaN", "inf", "much"] {
            assert!(Kind::Decimal.read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Kind::Flag.read("TRUE"), Ok(Value::Flag(true)));
        assert_eq!(Kind::Flag.read("false"), Ok(Value::Flag(false)));
        assert!(Kind::Flag.read("yes").is_err());
        let statuses = [502, 503].map(|code| StatusCode::from_u16(code).unwrap());
        assert_eq!(
            Kind::Statuses.read("502, 503,"),
            Ok(Value::Statuses(statuses.into_iter().collect()))
        );
        assert_eq!(Kind::Statuses.read(""), Ok(Value::Statuses(StatusSet::EMPTY)));
        assert!(Kind::Statuses.read("502,5xx").is_err());
        assert_eq!(
            Kind::Isolation.read("semaphore"),
            Ok(Value::Isolation(Isolation::Semaphore))
        );
        assert!(Kind::Isolation.read("POOL").is_err());
        let error = Kind::Rule.read("com.example.MyRule").unwrap_err();
        assert!(
            error.contains("com.netflix.loadbalancer.ZoneAvoidanceRule"),
            "{error}"
        );
    }
}
