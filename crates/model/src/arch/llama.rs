//! Llama (Touvron et al., 2023): the baseline from which other files start.

use super::{
    Arch, ArchSpec, Ends, GatedMlp, Gqa, LayerSpec, Mixer, Mlp, Multipliers, NormKind, Stored,
    Wiring,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["LlamaForCausalLM"],
    model_types: &["llama"],
    gguf_names: &["llama"],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    written_as: Some("llama"),
    spec,
    ..Arch::PLAIN
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let attention_bias = cfg.attention_bias.unwrap_or(false);
    let layer = LayerSpec {
        mixer: Mixer::Gqa(Gqa {
            n_heads: cfg.num_attention_heads,
            n_kv_heads: cfg.num_key_value_heads,
            head_dim: cfg.head_dim,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            qk_norm: None,
            clip: None,
            rope: Some(0),
            alibi: None,
            relative: None,
            scale: (cfg.head_dim as f32).sqrt().recip(),
            softcap: None,
            window: None,
            is_causal: true,
            segment: None,
            has_sinks: false,
            temperature: None,
            is_gated: false,
            kv_of: None,
            values_are_keys: false,
            norms_values: false,
        }),
        mlp: Mlp::Gated(GatedMlp {
            intermediate_size: cfg.intermediate_size,
            act: cfg.hidden_act,
            bias: cfg.mlp_bias,
            cut: None,
        }),
        wiring: Wiring::PRE,
        kv_group: 0,
    };
    Ok(ArchSpec {
        hidden_size: cfg.hidden_size,
        vocab_size: cfg.vocab_size,
        max_context: cfg.max_position_embeddings,
        norm: NormKind::Rms,
        norm_eps: cfg.rms_norm_eps,
        ropes: vec![cfg.rope.clone()],
        positions: None,
        embedding_scale: 1.0,
        embedding_norm: false,
        layers: vec![layer; cfg.num_hidden_layers],
        streams: None,
        layer_inputs: None,
        encoder: None,
        scales_layers: false,
        multipliers: Multipliers::ONE,
        logit_scale: 1.0,
        head_bias: false,
        logit_softcap: cfg.final_logit_softcapping,
        tied_embeddings: cfg.tie_word_embeddings,
        ends: Ends::DECODER,
        bos_token: cfg.bos_token,
        eos_tokens: cfg.eos_tokens.clone(),
    })
}
