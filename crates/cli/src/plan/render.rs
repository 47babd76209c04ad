//! A plan for a person.

use std::iter;

use pelton_plan::{Cost, Fit, Plan, RankSizes, Shortage, Split, Times, Way};

use super::{Cell, HERE, Report, TABLE_FORMATS};
use crate::stats::bytes;

impl Report {
    /// The plan as lines of a name and a value, or as a table.
    pub(super) fn render(&self) -> String {
        let mut rows = self.head();
        match &self.plan {
            Some(plan) => rows.extend(self.body(plan)),
            None => return lines(&rows) + &self.render_table(),
        }
        lines(&rows)
    }

    fn head(&self) -> Vec<(&'static str, String)> {
        let (model, hardware) = (&self.model, &self.hardware);
        let windows = match model.n_window_layers {
            0 => String::new(),
            n => format!(", {n} with a window"),
        };
        let speed = match self.workload.is_timed {
            true => format!(
                ", {:.0} GB/s, {}",
                hardware.read_bandwidth / 1e9,
                operations(hardware.peak(hardware.quantized_by).1, hardware.quantized_by.name())
            ),
            false => String::new(),
        };
        let noisy = if self.is_noisy { "; measured in a noisy minute" } else { "" };
        vec![
            (
                "model",
                format!(
                    "{} ({}), {} layers{windows}, up to {} tokens",
                    model.name, model.architecture, model.n_layers, model.max_context
                ),
            ),
            (
                "hardware",
                format!("{}: {}{speed}{noisy}", hardware.words, bytes(hardware.memory_bytes)),
            ),
        ]
    }

    fn body(&self, plan: &Plan) -> Vec<(&'static str, String)> {
        let Plan { weights, times, cost, .. } = plan;
        let active = match weights.n_active_parameters < weights.n_parameters {
            true => format!(", {} active", count(weights.n_active_parameters)),
            false => String::new(),
        };
        let mut rows = vec![(
            "weights",
            format!(
                "{} as {}: {} parameters{active}, {:.2} bits each",
                bytes(weights.n_bytes),
                weights.format,
                count(weights.n_parameters),
                weights.bits_per_weight
            ),
        )];
        let generates = self.model.generates;
        rows.extend(if generates { self.sequence_rows(plan) } else { text_rows(plan) });
        match times {
            Some(times) => rows.extend(self.time_rows(times)),
            None => rows.push((
                "times",
                "unknown: `pelton doctor` measures this machine, `--hardware` names another"
                    .to_owned(),
            )),
        }
        rows.extend(cost.as_ref().map(|cost| ("cost", cost_words(cost, generates))));
        rows.push(("formats", self.format_words()));
        if !self.hardware.sources.is_empty() && self.hardware.name != HERE {
            rows.push(("sources", self.hardware.sources.join("; ")));
        }
        rows
    }

    /// The memory of a model that generates.
    fn sequence_rows(&self, plan: &Plan) -> Vec<(&'static str, String)> {
        let Plan { kv, rank, fit, .. } = plan;
        let mut rows = vec![
            (
                "kv",
                format!(
                    "{} per token in {}, {} per sequence of {} tokens{}",
                    bytes(kv.token_bytes),
                    kv.dtype,
                    bytes(kv.sequence_bytes),
                    kv.context_tokens,
                    match kv.sequence_bytes < kv.unfreed_bytes {
                        true => format!(" ({} without windows)", bytes(kv.unfreed_bytes)),
                        false => String::new(),
                    }
                ),
            ),
            ("memory", memory(fit, self.workload.batch, rank)),
            ("fits", fits(fit, kv.context_tokens)),
        ];
        if kv.state_bytes > 0 {
            let size = bytes(kv.state_bytes);
            rows.insert(1, ("states", format!("{size} per sequence, in recurrent layers")));
        }
        rows.extend(shortage_rows(fit));
        rows
    }

