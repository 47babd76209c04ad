//! Gemma 4, text models (Google, 2026): Gemma 3 with wider heads in layers without a window, values that are
//! normed and may be the projections of keys, last layers that read the keys and values of earlier ones,
//! and in the small models vectors of each token for every layer.
//!
//! ```text
//! layers  0 .. first - 1     store keys and values
//! layers  first .. n - 1     read those of the last storing layer of their kind: window, or all tokens
//! ```

use super::{
    Arch, ArchSpec, LayerInputs, Mlp, Part, Preset, QkNorm, Stored, Wiring, WithExperts, gemma,
};
use crate::config::{HfConfig, read_act};
use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec};
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Gemma4ForCausalLM"],
    model_types: &["gemma4_text"],
    gguf_names: &["gemma4"],
    spellings: &[("num_experts_per_tok", "top_k_experts")],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("hidden_activation", Preset::Text("gelu_pytorch_tanh")),
        ("head_dim", Preset::Number(256.0)),
        ("global_head_dim", Preset::Number(512.0)),
        ("sliding_window", Preset::Number(512.0)),
        ("hidden_size_per_layer_input", Preset::Number(256.0)),
    ],
    hf: Stored {
        names: &[
            (Part::AttentionPostNorm, "post_attention_layernorm"),
            (Part::MlpNorm, "pre_feedforward_layernorm"),
            (Part::MlpPostNorm, "post_feedforward_layernorm"),
            (Part::Router, "router.proj"),
            (Part::ExpertGateUp, "experts.gate_up_proj"),
            (Part::ExpertGate, "experts.*.gate_proj"),
            (Part::ExpertUp, "experts.*.up_proj"),
            (Part::ExpertDown, "experts.*.down_proj"),
        ],
        ..Stored::HF
    },
    spec,
    ..Arch::PLAIN
};

/// The text part of Gemma 4 Unified, which reads images and sounds without encoders.
pub(super) const UNIFIED: Arch = Arch {
    names: &["Gemma4UnifiedForCausalLM"],
    model_types: &["gemma4_unified_text"],
    gguf_names: &[],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("hidden_activation", Preset::Text("gelu_pytorch_tanh")),
        ("head_dim", Preset::Number(256.0)),
        ("global_head_dim", Preset::Number(512.0)),
        ("sliding_window", Preset::Number(1024.0)),
        ("hidden_size_per_layer_input", Preset::Number(0.0)),
    ],
    ..ARCH
};

/// Widest head.
const MOST_HEAD_DIM: usize = 1024;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let direction = cfg.field("use_bidirectional_attention");
    if !matches!(direction.text()?, None | Some("vision")) {
        return Err(direction.error("null or \"vision\", all that is supported"));
    }
    let mut spec = gemma::shared(cfg)?;
    let n_layers = cfg.num_hidden_layers;
    spec.set_windows(cfg, |layer| (layer + 1) % 6 != 0 && layer + 1 < n_layers);
    let has_window = |gqa: &super::Gqa| gqa.window.is_some();
    if spec.layers.last_mut().is_some_and(|layer| has_window(layer.gqa_mut())) {
        return Err(cfg.field("layer_types").error("\"full_attention\" in the last layer"));
    }
    set_heads(&mut spec, cfg)?;
    let first = share_pages(&mut spec, cfg, 0)?;
    if cfg.flag("use_double_wide_mlp", false)? {
        widen(&mut spec, first);
    }
    if cfg.flag("enable_moe_block", false)? {
        add_experts(&mut spec, cfg)?;
    }
    spec.layer_inputs = layer_inputs(cfg)?;
    spec.scales_layers = cfg.flag("has_layer_scalars", true)?;
    Ok(spec)
}

/// Heads, norms and rotations of layers with and without a window.
fn set_heads(spec: &mut ArchSpec, cfg: &HfConfig) -> Result<(), ConfigError> {
    let values_are_keys = cfg.flag("attention_k_eq_v", false)?;
    let (head_dim, n_kv_heads) = global_heads(spec, cfg, values_are_keys)?;
    // Defaults of the reference, for configs that say nothing.
    let is_said = cfg.field("rope_parameters").non_null().is_some() || cfg.local_rope.is_some();
    let usual = |theta, scaling| RopeSpec { theta, scaling, ..cfg.rope.clone() };
    let global = match is_said {
        true => cfg.rope.clone(),
        false => usual(1e6, RopeScaling::Proportional { turned: 0.25, factor: 1.0 }),
    };
    // The factors of LongRoPE are counted by the width of other heads.
    let is_long = matches!(global.scaling, RopeScaling::LongRope { .. });
    if is_long && head_dim != cfg.head_dim {
        let expected = "a scaling other than longrope, where heads have two widths";
        return Err(cfg.field("rope_parameters").error(expected));
    }
    let local = cfg.local_rope.clone().unwrap_or_else(|| usual(1e4, RopeScaling::Default));
    spec.ropes = vec![RopeSpec { rotary_dim: head_dim, ..global }, local];
    for layer in &mut spec.layers {
        layer.wiring = Wiring::SANDWICH;
        let gqa = layer.gqa_mut();
        gqa.scale = 1.0;
        gqa.qk_norm = Some(QkNorm::HeadRms);
        gqa.norms_values = true;
        gqa.rope = Some(usize::from(gqa.window.is_some()));
        if gqa.window.is_none() {
            (gqa.head_dim, gqa.n_kv_heads) = (head_dim, n_kv_heads);
            gqa.values_are_keys = values_are_keys;
        }
    }
    Ok(())
}

