//! `pelton plan`: what a model takes and how fast it can be, before its weights are there.

mod advise;
mod excludes;
mod recorded;
mod render;
mod subject;

use std::io::Write;
use std::num::NonZeroUsize;

use pelton_llm::BLOCK_TOKENS;
use pelton_plan::{
    Arithmetic, FormatSize, Hardware, HardwareKind, Peaks, Plan, Request, Weights, profiles,
    sizes_by_format,
};
use pelton_quant::{WeightFormat, for_name, supported_names};
use serde::Serialize;

use crate::args::{PlanArgs, PlanCommand};
use crate::doctor;
use crate::failure::{Failure, Result};
use crate::usage::nearest;
use subject::Subject;

/// Formats of a table where none is named.
const TABLE_FORMATS: [&str; 7] = ["bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k"];
/// Contexts of a table where none is named, as far as the model reaches.
const TABLE_CONTEXTS: [usize; 4] = [2048, 8192, 32768, 131_072];
/// Context of a plan where none is named.
const CONTEXT: usize = 8192;
/// Name of the machine at hand.
const HERE: &str = "here";

/// The printed report.
#[derive(Debug, Serialize)]
struct Report {
    model: Model,
    hardware: Hardware,
    /// Whether the numbers of the machine are noisy, where they were measured.
    is_noisy: bool,
    workload: Workload,
    /// `None` with `--table`.
    #[serde(flatten)]
    plan: Option<Plan>,
    /// Weights in every format.
    formats: Vec<FormatSize>,
    /// Formats and contexts, with `--table`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    table: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    path: String,
    architecture: String,
    /// Whether tokens can be generated; if not, the model is for vectors of texts.
    generates: bool,
    n_layers: usize,
    max_context: usize,
    /// How the checkpoint is quantized, where its configuration says that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    n_window_layers: usize,
}

#[derive(Debug, Serialize)]
struct Workload {
    batch: usize,
    input_tokens: usize,
    output_tokens: usize,
    step_tokens: usize,
    /// False where nothing is known about the speed of the machine; then all times are absent.
    is_timed: bool,
}

/// One format with one context.
#[derive(Debug, Serialize)]
struct Cell {
    format: String,
    bits_per_weight: f64,
    weight_bytes: u64,
    context_tokens: usize,
    /// Bytes for the batch of this context.
    total_bytes: u64,
    /// Most sequences of this context that fit.
    n_sequences: usize,
    fits: bool,
}

