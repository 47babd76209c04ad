//! The inputs of products inside of fused operations, for quantizers.

use super::Ops;
use crate::arch::{Act, Mla};
use crate::layer::TwoLayers;

/// The rows that one expert had in the last mixture.
#[derive(Debug)]
pub struct ExpertRows<'a> {
    /// Number of the expert.
    pub expert: usize,
    /// The row of the input of each of them, ascending.
    pub rows: &'a [u32],
    /// The weight of each of them.
    pub weights: &'a [f32],
    /// The activated hidden layer, `[rows, width]`.
    pub hidden: &'a [f32],
}

/// A device that can show what the products inside of its last fused operations read.
///
/// Inputs are those of the last operation of its kind, whose products were computed in f32.
pub trait InnerOps: Ops {
    /// The hidden layer of a perceptron behind its activation, `[m, width]`; `shape` is the
    /// activation, whether there is a gate, and where that is cut.
    fn hidden_layer(
        &mut self,
        layers: &TwoLayers<Self>,
        shape: (Act, bool, Option<f32>),
        x: &Self::Buf,
    ) -> &[f32];

    /// The normed latents of queries, `[m, q_rank]` and empty where there are none, and those of
    /// keys and values, `[m, kv_rank]`, of the last
    /// [`latent_project_store`](Ops::latent_project_store).
    fn latents(&self, mla: &Mla, out: [&mut Vec<f32>; 2]);

    /// The experts that had rows in the last [`mlp`](Ops::mlp) with experts, ascending.
    fn experts(&self, each: &mut dyn FnMut(ExpertRows<'_>));

    /// The weighted sums of experts in a width of their own, `[m, width]`, likewise.
    fn expert_sums(&self) -> &[f32];
}
