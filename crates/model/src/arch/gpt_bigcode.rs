//! StarCoder (Li et al., 2023): GPT-2 with one KV head, and matrices as they should be.

use super::{Arch, ArchSpec, Fused, Preset, Stored, gpt2};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GPTBigCodeForCausalLM"],
    model_types: &["gpt_bigcode"],
    gguf_names: &["starcoder"],
    spellings: gpt2::SPELLINGS,
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("intermediate_size", Preset::TimesHidden(4)),
        ("hidden_act", Preset::Text("gelu_pytorch_tanh")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("multi_query", Preset::Flag(true)),
    ],
    hf: gpt2::HF,
    gguf: Stored { qkv: Fused::Stacked, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    // Without it the heads are fused in another order.
    cfg.expect_flag("multi_query", true)?;
    let mut spec = gpt2::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.gqa_mut().n_kv_heads = 1;
    }
    Ok(spec)
}