/// Runs the command.
pub(crate) fn plan(args: &PlanArgs) -> Result<()> {
    if let Some(PlanCommand::Advise(args)) = &args.command {
        return advise::advise(args);
    }
    let subject = Subject::open(args.model().as_deref())?;
    let (hardware, is_noisy) = hardware(args.hardware.as_deref())?;
    let report = Report::new(&subject, hardware, is_noisy, args)?;
    let text = match args.json {
        true => serde_json::to_string(&report)? + "\n",
        false => report.render(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

/// The machine of the plan, and whether its numbers are noisy.
fn hardware(name: Option<&str>) -> Result<(Hardware, bool)> {
    let name = name.unwrap_or(HERE);
    if name.eq_ignore_ascii_case(HERE) {
        return Ok(doctor::known_machine().unwrap_or_else(|| (unmeasured(), false)));
    }
    let all = profiles();
    let names: Vec<String> = all.iter().map(|profile| profile.name.clone()).collect();
    let found = all.into_iter().find(|profile| profile.name.eq_ignore_ascii_case(name));
    found.map(|found| (found, false)).ok_or_else(|| {
        let start = name.to_lowercase();
        let longer = names.iter().map(String::as_str).find(|known| known.starts_with(&start));
        let near = longer.or_else(|| nearest(name, names.iter().map(String::as_str)));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        Failure::new(format!(
            "`--hardware {name}`: no such profile; there are here, {}",
            names.join(", ")
        ))
        .hint(format!("{near}`pelton doctor` measures the machine that it runs on"))
    })
}

/// The machine at hand while nothing is measured: its memory alone.
fn unmeasured() -> Hardware {
    Hardware {
        name: HERE.to_owned(),
        words: "this machine, not measured".to_owned(),
        kind: HardwareKind::Processor,
        memory_bytes: pelton_tensor::available_memory_bytes().unwrap_or(0),
        read_bandwidth: 0.0,
        peaks: Peaks::default(),
        quantized_by: Arithmetic::Int8,
        link_bandwidth: None,
        sources: vec!["memory: available now".to_owned()],
        products: Vec::new(),
        rows: None,
        attention: Vec::new(),
        barrier_s: None,
    }
}

/// A format by its name.
fn format(name: &str) -> Result<&'static dyn WeightFormat> {
    for_name(name.trim()).ok_or_else(|| {
        Failure::new(format!("`--weights {name}`: unknown format"))
            .hint(format!("known are {}", supported_names().to_lowercase()))
    })
}

/// Tokens of the workload.
struct Lengths {
    context: usize,
    input: usize,
    output: usize,
}

impl Lengths {
    /// The lengths that the flags ask for, for one context.
    fn new(args: &PlanArgs, context: Option<usize>, max_context: usize) -> Result<Self> {
        let asked =
            args.input.map_or(0, NonZeroUsize::get) + args.output.map_or(0, NonZeroUsize::get);
        let context = context.unwrap_or_else(|| CONTEXT.max(asked).min(max_context));
        let input = args.input.map_or((context / 2).clamp(1, 512), NonZeroUsize::get);
        let output = args.output.map_or((context / 4).clamp(1, 128), NonZeroUsize::get);
        if context > max_context {
            let why = format!("`--context {context}`: the model reaches {max_context} tokens");
            return Err(Failure::new(why));
        }
        if input + output > context {
            return Err(Failure::new(format!(
                "`--input {input}` and `--output {output}` are {} tokens, more than the context of \
                 {context}",
                input + output
            ))
            .hint("raise `--context`, as far as the model reaches, or lower one of the two"));
        }
        Ok(Self { context, input, output })
    }
}

impl Report {
    fn new(subject: &Subject, hardware: Hardware, is_noisy: bool, args: &PlanArgs) -> Result<Self> {
        let spec = &subject.outline.spec;
        if spec.layers.is_empty() {
            return Err(Failure::new(format!("{}: a model without layers", subject.name)));
        }
        args.check(hardware.has_speed())?;
        if args.table {
            subject.expect_generates("`--table`")?;
        }
        if let Some(why) = args.split().refusal(spec, args.ranks) {
            let (split, ranks) = (args.split().name(), args.ranks);
            let message = format!("`--split {split}` with `--ranks {ranks}`: {why}");
            return Err(Failure::new(message));
        }
        let several = |flag: &str, n: usize| match n > 1 && !args.table {
            true => Err(Failure::new(format!("`--{flag}` has {n} values, which `--table` takes"))),
            false => Ok(()),
        };
        several("weights", args.weights.len())?;
        several("context", args.context.len())?;
        let max_context = spec.longest_context();
        let first = args.context.first().map(|n| n.get());
        let lengths = Lengths::new(args, first, max_context)?;
        let request = |weights, lengths: &Lengths| Request {
            hardware: &hardware,
            memory_bytes: args.memory.unwrap_or(hardware.memory_bytes),
            weights,
            kv_dtype: args.kv_dtype(),
            state_dtype: args.state_dtype(),
            block_tokens: BLOCK_TOKENS,
            context_tokens: lengths.context,
            batch: args.batch.get(),
            input_tokens: lengths.input,
            output_tokens: lengths.output,
            step_tokens: args.step_tokens.get(),
            n_ranks: args.ranks,
            split: args.split(),
            price_per_hour: args.price_per_hour,
        };
        let formats = sizes_by_format(&subject.outline, &hardware);
        let (mut plan, mut table) = (None, Vec::new());
        if args.table {
            for weights in table_weights(args)? {
                for context in table_contexts(args, max_context) {
                    let lengths = Lengths { context, ..lengths };
                    let plan = pelton_plan::plan(&subject.outline, &request(weights, &lengths));
                    table.push(Cell::new(&plan));
                }
            }
        } else {
            let weights = weights(subject, args)?;
            plan = Some(pelton_plan::plan(&subject.outline, &request(weights, &lengths)));
        }
        Ok(Self {
            model: Model::new(subject),
            workload: Workload {
                batch: args.batch.get(),
                input_tokens: lengths.input,
                output_tokens: lengths.output,
                step_tokens: args.step_tokens.get(),
                is_timed: hardware.has_speed(),
            },
            hardware,
            is_noisy,
            plan,
            formats,
            table,
        })
    }
}

/// The weights of a plan: the format asked for, else the model's own.
fn weights(subject: &Subject, args: &PlanArgs) -> Result<Weights> {
    match args.weights.first() {
        Some(name) => Ok(Weights::Format(format(name)?)),
        None => own_weights(subject),
    }
}

/// The weights of a model as they are stored, else as the configuration says that they are, else
/// bf16.
fn own_weights(subject: &Subject) -> Result<Weights> {
    if let Some(stored) = subject.stored {
        return Ok(Weights::Stored(stored));
    }
    if let Some(scheme) = &subject.outline.scheme {
        let why = format!("the configuration names {scheme}, whose weights are not there");
        let hint = "name a format of about as many bits, such as `--weights q4_0` for 4 bits";
        return Err(Failure::new(why).hint(hint));
    }
    let named = match subject.outline.dtype.as_deref() {
        Some("float32") => "f32",
        Some("float16") => "f16",
        _ => "bf16",
    };
    format(named).map(Weights::Format)
}

fn table_weights(args: &PlanArgs) -> Result<Vec<Weights>> {
    let named: Vec<&str> = match args.weights.as_slice() {
        [] => TABLE_FORMATS.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    named.into_iter().map(|name| format(name).map(Weights::Format)).collect()
}

fn table_contexts(args: &PlanArgs, max_context: usize) -> Vec<usize> {
    let mut contexts: Vec<usize> = match args.context.as_slice() {
        [] => TABLE_CONTEXTS.into_iter().filter(|n| *n <= max_context).collect(),
        named => named.iter().map(|n| n.get()).filter(|n| *n <= max_context).collect(),
    };
    if contexts.is_empty() {
        contexts.push(max_context);
    }
    contexts
}

impl Model {
    fn new(subject: &Subject) -> Self {
        let outline = &subject.outline;
        let windows = outline.spec.layers.iter().filter(|layer| layer.mixer.window().is_some());
        Self {
            name: subject.name.clone(),
            path: outline.path.display().to_string(),
            architecture: outline.config.architecture.clone(),
            generates: outline.spec.generates(),
            n_layers: outline.spec.layers.len(),
            max_context: outline.spec.longest_context(),
            scheme: outline.scheme.clone(),
            n_window_layers: windows.count(),
        }
    }
}

impl Cell {
    fn new(plan: &Plan) -> Self {
        Self {
            format: plan.weights.format.clone(),
            bits_per_weight: plan.weights.bits_per_weight,
            weight_bytes: plan.weights.n_bytes,
            context_tokens: plan.kv.context_tokens,
            total_bytes: plan.fit.total_bytes,
            n_sequences: plan.fit.n_sequences,
            fits: plan.fit.shortage.is_none(),
        }
    }
}
