//! A second device, deliberately slow and plain: everything is f32 in host memory, in rows, and every
//! operation is the formula of its paper in scalar loops.
//!
//! It proves that the seam of `model` carries a device that shares nothing with the kernels of the
//! CPU: no panels, no packed formats, no chunks, no threads. It also is a second opinion on what each
//! operation computes; golden tests run every checkpoint on it.
//!
//! ```text
//! mod.rs         buffers, packing, KV moves: what a Device holds
//! ops.rs         norms, products, perceptrons, the head
//! attention.rs   rotation, grouped queries and latents over pages
//! experts.rs     routers and mixtures
//! recurrent.rs   convolutions and recurrences over states
//! selective.rs   selective scans over states
//! shift.rs       the mixers of RWKV-7
//! streams.rs     residual streams side by side
//! ```
//!
//! Sums are in f64 and rounded once. Nothing here aims at speed.

mod attention;
mod experts;
mod ops;
mod recurrent;
mod selective;
mod shift;
mod streams;

use std::io::{Error, ErrorKind};
use std::ops::Range;

use pelton_model::device::{MatrixSource, PackedForm, PackedSize, StepRows, StoredMatrix};
use pelton_model::rope::RopeTable;
use pelton_model::{
    CHUNK_TOKENS, Communicator, Compute, Device, KvDtype, KvPlace, KvShape, StateBytes, StateCopy,
    StateDtype, StateLayer, StateShape,
};
use pelton_quant::checkpoint::QuantizedTensor;
use pelton_quant::{QuantError, dequantize_tensor, for_dtype, quantize_tensor};
use pelton_tensor::TensorView;
use recurrent::States;

/// The plain device.
#[derive(Debug)]
pub struct PlainDevice {
    ranks: Ranks,
    /// Rotations of the step that is computed.
    ropes: Vec<RopeTable>,
}

/// A place among ranks that are not connected.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
}

/// Rows of activations, `[m, width]`.
#[derive(Clone, Debug)]
pub struct Rows {
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
}

/// A matrix `[n, k]` in rows.
#[derive(Debug)]
pub struct Matrix {
    n: usize,
    k: usize,
    values: Vec<f32>,
}

/// A paged KV cache in f32.
///
/// ```text
/// [ block ][ place ][ layer of the place ][ token of the block ][ head ][ key | value ]
/// ```
#[derive(Debug)]
pub struct PlainKv {
    shape: KvShape,
    values: Vec<f32>,
    states: States,
}

impl PlainDevice {
    /// The device, as the only rank of a model.
    pub fn new() -> Self {
        Self::on(Ranks { rank: 0, size: 1 })
    }

    /// The device as one of several ranks.
    pub fn on(ranks: Ranks) -> Self {
        Self { ranks, ropes: Vec::new() }
    }
}

impl Default for PlainDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Communicator for Ranks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl Rows {
    fn n(&self) -> usize {
        self.values.len() / self.width
    }

    fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width)
    }

    /// Becomes `n` rows of zeros.
    fn reset(&mut self, n: usize) -> impl Iterator<Item = &mut [f32]> {
        self.values.clear();
        self.values.resize(n * self.width, 0.0);
        self.values.chunks_exact_mut(self.width)
    }
}

impl Matrix {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.k..][..self.k]
    }

    /// `W x`.
    fn times(&self, x: &[f32]) -> Vec<f32> {
        (0..self.n).map(|row| dot(self.row(row), x)).collect()
    }
}

impl PlainKv {
    /// Floats of a token in one place of a block: of one layer, or of several narrower ones.
    fn token_len(shape: &KvShape) -> usize {
        let narrow = shape.narrow.map_or(0, |own| own.n_per_place * own.heads.n_elements());
        shape.heads.n_elements().max(narrow)
    }

    fn block_len(shape: &KvShape) -> usize {
        shape.n_layers * shape.block_size * Self::token_len(shape)
    }

