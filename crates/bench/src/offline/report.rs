//! The figures of each shape as a table and as JSON.

use pelton_kernels::Ceilings;
use serde::Serialize;

use super::plan::{Plan, Shape};
use super::subject::Pass;
use crate::ceilings::multiplier;
use crate::estimate::{Percentiles, median, percentile};
use crate::model::report::Facts;
use crate::profile::StepProfile;
use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::table::{Align, INTERRUPTED, bytes, table};

/// The figures of one shape.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    name: String,
    batch: usize,
    input_tokens: usize,
    output_tokens: usize,
    /// Tokens of prompts until the last of them has its first token.
    prompt_tokens_per_s: Summary,
    /// Tokens of answers while all generate; absent where they never do.
    generated_tokens_per_s: Option<Summary>,
    /// Tokens of answers over the whole time, prompts included.
    output_tokens_per_s: Summary,
    /// Time to the first token, over all requests of all rounds.
    ttft_ms: Percentiles,
    /// Time from a token to the next one of its answer; absent for answers of one token.
    itl_ms: Option<Percentiles>,
    /// The same of each round.
    itl_p99_ms_by_round: Vec<f64>,
    /// Keys and values in the middle of the answers.
    kv_bytes: usize,
    /// Share of the arithmetic peak while prompts are computed.
    prompt_mfu_percent: f64,
    /// The same while all generate.
    generation_mfu_percent: Option<f64>,
    /// Share of the bandwidth while all generate.
    generation_bandwidth_percent: Option<f64>,
    /// Operations of a step in which all generate, over its bytes.
    operations_per_byte: f64,
}

impl Figure {
    fn new(
        shape: &Shape,
        facts: &Facts,
        (peak, bandwidths): (f64, &[f64]),
        passes: &[Pass],
    ) -> Option<Self> {
        let Shape { batch, input, output } = *shape;
        let of = |value: &dyn Fn(&Pass) -> f64| Summary::new(passes.iter().map(value).collect());
        let steps: Option<Vec<f64>> = passes.iter().map(|pass| pass.step_s).collect();
        let steps = steps.as_deref();
        let kv_bytes = batch * facts.kv_bytes(input + output / 2);
        let step_bytes = (facts.weight_bytes + kv_bytes) as f64;
        let rows = |rows: usize, logits: usize| {
            2.0 * (facts.layer_weights as f64 * rows as f64 + (facts.head_weights * logits) as f64)
        };
        let prompt_s = median(&passes.iter().map(|pass| pass.prompt_s).collect::<Vec<_>>())?;
        let milliseconds = |values: &Vec<f64>| values.iter().map(|s| 1e3 * s).collect();
        let ttft: Vec<Vec<f64>> = passes.iter().map(|pass| milliseconds(&pass.ttft_s)).collect();
        let itl: Vec<Vec<f64>> = passes.iter().map(|pass| milliseconds(&pass.gaps_s)).collect();
        let p99 = |round: &Vec<f64>| {
            let mut sorted = round.clone();
            sorted.sort_by(f64::total_cmp);
            (!sorted.is_empty()).then(|| percentile(&sorted, 99))
        };
        Some(Self {
            name: shape.name(),
            batch,
            input_tokens: input,
            output_tokens: output,
            prompt_tokens_per_s: of(&|pass| pass.prompt_rate(shape))?,
            generated_tokens_per_s: steps.and_then(|steps| {
                Summary::new(steps.iter().map(|step| batch as f64 / step).collect())
            }),
            output_tokens_per_s: of(&|pass| pass.output_rate(shape))?,
            ttft_ms: Percentiles::new(&ttft)?,
            itl_ms: Percentiles::new(&itl),
            itl_p99_ms_by_round: itl.iter().filter_map(p99).collect(),
            kv_bytes,
            prompt_mfu_percent: 100.0 * rows(batch * input, batch) / prompt_s / peak,
            generation_mfu_percent: steps
                .and_then(median)
                .map(|step| 100.0 * rows(batch, batch) / step / peak),
            generation_bandwidth_percent: steps.and_then(|steps| {
                let shares = steps.iter().zip(bandwidths);
                let share = |(step, read): (&f64, &f64)| 100.0 * step_bytes / (step * read);
                median(&shares.map(share).collect::<Vec<_>>())
            }),
            operations_per_byte: rows(batch, batch) / step_bytes,
        })
    }

