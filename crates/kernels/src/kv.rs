//! The paged KV cache: where keys and values live, and how they get there.
//!
//! ```text
//! buffer   [layer][block]               one block of one layer is contiguous:
//! block    |K head 0|K head 1|..|V head 0|V head 1|..|
//! K head   [group of 16 tokens][head_dim][16]      lanes are tokens: q·k needs no horizontal sum
//! V head   [token][head_dim, padded to 16]         lanes are elements: p·v needs none either
//! slot     block * block_size + place in the block
//! ```
//!
//! Writing a token moves `2 · n_kv_heads · head_dim` elements; its key is scattered over
//! `head_dim` cache lines (16 tokens share them), its value is contiguous. Reading, which happens
//! once per later token, is contiguous for both: that is the trade.
//!
//! A block size that is no multiple of 16 pads the keys of each block to whole groups, a head size
//! that is no multiple of 16 pads the values; padding is never used in a result.
//!
//! bf16 is rounded to nearest, ties to even, subnormals kept; a NaN stays a NaN.
//!
//! Tried and dropped: K as `[token][head_dim]` (a horizontal sum per token and head costs as much
//! as the dot product at `head_dim` 64).

use std::fmt;
use std::io;

use pelton_tensor::AlignedBuf;

use crate::Cpu;
use crate::rows::lanes::LANES;
use crate::rows::shared::Parts;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvDtype {
    /// 4 bytes per element, exact.
    F32,
    /// 2 bytes per element, 8 bits of precision.
    Bf16,
}

impl KvDtype {
    /// Bytes per element.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Sizes of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub n_layers: usize,
    /// Blocks that sequences may own.
    pub n_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Key and value heads per layer.
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Stored type.
    pub dtype: KvDtype,
}

impl KvShape {
    /// Elements of a value in memory.
    pub(crate) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Elements of the keys of one head of one block.
    pub(crate) fn key_elements(&self) -> usize {
        self.block_size.next_multiple_of(LANES) * self.head_dim
    }

    /// Elements of the values of one head of one block.
    pub(crate) fn value_elements(&self) -> usize {
        self.block_size * self.padded_dim()
    }

    /// Elements of one block of one layer.
    pub(crate) fn block_elements(&self) -> usize {
        self.n_kv_heads * (self.key_elements() + self.value_elements())
    }

    /// Bytes of one block over all layers: what one more block costs.
    pub fn bytes_per_block(&self) -> usize {
        self.n_layers * self.block_elements() * self.dtype.n_bytes()
    }

    /// Bytes of the whole cache.
    ///
    /// # Panics
    ///
    /// When they are more than an address space holds.
    pub fn n_bytes(&self) -> usize {
        let bytes = self.bytes_per_block().checked_mul(self.n_blocks);
        bytes.expect("invariant: the KV cache fits in the address space")
    }
}