    fn time_rows(&self, times: &Times) -> Vec<(&'static str, String)> {
        let workload = &self.workload;
        let (sign, basis) = match times.is_measured {
            true => ("", "products as measured on this machine"),
            false => ("at least ", "a bound: peaks that no program exceeds"),
        };
        let rate_sign = if times.is_measured { "" } else { "at most " };
        let batch = match workload.batch {
            1 => String::new(),
            n => format!("; {} for the last of {n}", seconds(times.ttft_batch_s)),
        };
        let last = [
            (
                "ridge",
                format!(
                    "{:.0} rows: with fewer, reading weights takes longer than multiplying",
                    times.ridge_rows.ceil()
                ),
            ),
            ("times are", basis.to_owned()),
        ];
        if !self.model.generates {
            let (time, rate) = (seconds(times.ttft_s), rate(times.prompt_tokens_per_s));
            let (n, limit) = (workload.input_tokens, times.prompt_limit.name());
            let text = ("a text", format!("{sign}{time} for {n} tokens ({limit})"));
            let words = format!("{rate_sign}{rate} tokens/s, one text after the other");
            return [text, ("throughput", words)].into_iter().chain(last).collect();
        }
        let mut rows = vec![
            (
                "first token",
                format!(
                    "{sign}{} after a prompt of {} tokens ({}){batch}",
                    seconds(times.ttft_s),
                    workload.input_tokens,
                    times.prompt_limit.name()
                ),
            ),
            (
                "next tokens",
                format!(
                    "{sign}{} each at batch {} ({})",
                    seconds(times.tpot_s),
                    workload.batch,
                    times.decode_limit.name()
                ),
            ),
            (
                "throughput",
                format!(
                    "{rate_sign}{} tokens/s while decoding, {} with prompts of {} and answers of {}",
                    rate(times.decode_tokens_per_s),
                    rate(times.output_tokens_per_s),
                    workload.input_tokens,
                    workload.output_tokens
                ),
            ),
        ];
        rows.extend(last);
        rows
    }

