//! A comparison for people.

use super::{Comparison, Row, Verdict};
use crate::table::{Align, table};

impl Comparison {
    /// A row per figure, and a last line that sums up.
    pub fn render(&self) -> String {
        const HEAD: [(&str, Align); 7] = [
            ("", Align::Left),
            ("A", Align::Right),
            ("B", Align::Right),
            ("change", Align::Right),
            ("interval", Align::Right),
            ("chance", Align::Right),
            ("", Align::Left),
        ];
        let rows: Vec<[String; 7]> = self.rows.iter().map(Row::cells).collect();
        let mut text = table(HEAD, &rows);
        for name in &self.missing {
            text.push_str(&format!("only one of the runs has `{name}`\n"));
        }
        for warning in &self.warnings {
            text.push_str(&format!("note: {warning}\n"));
        }
        let count = |verdict| self.count(verdict);
        text.push_str(&format!(
            "{} figures: {} worse, {} better, {} the same, {} with too few rounds; differences from \
             {} % on count, and the chance of any false alarm is {} %\n",
            self.rows.len(),
            count(Verdict::Worse),
            count(Verdict::Better),
            count(Verdict::Same),
            count(Verdict::TooFew),
            self.least_percent,
            100.0 * self.level,
        ));
        text
    }
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let percent = |x: f64| format!("{x:+.1} %");
        let interval = self.interval_percent.map(|x| format!("{:+.1}..{:+.1}", x.low, x.high));
        [
            format!("{}, {}", self.name, self.unit),
            digits(self.a),
            digits(self.b),
            self.change_percent.map_or_else(|| "-".to_owned(), percent),
            interval.unwrap_or_else(|| "-".to_owned()),
            format!("{:.4}", self.significance),
            self.verdict.name().to_owned(),
        ]
    }
}

/// A number with about four digits that matter.
fn digits(x: f64) -> String {
    match x.abs() {
        a if a >= 1e7 || (a < 1e-3 && a > 0.0) => format!("{x:.3e}"),
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.4}"),
    }
}
