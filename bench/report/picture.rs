//! The picture: one bar per contender on a logarithmic scale, as SVG. Pure.
//! Never loads a font, a script or a style sheet. Invariant: readable on a light and on a dark page.

use super::figures::{BACKENDS, Results, Work};
use super::table::{ratio, seconds};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 210.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 64.0;
const ROW: f64 = 34.0;
const BAR: f64 = 20.0;

const STYLE: &str = "\
text{font:14px system-ui,sans-serif;fill:#1f2328}\
.title{font-weight:600;font-size:16px}.note,.tick{fill:#59636e;font-size:12px}\
.own{fill:#1a7f37}.peer{fill:#8c959f}.grid{stroke:#8c959f;stroke-opacity:.35}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note,.tick{fill:#9198a1}.own{fill:#3fb950}.peer{fill:#6e7681}}";

/// Times of a warm execute, fastest first; None if nobody was measured.
pub fn warm_execute(results: &Results) -> Option<String> {
    let warm = |figure: &&super::figures::Figure| figure.work == Work::Warm;
    let mut figures: Vec<_> = results.figures.iter().filter(warm).collect();
    figures.sort_by(|one, other| one.p50.total_cmp(&other.p50));
    let lowest = 10f64.powf(figures.first()?.p50.log10().floor());
    let highest = 10f64.powf(figures.last()?.p50.log10().ceil());
    let own = BACKENDS
        .iter()
        .find_map(|own| results.p50(Work::Warm, *own));
    let scale = Scale { lowest, highest };
    let height = TOP + ROW * figures.len() as f64 + 36.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Time of a warm execute by contender\">\n\
         <style>{STYLE}</style>\n\
         <text class=\"title\" x=\"12\" y=\"24\">Warm execute: x += 1; x, median of one run</text>\n\
         <text class=\"note\" x=\"12\" y=\"44\">shorter is better; the scale is logarithmic: each line is ten times the one before</text>\n"
    );
    svg += &grid(&scale, height - 30.0);
    for (index, figure) in figures.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 8.0;
        let class = match BACKENDS.contains(&figure.contender) {
            true => "own",
            false => "peer",
        };
        let end = scale.x(figure.p50);
        let times = own.map_or(String::new(), |own| {
            format!(" ({})", ratio(figure.p50 / own))
        });
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"3\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}{times}</text>\n",
            LEFT - 10.0,
            y + 15.0,
            escaped(figure.contender.name()),
            (end - LEFT).max(2.0),
            end + 8.0,
            y + 15.0,
            seconds(figure.p50),
        );
    }
    Some(svg + "</svg>\n")
}

/// From the lowest power of ten shown to the highest.
struct Scale {
    lowest: f64,
    highest: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let decades = (self.highest / self.lowest).log10().max(1.0);
        LEFT + (value / self.lowest).log10() / decades * (WIDTH - LEFT - RIGHT)
    }
}

fn grid(scale: &Scale, bottom: f64) -> String {
    let mut lines = String::new();
    let mut tick = scale.lowest;
    while tick <= scale.highest * 1.001 {
        let x = scale.x(tick);
        lines += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\n\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 16.0,
            decade(tick)
        );
        tick *= 10.0;
    }
    lines
}

/// A power of ten without decimals: `10 µs`, `1 ms`, `1 s`.
fn decade(value: f64) -> String {
    match value {
        value if value < 0.9e-3 => format!("{:.0} µs", value * 1e6),
        value if value < 0.9 => format!("{:.0} ms", value * 1e3),
        value => format!("{value:.0} s"),
    }
}

pub fn escaped(name: &str) -> String {
    let plain = name.replace('`', "");
    plain.replace('&', "&amp;").replace('<', "&lt;")
}
