//! Usage as people read it: rows of a span of days, in JSON or CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::clock::{Day, date_time};
use crate::ledger::{Counts, RowKey};

/// The rows that a report is to have; by default all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The first day.
    pub since: Option<Day>,
    /// The last day.
    pub until: Option<Day>,
    /// Only this key.
    pub key: Option<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only this model.
    pub model: Option<String>,
}

impl Filter {
    fn has(&self, row: &RowKey) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        self.since.is_none_or(|day| row.day >= day)
            && self.until.is_none_or(|day| row.day <= day)
            && is(&self.key, &row.key)
            && is(&self.tenant, &row.tenant)
            && is(&self.model, &row.model)
    }
}

/// One row: a day, a key, a tenant and a model.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct Row {
    /// The day on which the requests began.
    pub day: Day,
    /// Id of the key.
    pub key: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the model.
    pub model: String,
    /// Its counts.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Rows in the order of day, key, tenant and model, and their sum.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Report {
    /// The rows.
    pub data: Vec<Row>,
    /// Their sum.
    pub total: Counts,
}

impl Report {
    /// The rows that a filter lets through.
    pub fn new(rows: &BTreeMap<RowKey, Counts>, filter: &Filter) -> Self {
        let mut report = Self::default();
        for (row, counts) in rows.iter().filter(|(row, _)| filter.has(row)) {
            report.total.add(counts);
            let RowKey { day, key, tenant, model } = row.clone();
            report.data.push(Row { day, key, tenant, model, counts: *counts });
        }
        report
    }

    /// The rows as CSV (RFC 4180), with a line of names.
    pub fn csv(&self) -> String {
        let mut out = "day,key,tenant,model,requests,refused,prompt_tokens,cached_tokens,\
                       completion_tokens,reasoning_tokens,last_used\r\n"
            .to_owned();
        for Row { day, key, tenant, model, counts } in &self.data {
            let [key, tenant, model] = [key, tenant, model].map(|text| field(text));
            let Counts { requests, refused, last_used, .. } = counts;
            let _ = write!(out, "{day},{key},{tenant},{model},{requests},{refused},");
            let Counts {
                prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, ..
            } = counts;
            let _ = write!(out, "{prompt_tokens},{cached_tokens},{completion_tokens},");
            let _ = write!(out, "{reasoning_tokens},{}\r\n", date_time(*last_used));
        }
        out
    }
}

/// A field of a line; one that a spreadsheet would run as a formula begins with an apostrophe.
fn field(text: &str) -> String {
    let text = match text.as_bytes().first() {
        Some(b'=' | b'+' | b'-' | b'@') => format!("'{text}"),
        _ => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> BTreeMap<RowKey, Counts> {
        let row = |day, key: &str, model: &str| RowKey {
            day: Day(day),
            key: key.to_owned(),
            tenant: "red".to_owned(),
            model: model.to_owned(),
        };
        let counts = |prompt_tokens| Counts { requests: 1, prompt_tokens, ..Counts::default() };
        BTreeMap::from([
            (row(20_001, "b", "org/m"), counts(3)),
            (row(20_000, "a", "=1+1"), counts(1)),
            (row(20_000, "b", "x,\"y\""), counts(2)),
        ])
    }

    #[test]
    fn a_filter_picks_rows_and_the_total_is_their_sum() {
        let all = Report::new(&rows(), &Filter::default());
        assert_eq!((all.data.len(), all.total.prompt_tokens), (3, 6));
        let filter =
            Filter { key: Some("b".to_owned()), since: Some(Day(20_001)), ..Filter::default() };
        let report = Report::new(&rows(), &filter);
        assert_eq!((report.data.len(), report.total.prompt_tokens), (1, 3));
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["data"][0]["day"], "2024-10-05");
        assert_eq!(
            (&json["data"][0]["prompt_tokens"], &json["total"]["requests"]),
            (&3.into(), &1.into())
        );
    }

    #[test]
    fn a_name_can_neither_break_a_line_nor_be_a_formula() {
        let csv = Report::new(&rows(), &Filter::default()).csv();
        let lines: Vec<&str> = csv.split("\r\n").collect();
        assert_eq!(lines.len(), 5, "{csv}");
        let n_names = lines[0].split(',').count();
        assert_eq!(lines[1], "2024-10-04,a,red,'=1+1,1,0,1,0,0,0,1970-01-01T00:00:00Z");
        assert_eq!(lines[1].split(',').count(), n_names);
        assert!(lines[2].contains(r#""x,""y""""#), "{csv}");
    }
}
