//! Keys of hybrid models: which layers attend, and the sizes of what the other layers keep.

use pelton_base::limits;
use serde_json::{Map, Value};

use super::Source;
use crate::arch::{Arch, INTERVAL, ValueHeads};
use crate::config::HeadFields;
use crate::fields::{ConfigError, Field};

/// The mixers of a hybrid model; empty for other models.
#[derive(Debug, Default)]
pub(super) struct Mixers {
    /// Heads of queries, where the key does not count.
    n_heads: Option<Value>,
    /// Heads of keys in the layers that attend, where a list says them.
    n_kv_heads: Option<Value>,
    /// Width of the perceptrons, where a list says it.
    ffn: Option<Value>,
    /// The kind of each layer, where the file says it.
    kinds: Option<Vec<&'static str>>,
}

impl Mixers {
    /// Reads the lists that have an entry for each of `n_layers` layers and of those that guess further
    /// tokens.
    pub(super) fn read(
        source: &Source<'_>,
        arch: &'static Arch,
        n_layers: usize,
    ) -> Result<Self, ConfigError> {
        let get = |key: &str| source.get(key);
        if matches!(source.name, "mamba" | "mamba2") {
            // No layer attends or has a perceptron, and files say 0.
            let one = || Some(Value::from(1));
            return Ok(Self { n_heads: one(), n_kv_heads: one(), ffn: one(), kinds: None });
        }
        if source.name == "rwkv7" {
            // Heads are those of states, and files say 0.
            let one = || Some(Value::from(1));
            return Ok(Self { n_heads: one(), n_kv_heads: one(), ..Self::default() });
        }
        let Some(recurrent) = arch.layer_kinds.first() else { return Ok(Self::default()) };
        let n_blocks = get("block_count").count(limits::MODEL_LAYERS)?;
        let heads_field = get("attention.head_count_kv");
        let heads = read_list(&heads_field, n_blocks)?;
        let flags = read_flags(&get("attention.recurrent_layers"), n_blocks)?;
        let ffn = read_list(&get("feed_forward_length"), n_blocks)?;
        let attends: Option<Vec<bool>> = match (&flags, &heads) {
            (Some(flags), _) => Some(flags.iter().map(|flag| !flag).collect()),
            (None, Some(heads)) => Some(heads.has.clone()),
            (None, None) if arch.has_interval() => None,
            (None, None) => {
                heads_field.count(limits::MODEL_WIDTH)?;
                Some(vec![true; n_blocks])
            }
        };
        // In layers of one mixer each, perceptrons and experts are layers of their own.
        let is_mlp = ffn.as_ref().filter(|_| arch.layer_kinds.contains(&"mlp"));
        let routes = |layer: usize| {
            let router = format!("blk.{layer}.ffn_gate_inp.weight");
            arch.layer_kinds.contains(&"moe") && source.tensors.get(&router).is_some()
        };
        let kind = |(layer, attends): (usize, &bool)| match attends {
            true => "full_attention",
            false if routes(layer) => "moe",
            false if is_mlp.is_some_and(|ffn| ffn.has[layer]) => "mlp",
            false => recurrent,
        };
        let layers =
            |attends: &Vec<bool>| attends.iter().take(n_layers).enumerate().map(kind).collect();
        Ok(Self {
            kinds: attends.as_ref().map(layers),
            n_kv_heads: heads.map(|list| list.n),
            ffn: ffn.map(|list| list.n),
            n_heads: None,
        })
    }

    /// The fields of heads, with the number that the layers with attention have.
    pub(super) fn heads<'a>(&'a self, said: HeadFields<'a>) -> HeadFields<'a> {
        let one_of = |own: &'a Option<Value>, said: Field<'a>| match own {
            Some(value) => said.with(value),
            None => said,
        };
        HeadFields {
            n_heads: one_of(&self.n_heads, said.n_heads),
            n_kv_heads: one_of(&self.n_kv_heads, said.n_kv_heads),
            default_head_dim: self.n_heads.as_ref().map(|_| 64),
            ..said
        }
    }