/// Keys and values of all layers, in pages.
pub struct KvCache {
    shape: KvShape,
    buffer: AlignedBuf,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl KvCache {
    /// Reserves a zeroed cache.
    ///
    /// # Panics
    ///
    /// When the memory is refused (see [`KvCache::try_new`]) or a size of the shape is 0 that must
    /// not be (all but `n_layers` and `n_blocks`).
    pub fn new(shape: KvShape) -> Self {
        match Self::try_new(shape) {
            Ok(cache) => cache,
            Err(err) => panic!("cannot reserve {} bytes of KV cache: {err}", shape.n_bytes()),
        }
    }

    /// Reserves a zeroed cache, or says why the system refuses the memory.
    ///
    /// # Errors
    ///
    /// The system's own error.
    ///
    /// # Panics
    ///
    /// When `block_size`, `n_kv_heads` or `head_dim` is 0, or there are 2³² slots or more.
    pub fn try_new(shape: KvShape) -> io::Result<Self> {
        assert!(shape.block_size > 0, "invariant: blocks hold tokens");
        assert!(shape.n_kv_heads > 0, "invariant: a layer has KV heads");
        assert!(shape.head_dim > 0, "invariant: heads are not empty");
        let n_slots = shape.n_blocks.checked_mul(shape.block_size);
        assert!(
            n_slots.is_some_and(|n| u32::try_from(n).is_ok()),
            "invariant: slots are numbered by u32"
        );
        Ok(Self { shape, buffer: AlignedBuf::try_zeroed(shape.n_bytes())? })
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Bytes reserved.
    pub fn n_bytes(&self) -> usize {
        self.buffer.n_bytes()
    }

    /// Bytes of one block over all layers: what one more block costs.
    pub fn bytes_per_block(shape: &KvShape) -> usize {
        shape.bytes_per_block()
    }

    /// Copies the keys and values of block `src` to block `dst`, in every layer.
    ///
    /// # Panics
    ///
    /// When either block does not exist.
    pub fn copy_block(&mut self, src: u32, dst: u32) {
        let (src, dst) = (src as usize, dst as usize);
        let n_blocks = self.shape.n_blocks;
        assert!(src < n_blocks, "invariant: copy from block {src} of {n_blocks}");
        assert!(dst < n_blocks, "invariant: copy to block {dst} of {n_blocks}");
        let n_bytes = self.shape.block_elements() * self.shape.dtype.n_bytes();
        for layer in 0..self.shape.n_layers {
            let (from, to) = (layer * n_blocks + src, layer * n_blocks + dst);
            let range = from * n_bytes..(from + 1) * n_bytes;
            self.buffer.bytes_mut().copy_within(range, to * n_bytes);
        }
    }

    /// The elements of one layer, as `T` (which must be the stored type).
    pub(crate) fn layer<T: bytemuck::Pod>(&self, layer: usize) -> &[T] {
        assert_eq!(size_of::<T>(), self.shape.dtype.n_bytes(), "invariant: the stored type");
        let n_layers = self.shape.n_layers;
        assert!(layer < n_layers, "invariant: layer {layer} of {n_layers}");
        let n = self.shape.n_blocks * self.shape.block_elements();
        &self.buffer.as_slice_of::<T>()[layer * n..(layer + 1) * n]
    }

    fn layer_mut<T: bytemuck::Pod>(&mut self, layer: usize) -> &mut [T] {
        assert_eq!(size_of::<T>(), self.shape.dtype.n_bytes(), "invariant: the stored type");
        let n_layers = self.shape.n_layers;
        assert!(layer < n_layers, "invariant: layer {layer} of {n_layers}");
        let n = self.shape.n_blocks * self.shape.block_elements();
        &mut self.buffer.as_mut_slice_of::<T>()[layer * n..(layer + 1) * n]
    }
}

/// Rows inside a wider matrix, for example the queries in the output of a fused projection.
///
/// ```text
/// row r   data[r * stride + offset ..][.. width]       the width is the operation's
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'a> {
    /// The matrix.
    pub data: &'a [f32],
    /// Distance between rows, in elements.
    pub stride: usize,
    /// First element of each row.
    pub offset: usize,
}

impl<'a> StridedRows<'a> {
    /// Rows that are the whole matrix, `width` elements each.
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Self { data, stride: width, offset: 0 }
    }

    /// `width` elements of row `row`.
    ///
    /// # Panics
    ///
    /// When the matrix has no such row.
    pub fn row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.data[row * self.stride + self.offset..][..width]
    }
}

/// New keys and values, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct StoreKv<'a> {
    /// Keys `[m, n_kv_heads * head_dim]`, already rotated.
    pub k: StridedRows<'a>,
    /// Values `[m, n_kv_heads * head_dim]`.
    pub v: StridedRows<'a>,
    /// For each row `block * block_size + place in the block`.
    pub slots: &'a [u32],
}

/// A stored element type: how it is read sixteen at a time, and written.
pub(crate) trait KvElement: bytemuck::Pod + Sync + Send {
    fn load<S: crate::rows::lanes::Simd>(s: S, x: &[Self; LANES]) -> S::F;
    /// Converts a head, `x` and `out` of one length.
    fn convert(cpu: &Cpu, x: &[f32], out: &mut [Self]);
}

