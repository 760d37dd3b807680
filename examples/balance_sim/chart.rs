//! Bars in an SVG, on a logarithmic scale.

use std::fmt::Write;

/// A group of bars that stand together, and what each is called.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<(String, f64)>,
}

const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const HEIGHT: f64 = 260.0;
const BAR: f64 = 26.0;
const GAP: f64 = 34.0;
const COLORS: [&str; 6] = ["#9aa0a6", "#c08a3e", "#5b8f5b", "#3b6fb6", "#8a5ba5", "#b0504f"];

/// `unit` is what the values are in, milliseconds for instance.
pub(crate) fn bars(title: &str, unit: &str, groups: &[Group]) -> String {
    let values = || {
        groups
            .iter()
            .flat_map(|group| &group.bars)
            .map(|(_, value)| *value)
    };
    let least = power(values().fold(f64::INFINITY, f64::min), f64::floor);
    let most = power(values().fold(0.0, f64::max), f64::ceil);
    let y = |value: f64| TOP + HEIGHT * (1.0 - (value / least).log10() / (most / least).log10());
    let names: Vec<&str> = groups
        .first()
        .map(|group| group.bars.iter().map(|(name, _)| &**name).collect())
        .unwrap_or_default();
    let in_group = names.len() as f64 * BAR;
    let width = LEFT + groups.len() as f64 * (in_group + GAP) + 20.0;
    let bottom = TOP + HEIGHT;
    let mut svg = String::new();
    let mut line = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    line(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{:.0}" font-family="sans-serif" font-size="11">"#,
        bottom + 70.0
    ));
    line(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##.into());
    line(format!(
        r#"<text x="{LEFT}" y="24" font-size="14">{title}</text>"#
    ));
    let mut tick = least;
    while tick <= most * 1.001 {
        let at = y(tick);
        line(format!(
            r##"<line x1="{LEFT}" x2="{:.0}" y1="{at:.1}" y2="{at:.1}" stroke="#dddddd"/>"##,
            width - 20.0
        ));
        line(format!(
            r#"<text x="{:.0}" y="{:.1}" text-anchor="end">{tick} {unit}</text>"#,
            LEFT - 6.0,
            at + 4.0
        ));
        tick *= 10.0;
    }
    for (number, group) in groups.iter().enumerate() {
        let left = LEFT + GAP / 2.0 + number as f64 * (in_group + GAP);
        for ((bar, (_, value)), color) in group.bars.iter().enumerate().zip(COLORS.iter().cycle()) {
            let (x, top) = (left + bar as f64 * BAR, y(*value));
            line(format!(
                r#"<rect x="{x:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" fill="{color}"/>"#,
                BAR - 3.0,
                bottom - top
            ));
            line(format!(
                r#"<text x="{:.1}" y="{:.1}" text-anchor="middle" font-size="9">{value:.0}</text>"#,
                x + (BAR - 3.0) / 2.0,
                top - 3.0
            ));
        }
        line(format!(
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            left + in_group / 2.0,
            bottom + 18.0,
            group.name
        ));
    }
    let mut x = LEFT;
    for (name, color) in names.iter().zip(COLORS.iter().cycle()) {
        let y = bottom + 40.0;
        line(format!(
            r#"<rect x="{x:.0}" y="{:.0}" width="10" height="10" fill="{color}"/><text x="{:.0}" y="{y:.0}">{name}</text>"#,
            y - 9.0,
            x + 14.0
        ));
        x += 30.0 + 6.5 * name.len() as f64;
    }
    line("</svg>".into());
    svg
}

/// The power of ten next to it.
fn power(value: f64, round: fn(f64) -> f64) -> f64 {
    10_f64.powf(round(value.max(1e-9).log10()))
}
