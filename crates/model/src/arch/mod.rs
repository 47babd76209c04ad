//! Architectures as data: one small file each, one shared decoder.
//!
//! An architecture is a *function from the checkpoint's config to an [`ArchSpec`]*. The decoder
//! reads the spec once, at load time, and builds layers from it; nothing matches on an
//! architecture name after that.
//!
//! **Architecture invariant:** quirks of a checkpoint (permuted or fused projections, norms stored
//! minus one, scaled embeddings) are undone while loading, never in `forward`.

mod arcee;
mod bloom;
mod cohere;
mod cohere2;
mod deepseek;
mod encoders;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_moe;
mod helium;
mod internlm2;
mod internlm3;
mod llama;
mod llama4;
mod minicpm;
mod minicpm3;
mod ministral;
mod mistral;
mod mixtral;
mod mla;
mod moe;
mod nemotron;
mod olmo;
mod olmo2;
mod olmo3;
mod olmoe;
mod opt;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod stored;

use pelton_base::TokenId;

use crate::config::{HfConfig, Window};
use crate::fields::ConfigError;
use crate::rope::RopeSpec;

pub use encoders::ENCODERS;
pub use mla::Mla;
pub use moe::{ExpertGroups, GroupRank, Moe, Router, RouterScore, SharedExpert};
pub(crate) use stored::{Experts, Fused, GateUp, Part, Stored};

/// What the decoder needs to know to build one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchSpec {
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Rows of the embedding table and length of a row of logits, in tokens.
    pub vocab_size: usize,
    /// Longest sequence served, in tokens.
    pub max_context: usize,
    /// What norms do, those of q and k excepted.
    pub norm: NormKind,
    /// Added to the mean square or variance in every norm.
    pub norm_eps: f32,
    /// Rotary embeddings that layers choose from; none in models with other positions.
    pub ropes: Vec<RopeSpec>,
    /// Learned embeddings of positions, added to those of tokens.
    pub positions: Option<LearnedPositions>,
    /// Factor of the embeddings of tokens.
    pub embedding_scale: f32,
    /// Whether embeddings are normed before the first layer.
    pub embedding_norm: bool,
    /// One entry per decoder layer, so that mixed stacks need no special case.
    pub layers: Vec<LayerSpec>,
    /// Factor of the logits, before the cap.
    pub logit_scale: f32,
    /// `tanh` soft cap on the logits, or `None`.
    pub logit_softcap: Option<f32>,
    /// Whether the output head carries a bias.
    pub head_bias: bool,
    /// Whether the output head shares the embedding table.
    pub tied_embeddings: bool,
    /// What there is before the first layer and after the last.
    pub ends: Ends,
    /// Token put before a text, if the model was trained with one.
    pub bos_token: Option<TokenId>,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<TokenId>,
}

/// What there is before the first layer and after the last, where models differ from decoders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    /// Rows of a table of kinds of tokens, the first of which is added to every embedding; 0 where
    /// there is none.
    pub n_token_types: usize,
    /// Whether the first layer norms what its attention reads, where others do.
    pub first_norm: bool,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// Whether there is a head, so that tokens can be generated.
    pub head: bool,
}

impl Ends {
    /// Those of decoders.
    pub const DECODER: Self =
        Self { n_token_types: 0, first_norm: true, final_norm: true, head: true };

    /// Those of BERT, but for the number of kinds of tokens.
    pub const BERT: Self = Self { final_norm: false, head: false, ..Self::DECODER };
}

/// A table of one learned vector per position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub n_rows: usize,
    /// Row of position 0.
    pub first_row: usize,
}

/// What a norm does to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// Divides by the root of the mean square (Zhang and Sennrich, 2019); has a weight.
    Rms,
    /// Takes off the mean and divides by the standard deviation (Ba et al., 2016).
    Layer {
        /// Whether there is a weight.
        weight: bool,
        /// Whether there is a bias.
        bias: bool,
    },
}

/// One decoder layer: a sequence mixer and a channel mixer on a residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Mixes information across positions.
    pub mixer: Mixer,
    /// Mixes information across channels.
    pub mlp: Mlp,
    /// How the two read from the residual stream and add to it.
    pub wiring: Wiring,
}

