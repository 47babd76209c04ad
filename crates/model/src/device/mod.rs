//! The device seam: what a machine must be able to do to run a decoder.
//!
//! ```text
//! Device     where things lie: buffers, packed weights, KV, memory figures, ranks     this file
//! Ops        what is computed: fused layer operations on what a Device holds          ops.rs
//! CrossOps   the same of decoders that attend to an encoder                          cross.rs
//! StreamOps  the same of residual streams side by side                                streams.rs
//! InnerOps   the inputs of products inside of these operations, for quantizers        inner.rs
//! StepRows   the rows of a step, which reach every operation that has weights or KV    rows.rs
//! ```
//!
//! A *fused layer operation* is as large as the largest thing that one kernel can do on some device,
//! and no larger. At the level of tensor operations there would be hundreds of methods and every
//! fusion a new one; at the level of models every device would write the decoder again.
//!
//! Calls are resolved at compile time; a decoder exists once per device, and nothing in a step goes
//! through a pointer.
//!
//! **Architecture invariant:** every operation computes a row from that row alone (and its own
//! sequence's KV), in one order of summation. That is what makes results independent of the batch.
//!
//! **Architecture invariant:** these traits name no type of the CPU's kernels. A test reads the
//! sources and proves it.

pub mod cpu;
mod cross;
mod inner;
mod ops;
mod packed;
mod rows;
mod streams;

use std::fmt::Debug;
use std::ops::Range;

use pelton_quant::{Compute, QuantError};

use crate::comm::Communicator;
use crate::kv::{KvPlace, KvShape};
use crate::state::{StateBytes, StateCopy, StateShape};

pub use cross::{CrossOp, CrossOps};
pub use inner::{ExpertRows, InnerOps};
pub use ops::{
    AttentionOp, ConvOp, GreedyRows, Head, LatentOp, Ops, RecurrentOp, SelectiveOp, ShiftMixer,
    ShiftOp,
};
pub use packed::{MatrixSource, PackedBytes, PackedForm, PackedSize, StoredMatrix};
pub(crate) use rows::RowPlan;
pub use rows::{AdapterId, BlockTables, ForwardSequence, StepRows};
pub use streams::{StreamOp, StreamOps};

/// A device that holds a model: it allocates, packs, moves KV and says how much memory there is.
///
/// A buffer is `[rows, width]` and takes the number of rows of what is written to it.
pub trait Device: Sized + Send {
    /// Rows of activations; its memory is kept from step to step.
    type Buf: Send + Debug;
    /// A packed matrix.
    type Weight: Send + Debug;
    /// A vector of f32, such as a bias.
    type Vector: Send + Debug;
    /// Memory of sequences: a paged KV cache, and the states of recurrent layers.
    type Kv: Send;
    /// The rows of a step where this device reads them: the host's arrays themselves, or a copy.
    type Rows<'a>: Copy + Debug;
    /// The ranks that run the model together.
    type Comm: Communicator;

    /// The rows of each head of a matrix of heads come in multiples of this; loading pads them.
    const HEAD_ROWS: usize;

    /// The place of this device among the ranks of the model that it runs.
    fn comm(&self) -> &Self::Comm;

    /// Bytes of memory that the device can still give to weights and KV; `None` where the system
    /// does not say.
    fn available_bytes(&self) -> Option<u64>;

    /// Layout and bytes that a matrix will have once it is packed; `None` where [`pack`](Self::pack)
    /// refuses the stored type or the width of rows.
    ///
    /// # Errors
    ///
    /// When a scale or zero point is no number; names the tensor.
    fn packed_size(
        matrix: &StoredMatrix<'_, '_>,
        compute: Compute,
    ) -> Result<Option<PackedSize>, QuantError>;

    /// Packs a matrix. `done` is called with rows, in ascending order, that will not be read again, so
    /// that a large matrix need not be in memory twice.
    ///
    /// # Errors
    ///
    /// When the stored type has no format, a row is not a whole number of its blocks, or a scale or
    /// zero point is no number; names the tensor.
    fn pack(
        &self,
        matrix: &MatrixSource<'_, '_>,
        compute: Compute,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<Self::Weight, QuantError>;

    /// How packed matrices are kept in a file; `None` where they cannot be.
    fn packed_form(&self) -> Option<&dyn PackedForm<Self::Weight>>;

    /// Bytes that one product with this matrix reads.
    fn weight_bytes(weight: &Self::Weight) -> usize;

    /// Puts a vector on the device.
    fn vector(&self, values: &[f32]) -> Self::Vector;

    /// An empty buffer of rows of `width` elements.
    fn buffer(&self, width: usize) -> Self::Buf;

    /// An empty buffer of rows of `width` elements that norms write and these matrices alone read.
    /// Rows may be brought into the form that the matrices read, int8 for one, when they are written.
    fn input_buffer<'a>(
        &self,
        width: usize,
        readers: impl IntoIterator<Item = &'a Self::Weight>,
    ) -> Self::Buf
    where
        Self: 'a;

    /// Copies rows to the host. `out`: `[m, width]`.
    fn read(&self, x: &Self::Buf, out: &mut Vec<f32>);

    /// Bytes of one block of a cache of this shape, over all layers, keys and values.
    fn kv_block_bytes(shape: &KvShape) -> usize;

    /// Bytes of the states of one sequence in all layers of this shape.
    fn state_bytes(states: &StateShape) -> StateBytes;

    /// A KV cache, with room for the states of recurrent layers.
    ///
    /// # Errors
    ///
    /// When the memory is refused.
    fn new_kv(&self, shape: &KvShape, states: &StateShape) -> std::io::Result<Self::Kv>;

    /// Copies the states of all recurrent layers.
    fn copy_state(&self, kv: &mut Self::Kv, copy: StateCopy);

    /// Copies one row of the open chunk of a lane to another place of it, in all recurrent layers.
    fn copy_state_row(&self, kv: &mut Self::Kv, lane: usize, from: usize, to: usize);

    /// Tokens per block of `kv`.
    fn kv_block_size(kv: &Self::Kv) -> usize;

    /// Copies one block over another in all layers.
    fn copy_kv_block(&self, kv: &mut Self::Kv, from: u32, to: u32);

    /// Copies the KV of one token from slot to slot in the layer at `place`; a slot is `block * block_size
    /// + offset`.
    fn copy_kv_slot(&self, kv: &mut Self::Kv, place: KvPlace, from: u32, to: u32);

    /// Copies one block, all layers of it, to the host. `bytes`: [`kv_block_bytes`](Self::kv_block_bytes).
    fn read_kv_block(&self, kv: &Self::Kv, block: u32, bytes: &mut [u8]);

    /// Copies one block back from the host, to the same or another place.
    fn write_kv_block(&self, kv: &mut Self::Kv, block: u32, bytes: &[u8]);
}
