//! Codes of 2, 4 and 8 bits with a scale and a zero point that is a number like the scale.
//!
//! ```text
//! weight = scale * (code - zero)         the zero point seldom whole: HQQ; whole ones of 8 bits: GPTQ
//!
//! block  = scales | zero points | groups       each a row of 16 f16 or f32, two where 16 inputs share one
//! group  = 8 lines of bytes, 4 of nibbles or 2 of pairs
//!
//!              layout                 bits per weight   source block
//!   f16        Affine2G64 Affine4G64   2.5  4.5         scale, zero point, 2 groups
//!              Affine4G32 Affine8G32   5    9           scale, zero point, 1 group
//!              Affine2G16 Affine4G16   4    6           2 scales, 2 zero points, 1 group
//!   f32        Affine4G32Wide Affine8G32Wide  6  10     scale, zero point, 1 group
//! ```
//!
//! Scale and zero point are kept as they are stored, and a weight is unpacked as it is defined: the
//! difference, then the product. The product of the matrix takes it apart, `scale * code + bias`
//! with `bias = -(scale * zero)`, because `Σ x code` is then exact in integers. Where both are
//! numbers of f16 the bias is exact (11 bits times 11), else it is rounded once, to f32: by at most
//! 2⁻²⁴ of `scale * zero`, where libraries round `code - zero` itself to 11 or 8 bits.
//!
//! Bytes are stored as signed ones, 128 less than the code, so their zero point is as well.
//!
//! Considered and not taken: bf16 numbers (a kernel more for each; those of real scales and zero
//! points, 8 bits long and above 2⁻¹⁷, are numbers of f16 too); minima in place of zero points (the
//! rounded product would be stored, and the zero point lost); zero points of nibbles alone (HQQ
//! fits them to the weights and not to a grid).

use std::marker::PhantomData;

use super::lines::{
    HALVES, half_at, pair_quads, place_bytes, place_nibbles, place_pairs, read_bytes, read_nibbles,
    read_pairs,
};
use super::plain::{byte_quads, nibble_quads, source_nibbles};
use super::{Block, Bytes, Group, HALF, IntLayout, Range};
use crate::layout::GROUP;
use crate::layout::PANEL;

/// How scales and zero points are stored.
pub(crate) trait Number {
    /// Bytes of one.
    const BYTES: usize;

    /// The number of `lane` in a row of sixteen at `offset`.
    fn read(block: &[u8], offset: usize, lane: usize) -> f32;

    /// A row of sixteen at `offset`.
    ///
    /// # Safety
    ///
    /// The row is inside the block.
    unsafe fn load<S: Bytes>(s: S, block: Block, offset: usize) -> S::F;
}

/// f16.
pub(crate) struct Half;

impl Number for Half {
    const BYTES: usize = HALVES / PANEL;

    fn read(block: &[u8], offset: usize, lane: usize) -> f32 {
        half_at(block, offset, lane)
    }

    #[inline(always)]
    unsafe fn load<S: Bytes>(s: S, block: Block, offset: usize) -> S::F {
        // SAFETY: the caller vouches for the row.
        s.halves(unsafe { block.at(offset) })
    }
}

/// f32.
pub(crate) struct Single;

impl Number for Single {
    const BYTES: usize = 4;

    fn read(block: &[u8], offset: usize, lane: usize) -> f32 {
        bytemuck::pod_read_unaligned(&block[offset + lane * 4..][..4])
    }

    #[inline(always)]
    unsafe fn load<S: Bytes>(s: S, block: Block, offset: usize) -> S::F {
        // SAFETY: the caller vouches for the row.
        s.floats(unsafe { block.at(offset) })
    }
}

/// Codes of `BITS` bits, `SHARE` of which have a scale and a zero point of the kind `N`; see the
/// drawing at the head of the file.
pub(crate) struct Affine<N, const BITS: usize, const SHARE: usize>(PhantomData<N>);

pub(crate) type Affine2G16 = Affine<Half, 2, 16>;
pub(crate) type Affine2G64 = Affine<Half, 2, 64>;
pub(crate) type Affine4G16 = Affine<Half, 4, 16>;
pub(crate) type Affine4G32 = Affine<Half, 4, 32>;
pub(crate) type Affine4G64 = Affine<Half, 4, 64>;
pub(crate) type Affine8G32 = Affine<Half, 8, 32>;
pub(crate) type Affine4G32Wide = Affine<Single, 4, 32>;
pub(crate) type Affine8G32Wide = Affine<Single, 8, 32>;

impl<N: Number, const BITS: usize, const SHARE: usize> Affine<N, BITS, SHARE> {
    /// Scales of a block: 1, or 2 where they belong to halves of a group.
    const N_SCALES: usize = if SHARE < GROUP { GROUP / SHARE } else { 1 };
    /// Bytes of a row of scales or zero points.
    const ROW: usize = PANEL * N::BYTES;
    /// Where the zero points begin.
    const ZEROS: usize = Self::N_SCALES * Self::ROW;
    /// Where the groups begin.
    const HEAD: usize = 2 * Self::ZEROS;
    /// Bytes of the lines of a group.
    const GROUP_BYTES: usize = BITS * 64;
    /// The code that is stored as 0.
    const OFFSET: f32 = if BITS == 8 { 128.0 } else { 0.0 };