    fn block(&self, block: u32) -> Range<usize> {
        let len = Self::block_len(&self.shape);
        block as usize * len..(block as usize + 1) * len
    }

    /// The floats of the token in a slot of a layer.
    fn token(&self, KvPlace { layer, nth, heads }: KvPlace, slot: u32) -> Range<usize> {
        let (size, own) = (self.shape.block_size, heads.n_elements());
        let (block, place) = (slot as usize / size, slot as usize % size);
        let before = (block * self.shape.n_layers + layer) * size * Self::token_len(&self.shape);
        let start = before + (nth * size + place) * own;
        start..start + own
    }

    /// Stores the key and the value of each head; no value where it is the beginning of its key.
    fn store(&mut self, place: KvPlace, slot: u32, keys: &[f32], values: &[f32]) {
        let heads = place.heads;
        let mut stored = Vec::new();
        for head in 0..heads.n {
            stored.extend_from_slice(&keys[head * heads.key_dim..][..heads.key_dim]);
            if !heads.values_in_keys {
                stored.extend_from_slice(&values[head * heads.value_dim..][..heads.value_dim]);
            }
        }
        let range = self.token(place, slot);
        self.values[range].copy_from_slice(&stored);
    }

    /// The key and the value of one head of the token in a slot.
    fn load(&self, place: KvPlace, slot: u32, head: usize) -> (&[f32], &[f32]) {
        let heads = place.heads;
        let token = &self.values[self.token(place, slot)];
        let own = &token[head * token.len() / heads.n..][..token.len() / heads.n];
        match heads.values_in_keys {
            true => (own, &own[..heads.value_dim]),
            false => own.split_at(heads.key_dim),
        }
    }
}

/// The inner product.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// The weights of a quantized matrix, inputs in the order in which it is packed.
fn dequantize(matrix: &QuantizedTensor<'_>) -> Result<Vec<f32>, QuantError> {
    let values = matrix.dequantize()?;
    match matrix.order().filter(|_| matrix.columns().is_none()) {
        None => Ok(values),
        Some(order) => {
            let rows = values.chunks_exact(matrix.shape()[1]);
            Ok(rows.flat_map(|row| order.iter().map(|&j| row[j as usize])).collect())
        }
    }
}

impl Device for PlainDevice {
    type Buf = Rows;
    type Weight = Matrix;
    type Vector = Vec<f32>;
    type Kv = PlainKv;
    type Rows<'a> = StepRows<'a>;
    type Comm = Ranks;

    const HEAD_ROWS: usize = 1;

