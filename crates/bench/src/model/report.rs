//! Figures as a table and as JSON, with their shares of the machine's limits.
//!
//! ```text
//! bytes of a step       weights once, and the keys and values of every sequence's context
//! operations of a step  2 · weights of the layers · rows + 2 · weights of the head · rows with logits
//! bandwidth             bytes / seconds / measured read bandwidth
//! arithmetic            operations / seconds / measured peak of the multiplier of most weights
//! ```
//!
//! Operations are those of the matrix products, without attention. A prompt has no share of the
//! bandwidth: it does hundreds of operations with each weight that it reads.

use pelton_kernels::{Ceilings, WeightLayout};
use pelton_model::{ArchSpec, CpuDevice, Decoder};
use serde::Serialize;

use super::plan::{CONTEXT_STEPS, Plan, SHORT_TOKENS, Variant};
use crate::ceilings::multiplier;
use crate::profile::StepProfile;
use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::shared::BLOCK_TOKENS;
use crate::table::{Align, INTERRUPTED, bytes, table};
use crate::tuned::Tuned;

/// Facts about the model and the device that need no measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Facts {
    model: String,
    architecture: String,
    kernels: &'static str,
    pub(crate) threads: usize,
    tuning: Tuned,
    kv_dtype: String,
    /// Weights that every step reads.
    pub(crate) weight_bytes: usize,
    /// Keys and values of one position in one of the widest layers.
    kv_bytes_per_layer: usize,
    /// Weights of all layers, without embedding and head.
    pub(crate) layer_weights: usize,
    /// Weights of the head.
    pub(crate) head_weights: usize,
    /// Packed layouts of the matrices, with their bytes, largest first.
    layouts: Vec<(&'static str, usize)>,
    /// The layout of most bytes.
    #[serde(skip)]
    pub(crate) layout: WeightLayout,
    /// Positions that each layer sees at most.
    #[serde(skip)]
    windows: Vec<Option<usize>>,
    /// Part of these bytes that each layer reads of a position.
    #[serde(skip)]
    kv_shares: Vec<f64>,
}

impl Facts {
    pub(crate) fn new(model: String, architecture: String, decoder: &Decoder<CpuDevice>) -> Self {
        let spec = decoder.spec();
        let cpu = decoder.device().cpu();
        let layouts = decoder.layouts();
        let token_bytes = decoder.kv_footprint(1, BLOCK_TOKENS, 0).token_bytes(spec);
        Self {
            model,
            architecture,
            kernels: cpu.kernels.name,
            threads: cpu.team.n_threads(),
            tuning: Tuned(cpu.tuning),
            kv_dtype: format!("{:?}", decoder.kv_dtype()).to_lowercase(),
            weight_bytes: decoder.weight_bytes(),
            kv_bytes_per_layer: token_bytes / spec.n_kv_places().max(1),
            layer_weights: layer_weights(spec),
            head_weights: spec.hidden_size * spec.vocab_size,
            layout: layouts.first().map_or(WeightLayout::F32, |(layout, _)| *layout),
            layouts: layouts.iter().map(|(layout, n_bytes)| (layout.name(), *n_bytes)).collect(),
            windows: spec.layers.iter().map(|layer| layer.mixer.most_seen()).collect(),
            kv_shares: spec.kv_shares(),
        }
    }

    /// Keys and values that attention reads for one row behind `n_tokens` positions.
    pub(crate) fn kv_bytes(&self, n_tokens: usize) -> usize {
        let seen = |window: &Option<usize>| window.map_or(n_tokens, |most| most.min(n_tokens));
        let widest = self.kv_bytes_per_layer as f64;
        let layers = self.windows.iter().zip(&self.kv_shares);
        layers.map(|(window, share)| (seen(window) as f64 * share * widest) as usize).sum()
    }

