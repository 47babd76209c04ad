//! Keys of attention.
//!
//! Latent attention has two spellings. Files with `attn_k_b` and `attn_v_b` describe the cache (one
//! head of keys that hold their values) under the usual names and the widths of heads under names
//! of their own; files with `attn_kv_b` describe the widths of heads under the usual names.

use pelton_tensor::{GgufArray, GgufValue};

use super::Keys;
use crate::arch::{Arch, ArchSpec, Gqa, LayerSpec, Mixer, Mla};
use crate::rope::RopeScaling;

/// The attention of a layer.
enum Attention<'s> {
    Grouped(&'s Gqa),
    Latent(&'s Mla),
}

impl<'s> Attention<'s> {
    /// The attention of this mixer, where it has any.
    fn of(mixer: &'s Mixer) -> Option<Self> {
        match mixer {
            Mixer::Gqa(gqa) => Some(Self::Grouped(gqa)),
            Mixer::Parallel(both) => Some(Self::Grouped(&both.attention)),
            Mixer::Mla(mla) => Some(Self::Latent(mla)),
            // A family of models with encoders is not written.
            Mixer::CrossAttention(_)
            | Mixer::SelectiveScan(_)
            | Mixer::Recurrent(_)
            | Mixer::ShortConv(_)
            | Mixer::TimeMix(_)
            | Mixer::ChannelMix(_)
            | Mixer::Absent(_) => None,
        }
    }
}

pub(super) fn write(spec: &ArchSpec, arch: &Arch, keys: &mut Keys) {
    let mut layers = spec.layers.iter().map(|layer| Attention::of(&layer.mixer));
    let n_kv_heads = match layers.find_map(|attention| attention) {
        Some(Attention::Grouped(gqa)) => {
            keys.count("attention.head_count", gqa.n_heads);
            grouped(spec, arch, gqa, keys);
            gqa.n_kv_heads
        }
        Some(Attention::Latent(mla)) => {
            keys.count("attention.head_count", mla.n_heads);
            latent(spec, mla, arch.gguf.is_kv_up_split, keys);
            if arch.gguf.is_kv_up_split { 1 } else { mla.n_heads }
        }
        None => return keys.count("attention.head_count", 0),
    };
    // A list says which layers attend.
    let attends = |layer: &LayerSpec| Attention::of(&layer.mixer).is_some();
    match arch.has_interval() || spec.layers.iter().all(attends) {
        true => keys.count("attention.head_count_kv", n_kv_heads),
        false => {
            let heads = |layer| if attends(layer) { n_kv_heads } else { 0 };
            keys.counts("attention.head_count_kv", spec.layers.iter().map(heads));
        }
    }
}

fn grouped(spec: &ArchSpec, arch: &Arch, gqa: &Gqa, keys: &mut Keys) {
    keys.count("attention.key_length", gqa.head_dim);
    keys.count("attention.value_length", gqa.head_dim);
    keys.count("rope.dimension_count", spec.ropes.first().map_or(gqa.head_dim, |r| r.rotary_dim));
    if gqa.scale != (gqa.head_dim as f32).sqrt().recip() {
        keys.float("attention.scale", gqa.scale);
    }
    let all = || {
        spec.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Gqa(gqa) => Some(gqa),
            _ => None,
        })
    };
    let has_window = |gqa: &Gqa| gqa.window.or(gqa.segment).is_some();
    if let Some(window) = all().find_map(|gqa| gqa.window.or(gqa.segment)) {
        keys.count("attention.sliding_window", window);
        let windows: Vec<bool> = all().map(has_window).collect();
        let period = 1 + windows.iter().take_while(|has_window| **has_window).count();
        let is_regular = (windows.iter().enumerate())
            .all(|(layer, has_window)| *has_window == ((layer + 1) % period != 0));
        if is_regular && arch.has_default("sliding_window_pattern") {
            keys.count("attention.sliding_window_pattern", period);
        } else if windows.contains(&false) {
            let pattern = GgufValue::Array(GgufArray::Bool(windows));
            keys.own("attention.sliding_window_pattern", pattern);
        }
    }
    if let Some(clip) = all().find_map(|gqa| gqa.clip) {
        keys.float("attention.clamp_kqv", clip);
    }
    if let Some(temperature) = all().find_map(|gqa| gqa.temperature) {
        keys.count("attention.temperature_length", temperature.step);
        keys.float("attention.temperature_scale", temperature.factor);
    }
}

fn latent(spec: &ArchSpec, mla: &Mla, is_kv_up_split: bool, keys: &mut Keys) {
    let (key, value) = (mla.nope_dim + mla.rope_dim, mla.value_dim);
    if let Some(rank) = mla.q_rank {
        keys.count("attention.q_lora_rank", rank);
    }
    keys.count("attention.kv_lora_rank", mla.kv_rank);
    keys.count("rope.dimension_count", mla.rope_dim);
    if is_kv_up_split {
        keys.count("attention.key_length", mla.key_dim());
        keys.count("attention.value_length", mla.kv_rank);
        keys.count("attention.key_length_mla", key);
        keys.count("attention.value_length_mla", value);
    } else {
        keys.count("attention.key_length", key);
        keys.count("attention.value_length", value);
    }
    let scaling = spec.ropes.first().map(|rope| &rope.scaling);
    if let Some(RopeScaling::Yarn(yarn)) = scaling
        && let Some(weight) = yarn.mscale_all_dim
    {
        keys.float("rope.scaling.yarn_log_multiplier", (0.1 * weight) as f32);
    }
}
