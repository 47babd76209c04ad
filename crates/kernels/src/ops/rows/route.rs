//! Routers: which experts a row goes to, and how much each counts.
//!
//! ```text
//! scores    softmax over all experts, sigmoid of each, or the logits themselves
//! ranks     scores + correction where there is one or where groups are ranked by a sum,
//!           else the logits: they rank as scores do, without the ties of rounding
//! groups    each is ranked by its best expert, or by the sum of its two best; experts outside of
//!           the best groups are not chosen
//! choice    top_k times the best that is left
//! weights   scores of the chosen, or their softmax; over their sum, if asked; times the factor
//! ```
//!
//! **Canonical order.** Of equal ranks the lower index comes first; a NaN ranks below everything,
//! so there are always `top_k` distinct experts. Slots are in the order of choice, sums over
//! experts ascend from 0. Ranks are compared as integers that order like the floats (0 and -0 are
//! one), so a comparison is never undecided.
//!
//! `E` exponentials and `top_k E` comparisons per row: about 2 microseconds for 8 of 128, against
//! the megabytes that the experts read. Rows are shared by the team.

use pelton_base::{ExpertGroups, GroupRank, Router, RouterScore};

use crate::Cpu;
use crate::team::Parts;

/// Where a router writes its choice.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// `[m, top_k]`, in the order of choice.
    pub experts: &'a mut [u32],
    /// `[m, top_k]`.
    pub weights: &'a mut [f32],
}

/// Rank of an expert that may not be chosen any more; below that of any float.
const TAKEN: u32 = 0;