/// Width and number of the key/value heads of layers without a window: fields of the published configs, or
/// what newer ones say layer by layer.
fn global_heads(
    spec: &mut ArchSpec,
    cfg: &HfConfig,
    values_are_keys: bool,
) -> Result<(usize, usize), ConfigError> {
    let by_layer = cfg.field("per_layer_config");
    if by_layer.non_null().is_none() {
        let n_kv_heads = cfg.field("num_global_key_value_heads");
        let n_kv_heads = n_kv_heads.non_null().filter(|_| values_are_keys);
        return checked_heads(cfg, Some(&cfg.field("global_head_dim")), n_kv_heads);
    }
    let mut found = None;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let own = by_layer.get(&i.to_string());
        let fields = own.value().and_then(|value| value.as_object());
        let is_known = |name: &str| ["head_dim", "num_key_value_heads"].contains(&name);
        let has_window = layer.gqa_mut().window.is_some();
        if fields.is_some_and(|own| has_window || own.keys().any(|name| !is_known(name))) {
            let expected = "`head_dim` and `num_key_value_heads` alone, of layers without a window";
            return Err(own.error(expected));
        }
        if has_window {
            continue;
        }
        let [dim, n] = ["head_dim", "num_key_value_heads"].map(|name| own.get(name));
        let heads = checked_heads(cfg, dim.non_null(), n.non_null())?;
        if *found.get_or_insert(heads) != heads {
            return Err(own.error("the same heads in all layers without a window"));
        }
    }
    Ok(found.expect("invariant: the last layer has no window"))
}

/// These heads, or those of layers with a window where the fields say nothing.
fn checked_heads(
    cfg: &HfConfig,
    head_dim: Option<&Field<'_>>,
    n_kv_heads: Option<&Field<'_>>,
) -> Result<(usize, usize), ConfigError> {
    let n_heads = cfg.num_attention_heads;
    let dim = head_dim.map_or(Ok(cfg.head_dim), |field| field.count(MOST_HEAD_DIM))?;
    let n = n_kv_heads.map_or(Ok(cfg.num_key_value_heads), |field| field.count(n_heads))?;
    match (head_dim, n_kv_heads) {
        (Some(field), _) if !dim.is_multiple_of(2) => Err(field.error("heads of an even width")),
        (Some(field), _) if n_heads.saturating_mul(dim) > limits::MODEL_WIDTH => {
            let most = limits::MODEL_WIDTH;
            Err(field.error(format!("at most {most} elements in all query heads")))
        }
        (_, Some(field)) if !n_heads.is_multiple_of(n) => {
            Err(field.error(format!("a divisor of the {n_heads} query heads")))
        }
        _ => Ok((dim, n)),
    }
}

/// Lets the last layers read the keys and values of earlier ones, `usual` layers where the config does not
/// say how many. Gives the first of them.
pub(super) fn share_pages(
    spec: &mut ArchSpec,
    cfg: &HfConfig,
    usual: usize,
) -> Result<usize, ConfigError> {
    let n_layers = spec.layers.len();
    let field = cfg.field("num_kv_shared_layers");
    let n_shared = match field.non_null() {
        Some(field) => field.integer(0, n_layers - 1)?,
        None => usual,
    };
    let first = n_layers - n_shared;
    for i in first..n_layers {
        let window = spec.layers[i].gqa_mut().window;
        let mut before = (0..first).rev();
        let source = before.find(|layer| spec.layers[*layer].gqa_mut().window == window);
        let Some(source) = source else {
            let kind = if window.is_some() { "with a window" } else { "without a window" };
            let most = "so few that a layer";
            return Err(field.error(format!("{most} {kind} before them stores keys and values")));
        };
        spec.layers[i].gqa_mut().kv_of = Some(source);
    }
    Ok(first)
}

/// Doubles the perceptrons of the layers from `first` on.
fn widen(spec: &mut ArchSpec, first: usize) {
    for layer in &mut spec.layers[first..] {
        if let Mlp::Gated(mlp) = &mut layer.mlp {
            mlp.intermediate_size *= 2;
        }
    }
}

/// Puts experts beside the perceptrons of all layers.
fn add_experts(spec: &mut ArchSpec, cfg: &HfConfig) -> Result<(), ConfigError> {
    let n_experts = cfg.field("num_experts").count(limits::MODEL_WIDTH)?;
    if let Some(top_k) = cfg.field("top_k_experts").non_null() {
        top_k.count(n_experts)?;
    }
    let mut experts = cfg.moe()?;
    experts.router.renormalized = true;
    experts.has_scales = true;
    experts.expert.act = read_act(&cfg.field("hidden_activation"))?;
    for layer in &mut spec.layers {
        if let Mlp::Gated(mlp) = &layer.mlp {
            let (mlp, experts) = (mlp.clone(), experts.clone());
            layer.mlp = Mlp::WithExperts(WithExperts { mlp, experts });
        }
    }
    Ok(())
}

/// Vectors of each token for every layer; a width of 0 stands for none.
fn layer_inputs(cfg: &HfConfig) -> Result<Option<LayerInputs>, ConfigError> {
    let width = cfg.field("hidden_size_per_layer_input").integer(0, limits::MODEL_WIDTH)?;
    if width == 0 {
        return Ok(None);
    }
    let rows_field = cfg.field("vocab_size_per_layer_input");
    let n_rows = match rows_field.non_null() {
        Some(field) => field.count(limits::MODEL_VOCAB)?,
        None => cfg.vocab_size,
    };
    if n_rows < cfg.vocab_size {
        let vocab = cfg.vocab_size;
        return Err(rows_field.error(format!("at least a row for each of the {vocab} tokens")));
    }
    let act = read_act(&cfg.field("hidden_activation"))?;
    Ok(Some(LayerInputs { width, n_rows, act }))
}
