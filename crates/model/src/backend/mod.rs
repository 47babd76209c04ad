//! The device seam: what a machine must be able to do to run a decoder.
//!
//! A [`Backend`] implements *fused layer operations*: each is as large as the largest thing one
//! kernel can do on some device, and no larger. At the level of tensor operations there would be
//! hundreds of methods and every fusion a new one; at the level of models every device would write
//! the decoder again.
//!
//! Calls are resolved at compile time; a decoder exists once per device, and nothing in a step goes
//! through a pointer.
//!
//! **Architecture invariant:** every operation computes a row from that row alone (and its own
//! sequence's KV), in one order of summation. That is what makes results independent of the batch.

pub mod cpu;
mod experts;
mod latent;

use std::ops::Range;
use std::sync::Arc;

use pelton_base::TokenId;
use pelton_kernels::KvShape;
use pelton_quant::checkpoint::QuantizedTensor;
use pelton_quant::{Compute, QuantError};
use pelton_tensor::{MappedFile, TensorView};

use crate::arch::{Gqa, Mla};
use crate::comm::Communicator;
use crate::layer::{GqaWeights, Linear, MlaWeights, MlpWeights, Norm};
use crate::rope::RopeTable;

/// One sequence's rows in a step, and the pages that hold it.
pub use pelton_kernels::AttentionSeq as ForwardSequence;

/// What makes logits of rows: `softcap(scale · (x Wᵀ + b))`.
#[derive(Debug)]
pub struct Head<'a, B: Backend> {
    /// `[vocab, hidden]`.
    pub weight: &'a B::Weight,
    /// `[vocab]`.
    pub bias: Option<&'a B::Vector>,
    /// Factor of the logits.
    pub scale: f32,
    /// `tanh` soft cap.
    pub softcap: Option<f32>,
}

/// Rows of a step that want no logits but the likeliest token: that of the largest one, where plus
/// infinity counts as the largest finite number and a NaN as none, the lowest id among equals.
#[derive(Debug)]
pub struct GreedyRows<'a> {
    /// The last so many of the rows whose logits are asked for.
    pub n_rows: usize,
    /// Only tokens below this are looked at.
    pub n_sampled: usize,
    /// Becomes `[n_rows]`: `None` where none of the logits looked at is a finite number.
    pub tokens: &'a mut Vec<Option<TokenId>>,
}

/// What all layers of one step share.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Position of every row in its sequence.
    pub positions: &'a [usize],
    /// KV slot of every row: `block * block_size + offset`.
    pub slots: &'a [u32],
    /// The sequences; their rows follow each other and cover the batch.
    pub sequences: &'a [ForwardSequence<'a>],
}

/// One layer's attention in one step.
#[derive(Debug)]
pub struct AttentionOp<'a, B: Backend> {
    /// The step.
    pub step: Step<'a>,
    /// Which layer of the KV cache.
    pub layer: usize,
    /// Shapes.
    pub gqa: &'a Gqa,
    /// Weights.
    pub weights: &'a GqaWeights<B>,
}

/// One layer's latent attention in one step.
#[derive(Debug)]
pub struct LatentOp<'a, B: Backend> {
    /// The step.
    pub step: Step<'a>,
    /// Which layer of the KV cache.
    pub layer: usize,
    /// Shapes.
    pub mla: &'a Mla,
    /// Weights.
    pub weights: &'a MlaWeights<B>,
}

/// A packed matrix as plain bytes.
#[derive(Clone, Copy, Debug)]
pub struct PackedBytes<'a> {
    /// Name of its layout.
    pub layout: &'static str,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Everything but the above.
    pub bytes: &'a [u8],
}

/// The ability to keep packed matrices in a file, and to compute with them where they are mapped.
pub trait PackedForm<W> {
    /// Changes whenever packing gives other bytes than before.
    fn layout_version(&self) -> u32;

    /// A matrix as bytes.
    fn describe<'w>(&self, weight: &'w W) -> PackedBytes<'w>;

    /// The matrix `[n, k]` whose bytes are a range of a file; `None` when the layout is not known,
    /// or the range is not one of the file, is not aligned or has another size than the matrix.
    fn restore(
        &self,
        layout: &str,
        n_k: [usize; 2],
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Option<W>;

    /// Calls `f` once for each of `0..n`, on all threads.
    fn for_each(&self, n: usize, f: &(dyn Fn(usize) + Sync));
}

/// A device that can run a decoder.
///
/// Shapes: `m` is the number of rows of a step; a buffer is `[rows, width]` and takes the number of
/// rows of what is written to it.
pub trait Backend: Sized + Send {
    /// Rows of activations; its memory is kept from step to step.
    type Buf: Send + std::fmt::Debug;
    /// A packed matrix.
    type Weight: Send + std::fmt::Debug;
    /// A vector of f32, such as a bias.
    type Vector: Send + std::fmt::Debug;
    /// A paged KV cache.
    type Kv: Send;

    /// The rows of each head of a matrix of heads come in multiples of this; loading pads them.
    const HEAD_ROWS: usize;
    /// Its way to the other ranks of a model.
    type Comm: Communicator;
    /// What a step holds until its end, such as threads that are kept awake.
    type Turn;

    /// The place of this device among the ranks of the model that it runs.
    fn comm(&self) -> &Self::Comm;