    /// The codes of a group.
    fn codes(block: &[u8], lane: usize, group: usize) -> [u8; GROUP] {
        let lines = &block[Self::HEAD + group * Self::GROUP_BYTES..];
        match BITS {
            2 => read_pairs(lines, lane),
            4 => read_nibbles(lines, lane),
            _ => read_bytes(lines, lane),
        }
    }

    /// Scale and zero point of half `half` of the groups.
    fn numbers(block: &[u8], lane: usize, half: usize) -> [f32; 2] {
        let row = half % Self::N_SCALES * Self::ROW;
        [row, Self::ZEROS + row].map(|offset| N::read(block, offset, lane))
    }

    /// Scales and biases of half `half` of the groups.
    ///
    /// # Safety
    ///
    /// `block` is a block of this layout.
    #[inline(always)]
    unsafe fn load<S: Bytes>(s: S, block: Block, half: usize) -> [S::F; 2] {
        let row = half % Self::N_SCALES * Self::ROW;
        // SAFETY: the block begins with the scales, which the zero points follow.
        let (scale, zero) =
            unsafe { (N::load(s, block, row), N::load(s, block, Self::ZEROS + row)) };
        let zero = s.sub(zero, s.splat(Self::OFFSET));
        [scale, s.mul(s.mul(scale, zero), s.splat(-1.0))]
    }
}

// SAFETY: the head and the lines of the groups are the whole block.
unsafe impl<N: Number, const BITS: usize, const SHARE: usize> IntLayout for Affine<N, BITS, SHARE> {
    const LEN: usize = if SHARE < GROUP { GROUP } else { SHARE };
    const SOURCE_BYTES: usize = 2 * Self::N_SCALES * N::BYTES + Self::LEN * BITS / 8;
    const BLOCK_BYTES: usize = Self::HEAD + Self::LEN / GROUP * Self::GROUP_BYTES;
    const RANGE: Range = match BITS {
        8 => Range::Signed,
        _ => Range::Unsigned { zero: 0, most: (1 << BITS) - 1 },
    };
    const SPLIT: bool = SHARE == HALF;
    const SCALE_LEN: usize = Self::LEN;
    const BIAS: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        let (numbers, codes) = source.split_at(2 * Self::N_SCALES * N::BYTES);
        for (row, number) in numbers.chunks(N::BYTES).enumerate() {
            block[row * Self::ROW + lane * N::BYTES..][..N::BYTES].copy_from_slice(number);
        }
        let lines = block[Self::HEAD..].chunks_mut(Self::GROUP_BYTES);
        for (source, lines) in codes.chunks(BITS * GROUP / 8).zip(lines) {
            match BITS {
                2 => {
                    let pairs = std::array::from_fn(|k| source[k % 8] >> (k / 8 * 2) & 3);
                    place_pairs(&pairs, lines, lane);
                }
                4 => place_nibbles(&source_nibbles(source), lines, lane),
                _ => place_bytes(source.first_chunk().expect("32 bytes"), lines, lane),
            }
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let numbers = [0, 1].map(|half| Self::numbers(block, lane, half));
        Group {
            q: Self::codes(block, lane, group)
                .map(|code| code.wrapping_sub(Self::OFFSET as u8).cast_signed()),
            scale: numbers.map(|[scale, _]| scale),
            bias: numbers.map(|[scale, zero]| -(scale * (zero - Self::OFFSET))),
        }
    }

    fn unpack(block: &[u8], lane: usize, group: usize, _: f32) -> [f32; GROUP] {
        let codes = Self::codes(block, lane, group);
        let numbers = [0, 1].map(|half| Self::numbers(block, lane, half));
        std::array::from_fn(|i| {
            let [scale, zero] = numbers[i / HALF];
            scale * (f32::from(codes[i]) - zero)
        })
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the caller vouches for the block.
        if Self::SPLIT { [s.splat(0.0); 2] } else { unsafe { Self::load(s, block, 0) } }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, _: usize, half: usize) -> S::F {
        // SAFETY: as above.
        if Self::SPLIT { unsafe { Self::load(s, b, half)[0] } } else { head[0] }
    }

    #[inline(always)]
    unsafe fn bias<S: Bytes>(s: S, head: &[S::F; 2], b: Block, _: usize, half: usize) -> S::F {
        // SAFETY: as above.
        if Self::SPLIT { unsafe { Self::load(s, b, half)[1] } } else { head[1] }
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = Self::HEAD + group * Self::GROUP_BYTES;
        // SAFETY: the lines of the group.
        unsafe {
            match BITS {
                8 => byte_quads(s, block, lines + pair * 128),
                4 => nibble_quads(s, block, lines, pair),
                _ => pair_quads(s, block, lines, pair),
            }
        }
    }
}

const _: () = assert!(Affine4G64::BLOCK_BYTES == PANEL * Affine4G64::SOURCE_BYTES);
const _: () = assert!(Affine2G16::BLOCK_BYTES == PANEL * Affine2G16::SOURCE_BYTES);
const _: () = assert!(Affine8G32Wide::BLOCK_BYTES == PANEL * Affine8G32Wide::SOURCE_BYTES);