    /// The width of perceptrons, or of experts where the file does not say that of perceptrons.
    pub(super) fn read_ffn(&self, source: &Source<'_>) -> Result<usize, ConfigError> {
        let said = source.get("feed_forward_length");
        let field = self.ffn.as_ref().map_or(said.clone(), |n| said.with(n));
        let of_experts = source.get("expert_feed_forward_length");
        let is_said = field.non_null().is_some_and(|field| field.integer(0, 0).is_err());
        match source.has_experts() && of_experts.non_null().is_some() && !is_said {
            true => of_experts.count(limits::MODEL_WIDTH),
            false => field.count(limits::MODEL_WIDTH),
        }
    }

    /// The fields of layers that keep a state, as a `config.json` would say them.
    pub(super) fn tell(
        &self,
        source: &Source<'_>,
        n_layers: usize,
        fields: &mut Map<String, Value>,
    ) -> Result<(), ConfigError> {
        if let Some(kinds) = &self.kinds {
            fields.insert("layer_types".to_owned(), Value::from(kinds.clone()));
        }
        let get = |key: &str| source.get(key);
        let has = |stem: &str| {
            let name = |layer: usize| format!("blk.{layer}.{stem}");
            (0..n_layers).any(|layer| source.tensors.get(&name(layer)).is_some())
        };
        let mut tell = |name: &str, value: Value| {
            fields.insert(name.to_owned(), value);
        };
        match source.name {
            "qwen35" | "qwen35moe" | "qwen3next" => {
                for (name, n) in DELTA.iter().zip(read_sizes(source)?) {
                    tell(name, Value::from(n));
                }
                if let Some(interval) = get(INTERVAL).non_null() {
                    tell(INTERVAL, Value::from(interval.count(limits::MODEL_LAYERS)?));
                }
                let is_tiled = source.naming.stored.value_heads == ValueHeads::Tiled;
                tell("value_heads_are_tiled", Value::from(is_tiled));
            }
            "kimi-linear" => {
                let n_heads = get("attention.head_count").count(limits::STATE_HEADS)?;
                let dim = get("kda.head_dim").count(limits::STATE_HEAD_DIM)?;
                tell("linear_num_heads", Value::from(n_heads));
                tell("linear_head_dim", Value::from(dim));
                let taps = get("ssm.conv_kernel").count(limits::CONV_TAPS)?;
                tell("linear_conv_kernel_dim", Value::from(taps));
            }
            "granitehybrid" | "nemotron_h" | "nemotron_h_moe" | "mamba2" => {
                for (name, n) in MAMBA.iter().zip(read_sizes(source)?) {
                    tell(name, Value::from(n));
                }
                tell("mamba_conv_bias", Value::from(has("ssm_conv1d.bias")));
                for name in ["mamba_proj_bias", "use_bias"] {
                    tell(name, Value::from(has("ssm_in.bias")));
                }
                if source.name == "granitehybrid" {
                    self.tell_granite(source, &mut tell)?;
                }
            }
            "falcon-h1" => tell_falcon_h1(source, &has, &mut tell)?,
            "mamba" | "jamba" => tell_selective(source, &has, &mut tell)?,
            "rwkv7" => tell_rwkv(source, &has, &mut tell)?,
            "lfm2" | "lfm2moe" => {
                tell(
                    "conv_L_cache",
                    Value::from(get("shortconv.l_cache").count(limits::CONV_TAPS)?),
                );
                tell("conv_bias", Value::from(has("shortconv.conv.bias")));
                // The file has the width that follows from the fields of a config.
                tell("block_auto_adjust_ff_dim", Value::from(false));
                if source.name == "lfm2moe" {
                    let n_dense =
                        get("leading_dense_block_count").integer(0, limits::MODEL_LAYERS)?;
                    tell("num_dense_layers", Value::from(n_dense));
                    tell("use_expert_bias", Value::from(has("exp_probs_b.bias")));
                    let scores = get("expert_gating_func");
                    if scores.non_null().is_some_and(|kind| kind.integer(2, 2).is_err()) {
                        return Err(scores.error("2 (sigmoid)"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The perceptrons of Granite 4, and whether it rotates.
    fn tell_granite(
        &self,
        source: &Source<'_>,
        tell: &mut impl FnMut(&str, Value),
    ) -> Result<(), ConfigError> {
        let rotates = source.get("rope.scaling.finetuned").flag(true)?;
        tell("position_embedding_type", Value::from(if rotates { "rope" } else { "nope" }));
        let (n_experts, shared) = match source.has_experts() {
            true => {
                let shared = source.get("expert_shared_feed_forward_length");
                (source.get("expert_count").value(), shared.count(limits::MODEL_WIDTH)?)
            }
            false => (None, self.read_ffn(source)?),
        };
        tell("num_local_experts", n_experts.cloned().unwrap_or(Value::from(0)));
        tell("shared_intermediate_size", Value::from(shared));
        Ok(())
    }
}

/// Mamba 2 and attention side by side.
fn tell_falcon_h1(
    source: &Source<'_>,
    has: &dyn Fn(&str) -> bool,
    tell: &mut dyn FnMut(&str, Value),
) -> Result<(), ConfigError> {
    for (name, n) in MAMBA.iter().zip(read_sizes(source)?) {
        tell(name, Value::from(n));
    }
    let width = source.get("ssm.inner_size").count(limits::MODEL_WIDTH)?;
    tell("mamba_d_ssm", Value::from(width));
    tell("mamba_conv_bias", Value::from(has("ssm_conv1d.bias")));
    tell("mamba_proj_bias", Value::from(has("ssm_in.bias")));
    tell("projectors_bias", Value::from(has("ssm_out.bias")));
    // A norm follows the gate, and all factors are in the weights.
    tell("mamba_rms_norm", Value::from(has("ssm_norm.weight")));
    tell("mamba_norm_before_gate", Value::from(false));
    Ok(())
}

/// Selective scans, alone or beside attention and experts.
fn tell_selective(
    source: &Source<'_>,
    has: &dyn Fn(&str) -> bool,
    tell: &mut dyn FnMut(&str, Value),
) -> Result<(), ConfigError> {
    for (name, key, most) in [
        ("mamba_inner_size", "ssm.inner_size", limits::MODEL_WIDTH),
        ("mamba_d_state", "ssm.state_size", limits::STATE_HEAD_DIM),
        ("mamba_dt_rank", "ssm.time_step_rank", limits::MODEL_WIDTH),
        ("mamba_d_conv", "ssm.conv_kernel", limits::CONV_TAPS),
    ] {
        tell(name, Value::from(source.get(key).count(most)?));
    }
    tell("mamba_conv_bias", Value::from(has("ssm_conv1d.bias")));
    tell("mamba_proj_bias", Value::from(has("ssm_in.bias")));
    let is_normed = source.get("ssm.dt_b_c_rms").flag(false)?;
    tell("mamba_selection_is_normed", Value::from(is_normed));
    if source.name == "jamba" {
        let n_experts = source.get("expert_count").value().filter(|_| source.has_experts());
        tell("num_experts", n_experts.cloned().unwrap_or(Value::from(1)));
        // All layers, less those without a router.
        tell("expert_layer_period", Value::from(1));
        tell("expert_layer_offset", Value::from(0));
    }
    Ok(())
}

/// Heads and latents of RWKV-7; the norm of a head's output has what all models were trained with.
fn tell_rwkv(
    source: &Source<'_>,
    has: &dyn Fn(&str) -> bool,
    tell: &mut dyn FnMut(&str, Value),
) -> Result<(), ConfigError> {
    for (name, key, most) in [
        ("head_dim", "wkv.head_size", limits::STATE_HEAD_DIM),
        ("decay_low_rank_dim", "attention.decay_lora_rank", limits::MODEL_WIDTH),
        ("a_low_rank_dim", "attention.iclr_lora_rank", limits::MODEL_WIDTH),
        ("v_low_rank_dim", "attention.value_residual_mix_lora_rank", limits::MODEL_WIDTH),
        ("gate_low_rank_dim", "attention.gate_lora_rank", limits::MODEL_WIDTH),
    ] {
        tell(name, Value::from(source.get(key).count(most)?));
    }
    let (size, width) = (source.get("wkv.head_size"), source.get("embedding_length"));
    let width = width.count(limits::MODEL_WIDTH)?;
    if !width.is_multiple_of(size.count(limits::STATE_HEAD_DIM)?) {
        return Err(size.error(format!("a divisor of the width {width}")));
    }
    tell("norm_bias", Value::from(has("attn_norm.bias")));
    tell("head_norm_eps_is_fixed", Value::from(true));
    Ok(())
}

/// Fields of a config for heads of keys and of values, their sizes, and taps.
const DELTA: [&str; 5] = [
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];
const MAMBA: [&str; 5] =
    ["mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"];

/// Heads of keys and of values, elements of a key and of a value, and taps.
fn read_sizes(source: &Source<'_>) -> Result<[usize; 5], ConfigError> {
    let field = |key: &str| source.get(key);
    let n_key_heads = field("ssm.group_count").count(limits::STATE_HEADS)?;
    let values = field("ssm.time_step_rank");
    let n_value_heads = values.count(limits::STATE_HEADS)?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        return Err(values.error(format!("a multiple of the {n_key_heads} heads of keys")));
    }
    let inner = field("ssm.inner_size");
    let width = inner.count(limits::MODEL_WIDTH)?;
    let value_dim = width / n_value_heads;
    if !width.is_multiple_of(n_value_heads) || value_dim > limits::STATE_HEAD_DIM {
        let most = limits::STATE_HEAD_DIM;
        let expected = format!("{n_value_heads} heads of one size, at most {most}");
        return Err(inner.error(expected));
    }
    let key_dim = field("ssm.state_size").count(limits::STATE_HEAD_DIM)?;
    let taps = field("ssm.conv_kernel").count(limits::CONV_TAPS)?;
    Ok([n_key_heads, n_value_heads, key_dim, value_dim, taps])
}

/// A list with a number for each layer, in which 0 says that a layer has none.
struct PerLayer {
    /// The number of the layers that have one; null where none has.
    n: Value,
    /// The layers that have one.
    has: Vec<bool>,
}

/// A list of one number or 0 for each layer; `None` where the field is no list.
fn read_list(field: &Field<'_>, n_layers: usize) -> Result<Option<PerLayer>, ConfigError> {
    let Some(Value::Array(items)) = field.value() else { return Ok(None) };
    let expected = || format!("the same number or 0 for each of the {n_layers} layers");
    let numbers: Option<Vec<u64>> = items.iter().map(Value::as_u64).collect();
    let numbers = numbers.filter(|numbers| numbers.len() == n_layers);
    let Some(numbers) = numbers else { return Err(field.error(expected())) };
    let n = numbers.iter().copied().find(|n| *n > 0);
    if numbers.iter().any(|other| *other > 0 && Some(*other) != n) {
        return Err(field.error(expected()));
    }
    Ok(Some(PerLayer { n: Value::from(n), has: numbers.iter().map(|n| *n > 0).collect() }))
}

/// A list of true or false for each layer; `None` where there is no such field.
pub(super) fn read_flags(
    field: &Field<'_>,
    n_layers: usize,
) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(value) = field.value() else { return Ok(None) };
    let flags = value.as_array().and_then(|items| items.iter().map(Value::as_bool).collect());
    match flags.filter(|flags: &Vec<bool>| flags.len() == n_layers) {
        Some(flags) => Ok(Some(flags)),
        None => Err(field.error(format!("true or false for each of the {n_layers} layers"))),
    }
}
