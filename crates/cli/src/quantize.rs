//! `pelton quantize`; see [`pelton_quantize`].

use std::io::Write;
use std::path::Path;

use pelton_bench::record::{Measure, Reads, Reported};
use pelton_model::layer_shape;
use pelton_quantize::{
    Job, LEAST_EXPERT_ROWS, Method, Needs, QuantizeError, Report, Samples, Watch, check_target,
    quantize as write,
};

use crate::args::QuantizeArgs;
use crate::calibration::Calibration;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::stats::bytes;
use crate::{bench, model, progress, quantize_gguf};

/// The options and the written folder, as one object.
#[derive(Debug, serde::Serialize)]
struct Output<'a> {
    input: &'a str,
    output: &'a Path,
    method: &'static str,
    calibration_tokens: usize,
    samples: usize,
    needs: Needs,
    /// As it was asked for.
    #[serde(skip)]
    damping: f64,
    #[serde(flatten)]
    report: Report,
}

/// Runs the command.
///
/// # Errors
///
/// Everything that [`pelton_quantize::quantize`] refuses, a text that cannot be read, Ctrl-C.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let Some(method) = args.method() else { return quantize_gguf::quantize(args) };
    if let Some(flag) = args.misplaced() {
        return Err(Failure::new(format!("`{flag}` with `{}`: only `gguf` has it", method.name())));
    }
    let options = args.options(method);
    options.check().map_err(failure)?;
    if args.output.extension().is_some_and(|extension| extension == "gguf") {
        let (name, method) = (args.output.display(), method.name());
        return Err(Failure::new(format!(
            "`{name}`: `{method}` writes a folder, and no GGUF file"
        ))
        .hint("`--method gguf --type q4_k` quantizes to a GGUF file"));
    }
    check_target(&args.output, args.resume).map_err(failure)?;
    if args.html.as_ref() == Some(&args.output) {
        return Err(Failure::new("`--html` is the output: expected another name"));
    }
    let source = model::path(&args.input);
    let inputs = [("INPUT", source.as_deref()), ("--calibration", args.calibration.as_deref())];
    bench::check_page(("--html", args.html.as_deref()), &inputs)?;
    if options.method.needs_calibration() && args.calibration.is_none() {
        let name = options.method.name();
        return Err(Failure::new(format!("`--calibration` is missing: `{name}` needs a text"))
            .hint("`--calibration sample` takes one that comes with Pelton; `--method rtn` needs none"));
    }
    let place = model::resolve(&model::reference(Some(&args.input))?)?;
    let mut files = place.open()?;
    let calibration = match &args.calibration {
        Some(file) => Some(Calibration::read(&place, &files, file, args)?),
        None => None,
    };
    let samples = calibration.as_ref().map(|calibration| &calibration.samples);
    let spec = files.spec()?;
    let layers: std::result::Result<Vec<_>, _> =
        (0..spec.layers.len()).map(|layer| layer_shape(&files, layer)).collect();
    // Without a folder or with a damaged one, the quantizer says what is wrong.
    let needs = Needs::new(&spec, &layers.unwrap_or_default(), samples, &options);
    if let Some(samples) = samples {
        let (n, n_tokens) = (samples.len(), samples.n_tokens());
        let total = bytes(needs.total());
        eprintln!("calibration: {n} windows, {n_tokens} tokens; memory {total} beside the source");
    }
    let cpu = args.threads.chosen().runtime()?.cpu(0);
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch {
        is_stopped: &|| stop.is_set(),
        progress: &|matrix, n_matrices| {
            bar.set_length(n_matrices as u64);
            bar.inc(1);
            bar.set_message(matrix.module.clone());
        },
    };
    let command = args.command(calibration.as_ref().map(|calibration| calibration.length));
    let data = calibration.as_ref().map(Calibration::words);
    let job = Job {
        options: &options,
        samples,
        resume: args.resume,
        command: &command,
        data: data.as_deref(),
    };
    let report = write(&mut files, &job, cpu, &args.output, watch);
    bar.finish_and_clear();
    let report = report.map_err(failure)?.ok_or_else(|| match args.resume {
        true => Failure::interrupted_with("layers that are done are kept, for the same command"),
        false => Failure::interrupted_with("nothing was written")
            .hint("with `--resume` the layers that are done are kept"),
    })?;
    let output = Output {
        input: &args.input,
        output: &args.output,
        method: options.method.name(),
        calibration_tokens: samples.map_or(0, Samples::n_tokens),
        samples: samples.map_or(0, Samples::len),
        needs,
        damping: options.gptq.damping,
        report,
    };
    if let Some(file) = &args.html {
        bench::write_page(&output, None, file)?;
    }
    let text = match args.json {
        true => serde_json::to_string(&output)? + "\n",
        false => output.render(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

pub(crate) fn failure(error: QuantizeError) -> Failure {
    match error {
        QuantizeError::Exists(_) => Failure::of(&error).hint("choose another name, or remove it"),
        QuantizeError::Model(error) => Failure::from(error),
        error => Failure::of(&error),
    }
}

impl Reported for Output<'_> {
    const KIND: &'static str = "quantize";

    fn measures(&self) -> Vec<Measure> {
        let report = &self.report;
        let mut measures = vec![
            Measure::cost("size", "bytes", vec![report.n_bytes as f64]),
            Measure::cost("size of the source", "bytes", vec![report.n_source_bytes as f64]),
            Measure::cost("bits per weight", "bits", vec![report.bits_per_weight]),
            Measure::cost("time", "s", vec![report.seconds]),
        ];
        if let Some([rounded, own]) = report.mean_errors() {
            let share = |name: &str, error| Measure::cost(name, "of the squares", vec![error]);
            measures.push(share("mean error of the outputs", own));
            measures.push(share("mean error, rounded to nearest", rounded));
        }
        measures
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

impl Output<'_> {
    fn render(&self) -> String {
        let Report { n_bytes, n_source_bytes, bits_per_weight, seconds, .. } = self.report;
        let (now, before) = (bytes(n_bytes), bytes(n_source_bytes));
        let n_matrices = self.report.matrices.len();
        let mut rows = vec![
            ("from", self.input.to_owned()),
            ("written", self.output.display().to_string()),
            ("method", self.method.to_owned()),
            ("size", format!("{now}, was {before}")),
            ("matrices", format!("{n_matrices}, {bits_per_weight:.2} bits per weight")),
        ];
        if self.report.n_resumed_layers > 0 {
            rows.push(("resumed", format!("behind layer {}", self.report.n_resumed_layers - 1)));
        }
        if let Some(unsolved) = self.report.unsolved() {
            rows.push(("only rounded", format!("{unsolved}; their inputs are not gathered")));
        }
        if let Some(few) = self.report.few() {
            let least = LEAST_EXPERT_ROWS;
            rows.push(("few rows", format!("{few}; of experts that saw less than {least}")));
        }
        if let Some(damped) = self.report.damped(self.damping) {
            let why = format!("with {} they have no solution better than rounding", self.damping);
            rows.push(("more damping", format!("{damped}; {why}")));
        }
        if let Some(worse) = self.report.worse() {
            rows.push(("kept rounded", format!("{worse}; every damping was worse")));
        }
        if let Some([rounded, own]) = self.report.mean_errors()
            && self.method != Method::Rtn.name()
        {
            let change = 100.0 * (own / rounded - 1.0);
            rows.push((
                "output error",
                format!(
                    "{own:.3e} of the outputs' squares; rounding {rounded:.3e} ({change:+.1} %)"
                ),
            ));
        }
        rows.push(("time", format!("{seconds:.1} s")));
        rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
    }
}
