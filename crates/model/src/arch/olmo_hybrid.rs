//! OLMo-hybrid (Ai2, 2026): three layers of Gated DeltaNet for each of OLMo 3's attention. The part
//! that the delta rule forgets may change its sign (`linear_allow_neg_eigval`); layers with a state
//! have norms before their mixers, layers with attention after them; published models rotate
//! nothing.

use super::{
    Arch, ArchSpec, Gate, LayerSpec, Mixer, Part, Preset, QkNorm, Recurrent, Rule, Stored,
    ValueHeads, Wiring, llama,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["OlmoHybridForCausalLM"],
    model_types: &["olmo_hybrid"],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-6)),
        ("linear_conv_kernel_dim", Preset::Number(4.0)),
        ("linear_allow_neg_eigval", Preset::Flag(true)),
    ],
    layer_kinds: &["linear_attention"],
    hf: Stored {
        names: &[
            (Part::AttentionNorm, "attention_layer_norm"),
            (Part::AttentionNorm, "input_layernorm"),
            (Part::MlpNorm, "feedforward_layer_norm"),
            (Part::MlpNorm, "post_attention_layernorm"),
            (Part::AttentionPostNorm, "post_attention_layernorm"),
            (Part::MlpPostNorm, "post_feedforward_layernorm"),
            (Part::RecurrentGate, "linear_attn.g_proj"),
            (Part::RecurrentBeta, "linear_attn.b_proj"),
            (Part::RecurrentDecay, "linear_attn.a_proj"),
            (Part::GatedNorm, "linear_attn.o_norm"),
            (Part::RecurrentOut, "linear_attn.o_proj"),
        ],
        ..Stored::HF
    },
    spec,
    ..Arch::PLAIN
};

/// Added to the mean square in the norm of a recurrence's output, whatever other norms add.
const GATED_NORM_EPS: f32 = 1e-5;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_silu()?;
    let mut spec = llama::spec(cfg)?;
    let delta = Mixer::Recurrent(delta(cfg)?);
    let rotates = rotates(cfg);
    if !rotates {
        spec.ropes.clear();
    }
    let attends = cfg.attending_layers(|layer, n| {
        // There is a layer with attention in a model of fewer than four layers, too.
        (layer + 1).is_multiple_of(4) || (n < 4 && layer + 1 == n)
    })?;
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        if !attends {
            *layer = LayerSpec { mixer: delta.clone(), ..layer.clone() };
            continue;
        }
        layer.wiring = Wiring::POST;
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::WholeRms);
        gqa.rope = rotates.then_some(0);
    }
    Ok(spec)
}

/// Whether the config has the base of a rotation.
fn rotates(cfg: &HfConfig) -> bool {
    let theta = "rope_theta";
    let tables = ["rope_parameters", "rope_scaling"].map(|table| cfg.field(table).get(theta));
    tables.iter().chain([&cfg.field(theta)]).any(|field| field.non_null().is_some())
}

/// The recurrence of layers without attention; sizes that the config does not say follow from those of
/// attention.
fn delta(cfg: &HfConfig) -> Result<Recurrent, ConfigError> {
    let size = |name: &str, usual: usize, most: usize| {
        let field = cfg.field(name);
        let said = field.non_null().map_or(Ok(usual), |field| field.count(most))?;
        match (1..=most).contains(&said) {
            true => Ok(said),
            false => Err(field.error(format!("1 to {most}, which {said} is not"))),
        }
    };
    let n_heads = cfg.num_attention_heads;
    let n_key_heads = size("linear_num_key_heads", n_heads, limits::STATE_HEADS)?;
    let n_value_heads = size("linear_num_value_heads", n_heads, limits::STATE_HEADS)?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        let field = cfg.field("linear_num_value_heads");
        return Err(field.error(format!("a multiple of the {n_key_heads} heads of keys")));
    }
    let usual = 3 * cfg.hidden_size / (4 * n_key_heads);
    let key_dim = size("linear_key_head_dim", usual, limits::STATE_HEAD_DIM)?;
    let value_dim = size("linear_value_head_dim", 2 * key_dim, limits::STATE_HEAD_DIM)?;
    Ok(Recurrent {
        n_key_heads,
        n_value_heads,
        order: ValueHeads::Grouped,
        key_dim,
        value_dim,
        taps: cfg.field("linear_conv_kernel_dim").count(limits::CONV_TAPS)?,
        rule: Rule::Delta {
            beta_scale: if cfg.flag("linear_allow_neg_eigval", true)? { 2.0 } else { 1.0 },
        },
        conv_bias: false,
        bias: false,
        out_bias: false,
        has_skip: false,
        gate: Gate::AfterNorm,
        norm_eps: GATED_NORM_EPS,
    })
}

