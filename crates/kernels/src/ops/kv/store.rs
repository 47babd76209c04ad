//! Writing new keys and values into their slots.

use bytemuck::cast_slice;
use half::{bf16, f16};

use super::{KvCache, KvDtype, KvElement, KvLayer};
use crate::Cpu;
use crate::simd::LANES;
use crate::team::Parts;

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

/// New keys and values, and their slots.
#[derive(Clone, Copy, Debug)]
pub struct StoreKv<'a> {
    /// Keys `[m, n_kv_heads * key_dim]`, already rotated.
    pub k: StridedRows<'a>,
    /// Values `[m, n_kv_heads * value_dim]`; `None` where they are in the keys.
    pub v: Option<StridedRows<'a>>,
    /// For each row `block * block_size + place in the block`.
    pub slots: &'a [u32],
}

impl Cpu {
    /// Writes new keys and values of one layer into their slots.
    ///
    /// Where several rows have the same slot, the last one wins.
    ///
    /// # Panics
    ///
    /// When a slot, row or layer does not exist, or values are given to a cache that has them in
    /// its keys, or none to another.
    pub fn store_kv(&self, kv: &mut KvCache, layer: impl Into<KvLayer>, input: &StoreKv<'_>) {
        let layer = layer.into();
        match kv.shape().dtype {
            KvDtype::F32 => self.store_as::<f32>(kv, layer, input),
            KvDtype::Bf16 => self.store_as::<bf16>(kv, layer, input),
            KvDtype::F16 => self.store_as::<f16>(kv, layer, input),
            KvDtype::Fp8 => self.store_as::<u8>(kv, layer, input),
            KvDtype::Int8 => self.store_as::<i8>(kv, layer, input),
        }
    }

    fn store_as<T: KvElement>(&self, kv: &mut KvCache, layer: KvLayer, input: &StoreKv<'_>) {
        let (shape, _) = kv.find(layer);
        let n_slots = shape.n_blocks * shape.block_size;
        for &slot in input.slots {
            assert!((slot as usize) < n_slots, "invariant: slot {slot} of {n_slots}");
        }
        let is_stored = !shape.values_in_keys;
        assert_eq!(input.v.is_some(), is_stored, "invariant: values are stored or in the keys");
        let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
        let parts = Parts::new(kv.layer_mut::<T>(layer));
        // Cut by heads and not by rows: heads are disjoint even where slots repeat.
        let n_elements = 2 * input.slots.len() * (key_dim + value_dim);
        self.for_each_part(shape.n_kv_heads, n_elements, |heads| {
            let put_scale = |at, scale: f32| {
                if T::HAS_SCALES {
                    // SAFETY: these are scales of a head, which belongs to one tile.
                    let out = unsafe { parts.part(at) };
                    out.copy_from_slice(cast_slice(&[scale]));
                }
            };
            for head in heads {
                for (row, &slot) in input.slots.iter().enumerate() {
                    let (block, place) =
                        (slot as usize / shape.block_size, slot as usize % shape.block_size);
                    let places = place..place + 1;
                    if let Some(v) = &input.v {
                        let value = v.row(row, shape.n_kv_heads * value_dim);
                        let value = &value[head * value_dim..(head + 1) * value_dim];
                        let (factor, scale) = T::factor_and_scale(self, value);
                        put_scale(shape.value_scales(block, head, places.clone()), scale);
                        let values = shape.values(block, head, places.clone());
                        // SAFETY: these are values of `head`, which belongs to one tile.
                        let out = unsafe { parts.part(values) };
                        T::convert(self, value, factor, &mut out[..value_dim]);
                    }
                    let key = input.k.row(row, shape.n_kv_heads * key_dim);
                    let key = &key[head * key_dim..(head + 1) * key_dim];
                    let (key_factor, scale) = T::factor_and_scale(self, key);
                    put_scale(shape.key_scales(block, head, places), scale);
                    // SAFETY: these are keys of `head`, which belongs to one tile.
                    let keys = unsafe { parts.part(shape.key_group(block, head, place)) };
                    // A group of 64 elements at a time, converted on the stack, then scattered.
                    for (first, key) in (0..).step_by(64).zip(key.chunks(64)) {
                        let mut converted = [T::zeroed(); 64];
                        T::convert(self, key, key_factor, &mut converted[..key.len()]);
                        for (i, &x) in converted[..key.len()].iter().enumerate() {
                            keys[(first + i) * LANES + place % LANES] = x;
                        }
                    }
                }
            }
        });
    }
}
