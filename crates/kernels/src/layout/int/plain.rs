//! Groups of 32 (or up to 128) plain integers: 8, 5 and 4 bits, with a zero or with minima.

use super::lines::{
    HALVES, bit_quad, half_at, nibble_quad, place_bits, place_bytes, place_half, place_nibbles,
    read_bits, read_bytes, read_nibbles,
};
use super::{Block, Bytes, Group, IntLayout, Range};
use crate::layout::GROUP;
use crate::layout::PANEL;

/// Nibbles as most 4-bit formats store a group: low ones first.
pub(super) fn source_nibbles(source: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|k| source[k % 16] >> (k / 16 * 4) & 15)
}

/// A signed byte as it is stored, and back.
fn flip(q: u8) -> u8 {
    q ^ 0x80
}

fn minus(q: [u8; GROUP], zero: u8) -> [i8; GROUP] {
    q.map(|q| q.wrapping_sub(zero).cast_signed())
}

/// `16 f16 scales | 8 lines`: GGUF `Q8_0`.
pub(crate) struct Q8G32;

// SAFETY: the head and 8 lines are the whole block.
unsafe impl IntLayout for Q8G32 {
    const LEN: usize = GROUP;
    const SOURCE_BYTES: usize = 34;
    const BLOCK_BYTES: usize = HALVES + 512;
    const RANGE: Range = Range::Signed;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(source, block, 0, lane);
        let q: &[u8; GROUP] = source[2..].first_chunk().expect("a block of 34 bytes");
        place_bytes(&q.map(flip), &mut block[HALVES..], lane);
    }

    fn read(block: &[u8], lane: usize, _group: usize) -> Group {
        let q = read_bytes(&block[HALVES..], lane).map(|q| flip(q).cast_signed());
        Group { q, scale: [half_at(block, 0, lane); 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, _: &[S::F; 2], block: Block, _: usize, _: usize) -> S::F {
        // SAFETY: the head of the block.
        s.halves(unsafe { block.at(0) })
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, _group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: lines `2 pair` and `2 pair + 1` of 8.
        unsafe { byte_quads(s, block, HALVES + pair * 128) }
    }
}

/// Two lines of bytes.
///
/// # Safety
///
/// They are inside the block.
#[inline(always)]
pub(super) unsafe fn byte_quads<S: Bytes>(s: S, block: Block, offset: usize) -> [S::B; 2] {
    // SAFETY: the caller vouches for 128 bytes.
    unsafe { [s.bytes(block.at(offset)), s.bytes(block.at(offset + 64))] }
}

/// `8 lines` per group, one f32 scale per output at the head of the panel.
pub(crate) struct Int8Row;

// SAFETY: 8 lines are the whole block.
unsafe impl IntLayout for Int8Row {
    const LEN: usize = GROUP;
    const SOURCE_BYTES: usize = 32;
    const BLOCK_BYTES: usize = 512;
    const RANGE: Range = Range::Signed;
    const SCALE_LEN: usize = usize::MAX;
    const ROW_SCALE: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        let q: &[u8; GROUP] = source.first_chunk().expect("a block of 32 bytes");
        place_bytes(&q.map(flip), block, lane);
    }

    fn read(block: &[u8], lane: usize, _group: usize) -> Group {
        let q = read_bytes(block, lane).map(|q| flip(q).cast_signed());
        Group { q, scale: [1.0; 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, _: &[S::F; 2], _: Block, _: usize, _: usize) -> S::F {
        s.splat(1.0)
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, _group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: lines `2 pair` and `2 pair + 1` of 8.
        unsafe { byte_quads(s, block, pair * 128) }
    }
}

/// Two quads of nibbles.
///
/// # Safety
///
/// The 4 lines at `offset` are inside the block.
#[inline(always)]
pub(super) unsafe fn nibble_quads<S: Bytes>(
    s: S,
    block: Block,
    offset: usize,
    pair: usize,
) -> [S::B; 2] {
    // SAFETY: the caller vouches for the lines.
    unsafe {
        [nibble_quad(s, block, offset, 2 * pair), nibble_quad(s, block, offset, 2 * pair + 1)]
    }
}

/// Two quads of nibbles with a fifth bit from the line at `high`.
///
/// # Safety
///
/// The 4 lines at `offset` and the line at `high` are inside the block.
#[inline(always)]
pub(super) unsafe fn five_bit_quads<S: Bytes>(
    s: S,
    block: Block,
    [offset, high]: [usize; 2],
    pair: usize,
) -> [S::B; 2] {
    // SAFETY: the caller vouches for the lines.
    unsafe {
        let [first, second] = nibble_quads(s, block, offset, pair);
        [
            s.or(first, bit_quad(s, block, [high, 4], 2 * pair)),
            s.or(second, bit_quad(s, block, [high, 4], 2 * pair + 1)),
        ]
    }
}

/// Defines a layout of one group with half-precision scales, and minima where `min`.
macro_rules! group_of_32 {
    (
        $(#[$doc:meta])* $name:ident, source $source:literal, min $min:literal, zero $zero:literal,
        high $high:literal
    ) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            /// Bytes of scales and minima, of the packed block and of the source's f16 numbers.
            const HEAD: usize = if $min { 2 * HALVES } else { HALVES };
            const SOURCE_HEAD: usize = if $min { 4 } else { 2 };
        }

        // SAFETY: the head, 4 lines of nibbles and the line of high bits are the whole block.
        unsafe impl IntLayout for $name {
            const LEN: usize = GROUP;
            const SOURCE_BYTES: usize = $source;
            const BLOCK_BYTES: usize = Self::HEAD + 256 + if $high { 64 } else { 0 };
            const RANGE: Range = Range::Unsigned { zero: $zero, most: if $high { 31 } else { 15 } };
            const BIAS: bool = $min;

            fn place(source: &[u8], block: &mut [u8], lane: usize) {
                place_half(source, block, 0, lane);
                if $min {
                    place_half(&source[2..], block, HALVES, lane);
                }
                let source = &source[Self::SOURCE_HEAD..];
                let nibbles = source_nibbles(if $high { &source[4..] } else { source });
                place_nibbles(&nibbles, &mut block[Self::HEAD..], lane);
                if $high {
                    let bits = std::array::from_fn(|k| source[k / 8] >> (k % 8) & 1);
                    place_bits(&bits, &mut block[Self::HEAD + 256..], lane);
                }
            }

            fn read(block: &[u8], lane: usize, _group: usize) -> Group {
                let mut q = read_nibbles(&block[Self::HEAD..], lane);
                if $high {
                    let high = read_bits(&block[Self::HEAD + 256..], lane);
                    q.iter_mut().zip(high).for_each(|(q, high)| *q |= high << 4);
                }
                let bias = if $min { half_at(block, HALVES, lane) } else { 0.0 };
                Group { q: minus(q, $zero), scale: [half_at(block, 0, lane); 2], bias: [bias; 2] }
            }

            #[inline(always)]
            unsafe fn scale<S: Bytes>(
                s: S, _: &[S::F; 2], block: Block, _: usize, _: usize,
            ) -> S::F {
                // SAFETY: the head of the block.
                s.halves(unsafe { block.at(0) })
            }

            #[inline(always)]
            unsafe fn bias<S: Bytes>(
                s: S, _: &[S::F; 2], block: Block, _: usize, _: usize,
            ) -> S::F {
                // SAFETY: called only where the head has minima.
                s.halves(unsafe { block.at(HALVES) })
            }

            #[inline(always)]
            unsafe fn weights<S: Bytes>(
                s: S, block: Block, _group: usize, pair: usize,
            ) -> [S::B; 2] {
                // SAFETY: the lines follow the head.
                unsafe {
                    if $high {
                        five_bit_quads(s, block, [Self::HEAD, Self::HEAD + 256], pair)
                    } else {
                        nibble_quads(s, block, Self::HEAD, pair)
                    }
                }
            }
        }
    };
}

group_of_32! {
    /// `16 f16 scales | 4 lines of nibbles`: GGUF `Q4_0`.
    Q4G32, source 18, min false, zero 8, high false
}
group_of_32! {
    /// `16 f16 scales | 16 f16 minima | 4 lines of nibbles`: GGUF `Q4_1`.
    Q4G32Min, source 20, min true, zero 0, high false
}
group_of_32! {
    /// `16 f16 scales | 4 lines of nibbles | 1 line of fifth bits`: GGUF `Q5_0`.
    Q5G32, source 22, min false, zero 16, high true
}
group_of_32! {
    /// `16 f16 scales | 16 f16 minima | 4 lines of nibbles | 1 line of fifth bits`: GGUF `Q5_1`.
    Q5G32Min, source 24, min true, zero 0, high true
}

/// `16 f16 scales | 16 zero points | 4 lines of nibbles per group of 32`: one scale and one zero
/// point for `32 GROUPS` inputs, as GPTQ and AWQ have them.
///
/// Source block: f16 scale, zero point in one byte (0 to 16), then 16 bytes of nibbles per 32
/// inputs, low ones first. The weight `scale * (q - zero)` is exact in single precision, and so is
/// `scale * q + bias` with `bias = -scale * zero`.
pub(crate) struct Int4<const GROUPS: usize>;

/// Bytes of scales and zero points.
const INT4_HEAD: usize = HALVES + PANEL;

// SAFETY: the head and 4 lines per group are the whole block.
unsafe impl<const GROUPS: usize> IntLayout for Int4<GROUPS> {
    const LEN: usize = GROUPS * GROUP;
    const SOURCE_BYTES: usize = 3 + GROUPS * 16;
    const BLOCK_BYTES: usize = INT4_HEAD + GROUPS * 256;
    const RANGE: Range = Range::Unsigned { zero: 0, most: 15 };
    const SCALE_LEN: usize = Self::LEN;
    const BIAS: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(source, block, 0, lane);
        block[HALVES + lane] = source[2];
        let lines = block[INT4_HEAD..].chunks_mut(256);
        for (source, lines) in source[3..].chunks(16).zip(lines) {
            place_nibbles(&source_nibbles(source), lines, lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let scale = half_at(block, 0, lane);
        let q = read_nibbles(&block[INT4_HEAD + group * 256..], lane).map(u8::cast_signed);
        let bias = -(scale * f32::from(block[HALVES + lane]));
        Group { q, scale: [scale; 2], bias: [bias; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the head of the block.
        let (scale, zero) = unsafe { (s.halves(block.at(0)), s.unsigned(block.at(HALVES))) };
        [scale, s.mul(s.mul(scale, zero), s.splat(-1.0))]
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(_: S, head: &[S::F; 2], _: Block, _: usize, _: usize) -> S::F {
        head[0]
    }

    #[inline(always)]
    unsafe fn bias<S: Bytes>(_: S, head: &[S::F; 2], _: Block, _: usize, _: usize) -> S::F {
        head[1]
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: the lines of the group.
        unsafe { nibble_quads(s, block, INT4_HEAD + group * 256, pair) }
    }
}
