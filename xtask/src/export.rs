//! `export-gguf`: a model folder as one GGUF file, for example the one that is embedded.

use std::path::PathBuf;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use pelton_model::{KvDtype, ModelFiles, export_gguf, inspect};
use pelton_quant::{WeightFormat, for_name};
use pelton_tensor::DType;

/// Writes a Hugging Face folder as a GGUF file.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder with config.json, safetensors and tokenizer.json.
    folder: PathBuf,
    /// File to write.
    out: PathBuf,
    /// How matrices are stored: any weight format, such as q4_k. Rows that are no whole blocks of it
    /// are stored as q8_0.
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
    if let Some(wished) = for_name(&args.format) {
        print_fallbacks(&written, wished);
    }
    Ok(())
}

/// Says how many matrices are not stored as `wished`, if any.
pub(crate) fn print_fallbacks(written: &ModelFiles, wished: &dyn WeightFormat) {
    let tensors = written.tensors();
    let views = tensors.names().into_iter().filter_map(|name| tensors.get(name));
    let matrices: Vec<_> = views.filter(|view| view.shape.len() == 2).collect();
    for dtype in [DType::Q8_0, DType::F32] {
        let n_stored = matrices.iter().filter(|view| view.dtype == dtype).count();
        if n_stored > 0 && dtype != wished.dtype() {
            println!(
                "{n_stored} of {} matrices fell back to {dtype}: their rows are no whole blocks of {}",
                matrices.len(),
                wished.block_len()
            );
        }
    }
}
