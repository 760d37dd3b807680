//! The documentation says what the code does.

use http::StatusCode;

use super::StatusPolicy;
use crate::call::Verdict;

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
            assert_eq!(cells.len(), 1 + presets.len(), "{row}");
        }
    }
    assert_eq!(seen, 41, "the whole table was read");
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
