//! Fields of `config.json` that GGUF files leave out: they follow from the tensors of a file, from
//! other keys, or from the published models.

use pelton_base::limits;
use pelton_tensor::TensorSource;
use serde_json::{Map, Value};

use crate::arch::Part;
use crate::config::Heads;
use crate::fields::{ConfigError, Field};
use crate::files::names::Naming;

/// Widths of the parts of a head in latent attention. Files that have a head's keys absorbed say in
/// `key_length` and `value_length` what is cached, and in keys of their own how wide heads are;
/// older ones say the latter under the usual names.
pub(super) fn tell_latent_widths<'a>(
    get: &dyn Fn(&str) -> Field<'a>,
    rope_dim: usize,
    fields: &mut Map<String, Value>,
) -> Result<(), ConfigError> {
    let width = |own: &str, usual: &str| {
        let own = get(own);
        if own.non_null().is_some() { own } else { get(usual) }
    };
    let key = width("attention.key_length_mla", "attention.key_length");
    let key_dim = key.count(limits::MODEL_WIDTH)?;
    let Some(nope_dim) = key_dim.checked_sub(rope_dim).filter(|n| *n > 0) else {
        return Err(key.error(format!("more than {rope_dim}, which is rotated")));
    };
    let value = width("attention.value_length_mla", "attention.value_length");
    for (name, dim) in [("qk_rope_head_dim", rope_dim), ("qk_nope_head_dim", nope_dim)] {
        fields.insert(name.to_owned(), Value::from(dim));
    }
    // Files of MiniCPM3 leave it out, as its configs do.
    if let Some(value) = value.non_null() {
        fields.insert("v_head_dim".to_owned(), Value::from(value.count(limits::MODEL_WIDTH)?));
    }
    Ok(())
}

/// The scales of MiniCPM's published models, which its files do not say, or only newer ones.
pub(super) fn tell_scales(fields: &mut Map<String, Value>) {
    for (name, scale) in [("scale_emb", 12.0), ("scale_depth", 1.4), ("dim_model_base", 256.0)] {
        fields.entry(name).or_insert(Value::from(scale));
    }
}

/// The function of experts' scores, which files give by number, and how experts are ranked.
pub(super) fn tell_scores<'a>(
    get: &dyn Fn(&str) -> Field<'a>,
    fields: &mut Map<String, Value>,
) -> Result<(), ConfigError> {
    let field = get("expert_gating_func");
    let Some(kind) = field.non_null() else { return Ok(()) };
    let (scoring, method) = match kind.integer(0, 16)? {
        0 | 1 if get("expert_group_count").non_null().is_some() => {
            ("softmax", "group_limited_greedy")
        }
        0 | 1 => ("softmax", "greedy"),
        2 => ("sigmoid", "noaux_tc"),
        _ => return Err(kind.error("1 (softmax) or 2 (sigmoid)")),
    };
    for (name, text) in [("scoring_func", scoring), ("topk_method", method)] {
        fields.insert(name.to_owned(), Value::from(text));
    }
    Ok(())
}

/// Fields that follow from the tensors of a file.
pub(super) fn tell_by_tensors(
    tensors: &dyn TensorSource,
    naming: Naming,
    heads: &Heads,
    fields: &mut Map<String, Value>,
) {
    let has = |stem: &str| tensors.get(&format!("blk.0.{stem}")).is_some();
    let has_bias =
        [Part::Q, Part::Qkv].iter().any(|part| tensors.get(&naming.bias(*part, 0)).is_some());
    let has_two_norms = has("attn_norm_2.weight");
    let mut tell = |name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    for name in ["use_qkv_bias", "use_bias", "bias"] {
        tell(name, Value::from(has_bias));
    }
    tell("attention_out_bias", Value::from(has("attn_output.bias")));
    for name in ["qk_layernorm", "use_qk_norm"] {
        tell(name, Value::from(has("attn_q_norm.weight")));
    }
    let token_types = tensors.get(&naming.weight(Part::TokenTypes, 0));
    let n_token_types = token_types.and_then(|table| table.shape.first().copied()).unwrap_or(0);
    tell("type_vocab_size", Value::from(n_token_types));
    tell("use_parallel_residual", Value::from(!has("ffn_norm.weight")));
    tell("multi_query", Value::from(heads.n_kv_heads == 1));
    tell("num_ln_in_parallel_attn", Value::from(if has_two_norms { 2 } else { 1 }));
    let shares_heads = heads.n_kv_heads > 1 && heads.n_kv_heads < heads.n_heads;
    tell("new_decoder_architecture", Value::from(has_two_norms || shares_heads));
}

/// Fields of mixtures of experts that follow from the tensors of a file.
pub(super) fn tell_experts(
    tensors: &dyn TensorSource,
    name: &str,
    n_layers: usize,
    fields: &mut Map<String, Value>,
) {
    let has =
        |layer: usize, stem: &str| tensors.get(&format!("blk.{layer}.{stem}.weight")).is_some();
    let layers = (0..n_layers).take_while(|layer| has(*layer, "attn_norm"));
    let dense: Vec<usize> = layers.filter(|layer| !has(*layer, "ffn_gate_inp")).collect();
    let n_experts = fields.get("num_experts").and_then(Value::as_u64);
    let mut tell = |name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    tell("mlp_only_layers", Value::from(dense));
    match name {
        "qwen3moe" => tell("norm_topk_prob", Value::from(true)),
        // The larger of the two models has no norm of q and k.
        "llama4" => tell("use_qk_norm", Value::from(n_experts != Some(128))),
        _ => {}
    }
}

/// The decoder of an encoder-decoder model, the buckets of its distances, and its perceptrons: files have
/// no key for their activation, and every published T5 with gates has the same one.
pub(super) fn tell_encoder_decoder<'a>(
    get: &dyn Fn(&str) -> Field<'a>,
    tensors: &dyn TensorSource,
    naming: Naming,
    fields: &mut Map<String, Value>,
) {
    for (name, key) in [
        ("num_decoder_layers", "decoder_block_count"),
        ("decoder_start_token_id", "decoder_start_token_id"),
        ("relative_attention_num_buckets", "attention.relative_buckets_count"),
    ] {
        if let Some(value) = get(key).value() {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    // A layer of the file is two layers here, and its perceptron is in the second.
    let has_gate = tensors.get(&naming.weight(Part::Gate, 1)).is_some();
    let kind = if has_gate { "gated-gelu" } else { "relu" };
    fields.insert("feed_forward_proj".to_owned(), Value::from(kind));
}
