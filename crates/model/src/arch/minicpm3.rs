//! MiniCPM3 (Hu et al., 2024): MiniCPM's scales on latent attention, rotated by halves. GGUF files
//! keep keys and values of heads together.

use super::{Arch, ArchSpec, Mixer, Mla, Preset, Stored, deepseek, minicpm};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["MiniCPM3ForCausalLM"],
    model_types: &["minicpm3"],
    gguf_names: &["minicpm3"],
    spellings: &[deepseek::HEAD_DIM],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: deepseek::HF,
    gguf: Stored { is_kv_up_split: false, ..deepseek::GGUF },
    written_as: Some("minicpm3"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = minicpm::spec(cfg)?;
    let mla = Mla::read(cfg, false)?;
    for layer in &mut spec.layers {
        layer.mixer = Mixer::Mla(mla.clone());
    }
    Ok(spec)
}
