//! A model over several machines of one kind: its matrices split by outputs, its layers one machine
//! after the other, or its experts.
//!
//! ```text
//! outputs    queries, keys, values   by heads     each rank has the keys and values of its heads
//!            every other matrix      by outputs   each output keeps its one sum
//!            sent per layer          output of attention, of its projection, of gate and up, of
//!                                    down: each rank receives (n - 1) / n of each
//! pipeline   layers                  in n parts; a batch is cut into n, so that every rank is busy
//!            sent per token          its row, n - 1 times
//! experts    experts                 in n parts, the largest of ⌈E / n⌉; all other weights on each
//!            requests                spread over the ranks; each lies whole on one, which has its
//!                                    keys and values, and attends to them
//!            sent per own row        to the experts elsewhere and back: 2 k (1 - ⌊E / n⌋ / E)
//! ```
//!
//! Ranks wait for each other in every layer, so the rank with the most work counts: the one with the
//! most requests, the most experts, the fewest experts of its own.
//!
//! Split by outputs, every output has the same terms in the same order on any number of ranks. The
//! usual split, with two sums over ranks per layer, sends about half as much and rounds differently
//! on each number of ranks. Nothing that is sent is overlapped with computing.

use pelton_model::{ArchSpec, MatrixRole};
use serde::Serialize;

use crate::hardware::Hardware;
use crate::kv::KvSizes;
use crate::weights::{SizedMatrix, WeightSizes};

/// The way in which machines share a model.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Each matrix, by its outputs.
    #[default]
    Outputs,
    /// The layers, one machine after the other.
    Pipeline,
    /// The experts of each layer.
    Experts,
}

impl Split {
    /// All ways.
    pub const ALL: &[Self] = &[Self::Outputs, Self::Pipeline, Self::Experts];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Outputs => "outputs",
            Self::Pipeline => "pipeline",
            Self::Experts => "experts",
        }
    }

    /// The reason why this many machines cannot share a model of this specification so.
    pub fn refusal(self, spec: &ArchSpec, n_ranks: usize) -> Option<String> {
        let mixtures = spec.layers.iter().filter_map(|layer| layer.mlp.experts());
        let experts = mixtures.map(|moe| moe.router.n_experts);
        match (self, experts.min()) {
            _ if n_ranks == 1 => None,
            (Self::Pipeline, _) if n_ranks > spec.layers.len() => {
                Some(format!("the model has {} layers", spec.layers.len()))
            }
            (Self::Experts, None) => Some("the model has no experts".to_owned()),
            (Self::Experts, Some(n)) if n_ranks > n => Some(format!("the model has {n} experts")),
            _ => None,
        }
    }
}

/// Sizes of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSizes {
    /// Machines that run the model together.
    pub n_ranks: usize,
    /// The way in which they share it.
    pub split: Split,
    /// Bytes of weights of one rank, of the largest where they differ.
    pub weight_bytes: u64,
    /// Part of the keys and values of a sequence that one rank holds; 1 where a token has one key for
    /// all heads, and where each sequence lies on one rank.
    pub kv_share: f64,
    /// Elements that a rank receives per row of a step, split by experts per row of its own requests;
    /// in a pipeline, that a row sends on its way.
    pub received_elements: f64,
    /// Part of the bytes of all experts on the rank with the most.
    #[serde(skip)]
    expert_share: f64,
}

impl RankSizes {
    pub(crate) fn new(
        spec: &ArchSpec,
        weights: &WeightSizes,
        (split, n_ranks): (Split, usize),
    ) -> Self {
        let n = n_ranks as f64;
        let bytes = |part: &dyn Fn(&SizedMatrix) -> bool| {
            let matrices = weights.multiplied().filter(|matrix| part(matrix));
            matrices.map(|m| m.n_bytes * m.shape.n_copies as f64).sum::<f64>()
        };
        let is_layer =
            |m: &SizedMatrix| !matches!(m.shape.role, MatrixRole::Head | MatrixRole::Embedding);
        let is_expert = |m: &SizedMatrix| m.shape.n_copies > 1;
        let most = |m: &SizedMatrix| {
            m.n_bytes * m.shape.n_copies.div_ceil(n_ranks) as f64 / bytes(&is_expert)
        };
        let expert_share = weights.multiplied().filter(|m| is_expert(m)).map(most).sum::<f64>();
        // The largest part of the layers, which may not divide evenly.
        let stage = spec.layers.len().div_ceil(n_ranks) as f64 / spec.layers.len() as f64;
        let (shared, share, kv_share) = match split {
            Split::Outputs => {
                let mut heads = spec.layers.iter().filter_map(|layer| layer.mixer.kv_heads());
                let n_heads = heads.next().map_or(1, |heads| heads.n);
                let heads = n_heads.div_ceil(n_ranks) as f64 / n_heads as f64;
                (bytes(&|_| true), 1.0 / n, heads)
            }
            Split::Pipeline => (bytes(&is_layer), stage, stage),
            Split::Experts => (bytes(&is_expert), expert_share, 1.0),
        };
        let kept = weights.n_bytes as f64 - shared;
        Self {
            n_ranks,
            split,
            weight_bytes: (kept + shared * share).round() as u64,
            kv_share,
            received_elements: received(spec, split, n_ranks),
            expert_share,
        }
    }