/// How mixers read from the residual stream `x` and add to it.
///
/// ```text
/// sequential   x += post(attention(pre(x)));   x += post(mlp(pre(x)))
/// parallel     x += post(attention(pre(x))) + post(mlp(pre(x)))
/// normed       x = post(x + attention(x));         x = post(x + mlp(x))
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wiring {
    /// Whether a mixer's input is normed.
    pub pre_norm: bool,
    /// Whether a mixer's output is normed before it is added.
    pub post_norm: bool,
    /// Whether one mixer sees what the other added.
    pub residual: Residual,
    /// Factor of what a mixer adds.
    pub scale: f32,
}

/// Whether the channel mixer sees what the sequence mixer added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    /// It does.
    Sequential,
    /// It does not, and reads the norm that attention reads.
    ParallelOneNorm,
    /// It does not, and has a norm of its own.
    ParallelTwoNorms,
    /// It does, and the norm after a mixer is that of the sum.
    Normed,
}

impl Wiring {
    /// A norm before each mixer, one after the other: Llama and most others.
    pub const PRE: Self =
        Self { pre_norm: true, post_norm: false, residual: Residual::Sequential, scale: 1.0 };

    /// Norms before and after each mixer: Gemma 2, GLM-4.
    pub const SANDWICH: Self = Self { post_norm: true, ..Self::PRE };

    /// Norms after each mixer alone: OLMo 2.
    pub const POST: Self = Self { pre_norm: false, ..Self::SANDWICH };

    /// Norms of the residual stream after each addition: BERT.
    pub const NORMED: Self = Self { residual: Residual::Normed, ..Self::POST };
}

/// Sequence mixers. A new family of attention is a new variant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Grouped-query attention (Ainslie et al., 2023).
    Gqa(Gqa),
    /// Latent attention (DeepSeek-AI, 2024).
    Mla(Mla),
}

/// What of a token is kept for later ones, in each layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvHeads {
    /// Key and value heads.
    pub n: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether a value is the beginning of its key.
    pub values_in_keys: bool,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Gqa {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Elements per head; even.
    pub head_dim: usize,
    /// Whether the q, k and v projections carry a bias.
    pub qkv_bias: bool,
    /// Whether the output projection carries a bias.
    pub out_bias: bool,
    /// Norm of q and k before RoPE.
    pub qk_norm: Option<QkNorm>,
    /// Bound on the absolute value of q, k and v as they are projected.
    pub clip: Option<f32>,
    /// Which of the spec's rotary embeddings rotates q and k, or `None` where none does.
    pub rope: Option<usize>,
    /// Factor of the slope of each head by which scores fall with distance (ALiBi), or `None` where
    /// they do not.
    pub alibi: Option<f32>,
    /// Factor of the scores.
    pub scale: f32,
    /// `tanh` soft cap on the scores, or `None`.
    pub softcap: Option<f32>,
    /// Attention window in tokens, the token itself included, or `None` for full attention.
    pub window: Option<usize>,
    /// Whether a token sees only itself and what is before it; if not, a window is as wide after it
    /// as before.
    pub is_causal: bool,
    /// Positions of a segment, beyond which attention does not see, or `None` for one segment.
    pub segment: Option<usize>,
    /// Whether each head has a learned logit without a value in its softmax.
    pub has_sinks: bool,
    /// Growth of queries with their position.
    pub temperature: Option<Temperature>,
}

/// Queries at position `p` are multiplied by `1 + factor · ln(1 + floor((p + 1) / step))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub factor: f32,
    /// Positions over which queries are alike.
    pub step: usize,
}

impl Temperature {
    /// The factor of a query.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.factor * (((position + 1) / self.step) as f32).ln_1p()
    }
}

/// Norms of q and k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// RMS of each head, one weight for all: Qwen3, Gemma 3.
    HeadRms,
    /// RMS of each head without a weight: Llama 4.
    HeadRmsBare,
    /// RMS over all heads together: OLMo 2.
    WholeRms,
    /// Layer norm without bias of each head, which has a weight of its own: Cohere, StableLM.
    HeadLayer,
}

