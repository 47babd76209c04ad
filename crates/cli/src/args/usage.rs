//! Flags of `pelton usage`.

use std::path::PathBuf;

use clap::Args;
use pelton_gateway::{Day, Filter};

use crate::failure::{Failure, Result};

pub(super) const HELP_END: &str = "\
Examples:
  pelton usage --usage-file usage --since 2026-11-01
  pelton usage --usage-file usage --csv > usage.csv

A server that runs has the file to itself; ask it instead: GET /v1/usage, /v1/usage?format=csv.";

/// Flags of `pelton usage`.
#[derive(Args, Debug)]
pub(crate) struct UsageArgs {
    /// The file of `pelton serve --usage-file`
    #[arg(long, env = "PELTON_USAGE_FILE", value_name = "FILE")]
    pub(crate) usage_file: PathBuf,
    /// First day, such as 2026-11-01
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<Day>,
    /// Last day
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<Day>,
    /// Only this key, by its id
    #[arg(long, value_name = "ID")]
    key: Option<String>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// One JSON object on stdout
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// CSV on stdout
    #[arg(long)]
    pub(crate) csv: bool,
}

impl UsageArgs {
    /// The rows that are asked for.
    ///
    /// # Errors
    ///
    /// A first day after the last one.
    pub(crate) fn filter(&self) -> Result<Filter> {
        let (since, until) = (self.since, self.until);
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            let message = format!("`--since` is {since}: expected no day after `--until` {until}");
            return Err(Failure::new(message));
        }
        let (key, tenant, model) = (self.key.clone(), self.tenant.clone(), self.model.clone());
        Ok(Filter { since, until, key, tenant, model })
    }
}

fn day(text: &str) -> std::result::Result<Day, String> {
    Day::parse(text).ok_or_else(|| "expected a day such as 2026-11-22".to_owned())
}