impl KvElement for f32 {
    #[inline(always)]
    fn load<S: crate::rows::lanes::Simd>(s: S, x: &[f32; LANES]) -> S::F {
        s.load(x)
    }

    fn convert(_: &Cpu, x: &[f32], out: &mut [f32]) {
        out.copy_from_slice(x);
    }
}

/// bf16, by its bits.
impl KvElement for u16 {
    #[inline(always)]
    fn load<S: crate::rows::lanes::Simd>(s: S, x: &[u16; LANES]) -> S::F {
        s.load_bf16(x)
    }

    fn convert(cpu: &Cpu, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len(), "invariant: one bf16 per float");
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        unsafe { (cpu.kernels.rows.to_bf16)(x, out) };
    }
}

impl Cpu {
    /// Writes new keys and values of one layer into their slots.
    ///
    /// Of rows with the same slot the last wins.
    ///
    /// # Panics
    ///
    /// When a slot, row or layer does not exist.
    pub fn store_kv(&self, kv: &mut KvCache, layer: usize, input: &StoreKv<'_>) {
        match kv.shape.dtype {
            KvDtype::F32 => self.store_as::<f32>(kv, layer, input),
            KvDtype::Bf16 => self.store_as::<u16>(kv, layer, input),
        }
    }

    fn store_as<T: KvElement>(&self, kv: &mut KvCache, layer: usize, input: &StoreKv<'_>) {
        let shape = kv.shape;
        let n_slots = shape.n_blocks * shape.block_size;
        for &slot in input.slots {
            assert!((slot as usize) < n_slots, "invariant: slot {slot} of {n_slots}");
        }
        let (dim, padded, width) =
            (shape.head_dim, shape.padded_dim(), shape.n_kv_heads * shape.head_dim);
        let (n_keys, n_values) = (shape.key_elements(), shape.value_elements());
        let parts = Parts::new(kv.layer_mut::<T>(layer));
        // Cut by heads, not by rows: heads are disjoint whatever the slots say.
        self.for_each_part(shape.n_kv_heads, 4 * input.slots.len() * dim, |heads| {
            for head in heads {
                for (row, &slot) in input.slots.iter().enumerate() {
                    let (block, place) =
                        (slot as usize / shape.block_size, slot as usize % shape.block_size);
                    let block = block * shape.block_elements();
                    let keys = block + head * n_keys + place / LANES * LANES * dim;
                    let values = block + shape.n_kv_heads * n_keys + head * n_values;
                    let value = values + place * padded;
                    // SAFETY: these are elements of `head`, which belongs to one tile, and the
                    // two parts are its keys and its values.
                    let (keys, value) = unsafe {
                        (parts.part(keys..keys + LANES * dim), parts.part(value..value + dim))
                    };
                    let columns = head * dim..(head + 1) * dim;
                    T::convert(self, &input.v.row(row, width)[columns.clone()], value);
                    let key = &input.k.row(row, width)[columns];
                    // A group of 64 elements at a time, converted on the stack, then scattered.
                    for (first, key) in (0..).step_by(64).zip(key.chunks(64)) {
                        let mut converted = [T::zeroed(); 64];
                        T::convert(self, key, &mut converted[..key.len()]);
                        for (i, &x) in converted[..key.len()].iter().enumerate() {
                            keys[(first + i) * LANES + place % LANES] = x;
                        }
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::testing::{Random, all_cpus};

    fn shape(block_size: usize, head_dim: usize, dtype: KvDtype) -> KvShape {
        KvShape { n_layers: 2, n_blocks: 7, block_size, n_kv_heads: 3, head_dim, dtype }
    }

    /// Reads one key element and one value element back.
    fn read(kv: &KvCache, layer: usize, slot: usize, head: usize, i: usize) -> (f32, f32) {
        let s = kv.shape();
        let (block, place) = (slot / s.block_size, slot % s.block_size);
        let block = block * s.block_elements();
        let k = block + head * s.key_elements() + (place / 16 * s.head_dim + i) * 16 + place % 16;
        let v = block + s.n_kv_heads * s.key_elements() + head * s.value_elements();
        let v = v + place * s.padded_dim() + i;
        match s.dtype {
            KvDtype::F32 => (kv.layer::<f32>(layer)[k], kv.layer::<f32>(layer)[v]),
            KvDtype::Bf16 => {
                let wide = |x: u16| half::bf16::from_bits(x).to_f32();
                (wide(kv.layer::<u16>(layer)[k]), wide(kv.layer::<u16>(layer)[v]))
            }
        }
    }

    #[test]
    fn what_is_stored_is_found_in_its_slot_rounded_to_nearest_even() {
        let mut random = Random::new(40);
        for (block_size, head_dim) in [(16, 64), (5, 20), (32, 16), (1, 100)] {
            for dtype in [KvDtype::F32, KvDtype::Bf16] {
                let shape = shape(block_size, head_dim, dtype);
                let width = 3 * head_dim;
                let (m, stride) = (6, 2 * width + 9);
                let data = random.normals(m * stride);
                let k = StridedRows { data: &data, stride, offset: 4 };
                let v = StridedRows { data: &data, stride, offset: 4 + width };
                let mut slots: Vec<u32> = vec![6, 0, 3, 5, 1, 2];
                slots.iter_mut().for_each(|slot| *slot *= block_size as u32);
                for cpu in all_cpus() {
                    let mut kv = KvCache::new(shape);
                    cpu.store_kv(&mut kv, 1, &StoreKv { k, v, slots: &slots });
                    let half = kv.n_bytes() / 2;
                    assert!(kv.buffer.bytes()[..half].iter().all(|&x| x == 0), "layer 0 is clean");
                    for (row, &slot) in slots.iter().enumerate() {
                        for column in 0..width {
                            let (head, i) = (column / head_dim, column % head_dim);
                            let got = read(&kv, 1, slot as usize, head, i);
                            let round = |x: f32| match dtype {
                                KvDtype::F32 => x,
                                KvDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
                            };
                            let expected = (
                                round(k.row(row, width)[column]),
                                round(v.row(row, width)[column]),
                            );
                            assert_eq!(got, expected, "{shape:?} row {row} column {column}");
                        }
                    }
                }
            }
        }
    }
    #[test]
    fn a_copied_block_is_the_same_in_every_layer_and_its_neighbours_are_not_touched() {
        let mut random = Random::new(41);
        let mut kv = KvCache::new(shape(4, 8, KvDtype::Bf16));
        let cpu = &all_cpus()[0];
        let data = random.normals(28 * 24);
        let rows = StridedRows::dense(&data, 24);
        let slots: Vec<u32> = (0..28).collect();
        for layer in 0..2 {
            cpu.store_kv(&mut kv, layer, &StoreKv { k: rows, v: rows, slots: &slots });
        }
        let before = kv.buffer.bytes().to_vec();
        kv.copy_block(1, 5);
        let n = kv.shape.block_elements() * 2;
        for (i, got) in kv.buffer.bytes().chunks(n).enumerate() {
            let source = if i % 7 == 5 { i - 4 } else { i };
            assert_eq!(got, &before[source * n..(source + 1) * n], "block {i}");
        }
    }

    #[test]
    fn a_block_costs_two_elements_per_layer_head_and_dimension() {
        let shape = shape(16, 64, KvDtype::Bf16);
        assert_eq!(shape.bytes_per_block(), 2 * 2 * 3 * 64 * 16 * 2);
        assert_eq!(KvCache::new(shape).n_bytes(), 7 * shape.bytes_per_block());
    }

    #[test]
    #[should_panic(expected = "invariant: slot 28 of 28")]
    fn a_slot_that_does_not_exist_is_a_broken_invariant() {
        let mut kv = KvCache::new(shape(4, 8, KvDtype::F32));
        let rows = StridedRows::dense(&[0.0; 24], 24);
        all_cpus()[0].store_kv(&mut kv, 0, &StoreKv { k: rows, v: rows, slots: &[28] });
    }

    #[test]
    #[should_panic(expected = "invariant: copy to block 7 of 7")]
    fn a_block_that_does_not_exist_is_a_broken_invariant() {
        KvCache::new(shape(4, 8, KvDtype::F32)).copy_block(0, 7);
    }
}
