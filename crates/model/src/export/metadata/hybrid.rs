//! Keys of hybrid models: which layers attend, and the sizes of what the other layers keep.

use pelton_tensor::{GgufArray, GgufValue};

use super::Keys;
use crate::arch::{
    ArchSpec, INTERVAL, Mixer, Recurrent, Rule, SelectionNorms, SelectiveScan, TimeMix,
};
use crate::files::ModelFiles;
use crate::rope::RopeSpec;

pub(super) fn write(files: &ModelFiles, spec: &ArchSpec, keys: &mut Keys) {
    if files.arch().has_interval() {
        intervals(spec, keys);
    }
    if let Some(mixer) = spec.layers.iter().map(|layer| &layer.mixer).find(|mixer| is_own(mixer)) {
        sizes(mixer, spec, keys);
    }
    match keys.arch {
        "granitehybrid" => keys.flag("rope.scaling.finetuned", !spec.ropes.is_empty()),
        "qwen35" | "qwen35moe" => sections(files, spec, keys),
        _ => {}
    }
}

/// Whether a mixer has keys that attention has not.
fn is_own(mixer: &Mixer) -> bool {
    !matches!(mixer, Mixer::Gqa(_) | Mixer::Mla(_) | Mixer::CrossAttention(_) | Mixer::Absent(_))
}

/// Which layers attend: every how many one does, where that says it, and a list.
fn intervals(spec: &ArchSpec, keys: &mut Keys) {
    let keeps: Vec<bool> =
        spec.layers.iter().map(|layer| layer.mixer.kept().state.is_some()).collect();
    let first = keeps.iter().position(|keeps| !keeps);
    let n = first.map_or(keeps.len() + 1, |layer| layer + 1);
    let is_regular = |(layer, keeps): (usize, &bool)| *keeps != (layer + 1).is_multiple_of(n);
    if keeps.iter().enumerate().all(is_regular) {
        keys.count(INTERVAL, n);
    }
    keys.own("attention.recurrent_layers", GgufValue::Array(GgufArray::Bool(keeps)));
}

/// Sizes of a mixer that is no attention.
fn sizes(mixer: &Mixer, spec: &ArchSpec, keys: &mut Keys) {
    match mixer {
        Mixer::Recurrent(recurrent) => of_recurrence(recurrent, keys),
        Mixer::Parallel(both) => of_recurrence(&both.recurrent, keys),
        Mixer::SelectiveScan(scan) => of_scan(scan, keys),
        Mixer::ShortConv(conv) => keys.count("shortconv.l_cache", conv.taps),
        Mixer::TimeMix(mix) => of_time_mix(mix, spec, keys),
        Mixer::ChannelMix(_)
        | Mixer::Gqa(_)
        | Mixer::Mla(_)
        | Mixer::CrossAttention(_)
        | Mixer::Absent(_) => {}
    }
}

fn of_recurrence(recurrent: &Recurrent, keys: &mut Keys) {
    keys.count("ssm.conv_kernel", recurrent.taps);
    if let Rule::ChannelDelta { .. } = recurrent.rule {
        return keys.count("kda.head_dim", recurrent.key_dim);
    }
    keys.count("ssm.state_size", recurrent.key_dim);
    keys.count("ssm.group_count", recurrent.n_key_heads);
    keys.count("ssm.time_step_rank", recurrent.n_value_heads);
    keys.count("ssm.inner_size", recurrent.value_width());
}

fn of_scan(scan: &SelectiveScan, keys: &mut Keys) {
    keys.count("ssm.conv_kernel", scan.taps);
    keys.count("ssm.state_size", scan.state_dim);
    keys.count("ssm.time_step_rank", scan.step_rank);
    keys.count("ssm.inner_size", scan.channels);
    if scan.norms != SelectionNorms::Weighted {
        keys.flag("ssm.dt_b_c_rms", scan.norms == SelectionNorms::Bare);
    }
}

fn of_time_mix(first: &TimeMix, spec: &ArchSpec, keys: &mut Keys) {
    let residual = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::TimeMix(mix) => mix.residual_rank,
        _ => None,
    });
    keys.count("wkv.head_size", first.head_dim);
    keys.count("attention.decay_lora_rank", first.decay_rank);
    keys.count("attention.iclr_lora_rank", first.rate_rank);
    // A model of one layer mixes in no values.
    let residual = residual.unwrap_or(first.rate_rank);
    keys.count("attention.value_residual_mix_lora_rank", residual);
    keys.count("attention.gate_lora_rank", first.gate_rank);
}

/// Pairs of a head that turn with time, height and width, which are one position in a text: a third
/// each where a config does not say.
fn sections(files: &ModelFiles, spec: &ArchSpec, keys: &mut Keys) {
    let n_pairs = spec.ropes.first().map_or(0, |rope: &RopeSpec| rope.rotary_dim / 2);
    let said = files.config().field("rope_parameters").get("mrope_section").value().cloned();
    let said = said.and_then(|list| serde_json::from_value::<Vec<u16>>(list).ok());
    let thirds = || [2, 1, 0].map(|rest| ((n_pairs + rest) / 3) as u16).to_vec();
    let mut sections = said.unwrap_or_else(thirds);
    sections.resize(4, 0);
    let list = sections.into_iter().map(i32::from).collect();
    keys.own("rope.dimension_sections", GgufValue::Array(GgufArray::I32(list)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use crate::config::parse_config;
    use serde_json::json;

    #[test]
    fn layers_that_attend_are_an_interval_where_they_are_regular_and_always_a_list() {
        let (full, linear) = ("full_attention", "linear_attention");
        for (kinds, expected) in [
            (vec![linear, full, linear, full], Some(2)),
            (vec![linear, linear, full, linear], Some(3)),
            (vec![full, full], Some(1)),
            (vec![linear, linear], Some(3)),
            (vec![full, linear, full], None),
            (vec![linear, full, full], None),
        ] {
            let config = json!({
                "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 64,
                "num_hidden_layers": kinds.len(), "layer_types": kinds, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128,
            });
            let config = parse_config(config.to_string().as_bytes()).expect("a config");
            let arch = arch::find(&config.architecture).expect("known");
            let spec = (arch.spec)(&config).expect("a spec");
            let mut keys = Keys { arch: "qwen35", list: Vec::new() };
            intervals(&spec, &mut keys);
            let find = |name: &str| {
                let name = format!("qwen35.{name}");
                keys.list.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
            };
            assert_eq!(find(INTERVAL), expected.map(GgufValue::U32), "{kinds:?}");
            let keeps = kinds.iter().map(|kind| *kind == linear).collect();
            let list = GgufValue::Array(GgufArray::Bool(keeps));
            assert_eq!(find("attention.recurrent_layers"), Some(list), "{kinds:?}");
        }
    }
}
