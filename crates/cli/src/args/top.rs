//! Flags of `pelton top`.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;

use crate::config::Secret;

pub(super) const HELP_END: &str = "\
Examples:
  pelton top                                  the server on this machine
  pelton top http://10.0.0.7:8000 --key KEY   another one; PELTON_API_KEY is read, too
  pelton top --once                           print the figures of this moment
  pelton top --json | jq .total.running       one JSON object a second

Keys: q or Esc quits, p pauses, Tab or left and right switch between tenants and models, up and down
choose the model whose engine is shown.

A key with the scope `metrics` shows the whole server, other keys show the requests of their tenant.";

/// Flags of `pelton top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Address of the server
    #[arg(default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// API key of the server; other users of the machine can see command lines, so prefer the
    /// environment
    #[arg(
        long,
        env = "PELTON_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    pub(crate) key: Option<Secret>,
    /// Certificates that certify an https server, in PEM [default: those that browsers trust]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print the figures of this moment and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the server's JSON, one object a second; one object with --once
    #[arg(long)]
    pub(crate) json: bool,
}

/// Accepts any text: the server judges it.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