    fn row(&self) -> [String; 10] {
        let none = || "-".to_owned();
        let percent = |x: f64| format!("{x:.0} %");
        let times = |times: &Percentiles| {
            [times.p50, times.p95, times.p99]
                .map(|estimate| format!("{:.1}", estimate.value))
                .join(" / ")
        };
        let interval = self.itl_ms.as_ref().and_then(|itl| itl.p99.interval);
        [
            self.name.clone(),
            format!("{:.1}", self.prompt_tokens_per_s.median),
            self.generated_tokens_per_s.as_ref().map_or_else(none, |x| format!("{:.1}", x.median)),
            format!("{:.1}", self.output_tokens_per_s.median),
            times(&self.ttft_ms),
            self.itl_ms.as_ref().map_or_else(none, times),
            interval.map_or_else(none, |x| format!("{:.1}..{:.1}", x.low, x.high)),
            percent(self.prompt_mfu_percent),
            self.generation_mfu_percent.map_or_else(none, percent),
            self.generation_bandwidth_percent.map_or_else(none, percent),
        ]
    }

    fn measures(&self) -> Vec<Measure> {
        let rate = |what: &str, summary: &Summary| {
            Measure::rate(format!("{} {what}", self.name), "tokens/s", summary.rounds.clone())
        };
        let mut measures = vec![rate("prompts", &self.prompt_tokens_per_s)];
        measures.extend(self.generated_tokens_per_s.as_ref().map(|x| rate("generation", x)));
        measures.push(rate("together", &self.output_tokens_per_s));
        if !self.itl_p99_ms_by_round.is_empty() {
            let samples = self.itl_p99_ms_by_round.clone();
            measures.push(Measure::cost(format!("{} token P99", self.name), "ms", samples));
        }
        measures
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    facts: Facts,
    /// Read bandwidth of the rounds, in bytes per second.
    read_bandwidth: Option<Summary>,
    /// Name and peak, in operations per second, of the arithmetic that most weights are multiplied
    /// with.
    multiplier: (&'static str, f64),
    /// The pool of keys and values.
    kv_pool_bytes: usize,
    /// Largest resident set of the process, in bytes; the caller knows.
    pub peak_bytes: Option<u64>,
    /// Usual shapes that were not measured, with the reason.
    left_out: Vec<String>,
    /// Whether the caller ended it early.
    pub interrupted: bool,
    figures: Vec<Figure>,
    /// Steps by their operations, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<StepProfile>,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        facts: Facts,
        kv_pool_bytes: usize,
        (ceilings, bandwidths): (&Ceilings, &[f64]),
        passes: &[Vec<Pass>],
    ) -> Self {
        let multiplier = multiplier(facts.layout, ceilings);
        let figures = plan.shapes.iter().zip(passes).filter_map(|(shape, passes)| {
            Figure::new(shape, &facts, (multiplier.1, bandwidths), passes)
        });
        Self {
            figures: figures.collect(),
            read_bandwidth: Summary::new(bandwidths.to_vec()),
            multiplier,
            kv_pool_bytes,
            peak_bytes: None,
            left_out: plan.left_out.clone(),
            interrupted: passes.iter().any(|rounds| rounds.len() < plan.rounds),
            facts,
            profiles: Vec::new(),
        }
    }

    /// The figures for a person; newline at the end.
    pub fn render(&self) -> String {
        const HEAD: [(&str, Align); 10] = [
            ("batch x input + output", Align::Left),
            ("prompts/s", Align::Right),
            ("generated/s", Align::Right),
            ("together/s", Align::Right),
            ("TTFT P50 / P95 / P99 ms", Align::Right),
            ("token P50 / P95 / P99 ms", Align::Right),
            ("of P99", Align::Right),
            ("MFU prompts", Align::Right),
            ("generation", Align::Right),
            ("bandwidth", Align::Right),
        ];
        let rows: Vec<[String; 10]> = self.figures.iter().map(Figure::row).collect();
        let peak =
            self.peak_bytes.map_or_else(String::new, |n| format!(", {} at most in all", bytes(n)));
        let mut text = self.facts.headline();
        text.push_str(&format!(
            "memory: weights {}, keys and values {}{peak}\n",
            bytes(self.facts.weight_bytes as u64),
            bytes(self.kv_pool_bytes as u64),
        ));
        if let Some(read) = &self.read_bandwidth {
            let [middle, low, high] = [read.median, read.lowest, read.highest].map(|x| x / 1e9);
            let (name, peak) = (self.multiplier.0, self.multiplier.1 / 1e9);
            text.push_str(&format!(
                "read bandwidth {middle:.1} GB/s ({low:.1}..{high:.1}); {name} peak {peak:.0} GOP/s\n\n"
            ));
        }
        text.push_str(&table(HEAD, &rows));
        for why in &self.left_out {
            text.push_str(&format!("left out: {why}\n"));
        }
        if self.interrupted {
            text.push_str(INTERRUPTED);
        }
        text.extend(self.profiles.iter().map(StepProfile::render));
        text
    }
}

impl Reported for Report {
    const KIND: &'static str = "offline";

    fn measures(&self) -> Vec<Measure> {
        self.figures.iter().flat_map(Figure::measures).collect()
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