    /// The usual formats, largest first.
    fn format_words(&self) -> String {
        let usual =
            self.formats.iter().filter(|size| TABLE_FORMATS.contains(&size.format.as_str()));
        let words = usual.map(|size| format!("{} {}", size.format, bytes(size.n_bytes)));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Formats in rows, contexts in columns.
    fn render_table(&self) -> String {
        let mut contexts: Vec<usize> = self.table.iter().map(|cell| cell.context_tokens).collect();
        contexts.sort_unstable();
        contexts.dedup();
        let mut text = format!("\n{:<10} {:>6} {:>11}", "weights", "bits", "bytes");
        contexts.iter().for_each(|context| text.push_str(&format!(" {context:>9}")));
        text.push('\n');
        for row in self.table.chunk_by(|a, b| a.format == b.format) {
            let first = &row[0];
            text.push_str(&format!(
                "{:<10} {:>6.2} {:>11}",
                first.format,
                first.bits_per_weight,
                bytes(first.weight_bytes)
            ));
            row.iter().for_each(|cell| text.push_str(&format!(" {:>9}", cell_words(cell))));
            text.push('\n');
        }
        text.push_str(
            "\nsequences of each context, in tokens, that fit into the memory; - where none does\n",
        );
        text
    }
}

fn cell_words(cell: &Cell) -> String {
    match cell.n_sequences {
        0 => "-".to_owned(),
        n => n.to_string(),
    }
}

fn lines(rows: &[(&'static str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
}

/// The memory of a model for vectors, which keeps no keys and values from step to step.
fn text_rows(plan: &Plan) -> Vec<(&'static str, String)> {
    let Fit { memory_bytes, weight_bytes, workspace_bytes, total_bytes, .. } = plan.fit;
    let words = format!(
        "{}{}: weights {}, workspace {}; there is {}",
        bytes(total_bytes),
        on_ranks(&plan.rank),
        bytes(weight_bytes),
        bytes(workspace_bytes),
        bytes(memory_bytes)
    );
    let fits = if plan.fit.shortage.is_none() { "yes" } else { "no" };
    let mut rows = vec![("memory", words), ("fits", fits.to_owned())];
    rows.extend(shortage_rows(&plan.fit));
    rows
}

/// The missing bytes, and what would fit.
fn shortage_rows(fit: &Fit) -> Vec<(&'static str, String)> {
    let Some(Shortage { missing_bytes, ways }) = &fit.shortage else { return Vec::new() };
    let ways = ways.iter().map(|way| ("would fit", way_words(way)));
    iter::once(("missing", bytes(*missing_bytes))).chain(ways).collect()
}

fn on_ranks(rank: &RankSizes) -> String {
    match (rank.n_ranks, rank.split) {
        (1, _) => String::new(),
        (n, Split::Outputs) => format!(" on each of {n} machines"),
        (n, Split::Pipeline) => format!(" on the largest of {n} machines in a row"),
        (n, Split::Experts) => format!(" on each of {n} machines with a part of the experts"),
    }
}

fn memory(fit: &Fit, batch: usize, rank: &RankSizes) -> String {
    let plural = if batch == 1 { "" } else { "s" };
    let ranks = on_ranks(rank);
    format!(
        "{} for {batch} sequence{plural}{ranks}: weights {}, keys and values {}, workspace {}; there \
         is {}",
        bytes(fit.total_bytes),
        bytes(fit.weight_bytes),
        bytes(fit.kv_bytes),
        bytes(fit.workspace_bytes),
        bytes(fit.memory_bytes)
    )
}

fn fits(fit: &Fit, context: usize) -> String {
    let most = match fit.n_sequences {
        0 => format!("no sequence of {context} tokens fits"),
        1 => format!("1 sequence of {context} tokens fits"),
        n => format!("{n} sequences of {context} tokens fit"),
    };
    let answer = if fit.shortage.is_some() { "no" } else { "yes" };
    format!("{answer}; {most}")
}

fn way_words(way: &Way) -> String {
    match way {
        Way::Batch { batch } => format!("--batch {batch}"),
        Way::Context { context } => format!("--context {context}"),
        Way::KvDtype { kv_dtype } => format!("--kv-dtype {kv_dtype}"),
        Way::StateDtype { state_dtype } => format!("--state-dtype {state_dtype}"),
        Way::Weights { format, bits_per_weight } => {
            format!("--weights {format} ({bits_per_weight:.2} bits)")
        }
        Way::Ranks { ranks } => format!("--ranks {ranks}"),
        Way::Memory { memory_bytes } => format!("{} of memory", bytes(*memory_bytes)),
    }
}

fn cost_words(cost: &Cost, generates: bool) -> String {
    if !generates {
        let (per_hour, tokens) = (cost.per_hour, money(cost.per_million_input));
        return format!("{per_hour:.2} per hour; a million tokens: {tokens}");
    }
    format!(
        "{:.2} per hour; a million tokens: {} of prompts, {} of answers, {} of answers with their \
         prompts",
        cost.per_hour,
        money(cost.per_million_input),
        money(cost.per_million_output),
        money(cost.workload_per_million_output)
    )
}

/// A price with as many digits as say something.
fn money(price: f64) -> String {
    if price < 1.0 { format!("{price:.4}") } else { format!("{price:.2}") }
}

/// A time with a unit that fits.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

fn rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { format!("{per_s:.0}") }
}

fn operations(per_s: f64, name: &str) -> String {
    match per_s {
        x if x >= 1e13 => format!("{:.0} TOP/s {name}", x / 1e12),
        x => format!("{:.0} GOP/s {name}", x / 1e9),
    }
}

/// A count with a decimal suffix.
fn count(n: u64) -> String {
    match n {
        0..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}
