//! The documentation says what the code does.

use super::GrpcPolicy;
use crate::call::{GrpcCode, Verdict};

#[test]
fn the_published_table_is_what_the_policy_does() {
    let rows = include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .filter(|row| row.starts_with(|first: char| first.is_ascii_digit()));
    let mut codes = GrpcCode::ALL.into_iter();
    for row in rows {
        let code = codes.next().unwrap();
        let verdict = match GrpcPolicy::default().verdict(code) {
            Verdict::Success => "success",
            Verdict::Failure => "failure",
            Verdict::Ignored => "ignored",
        };
        assert_eq!(row, format!("{} {code} | {verdict} |", code.number()));
    }
    assert_eq!(codes.next(), None, "the whole table was read");
}

#[test]
fn one_word_leaves_the_other_codes_as_they_are_and_ok_is_ok() {
    let policy = GrpcPolicy::default()
        .failure(GrpcCode::Aborted)
        .with(GrpcCode::ALL.into_iter().take(1), Verdict::Failure);
    for code in GrpcCode::ALL {
        let expected = match code {
            GrpcCode::Aborted => Verdict::Failure,
            _ => code.verdict(),
        };
        assert_eq!(policy.verdict(code), expected, "{code}");
    }
}
