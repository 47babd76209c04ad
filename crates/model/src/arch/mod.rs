//! Architectures as data: one small file each, one shared decoder.
//!
//! An architecture is a *function from the checkpoint's config to an [`ArchSpec`]*. The decoder
//! reads the spec once, at load time, and builds layers from it; nothing matches on an
//! architecture name after that.
//!
//! **Architecture invariant:** quirks of a checkpoint (permuted or fused projections, norms stored
//! minus one, scaled embeddings) are undone while loading, never in `forward`.

mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use pelton_base::TokenId;

use crate::config::HfConfig;
use crate::fields::ConfigError;
use crate::rope::RopeSpec;

/// What the decoder needs to know to build one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchSpec {
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Rows of the embedding table and length of a row of logits, in tokens.
    pub vocab_size: usize,
    /// Longest sequence served, in tokens.
    pub max_context: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Rotary embedding, the same in every layer.
    pub rope: RopeSpec,
    /// One entry per decoder layer, so that mixed stacks need no special case.
    pub layers: Vec<LayerSpec>,
    /// `tanh` soft cap on the logits, or `None`.
    pub logit_softcap: Option<f32>,
    /// Whether the output head shares the embedding table.
    pub tied_embeddings: bool,
    /// Token put before a text, if the model was trained with one.
    pub bos_token: Option<TokenId>,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<TokenId>,
}

/// One decoder layer: a sequence mixer and a channel mixer, each after a norm.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Mixes information across positions.
    pub mixer: Mixer,
    /// Mixes information across channels.
    pub mlp: Mlp,
}

/// Sequence mixers. A new family of attention is a new variant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Grouped-query attention (Ainslie et al., 2023).
    Gqa(Gqa),
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
    /// Whether q and k are RMS-normalised per head before RoPE.
    pub qk_norm: bool,
    /// Attention window in tokens, the token itself included, or `None` for full causal attention.
    pub window: Option<usize>,
}

/// Channel mixers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mlp {
    /// `down(act(gate(x)) * up(x))`.
    Gated(GatedMlp),
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
}

impl LayerSpec {
    /// The layer's attention.
    pub fn gqa(&self) -> &Gqa {
        let Mixer::Gqa(gqa) = &self.mixer;
        gqa
    }

    /// The layer's perceptron.
    pub fn gated_mlp(&self) -> &GatedMlp {
        let Mlp::Gated(mlp) = &self.mlp;
        mlp
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

/// How GGUF files of an architecture store the rows of the q and k projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GgufRows {
    /// As Hugging Face does: the halves of a head one after the other.
    HalfSplit,
    /// Permuted for rotation of neighbouring pairs; undone by the loader.
    Interleaved,
}

/// Registry entry: the names a checkpoint may declare, and how to read its config.
#[derive(Debug)]
pub struct Arch {
    /// Values of `architectures[0]` in `config.json` that select this entry.
    pub names: &'static [&'static str],
    /// Values of `model_type` in `config.json`, used where `architectures` is missing.
    pub model_types: &'static [&'static str],
    /// Values of `general.architecture` in GGUF metadata that select this entry.
    pub gguf_names: &'static [&'static str],
    pub(crate) gguf_rows: GgufRows,
    /// Builds the spec.
    ///
    /// # Errors
    ///
    /// Names the field that this architecture cannot work with.
    pub spec: fn(&HfConfig) -> Result<ArchSpec, ConfigError>,
}

/// Every supported architecture. Conformance tests iterate over this table.
pub static ARCHS: &[Arch] = &[llama::ARCH, mistral::ARCH, qwen2::ARCH, qwen3::ARCH];

/// Finds the architecture that a `config.json` declares.
pub fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|arch| arch.names.contains(&name) || arch.model_types.contains(&name))
}

/// Finds the architecture that GGUF metadata declares.
pub fn find_gguf(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|arch| arch.gguf_names.contains(&name))
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
    let mut known: Vec<&str> = ARCHS.iter().flat_map(names).copied().collect();
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
        for arch in ARCHS {
            let name = arch.names[0];
            let text = format!(
                r#"{{"architectures": ["{name}"], "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 128}}"#
            );
            let config = parse_config(text.as_bytes()).expect("well-formed");
            let spec = (arch.spec)(&config).expect(name);
            assert_eq!(spec.layers.len(), 2, "{name}");
            for layer in &spec.layers {
                let gqa = layer.gqa();
                assert_eq!(gqa.n_heads % gqa.n_kv_heads, 0, "{name}");
            }
        }
    }

    #[test]
    fn no_name_selects_two_entries() {
        for arch in ARCHS {
            for name in arch.names.iter().chain(arch.model_types) {
                assert!(std::ptr::eq(find(name).expect("registered"), arch), "{name} is ambiguous");
            }
            for name in arch.gguf_names {
                assert!(std::ptr::eq(find_gguf(name).expect("registered"), arch), "{name}");
            }
        }
    }
}
