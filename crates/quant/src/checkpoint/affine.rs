//! Matrices of integers as source rows of the affine layouts: scale and zero point of one kind.
//!
//! ```text
//! block = scales | zero points | codes of 32 inputs | ...     f16 or f32; codes of 2, 4 or 8 bits
//! ```
//!
//! Scales and zero points are kept as the method stores them, so nothing is rounded. The product of
//! such a layout computes `scale * zero`; a matrix in which that is infinite does not fit.

use half::f16;
use pelton_kernels::WeightLayout;

use super::layouts::is_f16;
use super::matrix::{Matrix, Meaning};

/// Bits of a code, inputs that share a scale, and whether scales and zero points are numbers of
/// f16.
struct Kind {
    bits: usize,
    share: usize,
    is_half: bool,
}

impl Kind {
    fn of(layout: WeightLayout) -> Option<Self> {
        let (bits, share, is_half) = match layout {
            WeightLayout::Affine2G16 => (2, 16, true),
            WeightLayout::Affine2G64 => (2, 64, true),
            WeightLayout::Affine4G16 => (4, 16, true),
            WeightLayout::Affine4G32 => (4, 32, true),
            WeightLayout::Affine4G64 => (4, 64, true),
            WeightLayout::Affine8G32 => (8, 32, true),
            WeightLayout::Affine4G32Wide => (4, 32, false),
            WeightLayout::Affine8G32Wide => (8, 32, false),
            _ => return None,
        };
        Some(Self { bits, share, is_half })
    }

    /// Writes a number to the front of `out`, and moves `out` behind it.
    fn put(&self, number: f32, out: &mut &mut [u8]) {
        let n_bytes = if self.is_half { size_of::<f16>() } else { size_of::<f32>() };
        let (front, rest) = std::mem::take(out).split_at_mut(n_bytes);
        match self.is_half {
            true => front.copy_from_slice(&f16::from_f32(number).to_le_bytes()),
            false => front.copy_from_slice(&number.to_le_bytes()),
        }
        *out = rest;
    }
}

/// The codes of 32 inputs.
fn pack(bits: usize, codes: &[u8], out: &mut [u8]) {
    let n_bytes = out.len();
    for (k, byte) in out.iter_mut().enumerate() {
        let part = |i: usize| codes[k + i * n_bytes] << (i * bits);
        *byte = (0..8 / bits).fold(0, |byte, i| byte | part(i));
    }
}

impl Matrix<'_> {
    /// Whether `layout` is an affine one that holds every weight exactly.
    pub(super) fn fits_affine(&self, layout: WeightLayout, order: Option<&[u32]>) -> bool {
        let (Some(kind), Meaning::Integer { most }) = (Kind::of(layout), self.meaning) else {
            return false;
        };
        let k = self.shape[1];
        let holds = |x: &f32| !kind.is_half || is_f16(*x);
        // Products of numbers of f16 are finite.
        let largest = |values: &[f32]| values.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let is_finite = (largest(&self.scales.values) * largest(&self.zeros.values)).is_finite();
        usize::from(most) < 1 << kind.bits
            && self.divisor == 1.0
            && is_finite
            && [&self.scales, &self.zeros].into_iter().all(|shared| {
                shared.groups.are_uniform(k, kind.share, order) && shared.values.iter().all(holds)
            })
    }

    /// Writes the codes of row `row`, whose inputs come in `order`, as a source row of an affine
    /// layout.
    ///
    /// # Panics
    ///
    /// When `layout` is none.
    pub(super) fn fill_affine(
        &self,
        layout: WeightLayout,
        order: Option<&[u32]>,
        (row, codes): (usize, &[u8]),
        out: &mut [u8],
    ) {
        let kind = Kind::of(layout).expect("invariant: an affine layout");
        let at = |j: usize| order.map_or(j, |order| order[j] as usize);
        let len = layout.block_len();
        let blocks = out.chunks_exact_mut(layout.row_bytes(len)).zip(codes.chunks_exact(len));
        for (b, (mut block, codes)) in blocks.enumerate() {
            let shares = || (b * len..(b + 1) * len).step_by(kind.share).map(at);
            shares().for_each(|j| kind.put(self.scale(row, j), &mut block));
            shares().for_each(|j| kind.put(self.zero(row, j), &mut block));
            let groups = block.chunks_exact_mut(kind.bits * 4).zip(codes.chunks_exact(32));
            groups.for_each(|(out, codes)| pack(kind.bits, codes, out));
        }
    }
}
