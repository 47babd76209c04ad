//! Flags of `pelton serve`.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;

use super::{ModelArgs, SchedulingArgs, VectorArgs};
use crate::config::Secret;

/// Flags of `pelton serve`; what is absent comes from the file of `--config`, else it is built in.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// YAML file with the values of flags, API keys and tenants; flags and environment win over it
    #[arg(long, env = "PELTON_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print what would be served with, without API keys, and leave
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Address to listen on; 0.0.0.0 is every interface [default: 127.0.0.1]
    #[arg(long, env = "PELTON_HOST")]
    pub(crate) host: Option<String>,
    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long, env = "PELTON_PORT")]
    pub(crate) port: Option<u16>,
    /// Seconds that running answers get to finish after SIGTERM or Ctrl-C [default: 30]
    #[arg(long, env = "PELTON_DRAIN_TIMEOUT", value_name = "SECONDS")]
    pub(crate) drain_timeout: Option<u64>,
    /// Name under which clients see the model [default: its own]
    #[arg(
        long,
        env = "PELTON_SERVED_NAME",
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) served_name: Option<String>,
    /// Let in only who sends this key; may be given several times. Others see a process's
    /// arguments: the environment and --config keep it better
    #[arg(
        long,
        env = "PELTON_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    pub(crate) api_key: Vec<Secret>,
    /// Serve vectors of texts (POST /v1/embeddings) also of a model that could generate text; one
    /// that is for vectors is served so without it
    #[arg(long, env = "PELTON_EMBEDDINGS", help_heading = "Embeddings")]
    pub(crate) embeddings: bool,
    /// How vectors are made.
    #[command(flatten)]
    pub(crate) vectors: VectorArgs,
    /// How requests share the machine.
    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,
}

/// Takes anything: what is wrong with a key is said later, by a message that does not show it.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
