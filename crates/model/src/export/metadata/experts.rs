//! Keys of mixtures of experts.

use super::Keys;
use crate::arch::{ArchSpec, LayerSpec, Mixer, Mlp, Moe, Router, RouterScore};

/// Numbers by which files name the function of experts' scores.
const SOFTMAX: usize = 1;
const SIGMOID: usize = 2;

/// `is_kv_up_split` is of the family: its files say of dense models, too, what mixtures have.
pub(super) fn write(spec: &ArchSpec, is_kv_up_split: bool, keys: &mut Keys) {
    let n_dense = spec.layers.iter().take_while(|layer| !matches!(layer.mlp, Mlp::Moe(_))).count();
    let is_dense = |layer: &LayerSpec| matches!(layer.mlp, Mlp::Gated(_) | Mlp::Plain(_));
    let first = spec.layers.get(n_dense).map(|layer| &layer.mlp);
    let is_latent = matches!(spec.layers[0].mixer, Mixer::Mla(_));
    let Some(Mlp::Moe(Moe { router, expert, shared, weighs_input, latent_size, .. })) = first
    else {
        if is_latent && is_kv_up_split {
            keys.count("leading_dense_block_count", n_dense);
            keys.count("expert_feed_forward_length", spec.layers[0].mlp.intermediate_size());
            keys.count("expert_shared_count", 0);
        }
        return;
    };
    let Router { n_experts, top_k, score, groups, renormalized, scale } = router;
    keys.count("expert_count", *n_experts);
    keys.count("expert_used_count", *top_k);
    keys.count("expert_feed_forward_length", expert.intermediate_size);
    if let Some(shared) = shared {
        let (width, one) = (shared.mlp.intermediate_size, expert.intermediate_size);
        keys.count("expert_shared_feed_forward_length", width);
        if width.is_multiple_of(one) {
            keys.count("expert_shared_count", width / one);
        }
    } else {
        keys.count("expert_shared_count", 0);
    }
    keys.flag("expert_weights_norm", *renormalized);
    keys.float("expert_weights_scale", *scale);
    match score {
        RouterScore::Softmax => keys.count("expert_gating_func", SOFTMAX),
        RouterScore::Sigmoid => keys.count("expert_gating_func", SIGMOID),
        // Families have it whatever a file says.
        _ => {}
    }
    if let Some(width) = latent_size {
        keys.count("moe_latent_size", *width);
    }
    if let Some(groups) = groups {
        keys.count("expert_group_count", groups.n_groups);
        keys.count("expert_group_used_count", groups.top_groups);
    }
    // Either the first layers are dense, or all but those at a fixed interval; files of Llama 4
    // always give the interval.
    let has_late_dense = spec.layers[n_dense..].iter().any(is_dense);
    match has_late_dense || *weighs_input {
        false => keys.count("leading_dense_block_count", n_dense),
        true => keys.count("interleave_moe_layer_step", n_dense + 1),
    }
}