/// Channel mixers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mlp {
    /// `down(act(gate(x)) * up(x))`.
    Gated(GatedMlp),
    /// `down(act(up(x)))`.
    Plain(PlainMlp),
    /// Several gated perceptrons, of which each row goes through some.
    Moe(Moe),
}

/// A two-layer perceptron without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainMlp {
    /// Width of the hidden layer, in elements.
    pub intermediate_size: usize,
    /// Activation of the hidden layer.
    pub act: Act,
    /// Whether both projections carry a bias.
    pub bias: bool,
}

/// A gated two-layer perceptron (Shazeer, 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct GatedMlp {
    /// Width of the hidden layer, in elements.
    pub intermediate_size: usize,
    /// Activation of the gate.
    pub act: Act,
    /// Whether the three projections carry a bias.
    pub bias: bool,
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Act {
    /// `x * sigmoid(x)`.
    Silu,
    /// `tanh` approximation of GELU.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)` squared.
    ReluSquared,
}

impl LayerSpec {
    /// The layer's attention, in families of which all layers have grouped queries.
    ///
    /// # Panics
    ///
    /// When this one has another mixer.
    pub fn gqa(&self) -> &Gqa {
        match &self.mixer {
            Mixer::Gqa(gqa) => gqa,
            Mixer::Mla(_) => panic!("invariant: a layer with grouped queries"),
        }
    }

    pub(crate) fn gqa_mut(&mut self) -> &mut Gqa {
        match &mut self.mixer {
            Mixer::Gqa(gqa) => gqa,
            Mixer::Mla(_) => panic!("invariant: a layer with grouped queries"),
        }
    }
}

impl Mixer {
    /// Query heads.
    pub fn n_heads(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.n_heads,
            Self::Mla(mla) => mla.n_heads,
        }
    }

    /// What of a token is kept for later ones.
    pub fn kv_heads(&self) -> KvHeads {
        match self {
            Self::Gqa(gqa) => KvHeads {
                n: gqa.n_kv_heads,
                key_dim: gqa.head_dim,
                value_dim: gqa.head_dim,
                values_in_keys: false,
            },
            Self::Mla(mla) => KvHeads {
                n: 1,
                key_dim: mla.key_dim(),
                value_dim: mla.kv_rank,
                values_in_keys: true,
            },
        }
    }

    /// Attention window in tokens, or `None` for full causal attention.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Gqa(gqa) => gqa.window,
            Self::Mla(_) => None,
        }
    }

    /// Elements of a row of queries as attention takes it, with keys and values of the row where
    /// these are beside them.
    pub fn query_width(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.qkv_width(),
            Self::Mla(mla) => mla.absorbed_width(),
        }
    }

    /// Elements of a row that the output projection reads.
    pub fn out_width(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.q_width(),
            Self::Mla(mla) => mla.out_width(),
        }
    }

    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gqa(gqa) => hidden_size * (gqa.qkv_width() + gqa.q_width()),
            Self::Mla(mla) => mla.n_weights(hidden_size),
        }
    }
}

impl Mlp {
    /// Width of the hidden layer, or of an expert's, in elements.
    pub fn intermediate_size(&self) -> usize {
        match self {
            Self::Gated(mlp) => mlp.intermediate_size,
            Self::Plain(mlp) => mlp.intermediate_size,
            Self::Moe(moe) => moe.expert.intermediate_size,
        }
    }

    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gated(mlp) => 3 * hidden_size * mlp.intermediate_size,
            Self::Plain(mlp) => 2 * hidden_size * mlp.intermediate_size,
            Self::Moe(moe) => moe.n_weights(hidden_size),
        }
    }

    /// Elements of the matrices that one row goes through, in a model of this width.
    pub fn n_active_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gated(_) | Self::Plain(_) => self.n_weights(hidden_size),
            Self::Moe(moe) => moe.n_active_weights(hidden_size),
        }
    }
}