    /// Packs matrices of one type, stacked by rows; `done` hears of rows, in ascending order, that
    /// will not be read again, so that a large matrix need not be there twice.
    ///
    /// # Errors
    ///
    /// When the type has no format, or a row is not a whole number of its blocks.
    fn pack(
        &self,
        parts: &[TensorView<'_>],
        compute: Compute,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<Self::Weight, QuantError>;

    /// Stacks matrices of a quantized checkpoint by rows and packs them, inputs in the order of
    /// [`QuantizedTensor::order`].
    ///
    /// # Errors
    ///
    /// Names the tensor whose values cannot be.
    fn pack_quantized(
        &self,
        parts: &[&QuantizedTensor<'_>],
        compute: Compute,
    ) -> Result<Self::Weight, QuantError>;

    /// Puts a vector on the device.
    fn vector(&self, values: &[f32]) -> Self::Vector;

    /// An empty buffer of rows of `width` elements.
    fn buffer(&self, width: usize) -> Self::Buf;

    /// An empty buffer of rows of `width` elements that norms write and these matrices alone read:
    /// whatever form they read, int8 for one, is made when the rows are written.
    fn input_buffer<'a>(
        &self,
        width: usize,
        readers: impl IntoIterator<Item = &'a Self::Weight>,
    ) -> Self::Buf
    where
        Self: 'a;

    /// A KV cache.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    fn new_kv(&self, shape: &KvShape) -> std::io::Result<Self::Kv>;

    /// Bytes of one block of a cache of this shape, over all layers, keys and values.
    fn kv_block_bytes(shape: &KvShape) -> usize;

    /// Tokens per block of `kv`.
    fn kv_block_size(kv: &Self::Kv) -> usize;

    /// Copies one block over another in all layers.
    fn copy_kv_block(&self, kv: &mut Self::Kv, from: u32, to: u32);

    /// Copies the KV of one token from slot to slot in all layers; a slot is `block * block_size +
    /// offset`.
    fn copy_kv_slot(&self, kv: &mut Self::Kv, from: u32, to: u32);

    /// Copies one block, all layers of it, to the host. `bytes`: [`Backend::kv_block_bytes`].
    fn read_kv_block(&self, kv: &Self::Kv, block: u32, bytes: &mut [u8]);

    /// Copies one block back from the host, to the same or another place.
    fn write_kv_block(&self, kv: &mut Self::Kv, block: u32, bytes: &[u8]);

    /// How packed matrices are kept in a file; `None` where they are bound to a device.
    fn packed_form(&self) -> Option<&dyn PackedForm<Self::Weight>> {
        None
    }

    /// Bytes that one product with this matrix reads.
    fn weight_bytes(weight: &Self::Weight) -> usize;

    /// Prepares what all layers share: the rotations of this step's positions, by each of the
    /// tables that layers choose from. Waits for the device where it computes for another model.
    ///
    /// The decoder drops the turn when the step ends, by a panic too.
    #[must_use = "the step ends when the turn is dropped"]
    fn begin_step(&mut self, step: &Step<'_>, ropes: &[RopeTable]) -> Self::Turn;

    /// Rows of the embedding table. `out`: `[m, hidden]`.
    fn embed(&mut self, table: &Self::Weight, tokens: &[TokenId], out: &mut Self::Buf);

    /// `x += y`.
    fn add(&mut self, x: &mut Self::Buf, y: &Self::Buf);

    /// `x *= factor`.
    fn scale(&mut self, x: &mut Self::Buf, factor: f32);

    /// Norm of every row. `out` like `x`.
    fn norm(&mut self, x: &Self::Buf, norm: &Norm<Self>, out: &mut Self::Buf);

    /// `residual += delta`, then its norm to `out`.
    fn add_norm(
        &mut self,
        residual: &mut Self::Buf,
        delta: &Self::Buf,
        norm: &Norm<Self>,
        out: &mut Self::Buf,
    );

    /// Stacked q, k, v projection with bias, bound and norms; rotates q and k; stores k and v in their
    /// slots. `x`: `[m, hidden]`, `qkv`: `[m, q_width + 2 kv_width]`.
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
    /// in its slot, and writes queries with the projections of keys absorbed. `x`: `[m, hidden]`, `q`:
    /// `[m, absorbed_width]`.
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

    /// `out = x Wᵀ + b`.
    fn linear(&mut self, linear: &Linear<Self>, x: &Self::Buf, out: &mut Self::Buf);

    /// `out = down(act(gate(x)) * up(x))`, or `out = down(act(up(x)))`, or the weighted sum of that
    /// over the experts of each row, in the order in which they were chosen, plus what is shared.
    fn mlp(&mut self, mlp: &MlpWeights<Self>, x: &Self::Buf, out: &mut Self::Buf);

    /// Copies the given rows, in their order.
    fn gather_rows(&mut self, x: &Self::Buf, rows: &[usize], out: &mut Self::Buf);

    /// Rows in host memory. `out`: `[m, width]`.
    fn read(&self, x: &Self::Buf, out: &mut Vec<f32>);

    /// In host memory, the logits of the first rows of `x`, `[rows, vocab]`, and of the others the
    /// likeliest tokens.
    fn head(
        &mut self,
        head: &Head<'_, Self>,
        x: &Self::Buf,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    );
}