    /// Model, kernels and tuning in two lines.
    pub(crate) fn headline(&self) -> String {
        let Self { model, architecture, kernels, threads, tuning, kv_dtype, weight_bytes, .. } =
            self;
        let weights = bytes(*weight_bytes as u64);
        format!(
            "{model} · {architecture} · {weights} of weights per step · {kv_dtype} keys and values \
             · {kernels} on {threads} threads\n\
             {tuning}\n"
        )
    }
}

fn layer_weights(spec: &ArchSpec) -> usize {
    let layers = spec.layers.iter().map(|layer| {
        layer.mixer.n_weights(spec.hidden_size) + layer.mlp.n_active_weights(spec.hidden_size)
    });
    layers.sum::<usize>() + spec.n_side_weights()
}

/// One variant's rounds and what follows from them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    name: String,
    /// Rows of a step.
    rows: usize,
    step_s: Summary,
    tokens_per_s: Summary,
    /// Decoding: tokens per second over those of a batch of one. Verification: seconds over those
    /// of a step of one row. Round by round.
    ratio: Option<Summary>,
    /// Keys and values read by a step.
    kv_bytes: Option<usize>,
    /// Weights, keys and values read by a step.
    bytes: Option<usize>,
    bandwidth_percent: Option<f64>,
    operations_per_token: f64,
    operations_per_s: f64,
    /// Share of the peak of the arithmetic that most weights are multiplied with.
    arithmetic_percent: f64,
}

impl Figure {
    fn new(
        plan: &Plan,
        facts: &Facts,
        (ceilings, bandwidths): (&Ceilings, &[f64]),
        variant: Variant,
        seconds: &[f64],
        baseline: Option<&[f64]>,
    ) -> Option<Self> {
        let rows = variant.n_rows();
        let step_s = Summary::new(seconds.to_vec())?;
        let rates = seconds.iter().map(|seconds| rows as f64 / seconds).collect();
        let ratio = baseline.and_then(|baseline| {
            let pairs = seconds.iter().zip(baseline);
            Summary::new(match variant {
                Variant::Decode { .. } => pairs.map(|(own, one)| rows as f64 * one / own).collect(),
                _ => pairs.map(|(own, one)| own / one).collect(),
            })
        });
        let kv_bytes = match variant {
            Variant::Prefill { .. } => None,
            // The context in the middle of the generated tokens.
            Variant::Decode { batch } => {
                Some(batch * facts.kv_bytes(SHORT_TOKENS + 1 + plan.generate / 2))
            }
            Variant::Context { n_tokens } => Some(facts.kv_bytes(n_tokens + CONTEXT_STEPS / 2)),
            Variant::Verify { n_rows } => Some(facts.kv_bytes(plan.prompt + n_rows)),
        };
        let bytes = kv_bytes.map(|kv_bytes| facts.weight_bytes + kv_bytes);
        let logits_rows = if matches!(variant, Variant::Prefill { .. }) { 1 } else { rows };
        let operations = 2.0
            * (facts.layer_weights as f64 * rows as f64
                + (facts.head_weights * logits_rows) as f64);
        Some(Self {
            name: variant.name(),
            rows,
            bandwidth_percent: bytes.and_then(|bytes| {
                let rounds = seconds.iter().zip(bandwidths);
                let share = |(seconds, bandwidth)| 100.0 * bytes as f64 / (seconds * bandwidth);
                Some(Summary::new(rounds.map(share).collect())?.median)
            }),
            operations_per_token: operations / rows as f64,
            operations_per_s: operations / step_s.median,
            arithmetic_percent: 100.0 * operations
                / step_s.median
                / multiplier(facts.layout, ceilings).1,
            tokens_per_s: Summary::new(rates)?,
            step_s,
            ratio,
            kv_bytes,
            bytes,
        })
    }

