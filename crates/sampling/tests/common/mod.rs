//! What several files of tests look at.

use pelton_base::SamplingParams;
use pelton_sampling::Philox;

/// Uniform in [-scale, scale), from the generator under test with a key no test samples with.
pub(crate) fn random_logits(n: usize, scale: f32, seed: u64) -> Vec<f32> {
    let rng = Philox::new(seed, 99);
    (0..n).map(|i| (rng.uniform(i as u64) as f32 * 2.0 - 1.0) * scale).collect()
}

/// The probabilities that the parameters ask for, after the processors: sorted, cut, renormalised, all
/// in f64.
pub(crate) fn oracle(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = f64::from(logits[order[0]]);
    let temperature = f64::from(params.temperature);
    let weight = |id: usize| ((f64::from(logits[id]) - max) / temperature).exp();
    if params.is_greedy() {
        return (0..logits.len()).map(|id| if id == order[0] { 1.0 } else { 0.0 }).collect();
    }
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut sum = 0.0;
    let n_kept = order.iter().position(|&id| {
        sum += weight(id);
        sum >= f64::from(params.top_p) * total
    });
    order.truncate(n_kept.map_or(order.len(), |idx| idx + 1));
    order.retain(|&id| weight(id) >= f64::from(params.min_p));
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut probabilities = vec![0.0; logits.len()];
    for id in order {
        probabilities[id] = weight(id) / total;
    }
    probabilities
}
