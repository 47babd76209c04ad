//! A model over several machines of one kind, its matrices split by outputs.
//!
//! ```text
//! queries, keys, values   by heads        each rank has the keys and values of its heads
//! every other matrix      by outputs      each output keeps its one sum over ascending inputs
//! sent per layer          output of attention, of its projection, of gate and up, of down:
//!                         each rank receives (n - 1) / n of each
//! ```
//!
//! So every output has the same terms in the same order on any number of ranks. The usual split, with
//! two sums over ranks per layer, sends about half as much and rounds differently on each number of ranks.

use pelton_model::ArchSpec;
use pelton_model::layer::Mlp;
use serde::Serialize;

use crate::hardware::Hardware;
use crate::kv::KvSizes;
use crate::weights::WeightSizes;

/// Sizes of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSizes {
    /// Machines that run the model together.
    pub n_ranks: usize,
    /// Bytes of weights of one rank: its part of each matrix, and all tables and vectors.
    pub weight_bytes: u64,
    /// Part of the keys and values that one rank holds; 1 where a token has one key for all heads.
    pub kv_share: f64,
    /// Elements that a rank receives per token.
    pub received_elements: f64,
}

impl RankSizes {
    pub(crate) fn new(spec: &ArchSpec, weights: &WeightSizes, n_ranks: usize) -> Self {
        let split = weights.multiplied().map(|m| m.n_bytes * m.shape.n_copies as f64).sum::<f64>();
        let kept = weights.n_bytes as f64 - split;
        let n_heads = spec.layers[0].mixer.kv_heads().n;
        let widths = spec.layers.iter().map(|layer| {
            let ffn = match &layer.mlp {
                Mlp::Moe(moe) => {
                    let shared = moe.shared.as_ref().map_or(0, |s| s.mlp.intermediate_size);
                    moe.expert.intermediate_size * moe.router.top_k + shared
                }
                mlp => mlp.intermediate_size(),
            };
            layer.mixer.out_width() + 2 * spec.hidden_size + ffn
        });
        let others = (n_ranks - 1) as f64 / n_ranks as f64;
        Self {
            n_ranks,
            weight_bytes: (kept + split / n_ranks as f64).round() as u64,
            kv_share: n_heads.div_ceil(n_ranks) as f64 / n_heads as f64,
            received_elements: widths.sum::<usize>() as f64 * others,
        }
    }

    /// Bytes of a pool of keys and values on one rank.
    pub(crate) fn kv_bytes(&self, kv: &KvSizes, n_sequences: usize) -> u64 {
        (kv.pool_bytes(n_sequences) as f64 * self.kv_share).ceil() as u64
    }

    /// Seconds in which the ranks send each other what `rows` tokens need.
    pub(crate) fn seconds(&self, rows: f64, hardware: &Hardware) -> f64 {
        let link = hardware.link_bandwidth.unwrap_or(f64::INFINITY);
        self.received_elements * rows * hardware.sent_bytes() as f64 / link
    }
}
