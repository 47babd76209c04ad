//! `pelton usage`: what a usage file says.

use std::io::Write;

use pelton_gateway::{Report, Row, Store};
use pelton_server::UsageFile;

use crate::args::UsageArgs;
use crate::failure::{Failure, Result};

/// Runs the command.
pub(crate) fn usage(args: &UsageArgs) -> Result<()> {
    let (path, filter) = (&args.usage_file, args.filter()?);
    if !path.exists() {
        return Err(Failure::new(format!("{}: there is no such file", path.display()))
            .hint("`pelton serve --usage-file FILE` makes it"));
    }
    // The database would begin a file of its own in an empty one.
    if path.metadata().is_ok_and(|facts| facts.len() == 0) {
        let message = format!("{}: the file is empty, and no usage file", path.display());
        return Err(Failure::new(message).hint("`pelton serve --usage-file FILE` makes one"));
    }
    let mut file = UsageFile::open(path)?;
    let report = Report::new(&file.load()?, &filter);
    let text = match (args.json, args.csv) {
        (true, _) => format!("{}\n", serde_json::to_string(&report)?),
        (_, true) => report.csv(),
        _ => table(&report),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

/// A line per row, in columns, and their sum.
fn table(report: &Report) -> String {
    let head =
        ["DAY", "KEY", "TENANT", "MODEL", "REQUESTS", "REFUSED", "PROMPT", "CACHED", "ANSWER"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(report.data.iter().map(|Row { day, key, tenant, model, counts }| {
        let names = [day.to_string(), key.clone(), tenant.clone(), model.clone()];
        cells(names, counts)
    }));
    let sum = ["total", "", "", ""].map(str::to_owned);
    rows.push(cells(sum, &report.total));
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match i {
            0..=3 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn cells(names: [String; 4], counts: &pelton_gateway::Counts) -> [String; 9] {
    let [day, key, tenant, model] = names;
    let numbers = [
        counts.requests,
        counts.refused,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    ];
    let [requests, refused, prompt, cached, answer] = numbers.map(|n| n.to_string());
    [day, key, tenant, model, requests, refused, prompt, cached, answer]
}
