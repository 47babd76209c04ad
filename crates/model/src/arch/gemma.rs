//! Gemma (Gemma Team, 2024): Llama with scaled embeddings, GELU gates, and norms stored minus one.

use super::{Act, Arch, ArchSpec, Mlp, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::config::read_act;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GemmaForCausalLM"],
    model_types: &["gemma"],
    gguf_names: &["gemma"],
    defaults: DEFAULTS,
    hf: Stored { norm_offset: 1.0, ..Stored::HF },
    written_as: Some("gemma"),
    implies_embedding_scale: true,
    spec,
    ..Arch::PLAIN
};

pub(super) const DEFAULTS: &[(&str, Preset)] =
    &[("tie_word_embeddings", Preset::Flag(true)), ("head_dim", Preset::Number(256.0))];

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("use_bidirectional_attention", false)?;
    shared(cfg)
}

/// The parts that later Gemma models share.
pub(super) fn shared(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.embedding_scale = (cfg.hidden_size as f32).sqrt();
    // The first configs say "gelu" in `hidden_act` and mean the form with tanh, as all models of
    // this family were trained with.
    let own = cfg.field("hidden_activation");
    let act = if own.value().is_some() { read_act(&own)? } else { Act::GeluTanh };
    for layer in &mut spec.layers {
        if let Mlp::Gated(mlp) = &mut layer.mlp {
            mlp.act = act;
        }
    }
    Ok(spec)
}
