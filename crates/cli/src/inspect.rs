//! `pelton inspect`: facts about a model without loading it; with `--load`, the cost of loading it.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;

use pelton_base::limits::STEP_TOKENS;
use pelton_llm::{BLOCK_TOKENS, RuntimeOptions};
use pelton_model::{
    CpuDevice, Ignored, InspectedEncoder, Inspection, KvFootprint, ModelError, ModelFiles,
};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::failure::{Failure, Result};
use crate::loaded::Loaded;
use crate::model;
use crate::stats::bytes;
use crate::texts::Texts;

/// The printed report.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: Inspection,
    memory: Memory,
    /// Rotary frequencies that a server of this context would use and why, where they depend on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rope_choices: Vec<String>,
    /// On which NUMA nodes the weights would lie and why, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    numa: Option<String>,
    /// Measured cost of loading, with `--load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<Loaded>,
    /// `None` where the files hold no usable tokenizer.
    tokenizer: Option<TokenizerReport>,
    /// The reason why there is no tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_error: Option<String>,
    /// Names of the chat templates; empty without any.
    chat_templates: Vec<String>,
}

/// Bytes that `n_requests` requests of `context_tokens` tokens take, as a server reserves them.
#[derive(Debug, PartialEq, Serialize)]
struct Memory {
    context_tokens: usize,
    n_requests: usize,
    weight_bytes: u64,
    /// Blocks of the pool, and the bytes of one.
    kv_blocks: usize,
    kv_block_bytes: usize,
    /// Bytes of the pool.
    kv_bytes: u64,
    /// Blocks of the swap store, and its bytes.
    swap_blocks: usize,
    swap_bytes: u64,
    /// Address space of pool and store, with alignment, which is never touched.
    kv_mapped_bytes: u64,
    /// Bytes of the states of recurrent layers.
    state_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct TokenizerReport {
    vocab_size: usize,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// Runs the command.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let place = model::resolve(&model::reference(args.model().as_deref())?)?;
    let mut files = place.open()?;
    if let Some(to) = args.quantize() {
        files.round_to(to)?;
    }
    // Measured before vocabularies are read, so that only the load is measured.
    let load = args.load.then(|| Loaded::measure(&files)).transpose()?;
    let report = Report { load, ..Report::new(&files, Texts::open(&place), args)? };
    let text = if args.json {
        let mut text = serde_json::to_string(&report)?;
        text.push('\n');
        text
    } else {
        report.render()
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

impl Memory {
    fn new(files: &ModelFiles, model: &Inspection, args: &InspectArgs) -> Result<Self> {
        let context_tokens = args.context.map_or(model.max_context, NonZeroUsize::get);
        let n_requests = args.requests.get();
        let mut spec = files.spec()?;
        let most = spec.longest_context();
        if context_tokens > most {
            return Err(ModelError::Context { asked: context_tokens, most }.into());
        }
        spec.group_windows();
        let block = KvFootprint::new::<CpuDevice>(&spec, args.kv_dtype(), BLOCK_TOKENS);
        // A model for vectors keeps no keys and values from one step to the next.
        let (n_blocks, swap_mib) = match model.generates {
            true => (block.blocks_for(context_tokens, STEP_TOKENS, n_requests), args.swap_mib),
            false => (0, 0),
        };
        let footprint = block.with_blocks(n_blocks).with_swap_bytes(u64::from(swap_mib) << 20);
        let bytes = |n: Option<usize>| {
            let beyond = || {
                Failure::new("the keys and values of this context exceed any address space")
                    .hint("lower `--context` or `--requests`")
            };
            n.map(|n| n as u64).ok_or_else(beyond)
        };
        let weight_bytes = model.weight_bytes;
        let kv_bytes = bytes(footprint.pool_bytes())?;
        let swap_bytes = bytes(footprint.swap_bytes())?;
        let state_bytes = (model.state_bytes as u64).saturating_mul(n_requests as u64);
        Ok(Self {
            context_tokens,
            n_requests,
            weight_bytes,
            kv_blocks: n_blocks,
            kv_block_bytes: footprint.block_bytes(),
            kv_bytes,
            swap_blocks: footprint.n_host_blocks,
            swap_bytes,
            kv_mapped_bytes: bytes(footprint.mapped_bytes())?,
            state_bytes,
            total_bytes: [kv_bytes, swap_bytes, state_bytes]
                .into_iter()
                .fold(weight_bytes, u64::saturating_add),
        })
    }
}

impl Report {
    fn new(files: &ModelFiles, texts: Result<Texts>, args: &InspectArgs) -> Result<Self> {
        let model = pelton_model::inspect(files, args.kv_dtype())?
            .with_states_in(&files.spec()?, args.state_dtype())
            .with_activations_in(args.activation_group());
        let memory = Memory::new(files, &model, args)?;
        let rope_choices = files.spec()?.rope_choices(memory.context_tokens);
        let nodes = RuntimeOptions::from_env(None).weight_nodes();
        let numa = nodes.are_several().then(|| nodes.to_string());
        Ok(match texts {
            Ok(Texts { tokenizer, template }) => Self {
                model,
                memory,
                rope_choices,
                numa,
                load: None,
                tokenizer: Some(TokenizerReport {
                    vocab_size: tokenizer.vocab_size(),
                    bos: tokenizer.bos().map(|token| token.0),
                    eos: tokenizer.eos().map(|token| token.0),
                }),
                tokenizer_error: None,
                chat_templates: template.iter().flat_map(template_names).collect(),
            },
            // Weights without a tokenizer can be inspected too.
            Err(failure) => Self {
                model,
                memory,
                rope_choices,
                numa,
                load: None,
                tokenizer: None,
                tokenizer_error: failure.message().map(str::to_owned),
                chat_templates: Vec::new(),
            },
        })
    }

    fn render(&self) -> String {
        let model = &self.model;
        let mut rows = vec![
            ("path", model.path.clone()),
            ("architecture", model.architecture.clone()),
            ("parameters", parameters(model)),
            ("layers", model.n_layers.to_string()),
            ("width", format!("{}, MLP {}", model.hidden_size, model.intermediate_size)),
        ];
        rows.extend(self.head_counts().map(|words| ("heads", words)));
        rows.push(("positions", self.positions()));
        if let Some(encoder) = &model.encoder {
            let InspectedEncoder { n_layers, max_source, .. } = encoder;
            let words = format!("{n_layers} layers, reads prompts of up to {max_source} tokens");
            rows.insert(4, ("encoder", words));
        }
        rows.extend(self.rope_choices.iter().map(|words| ("frequencies", words.clone())));
        if model.generates {
            rows.push(("output head", head_words(model.tied_embeddings).to_owned()));
        }
        for (dtype, totals) in &model.tensors {
            let size = bytes(totals.n_bytes);
            rows.push(("tensors", format!("{} of type {dtype}, {size}", totals.n_tensors)));
        }
        if let Some(Ignored { wrapper, parts }) = &model.ignored {
            rows.push(("text part of", wrapper.clone()));
            for (part, totals) in parts {
                let size = bytes(totals.n_bytes);
                rows.push(("ignored", format!("{part}: {} tensors, {size}", totals.n_tensors)));
            }
        }
        if let Some(quantization) = &model.quantization {
            rows.push(("quantized", quantization.method.clone()));
            for (layout, totals) in &quantization.layouts {
                let size = bytes(totals.n_bytes);
                rows.push(("packed as", format!("{} of {layout}, {size}", totals.n_tensors)));
            }
            if quantization.n_reordered > 0 {
                let n = quantization.n_reordered;
                rows.push(("act-order", format!("{n} matrices with their inputs sorted by group")));
            }
            if let Some(asked) = &quantization.method_activations {
                rows.push(("method asks", asked.clone()));
            }
        }
        if let Some(to) = model.rounded_to {
            rows.push(("rounded to", format!("{to}, when it is loaded")));
        }
        if !model.activation_groups.is_empty() {
            rows.push(("activations", self.activation_words()));
        }
        if model.n_recurrent_layers > 0 {
            rows.push(("states", self.state_words()));
        }
        rows.push(("memory", self.memory_words()));
        if model.generates {
            rows.push(("kv pool", self.pool_words()));
        }
        rows.extend(self.numa.iter().map(|words| ("weights lie", words.clone())));
        if let Some(load) = &self.load {
            rows.push(("loading", load.words()));
        }
        rows.push(("tokenizer", self.tokenizer_words()));
        if let Some(words) = self.suppressed_words() {
            rows.push(("suppressed", words));
        }
        if model.generates || !self.chat_templates.is_empty() {
            rows.push(("chat template", self.template_words()));
        }
        rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
    }

    /// The heads of attention, or those of recurrent layers in models without any.
    fn head_counts(&self) -> Option<String> {
        let Inspection { n_heads, n_kv_heads, head_dim, .. } = self.model;
        match (n_heads, n_kv_heads) {
            (0, 0) => None,
            (n, 0) => Some(format!("{n} of recurrent layers, without keys and values")),
            (n, n_kv) => Some(format!("{n} query, {n_kv} key/value of {head_dim}")),
        }
    }

    fn positions(&self) -> String {
        let model = &self.model;
        let rope = match model.rope_theta {
            0.0 => "no RoPE".to_owned(),
            theta => format!("RoPE base {theta} ({})", model.rope_scaling),
        };
        let mut text = format!("{} tokens, {rope}", model.max_context);
        if let Some(window) = model.window {
            let n = model.n_window_layers;
            text.push_str(&format!(", window of {window} in {n} layers"));
        }
        text
    }

    /// `int8, a scale for 128 (int4-g128), 32 (q8)`.
    fn activation_words(&self) -> String {
        let mut layouts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (layout, group) in &self.model.activation_groups {
            layouts.entry(group).or_default().push(layout);
        }
        let groups = layouts.iter().map(|(group, layouts)| match *group {
            "row" => format!("a row ({})", layouts.join(", ")),
            group => format!("{group} ({})", layouts.join(", ")),
        });
        format!("int8, a scale for {}", groups.collect::<Vec<_>>().join(", "))
    }

    fn memory_words(&self) -> String {
        let Memory { context_tokens, n_requests, weight_bytes, kv_bytes, swap_bytes, .. } =
            self.memory;
        let requests =
            if n_requests == 1 { "" } else { &format!(" in {n_requests} requests each") };
        let swap = match swap_bytes {
            0 => String::new(),
            _ => format!(", swap store {}", bytes(swap_bytes)),
        };
        let kv = match self.model.generates {
            true => format!(
                ", keys and values {} ({} per token in {})",
                bytes(kv_bytes),
                bytes(self.model.kv_bytes_per_token as u64),
                self.model.kv_dtype
            ),
            false => String::new(),
        };
        format!(
            "{} for {context_tokens} tokens{requests}: weights {}{kv}{swap}",
            bytes(self.memory.total_bytes),
            bytes(weight_bytes),
        )
    }

    fn state_words(&self) -> String {
        let model = &self.model;
        format!(
            "{} of {} layers are recurrent: {} for a running request, {} for a state that is kept, in {}",
            model.n_recurrent_layers,
            model.n_layers,
            bytes(model.state_bytes as u64),
            bytes(model.snapshot_bytes as u64),
            model.state_dtype,
        )
    }

    fn pool_words(&self) -> String {
        let Memory { kv_blocks, kv_block_bytes, kv_bytes, swap_blocks, swap_bytes, .. } =
            self.memory;
        let words = |blocks, n_bytes| format!("{blocks} blocks, {n_bytes} bytes");
        format!(
            "{} of {kv_block_bytes} each; swap store {}",
            words(kv_blocks, kv_bytes),
            words(swap_blocks, swap_bytes)
        )
    }

    fn tokenizer_words(&self) -> String {
        match (&self.tokenizer, &self.tokenizer_error) {
            (Some(tokenizer), _) => {
                let id =
                    |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
                format!(
                    "{} tokens (the model has room for {}), begin {}, end {}",
                    tokenizer.vocab_size,
                    self.model.vocab_size,
                    id(tokenizer.bos),
                    id(tokenizer.eos),
                )
            }
            (None, Some(why)) => format!("none: {why}"),
            (None, None) => "none".to_owned(),
        }
    }

    /// How many tokens no answer has, and no answer begins with.
    fn suppressed_words(&self) -> Option<String> {
        let tokens = |n: usize| format!("{n} token{}", if n == 1 { "" } else { "s" });
        let Inspection { n_suppressed_tokens: n, n_first_suppressed_tokens: n_first, .. } =
            self.model;
        match (n, n_first) {
            (0, 0) => None,
            (n, 0) => Some(format!("{}, which no answer has", tokens(n))),
            (0, n) => Some(format!("{}, with which no answer begins", tokens(n))),
            (n, first) => Some(format!(
                "{}, which no answer has, and {} with which none begins",
                tokens(n),
                tokens(first)
            )),
        }
    }

    fn template_words(&self) -> String {
        match self.chat_templates.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        }
    }
}

fn template_names(template: &pelton_text::ChatTemplate) -> Vec<String> {
    template.sources().iter().map(|source| source.name.clone()).collect()
}

/// Number of parameters, and the number that one token uses where that is smaller.
pub(crate) fn parameters(model: &Inspection) -> String {
    let (all, active) = (model.n_parameters, model.n_active_parameters);
    let active = match active < all {
        true => format!(", {} active", count(active)),
        false => String::new(),
    };
    format!("{}{active} ({})", count(all), bytes(model.n_bytes))
}

fn head_words(is_tied: bool) -> &'static str {
    if is_tied { "shared with the embedding table" } else { "its own matrix" }
}

/// A count with a decimal suffix, such as `8.9 M`.
fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_carry_decimal_suffixes() {
        let cases =
            [(999, "999"), (1500, "1.5 k"), (8_900_000, "8.9 M"), (1_240_000_000, "1.24 G")];
        for (n, expected) in cases {
            assert_eq!(count(n), expected);
        }
    }
}
