//! Fused layer operations: what a device computes.

use std::fmt::Debug;

use pelton_base::TokenId;

use super::{CrossOps, Device, StepRows, StreamOps};
use crate::arch::{Act, Gqa, Mla};
use crate::kv::KvPlace;
use crate::layer::{
    ChannelMix, ChannelMixWeights, GqaWeights, Linear, MlaWeights, MlpWeights, Norm, Recurrent,
    RecurrentWeights, SelectiveScan, SelectiveWeights, ShortConv, ShortConvWeights, TimeMix,
    TimeMixWeights,
};
use crate::rope::RopeTable;

/// One layer's attention in one step.
#[derive(Debug)]
pub struct AttentionOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Where its keys and values lie in blocks, or those that it reads of another layer.
    pub place: KvPlace,
    /// Memory group of the layer.
    pub group: usize,
    /// Shapes.
    pub gqa: &'a Gqa,
    /// Weights.
    pub weights: &'a GqaWeights<D>,
}

/// One layer's latent attention in one step.
#[derive(Debug)]
pub struct LatentOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Where its keys and values lie in blocks, or those that it reads of another layer.
    pub place: KvPlace,
    /// Memory group of the layer.
    pub group: usize,
    /// Shapes.
    pub mla: &'a Mla,
    /// Weights.
    pub weights: &'a MlaWeights<D>,
}

/// One layer's linear recurrence in one step.
#[derive(Debug)]
pub struct RecurrentOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Layer among the recurrent ones.
    pub layer: usize,
    /// Shapes.
    pub recurrent: &'a Recurrent,
    /// Weights.
    pub weights: &'a RecurrentWeights<D>,
}

/// One layer's selective scan in one step.
#[derive(Debug)]
pub struct SelectiveOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Layer among the recurrent ones.
    pub layer: usize,
    /// Shapes.
    pub scan: &'a SelectiveScan,
    /// Weights.
    pub weights: &'a SelectiveWeights<D>,
}

/// One layer's short convolution in one step.
#[derive(Debug)]
pub struct ConvOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Layer among the recurrent ones.
    pub layer: usize,
    /// Shapes.
    pub conv: &'a ShortConv,
    /// Weights.
    pub weights: &'a ShortConvWeights<D>,
}

/// One layer's mixture of rows with the rows before them in one step.
#[derive(Debug)]
pub struct ShiftOp<'a, D: Ops> {
    /// All rows of the step.
    pub rows: D::Rows<'a>,
    /// Layer among the recurrent ones.
    pub layer: usize,
    /// Shapes and weights.
    pub mixer: ShiftMixer<'a, D>,
}

/// Shapes and weights of a mixer of RWKV-7.
#[derive(Debug)]
pub enum ShiftMixer<'a, D: Device> {
    /// A recurrence.
    Time(&'a TimeMix, &'a TimeMixWeights<D>),
    /// A perceptron.
    Channel(&'a ChannelMix, &'a ChannelMixWeights<D>),
}

/// The head, which makes logits of rows: `softcap(scale · (x Wᵀ + b))`.
#[derive(Debug)]
pub struct Head<'a, D: Device> {
    /// `[vocab, hidden]`.
    pub weight: &'a D::Weight,
    /// `[vocab]`.
    pub bias: Option<&'a D::Vector>,
    /// Factor of the logits.
    pub scale: f32,
    /// `tanh` soft cap.
    pub softcap: Option<f32>,
}

/// Rows of a step that need no logits but the likeliest token.
///
/// That is the token of the largest logit, where plus infinity counts as the largest finite number
/// and a NaN is passed over; the lowest id among equals.
#[derive(Debug)]
pub struct GreedyRows<'a> {
    /// How many of the rows asked for these are; they are the last ones.
    pub n_rows: usize,
    /// Only tokens below this are looked at.
    pub n_sampled: usize,
    /// Becomes `[n_rows]`: `None` where none of the logits looked at is a finite number.
    pub tokens: &'a mut Vec<Option<TokenId>>,
}

/// The operations of a decoder's layers, on what a [`Device`] holds.
///
/// Shapes: `m` is the number of rows of `x`.
pub trait Ops: StreamOps + CrossOps {
    /// Resources held until the end of a step, such as threads that are kept awake.
    type Turn;

