//! Mixtures of experts, one row at a time (Shazeer et al., 2017).

use pelton_model::arch::{ExpertGroups, GroupRank, Router, RouterScore};
use pelton_model::layer::{Module, Moe, MoeWeights, Norm, WithExperts, WithExpertsWeights};

use super::PlainDevice;
use super::ops::{activate, linear_row, perceptron, rms_norm};

fn softmax(x: &[f32]) -> Vec<f32> {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = x.iter().map(|x| (x - most).exp()).sum();
    x.iter().map(|x| (x - most).exp() / total).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The `n` greatest, the greatest first; of equals the lower index.
fn top(x: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    order.truncate(n);
    order
}

/// Which experts may be chosen: those of the best groups.
fn is_allowed(groups: &ExpertGroups, ranks: &[f32]) -> Vec<bool> {
    let size = ranks.len() / groups.n_groups;
    let n_summed = match groups.rank {
        GroupRank::Best => 1,
        GroupRank::TwoBest => 2,
    };
    let rank = |own: &[f32]| top(own, n_summed).into_iter().map(|i| own[i]).sum();
    let of_groups: Vec<f32> = ranks.chunks_exact(size).map(rank).collect();
    let kept = top(&of_groups, groups.top_groups);
    (0..ranks.len()).map(|expert| kept.contains(&(expert / size))).collect()
}

/// The experts of a row and their weights.
fn route(router: &Router, logits: &[f32], correction: Option<&[f32]>) -> Vec<(usize, f32)> {
    let scores = match router.score {
        RouterScore::Softmax => softmax(logits),
        RouterScore::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
        RouterScore::SoftmaxOfChosen => logits.to_vec(),
    };
    let mut ranks: Vec<f32> = scores.clone();
    if let Some(correction) = correction {
        ranks.iter_mut().zip(correction).for_each(|(rank, x)| *rank += x);
    }
    if let Some(groups) = &router.groups {
        let allowed = is_allowed(groups, &ranks);
        for (rank, _) in ranks.iter_mut().zip(allowed).filter(|(_, allowed)| !allowed) {
            *rank = f32::NEG_INFINITY;
        }
    }
    let chosen = top(&ranks, router.top_k);
    let mut weights: Vec<f32> = chosen.iter().map(|&expert| scores[expert]).collect();
    if router.score == RouterScore::SoftmaxOfChosen {
        weights = softmax(&weights);
    }
    if router.renormalized {
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    chosen.into_iter().zip(weights.into_iter().map(|weight| weight * router.scale)).collect()
}

/// The weighted sum of what the experts of a row make of it, and what is shared; the router reads a row of
/// its own.
pub(super) fn mixture(
    spec: &Moe,
    moe: &MoeWeights<PlainDevice>,
    [routed, x]: [&[f32]; 2],
) -> Vec<f32> {
    let logits = linear_row(&moe.router, routed);
    let latent = moe.latent.as_ref().map(|[down, _]| linear_row(down, x));
    let width = spec.expert_width(x.len());
    let mut out = vec![0.0; width];
    for (expert, weight) in route(&spec.router, &logits, moe.correction.as_deref()) {
        let weight = weight * moe.scales.as_ref().map_or(1.0, |scales| scales[expert]);
        let expert = &moe.experts[expert];
        let (in_factor, out_factor) = if spec.weighs_input { (weight, 1.0) } else { (1.0, weight) };
        let input: Vec<f32> =
            latent.as_deref().unwrap_or(x).iter().map(|x| x * in_factor).collect();
        let hidden = linear_row(&expert.up, &input);
        let (gates, ups) = hidden.split_at(hidden.len() / 2);
        let product = |(gate, up): (&f32, &f32)| match spec.limit {
            None => activate(spec.expert.act, *gate) * up,
            Some(limit) => {
                activate(spec.expert.act, gate.min(limit)) * (up.clamp(-limit, limit) + 1.0)
            }
        };
        let hidden: Vec<f32> = match spec.has_gates {
            true => gates.iter().zip(ups).map(product).collect(),
            false => hidden.iter().map(|x| activate(spec.expert.act, *x)).collect(),
        };
        let given = linear_row(&expert.down, &hidden);
        out.iter_mut().zip(given).for_each(|(out, x)| *out += out_factor * x);
    }
    if let Some([_, up]) = &moe.latent {
        out = linear_row(up, &out);
    }
    if let Some(Module { spec: own, weights: shared }) = &moe.shared {
        let given = perceptron(&shared.mlp, (own.mlp.act, spec.has_gates, None), x);
        let factor = shared.switch.as_ref().map_or(1.0, |switch| sigmoid(linear_row(switch, x)[0]));
        out.iter_mut().zip(given).for_each(|(out, x)| *out += factor * x);
    }
    out
}

/// A perceptron and experts, each between its norms.
pub(super) fn side_by_side(
    both: &Module<WithExperts, WithExpertsWeights<PlainDevice>>,
    x: &[f32],
) -> Vec<f32> {
    let Module { spec, weights } = both;
    let norm = |x: &[f32], norm: &Norm<PlainDevice>| rms_norm(x, &norm.weight, norm.eps);
    let [mlp_in, mlp_out] = &weights.mlp_norms;
    let [experts_in, experts_out] = &weights.expert_norms;
    let given = perceptron(&weights.mlp, spec.mlp.shape(), &norm(x, mlp_in));
    let rows = [&norm(x, &weights.router_norm)[..], &norm(x, experts_in)];
    let by_experts = mixture(&spec.experts, &weights.experts, rows);
    let sums = norm(&given, mlp_out).into_iter().zip(norm(&by_experts, experts_out));
    sums.map(|(a, b)| a + b).collect()
}