/// An integer that orders like `x`; every NaN is 1.
fn rank(x: f32) -> u32 {
    if x.is_nan() {
        return 1;
    }
    // Both zeros have one rank.
    let bits = (x + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    ordered.max(2)
}

/// Index of the greatest rank, the lowest one among equals.
fn best(ranks: &[u32]) -> usize {
    let greatest = ranks.iter().copied().fold(0, u32::max);
    ranks.iter().position(|rank| *rank == greatest).unwrap_or(0)
}

/// Softmax in place.
fn softmax(x: &mut [f32]) {
    let greatest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in &mut *x {
        *x = (*x - greatest).exp();
        sum += *x;
    }
    x.iter_mut().for_each(|x| *x /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Whether experts rank by scores, not by logits.
fn ranks_by_score(router: &Router, has_correction: bool) -> bool {
    has_correction || router.groups.is_some_and(|groups| groups.rank == GroupRank::TwoBest)
}

/// One row: `logits` become scores; `ranks` is scratch of the same length.
fn route_row(
    router: &Router,
    logits: &mut [f32],
    correction: Option<&[f32]>,
    ranks: &mut [u32],
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let by_score = ranks_by_score(router, correction.is_some());
    if !by_score {
        ranks.iter_mut().zip(&*logits).for_each(|(r, x)| *r = rank(*x));
    }
    match router.score {
        RouterScore::Softmax => softmax(logits),
        RouterScore::Sigmoid => logits.iter_mut().for_each(|x| *x = sigmoid(*x)),
        RouterScore::SoftmaxOfChosen => {}
    }
    let scores = &*logits;
    let corrected = |i: usize| scores[i] + correction.map_or(0.0, |correction| correction[i]);
    if by_score {
        ranks.iter_mut().enumerate().for_each(|(i, r)| *r = rank(corrected(i)));
    }
    if let Some(groups) = router.groups {
        strike_out(&groups, ranks, &corrected);
    }
    for (expert, weight) in experts.iter_mut().zip(&mut *weights) {
        let chosen = best(ranks);
        ranks[chosen] = TAKEN;
        (*expert, *weight) = (chosen as u32, scores[chosen]);
    }
    if router.score == RouterScore::SoftmaxOfChosen {
        softmax(weights);
    }
    if router.renormalized {
        let sum: f32 = weights.iter().sum();
        // Sigmoids may all be 0.
        weights.iter_mut().for_each(|weight| *weight /= sum + 1e-20);
    }
    weights.iter_mut().for_each(|weight| *weight *= router.scale);
}

/// Strikes out the experts of all but the best groups.
fn strike_out(all: &ExpertGroups, ranks: &mut [u32], score: &dyn Fn(usize) -> f32) {
    let size = ranks.len() / all.n_groups;
    // A group's rank, by its two best experts; of equal groups the first is kept.
    let rank_of = |ranks: &[u32], group: usize| {
        let own = &ranks[group * size..(group + 1) * size];
        let first = best(own);
        if all.rank == GroupRank::Best || size == 1 {
            return own[first];
        }
        let before = own[..first].iter().max();
        let after = own[first + 1..].iter().max();
        let second = before.max(after).copied().unwrap_or(TAKEN);
        let second = (0..size).find(|i| *i != first && own[*i] == second).unwrap_or(first);
        rank(score(group * size + first) + score(group * size + second))
    };
    // Groups go one by one, the last of the worst first, so that no list of them is needed.
    for _ in all.top_groups..all.n_groups {
        let mut worst: Option<(usize, u32)> = None;
        for group in 0..all.n_groups {
            let is_gone = ranks[group * size] == TAKEN;
            let rank = if is_gone { continue } else { rank_of(ranks, group) };
            if worst.is_none_or(|(_, lowest)| rank <= lowest) {
                worst = Some((group, rank));
            }
        }
        let Some((group, _)) = worst else { return };
        ranks[group * size..(group + 1) * size].fill(TAKEN);
    }
}

impl Cpu {
    /// Chooses experts and their weights for each row; `logits` are overwritten.
    ///
    /// # Shapes
    ///
    /// `logits`, `ranks` (scratch): `[m, n_experts]`; `correction`: `[n_experts]`, added to scores
    /// to rank by.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit.
    pub fn route(
        &self,
        router: &Router,
        logits: &mut [f32],
        correction: Option<&[f32]>,
        ranks: &mut [u32],
        Chosen { experts, weights }: Chosen<'_>,
    ) {
        let (n, k) = (router.n_experts, router.top_k);
        assert!((1..=n).contains(&k), "invariant: {k} of {n} experts");
        assert!(logits.len().is_multiple_of(n), "invariant: whole rows of logits");
        let m = logits.len() / n;
        assert_eq!(ranks.len(), m * n, "invariant: a rank per logit");
        assert_eq!([experts.len(), weights.len()], [m * k; 2], "invariant: top_k slots per row");
        if let Some(correction) = correction {
            assert_eq!(correction.len(), n, "invariant: a correction per expert");
        }
        if let Some(groups) = router.groups {
            let (n_groups, top) = (groups.n_groups, groups.top_groups);
            assert!(n_groups > 0 && n.is_multiple_of(n_groups), "invariant: groups of one size");
            assert!(top * (n / n_groups) >= k, "invariant: {top} groups have {k} experts");
        }
        let (logits, ranks) = (Parts::new(logits), Parts::new(ranks));
        let (experts, weights) = (Parts::new(experts), Parts::new(weights));
        self.for_each_part(m, n * (k + 8), |rows| {
            for row in rows {
                let (of_all, chosen) = (row * n..(row + 1) * n, row * k..(row + 1) * k);
                // SAFETY: each row belongs to one tile.
                let (logits, ranks, experts, weights) = unsafe {
                    (
                        logits.part(of_all.clone()),
                        ranks.part(of_all),
                        experts.part(chosen.clone()),
                        weights.part(chosen),
                    )
                };
                route_row(router, logits, correction, ranks, experts, weights);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, row_cpus};

    const PLAIN: Router = Router {
        n_experts: 4,
        top_k: 2,
        score: RouterScore::Softmax,
        groups: None,
        renormalized: false,
        scale: 1.0,
    };

    fn route(router: &Router, logits: &[f32], correction: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let mut results = Vec::new();
        for cpu in row_cpus() {
            let m = logits.len() / router.n_experts;
            let mut logits = logits.to_vec();
            let mut ranks = vec![0; logits.len()];
            let mut experts = vec![99; m * router.top_k];
            let mut weights = vec![9.0; m * router.top_k];
            let chosen = Chosen { experts: &mut experts, weights: &mut weights };
            cpu.route(router, &mut logits, correction, &mut ranks, chosen);
            results.push((experts, bits(&weights)));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        let (experts, weights) = results.remove(0);
        (experts, weights.into_iter().map(f32::from_bits).collect())
    }

    #[test]
    fn scores_and_weights_are_what_the_formulas_say() {
        let logits = [0.0_f32, 2.0, 1.0, -1.0];
        let sum: f32 = logits.iter().map(|x| x.exp()).sum();
        let (experts, weights) = route(&PLAIN, &logits, None);
        assert_eq!(experts, [1, 2]);
        let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        close(weights[0], 2_f32.exp() / sum);
        close(weights[1], 1_f32.exp() / sum);
        let chosen = Router { score: RouterScore::SoftmaxOfChosen, ..PLAIN };
        let of_chosen = route(&chosen, &logits, None).1;
        let renormalized = route(&Router { renormalized: true, ..PLAIN }, &logits, None).1;
        for (a, b) in of_chosen.iter().zip(&renormalized) {
            close(*a, *b);
        }
        let sigmoid = Router { score: RouterScore::Sigmoid, scale: 2.5, ..PLAIN };
        close(route(&sigmoid, &logits, None).1[1], 2.5 / (1.0 + (-1_f32).exp()));
    }

    #[test]
    fn a_correction_ranks_and_does_not_weigh() {
        let router = Router { score: RouterScore::Sigmoid, ..PLAIN };
        let (experts, weights) =
            route(&router, &[0.0, 2.0, 1.0, -1.0], Some(&[0.0, 0.0, 0.0, 5.0]));
        assert_eq!(experts, [3, 1]);
        assert!((weights[0] - 1.0 / (1.0 + 1_f32.exp())).abs() < 1e-6);
    }

    #[test]
    fn ties_go_to_the_lower_index_and_nan_comes_last() {
        assert_eq!(route(&PLAIN, &[1.0, 1.0, 1.0, 1.0], None).0, [0, 1]);
        assert_eq!(route(&PLAIN, &[-0.0, -1.0, 0.0, -1.0], None).0, [0, 2]);
        let nan = f32::NAN;
        assert_eq!(route(&PLAIN, &[nan, nan, f32::NEG_INFINITY, nan], None).0, [2, 0]);
        assert_eq!(route(&PLAIN, &[nan; 4], None).0, [0, 1]);
        // A sigmoid rounds both to 1; the logits still differ.
        let router = Router { score: RouterScore::Sigmoid, top_k: 1, ..PLAIN };
        assert_eq!(route(&router, &[20.0, 30.0, 0.0, 0.0], None).0, [1]);
    }

    #[test]
    fn groups_limit_the_choice() {
        let groups = |rank| Some(ExpertGroups { n_groups: 3, top_groups: 1, rank });
        let router = Router { n_experts: 6, groups: groups(GroupRank::Best), ..PLAIN };
        let logits = [0.0, 3.0, 2.0, 2.5, -1.0, 2.9];
        assert_eq!(route(&router, &logits, None).0, [1, 0]);
        let two = Router { groups: groups(GroupRank::TwoBest), ..router.clone() };
        let two = Router { score: RouterScore::Sigmoid, ..two };
        assert_eq!(route(&two, &logits, None).0, [3, 2]);
        let correction = [0.0, 0.0, 0.0, 0.0, 4.0, 0.0];
        assert_eq!(route(&two, &logits, Some(&correction)).0, [4, 5]);
        // Equal groups: the first is kept.
        assert_eq!(route(&router, &[1.0; 6], None).0, [0, 1]);
        assert_eq!(route(&two, &[1.0; 6], None).0, [0, 1]);
    }

    #[test]
    fn many_rows_are_routed_alike_by_every_team() {
        let mut random = Random::new(8);
        for rank in [GroupRank::Best, GroupRank::TwoBest] {
            let groups = Some(ExpertGroups { n_groups: 4, top_groups: 2, rank });
            let router = Router { n_experts: 64, top_k: 6, groups, ..PLAIN };
            let logits = random.normals(300 * 64);
            let (experts, weights) = route(&router, &logits, None);
            for (row, logits) in logits.chunks(64).enumerate() {
                let alone = route(&router, logits, None);
                assert_eq!(experts[row * 6..(row + 1) * 6], alone.0);
                assert_eq!(bits(&weights[row * 6..(row + 1) * 6]), bits(&alone.1));
            }
        }
    }
}