impl ArchSpec {
    /// Windows in the layers that the config lists, or in those that the family has them in.
    pub(crate) fn set_windows(&mut self, cfg: &HfConfig, is_usual: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let has_window =
                cfg.sliding_layers.as_ref().map_or_else(|| is_usual(i), |list| list[i]);
            layer.gqa_mut().window = match cfg.sliding_window {
                Window::Tokens(n) if has_window => Some(n),
                _ => None,
            };
        }
    }

    /// Perceptrons without a gate in all layers.
    pub(crate) fn set_plain_mlp(&mut self, cfg: &HfConfig, bias: bool) {
        let (intermediate_size, act) = (cfg.intermediate_size, cfg.hidden_act);
        for layer in &mut self.layers {
            layer.mlp = Mlp::Plain(PlainMlp { intermediate_size, act, bias });
        }
    }

    /// Whether tokens can be generated; if not, the model is for vectors of texts.
    pub fn generates(&self) -> bool {
        self.ends.head && self.layers.iter().all(|layer| layer.gqa().is_causal)
    }

    /// Longest context that the positions reach, in tokens; at least what is served by default.
    pub fn longest_context(&self) -> usize {
        let ropes = self.ropes.iter().map(RopeSpec::longest_context);
        ropes.fold(self.max_context, usize::max)
    }
}

impl Gqa {
    /// Width of all query heads together, in elements.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, in elements.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Width of q, k and v stacked, in elements.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}

/// Registry entry: the names a checkpoint may declare, and how to read its files.
#[derive(Debug)]
pub struct Arch {
    /// Values of `architectures[0]` in `config.json` that select this entry.
    pub names: &'static [&'static str],
    /// Values of `model_type` in `config.json`, used where `architectures` is missing.
    pub model_types: &'static [&'static str],
    /// Values of `general.architecture` in GGUF metadata that select this entry; none where such
    /// files are not read.
    pub gguf_names: &'static [&'static str],
    /// Fields of `config.json` that the family spells in its own way: the usual name, and its own.
    pub(crate) spellings: &'static [(&'static str, &'static str)],
    /// Fields that configs of the family may leave out.
    pub(crate) defaults: &'static [(&'static str, Preset)],
    /// Whether a part of each head may be rotated and the rest left alone.
    pub(crate) partial_rotary: bool,
    /// How Hugging Face folders store the tensors.
    pub(crate) hf: Stored,
    /// How GGUF files store the tensors.
    pub(crate) gguf: Stored,
    /// Whether models of this family are written as GGUF files, too.
    pub is_exported: bool,
    /// Builds the spec.
    ///
    /// # Errors
    ///
    /// Names the field that this architecture cannot work with.
    pub spec: fn(&HfConfig) -> Result<ArchSpec, ConfigError>,
}

/// What a field is where the config does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    Text(&'static str),
    Number(f64),
    Flag(bool),
    /// So many times `hidden_size`.
    TimesHidden(u64),
}

impl Arch {
    /// Whether matrices that a checkpoint's method quantized are read, whatever the method. Where the
    /// family stores its matrices transposed only those methods are that are known to turn them.
    pub fn reads_quantized(&self) -> bool {
        !self.hf.is_transposed
    }

    /// The entry of a family without quirks; the other entries are variants of it.
    pub(crate) const PLAIN: Self = Self {
        names: &[],
        model_types: &[],
        gguf_names: &[],
        spellings: &[],
        defaults: &[],
        partial_rotary: false,
        hf: Stored::HF,
        gguf: Stored::GGUF,
        is_exported: false,
        spec: llama::spec,
    };
}

