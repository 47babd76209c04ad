//! Llama 4, text models (Meta, 2025): experts at a fixed interval of layers, each weighing its
//! input by a sigmoid; attention in segments where it is rotated, and over everything where it is
//! not.

use super::{
    Arch, ArchSpec, Experts, GateUp, GatedMlp, Mlp, Part, Preset, QkNorm, RouterScore,
    SharedExpert, Stored, Temperature, llama,
};
use crate::config::{HfConfig, Window};
use crate::fields::{ConfigError, Field};
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Llama4ForCausalLM"],
    model_types: &["llama4_text"],
    gguf_names: &["llama4"],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("num_experts_per_tok", Preset::Number(1.0)),
        ("interleave_moe_layer_step", Preset::Number(1.0)),
        ("attention_chunk_size", Preset::Number(8192.0)),
        ("use_qk_norm", Preset::Flag(true)),
        ("attn_temperature_tuning", Preset::Flag(true)),
        ("floor_scale", Preset::Number(8192.0)),
        ("attn_scale", Preset::Number(0.1)),
        ("no_rope_layer_interval", Preset::Number(4.0)),
    ],
    hf: Stored {
        names: &[
            (Part::Gate, "feed_forward.gate_proj"),
            (Part::Up, "feed_forward.up_proj"),
            (Part::Down, "feed_forward.down_proj"),
            (Part::Router, "feed_forward.router"),
            (Part::ExpertGateUp, "feed_forward.experts.gate_up_proj"),
            (Part::ExpertGate, "feed_forward.experts.*.gate_proj"),
            (Part::ExpertUp, "feed_forward.experts.*.up_proj"),
            (Part::ExpertDown, "feed_forward.experts.*.down_proj"),
            (Part::SharedGate, "feed_forward.shared_expert.gate_proj"),
            (Part::SharedUp, "feed_forward.shared_expert.up_proj"),
            (Part::SharedDown, "feed_forward.shared_expert.down_proj"),
        ],
        is_in_pairs: true,
        experts: Experts { gate_up: GateUp::Stacked, is_transposed: true },
        ..Stored::HF
    },
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    written_as: Some("llama4"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mut moe = cfg.moe()?;
    moe.router.score = RouterScore::Sigmoid;
    moe.weighs_input = true;
    moe.shared = Some(SharedExpert { mlp: moe.expert.clone(), is_gated: false });
    let dense =
        GatedMlp { intermediate_size: cfg.width("intermediate_size_mlp")?, ..moe.expert.clone() };
    for layer in &mut spec.layers {
        layer.mlp = Mlp::Gated(dense.clone());
    }
    let has_experts = expert_layers(cfg)?;
    spec.set_moe(&moe, |layer| has_experts[layer]);

    let is_rotated = rotated_layers(cfg)?;
    let segment = match cfg.sliding_window {
        // As GGUF files call it.
        Window::Tokens(n) => n,
        _ => cfg.field("attention_chunk_size").count(limits::MODEL_CONTEXT)?,
    };
    let qk_norm = cfg.flag("use_qk_norm", true)?.then_some(QkNorm::HeadRmsBare);
    let temperature = match cfg.flag("attn_temperature_tuning", true)? {
        true => Some(Temperature {
            factor: cfg.number("attn_scale", 0.1, [0.0, 1e3])?,
            step: cfg.field("floor_scale").count(limits::MODEL_CONTEXT)?,
        }),
        false => None,
    };
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let gqa = layer.gqa_mut();
        match is_rotated[i] {
            true => gqa.qk_norm = qk_norm,
            false => (gqa.rope, gqa.temperature) = (None, temperature),
        }
        let is_cut = cfg.sliding_layers.as_ref().map_or(is_rotated[i], |list| list[i]);
        gqa.segment = is_cut.then_some(segment);
    }
    Ok(spec)
}

/// The layers with experts: those in `moe_layers`, or every `interleave_moe_layer_step`-th.
fn expert_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    let n_layers = cfg.num_hidden_layers;
    let list = cfg.field("moe_layers");
    let Some(items) = list.value() else {
        let step = cfg.field("interleave_moe_layer_step").count(limits::MODEL_LAYERS)?;
        return Ok((1..=n_layers).map(|i| i.is_multiple_of(step)).collect());
    };
    let mut has_experts = vec![false; n_layers];
    let expected = || list.error(format!("a list of layers below {n_layers}"));
    for item in items.as_array().ok_or_else(expected)? {
        has_experts[Field::new("moe_layers", Some(item)).integer(0, n_layers - 1)?] = true;
    }
    Ok(has_experts)
}

/// The layers that rotate, which `no_rope_layers` lists with a 1.
fn rotated_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    let n_layers = cfg.num_hidden_layers;
    let list = cfg.field("no_rope_layers");
    if list.value().is_some_and(|list| list.as_array().is_none_or(|list| !list.is_empty())) {
        let flags = list.numbers(n_layers, 0.0, 1.0)?;
        return Ok(flags.into_iter().map(|flag| flag != 0.0).collect());
    }
    let step = cfg.field("no_rope_layer_interval").count(limits::MODEL_LAYERS)?;
    Ok((1..=n_layers).map(|i| !i.is_multiple_of(step)).collect())
}