    fn row(&self) -> [String; 9] {
        let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rate = &self.tokens_per_s;
        [
            self.name.clone(),
            format!("{:.1}", rate.median),
            format!("{:.1}..{:.1}", rate.lowest, rate.highest),
            format!("{:.3}", self.step_s.median * 1e3),
            optional(self.ratio.as_ref().map(|ratio| format!("{:.2}", ratio.median))),
            optional(self.kv_bytes.map(|n| bytes(n as u64))),
            optional(self.bandwidth_percent.map(|percent| format!("{percent:.0} %"))),
            format!("{:.1}", self.operations_per_s / 1e9),
            format!("{:.0} %", self.arithmetic_percent),
        ]
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    facts: Facts,
    /// Read bandwidth of the rounds, in bytes per second; absent before the first.
    read_bandwidth: Option<Summary>,
    /// Name and peak, in operations per second, of the arithmetic that most weights are multiplied
    /// with.
    multiplier: (&'static str, f64),
    /// Whether the caller ended it early.
    pub interrupted: bool,
    figures: Vec<Figure>,
    /// Steps by their operations, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<StepProfile>,
}

impl Report {
    /// Sums up; `samples[i]` are the rounds of `plan.variants[i]`, in seconds per step.
    pub(super) fn new(
        plan: &Plan,
        facts: Facts,
        ceilings: &Ceilings,
        bandwidths: &[f64],
        samples: &[Vec<f64>],
    ) -> Self {
        let of = |wanted| {
            let idx = plan.variants.iter().position(|variant| *variant == wanted)?;
            samples.get(idx).map(Vec::as_slice)
        };
        let figures = plan.variants.iter().zip(samples).filter_map(|(&variant, seconds)| {
            let baseline = variant.baseline().and_then(of);
            Figure::new(plan, &facts, (ceilings, bandwidths), variant, seconds, baseline)
        });
        Self {
            figures: figures.collect(),
            read_bandwidth: Summary::new(bandwidths.to_vec()),
            multiplier: multiplier(facts.layout, ceilings),
            interrupted: samples.iter().any(|rounds| rounds.len() < plan.rounds),
            facts,
            profiles: Vec::new(),
        }
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Median read bandwidth of the rounds, in bytes per second.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        self.read_bandwidth.as_ref().map(|read| read.median)
    }

    /// The figures for a person; newline at the end.
    pub fn render(&self) -> String {
        const HEAD: [(&str, Align); 9] = [
            ("", Align::Left),
            ("tokens/s", Align::Right),
            ("lowest..highest", Align::Right),
            ("ms/step", Align::Right),
            ("ratio", Align::Right),
            ("KV read", Align::Right),
            ("bandwidth", Align::Right),
            ("Gop/s", Align::Right),
            ("arithmetic", Align::Right),
        ];
        let read = self.read_bandwidth.as_ref().map_or_else(String::new, |read| {
            let [median, lowest, highest] =
                [read.median, read.lowest, read.highest].map(|bytes_per_s| bytes_per_s / 1e9);
            format!("read bandwidth {median:.1} GB/s ({lowest:.1}..{highest:.1}); ")
        });
        let (name, peak) = (self.multiplier.0, self.multiplier.1 / 1e9);
        let rows: Vec<[String; 9]> = self.figures.iter().map(Figure::row).collect();
        let table = table(HEAD, &rows);
        let note = if self.interrupted { INTERRUPTED } else { "" };
        let head = self.facts.headline();
        let profiles: String = self.profiles.iter().map(StepProfile::render).collect();
        format!("{head}{read}{name} peak {peak:.0} GOP/s\n\n{table}{note}{profiles}")
    }
}

impl Reported for Report {
    const KIND: &'static str = "model";

    fn measures(&self) -> Vec<Measure> {
        let rate = |figure: &Figure| {
            let rounds = figure.tokens_per_s.rounds.clone();
            Measure::rate(figure.name.clone(), "tokens/s", rounds)
        };
        self.figures.iter().map(rate).collect()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn threads(&self) -> Option<usize> {
        Some(self.facts.threads)
    }

    fn reads(&self) -> Option<Reads> {
        let bytes_per_s = self.read_bandwidth.as_ref()?.median;
        Some(Reads { n_threads: self.facts.threads, bytes_per_s })
    }
}