/// Every supported architecture. Conformance tests iterate over this table.
pub static ARCHS: &[Arch] = &[
    arcee::ARCH,
    bloom::ARCH,
    cohere::ARCH,
    cohere2::ARCH,
    deepseek::V2,
    deepseek::V3,
    exaone4::ARCH,
    falcon::ARCH,
    gemma::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    glm::ARCH,
    glm4::ARCH,
    glm4_moe::ARCH,
    gpt2::ARCH,
    gpt_bigcode::ARCH,
    gpt_neox::ARCH,
    gpt_oss::ARCH,
    gptj::ARCH,
    granite::ARCH,
    granite_moe::ARCH,
    helium::ARCH,
    internlm2::ARCH,
    internlm3::ARCH,
    llama::ARCH,
    llama4::ARCH,
    minicpm::ARCH,
    minicpm3::ARCH,
    ministral::ARCH,
    mistral::ARCH,
    mixtral::ARCH,
    nemotron::ARCH,
    olmo::ARCH,
    olmo2::ARCH,
    olmo3::ARCH,
    olmoe::ARCH,
    opt::ARCH,
    phi::ARCH,
    phi3::ARCH,
    qwen2::ARCH,
    qwen2_moe::ARCH,
    qwen3::ARCH,
    qwen3_moe::ARCH,
    seed_oss::ARCH,
    smollm3::ARCH,
    stablelm::ARCH,
    starcoder2::ARCH,
];

/// Decoders and encoders.
fn all() -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().chain(ENCODERS)
}

fn find_whole(name: &str) -> Option<&'static Arch> {
    all().find(|arch| arch.names.contains(&name) || arch.model_types.contains(&name))
}

/// The decoder of a model that was saved without its head: `Qwen3Model`.
fn find_base(name: &str) -> Option<&'static Arch> {
    let mut stems = ["TextModel", "Model"].into_iter().filter_map(|end| name.strip_suffix(end));
    stems.find_map(|stem| find_whole(&format!("{stem}ForCausalLM")))
}

/// Finds the architecture that a `config.json` declares, with or without a head.
pub fn find(name: &str) -> Option<&'static Arch> {
    find_whole(name).or_else(|| find_base(name))
}

/// Whether a `config.json` declares a model without its head.
pub(crate) fn is_base(name: &str) -> bool {
    find_whole(name).is_none() && find_base(name).is_some()
}

/// Finds the architecture that GGUF metadata declares.
pub fn find_gguf(name: &str) -> Option<&'static Arch> {
    all().find(|arch| arch.gguf_names.contains(&name))
}

/// The error for a name that is in no entry, with all the names that are.
pub(crate) fn unknown(found: &str) -> ConfigError {
    unknown_among(found, |arch| arch.names)
}

/// [`unknown`] for GGUF files, which have their own names.
pub(crate) fn unknown_gguf(found: &str) -> ConfigError {
    unknown_among(found, |arch| arch.gguf_names)
}

fn unknown_among(found: &str, names: fn(&Arch) -> &'static [&'static str]) -> ConfigError {
    let mut known: Vec<&str> = all().flat_map(names).copied().collect();
    known.sort_unstable();
    known.dedup();
    // The name is a stranger's: as much of it as a line can bear.
    let found = found.chars().take(80).flat_map(char::escape_debug).collect();
    ConfigError::UnknownArchitecture { found, known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;

    #[test]
    fn every_architecture_builds_a_well_formed_spec() {
        for arch in all() {
            let name = arch.names[0];
            // The fields of experts are in the way of a family that has them as another one.
            let n_experts = if name.starts_with("MiniCPM") { 0 } else { 8 };
            let text = format!(
                r#"{{"architectures": ["{name}"], "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 16, "rotary_dim": 8, "vocab_size": 256, "max_position_embeddings": 128,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 8,
                    "v_head_dim": 16, "num_experts": {n_experts}, "num_experts_per_tok": 2,
                    "n_group": 2, "topk_group": 1}}"#
            );
            let config = parse_config(text.as_bytes()).expect("well-formed");
            let spec = (arch.spec)(&config).expect(name);
            assert_eq!(spec.layers.len(), 2, "{name}");
            for layer in &spec.layers {
                let n_kv_heads = layer.mixer.kv_heads().n;
                assert_eq!(layer.mixer.n_heads() % n_kv_heads, 0, "{name}");
            }
        }
    }

    #[test]
    fn no_name_selects_two_entries() {
        for arch in all() {
            for name in arch.names.iter().chain(arch.model_types) {
                assert!(std::ptr::eq(find(name).expect("registered"), arch), "{name} is ambiguous");
            }
            for name in arch.gguf_names {
                assert!(std::ptr::eq(find_gguf(name).expect("registered"), arch), "{name}");
            }
        }
    }
}