#[cfg(test)]
mod tests {
    use crate::arch::{ArchSpec, Mixer};
    use crate::config::parse_config;
    use crate::fields::ConfigError;
    use crate::layer::Rule;
    use serde_json::{Value, json};

    /// The spec of a small config with these fields.
    fn spec(changes: Value) -> Result<ArchSpec, ConfigError> {
        let mut config = json!({
            "architectures": ["OlmoHybridForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
            "intermediate_size": 64, "max_position_embeddings": 128,
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(changes.as_object().expect("an object").clone());
        parse_config(config.to_string().as_bytes()).and_then(|config| (super::ARCH.spec)(&config))
    }

    fn error(changes: Value) -> String {
        spec(changes).map(drop).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn only_a_config_with_a_base_rotates_and_sizes_follow_from_those_of_attention() {
        let rope = |changes| {
            let spec = spec(changes).expect("a spec");
            let Mixer::Gqa(gqa) = &spec.layers[1].mixer else { panic!("the last layer attends") };
            (gqa.rope, spec.ropes.len())
        };
        assert_eq!(rope(json!({})), (None, 0));
        assert_eq!(rope(json!({"rope_parameters": {"rope_theta": null}})), (None, 0));
        assert_eq!(rope(json!({"rope_parameters": {"rope_theta": 5e5}})), (Some(0), 1));
        assert_eq!(rope(json!({"rope_theta": 5e5})), (Some(0), 1));
        let delta = |changes| {
            let spec = spec(changes).expect("a spec");
            let Mixer::Recurrent(delta) = &spec.layers[0].mixer else { panic!("a recurrence") };
            delta.clone()
        };
        let usual = delta(json!({}));
        let sizes = [usual.n_key_heads, usual.n_value_heads, usual.key_dim, usual.value_dim];
        assert_eq!((sizes, usual.rule), ([4, 4, 12, 24], Rule::Delta { beta_scale: 2.0 }));
        let positive = delta(json!({"linear_allow_neg_eigval": false}));
        assert_eq!(positive.rule, Rule::Delta { beta_scale: 1.0 });
    }

    #[test]
    fn heads_states_and_layers_that_do_not_fit_are_named() {
        assert_eq!(error(json!({})), "");
        for (changes, words) in [
            (json!({"linear_num_value_heads": 6}), "a multiple of the 4 heads of keys"),
            (json!({"linear_num_key_heads": 0}), "`linear_num_key_heads`"),
            (json!({"linear_num_key_heads": 64, "linear_num_value_heads": 64}), "which 0 is not"),
            (json!({"linear_key_head_dim": 600}), "`linear_value_head_dim`"),
            (json!({"linear_conv_kernel_dim": 0}), "`linear_conv_kernel_dim`"),
            (json!({"linear_allow_neg_eigval": "yes"}), "`linear_allow_neg_eigval`"),
            (json!({"layer_types": ["linear_attention"]}), "each of the 2 layers"),
            (json!({"layer_types": ["linear_attention", "sliding_attention"]}), "`layer_types`"),
            (json!({"hidden_act": "relu"}), "`hidden_act`"),
        ] {
            let error = error(changes.clone());
            assert!(error.contains(words), "{changes}: {error}");
        }
    }
}
