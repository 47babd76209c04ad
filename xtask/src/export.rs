//! `export-gguf`: a model folder as one GGUF file, for example the one that is embedded.

use std::path::PathBuf;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use pelton_model::{KvDtype, ModelFiles, export_gguf, inspect};

/// Writes a Hugging Face folder as a GGUF file.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder with config.json, safetensors and tokenizer.json.
    folder: PathBuf,
    /// File to write.
    out: PathBuf,
    /// How matrices are stored: f32, f16, bf16, q8_0 or q4_0.
    #[arg(long, default_value = "q8_0")]
    format: String,
}

/// A bar that counts to `n`.
pub(crate) fn bar(n: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} ({eta})");
    let style = style.expect("invariant: the template is valid").progress_chars("=> ");
    ProgressBar::new(n).with_style(style).with_message(what)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let files = ModelFiles::open(&args.folder)?;
    let bar = bar(0, "writing");
    let progress = |progress: pelton_model::ExportProgress| {
        bar.set_length(progress.n_total_tensors as u64);
        bar.set_position(progress.n_tensors as u64);
    };
    export_gguf(&files, &args.format, &args.out, Some(&progress))?;
    bar.finish_and_clear();
    let written = ModelFiles::open(&args.out).context("reading the file back")?;
    pelton_model::check(&written).context("reading the file back")?;
    let facts = inspect(&written, KvDtype::Bf16)?;
    let n_bytes = std::fs::metadata(&args.out)?.len();
    println!(
        "{}: {} of {} parameters, {n_bytes} bytes",
        args.out.display(),
        facts.architecture,
        facts.n_parameters
    );
    Ok(())
}
