//! Flags of `pelton pull`, `list`, `show` and `rm`.

use clap::Args;

pub(crate) const PULL_HELP_END: &str = "\
Examples:
  pelton pull Qwen/Qwen3-0.6B                                   a folder of safetensors
  pelton pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M       one format of a repository
  pelton pull org/name@v1.0:model-q8_0.gguf                     a file of a tag

The model lands in the cache of the Hugging Face hub (HF_HOME, HF_HUB_CACHE), which Python's tools
share, and is verified. A download that was cut off goes on where it stopped. HF_TOKEN opens private
and gated models, HF_ENDPOINT names another hub, HF_HUB_DOWNLOAD_TIMEOUT is the longest silence in
seconds.

The path goes to stdout, everything else to stderr.";

/// Flags of `pelton pull`.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// Model on the hub: owner/name, owner/name:Q4_K_M or owner/name:FILE.gguf
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Streams that fetch a large file at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = connections)]
    pub(crate) connections: u8,
    /// One JSON object on stdout: name, path, bytes
    #[arg(long)]
    pub(crate) json: bool,
}

fn connections(text: &str) -> Result<u8, String> {
    let n = text.parse().ok().filter(|n| (1..=16).contains(n));
    n.ok_or_else(|| "expected a whole number from 1 to 16".to_owned())
}

/// Flags of `pelton list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// One JSON array on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `pelton show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Name from `pelton list`
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `pelton rm`.
#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Names from `pelton list`; owner/name without a format removes every file of the repository
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