    /// Part of the rows of a step, and of a product with these copies of its weights, on one rank,
    /// where `n_sequences` send rows. The second is a part of the bytes.
    pub(crate) fn product_share(&self, n_copies: usize, n_sequences: usize) -> (f64, f64) {
        match self.split {
            Split::Outputs => (1.0, 1.0 / self.n_ranks as f64),
            Split::Pipeline => (1.0, 1.0),
            Split::Experts if n_copies > 1 => (1.0, self.expert_share),
            Split::Experts => (self.sequence_share(n_sequences), 1.0),
        }
    }

    /// Parts of the operations and of the bytes of attention on one rank.
    pub(crate) fn attention_share(&self, n_sequences: usize) -> (f64, f64) {
        match self.split {
            Split::Outputs => (1.0 / self.n_ranks as f64, self.kv_share),
            Split::Pipeline => (1.0, 1.0),
            Split::Experts => {
                let share = self.sequence_share(n_sequences);
                (share, share)
            }
        }
    }

    /// Sequences on the rank with the most, of `n_sequences`.
    pub(crate) fn sequences_of_rank(&self, n_sequences: usize) -> usize {
        match self.split {
            Split::Experts => n_sequences.div_ceil(self.n_ranks),
            Split::Outputs | Split::Pipeline => n_sequences,
        }
    }

    /// The same as a part of them.
    fn sequence_share(&self, n_sequences: usize) -> f64 {
        self.sequences_of_rank(n_sequences) as f64 / n_sequences.max(1) as f64
    }

    /// Sequences of all ranks, where one has room for `n_sequences`.
    pub(crate) fn sequences_of_all(&self, n_sequences: usize) -> usize {
        match self.split {
            Split::Experts => n_sequences.saturating_mul(self.n_ranks),
            Split::Outputs | Split::Pipeline => n_sequences,
        }
    }

    /// Prompts that are computed at the same time.
    pub(crate) fn n_prompts(&self, batch: usize) -> usize {
        if self.split == Split::Experts { self.n_ranks.min(batch) } else { 1 }
    }

    /// Parts into which a batch is cut.
    pub(crate) fn n_parts(&self) -> usize {
        if self.split == Split::Pipeline { self.n_ranks } else { 1 }
    }

    /// Bytes of a pool of keys and values on one rank.
    pub(crate) fn kv_bytes(&self, kv: &KvSizes, n_sequences: usize) -> u64 {
        let n_bytes = kv.pool_bytes(self.sequences_of_rank(n_sequences));
        (n_bytes as f64 * self.kv_share).ceil() as u64
    }

    /// Seconds in which the ranks send each other what `rows` tokens of `n_sequences` need.
    pub(crate) fn seconds(&self, rows: f64, n_sequences: usize, hardware: &Hardware) -> f64 {
        let link = hardware.link_bandwidth.unwrap_or(f64::INFINITY);
        let rows = rows * self.sequence_share(n_sequences);
        self.received_elements * rows * hardware.sent_bytes() as f64 / link
    }
}

/// See [`RankSizes::received_elements`].
fn received(spec: &ArchSpec, split: Split, n_ranks: usize) -> f64 {
    let others = (n_ranks - 1) as f64 / n_ranks as f64;
    let widths = spec
        .layers
        .iter()
        .map(|layer| layer.mixer.out_width() + 2 * spec.hidden_size + layer.mlp.hidden_width());
    let elsewhere = spec.layers.iter().filter_map(|layer| layer.mlp.experts()).map(|moe| {
        let n = moe.router.n_experts;
        moe.router.top_k as f64 * (n - n / n_ranks) as f64 / n as f64
    });
    match split {
        Split::Outputs => widths.sum::<usize>() as f64 * others,
        Split::Pipeline => (spec.hidden_size * (n_ranks - 1)) as f64,
        Split::Experts => 2.0 * elsewhere.sum::<f64>() * spec.hidden_size as f64,
    }
}