    fn comm(&self) -> &Ranks {
        &self.ranks
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn packed_size(
        matrix: &StoredMatrix<'_, '_>,
        _compute: Compute,
    ) -> Result<Option<PackedSize>, QuantError> {
        let [n, k] = match *matrix {
            StoredMatrix::Tensor { shape, .. } => shape,
            StoredMatrix::Quantized(parts) => {
                [parts.iter().map(|part| part.shape()[0]).sum(), parts[0].shape()[1]]
            }
        };
        let n_bytes = (n * k * size_of::<f32>()) as u64;
        Ok(Some(PackedSize { layout: "f32 rows", n_bytes }))
    }

    fn pack(
        &self,
        matrix: &MatrixSource<'_, '_>,
        _compute: Compute,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<Matrix, QuantError> {
        let (mut values, k) = (
            Vec::new(),
            match *matrix {
                MatrixSource::Tensors(parts) | MatrixSource::Rounded(parts, _) => parts[0].shape[1],
                MatrixSource::Quantized(parts) => parts[0].shape()[1],
            },
        );
        match *matrix {
            MatrixSource::Tensors(parts) => {
                for part in parts {
                    values.extend(dequantize_tensor(part)?);
                }
            }
            MatrixSource::Rounded(parts, to) => {
                let format = for_dtype(to).expect("a type with a format");
                for part in parts {
                    let data = quantize_tensor(part, format)?;
                    values.extend(dequantize_tensor(&TensorView {
                        dtype: to,
                        data: &data,
                        ..*part
                    })?);
                }
            }
            MatrixSource::Quantized(parts) => {
                for part in parts {
                    values.extend(dequantize(part)?);
                }
            }
        }
        let n = values.len() / k;
        done(0..n);
        Ok(Matrix { n, k, values })
    }

    fn packed_form(&self) -> Option<&dyn PackedForm<Matrix>> {
        None
    }

    fn weight_bytes(weight: &Matrix) -> usize {
        size_of_val(&weight.values[..])
    }

    fn vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn buffer(&self, width: usize) -> Rows {
        Rows { width, values: Vec::new() }
    }

    fn input_buffer<'a>(
        &self,
        width: usize,
        _readers: impl IntoIterator<Item = &'a Matrix>,
    ) -> Rows {
        self.buffer(width)
    }

    fn read(&self, x: &Rows, out: &mut Vec<f32>) {
        out.clone_from(&x.values);
    }

    fn kv_block_bytes(shape: &KvShape) -> usize {
        PlainKv::block_len(shape) * size_of::<f32>()
    }

    /// In f32, of which the states themselves are kept in f64.
    fn state_bytes(states: &StateShape) -> StateBytes {
        let layers = &states.layers;
        let rows = |layer: &StateLayer| {
            // Everything that is projected: at most two numbers per head beside values and gates, or a
            // number per head and one per element of a key.
            let inputs = layer.channels.max(2 * layer.key_width() + layer.value_width());
            let fading = if layer.has_channel_decays { layer.key_width() } else { 0 };
            CHUNK_TOKENS * (inputs + layer.value_width() + 2 * layer.n_value_heads + fading)
        };
        let rows: usize = layers.iter().map(|layer| rows(layer) * size_of::<f32>()).sum();
        let tail = |layer: &StateLayer| (layer.taps - 1) * layer.channels * size_of::<f32>();
        let state = |layer: &StateLayer| layer.matrix() * size_of::<f64>() + tail(layer);
        let snapshot = layers.iter().map(state).sum();
        StateBytes { lane: rows + snapshot, snapshot }
    }

    fn copy_state(&self, kv: &mut PlainKv, copy: StateCopy) {
        kv.states.copy(copy);
    }

    fn copy_state_row(&self, kv: &mut PlainKv, lane: usize, from: usize, to: usize) {
        kv.states.copy_row(lane, from, to);
    }

    /// Keys and values are stored in f32 and in no other type, states in f64.
    fn new_kv(&self, shape: &KvShape, states: &StateShape) -> std::io::Result<PlainKv> {
        if states.dtype != StateDtype::F32 {
            let why = format!("states in {}: the plain device has f64 alone", states.dtype);
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if shape.dtype != KvDtype::F32 {
            let why = format!("keys and values in {}: the plain device has f32 alone", shape.dtype);
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let values = vec![0.0; shape.n_blocks * PlainKv::block_len(shape)];
        Ok(PlainKv { shape: *shape, values, states: States::new(states) })
    }

    fn kv_block_size(kv: &PlainKv) -> usize {
        kv.shape.block_size
    }

    fn copy_kv_block(&self, kv: &mut PlainKv, from: u32, to: u32) {
        let (from, to) = (kv.block(from), kv.block(to));
        kv.values.copy_within(from, to.start);
    }

    fn copy_kv_slot(&self, kv: &mut PlainKv, place: KvPlace, from: u32, to: u32) {
        let (from, to) = (kv.token(place, from), kv.token(place, to));
        kv.values.copy_within(from, to.start);
    }

    fn read_kv_block(&self, kv: &PlainKv, block: u32, bytes: &mut [u8]) {
        let values = &kv.values[kv.block(block)];
        for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
    }

    fn write_kv_block(&self, kv: &mut PlainKv, block: u32, bytes: &[u8]) {
        let range = kv.block(block);
        for (value, bytes) in kv.values[range].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}
