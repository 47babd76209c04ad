//! The names that checkpoints declare, and the entry that each selects.

use super::{
    Arch, ENCODERS, arcee, bamba, bart, bloom, cohere, cohere2, deepseek, exaone4, falcon,
    falcon_h1, gemma, gemma2, gemma3, gemma3n, gemma4, glm, glm4, glm4_moe, gpt_bigcode, gpt_neox,
    gpt_oss, gpt2, gptj, granite, granite_hybrid, granite_moe, helium, internlm2, internlm3, jamba,
    kimi_linear, lfm2, llama, llama4, mamba, mamba2, minicpm, minicpm3, minimax, ministral,
    mistral, mixtral, nemotron, nemotron_h, olmo, olmo_hybrid, olmo2, olmo3, olmoe, opt, phi, phi3,
    qwen2, qwen2_moe, qwen3, qwen3_5, qwen3_moe, qwen3_next, rwkv7, seed_oss, smollm3, stablelm,
    starcoder2, t5,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

/// Every supported architecture. Conformance tests iterate over this table.
pub static ARCHS: &[Arch] = &[
    arcee::ARCH,
    bamba::ARCH,
    bloom::ARCH,
    cohere::ARCH,
    cohere2::ARCH,
    deepseek::V2,
    deepseek::V3,
    exaone4::ARCH,
    falcon::ARCH,
    falcon_h1::ARCH,
    gemma::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    gemma3n::ARCH,
    gemma4::ARCH,
    gemma4::UNIFIED,
    glm::ARCH,
    glm4::ARCH,
    glm4_moe::ARCH,
    gpt2::ARCH,
    gpt_bigcode::ARCH,
    gpt_neox::ARCH,
    gpt_oss::ARCH,
    gptj::ARCH,
    granite::ARCH,
    granite_hybrid::ARCH,
    granite_moe::ARCH,
    helium::ARCH,
    internlm2::ARCH,
    internlm3::ARCH,
    jamba::ARCH,
    kimi_linear::ARCH,
    lfm2::ARCH,
    lfm2::MOE,
    llama::ARCH,
    llama4::ARCH,
    mamba::ARCH,
    mamba::FALCON,
    mamba2::ARCH,
    minicpm::ARCH,
    minicpm3::ARCH,
    minimax::ARCH,
    ministral::ARCH,
    mistral::ARCH,
    mixtral::ARCH,
    nemotron::ARCH,
    nemotron_h::ARCH,
    olmo::ARCH,
    olmo2::ARCH,
    olmo3::ARCH,
    olmo_hybrid::ARCH,
    olmoe::ARCH,
    opt::ARCH,
    phi::ARCH,
    phi3::ARCH,
    qwen2::ARCH,
    qwen2_moe::ARCH,
    qwen3::ARCH,
    qwen3_5::ARCH,
    qwen3_5::MOE,
    qwen3_moe::ARCH,
    qwen3_next::ARCH,
    rwkv7::ARCH,
    seed_oss::ARCH,
    smollm3::ARCH,
    stablelm::ARCH,
    starcoder2::ARCH,
];

/// Every supported model of an encoder and a decoder. Conformance tests iterate over this table.
pub static ENCODER_DECODERS: &[Arch] = &[bart::ARCH, bart::MBART, t5::ARCH, t5::MT5];

/// Decoders, encoders, and models of both.
fn all() -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().chain(ENCODERS).chain(ENCODER_DECODERS)
}

fn find_whole(name: &str) -> Option<&'static Arch> {
    all().find(|arch| arch.names.contains(&name) || arch.model_types.contains(&name))
}

/// The decoder of a model that was saved without its head: `Qwen3Model`.
fn find_base(name: &str) -> Option<&'static Arch> {
    let mut stems = ["TextModel", "Model"].into_iter().filter_map(|end| name.strip_suffix(end));
    let whole = |stem: &str, end: &str| find_whole(&format!("{stem}{end}"));
    stems.find_map(|stem| whole(stem, "ForCausalLM").or_else(|| whole(stem, "LMHeadModel")))
}

