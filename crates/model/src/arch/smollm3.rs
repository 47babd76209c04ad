//! SmolLM3 (Hugging Face, 2025): Llama with some layers that rotate nothing.

use serde_json::Value;

use super::{Arch, ArchSpec, Preset, Stored, llama, qwen2};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["SmolLM3ForCausalLM"],
    model_types: &["smollm3"],
    gguf_names: &["smollm3"],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("no_rope_layer_interval", Preset::Number(4.0)),
        ("rope_theta", Preset::Number(2e6)),
    ],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let list = cfg.field("no_rope_layers");
    let interval = cfg.field("no_rope_layer_interval").count(1 << 20)?;
    let n_layers = spec.layers.len();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        // The list says 1 where a layer does rotate.
        let rotates = match list.value() {
            None => Some((i + 1) % interval != 0),
            Some(Value::Array(flags)) if flags.len() == n_layers => match flags[i].as_u64() {
                Some(flag @ 0..=1) => Some(flag == 1),
                _ => None,
            },
            Some(_) => None,
        };
        let rotates = rotates.ok_or_else(|| list.error(format!("0 or 1 for {n_layers} layers")))?;
        layer.gqa_mut().rope = rotates.then_some(0);
    }
    qwen2::set_windows(&mut spec, cfg);
    Ok(spec)
}