    /// Brings the rows of a step, or those that were gathered, to where the device reads them.
    fn place_rows<'a>(&mut self, rows: StepRows<'a>) -> Self::Rows<'a>;

    /// Prepares what all layers share, such as the rotations of the rows' positions by each of the
    /// tables that layers choose from. Waits for the device where it computes for another model.
    ///
    /// The decoder drops the turn when the step ends, by a panic too.
    #[must_use = "the step ends when the turn is dropped"]
    fn begin_step(&mut self, rows: Self::Rows<'_>, ropes: &[RopeTable]) -> Self::Turn;

    /// Rows of the embedding table. `out`: `[m, hidden]`.
    fn embed(&mut self, table: &Self::Weight, tokens: &[TokenId], out: &mut Self::Buf);

    /// `x += y`.
    fn add(&mut self, x: &mut Self::Buf, y: &Self::Buf);

    /// `x *= factor`.
    fn scale(&mut self, x: &mut Self::Buf, factor: f32);

    /// Norm of every row, or of each stretch of a row that is as long as the weight. `out` like `x`.
    fn norm(&mut self, x: &Self::Buf, norm: &Norm<Self>, out: &mut Self::Buf);

    /// `residual += delta`, then its norm to `out`.
    fn add_norm(
        &mut self,
        residual: &mut Self::Buf,
        delta: &Self::Buf,
        norm: &Norm<Self>,
        out: &mut Self::Buf,
    );

    /// Stacked q, k, v projection with bias, bound and norms; rotates q and k; stores k and v in
    /// their slots. A layer that reads those of another one has q alone. `x`: `[m, hidden]`, `qkv`:
    /// `[m, qkv_width]`.
    fn qkv_rope_store(
        &mut self,
        op: &AttentionOp<'_, Self>,
        x: &Self::Buf,
        kv: &mut Self::Kv,
        qkv: &mut Self::Buf,
    );

    /// Attention of each row over its sequence's pages: to itself and what is before it, or to all of
    /// its sequence, whose rows are then all stored. `out`: `[m, q_width]`.
    fn paged_attention(
        &mut self,
        op: &AttentionOp<'_, Self>,
        qkv: &Self::Buf,
        kv: &Self::Kv,
        out: &mut Self::Buf,
    );

    /// The projections of latent attention: stores the normed latent and the rotated key of each row
    /// in its slot, and writes queries with the projections of keys absorbed. `x`: `[m, hidden]`,
    /// `q`: `[m, absorbed_width]`.
    fn latent_project_store(
        &mut self,
        op: &LatentOp<'_, Self>,
        x: &Self::Buf,
        kv: &mut Self::Kv,
        q: &mut Self::Buf,
    );

    /// Causal attention of each row over the latents of its sequence, and the projections of values
    /// of its sums. `out`: `[m, out_width]`.
    fn latent_attention(
        &mut self,
        op: &LatentOp<'_, Self>,
        q: &Self::Buf,
        kv: &Self::Kv,
        out: &mut Self::Buf,
    );

    /// A linear recurrence over the rows of each sequence, from the state of its lane, which moves on with
    /// them; the norm and the gate of its output. `projected`: `[m, input_width]`, `out`: `[m, out_width]`.
    fn recurrence(
        &mut self,
        op: &RecurrentOp<'_, Self>,
        projected: &Self::Buf,
        kv: &mut Self::Kv,
        out: &mut Self::Buf,
    );

    /// A selective scan over the rows of each sequence, likewise: the convolution, what is selected, the
    /// scan and its gate. `projected`: `[m, 2 channels]`, `out`: `[m, channels]`.
    fn selective_scan(
        &mut self,
        op: &SelectiveOp<'_, Self>,
        projected: &Self::Buf,
        kv: &mut Self::Kv,
        out: &mut Self::Buf,
    );

    /// A gated convolution over the rows of each sequence, likewise. `projected`: `[m, 3 channels]`,
    /// `out`: `[m, channels]`.
    fn short_conv(
        &mut self,
        op: &ConvOp<'_, Self>,
        projected: &Self::Buf,
        kv: &mut Self::Kv,
        out: &mut Self::Buf,
    );

    /// A mixer whose inputs are mixtures of each row with the row before it in its sequence,
    /// likewise: all but its last projection. The first layer writes its values to `first`, later
    /// ones read them there. `x`: `[m, hidden]`, `first`: `[m, width]`, `out`: `[m, out_width]`.
    fn shift(
        &mut self,
        op: &ShiftOp<'_, Self>,
        x: &Self::Buf,
        first: &mut Self::Buf,
        kv: &mut Self::Kv,
        out: &mut Self::Buf,
    );

    /// `out = x Wᵀ + b`, products multiplied by the factors of [`Linear`].
    fn linear(
        &mut self,
        rows: Self::Rows<'_>,
        linear: &Linear<Self>,
        x: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// `out = down(act(gate(x)) * up(x))`, or `out = down(act(up(x)))`, or the weighted sum of that
    /// over the experts of each row, in the order in which they were chosen, plus what is shared; of a
    /// perceptron and experts side by side the sum, each between its norms.
    fn mlp(
        &mut self,
        rows: Self::Rows<'_>,
        mlp: &MlpWeights<Self>,
        x: &Self::Buf,
        out: &mut Self::Buf,
    );

    /// `out = act(gate) * inputs`, of `inputs` the columns from `first` on. `gate`, `out`: `[m, width]`.
    fn gate_inputs(
        &mut self,
        act: Act,
        gate: &Self::Buf,
        inputs: &Self::Buf,
        first: usize,
        out: &mut Self::Buf,
    );

    /// Copies the given rows, in their order.
    fn gather_rows(&mut self, x: &Self::Buf, rows: &[usize], out: &mut Self::Buf);

    /// Writes to host memory the logits of the first rows of `x`, `[rows, vocab]`, and the likeliest
    /// tokens of the last ones.
    fn head(
        &mut self,
        rows: Self::Rows<'_>,
        head: &Head<'_, Self>,
        x: &Self::Buf,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    );
}
