//! The model card: how a folder came to be, and what it lost.

use crate::{LEAST_EXPERT_ROWS, Options, Report};

/// The card as markdown. `name` is that of the folder, `data` describes the calibration.
pub(crate) fn card(
    name: &str,
    options: &Options,
    command: &str,
    data: Option<&str>,
    report: &Report,
) -> String {
    let mut rows = vec![
        ("method", options.words()),
        ("matrices", report.matrices.len().to_string()),
        ("bits per weight of these, with scales", format!("{:.3}", report.bits_per_weight)),
        ("bytes of all tensors", format!("{}; {} before", report.n_bytes, report.n_source_bytes)),
        ("calibration", data.unwrap_or("none").to_owned()),
    ];
    if !options.keep.is_empty() {
        rows.push(("kept as they were", options.keep.join(", ")));
    }
    if let Some(unsolved) = report.unsolved() {
        rows.push(("rounded to nearest, because inputs are not gathered", unsolved));
    }
    let few = format!(
        "experts that saw less than {LEAST_EXPERT_ROWS} rows: gate and up for the rows of all, down to \
         nearest"
    );
    if let Some(named) = report.few() {
        rows.push((&few, named));
    }
    if let Some(named) = report.damped(options.gptq.damping) {
        rows.push(("solved with more damping than asked for", named));
    }
    if let Some(named) = report.worse() {
        rows.push(("rounded to nearest, because every damping was worse", named));
    }
    if let Some([rounded, own]) = report.mean_errors() {
        rows.push((
            "mean error of outputs on the calibration, as a share of their squares",
            format!("{own:.4e}; rounded to nearest {rounded:.4e}"),
        ));
    }
    let rows: String = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n")).collect();
    let version = env!("CARGO_PKG_VERSION");
    let command = match command {
        "" => String::new(),
        command => format!("Made by\n\n```sh\n{command}\n```\n\n"),
    };
    format!(
        "---\ntags:\n- quantized\n- {method}\n---\n# {name}\n\n\
         A quantized model, written by Pelton {version}.\n\n\
         | | |\n|---|---|\n{rows}\n{command}\
         `quantization_report.json` has the figures of every matrix. `pelton eval` measures the loss of \
         the whole model on a text:\n\n\
         ```sh\npelton eval {name} --reference SOURCE --text FILE\n```\n",
        method = options.method.name(),
    )
}
