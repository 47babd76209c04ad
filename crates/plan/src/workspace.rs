//! Memory beside weights and KV: rows between operations, and logits.

use pelton_model::layer::Mlp;
use pelton_model::{ArchSpec, Mixer};

/// Bytes of the rows that a step of `n_rows` tokens keeps between operations, and of the logits of
/// `n_logits` rows; all f32.
///
/// ```text
/// residual, norm, output of a mixer, that output after its norm     4 · hidden
/// queries, keys and values; output of attention                     one per distinct width
/// perceptron: gate and up, activated                                3 · widest (of an expert)
/// vectors of tokens for each layer, what they are made of           3 · all layers, and two of one
/// residual streams, and those that go on; two norms and two latents 2 · streams, and 2 · hidden
/// ```
pub fn workspace_bytes(spec: &ArchSpec, n_rows: usize, n_logits: usize) -> u64 {
    let distinct = |width: &dyn Fn(&Mixer) -> usize| {
        let mut widths: Vec<usize> = spec.layers.iter().map(|layer| width(&layer.mixer)).collect();
        widths.sort_unstable();
        widths.dedup();
        widths.iter().sum::<usize>()
    };
    let widest = spec.layers.iter().map(|layer| match &layer.mlp {
        Mlp::WithExperts(both) => {
            let of_experts = both.experts.expert.intermediate_size * both.experts.router.top_k;
            of_experts.max(both.mlp.intermediate_size)
        }
        Mlp::Moe(moe) => {
            let shared = moe.shared.as_ref().map_or(0, |shared| shared.mlp.intermediate_size);
            (moe.expert.intermediate_size * moe.router.top_k).max(shared)
        }
        mlp => mlp.intermediate_size(),
    });
    let row = 4 * spec.hidden_size
        + distinct(&|mixer| mixer.query_width())
        + distinct(&|mixer| mixer.out_width())
        + 3 * widest.max().unwrap_or(0)
        + spec.layer_inputs.map_or(0, |own| own.width * (3 * spec.layers.len() + 2))
        + spec.stream_row_elements();
    let rows = (row as u64).saturating_mul(n_rows as u64);
    let logits = (spec.vocab_size as u64).saturating_mul(n_logits as u64);
    rows.saturating_add(logits).saturating_mul(size_of::<f32>() as u64)
}
