//! The same model as a folder with `config.json`, `tokenizer.json` and safetensors, in one file or
//! sharded: tensors stay in their order, and a shard ends where it has its share of the bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{bail, ensure};
use pelton_tensor::{DType, TensorView, write_safetensors};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::grown::Grown;
use super::{Delta, Shape, tensors, values, vocabulary};

/// Names of tensors in GGUF files, without the number of the layer, and in folders.
const NAMES: [(&str, &str); 25] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt", "linear_attn.dt_bias"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("pre_ffw_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The origin of the weights.
pub(super) enum Weights<'a> {
    /// Random weights in a shape.
    Random(&'a Shape),
    /// The weights of a small model, padded with zeros.
    Grown(&'a Grown),
}

impl Weights<'_> {
    fn shape(&self) -> &Shape {
        match self {
            Self::Random(shape) => shape,
            Self::Grown(grown) => &grown.shape,
        }
    }
}

/// Writes the folder. It may exist, but must not hold weights.
pub(super) fn write(
    out: &Path,
    weights: &Weights<'_>,
    dtype: DType,
    n_shards: usize,
) -> anyhow::Result<()> {
    let shape = weights.shape();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
        bail!("safetensors hold f32, f16 and bf16, not {}", dtype.name());
    }
    fs::create_dir_all(out)?;
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        ensure!(!out.join(name).exists(), "{}: there are weights already", out.display());
    }
    write_text_files(out, weights, dtype)?;
    let dtype_of = |dims: &[usize]| if dims.len() == 2 { dtype } else { DType::F32 };
    let n_bytes = |dims: &[usize]| {
        let n = dims.iter().product();
        dtype_of(dims).bytes_for(n).expect("invariant: whole blocks")
    };
    let all = tensors(shape);
    let n_total: usize = all.iter().map(|(_, dims)| n_bytes(dims)).sum();
    let mut rng = SmallRng::seed_from_u64(1);
    let bar = super::bar(all.len());
    let (mut weight_map, mut n_written, mut rest) = (Map::new(), 0, all.as_slice());
    for shard in 1..=n_shards {
        let file = match n_shards {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{shard:05}-of-{n_shards:05}.safetensors"),
        };
        let mut stored = Vec::new();
        while let [(gguf, dims), others @ ..] = rest
            && (n_written < n_total / n_shards * shard || shard == n_shards)
        {
            let name = hf(gguf);
            let bytes = match weights {
                Weights::Grown(grown) => grown.values(gguf, &name, dims, dtype_of(dims))?,
                Weights::Random(_) => {
                    let mut bytes = Vec::new();
                    values(&name, dims, dtype_of(dims), &mut rng, &mut bytes);
                    bytes
                }
            };
            n_written += bytes.len();
            weight_map.insert(name.clone(), Value::from(file.clone()));
            stored.push((name, dims, bytes));
            rest = others;
            bar.inc(1);
        }
        let views: Vec<TensorView<'_>> = (stored.iter())
            .map(|(name, dims, data)| TensorView { name, dtype: dtype_of(dims), shape: dims, data })
            .collect();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_safetensors(&out.join(&file), &views, &metadata)?;
    }
    if n_shards > 1 {
        let index = json!({"metadata": {"total_size": n_total}, "weight_map": weight_map});
        fs::write(out.join("model.safetensors.index.json"), index.to_string())?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Writes the configuration and the tokenizer.
fn write_text_files(out: &Path, weights: &Weights<'_>, dtype: DType) -> anyhow::Result<()> {
    let shape = weights.shape();
    let mut config = config(shape, dtype);
    match weights {
        Weights::Grown(grown) => {
            for (name, token) in grown.special_tokens() {
                config[name] = token.clone();
            }
            grown.copy_text_files(out)?;
        }
        Weights::Random(_) => {
            fs::write(out.join("tokenizer.json"), vocabulary::json(shape.vocab).to_string())?;
        }
    }
    fs::write(out.join("config.json"), config.to_string())?;
    Ok(())
}

/// The name in a folder.
fn hf(gguf: &str) -> String {
    let own = |name: &str| {
        let (stem, kind) = match name.rsplit_once('.') {
            Some((stem, kind)) => (stem, format!(".{kind}")),
            None => (name, String::new()),
        };
        let (_, hf) = NAMES.iter().find(|(gguf, _)| *gguf == stem).expect("invariant: listed");
        format!("{hf}{kind}")
    };
    match gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, name)) => format!("model.layers.{layer}.{}", own(name)),
        None => own(gguf),
    }
}

fn config(shape: &Shape, dtype: DType) -> Value {
    let (class, model_type) = match shape.arch {
        "qwen2" => ("Qwen2ForCausalLM", "qwen2"),
        "gemma3" => ("Gemma3ForCausalLM", "gemma3_text"),
        "qwen3_5_text" => ("Qwen3_5ForCausalLM", "qwen3_5_text"),
        _ => ("LlamaForCausalLM", "llama"),
    };
    let torch_dtype = match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        _ => "bfloat16",
    };
    let mut config = json!({
        "architectures": [class], "model_type": model_type, "torch_dtype": torch_dtype,
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.n_layers, "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "rope_theta": f64::from(shape.rope_base), "rms_norm_eps": f64::from(shape.eps),
        "tie_word_embeddings": true, "eos_token_id": shape.vocab - 1,
    });
    if shape.window.is_none() {
        config["hidden_act"] = "silu".into();
    }
    if let Some(Delta { n_heads, head_dim, taps, period }) = shape.delta {
        config["partial_rotary_factor"] = 0.25.into();
        config["full_attention_interval"] = period.into();
        config["linear_conv_kernel_dim"] = taps.into();
        for of in ["key", "value"] {
            config[format!("linear_{of}_head_dim")] = head_dim.into();
            config[format!("linear_num_{of}_heads")] = n_heads.into();
        }
    }
    if let Some(window) = shape.window {
        config["hidden_activation"] = "gelu_pytorch_tanh".into();
        config["query_pre_attn_scalar"] = shape.head_dim.into();
        config["rope_local_base_freq"] = 10_000.0.into();
        config["sliding_window"] = window.into();
        config["sliding_window_pattern"] = 6.into();
    }
    config
}
