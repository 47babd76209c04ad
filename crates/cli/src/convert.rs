//! `pelton convert`: a model of any kind as GGUF files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pelton_model::{
    ExportOptions, KvDtype, ModelError, ModelFiles, TensorTotals, export, gguf_left_out, inspect,
};
use serde::Serialize;

use crate::args::ConvertArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::model;
use crate::progress::Progress;
use crate::stats::bytes;

/// The written files.
#[derive(Debug, Serialize)]
struct Report {
    input: String,
    /// In the order of their parts.
    outputs: Vec<PathBuf>,
    architecture: String,
    n_parameters: u64,
    /// Bytes of all tensors.
    n_bytes: u64,
    /// The same of the input.
    n_input_bytes: u64,
    /// By stored type.
    tensors: BTreeMap<String, TensorTotals>,
    /// Each thing that the input says and the files do not.
    left_out: Vec<String>,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn convert(args: &ConvertArgs) -> Result<()> {
    let started = Instant::now();
    let place = model::resolve(&model::reference(Some(&args.input))?)?;
    let files = place.open()?;
    let stop = StopFlag::listen()?;
    let options = ExportOptions {
        format: args.format.as_deref(),
        embedding_format: args.embedding_format.as_deref(),
        head_format: args.head_format.as_deref(),
        max_part_bytes: args.split_max_size,
        overwrite: args.force,
        ..ExportOptions::default()
    };
    let outputs = write(&files, &options, &args.output, &stop)?;
    print(&files, outputs, started, args.json)
}

/// Prints what was written, once it is read back.
pub(crate) fn print(
    files: &ModelFiles,
    outputs: Vec<PathBuf>,
    started: Instant,
    json: bool,
) -> Result<()> {
    // The report is about the file as it can be read back.
    let written = ModelFiles::open(&outputs[0]).and_then(|written| {
        pelton_model::check(&written)?;
        inspect(&written, KvDtype::Bf16)
    });
    let written = written.map_err(|error| Failure::from(error).at("reading the result back"))?;
    let report = Report {
        input: files.path().display().to_string(),
        outputs,
        architecture: written.architecture,
        n_parameters: written.n_parameters,
        n_bytes: written.n_bytes,
        n_input_bytes: inspect(files, KvDtype::Bf16)?.n_bytes,
        tensors: written.tensors,
        left_out: gguf_left_out(files)?,
        seconds: started.elapsed().as_secs_f64(),
    };
    let text = if json {
        let mut text = serde_json::to_string(&report)?;
        text.push('\n');
        text
    } else {
        report.render()
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

/// Writes a model as GGUF files, with a bar and until it is stopped.
pub(crate) fn write(
    files: &ModelFiles,
    options: &ExportOptions<'_>,
    output: &Path,
    stop: &StopFlag,
) -> Result<Vec<PathBuf>> {
    let bar = Progress::new();
    let options = ExportOptions {
        progress: Some(&|at| bar.update("converting", at.n_bytes, Some(at.n_total_bytes))),
        stop: Some(&|| stop.is_set()),
        ..*options
    };
    let outputs = export(files, &options, output).map_err(|error| match error {
        ModelError::Exists { .. } => Failure::from(error).hint("`--force` replaces it"),
        ModelError::Export(ref why) if why.contains("unknown format") => {
            Failure::from(error).hint("`--format q4_k` and `--format q8_0` are the usual ones")
        }
        error => Failure::from(error),
    })?;
    outputs.ok_or_else(interrupted)
}

/// Ctrl-C before a file was whole.
pub(crate) fn interrupted() -> Failure {
    Failure::interrupted_with("nothing was written")
}

impl Report {
    fn render(&self) -> String {
        let mut rows = vec![("from", self.input.clone())];
        rows.extend(self.outputs.iter().map(|path| ("written", path.display().to_string())));
        rows.push(("architecture", self.architecture.clone()));
        let (now, before) = (bytes(self.n_bytes), bytes(self.n_input_bytes));
        let bits = self.n_bytes as f64 * 8.0 / (self.n_parameters.max(1)) as f64;
        rows.push(("size", format!("{now}, was {before}; {bits:.2} bits per weight")));
        for (dtype, totals) in &self.tensors {
            let size = bytes(totals.n_bytes);
            rows.push(("tensors", format!("{} of type {dtype}, {size}", totals.n_tensors)));
        }
        rows.extend(self.left_out.iter().map(|what| ("left out", what.clone())));
        rows.push(("time", format!("{:.1} s", self.seconds)));
        rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
    }
}