/// The family of a model with a classifier in place of its head: `BertForSequenceClassification`.
fn find_classifier(name: &str) -> Option<&'static Arch> {
    let stem = name.strip_suffix("ForSequenceClassification")?;
    let mut ends = ["Model", "ForCausalLM", "LMHeadModel"].into_iter();
    let found = ends.find_map(|end| find_whole(&format!("{stem}{end}")));
    found.filter(|arch| arch.classifier.is_some())
}

/// Finds the architecture that a `config.json` declares, with a head, without one, or with a
/// classifier.
pub fn find(name: &str) -> Option<&'static Arch> {
    find_whole(name).or_else(|| find_base(name)).or_else(|| find_classifier(name))
}

/// The family of a configuration that was accepted.
pub(crate) fn known(config: &HfConfig) -> &'static Arch {
    find(&config.architecture)
        .expect("invariant: a config is only accepted with a known architecture")
}

/// Whether a `config.json` declares a model without the head that makes logits of tokens.
pub(crate) fn is_headless(name: &str) -> bool {
    find_whole(name).is_none() && find(name).is_some()
}

/// Whether a `config.json` declares a model with a classifier.
pub(crate) fn is_classifier(name: &str) -> bool {
    find_whole(name).is_none() && find_base(name).is_none() && find_classifier(name).is_some()
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
    use crate::arch::Mixer;
    use crate::config::parse_config;

    #[test]
    fn every_architecture_builds_a_well_formed_spec() {
        for arch in all() {
            let name = arch.names[0];
            // The fields of experts are in the way of a family that has them as another one.
            let n_experts = if name.starts_with("MiniCPM") { 0 } else { 8 };
            // Decoders with an encoder have no groups of heads.
            let n_kv_heads = if arch.hf.encoder.is_some() { 4 } else { 2 };
            let text = format!(
                r#"{{"architectures": ["{name}"], "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": {n_kv_heads},
                    "head_dim": 16, "rotary_dim": 8, "vocab_size": 256, "max_position_embeddings": 128,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 8,
                    "v_head_dim": 16, "num_experts": {n_experts}, "num_experts_per_tok": 2,
                    "n_group": 2, "topk_group": 1, "hybrid_override_pattern": "ME",
                    "decay_low_rank_dim": 8, "a_low_rank_dim": 8, "v_low_rank_dim": 8,
                    "gate_low_rank_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 16,
                    "mamba_d_ssm": 128}}"#
            );
            let config = parse_config(text.as_bytes()).expect("well-formed");
            let spec = (arch.spec)(&config).expect(name);
            let n_layers = if arch.hf.halves.is_some() { 4 } else { 2 };
            assert_eq!(spec.layers.len(), n_layers, "{name}");
            for layer in &spec.layers {
                let kept = layer.mixer.kept();
                let n_kv_heads = kept.pages.map_or(1, |heads| heads.n);
                assert_eq!(layer.mixer.n_heads() % n_kv_heads, 0, "{name}");
                let is_absent = matches!(layer.mixer, Mixer::Absent(_));
                let keeps = kept.pages.is_some() || kept.state.is_some();
                assert!(keeps || is_absent || layer.mixer.source().is_some(), "{name}");
            }
        }
    }

    #[test]
    fn a_decoder_without_its_head_and_a_classifier_are_of_the_family_of_the_decoder() {
        for (family, whole) in [
            ("Llama", "LlamaForCausalLM"),
            ("GPT2", "GPT2LMHeadModel"),
            ("Bloom", "BloomForCausalLM"),
        ] {
            let arch = find(whole).expect("registered");
            let base = format!("{family}Model");
            assert!(std::ptr::eq(find(&base).expect(&base), arch) && is_headless(&base), "{base}");
            let classifier = format!("{family}ForSequenceClassification");
            assert!(std::ptr::eq(find(&classifier).expect(&classifier), arch), "{classifier}");
            assert!(is_classifier(&classifier) && !is_classifier(whole), "{classifier}");
        }
        assert!(find("GPT2LMHead").is_none() && !is_headless("GPT2LMHeadModel"));
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
