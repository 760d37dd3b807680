//! The documentation says what the code does.

use http::StatusCode;

use super::StatusPolicy;
use crate::call::{StatusSet, Verdict};

#[test]
fn the_published_table_is_what_the_presets_do() {
    let presets = [
        StatusPolicy::default(),
        StatusPolicy::feign(),
        StatusPolicy::feign().decode_404(),
        StatusPolicy::client_errors_ignored(),
    ];
    let mut seen = 0;
    for row in include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
    {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        // The other table has a test of its own.
        if cells.len() != 1 + presets.len() {
            continue;
        }
        let Ok(codes) = cells[0]
            .split(", ")
            .map(str::parse::<u16>)
            .collect::<Result<Vec<_>, _>>()
        else {
            continue;
        };
        for status in codes {
            seen += 1;
            for (preset, word) in presets.iter().zip(&cells[1..]) {
                let published = match *word {
                    "success" => Verdict::Success,
                    "failure" => Verdict::Failure,
                    "ignored" => Verdict::Ignored,
                    other => panic!("{other:?} is no verdict"),
                };
                let verdict = preset.verdict(StatusCode::from_u16(status).unwrap());
                assert_eq!(verdict, published, "{status} by {preset:?}");
            }
        }
    }
    assert_eq!(seen, 41, "the whole table was read");
}

// CLS-09: a change of any row is deliberate.
#[test]
fn cls_09_the_published_table_of_transient_statuses_is_the_default() {
    let rows: Vec<_> = include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .map(|row| row.split(" | ").collect::<Vec<_>>())
        .filter(|cells| cells.len() == 4)
        .filter_map(|cells| Some((cells[0].parse::<u16>().ok()?, cells[1], cells[2])))
        .collect();
    for (code, verdict, transient) in &rows {
        let status = StatusCode::from_u16(*code).unwrap();
        let said = match StatusPolicy::default().verdict(status) {
            Verdict::Success => "success",
            Verdict::Failure => "failure",
            Verdict::Ignored => "ignored",
        };
        let sent_again = StatusSet::TRANSIENT.contains(status);
        assert_eq!((said, sent_again), (*verdict, *transient == "yes"), "{code}");
    }
    let codes: Vec<_> = rows.iter().map(|row| row.0).collect();
    assert_eq!(
        codes,
        [
            200, 301, 400, 401, 404, 408, 409, 422, 425, 429, 500, 501, 502, 503, 504, 505
        ]
    );
    let transient: Vec<_> = rows
        .iter()
        .filter(|row| row.2 == "yes")
        .map(|row| row.0)
        .collect();
    assert_eq!(transient, [408, 429, 502, 503, 504]);
}

#[test]
fn a_status_that_is_not_listed_counts_as_its_class() {
    for (status, listed) in [
        (299, 206),
        (199, 100),
        (399, 300),
        (444, 400),
        (420, 499),
        (520, 599),
        (700, 600),
    ] {
        let [status, listed] = [status, listed].map(|code| StatusCode::from_u16(code).unwrap());
        for preset in [
            StatusPolicy::default(),
            StatusPolicy::feign(),
            StatusPolicy::feign().decode_404(),
            StatusPolicy::client_errors_ignored(),
        ] {
            assert_eq!(
                preset.verdict(status),
                preset.verdict(listed),
                "{status} by {preset:?}"
            );
        }
    }
}
