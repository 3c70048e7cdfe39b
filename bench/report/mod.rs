//! From figures to a document: tables, verdicts and the picture. Pure, so that it can be tested without a measurement.
//! Never measures. Invariant: everything shown comes from one `Results`, and so from one run.

pub mod aims;
pub mod figures;
pub mod picture;
pub mod table;

use figures::Results;

/// What stands between the markers: machine, verdicts, picture, who was left out, tables.
pub fn document(results: &Results, machine: &str) -> String {
    let mut text = format!("{machine}\n\n## Verdicts\n\n{}\n", aims::verdicts(results));
    text += "![Time of a warm execute by contender](performance.svg)\n\n";
    for reason in &results.left_out {
        text += &format!("Left out: {reason}.\n\n");
    }
    text + "## Figures\n\n" + &table::tables(results)
}
